//! What happened to a tree's blocks, and what is stored: the part of `kvh_reuse_tree_t` for routers.

use super::args::{self, Params};
use super::reuse_tree::{kvh_reuse_tree_t, on_tree, tier_number};
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use crate::reuse::{Event, EventKind, StoredBlock};

/// kind: a block came into the tree.
pub const KVH_EVENT_STORED: u32 = 1;
/// kind: a block left it.
pub const KVH_EVENT_REMOVED: u32 = 2;
/// kind: a block's tier or priority changed; the event says how it stands afterwards.
pub const KVH_EVENT_UPDATED: u32 = 3;
/// kind: events were lost because they were not read in time. List what is stored: see
/// kvh_reuse_tree_stored_blocks.
pub const KVH_EVENT_GAP: u32 = 4;

/// One event. Set struct_size of the first one of an array before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_reuse_event_t {
    /// sizeof(kvh_reuse_event_t).
    pub struct_size: usize,
    /// Grows by one with each event; a gap has the number of the last one lost.
    pub number: u64,
    /// KVH_EVENT_*.
    pub kind: u32,
    /// The block's attention window in tokens. This and the following fields are 0 for a gap.
    pub window: i32,
    /// Its id.
    pub block_id: i32,
    /// KVH_TIER_*.
    pub tier: u32,
    /// Its block hash.
    pub block_hash: u64,
    /// The hash of the block before it; 0 for a first block.
    pub parent_hash: u64,
    /// Its place in the sequence.
    pub position: usize,
    /// Tokens in it.
    pub token_count: u32,
    /// How much it is worth keeping: 0 .. 100.
    pub priority: u32,
    /// A gap: how many events were lost, up to its number. Else 0.
    pub lost_events: u64,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_reuse_event_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// A block in the tree. Set struct_size of the first one of an array before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_stored_block_t {
    /// sizeof(kvh_stored_block_t).
    pub struct_size: usize,
    /// Its block hash.
    pub block_hash: u64,
    /// The hash of the block before it; 0 for a first block.
    pub parent_hash: u64,
    /// Its place in the sequence.
    pub position: usize,
    /// Its id.
    pub block_id: i32,
    /// KVH_TIER_*.
    pub tier: u32,
    /// Tokens in it.
    pub token_count: u32,
    /// How much it is worth keeping: 0 .. 100.
    pub priority: u32,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_stored_block_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// cursor: there are no more blocks.
pub const KVH_CURSOR_END: u64 = u64::MAX;

fn event(event: &Event) -> kvh_reuse_event_t {
    let mut value = kvh_reuse_event_t {
        struct_size: size_of::<kvh_reuse_event_t>(),
        number: event.number,
        kind: KVH_EVENT_GAP,
        window: 0,
        block_id: 0,
        tier: 0,
        block_hash: 0,
        parent_hash: 0,
        position: 0,
        token_count: 0,
        priority: 0,
        lost_events: 0,
    };
    let (kind, block) = match event.kind {
        EventKind::Stored(block) => (KVH_EVENT_STORED, block),
        EventKind::Removed(block) => (KVH_EVENT_REMOVED, block),
        EventKind::Updated(block) => (KVH_EVENT_UPDATED, block),
        EventKind::Gap { lost } => {
            value.lost_events = lost;
            return value;
        }
    };
    kvh_reuse_event_t {
        kind,
        window: block.window,
        block_id: block.id,
        tier: tier_number(block.tier),
        block_hash: block.hash,
        parent_hash: block.parent_hash,
        position: block.position,
        token_count: block.token_count as u32,
        priority: u32::from(block.priority),
        ..value
    }
}

fn stored_block(block: &StoredBlock) -> kvh_stored_block_t {
    kvh_stored_block_t {
        struct_size: size_of::<kvh_stored_block_t>(),
        block_hash: block.hash,
        parent_hash: block.parent_hash,
        position: block.position,
        block_id: block.id,
        tier: tier_number(block.tier),
        token_count: block.token_count as u32,
        priority: u32::from(block.priority),
    }
}

/// Moves up to capacity events to the caller, oldest first, each once; *count_out says how many.
/// Fewer than capacity: there are no more now. With (NULL, 0) *count_out says how many wait. One
/// thread reads events; a tree keeps them only if it was created with an event_capacity.
///
/// # Safety
/// `tree` is a live tree; `events` has room for `capacity` structs, the first one's `struct_size`
/// is set; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_events(
    tree: *const kvh_reuse_tree_t,
    events: *mut kvh_reuse_event_t,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let count_out = args::out(count_out)?;
            let count = if events.is_null() && capacity == 0 {
                object.tree.waiting_events()
            } else {
                args::write_structs(events, capacity, |each| {
                    object.tree.events(capacity, |next| each(&event(&next)));
                    Ok(())
                })?
            };
            count_out.write(count);
            Ok(())
        })
    }
}

/// The number of the last event that happened, read or not; 0 before the first.
///
/// # Safety
/// `tree` is a live tree; `number_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_last_event_number(
    tree: *const kvh_reuse_tree_t,
    number_out: *mut u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            args::out(number_out)?.write(object.tree.last_event_number());
            Ok(())
        })
    }
}

/// Lists the blocks in one window of the tree, in no order, up to capacity of them a call. *cursor is
/// 0 before the first call and afterwards what the call before wrote: KVH_CURSOR_END when there are
/// no more. The tree may change meanwhile. To know what is stored after a gap: ask for
/// kvh_reuse_tree_last_event_number, list all windows, then apply the events after that number.
///
/// # Safety
/// `tree` is a live tree; `cursor` is writable and initialised; `blocks` has room for `capacity`
/// structs, the first one's `struct_size` is set; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_stored_blocks(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    cursor: *mut u64,
    blocks: *mut kvh_stored_block_t,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let count_out = args::out(count_out)?;
            // Checked as a place to write to; the caller promises that it holds a number.
            let cursor = args::out(cursor)?.assume_init_mut();
            if capacity == 0 {
                return Err(KVH_ERR_INVALID_ARGUMENT);
            }
            if *cursor == KVH_CURSOR_END {
                count_out.write(0);
                return Ok(());
            }
            let from = u32::try_from(*cursor).map_err(|_| KVH_ERR_INVALID_ARGUMENT)?;
            let mut next = None;
            let count = args::write_structs(blocks, capacity, |each| {
                let each = |block: StoredBlock| each(&stored_block(&block));
                next = object.tree.stored_blocks(window, from, capacity, each)?;
                Ok(())
            })?;
            *cursor = next.map_or(KVH_CURSOR_END, u64::from);
            count_out.write(count);
            Ok(())
        })
    }
}
