//! `kvh_block_range_t`: pinned blocks.

use std::sync::Arc;

use super::args::{self, Params};
use super::context::Context;
use super::guard;
use super::handle::{self, Handle, Owned};
use super::reuse_tree::{kvh_reuse_tree_t, tier_number};
use super::sequence::{self, kvh_sequence_t};
use super::status::kvh_status::*;
use super::status::{kvh_status_t, CallResult};
use crate::poison::Poisonable;
use crate::reuse::{BlockRange, Policy, RangeRequest};
use crate::telemetry::nvtx::{Range, Step};

/// Blocks of one window, oldest first, and the pin that protects them: none is evicted, offloaded
/// or stored elsewhere until the pin is released. In the full window the blocks before them are
/// protected too. All calls but destroy may be made concurrently.
pub struct kvh_block_range_t {
    _opaque: [u8; 0],
}

/// A range and the context it belongs to.
pub struct RangeObject {
    range: BlockRange,
    context: Arc<Context>,
}

impl Handle for kvh_block_range_t {
    type Object = RangeObject;
}
impl Owned for kvh_block_range_t {}

pub(crate) fn give(range: BlockRange, context: &Arc<Context>) -> *mut kvh_block_range_t {
    handle::give(RangeObject { range, context: Arc::clone(context) })
}

/// When a lease that starts now ends.
pub(crate) fn lease_deadline_ns(context: &Context, lease_ns: u64) -> Option<u64> {
    (lease_ns > 0).then(|| context.clock.monotonic_ns().saturating_add(lease_ns))
}

/// policy: all blocks, or none.
pub const KVH_RANGE_STRICT: u32 = 1;
/// policy: the longest run that is there from the first block on.
pub const KVH_RANGE_BEST_EFFORT: u32 = 2;

/// Which blocks to pin.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_block_range_params_t {
    /// sizeof(kvh_block_range_params_t).
    pub struct_size: usize,
    /// Attention window in tokens.
    pub window: i32,
    /// What to do when some are missing: KVH_RANGE_*.
    pub policy: u32,
    /// First block, counted from the sequence's first.
    pub first_block: usize,
    /// How many, not 0, and within the sequence.
    pub block_count: usize,
    /// How long the holder means to need them; see kvh_reuse_tree_expired_leases. 0: no lease.
    pub lease_ns: u64,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_block_range_params_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// Pins blocks of a sequence, to be read or sent. Each must be stored, in primary memory, and full,
/// but the sequence's partial tail may be found in any block whose tokens start with it.
/// *present_out is how many there are from the first up to the first that is missing. KVH_NOT_FOUND
/// when the policy is not content with them; *present_out is written then too. Destroy the range
/// with kvh_block_range_destroy; it may outlive the tree.
///
/// # Safety
/// `tree` and `sequence` are live; `params` points at a parameter struct; `present_out` and
/// `range_out` are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_from_reuse_tree(
    tree: *const kvh_reuse_tree_t,
    sequence: *const kvh_sequence_t,
    params: *const kvh_block_range_params_t,
    present_out: *mut usize,
    range_out: *mut *mut kvh_block_range_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise, here and below.
    let object = match unsafe { handle::get(tree) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    guard::with_context(&object.context, || {
        // SAFETY: as above.
        let (sequence, params, present_out, range_out) = unsafe {
            (
                sequence::borrowed(sequence)?,
                args::read_params(params)?,
                args::out(present_out)?,
                args::out(range_out)?,
            )
        };
        let request = RangeRequest {
            first_block: params.first_block,
            block_count: params.block_count,
            policy: match params.policy {
                KVH_RANGE_STRICT => Policy::Strict,
                KVH_RANGE_BEST_EFFORT => Policy::BestEffort,
                _ => return Err(KVH_ERR_INVALID_ARGUMENT),
            },
            lease_deadline_ns: lease_deadline_ns(&object.context, params.lease_ns),
        };
        let _range = Range::push(Step::Pin, || 0);
        let outcome = object.tree.pin_range(params.window, sequence, &request)?;
        present_out.write(outcome.present);
        range_out.write(give(outcome.range.ok_or(KVH_NOT_FOUND)?, &object.context));
        Ok(())
    })
}

/// Blocks in the range; 0 for NULL.
///
/// # Safety
/// `range` is NULL or a live range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_count(range: *const kvh_block_range_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { handle::get(range) }.map_or(0, |object| object.range.block_count())
}

/// Place in the sequence of the first block; 0 for NULL.
///
/// # Safety
/// `range` is NULL or a live range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_first_block(range: *const kvh_block_range_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { handle::get(range) }.map_or(0, |object| object.range.first_block())
}

/// How many leading tokens of the last block count; 0 if all of it does, and for NULL.
///
/// # Safety
/// `range` is NULL or a live range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_tail_tokens(range: *const kvh_block_range_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { handle::get(range) }.map_or(0, |object| object.range.tail_tokens())
}

/// The id of the range's pin, for kvh_reuse_tree_unpin; never 0, but 0 for NULL.
///
/// # Safety
/// `range` is NULL or a live range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_pin_id(range: *const kvh_block_range_t) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { handle::get(range) }.map_or(0, |object| object.range.pin_id().0)
}

/// The block ids, oldest first. The count is written on KVH_ERR_TOO_SMALL too; (NULL, 0) asks for
/// it. Ids, hashes and tiers are found out the first time one of them is asked for: KVH_ERR_STATE
/// when the pin was released before that.
///
/// # Safety
/// `range` is a live range; `ids` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_ids(
    range: *const kvh_block_range_t,
    ids: *mut i32,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { on_range(range, |range| copy_each(range.ids()?, ids, capacity, count_out)) }
}

/// The block hashes, in the same order and by the same rules as kvh_block_range_ids.
///
/// # Safety
/// `range` is a live range; `hashes` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_block_hashes(
    range: *const kvh_block_range_t,
    hashes: *mut u64,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_range(range, |range| copy_each(range.block_hashes()?, hashes, capacity, count_out))
    }
}

/// The blocks' tiers (KVH_TIER_*), in the same order and by the same rules as kvh_block_range_ids.
/// A pinned block does not go to secondary memory.
///
/// # Safety
/// `range` is a live range; `tiers` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_tiers(
    range: *const kvh_block_range_t,
    tiers: *mut u32,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_range(range, |range| {
            copy_each(range.tiers()?.map(tier_number), tiers, capacity, count_out)
        })
    }
}

/// The slot of its tier's pool that each block lies in, in the same order and by the same rules as
/// kvh_block_range_ids. In arbiter mode these are the ids. A pinned block stays where it is.
///
/// # Safety
/// `range` is a live range; `slots` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_slots(
    range: *const kvh_block_range_t,
    slots: *mut u32,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { on_range(range, |range| copy_each(range.slots()?, slots, capacity, count_out)) }
}

/// A call on a range.
///
/// # Safety
/// `range` is NULL or a live range.
unsafe fn on_range(
    range: *const kvh_block_range_t,
    body: impl FnOnce(&BlockRange) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(range) } {
        Ok(object) => guard::with_context(&object.context, || body(&object.range)),
        Err(status) => status as kvh_status_t,
    }
}

/// # Safety
/// As for [`args::copy_out`].
unsafe fn copy_each<T: Copy>(
    values: impl ExactSizeIterator<Item = T>,
    buffer: *mut T,
    capacity: usize,
    count_out: *mut usize,
) -> CallResult {
    let mut copies = Vec::new();
    copies.try_reserve_exact(values.len())?;
    copies.extend(values);
    // SAFETY: the caller's promise.
    unsafe { args::copy_out(&copies, buffer, capacity, count_out) }
}

/// Releases the range's pin; what was asked of the range before can be asked again. KVH_ERR_STATE,
/// and nothing changed, when it was released before, here or by kvh_reuse_tree_unpin.
///
/// # Safety
/// `range` is a live range.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_unpin(range: *const kvh_block_range_t) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { on_range(range, |range| Ok(range.unpin()?)) }
}

/// Destroys the range, releasing its pin unless that was done before. NULL is fine.
///
/// # Safety
/// `range` is NULL or a live range, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_range_destroy(range: *mut kvh_block_range_t) {
    guard::quietly(|| {
        // SAFETY: the caller's promise.
        let Some(object) = (unsafe { handle::take(range) }) else {
            return;
        };
        let RangeObject { range, context } = *object;
        if context.is_forked() || context.poison().is_set() {
            // The tree's lock may be held by a thread that does not exist here, or its nodes be
            // half changed.
            range.abandon();
        }
    });
}
