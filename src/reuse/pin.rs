//! The pins of one tree: who holds what, under ids that are never good twice. No call takes a lock.
//!
//! An id is an entry's place (24 bits) and a generation (40 bits). Each entry counts generations from
//! a number that the tree's seed decides, so that the id of another tree's pin is not an id here. An
//! entry pins one node; a pin on several is a chain of entries, and only the first one's id is given
//! out.
//!
//! Entries that changed since protection was last accounted for form a stack, each at most once: a
//! pin that comes and goes in between costs the accounting nothing. Entries are reused while they
//! are in it, so the table is as large as the most pins at once.
//!
//! Guards: a released, stale or foreign id is refused and changes nothing. Order: a node is pinned,
//! then its entry is live, then changed; an entry is dead, then changed, then its node unpinned. So
//! whoever finds a node without pins finds all that accounts for it in the stack.

use super::chunks::Chunks;
use super::error::ReuseError;
use super::node::Slot;
use super::shard::{shard_index, SHARDS};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One pin of one tree. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

const PLACE_BITS: u32 = 24;
const GENERATION_MASK: u64 = (1 << (64 - PLACE_BITS)) - 1;

/// Most pins of a tree at once, a pin on several nodes counted as often.
pub(super) const MAX_PINS: usize = 1 << PLACE_BITS;

/// Entries in one chunk of memory; leases are counted for each.
const CHUNK_BITS: u32 = 10;
/// No lease.
const NO_DEADLINE: u64 = u64::MAX;

const DEAD: u64 = 0;
/// The first entry of a pin.
const FIRST: u64 = 1;
/// A further one.
const FURTHER: u64 = 2;
const KIND_BITS: u32 = 2;

/// A node that an entry pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// Index of the window in the tree.
    pub(super) window: usize,
    pub(super) slot: Slot,
}

impl Target {
    fn packed(self) -> u64 {
        (self.window as u64) << 32 | u64::from(self.slot)
    }
    /// `None` for no node: a slot is never 0.
    fn unpacked(packed: u64) -> Option<Self> {
        let target = Self { window: (packed >> 32) as usize, slot: packed as u32 };
        (target.slot != 0).then_some(target)
    }
}

/// An entry's place.
pub(super) type Place = u32;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// Generation, and whether it is live.
    word: AtomicU64,
    target: AtomicU64,
    lease_deadline_ns: AtomicU64,
    pinned_at_ns: AtomicU64,
    /// The node that the accounting counts this entry on. Only the writer's.
    accounted: AtomicU64,
    /// The rest of the chain; here and below places count from 1, and 0 is none.
    further: AtomicU32,
    next_free: AtomicU32,
    next_changed: AtomicU32,
    is_changed: AtomicU32,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// A count of changes, and the first free entry.
    free: AtomicU64,
    /// Pins made here less pins released here, wrapping.
    live: AtomicU64,
}

#[derive(Debug)]
pub(super) struct PinTable {
    seed: u64,
    entries: Chunks<Entry>,
    /// Live entries with a lease, by chunk.
    leased: Chunks<AtomicU32>,
    unused_from: AtomicU32,
    shards: [Shard; SHARDS],
    changed: AtomicU32,
}

impl PinTable {
    pub(super) fn new(seed: u64) -> Result<Self, ReuseError> {
        Ok(Self {
            seed,
            entries: Chunks::new(CHUNK_BITS, 1)?,
            leased: Chunks::new(6, 1)?,
            unused_from: AtomicU32::new(0),
            shards: Default::default(),
            changed: AtomicU32::new(0),
        })
    }

    fn entry(&self, place: Place) -> &Entry {
        self.entries.at(place as usize)
    }

    /// Live pins; a number of a moment while others pin.
    pub(super) fn live(&self) -> usize {
        let sum = self
            .shards
            .iter()
            .fold(0_u64, |sum, shard| sum.wrapping_add(shard.live.load(Ordering::Relaxed)));
        sum as usize
    }

    // ---- free entries ----

    fn take_free(&self, shard: &Shard) -> Option<Place> {
        let mut head = shard.free.load(Ordering::Acquire);
        loop {
            let place = (head as u32).checked_sub(1)?;
            let next = self.entry(place).next_free.load(Ordering::Relaxed);
            let changed = ((head >> 32).wrapping_add(1)) << 32 | u64::from(next);
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            match shard.free.compare_exchange_weak(head, changed, success, failure) {
                Ok(_) => return Some(place),
                Err(now) => head = now,
            }
        }
    }

    fn give_free(&self, place: Place) {
        let shard = &self.shards[shard_index()];
        let mut head = shard.free.load(Ordering::Relaxed);
        loop {
            self.entry(place).next_free.store(head as u32, Ordering::Relaxed);
            let changed = ((head >> 32).wrapping_add(1)) << 32 | u64::from(place + 1);
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match shard.free.compare_exchange_weak(head, changed, success, failure) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn take_unused(&self) -> Result<Place, ReuseError> {
        let mut place = self.unused_from.load(Ordering::Acquire);
        loop {
            if place as usize >= MAX_PINS {
                return Err(ReuseError::Limit { what: "live pins of a tree", limit: MAX_PINS });
            }
            self.entries.ensure(place as usize, "live pins of a tree")?;
            self.leased.ensure((place >> CHUNK_BITS) as usize, "live pins of a tree")?;
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            match self.unused_from.compare_exchange(place, place + 1, success, failure) {
                Ok(_) => break,
                Err(now) => place = now,
            }
        }
        let generation = first_generation(self.seed, place);
        self.entry(place).word.store(generation << KIND_BITS, Ordering::Release);
        Ok(place)
    }

    /// An entry for a pin to come.
    pub(super) fn take(&self) -> Result<Place, ReuseError> {
        let first = shard_index();
        let mut shards = (0..SHARDS).map(|step| &self.shards[(first + step) % SHARDS]);
        shards.find_map(|shard| self.take_free(shard)).map_or_else(|| self.take_unused(), Ok)
    }

    /// Gives back an entry that was taken and not made live.
    pub(super) fn give_back(&self, place: Place) {
        self.give_free(place);
    }

    // ---- pins ----

    /// Makes an entry live on a node that is pinned. `further`: the chain so far, of further entries.
    pub(super) fn publish_further(&self, place: Place, target: Target, further: Option<Place>) {
        self.publish(place, target, further, FURTHER, None, 0);
    }

    /// As `publish_further`, for the entry whose id is given out.
    pub(super) fn publish_first(
        &self,
        place: Place,
        target: Target,
        further: Option<Place>,
        lease_deadline_ns: Option<u64>,
        now_ns: u64,
    ) -> PinId {
        self.shards[shard_index()].live.fetch_add(1, Ordering::Relaxed);
        if lease_deadline_ns.is_some_and(|deadline_ns| deadline_ns != NO_DEADLINE) {
            let leased = self.leased.at((place >> CHUNK_BITS) as usize);
            leased.fetch_add(1, Ordering::AcqRel);
        }
        self.publish(place, target, further, FIRST, lease_deadline_ns, now_ns)
    }

    fn publish(
        &self,
        place: Place,
        target: Target,
        further: Option<Place>,
        kind: u64,
        lease_deadline_ns: Option<u64>,
        now_ns: u64,
    ) -> PinId {
        let entry = self.entry(place);
        // Released, each: a reader that sees one of them sees that the entry was dead before.
        entry.target.store(target.packed(), Ordering::Release);
        entry.further.store(further.map_or(0, |place| place + 1), Ordering::Relaxed);
        let deadline_ns = lease_deadline_ns.unwrap_or(NO_DEADLINE);
        entry.lease_deadline_ns.store(deadline_ns, Ordering::Release);
        entry.pinned_at_ns.store(now_ns, Ordering::Release);
        let generation = entry.word.load(Ordering::Relaxed) >> KIND_BITS;
        entry.word.store(generation << KIND_BITS | kind, Ordering::Release);
        self.mark_changed(place);
        PinId(generation << PLACE_BITS | u64::from(place))
    }

    /// Ends a live pin: its id is never good again. What it pinned comes out by `next_released`.
    pub(super) fn release(&self, id: PinId) -> Result<Place, ReuseError> {
        let place = (id.0 & (MAX_PINS as u64 - 1)) as Place;
        let generation = id.0 >> PLACE_BITS;
        let entry = self.entries.try_row(place as usize).ok_or(ReuseError::NotLive)?;
        let (live, dead) = (generation << KIND_BITS | FIRST, dead_after(generation));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        entry[0]
            .word
            .compare_exchange(live, dead, success, failure)
            .map_err(|_| ReuseError::NotLive)?;
        self.shards[shard_index()].live.fetch_sub(1, Ordering::Relaxed);
        if entry[0].lease_deadline_ns.load(Ordering::Relaxed) != NO_DEADLINE {
            self.leased.at((place >> CHUNK_BITS) as usize).fetch_sub(1, Ordering::AcqRel);
        }
        Ok(place)
    }

    /// The node of an entry of a released pin, and the next entry. The caller unpins the node.
    pub(super) fn next_released(&self, place: Place) -> (Option<Target>, Option<Place>) {
        let entry = self.entry(place);
        let word = entry.word.load(Ordering::Relaxed);
        if word & FURTHER != 0 {
            entry.word.store(dead_after(word >> KIND_BITS), Ordering::Release);
        }
        let target = Target::unpacked(entry.target.load(Ordering::Relaxed));
        let further = entry.further.load(Ordering::Relaxed).checked_sub(1);
        self.mark_changed(place);
        self.give_free(place);
        (target, further)
    }

    /// Whether the pin is live.
    pub(super) fn is_live(&self, id: PinId) -> bool {
        let entry = self.entries.try_row((id.0 & (MAX_PINS as u64 - 1)) as usize);
        let live = id.0 >> PLACE_BITS << KIND_BITS | FIRST;
        entry.is_some_and(|entry| entry[0].word.load(Ordering::Acquire) == live)
    }

    // ---- what changed, for the accounting ----

    fn mark_changed(&self, place: Place) {
        let entry = self.entry(place);
        if entry.is_changed.swap(1, Ordering::AcqRel) == 1 {
            return;
        }
        let mut head = self.changed.load(Ordering::Relaxed);
        loop {
            entry.next_changed.store(head, Ordering::Relaxed);
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            match self.changed.compare_exchange_weak(head, place + 1, success, failure) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Whether anything changed since the last `take_changed`.
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::SeqCst) != 0
    }

    /// All that changed, for the one writer: the first of a list that `next_changed` walks.
    pub(super) fn take_changed(&self) -> u32 {
        self.changed.swap(0, Ordering::SeqCst)
    }

    /// Takes the first entry off a list of `take_changed`. What it is accounted on, and what it
    /// should be.
    pub(super) fn next_changed(&self, list: &mut u32) -> Option<[Option<Target>; 2]> {
        let entry = self.entry(list.checked_sub(1)?);
        *list = entry.next_changed.load(Ordering::Relaxed);
        // Before looking: a change from here on marks the entry again.
        entry.is_changed.swap(0, Ordering::AcqRel);
        let now = loop {
            let word = entry.word.load(Ordering::Acquire);
            if word & (FIRST | FURTHER) == DEAD {
                break None;
            }
            let target = entry.target.load(Ordering::Acquire);
            if entry.word.load(Ordering::Relaxed) == word {
                break Target::unpacked(target);
            }
        };
        let before = entry.accounted.load(Ordering::Relaxed);
        entry.accounted.store(now.map_or(0, Target::packed), Ordering::Relaxed);
        Some([Target::unpacked(before), now])
    }

    // ---- leases ----

    /// The live pins whose lease ended at `now_ns` or before. Walks only chunks with leases.
    pub(super) fn expired(&self, now_ns: u64) -> Result<Vec<PinId>, ReuseError> {
        let mut expired = Vec::new();
        let entries = self.unused_from.load(Ordering::Acquire);
        for chunk in 0..entries.div_ceil(1 << CHUNK_BITS) {
            if self.leased.at(chunk as usize).load(Ordering::Acquire) == 0 {
                continue;
            }
            let first = chunk << CHUNK_BITS;
            for place in first..entries.min(first + (1 << CHUNK_BITS)) {
                let entry = self.entry(place);
                let found = self.while_live(place, || {
                    let deadline_ns = entry.lease_deadline_ns.load(Ordering::Acquire);
                    deadline_ns <= now_ns && deadline_ns != NO_DEADLINE
                });
                if let Some((id, true)) = found {
                    expired.try_reserve(1)?;
                    expired.push(id);
                }
            }
        }
        Ok(expired)
    }

    /// When the pin that lives longest was made; walks all entries.
    pub(super) fn first_pinned_at_ns(&self) -> Option<u64> {
        let entries = self.unused_from.load(Ordering::Acquire);
        let pinned_at = |place| {
            let read = || self.entry(place).pinned_at_ns.load(Ordering::Acquire);
            self.while_live(place, read).map(|(_, pinned_at_ns)| pinned_at_ns)
        };
        (0..entries).filter_map(pinned_at).min()
    }

    /// The id of a first entry and what `read` says of it, if it is live all the time.
    fn while_live<T>(&self, place: Place, read: impl Fn() -> T) -> Option<(PinId, T)> {
        let entry = self.entry(place);
        let word = entry.word.load(Ordering::Acquire);
        let value = (word & FIRST != 0).then(read)?;
        let is_same = entry.word.load(Ordering::Relaxed) == word;
        is_same.then(|| (PinId(word >> KIND_BITS << PLACE_BITS | u64::from(place)), value))
    }

    /// The nodes of all live entries; for `verify`, while nobody pins.
    pub(super) fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        (0..self.unused_from.load(Ordering::Acquire)).filter_map(|place| {
            let entry = self.entry(place);
            let is_live = entry.word.load(Ordering::Acquire) & (FIRST | FURTHER) != DEAD;
            Target::unpacked(entry.target.load(Ordering::Relaxed)).filter(|_| is_live)
        })
    }
}

fn dead_after(generation: u64) -> u64 {
    next_generation(generation) << KIND_BITS | DEAD
}

fn first_generation(seed: u64, place: Place) -> u64 {
    // The finaliser of splitmix64: spreads seed and place over all bits.
    let mut value = seed ^ u64::from(place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ (value >> 31)) & GENERATION_MASK).max(1)
}

fn next_generation(generation: u64) -> u64 {
    // Back at the start after 2^40 pins in one entry: weeks of nothing else.
    (generation.wrapping_add(1) & GENERATION_MASK).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { window: 3, slot: 9 };

    fn pin(table: &PinTable, lease_deadline_ns: Option<u64>) -> PinId {
        let place = table.take().expect("room");
        table.publish_first(place, TARGET, None, lease_deadline_ns, 5)
    }

    fn unpin(table: &PinTable, id: PinId) -> Result<usize, ReuseError> {
        let mut next = Some(table.release(id)?);
        let mut nodes = 0;
        while let Some(place) = next {
            let (target, further) = table.next_released(place);
            assert_eq!(target, Some(TARGET));
            nodes += 1;
            next = further;
        }
        Ok(nodes)
    }

    fn table() -> PinTable {
        PinTable::new(1).expect("memory")
    }

    #[test]
    fn an_id_is_good_once() {
        let table = table();
        let first = pin(&table, None);
        assert_eq!(unpin(&table, first), Ok(1));
        assert_eq!(unpin(&table, first), Err(ReuseError::NotLive));
        let second = pin(&table, None);
        assert_ne!(first, second, "the entry is used again, the id is not");
        assert_eq!(unpin(&table, first), Err(ReuseError::NotLive));
        assert_eq!(table.live(), 1, "refused ids changed nothing");
        assert_eq!(unpin(&table, second), Ok(1));
        assert_eq!(table.live(), 0);
    }

    #[test]
    fn ids_of_other_trees_and_made_up_ones_are_refused() {
        let (ours, theirs) = (table(), PinTable::new(2).expect("memory"));
        let id = pin(&ours, None);
        pin(&theirs, None);
        assert_eq!(unpin(&theirs, id), Err(ReuseError::NotLive));
        for made_up in [0, 1, u64::MAX, id.0 ^ 1, id.0 ^ (1 << 63), id.0 ^ (1 << PLACE_BITS)] {
            assert_eq!(unpin(&ours, PinId(made_up)), Err(ReuseError::NotLive));
        }
        assert_eq!((ours.live(), theirs.live()), (1, 1));
    }

    #[test]
    fn a_chain_has_one_id_and_comes_apart_as_a_whole() {
        let table = table();
        let mut further = None;
        let mut places = Vec::new();
        for _ in 0..3 {
            let place = table.take().expect("room");
            table.publish_further(place, TARGET, further);
            further = Some(place);
            places.push(place);
        }
        let place = table.take().expect("room");
        let id = table.publish_first(place, TARGET, further, None, 0);
        assert_eq!((table.live(), table.targets().count()), (1, 4));
        for place in places {
            let generation = first_generation(1, place);
            let inner = PinId(generation << PLACE_BITS | u64::from(place));
            assert_eq!(unpin(&table, inner), Err(ReuseError::NotLive), "not an id of its own");
        }
        assert_eq!(unpin(&table, id), Ok(4));
        assert_eq!((table.live(), table.targets().count()), (0, 0));
    }

    #[test]
    fn what_changed_is_told_once_and_only_as_it_is_in_the_end() {
        let table = table();
        let drain = || {
            let mut list = table.take_changed();
            std::iter::from_fn(|| table.next_changed(&mut list)).collect::<Vec<_>>()
        };
        let id = pin(&table, None);
        unpin(&table, id).expect("live");
        assert_eq!(drain(), [[None, None]]);
        let id = pin(&table, None);
        assert_eq!(drain(), [[None, Some(TARGET)]]);
        assert!(!table.has_changed());
        unpin(&table, id).expect("live");
        pin(&table, None);
        assert_eq!(drain(), [[Some(TARGET), Some(TARGET)]]);
    }

    #[test]
    fn expired_leases_are_those_of_live_pins_whose_time_is_over() {
        let table = table();
        let mut live: Vec<(PinId, Option<u64>)> = Vec::new();
        for step in 0..4000usize {
            // Grows, then shrinks, from changing places.
            if live.is_empty() || (step < 2500 && !step.is_multiple_of(3)) {
                let lease_deadline_ns = (!step.is_multiple_of(4)).then_some(step as u64);
                live.push((pin(&table, lease_deadline_ns), lease_deadline_ns));
            } else {
                let (id, _) = live.swap_remove(step * 7 % live.len());
                unpin(&table, id).expect("live");
            }
            if step.is_multiple_of(50) {
                let now_ns = step as u64 / 2;
                let is_expired = |at: &Option<u64>| at.is_some_and(|at| at <= now_ns);
                let expected = live.iter().filter(|(_, at)| is_expired(at)).map(|(id, _)| *id);
                let mut expected: Vec<_> = expected.collect();
                let mut found = table.expired(now_ns).expect("memory");
                expected.sort();
                found.sort();
                assert_eq!(found, expected);
                let leased: u32 =
                    (0..3).filter_map(|chunk| Some(get(&table.leased.try_row(chunk)?[0]))).sum();
                let expected = live.iter().filter(|(_, at)| at.is_some()).count();
                assert_eq!(leased as usize, expected);
            }
        }
    }

    fn get(value: &AtomicU32) -> u32 {
        value.load(Ordering::Relaxed)
    }

    #[test]
    fn generations_wrap_to_one_never_to_zero() {
        assert_eq!(next_generation(GENERATION_MASK), 1);
        for seed in 0..1000 {
            assert!((1..=GENERATION_MASK).contains(&first_generation(seed, seed as u32)));
        }
    }

    #[test]
    fn threads_that_pin_and_unpin_share_nothing_but_the_table() {
        let table = table();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let id = pin(&table, None);
                        assert_eq!(unpin(&table, id), Ok(1));
                        assert_eq!(unpin(&table, id), Err(ReuseError::NotLive));
                    }
                });
            }
        });
        assert_eq!((table.live(), table.targets().count()), (0, 0));
        assert!(table.unused_from.load(Ordering::Relaxed) <= 4);
    }
}
