//! `kvh_block_owner_t`: a host's own block management, for transfers.
//!
//! Guards: user data is destroyed exactly once, whatever goes wrong; a pin is released exactly once;
//! blocks that were set aside go back exactly once, committed or aborted. No lock is held while a
//! callback runs, and what a callback says is checked before it is used.

use std::ffi::c_void;
use std::sync::Arc;

use super::args::{self, Params};
use super::block_range::{KVH_RANGE_BEST_EFFORT, KVH_RANGE_STRICT};
use super::context::{kvh_destroy_fn, UserData};
use super::guard;
use super::handle::{self, Handle, Shared};
use super::sequence::kvh_name_t;
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use crate::reuse::{Name, Policy, TextTail};
use crate::transfer::block_owner::{BlockOwner, Held, OwnerError, Pinned, PinnedBlock};
use crate::transfer::memory::BlockMemory;
use crate::transfer::transport::Segment;

/// A host's own block management, for transceivers that serve and fill its blocks instead of those
/// of a kvh_reuse_tree_t and a pool. Several transceivers may have one.
pub struct kvh_block_owner_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_block_owner_t {
    type Object = HostOwner;
}
// Shared inside the library only: transceivers and prefetches keep it alive.
impl Shared for kvh_block_owner_t {}

/// A block that kvh_pin_fn pinned. This struct will not change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_pinned_block_t {
    /// The block.
    pub block_id: i32,
    /// Must be 0.
    pub reserved: u32,
    /// The hash under which routers know it (kvh_sequence_block_hashes); only compared for reports.
    pub block_hash: u64,
}

/// Finds and pins blocks for a peer: `names` are those of a prefix, from its first block on, and
/// decide alone what a block is. KVH_OK: the first *present_out blocks are pinned, all of them under
/// KVH_RANGE_STRICT, at least one under KVH_RANGE_BEST_EFFORT, and blocks_out (room for name_count)
/// says which; they keep id, place and bytes until kvh_unpin_fn is called with *pin_id_out.
/// KVH_NOT_FOUND: nothing is pinned, and the first *present_out are there. KVH_BUSY, or any other
/// status: nothing is pinned, and the peer is told to come later.
pub type kvh_pin_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        names: *const kvh_name_t,
        name_count: usize,
        policy: u32,
        blocks_out: *mut kvh_pinned_block_t,
        present_out: *mut usize,
        pin_id_out: *mut u64,
    ) -> kvh_status_t,
>;
/// Ends a pin. Called exactly once for each that was made.
pub type kvh_unpin_fn = Option<unsafe extern "C" fn(user_data: *mut c_void, pin_id: u64)>;
/// Sets `count` fresh blocks aside, distinct, that nobody else uses; block_ids has room for them. Each
/// goes back exactly once, by kvh_commit_fn or kvh_abort_fn. KVH_OK, or KVH_BUSY: nothing is set aside.
pub type kvh_allocate_fn = Option<
    unsafe extern "C" fn(user_data: *mut c_void, block_ids: *mut i32, count: usize) -> kvh_status_t,
>;
/// Takes blocks back that are filled and verified: block_ids[i] is the block of
/// names[first_block + i * step], and is the owner's from now on, whether it keeps it or not. `step` is
/// the context parallel size.
pub type kvh_commit_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        names: *const kvh_name_t,
        name_count: usize,
        first_block: usize,
        step: usize,
        block_ids: *const i32,
        count: usize,
    ),
>;
/// Takes blocks back that are not of use: their bytes may be anything.
pub type kvh_abort_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, block_ids: *const i32, count: usize)>;
/// Where a block lies, block_bytes long, in memory of the host's processors; NULL for a block that
/// cannot be sent or filled. The same place as long as the block is pinned or set aside.
pub type kvh_address_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, block_id: i32) -> *mut c_void>;

/// What a host's block management does. The functions are called from the library's transfer thread
/// and from the host's calls on transceivers and prefetches, possibly at the same time, with no lock
/// held; they must not block, throw, or call the transceiver or its prefetches. None may be NULL but
/// destroy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_block_owner_ops_t {
    /// sizeof(kvh_block_owner_ops_t).
    pub struct_size: usize,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Tokens of one block; not 0.
    pub tokens_per_block: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Bytes of one block; not 0. See kvh_transceiver_params_t.
    pub block_bytes: usize,
    /// See kvh_pin_fn.
    pub pin: kvh_pin_fn,
    /// See kvh_unpin_fn.
    pub unpin: kvh_unpin_fn,
    /// See kvh_allocate_fn.
    pub allocate: kvh_allocate_fn,
    /// See kvh_commit_fn.
    pub commit: kvh_commit_fn,
    /// See kvh_abort_fn.
    pub abort: kvh_abort_fn,
    /// See kvh_address_fn.
    pub address: kvh_address_fn,
    /// Called with user_data exactly once: when the owner, its transceivers and their prefetches are
    /// destroyed, or before kvh_block_owner_create returns an error. May be NULL. A struct_size that
    /// ends before or within this field does not name it: then nothing is taken over or called.
    pub destroy: kvh_destroy_fn,
}

// SAFETY: repr(C), struct_size first, only integers, a raw pointer and optional functions.
unsafe impl Params for kvh_block_owner_ops_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// What the handle points at, and what transceivers and prefetches keep.
#[derive(Clone)]
pub struct HostOwner(Arc<Functions>);

/// The host's functions, none of them missing.
struct Functions {
    pin: unsafe extern "C" fn(
        *mut c_void,
        *const kvh_name_t,
        usize,
        u32,
        *mut kvh_pinned_block_t,
        *mut usize,
        *mut u64,
    ) -> kvh_status_t,
    unpin: unsafe extern "C" fn(*mut c_void, u64),
    allocate: unsafe extern "C" fn(*mut c_void, *mut i32, usize) -> kvh_status_t,
    commit: unsafe extern "C" fn(
        *mut c_void,
        *const kvh_name_t,
        usize,
        usize,
        usize,
        *const i32,
        usize,
    ),
    abort: unsafe extern "C" fn(*mut c_void, *const i32, usize),
    address: unsafe extern "C" fn(*mut c_void, i32) -> *mut c_void,
    tokens_per_block: usize,
    block_bytes: usize,
    user_data: UserData,
}

impl Functions {
    fn from_ops(ops: &kvh_block_owner_ops_t, user_data: UserData) -> Option<Self> {
        // Any address plus any block is still an address.
        let is_possible = ops.tokens_per_block > 0
            && ops.block_bytes > 0
            && ops.block_bytes <= isize::MAX as usize;
        is_possible.then_some(())?;
        Some(Self {
            pin: ops.pin?,
            unpin: ops.unpin?,
            allocate: ops.allocate?,
            commit: ops.commit?,
            abort: ops.abort?,
            address: ops.address?,
            tokens_per_block: ops.tokens_per_block as usize,
            block_bytes: ops.block_bytes,
            user_data,
        })
    }

    fn unpin(&self, pin_id: u64) {
        // SAFETY: the host registered the function with this user data, for any thread.
        unsafe { (self.unpin)(self.user_data.pointer, pin_id) };
    }
}

/// A pin of the host's: unpinned once, when dropped.
struct HostPin {
    owner: Arc<Functions>,
    pin_id: u64,
}

impl Drop for HostPin {
    fn drop(&mut self) {
        self.owner.unpin(self.pin_id);
    }
}

/// Names as C has them; `None` without memory.
fn in_c(names: &[Name]) -> Option<Vec<kvh_name_t>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(names.len()).ok()?;
    copy.extend(names.iter().map(|name| kvh_name_t { bytes: name.0 }));
    Some(copy)
}

// SAFETY: the header asks of the address function what the trait promises.
unsafe impl BlockMemory for HostOwner {
    fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    fn block(&self, id: i32) -> Option<Segment> {
        // SAFETY: the host registered the function with this user data, for any thread.
        let data = unsafe { (self.0.address)(self.0.user_data.pointer, id) };
        (!data.is_null()).then(|| Segment { data: data.cast(), len: self.0.block_bytes })
    }
}

impl BlockOwner for HostOwner {
    fn tokens_per_block(&self) -> usize {
        self.0.tokens_per_block
    }

    fn pin(
        &self,
        names: &[Name],
        _tail: Option<&TextTail>,
        policy: Policy,
    ) -> Result<Held, OwnerError> {
        let names = in_c(names).ok_or(OwnerError::Busy)?;
        let nothing = kvh_pinned_block_t { block_id: -1, reserved: 0, block_hash: 0 };
        let (mut pinned, mut blocks) = (Vec::new(), Vec::new());
        pinned.try_reserve_exact(names.len()).map_err(|_| OwnerError::Busy)?;
        blocks.try_reserve_exact(names.len()).map_err(|_| OwnerError::Busy)?;
        pinned.resize(names.len(), nothing);
        let (mut present, mut pin_id) = (0, 0);
        let in_words = match policy {
            Policy::Strict => KVH_RANGE_STRICT,
            Policy::BestEffort => KVH_RANGE_BEST_EFFORT,
        };
        // SAFETY: the host registered the function with this user data, for any thread; names and
        // outputs are as long as said.
        let status = unsafe {
            (self.0.pin)(
                self.0.user_data.pointer,
                names.as_ptr(),
                names.len(),
                in_words,
                pinned.as_mut_ptr(),
                &mut present,
                &mut pin_id,
            )
        };
        if status == KVH_NOT_FOUND as kvh_status_t {
            let present = present.min(names.len().saturating_sub(1));
            return Ok(Held { present, pinned: None });
        }
        if status != KVH_OK as kvh_status_t {
            return Err(OwnerError::Busy);
        }
        // From here on it is unpinned, whatever else the host said.
        let pin = HostPin { owner: Arc::clone(&self.0), pin_id };
        let is_enough = match policy {
            Policy::Strict => present == names.len(),
            Policy::BestEffort => (1..=names.len()).contains(&present),
        };
        if !is_enough {
            return Err(OwnerError::Busy);
        }
        let of_host = |block: &kvh_pinned_block_t| PinnedBlock {
            id: block.block_id,
            block_hash: block.block_hash,
        };
        blocks.extend(pinned[..present].iter().map(of_host));
        Ok(Held { present, pinned: Some(Pinned::new(blocks, pin)) })
    }

    fn allocate(&self, ids: &mut [i32]) -> Result<(), OwnerError> {
        // SAFETY: the host registered the function with this user data, for any thread; the ids
        // have room for as many.
        let status =
            unsafe { (self.0.allocate)(self.0.user_data.pointer, ids.as_mut_ptr(), ids.len()) };
        (status == KVH_OK as kvh_status_t).then_some(()).ok_or(OwnerError::Busy)
    }

    fn commit(&self, names: &[Name], first_block: usize, step: usize, ids: &[i32]) {
        let Some(names) = in_c(names) else {
            // Without memory to name them they are of no use.
            return self.abort(ids);
        };
        let (names, count) = (names.as_ptr(), names.len());
        // SAFETY: the host registered the function with this user data, for any thread; names and
        // ids are as long as said, and live until the function returns.
        unsafe {
            let user_data = self.0.user_data.pointer;
            (self.0.commit)(user_data, names, count, first_block, step, ids.as_ptr(), ids.len());
        }
    }

    fn abort(&self, ids: &[i32]) {
        // SAFETY: the host registered the function with this user data, for any thread; the ids are
        // as long as said.
        unsafe { (self.0.abort)(self.0.user_data.pointer, ids.as_ptr(), ids.len()) };
    }
}

/// Creates an owner out of the host's functions. Destroy it with kvh_block_owner_destroy; destroying it
/// calls ops->destroy, whatever this returns; see there. KVH_ERR_INVALID_ARGUMENT: a function is
/// missing, or a size is 0 or larger than memory.
///
/// # Safety
/// `ops` points at its struct, and the functions are as documented; `owner_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_owner_create(
    ops: *const kvh_block_owner_ops_t,
    owner_out: *mut *mut kvh_block_owner_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let (ops, rest) = unsafe { args::read_known_params(ops) }?;
        // Before anything can fail: it owns the user data from here on.
        let user_data = UserData { pointer: ops.user_data, destroy: ops.destroy };
        rest?;
        if ops.reserved != 0 {
            return Err(KVH_ERR_ABI);
        }
        // SAFETY: the caller's promise.
        let owner_out = unsafe { args::out(owner_out) }?;
        let functions = Functions::from_ops(&ops, user_data).ok_or(KVH_ERR_INVALID_ARGUMENT)?;
        owner_out.write(handle::share(Arc::new(HostOwner(Arc::new(functions)))));
        Ok(())
    })
}

/// Destroys the owner. NULL is fine. Transceivers that have it go on with it.
///
/// # Safety
/// `owner` is NULL or a live owner, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_block_owner_destroy(owner: *mut kvh_block_owner_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| unsafe { handle::release(owner) });
}
