//! The bytes that are signed: a text's canonical form without its `mac`, hashed while it is scanned.

use std::ops::Range;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::hint::scan::{text, Container, Integers, Lanes, Scalar, Sink, Text};

/// The sink that hashes. Bytes that stand for themselves are a pending run, as in the canonical
/// form; blanks and longer escapes end it, and what lies in the cut is left out.
pub struct MacStream<'i> {
    input: &'i [u8],
    hmac: Hmac<Sha256>,
    run_start: usize,
    cut: Range<usize>,
}

impl<'i> MacStream<'i> {
    /// Hashes `input` without `cut`.
    pub fn new(input: &'i [u8], cut: Range<usize>, keyed: Hmac<Sha256>) -> Self {
        Self { input, hmac: keyed, run_start: 0, cut }
    }

    /// The code's state, once the scan reached the end.
    pub fn finish(mut self) -> Hmac<Sha256> {
        self.end_run(self.input.len());
        self.hmac
    }

    fn end_run(&mut self, end: usize) {
        let run = self.run_start..end;
        let before = run.start..run.end.min(self.cut.start);
        let after = run.start.max(self.cut.end)..run.end;
        for part in [before, after] {
            if part.start < part.end {
                self.hmac.update(&self.input[part]);
            }
        }
    }
}

impl Sink for MacStream<'_> {
    fn open(&mut self, _at: usize, _container: Container) {}
    fn close(&mut self, _at: usize, _container: Container) {}
    fn name(&mut self, _name: Text) {}
    fn scalar(&mut self, _scalar: Scalar) {}

    fn integers<L: Lanes>(&mut self, input: &[u8], run: Integers) {
        if run.may_have_spaces {
            for space in memchr::memchr_iter(b' ', &input[run.range.clone()]) {
                let at = run.range.start + space;
                self.blanks(at..at + 1);
            }
        }
    }

    fn blanks(&mut self, range: Range<usize>) {
        self.end_run(range.start);
        self.run_start = range.end;
    }

    fn escape(&mut self, _text_start: usize, range: Range<usize>, character: char) {
        let mut buffer = [0; 6];
        let shortest = text::canonical_text(character, &mut buffer);
        if self.input[range.clone()] == *shortest {
            return;
        }
        self.end_run(range.start);
        self.run_start = range.end;
        if !self.cut.contains(&range.start) {
            self.hmac.update(shortest);
        }
    }
}
