//! Envelopes made by the host itself: routers and application code.
//!
//! Each part is judged when it is added, by the same scanner and judge that admit hints, and refused
//! with the member's place and the rule: a wrongly built envelope is the caller's bug. A refused
//! part leaves the builder as it was. What [`EnvelopeBuilder::finish`] makes goes through admission.
//!
//! Never does: repeat contents of a hint in an error.

use std::collections::TryReserveError;
use std::fmt;

use super::admission::{admit, Ingress, Verdict};
use super::judge::{Fault, Flaw, Judge};
use super::limits::{CANONICAL_MAX_BYTES, DEPTH_MAX, RAW_MAX_BYTES};
use super::scan::{scan, text, Container, ContainerStack, Scalar, ScanError, Sink, Text};
use super::scratch::Scratch;
use super::snapshot::Snapshot;

/// The rule that a part broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// Strings are UTF-8.
    #[error("expected UTF-8, found other bytes: encode the text")]
    Utf8,
    /// Values are JSON.
    #[error("expected one RFC 8259 value in strict UTF-8, found something else: send valid JSON")]
    Json,
    /// Payloads are objects.
    #[error("expected a JSON object, found another value: wrap it in an object")]
    Object,
    /// Numbers fit.
    #[error(
        "expected integers in -2^63 .. 2^64-1 and finite floats, found another number: send it as \
         a string"
    )]
    Number,
    /// Nesting is bounded.
    #[error("expected at most {DEPTH_MAX} containers open at once, found more: flatten the value")]
    Depth,
    /// Names are unique.
    #[error("expected each member name once in an object, found one twice: drop one")]
    RepeatedName,
    /// Members that mean something have functions of their own.
    #[error("expected a name that the protocol does not use, found one of its own: rename it")]
    ReservedName,
    /// The whole is bounded.
    #[error(
        "expected an envelope of at most {CANONICAL_MAX_BYTES} bytes in canonical form, found more: \
         name fewer hashes"
    )]
    TooLong,
    /// There must be an action to add to.
    #[error("expected an action before its metadata, found none: add the action first")]
    NoAction,
}

/// Where in the envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `message_id`
    MessageId,
    /// Extra metadata of the envelope.
    Extra,
    /// This member of the action of this index.
    Action(usize, &'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::MessageId => f.write_str("message_id"),
            Place::Extra => f.write_str("extra metadata"),
            Place::Action(index, member) => write!(f, "actions[{index}].{member}"),
        }
    }
}

/// Why a part was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// It breaks a rule.
    #[error("{place}: {rule}")]
    Refused {
        /// Which part.
        place: Place,
        /// Which rule.
        rule: Rule,
    },
    /// Memory could not be had.
    #[error("no memory for an envelope")]
    NoMemory(#[from] TryReserveError),
}

const EXTRA: &str = "extra metadata";
const ENVELOPE_NAMES: [&str; 3] = ["protocol_version", "message_id", "actions"];
const ACTION_NAMES: [&str; 4] = ["action_id", "action_type", "action_version", "payload"];

/// The parts of one action.
#[derive(Debug, Clone, Copy)]
pub struct ActionParts<'a> {
    /// `action_id`, UTF-8.
    pub id: &'a [u8],
    /// `action_type`, UTF-8.
    pub action_type: &'a [u8],
    /// `action_version`, UTF-8.
    pub version: &'a [u8],
    /// `payload`, a JSON object.
    pub payload: &'a [u8],
}

/// The parts of one `kv.fetch` action.
#[derive(Debug, Clone, Copy)]
pub struct FetchParts<'a> {
    /// `action_id`, UTF-8.
    pub id: &'a [u8],
    /// `action_version`, UTF-8.
    pub version: &'a [u8],
    /// `source_control_endpoint`, UTF-8.
    pub endpoint: &'a [u8],
    /// `block_hashes`
    pub hashes: &'a [u64],
}

/// An envelope of version 0.1 in the making.
pub struct EnvelopeBuilder {
    /// `"message_id"` and all before it.
    head: Vec<u8>,
    /// The actions without the brackets around them; the last one without its last brace.
    actions: Vec<u8>,
    action_count: usize,
    /// What stands behind the actions.
    tail: Vec<u8>,
    /// Names of extra metadata: of the envelope, and of the last action.
    extra_names: Vec<String>,
    action_extra_names: Vec<String>,
    scratch: Scratch,
}

impl EnvelopeBuilder {
    /// An envelope without actions. `seed` keys the table that finds repeated names.
    pub fn new(message_id: &[u8], seed: u64) -> Result<Self, BuildError> {
        let mut builder = Self {
            head: b"{\"protocol_version\":\"0.1\",\"message_id\":".to_vec(),
            actions: Vec::new(),
            action_count: 0,
            tail: Vec::new(),
            extra_names: Vec::new(),
            action_extra_names: Vec::new(),
            scratch: Scratch::new(seed),
        };
        let message_id = utf8(Place::MessageId, message_id)?;
        quote(&mut builder.head, message_id)?;
        builder.head.extend_from_slice(b",\"actions\":[");
        builder.room_for(Place::MessageId, 0)?;
        Ok(builder)
    }

    /// Adds an action.
    pub fn add_action(&mut self, parts: ActionParts<'_>) -> Result<(), BuildError> {
        let place = |member| Place::Action(self.action_count, member);
        let id = utf8(place("action_id"), parts.id)?;
        let action_type = utf8(place("action_type"), parts.action_type)?;
        let version = utf8(place("action_version"), parts.version)?;
        let place = place("payload");
        let payload = self.judged(place, parts.payload, true)?;
        let mut action = Vec::new();
        if self.action_count > 0 {
            action.extend_from_slice(b"},");
        }
        for (before, text) in [
            (&b"{\"action_id\":"[..], id),
            (b",\"action_type\":", action_type),
            (b",\"action_version\":", version),
        ] {
            action.extend_from_slice(before);
            quote(&mut action, text)?;
        }
        action.extend_from_slice(b",\"payload\":");
        append(&mut action, &payload)?;
        self.room_for(place, action.len())?;
        append(&mut self.actions, &action)?;
        self.action_count += 1;
        self.action_extra_names.clear();
        Ok(())
    }

    /// Adds an action `kv.fetch`.
    pub fn add_fetch(&mut self, parts: FetchParts<'_>) -> Result<(), BuildError> {
        let place = Place::Action(self.action_count, "payload");
        let endpoint = utf8(place, parts.endpoint)?;
        // Each hash takes two bytes at least: what cannot fit is not even written.
        self.room_for(place, parts.hashes.len().saturating_mul(2))?;
        let mut payload = b"{\"source_control_endpoint\":".to_vec();
        quote(&mut payload, endpoint)?;
        payload.extend_from_slice(b",\"block_hashes\":[");
        for (index, hash) in parts.hashes.iter().enumerate() {
            if index > 0 {
                payload.push(b',');
            }
            append(&mut payload, itoa::Buffer::new().format(*hash).as_bytes())?;
        }
        payload.extend_from_slice(b"]}");
        let FetchParts { id, version, .. } = parts;
        self.add_action(ActionParts { id, action_type: b"kv.fetch", version, payload: &payload })
    }

    /// Adds extra metadata to the envelope: any JSON value.
    pub fn add_extra(&mut self, name: &[u8], value: &[u8]) -> Result<(), BuildError> {
        let name = self.new_name(Place::Extra, name, &ENVELOPE_NAMES, &self.extra_names)?;
        let member = self.member(Place::Extra, &name, value)?;
        self.extra_names.try_reserve(1)?;
        append(&mut self.tail, &member)?;
        self.extra_names.push(name);
        Ok(())
    }

    /// Adds extra metadata to the action that was added last.
    pub fn add_action_extra(&mut self, name: &[u8], value: &[u8]) -> Result<(), BuildError> {
        let place = Place::Action(self.action_count.saturating_sub(1), EXTRA);
        if self.action_count == 0 {
            return refused(place, Rule::NoAction);
        }
        let name = self.new_name(place, name, &ACTION_NAMES, &self.action_extra_names)?;
        let member = self.member(place, &name, value)?;
        self.action_extra_names.try_reserve(1)?;
        append(&mut self.actions, &member)?;
        self.action_extra_names.push(name);
        Ok(())
    }

    /// The envelope, admitted. The builder stays as it is.
    pub fn finish(&mut self) -> Result<Snapshot, BuildError> {
        let mut json = Vec::new();
        json.try_reserve_exact(self.len())?;
        json.extend_from_slice(&self.head);
        json.extend_from_slice(&self.actions);
        json.extend_from_slice(if self.action_count > 0 { b"}]" } else { b"]" });
        json.extend_from_slice(&self.tail);
        json.extend_from_slice(b"}");
        match admit(&json, Ingress::InProcess, &mut self.scratch)? {
            Verdict::Admitted(snapshot) => Ok(snapshot),
            _ => unreachable!("every part was judged when it was added"),
        }
    }

    /// The canonical length of the whole.
    fn len(&self) -> usize {
        let last_brace = usize::from(self.action_count > 0);
        self.head.len() + self.actions.len() + last_brace + self.tail.len() + "]}".len()
    }

    fn room_for(&self, place: Place, more: usize) -> Result<(), BuildError> {
        // An action's own last brace is counted whether there is one already or not.
        if self.len().saturating_add(more) + usize::from(self.action_count == 0 && more > 0)
            > CANONICAL_MAX_BYTES
        {
            return refused(place, Rule::TooLong);
        }
        Ok(())
    }

    fn new_name(
        &self,
        place: Place,
        name: &[u8],
        reserved: &[&str],
        known: &[String],
    ) -> Result<String, BuildError> {
        let name = utf8(place, name)?;
        if reserved.contains(&name) {
            return refused(place, Rule::ReservedName);
        }
        if known.iter().any(|known| known == name) {
            return refused(place, Rule::RepeatedName);
        }
        let mut kept = String::new();
        kept.try_reserve_exact(name.len())?;
        kept.push_str(name);
        Ok(kept)
    }

    /// A comma, the name and the canonical value; there is room for it.
    fn member(&mut self, place: Place, name: &str, value: &[u8]) -> Result<Vec<u8>, BuildError> {
        let value = self.judged(place, value, false)?;
        let mut member = b",".to_vec();
        quote(&mut member, name)?;
        member.push(b':');
        append(&mut member, &value)?;
        let place_in_envelope = self.len() + member.len();
        if place_in_envelope > CANONICAL_MAX_BYTES {
            return refused(place, Rule::TooLong);
        }
        Ok(member)
    }

    /// The canonical form of a value that may stand at this place.
    fn judged(
        &mut self,
        place: Place,
        value: &[u8],
        must_be_object: bool,
    ) -> Result<Vec<u8>, BuildError> {
        if value.len() > RAW_MAX_BYTES {
            return refused(place, Rule::TooLong);
        }
        // Alone first: what is one value cannot end the envelope around it.
        let mut kind = Kind::default();
        read(place, value, &mut self.scratch.stack, &mut kind)?;
        if must_be_object && !kind.is_object {
            return refused(place, Rule::Object);
        }
        let (before, after): (&[u8], &[u8]) = match place {
            Place::Action(..) if must_be_object => (AS_PAYLOAD, b"}]}"),
            Place::Action(..) => (IN_ACTION, b"}]}"),
            Place::MessageId | Place::Extra => (IN_ENVELOPE, b"}"),
        };
        let mut whole = Vec::new();
        whole.try_reserve_exact(before.len() + value.len() + after.len())?;
        for part in [before, value, after] {
            whole.extend_from_slice(part);
        }
        let Scratch { stack, canonical, names, actions, .. } = &mut self.scratch;
        let mut judge = Judge::new(&whole, canonical, Some(names), actions);
        read(place, &whole, stack, &mut judge)?;
        if let Some(error) = judge.no_memory() {
            return Err(error.into());
        }
        let rule = match judge.finish() {
            Ok(_) => {
                let canonical = judge.canonical().to_vec()?;
                return Ok(canonical[before.len()..canonical.len() - after.len()].to_vec());
            }
            Err(Fault::Oversized) => Rule::TooLong,
            Err(_) if judge.flaws().contains(Flaw::Number) => Rule::Number,
            Err(_) if judge.flaws().contains(Flaw::Depth) => Rule::Depth,
            // The envelope around it is right and the value one value: nothing else is left.
            Err(_) => Rule::RepeatedName,
        };
        refused(place, rule)
    }
}

/// The least envelopes in which a value can stand at its depth.
const IN_ENVELOPE: &[u8] = br#"{"protocol_version":"0.1","message_id":"","actions":[],"":"#;
const AS_PAYLOAD: &[u8] = br#"{"protocol_version":"0.1","message_id":"","actions":[{"action_id":"","action_type":"","action_version":"","payload":"#;
const IN_ACTION: &[u8] = br#"{"protocol_version":"0.1","message_id":"","actions":[{"action_id":"","action_type":"","action_version":"","payload":{},"":"#;

fn refused<T>(place: Place, rule: Rule) -> Result<T, BuildError> {
    Err(BuildError::Refused { place, rule })
}

fn utf8(place: Place, bytes: &[u8]) -> Result<&str, BuildError> {
    std::str::from_utf8(bytes).or(refused(place, Rule::Utf8))
}

fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
    out.try_reserve(bytes.len())?;
    out.extend_from_slice(bytes);
    Ok(())
}

fn quote(out: &mut Vec<u8>, text: &str) -> Result<(), TryReserveError> {
    // Each byte takes six at most.
    out.try_reserve(text.len().saturating_mul(6).saturating_add(2))?;
    text::quote(text, |piece| out.extend_from_slice(piece));
    Ok(())
}

fn read(
    place: Place,
    json: &[u8],
    stack: &mut ContainerStack,
    sink: &mut impl Sink,
) -> Result<(), BuildError> {
    match scan(json, stack, sink) {
        Ok(()) => Ok(()),
        Err(ScanError::NotJson(_)) => refused(place, Rule::Json),
        Err(ScanError::NoMemory(error)) => Err(error.into()),
    }
}

/// Whether a text is an object.
#[derive(Default)]
struct Kind {
    is_object: bool,
    depth: usize,
}

impl Sink for Kind {
    fn open(&mut self, _at: usize, container: Container) {
        self.is_object |= self.depth == 0 && container == Container::Object;
        self.depth += 1;
    }

    fn close(&mut self, _at: usize, _container: Container) {
        self.depth -= 1;
    }

    fn name(&mut self, _name: Text) {}
    fn scalar(&mut self, _scalar: Scalar) {}
}

impl fmt::Debug for EnvelopeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvelopeBuilder")
            .field("json_bytes", &self.len())
            .field("actions", &self.action_count)
            .finish_non_exhaustive()
    }
}
