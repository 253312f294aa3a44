//! One pass over JSON bytes, without recursion and without a tree.
//!
//! [`scan`] knows the grammar (RFC 8259, strict UTF-8) and nothing else. It tells a [`Sink`] what
//! it meets, as offsets into the input; all meaning is the sinks':
//!
//! | sink | makes of it |
//! |---|---|
//! | [`super::judge`] | the verdict of a hint, its canonical form, where its parts lie |
//! | [`super::body`] | a request body without its hint |
//! | [`super::msgpack`] | the same value as MessagePack |
//!
//! Each use is compiled for its sink, so an event nobody needs costs nothing, and once more for wide
//! registers. From the top:
//!
//! | file | subject |
//! |---|---|
//! | [`grammar`] | what may follow what; the loop |
//! | [`runs`] | where strings, digits and blanks end, 32 bytes at a time |
//! | [`integers`] | whole arrays of integers, 64 bytes at a time: the bulk of a hint |
//! | [`lanes`] | byte classes as bits: AVX2 where the CPU has it, plain integers elsewhere |
//! | [`number`], [`text`] | what a number's text is worth; escapes |
//! | [`stack`] | which containers are open: one bit each |
//!
//! Nothing is looked at twice except escapes and non-ASCII text.
//!
//! Guards: memory (one bit for each open container), stack (no recursion), time (linear).
//! Never does: allocate for anything else, interpret names or numbers, stop at a depth.

mod grammar;
mod integers;
mod lanes;
pub mod number;
pub mod runs;
mod stack;
pub mod text;

use std::collections::TryReserveError;
use std::ops::Range;

pub use grammar::{scan, scan_at};
pub use integers::Integers;
pub use lanes::{Lanes, Width};
pub use number::Number;
pub use stack::{Container, ContainerStack};

/// The input is not one RFC 8259 text in strict UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one RFC 8259 text in strict UTF-8, found something else: send valid JSON")]
pub struct NotJson;

/// Why a scan did not reach the end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The input is not JSON.
    #[error(transparent)]
    NotJson(#[from] NotJson),
    /// Memory for the open containers could not be had.
    #[error("no memory to remember the open containers")]
    NoMemory(#[from] TryReserveError),
}

/// A string or member name: the offsets of what stands between the quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// After the opening quote.
    pub start: usize,
    /// The closing quote.
    pub end: usize,
    /// Whether there is a backslash between them.
    pub escaped: bool,
}

impl Text {
    /// What stands between the quotes, as written.
    pub fn inside<'i>(&self, input: &'i [u8]) -> &'i [u8] {
        &input[self.start..self.end]
    }

    /// Whether the text says `expected`, whatever its escapes.
    #[inline]
    pub fn equals(&self, input: &[u8], expected: &[u8]) -> bool {
        let inside = self.inside(input);
        if self.escaped {
            text::equals(inside, expected)
        } else {
            inside == expected
        }
    }
}

/// A value that is not a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    Text(Text),
    /// A number.
    Number(Number),
    /// `true`, from this offset on.
    True(usize),
    /// `false`, from this offset on.
    False(usize),
    /// `null`, from this offset on.
    Null(usize),
}

impl Scalar {
    /// The offset of the value's first byte.
    pub fn start(&self) -> usize {
        match self {
            // The quote belongs to the value.
            Scalar::Text(text) => text.start - 1,
            Scalar::Number(number) => number.start,
            Scalar::True(at) | Scalar::False(at) | Scalar::Null(at) => *at,
        }
    }

    /// The offset after the value's last byte.
    pub fn end(&self) -> usize {
        match self {
            Scalar::Text(text) => text.end + 1,
            Scalar::Number(number) => number.end,
            Scalar::True(at) | Scalar::Null(at) => at + 4,
            Scalar::False(at) => at + 5,
        }
    }
}

/// Told what a scan meets, in order. An error later on makes everything told before it void.
pub trait Sink {
    /// A container opens; its bracket is at `at`.
    fn open(&mut self, at: usize, container: Container);
    /// The innermost container closes; its bracket is at `at`.
    fn close(&mut self, at: usize, container: Container);
    /// A member's name; its value is next.
    fn name(&mut self, name: Text);
    /// Told after `open` of an object, with the place behind its bracket. A sink that knows how the
    /// object usually begins may read that by itself, if the text is exactly so: it then returns
    /// where the value of the last member it read begins, which is read as any other.
    #[inline]
    fn usual_beginning<L: Lanes>(&mut self, _at: usize) -> Option<usize> {
        None
    }
    /// A value that is not a container.
    fn scalar(&mut self, scalar: Scalar);
    /// One of a run of integers in an array: digits without a sign. The usual
    /// contents of a hint, so it has an event of its own; the same as [`Sink::scalar`] otherwise.
    #[inline]
    fn integer(&mut self, digits: Range<usize>) {
        self.scalar(Scalar::Number(Number::of_digits(digits)));
    }
    /// Integers as [`Sink::integer`] tells them, many at once, each with its comma; `all_fit` says
    /// whether they are at most 2^64-1. There is at most one space before and one behind each, and
    /// none at all unless `may_have_spaces`. The input has 64 bytes at least.
    #[inline]
    fn integers<L: Lanes>(&mut self, input: &[u8], run: Integers) {
        let mut digits = None;
        for at in run.range {
            match input[at] {
                b'0'..=b'9' => {
                    digits.get_or_insert(at);
                }
                other => {
                    if let Some(start) = digits.take() {
                        self.integer(start..at);
                    }
                    if other == b',' {
                        self.comma(at);
                    } else {
                        self.blanks(at..at + 1);
                    }
                }
            }
        }
    }
    /// A comma between two members or elements.
    fn comma(&mut self, _at: usize) {}
    /// Blanks outside strings.
    fn blanks(&mut self, _range: Range<usize>) {}
    /// An escape inside the string that began at `text_start`, and the character it stands for;
    /// told before the string itself. Not told of escapes of two bytes that have no shorter form.
    fn escape(&mut self, _text_start: usize, _range: Range<usize>, _character: char) {}
}
