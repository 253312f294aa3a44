//! Where a run of like bytes ends: the loops in which a scan spends its time.
//!
//! 32 bytes at a time through [`Lanes`], which the compiler turns into wide registers or plain
//! integers; the last bytes of an input eight at a time. Each function looks at `input[at..]`,
//! returns the offset of the first byte that is not of its class (`input.len()` if there is none),
//! and accepts `at == input.len()`.

use super::lanes::{Lanes, Portable};

/// The top bit of each of eight bytes.
pub const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// Eight copies of one byte.
pub const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Top bits of the bytes that are not `0`..`9`.
pub fn not_digits(word: u64) -> u64 {
    let distance = word ^ eight(b'0');
    // Adding 118 reaches 128 from 10 on. A carry leaves only bytes that are marked anyway, and
    // disturbs only what comes after them, at which nobody looks.
    (distance.wrapping_add(eight(128 - 10)) | distance) & TOP_BITS
}

/// Top bits of the bytes that end a run of plain string text: quote, backslash, control, non-ASCII.
pub fn not_plain(word: u64) -> u64 {
    let low = word & !TOP_BITS;
    let printable = low + eight(128 - 0x20);
    let no_quote = (low ^ eight(b'"')) + eight(127);
    let no_backslash = (low ^ eight(b'\\')) + eight(127);
    (word | !(printable & no_quote & no_backslash)) & TOP_BITS
}

/// Top bits of the bytes that are not blanks.
pub fn not_blanks(word: u64) -> u64 {
    let low = word & !TOP_BITS;
    let no_space = (low ^ eight(b' ')) + eight(127);
    let no_tab = (low ^ eight(b'\t')) + eight(127);
    let no_line_feed = (low ^ eight(b'\n')) + eight(127);
    let no_return = (low ^ eight(b'\r')) + eight(127);
    (word | (no_space & no_tab & no_line_feed & no_return)) & TOP_BITS
}

/// A class of bytes, as a type, so that what it does is compiled into the loop.
trait Class {
    /// Marks the bytes outside of the class, one bit each.
    fn block<L: Lanes>(block: &[u8; 32]) -> u32;
    /// Marks the bytes outside of the class with their top bits.
    fn word(word: u64) -> u64;
}

struct Digits;
struct Plain;
struct Blanks;

impl Class for Digits {
    #[inline(always)]
    fn block<L: Lanes>(block: &[u8; 32]) -> u32 {
        L::not_digits(block)
    }
    #[inline(always)]
    fn word(word: u64) -> u64 {
        not_digits(word)
    }
}

impl Class for Plain {
    #[inline(always)]
    fn block<L: Lanes>(block: &[u8; 32]) -> u32 {
        L::not_plain(block)
    }
    #[inline(always)]
    fn word(word: u64) -> u64 {
        not_plain(word)
    }
}

impl Class for Blanks {
    #[inline(always)]
    fn block<L: Lanes>(block: &[u8; 32]) -> u32 {
        L::not_blanks(block)
    }
    #[inline(always)]
    fn word(word: u64) -> u64 {
        not_blanks(word)
    }
}

/// The loop all runs share.
#[inline(always)]
fn run_end<C: Class, L: Lanes>(input: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(chunk) = input[at..].first_chunk::<32>() {
        let found = C::block::<L>(chunk);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += 32;
    }
    while let Some(chunk) = input[at..].first_chunk::<8>() {
        let found = C::word(u64::from_le_bytes(*chunk));
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let tail = &input[at..];
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    // Only the bytes that are there count.
    let found = C::word(u64::from_le_bytes(last)) & !(u64::MAX << (tail.len() * 8));
    at + if found == 0 { tail.len() } else { found.trailing_zeros() as usize / 8 }
}

/// End of a run of decimal digits.
#[inline(always)]
pub fn digits_end<L: Lanes>(input: &[u8], at: usize) -> usize {
    // Short numbers are common, and long ones are met by the integers' own loop.
    for place in at..at + 4 {
        if !matches!(input.get(place), Some(b'0'..=b'9')) {
            return place;
        }
    }
    let at = at + 4;
    run_end::<Digits, L>(input, at)
}

/// End of a run of string text that stands for itself and needs no further look.
#[inline(always)]
pub fn plain_end<L: Lanes>(input: &[u8], at: usize) -> usize {
    run_end::<Plain, L>(input, at)
}

/// End of a run of blanks: space, tab, line feed, carriage return.
#[inline(always)]
pub fn blanks_end<L: Lanes>(input: &[u8], at: usize) -> usize {
    run_end::<Blanks, L>(input, at)
}

/// [`blanks_end`] for callers that are not compiled for wide registers.
pub fn portable_blanks_end(input: &[u8], at: usize) -> usize {
    blanks_end::<Portable>(input, at)
}

/// Whether the byte is a blank outside of strings.
#[inline]
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run function and the class it stands for.
    type Run = (fn(&[u8], usize) -> usize, fn(u8) -> bool);

    fn runs<L: Lanes>() -> [Run; 3] {
        [
            (digits_end::<L>, |byte| byte.is_ascii_digit()),
            (plain_end::<L>, |byte| matches!(byte, 0x20..=0x7f if byte != b'"' && byte != b'\\')),
            (blanks_end::<L>, is_blank),
        ]
    }

    fn check(runs: [Run; 3]) {
        for (run, belongs) in runs {
            let inside = (0..=255).find(|byte| belongs(*byte)).expect("no class is empty");
            for length in (0..18).chain([24, 25, 31, 32, 33, 40, 65]) {
                for place in 0..length {
                    for byte in 0..=255 {
                        let mut input = vec![inside; length];
                        input[place] = byte;
                        for from in [0, 1, 9].into_iter().filter(|from| *from <= length) {
                            let plain = (from..length).find(|at| !belongs(input[*at]));
                            assert_eq!(
                                run(&input, from),
                                plain.unwrap_or(length),
                                "{input:?} from {from}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn each_byte_at_each_place_ends_or_continues_a_run() {
        check(runs::<Portable>());
        #[cfg(target_arch = "x86_64")]
        if crate::hint::scan::lanes::Avx2::is_there() {
            check(runs::<crate::hint::scan::lanes::Avx2>());
        }
    }
}
