//! Which blocks of a request are worth keeping, by the range of tokens that a block begins in.

use super::error::ReuseError;
use super::free_queues::Retention;

/// Most ranges of a request.
pub const MAX_RETENTION_RANGES: usize = 65_536;

/// Blocks whose first token lies in `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionRange {
    /// First token.
    pub start: usize,
    /// The token after the last; `None`: to the end, and this is the last range.
    pub end: Option<usize>,
    /// What these blocks get.
    pub retention: Retention,
}

/// Refuses ranges that are empty, overlap, or of which one without an end is not the last.
pub(super) fn check(ranges: &[RetentionRange]) -> Result<(), ReuseError> {
    if ranges.len() > MAX_RETENTION_RANGES {
        let limit = MAX_RETENTION_RANGES;
        return Err(ReuseError::Limit { what: "retention ranges of a request", limit });
    }
    for range in ranges {
        range.retention.check()?;
    }
    let is_empty = |range: &RetentionRange| range.end.is_some_and(|end| end <= range.start);
    if let Some(index) = ranges.iter().position(is_empty) {
        return Err(ReuseError::RetentionRange { index });
    }
    // In the order of tokens, so that a block's range is found by bisection.
    let follows = |pair: &[RetentionRange]| pair[0].end.is_some_and(|end| end <= pair[1].start);
    match ranges.windows(2).position(|pair| !follows(pair)) {
        Some(index) => Err(ReuseError::RetentionRange { index: index + 1 }),
        None => Ok(()),
    }
}

/// What the block that begins with this token gets, if anything is said of it.
pub(super) fn at(ranges: &[RetentionRange], token: usize) -> Option<Retention> {
    let after = ranges.partition_point(|range| range.start <= token);
    let range = &ranges[after.checked_sub(1)?];
    range.end.is_none_or(|end| token < end).then_some(range.retention)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: usize, end: impl Into<Option<usize>>, priority: u8) -> RetentionRange {
        RetentionRange {
            start,
            end: end.into(),
            retention: Retention { priority, duration_ns: None },
        }
    }

    /// The priorities of the blocks of a prompt; -1 where nothing is said.
    fn priorities(ranges: &[RetentionRange], block: usize, tokens: usize) -> Vec<i32> {
        check(ranges).expect("good ranges");
        let priority = |token| at(ranges, token).map_or(-1, |found| i32::from(found.priority));
        (0..tokens).step_by(block).map(priority).collect()
    }

    #[test]
    fn a_block_gets_what_is_said_of_its_first_token() {
        let open = |start, priority| range(start, None, priority);
        for (ranges, block, tokens, expected) in [
            (vec![range(0, 64, 80), range(64, 128, 50)], 64, 256, vec![80, 50, -1, -1]),
            (vec![range(0, 63, 80), range(63, 127, 30)], 32, 127, vec![80, 80, 30, 30]),
            (vec![range(0, 1, 80), range(1, 2, 5)], 32, 128, vec![80, -1, -1, -1]),
            (vec![range(0, 128, 80)], 256, 192, vec![80]),
            (vec![range(0, 65, 80), range(65, 129, 30)], 64, 192, vec![80, 80, 30]),
            (vec![range(0, 64, 80), open(129, 50)], 64, 256, vec![80, -1, -1, 50]),
            (vec![range(0, 64, 80), range(66, 67, 50)], 64, 256, vec![80, -1, -1, -1]),
            (vec![range(127, 193, 80)], 64, 256, vec![-1, -1, 80, 80]),
            (vec![open(1, 80)], 64, 128, vec![-1, 80]),
            (vec![], 64, 128, vec![-1, -1]),
        ] {
            assert_eq!(priorities(&ranges, block, tokens), expected, "{ranges:?}");
        }
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        for (ranges, index) in [
            (vec![range(0, None, 1), range(70, 80, 1)], 1),
            (vec![range(64, 32, 1)], 0),
            (vec![range(5, 5, 1)], 0),
            (vec![range(0, 64, 1), range(30, 128, 1)], 1),
            (vec![range(64, 128, 1), range(0, 64, 1)], 1),
        ] {
            assert_eq!(check(&ranges), Err(ReuseError::RetentionRange { index }), "{ranges:?}");
        }
        assert_eq!(check(&[range(0, 1, 101)]), Err(ReuseError::Priority { found: 101 }));
        assert!(check(&vec![range(0, 1, 1); MAX_RETENTION_RANGES + 1]).is_err());
    }
}
