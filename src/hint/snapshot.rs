//! Snapshot: what admission hands out, immutable and shared.
//!
//! ```text
//! Snapshot ──Arc──> SnapshotData { json: {"protocol_version":"0.1", … "actions":[{…},{…}]}
//!                                  spans:  message_id └┘         actions └─────────┘ … }
//! ```
//!
//! Everything is answered from the canonical bytes and the spans found by the scan; only strings
//! with escapes are kept a second time, unescaped.
//!
//! The bytes are its own, or a view into a buffer that it keeps alive ([`index`]).
//!
//! Guards: no later change of the caller's buffer shows; nothing here prints contents of a hint.
//! Never does: parse again, judge trust, count.

mod index;

use std::collections::TryReserveError;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use siphasher::sip::SipHasher13;

use super::judge::{ActionSpans, EnvelopeSpans, Judge, Span, TextPlace, PROTOCOL_VERSION};
use super::limits::CANONICAL_MAX_BYTES;
use super::msgpack;
use super::scan::{scan, text, ContainerStack, ScanError};
use crate::poison::{Poison, Poisonable};
use crate::sync::Arc;

/// A hint: an admitted envelope. Cloning it is one atomic operation.
#[derive(Clone)]
pub struct Snapshot(Arc<SnapshotData>);

/// What all clones of a [`Snapshot`] share; a C handle points at it directly.
pub struct SnapshotData {
    json: Bytes,
    /// See [`Snapshot::packed`].
    packed: OnceLock<Bytes>,
    /// Strings that have escapes in `json`, unescaped, one after the other.
    unescaped: Vec<u8>,
    message_id: TextSpan,
    /// What stands between the brackets of `actions`.
    actions_json: Span,
    /// A hint has one action as a rule, which takes no memory of its own.
    first_action: Option<ActionEntry>,
    later_actions: Vec<ActionEntry>,
    poison: Poison,
}

/// Where a string lies that C callers see as UTF-8: in `json`, or in `unescaped` if the highest bit of
/// its start says so.
#[derive(Debug, Clone, Copy)]
struct TextSpan(Span);

const UNESCAPED: u32 = 1 << 31;
const _: () = assert!(CANONICAL_MAX_BYTES < UNESCAPED as usize);

impl TextSpan {
    fn in_unescaped(span: Span) -> Self {
        Self(Span::new(span.start() | UNESCAPED, span.end()))
    }

    #[inline]
    fn is_unescaped(self) -> bool {
        self.0.start() & UNESCAPED != 0
    }

    #[inline]
    fn span(self) -> Span {
        Span::new(self.0.start() & !UNESCAPED, self.0.end())
    }
}

#[derive(Debug, Clone, Copy)]
struct ActionEntry {
    id: TextSpan,
    action_type: TextSpan,
    version: TextSpan,
    payload: Span,
    json: Span,
}

/// One action of a hint, borrowed from its snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Action<'a> {
    /// `action_id`, unescaped.
    pub id: &'a str,
    /// `action_type`, unescaped.
    pub action_type: &'a str,
    /// `action_version`, unescaped.
    pub version: &'a str,
    /// The payload, canonical JSON.
    pub payload: &'a [u8],
    /// The whole action, canonical JSON.
    pub json: &'a [u8],
}

/// The same without looking at the strings: they are UTF-8, as all of a hint is.
pub(crate) struct ActionBytes<'a> {
    pub id: &'a [u8],
    pub action_type: &'a [u8],
    pub version: &'a [u8],
    pub payload: &'a [u8],
    pub json: &'a [u8],
}

/// Why bytes are not a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// They are not the canonical form of an envelope.
    #[error("expected the bytes of a snapshot, found other or damaged ones: send them again")]
    Damaged,
    /// Memory could not be had.
    #[error("no memory for a snapshot")]
    NoMemory(#[from] TryReserveError),
}

impl Snapshot {
    /// A snapshot of a judged canonical form.
    pub(super) fn new(
        json: Vec<u8>,
        envelope: EnvelopeSpans,
        spans: &[ActionSpans],
    ) -> Result<Self, TryReserveError> {
        let mut unescaped = Vec::new();
        let mut keep = |place: TextPlace| keep_text(&json, place, &mut unescaped);
        let message_id = keep(envelope.message_id)?;
        let mut entry = |action: &ActionSpans| {
            Ok::<_, TryReserveError>(ActionEntry {
                id: keep(action.id)?,
                action_type: keep(action.action_type)?,
                version: keep(action.version)?,
                payload: action.payload,
                json: action.json,
            })
        };
        let (mut first_action, mut later_actions) = (None, Vec::new());
        if let Some((first, later)) = spans.split_first() {
            first_action = Some(entry(first)?);
            later_actions.try_reserve_exact(later.len())?;
            for action in later {
                later_actions.push(entry(action)?);
            }
        }
        let actions_json = envelope.actions;
        Ok(Self(Arc::new(SnapshotData {
            json: json.into(),
            packed: OnceLock::new(),
            unescaped,
            message_id,
            actions_json,
            first_action,
            later_actions,
            poison: Poison::default(),
        })))
    }

    /// Rebuilds a snapshot from [`Snapshot::json`] of another one, for example of another rank.
    /// Trust and repeated names were judged there; that these bytes are the canonical form of an
    /// envelope is checked again.
    pub fn from_canonical(json: &[u8]) -> Result<Self, SnapshotError> {
        if json.len() > CANONICAL_MAX_BYTES {
            return Err(SnapshotError::Damaged);
        }
        let (mut stack, mut edited, mut actions) =
            (ContainerStack::default(), Vec::new(), Vec::new());
        let mut judge = Judge::new(json, &mut edited, None, &mut actions);
        scan(json, &mut stack, &mut judge).map_err(|error| match error {
            ScanError::NotJson(_) => SnapshotError::Damaged,
            ScanError::NoMemory(error) => SnapshotError::NoMemory(error),
        })?;
        if let Some(error) = judge.no_memory() {
            return Err(error.into());
        }
        let envelope = judge.finish().map_err(|_| SnapshotError::Damaged)?;
        if !judge.canonical().is_verbatim() {
            return Err(SnapshotError::Damaged);
        }
        Ok(Self::new(judge.canonical().to_vec()?, envelope, judge.actions())?)
    }

    /// The canonical form.
    pub fn json(&self) -> &[u8] {
        &self.0.json
    }

    /// The envelope's version.
    pub fn protocol_version(&self) -> &str {
        self.0.protocol_version()
    }

    /// `message_id`, unescaped.
    pub fn message_id(&self) -> &str {
        as_text(self.0.message_id_bytes())
    }

    /// How many actions there are.
    pub fn action_count(&self) -> usize {
        self.0.action_count()
    }

    /// The `index`-th action.
    pub fn action(&self, index: usize) -> Option<Action<'_>> {
        let ActionBytes { id, action_type, version, payload, json } = self.0.action_bytes(index)?;
        Some(Action {
            id: as_text(id),
            action_type: as_text(action_type),
            version: as_text(version),
            payload,
            json,
        })
    }

    /// All actions, in order.
    pub fn actions(&self) -> impl ExactSizeIterator<Item = Action<'_>> + '_ {
        (0..self.action_count()).map(|index| self.action(index).expect("index is below the count"))
    }

    /// The same envelope with the `index`-th action alone; `None` if there is no such action.
    pub fn one_action(&self, index: usize) -> Result<Option<Self>, TryReserveError> {
        Ok(self.0.one_action(index)?.map(Self::from_shared))
    }

    /// The same value as MessagePack: order kept, integers and lengths in their smallest form,
    /// floats as f64.
    pub fn to_msgpack(&self) -> Result<Vec<u8>, TryReserveError> {
        self.0.to_msgpack()
    }

    /// Another form of [`Snapshot::json`], made by `pack` at the first call and kept as long as the
    /// snapshot: several rounds and several requests that carry it need it once.
    pub fn packed(
        &self,
        pack: impl FnOnce(&[u8]) -> Result<Vec<u8>, TryReserveError>,
    ) -> Result<&[u8], TryReserveError> {
        if let Some(packed) = self.0.packed.get() {
            return Ok(packed);
        }
        let packed = pack(&self.0.json)?.into();
        Ok(self.0.packed.get_or_init(|| packed))
    }

    /// For a C handle, which points at the shared data itself.
    pub(crate) fn into_shared(self) -> Arc<SnapshotData> {
        self.0
    }

    /// What a C handle points at.
    pub(crate) fn shared(&self) -> &Arc<SnapshotData> {
        &self.0
    }

    /// From a C handle.
    pub(crate) fn from_shared(data: Arc<SnapshotData>) -> Self {
        Self(data)
    }
}

impl SnapshotData {
    /// The canonical form.
    #[inline]
    pub(crate) fn json(&self) -> &[u8] {
        &self.json
    }

    /// The envelope's version.
    #[inline]
    pub(crate) fn protocol_version(&self) -> &str {
        // No other is admitted.
        PROTOCOL_VERSION
    }

    /// `message_id`, unescaped.
    #[inline]
    pub(crate) fn message_id_bytes(&self) -> &[u8] {
        self.text(self.message_id)
    }

    /// How many actions there are.
    #[inline]
    pub(crate) fn action_count(&self) -> usize {
        usize::from(self.first_action.is_some()) + self.later_actions.len()
    }

    #[inline]
    fn entry(&self, index: usize) -> Option<&ActionEntry> {
        match index.checked_sub(1) {
            None => self.first_action.as_ref(),
            Some(later) => self.later_actions.get(later),
        }
    }

    fn actions(&self) -> impl Iterator<Item = &ActionEntry> {
        self.first_action.iter().chain(&self.later_actions)
    }

    /// The `index`-th action. Panics on nothing, not even on spans that lie, so that it needs no
    /// guard at the C boundary.
    #[inline]
    pub(crate) fn action_bytes(&self, index: usize) -> Option<ActionBytes<'_>> {
        self.entry(index).map(|entry| ActionBytes {
            id: self.text(entry.id),
            action_type: self.text(entry.action_type),
            version: self.text(entry.version),
            payload: part(&self.json, entry.payload),
            json: part(&self.json, entry.json),
        })
    }

    /// See [`Snapshot::one_action`].
    pub(crate) fn one_action(&self, index: usize) -> Result<Option<Arc<Self>>, TryReserveError> {
        let Some(entry) = self.entry(index) else { return Ok(None) };
        let (before, after) = (self.actions_json.start(), self.actions_json.end());
        let action = &self.json[entry.json.range()];
        let after_json = &self.json[after as usize..];
        let mut json = Vec::new();
        json.try_reserve_exact(before as usize + action.len() + after_json.len())?;
        json.extend_from_slice(&self.json[..before as usize]);
        json.extend_from_slice(action);
        json.extend_from_slice(after_json);

        // The action moves to the first place; what stands behind the actions follows it.
        let actions_end = before + action.len() as u32;
        let moved_back = |span: Span, by: u32| Span::new(span.start() - by, span.end() - by);
        let text_moved_back = |text: TextSpan, by: u32| match text.is_unescaped() {
            true => text,
            false => TextSpan(moved_back(text.span(), by)),
        };
        let by = entry.json.start() - before;
        let moved_entry = ActionEntry {
            id: text_moved_back(entry.id, by),
            action_type: text_moved_back(entry.action_type, by),
            version: text_moved_back(entry.version, by),
            payload: moved_back(entry.payload, by),
            json: moved_back(entry.json, by),
        };
        let is_behind = self.message_id.span().start() >= after;
        let message_id =
            text_moved_back(self.message_id, if is_behind { after - actions_end } else { 0 });
        let mut unescaped = Vec::new();
        unescaped.try_reserve_exact(self.unescaped.len())?;
        unescaped.extend_from_slice(&self.unescaped);
        Ok(Some(Arc::new(Self {
            json: json.into(),
            packed: OnceLock::new(),
            unescaped,
            message_id,
            actions_json: Span::new(before, actions_end),
            first_action: Some(moved_entry),
            later_actions: Vec::new(),
            poison: Poison::default(),
        })))
    }

    /// See [`Snapshot::to_msgpack`].
    pub(crate) fn to_msgpack(&self) -> Result<Vec<u8>, TryReserveError> {
        msgpack::encode(&self.json)
    }

    #[inline]
    fn text(&self, text: TextSpan) -> &[u8] {
        part(if text.is_unescaped() { &self.unescaped } else { &self.json }, text.span())
    }
}

/// A part that lies in `bytes`, as all do.
#[inline]
fn part(bytes: &[u8], span: Span) -> &[u8] {
    bytes.get(span.range()).unwrap_or_default()
}

/// Where to find a string: in the canonical form, or unescaped among the few that need it.
#[inline]
fn keep_text(
    json: &[u8],
    place: TextPlace,
    unescaped: &mut Vec<u8>,
) -> Result<TextSpan, TryReserveError> {
    if place.had_escapes {
        keep_escaped_text(json, place.span, unescaped)
    } else {
        Ok(TextSpan(place.span))
    }
}

/// The same for one that had escapes in the input.
fn keep_escaped_text(
    json: &[u8],
    span: Span,
    unescaped: &mut Vec<u8>,
) -> Result<TextSpan, TryReserveError> {
    let inside = &json[span.range()];
    if !inside.contains(&b'\\') {
        return Ok(TextSpan(span));
    }
    let start = unescaped.len();
    unescaped.try_reserve(inside.len())?;
    text::unescape(inside, unescaped).expect("the scan read the same escapes");
    Ok(TextSpan::in_unescaped((start..unescaped.len()).into()))
}

fn as_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the scan admits nothing but UTF-8")
}

impl Poisonable for SnapshotData {
    fn poison(&self) -> &Poison {
        &self.poison
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl Eq for Snapshot {}

impl PartialEq for SnapshotData {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Eq for SnapshotData {}

impl fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("json_bytes", &self.json.len())
            .field("actions", &self.action_count())
            .field("digest", &format_args!("{:016x}", SipHasher13::new().hash(&self.json)))
            .finish()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Action<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Action")
            .field("json_bytes", &self.json.len())
            .field("digest", &format_args!("{:016x}", SipHasher13::new().hash(self.json)))
            .finish()
    }
}
