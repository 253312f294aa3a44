//! The account of one decision, in words.
//!
//! Guards: lists are cut, and texts of a hint are shown as [`super::printable`] shows them.

use std::fmt::Display;

use super::printable::{quoted, shown, SHOWN_CHARS, SHOWN_ITEMS};
use kvhints::hint::{Action, Verdict};
use kvhints::plan::{
    Addressing, BindingTable, Candidates, HashDialect, Plan, RequestKind, RequestProfile, Step,
};

/// The account so far.
pub struct Account<'a> {
    text: String,
    profile: &'a RequestProfile<'a>,
    dialect: HashDialect,
    /// Whether a binding was considered before.
    has_bindings: bool,
}

impl<'a> Account<'a> {
    /// What is known before anything is decided.
    pub fn new(verdict: &Verdict, profile: &'a RequestProfile<'a>, table: &BindingTable) -> Self {
        let dialect = table.hash_dialect();
        let mut own = Self { text: String::new(), profile, dialect, has_bindings: false };
        let no_hint = |verdict: &str| format!("{verdict}: it becomes no hint");
        own.line(
            "hint",
            match verdict {
                Verdict::Admitted(snapshot) => format!(
                    "admitted: {} bytes in canonical form, {} actions",
                    snapshot.json().len(),
                    snapshot.action_count()
                ),
                Verdict::Absent => no_hint("absent"),
                Verdict::Untrusted => no_hint("untrusted"),
                Verdict::BadlySigned(_) => no_hint("untrusted, its signature does not hold"),
                Verdict::UnknownVersion => no_hint("unknown_version"),
                Verdict::Oversized => no_hint("oversized"),
                Verdict::Malformed => no_hint("malformed"),
            },
        );
        if matches!(verdict, Verdict::Admitted(_)) {
            own.line("", "over HTTP it counts only where hints are trusted, or it is signed");
        }
        let kind = match profile.kind {
            RequestKind::Context => "context",
            RequestKind::GenerationOnly => "generation-only",
            RequestKind::Other => "other",
        };
        let lora = if profile.has_lora { "with a LoRA adapter" } else { "no LoRA adapter" };
        own.line("request", format!("{kind}, {lora}, namespace {}", bytes(profile.namespace)));
        own
    }

    /// Adds a step that the decision took.
    pub fn step(&mut self, step: &Step<'_>) {
        match step {
            Step::Eligible => self.line("1 eligible", "yes"),
            Step::Collected(candidates) => self.candidates(candidates),
            Step::Payload(Ok(payload)) => {
                let dialect = dialect_name(self.dialect);
                let blocks = payload.block_count;
                self.line(
                    "3 payload",
                    format!("{blocks} blocks from the root, hashes as {dialect}"),
                );
            }
            Step::Payload(Err(error)) => self.line("3 payload", format!("refused: {error}")),
            Step::Endpoint(Ok(endpoint)) => {
                self.line("4 endpoint", shown(endpoint.canonical()));
            }
            Step::Endpoint(Err(error)) => self.line("4 endpoint", format!("refused: {error}")),
            Step::Registry { is_listed: true } => self.line("", "is in the registry"),
            Step::Registry { is_listed: false } => self.line("", "is not in the registry"),
            Step::Considered { id, binding, is_supported } => {
                let label = if self.has_bindings { "" } else { "5 binding" };
                self.has_bindings = true;
                let support = match is_supported {
                    true => "which supports the action",
                    false => "which does not support the action",
                };
                let family = quoted(binding.family());
                self.line(label, format!("{} of family {family}, {support}", quoted(id)));
            }
            Step::Authorised(is) => {
                self.line("6 allowed", format!("for the namespace: {}", yes_or_no(*is)));
            }
            Step::Capable(is) => {
                self.line("", format!("the binding itself can do the action: {}", yes_or_no(*is)));
            }
            Step::Addressed(Addressing::ContentNamed) => {
                self.line("7 addressing", "content_named");
            }
            Step::Addressed(Addressing::RequestPaired) => {
                self.line("7 addressing", "request_paired: blocks are not found by name");
            }
        }
    }

    fn candidates(&mut self, candidates: &Candidates) {
        let counts = candidates.counts();
        self.line(
            "2 candidates",
            format!(
                "{}; of unknown type {}, of unmatched version {}",
                counts.candidates, counts.unknown_type, counts.version_unmatched
            ),
        );
        let list = candidates.list();
        for (position, candidate) in list.iter().enumerate().take(SHOWN_ITEMS) {
            let action = candidates.snapshot().action(candidate.action_index);
            let families = candidate.families();
            let mut names: Vec<String> =
                families.iter().take(SHOWN_ITEMS).map(|name| quoted(name)).collect();
            if families.len() > SHOWN_ITEMS {
                names.push(format!("{} more", families.len() - SHOWN_ITEMS));
            }
            let fate = if position == 0 { "is looked at" } else { "is never tried" };
            let what = action.map_or(String::new(), |action| name(&action));
            let names = names.join(", ");
            let index = candidate.action_index;
            self.line("", format!("action {index}, {what}, {fate}; supported by {names}"));
        }
        self.more(list.len());
        let is_candidate =
            |index: &usize| list.binary_search_by_key(index, |c| c.action_index).is_ok();
        let actions = candidates.snapshot().actions().enumerate();
        let others: Vec<_> = actions.filter(|(index, _)| !is_candidate(index)).collect();
        for (index, action) in others.iter().take(SHOWN_ITEMS) {
            self.line("", format!("action {index}, {}, is no candidate", name(action)));
        }
        self.more(others.len());
    }

    fn more(&mut self, count: usize) {
        if count > SHOWN_ITEMS {
            self.line("", format!("and {} more", count - SHOWN_ITEMS));
        }
    }

    /// The whole account, with what came of it.
    pub fn end(mut self, plan: &Plan) -> String {
        let is_generation_only = self.profile.kind == RequestKind::GenerationOnly;
        match plan {
            Plan::Local(refusal) => {
                self.line("plan", format!("local, {}", refusal.name()));
                self.line("", "the request runs as if it had no hint");
                if is_generation_only {
                    self.line("", "its context comes from its paired source");
                }
            }
            Plan::NamedFetch(fetch) => {
                self.line("plan", format!("named fetch through {}", quoted(&fetch.binding_id)));
                self.line("", format!("from {}", shown(fetch.endpoint.canonical())));
                let blocks = fetch.block_count;
                self.line("", format!("action {}, {blocks} blocks at most", fetch.action_index));
                if let Some(envelope) = &fetch.envelope {
                    let len = envelope.len();
                    self.line("", format!("with the one-action envelope of {len} bytes"));
                }
                if fetch.then_paired_source {
                    self.line("", "then, however it ends, the paired source");
                }
                self.line("", "the provider's own list is asked before anything is contacted");
            }
        }
        if let Ok(bytes) = plan.to_bytes() {
            self.line("", format!("{} bytes for the other ranks", bytes.len()));
        }
        self.text
    }

    fn line(&mut self, label: &str, what: impl Display) {
        self.text.push_str(&format!("{label:<13}{what}\n"));
    }
}

fn name(action: &Action<'_>) -> String {
    format!("{} {}", quoted(action.action_type), quoted(action.version))
}

fn dialect_name(dialect: HashDialect) -> &'static str {
    match dialect {
        HashDialect::UnsignedNumber => "unsigned_number",
        HashDialect::DecimalString => "decimal_string",
        HashDialect::HexDigits => "hex_digits",
    }
}

fn yes_or_no(is: bool) -> &'static str {
    if is {
        "yes"
    } else {
        "no"
    }
}

fn bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => quoted(text),
        Err(_) => {
            let digits: String =
                bytes.iter().take(SHOWN_CHARS / 2).map(|byte| format!("{byte:02x}")).collect();
            let more = if bytes.len() > SHOWN_CHARS / 2 { "..." } else { "" };
            format!("0x{digits}{more}")
        }
    }
}
