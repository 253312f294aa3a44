//! Runs of integers in an array, 64 bytes at a time: the usual bulk of a hint.
//!
//! Nothing is done for a single number. Each block becomes masks, one bit for each byte, and what
//! must hold of neighbours becomes shifts:
//!
//! ```text
//! bytes     1 8 4 4 , 7   ,   9 1      (least bit left)
//! digits    1 1 1 1 0 1 0 0 0 1 1
//! commas    0 0 0 0 1 0 0 1 0 0 0   each behind a digit, or behind a space behind one
//! spaces    0 0 0 0 0 0 1 0 1 0 0   each behind a comma, or between a digit and a comma
//! ```
//!
//! What stands behind twenty digits is a bit that is left when the bytes behind a digit are folded
//! onto each other by 1, 2, 4, 8 and 16 places. Only a number that begins with more than 17 is looked
//! at itself. Masks of the
//! block before are shifted in where a number lies on both.

use std::ops::Range;

use super::lanes::{Lanes, NumberMasks};
use super::number::fits_u64;

/// What was found from the place where an element begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integers {
    /// Integers without signs, each with a comma; at most one space before each, and one behind.
    pub range: Range<usize>,
    /// Whether all of them are at most 2^64-1.
    pub all_fit: bool,
    /// Whether there may be spaces among them.
    pub may_have_spaces: bool,
}

/// Masks of the block before.
#[derive(Clone, Copy, Default)]
struct Before {
    digits: u64,
    commas: u64,
    closing_spaces: u64,
    lone_zeros: u64,
    not_one: u64,
    from_eight: u64,
    /// Bytes behind two digits, four, eight.
    two: u64,
    four: u64,
    eight: u64,
}

/// `mask` moved up by `places`, with the last bits of the block before.
#[inline(always)]
fn moved(mask: u64, before: u64, places: u32) -> u64 {
    mask << places | before >> (64 - places)
}

/// The bits below the lowest one that is set.
#[inline(always)]
fn below_lowest(mask: u64) -> u64 {
    (mask & mask.wrapping_neg()).wrapping_sub(1)
}

/// The longest such run at `input[start..]`, in whole elements; empty if an element of another kind
/// comes first. Inputs of less than a block have none.
#[inline(always)]
pub fn integers<L: Lanes>(input: &[u8], start: usize) -> Integers {
    let found = Integers { range: start..start, all_fit: true, may_have_spaces: false };
    // An element may begin as if behind a comma.
    let before = Before { commas: 1 << 63, ..Before::default() };
    let mut run = Run { input, found, before };
    let mut at = start;
    while let Some(block) = input[at..].first_chunk::<64>() {
        if !run.goes_on(at, L::number_masks(block), || L::spaces(block)) {
            return run.found;
        }
        at += 64;
    }
    // What is left is the end of a block that begins before it.
    let known = 64 - (input.len() - at);
    if let (Some(block), ..64) = (input.last_chunk::<64>(), known) {
        run.goes_on(at, L::number_masks(block).behind(known), || L::spaces(block) >> known);
    }
    run.found
}

/// A run as far as it is known.
struct Run<'i> {
    input: &'i [u8],
    found: Integers,
    before: Before,
}

impl Run<'_> {
    /// Adds the block at `at`; whether the run may go on behind it.
    #[inline(always)]
    fn goes_on(&mut self, at: usize, masks: NumberMasks, spaces: impl FnOnce() -> u64) -> bool {
        let Self { input, found, before } = self;
        let NumberMasks { digits, zeros, not_one, from_eight, commas } = masks;
        let behind_digit = moved(digits, before.digits, 1);
        let lone_zeros = zeros & !behind_digit;
        let mut odd = (commas & !behind_digit) | (digits & moved(lone_zeros, before.lone_zeros, 1));
        let mut closing_spaces = 0;
        // Most hints have no blanks: all that spaces ask for is done only where there are some.
        if digits | commas != u64::MAX || before.closing_spaces != 0 {
            let spaces = spaces();
            closing_spaces = spaces & behind_digit;
            let behind_closing = moved(closing_spaces, before.closing_spaces, 1);
            odd = (odd & !(commas & behind_closing))
                | !(digits | commas | spaces)
                | (behind_closing & !commas)
                | (spaces & !(closing_spaces | moved(commas, before.commas, 1)));
            found.may_have_spaces |= spaces & below_lowest(odd) != 0;
        }
        let good = below_lowest(odd);

        let two = behind_digit & moved(digits, before.digits, 2);
        let four = two & moved(two, before.two, 2);
        let eight = four & moved(four, before.four, 4);
        let sixteen = eight & moved(eight, before.eight, 8);
        let twenty = sixteen & moved(four, before.four, 16);
        // What ends a number of twenty digits or more.
        let long = good & !digits & twenty;
        let too_long = long & moved(digits, before.digits, 21);
        let from_eighteen =
            moved(not_one, before.not_one, 20) | moved(from_eight, before.from_eight, 19);
        found.all_fit &= too_long == 0;
        let mut unsure = long & from_eighteen & !too_long;
        while unsure != 0 {
            let end = at + unsure.trailing_zeros() as usize;
            found.all_fit &= fits_u64(&input[end - 20..end]);
            unsure &= unsure - 1;
        }

        let good_commas = good & commas;
        if good_commas != 0 {
            found.range.end = at + 64 - good_commas.leading_zeros() as usize;
        }
        *before = Before {
            digits,
            commas,
            closing_spaces,
            lone_zeros,
            not_one,
            from_eight,
            two,
            four,
            eight,
        };
        odd == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;
    use proptest::prelude::*;

    /// The same, one byte after the other. Where it stops short of the blocks' end is its own affair,
    /// so the caller says how far to look.
    fn plainly(input: &[u8], end: usize) -> Option<(bool, bool)> {
        let (mut all_fit, mut has_spaces) = (true, false);
        let text = std::str::from_utf8(&input[..end]).ok()?;
        if text.is_empty() {
            return Some((all_fit, has_spaces));
        }
        for element in text.strip_suffix(',')?.split(',') {
            let digits = element.strip_prefix(' ').unwrap_or(element);
            let digits = digits.strip_suffix(' ').unwrap_or(digits);
            has_spaces |= digits != element;
            let well_formed = !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits == "0" || !digits.starts_with('0'));
            if !well_formed {
                return None;
            }
            all_fit &= digits.parse::<u64>().is_ok();
        }
        Some((all_fit, has_spaces))
    }

    fn check<L: Lanes>(input: &[u8]) -> Integers {
        let found = integers::<L>(input, 0);
        let end = found.range.end;
        let (all_fit, has_spaces) = plainly(input, end).expect("a run of integers");
        assert_eq!(found.all_fit, all_fit, "{:?}", String::from_utf8_lossy(input));
        assert!(found.may_have_spaces || !has_spaces);
        // One element more is another kind of element.
        if let Some(comma) = input[end..].iter().position(|byte| *byte == b',') {
            let longer = end + comma + 1;
            assert!(plainly(input, longer).is_none() || input.len() < 64);
        }
        found
    }

    fn check_all(input: &[u8]) {
        let _plain = check::<Portable>(input);
        #[cfg(target_arch = "x86_64")]
        if super::super::lanes::Avx2::is_there() {
            assert_eq!(check::<super::super::lanes::Avx2>(input), _plain);
        }
    }

    #[test]
    fn each_length_is_judged_at_each_place() {
        let numbers = [
            "0",
            "7",
            "1844674407370955161",
            "18446744073709551615",
            "18446744073709551616",
            "17999999999999999999",
            "18000000000000000000",
            "20000000000000000000",
            "99999999999999999999",
            "100000000000000000000",
            "00",
            "01",
            "1.5",
            "-1",
            "",
            " 1",
            "  1",
            "1 ",
            "1  ",
            " 1 ",
            "1 1",
            "18446744073709551616 ",
            " 0 ",
            " ",
            "  ",
            "x",
        ];
        for number in numbers {
            for before in 0..70 {
                let mut input = "9".repeat(before % 19 + 1) + ",";
                while input.len() < before {
                    input.insert_str(0, "1,");
                }
                input += number;
                input += ",";
                input += &"23,".repeat(50);
                check_all(input.as_bytes());
            }
        }
    }

    proptest! {
        #[test]
        fn runs_are_what_one_byte_after_the_other_says(
            elements in prop::collection::vec(
                prop_oneof![
                    8 => any::<u64>().prop_map(|value| value.to_string()),
                    4 => "[1-9][0-9]{17,21}",
                    4 => "1844674407370955[0-9]{4}",
                    2 => "[0-9]{1,3}",
                    1 => "[ 0-9,.e-]{0,4}",
                ],
                0..60,
            ),
            separator in prop::sample::select(vec![",", ", ", " ,", " , "]),
        ) {
            let text = elements.join(separator);
            check_all(text.as_bytes());
        }
    }
}
