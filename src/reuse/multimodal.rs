//! Where multimodal items lie in a sequence, and what of them each block covers.
//!
//! Guards: runs are within the tokens they came with and do not overlap, so that the work for all
//! blocks is linear in blocks and runs. A block gets the keys of its own token range only.

use std::ops::Range;

use super::error::ReuseError;
use super::key::MmKey;

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

/// All runs of a sequence, by first token.
#[derive(Debug, Default, Clone)]
pub(super) struct MmRuns {
    runs: Vec<Run>,
}

impl MmRuns {
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
        Ok(self.runs.try_reserve(additional)?)
    }

    /// Adds runs that passed `check`, which gave their order.
    pub(super) fn extend(&mut self, items: &[MmItem], by_start: &[usize]) {
        let first_rank = self.runs.len();
        self.runs.extend(
            by_start.iter().map(|index| Run { item: items[*index], rank: first_rank + index }),
        );
    }

    /// The multimodal keys of the tokens `range`, in the order in which the host listed the runs.
    pub(super) fn keys(&self, range: Range<usize>) -> Vec<MmKey> {
        let first = self.runs.partition_point(|run| run.item.tokens().end <= range.start);
        let mut covered: Vec<Run> = self.runs[first..]
            .iter()
            .take_while(|run| run.item.tokens().start < range.end)
            .copied()
            .collect();
        covered.sort_unstable_by_key(|run| run.rank);
        covered
            .iter()
            .map(|Run { item, .. }| {
                let skipped = range.start.saturating_sub(item.start as usize);
                MmKey { item_hash: item.hash, offset: u64::from(item.item_offset) + skipped as u64 }
            })
            .collect()
    }
}
