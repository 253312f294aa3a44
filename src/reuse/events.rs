//! What happened to the blocks of a tree, for routers: a bounded list of numbered events.
//!
//! Guards: numbers grow by one with each event, so a reader sees whether it missed any; when the
//! list is full the oldest event goes, and the reader gets a *gap* in its place. Memory is asked for
//! once. A reader holds the lock for a few events at a time, so that whoever changes the tree does
//! not wait for it.
//! Never does: tell tokens. Blocks are known by their hashes.

use std::collections::VecDeque;

use super::error::ReuseError;
use super::node::{BlockId, Tier};
use crate::sync::Mutex;

/// Most events that a tree keeps for its reader.
pub const MAX_EVENTS: usize = 1 << 24;

/// Events moved under one hold of the lock.
const AT_ONCE: usize = 32;

/// A block in the tree, as a router knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its attention window, in tokens.
    pub window: i32,
    /// Its id.
    pub id: BlockId,
    /// Its block hash.
    pub hash: u64,
    /// The hash of the block before it; 0 for a first block.
    pub parent_hash: u64,
    /// Its place in the sequence.
    pub position: usize,
    /// Tokens in it.
    pub token_count: usize,
    /// The memory it lies in.
    pub tier: Tier,
    /// How much it is worth keeping.
    pub priority: u8,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The block came into the tree.
    Stored(StoredBlock),
    /// The block left it.
    Removed(StoredBlock),
    /// Its tier or priority changed; this is how it stands afterwards.
    Updated(StoredBlock),
    /// Events were lost: their reader came too late. List what is stored instead.
    Gap {
        /// How many, up to the event's number.
        lost: u64,
    },
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Grows by one with each; a gap has the number of the last one lost.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<EventKind>,
    /// The number of the event that comes next.
    next_number: u64,
    /// Events that went before the first one in `events` and were not read.
    lost: u64,
}

impl Ring {
    fn first_number(&self) -> u64 {
        self.next_number - self.events.len() as u64
    }

    fn pop(&mut self) -> Option<Event> {
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            return Some(Event { number: self.first_number() - 1, kind: EventKind::Gap { lost } });
        }
        let number = self.first_number();
        self.events.pop_front().map(|kind| Event { number, kind })
    }
}

/// The events that wait for their reader.
#[derive(Debug)]
pub(super) struct Events {
    capacity: usize,
    ring: Mutex<Ring>,
}

impl Events {
    /// Room for `capacity` events; none are kept for 0.
    pub(super) fn new(capacity: usize) -> Result<Self, ReuseError> {
        if capacity > MAX_EVENTS {
            return Err(ReuseError::Limit { what: "events kept for a reader", limit: MAX_EVENTS });
        }
        let mut events = VecDeque::new();
        events.try_reserve_exact(capacity)?;
        Ok(Self { capacity, ring: Mutex::new(Ring { events, next_number: 1, lost: 0 }) })
    }

    pub(super) fn is_on(&self) -> bool {
        self.capacity > 0
    }

    /// Adds an event. Where several threads change a tree, they call this in the order of their
    /// changes.
    pub(super) fn push(&self, kind: EventKind) {
        if !self.is_on() {
            return;
        }
        let mut ring = self.ring.lock();
        if ring.events.len() == self.capacity {
            ring.events.pop_front();
            ring.lost += 1;
        }
        ring.events.push_back(kind);
        ring.next_number += 1;
    }

    /// Moves up to `most` events to `each`, oldest first.
    pub(super) fn drain(&self, most: usize, mut each: impl FnMut(Event)) {
        let mut left = most;
        while left > 0 {
            let mut batch = [None; AT_ONCE];
            {
                let mut ring = self.ring.lock();
                batch.iter_mut().take(left).for_each(|event| *event = ring.pop());
            }
            let count = batch.iter().flatten().count();
            batch.into_iter().flatten().for_each(&mut each);
            if count < AT_ONCE.min(left) {
                return;
            }
            left -= count;
        }
    }

    /// The number of the last event, 0 before the first.
    pub(super) fn last_number(&self) -> u64 {
        self.ring.lock().next_number - 1
    }

    /// How many events wait, a gap counted as one.
    pub(super) fn waiting(&self) -> usize {
        let ring = self.ring.lock();
        ring.events.len() + usize::from(ring.lost > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(hash: u64) -> EventKind {
        EventKind::Stored(StoredBlock {
            window: 0,
            id: 1,
            hash,
            parent_hash: 0,
            position: 0,
            token_count: 4,
            tier: Tier::Primary,
            priority: 35,
        })
    }

    fn drained(events: &Events, most: usize) -> Vec<Event> {
        let mut all = Vec::new();
        events.drain(most, |event| all.push(event));
        all
    }

    #[test]
    fn events_are_numbered_and_read_once() {
        let events = Events::new(100).expect("memory");
        (0..70).for_each(|hash| events.push(stored(hash)));
        assert_eq!((events.waiting(), events.last_number()), (70, 70));
        let mut all = drained(&events, 1);
        all.extend(drained(&events, 40));
        all.extend(drained(&events, usize::MAX));
        let expected = (0..70).map(|hash| Event { number: hash + 1, kind: stored(hash) });
        assert!(all.into_iter().eq(expected));
        assert!(drained(&events, 5).is_empty());
    }

    #[test]
    fn what_a_late_reader_lost_is_a_gap() {
        for capacity in 1..5_u64 {
            let events = Events::new(capacity as usize).expect("memory");
            (0..7).for_each(|hash| events.push(stored(hash)));
            let lost = 7 - capacity;
            let gap = Event { number: lost, kind: EventKind::Gap { lost } };
            let kept = (lost..7).map(|hash| Event { number: hash + 1, kind: stored(hash) });
            assert_eq!(events.waiting() as u64, capacity + 1);
            assert!(drained(&events, 99).into_iter().eq(std::iter::once(gap).chain(kept)));
            events.push(stored(9));
            assert_eq!(drained(&events, 99), [Event { number: 8, kind: stored(9) }]);
        }
    }

    #[test]
    fn events_that_nobody_wants_are_not_kept() {
        let events = Events::new(0).expect("memory");
        events.push(stored(1));
        assert!(!events.is_on());
        assert_eq!((drained(&events, 9), events.waiting(), events.last_number()), (vec![], 0, 0));
        assert!(Events::new(MAX_EVENTS + 1).is_err());
    }
}
