//! A MessagePack value told to a [`Structure`], and where it stops being one that JSON can say.
//!
//! Slow and plain. The decoder of admission decides; this one only finds the place, by the same
//! rules, without writing anything.

use std::collections::TryReserveError;
use std::ops::Range;

use rmp::Marker;

use super::canonical_finding;
use super::finding::{Finding, Place, Problem, Rule, Subject};
use super::json::Reading;
use super::structure::{Said, Structure, Value};
use crate::hint::limits::CANONICAL_MAX_BYTES;
use crate::hint::msgpack::{Slot, Slots};
use crate::hint::scan::{text, Container};

enum Stop {
    /// Not one value that JSON can say.
    At(usize, Problem),
    NoMemory(TryReserveError),
}

impl From<TryReserveError> for Stop {
    fn from(error: TryReserveError) -> Self {
        Stop::NoMemory(error)
    }
}

/// Reads the hint at `range` of `input`; places are those in `input`. `slots` is scratch.
pub fn read(
    input: &[u8],
    range: Range<usize>,
    slots: &mut Slots,
) -> Result<Reading, TryReserveError> {
    let start = range.start;
    let place = |at| Place::in_bytes(start + at);
    slots.clear();
    let mut reader = Reader {
        raw: &input[range],
        at: 0,
        slots,
        structure: Structure::new(),
        canonical_bytes: 0,
        passes_limit_at: None,
        comma_due: false,
    };
    match reader.run() {
        Ok(()) => {}
        Err(Stop::At(at, problem)) => {
            let (place, subject) = (Some(place(at)), Subject::Input);
            let finding = Finding { rule: Rule::Json, place, subject, problem, measure: None };
            return Ok(Reading { finding: Some(finding), canonical_bytes: None });
        }
        Err(Stop::NoMemory(error)) => return Err(error),
    }
    let canonical_bytes = reader.canonical_bytes;
    let canonical = reader.passes_limit_at.map(|at| canonical_finding(place(at), canonical_bytes));
    let finding = reader.structure.decide(canonical, place);
    Ok(Reading { finding, canonical_bytes: Some(canonical_bytes) })
}

struct Reader<'i, 's> {
    raw: &'i [u8],
    at: usize,
    slots: &'s mut Slots,
    structure: Structure<'i>,
    /// The length of the canonical form so far.
    canonical_bytes: usize,
    passes_limit_at: Option<usize>,
    comma_due: bool,
}

impl<'i> Reader<'i, '_> {
    fn run(&mut self) -> Result<(), Stop> {
        self.slots.push(Slot::Value)?;
        while let Some(slot) = self.slots.pop() {
            let at = self.at;
            match slot {
                Slot::ArrayEnd | Slot::MapEnd => {
                    self.structure.close();
                    self.write(at, 1);
                    self.comma_due = true;
                }
                Slot::Key => {
                    self.comma(at, false);
                    let marker = self.marker()?;
                    let Some(name) = self.string(at, marker)? else {
                        let problem =
                            Problem::new("a string as a key", "another value", "name members");
                        return Err(Stop::At(at, problem));
                    };
                    self.structure.name(at, Said { inside: name.as_bytes(), escaped: false })?;
                    self.write(at, quoted_len(name) + 1);
                }
                Slot::Value => {
                    self.comma(at, true);
                    self.value(at)?;
                }
            }
        }
        if self.at == self.raw.len() {
            return Ok(());
        }
        let problem = Problem::new("the end of the value", "more bytes", "send one value");
        Err(Stop::At(self.at, problem))
    }

    fn comma(&mut self, at: usize, is_due_again: bool) {
        if std::mem::replace(&mut self.comma_due, is_due_again) {
            self.write(at, 1);
        }
    }

    fn write(&mut self, at: usize, bytes: usize) {
        self.canonical_bytes = self.canonical_bytes.saturating_add(bytes);
        if self.canonical_bytes > CANONICAL_MAX_BYTES {
            self.passes_limit_at.get_or_insert(at);
        }
    }

    fn value(&mut self, at: usize) -> Result<(), Stop> {
        let marker = self.marker()?;
        if let Some(text) = self.string(at, marker)? {
            let said = Said { inside: text.as_bytes(), escaped: false };
            self.structure.value(at, Value::String(said));
            self.write(at, quoted_len(text));
            return Ok(());
        }
        match marker {
            Marker::Null | Marker::True => self.word(at, 4),
            Marker::False => self.word(at, 5),
            Marker::FixPos(value) => self.number(at, value),
            Marker::FixNeg(value) => self.number(at, value),
            Marker::U8 => self.integer(at, u8::from_be_bytes)?,
            Marker::U16 => self.integer(at, u16::from_be_bytes)?,
            Marker::U32 => self.integer(at, u32::from_be_bytes)?,
            Marker::U64 => self.integer(at, u64::from_be_bytes)?,
            Marker::I8 => self.integer(at, i8::from_be_bytes)?,
            Marker::I16 => self.integer(at, i16::from_be_bytes)?,
            Marker::I32 => self.integer(at, i32::from_be_bytes)?,
            Marker::I64 => self.integer(at, i64::from_be_bytes)?,
            Marker::F32 => {
                let value = f32::from_be_bytes(self.take(at)?);
                self.float(at, f64::from(value))?;
            }
            Marker::F64 => {
                let value = f64::from_be_bytes(self.take(at)?);
                self.float(at, value)?;
            }
            Marker::FixArray(len) => self.open(at, Container::Array, usize::from(len))?,
            Marker::Array16 => {
                let len = self.length::<2>(at)?;
                self.open(at, Container::Array, len)?;
            }
            Marker::Array32 => {
                let len = self.length::<4>(at)?;
                self.open(at, Container::Array, len)?;
            }
            Marker::FixMap(len) => self.open(at, Container::Object, usize::from(len))?,
            Marker::Map16 => {
                let len = self.length::<2>(at)?;
                self.open(at, Container::Object, len)?;
            }
            Marker::Map32 => {
                let len = self.length::<4>(at)?;
                self.open(at, Container::Object, len)?;
            }
            _ => {
                let expected = "a value that JSON can say";
                let found = "binary, an extension, a timestamp or the byte that means nothing";
                return Err(Stop::At(at, Problem::new(expected, found, "send text or numbers")));
            }
        }
        Ok(())
    }

    fn word(&mut self, at: usize, len: usize) {
        self.structure.value(at, Value::Word);
        self.write(at, len);
    }

    fn number(&mut self, at: usize, value: impl std::fmt::Debug) {
        self.structure.value(at, Value::Number { fits: true });
        // The canonical form has the same digits.
        self.write(at, format!("{value:?}").len());
    }

    fn integer<const N: usize, T: std::fmt::Debug>(
        &mut self,
        at: usize,
        read: fn([u8; N]) -> T,
    ) -> Result<(), Stop> {
        let value = read(self.take(at)?);
        self.number(at, value);
        Ok(())
    }

    fn float(&mut self, at: usize, value: f64) -> Result<(), Stop> {
        if !value.is_finite() {
            let problem = Problem::new("a finite float", "another", "JSON cannot say it");
            return Err(Stop::At(at, problem));
        }
        self.number(at, value);
        Ok(())
    }

    fn open(&mut self, at: usize, container: Container, len: usize) -> Result<(), Stop> {
        let slots_each = if container == Container::Object { 2 } else { 1 };
        let more = len.saturating_mul(slots_each);
        // Each key and value takes a byte at least.
        if self.slots.values_due().saturating_add(more) > self.raw.len() - self.at {
            let expected = "as many values as the lengths before say";
            let problem = Problem::new(expected, "fewer bytes", "send the whole value");
            return Err(Stop::At(at, problem));
        }
        self.structure.value(at, Value::Open(container));
        self.write(at, 1);
        self.comma_due = false;
        match container {
            Container::Array => self.slots.push(Slot::ArrayEnd)?,
            Container::Object => self.slots.push(Slot::MapEnd)?,
        }
        for _ in 0..len {
            self.slots.push(Slot::Value)?;
            if container == Container::Object {
                self.slots.push(Slot::Key)?;
            }
        }
        Ok(())
    }

    fn marker(&mut self) -> Result<Marker, Stop> {
        let [byte] = self.take(self.at)?;
        Ok(Marker::from_u8(byte))
    }

    /// The string that `marker` begins; `None` if it begins something else.
    fn string(&mut self, at: usize, marker: Marker) -> Result<Option<&'i str>, Stop> {
        let len = match marker {
            Marker::FixStr(len) => usize::from(len),
            Marker::Str8 => self.length::<1>(at)?,
            Marker::Str16 => self.length::<2>(at)?,
            Marker::Str32 => self.length::<4>(at)?,
            _ => return Ok(None),
        };
        let raw = self.raw;
        let Some((text, _)) = raw[self.at..].split_at_checked(len) else { return cut_off(at) };
        match std::str::from_utf8(text) {
            Ok(text) => {
                self.at += len;
                Ok(Some(text))
            }
            Err(error) => {
                let problem = Problem::new("UTF-8", "other bytes", "encode the text as UTF-8");
                Err(Stop::At(self.at + error.valid_up_to(), problem))
            }
        }
    }

    fn length<const N: usize>(&mut self, at: usize) -> Result<usize, Stop> {
        let bytes: [u8; N] = self.take(at)?;
        Ok(bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    /// Bytes of the value that began at `at`.
    fn take<const N: usize>(&mut self, at: usize) -> Result<[u8; N], Stop> {
        let Some(taken) = self.raw[self.at..].first_chunk() else { return cut_off(at) };
        self.at += N;
        Ok(*taken)
    }
}

fn cut_off<T>(at: usize) -> Result<T, Stop> {
    let problem = Problem::new("a whole value", "the end of the bytes", "send all of it");
    Err(Stop::At(at, problem))
}

fn quoted_len(text: &str) -> usize {
    let mut len = 0;
    text::quote(text, |piece| len += piece.len());
    len
}
