//! `kvh_plan_t`: what to do about a request's optional reuse.

use std::ffi::{c_char, CStr};

use super::binding_table::kvh_binding_table_t;
use super::buffer::kvh_buffer_t;
use super::candidates::snapshot_from;
use super::capabilities::kvh_capabilities_t;
use super::context::{kvh_context_t, Context};
use super::error::{explain, kvh_error_t};
use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Owned};
use super::snapshot::kvh_snapshot_t;
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use super::types::{kvh_bytes_t, kvh_str_t};
use super::{args, args::Params, guard};
use crate::plan::{decide, Decision, Plan, PlanBytesError, Refusal, RequestKind, RequestProfile};
use crate::telemetry::log::{Event, Value};
use crate::telemetry::nvtx::{Range, Step};

/// One decision about a request's optional reuse. Immutable.
pub struct kvh_plan_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_plan_t {
    type Object = Guarded<Plan>;
}
impl Owned for kvh_plan_t {}

/// An answer that has to be given: yes.
pub const KVH_ANSWER_YES: u32 = 1;
/// An answer that has to be given: no.
pub const KVH_ANSWER_NO: u32 = 2;

/// kind of a request: prefill, with or without generation after it.
pub const KVH_REQUEST_CONTEXT: u32 = 1;
/// kind of a request: generation whose context comes from a paired worker.
pub const KVH_REQUEST_GENERATION_ONLY: u32 = 2;
/// kind of a request: anything else; hints do not apply to it.
pub const KVH_REQUEST_OTHER: u32 = 3;

/// What of a request matters to the decision. Zero is no answer to any of the three questions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_request_profile_t {
    /// sizeof(kvh_request_profile_t).
    pub struct_size: usize,
    /// KVH_REQUEST_*
    pub kind: u32,
    /// Whether it uses a LoRA adapter: KVH_ANSWER_*.
    pub has_lora: u32,
    /// Whether it needs a handoff from a paired worker: KVH_ANSWER_*. No decision about optional
    /// reuse changes that handoff's rules.
    pub required_handoff: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The namespace that its blocks belong to; bindings are authorised for it.
    pub namespace_bytes: kvh_bytes_t,
}

// SAFETY: repr(C), struct_size first, only integers and a struct of a pointer and an integer.
unsafe impl Params for kvh_request_profile_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// kind of a plan: nothing to fetch; the request runs as if it had no hint.
pub const KVH_PLAN_LOCAL: i32 = 1;
/// kind of a plan: try one fetch of named blocks first.
pub const KVH_PLAN_NAMED_FETCH: i32 = 2;

/// reason of a local plan: the request uses a LoRA adapter.
pub const KVH_REFUSAL_LORA: i32 = 1;
/// reason of a local plan: the request's kind takes no hints.
pub const KVH_REFUSAL_NOT_ELIGIBLE: i32 = 2;
/// reason of a local plan: no hint, or no action in it that a family supports.
pub const KVH_REFUSAL_NO_CANDIDATE: i32 = 3;
/// reason of a local plan: the first candidate's payload breaks a rule of its version.
pub const KVH_REFUSAL_BAD_PAYLOAD: i32 = 4;
/// reason of a local plan: the endpoint is not in the registry, or is no endpoint at all.
pub const KVH_REFUSAL_ENDPOINT_UNLISTED: i32 = 5;
/// reason of a local plan: the endpoint is listed for no binding of a supporting family.
pub const KVH_REFUSAL_BINDING_MISSING: i32 = 6;
/// reason of a local plan: the endpoint is listed for several such bindings.
pub const KVH_REFUSAL_BINDING_AMBIGUOUS: i32 = 7;
/// reason of a local plan: the binding is not authorised for the request's namespace.
pub const KVH_REFUSAL_BINDING_UNAUTHORISED: i32 = 8;
/// reason of a local plan: the binding itself cannot do the action.
pub const KVH_REFUSAL_BINDING_INCAPABLE: i32 = 9;
/// reason of a local plan: the binding finds blocks by a paired request.
pub const KVH_REFUSAL_REQUEST_PAIRED: i32 = 10;

/// flags of a fetch: after it comes the paired source, as it would have come without it.
pub const KVH_FETCH_THEN_PAIRED_SOURCE: u32 = 1;

/// A planned fetch. Strings and bytes are valid until the plan is destroyed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_plan_fetch_t {
    /// sizeof(kvh_plan_fetch_t).
    pub struct_size: usize,
    /// The binding that serves it.
    pub binding_id: kvh_str_t,
    /// Where its source is, in canonical spelling.
    pub endpoint: kvh_str_t,
    /// The chosen action's position in the envelope.
    pub action_index: usize,
    /// The hint's hash of the last block. It bounds the range; it names nothing.
    pub last_block_hash: u64,
    /// How many blocks from the root the hint names; at least 1.
    pub block_count: u32,
    /// KVH_FETCH_* bits.
    pub flags: u32,
    /// The canonical envelope with only the chosen action, where the binding asks for it; else
    /// (NULL, 0).
    pub envelope: kvh_bytes_t,
}

// SAFETY: repr(C), struct_size first, only integers and structs of pointers and integers.
unsafe impl Params for kvh_plan_fetch_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

fn answer(answer: u32) -> Result<bool, kvh_status> {
    match answer {
        KVH_ANSWER_YES => Ok(true),
        KVH_ANSWER_NO => Ok(false),
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

/// Reads a profile.
///
/// # Safety
/// `profile` is NULL or points at a parameter struct whose bytes live for `'a`.
unsafe fn read_profile<'a>(
    profile: *const kvh_request_profile_t,
) -> Result<RequestProfile<'a>, kvh_status> {
    // SAFETY: the caller's promise.
    let profile = unsafe { args::read_params(profile) }?;
    if profile.reserved != 0 {
        return Err(KVH_ERR_ABI);
    }
    Ok(RequestProfile {
        has_lora: answer(profile.has_lora)?,
        kind: match profile.kind {
            KVH_REQUEST_CONTEXT => RequestKind::Context,
            KVH_REQUEST_GENERATION_ONLY => RequestKind::GenerationOnly,
            KVH_REQUEST_OTHER => RequestKind::Other,
            _ => return Err(KVH_ERR_INVALID_ARGUMENT),
        },
        required_handoff: answer(profile.required_handoff)?,
        // SAFETY: the caller's promise.
        namespace: unsafe { args::bytes(profile.namespace_bytes) }?,
    })
}

fn count(context: &Context, decision: &Decision) {
    let metrics = &context.metrics;
    metrics.plan_candidates.add(0, decision.counts.candidates as u64);
    metrics.plan_unknown_types.add(0, decision.counts.unknown_type as u64);
    metrics.plan_versions_unmatched.add(0, decision.counts.version_unmatched as u64);
    match &decision.plan {
        Plan::Local(refusal) => {
            metrics.plan_refused.add(refusal.index(), 1);
            context.log(Event::PlanRefused, &[("reason", Value::Word(refusal.name()))]);
        }
        Plan::NamedFetch(_) => metrics.plan_named_fetches.add(0, 1),
    }
}

/// Decides for one request: call it once, on one rank, and send the plan to the others. snapshot
/// NULL means that there is no hint, which is a local plan with KVH_REFUSAL_NO_CANDIDATE unless the
/// request itself is the reason, and counts nothing. With a hint, the context's metrics count its
/// actions and the outcome. Resolves no name and contacts nobody. Destroy the plan with
/// kvh_plan_destroy.
///
/// # Safety
/// `context`, `capabilities` and `table` are live; `snapshot` is NULL or held; `profile` points at a
/// parameter struct; `plan_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_decide(
    context: *const kvh_context_t,
    snapshot: *const kvh_snapshot_t,
    capabilities: *const kvh_capabilities_t,
    table: *const kvh_binding_table_t,
    profile: *const kvh_request_profile_t,
    plan_out: *mut *mut kvh_plan_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let body = |context: &Context| unsafe {
        let capabilities = guarded::get(capabilities)?;
        let table = guarded::get(table)?;
        let profile = read_profile(profile)?;
        let plan_out = args::out(plan_out)?;
        let snapshot = match snapshot.is_null() {
            true => None,
            false => Some(snapshot_from(snapshot)?),
        };
        let hint_bytes = || snapshot.as_ref().map_or(0, |snapshot| snapshot.json().len());
        let _range = Range::push(Step::Plan, hint_bytes);
        let decision = decide(snapshot.as_ref(), capabilities, table, &profile)?;
        if snapshot.is_some() {
            count(context, &decision);
        }
        plan_out.write(handle::give(Guarded::new(decision.plan)));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_context(context, body) }
}

/// KVH_PLAN_LOCAL or KVH_PLAN_NAMED_FETCH; 0 for NULL.
///
/// # Safety
/// `plan` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_kind(plan: *const kvh_plan_t) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(plan) }.map(|plan| &plan.value) {
        Ok(Plan::Local(_)) => KVH_PLAN_LOCAL,
        Ok(Plan::NamedFetch(_)) => KVH_PLAN_NAMED_FETCH,
        Err(_) => 0,
    }
}

/// Why a plan is local: KVH_REFUSAL_*; 0 for a fetch and for NULL.
///
/// # Safety
/// `plan` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_reason(plan: *const kvh_plan_t) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(plan) }.map(|plan| &plan.value) {
        Ok(Plan::Local(refusal)) => *refusal as i32,
        Ok(Plan::NamedFetch(_)) | Err(_) => 0,
    }
}

/// In the order of `Refusal::ALL`; a unit test compares.
const REFUSAL_STRINGS: [&CStr; Refusal::ALL.len()] = [
    c"lora",
    c"not_eligible",
    c"no_candidate",
    c"bad_payload",
    c"endpoint_unlisted",
    c"binding_missing",
    c"binding_ambiguous",
    c"binding_unauthorised",
    c"binding_incapable",
    c"request_paired",
];

/// The stable name of a KVH_REFUSAL_*, such as "endpoint_unlisted", the same as in the metrics;
/// static, never NULL. "none" for 0, "unknown" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvh_refusal_string(refusal: i32) -> *const c_char {
    let known = u8::try_from(refusal).ok().and_then(Refusal::from_number);
    let text = match known {
        Some(refusal) => REFUSAL_STRINGS[refusal.index()],
        None if refusal == 0 => c"none",
        None => c"unknown",
    };
    text.as_ptr()
}

/// What a plan of kind KVH_PLAN_NAMED_FETCH says. Set fetch_out->struct_size first. KVH_ERR_STATE
/// for a local plan.
///
/// # Safety
/// `plan` is live; `fetch_out` points at `struct_size` writable bytes.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_fetch(
    plan: *const kvh_plan_t,
    fetch_out: *mut kvh_plan_fetch_t,
) -> kvh_status_t {
    let body = |plan: &Plan| {
        let Plan::NamedFetch(fetch) = plan else { return Err(KVH_ERR_STATE) };
        let envelope = fetch.envelope.as_deref();
        let envelope = envelope.map_or(kvh_bytes_t::EMPTY, |json| kvh_bytes_t::borrow(json));
        let value = kvh_plan_fetch_t {
            struct_size: size_of::<kvh_plan_fetch_t>(),
            binding_id: kvh_str_t::borrow(&fetch.binding_id),
            endpoint: kvh_str_t::borrow(fetch.endpoint.canonical()),
            action_index: fetch.action_index as usize,
            last_block_hash: fetch.last_block_hash,
            block_count: fetch.block_count,
            flags: if fetch.then_paired_source { KVH_FETCH_THEN_PAIRED_SOURCE } else { 0 },
            envelope,
        };
        // SAFETY: the caller's promise.
        unsafe { args::write_struct(fetch_out, &value) }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::read(plan, body) }
}

/// The plan as bytes for the other ranks: versioned, protected against damage, at most 680 bytes
/// and the envelope, if there is one. Release the buffer with kvh_buffer_release.
///
/// # Safety
/// `plan` is live; `bytes_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_to_bytes(
    plan: *const kvh_plan_t,
    bytes_out: *mut *mut kvh_buffer_t,
) -> kvh_status_t {
    let body = |plan: &Plan| {
        // SAFETY: the caller's promise.
        let bytes_out = unsafe { args::out(bytes_out) }?;
        bytes_out.write(handle::give(plan.to_bytes()?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::read(plan, body) }
}

/// A plan from bytes that kvh_plan_to_bytes made on another rank; counts nothing.
/// KVH_ERR_INVALID_ARGUMENT: damaged, of another version, or no plan; *error_out, where error_out is
/// not NULL, then gets a text.
///
/// # Safety
/// `data` points at `len` readable bytes or is NULL with 0; `plan_out` is writable; `error_out` is
/// NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_from_bytes(
    data: *const u8,
    len: usize,
    plan_out: *mut *mut kvh_plan_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    guard::without_object(|| unsafe {
        let bytes = args::slice(data, len)?;
        let plan_out = args::out(plan_out)?;
        let plan = Plan::from_bytes(bytes).map_err(|error| {
            explain(error_out, error);
            match error {
                PlanBytesError::NoMemory => KVH_ERR_NO_MEMORY,
                _ => KVH_ERR_INVALID_ARGUMENT,
            }
        })?;
        plan_out.write(handle::give(Guarded::new(plan)));
        Ok(())
    })
}

/// Destroys the plan. NULL is fine.
///
/// # Safety
/// `plan` is NULL or live, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_plan_destroy(plan: *mut kvh_plan_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(plan) }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_are_those_of_the_refusals() {
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(REFUSAL_STRINGS[index].to_str(), Ok(refusal.name()));
        }
        assert_eq!(KVH_REFUSAL_LORA, Refusal::Lora as i32);
        assert_eq!(KVH_REFUSAL_NOT_ELIGIBLE, Refusal::NotEligible as i32);
        assert_eq!(KVH_REFUSAL_NO_CANDIDATE, Refusal::NoCandidate as i32);
        assert_eq!(KVH_REFUSAL_BAD_PAYLOAD, Refusal::BadPayload as i32);
        assert_eq!(KVH_REFUSAL_ENDPOINT_UNLISTED, Refusal::EndpointUnlisted as i32);
        assert_eq!(KVH_REFUSAL_BINDING_MISSING, Refusal::BindingMissing as i32);
        assert_eq!(KVH_REFUSAL_BINDING_AMBIGUOUS, Refusal::BindingAmbiguous as i32);
        assert_eq!(KVH_REFUSAL_BINDING_UNAUTHORISED, Refusal::BindingUnauthorised as i32);
        assert_eq!(KVH_REFUSAL_BINDING_INCAPABLE, Refusal::BindingIncapable as i32);
        assert_eq!(KVH_REFUSAL_REQUEST_PAIRED, Refusal::RequestPaired as i32);
    }
}
