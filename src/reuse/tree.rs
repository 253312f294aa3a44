//! The reuse tree: one per cache, shared by the host's scheduler and by transfer threads.
//!
//! Guards, with one lock: all windows and the pin table. Each operation takes it once, for as long
//! as it changes nodes; it is never held while keys are copied, across a copy of block memory, or a
//! call of the host's code. No operation fails half-way: it asks for its memory first.
//! Never does: pick what to evict. In this version that is the host's business (*arbiter* mode).

use std::sync::Arc;

use parking_lot::Mutex;

use super::content_name::Name;
use super::error::ReuseError;
use super::node::{BlockId, Slot, Tier};
use super::pin::{Pin, PinId, PinTable, Pinned};
use super::range::{BlockRange, RangeBlock};
use super::sequence::{Sequence, MAX_TOKENS_PER_BLOCK};
use super::verify;
use super::window::{Stored, Window};

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
    /// Told what changed; may be [`NoObserver`].
    pub observer: Arc<dyn TreeObserver>,
}

/// Hears what operations came to, after each that changed a number. Called from any thread, one
/// call at a time and in the order of the operations: under the tree's lock, so it only counts.
pub trait TreeObserver: Send + Sync {
    /// The tree's numbers before and after one operation.
    fn changed(&self, before: &TreeStatistics, after: &TreeStatistics);
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixMatch {
    /// Tokens whose KV is there.
    pub matched_tokens: usize,
    /// Place of the first block in `blocks`: 0, but in a sliding window the first still needed.
    pub first_block: usize,
    /// The blocks that hold them, oldest first.
    pub blocks: Vec<(BlockId, Tier)>,
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
}

pub(super) struct State {
    /// In the order of `Shared::window_tokens`.
    pub(super) windows: Vec<Window>,
    pub(super) pins: PinTable,
    blocks_taken: u64,
    blocks_duplicate: u64,
    blocks_returned: u64,
    blocks_removed: u64,
    evictions_busy: u64,
}

impl State {
    fn statistics(&self) -> TreeStatistics {
        let sum = |count: fn(&Window) -> usize| self.windows.iter().map(count).sum();
        TreeStatistics {
            stored_blocks: sum(Window::attached_blocks),
            secondary_blocks: sum(Window::secondary_blocks),
            protected_blocks: sum(Window::protected_blocks),
            live_pins: self.pins.live(),
            blocks_taken: self.blocks_taken,
            blocks_duplicate: self.blocks_duplicate,
            blocks_returned: self.blocks_returned,
            blocks_removed: self.blocks_removed,
            evictions_busy: self.evictions_busy,
        }
    }

    /// Pins blocks of one window, oldest first, not none. Fails before anything changed.
    fn pin(
        &mut self,
        window_index: usize,
        slots: Vec<Slot>,
        lease_deadline_ns: Option<u64>,
    ) -> Result<(PinId, Vec<RangeBlock>), ReuseError> {
        self.pins.reserve_one()?;
        let window = &mut self.windows[window_index];
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(slots.len())?;
        blocks.extend(slots.iter().map(|slot| {
            let block = window.block(*slot);
            RangeBlock { id: block.id, hash: block.hash, tier: block.tier }
        }));
        let pinned = match slots.last() {
            Some(last) if window.is_full_window() => {
                window.pin(*last);
                Pinned::Prefix(*last)
            }
            _ => {
                slots.iter().for_each(|slot| window.pin(*slot));
                Pinned::Blocks(slots)
            }
        };
        let pin = Pin { window: window_index, pinned, lease_deadline_ns };
        Ok((self.pins.insert(pin), blocks))
    }
}

/// What a tree and its ranges share.
pub(super) struct Shared {
    tokens_per_block: usize,
    window_tokens: Vec<i32>,
    observer: Arc<dyn TreeObserver>,
    state: Mutex<State>,
}

impl Shared {
    /// Runs one operation under the lock, and tells the observer what it changed.
    fn locked<T>(&self, operation: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.statistics();
        let outcome = operation(&mut state);
        let after = state.statistics();
        if before != after {
            self.observer.changed(&before, &after);
        }
        outcome
    }

    pub(super) fn unpin(&self, id: PinId) -> Result<(), ReuseError> {
        self.locked(|state| {
            let pin = state.pins.remove(id)?;
            let window = &mut state.windows[pin.window];
            match pin.pinned {
                Pinned::Prefix(slot) => window.unpin(slot),
                Pinned::Blocks(slots) => slots.iter().for_each(|slot| window.unpin(*slot)),
            }
            Ok(())
        })
    }

    fn window_index(&self, window: i32) -> Result<usize, ReuseError> {
        let position = self.window_tokens.iter().position(|tokens| *tokens == window);
        position.ok_or(ReuseError::UnknownWindow { window })
    }

    fn check(&self, sequence: &Sequence) -> Result<(), ReuseError> {
        let (tree, sequence) = (self.tokens_per_block, sequence.tokens_per_block());
        if tree != sequence {
            return Err(ReuseError::OtherBlockSize { tree, sequence });
        }
        Ok(())
    }
}

/// Which blocks hold which content. All operations may be called from any thread. A clone is
/// another handle on the same tree.
#[derive(Clone)]
pub struct ReuseTree {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ReuseTree {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReuseTree")
            .field("tokens_per_block", &self.shared.tokens_per_block)
            .field("windows", &self.shared.window_tokens)
            .finish_non_exhaustive()
    }
}

impl ReuseTree {
    /// A tree that holds nothing.
    pub fn new(config: ReuseTreeConfig<'_>) -> Result<Self, ReuseError> {
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
        let windows = window_tokens.iter().map(|tokens| Window::new(*tokens as usize, config.seed));
        let state = State {
            windows: windows.collect(),
            pins: PinTable::new(config.seed),
            blocks_taken: 0,
            blocks_duplicate: 0,
            blocks_returned: 0,
            blocks_removed: 0,
            evictions_busy: 0,
        };
        let shared = Shared {
            tokens_per_block: config.tokens_per_block,
            window_tokens,
            observer: config.observer,
            state: Mutex::new(state),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Tokens in a full block.
    pub fn tokens_per_block(&self) -> usize {
        self.shared.tokens_per_block
    }

    /// The windows of the tree.
    pub fn windows(&self) -> &[i32] {
        &self.shared.window_tokens
    }

    /// Puts `ids[i]` at block `first_block + i` of the sequence, whose bytes are complete. Returns
    /// what the tree holds at each of these positions afterwards. An id that is not there in the
    /// answer is handed back: the position holds another block, is below an empty one (full
    /// window), or the id is protected elsewhere, or already above on this path. An unprotected id
    /// stored elsewhere moves here, and what was below it leaves the tree. Negative ids are holes
    /// in sliding windows and refused in the full one.
    pub fn store(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
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
        // All memory before the lock, or before the first change.
        let mut keys = Vec::new();
        keys.try_reserve_exact(ids.len())?;
        for position in first_block..first_block + ids.len() {
            keys.push(sequence.copied_key(position)?);
        }
        let mut holds = Vec::new();
        holds.try_reserve_exact(ids.len())?;
        self.shared.locked(|state| {
            let window = &mut state.windows[index];
            window.reserve(sequence, first_block, ids.len())?;
            for (offset, (id, key)) in ids.iter().zip(keys).enumerate() {
                let attached = window.attached_blocks() as u64;
                let stored = window.store(sequence, first_block + offset, *id, key);
                // A block that moved here left another place, with all that was below it.
                let taken = u64::from(stored == Stored::Taken);
                state.blocks_removed += attached + taken - window.attached_blocks() as u64;
                holds.push(match stored {
                    Stored::Taken => {
                        state.blocks_taken += 1;
                        Some(*id)
                    }
                    Stored::Occupied(holder) => {
                        state.blocks_duplicate += u64::from(holder != *id && *id >= 0);
                        Some(holder)
                    }
                    Stored::Returned => {
                        state.blocks_returned += u64::from(*id >= 0);
                        None
                    }
                });
            }
            Ok(holds)
        })
    }

    /// The longest stored prefix within the sequence's first `max_tokens` tokens: full blocks, then
    /// possibly the head of one more. A request being admitted asks for at most its length - 1.
    pub fn match_prefix(
        &self,
        window: i32,
        sequence: &Sequence,
        max_tokens: usize,
    ) -> Result<PrefixMatch, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.check(sequence)?;
        self.shared.locked(|state| {
            let (found, _) = matched(&state.windows[index], sequence, max_tokens)?;
            Ok(found)
        })
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
        Ok(self.shared.locked(|state| {
            let prefix = state.windows[index].match_prefix(sequence, max_tokens);
            let full = prefix.full_blocks * sequence.tokens_per_block();
            full + prefix.partial.map_or(0, |head| head.tokens)
        }))
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
        let (found, pinned) = self.shared.locked(|state| {
            let (found, slots) = matched(&state.windows[index], sequence, max_tokens)?;
            if slots.is_empty() {
                return Ok((found, None));
            }
            let pinned = state.pin(index, slots, lease_deadline_ns)?;
            Ok::<_, ReuseError>((found, Some(pinned)))
        })?;
        let range = pinned
            .map(|pinned| self.range(window, found.first_block, pinned, found.partial_tokens));
        Ok((found, range))
    }

    /// Pins blocks of a sequence for sending: present, in primary memory, and full, except that the
    /// sequence's partial tail is found in any block whose tokens start with it.
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
        let (present, pinned) = self.shared.locked(|state| {
            let window = &state.windows[index];
            let mut slots = Vec::new();
            slots.try_reserve_exact(count)?;
            slots.extend(
                (first..end).map_while(|position| window.find_sendable(sequence, position)),
            );
            pin_present(state, index, slots, count, request.policy, request.lease_deadline_ns)
        })?;
        let ends_with_tail = first + present > sequence.full_block_count();
        let tail_tokens = if ends_with_tail { sequence.block_tokens(end - 1).len() } else { 0 };
        let range = pinned.map(|pinned| self.range(window, first, pinned, tail_tokens));
        Ok(PinOutcome { present, range })
    }

    /// Pins blocks for a peer that gives only content names, `names[0]` being a first block's: full
    /// ones in primary memory, stored for sequences whose names mean the same on every worker.
    pub fn pin_named(
        &self,
        window: i32,
        names: &[Name],
        policy: Policy,
        lease_deadline_ns: Option<u64>,
    ) -> Result<PinOutcome, ReuseError> {
        let index = self.shared.window_index(window)?;
        let (present, pinned) = self.shared.locked(|state| {
            let window = &state.windows[index];
            let mut slots: Vec<Slot> = Vec::new();
            slots.try_reserve_exact(names.len())?;
            for name in names {
                let Some(slot) = window.find_servable(name, slots.last().copied()) else {
                    break;
                };
                slots.push(slot);
            }
            pin_present(state, index, slots, names.len(), policy, lease_deadline_ns)
        })?;
        let range = pinned.map(|pinned| self.range(window, 0, pinned, 0));
        Ok(PinOutcome { present, range })
    }

    /// Releases a pin. An error that changes nothing if no live pin of this tree has this id.
    pub fn unpin(&self, pin: PinId) -> Result<(), ReuseError> {
        self.shared.unpin(pin)
    }

    /// The live pins whose lease ended at `now_ns` or before. They stay pinned: only a holder knows
    /// when no access is in flight any more.
    pub fn expired_leases(&self, now_ns: u64) -> Result<Vec<PinId>, ReuseError> {
        self.shared.locked(|state| {
            let mut expired = Vec::new();
            expired.try_reserve_exact(state.pins.expired(now_ns).count())?;
            expired.extend(state.pins.expired(now_ns));
            Ok(expired)
        })
    }

    /// Takes a block out of the tree, with everything below it in its window, unless it is
    /// protected. The ids stay with whoever holds them.
    pub fn evict(&self, window: i32, id: BlockId) -> Result<Evicted, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state| {
            let window = &mut state.windows[index];
            let Some(slot) = window.find_id(id) else {
                return Evicted::NotFound;
            };
            if window.node(slot).is_protected() {
                state.evictions_busy += 1;
                return Evicted::Busy;
            }
            let blocks = window.detach_below(slot);
            state.blocks_removed += blocks as u64;
            Evicted::Left { blocks }
        }))
    }

    /// Takes a block and everything below it out of the tree, protected or not; protected ones stay
    /// under protection, known by id only, until their last unpin. Returns how many blocks left.
    pub fn remove_subtree(&self, window: i32, id: BlockId) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state| {
            let window = &mut state.windows[index];
            let Some(slot) = window.find_id(id).filter(|slot| window.node(*slot).is_attached)
            else {
                return 0;
            };
            let blocks = window.detach_below(slot);
            state.blocks_removed += blocks as u64;
            blocks
        }))
    }

    /// Empties the tree, all windows; protected blocks as in [`ReuseTree::remove_subtree`].
    pub fn reset(&self) {
        self.shared.locked(|state| {
            for window in &mut state.windows {
                state.blocks_removed += window.attached_blocks() as u64;
                window.detach_all();
            }
        });
    }

    /// Notes that a block moved between primary and secondary memory. Protection holds against
    /// offload: `false`, and nothing noted, for a protected block on its way to secondary memory;
    /// `None` if the tree does not hold the block.
    pub fn set_tier(
        &self,
        window: i32,
        id: BlockId,
        tier: Tier,
    ) -> Result<Option<bool>, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state| {
            let window = &mut state.windows[index];
            let slot = window.find_id(id).filter(|slot| window.node(*slot).is_attached)?;
            if tier == Tier::Secondary && window.node(slot).is_protected() {
                return Some(false);
            }
            window.set_tier(slot, tier);
            Some(true)
        }))
    }

    /// What the tree knows of a block in it.
    pub fn find_id(&self, window: i32, id: BlockId) -> Result<Option<BlockState>, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state| {
            let window = &state.windows[index];
            let slot = window.find_id(id).filter(|slot| window.node(*slot).is_attached)?;
            Some(block_state(window, slot))
        }))
    }

    /// A block with this block hash. Several may share it: a hash is a hint, not an identity.
    pub fn find_hash(&self, window: i32, hash: u64) -> Result<Option<BlockState>, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state| {
            let window = &state.windows[index];
            window.find_hash(hash).map(|slot| block_state(window, slot))
        }))
    }

    /// How many blocks of a window are protected; what a host takes off its count of free blocks.
    pub fn protected_blocks(&self, window: i32) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state| state.windows[index].protected_blocks()))
    }

    /// The tree's numbers.
    pub fn statistics(&self) -> TreeStatistics {
        self.shared.state.lock().statistics()
    }

    /// Checks that the tree's parts agree with each other; `Err` says which do not. Slow.
    pub fn verify(&self) -> Result<(), String> {
        verify::verify(&self.shared.state.lock())
    }

    fn range(
        &self,
        window: i32,
        first_block: usize,
        (pin, blocks): (PinId, Vec<RangeBlock>),
        tail_tokens: usize,
    ) -> BlockRange {
        let tree = Arc::clone(&self.shared);
        BlockRange { tree, pin, window, first_block, blocks, tail_tokens, is_abandoned: false }
    }
}

impl Drop for Shared {
    /// What is still stored is stored no more; by now no range and so no pin is left.
    fn drop(&mut self) {
        let before = self.state.get_mut().statistics();
        let after = TreeStatistics {
            stored_blocks: 0,
            secondary_blocks: 0,
            protected_blocks: 0,
            live_pins: 0,
            ..before
        };
        if before != after {
            self.observer.changed(&before, &after);
        }
    }
}

type Pinning = Option<(PinId, Vec<RangeBlock>)>;

/// Pins the blocks that are present of `wanted` ones, if the policy is content with them.
fn pin_present(
    state: &mut State,
    window_index: usize,
    slots: Vec<Slot>,
    wanted: usize,
    policy: Policy,
    lease_deadline_ns: Option<u64>,
) -> Result<(usize, Pinning), ReuseError> {
    let present = slots.len();
    let is_enough = match policy {
        Policy::Strict => present == wanted,
        Policy::BestEffort => true,
    };
    if present == 0 || !is_enough {
        return Ok((present, None));
    }
    Ok((present, Some(state.pin(window_index, slots, lease_deadline_ns)?)))
}

/// The longest stored prefix, and the nodes that hold it.
fn matched(
    window: &Window,
    sequence: &Sequence,
    max_tokens: usize,
) -> Result<(PrefixMatch, Vec<Slot>), ReuseError> {
    let prefix = window.match_prefix(sequence, max_tokens);
    let names = &sequence.names()[prefix.first_block.min(prefix.full_blocks)..prefix.full_blocks];
    let mut slots = Vec::new();
    slots.try_reserve_exact(names.len() + 1)?;
    slots.extend(names.iter().filter_map(|name| window.find_name(name)));
    slots.extend(prefix.partial.map(|head| head.slot));
    let mut blocks = Vec::new();
    blocks.try_reserve_exact(slots.len())?;
    blocks.extend(slots.iter().map(|slot| {
        let block = window.block(*slot);
        (block.id, block.tier)
    }));
    let partial_tokens = prefix.partial.map_or(0, |head| head.tokens);
    let found = PrefixMatch {
        matched_tokens: prefix.full_blocks * sequence.tokens_per_block() + partial_tokens,
        first_block: prefix.first_block,
        blocks,
        partial_tokens,
    };
    Ok((found, slots))
}

fn block_state(window: &Window, slot: Slot) -> BlockState {
    let node = window.node(slot);
    let block = window.block(slot);
    BlockState {
        id: block.id,
        hash: block.hash,
        position: node.position as usize,
        token_count: block.key.token_count(),
        tier: block.tier,
        is_protected: node.is_protected(),
    }
}
