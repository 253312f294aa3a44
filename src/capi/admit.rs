//! Admission: the raw bytes of a hint, or of a request body with one, become a snapshot or nothing.
//!
//! Counts each verdict once, here, at the edge that discards.

use std::collections::TryReserveError;
use std::ffi::c_char;

use super::args;
use super::buffer::kvh_buffer_t;
use super::context::{kvh_context_t, Context};
use super::guard;
use super::handle;
use super::snapshot::kvh_snapshot_t;
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use crate::hint::{
    admit, admit_body, admit_body_msgpack, admit_msgpack, BodyError, Ingress, Scratch, SplitBody,
    Verdict, Verifier,
};
use crate::telemetry::log::{Event, Value};
use crate::telemetry::nvtx::{Range, Step};
use crate::telemetry::Metrics;

/// verdict: a hint; there is a snapshot.
pub const KVH_VERDICT_ADMITTED: i32 = 0;
/// verdict: there is no hint (no bytes, only blanks, null); not counted.
pub const KVH_VERDICT_ABSENT: i32 = 1;
/// verdict: hints over this ingress are not trusted.
pub const KVH_VERDICT_UNTRUSTED: i32 = 2;
/// verdict: protocol_version is not "0.1".
pub const KVH_VERDICT_UNKNOWN_VERSION: i32 = 3;
/// verdict: more than 1 MiB raw, or more than 65,536 bytes in canonical form.
pub const KVH_VERDICT_OVERSIZED: i32 = 4;
/// verdict: not a well-formed envelope.
pub const KVH_VERDICT_MALFORMED: i32 = 5;

/// ingress: over HTTP; counts only where the context trusts it, or its key ring the signature.
pub const KVH_INGRESS_HTTP: i32 = 1;
/// ingress: from code in this process.
pub const KVH_INGRESS_TRUSTED: i32 = 2;

pub(super) fn ingress_from(context: &Context, ingress: i32) -> Result<Ingress<'_>, kvh_status> {
    match (ingress, &context.key_ring) {
        (KVH_INGRESS_HTTP, None) => Ok(Ingress::Http { trusted: context.http_trusted }),
        (KVH_INGRESS_HTTP, Some(ring)) => Ok(Ingress::HttpSigned(Verifier {
            ring: ring.usable()?,
            now_unix_seconds: context.clock.unix_seconds(),
        })),
        (KVH_INGRESS_TRUSTED, _) => Ok(Ingress::InProcess),
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

impl From<BodyError> for kvh_status {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLong { .. } | BodyError::NotAnObject | BodyError::NotAMap => KVH_ERR_BODY,
            BodyError::NoMemory(_) => KVH_ERR_NO_MEMORY,
        }
    }
}

/// A verdict as C sees it.
pub(super) fn verdict_code(verdict: &Verdict) -> i32 {
    match verdict {
        Verdict::Admitted(_) => KVH_VERDICT_ADMITTED,
        Verdict::Absent => KVH_VERDICT_ABSENT,
        Verdict::Untrusted | Verdict::BadlySigned(_) => KVH_VERDICT_UNTRUSTED,
        Verdict::UnknownVersion => KVH_VERDICT_UNKNOWN_VERSION,
        Verdict::Oversized => KVH_VERDICT_OVERSIZED,
        Verdict::Malformed => KVH_VERDICT_MALFORMED,
    }
}

/// The stable name of a KVH_VERDICT_*, such as "unknown_version", the same as in the metrics;
/// static, never NULL. "unknown" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvh_verdict_string(verdict: i32) -> *const c_char {
    match verdict {
        KVH_VERDICT_ADMITTED => c"admitted",
        KVH_VERDICT_ABSENT => c"absent",
        KVH_VERDICT_UNTRUSTED => c"untrusted",
        KVH_VERDICT_UNKNOWN_VERSION => c"unknown_version",
        KVH_VERDICT_OVERSIZED => c"oversized",
        KVH_VERDICT_MALFORMED => c"malformed",
        _ => c"unknown",
    }
    .as_ptr()
}

/// Counts a verdict and puts it as C sees it; the snapshot is NULL unless admitted.
fn report(context: &Context, verdict: Verdict) -> (i32, *mut kvh_snapshot_t) {
    if let Verdict::BadlySigned(fault) = verdict {
        // The label values stand in the order of the faults.
        context.metrics.signatures_refused.add(fault as usize, 1);
    }
    let code = verdict_code(&verdict);
    match code {
        KVH_VERDICT_ADMITTED => context.metrics.hints_admitted.add(0, 1),
        KVH_VERDICT_ABSENT => {}
        // The label values stand in the order of the verdicts.
        _ => {
            let reason = (code - KVH_VERDICT_UNTRUSTED) as usize;
            context.metrics.hints_ignored.add(reason, 1);
            let word = Metrics::IGNORED_REASONS[reason];
            context.log(Event::HintIgnored, &[("reason", Value::Word(word))]);
        }
    }
    let snapshot = verdict
        .into_snapshot()
        .map_or(std::ptr::null_mut(), |snapshot| handle::share(snapshot.into_shared()));
    (code, snapshot)
}

/// What kvh_admit and its MessagePack twin have in common: all but how a hint is read.
///
/// # Safety
/// As for [`kvh_admit`].
unsafe fn judge_hint(
    context: *const kvh_context_t,
    ingress: i32,
    raw: *const u8,
    raw_len: usize,
    verdict_out: *mut i32,
    snapshot_out: *mut *mut kvh_snapshot_t,
    judge: impl FnOnce(&[u8], Ingress<'_>, &mut Scratch) -> Result<Verdict, TryReserveError>,
) -> kvh_status_t {
    let call = |context: &Context| {
        // SAFETY: the caller's promise.
        let (raw, verdict_out, snapshot_out) = unsafe {
            (args::slice(raw, raw_len)?, args::out(verdict_out)?, args::out(snapshot_out)?)
        };
        let ingress = ingress_from(context, ingress)?;
        let _range = Range::push(Step::Admit, || raw.len());
        let verdict = context.scratch.with(|scratch| judge(raw, ingress, scratch))?;
        let (code, snapshot) = report(context, verdict);
        verdict_out.write(code);
        snapshot_out.write(snapshot);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_context(context, call) }
}

/// What kvh_admit_body and its MessagePack twin have in common: all but how a body is read.
///
/// # Safety
/// As for [`kvh_admit_body`].
#[allow(clippy::too_many_arguments)] // those of the C call, and one
unsafe fn judge_body(
    context: *const kvh_context_t,
    ingress: i32,
    body: *const u8,
    body_len: usize,
    verdict_out: *mut i32,
    snapshot_out: *mut *mut kvh_snapshot_t,
    body_out: *mut *mut kvh_buffer_t,
    judge: impl FnOnce(&[u8], usize, Ingress<'_>, &mut Scratch) -> Result<SplitBody, BodyError>,
) -> kvh_status_t {
    let call = |context: &Context| {
        // SAFETY: the caller's promise.
        let (body, verdict_out, snapshot_out, body_out) = unsafe {
            (
                args::slice(body, body_len)?,
                args::out(verdict_out)?,
                args::out(snapshot_out)?,
                args::out(body_out)?,
            )
        };
        let ingress = ingress_from(context, ingress)?;
        let _range = Range::push(Step::Admit, || body.len());
        let max_bytes = context.body_max_bytes;
        let split = context.scratch.with(|scratch| judge(body, max_bytes, ingress, scratch))?;
        let (code, snapshot) = report(context, split.verdict);
        verdict_out.write(code);
        snapshot_out.write(snapshot);
        body_out.write(handle::give(split.body));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_context(context, call) }
}

/// Judges the raw JSON bytes of one hint that came in through ingress (KVH_INGRESS_*).
/// *verdict_out gets a KVH_VERDICT_*; *snapshot_out a snapshot to release if that is
/// KVH_VERDICT_ADMITTED, else NULL. A bad hint is a verdict, not an error. (NULL, 0) is an absent
/// hint. The bytes are not needed after the call. Verdicts other than absent are counted in the
/// context's metrics.
///
/// # Safety
/// `context` is a live context; `json` points at `json_len` readable bytes or is NULL with 0;
/// `verdict_out` and `snapshot_out` are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_admit(
    context: *const kvh_context_t,
    ingress: i32,
    json: *const u8,
    json_len: usize,
    verdict_out: *mut i32,
    snapshot_out: *mut *mut kvh_snapshot_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { judge_hint(context, ingress, json, json_len, verdict_out, snapshot_out, admit) }
}

/// Judges one MessagePack value as kvh_admit judges JSON. Maps need string keys; binary and
/// extension types, text that is no UTF-8 and floats that are no numbers are malformed. No bytes
/// and nil are an absent hint.
///
/// # Safety
/// `context` is a live context; `data` points at `len` readable bytes or is NULL with 0;
/// `verdict_out` and `snapshot_out` are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_admit_msgpack(
    context: *const kvh_context_t,
    ingress: i32,
    data: *const u8,
    len: usize,
    verdict_out: *mut i32,
    snapshot_out: *mut *mut kvh_snapshot_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { judge_hint(context, ingress, data, len, verdict_out, snapshot_out, admit_msgpack) }
}

/// Takes the member "kv_hints" out of an HTTP request body and judges its value as kvh_admit does.
/// *body_out gets the body without that member and its comma, every other byte as it was; release
/// it with kvh_buffer_release. A body without such a member has an absent hint. Of several such
/// members all are removed and none is used: the verdict is malformed, or untrusted.
/// KVH_ERR_BODY: the body is not one strict JSON object, or longer than the context's
/// body_max_bytes. There is no body then; do not hand the original to another parser.
///
/// # Safety
/// `context` is a live context; `body` points at `body_len` readable bytes or is NULL with 0;
/// `verdict_out`, `snapshot_out` and `body_out` are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_admit_body(
    context: *const kvh_context_t,
    ingress: i32,
    body: *const u8,
    body_len: usize,
    verdict_out: *mut i32,
    snapshot_out: *mut *mut kvh_snapshot_t,
    body_out: *mut *mut kvh_buffer_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        judge_body(
            context,
            ingress,
            body,
            body_len,
            verdict_out,
            snapshot_out,
            body_out,
            admit_body,
        )
    }
}

/// The twin of kvh_admit_body for a MessagePack body: takes the member "kv_hints" out of the
/// outermost map and judges its value as kvh_admit_msgpack does; nil is an absent hint. The map's
/// header counts what is left, in as many bytes as it had; every other byte stays as it was.
/// KVH_ERR_BODY: the body is not one MessagePack map with string keys, or longer than the context's
/// body_max_bytes. There is no body then; do not hand the original to another parser.
///
/// # Safety
/// As for kvh_admit_body.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_admit_body_msgpack(
    context: *const kvh_context_t,
    ingress: i32,
    body: *const u8,
    body_len: usize,
    verdict_out: *mut i32,
    snapshot_out: *mut *mut kvh_snapshot_t,
    body_out: *mut *mut kvh_buffer_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        judge_body(
            context,
            ingress,
            body,
            body_len,
            verdict_out,
            snapshot_out,
            body_out,
            admit_body_msgpack,
        )
    }
}
