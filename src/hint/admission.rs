//! Admission: raw bytes of one hint -> a verdict, by the table's order.
//!
//! Rows 1 to 3 are decided here without parsing; the scan decides row 4; [`super::judge`] the rest.
//! A bad hint never fails a request: it becomes no hint. Only memory that cannot be had is an
//! error. Pure: trust and seed come in as values; who counts verdicts is the caller.

use std::collections::TryReserveError;

use super::judge::{Fault, Judge};
use super::limits::RAW_MAX_BYTES;
use super::msgpack::{self, Decoded};
use super::scan::{runs, scan, ScanError};
use super::scratch::Scratch;
use super::snapshot::Snapshot;

/// Where a hint came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress {
    /// Over HTTP, where hints count only if the host trusts them.
    Http {
        /// Whether it does.
        trusted: bool,
    },
    /// From code in this process.
    InProcess,
}

impl Ingress {
    /// Whether hints that come in there count.
    pub fn is_trusted(self) -> bool {
        self != Ingress::Http { trusted: false }
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
    /// A version whose inside is not interpreted.
    UnknownVersion,
    /// Too long, raw or in canonical form.
    Oversized,
    /// Not a well-formed envelope.
    Malformed,
}

impl Verdict {
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

/// Judges the raw JSON bytes of one hint.
pub fn admit(
    raw: &[u8],
    ingress: Ingress,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    if is_absent(raw) {
        return Ok(Verdict::Absent);
    }
    if !ingress.is_trusted() {
        return Ok(Verdict::Untrusted);
    }
    if raw.len() > RAW_MAX_BYTES {
        return Ok(Verdict::Oversized);
    }
    judge_text(raw, scratch)
}

/// Judges one MessagePack value by the same table.
pub fn admit_msgpack(
    raw: &[u8],
    ingress: Ingress,
    scratch: &mut Scratch,
) -> Result<Verdict, TryReserveError> {
    if raw.is_empty() || raw == [msgpack::NIL] {
        return Ok(Verdict::Absent);
    }
    if !ingress.is_trusted() {
        return Ok(Verdict::Untrusted);
    }
    if raw.len() > RAW_MAX_BYTES {
        return Ok(Verdict::Oversized);
    }
    match msgpack::decode(raw, &mut scratch.slots)? {
        Decoded::Text(json) => judge_text(&json, scratch),
        Decoded::TooLong(version) => Ok(version.judged().err().unwrap_or(Fault::Oversized).into()),
        Decoded::Malformed => Ok(Verdict::Malformed),
    }
}

/// Rows 4 to 12.
fn judge_text(json: &[u8], scratch: &mut Scratch) -> Result<Verdict, TryReserveError> {
    let Scratch { stack, canonical, names, actions, .. } = scratch;
    let mut judge = Judge::new(json, canonical, Some(names), actions);
    match scan(json, stack, &mut judge) {
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
    let start = runs::blanks_end(raw, 0);
    let rest = raw[start..].strip_prefix(b"null").unwrap_or(&raw[start..]);
    runs::blanks_end(rest, 0) == rest.len()
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
