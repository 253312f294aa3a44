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
//!
//! Pure: trust, seeds and scratch memory come in as values.

pub mod admission;
pub mod body;
pub mod body_msgpack;
pub mod builder;
mod canonical;
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
