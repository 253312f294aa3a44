//! Admission: raw bytes of one hint -> a verdict, by the table's order.
//!
//! Rows 1 to 3 are decided here without parsing; the scan decides row 4; [`super::judge`] the rest.
//! A bad hint never fails a request: it becomes no hint. Only memory that cannot be had is an
//! error. Pure: trust and seed come in as values; who counts verdicts is the caller.

use std::collections::TryReserveError;

use super::judge::{Fault, Judge};
use super::limits::RAW_MAX_BYTES;
use super::msgpack::{self, Decoded};
use super::scan::{runs, scan_at, ScanError};
use super::scratch::Scratch;
use super::signature::{SignatureFault, Verifier};
use super::snapshot::Snapshot;

/// Where a hint came in.
#[derive(Debug, Clone, Copy)]
pub enum Ingress<'r> {
    /// Over HTTP, where hints count only if the host trusts them.
    Http {
        /// Whether it does.
        trusted: bool,
    },
    /// Over HTTP, where hints count only if a holder of a key signed them.
    HttpSigned(Verifier<'r>),
    /// From code in this process.
    InProcess,
}

impl Ingress<'_> {
    /// Whether hints that come in there count, whatever they say.
    pub fn is_trusted(self) -> bool {
        matches!(self, Ingress::Http { trusted: true } | Ingress::InProcess)
    }
}

/// What admission came to.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// A hint.
    Admitted(Snapshot),
    /// There is none; not counted.
    Absent,
    /// Hints that come in there are not trusted.
    Untrusted,
    /// The same, because its signature does not hold.
    BadlySigned(SignatureFault),
    /// A version whose inside is not interpreted.
    UnknownVersion,
    /// Too long, raw or in canonical form.
    Oversized,
    /// Not a well-formed envelope.
    Malformed,
}

impl Verdict {
    /// Its stable name, the same as in the metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Admitted(_) => "admitted",
            Verdict::Absent => "absent",
            Verdict::Untrusted | Verdict::BadlySigned(_) => "untrusted",
            Verdict::UnknownVersion => "unknown_version",
            Verdict::Oversized => "oversized",
            Verdict::Malformed => "malformed",
        }
    }

    /// The hint, if there is one.
    pub fn into_snapshot(self) -> Option<Snapshot> {
        match self {
            Verdict::Admitted(snapshot) => Some(snapshot),
            _ => None,
        }
    }
}

impl From<Fault> for Verdict {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::UnknownVersion => Verdict::UnknownVersion,
            Fault::Oversized => Verdict::Oversized,
            Fault::Malformed => Verdict::Malformed,
        }
    }
}

/// What a verdict does to the number of times that a signed hint was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admissions {
    /// One more.
    Counted,
    /// Nothing: the verdict is only asked for.
    Unchanged,
}

/// Judges the raw JSON bytes of one hint.
pub fn admit(
    raw: &[u8],
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    judge(raw, ingress, Admissions::Counted, scratch)
}

/// [`admit`], for whoever says what becomes of admissions.
pub(super) fn judge(
    raw: &[u8],
    ingress: Ingress<'_>,
    admissions: Admissions,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    if is_absent(raw) {
        return Ok(Verdict::Absent);
    }
    match ingress {
        Ingress::Http { trusted: false } => Ok(Verdict::Untrusted),
        Ingress::HttpSigned(verifier) => judge_signed(raw, verifier, admissions, scratch),
        _ if raw.len() > RAW_MAX_BYTES => Ok(Verdict::Oversized),
        Ingress::Http { trusted: true } | Ingress::InProcess => judge_text(raw, scratch),
    }
}

/// Judges one MessagePack value by the same table. What is signed is its canonical JSON, so that a
/// signature survives as far as number texts do; one that is too long for a canonical form cannot
/// be checked.
pub fn admit_msgpack(
    raw: &[u8],
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    judge_msgpack(raw, ingress, Admissions::Counted, scratch)
}

/// [`admit_msgpack`], for whoever says what becomes of admissions.
pub(super) fn judge_msgpack(
    raw: &[u8],
    ingress: Ingress<'_>,
    admissions: Admissions,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    if raw.is_empty() || raw == [msgpack::NIL] {
        return Ok(Verdict::Absent);
    }
    let verifier = match ingress {
        Ingress::Http { trusted: false } => return Ok(Verdict::Untrusted),
        Ingress::Http { trusted: true } | Ingress::InProcess => None,
        Ingress::HttpSigned(verifier) => Some(verifier),
    };
    if raw.len() > RAW_MAX_BYTES {
        return Ok(match verifier {
            Some(_) => Verdict::BadlySigned(SignatureFault::TooLong),
            None => Verdict::Oversized,
        });
    }
    let decoded = msgpack::decode(raw, &mut scratch.slots)?;
    match (decoded, verifier) {
        (Decoded::Text(json), Some(verifier)) => judge_signed(&json, verifier, admissions, scratch),
        (Decoded::TooLong(_), Some(_)) => Ok(Verdict::BadlySigned(SignatureFault::TooLong)),
        (Decoded::Malformed, Some(_)) => Ok(Verdict::BadlySigned(SignatureFault::NotJson)),
        (Decoded::Text(json), None) => judge_text(&json, scratch),
        (Decoded::TooLong(version), None) => {
            Ok(version.judged().err().unwrap_or(Fault::Oversized).into())
        }
        (Decoded::Malformed, None) => Ok(Verdict::Malformed),
    }
}

/// Row 2 where keys decide; the table from row 6 on for what is authentic, since that is one JSON
/// object of no more than the raw limit.
fn judge_signed(
    raw: &[u8],
    verifier: Verifier<'_>,
    admissions: Admissions,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    let authentic = match verifier.authentic(raw, &mut scratch.stack)? {
        Ok(authentic) => authentic,
        Err(fault) => return Ok(Verdict::BadlySigned(fault)),
    };
    let verdict = judge_text(raw, scratch)?;
    // Only what is admitted counts as an admission.
    if let Verdict::Admitted(_) = verdict {
        let admission = match admissions {
            Admissions::Counted => verifier.admit_once(&authentic),
            Admissions::Unchanged => verifier.would_admit(&authentic),
        };
        if let Err(fault) = admission {
            return Ok(Verdict::BadlySigned(fault));
        }
    }
    Ok(verdict)
}

/// Rows 4 to 12.
fn judge_text(json: &[u8], scratch: &mut Scratch) -> Result<Verdict, TryReserveError> {
    let Scratch { width, stack, canonical, names, actions, .. } = scratch;
    let mut judge = Judge::new(json, canonical, Some(names), actions);
    match scan_at(*width, json, stack, &mut judge) {
        Ok(()) => {}
        Err(ScanError::NotJson(_)) => return Ok(Verdict::Malformed),
        Err(ScanError::NoMemory(error)) => return Err(error),
    }
    if let Some(error) = judge.no_memory() {
        return Err(error);
    }
    match judge.finish() {
        Ok(envelope) => {
            let json = judge.canonical().to_vec()?;
            Ok(Verdict::Admitted(Snapshot::new(json, envelope, judge.actions())?))
        }
        Err(fault) => Ok(fault.into()),
    }
}

/// No bytes, only blanks, or `null` among blanks, at any length.
fn is_absent(raw: &[u8]) -> bool {
    // Nearly all hints are answered by their first byte.
    if raw.first().is_some_and(|first| !runs::is_blank(*first) && *first != b'n') {
        return false;
    }
    let start = runs::portable_blanks_end(raw, 0);
    let rest = raw[start..].strip_prefix(b"null").unwrap_or(&raw[start..]);
    runs::portable_blanks_end(rest, 0) == rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_is_nothing_blanks_or_null() {
        for raw in ["", " ", "\t\r\n  ", "null", " null\n", "\n\n\n\n\n\n\n\n\n\n\nnull"] {
            assert!(is_absent(raw.as_bytes()), "{raw:?}");
        }
        for raw in ["nul", "nulll", "null null", "nullnull", "\u{b}", "0", "\u{feff}null"] {
            assert!(!is_absent(raw.as_bytes()), "{raw:?}");
        }
    }
}
