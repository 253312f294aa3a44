//! The smallest of all ranks' values, for values that each rank knows by itself.
//!
//! One reduction carries a preface and up to [`INLINE_VALUES`] values; more values take a second
//! one, which all ranks make or none, because all of them saw the same preface.
//!
//! Guards: a rank that is unwell or was called with bad input takes part all the same, and then all
//! ranks get the error. Ranks that give different counts learn of it; nothing is cut or padded.

use super::limits::MAX_AGREED_VALUES;
use super::round::{RoundError, Rounds};

/// Values that travel with the preface.
pub const INLINE_VALUES: usize = 61;

const PREFACE: usize = 3;

impl Rounds {
    /// All ranks, with equally many values: each becomes the smallest of all ranks'. `None` is a
    /// rank that has none to give; all ranks then get [`RoundError::Disagree`].
    pub fn min_reduce(&mut self, values: Option<&mut [u64]>) -> Result<(), RoundError> {
        let values = values.filter(|values| values.len() <= MAX_AGREED_VALUES);
        let is_ready = self.is_well() && values.is_some();
        let values = values.unwrap_or_default();
        let (inline, further) = values.split_at_mut(values.len().min(INLINE_VALUES));

        let count = (inline.len() + further.len()) as u64;
        let mut first = [u64::MAX; PREFACE + INLINE_VALUES];
        // The smallest complement belongs to the largest count.
        first[..PREFACE].copy_from_slice(&[u64::from(is_ready), count, !count]);
        first[PREFACE..PREFACE + inline.len()].copy_from_slice(inline);

        let agreed = self.in_step(|rounds| {
            rounds.communicator.min_reduce(&mut first)?;
            let agreed = first[0] == 1 && first[1] == !first[2];
            if agreed && !further.is_empty() {
                rounds.communicator.min_reduce(further)?;
            }
            Ok(agreed)
        })?;
        if !agreed {
            return Err(RoundError::Disagree);
        }
        inline.copy_from_slice(&first[PREFACE..PREFACE + inline.len()]);
        Ok(())
    }
}
