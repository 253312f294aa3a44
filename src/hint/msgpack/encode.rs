//! Canonical JSON -> MessagePack, in two scans: one counts, since a container's length comes first,
//! and one writes.

use std::collections::TryReserveError;

use rmp::encode;

use crate::hint::limits::DEPTH_MAX;
use crate::hint::scan::{
    scan, text, Container, ContainerStack, NotJson, Scalar, ScanError, Sink, Text,
};

/// Encodes the canonical form of an admitted hint: at most 200 containers deep, all numbers in
/// range. Keeps the order; integers and lengths take their smallest form, floats are f64.
pub fn encode(json: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut stack = ContainerStack::default();
    let mut counter = Counter { lengths: Vec::new(), open: Vec::new() };
    // No more containers than these bytes, some of which may stand in text.
    let containers = json.iter().filter(|b| matches!(b, b'{' | b'[')).count();
    counter.lengths.try_reserve_exact(containers)?;
    counter.open.try_reserve_exact(containers.min(DEPTH_MAX + 1))?;
    reach_end(scan(json, &mut stack, &mut counter))?;

    let mut writer = Writer { json, lengths: counter.lengths.into_iter(), out: Vec::new() };
    // The worst case is a short float: "0.1" and a comma, four bytes, become nine.
    writer.out.try_reserve(json.len() * 9 / 4 + 9)?;
    let room = writer.out.capacity();
    reach_end(scan(json, &mut stack, &mut writer))?;
    debug_assert_eq!(writer.out.capacity(), room, "writing asked for no more memory");
    Ok(writer.out)
}

fn reach_end(scanned: Result<(), ScanError>) -> Result<(), TryReserveError> {
    match scanned {
        Ok(()) => Ok(()),
        Err(ScanError::NoMemory(error)) => Err(error),
        Err(ScanError::NotJson(_)) => unreachable!("a snapshot's bytes were scanned before"),
    }
}

/// Counts the members or elements of each container, in the order in which they open.
struct Counter {
    lengths: Vec<u32>,
    /// The open containers, as indices into `lengths`, and their kind.
    open: Vec<(usize, Container)>,
}

impl Counter {
    /// One more in the innermost container, if that is of this kind.
    fn count(&mut self, in_kind: Container) {
        if let Some((index, container)) = self.open.last() {
            self.lengths[*index] += u32::from(*container == in_kind);
        }
    }
}

impl Sink for Counter {
    fn open(&mut self, _at: usize, container: Container) {
        self.count(Container::Array);
        self.open.push((self.lengths.len(), container));
        self.lengths.push(0);
    }

    fn close(&mut self, _at: usize, _container: Container) {
        self.open.pop();
    }

    fn name(&mut self, _name: Text) {
        self.count(Container::Object);
    }

    fn scalar(&mut self, _scalar: Scalar) {
        self.count(Container::Array);
    }
}

/// Writes each value as it comes.
struct Writer<'j> {
    json: &'j [u8],
    lengths: std::vec::IntoIter<u32>,
    out: Vec<u8>,
}

/// How many bytes the inside of a string, well-formed, says.
fn unescaped_len(inside: &[u8]) -> Result<usize, NotJson> {
    let (mut at, mut len) = (0, 0);
    while at < inside.len() {
        if inside[at] == b'\\' {
            let (next, character) = text::escape(inside, at)?;
            (at, len) = (next, len + character.len_utf8());
        } else {
            (at, len) = (at + 1, len + 1);
        }
    }
    Ok(len)
}

/// Writing to a Vec cannot fail, nor ask for memory: `encode` has reserved enough.
const INTO_VEC: &str = "a Vec takes all bytes";

impl Writer<'_> {
    fn text(&mut self, text: Text) {
        let inside = text.inside(self.json);
        if !text.escaped {
            encode::write_str_len(&mut self.out, inside.len() as u32).expect(INTO_VEC);
            self.out.extend_from_slice(inside);
            return;
        }
        const SAME: &str = "the scan read the same escapes";
        let said_len = unescaped_len(inside).expect(SAME);
        encode::write_str_len(&mut self.out, said_len as u32).expect(INTO_VEC);
        text::unescape(inside, &mut self.out).expect(SAME);
    }

    fn number(&mut self, text: &str) {
        if let Ok(value) = text.parse::<u64>() {
            encode::write_uint(&mut self.out, value).expect(INTO_VEC);
        } else if let Ok(value) = text.parse::<i64>() {
            encode::write_sint(&mut self.out, value).expect(INTO_VEC);
        } else {
            let value = text.parse::<f64>().expect("a number by the grammar of JSON");
            encode::write_f64(&mut self.out, value).expect(INTO_VEC);
        }
    }
}

impl Sink for Writer<'_> {
    fn open(&mut self, _at: usize, container: Container) {
        let length = self.lengths.next().expect("both scans open the same containers");
        match container {
            Container::Object => encode::write_map_len(&mut self.out, length),
            Container::Array => encode::write_array_len(&mut self.out, length),
        }
        .expect(INTO_VEC);
    }

    fn close(&mut self, _at: usize, _container: Container) {}

    fn name(&mut self, name: Text) {
        self.text(name);
    }

    fn scalar(&mut self, scalar: Scalar) {
        match scalar {
            Scalar::Text(text) => self.text(text),
            Scalar::Number(number) => {
                let json = self.json;
                let text = std::str::from_utf8(&json[number.start..number.end]);
                self.number(text.expect("digits and signs are ASCII"));
            }
            Scalar::True(_) => encode::write_bool(&mut self.out, true).expect(INTO_VEC),
            Scalar::False(_) => encode::write_bool(&mut self.out, false).expect(INTO_VEC),
            Scalar::Null(_) => encode::write_nil(&mut self.out).expect(INTO_VEC),
        }
    }
}
