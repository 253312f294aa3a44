//! The copies that the host has to make because blocks changed their slots, in their order.
//!
//! The library knows ids and slots, never bytes. Guards: copies are made in the order in which they
//! were asked for, since one's source may be another's destination; the list is bounded.

use std::collections::VecDeque;

use super::error::ReuseError;
use super::node::BlockId;
use super::slots::Place;

/// Why bytes are to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyReason {
    /// The block goes to secondary memory, so that its slot can be used.
    Offload,
    /// The block comes back to primary memory.
    Onboard,
    /// The block gets the leading tokens, or all, of another one, which stays.
    Reuse,
}

/// One copy from slot to slot of a window's pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The window.
    pub window: i32,
    /// The block whose bytes lie at `to` afterwards.
    pub id: BlockId,
    /// Why.
    pub reason: CopyReason,
    /// From here.
    pub from: Place,
    /// To here.
    pub to: Place,
    /// How many leading tokens count.
    pub token_count: usize,
}

/// The copies that the host has not made yet.
#[derive(Debug)]
pub(super) struct Copies {
    waiting: VecDeque<BlockCopy>,
    limit: usize,
}

impl Copies {
    pub(super) fn new(limit: usize) -> Self {
        Self { waiting: VecDeque::new(), limit }
    }

    /// Makes room for `count` more.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), ReuseError> {
        if count > self.limit.saturating_sub(self.waiting.len()) {
            let limit = self.limit;
            return Err(ReuseError::Limit { what: "copies that wait for the host", limit });
        }
        Ok(self.waiting.try_reserve(count)?)
    }

    /// Adds one; `reserve` has made room.
    pub(super) fn push(&mut self, copy: BlockCopy) {
        self.waiting.push_back(copy);
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &BlockCopy> {
        self.waiting.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the oldest, which was made.
    pub(super) fn pop(&mut self) -> Option<BlockCopy> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reuse::Tier;

    #[test]
    fn they_wait_in_order_and_within_the_limit() {
        let mut copies = Copies::new(2);
        let place = |slot| Place { tier: Tier::Primary, slot };
        for id in 0..2 {
            copies.reserve(1).expect("room");
            copies.push(BlockCopy {
                window: 0,
                id,
                reason: CopyReason::Reuse,
                from: place(0),
                to: place(1),
                token_count: 4,
            });
        }
        assert!(matches!(copies.reserve(1), Err(ReuseError::Limit { .. })));
        assert_eq!(copies.pop().map(|copy| copy.id), Some(0));
        copies.reserve(1).expect("room again");
        assert_eq!((copies.len(), copies.iter().len()), (1, 1));
    }
}
