//! What an explanation consists of: a rule, a place, a problem in words.
//!
//! Never does: hold contents of a hint. Words are fixed, members are named only where the protocol
//! gives the name, everything else is numbers.

use std::fmt;

/// The rows of the table of admission, by their numbers; and what stands before the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Rule {
    /// What has to hold of a whole body before there is one hint to judge.
    Body = 0,
    /// There is a hint.
    Present = 1,
    /// Hints are trusted where it came in.
    Trust = 2,
    /// The raw bytes are not too many.
    RawLength = 3,
    /// One JSON text, or one MessagePack value that JSON can say.
    Json = 4,
    /// An object.
    Object = 5,
    /// One `protocol_version`, a string.
    ProtocolVersion = 6,
    /// The version is 0.1.
    Version = 7,
    /// The canonical form is not too long.
    CanonicalLength = 8,
    /// The structure of version 0.1.
    Structure = 9,
    /// Numbers are in range.
    Number = 10,
    /// Containers are not nested too deep.
    Depth = 11,
    /// No member name twice in one object.
    RepeatedName = 12,
}

impl Rule {
    /// Its row in the table; 0 for what stands before the table.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Its stable name, for machines.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Body => "body",
            Rule::Present => "present",
            Rule::Trust => "trust",
            Rule::RawLength => "raw_length",
            Rule::Json => "json",
            Rule::Object => "object",
            Rule::ProtocolVersion => "protocol_version",
            Rule::Version => "version",
            Rule::CanonicalLength => "canonical_length",
            Rule::Structure => "structure",
            Rule::Number => "number",
            Rule::Depth => "depth",
            Rule::RepeatedName => "repeated_name",
        }
    }
}

/// A place in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bytes before it.
    pub offset: usize,
    /// Its line, from 1; lines end with a line feed. 0 in MessagePack, which has no lines.
    pub line: usize,
    /// Its column in characters, from 1; 0 in MessagePack.
    pub column: usize,
}

impl Place {
    /// The place of `input[offset]` in a text.
    pub fn in_text(input: &[u8], offset: usize) -> Self {
        let before = &input[..offset.min(input.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |line_feed| line_feed + 1);
        let is_first_byte = |byte: &&u8| !matches!(byte, 0x80..=0xbf);
        Self {
            offset,
            line: memchr::memchr_iter(b'\n', before).count() + 1,
            column: before[line_start..].iter().filter(is_first_byte).count() + 1,
        }
    }

    /// The same in bytes that have no lines.
    pub fn in_bytes(offset: usize) -> Self {
        Self { offset, line: 0, column: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "byte {}", self.offset);
        }
        write!(f, "line {}, column {} (byte {})", self.line, self.column, self.offset)
    }
}

/// The part of the envelope that a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The input as a whole.
    Input,
    /// The envelope.
    Envelope,
    /// A member of the envelope that the protocol names.
    Member(&'static str),
    /// Another member of it.
    Extra,
    /// The action of this index.
    Action(usize),
    /// A member of that action that the protocol names.
    ActionMember(usize, &'static str),
    /// Another member of it.
    ActionExtra(usize),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Input => f.write_str("the input"),
            Subject::Envelope => f.write_str("the envelope"),
            Subject::Member(name) => f.write_str(name),
            Subject::Extra => f.write_str("extra metadata"),
            Subject::Action(index) => write!(f, "actions[{index}]"),
            Subject::ActionMember(index, name) => write!(f, "actions[{index}].{name}"),
            Subject::ActionExtra(index) => write!(f, "extra metadata of actions[{index}]"),
        }
    }
}

/// What is wrong, as errors say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// What should be there.
    pub expected: &'static str,
    /// What is there.
    pub found: &'static str,
    /// What to do.
    pub advice: &'static str,
}

impl Problem {
    /// All three.
    pub const fn new(expected: &'static str, found: &'static str, advice: &'static str) -> Self {
        Self { expected, found, advice }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, found, advice } = self;
        write!(f, "expected {expected}, found {found}: {advice}")
    }
}

/// A limit, and how much there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// The most there may be.
    pub limit: u64,
    /// What there is.
    pub found: u64,
    /// What is counted.
    pub unit: &'static str,
}

impl Measure {
    /// `found` of at most `limit`.
    pub fn new(limit: usize, found: usize, unit: &'static str) -> Self {
        Self { limit: limit as u64, found: found as u64, unit }
    }
}

/// The rule that a hint broke, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// The rule that decided the verdict.
    pub rule: Rule,
    /// Where it was broken, if that is one place.
    pub place: Option<Place>,
    /// In which part of the envelope.
    pub subject: Subject,
    /// How.
    pub problem: Problem,
    /// The limit that was exceeded, if the rule is one.
    pub measure: Option<Measure>,
}

/// Never shows contents of a hint.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({})", self.rule.number(), self.rule.name())?;
        if let Some(place) = self.place {
            write!(f, ", {place}")?;
        }
        if self.subject != Subject::Input {
            write!(f, ", {}", self.subject)?;
        }
        write!(f, ": {}", self.problem)?;
        if let Some(Measure { limit, found, unit }) = self.measure {
            write!(f, "; {found} {unit}, at most {limit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_and_columns_count_characters() {
        let text = "ab\n\u{e9}\u{1f600}x\r\n\ny".as_bytes();
        for (offset, line, column) in [
            (0, 1, 1),
            (2, 1, 3),
            (3, 2, 1),
            (5, 2, 2),
            (9, 2, 3),
            (11, 2, 5),
            (12, 3, 1),
            (13, 4, 1),
            (14, 4, 2),
        ] {
            let place = Place::in_text(text, offset);
            assert_eq!((place.line, place.column), (line, column), "{offset}");
        }
        assert_eq!(Place::in_text(b"", 0).to_string(), "line 1, column 1 (byte 0)");
        assert_eq!(Place::in_bytes(7).to_string(), "byte 7");
    }
}
