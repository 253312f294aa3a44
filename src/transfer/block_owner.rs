//! The port to whoever owns blocks: finds and pins them for peers, sets them aside for what is
//! fetched, takes what was fetched, and says where each lies.
//!
//! The library's own owner is a reuse tree with a pool ([`TreeAndPool`]); a host with block management
//! of its own gives another one.
//!
//! Guards: what a peer is sent is pinned from before it is looked at until the last byte has left;
//! dropping what [`BlockOwner::pin`] gave unpins once.
//! Never does: decide which blocks are wanted.

use std::any::Any;
use std::sync::Arc;

use super::device::pool::DevicePool;
use super::memory::{BlockMemory, BlockPool};
use super::transport::Segment;
use crate::reuse::{Name, Policy, ReuseError, ReuseTree, TextTail};

/// A pinned block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedBlock {
    /// Its id, which says where it lies.
    pub id: i32,
    /// The hash under which routers know it.
    pub block_hash: u64,
}

/// What an owner holds of some names.
pub struct Held {
    /// How many of the names, from the first.
    pub present: usize,
    /// The blocks, pinned; `None` when they are too few for the policy.
    pub pinned: Option<Pinned>,
}

/// Blocks that stay where and what they are until this is dropped.
pub struct Pinned {
    /// The blocks of the first names.
    pub blocks: Vec<PinnedBlock>,
    /// The pin: dropping it unpins, once.
    _pin: Box<dyn Any + Send>,
}

impl Pinned {
    /// Blocks, and what unpins them when it is dropped.
    pub fn new(blocks: Vec<PinnedBlock>, pin: impl Any + Send) -> Self {
        Self { blocks, _pin: Box::new(pin) }
    }
}

/// Why an owner could not do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// Not now: no memory, or no blocks.
    #[error("the owner of blocks has no memory or no free blocks now: try again later")]
    Busy,
    /// The owner does not do that.
    #[error("this owner of blocks sets none aside itself: give the blocks")]
    Unsupported,
}

/// Who owns blocks. Called from the library's transfer thread and from the host's calls.
pub trait BlockOwner: BlockMemory {
    /// Tokens of one block.
    fn tokens_per_block(&self) -> usize;

    /// Finds the blocks of these names, a prefix, and pins them: all of them under `strict`, the
    /// longest prefix that is there under `best effort`. `tail` is what the last name is made of, for
    /// owners that find a short block at the head of a longer one: that block may stand for it.
    fn pin(
        &self,
        names: &[Name],
        tail: Option<&TextTail>,
        policy: Policy,
    ) -> Result<Held, OwnerError>;

    /// Whether one of these blocks may be served to peers, or is on its way to one: such a block is
    /// not to be filled. An owner that sets blocks aside itself answers for them.
    fn serves_any(&self, _ids: &[i32]) -> bool {
        false
    }

    /// Sets fresh blocks aside for what is fetched: `ids` is filled, or nothing is set aside.
    fn allocate(&self, ids: &mut [i32]) -> Result<(), OwnerError>;

    /// Takes blocks that were set aside and are filled: `ids[i]` is the block of
    /// `names[first_block + i * step]`. They are the owner's, whatever it does with them.
    fn commit(&self, names: &[Name], first_block: usize, step: usize, ids: &[i32]);

    /// Takes blocks back that were set aside and are not of use. Their bytes may be anything.
    fn abort(&self, ids: &[i32]);
}

/// The library's own owner: names are looked up in one window of a reuse tree, whose slots are those
/// of a pool, of host memory or a device's. Blocks for what is fetched come from the host, who stores
/// them when they are there.
pub struct TreeAndPool<M = BlockPool> {
    /// Knows blocks by name.
    pub tree: ReuseTree,
    /// The attention window whose blocks are exchanged.
    pub window: i32,
    /// Keeps them.
    pub pool: M,
}

// SAFETY: the pool's own blocks, of the pool's size.
unsafe impl<M: BlockMemory> BlockMemory for TreeAndPool<M> {
    fn block_bytes(&self) -> usize {
        self.pool.block_bytes()
    }

    fn block(&self, id: i32) -> Option<Segment> {
        self.pool.block(id)
    }

    fn whole(&self) -> Option<Segment> {
        self.pool.whole()
    }

    fn contains(&self, id: i32) -> bool {
        self.pool.contains(id)
    }

    fn device(&self) -> Option<&DevicePool> {
        self.pool.device()
    }
}

impl<M: BlockMemory> BlockOwner for TreeAndPool<M> {
    fn tokens_per_block(&self) -> usize {
        self.tree.tokens_per_block()
    }

    fn pin(
        &self,
        names: &[Name],
        tail: Option<&TextTail>,
        policy: Policy,
    ) -> Result<Held, OwnerError> {
        let busy = |_: ReuseError| OwnerError::Busy;
        let found = self.tree.pin_named(self.window, names, tail, policy, None).map_err(busy)?;
        let Some(range) = found.range else {
            return Ok(Held { present: found.present, pinned: None });
        };
        let mut blocks = Vec::new();
        // Memory is looked up by slot: a block that was offloaded and came back has another one.
        let slots = range.slots().map_err(busy)?;
        let hashes = range.block_hashes().map_err(busy)?;
        blocks.try_reserve_exact(slots.len()).map_err(|_| OwnerError::Busy)?;
        blocks.extend(slots.zip(hashes).map(|(slot, block_hash)| PinnedBlock {
            id: i32::try_from(slot).unwrap_or(-1),
            block_hash,
        }));
        Ok(Held { present: found.present, pinned: Some(Pinned::new(blocks, range)) })
    }

    fn serves_any(&self, ids: &[i32]) -> bool {
        // A window that the tree does not have holds nothing.
        matches!(self.tree.first_held(self.window, ids), Ok(Some(_)))
    }

    fn allocate(&self, _ids: &mut [i32]) -> Result<(), OwnerError> {
        Err(OwnerError::Unsupported)
    }

    fn commit(&self, _names: &[Name], _first_block: usize, _step: usize, _ids: &[i32]) {}

    fn abort(&self, _ids: &[i32]) {}
}

/// Blocks that an owner set aside for one fetch. They go back to it, each once: those that were
/// committed as the blocks of their names, the others as they are.
pub struct Allocation {
    owner: Arc<dyn BlockOwner>,
    ids: Vec<i32>,
}

impl Allocation {
    /// Sets `count` blocks aside.
    pub fn new(owner: &Arc<dyn BlockOwner>, count: usize) -> Result<Self, OwnerError> {
        let mut ids = Vec::new();
        ids.try_reserve_exact(count).map_err(|_| OwnerError::Busy)?;
        ids.resize(count, 0);
        owner.allocate(&mut ids)?;
        Ok(Self { owner: Arc::clone(owner), ids })
    }

    /// The blocks, in the order in which they are filled.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// Commits the first `filled` blocks: see [`BlockOwner::commit`].
    pub fn commit(&mut self, names: &[Name], first_block: usize, step: usize, filled: usize) {
        let rest = self.ids.split_off(filled.min(self.ids.len()));
        let committed = std::mem::replace(&mut self.ids, rest);
        self.owner.commit(names, first_block, step, &committed);
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.owner.abort(&self.ids);
        }
    }
}
