//! bytes -> [`Snapshot`], or a [`Verdict`] that there is none.
//!
//! ```text
//! JSON ────────────────────────┐
//! MessagePack ─ msgpack::decode ┴─> scan ─events─> judge ──> Verdict
//! body ─────── body (a hint's bytes)                 └─ canonical, names ─> Snapshot
//! key ring ─── signature (is it authentic?)
//! parts ────── builder (each judged when it is added)
//! ```
//!
//! | file | subject |
//! |---|---|
//! | [`limits`] | every bound |
//! | [`admission`] | the order of tests, from raw bytes to a verdict |
//! | [`scan`] | the grammar of JSON, one pass, told as events |
//! | [`judge`] | what the events say of an envelope of version 0.1 |
//! | [`canonical`], [`names`] | the canonical form; names that occur twice |
//! | [`snapshot`] | the admitted hint |
//! | [`signature`] | key rings: which hints over HTTP are trusted, where keys decide |
//! | [`msgpack`], [`body`], [`body_msgpack`] | the other forms in which hints come in and go out |
//! | [`builder`] | envelopes made by the host itself |
//! | [`explain`] | why a hint came to its verdict: a rule of the table, and the place |
//!
//! The table of admission. The first row that does not hold decides; "row n" in this room is a row
//! of it.
//!
//! | row | test | verdict |
//! |---|---|---|
//! | 1 | there are bytes other than blanks and `null` | absent |
//! | 2 | the ingress is trusted: in-process, a switch, or a signature | untrusted |
//! | 3 | at most [`limits::RAW_MAX_BYTES`] raw bytes | oversized |
//! | 4 | exactly one RFC 8259 text in strict UTF-8 | malformed |
//! | 5 | an object | malformed |
//! | 6 | `protocol_version` there once, a string | malformed |
//! | 7 | `protocol_version` is 0.1 | unknown version |
//! | 8 | at most [`limits::CANONICAL_MAX_BYTES`] in canonical form | oversized |
//! | 9 | the structure of version 0.1 | malformed |
//! | 10 | integers in -2^63 .. 2^64-1, floats finite | malformed |
//! | 11 | at most [`limits::DEPTH_MAX`] containers open at once | malformed |
//! | 12 | no member name twice in one object | malformed |
//!
//! Pure: trust, seeds and scratch memory come in as values.

pub mod admission;
pub mod body;
pub mod body_msgpack;
pub mod builder;
mod canonical;
pub mod explain;
mod judge;
pub mod limits;
mod msgpack;
mod names;
mod scan;
mod scratch;
pub mod signature;
pub mod snapshot;

pub use admission::{admit, admit_msgpack, Ingress, Verdict};
pub use body::{admit_body, BodyError, SplitBody};
pub use body_msgpack::admit_body_msgpack;
pub use builder::{BuildError, EnvelopeBuilder};
pub use scratch::Scratch;
pub use signature::{KeyRing, SignatureFault, Verifier};
pub use snapshot::{Action, Snapshot, SnapshotError};
