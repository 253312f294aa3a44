//! The reuse tree: one per cache, shared by the host's scheduler and by transfer threads.
//!
//! Guards: what comes from outside is checked here; below are the parts. Those that match, pin and
//! unpin take no lock; those that change what the tree holds take the writer's, one at a time. It is
//! never held across a copy of block memory, or a call of the host's code. No operation fails
//! half-way.
//! Never does: pick what to evict. That is the host's business (*arbiter* mode) or an
//! [`Owner`](super::Owner)'s.

use std::sync::{Arc, Weak};

use super::changed_blocks::ChangedBlocks;
use super::changes::Changes;
use super::content_name::Name;
use super::core::Core;
use super::error::ReuseError;
use super::events::{Event, Events, StoredBlock};
use super::free_queues::{Retention, Standing, DEFAULT_PRIORITY};
use super::hold::{Hold, Holds};
use super::leave::Protection;
use super::matching::Prefix;
use super::node::{BlockId, Slot, Tier};
use super::owner::{OwnedBlocks, OwnerStatistics};
use super::pin::PinId;
use super::range::{BlockRange, RangeBlock, Source};
use super::sendable::Sendable;
use super::sequence::{Sequence, MAX_TOKENS_PER_BLOCK};
use super::slots::Slots;
use super::store::Terms;
use super::text_tail::TextTail;
use super::verify;
use super::window::{Found, Window};
use crate::sync::atomic::{fence, Ordering};
use crate::sync::Mutex;

/// Tries after which a match counts as none: others changed what it looked at each time.
const MAX_TRIES: usize = 1 << 10;

/// The window of full attention.
pub const WINDOW_FULL: i32 = 0;

/// Most windows of a tree.
pub const MAX_WINDOWS: usize = 64;

/// How a tree is made.
pub struct ReuseTreeConfig<'a> {
    /// Tokens in a full block; all sequences must agree.
    pub tokens_per_block: usize,
    /// Attention windows in tokens; none: only [`WINDOW_FULL`].
    pub windows: &'a [i32],
    /// Unguessable, and another for each tree: decides where table entries fall and which pin ids
    /// are this tree's.
    pub seed: u64,
    /// Told how numbers changed, when asked to; may be [`NoObserver`].
    pub observer: Arc<dyn TreeObserver>,
}

/// What a tree notes of each change. The default notes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noted {
    /// Events kept for [`ReuseTree::events`], at most [`super::MAX_EVENTS`]; 0: none.
    pub(super) event_capacity: usize,
    /// Owner mode: the blocks whose standing is noted when it changes, and where they lie.
    pub(super) owned: OwnedBlocks,
}

impl Noted {
    /// So many events.
    pub fn events(event_capacity: usize) -> Self {
        Self { event_capacity, ..Self::default() }
    }
}

/// Hears how the tree's numbers changed since it last heard: when somebody calls
/// [`ReuseTree::report`], and when the tree is gone. One call at a time, from any thread.
pub trait TreeObserver: Send + Sync {
    /// The tree's numbers when it last heard, and as they are.
    fn changed(&self, before: &TreeStatistics, after: &TreeStatistics);

    /// An owner's numbers before and after one operation, under the owner's lock.
    fn owner_changed(&self, _before: &OwnerStatistics, _after: &OwnerStatistics) {}
}

/// An observer for those who do not listen.
#[derive(Debug)]
pub struct NoObserver;

impl TreeObserver for NoObserver {
    fn changed(&self, _: &TreeStatistics, _: &TreeStatistics) {}
}

/// A tree's numbers, over all windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeStatistics {
    /// Blocks in the tree.
    pub stored_blocks: usize,
    /// Of these, in secondary memory.
    pub secondary_blocks: usize,
    /// Blocks under protection, in the tree or not any more.
    pub protected_blocks: usize,
    /// Live pins.
    pub live_pins: usize,
    /// Blocks that `store` took, ever.
    pub blocks_taken: u64,
    /// Blocks that `store` handed back because the position held another, ever.
    pub blocks_duplicate: u64,
    /// Blocks that `store` handed back for other reasons, ever.
    pub blocks_returned: u64,
    /// Blocks that left the tree, ever.
    pub blocks_removed: u64,
    /// `evict`s answered busy, ever.
    pub evictions_busy: u64,
}

/// What a refresh found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// Blocks that fell back to the default priority.
    pub priorities_expired: usize,
    /// Live pins whose lease has ended.
    pub leases_expired: usize,
    /// Age of the oldest live pin; 0: there is none.
    pub oldest_pin_age_ns: u64,
}

/// What came of an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// The block left the tree, and everything below it.
    Left {
        /// How many blocks left, this one included.
        blocks: usize,
    },
    /// The block is under protection.
    Busy,
    /// The tree does not hold it.
    NotFound,
}

/// What a range must be to be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// All blocks, or none.
    Strict,
    /// The longest run from the first block.
    BestEffort,
}

/// Which blocks to pin, and how.
#[derive(Debug, Clone, Copy)]
pub struct RangeRequest {
    /// First block, counted from the sequence's first.
    pub first_block: usize,
    /// How many, not 0. The range may end with the sequence's partial tail.
    pub block_count: usize,
    /// What to do when some are missing.
    pub policy: Policy,
    /// When the holder should be done; see [`ReuseTree::expired_leases`].
    pub lease_deadline_ns: Option<u64>,
}

/// A pin, or a miss.
#[derive(Debug)]
pub struct PinOutcome {
    /// How many of the blocks asked for are present, counted from the first one up to the first
    /// that is missing.
    pub present: usize,
    /// The blocks pinned; none on a miss.
    pub range: Option<BlockRange>,
}

/// The longest stored prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixMatch {
    /// Tokens whose KV is there.
    pub matched_tokens: usize,
    /// Place of the first block that is needed: 0, but in a sliding window attention needs less.
    pub first_block: usize,
    /// How many leading tokens of the last block count; 0 if all of it does.
    pub partial_tokens: usize,
}

/// What a tree knows of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockState {
    /// Its id.
    pub id: BlockId,
    /// Its block hash.
    pub hash: u64,
    /// Place in its sequence.
    pub position: usize,
    /// Tokens in it.
    pub token_count: usize,
    /// The memory it lies in.
    pub tier: Tier,
    /// Whether a pin protects it.
    pub is_protected: bool,
    /// How much it is worth keeping.
    pub priority: u8,
}

/// What a tree and its ranges share.
pub(super) struct Shared {
    window_tokens: Vec<i32>,
    observer: Arc<dyn TreeObserver>,
    /// The numbers that the observer last heard.
    reported: Mutex<TreeStatistics>,
    events: Arc<Events>,
    /// In owner mode; in the order of `window_tokens`.
    changed: Vec<Arc<ChangedBlocks>>,
    slots: Vec<Arc<Slots>>,
    pub(super) core: Core,
}

impl Shared {
    fn window_index(&self, window: i32) -> Result<usize, ReuseError> {
        let position = self.window_tokens.iter().position(|tokens| *tokens == window);
        position.ok_or(ReuseError::UnknownWindow { window })
    }

    /// The slot of a block's memory: in arbiter mode that is its id's number.
    pub(super) fn slot_of(&self, window_index: usize, id: BlockId) -> u32 {
        match self.slots.get(window_index) {
            Some(slots) if slots.contains(id) => slots.place(id).slot,
            _ => id as u32,
        }
    }

    fn check(&self, sequence: &Sequence) -> Result<(), ReuseError> {
        let (tree, sequence) = (self.core.tokens_per_block, sequence.tokens_per_block());
        if tree != sequence {
            return Err(ReuseError::OtherBlockSize { tree, sequence });
        }
        Ok(())
    }

    fn statistics(&self) -> TreeStatistics {
        self.core.account_in_turns();
        self.counted()
    }

    /// The numbers as far as they are accounted for.
    fn counted(&self) -> TreeStatistics {
        let core = &self.core;
        let sum = |count: fn(&Window) -> usize| core.windows.iter().map(count).sum();
        let counts = &core.counts;
        TreeStatistics {
            stored_blocks: sum(Window::attached_blocks),
            secondary_blocks: sum(Window::secondary_blocks),
            protected_blocks: sum(Window::protected_blocks),
            live_pins: core.pins.live(),
            blocks_taken: counts.blocks_taken.load(Ordering::Relaxed),
            blocks_duplicate: counts.blocks_duplicate.load(Ordering::Relaxed),
            blocks_returned: counts.blocks_returned.load(Ordering::Relaxed),
            blocks_removed: counts.blocks_removed.load(Ordering::Relaxed),
            evictions_busy: counts.evictions_busy.load(Ordering::Relaxed),
        }
    }

    fn report(&self) {
        let mut reported = self.reported.lock();
        let after = self.statistics();
        if *reported != after {
            self.observer.changed(&reported, &after);
            *reported = after;
        }
    }
}

/// Which blocks hold which content. All operations may be called from any thread. A clone is
/// another handle on the same tree.
#[derive(Clone)]
pub struct ReuseTree {
    shared: Arc<Shared>,
    /// What ranges take; `None` in a handle that is only there to look.
    holds: Option<Arc<Holds>>,
}

/// A tree that may be gone: for those who look at it from time to time and do not keep it.
#[derive(Clone)]
pub struct WeakReuseTree {
    shared: Weak<Shared>,
}

impl WeakReuseTree {
    /// The tree, if it or a range of it is still held.
    pub fn upgrade(&self) -> Option<ReuseTree> {
        Some(ReuseTree { shared: self.shared.upgrade()?, holds: None })
    }
}

impl std::fmt::Debug for ReuseTree {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReuseTree")
            .field("tokens_per_block", &self.shared.core.tokens_per_block)
            .field("windows", &self.shared.window_tokens)
            .finish_non_exhaustive()
    }
}

impl ReuseTree {
    /// A tree that holds nothing, and keeps no events.
    pub fn new(config: ReuseTreeConfig<'_>) -> Result<Self, ReuseError> {
        Self::noting(config, Noted::default())
    }

    /// A tree that holds nothing.
    pub fn noting(config: ReuseTreeConfig<'_>, noted: Noted) -> Result<Self, ReuseError> {
        let found = config.tokens_per_block;
        if !(1..=MAX_TOKENS_PER_BLOCK).contains(&found) {
            return Err(ReuseError::TokensPerBlock { found });
        }
        if config.windows.len() > MAX_WINDOWS {
            return Err(ReuseError::Limit { what: "windows of a tree", limit: MAX_WINDOWS });
        }
        let window_tokens = match config.windows {
            [] => vec![WINDOW_FULL],
            windows => windows.to_vec(),
        };
        for (index, window) in window_tokens.iter().enumerate() {
            if *window < 0 || window_tokens[..index].contains(window) {
                return Err(ReuseError::BadWindow { window: *window });
            }
        }
        let events = Arc::new(Events::new(noted.event_capacity)?);
        let (mut changed, mut slots) = (Vec::new(), Vec::new());
        let OwnedBlocks { primary, secondary } = noted.owned;
        if primary > 0 {
            for _ in &window_tokens {
                changed.push(Arc::new(ChangedBlocks::new(primary + secondary)?));
                slots.push(Arc::new(Slots::new(primary, secondary)?));
            }
        }
        let changes = |index: usize| Changes {
            events: Arc::clone(&events),
            changed: changed.get(index).map(Arc::clone),
        };
        let core = Core::new(config.tokens_per_block, &window_tokens, config.seed, changes)?;
        let shared = Shared {
            window_tokens,
            observer: config.observer,
            reported: Mutex::new(TreeStatistics::default()),
            events,
            changed,
            slots,
            core,
        };
        let shared = Arc::new(shared);
        let holds = Some(Arc::new(Holds::new(&shared)));
        Ok(Self { shared, holds })
    }

    /// The tree, without keeping it.
    pub fn downgrade(&self) -> WeakReuseTree {
        WeakReuseTree { shared: Arc::downgrade(&self.shared) }
    }

    /// What is below this face, for the model checker's wrong steps.
    #[cfg(all(test, kvhints_shuttle))]
    pub(super) fn core(&self) -> &Core {
        &self.shared.core
    }

    /// Tokens in a full block.
    pub fn tokens_per_block(&self) -> usize {
        self.shared.core.tokens_per_block
    }

    /// The windows of the tree.
    pub fn windows(&self) -> &[i32] {
        &self.shared.window_tokens
    }

    // ---- the writer's operations ----

    /// Puts `ids[i]` at block `first_block + i` of the sequence, whose bytes are complete. Returns
    /// what the tree holds at each of these positions afterwards. An id that is not there in the
    /// answer is handed back: the position holds another block, is below an empty one (full
    /// window), or the id is protected elsewhere, or already above on this path. An unprotected id
    /// stored elsewhere moves here, and what was below it leaves the tree. Negative ids are holes in sliding windows and refused in the full one.
    pub fn store(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        let index = self.checked_store(window, sequence, first_block, ids)?;
        let core = &self.shared.core;
        core.store(&mut core.writer.lock(), index, sequence, first_block, ids, Terms::USUAL)
    }

    /// [`ReuseTree::store`] of blocks that have priorities already, and perhaps a fence.
    pub(super) fn store_with_priorities(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
        priority: &dyn Fn(BlockId) -> u8,
        fence: Option<u64>,
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        let index = self.checked_store(window, sequence, first_block, ids)?;
        let terms = Terms { priority, fence };
        let core = &self.shared.core;
        core.store(&mut core.writer.lock(), index, sequence, first_block, ids, terms)
    }

    /// [`ReuseTree::store`] of blocks whose bytes will be complete when `fence` has passed: see
    /// [`ReuseTree::fence_passed`]. Until then they are matched, for work that comes after the fence
    /// by itself, but count as missing for sending.
    pub fn store_with_fence(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
        fence: u64,
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        let index = self.checked_store(window, sequence, first_block, ids)?;
        let terms = Terms { fence: Some(fence), ..Terms::USUAL };
        let core = &self.shared.core;
        core.store(&mut core.writer.lock(), index, sequence, first_block, ids, terms)
    }

    /// [`ReuseTree::store`] and a pin on what the tree then holds at these positions, in one step;
    /// no range if it holds nothing there. A fault of the pin alone leaves what was stored.
    pub fn store_and_pin(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
        lease_deadline_ns: Option<u64>,
    ) -> Result<(Vec<Option<BlockId>>, Option<BlockRange>), ReuseError> {
        let index = self.checked_store(window, sequence, first_block, ids)?;
        let core = &self.shared.core;
        let mut writer = core.writer.lock();
        let holds = core.store(&mut writer, index, sequence, first_block, ids, Terms::USUAL)?;
        let held = holds.iter().flatten().copied();
        let pinned = core.pin_ids(&mut writer, index, held, lease_deadline_ns)?;
        let range = pinned.map(|pinned| self.held_range(window, index, first_block, pinned));
        Ok((holds, range))
    }

    /// Pins the blocks that a request holds, stored or not: until the unpin none of them is evicted,
    /// offloaded or stored at another place. Blocks that are not stored become known to the tree by
    /// id, busy to evict, and are refused by store as long: store first what is to be stored, or
    /// with [`ReuseTree::store_and_pin`]. Negative ids hold nothing. No range if none is left.
    pub fn pin_blocks(
        &self,
        window: i32,
        ids: &[BlockId],
        lease_deadline_ns: Option<u64>,
    ) -> Result<Option<BlockRange>, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        let held = ids.iter().copied().filter(|id| *id >= 0);
        let pinned = core.pin_ids(&mut core.writer.lock(), index, held, lease_deadline_ns)?;
        Ok(pinned.map(|pinned| self.held_range(window, index, 0, pinned)))
    }

    /// A range of blocks that are known.
    fn held_range(
        &self,
        window: i32,
        index: usize,
        first_block: usize,
        (pin, blocks): (PinId, Vec<RangeBlock>),
    ) -> BlockRange {
        let block_count = blocks.len();
        let made = Made { pin, window, index, first_block, block_count, tail_tokens: 0 };
        self.known_range(made, blocks)
    }

    /// Checks a store's arguments; the index of its window.
    fn checked_store(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
    ) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.check(sequence)?;
        let blocks = sequence.block_count();
        let is_within = first_block.checked_add(ids.len()).is_some_and(|end| end <= blocks);
        if !is_within {
            let count = ids.len();
            return Err(ReuseError::BadRange { first: first_block, count, blocks });
        }
        if window == WINDOW_FULL && ids.iter().any(|id| *id < 0) {
            return Err(ReuseError::Placeholder);
        }
        Ok(index)
    }

    /// Says that all fences up to `fence` have passed. The host numbers them, from 1, in the order
    /// in which they pass.
    pub fn fence_passed(&self, fence: u64) {
        self.shared.core.passed_fence.fetch_max(fence, Ordering::AcqRel);
    }

    /// Takes a block out of the tree, with everything below it in its window, unless it is
    /// protected. The ids stay with whoever holds them.
    pub fn evict(&self, window: i32, id: BlockId) -> Result<Evicted, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        let evicted = core.evict(&mut core.writer.lock(), index, id);
        if evicted == Evicted::Busy {
            core.counts.evictions_busy.fetch_add(1, Ordering::Relaxed);
        }
        Ok(evicted)
    }

    /// Takes a block and everything below it out of the tree, protected or not; protected ones stay
    /// under protection, known by id only, until their last unpin. Returns how many blocks left.
    pub fn remove_subtree(&self, window: i32, id: BlockId) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        let mut writer = core.writer.lock();
        let Some(slot) = attached_id(&core.windows[index], id) else {
            return Ok(0);
        };
        Ok(core.leave(&mut writer, index, slot, Protection::Overruled).unwrap_or(0))
    }

    /// Empties the tree, all windows; protected blocks as in [`ReuseTree::remove_subtree`].
    pub fn reset(&self) {
        let core = &self.shared.core;
        let mut writer = core.writer.lock();
        for index in 0..core.windows.len() {
            core.empty(&mut writer, index);
        }
    }

    /// Notes that a block moved between primary and secondary memory. Protection holds against
    /// offload: `false`, and nothing noted, for a protected block on its way to secondary memory;
    /// `None` if the tree does not hold the block. While it is decided, readers may miss the block
    /// for sending.
    pub fn set_tier(
        &self,
        window: i32,
        id: BlockId,
        tier: Tier,
    ) -> Result<Option<bool>, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        let mut writer = core.writer.lock();
        let window = &core.windows[index];
        let Some(slot) = attached_id(window, id) else {
            return Ok(None);
        };
        let before = window.node(slot).info().tier();
        window.set_tier(slot, tier);
        if tier == Tier::Secondary {
            // Noted first, then looked for pins; who pins does so first and then looks at the tier.
            fence(Ordering::SeqCst);
            if core.is_protected(&mut writer, index, slot) {
                window.set_tier(slot, before);
                return Ok(Some(false));
            }
        }
        if tier != before {
            window.changes.updated(|| window.stored_block(slot));
        }
        Ok(Some(true))
    }

    /// Gives a block another priority. With a duration it ends that long after `now_ns`, when
    /// [`ReuseTree::refresh`] gives the block the default one. `false` if the tree does not hold it.
    /// In owner mode this is the owner's business.
    pub fn set_retention(
        &self,
        window: i32,
        id: BlockId,
        retention: Retention,
        now_ns: u64,
    ) -> Result<bool, ReuseError> {
        let index = self.shared.window_index(window)?;
        retention.check()?;
        let duration_ns = retention.duration_ns.filter(|_| retention.priority != DEFAULT_PRIORITY);
        let expiry_ns = duration_ns.map(|duration_ns| now_ns.saturating_add(duration_ns));
        let core = &self.shared.core;
        let mut writer = core.writer.lock();
        let window = &core.windows[index];
        let Some(slot) = attached_id(window, id) else {
            return Ok(false);
        };
        writer.expiries.set(index, id, expiry_ns)?;
        window.set_priority(slot, retention.priority);
        Ok(true)
    }

    /// What time does: priorities end that were given for a duration, and leases. Pins are as old as
    /// the refreshes that they have seen.
    pub fn refresh(&self, now_ns: u64) -> Result<Refreshed, ReuseError> {
        let core = &self.shared.core;
        let mut priorities_expired = 0;
        // One block at a time: nobody waits for more.
        while let Some(was_stored) = {
            let mut writer = core.writer.lock();
            writer.expiries.next(now_ns).map(|(index, id)| {
                let window = &core.windows[index];
                let slot = attached_id(window, id);
                slot.into_iter().for_each(|slot| window.set_priority(slot, DEFAULT_PRIORITY));
                slot.is_some()
            })
        } {
            priorities_expired += usize::from(was_stored);
        }
        self.set_now(now_ns);
        let leases_expired = self.expired_leases(now_ns)?.len();
        let oldest_pin_age_ns = self.longest_pin_age_ns(now_ns);
        Ok(Refreshed { priorities_expired, leases_expired, oldest_pin_age_ns })
    }

    /// Moves up to `most` events to `each`, oldest first, each once.
    pub fn events(&self, most: usize, each: impl FnMut(Event)) {
        self.shared.events.drain(most, each);
    }

    /// How many events wait; a gap counts as one.
    pub fn waiting_events(&self) -> usize {
        self.shared.events.waiting()
    }

    /// The number of the last event; 0 before the first.
    pub fn last_event_number(&self) -> u64 {
        self.shared.events.last_number()
    }

    /// Lists blocks that are stored, in no order: up to `most` of them, from `cursor` on, which is 0
    /// at first and then what the call before returned; `None`: these were the last. The tree may
    /// change between calls: whoever applies all events after [`ReuseTree::last_event_number`] of
    /// before the first call to what was listed has what is stored.
    pub fn stored_blocks(
        &self,
        window: i32,
        cursor: u32,
        most: usize,
        mut each: impl FnMut(StoredBlock),
    ) -> Result<Option<u32>, ReuseError> {
        const AT_ONCE: usize = 32;
        let index = self.shared.window_index(window)?;
        let (core, window) = (&self.shared.core, &self.shared.core.windows[index]);
        let (mut cursor, mut left) = (Some(cursor), most);
        while let Some(from) = cursor.filter(|_| left > 0) {
            let mut batch = [None; AT_ONCE];
            let places = AT_ONCE.min(left);
            {
                let writer = core.writer.lock();
                cursor = window.list(&writer.windows[index], from, &mut batch[..places]);
            }
            left -= batch.iter().flatten().count();
            batch.into_iter().flatten().for_each(&mut each);
        }
        Ok(cursor)
    }

    /// The block that the tree holds at a place of a sequence.
    pub(super) fn held_at(
        &self,
        window: i32,
        sequence: &Sequence,
        position: usize,
    ) -> Result<Option<BlockId>, ReuseError> {
        let index = self.shared.window_index(window)?;
        let window = &self.shared.core.windows[index];
        let _writer = self.shared.core.writer.lock();
        let found = sequence.name(position).and_then(|name| window.find_alive(&name));
        Ok(found.map(|found| window.node(found.slot).id()))
    }

    /// How a block stands, in the tree or not.
    pub(super) fn standing(&self, window_index: usize, id: BlockId) -> Standing {
        let _writer = self.shared.core.writer.lock();
        self.shared.core.windows[window_index].standing(id)
    }

    /// Takes the ids of blocks whose standing changed, of one window.
    pub(super) fn take_changed(&self, window_index: usize, each: impl FnMut(BlockId)) {
        let core = &self.shared.core;
        if let Some(changed) = self.shared.changed.get(window_index) {
            core.forget_released(&mut core.writer.lock(), window_index);
            core.account_in_turns();
            changed.take(each);
        }
    }

    /// Owner mode: where a window's blocks lie.
    pub(super) fn slots(&self, window_index: usize) -> Option<Arc<Slots>> {
        self.shared.slots.get(window_index).map(Arc::clone)
    }

    /// Lists a block among those whose standing changed.
    pub(super) fn note_changed(&self, window_index: usize, id: BlockId) {
        if let Some(changed) = self.shared.changed.get(window_index) {
            changed.tell(id);
        }
    }

    /// What the tree knows of a block in it.
    pub fn find_id(&self, window: i32, id: BlockId) -> Result<Option<BlockState>, ReuseError> {
        self.state_of(window, |window| attached_id(window, id))
    }

    /// The first of these blocks that the tree knows: stored, or out of it and still protected.
    pub fn first_held(&self, window: i32, ids: &[BlockId]) -> Result<Option<BlockId>, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        core.forget_released(&mut core.writer.lock(), index);
        let window = &core.windows[index];
        Ok(ids.iter().copied().find(|id| window.find_id(*id).is_some()))
    }

    /// A block with this block hash. Several may share it: a hash is a hint, not an identity.
    pub fn find_hash(&self, window: i32, hash: u64) -> Result<Option<BlockState>, ReuseError> {
        self.state_of(window, |window| window.find_hash(hash))
    }

    fn state_of(
        &self,
        window: i32,
        find: impl FnOnce(&Window) -> Option<Slot>,
    ) -> Result<Option<BlockState>, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        let mut writer = core.writer.lock();
        let window = &core.windows[index];
        let Some(slot) = find(window) else {
            return Ok(None);
        };
        let is_protected = core.is_protected(&mut writer, index, slot);
        let node = window.node(slot);
        let info = node.info();
        Ok(Some(BlockState {
            id: node.id(),
            hash: node.hash(),
            position: node.position() as usize,
            token_count: info.token_count(),
            tier: info.tier(),
            is_protected,
            priority: info.priority(),
        }))
    }

    /// How many blocks of a window are protected; what a host takes off its count of free blocks.
    pub fn protected_blocks(&self, window: i32) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.core.account_in_turns();
        Ok(self.shared.core.windows[index].protected_blocks())
    }

    /// The tree's numbers.
    pub fn statistics(&self) -> TreeStatistics {
        self.shared.statistics()
    }

    /// Tells the observer how the numbers changed since it last heard.
    pub fn report(&self) {
        self.shared.report();
    }

    /// Says what the time is; pins made from now on count their age from here.
    pub fn set_now(&self, now_ns: u64) {
        self.shared.core.now_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Live pins; waits for nobody.
    pub fn live_pins(&self) -> usize {
        self.shared.core.pins.live()
    }

    /// How long the oldest live pin has been live at `now_ns`, by what [`ReuseTree::set_now`] said
    /// when it was made; 0 without pins.
    pub fn longest_pin_age_ns(&self, now_ns: u64) -> u64 {
        let first = self.shared.core.pins.first_pinned_at_ns();
        first.map_or(0, |pinned_at_ns| now_ns.saturating_sub(pinned_at_ns))
    }

    /// Checks that the tree's parts agree with each other; `Err` says which do not. Slow, and only
    /// while no other thread is in a call.
    pub fn verify(&self) -> Result<(), String> {
        let core = &self.shared.core;
        verify::verify(core, &mut core.writer.lock())
    }

    // ---- the readers' operations ----

    /// The longest stored prefix within the sequence's first `max_tokens` tokens: full blocks, then
    /// possibly the head of one more. A request being admitted asks for at most its length - 1.
    /// Comes with the blocks that hold it, oldest first, as they were at one moment.
    pub fn match_prefix(
        &self,
        window: i32,
        sequence: &Sequence,
        max_tokens: usize,
    ) -> Result<(PrefixMatch, Vec<(BlockId, Tier)>), ReuseError> {
        let (found, range) = self.match_and_pin(window, sequence, max_tokens, None)?;
        let mut blocks = Vec::new();
        if let Some(range) = range {
            blocks.try_reserve_exact(range.block_count())?;
            blocks.extend(range.ids()?.zip(range.tiers()?));
        }
        Ok((found, blocks))
    }

    /// Only how many tokens [`ReuseTree::match_prefix`] would match.
    pub fn matched_tokens(
        &self,
        window: i32,
        sequence: &Sequence,
        max_tokens: usize,
    ) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.check(sequence)?;
        for _ in 0..MAX_TRIES {
            if let Ok(prefix) = self.shared.core.windows[index].match_prefix(sequence, max_tokens) {
                return Ok(prefix_match(&prefix, sequence).matched_tokens);
            }
        }
        Ok(0)
    }

    /// [`ReuseTree::match_prefix`] and a pin on what it found, in one step; no range if it found
    /// nothing. Blocks in secondary memory are pinned too.
    pub fn match_and_pin(
        &self,
        window: i32,
        sequence: &Sequence,
        max_tokens: usize,
        lease_deadline_ns: Option<u64>,
    ) -> Result<(PrefixMatch, Option<BlockRange>), ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.check(sequence)?;
        let core = &self.shared.core;
        for _ in 0..MAX_TRIES {
            let Ok(prefix) = core.windows[index].match_prefix(sequence, max_tokens) else {
                continue;
            };
            let found = prefix_match(&prefix, sequence);
            if found.matched_tokens == 0 {
                return Ok((found, None));
            }
            let Some(nodes) = nodes_of(&core.windows[index], &prefix, sequence)? else {
                continue;
            };
            let Some(pin) = core.pin(index, &nodes, lease_deadline_ns)? else {
                continue;
            };
            let whole = prefix.full_blocks - prefix.first_block.min(prefix.full_blocks);
            let made = Made {
                pin,
                window,
                index,
                first_block: found.first_block,
                block_count: whole + usize::from(prefix.partial.is_some()),
                tail_tokens: found.partial_tokens,
            };
            return Ok((found, Some(self.range(made, &nodes, sequence)?)));
        }
        Ok((PrefixMatch::default(), None))
    }

    /// Pins blocks of a sequence for sending: present, in primary memory, complete, and full, except
    /// that the sequence's partial tail is found in any block whose tokens start with it.
    pub fn pin_range(
        &self,
        window: i32,
        sequence: &Sequence,
        request: &RangeRequest,
    ) -> Result<PinOutcome, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.check(sequence)?;
        let RangeRequest { first_block: first, block_count: count, .. } = *request;
        let blocks = sequence.block_count();
        let end = first.checked_add(count).filter(|end| count > 0 && *end <= blocks);
        let end = end.ok_or(ReuseError::BadRange { first, count, blocks })?;
        let Sendable { present, pin } = self.shared.core.pin_sendable(index, sequence, request)?;
        let Some((pin, nodes)) = pin else {
            return Ok(PinOutcome { present, range: None });
        };
        let ends_with_tail = first + present > sequence.full_block_count();
        let tail_tokens = if ends_with_tail { sequence.block_tokens(end - 1).len() } else { 0 };
        let made =
            Made { pin, window, index, first_block: first, block_count: present, tail_tokens };
        let range = self.range(made, &nodes, sequence)?;
        Ok(PinOutcome { present, range: Some(range) })
    }

    /// Pins blocks for a peer that gives only content names, `names[0]` being a first block's: those
    /// in primary memory, stored for sequences whose names mean the same on every worker. The last may
    /// be a short one: found by the very name that it has or, with `tail`, which is what that name is
    /// made of, in any block whose tokens start with it.
    pub fn pin_named(
        &self,
        window: i32,
        names: &[Name],
        tail: Option<&TextTail>,
        policy: Policy,
        lease_deadline_ns: Option<u64>,
    ) -> Result<PinOutcome, ReuseError> {
        let index = self.shared.window_index(window)?;
        let core = &self.shared.core;
        let (Sendable { present, pin }, blocks) =
            core.pin_sendable_named(index, names, tail, policy, lease_deadline_ns)?;
        let range = pin.map(|(pin, _)| {
            let made =
                Made { pin, window, index, first_block: 0, block_count: present, tail_tokens: 0 };
            self.known_range(made, blocks)
        });
        Ok(PinOutcome { present, range })
    }

    /// Releases a pin. An error that changes nothing if no live pin of this tree has this id.
    pub fn unpin(&self, pin: PinId) -> Result<(), ReuseError> {
        self.shared.core.unpin(pin)
    }

    /// The live pins whose lease ended at `now_ns` or before. They stay pinned: only a holder knows
    /// when no access is in flight any more.
    pub fn expired_leases(&self, now_ns: u64) -> Result<Vec<PinId>, ReuseError> {
        self.shared.core.pins.expired(now_ns)
    }

    /// The range of a pin on `nodes`, oldest first: all of them, or in the full window the last.
    fn range(
        &self,
        made: Made,
        nodes: &[Found],
        sequence: &Sequence,
    ) -> Result<BlockRange, ReuseError> {
        let window = &self.shared.core.windows[made.index];
        if let (true, Some(last)) = (window.is_full_window(), nodes.last()) {
            let mut range = self.known_range(made, Vec::new());
            range.source = Source::UpFrom(last.slot, sequence.shared_names());
            range.blocks.take();
            return Ok(range);
        }
        // Whatever comes, the pin is the range's from here on.
        let mut range = self.known_range(made, Vec::new());
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(nodes.len())?;
        blocks.extend(nodes.iter().map(|found| window.range_block(found.slot)));
        range.blocks = blocks.into();
        Ok(range)
    }

    fn known_range(&self, made: Made, blocks: Vec<RangeBlock>) -> BlockRange {
        BlockRange {
            tree: self.holds.as_ref().map_or_else(|| Hold::new(&self.shared), |holds| holds.take()),
            pin: made.pin,
            window: made.window,
            window_index: made.index,
            first_block: made.first_block,
            block_count: made.block_count,
            tail_tokens: made.tail_tokens,
            source: Source::Known,
            blocks: blocks.into(),
            is_abandoned: false,
        }
    }
}

/// What of a range is known when its pin is made.
struct Made {
    pin: PinId,
    window: i32,
    index: usize,
    first_block: usize,
    block_count: usize,
    tail_tokens: usize,
}

impl Drop for Shared {
    /// What is still stored is stored no more; by now no range and so no pin is left. Takes no lock:
    /// in a forked child nobody might be there to give it back.
    fn drop(&mut self) {
        let gone = TreeStatistics {
            stored_blocks: 0,
            secondary_blocks: 0,
            protected_blocks: 0,
            live_pins: 0,
            ..self.counted()
        };
        let reported = self.reported.get_mut();
        if *reported != gone {
            self.observer.changed(reported, &gone);
        }
    }
}

/// The node in the tree that holds this block.
fn attached_id(window: &Window, id: BlockId) -> Option<Slot> {
    window.find_id(id).filter(|slot| window.node(*slot).word().is_attached())
}

fn prefix_match(prefix: &Prefix, sequence: &Sequence) -> PrefixMatch {
    let partial_tokens = prefix.partial.map_or(0, |head| head.tokens);
    PrefixMatch {
        matched_tokens: prefix.full_blocks * sequence.tokens_per_block() + partial_tokens,
        first_block: prefix.first_block,
        partial_tokens,
    }
}

/// The nodes to pin for a prefix: the last one, or in a sliding window all that attention needs.
/// `None`: one is gone.
fn nodes_of(
    window: &Window,
    prefix: &Prefix,
    sequence: &Sequence,
) -> Result<Option<Vec<Found>>, ReuseError> {
    let mut nodes = Vec::new();
    let partial = prefix.partial.map(|head| Found { slot: head.slot, word: head.word });
    if window.is_full_window() {
        nodes.try_reserve_exact(1)?;
        nodes.extend(partial.or(prefix.last));
        return Ok(Some(nodes));
    }
    let names = &sequence.names()[prefix.first_block.min(prefix.full_blocks)..prefix.full_blocks];
    nodes.try_reserve_exact(names.len() + 1)?;
    for name in names {
        let Some(found) = window.find_alive(name) else {
            return Ok(None);
        };
        nodes.push(found);
    }
    nodes.extend(partial);
    Ok(Some(nodes))
}
