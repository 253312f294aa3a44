//! The grammar of RFC 8259 as one loop: a value begins, a value has ended, and again.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use super::lanes::Avx2;
use super::lanes::{Lanes, Portable, Width};
use super::{
    integers, runs, text, Container, ContainerStack, NotJson, Number, Scalar, ScanError, Sink, Text,
};

/// After an array's element was none of [`integers::integers`], so many are read one by one before
/// it is tried again.
const TRY_AGAIN_AFTER: u32 = 8;

/// Reads `input` as exactly one JSON text and tells `sink` all of it. `stack` is scratch.
///
/// A sink's calls keep to the grammar even where the text breaks it later: each `name` lies in an
/// object, each `close` follows its `open`.
pub fn scan<S: Sink>(
    input: &[u8],
    stack: &mut ContainerStack,
    sink: &mut S,
) -> Result<(), ScanError> {
    scan_at(Width::widest(), input, stack, sink)
}

/// The same with lanes chosen before.
#[inline]
pub fn scan_at<S: Sink>(
    width: Width,
    input: &[u8],
    stack: &mut ContainerStack,
    sink: &mut S,
) -> Result<(), ScanError> {
    #[cfg(target_arch = "x86_64")]
    if width.is_avx2() {
        // SAFETY: a width says so only where the CPU has what the function is compiled for.
        return unsafe { scan_avx2(input, stack, sink) };
    }
    scan_with::<Portable, S>(input, stack, sink)
}

/// The same, compiled for wide registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn scan_avx2<S: Sink>(
    input: &[u8],
    stack: &mut ContainerStack,
    sink: &mut S,
) -> Result<(), ScanError> {
    scan_with::<Avx2, S>(input, stack, sink)
}

// Everything between here and `lanes` is inlined, so that it is compiled for the same registers.
#[inline(always)]
fn scan_with<L: Lanes, S: Sink>(
    input: &[u8],
    stack: &mut ContainerStack,
    sink: &mut S,
) -> Result<(), ScanError> {
    // Its own while it runs, so that it lies in registers.
    let mut open = std::mem::take(stack);
    open.clear();
    let mut reader = Reader { input, at: 0, sink, open, one_by_one: 0, lanes: PhantomData::<L> };
    let result = reader.run();
    *stack = reader.open;
    result
}

struct Reader<'i, 's, S, L> {
    input: &'i [u8],
    at: usize,
    sink: &'s mut S,
    open: ContainerStack,
    /// So many elements are not tried as integers in blocks.
    one_by_one: u32,
    lanes: PhantomData<L>,
}

impl<S: Sink, L: Lanes> Reader<'_, '_, S, L> {
    #[inline(always)]
    fn run(&mut self) -> Result<(), ScanError> {
        let mut first = self.token()?;
        loop {
            // A value begins.
            match first {
                b'{' => {
                    self.open(Container::Object)?;
                    if let Some(value) = self.sink.usual_beginning::<L>(self.at) {
                        self.at = value;
                        first = self.token()?;
                        continue;
                    }
                    first = self.token()?;
                    if first != b'}' {
                        first = self.name(first)?;
                        continue;
                    }
                    self.close(Container::Object);
                }
                b'[' => {
                    self.open(Container::Array)?;
                    first = self.element()?;
                    if first != b']' {
                        continue;
                    }
                    self.close(Container::Array);
                }
                _ => self.scalar(first)?,
            }
            // A value has ended, and perhaps the containers around it.
            loop {
                let Some(container) = self.open.top() else { return Ok(self.end()?) };
                match (self.token()?, container) {
                    (b',', Container::Array) => {
                        self.comma();
                        first = self.element()?;
                    }
                    (b',', Container::Object) => {
                        self.comma();
                        first = self.token()?;
                        first = self.name(first)?;
                    }
                    (b']', Container::Array) | (b'}', Container::Object) => {
                        self.close(container);
                        continue;
                    }
                    _ => return Err(NotJson.into()),
                }
                break;
            }
        }
    }

    /// The next byte that is no blank, without passing it.
    #[inline(always)]
    fn token(&mut self) -> Result<u8, NotJson> {
        let byte = *self.input.get(self.at).ok_or(NotJson)?;
        // Nothing in JSON but blanks is that small.
        if byte > b' ' {
            return Ok(byte);
        }
        self.skip_blanks();
        self.input.get(self.at).copied().ok_or(NotJson)
    }

    #[inline(always)]
    fn skip_blanks(&mut self) {
        // One blank is the usual case.
        let mut end = self.at;
        while end < self.at + 2 && self.input.get(end).is_some_and(|byte| runs::is_blank(*byte)) {
            end += 1;
        }
        if end == self.at + 2 {
            end = runs::blanks_end::<L>(self.input, end);
        }
        if end > self.at {
            self.sink.blanks(self.at..end);
            self.at = end;
        }
    }

    #[inline(always)]
    fn open(&mut self, container: Container) -> Result<(), ScanError> {
        // As many as half of all bytes can be closed again: bounds the stack.
        if self.open.len() > self.input.len() / 2 {
            return Err(NotJson.into());
        }
        self.open.push(container)?;
        self.sink.open(self.at, container);
        self.at += 1;
        Ok(())
    }

    #[inline(always)]
    fn close(&mut self, container: Container) {
        self.open.pop();
        self.sink.close(self.at, container);
        self.at += 1;
    }

    #[inline(always)]
    fn comma(&mut self) {
        self.sink.comma(self.at);
        self.at += 1;
    }

    /// A member's name, which begins with `first`, and the colon after it; returns the first byte of
    /// the value.
    #[inline(always)]
    fn name(&mut self, first: u8) -> Result<u8, NotJson> {
        if first != b'"' {
            return Err(NotJson);
        }
        let name = self.text()?;
        self.sink.name(name);
        if self.token()? != b':' {
            return Err(NotJson);
        }
        self.at += 1;
        self.token()
    }

    // Each kind is told by itself, so that the sink's part is compiled for that kind alone.
    #[inline(always)]
    fn scalar(&mut self, first: u8) -> Result<(), NotJson> {
        let at = self.at;
        match first {
            b'"' => {
                let text = self.text()?;
                self.sink.scalar(Scalar::Text(text));
            }
            b'-' | b'0'..=b'9' => {
                let number = Number::read::<L>(self.input, at)?;
                self.at = number.end;
                self.sink.scalar(Scalar::Number(number));
            }
            b't' => self.word(b"true", Scalar::True(at))?,
            b'f' => self.word(b"false", Scalar::False(at))?,
            b'n' => self.word(b"null", Scalar::Null(at))?,
            _ => return Err(NotJson),
        }
        Ok(())
    }

    #[inline(always)]
    fn word<const N: usize>(&mut self, word: &[u8; N], scalar: Scalar) -> Result<(), NotJson> {
        if self.input[self.at..].first_chunk() != Some(word) {
            return Err(NotJson);
        }
        self.at += N;
        self.sink.scalar(scalar);
        Ok(())
    }

    /// The first byte of an array's next element, or its bracket. Before that elements are read that
    /// are integers, each with its comma and at most one space before and behind, as far as they go.
    #[inline(always)]
    fn element(&mut self) -> Result<u8, NotJson> {
        let first = self.token()?;
        if !first.is_ascii_digit() {
            return Ok(first);
        }
        if self.one_by_one > 0 {
            self.one_by_one -= 1;
            return Ok(first);
        }
        let run = integers::integers::<L>(self.input, self.at);
        if run.range.is_empty() {
            self.one_by_one = TRY_AGAIN_AFTER;
            return Ok(first);
        }
        self.at = run.range.end;
        self.sink.integers::<L>(self.input, run);
        // The run ends with a comma: an element follows.
        match self.token()? {
            b']' => Err(NotJson),
            first => Ok(first),
        }
    }

    /// The end of the escapes that follow one another from `at` on.
    #[inline(always)]
    fn escapes(&mut self, text_start: usize, at: usize) -> Result<usize, NotJson> {
        let mut at = at;
        while self.input.get(at) == Some(&b'\\') {
            match self.input.get(at + 1) {
                Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                _ => {
                    let (end, character) = text::escape(self.input, at)?;
                    self.sink.escape(text_start, at..end, character);
                    at = end;
                }
            }
        }
        Ok(at)
    }

    /// The string whose opening quote is here.
    #[inline(always)]
    fn text(&mut self) -> Result<Text, NotJson> {
        let start = self.at + 1;
        let mut escaped = false;
        let mut at = start;
        loop {
            at = runs::plain_end::<L>(self.input, at);
            match *self.input.get(at).ok_or(NotJson)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    at = self.escapes(start, at)?;
                }
                0x80.. => {
                    while matches!(self.input.get(at), Some(0x80..)) {
                        at = text::character_end(self.input, at)?;
                    }
                }
                // A control character.
                _ => return Err(NotJson),
            }
        }
        self.at = at + 1;
        Ok(Text { start, end: at, escaped })
    }

    /// Nothing may follow the text but blanks.
    #[inline(always)]
    fn end(&mut self) -> Result<(), NotJson> {
        self.skip_blanks();
        if self.at == self.input.len() {
            Ok(())
        } else {
            Err(NotJson)
        }
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ops::Range;

    /// Writes down all it is told, runs of integers one by one.
    #[derive(Debug, Default, PartialEq)]
    struct Record(Vec<String>);

    impl Record {
        fn note(&mut self, what: &str, details: impl std::fmt::Debug) {
            self.0.push(format!("{what} {details:?}"));
        }
    }

    impl Sink for Record {
        fn open(&mut self, at: usize, container: Container) {
            self.note("open", (at, container));
        }
        fn close(&mut self, at: usize, container: Container) {
            self.note("close", (at, container));
        }
        fn name(&mut self, name: Text) {
            self.note("name", name);
        }
        fn scalar(&mut self, scalar: Scalar) {
            self.note("scalar", scalar);
        }
        fn comma(&mut self, at: usize) {
            self.note("comma", at);
        }
        fn blanks(&mut self, range: Range<usize>) {
            self.note("blanks", range);
        }
        fn escape(&mut self, text_start: usize, range: Range<usize>, character: char) {
            self.note("escape", (text_start, range, character));
        }
    }

    /// Both ways through the same text tell the same, up to the same error.
    fn check(input: &[u8]) {
        if !Avx2::is_there() {
            return;
        }
        let (mut plain, mut wide) = (Record::default(), Record::default());
        let mut stack = ContainerStack::default();
        let plain_end = scan_with::<Portable, _>(input, &mut stack, &mut plain);
        // SAFETY: the CPU has what the function is compiled for.
        let wide_end = unsafe { scan_avx2(input, &mut stack, &mut wide) };
        assert_eq!(plain_end, wide_end);
        assert_eq!(plain, wide);
    }

    #[test]
    fn both_ways_tell_the_same_of_every_vector_and_each_of_its_beginnings() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/admission.jsonl");
        let lines = std::fs::read_to_string(path).expect("the vectors lie in the project");
        let mut count = 0;
        for line in lines.lines() {
            let vector: serde_json::Value = serde_json::from_str(line).expect("one a line");
            let Some(raw) = vector["raw"].as_str() else { continue };
            count += 1;
            check(raw.as_bytes());
            if raw.len() < 400 {
                (0..raw.len()).for_each(|end| check(&raw.as_bytes()[..end]));
            }
        }
        assert!(count > 200, "{count} vectors");
    }

    proptest! {
        #[test]
        fn both_ways_tell_the_same_of_pieces_of_json(
            pieces in prop::collection::vec(
                prop_oneof![
                    4 => prop::sample::select(vec![
                        "{", "}", "[", "]", ",", ":", "\"", "\"a\":", " ", "\n  ",
                        "true", "null", "-", "1", "0", "12345678901234567890,", ", ", "1.5e3", "\\n",
                        "\\u00e9", "\\ud83d\\ude00", "\u{e9}", "\u{1f600}", "[1, 2, 3, 4],",
                    ]).prop_map(str::to_owned),
                    1 => "[0-9]{1,22},",
                    1 => "\"\\PC{0,40}\"",
                ],
                0..60,
            ),
            begun in any::<bool>(),
        ) {
            let text = pieces.concat();
            check(text.as_bytes());
            if begun {
                check(format!("{{\"a\":[{text}]}}").as_bytes());
            }
        }
    }
}
