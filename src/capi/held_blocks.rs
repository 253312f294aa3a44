//! Blocks of `kvh_reuse_tree_t` that somebody still works on: stored before their bytes are complete,
//! or pinned because a request holds them.

use super::args;
use super::block_range::{self, kvh_block_range_t};
use super::reuse_tree::{kvh_reuse_tree_t, on_tree, stored_ids, write_held, TreeObject};
use super::sequence::{self, kvh_sequence_t};
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;

/// kvh_reuse_tree_store of blocks whose bytes are complete once fence has passed
/// (kvh_reuse_tree_fence_passed): a number of the host's, from 1 on, for each point in its work that
/// others have to wait for. Until then the blocks are matched, for work that comes after the fence by
/// itself, but are missing for kvh_block_range_from_reuse_tree and for peers. KVH_ERR_INVALID_ARGUMENT:
/// fence is 0.
///
/// # Safety
/// As for kvh_reuse_tree_store.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_store_with_fence(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    sequence: *const kvh_sequence_t,
    first_block: usize,
    ids: *const i32,
    id_count: usize,
    fence: u64,
    held_out: *mut i32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let sequence = sequence::borrowed(sequence)?;
            let ids = stored_ids(ids, id_count, held_out)?;
            if fence == 0 {
                return Err(KVH_ERR_INVALID_ARGUMENT);
            }
            let holds = match &object.owner {
                None => object.tree.store_with_fence(window, sequence, first_block, ids, fence),
                Some(owner) => owner.store_with_fence(window, sequence, first_block, ids, fence),
            }?;
            write_held(held_out, &holds);
            Ok(())
        })
    }
}

/// Says that all fences up to this one have passed. Fences are numbered in the order in which they
/// pass; a smaller number than before changes nothing.
///
/// # Safety
/// `tree` is a live tree.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_fence_passed(
    tree: *const kvh_reuse_tree_t,
    fence: u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            object.tree.fence_passed(fence);
            Ok(())
        })
    }
}

/// kvh_reuse_tree_store and a pin on what the tree then holds at these positions, in one step: no
/// eviction comes between a request's end and the send of its blocks. held_out is as for
/// kvh_reuse_tree_store. KVH_NOT_FOUND: the tree holds nothing there; held_out is written, *range_out
/// is not. lease_ns: 0 for none. KVH_ERR_STATE: owner mode, where kvh_request_store_and_pin does this.
///
/// # Safety
/// As for kvh_reuse_tree_store; `range_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_store_and_pin(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    sequence: *const kvh_sequence_t,
    first_block: usize,
    ids: *const i32,
    id_count: usize,
    lease_ns: u64,
    held_out: *mut i32,
    range_out: *mut *mut kvh_block_range_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let sequence = sequence::borrowed(sequence)?;
            let ids = stored_ids(ids, id_count, held_out)?;
            let range_out = args::out(range_out)?;
            arbiter(object)?;
            let lease = block_range::lease_deadline_ns(&object.context, lease_ns);
            let (holds, range) =
                object.tree.store_and_pin(window, sequence, first_block, ids, lease)?;
            write_held(held_out, &holds);
            range_out.write(block_range::give(range.ok_or(KVH_NOT_FOUND)?, &object.context));
            Ok(())
        })
    }
}

/// Pins the blocks that a request holds, stored or not: until the unpin none of them is evicted,
/// offloaded or stored at another place. Blocks that are not stored become known to the tree by id,
/// busy to evict, and are handed back by kvh_reuse_tree_store as long: store first what is to be
/// stored. Negative ids hold nothing; KVH_NOT_FOUND: no other is there. lease_ns: 0 for none.
/// KVH_ERR_STATE: owner mode, where kvh_request_pin does this.
///
/// # Safety
/// `tree` is a live tree; `ids` has `id_count` values; `range_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_reuse_tree_pin_blocks(
    tree: *const kvh_reuse_tree_t,
    window: i32,
    ids: *const i32,
    id_count: usize,
    lease_ns: u64,
    range_out: *mut *mut kvh_block_range_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_tree(tree, |object| {
            let ids = args::slice(ids, id_count)?;
            let range_out = args::out(range_out)?;
            arbiter(object)?;
            let lease = block_range::lease_deadline_ns(&object.context, lease_ns);
            let range = object.tree.pin_blocks(window, ids, lease)?.ok_or(KVH_NOT_FOUND)?;
            range_out.write(block_range::give(range, &object.context));
            Ok(())
        })
    }
}

/// In owner mode requests hold blocks, and their pins count as users.
fn arbiter(object: &TreeObject) -> Result<(), kvh_status> {
    match object.owner {
        None => Ok(()),
        Some(_) => Err(KVH_ERR_STATE),
    }
}
