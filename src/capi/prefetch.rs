//! `kvh_prefetch_t`: one attempt to fetch blocks from another worker.

use std::ffi::c_char;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::args::{self, Params};
use super::block_range::{KVH_RANGE_BEST_EFFORT, KVH_RANGE_STRICT};
use super::context::Context;
use super::guard;
use super::handle::{self, Handle, Owned};
use super::plan::kvh_plan_t;
use super::sequence::{self, kvh_sequence_t};
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use super::transceiver::{kvh_transceiver_t, on_transceiver};
use super::types::kvh_bytes_t;
use crate::plan::{NamedFetch, Plan};
use crate::reuse::Policy;
use crate::telemetry::log::{Event, Value};
use crate::transfer::block_owner::Allocation;
use crate::transfer::prefetch::{Deadlines, Outcome, State as PrefetchState};
use crate::transfer::reason::FailReason;
use crate::transfer::state::State;
use crate::transfer::transceiver::{BeginError, FetchOrder, Origin, PrefetchHandle};
use crate::transfer::WireError;

/// One attempt to fetch blocks of a request from another worker. It is begun, polled, and claimed
/// when it delivered; whatever goes wrong, the request goes on as if there had been no hint.
///
/// The blocks given to kvh_prefetch_begin are fresh ones that nobody else uses and that no reuse tree
/// holds. They are lent until the prefetch is quiesced, and may be in any state after any outcome but
/// "delivered". After that one they hold the fetched blocks and stay lent until they are claimed,
/// cancelled, destroyed with the prefetch, or the abandonment deadline passes; kvh_reuse_tree_store
/// makes them visible to others. All calls but destroy may be made concurrently, and none waits.
pub struct kvh_prefetch_t {
    _opaque: [u8; 0],
}

/// An attempt and what it belongs to.
pub struct PrefetchObject {
    // Dropped before the blocks go back: nothing is written to them afterwards.
    attempt: PrefetchHandle,
    /// Blocks that a host's owner set aside, until they are claimed.
    allocation: Mutex<Option<Allocation>>,
    context: Arc<Context>,
    tokens_per_block: usize,
    is_source_required: bool,
    is_end_told: AtomicBool,
}

impl PrefetchObject {
    /// State and outcome; the first time that there is an outcome it is told.
    fn poll(&self) -> (PrefetchState, Option<Outcome>) {
        let (state, outcome) = self.attempt.poll();
        if let Some(outcome) = outcome {
            if !self.is_end_told.load(Ordering::Relaxed)
                && !self.is_end_told.swap(true, Ordering::Relaxed)
            {
                self.tell_end(outcome);
            }
        }
        (state, outcome)
    }

    fn tell_end(&self, outcome: Outcome) {
        let number = ("attempt", Value::Number(self.attempt.number()));
        let (blocks, word) = match outcome {
            Outcome::Failed(reason) => {
                let reason = ("reason", Value::Word(reason.name()));
                return self.context.log(Event::PrefetchFailed, &[number, reason]);
            }
            Outcome::Delivered { blocks } => (blocks, "delivered"),
            Outcome::ContentMiss => (0, "content_miss"),
            Outcome::Cancelled => (0, "cancelled"),
        };
        let (outcome, blocks) = (Value::Word(word), Value::Number(blocks.into()));
        self.context.log(Event::PrefetchEnded, &[number, ("outcome", outcome), ("blocks", blocks)]);
    }
}

impl Handle for kvh_prefetch_t {
    type Object = PrefetchObject;
}
impl Owned for kvh_prefetch_t {}

/// state: schedulable: not begun, or over.
pub const KVH_PREFETCH_CONTEXT_INIT: u32 = 0;
/// state: the source's state is being fetched; active, not schedulable.
pub const KVH_PREFETCH_INIT: u32 = 1;
/// state: blocks are on their way; active, not schedulable.
pub const KVH_PREFETCH_IN_PROGRESS: u32 = 2;
/// state: blocks are here and wait for kvh_prefetch_claim.
pub const KVH_PREFETCH_COMPLETE: u32 = 3;

/// outcome: block_count blocks are in place, verified.
pub const KVH_OUTCOME_DELIVERED: u32 = 1;
/// outcome: the source does not hold what was asked for.
pub const KVH_OUTCOME_CONTENT_MISS: u32 = 2;
/// outcome: see reason.
pub const KVH_OUTCOME_FAILED: u32 = 3;
/// outcome: this side wanted it no more.
pub const KVH_OUTCOME_CANCELLED: u32 = 4;

/// source_requirement: without the blocks the request goes on and computes them itself.
pub const KVH_SOURCE_OPTIONAL: u32 = 0;
/// source_requirement: without the blocks the request cannot go on.
pub const KVH_SOURCE_REQUIRED: u32 = 1;

/// hint_check: nothing to compare, or the source has not answered.
pub const KVH_HINT_UNKNOWN: u32 = 0;
/// hint_check: the hint's last hash is the request's, and the source holds what it names.
pub const KVH_HINT_MATCHES: u32 = 1;
/// hint_check: the hint's last hash is the request's, but the source does not hold all of it.
pub const KVH_HINT_STALE: u32 = 2;
/// hint_check: the hint's last hash belongs to another block of the request.
pub const KVH_HINT_SHIFTED: u32 = 3;
/// hint_check: the hint is about another prompt, or in another dialect of hashes.
pub const KVH_HINT_UNRELATED: u32 = 4;

/// What to fetch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_prefetch_params_t {
    /// sizeof(kvh_prefetch_params_t).
    pub struct_size: usize,
    /// KVH_RANGE_STRICT: all blocks or none; KVH_RANGE_BEST_EFFORT: the longest prefix.
    pub policy: u32,
    /// The attention data parallel rank of the source that holds the blocks; 0 where it has no such
    /// parts.
    pub source_attention_data_rank: u32,
    /// A named fetch: where the source is, and how far its hint goes. May be NULL with
    /// source_state.
    pub plan: *const kvh_plan_t,
    /// The request's tokens, in the transceiver's namespace.
    pub sequence: *const kvh_sequence_t,
    /// The source worker's state, where the host has it: no endpoint is contacted then.
    pub source_state: kvh_bytes_t,
    /// Leading full blocks that are here already: only those after them are fetched.
    pub first_block: usize,
    /// Tokens that may be fetched, from the first; 0: all but the last one (a context request). Only
    /// full blocks are, and the sequence's short last one if all tokens may be and block_ids has a
    /// block for it.
    pub max_tokens: usize,
    /// Where this rank's blocks go, in order: distinct, in the pool, lent as said at kvh_prefetch_t.
    /// Of n context parallel ranks, rank r has the blocks whose position leaves r when divided by n.
    /// With a kvh_block_owner_t there may be none: then the owner sets them aside, and they go back to
    /// it by themselves, committed at kvh_prefetch_claim or aborted.
    /// Under KVH_RANGE_BEST_EFFORT fewer than there are blocks to fetch make it fetch fewer.
    pub block_ids: *const i32,
    /// Length of block_ids.
    pub block_id_count: usize,
    /// Until the source's state is known (default 2 s; one fetch takes at most 30 s).
    pub metadata_deadline_ns: u64,
    /// From the request until the last block is verified (default 10 s).
    pub transfer_deadline_ns: u64,
    /// From then until the claim (default 30 s).
    pub abandonment_deadline_ns: u64,
    /// KVH_SOURCE_*: what it means to the request when not all blocks asked for are delivered.
    pub source_requirement: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, only integers, raw pointers and structs of these.
unsafe impl Params for kvh_prefetch_params_t {
    const MIN_SIZE: usize = offset_of!(Self, source_requirement);
}

/// How a prefetch ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_prefetch_outcome_t {
    /// sizeof(kvh_prefetch_outcome_t).
    pub struct_size: usize,
    /// KVH_OUTCOME_*.
    pub kind: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// When delivered: the request's KV is here up to this token; else 0. Ranks that share a
    /// request use the minimum over them.
    pub token_end: usize,
    /// When delivered: how many of block_ids were filled; else 0.
    pub block_count: usize,
    /// When failed: why, a static word ("peer_gone", "transfer_timeout", ...); else "".
    pub reason: *const c_char,
}

// SAFETY: repr(C), struct_size first, only integers and raw pointers.
unsafe impl Params for kvh_prefetch_outcome_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// How a prefetch went, or goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_prefetch_report_t {
    /// sizeof(kvh_prefetch_report_t).
    pub struct_size: usize,
    /// Blocks asked for.
    pub requested: usize,
    /// Of these, what the source said it holds, from the first one; 0 before it answered.
    pub present: usize,
    /// Of these, verified and in place.
    pub moved: usize,
    /// Leading blocks that were here already, and not asked for.
    pub skipped_local: usize,
    /// Of those asked for, what the source said it does not hold; 0 before it answered.
    pub missing: usize,
    /// Bytes of the blocks moved.
    pub bytes: u64,
    /// Time spent in KVH_PREFETCH_INIT.
    pub init_ns: u64,
    /// Time spent in KVH_PREFETCH_IN_PROGRESS.
    pub in_progress_ns: u64,
    /// Time spent in KVH_PREFETCH_COMPLETE.
    pub complete_ns: u64,
    /// What the hint was worth: KVH_HINT_*. Never ends a prefetch by itself.
    pub hint_check: u32,
    /// Blocks that the source knows by another block hash under the same name: its hashes are in
    /// another dialect (a salt number, say). Names decide; these blocks are the same.
    pub foreign_hashes: u32,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_prefetch_report_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

impl From<BeginError> for kvh_status {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::NothingToFetch => KVH_NOT_FOUND,
            BeginError::TokensPerBlock | BeginError::BadDestination => KVH_ERR_INVALID_ARGUMENT,
            BeginError::DestinationInUse | BeginError::DestinationHeld | BeginError::NoBlocks => {
                KVH_BUSY
            }
            BeginError::Limit => KVH_ERR_LIMIT,
            BeginError::NoMemory => KVH_ERR_NO_MEMORY,
            BeginError::Closed => KVH_ERR_STATE,
        }
    }
}

/// Runs `body` on a live prefetch.
///
/// # Safety
/// `prefetch` is NULL or a live prefetch.
unsafe fn on_prefetch(
    prefetch: *const kvh_prefetch_t,
    body: impl FnOnce(&PrefetchObject) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(prefetch) } {
        Ok(object) => guard::with_context(&object.context, || body(object)),
        Err(status) => status as kvh_status_t,
    }
}

/// The plan's fetch; `None` for NULL.
///
/// # Safety
/// `plan` is NULL or a live plan.
unsafe fn fetch_of<'a>(plan: *const kvh_plan_t) -> Result<Option<&'a NamedFetch>, kvh_status> {
    if plan.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let plan = unsafe { handle::get(plan) }?;
    if plan.poison.is_set() {
        return Err(KVH_ERR_POISONED);
    }
    match &plan.value {
        Plan::NamedFetch(fetch) => Ok(Some(fetch)),
        Plan::Local(_) => Err(KVH_NOT_FOUND),
    }
}

/// Begins to fetch blocks. KVH_NOT_FOUND: nothing to fetch: the plan is no named fetch, or
/// everything within the bounds is here already. KVH_BUSY: a block still belongs to another
/// prefetch, or is held by the reuse tree. KVH_ERR_LIMIT: too many prefetches or blocks at once. KVH_ERR_INVALID_ARGUMENT:
/// neither plan nor state, a state that cannot be read, blocks that are not distinct and in the
/// pool, too few of them under KVH_RANGE_STRICT, or a sequence with other tokens per block. What
/// goes wrong later is an outcome. Destroy the prefetch with kvh_prefetch_destroy.
///
/// # Safety
/// `transceiver` is live; `params` points at a parameter struct whose pointers are what it says;
/// `prefetch_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_begin(
    transceiver: *const kvh_transceiver_t,
    params: *const kvh_prefetch_params_t,
    prefetch_out: *mut *mut kvh_prefetch_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_transceiver(transceiver, |object| {
            let params = args::read_params(params)?;
            let prefetch_out = args::out(prefetch_out)?;
            if params.reserved != 0 {
                return Err(KVH_ERR_ABI);
            }
            let is_source_required = match params.source_requirement {
                KVH_SOURCE_OPTIONAL => false,
                KVH_SOURCE_REQUIRED => true,
                _ => return Err(KVH_ERR_INVALID_ARGUMENT),
            };
            let sequence = sequence::borrowed(params.sequence)?;
            let destination = args::slice(params.block_ids, params.block_id_count)?;
            let source_state = args::bytes(params.source_state)?;
            let fetch = fetch_of(params.plan)?;
            let origin = match (source_state, fetch) {
                ([], None) => return Err(KVH_ERR_INVALID_ARGUMENT),
                ([], Some(fetch)) => Origin::Endpoint(fetch.endpoint.clone()),
                (bytes, _) => {
                    let state = State::decode(bytes).map_err(|error| match error {
                        WireError::NoMemory => KVH_ERR_NO_MEMORY,
                        _ => KVH_ERR_INVALID_ARGUMENT,
                    })?;
                    Origin::State(Arc::new(state))
                }
            };
            let deadlines = Deadlines::default();
            let chosen = |given: u64, default: u64| if given == 0 { default } else { given };
            let order = FetchOrder {
                sequence,
                origin,
                hint: fetch.map(|fetch| (fetch.block_count as usize, fetch.last_block_hash)),
                first_block: params.first_block,
                source_attention_data_rank: params.source_attention_data_rank,
                max_tokens: params.max_tokens,
                destination,
                policy: match params.policy {
                    KVH_RANGE_STRICT => Policy::Strict,
                    KVH_RANGE_BEST_EFFORT => Policy::BestEffort,
                    _ => return Err(KVH_ERR_INVALID_ARGUMENT),
                },
                deadlines: Deadlines {
                    metadata_ns: chosen(params.metadata_deadline_ns, deadlines.metadata_ns),
                    transfer_ns: chosen(params.transfer_deadline_ns, deadlines.transfer_ns),
                    abandonment_ns: chosen(
                        params.abandonment_deadline_ns,
                        deadlines.abandonment_ns,
                    ),
                },
            };
            let mut order = order;
            let allocation = match destination {
                [] if object.has_host_owner => Some(object.transceiver.set_aside(&order)?),
                _ => None,
            };
            if let Some(allocation) = &allocation {
                order.destination = allocation.ids();
            }
            let attempt = object.transceiver.begin(&order)?;
            prefetch_out.write(handle::give(PrefetchObject {
                attempt,
                allocation: Mutex::new(allocation),
                context: Arc::clone(&object.context),
                tokens_per_block: sequence.tokens_per_block(),
                is_end_told: AtomicBool::new(false),
                is_source_required,
            }));
            Ok(())
        })
    }
}

/// Where the request stands: KVH_PREFETCH_*. KVH_IN_PROGRESS until there is an outcome, then KVH_OK,
/// or KVH_ERR_REQUIRED_SOURCE: the source was required and did not deliver every block asked for, and
/// the host did not cancel, so the request itself has failed. *state_out is written with all three. A
/// few nanoseconds; call it as often as is convenient.
///
/// # Safety
/// `prefetch` is live; `state_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_poll(
    prefetch: *const kvh_prefetch_t,
    state_out: *mut u32,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_prefetch(prefetch, |object| {
            let state_out = args::out(state_out)?;
            let (state, outcome) = object.poll();
            state_out.write(state as u32);
            match outcome.ok_or(KVH_IN_PROGRESS)? {
                Outcome::Cancelled => Ok(()),
                Outcome::Delivered { blocks }
                    if blocks == object.attempt.report().progress.requested =>
                {
                    Ok(())
                }
                _ if object.is_source_required => Err(KVH_ERR_REQUIRED_SOURCE),
                _ => Ok(()),
            }
        })
    }
}

/// The attempt's number among those of its transceiver, as profiles, logs and kvh_context_status
/// show it; never 0, but 0 for NULL.
///
/// # Safety
/// `prefetch` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_number(prefetch: *const kvh_prefetch_t) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { handle::get(prefetch) }.map_or(0, |object| object.attempt.number())
}

/// The stable name of a KVH_OUTCOME_*, such as "content_miss"; static, never NULL. "unknown" for a
/// number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvh_outcome_string(outcome: u32) -> *const c_char {
    match outcome {
        KVH_OUTCOME_DELIVERED => c"delivered",
        KVH_OUTCOME_CONTENT_MISS => c"content_miss",
        KVH_OUTCOME_FAILED => c"failed",
        KVH_OUTCOME_CANCELLED => c"cancelled",
        _ => c"unknown",
    }
    .as_ptr()
}

/// How it ended; never changes once it is there. KVH_IN_PROGRESS: it has not, and nothing is
/// written. Set outcome_out->struct_size first.
///
/// # Safety
/// `prefetch` is live; `outcome_out` points at a struct as long as it says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_outcome(
    prefetch: *const kvh_prefetch_t,
    outcome_out: *mut kvh_prefetch_outcome_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_prefetch(prefetch, |object| {
            let (_, outcome) = object.poll();
            let outcome = outcome.ok_or(KVH_IN_PROGRESS)?;
            let mut value = kvh_prefetch_outcome_t {
                struct_size: size_of::<kvh_prefetch_outcome_t>(),
                kind: KVH_OUTCOME_CANCELLED,
                reserved: 0,
                token_end: 0,
                block_count: 0,
                reason: c"".as_ptr(),
            };
            match outcome {
                Outcome::Delivered { blocks } => {
                    value.kind = KVH_OUTCOME_DELIVERED;
                    value.block_count = blocks as usize;
                    value.token_end = object.attempt.token_end(blocks, object.tokens_per_block);
                }
                Outcome::ContentMiss => value.kind = KVH_OUTCOME_CONTENT_MISS,
                Outcome::Failed(reason) => {
                    value.kind = KVH_OUTCOME_FAILED;
                    value.reason = reason_text(reason).as_ptr();
                }
                Outcome::Cancelled => {}
            }
            args::write_struct(outcome_out, &value)
        })
    }
}

/// The reason's name with a NUL.
fn reason_text(reason: FailReason) -> &'static std::ffi::CStr {
    match reason {
        FailReason::NotShareable => c"not_shareable",
        FailReason::EndpointDenied => c"endpoint_denied",
        FailReason::Unsupported => c"unsupported",
        FailReason::MetadataFailed => c"metadata_failed",
        FailReason::MetadataTimeout => c"metadata_timeout",
        FailReason::NamespaceMismatch => c"namespace_mismatch",
        FailReason::LayoutMismatch => c"layout_mismatch",
        FailReason::PeerGone => c"peer_gone",
        FailReason::SourceRestarted => c"source_restarted",
        FailReason::SourceBusy => c"source_busy",
        FailReason::SourceRefused => c"source_refused",
        FailReason::Unauthenticated => c"unauthenticated",
        FailReason::TransferTimeout => c"transfer_timeout",
        FailReason::Corrupted => c"corrupted",
        FailReason::Protocol => c"protocol",
        FailReason::Limit => c"limit",
        FailReason::DeviceFailed => c"device_failed",
        FailReason::Shutdown => c"shutdown",
        FailReason::Fault => c"fault",
    }
}

/// How it went so far. Set report_out->struct_size first.
///
/// # Safety
/// `prefetch` is live; `report_out` points at a struct as long as it says.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_report(
    prefetch: *const kvh_prefetch_t,
    report_out: *mut kvh_prefetch_report_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_prefetch(prefetch, |object| {
            let report = object.attempt.report();
            let progress = report.progress;
            let present = progress.present;
            let missing = present.map_or(0, |present| progress.requested - present);
            let [init_ns, in_progress_ns, complete_ns] = progress.spent_ns;
            let value = kvh_prefetch_report_t {
                struct_size: size_of::<kvh_prefetch_report_t>(),
                requested: progress.requested as usize,
                present: present.unwrap_or(0) as usize,
                moved: progress.moved as usize,
                skipped_local: report.skipped_local,
                missing: missing as usize,
                bytes: report.bytes,
                init_ns,
                in_progress_ns,
                complete_ns,
                hint_check: report.hint_check as u32,
                foreign_hashes: report.foreign_hashes,
            };
            args::write_struct(report_out, &value)
        })
    }
}

/// Asks for an end. The outcome follows soon; one that is already there stays, and delivered blocks
/// cannot be claimed any more.
///
/// # Safety
/// `prefetch` is live.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_cancel(prefetch: *const kvh_prefetch_t) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_prefetch(prefetch, |object| {
            object.attempt.cancel();
            Ok(())
        })
    }
}

/// KVH_OK when the library can touch the blocks no more, KVH_IN_PROGRESS before. Only then may they
/// be used for something else; an outcome alone is not enough.
///
/// # Safety
/// `prefetch` is live.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_quiesced(prefetch: *const kvh_prefetch_t) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_prefetch(prefetch, |object| {
            object.attempt.is_quiesced().then_some(()).ok_or(KVH_IN_PROGRESS)
        })
    }
}

/// Takes the delivered blocks: the request goes on with a longer prefix. *block_count_out is how
/// many of block_ids hold blocks, from the first; store them with kvh_reuse_tree_store. Once, and
/// before the abandonment deadline: else KVH_NOT_FOUND, and the blocks are the host's to reuse.
///
/// # Safety
/// `prefetch` is live; `block_count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_claim(
    prefetch: *const kvh_prefetch_t,
    block_count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        on_prefetch(prefetch, |object| {
            let block_count_out = args::out(block_count_out)?;
            let blocks = object.attempt.claim().ok_or(KVH_NOT_FOUND)?;
            let allocation = object.allocation.lock().take();
            if let Some(allocation) = allocation {
                object.attempt.commit(allocation, blocks);
            }
            block_count_out.write(blocks as usize);
            Ok(())
        })
    }
}

/// Destroys the prefetch, in any state; one that runs is cancelled. When this returns the library
/// does not touch the blocks any more; for a moment kvh_prefetch_begin may still find them busy. NULL
/// is fine.
///
/// # Safety
/// `prefetch` is NULL or live, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_prefetch_destroy(prefetch: *mut kvh_prefetch_t) {
    guard::quietly(|| {
        // SAFETY: the caller's promise.
        let Some(object) = (unsafe { handle::take(prefetch) }) else { return };
        if object.context.is_forked() {
            // The thread that may be copying is the parent's: waiting for it would never end.
            std::mem::forget(object);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_called_as_in_the_metrics() {
        use FailReason::*;
        let all = [
            NotShareable,
            EndpointDenied,
            Unsupported,
            MetadataFailed,
            MetadataTimeout,
            NamespaceMismatch,
            LayoutMismatch,
            PeerGone,
            SourceRestarted,
            SourceBusy,
            SourceRefused,
            Unauthenticated,
            TransferTimeout,
            Corrupted,
            Protocol,
            Limit,
            DeviceFailed,
            Shutdown,
            Fault,
        ];
        assert_eq!(all.len(), FailReason::NAMES.len());
        for reason in all {
            assert_eq!(reason_text(reason).to_str(), Ok(reason.name()));
        }
    }
}
