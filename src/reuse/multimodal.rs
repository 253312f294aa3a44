//! Where multimodal items lie in a sequence, and what of them each block covers.
//!
//! Guards: runs are within the tokens they came with and do not overlap, so that the work for all
//! blocks is linear in blocks and runs. A block gets the keys of its own token range only. Memory is
//! asked for when runs are added; looking at a block's keys needs none.

use std::ops::Range;

use super::error::ReuseError;
use super::key::{self, MmKey};

/// One run of a multimodal item: an image may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmItem {
    /// What the item is.
    pub hash: [u8; 32],
    /// First token of the run, counted from the sequence's first token.
    pub start: u32,
    /// Tokens of the run; not 0.
    pub length: u32,
    /// Place inside the item of the run's first token.
    pub item_offset: u32,
}

impl MmItem {
    fn tokens(&self) -> Range<usize> {
        // On the 64-bit machines we run on the sum of two u32 fits.
        self.start as usize..self.start as usize + self.length as usize
    }
}

/// A run and its place in the order in which the host listed them.
#[derive(Debug, Clone, Copy)]
struct Run {
    item: MmItem,
    rank: usize,
}

/// All runs of a sequence.
#[derive(Debug, Clone)]
pub(super) struct MmRuns {
    tokens_per_block: usize,
    /// By first token.
    runs: Vec<Run>,
    /// Indices into `runs`, by the block that the run begins in, then by rank.
    listed: Vec<u32>,
}

/// The multimodal keys of one block, in the order in which the host listed the runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct MmKeys<'a> {
    runs: &'a [Run],
    /// Those that begin in the block.
    listed: &'a [u32],
    /// The one that began in an earlier block.
    reaching_in: Option<&'a Run>,
    start: usize,
    end: usize,
}

impl<'a> MmKeys<'a> {
    /// Of a block of text.
    pub(super) const NONE: Self =
        Self { runs: &[], listed: &[], reaching_in: None, start: 0, end: 0 };

    pub(super) fn iter(self) -> impl Iterator<Item = MmKey> + 'a {
        let mut listed = self
            .listed
            .iter()
            .map(move |index| &self.runs[*index as usize])
            .filter(move |run| (run.item.start as usize) < self.end)
            .peekable();
        let mut reaching_in = self.reaching_in;
        std::iter::from_fn(move || {
            let run = match (reaching_in, listed.peek()) {
                (Some(earlier), Some(next)) if next.rank < earlier.rank => listed.next(),
                (Some(_), _) => reaching_in.take(),
                (None, _) => listed.next(),
            };
            run.map(|Run { item, .. }| {
                let skipped = self.start.saturating_sub(item.start as usize);
                MmKey { item_hash: item.hash, offset: u64::from(item.item_offset) + skipped as u64 }
            })
        })
    }

    pub(super) fn count(self) -> usize {
        self.iter().count()
    }
}

impl MmRuns {
    pub(super) fn new(tokens_per_block: usize) -> Self {
        Self { tokens_per_block, runs: Vec::new(), listed: Vec::new() }
    }

    pub(super) fn copied(&self) -> Result<Self, ReuseError> {
        let (runs, listed) = (key::boxed(&self.runs)?, key::boxed(&self.listed)?);
        let tokens_per_block = self.tokens_per_block;
        Ok(Self { tokens_per_block, runs: runs.into_vec(), listed: listed.into_vec() })
    }

    /// Checks that runs which come with the tokens `within` can be added.
    pub(super) fn check(items: &[MmItem], within: Range<usize>) -> Result<Vec<usize>, ReuseError> {
        let mut by_start = Vec::new();
        by_start.try_reserve_exact(items.len())?;
        by_start.extend(0..items.len());
        by_start.sort_unstable_by_key(|index| (items[*index].start, *index));
        let mut free_from = within.start;
        for index in &by_start {
            let tokens = items[*index].tokens();
            if tokens.is_empty() || tokens.start < free_from || tokens.end > within.end {
                return Err(ReuseError::MultimodalRun { index: *index });
            }
            free_from = tokens.end;
        }
        Ok(by_start)
    }

    pub(super) fn try_reserve(&mut self, additional: usize) -> Result<(), ReuseError> {
        self.runs.try_reserve(additional)?;
        Ok(self.listed.try_reserve(additional)?)
    }

    /// Adds runs that passed `check`, which gave their order.
    pub(super) fn extend(&mut self, items: &[MmItem], by_start: &[usize]) {
        // Each run has a token of its own, so a u32 counts them all.
        let first_rank = self.runs.len();
        self.runs.extend(
            by_start.iter().map(|index| Run { item: items[*index], rank: first_rank + index }),
        );
        self.listed.extend(first_rank as u32..self.runs.len() as u32);
        // Those that were there have lower ranks, and none of them begins in a later block.
        let (runs, tokens_per_block) = (&self.runs, self.tokens_per_block);
        self.listed[first_rank..].sort_unstable_by_key(|index| {
            let run = &runs[*index as usize];
            (run.item.start as usize / tokens_per_block, run.rank)
        });
    }

    /// The first token from `token` on that a run covers.
    pub(super) fn next_covered(&self, token: usize) -> Option<usize> {
        // Runs do not overlap: their ends are in the order of their starts.
        let next = self.runs.partition_point(|run| run.item.tokens().end <= token);
        Some(self.runs.get(next)?.item.tokens().start.max(token))
    }

    /// The multimodal keys of the tokens `range`, which begins where a block does and ends in it.
    pub(super) fn keys(&self, range: Range<usize>) -> MmKeys<'_> {
        debug_assert!(range.is_empty() || range.start.is_multiple_of(self.tokens_per_block));
        let begins_before =
            |token: usize| self.runs.partition_point(|run| (run.item.start as usize) < token);
        let first = begins_before(range.start);
        let last = begins_before(range.start + self.tokens_per_block);
        let reaching_in = first.checked_sub(1).map(|before| &self.runs[before]);
        MmKeys {
            runs: &self.runs,
            listed: &self.listed[first..last],
            reaching_in: reaching_in.filter(|run| run.item.tokens().end > range.start),
            start: range.start,
            end: range.end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(start: u32, length: u32) -> MmItem {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&start.to_le_bytes());
        MmItem { hash, start, length, item_offset: start / 2 }
    }

    /// As the contract says it: the runs that cover a token of the range, in the listed order.
    fn expected(listed: &[MmItem], range: &Range<usize>) -> Vec<MmKey> {
        let covers = |item: &&MmItem| {
            let tokens = item.tokens();
            tokens.start < range.end && tokens.end > range.start
        };
        let key = |item: &MmItem| MmKey {
            item_hash: item.hash,
            offset: u64::from(item.item_offset)
                + range.start.saturating_sub(item.start as usize) as u64,
        };
        listed.iter().filter(covers).map(key).collect()
    }

    #[test]
    fn a_block_gets_the_runs_that_cover_it_in_the_listed_order() {
        // Several pieces, each listed out of order: runs across blocks, within one, and ends that
        // touch block ends.
        let pieces: [(usize, &[MmItem]); 4] = [
            (10, &[item(6, 4), item(0, 1), item(2, 3)]),
            (11, &[item(10, 1)]),
            (40, &[item(36, 4), item(12, 17), item(30, 2), item(11, 1), item(33, 1), item(32, 1)]),
            (64, &[item(63, 1), item(40, 20), item(61, 1), item(60, 1)]),
        ];
        for tokens_per_block in [1, 3, 4, 8, 64] {
            let mut runs = MmRuns::new(tokens_per_block);
            let (mut listed, mut from) = (Vec::new(), 0);
            for (to, items) in pieces {
                let by_start = MmRuns::check(items, from..to).expect("good runs");
                runs.try_reserve(items.len()).expect("memory");
                runs.extend(items, &by_start);
                listed.extend_from_slice(items);
                from = to;
                for block in 0..to.div_ceil(tokens_per_block) {
                    let start = block * tokens_per_block;
                    for end in start + 1..=to.min(start + tokens_per_block) {
                        let keys = runs.keys(start..end);
                        let expected = expected(&listed, &(start..end));
                        assert!(keys.iter().eq(expected.iter().copied()), "{start}..{end} of {to}");
                        assert_eq!(keys.count(), expected.len());
                    }
                }
            }
        }
    }
}
