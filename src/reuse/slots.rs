//! Where each block's bytes lie: a block's id is its name for life, its slot in a memory pool is not.
//!
//! Offload and onboarding swap the slots of two blocks, and the host has to copy what is worth
//! keeping. Guards: each slot of each tier belongs to exactly one block at all times.

use super::error::ReuseError;
use super::node::{BlockId, Tier};

/// One slot of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which pool.
    pub tier: Tier,
    /// Which slot of it, from 0.
    pub slot: u32,
}

/// The slots of one window's blocks.
#[derive(Debug)]
pub(super) struct Slots {
    /// By id.
    places: Vec<Place>,
}

impl Slots {
    /// The ids `0..primary` in primary memory, those after them in secondary memory.
    pub(super) fn new(primary: usize, secondary: usize) -> Result<Self, ReuseError> {
        let mut places = Vec::new();
        places.try_reserve_exact(primary + secondary)?;
        places.extend((0..primary).map(|slot| Place { tier: Tier::Primary, slot: slot as u32 }));
        places
            .extend((0..secondary).map(|slot| Place { tier: Tier::Secondary, slot: slot as u32 }));
        Ok(Self { places })
    }

    /// How many blocks there are, in both tiers.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn contains(&self, id: BlockId) -> bool {
        usize::try_from(id).is_ok_and(|id| id < self.places.len())
    }

    pub(super) fn place(&self, id: BlockId) -> Place {
        self.places[id as usize]
    }

    pub(super) fn swap(&mut self, left: BlockId, right: BlockId) {
        self.places.swap(left as usize, right as usize);
    }

    /// Checks that no slot belongs to two blocks.
    pub(super) fn verify(&self, primary: usize) -> Result<(), String> {
        let mut seen = self.places.clone();
        seen.sort_by_key(|place| (place.tier == Tier::Secondary, place.slot));
        let expected = (0..self.places.len()).map(|index| match index.checked_sub(primary) {
            None => Place { tier: Tier::Primary, slot: index as u32 },
            Some(slot) => Place { tier: Tier::Secondary, slot: slot as u32 },
        });
        if seen.into_iter().eq(expected) {
            return Ok(());
        }
        Err("a slot belongs to two blocks".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_change_slots_and_lose_none() {
        let mut slots = Slots::new(2, 1).expect("memory");
        slots.verify(2).expect("as made");
        slots.swap(0, 2);
        slots.swap(1, 0);
        slots.verify(2).expect("each slot once");
        assert_eq!(slots.place(1), Place { tier: Tier::Secondary, slot: 0 });
        assert_eq!(slots.place(2), Place { tier: Tier::Primary, slot: 0 });
        assert!(slots.contains(2) && !slots.contains(3) && !slots.contains(-1));
    }
}
