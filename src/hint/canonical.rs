//! The canonical form of a text, written while it is scanned, and only where it differs.
//!
//! As long as the input is canonical nothing is copied: a *run* of input bytes that stand for
//! themselves is pending. A blank or an escape that is not the shortest ends the run:
//!
//! ```text
//! input      {"a": [1,2,  3]}
//!            └────┘└────┘  └─ pending run
//! out        {"a":[1,2,
//! ```
//!
//! Offsets into the canonical form are exact at all times, whether their bytes were copied or not.
//! Never does: hold more than [`CANONICAL_MAX_BYTES`]; past that it only counts.

use std::collections::TryReserveError;
use std::ops::Range;

use super::limits::CANONICAL_MAX_BYTES;
use super::scan::{text, Lanes, Text};

/// Runs up to this length are copied at this length.
const SHORT: usize = 32;

/// Length of the memory for a canonical form.
const OUT_BYTES: usize = CANONICAL_MAX_BYTES + SHORT;

/// The canonical form of `input`, as far as it was scanned.
pub struct Canonical<'i, 's> {
    input: &'i [u8],
    /// Begins with the bytes before the pending run; incomplete once `overflowed`. Empty as long as
    /// nothing was edited, then always [`OUT_BYTES`] long.
    out: &'s mut Vec<u8>,
    /// Canonical length of everything before the pending run.
    out_len: usize,
    /// Where the pending run begins in the input.
    run_start: usize,
    /// Canonical offset of the inside of the string in which the last edit happened.
    edited_text_start: usize,
    overflowed: bool,
    no_memory: Option<TryReserveError>,
}

impl<'i, 's> Canonical<'i, 's> {
    /// Begins at the input's first byte. `out` is scratch.
    pub fn new(input: &'i [u8], out: &'s mut Vec<u8>) -> Self {
        Self {
            input,
            out,
            out_len: 0,
            run_start: 0,
            edited_text_start: 0,
            overflowed: false,
            no_memory: None,
        }
    }

    /// The canonical offset of an input offset that lies in the pending run or at its end.
    #[inline]
    pub fn offset(&self, at: usize) -> usize {
        self.out_len + (at - self.run_start)
    }

    /// Whether nothing was edited so far.
    pub fn is_verbatim(&self) -> bool {
        self.run_start == 0
    }

    /// Whether bytes are missing already, because of the limit or for want of memory.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.overflowed
    }

    /// Drops blanks.
    #[inline(always)]
    pub fn drop_blanks(&mut self, range: Range<usize>) {
        let run_len = range.start - self.run_start;
        // Short runs are the rule in spaced text: a copy of fixed length costs next to nothing. What
        // it writes too much is written over later.
        if run_len <= SHORT && self.out_len + run_len <= CANONICAL_MAX_BYTES && !self.overflowed {
            let from = self.input[self.run_start..].first_chunk::<SHORT>();
            let to = self.out.get_mut(self.out_len..).and_then(|out| out.first_chunk_mut());
            if let (Some(from), Some(to)) = (from, to) {
                *to = *from;
                self.out_len += run_len;
                self.run_start = range.end;
                return;
            }
        }
        self.edit(range, b"");
    }

    /// Drops the spaces of a range, in an input of 64 bytes at least.
    #[inline(always)]
    pub fn drop_spaces<L: Lanes>(&mut self, range: Range<usize>) {
        let input = self.input;
        let mut start = range.start;
        while start < range.end {
            let spaces = match (input[start..].first_chunk(), input.last_chunk()) {
                (Some(block), _) => L::spaces(block),
                // The end of a block that begins before it.
                (None, Some(block)) => L::spaces(block) >> (64 - (input.len() - start)),
                (None, None) => break,
            };
            let is_inside = u64::MAX >> (64 - (range.end - start).min(64));
            let mut spaces = spaces & is_inside;
            while spaces != 0 {
                let space = start + spaces.trailing_zeros() as usize;
                self.drop_blanks(space..space + 1);
                spaces &= spaces - 1;
            }
            start += 64;
        }
    }

    /// Writes an escape in its shortest form.
    pub fn shorten_escape(&mut self, text_start: usize, range: Range<usize>, character: char) {
        let mut buffer = [0; 6];
        let shortest = text::canonical_text(character, &mut buffer);
        if self.input[range.clone()] != *shortest {
            if text_start >= self.run_start {
                self.edited_text_start = self.offset(text_start);
            }
            self.edit(range, shortest);
        }
    }

    /// The canonical range of a string's inside, just read.
    #[inline]
    pub fn text_range(&mut self, text: Text) -> Range<usize> {
        let end = self.offset(text.end);
        if text.start >= self.run_start {
            return self.offset(text.start)..end;
        }
        // Edited: its first part was written; write the rest, so that it lies in one place.
        self.edit(text.end..text.end, b"");
        self.edited_text_start..end
    }

    /// The bytes of a range below [`CANONICAL_MAX_BYTES`] that `text_range` gave.
    #[inline]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        if range.end <= self.out_len {
            &self.out[..self.out_len][range]
        } else {
            let run_offset = self.run_start;
            &self.input
                [run_offset + range.start - self.out_len..run_offset + range.end - self.out_len]
        }
    }

    /// Ends the pending run before `range`, which is replaced by `with`.
    #[inline(never)]
    fn edit(&mut self, range: Range<usize>, with: &[u8]) {
        let run = &self.input[self.run_start..range.start];
        let start = self.out_len;
        self.run_start = range.end;
        self.out_len += run.len() + with.len();
        if self.overflowed || self.out_len > CANONICAL_MAX_BYTES {
            self.overflowed = true;
            return;
        }
        if self.out.is_empty() {
            // Once for all scans that use this scratch.
            if let Err(error) = self.out.try_reserve_exact(OUT_BYTES) {
                self.overflowed = true;
                self.no_memory = Some(error);
                return;
            }
            self.out.resize(OUT_BYTES, 0);
        }
        self.out[start..start + run.len()].copy_from_slice(run);
        self.out[start + run.len()..self.out_len].copy_from_slice(with);
    }

    /// The length of the whole, once the input was scanned to its end.
    pub fn len_at_end(&self) -> usize {
        self.offset(self.input.len())
    }

    /// The memory that could not be had, if any was needed.
    pub fn no_memory(&mut self) -> Option<TryReserveError> {
        self.no_memory.take()
    }

    /// A copy of the whole canonical form, of at most [`CANONICAL_MAX_BYTES`].
    pub fn to_vec(&self) -> Result<Vec<u8>, TryReserveError> {
        debug_assert!(!self.overflowed, "an overflowed form is not complete");
        let mut whole = Vec::new();
        whole.try_reserve_exact(self.len_at_end())?;
        if self.out_len > 0 {
            whole.extend_from_slice(&self.out[..self.out_len]);
        }
        whole.extend_from_slice(&self.input[self.run_start..]);
        Ok(whole)
    }
}
