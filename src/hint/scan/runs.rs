//! Where a run of like bytes ends: the loops in which a scan spends its time.
//!
//! Eight bytes at a time in a plain integer; wider registers can replace the bodies without anybody
//! noticing. Each function looks at `input[at..]`, returns the offset of the first byte that is not
//! of its class (`input.len()` if there is none), and accepts `at == input.len()`.

/// The top bit of each of eight bytes.
const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// Eight copies of one byte.
const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Top bits of the bytes that are not `0`..`9`.
fn not_digits(word: u64) -> u64 {
    let distance = word ^ eight(b'0');
    // Adding 118 reaches 128 from 10 on. A carry leaves only bytes that are marked anyway, and
    // disturbs only what comes after them, at which nobody looks.
    (distance.wrapping_add(eight(128 - 10)) | distance) & TOP_BITS
}

/// Top bits of the bytes that end a run of plain string text: quote, backslash, control, non-ASCII.
fn not_plain(word: u64) -> u64 {
    let low = word & !TOP_BITS;
    let printable = low + eight(128 - 0x20);
    let no_quote = (low ^ eight(b'"')) + eight(127);
    let no_backslash = (low ^ eight(b'\\')) + eight(127);
    (word | !(printable & no_quote & no_backslash)) & TOP_BITS
}

/// Top bits of the bytes that are ASCII.
fn ascii(word: u64) -> u64 {
    !word & TOP_BITS
}

/// Top bits of the bytes that are not blanks.
fn not_blanks(word: u64) -> u64 {
    let low = word & !TOP_BITS;
    let no_space = (low ^ eight(b' ')) + eight(127);
    let no_tab = (low ^ eight(b'\t')) + eight(127);
    let no_line_feed = (low ^ eight(b'\n')) + eight(127);
    let no_return = (low ^ eight(b'\r')) + eight(127);
    (word | (no_space & no_tab & no_line_feed & no_return)) & TOP_BITS
}

/// The loop all runs share: `stops` marks the top bits of bytes outside the class.
#[inline(always)]
fn run_end(input: &[u8], from: usize, stops: impl Fn(u64) -> u64) -> usize {
    let mut at = from;
    while let Some(word) = input[at..].first_chunk::<8>() {
        let found = stops(u64::from_le_bytes(*word));
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let tail = &input[at..];
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    // Only the bytes that are there count.
    let found = stops(u64::from_le_bytes(last)) & !(u64::MAX << (tail.len() * 8));
    at + if found == 0 { tail.len() } else { found.trailing_zeros() as usize / 8 }
}

/// End of a run of decimal digits.
#[inline]
pub fn digits_end(input: &[u8], at: usize) -> usize {
    // Most numbers in a hint are hashes of 17 to 20 digits: judged without a loop.
    if let Some(chunk) = input[at..].first_chunk::<24>() {
        let [first, second, third] = [0, 8, 16].map(|from| {
            let word: [u8; 8] = std::array::from_fn(|index| chunk[from + index]);
            not_digits(u64::from_le_bytes(word))
        });
        if first | second == 0 && third != 0 {
            return at + 16 + third.trailing_zeros() as usize / 8;
        }
    }
    run_end(input, at, not_digits)
}

/// End of a run of string text that stands for itself and needs no further look.
#[inline]
pub fn plain_end(input: &[u8], at: usize) -> usize {
    run_end(input, at, not_plain)
}

/// End of a run of non-ASCII bytes.
#[inline]
pub fn non_ascii_end(input: &[u8], at: usize) -> usize {
    run_end(input, at, ascii)
}

/// End of a run of blanks: space, tab, line feed, carriage return.
#[inline]
pub fn blanks_end(input: &[u8], at: usize) -> usize {
    run_end(input, at, not_blanks)
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

    const RUNS: [Run; 4] = [
        (digits_end, |byte| byte.is_ascii_digit()),
        (plain_end, |byte| matches!(byte, 0x20..=0x7f if byte != b'"' && byte != b'\\')),
        (non_ascii_end, |byte| !byte.is_ascii()),
        (blanks_end, is_blank),
    ];

    #[test]
    fn each_byte_at_each_place_ends_or_continues_a_run() {
        for (run, belongs) in RUNS {
            let inside = (0..=255).find(|byte| belongs(*byte)).expect("no class is empty");
            for length in (0..18).chain([24, 25, 33]) {
                for place in 0..length {
                    for byte in 0..=255 {
                        let mut input = vec![inside; length];
                        input[place] = byte;
                        for from in 0..=length.min(9) {
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
}
