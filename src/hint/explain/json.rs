//! A JSON text told to a [`Structure`], and where its canonical form passes the limit.

use std::collections::TryReserveError;
use std::ops::Range;

use super::finding::{Finding, Place, Rule, Subject};
use super::structure::{Said, Structure, Value};
use super::{canonical_finding, syntax};
use crate::hint::limits::CANONICAL_MAX_BYTES;
use crate::hint::scan::{
    scan, text, Container, ContainerStack, NotJson, Scalar, ScanError, Sink, Text,
};

/// What reading a text from its start to its end came to.
#[derive(Debug)]
pub struct Reading {
    /// The first rule from row 4 on that is broken.
    pub finding: Option<Finding>,
    /// The length of the canonical form, of one that is JSON.
    pub canonical_bytes: Option<usize>,
}

/// Reads the hint at `range` of `input`; places are those in `input`. `stack` is scratch.
pub fn read(
    input: &[u8],
    range: Range<usize>,
    stack: &mut ContainerStack,
) -> Result<Reading, TryReserveError> {
    let (raw, start) = (&input[range.clone()], range.start);
    let place = |at| Place::in_text(input, start + at);
    let mut events = Events {
        raw,
        structure: Structure::new(),
        removed: 0,
        added: 0,
        passes_limit_at: None,
        no_memory: None,
    };
    match scan(raw, stack, &mut events) {
        Ok(()) => {}
        Err(ScanError::NotJson(NotJson)) => {
            let finding = not_json(raw, stack, place)?;
            return Ok(Reading { finding, canonical_bytes: None });
        }
        Err(ScanError::NoMemory(error)) => return Err(error),
    }
    if let Some(error) = events.no_memory {
        return Err(error);
    }
    let canonical_bytes = events.canonical_offset(raw.len());
    events.look_for_limit(raw.len());
    let canonical = events
        .passes_limit_at
        .filter(|_| canonical_bytes > CANONICAL_MAX_BYTES)
        .map(|at| canonical_finding(place(at), canonical_bytes));
    let finding = events.structure.decide(canonical, place);
    Ok(Reading { finding, canonical_bytes: Some(canonical_bytes) })
}

/// Row 4 of a text that the scanner refused.
pub fn not_json(
    raw: &[u8],
    stack: &mut ContainerStack,
    place: impl Fn(usize) -> Place,
) -> Result<Option<Finding>, TryReserveError> {
    let violation = syntax::first_violation(raw, stack)?;
    Ok(violation.map(|violation| Finding {
        rule: Rule::Json,
        place: Some(place(violation.at)),
        subject: Subject::Input,
        problem: violation.problem,
        measure: None,
    }))
}

struct Events<'i> {
    raw: &'i [u8],
    structure: Structure<'i>,
    /// Bytes so far that are not in the canonical form, and bytes there that are not in the text.
    removed: usize,
    added: usize,
    /// The first byte that the limit leaves no room for.
    passes_limit_at: Option<usize>,
    no_memory: Option<TryReserveError>,
}

impl<'i> Events<'i> {
    fn canonical_offset(&self, at: usize) -> usize {
        at + self.added - self.removed
    }

    /// Looks at the bytes up to `end` that stand for themselves.
    fn look_for_limit(&mut self, end: usize) {
        if self.passes_limit_at.is_none() && self.canonical_offset(end) > CANONICAL_MAX_BYTES {
            self.passes_limit_at = Some(CANONICAL_MAX_BYTES + self.removed - self.added);
        }
    }

    fn replace(&mut self, range: Range<usize>, with_len: usize) {
        self.look_for_limit(range.start);
        self.removed += range.len();
        self.added += with_len;
        if self.passes_limit_at.is_none() && self.canonical_offset(range.end) > CANONICAL_MAX_BYTES
        {
            self.passes_limit_at = Some(range.start);
        }
    }

    fn said(&self, text: Text) -> Said<'i> {
        Said { inside: text.inside(self.raw), escaped: text.escaped }
    }
}

impl Sink for Events<'_> {
    fn open(&mut self, at: usize, container: Container) {
        self.structure.value(at, Value::Open(container));
    }

    fn close(&mut self, _at: usize, _container: Container) {
        self.structure.close();
    }

    fn name(&mut self, name: Text) {
        let said = self.said(name);
        if let Err(error) = self.structure.name(name.start - 1, said) {
            self.no_memory = Some(error);
        }
    }

    fn scalar(&mut self, scalar: Scalar) {
        let value = match scalar {
            Scalar::Text(text) => Value::String(self.said(text)),
            Scalar::Number(number) => Value::Number { fits: number.is_in_range(self.raw) },
            Scalar::True(_) | Scalar::False(_) | Scalar::Null(_) => Value::Word,
        };
        self.structure.value(scalar.start(), value);
    }

    fn blanks(&mut self, range: Range<usize>) {
        self.replace(range, 0);
    }

    fn escape(&mut self, _text_start: usize, range: Range<usize>, character: char) {
        let len = text::canonical_text(character, &mut [0; 6]).len();
        self.replace(range, len);
    }
}
