//! The pins of one tree: who holds what, under ids that are never good twice.
//!
//! An id is a slot (24 bits) and a generation (40 bits). Each slot counts generations from a place
//! that the tree's seed decides, so that the id of another tree's pin is not an id here.
//! Guards: a released, stale or foreign id is refused and changes nothing.

use super::error::ReuseError;
use super::node::Slot;

/// One pin of one tree. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

const SLOT_BITS: u32 = 24;
const GENERATION_MASK: u64 = (1 << (64 - SLOT_BITS)) - 1;

/// Most pins of a tree at once.
pub(super) const MAX_PINS: usize = 1 << SLOT_BITS;

/// What a pin protects.
#[derive(Debug)]
pub(super) enum Pinned {
    /// A block of the full window and all before it.
    Prefix(Slot),
    /// Exactly these blocks of a sliding window.
    Blocks(Vec<Slot>),
}

#[derive(Debug)]
pub(super) struct Pin {
    /// Index of its window in the tree.
    pub(super) window: usize,
    pub(super) pinned: Pinned,
    /// When the holder should be done, on the host's clock.
    pub(super) lease_deadline_ns: Option<u64>,
}

#[derive(Debug)]
struct PinSlot {
    generation: u64,
    pin: Option<Pin>,
    /// Where `leased` has the slot, while its pin has a lease.
    leased_at: u32,
}

#[derive(Debug)]
pub(super) struct PinTable {
    seed: u64,
    slots: Vec<PinSlot>,
    free: Vec<u32>,
    /// Slots whose pin has a lease, in no order: who asks for expired ones walks nothing else.
    leased: Vec<u32>,
    live: usize,
}

impl PinTable {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, slots: Vec::new(), free: Vec::new(), leased: Vec::new(), live: 0 }
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pin> {
        self.slots.iter().filter_map(|slot| slot.pin.as_ref())
    }

    /// Makes room for one more pin.
    pub(super) fn reserve_one(&mut self) -> Result<(), ReuseError> {
        if self.live >= MAX_PINS {
            return Err(ReuseError::Limit { what: "live pins of a tree", limit: MAX_PINS });
        }
        self.leased.try_reserve(1)?;
        if self.free.is_empty() {
            self.slots.try_reserve(1)?;
            // So that giving a slot back needs no memory.
            self.free.try_reserve(self.slots.len() + 1)?;
        }
        Ok(())
    }

    /// Adds a pin; `reserve_one` has made room.
    pub(super) fn insert(&mut self, pin: Pin) -> PinId {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len() as u32;
            let generation = first_generation(self.seed, slot);
            self.slots.push(PinSlot { generation, pin: None, leased_at: 0 });
            slot
        });
        self.live += 1;
        let entry = &mut self.slots[slot as usize];
        if pin.lease_deadline_ns.is_some() {
            entry.leased_at = self.leased.len() as u32;
            self.leased.push(slot);
        }
        entry.pin = Some(pin);
        PinId(entry.generation << SLOT_BITS | u64::from(slot))
    }

    /// Takes a live pin out; its id is never good again.
    pub(super) fn remove(&mut self, id: PinId) -> Result<Pin, ReuseError> {
        let slot = id.0 as usize & (MAX_PINS - 1);
        let entry = self.slots.get_mut(slot).ok_or(ReuseError::NotLive)?;
        if entry.generation != id.0 >> SLOT_BITS {
            return Err(ReuseError::NotLive);
        }
        let pin = entry.pin.take().ok_or(ReuseError::NotLive)?;
        entry.generation = next_generation(entry.generation);
        let leased_at = entry.leased_at;
        self.free.push(slot as u32);
        self.live -= 1;
        if pin.lease_deadline_ns.is_some() {
            self.leased.swap_remove(leased_at as usize);
            if let Some(moved) = self.leased.get(leased_at as usize) {
                self.slots[*moved as usize].leased_at = leased_at;
            }
        }
        Ok(pin)
    }

    /// The live pins whose lease ended at `now_ns` or before.
    pub(super) fn expired(&self, now_ns: u64) -> impl Iterator<Item = PinId> + '_ {
        self.leased.iter().filter_map(move |slot| {
            let entry = &self.slots[*slot as usize];
            let deadline_ns = entry.pin.as_ref()?.lease_deadline_ns?;
            let id = PinId(entry.generation << SLOT_BITS | u64::from(*slot));
            (deadline_ns <= now_ns).then_some(id)
        })
    }
}

fn first_generation(seed: u64, slot: u32) -> u64 {
    // The finaliser of splitmix64: spreads seed and slot over all bits.
    let mut value = seed ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ (value >> 31)) & GENERATION_MASK).max(1)
}

fn next_generation(generation: u64) -> u64 {
    // Back at the start after 2^40 pins in one slot: weeks of nothing else.
    (generation.wrapping_add(1) & GENERATION_MASK).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin() -> Pin {
        Pin { window: 0, pinned: Pinned::Prefix(0), lease_deadline_ns: None }
    }

    #[test]
    fn an_id_is_good_once() {
        let mut table = PinTable::new(1);
        table.reserve_one().expect("room");
        let first = table.insert(pin());
        assert!(table.remove(first).is_ok());
        assert_eq!(table.remove(first).err(), Some(ReuseError::NotLive));
        table.reserve_one().expect("room");
        let second = table.insert(pin());
        assert_ne!(first, second, "the slot is used again, the id is not");
        assert_eq!(table.remove(first).err(), Some(ReuseError::NotLive));
        assert_eq!(table.live(), 1, "refused ids changed nothing");
        assert!(table.remove(second).is_ok());
    }

    #[test]
    fn ids_of_other_trees_are_refused() {
        let (mut ours, mut theirs) = (PinTable::new(1), PinTable::new(2));
        for table in [&mut ours, &mut theirs] {
            table.reserve_one().expect("room");
        }
        let id = ours.insert(pin());
        theirs.insert(pin());
        assert_eq!(theirs.remove(id).err(), Some(ReuseError::NotLive));
        assert_eq!(theirs.live(), 1);
    }

    #[test]
    fn made_up_ids_are_refused() {
        let mut table = PinTable::new(1);
        table.reserve_one().expect("room");
        let id = table.insert(pin());
        for made_up in [0, 1, u64::MAX, id.0 ^ 1, id.0 ^ (1 << 63), id.0 ^ (1 << SLOT_BITS)] {
            assert_eq!(table.remove(PinId(made_up)).err(), Some(ReuseError::NotLive));
        }
        assert_eq!(table.live(), 1);
    }

    #[test]
    fn only_live_pins_with_a_lease_are_walked() {
        let mut table = PinTable::new(1);
        let mut live: Vec<(PinId, Option<u64>)> = Vec::new();
        for step in 0..4000usize {
            // Grows, then shrinks, from changing places.
            if live.is_empty() || (step < 2500 && !step.is_multiple_of(3)) {
                let lease_deadline_ns = (!step.is_multiple_of(4)).then_some(step as u64);
                table.reserve_one().expect("room");
                live.push((table.insert(Pin { lease_deadline_ns, ..pin() }), lease_deadline_ns));
            } else {
                let (id, _) = live.swap_remove(step * 7 % live.len());
                table.remove(id).expect("live");
            }
            assert_eq!(table.leased.len(), live.iter().filter(|(_, at)| at.is_some()).count());
            if step.is_multiple_of(50) {
                let now_ns = step as u64 / 2;
                let is_expired = |at: &Option<u64>| at.is_some_and(|at| at <= now_ns);
                let expected = live.iter().filter(|(_, at)| is_expired(at)).map(|(id, _)| *id);
                let (mut expected, mut found): (Vec<_>, Vec<_>) =
                    (expected.collect(), table.expired(now_ns).collect());
                expected.sort();
                found.sort();
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn generations_wrap_to_one_never_to_zero() {
        assert_eq!(next_generation(GENERATION_MASK), 1);
        for seed in 0..1000 {
            assert!((1..=GENERATION_MASK).contains(&first_generation(seed, seed as u32)));
        }
    }
}
