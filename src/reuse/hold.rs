//! What keeps a tree alive for a range of it.
//!
//! A range keeps the tree, and ranges come and go with each request. One count of references would
//! be one line of memory that all threads write with each pin; so a tree has several holds, each with
//! a count of its own, and a thread takes its own one.

use std::ops::Deref;
use std::sync::Arc;

use super::shard::{shard_index, SHARDS};
use super::tree::Shared;

/// Keeps the tree as an `Arc` of it does. Aligned away from its own count, which is written all the
/// time, and from other holds.
#[repr(align(128))]
pub(super) struct Hold(Arc<Shared>);

impl Hold {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(shared)))
    }
}

impl Deref for Hold {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// The holds of one tree.
pub(super) struct Holds([Arc<Hold>; SHARDS]);

impl Holds {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self(std::array::from_fn(|_| Hold::new(shared)))
    }

    /// The calling thread's.
    pub(super) fn take(&self) -> Arc<Hold> {
        Arc::clone(&self.0[shard_index()])
    }
}
