//! kvhints: from a router's KV hint to KV blocks moved between workers.
//!
//! The rooms, in the order in which data flows; each knows only rooms above it:
//!
//! | room | from | to |
//! |---|---|---|
//! | [`telemetry`], [`poison`], [`clock`], `wire` | | metrics, the mark of a fault, the port for time, numbers as bytes |
//! | [`hint`] | untrusted bytes | an immutable [`hint::Snapshot`], or a verdict |
//! | [`plan`] | snapshot + request profile + server configuration | one decision, [`plan::Plan`] |
//! | [`reuse`] | tokens | block hashes, content names, and the tree of blocks that are held |
//! | [`broadcast`] | a batch on rank 0 | the same batch on every rank |
//! | [`transfer`] | a plan and names | blocks fetched from another worker, verified |
//! | [`capi`] | C calls | calls into the rooms; the only exported symbols |
//!
//! `hint`, `plan` and `reuse` are pure: no socket, clock, environment or thread. Time and
//! randomness come in as values. `tests/layering.rs` keeps it so.

pub mod broadcast;
pub mod capi;
pub mod clock;
pub mod hint;
pub mod plan;
pub mod poison;
pub mod reuse;
mod sync;
pub mod telemetry;
pub mod transfer;
mod wire;
