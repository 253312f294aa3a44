//! A pin and the blocks it was made for.
//!
//! Guards: released exactly once, by `unpin` or by dropping, whichever comes first; keeps what it
//! needs of the tree alive, so it may outlive the tree.

use std::sync::Arc;

use super::error::ReuseError;
use super::node::{BlockId, Tier};
use super::pin::PinId;
use super::tree::Shared;

/// What of a block a range remembers, from the moment it was pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeBlock {
    pub(super) id: BlockId,
    pub(super) hash: u64,
    pub(super) tier: Tier,
}

/// Pinned blocks of one window, oldest first. While the pin lives none of them is evicted,
/// offloaded or used for something else.
pub struct BlockRange {
    pub(super) tree: Arc<Shared>,
    pub(super) pin: PinId,
    pub(super) window: i32,
    pub(super) first_block: usize,
    pub(super) blocks: Vec<RangeBlock>,
    pub(super) tail_tokens: usize,
    pub(super) is_abandoned: bool,
}

impl BlockRange {
    /// The window whose blocks these are.
    pub fn window(&self) -> i32 {
        self.window
    }

    /// Place in the sequence of the first block.
    pub fn first_block(&self) -> usize {
        self.first_block
    }

    /// How many blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Block ids, oldest first.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = BlockId> + '_ {
        self.blocks.iter().map(|block| block.id)
    }

    /// Block hashes, oldest first.
    pub fn block_hashes(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.blocks.iter().map(|block| block.hash)
    }

    /// The memory each block lies in, oldest first; no block leaves it while the pin lives.
    pub fn tiers(&self) -> impl ExactSizeIterator<Item = Tier> + '_ {
        self.blocks.iter().map(|block| block.tier)
    }

    /// How many leading tokens of the last block count; 0 if all of it does.
    pub fn tail_tokens(&self) -> usize {
        self.tail_tokens
    }

    /// The pin's id.
    pub fn pin_id(&self) -> PinId {
        self.pin
    }

    /// Releases the pin. An error that changes nothing if it was released before.
    pub fn unpin(&self) -> Result<(), ReuseError> {
        self.tree.unpin(self.pin)
    }

    /// Gives the memory back but leaves the pin, for where the tree must not be touched: it is
    /// known to be damaged, or this is a forked child.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }
}

impl Drop for BlockRange {
    fn drop(&mut self) {
        if !self.is_abandoned {
            // Fails only where it was unpinned before, which is what is wanted.
            let _ = self.tree.unpin(self.pin);
        }
    }
}

impl std::fmt::Debug for BlockRange {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("BlockRange")
            .field("window", &self.window)
            .field("first_block", &self.first_block)
            .field("block_count", &self.blocks.len())
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}
