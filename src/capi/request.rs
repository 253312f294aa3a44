//! `kvh_request_t`: the blocks of one request in owner mode; `kvh_request_pin_t`: a pin on them.

use std::sync::Arc;

use super::args::{self, Params};
use super::block_range::{self, kvh_block_range_t};
use super::context::Context;
use super::guard;
use super::handle::{self, Handle, Owned};
use super::owned_blocks::{duration, retention};
use super::reuse_tree::{kvh_reuse_tree_t, on_owner};
use super::sequence::{self, kvh_sequence_t};
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use crate::poison::Poisonable;
use crate::reuse::{Request, RequestParams, RequestPin, RetentionRange, MAX_RETENTION_RANGES};
use crate::telemetry::nvtx::{Range, Step};

/// A request in owner mode: the blocks that it uses, in every window, from admission to its end. It
/// may outlive the tree. Calls that take it as const may be made concurrently.
pub struct kvh_request_t {
    _opaque: [u8; 0],
}

/// A request and the context it belongs to.
pub struct RequestObject {
    request: Request,
    context: Arc<Context>,
}

impl Handle for kvh_request_t {
    type Object = RequestObject;
}
impl Owned for kvh_request_t {}

/// All blocks that a request held when it was pinned, stored or not. None of them is handed out until
/// the pin is destroyed.
pub struct kvh_request_pin_t {
    _opaque: [u8; 0],
}

/// A request's pin and the context it belongs to.
pub struct RequestPinObject {
    pin: RequestPin,
    context: Arc<Context>,
}

impl Handle for kvh_request_pin_t {
    type Object = RequestPinObject;
}
impl Owned for kvh_request_pin_t {}

/// What the blocks are worth that begin with one of the tokens start .. end. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_retention_range_t {
    /// First token.
    pub start: usize,
    /// The token after the last; SIZE_MAX: to the end.
    pub end: usize,
    /// 0 .. 100.
    pub priority: i32,
    /// 0.
    pub reserved: u32,
    /// How long after its release a block keeps the priority; 0: as long as it is free.
    pub duration_ns: u64,
}

/// A request to be admitted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_request_params_t {
    /// sizeof(kvh_request_params_t).
    pub struct_size: usize,
    /// The prompt; not empty. Not kept.
    pub sequence: *const kvh_sequence_t,
    /// How many leading tokens may be reused; the last token never is. SIZE_MAX: all others.
    pub max_matched_tokens: usize,
    /// What the prompt's blocks are worth: at most 65,536 ranges, in order, without overlaps. A block
    /// in none of them keeps its priority where it is reused, else it gets KVH_PRIORITY_DEFAULT.
    pub retention: *const kvh_retention_range_t,
    /// How many.
    pub retention_count: usize,
}

// SAFETY: repr(C), struct_size first, only integers and raw pointers.
unsafe impl Params for kvh_request_params_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// Admits a request: finds what is stored of its prompt in every window, and gives it a block for
/// each of its blocks. Full blocks are shared. A block that matches partly is taken over where nobody
/// else has use for it; else its bytes are copied. Blocks in secondary memory are brought back. Make
/// the copies first: see kvh_reuse_tree_copies. KVH_BUSY: not enough blocks are free, and nothing
/// changed.
///
/// # Safety
/// `tree` is a live tree; `params` points at a parameter struct whose sequence is live and whose
/// array is as long as it says; `request_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_add(
    tree: *const kvh_reuse_tree_t,
    params: *const kvh_request_params_t,
    request_out: *mut *mut kvh_request_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_owner(tree, |owner, object| {
            let params = args::read_params(params)?;
            let sequence = sequence::borrowed(params.sequence)?;
            let request_out = args::out(request_out)?;
            let ranges = retention_ranges(args::slice(params.retention, params.retention_count)?)?;
            let _range = Range::push(Step::Match, || 0);
            let request = owner.add(&RequestParams {
                sequence,
                max_matched_tokens: params.max_matched_tokens,
                retention: &ranges,
            })?;
            let context = Arc::clone(&object.context);
            request_out.write(handle::give(RequestObject { request, context }));
            Ok(())
        })
    }
}

fn retention_ranges(ranges: &[kvh_retention_range_t]) -> Result<Vec<RetentionRange>, kvh_status> {
    if ranges.len() > MAX_RETENTION_RANGES {
        return Err(KVH_ERR_LIMIT);
    }
    let mut all = Vec::new();
    all.try_reserve_exact(ranges.len())?;
    for range in ranges {
        if range.reserved != 0 {
            return Err(KVH_ERR_INVALID_ARGUMENT);
        }
        all.push(RetentionRange {
            start: range.start,
            end: (range.end != usize::MAX).then_some(range.end),
            retention: retention(range.priority, range.duration_ns)?,
        });
    }
    Ok(all)
}

/// A call on a request that may be made by several threads.
///
/// # Safety
/// `request` is NULL or a live request.
unsafe fn on_request(
    request: *const kvh_request_t,
    body: impl FnOnce(&RequestObject) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(request) } {
        Ok(object) => guard::with_context(&object.context, || body(object)),
        Err(status) => status as kvh_status_t,
    }
}

/// A call on a request that belongs to the call.
///
/// # Safety
/// `request` is NULL or a live request that nobody else uses during the call.
unsafe fn change_request(
    request: *mut kvh_request_t,
    body: impl FnOnce(&mut Request) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get_mut(request) } {
        Ok(RequestObject { request, context }) => guard::with_context(context, || body(request)),
        Err(status) => status as kvh_status_t,
    }
}

/// How many leading tokens of the prompt need no computing; 0 for NULL.
///
/// # Safety
/// `request` is NULL or a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_matched_tokens(request: *const kvh_request_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { handle::get(request) }.map_or(0, |object| object.request.matched_tokens())
}

/// A request's blocks of one window, in the order of the sequence. *first_block_out is the place of
/// the first of them: not 0 where a sliding window has passed blocks. The count is written on
/// KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it. KVH_ERR_STATE: the request is finished.
///
/// # Safety
/// `request` is a live request; `first_block_out` and `count_out` are writable; `ids` has room for
/// `capacity` values.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_blocks(
    request: *const kvh_request_t,
    window: i32,
    first_block_out: *mut usize,
    ids: *mut i32,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_request(request, |object| {
            let first_block_out = args::out(first_block_out)?;
            let (first_block, blocks) = object.request.blocks(window)?;
            args::copy_out(blocks, ids, capacity, count_out)?;
            first_block_out.write(first_block);
            Ok(())
        })
    }
}

/// Makes room for token_count more tokens; each block that this takes gets the priority (and the
/// duration; 0: none). In sliding windows, blocks that no later token looks at are given back.
/// KVH_BUSY: not enough blocks are free, and nothing changed.
///
/// # Safety
/// `request` is a live request that nobody else uses during the call.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_grow(
    request: *mut kvh_request_t,
    token_count: usize,
    priority: i32,
    duration_ns: u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        change_request(request, |request| {
            let mut retention = retention(priority, 0)?;
            retention.duration_ns = duration(duration_ns);
            Ok(request.grow(token_count, retention)?)
        })
    }
}

/// Stores the full blocks of the sequence's first token_count tokens, whose bytes are complete, so
/// that other requests find them while this one goes on.
///
/// # Safety
/// `request` and `sequence` are live.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_store_context(
    request: *const kvh_request_t,
    sequence: *const kvh_sequence_t,
    token_count: usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_request(request, |object| {
            let sequence = sequence::borrowed(sequence)?;
            Ok(object.request.store_context(sequence, token_count)?)
        })
    }
}

/// kvh_request_store_context, and a pin on what the tree then holds of these tokens in one window:
/// the full blocks, and a block that begins with what is left of them. They may be other requests'
/// blocks of the same content. KVH_NOT_FOUND: it holds nothing of them. lease_ns: 0 for none.
///
/// # Safety
/// `request` and `sequence` are live; `range_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_store_and_pin(
    request: *const kvh_request_t,
    sequence: *const kvh_sequence_t,
    token_count: usize,
    window: i32,
    lease_ns: u64,
    range_out: *mut *mut kvh_block_range_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_request(request, |object| {
            let sequence = sequence::borrowed(sequence)?;
            let range_out = args::out(range_out)?;
            let lease = block_range::lease_deadline_ns(&object.context, lease_ns);
            let _range = Range::push(Step::Pin, || 0);
            let range = object.request.store_and_pin(sequence, token_count, window, lease)?;
            range_out.write(block_range::give(range.ok_or(KVH_NOT_FOUND)?, &object.context));
            Ok(())
        })
    }
}

/// Pins every block that the request holds, stored or not, in all windows; the request may end
/// meanwhile. Destroy the pin with kvh_request_pin_destroy.
///
/// # Safety
/// `request` is a live request; `pin_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_pin(
    request: *const kvh_request_t,
    pin_out: *mut *mut kvh_request_pin_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_request(request, |object| {
            let pin_out = args::out(pin_out)?;
            let _range = Range::push(Step::Pin, || 0);
            let (pin, context) = (object.request.pin()?, Arc::clone(&object.context));
            pin_out.write(handle::give(RequestPinObject { pin, context }));
            Ok(())
        })
    }
}

/// Ends the request: stores the blocks of the sequence's first token_count tokens, whose bytes are
/// complete, a partial last one too, then gives all blocks back, the last one first. The last token
/// that a model gave has no bytes: token_count is usually the sequence's length - 1. Later calls but
/// destroy are KVH_ERR_STATE. On an error the request has not ended: call again, or destroy it, which
/// stores nothing.
///
/// # Safety
/// `request` is a live request that nobody else uses during the call; `sequence` is live.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_finish(
    request: *mut kvh_request_t,
    sequence: *const kvh_sequence_t,
    token_count: usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        change_request(request, |request| {
            let sequence = sequence::borrowed(sequence)?;
            Ok(request.finish(sequence, token_count)?)
        })
    }
}

/// Destroys the request, giving its blocks back, not stored, unless it was finished. NULL is fine.
///
/// # Safety
/// `request` is NULL or a live request, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_destroy(request: *mut kvh_request_t) {
    guard::quietly(|| {
        // SAFETY: the caller's promise.
        let Some(object) = (unsafe { handle::take(request) }) else {
            return;
        };
        let RequestObject { request, context } = *object;
        if is_untouchable(&context) {
            request.abandon();
        }
    });
}

/// The owner's lock may be held by a thread that does not exist here, or its parts be half changed.
fn is_untouchable(context: &Context) -> bool {
    context.is_forked() || context.poison().is_set()
}

/// The pinned blocks of one window, in the order of the sequence. The count is written on
/// KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it.
///
/// # Safety
/// `pin` is a live pin; `ids` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_pin_ids(
    pin: *const kvh_request_pin_t,
    window: i32,
    ids: *mut i32,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        match handle::get(pin) {
            Ok(object) => guard::with_context(&object.context, || {
                args::copy_out(object.pin.ids(window)?, ids, capacity, count_out)
            }),
            Err(status) => status as kvh_status_t,
        }
    }
}

/// Ends the pin. NULL is fine.
///
/// # Safety
/// `pin` is NULL or a live pin, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_request_pin_destroy(pin: *mut kvh_request_pin_t) {
    guard::quietly(|| {
        // SAFETY: the caller's promise.
        let Some(object) = (unsafe { handle::take(pin) }) else {
            return;
        };
        let RequestPinObject { pin, context } = *object;
        if is_untouchable(&context) {
            pin.abandon();
        }
    });
}
