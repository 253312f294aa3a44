//! Why a hint came to its verdict: the rule of the table of admission, the place, the words.
//!
//! ```text
//! input ─ admission ─> verdict ─┐
//!       └ json, msgpack ─> structure, syntax ─> which rule, where ─> Explanation
//! ```
//!
//! | file | subject |
//! |---|---|
//! | [`finding`] | rules, places, problems |
//! | [`structure`] | rows 5 to 12, whatever the form of the input |
//! | [`json`], [`msgpack`] | what an input consists of, and the length of its canonical form |
//! | [`syntax`] | row 4 of JSON |
//!
//! Cold: the verdict comes from the admission that hints go through, so it cannot disagree with it;
//! the place is looked for afterwards, in further slow passes. Explaining is not admitting: nothing
//! is counted, not even against the number of times that a signed hint is admitted.
//!
//! Guards: memory and time (both linear in the input, which admission bounds; names are sorted).
//! Never does: decide; repeat contents of a hint.

// Cold: an error may be as large as an answer.
#![allow(clippy::result_large_err)]

mod finding;
mod json;
mod msgpack;
mod structure;
mod syntax;

use std::collections::TryReserveError;
use std::ops::Range;

pub use finding::{Finding, Measure, Place, Problem, Rule, Subject};

use super::admission::{judge, judge_msgpack, Admissions, Ingress, Verdict};
use super::body::{self, BodyError, Hints};
use super::body_msgpack;
use super::limits::{CANONICAL_MAX_BYTES, RAW_MAX_BYTES};
use super::scratch::Scratch;
use super::signature::{self, SignatureFault};
use json::Reading;

/// What admission says of an input, and why.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that decided it; `None` for a hint that is admitted.
    pub finding: Option<Finding>,
    /// Where the hint lies in the input: all of it, or a part of a body; `None` where a body has
    /// none, or several.
    pub hint: Option<Range<usize>>,
    /// The length of the hint's canonical form, where it was read that far.
    pub canonical_bytes: Option<usize>,
}

/// Why a body was refused, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}{}", .finding.map_or(String::new(), |finding| format!("; {finding}")))]
pub struct BodyFault {
    /// What was wrong.
    pub error: BodyError,
    /// The place, if the body was read.
    pub finding: Option<Finding>,
}

impl From<TryReserveError> for BodyFault {
    fn from(error: TryReserveError) -> Self {
        Self { error: error.into(), finding: None }
    }
}

/// How the parts of an input are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Msgpack,
}

impl Form {
    fn place(self, input: &[u8], offset: usize) -> Place {
        match self {
            Form::Json => Place::in_text(input, offset),
            Form::Msgpack => Place::in_bytes(offset),
        }
    }
}

/// Explains what [`super::admit`] says.
pub fn explain(
    raw: &[u8],
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Explanation, TryReserveError> {
    explain_part(raw, 0..raw.len(), Form::Json, ingress, scratch)
}

/// Explains what [`super::admit_msgpack`] says.
pub fn explain_msgpack(
    raw: &[u8],
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Explanation, TryReserveError> {
    explain_part(raw, 0..raw.len(), Form::Msgpack, ingress, scratch)
}

/// Explains what [`super::admit_body`] says. Places are those in the body.
pub fn explain_body(
    body: &[u8],
    max_bytes: usize,
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Explanation, BodyFault> {
    let hints = match body::split(body, max_bytes, scratch) {
        Ok((hints, _)) => hints,
        Err(error) => {
            let finding = refused_body(body, &error, scratch)?;
            return Err(BodyFault { error, finding });
        }
    };
    explain_hints(body, hints, Form::Json, ingress, scratch)
}

/// Explains what [`super::admit_body_msgpack`] says. Places are those in the body.
pub fn explain_body_msgpack(
    body: &[u8],
    max_bytes: usize,
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Explanation, BodyFault> {
    // A body may hold what a hint may not: its reader knows no more than that it stopped.
    let (hints, _) =
        body_msgpack::split(body, max_bytes).map_err(|error| BodyFault { error, finding: None })?;
    explain_hints(body, hints, Form::Msgpack, ingress, scratch)
}

fn explain_hints(
    body: &[u8],
    hints: Hints,
    form: Form,
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Explanation, BodyFault> {
    let explanation = match hints {
        Hints::One { start, end } => explain_part(body, start..end, form, ingress, scratch)?,
        Hints::None => Explanation {
            verdict: Verdict::Absent,
            finding: Some(absent("no member kv_hints in the body", form.place(body, 0))),
            hint: None,
            canonical_bytes: None,
        },
        Hints::Several { second } => {
            let verdict = body::verdict_on_several(ingress);
            let place = form.place(body, second);
            let finding = match verdict {
                Verdict::Untrusted => untrusted(place),
                _ => Finding {
                    rule: Rule::Body,
                    place: Some(place),
                    subject: Subject::Input,
                    problem: Problem::new("one member kv_hints in a body", "another", "drop one"),
                    measure: None,
                },
            };
            Explanation { verdict, finding: Some(finding), hint: None, canonical_bytes: None }
        }
    };
    Ok(explanation)
}

/// The hint at `range` of `input`.
fn explain_part(
    input: &[u8],
    range: Range<usize>,
    form: Form,
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Explanation, TryReserveError> {
    let raw = &input[range.clone()];
    let start = form.place(input, range.start);
    let verdict = match form {
        Form::Json => judge(raw, ingress, Admissions::Unchanged, scratch)?,
        Form::Msgpack => judge_msgpack(raw, ingress, Admissions::Unchanged, scratch)?,
    };
    let mut canonical_bytes = None;
    let finding = match &verdict {
        Verdict::Admitted(snapshot) => {
            canonical_bytes = Some(snapshot.json().len());
            None
        }
        Verdict::Absent => Some(absent("nothing, blanks or null", start)),
        Verdict::Untrusted => Some(untrusted(start)),
        Verdict::BadlySigned(fault) => Some(badly_signed(input, &range, form, *fault, scratch)?),
        Verdict::Oversized if raw.len() > RAW_MAX_BYTES => Some(Finding {
            rule: Rule::RawLength,
            place: Some(form.place(input, range.start + RAW_MAX_BYTES)),
            subject: Subject::Input,
            problem: Problem::new("a shorter hint", "one that is never parsed", "send less"),
            measure: Some(Measure::new(RAW_MAX_BYTES, raw.len(), "raw bytes")),
        }),
        Verdict::UnknownVersion | Verdict::Oversized | Verdict::Malformed => {
            let Reading { finding, canonical_bytes: length } = read(input, &range, form, scratch)?;
            canonical_bytes = length;
            finding
        }
    };
    Ok(Explanation { verdict, finding, hint: Some(range), canonical_bytes })
}

fn read(
    input: &[u8],
    range: &Range<usize>,
    form: Form,
    scratch: &mut Scratch,
) -> Result<Reading, TryReserveError> {
    match form {
        Form::Json => json::read(input, range.clone(), &mut scratch.stack),
        Form::Msgpack => msgpack::read(input, range.clone(), &mut scratch.slots),
    }
}

fn absent(found: &'static str, place: Place) -> Finding {
    Finding {
        rule: Rule::Present,
        place: Some(place),
        subject: Subject::Input,
        problem: Problem::new("a hint", found, "send none, or an envelope"),
        measure: None,
    }
}

fn untrusted(place: Place) -> Finding {
    let advice = "trust hints over HTTP, give a key ring and sign them, or send none";
    Finding {
        rule: Rule::Trust,
        place: Some(place),
        subject: Subject::Input,
        problem: Problem::new("an ingress whose hints are trusted", "HTTP without trust", advice),
        measure: None,
    }
}

fn badly_signed(
    input: &[u8],
    range: &Range<usize>,
    form: Form,
    fault: SignatureFault,
    scratch: &mut Scratch,
) -> Result<Finding, TryReserveError> {
    let raw = &input[range.clone()];
    let rule = Rule::Trust;
    let problem = signature_problem(fault);
    let place = Some(form.place(input, range.start));
    let of_input = Finding { rule, place, subject: Subject::Input, problem, measure: None };
    Ok(match (fault, form) {
        (SignatureFault::TooLong, _) => {
            let measure = match raw.len() > RAW_MAX_BYTES {
                true => Some(Measure::new(RAW_MAX_BYTES, raw.len(), "raw bytes")),
                // MessagePack whose canonical form is too long to be checked.
                false => read(input, range, form, scratch)?
                    .canonical_bytes
                    .map(|bytes| Measure::new(CANONICAL_MAX_BYTES, bytes, CANONICAL_BYTES)),
            };
            Finding { measure, ..of_input }
        }
        // The place and the words of row 4, under the rule that decided.
        (SignatureFault::NotJson, _) => match read(input, range, form, scratch)?.finding {
            Some(finding) if finding.rule == Rule::Json => Finding { rule, ..finding },
            _ => of_input,
        },
        (_, Form::Json) => {
            let at = signature::place_of(raw, fault, &mut scratch.stack)?;
            match at {
                Some(at) => {
                    let place = Some(form.place(input, range.start + at));
                    Finding { place, subject: Subject::Member("auth"), ..of_input }
                }
                None => of_input,
            }
        }
        (_, Form::Msgpack) => of_input,
    })
}

fn signature_problem(fault: SignatureFault) -> Problem {
    let (expected, found, advice) = match fault {
        SignatureFault::TooLong => ("a signed hint", "one too long to be checked", "send less"),
        SignatureFault::NotJson => ("one JSON text", "something else", "send valid JSON"),
        SignatureFault::NoAuth => (
            "one member auth with key_id, alg, mac, exp and no others but aud and nonce, each once",
            "none, or another shape",
            "sign the envelope",
        ),
        SignatureFault::UnknownKey => {
            ("the key_id of a key in the ring", "another", "add the key, or sign with a known one")
        }
        SignatureFault::Algorithm => ("the alg HS256", "another", "sign with HMAC-SHA-256"),
        SignatureFault::WrongMac => (
            "the code that the key gives for the canonical form without mac",
            "another code",
            "sign what is sent, with the key that key_id names",
        ),
        SignatureFault::Expired => ("an exp to come", "one that is past, or none", "sign again"),
        SignatureFault::Audience => ("the ring's audience as aud", "another, or none", "name it"),
        SignatureFault::Replayed => (
            "a signed hint that may be admitted once more",
            "one that was admitted as often as the ring allows",
            "sign again with another nonce",
        ),
        SignatureFault::ReplayTableFull => (
            "room to remember one more signed hint",
            "none",
            "wait until hints expire, or make the ring's table larger",
        ),
    };
    Problem::new(expected, found, advice)
}

const CANONICAL_BYTES: &str = "bytes in canonical form";

/// Row 8.
fn canonical_finding(place: Place, canonical_bytes: usize) -> Finding {
    Finding {
        rule: Rule::CanonicalLength,
        place: Some(place),
        subject: Subject::Input,
        problem: Problem::new(
            "a shorter envelope",
            "the limit's last byte before here",
            "name fewer hashes, or use the prefix form",
        ),
        measure: Some(Measure::new(CANONICAL_MAX_BYTES, canonical_bytes, CANONICAL_BYTES)),
    }
}

/// Where a body is no JSON object.
fn refused_body(
    body: &[u8],
    error: &BodyError,
    scratch: &mut Scratch,
) -> Result<Option<Finding>, TryReserveError> {
    if *error != BodyError::NotAnObject {
        return Ok(None);
    }
    let place = |at| Place::in_text(body, at);
    let not_json = json::not_json(body, &mut scratch.stack, place)?;
    let not_an_object = || Finding {
        rule: Rule::Body,
        place: Some(place(super::scan::runs::portable_blanks_end(body, 0))),
        subject: Subject::Input,
        problem: Problem::new("a JSON object", "another value", "send an object as the body"),
        measure: None,
    };
    let of_body = not_json.map(|finding| Finding { rule: Rule::Body, ..finding });
    Ok(Some(of_body.unwrap_or_else(not_an_object)))
}
