//! Where each block's bytes lie: a block's id is its name for life, its slot in a memory pool is not.
//!
//! Offload and onboarding swap the slots of two blocks, and the host has to copy what is worth
//! keeping. Transfer threads look a pinned block's slot up without a lock. Guards: each slot of each tier belongs to exactly one block at all times.

use super::error::ReuseError;
use super::node::{BlockId, Tier};
use crate::sync::atomic::{fence, AtomicU32, Ordering};

/// One slot of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which pool.
    pub tier: Tier,
    /// Which slot of it, from 0.
    pub slot: u32,
}

/// A place in a word: the slot, and whether it is secondary in the lowest bit.
fn packed(place: Place) -> u32 {
    place.slot << 1 | u32::from(place.tier == Tier::Secondary)
}

fn unpacked(word: u32) -> Place {
    let tier = if word & 1 == 1 { Tier::Secondary } else { Tier::Primary };
    Place { tier, slot: word >> 1 }
}

/// The slots of one window's blocks. Any thread may look; only the owner moves blocks.
#[derive(Debug)]
pub(super) struct Slots {
    /// By id.
    places: Vec<AtomicU32>,
    primary: usize,
}

impl Slots {
    /// The ids `0..primary` in primary memory, those after them in secondary memory.
    pub(super) fn new(primary: usize, secondary: usize) -> Result<Self, ReuseError> {
        let mut places = Vec::new();
        places.try_reserve_exact(primary + secondary)?;
        let all = (0..primary + secondary).map(|id| first_place(id, primary));
        places.extend(all.map(|place| AtomicU32::new(packed(place))));
        Ok(Self { places, primary })
    }

    /// How many blocks there are, in both tiers.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn contains(&self, id: BlockId) -> bool {
        usize::try_from(id).is_ok_and(|id| id < self.places.len())
    }

    /// Where a block lies. For a block found in a tier of the tree, and pinned: where it stays.
    pub(super) fn place(&self, id: BlockId) -> Place {
        // Blocks move first and get their tier in the tree afterwards: who saw that tier sees the
        // move.
        fence(Ordering::Acquire);
        unpacked(self.places[id as usize].load(Ordering::Acquire))
    }

    /// For the owner, under its lock.
    pub(super) fn swap(&self, left: BlockId, right: BlockId) {
        let [left, right] = [left, right].map(|id| &self.places[id as usize]);
        let was_left = left.swap(right.load(Ordering::Relaxed), Ordering::AcqRel);
        right.store(was_left, Ordering::Release);
    }

    /// Checks that no slot belongs to two blocks.
    pub(super) fn verify(&self) -> Result<(), String> {
        let mut seen: Vec<Place> =
            self.places.iter().map(|word| unpacked(word.load(Ordering::Relaxed))).collect();
        seen.sort_by_key(|place| (place.tier == Tier::Secondary, place.slot));
        if seen.into_iter().eq((0..self.places.len()).map(|id| first_place(id, self.primary))) {
            return Ok(());
        }
        Err("a slot belongs to two blocks".to_owned())
    }
}

fn first_place(id: usize, primary: usize) -> Place {
    match id.checked_sub(primary) {
        None => Place { tier: Tier::Primary, slot: id as u32 },
        Some(slot) => Place { tier: Tier::Secondary, slot: slot as u32 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_change_slots_and_lose_none() {
        let slots = Slots::new(2, 1).expect("memory");
        slots.verify().expect("as made");
        slots.swap(0, 2);
        slots.swap(1, 0);
        slots.verify().expect("each slot once");
        assert_eq!(slots.place(1), Place { tier: Tier::Secondary, slot: 0 });
        assert_eq!(slots.place(2), Place { tier: Tier::Primary, slot: 0 });
        assert!(slots.contains(2) && !slots.contains(3) && !slots.contains(-1));
    }
}
