//! `kvh_reuse_tree_t`: which blocks hold which content.

use std::mem::offset_of;
use std::sync::Arc;

use super::args::{self, Params};
use super::block_range::{self, kvh_block_range_t};
use super::context::{kvh_context_t, Context};
use super::guard;
use super::handle::{self, Handle, Owned};
use super::sequence::{self, kvh_sequence_t};
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use crate::reuse::{
    BlockState, Evicted, Noted, OwnedBlocks, Owner, OwnerStatistics, PinId, ReuseTree,
    ReuseTreeConfig, Tier, TreeObserver, TreeStatistics,
};
use crate::telemetry::nvtx::{Range, Step};
use crate::telemetry::Metrics;

/// The blocks that a cache holds, by content, one tree for each attention window. All calls may be
/// made concurrently. A block is an id that the host gives; ids of different windows are unrelated.
pub struct kvh_reuse_tree_t {
    _opaque: [u8; 0],
}

/// A tree and the context it belongs to.
pub struct TreeObject {
    pub(crate) tree: ReuseTree,
    /// In owner mode.
    pub(crate) owner: Option<Owner>,
    pub(crate) context: Arc<Context>,
}

impl Handle for kvh_reuse_tree_t {
    type Object = TreeObject;
}
impl Owned for kvh_reuse_tree_t {}

/// Full attention.
pub const KVH_WINDOW_FULL: i32 = 0;
/// No block. As an id to store in a sliding window: a hole.
pub const KVH_BLOCK_NONE: i32 = -1;

/// mode: the host picks what to evict and asks kvh_reuse_tree_evict.
pub const KVH_REUSE_MODE_ARBITER: u32 = 1;
/// mode: the library keeps the free queues: see kvh_request_add and kvh_reuse_tree_take.
pub const KVH_REUSE_MODE_OWNER: u32 = 2;

/// tier: where blocks are computed with; only these are sent to peers.
pub const KVH_TIER_PRIMARY: u32 = 1;
/// tier: where blocks are only kept.
pub const KVH_TIER_SECONDARY: u32 = 2;

/// How a tree is made.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_reuse_tree_params_t {
    /// sizeof(kvh_reuse_tree_params_t).
    pub struct_size: usize,
    /// Tokens in a full block: 1 .. 65536. Sequences must agree.
    pub tokens_per_block: u32,
    /// Who picks what to evict: KVH_REUSE_MODE_*.
    pub mode: u32,
    /// Attention windows in tokens, at most 64, each once; none: only KVH_WINDOW_FULL.
    pub windows: *const i32,
    /// How many.
    pub window_count: usize,
    /// Owner mode: blocks of each window in primary memory: the ids from 0 on, not 0. Else 0.
    pub primary_blocks: i32,
    /// Owner mode: blocks of each window in secondary memory: the ids after those. Else 0.
    pub secondary_blocks: i32,
    /// Events kept for kvh_reuse_tree_events, at most 2^24. 0: none.
    pub event_capacity: usize,
}

// SAFETY: repr(C), struct_size first, only integers and raw pointers.
unsafe impl Params for kvh_reuse_tree_params_t {
    const MIN_SIZE: usize = offset_of!(Self, event_capacity);
}

/// A tree's numbers, over all windows. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_reuse_tree_statistics_t {
    /// sizeof(kvh_reuse_tree_statistics_t).
    pub struct_size: usize,
    /// Blocks in the tree.
    pub stored_blocks: usize,
    /// Of these, in secondary memory.
    pub secondary_blocks: usize,
    /// Blocks under protection, in the tree or not any more.
    pub protected_blocks: usize,
    /// Live pins.
    pub live_pins: usize,
    /// Blocks that kvh_reuse_tree_store took, ever.
    pub blocks_taken: u64,
    /// Blocks that it handed back because the position held another, ever.
    pub blocks_duplicate: u64,
    /// Blocks that it handed back for other reasons, ever.
    pub blocks_returned: u64,
    /// Blocks that left the tree, ever.
    pub blocks_removed: u64,
    /// Evictions answered KVH_BUSY, ever.
    pub evictions_busy: u64,
    /// Owner mode: blocks in primary memory that can be taken.
    pub free_primary_blocks: usize,
    /// Owner mode: blocks in secondary memory that can be taken.
    pub free_secondary_blocks: usize,
    /// Owner mode: copies that the host has not made; see kvh_reuse_tree_copies.
    pub waiting_copies: usize,
    /// Owner mode: blocks that left the tree because one was taken, ever.
    pub blocks_evicted: u64,
    /// Owner mode: blocks that went to secondary memory, ever.
    pub blocks_offloaded: u64,
    /// Owner mode: blocks that came back to primary memory, ever.
    pub blocks_onboarded: u64,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_reuse_tree_statistics_t {
    const MIN_SIZE: usize = offset_of!(Self, free_primary_blocks);
}

/// What a tree knows of a block. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_block_state_t {
    /// sizeof(kvh_block_state_t).
    pub struct_size: usize,
    /// Its id.
    pub block_id: i32,
    /// The memory it lies in: KVH_TIER_*.
    pub tier: u32,
    /// Its block hash.
    pub block_hash: u64,
    /// Its place in the sequence.
    pub position: usize,
    /// Tokens in it.
    pub token_count: u32,
    /// 1 while a pin protects it, else 0.
    pub is_protected: u32,
    /// How much it is worth keeping: 0 .. 100.
    pub priority: u32,
    /// Owner mode: how many use it.
    pub users: u32,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_block_state_t {
    const MIN_SIZE: usize = offset_of!(Self, priority);
}

/// Turns what a tree counts into the context's metrics.
struct MetricsObserver(Arc<Metrics>);

impl TreeObserver for MetricsObserver {
    fn changed(&self, before: &TreeStatistics, after: &TreeStatistics) {
        let metrics = &self.0;
        for (gauge, before, after) in [
            (&metrics.reuse_stored_blocks, before.stored_blocks, after.stored_blocks),
            (&metrics.reuse_protected_blocks, before.protected_blocks, after.protected_blocks),
            (&metrics.reuse_pins, before.live_pins, after.live_pins),
        ] {
            if after >= before {
                gauge.add(0, (after - before) as u64);
            } else {
                gauge.subtract(0, (before - after) as u64);
            }
        }
        for (counter, index, grown) in [
            (&metrics.reuse_store_results, 0, after.blocks_taken - before.blocks_taken),
            (&metrics.reuse_store_results, 1, after.blocks_duplicate - before.blocks_duplicate),
            (&metrics.reuse_store_results, 2, after.blocks_returned - before.blocks_returned),
            (&metrics.reuse_removed_blocks, 0, after.blocks_removed - before.blocks_removed),
            (&metrics.reuse_evictions_busy, 0, after.evictions_busy - before.evictions_busy),
        ] {
            counter.add(index, grown);
        }
    }

    fn owner_changed(&self, before: &OwnerStatistics, after: &OwnerStatistics) {
        let metrics = &self.0;
        for (index, before, after) in [
            (0, before.free_primary, after.free_primary),
            (1, before.free_secondary, after.free_secondary),
        ] {
            if after >= before {
                metrics.reuse_free_blocks.add(index, (after - before) as u64);
            } else {
                metrics.reuse_free_blocks.subtract(index, (before - after) as u64);
            }
        }
        for (counter, index, grown) in [
            (&metrics.reuse_evicted_blocks, 0, after.blocks_evicted - before.blocks_evicted),
            (&metrics.reuse_moved_blocks, 0, after.blocks_offloaded - before.blocks_offloaded),
            (&metrics.reuse_moved_blocks, 1, after.blocks_onboarded - before.blocks_onboarded),
        ] {
            counter.add(index, grown);
        }
    }
}

/// A call on a tree.
///
/// # Safety
/// `tree` is NULL or a live tree.
pub(super) unsafe fn on_tree(
    tree: *const kvh_reuse_tree_t,
    body: impl FnOnce(&TreeObject) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(tree) } {
        Ok(object) => guard::with_context(&object.context, || body(object)),
        Err(status) => status as kvh_status_t,
    }
}

/// A call that only owner mode has. KVH_ERR_STATE in arbiter mode.
///
/// # Safety
/// `tree` is NULL or a live tree.
pub(super) unsafe fn on_owner(
    tree: *const kvh_reuse_tree_t,
    body: impl FnOnce(&Owner, &TreeObject) -> CallResult,
) -> kvh_status_t {
    let body = |object: &TreeObject| body(object.owner.as_ref().ok_or(KVH_ERR_STATE)?, object);
    // SAFETY: the caller's promise.
    unsafe { on_tree(tree, body) }
}

pub(super) fn tier_of(number: u32) -> Result<Tier, kvh_status> {
    match number {
        KVH_TIER_PRIMARY => Ok(Tier::Primary),
        KVH_TIER_SECONDARY => Ok(Tier::Secondary),
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

pub(crate) fn tier_number(tier: Tier) -> u32 {
    match tier {
        Tier::Primary => KVH_TIER_PRIMARY,
        Tier::Secondary => KVH_TIER_SECONDARY,
    }
}

/// Creates an empty tree. Destroy it with kvh_reuse_tree_destroy; the context may go first. In owner
/// mode all its blocks are free. KVH_ERR_INVALID_ARGUMENT: no or an unknown mode, no
/// tokens_per_block, a window that is negative or given twice; blocks in arbiter mode, or none in
/// primary memory in owner mode. KVH_ERR_LIMIT: more than 2^26 blocks a window.
///
/// # Safety
/// `context` is a live context; `params` points at a parameter struct whose array is as long as it
/// says; `tree_out` at a writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_create(
    context: *const kvh_context_t,
    params: *const kvh_reuse_tree_params_t,
    tree_out: *mut *mut kvh_reuse_tree_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guard::on_context(context, |_| {
            let params = args::read_params(params)?;
            let tree_out = args::out(tree_out)?;
            let windows = args::slice(params.windows, params.window_count)?;
            let blocks = OwnedBlocks {
                primary: usize::try_from(params.primary_blocks)
                    .map_err(|_| KVH_ERR_INVALID_ARGUMENT)?,
                secondary: usize::try_from(params.secondary_blocks)
                    .map_err(|_| KVH_ERR_INVALID_ARGUMENT)?,
            };
            let context = handle::cloned(context);
            let config = ReuseTreeConfig {
                tokens_per_block: params.tokens_per_block as usize,
                windows,
                seed: getrandom::u64().map_err(|_| KVH_ERR_UNSUPPORTED)?,
                observer: Arc::new(MetricsObserver(Arc::clone(&context.metrics))),
            };
            let (tree, owner) = match (params.mode, blocks) {
                (KVH_REUSE_MODE_ARBITER, OwnedBlocks { primary: 0, secondary: 0 }) => {
                    let noted = Noted::events(params.event_capacity);
                    (ReuseTree::noting(config, noted)?, None)
                }
                (KVH_REUSE_MODE_OWNER, OwnedBlocks { primary: 1.., .. }) => {
                    let owner = Owner::new(config, blocks, params.event_capacity)?;
                    (owner.tree().clone(), Some(owner))
                }
                _ => return Err(KVH_ERR_INVALID_ARGUMENT),
            };
            // Ages of pins count from here at the latest.
            tree.set_now(context.clock.monotonic_ns());
            {
                let mut trees = context.trees.lock();
                trees.retain(|tree| tree.upgrade().is_some());
                trees.try_reserve(1)?;
                trees.push(tree.downgrade());
            }
            tree_out.write(handle::give(TreeObject { tree, owner, context }));
            Ok(())
        })
    }
}

/// Destroys the tree. NULL is fine. Block ranges of it stay usable, and their pins protect what
/// they protected, as far as anybody still asks.
///
/// # Safety
/// `tree` is NULL or a live tree, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_destroy(tree: *mut kvh_reuse_tree_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(tree) }));
}

/// Stores blocks whose bytes are complete: ids[i] holds block first_block + i of the sequence.
/// held_out[i] is what the tree holds there afterwards, KVH_BLOCK_NONE if nothing; an id that is
/// not in held_out is handed back. A position that is taken keeps its block. In the full window a
/// block whose predecessor is missing is handed back, and negative ids are
/// KVH_ERR_INVALID_ARGUMENT; in sliding windows negative ids are holes. An id that is stored
/// elsewhere moves here, and what was stored below its old place leaves the tree; if it is
/// protected, or its old place lies before this one in the same sequence, it stays there and is
/// handed back. In owner mode blocks must be in use: KVH_ERR_STATE, and nothing is stored, else.
///
/// # Safety
/// `tree` and `sequence` are live; `ids` and `held_out` have `id_count` values.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_store(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    sequence: *const kvh_sequence_t,
    first_block: usize,
    ids: *const i32,
    id_count: usize,
    held_out: *mut i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let sequence = sequence::borrowed(sequence)?;
            let ids = stored_ids(ids, id_count, held_out)?;
            let holds = match &object.owner {
                None => object.tree.store(window, sequence, first_block, ids),
                Some(owner) => owner.store(window, sequence, first_block, ids),
            }?;
            write_held(held_out, &holds);
            Ok(())
        })
    }
}

/// The ids to be stored, where the answer has a place for each.
///
/// # Safety
/// `ids` has `id_count` values, which stay as they are for `'a`.
pub(super) unsafe fn stored_ids<'a>(
    ids: *const i32,
    id_count: usize,
    held_out: *mut i32,
) -> Result<&'a [i32], kvh_status> {
    if id_count > 0 && (held_out.is_null() || !held_out.is_aligned()) {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    unsafe { args::slice(ids, id_count) }
}

/// Tells what the tree holds at each position.
///
/// # Safety
/// `held_out` has a place for each.
pub(super) unsafe fn write_held(held_out: *mut i32, holds: &[Option<i32>]) {
    for (index, held) in holds.iter().enumerate() {
        // Not through a slice: a caller may bring the same array for ids and answer.
        // SAFETY: the caller's promise.
        unsafe { held_out.add(index).write(held.unwrap_or(KVH_BLOCK_NONE)) };
    }
}

/// How many of the sequence's first max_tokens tokens are stored: full blocks, then possibly the
/// longest head in common with one more block. A request being admitted asks for at most its
/// length - 1. 0 is KVH_OK.
///
/// # Safety
/// `tree` and `sequence` are live; `matched_tokens_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_match(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    sequence: *const kvh_sequence_t,
    max_tokens: usize,
    matched_tokens_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let sequence = sequence::borrowed(sequence)?;
            let out = args::out(matched_tokens_out)?;
            let _range = Range::push(Step::Match, || 0);
            out.write(object.tree.matched_tokens(window, sequence, max_tokens)?);
            Ok(())
        })
    }
}

/// kvh_reuse_tree_match and a pin on the blocks found, in one step. The range holds them in either
/// tier, in a sliding window from the first one still needed; kvh_block_range_tail_tokens says how
/// much of a last, partly matching one counts. KVH_NOT_FOUND when nothing matches;
/// *matched_tokens_out, 0, is written then too. lease_ns: 0 for none.
///
/// # Safety
/// `tree` and `sequence` are live; `matched_tokens_out` and `range_out` are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_match_and_pin(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    sequence: *const kvh_sequence_t,
    max_tokens: usize,
    lease_ns: u64,
    matched_tokens_out: *mut usize,
    range_out: *mut *mut kvh_block_range_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let sequence = sequence::borrowed(sequence)?;
            let matched_tokens_out = args::out(matched_tokens_out)?;
            let range_out = args::out(range_out)?;
            let lease = block_range::lease_deadline_ns(&object.context, lease_ns);
            let _ranges = (Range::push(Step::Match, || 0), Range::push(Step::Pin, || 0));
            let (found, range) = object.tree.match_and_pin(window, sequence, max_tokens, lease)?;
            matched_tokens_out.write(found.matched_tokens);
            range_out.write(block_range::give(range.ok_or(KVH_NOT_FOUND)?, &object.context));
            Ok(())
        })
    }
}

/// Takes a block out of the tree, with everything stored below it in its window; the ids stay with
/// the host. KVH_BUSY: it is protected (in owner mode also: in use), take another. KVH_NOT_FOUND: the tree does not hold it (any
/// more).
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_evict(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let evicted = match &object.owner {
                None => object.tree.evict(window, block_id),
                Some(owner) => owner.evict(window, block_id),
            };
            match evicted? {
                Evicted::Left { .. } => Ok(()),
                Evicted::Busy => Err(KVH_BUSY),
                Evicted::NotFound => Err(KVH_NOT_FOUND),
            }
        })
    }
}

/// Takes a block and everything stored below it in its window out of the tree, protected or not.
/// Protected ones stay under protection, busy to evict and refused by store, until their last
/// unpin. KVH_NOT_FOUND: the tree does not hold the block.
///
/// # Safety
/// `tree` is a live tree; `removed_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_remove_subtree(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
    removed_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let removed_out = args::out(removed_out)?;
            let removed = match &object.owner {
                None => object.tree.remove_subtree(window, block_id),
                Some(owner) => owner.remove_subtree(window, block_id),
            };
            match removed? {
                0 => Err(KVH_NOT_FOUND),
                removed => {
                    removed_out.write(removed);
                    Ok(())
                }
            }
        })
    }
}

/// Empties the tree, all windows. Protected blocks as with kvh_reuse_tree_remove_subtree.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_reset(tree: *const kvh_reuse_tree_t) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            match &object.owner {
                None => object.tree.reset(),
                Some(owner) => owner.reset(),
            }
            Ok(())
        })
    }
}

/// Notes that a block was moved to a tier; its id stays. KVH_BUSY: it is protected and cannot go to
/// secondary memory now. KVH_NOT_FOUND: the tree does not hold it. KVH_ERR_STATE: owner mode, which
/// has kvh_reuse_tree_offload and kvh_reuse_tree_onboard.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_set_tier(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
    tier: u32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let tier = tier_of(tier)?;
            if object.owner.is_some() {
                return Err(KVH_ERR_STATE);
            }
            match object.tree.set_tier(window, block_id, tier)? {
                Some(true) => Ok(()),
                Some(false) => Err(KVH_BUSY),
                None => Err(KVH_NOT_FOUND),
            }
        })
    }
}

/// # Safety
/// As for [`args::write_struct`].
unsafe fn write_state(
    object: &TreeObject,
    window: i32,
    state: Option<BlockState>,
    out: *mut kvh_block_state_t,
) -> CallResult {
    let state = state.ok_or(KVH_NOT_FOUND)?;
    let users = match &object.owner {
        None => 0,
        Some(owner) => owner.users(window, state.id)?,
    };
    let value = kvh_block_state_t {
        struct_size: size_of::<kvh_block_state_t>(),
        block_id: state.id,
        tier: tier_number(state.tier),
        block_hash: state.hash,
        position: state.position,
        token_count: state.token_count as u32,
        is_protected: u32::from(state.is_protected),
        priority: u32::from(state.priority),
        users,
    };
    // SAFETY: the caller's promise.
    unsafe { args::write_struct(out, &value) }
}

/// What the tree knows of a block in it. KVH_NOT_FOUND: it is not in the tree.
///
/// # Safety
/// `tree` is a live tree; `state_out` points at a struct with its `struct_size` set.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_find_id(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
    state_out: *mut kvh_block_state_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            write_state(object, window, object.tree.find_id(window, block_id)?, state_out)
        })
    }
}

/// A block with this block hash. Several may share one: a hash is no identity. KVH_NOT_FOUND: none
/// is in the tree.
///
/// # Safety
/// `tree` is a live tree; `state_out` points at a struct with its `struct_size` set.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_find_hash(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_hash: u64,
    state_out: *mut kvh_block_state_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            write_state(object, window, object.tree.find_hash(window, block_hash)?, state_out)
        })
    }
}

/// How many blocks of a window are protected now: what the host takes off its count of free blocks.
///
/// # Safety
/// `tree` is a live tree; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_protected_count(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let count_out = args::out(count_out)?;
            count_out.write(object.tree.protected_blocks(window)?);
            Ok(())
        })
    }
}

/// The tree's numbers.
///
/// # Safety
/// `tree` is a live tree; `statistics_out` points at a struct with its `struct_size` set.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_statistics(
    tree: *const kvh_reuse_tree_t,
    statistics_out: *mut kvh_reuse_tree_statistics_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let statistics = object.tree.statistics();
            let owner = object.owner.as_ref().map(Owner::statistics).unwrap_or_default();
            let value = kvh_reuse_tree_statistics_t {
                struct_size: size_of::<kvh_reuse_tree_statistics_t>(),
                stored_blocks: statistics.stored_blocks,
                secondary_blocks: statistics.secondary_blocks,
                protected_blocks: statistics.protected_blocks,
                live_pins: statistics.live_pins,
                blocks_taken: statistics.blocks_taken,
                blocks_duplicate: statistics.blocks_duplicate,
                blocks_returned: statistics.blocks_returned,
                blocks_removed: statistics.blocks_removed,
                evictions_busy: statistics.evictions_busy,
                free_primary_blocks: owner.free_primary,
                free_secondary_blocks: owner.free_secondary,
                waiting_copies: owner.waiting_copies,
                blocks_evicted: owner.blocks_evicted,
                blocks_offloaded: owner.blocks_offloaded,
                blocks_onboarded: owner.blocks_onboarded,
            };
            args::write_struct(statistics_out, &value)
        })
    }
}

/// The pins whose lease has ended, by the context's clock. They still protect: only who holds one
/// knows when no access is in flight. The count is written on KVH_ERR_TOO_SMALL too; (NULL, 0) asks
/// for it.
///
/// # Safety
/// `tree` is a live tree; `pin_ids` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_expired_leases(
    tree: *const kvh_reuse_tree_t,
    pin_ids: *mut u64,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let expired = object.tree.expired_leases(object.context.clock.monotonic_ns())?;
            let mut ids = Vec::new();
            ids.try_reserve_exact(expired.len())?;
            ids.extend(expired.iter().map(|pin| pin.0));
            args::copy_out(&ids, pin_ids, capacity, count_out)
        })
    }
}

/// Releases a pin by its id. KVH_ERR_STATE, and nothing changed, when no live pin of this tree has
/// the id: it was released before, or is another tree's.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_unpin(
    tree: *const kvh_reuse_tree_t,
    pin_id: u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { on_tree(tree, |object| Ok(object.tree.unpin(PinId(pin_id))?)) }
}
