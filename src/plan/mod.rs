//! Snapshot + request profile + server configuration -> one decision, [`Plan`].
//!
//! ```text
//! Snapshot ──┐
//! Capabilities ─ candidates ─┐
//! RequestProfile ────────────┼─ decision ── Plan ── to every rank
//! BindingTable ──────────────┘
//! AllowList: the same destination, checked again and configured apart by the provider: whoever
//!            carries the fetch out (here the transceiver)
//! ```
//!
//! | file | what |
//! |---|---|
//! | `candidates` | which actions of a hint some family supports |
//! | `payload` | what a `kv.fetch` action says: endpoint and range |
//! | `endpoint`, `address` | where it leads, in one spelling; which addresses that may be |
//! | `binding`, `binding_file` | the server's configuration, from code or from a file |
//! | `decision` | the order of questions, and the plan |
//! | `plan_bytes` | a plan for the other ranks |
//! | `allow_list` | the provider's own list |
//!
//! Pure: the same inputs give the same plan on every rank. Nothing here resolves a name, opens a
//! connection, reads a clock or keeps a counter; counts go back to the caller. A hint can only ever
//! ask for something the server's configuration already allows, and a refusal takes nothing away
//! but the optional reuse.

mod address;
mod allow_list;
mod binding;
mod binding_file;
mod candidates;
mod decision;
mod endpoint;
mod payload;
mod plan_bytes;
mod step;

pub use address::{AddressBounds, AddressBoundsError};
pub use allow_list::{AllowList, AllowListError, DestinationError};
pub use binding::{Addressing, Binding, BindingTable, BindingTableError};
pub use binding_file::bytes_from_hex;
pub use candidates::{Candidate, Candidates, Capabilities, CapabilitiesFull, Counts};
pub use decision::{
    decide, decide_observed, Decision, NamedFetch, Plan, Refusal, RequestKind, RequestProfile,
};
pub use endpoint::{Endpoint, EndpointError, Scheme};
pub use payload::{FetchPayload, HashDialect, PayloadError, MAX_BLOCKS};
pub use plan_bytes::PlanBytesError;
pub use step::Step;

/// Longest name of a family, binding, action type or action version, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest namespace that a binding can be authorised for, in bytes.
pub const MAX_NAMESPACE_BYTES: usize = 1024;
/// Longest configuration file, in bytes.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// Longest string of a configuration file as it is written there, in bytes: any namespace fits, and
/// what a parser copies of one string stays small.
pub const MAX_FILE_STRING_BYTES: usize = 8 << 10;

/// The action type whose actions can become a fetch of blocks.
pub const FETCH: &str = "kv.fetch";
