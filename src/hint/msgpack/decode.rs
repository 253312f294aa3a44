//! One MessagePack value -> canonical JSON.
//!
//! Past the limit on canonical forms nothing more is written, but all is still read: whether the
//! value is well-formed, and which version it names, outweigh its length.

use std::collections::TryReserveError;
use std::io::Write;

use rmp::Marker;

use super::slots::{Slot, Slots};
use crate::hint::judge::{VersionSeen, PROTOCOL_VERSION};
use crate::hint::limits::CANONICAL_MAX_BYTES;
use crate::hint::scan::text::quote;

/// The one byte that says "no value".
pub const NIL: u8 = 0xc0;

/// What a value came to.
#[derive(Debug)]
pub enum Decoded {
    /// Its canonical JSON.
    Text(Vec<u8>),
    /// Well-formed, but longer than a canonical form may be; and which version it names.
    TooLong(VersionSeen),
    /// Not exactly one value that JSON can say.
    Malformed,
}

/// Something other than exactly one value that JSON can say.
#[derive(Debug)]
struct Malformed;

enum Failure {
    Malformed,
    NoMemory(TryReserveError),
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        Failure::Malformed
    }
}

impl From<TryReserveError> for Failure {
    fn from(error: TryReserveError) -> Self {
        Failure::NoMemory(error)
    }
}

/// Reads `raw` as exactly one value. `slots` is scratch.
pub fn decode(raw: &[u8], slots: &mut Slots) -> Result<Decoded, TryReserveError> {
    slots.clear();
    let mut json = Json { bytes: Vec::new(), overflowed: false };
    // No JSON is much longer than its MessagePack, and none that is kept is longer than this.
    json.bytes.try_reserve_exact(CANONICAL_MAX_BYTES.min(raw.len().saturating_mul(8)))?;
    let mut decoder =
        Decoder { rest: raw, slots, json, depth: 0, comma_due: false, root: Root::default() };
    match decoder.run() {
        Ok(()) if decoder.json.overflowed => Ok(Decoded::TooLong(decoder.root.version)),
        Ok(()) => Ok(Decoded::Text(decoder.json.bytes)),
        Err(Failure::Malformed) => Ok(Decoded::Malformed),
        Err(Failure::NoMemory(error)) => Err(error),
    }
}

/// The text written so far, within the limit.
struct Json {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl Json {
    #[inline]
    fn write(&mut self, text: &[u8]) {
        if self.overflowed || self.bytes.len() + text.len() > CANONICAL_MAX_BYTES {
            self.overflowed = true;
        } else {
            self.bytes.extend_from_slice(text);
        }
    }

    fn write_string(&mut self, text: &str) {
        quote(text, |piece| self.write(piece));
    }

    fn write_display(&mut self, value: impl std::fmt::Debug) {
        // The longest f64 has 24 bytes, the longest integer 20.
        let mut buffer = [0; 32];
        let mut free = &mut buffer[..];
        let fits = write!(free, "{value:?}").is_ok();
        let used = 32 - free.len();
        debug_assert!(fits, "a number is at most 24 bytes long");
        self.write(&buffer[..used]);
    }
}

/// What the outermost map says about its version.
#[derive(Default)]
struct Root {
    is_map: bool,
    /// The value next read is that of `protocol_version`.
    version_is_next: bool,
    version: VersionSeen,
}

struct Decoder<'r, 's> {
    rest: &'r [u8],
    slots: &'s mut Slots,
    json: Json,
    depth: usize,
    comma_due: bool,
    root: Root,
}

impl<'r> Decoder<'r, '_> {
    fn run(&mut self) -> Result<(), Failure> {
        self.slots.push(Slot::Value)?;
        while let Some(slot) = self.slots.pop() {
            match slot {
                Slot::ArrayEnd => self.close(b"]"),
                Slot::MapEnd => self.close(b"}"),
                Slot::Key => self.key()?,
                Slot::Value => self.value()?,
            }
        }
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Failure::Malformed)
        }
    }

    fn close(&mut self, bracket: &[u8]) {
        self.json.write(bracket);
        self.depth -= 1;
        self.comma_due = true;
    }

    fn key(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.comma_due) {
            self.json.write(b",");
        }
        let marker = self.marker()?;
        let name = self.string(marker)?.ok_or(Malformed)?;
        self.json.write_string(name);
        self.json.write(b":");
        self.root.version_is_next =
            self.depth == 1 && self.root.is_map && name == "protocol_version";
        Ok(())
    }

    fn value(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.comma_due, true) {
            self.json.write(b",");
        }
        let marker = self.marker()?;
        let text = self.string(marker)?;
        if std::mem::take(&mut self.root.version_is_next) {
            self.root.version.see(text.map(|text| text == PROTOCOL_VERSION));
        }
        if let Some(text) = text {
            self.json.write_string(text);
            return Ok(());
        }
        match marker {
            Marker::Null => self.json.write(b"null"),
            Marker::True => self.json.write(b"true"),
            Marker::False => self.json.write(b"false"),
            Marker::FixPos(value) => self.json.write_display(value),
            Marker::FixNeg(value) => self.json.write_display(value),
            Marker::U8 => self.write_integer(u8::from_be_bytes)?,
            Marker::U16 => self.write_integer(u16::from_be_bytes)?,
            Marker::U32 => self.write_integer(u32::from_be_bytes)?,
            Marker::U64 => self.write_integer(u64::from_be_bytes)?,
            Marker::I8 => self.write_integer(i8::from_be_bytes)?,
            Marker::I16 => self.write_integer(i16::from_be_bytes)?,
            Marker::I32 => self.write_integer(i32::from_be_bytes)?,
            Marker::I64 => self.write_integer(i64::from_be_bytes)?,
            Marker::F32 => {
                let value = f32::from_be_bytes(self.take()?);
                self.write_float(f64::from(value))?;
            }
            Marker::F64 => {
                let value = f64::from_be_bytes(self.take()?);
                self.write_float(value)?;
            }
            Marker::FixArray(len) => self.open_array(usize::from(len))?,
            Marker::Array16 => {
                let len = self.len16()?;
                self.open_array(len)?;
            }
            Marker::Array32 => {
                let len = self.len32()?;
                self.open_array(len)?;
            }
            Marker::FixMap(len) => self.open_map(usize::from(len))?,
            Marker::Map16 => {
                let len = self.len16()?;
                self.open_map(len)?;
            }
            Marker::Map32 => {
                let len = self.len32()?;
                self.open_map(len)?;
            }
            // Binary, extensions (timestamps are one), and the byte that means nothing.
            _ => return Err(Failure::Malformed),
        }
        Ok(())
    }

    fn write_integer<const N: usize, T: std::fmt::Debug>(
        &mut self,
        read: fn([u8; N]) -> T,
    ) -> Result<(), Malformed> {
        let value = read(self.take()?);
        self.json.write_display(value);
        Ok(())
    }

    /// The shortest digits that read back the same; Rust's debug form has a point or an exponent.
    fn write_float(&mut self, value: f64) -> Result<(), Malformed> {
        if !value.is_finite() {
            return Err(Malformed);
        }
        self.json.write_display(value);
        Ok(())
    }

    fn open_array(&mut self, len: usize) -> Result<(), Failure> {
        self.enough_for(len)?;
        self.json.write(b"[");
        self.depth += 1;
        self.comma_due = false;
        self.slots.push(Slot::ArrayEnd)?;
        for _ in 0..len {
            self.slots.push(Slot::Value)?;
        }
        Ok(())
    }

    fn open_map(&mut self, len: usize) -> Result<(), Failure> {
        self.enough_for(len.saturating_mul(2))?;
        self.root.is_map |= self.depth == 0;
        self.json.write(b"{");
        self.depth += 1;
        self.comma_due = false;
        self.slots.push(Slot::MapEnd)?;
        for _ in 0..len {
            self.slots.push(Slot::Value)?;
            self.slots.push(Slot::Key)?;
        }
        Ok(())
    }

    /// Each key and value takes a byte at least: a length that claims more is a lie, found before
    /// anything is done for it.
    fn enough_for(&self, more: usize) -> Result<(), Malformed> {
        if self.slots.values_due().saturating_add(more) > self.rest.len() {
            return Err(Malformed);
        }
        Ok(())
    }

    fn marker(&mut self) -> Result<Marker, Malformed> {
        let [byte] = self.take()?;
        Ok(Marker::from_u8(byte))
    }

    /// The string that `marker` begins; `None` if it begins something else.
    fn string(&mut self, marker: Marker) -> Result<Option<&'r str>, Malformed> {
        let len = match marker {
            Marker::FixStr(len) => usize::from(len),
            Marker::Str8 => usize::from(u8::from_be_bytes(self.take()?)),
            Marker::Str16 => self.len16()?,
            Marker::Str32 => self.len32()?,
            _ => return Ok(None),
        };
        let (text, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        std::str::from_utf8(text).map(Some).map_err(|_| Malformed)
    }

    fn len16(&mut self) -> Result<usize, Malformed> {
        Ok(usize::from(u16::from_be_bytes(self.take()?)))
    }

    fn len32(&mut self) -> Result<usize, Malformed> {
        usize::try_from(u32::from_be_bytes(self.take()?)).map_err(|_| Malformed)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }
}
