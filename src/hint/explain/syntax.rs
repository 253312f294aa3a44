//! Where a text stops being JSON (RFC 8259, strict UTF-8): the first byte that no JSON text could
//! have there, after all before it.
//!
//! Slow and plain, read only for texts that the scanner has refused: what is JSON the scanner
//! decides. One pass, no recursion, one bit for each open container.

use std::collections::TryReserveError;

use super::finding::Problem;
use crate::hint::scan::{runs, text, Container, ContainerStack};

/// The first violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// Its offset; the length of the text where the text ends too early.
    pub at: usize,
    /// What it is.
    pub problem: Problem,
}

const VALUE: &str = "a JSON value";
const COMPLETE: &str = "send the whole text";
const CHECK: &str = "send valid JSON";

enum Stop {
    At(usize, Problem),
    NoMemory(TryReserveError),
}

impl From<TryReserveError> for Stop {
    fn from(error: TryReserveError) -> Self {
        Stop::NoMemory(error)
    }
}

/// The first violation in `input`; `None` if it is one JSON text. `stack` is scratch.
pub fn first_violation(
    input: &[u8],
    stack: &mut ContainerStack,
) -> Result<Option<Violation>, TryReserveError> {
    stack.clear();
    match (Reader { input, at: 0 }).run(stack) {
        Ok(()) => Ok(None),
        Err(Stop::At(at, problem)) => Ok(Some(Violation { at, problem })),
        Err(Stop::NoMemory(error)) => Err(error),
    }
}

fn stop<T>(
    at: usize,
    expected: &'static str,
    found: &'static str,
    advice: &'static str,
) -> Result<T, Stop> {
    Err(Stop::At(at, Problem::new(expected, found, advice)))
}

struct Reader<'i> {
    input: &'i [u8],
    at: usize,
}

impl Reader<'_> {
    fn run(&mut self, stack: &mut ContainerStack) -> Result<(), Stop> {
        if self.input.starts_with(b"\xef\xbb\xbf") {
            return stop(0, VALUE, "a byte order mark", "send UTF-8 without one");
        }
        loop {
            match self.token(VALUE)? {
                b'{' => {
                    stack.push(Container::Object)?;
                    self.at += 1;
                    if self.token("a member name or }")? != b'}' {
                        self.name("a member name in quotes or }")?;
                        continue;
                    }
                    self.at += 1;
                    stack.pop();
                }
                b'[' => {
                    stack.push(Container::Array)?;
                    self.at += 1;
                    if self.token("a JSON value or ]")? != b']' {
                        continue;
                    }
                    self.at += 1;
                    stack.pop();
                }
                first => self.scalar(first)?,
            }
            loop {
                let Some(container) = stack.top() else { return self.end() };
                let expected = match container {
                    Container::Object => "a comma or }",
                    Container::Array => "a comma or ]",
                };
                match (self.token(expected)?, container) {
                    (b',', Container::Array) => self.at += 1,
                    (b',', Container::Object) => {
                        self.at += 1;
                        self.name("a member name in quotes")?;
                    }
                    (b']', Container::Array) | (b'}', Container::Object) => {
                        self.at += 1;
                        stack.pop();
                        continue;
                    }
                    (found, _) => return stop(self.at, expected, kind(found), CHECK),
                }
                break;
            }
        }
    }

    fn skip_blanks(&mut self) {
        while self.input.get(self.at).is_some_and(|byte| runs::is_blank(*byte)) {
            self.at += 1;
        }
    }

    /// The next byte that is no blank.
    fn token(&mut self, expected: &'static str) -> Result<u8, Stop> {
        self.skip_blanks();
        match self.input.get(self.at) {
            Some(byte) => Ok(*byte),
            None => stop(self.at, expected, "the end of the text", COMPLETE),
        }
    }

    fn end(&mut self) -> Result<(), Stop> {
        self.skip_blanks();
        match self.input.get(self.at) {
            None => Ok(()),
            Some(_) => stop(self.at, "the end of the text", "more text", "send one JSON value"),
        }
    }

    fn name(&mut self, expected: &'static str) -> Result<(), Stop> {
        match self.token(expected)? {
            b'"' => self.string()?,
            b'}' => return stop(self.at, expected, "}", "drop the comma before it"),
            found => return stop(self.at, expected, kind(found), CHECK),
        }
        match self.token("a colon after the member name")? {
            b':' => self.at += 1,
            found => {
                return stop(self.at, "a colon after the member name", kind(found), CHECK);
            }
        }
        Ok(())
    }

    fn scalar(&mut self, first: u8) -> Result<(), Stop> {
        match first {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            b'N' | b'I' => stop(self.at, VALUE, "a letter", "JSON has no NaN and no Infinity"),
            b']' => stop(self.at, VALUE, "]", "drop the comma before it"),
            found => stop(self.at, VALUE, kind(found), CHECK),
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), Stop> {
        for expected in word {
            match self.input.get(self.at) {
                Some(byte) if byte == expected => self.at += 1,
                None => return stop(self.at, VALUE, "the end of the text", COMPLETE),
                Some(_) => {
                    return stop(self.at, "true, false or null", "another word", CHECK);
                }
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Stop> {
        match self.input.get(self.at) {
            Some(b'0'..=b'9') => {}
            None => return stop(self.at, "a digit", "the end of the text", COMPLETE),
            Some(found) => return stop(self.at, "a digit", kind(*found), CHECK),
        }
        while matches!(self.input.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Stop> {
        self.at += usize::from(self.input.get(self.at) == Some(&b'-'));
        if self.input.get(self.at) == Some(&b'0') {
            self.at += 1;
            if matches!(self.input.get(self.at), Some(b'0'..=b'9')) {
                return stop(self.at, "a number without leading zeros", "a digit", "drop the zero");
            }
        } else {
            self.digits()?;
        }
        if self.input.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.input.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.input.get(self.at), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    /// The string whose opening quote is here. A wrong escape or character is placed at its start.
    fn string(&mut self) -> Result<(), Stop> {
        self.at += 1;
        loop {
            let Some(byte) = self.input.get(self.at) else {
                return stop(self.at, "the closing quote", "the end of the text", COMPLETE);
            };
            match byte {
                b'"' => break,
                b'\\' => match text::escape(self.input, self.at) {
                    Ok((end, _)) => self.at = end,
                    Err(_) => return self.wrong_escape(),
                },
                0x80.. => match text::character_end(self.input, self.at) {
                    Ok(end) => self.at = end,
                    Err(_) => {
                        return stop(self.at, "UTF-8", "other bytes", "encode the text as UTF-8");
                    }
                },
                0..=0x1f => {
                    let expected = "the closing quote or a character";
                    return stop(self.at, expected, "a control character", "escape it");
                }
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Ok(())
    }

    fn wrong_escape(&self) -> Result<(), Stop> {
        let expected = "an escape of JSON";
        match self.input.get(self.at + 1) {
            None => stop(self.at, expected, "the end of the text", COMPLETE),
            Some(b'u') => {
                let digits = self.input[self.at + 2..].iter().take(4);
                match digits.filter(|digit| digit.is_ascii_hexdigit()).count() {
                    4 => {
                        let advice = "write both halves of the pair, or the character itself";
                        stop(self.at, expected, "half of a surrogate pair", advice)
                    }
                    _ => stop(self.at, expected, "too few hexadecimal digits", "write four"),
                }
            }
            Some(_) => stop(self.at, expected, "another character", "escape the backslash itself"),
        }
    }
}

/// What stands in the way, without saying it.
fn kind(byte: u8) -> &'static str {
    match byte {
        b'{' => "{",
        b'}' => "}",
        b'[' => "[",
        b']' => "]",
        b',' => "a comma",
        b':' => "a colon",
        b'"' => "a string",
        b'\'' => "a single quote",
        b'0'..=b'9' | b'-' => "a number",
        b'a'..=b'z' | b'A'..=b'Z' | b'_' => "a letter",
        0x80.. => "a character beyond ASCII",
        0..=0x1f | 0x7f => "a control character",
        _ => "another character",
    }
}
