//! Owner mode of `kvh_reuse_tree_t`: the free queues, block by block. Requests as a whole are
//! `kvh_request_t`'s.

use super::args::{self, Params};
use super::reuse_tree::{kvh_reuse_tree_t, on_owner, on_tree, tier_number, tier_of};
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use crate::reuse::{BlockCopy, CopyReason, Retention, DEFAULT_PRIORITY};

/// priority: what a block gets that nobody says anything else of.
pub const KVH_PRIORITY_DEFAULT: i32 = 35;
/// priority: the one that the block has.
pub const KVH_PRIORITY_KEEP: i32 = -1;

const _: () = assert!(KVH_PRIORITY_DEFAULT == DEFAULT_PRIORITY as i32);

/// reason: the block goes to secondary memory, so that its slot can be used.
pub const KVH_COPY_OFFLOAD: u32 = 1;
/// reason: the block comes back to primary memory.
pub const KVH_COPY_ONBOARD: u32 = 2;
/// reason: the block gets the leading tokens, or all, of another one, which stays.
pub const KVH_COPY_REUSE: u32 = 3;

/// A copy that the host has to make, from slot to slot of a window's pools. Set struct_size of the
/// first one of an array before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_block_copy_t {
    /// sizeof(kvh_block_copy_t).
    pub struct_size: usize,
    /// The attention window in tokens.
    pub window: i32,
    /// The block whose bytes lie in to_slot afterwards.
    pub block_id: i32,
    /// KVH_COPY_*.
    pub reason: u32,
    /// KVH_TIER_*.
    pub from_tier: u32,
    /// Slot of that tier's pool.
    pub from_slot: u32,
    /// KVH_TIER_*.
    pub to_tier: u32,
    /// Slot of that tier's pool.
    pub to_slot: u32,
    /// How many leading tokens count.
    pub token_count: u32,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_block_copy_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// What one refresh found. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_reuse_tree_refreshed_t {
    /// sizeof(kvh_reuse_tree_refreshed_t).
    pub struct_size: usize,
    /// Blocks that fell back to the default priority.
    pub priorities_expired: usize,
    /// Live pins whose lease has ended; kvh_reuse_tree_expired_leases names them.
    pub leases_expired: usize,
    /// Age of the oldest live pin, in steps of refreshes. 0: there is none.
    pub oldest_pin_age_ns: u64,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_reuse_tree_refreshed_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// A duration as C says it: 0 is none.
pub(super) fn duration(duration_ns: u64) -> Option<u64> {
    (duration_ns > 0).then_some(duration_ns)
}

pub(super) fn retention(priority: i32, duration_ns: u64) -> Result<Retention, kvh_status> {
    let priority = u8::try_from(priority).map_err(|_| KVH_ERR_INVALID_ARGUMENT)?;
    Ok(Retention { priority, duration_ns: duration(duration_ns) })
}

/// Takes the next free block of a window: from the lowest priority up, oldest release first, the
/// first with nothing stored below it; if there is none, the first. The caller is its one user until
/// kvh_reuse_tree_release. KVH_BUSY: no block is free. It may ask for copies: see
/// kvh_reuse_tree_copies. KVH_ERR_STATE, here and in all calls of owner mode: the tree is not in it.
///
/// # Safety
/// `tree` is a live tree; `block_id_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_take(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    priority: i32,
    duration_ns: u64,
    block_id_out: *mut i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| {
            let block_id_out = args::out(block_id_out)?;
            block_id_out.write(owner.take(window, retention(priority, duration_ns)?)?);
            Ok(())
        })
    }
}

/// One more user of a block, free or not. priority may be KVH_PRIORITY_KEEP; the duration always
/// replaces the block's (0: none).
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_claim(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
    priority: i32,
    duration_ns: u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| {
            let priority = match priority {
                KVH_PRIORITY_KEEP => None,
                priority => Some(u8::try_from(priority).map_err(|_| KVH_ERR_INVALID_ARGUMENT)?),
            };
            Ok(owner.claim(window, block_id, priority, duration(duration_ns))?)
        })
    }
}

/// One user of a block less. The last one gives it back: to the back of its queue if it is in the
/// tree, else to the front. A request's blocks are given back last block first. KVH_ERR_STATE: it
/// has no users.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_release(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { on_owner(tree, |owner, _| Ok(owner.release(window, block_id)?)) }
}

/// How much a block is worth keeping: 0 .. 100, for a duration (0: for good) after which it falls to
/// KVH_PRIORITY_DEFAULT at a refresh. In owner mode the duration counts while the block is free; in
/// arbiter mode from now, and KVH_NOT_FOUND: the tree does not hold the block.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_set_priority(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
    priority: i32,
    duration_ns: u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let retention = retention(priority, duration_ns)?;
            if let Some(owner) = &object.owner {
                return Ok(owner.set_retention(window, block_id, retention)?);
            }
            let now_ns = object.context.clock.monotonic_ns();
            if object.tree.set_retention(window, block_id, retention, now_ns)? {
                return Ok(());
            }
            Err(KVH_NOT_FOUND)
        })
    }
}

/// Moves a free block that is in the tree to secondary memory. It asks for a copy: see
/// kvh_reuse_tree_copies. KVH_BUSY: it is in use or protected, or no block there is free.
/// KVH_ERR_STATE: it is not in the tree, so there is nothing to keep. KVH_OK if it is there already.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_offload(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| match owner.offload(window, block_id)? {
            true => Ok(()),
            false => Err(KVH_BUSY),
        })
    }
}

/// Moves a free block back to primary memory, by the same rules as kvh_reuse_tree_offload. The tree
/// says so, and the block may be sent, when the copy is made: see kvh_reuse_tree_copied.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_onboard(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| match owner.onboard(window, block_id)? {
            true => Ok(()),
            false => Err(KVH_BUSY),
        })
    }
}

/// Where a block's bytes lie, once the copies that wait are made: a tier (KVH_TIER_*) and a slot of
/// its pool. Ids below primary_blocks begin in the primary slot of the same number, those after them
/// in secondary slots from 0 on; slots change hands, ids do not. A pinned block stays where it is.
///
/// # Safety
/// `tree` is a live tree; `tier_out` and `slot_out` are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_block_place(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    block_id: i32,
    tier_out: *mut u32,
    slot_out: *mut u32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| {
            let (tier_out, slot_out) = (args::out(tier_out)?, args::out(slot_out)?);
            let place = owner.place(window, block_id)?;
            tier_out.write(tier_number(place.tier));
            slot_out.write(place.slot);
            Ok(())
        })
    }
}

/// The copies that the host has not made, oldest first; they stay listed until kvh_reuse_tree_copied.
/// They are to be made in this order, and before anything else is written to blocks handed out since:
/// one's source may be another's destination. At most capacity are written; *count_out says how many
/// there are in all.
///
/// # Safety
/// `tree` is a live tree; `copies` has room for `capacity` structs, the first one's `struct_size`
/// is set; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_copies(
    tree: *const kvh_reuse_tree_t,
    copies: *mut kvh_block_copy_t,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| {
            let count_out = args::out(count_out)?;
            let mut count = 0;
            args::write_structs(copies, capacity, |each| {
                count = owner.copies(capacity, |copy| each(&block_copy(copy)));
                Ok(())
            })?;
            if capacity == 0 {
                count = owner.copies(0, |_| ());
            }
            count_out.write(count);
            Ok(())
        })
    }
}

fn block_copy(copy: &BlockCopy) -> kvh_block_copy_t {
    kvh_block_copy_t {
        struct_size: size_of::<kvh_block_copy_t>(),
        window: copy.window,
        block_id: copy.id,
        reason: match copy.reason {
            CopyReason::Offload => KVH_COPY_OFFLOAD,
            CopyReason::Onboard => KVH_COPY_ONBOARD,
            CopyReason::Reuse => KVH_COPY_REUSE,
        },
        from_tier: tier_number(copy.from.tier),
        from_slot: copy.from.slot,
        to_tier: tier_number(copy.to.tier),
        to_slot: copy.to.slot,
        token_count: copy.token_count as u32,
    }
}

/// Says that the count oldest copies are made. KVH_ERR_LIMIT: there are not so many.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_copied(
    tree: *const kvh_reuse_tree_t,
    count: usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { on_owner(tree, |owner, _| Ok(owner.copied(count)?)) }
}

/// How many blocks of a window can be taken from a tier (KVH_TIER_*): those that nobody uses and no
/// pin protects.
///
/// # Safety
/// `tree` is a live tree; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_free_count(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    tier: u32,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, _| {
            let count_out = args::out(count_out)?;
            count_out.write(owner.free_count(window, tier_of(tier)?)?);
            Ok(())
        })
    }
}

/// To be called once an iteration of the executor, in both modes: by the context's clock, priorities
/// end, leases and the age of pins are looked at.
///
/// # Safety
/// `tree` is a live tree; `refreshed_out` points at a struct with its `struct_size` set.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_refresh(
    tree: *const kvh_reuse_tree_t,
    refreshed_out: *mut kvh_reuse_tree_refreshed_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let now_ns = object.context.clock.monotonic_ns();
            let refreshed = match &object.owner {
                None => object.tree.refresh(now_ns)?,
                Some(owner) => owner.refresh(now_ns)?,
            };
            let metrics = &object.context.metrics;
            metrics.reuse_expired_leases.set(0, refreshed.leases_expired as u64);
            metrics.reuse_oldest_pin_age.set(0, refreshed.oldest_pin_age_ns);
            let value = kvh_reuse_tree_refreshed_t {
                struct_size: size_of::<kvh_reuse_tree_refreshed_t>(),
                priorities_expired: refreshed.priorities_expired,
                leases_expired: refreshed.leases_expired,
                oldest_pin_age_ns: refreshed.oldest_pin_age_ns,
            };
            args::write_struct(refreshed_out, &value)
        })
    }
}
