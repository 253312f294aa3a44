//! A pin and the blocks it was made for.
//!
//! Making one costs nothing per block in the full window: which blocks they are is found out when
//! somebody asks, from the pinned one upwards, and kept. Names of the sequence, where there are any,
//! say where to look ahead.
//!
//! Guards: released exactly once, by `unpin` or by dropping, whichever comes first; keeps what it
//! needs of the tree alive, so it may outlive the tree; what it says of its blocks was so under the
//! pin.

use std::sync::{Arc, OnceLock};

use super::content_name::Name;
use super::core::Core;
use super::error::ReuseError;
use super::hold::Hold;
use super::node::{BlockId, Node, Slot, Tier};
use super::pin::PinId;
use super::window::{Window, WARMED};

/// Slots that are no further apart are read ahead by the processor.
const NEAR_SLOTS: Slot = 4;

/// What of a block a range knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeBlock {
    pub(super) id: BlockId,
    pub(super) hash: u64,
    pub(super) tier: Tier,
}

impl RangeBlock {
    fn of(node: &Node) -> Self {
        Self { id: node.id(), hash: node.hash(), tier: node.info().tier() }
    }
}

/// Where a range's blocks are found.
pub(super) enum Source {
    /// They are known.
    Known,
    /// In the full window: the last one; the names of the sequence's full blocks.
    UpFrom(Slot, Arc<Vec<Name>>),
}

/// Pinned blocks of one window, oldest first. While the pin lives none of them is evicted,
/// offloaded or used for something else.
pub struct BlockRange {
    pub(super) tree: Arc<Hold>,
    pub(super) pin: PinId,
    pub(super) window: i32,
    pub(super) window_index: usize,
    pub(super) first_block: usize,
    pub(super) block_count: usize,
    pub(super) tail_tokens: usize,
    pub(super) source: Source,
    pub(super) blocks: OnceLock<Vec<RangeBlock>>,
    pub(super) is_abandoned: bool,
}

impl Window {
    pub(super) fn range_block(&self, slot: Slot) -> RangeBlock {
        RangeBlock::of(self.node(slot))
    }
}

impl Core {
    /// The `count` blocks that end with `last`, oldest first; all protected.
    pub(super) fn blocks_up_from(
        &self,
        window: usize,
        last: Slot,
        first_block: usize,
        count: usize,
        names: &[Name],
    ) -> Result<Vec<RangeBlock>, ReuseError> {
        let window = &self.windows[window];
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count)?;
        let mut at = last;
        let mut warm = 0;
        for left in (0..count).rev() {
            let node = window.node(at);
            blocks.push(RangeBlock::of(node));
            let parent = node.parent();
            // Nodes of blocks stored together lie side by side, and the processor reads ahead by
            // itself. By links to anywhere they would come one by one: the names say where to look.
            if warm == 0 && at.abs_diff(parent) > NEAR_SLOTS {
                let end = (first_block + left).min(names.len());
                warm = WARMED.min(left);
                window.warm(names[..end].iter().rev().take(warm));
            }
            warm = warm.saturating_sub(1);
            at = parent;
        }
        blocks.reverse();
        Ok(blocks)
    }
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
        self.block_count
    }

    /// The blocks; once asked for they stay known. [`ReuseError::NotLive`] if the pin was released
    /// before: nothing is known of them any more.
    fn blocks(&self) -> Result<&[RangeBlock], ReuseError> {
        if let Some(blocks) = self.blocks.get() {
            return Ok(blocks);
        }
        let Source::UpFrom(last, names) = &self.source else {
            return Err(ReuseError::NotLive);
        };
        let core = &self.tree.core;
        if !core.pins.is_live(self.pin) {
            return Err(ReuseError::NotLive);
        }
        let (first, count) = (self.first_block, self.block_count);
        let blocks = core.blocks_up_from(self.window_index, *last, first, count, names)?;
        // Only what was read while the pin lived is true.
        if !core.pins.is_live(self.pin) {
            return Err(ReuseError::NotLive);
        }
        Ok(self.blocks.get_or_init(|| blocks))
    }

    /// Block ids, oldest first. This and the next two take time for each block the first time one
    /// of them is asked for; [`ReuseError::NotLive`] if the pin was released before that.
    pub fn ids(&self) -> Result<impl ExactSizeIterator<Item = BlockId> + '_, ReuseError> {
        Ok(self.blocks()?.iter().map(|block| block.id))
    }

    /// Block hashes, oldest first.
    pub fn block_hashes(&self) -> Result<impl ExactSizeIterator<Item = u64> + '_, ReuseError> {
        Ok(self.blocks()?.iter().map(|block| block.hash))
    }

    /// The memory each block lies in, oldest first. No block goes to secondary memory while the pin
    /// lives.
    pub fn tiers(&self) -> Result<impl ExactSizeIterator<Item = Tier> + '_, ReuseError> {
        Ok(self.blocks()?.iter().map(|block| block.tier))
    }

    /// The slot of its tier's memory that each block lies in, oldest first: in owner mode not the
    /// number of its id once blocks were offloaded. A pinned block stays where it is.
    pub fn slots(&self) -> Result<impl ExactSizeIterator<Item = u32> + '_, ReuseError> {
        let slot_of = |block: &RangeBlock| self.tree.slot_of(self.window_index, block.id);
        Ok(self.blocks()?.iter().map(slot_of))
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
        self.tree.core.unpin(self.pin)
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
            let _ = self.tree.core.unpin(self.pin);
        }
    }
}

impl std::fmt::Debug for BlockRange {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("BlockRange")
            .field("window", &self.window)
            .field("first_block", &self.first_block)
            .field("block_count", &self.block_count)
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}
