//! The smallest of all ranks' values, for values that each rank knows by itself: at once, or begun and
//! asked for later, so that an executor's iteration waits for nobody.
//!
//! One reduction carries a preface and up to [`INLINE_VALUES`] values; more values take a second
//! one, which all ranks make or none, because all of them saw the same preface.
//!
//! Guards: a rank that is unwell or was called with bad input takes part all the same, and then all
//! ranks get the error. Ranks that give different counts learn of it; nothing is cut or padded.

use std::collections::TryReserveError;

use super::limits::MAX_AGREED_VALUES;
use super::round::{RoundError, Rounds};

/// Values that travel with the preface.
pub const INLINE_VALUES: usize = 61;

const PREFACE: usize = 3;

/// An agreement under way.
#[derive(Debug)]
pub(super) struct Agreement {
    first: [u64; PREFACE + INLINE_VALUES],
    inline_count: usize,
    further: Vec<u64>,
    /// The second reduction is under way.
    is_further: bool,
}

impl Agreement {
    fn of(values: &[u64], is_ready: bool) -> Result<Self, TryReserveError> {
        let (inline, rest) = values.split_at(values.len().min(INLINE_VALUES));
        let count = values.len() as u64;
        let mut first = [u64::MAX; PREFACE + INLINE_VALUES];
        // The smallest complement belongs to the largest count.
        first[..PREFACE].copy_from_slice(&[u64::from(is_ready), count, !count]);
        first[PREFACE..PREFACE + inline.len()].copy_from_slice(inline);
        let mut further = Vec::new();
        further.try_reserve_exact(rest.len())?;
        further.extend_from_slice(rest);
        Ok(Self { first, inline_count: inline.len(), further, is_further: false })
    }

    fn is_agreed(&self) -> bool {
        self.first[0] == 1 && self.first[1] == !self.first[2]
    }

    /// The result, once all of it is there.
    fn copy_to(&self, values: &mut [u64]) {
        let (inline, rest) = values.split_at_mut(self.inline_count);
        inline.copy_from_slice(&self.first[PREFACE..PREFACE + self.inline_count]);
        rest.copy_from_slice(&self.further);
    }

    fn count(&self) -> usize {
        self.inline_count + self.further.len()
    }
}

impl Rounds {
    /// All ranks, with equally many values: each becomes the smallest of all ranks'. `None` is a
    /// rank that has none to give; all ranks then get [`RoundError::Disagree`].
    pub fn min_reduce(&mut self, values: Option<&mut [u64]>) -> Result<(), RoundError> {
        let values = values.filter(|values| values.len() <= MAX_AGREED_VALUES);
        if self.agreement.is_some() {
            return Err(RoundError::AgreementOpen);
        }
        let mut agreement = self.agreement_of(values.as_deref());
        let agreed = self.in_step(|rounds| {
            rounds.communicator.min_reduce(&mut agreement.first)?;
            let agreed = agreement.is_agreed();
            if agreed && !agreement.further.is_empty() {
                rounds.communicator.min_reduce(&mut agreement.further)?;
            }
            Ok(agreed)
        })?;
        match values {
            Some(values) if agreed => agreement.copy_to(values),
            _ => return Err(RoundError::Disagree),
        }
        Ok(())
    }

    /// As [`min_reduce`](Rounds::min_reduce), but returns at once; [`poll_min`](Rounds::poll_min)
    /// brings the result. One at a time; rounds may come in between.
    pub fn begin_min(&mut self, values: Option<&[u64]>) -> Result<(), RoundError> {
        let values = values.filter(|values| values.len() <= MAX_AGREED_VALUES);
        if self.agreement.is_some() {
            return Err(RoundError::AgreementOpen);
        }
        let agreement = self.agreement_of(values);
        self.in_step(|rounds| Ok(rounds.communicator.begin_min_reduce(&agreement.first)?))?;
        self.agreement = Some(agreement);
        Ok(())
    }

    /// How many values the agreement under way has; `None` where none is.
    pub fn open_min_count(&self) -> Option<usize> {
        self.agreement.as_ref().map(Agreement::count)
    }

    /// Whether the agreement that was begun has come to its end; its result is written to `values`,
    /// of which there are as many as were given. Does not wait.
    pub fn poll_min(&mut self, values: &mut [u64]) -> Result<bool, RoundError> {
        if self.open_min_count() != Some(values.len()) {
            return Err(RoundError::NoAgreement);
        }
        let Some(agreement) = self.advance_min()? else { return Ok(false) };
        if !agreement.is_agreed() {
            return Err(RoundError::Disagree);
        }
        agreement.copy_to(values);
        Ok(true)
    }

    /// Waits until no agreement is under way: for a rank that will not ask for its result, and that the
    /// others need all the same.
    pub fn finish_min(&mut self) -> Result<(), RoundError> {
        while self.agreement.is_some() && self.advance_min()?.is_none() {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Takes the agreement under way a step further; gives it back when it is over.
    fn advance_min(&mut self) -> Result<Option<Agreement>, RoundError> {
        let Some(mut agreement) = self.agreement.take() else {
            return Err(RoundError::NoAgreement);
        };
        let is_over = self.in_step(|rounds| {
            let communicator = &mut rounds.communicator;
            if agreement.is_further {
                return Ok(communicator.poll_min_reduce(&mut agreement.further)?);
            }
            if !communicator.poll_min_reduce(&mut agreement.first)? {
                return Ok(false);
            }
            agreement.is_further = agreement.is_agreed() && !agreement.further.is_empty();
            if agreement.is_further {
                communicator.begin_min_reduce(&agreement.further)?;
            }
            Ok(!agreement.is_further)
        })?;
        if is_over {
            return Ok(Some(agreement));
        }
        self.agreement = Some(agreement);
        Ok(None)
    }

    /// Without memory for the values a rank takes part as one that has none.
    fn agreement_of(&self, values: Option<&[u64]>) -> Agreement {
        let is_ready = self.is_well() && values.is_some();
        Agreement::of(values.unwrap_or_default(), is_ready).unwrap_or_else(|_| Agreement {
            first: [0; PREFACE + INLINE_VALUES],
            inline_count: 0,
            further: Vec::new(),
            is_further: false,
        })
    }
}
