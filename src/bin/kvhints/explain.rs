//! `kvhints explain`: a verdict, the rule behind it, and what an admitted hint says.
//!
//! It shows its user the user's own file: ids, types and versions, and the line with the fault, each
//! escaped and cut. What a signature says is not shown.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

use kvhints::hint::explain::{
    explain as explain_hint, explain_body, explain_body_msgpack, explain_msgpack, BodyFault,
    Explanation, Finding, Rule,
};
use kvhints::hint::limits::{CANONICAL_MAX_BYTES, RAW_MAX_BYTES};
use kvhints::hint::{Action, Ingress, KeyRing, Scratch, Snapshot, Verdict, Verifier};
use kvhints::plan::{FetchPayload, HashDialect};
use serde::de::IgnoredAny;
use serde::Deserialize;
use serde_json::{json, Value};

use super::arguments::{ExplainArguments, Telling};
use super::printable::{ascii_json, is_printable, printable, quoted, SHOWN_ITEMS};
use super::{input, seed};

/// The body is refused, whatever hint is in it.
const BODY_REFUSED: u8 = 7;

/// Bytes of a line that are shown on each side of a fault.
const EXCERPT_BYTES: usize = 40;

fn exit_code(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Admitted(_) => 0,
        Verdict::Absent => 1,
        // 2 is said of arguments and files.
        Verdict::UnknownVersion => 3,
        Verdict::Oversized => 4,
        Verdict::Malformed => 5,
        Verdict::Untrusted | Verdict::BadlySigned(_) => 6,
    }
}

/// What is written, and the exit code.
pub fn explain(arguments: &ExplainArguments) -> Result<(Vec<u8>, u8), String> {
    let ring = arguments.keys.as_deref().map(input::keys).transpose()?;
    let raw = input::hint(&arguments.hint)?;
    let outcome = explained(arguments, &raw, ring.as_ref())?;
    let code = match &outcome {
        Ok(explanation) => exit_code(&explanation.verdict),
        Err(_) => BODY_REFUSED,
    };
    let told = Told { raw: &raw, dialect: arguments.dialect, is_text: !arguments.is_msgpack };
    let output = match arguments.telling {
        Telling::Words => told.words(&outcome, arguments).into(),
        Telling::Json => (ascii_json(&told.json(&outcome)) + "\n").into(),
        Telling::Canonical => canonical(outcome)?,
    };
    Ok((output, code))
}

fn explained(
    arguments: &ExplainArguments,
    raw: &[u8],
    ring: Option<&KeyRing>,
) -> Result<Result<Explanation, BodyFault>, String> {
    let now_unix_seconds = match arguments.now_unix_seconds {
        Some(now) => now,
        None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    let ingress = match (arguments.is_http, ring) {
        (false, _) => Ingress::InProcess,
        (true, None) => Ingress::Http { trusted: arguments.is_http_trusted },
        (true, Some(ring)) => Ingress::HttpSigned(Verifier { ring, now_unix_seconds }),
    };
    let mut scratch = Scratch::new(seed()?);
    let no_memory = |_| "memory could not be had".to_owned();
    let max_bytes = input::HINT_MAX_BYTES;
    match (arguments.is_body, arguments.is_msgpack) {
        (false, false) => explain_hint(raw, ingress, &mut scratch).map(Ok).map_err(no_memory),
        (false, true) => explain_msgpack(raw, ingress, &mut scratch).map(Ok).map_err(no_memory),
        (true, false) => Ok(explain_body(raw, max_bytes, ingress, &mut scratch)),
        (true, true) => Ok(explain_body_msgpack(raw, max_bytes, ingress, &mut scratch)),
    }
}

/// Exactly the canonical bytes, but not to a terminal that could obey them.
fn canonical(outcome: Result<Explanation, BodyFault>) -> Result<Vec<u8>, String> {
    let explanation = outcome.map_err(|fault| fault.to_string());
    let Ok(Explanation { verdict: Verdict::Admitted(snapshot), .. }) = explanation else {
        // Nothing is written; the exit code says which verdict it was.
        return Ok(Vec::new());
    };
    let json = snapshot.json();
    let is_harmless = std::str::from_utf8(json).is_ok_and(is_printable);
    if !is_harmless && std::io::stdout().is_terminal() {
        return Err("the canonical form has characters that a terminal may obey: write it to a \
                    file or a pipe"
            .to_owned());
    }
    Ok(json.to_vec())
}

/// What is told of.
struct Told<'r> {
    raw: &'r [u8],
    dialect: HashDialect,
    is_text: bool,
}

/// What the payload of a `kv.fetch` says to a worker.
struct Hashes {
    /// Elements of `block_hashes`, or of the prefix form's `hashes`.
    entries: Option<usize>,
    /// How many of them a worker reads, and how many blocks they stand for.
    read: Result<(usize, u32), String>,
}

#[derive(Deserialize)]
struct Lists {
    block_hashes: Option<Vec<IgnoredAny>>,
    prefix: Option<Prefix>,
}

#[derive(Deserialize)]
struct Prefix {
    hashes: Option<Vec<IgnoredAny>>,
}

impl Told<'_> {
    /// `None` for an action that is no `kv.fetch`.
    fn hashes(&self, action: &Action<'_>) -> Option<Hashes> {
        if action.action_type != "kv.fetch" {
            return None;
        }
        let lists = serde_json::from_slice::<Lists>(action.payload).ok();
        let list = lists.and_then(|lists| match lists.prefix {
            Some(prefix) => prefix.hashes,
            None => lists.block_hashes,
        });
        let read = FetchPayload::read(action.version, action.payload, self.dialect);
        Some(Hashes {
            entries: list.map(|list| list.len()),
            read: read
                .map(|payload| (payload.hashes.len(), payload.block_count))
                .map_err(|error| error.to_string()),
        })
    }

    fn is_canonical(&self, explanation: &Explanation, snapshot: &Snapshot) -> Option<bool> {
        let hint = explanation.hint.clone()?;
        self.is_text.then(|| self.raw[hint] == *snapshot.json())
    }

    fn words(
        &self,
        outcome: &Result<Explanation, BodyFault>,
        arguments: &ExplainArguments,
    ) -> String {
        let mut text = String::new();
        let mut line = |label: &str, what: &dyn Display| {
            text.push_str(&format!("{label:<13}{what}\n"));
        };
        let explanation = match outcome {
            Ok(explanation) => explanation,
            Err(fault) => {
                line("verdict", &"none: the body is refused, whatever hint is in it");
                line("why", &fault.error);
                if let Some(finding) = &fault.finding {
                    self.finding(finding, &mut line);
                }
                return text;
            }
        };
        let name = explanation.verdict.name();
        match &explanation.verdict {
            Verdict::Admitted(_) => line("verdict", &name),
            Verdict::BadlySigned(fault) => {
                let fault = fault.name();
                line("verdict", &format!("{name}, {fault}: it becomes no hint"));
            }
            _ => line("verdict", &format!("{name}: it becomes no hint")),
        }
        match (&explanation.verdict, &explanation.finding) {
            (Verdict::Admitted(_), _) if !arguments.is_http => {
                line("", &"over HTTP it counts only where hints are trusted, or it is signed");
            }
            (Verdict::Admitted(_), _) => {}
            (_, Some(finding)) => {
                line("rule", &format!("{}, {}", finding.rule.number(), finding.rule.name()));
                self.finding(finding, &mut line);
            }
            (_, None) => line("rule", &"not found: report this, with the file, as a bug"),
        }
        if let Some(hint) = &explanation.hint {
            if arguments.is_body {
                line("hint", &format!("bytes {} to {} of the body", hint.start, hint.end));
            }
            line("raw", &share(hint.len(), RAW_MAX_BYTES));
        }
        if let Some(bytes) = explanation.canonical_bytes {
            line("canonical", &share(bytes, CANONICAL_MAX_BYTES));
        }
        if let Verdict::Admitted(snapshot) = &explanation.verdict {
            self.snapshot(explanation, snapshot, &mut line);
        }
        text
    }

    fn finding(&self, finding: &Finding, line: &mut dyn FnMut(&str, &dyn Display)) {
        if let Some(place) = finding.place {
            line("where", &format!("{place}, in {}", finding.subject));
        }
        line("why", &finding.problem);
        if let Some(measure) = finding.measure {
            line("", &format!("{} {}, at most {}", measure.found, measure.unit, measure.limit));
        }
        let is_in_line = finding.rule >= Rule::Json || finding.rule == Rule::Body;
        if let (true, true, Some(place)) = (self.is_text, is_in_line, finding.place) {
            let (before, after) = self.excerpt(place.offset);
            line("", &format!("{before}{after}"));
            line("", &format!("{}^", " ".repeat(before.chars().count())));
        }
    }

    /// What stands before and behind a place in its line, fit to be shown.
    fn excerpt(&self, at: usize) -> (String, String) {
        let at = at.min(self.raw.len());
        let mut start = at.saturating_sub(EXCERPT_BYTES);
        while start < at && matches!(self.raw[start], 0x80..=0xbf) {
            start += 1;
        }
        let before = &self.raw[start..at];
        let before = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut end = self.raw.len().min(at + EXCERPT_BYTES);
        while end < self.raw.len() && matches!(self.raw[end], 0x80..=0xbf) {
            end += 1;
        }
        let after = self.raw[at..end].split(|byte| *byte == b'\n').next().unwrap_or_default();
        let shown = |bytes: &[u8]| printable(&String::from_utf8_lossy(bytes));
        (shown(before), shown(after))
    }

    fn snapshot(
        &self,
        explanation: &Explanation,
        snapshot: &Snapshot,
        line: &mut dyn FnMut(&str, &dyn Display),
    ) {
        match self.is_canonical(explanation, snapshot) {
            Some(true) => line("", &"it is in canonical form"),
            Some(false) => line("", &"it is not in canonical form, which --canonical prints"),
            None => line("", &"--canonical prints it as JSON"),
        }
        line("version", &quoted(snapshot.protocol_version()));
        let message_id = snapshot.message_id();
        line("message id", &format!("{} of {} bytes", quoted(message_id), message_id.len()));
        line("actions", &snapshot.action_count());
        for (index, action) in snapshot.actions().enumerate().take(SHOWN_ITEMS) {
            let (id, action_type) = (quoted(action.id), quoted(action.action_type));
            let (version, bytes) = (quoted(action.version), action.payload.len());
            line("", &format!("{index}, {id}: {action_type} {version}, payload of {bytes} bytes"));
            if let Some(hashes) = self.hashes(&action) {
                line("", &format!("   {}", self.hash_words(&hashes)));
            }
        }
        if snapshot.action_count() > SHOWN_ITEMS {
            line("", &format!("and {} more", snapshot.action_count() - SHOWN_ITEMS));
        }
    }

    fn hash_words(&self, hashes: &Hashes) -> String {
        let dialect = match self.dialect {
            HashDialect::UnsignedNumber => "unsigned_number",
            HashDialect::DecimalString => "decimal_string",
            HashDialect::HexDigits => "hex_digits",
        };
        match (&hashes.read, hashes.entries) {
            (Ok((read, blocks)), Some(entries)) if *read < entries => format!(
                "{blocks} blocks from the root: of {entries} hashes the first {read} are read as \
                 {dialect}, up to one that is none"
            ),
            (Ok((read, blocks)), _) => {
                format!("{blocks} blocks from the root, all {read} hashes are read as {dialect}")
            }
            (Err(error), entries) => {
                let entries = entries.map_or(String::new(), |count| format!("{count} hashes, "));
                format!("{entries}of no use to a worker that reads {dialect}: {error}")
            }
        }
    }

    fn json(&self, outcome: &Result<Explanation, BodyFault>) -> Value {
        let (explanation, finding, verdict) = match outcome {
            Ok(explanation) => {
                (Some(explanation), explanation.finding.as_ref(), explanation.verdict.name())
            }
            Err(fault) => (None, fault.finding.as_ref(), "body_refused"),
        };
        let place = finding.and_then(|finding| finding.place);
        let in_text = place.filter(|place| place.line > 0);
        let measure = finding.and_then(|finding| finding.measure);
        let problem = match (outcome, finding) {
            (_, Some(finding)) => Some(finding.problem.to_string()),
            (Err(fault), None) => Some(fault.error.to_string()),
            (Ok(_), None) => None,
        };
        let snapshot = explanation.and_then(|explanation| match &explanation.verdict {
            Verdict::Admitted(snapshot) => Some((explanation, snapshot)),
            _ => None,
        });
        let fault = explanation.and_then(|explanation| match &explanation.verdict {
            Verdict::BadlySigned(fault) => Some(fault.name()),
            _ => None,
        });
        let hint = explanation.and_then(|explanation| explanation.hint.clone());
        json!({
            "verdict": verdict,
            "rule": finding.map(|finding| finding.rule.number()),
            "rule_name": finding.map(|finding| finding.rule.name()),
            "offset": place.map(|place| place.offset),
            "line": in_text.map(|place| place.line),
            "column": in_text.map(|place| place.column),
            "subject": finding.map(|finding| finding.subject.to_string()),
            "problem": problem,
            "limit": measure.map(|measure| measure.limit),
            "found": measure.map(|measure| measure.found),
            "unit": measure.map(|measure| measure.unit),
            "signature_fault": fault,
            "hint_start": hint.as_ref().map(|hint| hint.start),
            "raw_bytes": hint.as_ref().map(|hint| hint.len()),
            "raw_max_bytes": RAW_MAX_BYTES,
            "canonical_bytes": explanation.and_then(|explanation| explanation.canonical_bytes),
            "canonical_max_bytes": CANONICAL_MAX_BYTES,
            "is_canonical": snapshot.and_then(|(all, snapshot)| self.is_canonical(all, snapshot)),
            "protocol_version": snapshot.map(|(_, snapshot)| snapshot.protocol_version()),
            "message_id": snapshot.map(|(_, snapshot)| snapshot.message_id()),
            "actions": snapshot.map(|(_, snapshot)| {
                snapshot.actions().enumerate().map(|(index, action)| self.action(index, &action))
                    .collect::<Vec<Value>>()
            }),
        })
    }

    fn action(&self, index: usize, action: &Action<'_>) -> Value {
        let hashes = self.hashes(action);
        let read = hashes.as_ref().and_then(|hashes| hashes.read.as_ref().ok());
        json!({
            "index": index,
            "id": action.id,
            "type": action.action_type,
            "version": action.version,
            "payload_bytes": action.payload.len(),
            "hashes": hashes.as_ref().and_then(|hashes| hashes.entries),
            "hashes_read": read.map(|(read, _)| read),
            "blocks": read.map(|(_, blocks)| blocks),
            "payload_error": hashes.as_ref().and_then(|hashes| hashes.read.as_ref().err()),
        })
    }
}

/// A length and its share of the limit.
fn share(bytes: usize, max_bytes: usize) -> String {
    let percent = bytes as f64 * 100.0 / max_bytes as f64;
    format!("{bytes} of {max_bytes} bytes ({percent:.1} %)")
}
