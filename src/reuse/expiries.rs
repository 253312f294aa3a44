//! When the priorities of blocks end, in arbiter mode; the free queues have their own.
//!
//! An entry stays in the heap when its block gets another priority or leaves: the table says which
//! entry counts. Guards: a priority ends once, at the time that was said last; entries are bounded.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use siphasher::sip::SipHasher13;

use super::error::ReuseError;
use super::node::BlockId;

/// Most priorities of a tree that wait for their end.
const MAX_EXPIRIES: usize = 1 << 26;

/// Index of the window, and the block.
type Block = (usize, BlockId);

#[derive(Debug, Default)]
pub(super) struct Expiries {
    heap: BinaryHeap<Reverse<(u64, Block)>>,
    /// By block: when its priority ends.
    counted: HashMap<Block, u64, BuildHasherDefault<SipHasher13>>,
}

impl Expiries {
    /// Says when the priority of a block ends; `None`: not by itself.
    pub(super) fn set(
        &mut self,
        window_index: usize,
        id: BlockId,
        expiry_ns: Option<u64>,
    ) -> Result<(), ReuseError> {
        let block = (window_index, id);
        let Some(expiry_ns) = expiry_ns else {
            self.counted.remove(&block);
            return Ok(());
        };
        if self.heap.len() >= MAX_EXPIRIES {
            let limit = MAX_EXPIRIES;
            return Err(ReuseError::Limit { what: "priorities with a duration", limit });
        }
        self.heap.try_reserve(1)?;
        self.counted.try_reserve(1)?;
        self.heap.push(Reverse((expiry_ns, block)));
        self.counted.insert(block, expiry_ns);
        Ok(())
    }

    /// Takes out one that ends at `now_ns` or before.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<Block> {
        loop {
            let Reverse((expiry_ns, block)) = *self.heap.peek()?;
            if expiry_ns > now_ns {
                return None;
            }
            self.heap.pop();
            if self.counted.get(&block) == Some(&expiry_ns) {
                self.counted.remove(&block);
                return Some(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_by_time_and_not_early() {
        let mut expiries = Expiries::default();
        for (at, id) in [(7, 1), (3, 2), (5, 3)] {
            expiries.set(0, id, Some(at)).expect("memory");
        }
        assert_eq!(expiries.next(2), None);
        assert_eq!(expiries.next(5), Some((0, 2)));
        assert_eq!(expiries.next(5), Some((0, 3)));
        assert_eq!(expiries.next(5), None);
        assert_eq!(expiries.next(u64::MAX), Some((0, 1)));
        assert_eq!(expiries.next(u64::MAX), None);
    }

    #[test]
    fn what_was_said_last_counts() {
        let mut expiries = Expiries::default();
        for (id, at) in
            [(1, Some(3)), (1, Some(9)), (2, Some(3)), (2, None), (3, Some(4)), (3, Some(4))]
        {
            expiries.set(0, id, at).expect("memory");
        }
        assert_eq!(expiries.next(8), Some((0, 3)));
        assert_eq!(expiries.next(8), None);
        assert_eq!(expiries.next(9), Some((0, 1)));
        assert_eq!(expiries.next(u64::MAX), None);
    }
}
