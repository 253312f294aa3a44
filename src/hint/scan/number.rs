//! Numbers: where one ends (RFC 8259), and whether its value is one that a hint may hold.

use std::ops::Range;

use super::lanes::Lanes;
use super::{runs, NotJson};

/// A number's text, by offsets into the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// First byte: a sign or a digit.
    pub start: usize,
    /// First digit.
    pub digits: usize,
    /// After the digits before a point or exponent.
    pub whole_end: usize,
    /// After the digits behind the point; `whole_end` if there is no point.
    pub fraction_end: usize,
    /// After the last byte.
    pub end: usize,
    /// What the exponent says, as far as [`FAR`]; 0 if there is none.
    pub exponent: i64,
}

impl Number {
    /// The integer that consists of these digits.
    #[inline]
    pub fn of_digits(digits: Range<usize>) -> Self {
        let Range { start, end } = digits;
        Self { start, digits: start, whole_end: end, fraction_end: end, end, exponent: 0 }
    }

    /// Reads the number at `input[start]`, which is a minus sign or a digit.
    #[inline(always)]
    pub fn read<L: Lanes>(input: &[u8], start: usize) -> Result<Self, NotJson> {
        let digits = start + usize::from(input.get(start) == Some(&b'-'));
        let whole_end = match input.get(digits) {
            Some(b'0') => digits + 1,
            Some(b'1'..=b'9') => runs::digits_end::<L>(input, digits + 1),
            _ => return Err(NotJson),
        };
        let mut number = Self { digits, start, ..Self::of_digits(digits..whole_end) };
        if matches!(input.get(whole_end), Some(b'.' | b'e' | b'E')) {
            number.read_fraction_and_exponent::<L>(input)?;
        }
        Ok(number)
    }

    #[inline(always)]
    fn read_fraction_and_exponent<L: Lanes>(&mut self, input: &[u8]) -> Result<(), NotJson> {
        if input.get(self.end) == Some(&b'.') {
            self.end = some_digits_end::<L>(input, self.end + 1)?;
            self.fraction_end = self.end;
        }
        if matches!(input.get(self.end), Some(b'e' | b'E')) {
            self.read_exponent(input)?;
        }
        Ok(())
    }

    /// Exponents are short where they mean something: one digit after the other.
    #[inline(always)]
    fn read_exponent(&mut self, input: &[u8]) -> Result<(), NotJson> {
        let sign = input.get(self.end + 1);
        let start = self.end + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
        let (mut at, mut size) = (start, 0);
        while let Some(digit @ b'0'..=b'9') = input.get(at) {
            size = (size * 10 + i64::from(digit - b'0')).min(FAR);
            at += 1;
        }
        self.exponent = if sign == Some(&b'-') { -size } else { size };
        self.end = at;
        if at > start {
            Ok(())
        } else {
            Err(NotJson)
        }
    }

    /// Whether the text has neither point nor exponent.
    #[inline]
    pub fn is_integer(&self) -> bool {
        self.end == self.whole_end
    }

    /// Whether the value is an integer in -2^63 ..= 2^64-1, or a float that is finite once rounded
    /// to the nearest f64.
    #[inline]
    pub fn is_in_range(&self, input: &[u8]) -> bool {
        if !self.is_integer() {
            // The first digit stands for less than the power of ten that the text seems to say.
            let most = (self.whole_end - self.digits) as i64 + self.exponent;
            return most <= OVERFLOW_MAGNITUDE || self.is_finite(input);
        }
        // Leading zeros are no JSON, so the length decides nearly always.
        let digits = &input[self.digits..self.whole_end];
        if self.digits > self.start {
            digits.len() < 19 || (digits.len() == 19 && digits <= b"9223372036854775808".as_slice())
        } else {
            fits_u64(digits)
        }
    }

    /// Compares the decimal digits with the least number that rounds to infinity; nothing is
    /// converted, so the time is linear in the text and the answer exact.
    fn is_finite(&self, input: &[u8]) -> bool {
        let mut whole = &input[self.digits..self.whole_end];
        let point = (self.whole_end + 1).min(self.fraction_end);
        let mut fraction = &input[point..self.fraction_end];
        // The power of ten that the first significant digit stands for.
        let mut magnitude = whole.len() as i64 - 1 + self.exponent;
        if whole == b"0" {
            let zeros = fraction.iter().take_while(|digit| **digit == b'0').count();
            if zeros == fraction.len() {
                return true;
            }
            (whole, fraction) = (&[], &fraction[zeros..]);
            magnitude -= zeros as i64 + 1;
        }
        if magnitude != OVERFLOW_MAGNITUDE {
            return magnitude < OVERFLOW_MAGNITUDE;
        }
        let mut expected = OVERFLOW_DIGITS.iter();
        for digit in whole.iter().chain(fraction) {
            match expected.next() {
                Some(expected) if digit == expected => {}
                Some(expected) => return digit < expected,
                // The number at the halfway point itself rounds up, and so does all above it.
                None => return false,
            }
        }
        // Zeros follow; among the digits they are compared with, some are greater.
        expected.len() > 0
    }
}

/// Whether digits without leading zeros are at most 2^64-1.
#[inline]
pub fn fits_u64(digits: &[u8]) -> bool {
    match digits {
        // Twenty digits need a look only if they begin with 18 or more.
        [first, second, ..] if digits.len() == 20 => {
            (*first == b'1' && *second < b'8') || digits <= b"18446744073709551615".as_slice()
        }
        _ => digits.len() < 20,
    }
}

#[inline(always)]
fn some_digits_end<L: Lanes>(input: &[u8], at: usize) -> Result<usize, NotJson> {
    match input.get(at) {
        Some(b'0'..=b'9') => Ok(runs::digits_end::<L>(input, at + 1)),
        _ => Err(NotJson),
    }
}

/// No text is so long that it makes up for an exponent beyond this.
const FAR: i64 = 1 << 40;

/// 2^1024 - 2^970, halfway between the greatest f64 and the next power of two, rounds to infinity.
/// Its first digit stands for this power of ten …
const OVERFLOW_MAGNITUDE: i64 = 308;

/// … and these are its digits.
const OVERFLOW_DIGITS: &[u8; 309] = b"\
179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017\
977587207096330286416692887910946555547851940402630657488671505820681908902000708383676273\
854845817711531764475730270069855571366959622842914819860834936475292719074168444365510704\
342711559699508093042880177904174497792";

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Option<Number> {
        Number::read::<Portable>(text.as_bytes(), 0).ok().filter(|number| number.end == text.len())
    }

    #[test]
    fn the_grammar_is_that_of_the_rfc() {
        for text in ["0", "-0", "10", "0.5", "1e5", "1E+5", "-1.50e-07", "0e0"] {
            assert!(whole(text).is_some(), "{text}");
        }
        for text in ["", "-", "+1", "00", "01", "1.", ".5", "1e", "1e+", "0x10", "1.e5"] {
            assert!(whole(text).is_none(), "{text}");
        }
    }

    #[test]
    fn overflow_begins_at_the_halfway_point() {
        let digits = std::str::from_utf8(OVERFLOW_DIGITS).expect("digits");
        let just_below = format!("{}1.9", &digits[..308]);
        for text in [format!("{digits}.0"), format!("0.{digits}e309"), "1e309".to_owned()] {
            assert_eq!(text.parse(), Ok(f64::INFINITY));
            assert!(!whole(&text).expect("a number").is_in_range(text.as_bytes()), "{text}");
        }
        for text in [just_below, "0e999999999999999999999".to_owned()] {
            assert!(text.parse::<f64>().expect("a number").is_finite());
            assert!(whole(&text).expect("a number").is_in_range(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn ranges_agree_with_the_standard_library(
            text in "-?(0|[1-9][0-9]{0,24}|1797693134862315[0-9]{290,295})(\\.[0-9]{1,22})?([eE][+-]?[0-9]{1,3})?"
        ) {
            let number = whole(&text).expect("a number by the grammar");
            let expected = if text.contains(['.', 'e', 'E']) {
                text.parse::<f64>().expect("a number").is_finite()
            } else {
                text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok()
            };
            prop_assert_eq!(number.is_in_range(text.as_bytes()), expected);
        }
    }
}
