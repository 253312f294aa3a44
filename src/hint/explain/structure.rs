//! Which rules of an envelope are broken, and where first: rows 5 to 7 and 9 to 12.
//!
//! Told what an input consists of, whatever its form: JSON and MessagePack have one [`Structure`].
//! Nothing here decides a verdict; admission did.

use std::collections::TryReserveError;

use super::finding::{Finding, Measure, Place, Problem, Rule, Subject};
use crate::hint::judge::PROTOCOL_VERSION;
use crate::hint::limits::DEPTH_MAX;
use crate::hint::scan::{text, Container};

const ENVELOPE_MEMBERS: [&str; 3] = ["protocol_version", "message_id", "actions"];
const ACTION_MEMBERS: [&str; 4] = ["action_id", "action_type", "action_version", "payload"];

/// A string as it stands in the input.
#[derive(Debug, Clone, Copy)]
pub struct Said<'i> {
    /// What stands between the quotes.
    pub inside: &'i [u8],
    /// Whether there are escapes in it.
    pub escaped: bool,
}

impl<'i> Said<'i> {
    fn equals(self, expected: &str) -> bool {
        match self.escaped {
            true => text::equals(self.inside, expected.as_bytes()),
            false => self.inside == expected.as_bytes(),
        }
    }

    /// The bytes that it says.
    fn bytes(self) -> impl Iterator<Item = u8> + 'i {
        let (mut at, mut buffer, mut used, mut len) = (0, [0; 4], 0, 0);
        std::iter::from_fn(move || {
            if used < len {
                used += 1;
                return Some(buffer[used - 1]);
            }
            let byte = *self.inside.get(at)?;
            if !self.escaped || byte != b'\\' {
                at += 1;
                return Some(byte);
            }
            // Well-formed: the scan read the same escapes.
            let (end, character) = text::escape(self.inside, at).ok()?;
            at = end;
            len = character.encode_utf8(&mut buffer).len();
            used = 1;
            Some(buffer[0])
        })
    }
}

/// What a value is, as far as the structure cares.
#[derive(Debug, Clone, Copy)]
pub enum Value<'i> {
    /// `{…}` or `[…]`, which opens.
    Open(Container),
    /// A string.
    String(Said<'i>),
    /// A number; whether it is in range.
    Number {
        /// Whether a hint may hold it.
        fits: bool,
    },
    /// `true`, `false` or `null`.
    Word,
}

/// What the innermost open container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Root,
    Envelope,
    Actions,
    Action,
    Opaque,
}

/// A member name, for row 12.
#[derive(Debug, Clone, Copy)]
struct Name<'i> {
    /// Its object's number.
    object: u32,
    at: usize,
    said: Said<'i>,
    subject: Subject,
}

/// The first violation of one rule.
#[derive(Debug, Clone, Copy)]
struct First {
    at: usize,
    subject: Subject,
    problem: Problem,
}

/// What was found so far.
#[derive(Debug)]
pub struct Structure<'i> {
    /// By the rule's number.
    first: [Option<First>; 13],
    depth: usize,
    depth_found: usize,
    /// What is open at depths 0 to 3; deeper all is opaque.
    scopes: [Scope; 4],
    /// The members whose values are next or open.
    envelope_member: Option<&'static str>,
    action_member: Option<&'static str>,
    /// Indices of [`ENVELOPE_MEMBERS`] and [`ACTION_MEMBERS`] that were there, as bits.
    envelope_seen: u8,
    action_seen: u8,
    envelope_at: usize,
    action_at: usize,
    action_index: usize,
    action_count: usize,
    names: Vec<Name<'i>>,
    /// The numbers of the objects that are open, no deeper than they may be; 0 for an array.
    open: [u32; DEPTH_MAX + 1],
    object_count: u32,
}

impl<'i> Structure<'i> {
    /// Of an input of which nothing was told.
    pub fn new() -> Self {
        Self {
            first: [None; 13],
            depth: 0,
            depth_found: 0,
            scopes: [Scope::Root; 4],
            envelope_member: None,
            action_member: None,
            envelope_seen: 0,
            action_seen: 0,
            envelope_at: 0,
            action_at: 0,
            action_index: 0,
            action_count: 0,
            names: Vec::new(),
            open: [0; DEPTH_MAX + 1],
            object_count: 0,
        }
    }

    /// A value begins.
    pub fn value(&mut self, at: usize, value: Value<'i>) {
        self.check_kind(at, value);
        match value {
            Value::Number { fits: false } => {
                const RANGE: &str = "an integer in -2^63 .. 2^64-1 or a finite float";
                let problem = Problem::new(RANGE, "another number", "send it as a string");
                self.note(Rule::Number, at, self.subject(), problem);
            }
            Value::Open(container) => self.open(at, container),
            _ => {}
        }
    }

    /// The innermost container has ended.
    pub fn close(&mut self) {
        match self.scope() {
            Scope::Action => {
                let missing = missing(&ACTION_MEMBERS, self.action_seen);
                let subject = Subject::Action(self.action_index);
                self.note_missing(missing, self.action_at, subject);
            }
            Scope::Envelope => {
                if self.envelope_seen & 1 == 0 {
                    let problem = Problem::new(
                        "a member protocol_version",
                        "none",
                        "add \"protocol_version\": \"0.1\"",
                    );
                    self.note(Rule::ProtocolVersion, self.envelope_at, Subject::Envelope, problem);
                }
                let missing = missing(&ENVELOPE_MEMBERS, self.envelope_seen | 1);
                self.note_missing(missing, self.envelope_at, Subject::Envelope);
            }
            _ => {}
        }
        self.depth = self.depth.saturating_sub(1);
    }

    /// A member name; its value is next.
    pub fn name(&mut self, at: usize, said: Said<'i>) -> Result<(), TryReserveError> {
        let subject = match self.scope() {
            Scope::Envelope => {
                let index = ENVELOPE_MEMBERS.iter().position(|name| said.equals(name));
                self.envelope_member = index.map(|index| ENVELOPE_MEMBERS[index]);
                if index == Some(0) && self.envelope_seen & 1 != 0 {
                    let problem = Problem::new("one protocol_version", "two", "drop one");
                    let subject = Subject::Member("protocol_version");
                    self.note(Rule::ProtocolVersion, at, subject, problem);
                }
                self.envelope_seen |= index.map_or(0, |index| 1 << index);
                Subject::Envelope
            }
            Scope::Action => {
                let index = ACTION_MEMBERS.iter().position(|name| said.equals(name));
                self.action_member = index.map(|index| ACTION_MEMBERS[index]);
                self.action_seen |= index.map_or(0, |index| 1 << index);
                Subject::Action(self.action_index)
            }
            _ => self.subject(),
        };
        // Row 12 decides only where no deeper container is open.
        if let Some(object) = self.open.get(self.depth) {
            self.names.try_reserve(1)?;
            self.names.push(Name { object: *object, at, said, subject });
        }
        Ok(())
    }

    /// The first violation of the first rule that is broken, once all was told; `canonical` is the
    /// finding on the canonical form's length, which stands in the middle of the table.
    pub fn decide(
        mut self,
        canonical: Option<Finding>,
        place: impl Fn(usize) -> Place,
    ) -> Option<Finding> {
        let before = [Rule::Object, Rule::ProtocolVersion, Rule::Version];
        let after = [Rule::Structure, Rule::Number, Rule::Depth];
        let found = |first: &[Option<First>; 13], rules: [Rule; 3], depth_found| {
            rules.into_iter().find_map(|rule| {
                let First { at, subject, problem } = first[rule as usize]?;
                let measure = (rule == Rule::Depth)
                    .then(|| Measure::new(DEPTH_MAX, depth_found, "containers open at once"));
                Some(Finding { rule, place: Some(place(at)), subject, problem, measure })
            })
        };
        found(&self.first, before, 0)
            .or(canonical)
            .or_else(|| found(&self.first, after, self.depth_found))
            .or_else(|| self.first_repeated_name(&place))
    }

    /// Sorts the names of each object; the repetition that comes first in the input is the one.
    fn first_repeated_name(&mut self, place: impl Fn(usize) -> Place) -> Option<Finding> {
        let names = &mut self.names;
        names.sort_unstable_by(|a, b| {
            let by_object = a.object.cmp(&b.object);
            by_object.then_with(|| a.said.bytes().cmp(b.said.bytes())).then(a.at.cmp(&b.at))
        });
        let is_same = |pair: &&[Name<'_>]| {
            pair[0].object == pair[1].object && pair[0].said.bytes().eq(pair[1].said.bytes())
        };
        let second =
            names.windows(2).filter(is_same).map(|pair| pair[1]).min_by_key(|name| name.at)?;
        Some(Finding {
            rule: Rule::RepeatedName,
            place: Some(place(second.at)),
            subject: second.subject,
            problem: Problem::new("each member name once in an object", "one again", "drop one"),
            measure: None,
        })
    }

    fn open(&mut self, at: usize, container: Container) {
        let is_object = container == Container::Object;
        let inner = match (self.scope(), is_object) {
            (Scope::Root, true) => Scope::Envelope,
            (Scope::Envelope, false) if self.envelope_member == Some("actions") => Scope::Actions,
            (Scope::Actions, true) => Scope::Action,
            _ => Scope::Opaque,
        };
        self.depth += 1;
        self.depth_found = self.depth_found.max(self.depth);
        if self.depth > DEPTH_MAX {
            let expected = "containers that are nested less deep";
            let problem = Problem::new(expected, "one inside too many", "flatten the value");
            self.note(Rule::Depth, at, self.subject(), problem);
        }
        if let Some(scope) = self.scopes.get_mut(self.depth) {
            *scope = inner;
        }
        self.object_count += u32::from(is_object);
        if let Some(open) = self.open.get_mut(self.depth) {
            *open = self.object_count;
        }
        match inner {
            Scope::Envelope => self.envelope_at = at,
            Scope::Actions => self.action_count = 0,
            Scope::Action => (self.action_at, self.action_seen) = (at, 0),
            _ => {}
        }
    }

    /// Whether the value may stand where it stands.
    fn check_kind(&mut self, at: usize, value: Value<'i>) {
        let is_object = matches!(value, Value::Open(Container::Object));
        let is_array = matches!(value, Value::Open(Container::Array));
        let is_string = matches!(value, Value::String(_));
        const SAY: &str = "send what the protocol says";
        match self.scope() {
            Scope::Root if !is_object => {
                let problem = Problem::new("a JSON object", kind(value), SAY);
                self.note(Rule::Object, at, Subject::Input, problem);
            }
            Scope::Envelope => match (self.envelope_member, value) {
                (Some("protocol_version"), Value::String(said))
                    if said.equals(PROTOCOL_VERSION) => {}
                (Some("protocol_version"), Value::String(_)) => {
                    const ADVICE: &str = "send an envelope of version 0.1";
                    let problem = Problem::new("the version 0.1", "another version", ADVICE);
                    self.note(Rule::Version, at, self.subject(), problem);
                }
                (Some("protocol_version"), _) => {
                    let problem = Problem::new("a string", kind(value), SAY);
                    self.note(Rule::ProtocolVersion, at, self.subject(), problem);
                }
                (Some("message_id"), _) if !is_string => {
                    self.note_kind(at, "a string", value);
                }
                (Some("actions"), _) if !is_array => self.note_kind(at, "an array", value),
                _ => {}
            },
            Scope::Actions => {
                self.action_index = self.action_count;
                self.action_count += 1;
                if !is_object {
                    self.note_kind(at, "an object", value);
                }
            }
            Scope::Action => match self.action_member {
                Some("payload") if !is_object => self.note_kind(at, "an object", value),
                Some(name) if name != "payload" && !is_string => {
                    self.note_kind(at, "a string", value);
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn note_kind(&mut self, at: usize, expected: &'static str, value: Value<'i>) {
        let problem = Problem::new(expected, kind(value), "send what the protocol says");
        self.note(Rule::Structure, at, self.subject(), problem);
    }

    fn note_missing(&mut self, missing: Option<&'static str>, at: usize, subject: Subject) {
        let Some(name) = missing else { return };
        self.note(Rule::Structure, at, subject, Problem::new(name, "none", "add the member"));
    }

    fn note(&mut self, rule: Rule, at: usize, subject: Subject, problem: Problem) {
        self.first[rule as usize].get_or_insert(First { at, subject, problem });
    }

    fn scope(&self) -> Scope {
        self.scopes.get(self.depth).copied().unwrap_or(Scope::Opaque)
    }

    /// The part of the envelope in which the next value stands.
    fn subject(&self) -> Subject {
        let scope_at = |depth: usize| match self.depth >= depth {
            true => self.scopes[depth],
            false => Scope::Opaque,
        };
        if scope_at(1) != Scope::Envelope {
            return Subject::Input;
        }
        let Some(member) = self.envelope_member else { return Subject::Extra };
        match (scope_at(2), scope_at(3), self.action_member) {
            (Scope::Actions, Scope::Action, Some(name)) => {
                Subject::ActionMember(self.action_index, name)
            }
            (Scope::Actions, Scope::Action, None) => Subject::ActionExtra(self.action_index),
            (Scope::Actions, _, _) => Subject::Action(self.action_index),
            _ => Subject::Member(member),
        }
    }
}

fn kind(value: Value<'_>) -> &'static str {
    match value {
        Value::Open(Container::Object) => "an object",
        Value::Open(Container::Array) => "an array",
        Value::String(_) => "a string",
        Value::Number { .. } => "a number",
        Value::Word => "true, false or null",
    }
}

/// The first member that was not there.
fn missing(members: &[&'static str], seen: u8) -> Option<&'static str> {
    members.iter().enumerate().find(|(index, _)| seen & 1 << index == 0).map(|(_, name)| *name)
}
