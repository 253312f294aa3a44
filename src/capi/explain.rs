//! Explanations: the verdict that admission would give, the rule behind it and the place. Cold.

use std::collections::TryReserveError;

use super::admit::{ingress_from, verdict_code};
use super::args::{self, Params};
use super::context::{kvh_context_t, Context};
use super::error::{self, kvh_error_t};
use super::guard;
use super::status::kvh_status_t;
use crate::hint::explain::{explain, explain_msgpack, Explanation};
use crate::hint::{Ingress, Scratch};

/// Why a hint comes to its verdict, in numbers. Never contents of the hint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_explanation_t {
    /// sizeof(kvh_explanation_t).
    pub struct_size: usize,
    /// KVH_VERDICT_*.
    pub verdict: i32,
    /// The rule that decided: its row in the table of admission, 1 to 12; 0 for an admitted hint.
    pub rule: u32,
    /// Bytes of the hint before the place where that rule is broken.
    pub offset: usize,
    /// The line of that place, from 1; 0 where there is none, and in MessagePack.
    pub line: usize,
    /// Its column in characters, from 1; 0 as for line.
    pub column: usize,
    /// If the rule is a limit: the limit; else 0.
    pub limit: u64,
    /// If the rule is a limit: how much was found; else 0.
    pub found: u64,
    /// Length of the canonical form; 0 if the hint was not read that far.
    pub canonical_bytes: usize,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_explanation_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

impl From<&Explanation> for kvh_explanation_t {
    fn from(explanation: &Explanation) -> Self {
        let finding = explanation.finding.as_ref();
        let place = finding.and_then(|finding| finding.place);
        let measure = finding.and_then(|finding| finding.measure);
        Self {
            struct_size: size_of::<Self>(),
            verdict: verdict_code(&explanation.verdict),
            rule: finding.map_or(0, |finding| finding.rule.number()),
            offset: place.map_or(0, |place| place.offset),
            line: place.map_or(0, |place| place.line),
            column: place.map_or(0, |place| place.column),
            limit: measure.map_or(0, |measure| measure.limit),
            found: measure.map_or(0, |measure| measure.found),
            canonical_bytes: explanation.canonical_bytes.unwrap_or(0),
        }
    }
}

/// What both calls have in common: all but how a hint is read.
///
/// # Safety
/// As for [`kvh_explain`].
unsafe fn explain_hint(
    context: *const kvh_context_t,
    ingress: i32,
    raw: *const u8,
    raw_len: usize,
    explanation_out: *mut kvh_explanation_t,
    text_out: *mut *mut kvh_error_t,
    explain: fn(&[u8], Ingress<'_>, &mut Scratch) -> Result<Explanation, TryReserveError>,
) -> kvh_status_t {
    let call = |context: &Context| {
        // SAFETY: the caller's promise.
        let raw = unsafe { args::slice(raw, raw_len) }?;
        let ingress = ingress_from(context, ingress)?;
        let explanation = context.scratch.with(|scratch| explain(raw, ingress, scratch))?;
        // SAFETY: the caller's promise.
        unsafe { args::write_struct(explanation_out, &(&explanation).into()) }?;
        if let Some(finding) = explanation.finding {
            // SAFETY: the caller's promise.
            unsafe { error::explain(text_out, finding) };
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_context(context, call) }
}

/// Explains what kvh_admit would say of these bytes, for people and tests: slow, and nothing is
/// counted, neither in the metrics nor among the admissions of a signed hint. Set
/// explanation_out->struct_size first. text_out may be NULL; else *text_out gets the same in words
/// unless the hint is admitted: the rule, the place, what was expected, what was found and what to
/// do, never contents of the hint; destroy it with kvh_error_destroy.
///
/// # Safety
/// `context` is a live context; `json` points at `json_len` readable bytes or is NULL with 0;
/// `explanation_out` points at a struct as long as it says; `text_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_explain(
    context: *const kvh_context_t,
    ingress: i32,
    json: *const u8,
    json_len: usize,
    explanation_out: *mut kvh_explanation_t,
    text_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { explain_hint(context, ingress, json, json_len, explanation_out, text_out, explain) }
}

/// Explains what kvh_admit_msgpack would say, as kvh_explain does. MessagePack has no lines: the
/// place is offset alone.
///
/// # Safety
/// As for kvh_explain.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_explain_msgpack(
    context: *const kvh_context_t,
    ingress: i32,
    data: *const u8,
    len: usize,
    explanation_out: *mut kvh_explanation_t,
    text_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { explain_hint(context, ingress, data, len, explanation_out, text_out, explain_msgpack) }
}
