//! The host's blocks that are lent to attempts: which they are, and until when.
//!
//! A loan begins with its attempt. While the attempt can write, it counts against the limit; when
//! nothing can be written any more it does not, but delivered blocks stay lent, on a *lease*, until
//! they are claimed, given up, or have waited too long. Then the loan is dropped.
//!
//! Guards: no block is lent twice at a time; a loan counts and ends exactly once, on every path.
//! Never does: know what the blocks hold, or what the reuse tree does with them.

use std::collections::{HashSet, TryReserveError};
use std::sync::Arc;

use parking_lot::Mutex;

/// All loans of one transceiver.
#[derive(Debug)]
pub struct Loans {
    most_in_use: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: HashSet<i32>,
    in_use: usize,
}

/// Why blocks were not lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// As many loans as allowed are in use.
    Limit,
    /// A block is given twice.
    Repeated,
    /// A block is lent already.
    Lent,
    /// Memory could not be had.
    NoMemory,
}

impl From<TryReserveError> for Refusal {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Blocks lent to one attempt. Dropping it gives them back.
#[derive(Debug)]
pub struct Loan {
    loans: Arc<Loans>,
    blocks: Vec<i32>,
    is_in_use: bool,
}

impl Loans {
    /// No loans yet, and at most so many in use at once.
    pub fn new(most_in_use: usize) -> Self {
        Self { most_in_use, inner: Mutex::default() }
    }

    /// Loans whose attempts can still write.
    pub fn in_use(&self) -> usize {
        self.inner.lock().in_use
    }

    /// Blocks that are lent, those on a lease too.
    pub fn blocks(&self) -> usize {
        self.inner.lock().blocks.len()
    }

    /// Lends all of these blocks, or none.
    pub fn lend(self: &Arc<Self>, blocks: &[i32]) -> Result<Loan, Refusal> {
        let mut own = Vec::new();
        own.try_reserve_exact(blocks.len())?;
        own.extend_from_slice(blocks);
        let mut inner = self.inner.lock();
        if inner.in_use >= self.most_in_use {
            return Err(Refusal::Limit);
        }
        inner.blocks.try_reserve(blocks.len())?;
        for (index, id) in blocks.iter().enumerate() {
            if inner.blocks.insert(*id) {
                continue;
            }
            let lent_here = &blocks[..index];
            let is_repeated = lent_here.contains(id);
            lent_here.iter().for_each(|id| {
                inner.blocks.remove(id);
            });
            return Err(if is_repeated { Refusal::Repeated } else { Refusal::Lent });
        }
        inner.in_use += 1;
        drop(inner);
        Ok(Loan { loans: Arc::clone(self), blocks: own, is_in_use: true })
    }
}

impl Loan {
    /// Nothing can be written any more.
    pub fn end_use(&mut self) {
        if std::mem::replace(&mut self.is_in_use, false) {
            self.loans.inner.lock().in_use -= 1;
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.end_use();
        let mut inner = self.loans.inner.lock();
        self.blocks.iter().for_each(|id| {
            inner.blocks.remove(id);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_lent_once_and_a_refusal_lends_nothing() {
        let loans = Arc::new(Loans::new(2));
        let first = loans.lend(&[1, 2]).unwrap();
        assert_eq!(loans.lend(&[3, 2]).unwrap_err(), Refusal::Lent);
        assert_eq!(loans.lend(&[3, 4, 3]).unwrap_err(), Refusal::Repeated);
        assert_eq!((loans.blocks(), loans.in_use()), (2, 1));
        drop(first);
        assert_eq!((loans.blocks(), loans.in_use()), (0, 0));
        loans.lend(&[2, 3]).unwrap();
    }

    #[test]
    fn a_lease_keeps_the_blocks_and_frees_the_place() {
        let loans = Arc::new(Loans::new(1));
        let mut first = loans.lend(&[1]).unwrap();
        assert_eq!(loans.lend(&[2]).unwrap_err(), Refusal::Limit);
        first.end_use();
        first.end_use();
        assert_eq!((loans.blocks(), loans.in_use()), (1, 0));
        assert_eq!(loans.lend(&[1]).unwrap_err(), Refusal::Lent);
        let second = loans.lend(&[2]).unwrap();
        drop(first);
        assert_eq!((loans.blocks(), loans.in_use()), (1, 1));
        drop(second);
        assert_eq!((loans.blocks(), loans.in_use()), (0, 0));
    }
}
