//! Judges a hint while it is scanned: rows 5 to 12 of the table of admission, and where the parts
//! of an envelope of version 0.1 lie.
//!
//! Faults are only noted during the scan; [`Judge::finish`] applies the table's order when the
//! whole text is known: what is no JSON was refused by the scan before that, another version beats
//! whatever is odd about its inside, length beats structure. All later rows are one verdict.
//!
//! Guards: nothing is interpreted of a version that is not ours. Repeated names are looked for
//! only while the canonical form is within its limit and nothing else was found.
//! Never does: keep a part of an envelope that it does not admit.

use std::collections::TryReserveError;
use std::ops::Range;

use super::canonical::Canonical;
use super::limits::{CANONICAL_MAX_BYTES, DEPTH_MAX};
use super::names::Names;
use super::scan::number::fits_u64;
use super::scan::{runs, Container, Integers, Lanes, Number, Scalar, Sink, Text};

/// As a literal, for texts that are put together when this is compiled.
macro_rules! protocol_version {
    () => {
        "0.1"
    };
}

/// The only version whose inside is interpreted.
pub const PROTOCOL_VERSION: &str = protocol_version!();

/// How an envelope of that version usually begins, in canonical form, up to its message id.
const USUAL_BEGINNING: &str =
    concat!("\"protocol_version\":\"", protocol_version!(), "\",\"message_id\":\"");

/// The same, of a length that is known when this is compiled: it is compared as a few words.
const USUAL_BEGINNING_BYTES: &[u8; USUAL_BEGINNING.len()] =
    USUAL_BEGINNING.as_bytes().first_chunk().expect("as many as there are");

/// A range of the canonical form, in one word: a copy of two halves would have to wait until both
/// were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span(u64);

impl Span {
    /// From the first byte to after the last.
    #[inline]
    pub fn new(start: u32, end: u32) -> Self {
        Self(u64::from(start) | u64::from(end) << 32)
    }

    /// First byte.
    #[inline]
    pub fn start(self) -> u32 {
        self.0 as u32
    }

    /// After the last byte.
    #[inline]
    pub fn end(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The range as one to index with.
    #[inline]
    pub fn range(self) -> Range<usize> {
        self.start() as usize..self.end() as usize
    }
}

impl From<Range<usize>> for Span {
    /// Raw hints are at most 1 MiB and never grow: offsets fit.
    #[inline]
    fn from(range: Range<usize>) -> Self {
        Self::new(range.start as u32, range.end as u32)
    }
}

/// Where a string lies in the canonical form, without its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextPlace {
    /// Its inside.
    pub span: Span,
    /// Whether the input had escapes in it; the canonical form may have some then.
    pub had_escapes: bool,
}

/// Where an action's parts lie in the canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActionSpans {
    /// `action_id`
    pub id: TextPlace,
    /// `action_type`
    pub action_type: TextPlace,
    /// `action_version`
    pub version: TextPlace,
    /// `payload`
    pub payload: Span,
    /// The whole action.
    pub json: Span,
}

/// Where an envelope's parts lie in the canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnvelopeSpans {
    /// `message_id`
    pub message_id: TextPlace,
    /// What stands between the brackets of `actions`.
    pub actions: Span,
}

/// Why a text becomes no hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another version.
    UnknownVersion,
    /// Longer than the limit in canonical form.
    Oversized,
    /// Not an envelope, or a flaw in it.
    Malformed,
}

/// Rows 9 to 12, one by one. They are one verdict; whoever builds an envelope is told which it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Flaw {
    /// Row 9: not the structure of an envelope.
    Structure = 1,
    /// Row 10: a number out of range.
    Number = 2,
    /// Row 11: too many containers open at once.
    Depth = 4,
    /// Row 12: a name twice in one object.
    RepeatedName = 8,
}

/// Flaws that were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws(u8);

impl Flaws {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this one was found.
    pub fn contains(self, flaw: Flaw) -> bool {
        self.0 & flaw as u8 != 0
    }

    #[inline]
    fn note(&mut self, flaw: Flaw, is_found: bool) {
        self.0 |= if is_found { flaw as u8 } else { 0 };
    }
}

/// What was seen of `protocol_version`: rows 6 and 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VersionSeen {
    /// Nothing yet.
    #[default]
    Missing,
    /// Exactly [`PROTOCOL_VERSION`], once.
    Own,
    /// Another string, once.
    Other,
    /// Twice, or not a string.
    Unreadable,
}

impl VersionSeen {
    /// One more `protocol_version`; `is_own` is `None` for a value that is no string.
    pub fn see(&mut self, is_own: Option<bool>) {
        *self = match (*self, is_own) {
            (VersionSeen::Missing, Some(true)) => VersionSeen::Own,
            (VersionSeen::Missing, Some(false)) => VersionSeen::Other,
            _ => VersionSeen::Unreadable,
        };
    }

    /// Rows 6 and 7.
    pub fn judged(self) -> Result<(), Fault> {
        match self {
            VersionSeen::Own => Ok(()),
            VersionSeen::Other => Err(Fault::UnknownVersion),
            VersionSeen::Missing | VersionSeen::Unreadable => Err(Fault::Malformed),
        }
    }
}

/// What the innermost open container is; as a number, how many containers are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// None: the text itself.
    Root = 0,
    /// The envelope.
    Envelope = 1,
    /// The array of actions.
    Actions = 2,
    /// One action.
    Action = 3,
    /// Anything that is not interpreted, at any depth.
    Opaque,
}

/// Members that mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    ProtocolVersion,
    MessageId,
    Actions,
    ActionId,
    ActionType,
    ActionVersion,
    Payload,
    /// Extra metadata.
    Extra,
}

impl Member {
    /// Names of like length are compared at that length, which costs next to nothing.
    #[inline]
    fn of_envelope(name: Text, input: &[u8]) -> Member {
        match (name.inside(input), name.escaped) {
            (b"protocol_version", false) => Member::ProtocolVersion,
            (b"message_id", false) => Member::MessageId,
            (b"actions", false) => Member::Actions,
            (_, false) => Member::Extra,
            (_, true) if name.equals(input, b"protocol_version") => Member::ProtocolVersion,
            (_, true) if name.equals(input, b"message_id") => Member::MessageId,
            (_, true) if name.equals(input, b"actions") => Member::Actions,
            (_, true) => Member::Extra,
        }
    }

    #[inline]
    fn of_action(name: Text, input: &[u8]) -> Member {
        match (name.inside(input), name.escaped) {
            (b"action_id", false) => Member::ActionId,
            (b"action_type", false) => Member::ActionType,
            (b"action_version", false) => Member::ActionVersion,
            (b"payload", false) => Member::Payload,
            (_, false) => Member::Extra,
            (_, true) if name.equals(input, b"action_id") => Member::ActionId,
            (_, true) if name.equals(input, b"action_type") => Member::ActionType,
            (_, true) if name.equals(input, b"action_version") => Member::ActionVersion,
            (_, true) if name.equals(input, b"payload") => Member::Payload,
            (_, true) => Member::Extra,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    const ENVELOPE_NEEDS: u8 = Member::MessageId.bit() | Member::Actions.bit();
    const ACTION_NEEDS: u8 = Member::ActionId.bit()
        | Member::ActionType.bit()
        | Member::ActionVersion.bit()
        | Member::Payload.bit();
}

/// The sink that judges. See the module.
pub struct Judge<'i, 's> {
    input: &'i [u8],
    canonical: Canonical<'i, 's>,
    /// `None` if repeated names are not looked for.
    names: Option<&'s mut Names>,
    actions: &'s mut Vec<ActionSpans>,
    envelope: EnvelopeSpans,
    version: VersionSeen,
    /// Rows 9 to 12.
    flaws: Flaws,
    not_an_object: bool,
    place: Place,
    /// Of the open containers those that are not interpreted; how many there may be; where they lie.
    opaque: usize,
    opaque_max: usize,
    around: Place,
    /// The member of the envelope, or of the action, whose value is next or open.
    envelope_member: Member,
    action_member: Member,
    /// Bits of the members seen so far.
    envelope_seen: u8,
    action_seen: u8,
    action: ActionSpans,
    no_memory: Option<TryReserveError>,
}

impl<'i, 's> Judge<'i, 's> {
    /// Begins at the input's first byte. `out` and `actions` are scratch.
    pub fn new(
        input: &'i [u8],
        out: &'s mut Vec<u8>,
        names: Option<&'s mut Names>,
        actions: &'s mut Vec<ActionSpans>,
    ) -> Self {
        actions.clear();
        let mut names = names;
        if let Some(names) = names.as_deref_mut() {
            names.clear();
        }
        Self {
            input,
            canonical: Canonical::new(input, out),
            names,
            actions,
            envelope: EnvelopeSpans::default(),
            version: VersionSeen::Missing,
            flaws: Flaws::default(),
            not_an_object: false,
            place: Place::Root,
            opaque: 0,
            opaque_max: DEPTH_MAX,
            around: Place::Root,
            envelope_member: Member::Extra,
            action_member: Member::Extra,
            envelope_seen: 0,
            action_seen: 0,
            action: ActionSpans::default(),
            no_memory: None,
        }
    }

    /// The canonical form.
    pub fn canonical(&self) -> &Canonical<'i, 's> {
        &self.canonical
    }

    /// Where the actions of an admitted envelope lie.
    pub fn actions(&self) -> &[ActionSpans] {
        self.actions
    }

    /// The memory that could not be had during the scan; the text is not judged then.
    pub fn no_memory(&mut self) -> Option<TryReserveError> {
        let of_names = self.names.as_deref_mut().and_then(Names::no_memory);
        self.no_memory.take().or(self.canonical.no_memory()).or(of_names)
    }

    /// What was found of rows 9 to 12, after the scan reached the end.
    pub fn flaws(&self) -> Flaws {
        self.flaws
    }

    /// The verdict, after the scan reached the end.
    pub fn finish(&self) -> Result<EnvelopeSpans, Fault> {
        if self.not_an_object {
            return Err(Fault::Malformed);
        }
        self.version.judged()?;
        if self.canonical.len_at_end() > CANONICAL_MAX_BYTES {
            return Err(Fault::Oversized);
        }
        if !self.flaws.is_empty()
            || self.envelope_seen & Member::ENVELOPE_NEEDS != Member::ENVELOPE_NEEDS
        {
            return Err(Fault::Malformed);
        }
        Ok(self.envelope)
    }

    /// A known member may come once; what is repeated elsewhere the names find.
    #[inline]
    fn see_envelope_member(&mut self, member: Member) {
        self.envelope_member = member;
        let is_repeated = member != Member::Extra && self.envelope_seen & member.bit() != 0;
        self.flaws.note(Flaw::RepeatedName, is_repeated);
        self.envelope_seen |= member.bit();
    }

    #[inline]
    fn see_action_member(&mut self, member: Member) {
        self.action_member = member;
        let is_repeated = member != Member::Extra && self.action_seen & member.bit() != 0;
        self.flaws.note(Flaw::RepeatedName, is_repeated);
        self.action_seen |= member.bit();
    }

    /// The outermost of the containers that are not interpreted opens.
    #[inline]
    fn open_opaque(&mut self, at: usize, around: Place, is_object: bool) {
        match around {
            Place::Root | Place::Opaque => self.not_an_object = true,
            Place::Envelope => {
                if self.envelope_member == Member::ProtocolVersion {
                    self.version.see(None);
                }
                self.flaws.note(Flaw::Structure, self.envelope_member != Member::Extra);
            }
            Place::Actions => self.flaws.note(Flaw::Structure, true),
            Place::Action => {
                if self.action_member == Member::Payload && is_object {
                    self.action.payload = Span::new(self.canonical.offset(at) as u32, 0);
                } else {
                    self.flaws.note(Flaw::Structure, self.action_member != Member::Extra);
                }
            }
        }
        self.around = around;
        self.opaque = 1;
        self.opaque_max = DEPTH_MAX - around as usize;
        self.place = Place::Opaque;
    }

    /// An action was read to its end.
    fn finish_action(&mut self) {
        let is_partial = self.action_seen & Member::ACTION_NEEDS != Member::ACTION_NEEDS;
        self.flaws.note(Flaw::Structure, is_partial);
        // Only whole actions are kept, which bounds how many there can be.
        if !self.flaws.is_empty() || self.action.json.range().end > CANONICAL_MAX_BYTES {
            return;
        }
        match self.actions.try_reserve(1) {
            Ok(()) => self.actions.push(self.action),
            Err(error) => self.no_memory = Some(error),
        }
    }

    /// A value that is no container, directly in the envelope.
    #[inline]
    fn envelope_scalar(&mut self, scalar: Scalar) {
        match (self.envelope_member, scalar) {
            (Member::ProtocolVersion, Scalar::Text(text)) => {
                let is_own = text.equals(self.input, PROTOCOL_VERSION.as_bytes());
                self.version.see(Some(is_own));
            }
            (Member::ProtocolVersion, _) => self.version.see(None),
            (Member::MessageId, Scalar::Text(text)) => {
                self.envelope.message_id = self.text_place(text);
            }
            (Member::Extra, _) => {}
            _ => self.flaws.note(Flaw::Structure, true),
        }
    }

    /// A value that is no container, directly in an action.
    #[inline]
    fn action_scalar(&mut self, scalar: Scalar) {
        match (self.action_member, scalar) {
            (Member::Extra, _) => {}
            (Member::ActionId, Scalar::Text(text)) => self.action.id = self.text_place(text),
            (Member::ActionType, Scalar::Text(text)) => {
                self.action.action_type = self.text_place(text);
            }
            (Member::ActionVersion, Scalar::Text(text)) => {
                self.action.version = self.text_place(text);
            }
            _ => self.flaws.note(Flaw::Structure, true),
        }
    }

    #[inline]
    fn text_place(&mut self, text: Text) -> TextPlace {
        TextPlace { span: self.canonical.text_range(text).into(), had_escapes: text.escaped }
    }

    /// An envelope's usual beginning, up to the value of `actions`.
    #[inline(always)]
    fn usual_envelope<L: Lanes>(&mut self, at: usize) -> Option<usize> {
        let at = self.after(at, USUAL_BEGINNING_BYTES)?;
        let (message_id, at) = self.plain_text::<L, _>(at, b"\",\"actions\":")?;
        self.version.see(Some(true));
        self.envelope.message_id = message_id;
        self.envelope_seen = Member::ENVELOPE_NEEDS | Member::ProtocolVersion.bit();
        self.envelope_member = Member::Actions;
        Some(at)
    }

    /// An action's usual beginning, up to the value of `payload`.
    #[inline(always)]
    fn usual_action<L: Lanes>(&mut self, at: usize) -> Option<usize> {
        let at = self.after(at, b"\"action_id\":\"")?;
        let (id, at) = self.plain_text::<L, _>(at, b"\",\"action_type\":\"")?;
        let (action_type, at) = self.plain_text::<L, _>(at, b"\",\"action_version\":\"")?;
        let (version, at) = self.plain_text::<L, _>(at, b"\",\"payload\":")?;
        self.action = ActionSpans { id, action_type, version, ..self.action };
        self.action_seen = Member::ACTION_NEEDS;
        self.action_member = Member::Payload;
        Some(at)
    }

    /// The place behind `expected`, if the text has exactly that here.
    #[inline(always)]
    fn after<const N: usize>(&self, at: usize, expected: &[u8; N]) -> Option<usize> {
        (self.input[at..].first_chunk() == Some(expected)).then_some(at + N)
    }

    /// The text that begins here, if it needs no second look and `expected` follows, which begins
    /// with its quote; and the place behind that.
    #[inline(always)]
    fn plain_text<L: Lanes, const N: usize>(
        &self,
        start: usize,
        expected: &[u8; N],
    ) -> Option<(TextPlace, usize)> {
        let end = runs::plain_end::<L>(self.input, start);
        let after = self.after(end, expected)?;
        let range = self.canonical.offset(start)..self.canonical.offset(end);
        Some((TextPlace { span: range.into(), had_escapes: false }, after))
    }

    #[inline]
    fn check_number(&mut self, number: Number) {
        self.flaws.note(Flaw::Number, !number.is_in_range(self.input));
    }

    /// Whether repeated names still matter: nothing worse was found, and the limit bounds them.
    #[inline]
    fn names_matter(&self) -> bool {
        self.flaws.is_empty() && !self.canonical.is_over()
    }
}

// Each event is told from one place in the scan: compiled into it, an event costs no call.
impl Sink for Judge<'_, '_> {
    #[inline(always)]
    fn open(&mut self, at: usize, container: Container) {
        let is_object = container == Container::Object;
        match self.place {
            Place::Opaque => {
                self.opaque += 1;
                self.flaws.note(Flaw::Depth, self.opaque > self.opaque_max);
            }
            Place::Root if is_object => self.place = Place::Envelope,
            Place::Envelope if self.envelope_member == Member::Actions && !is_object => {
                self.envelope.actions = Span::new(self.canonical.offset(at) as u32 + 1, 0);
                self.place = Place::Actions;
            }
            Place::Actions if is_object => {
                self.action = ActionSpans::default();
                self.action.json = Span::new(self.canonical.offset(at) as u32, 0);
                self.action_seen = 0;
                self.place = Place::Action;
            }
            around => self.open_opaque(at, around, is_object),
        }
        if is_object && self.names_matter() {
            if let Some(names) = self.names.as_deref_mut() {
                names.open();
            }
        }
    }

    #[inline(always)]
    fn close(&mut self, at: usize, container: Container) {
        if container == Container::Object && self.names_matter() {
            if let Some(names) = self.names.as_deref_mut() {
                names.close();
            }
        }
        if self.place == Place::Opaque && self.opaque > 1 {
            self.opaque -= 1;
            return;
        }
        let end = self.canonical.offset(at) as u32 + 1;
        self.place = match self.place {
            Place::Opaque => {
                if self.around == Place::Action && self.action_member == Member::Payload {
                    self.action.payload = Span::new(self.action.payload.start(), end);
                }
                self.around
            }
            Place::Action => {
                self.action.json = Span::new(self.action.json.start(), end);
                self.finish_action();
                Place::Actions
            }
            Place::Actions => {
                self.envelope.actions = Span::new(self.envelope.actions.start(), end - 1);
                Place::Envelope
            }
            Place::Envelope | Place::Root => Place::Root,
        };
    }

    #[inline(always)]
    fn usual_beginning<L: Lanes>(&mut self, at: usize) -> Option<usize> {
        match self.place {
            Place::Envelope => self.usual_envelope::<L>(at),
            Place::Action => self.usual_action::<L>(at),
            _ => None,
        }
    }

    #[inline(always)]
    fn name(&mut self, name: Text) {
        // A name that means something is remembered as a bit, and no other name equals it.
        match self.place {
            Place::Envelope => {
                let member = Member::of_envelope(name, self.input);
                self.see_envelope_member(member);
                if member != Member::Extra {
                    return;
                }
            }
            Place::Action => {
                let member = Member::of_action(name, self.input);
                self.see_action_member(member);
                if member != Member::Extra {
                    return;
                }
            }
            _ => {}
        }
        if !self.names_matter() {
            return;
        }
        let range = self.canonical.text_range(name);
        if range.end > CANONICAL_MAX_BYTES {
            return;
        }
        if let Some(names) = self.names.as_deref_mut() {
            let is_repeated = names.is_repeated(&self.canonical, range);
            self.flaws.note(Flaw::RepeatedName, is_repeated);
        }
    }

    #[inline(always)]
    fn scalar(&mut self, scalar: Scalar) {
        if let Scalar::Number(number) = scalar {
            self.check_number(number);
        }
        match self.place {
            Place::Opaque => {}
            Place::Envelope => self.envelope_scalar(scalar),
            Place::Action => self.action_scalar(scalar),
            Place::Actions => self.flaws.note(Flaw::Structure, true),
            Place::Root => self.not_an_object = true,
        }
    }

    #[inline(always)]
    fn integer(&mut self, digits: Range<usize>) {
        self.flaws.note(Flaw::Number, !fits_u64(&self.input[digits]));
        self.flaws.note(Flaw::Structure, self.place != Place::Opaque);
    }

    #[inline(always)]
    fn integers<L: Lanes>(&mut self, _input: &[u8], run: Integers) {
        self.flaws.note(Flaw::Number, !run.all_fit);
        self.flaws.note(Flaw::Structure, self.place != Place::Opaque);
        if run.may_have_spaces {
            self.canonical.drop_spaces::<L>(run.range);
        }
    }

    #[inline(always)]
    fn blanks(&mut self, range: Range<usize>) {
        self.canonical.drop_blanks(range);
    }

    fn escape(&mut self, text_start: usize, range: Range<usize>, character: char) {
        self.canonical.shorten_escape(text_start, range, character);
    }
}
