//! Tokens -> names; and the tree of blocks that are held under those names.
//!
//! A [`Sequence`] cuts a request's tokens into blocks and gives each block two identities, both
//! chained from the root: a 64-bit *block hash*, the one routers and events use, and a 32-byte
//! *content name*. Only names decide whether two blocks are the same: hashes of 64 bits collide
//! and can be made to. A [`ReuseTree`] knows which block ids hold which names, window by window,
//! and protects blocks with pins; a [`BlockRange`] is a pin together with the blocks it protects.
//!
//! | file | subject |
//! |---|---|
//! | `block_hash`, `key`, `content_name` | what a block is |
//! | `multimodal`, `sequence` | from tokens and images to blocks |
//! | `node`, `lookup`, `window` | the blocks of one attention window |
//! | `pin`, `range`, `tree` | protection, and the thread-safe whole |
//! | `verify` | that the parts agree, for tests |
//!
//! Pure: time, seeds and block ids come in as values. In this version the host owns eviction
//! (*arbiter* mode): it picks victims and asks [`ReuseTree::evict`].

mod block_hash;
mod content_name;
mod error;
mod key;
mod lookup;
mod multimodal;
mod node;
mod pin;
mod range;
mod sequence;
mod tree;
mod verify;
mod window;

pub use content_name::Name;
pub use error::ReuseError;
pub use multimodal::MmItem;
pub use node::{BlockId, Tier};
pub use pin::PinId;
pub use range::BlockRange;
pub use sequence::{
    Sequence, SequenceParams, MAX_IDENTITY_BYTES, MAX_TOKENS, MAX_TOKENS_PER_BLOCK,
};
pub use tree::{
    BlockState, Evicted, NoObserver, PinOutcome, Policy, PrefixMatch, RangeRequest, ReuseTree,
    ReuseTreeConfig, TreeObserver, TreeStatistics, MAX_WINDOWS, WINDOW_FULL,
};
