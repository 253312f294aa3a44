//! A table from 64-bit keys to slots, whose full keys lie in the nodes: one writer, and readers that
//! take no lock.
//!
//! Extendible hashing: a directory of segments, a segment of cache-line buckets, a bucket of twelve
//! slots with a byte of their hash each and a count of entries that had to go further. A full
//! segment splits in two; nothing else moves, so no store pays for the whole table. A segment that
//! was split is used again under another *incarnation*, which its directory entries carry: a reader
//! that found nothing looks whether its entry is still the same, and tries again if not.
//!
//! Guards: a reader finds an entry that is there all the time it looks. What it finds may be stale:
//! it asks the node. The seed keeps whoever chooses tokens from choosing where entries fall. Keys of
//! two entries may be equal only by chance; a caller whose keys others can make equal (block hashes)
//! keeps one entry a key and chains the rest.

use super::chunks::Chunks;
use super::error::ReuseError;
use super::node::Slot;
use crate::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

const SEGMENT_BITS: u32 = 6;
const BUCKETS: usize = 1 << SEGMENT_BITS;
const SLOTS: usize = 12;
/// Entries at which a segment splits: 7 of 8 places.
const SEGMENT_FULL: u32 = (BUCKETS * SLOTS * 7 / 8) as u32;
/// Segments in one chunk of memory.
const CHUNK_SEGMENTS_BITS: u32 = 2;
/// As deep as nodes can fill.
const MAX_DEPTH: u32 = 22;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// A byte a slot, 0 for none: eight in the first word, four in the second, whose upper half
    /// counts the entries that belong here and lie further on.
    tags: [AtomicU64; 2],
    slots: [AtomicU32; SLOTS],
}

const FURTHER_ONE: u64 = 1 << 32;

impl Bucket {
    fn tag(&self, place: usize) -> u8 {
        (self.tags[place / 8].load(Ordering::Relaxed) >> (place % 8 * 8)) as u8
    }

    /// The writer's: sets one byte.
    fn set_tag(&self, place: usize, tag: u8) {
        let (word, shift) = (&self.tags[place / 8], place % 8 * 8);
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | u64::from(tag) << shift, Ordering::Release);
    }

    fn put(&self, place: usize, tag: u8, slot: Slot) {
        self.slots[place].store(slot, Ordering::Relaxed);
        self.set_tag(place, tag);
    }

    fn count_further(&self, change: u64) {
        let word = &self.tags[1];
        word.store(word.load(Ordering::Relaxed).wrapping_add(change), Ordering::Release);
    }

    fn empty_place(&self) -> Option<usize> {
        (0..SLOTS).find(|place| self.tag(*place) == 0)
    }
}

/// Bytes of `word` that equal `tag`, each as its highest bit.
fn equal_bytes(word: u64, tag: u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let difference = word ^ (0x0101_0101_0101_0101 * u64::from(tag));
    // A byte's highest bit ends up set unless all of the byte is 0; no carry leaves a byte.
    !(((difference & LOW) + LOW) | difference | LOW)
}

/// Where a key falls.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    fn directory_index(self, depth: u32) -> usize {
        (self.0 & ((1 << depth) - 1)) as usize
    }
    fn bucket(self) -> usize {
        (self.0 >> 32) as usize & (BUCKETS - 1)
    }
    fn tag(self) -> u8 {
        ((self.0 >> 56) as u8).max(1)
    }
}

/// A directory entry: a segment and its incarnation.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(segment: u32, incarnation: u32) -> Self {
        Self(u64::from(incarnation) << 32 | u64::from(segment))
    }
    fn segment(self) -> usize {
        self.0 as u32 as usize
    }
}

#[derive(Debug)]
pub(super) struct Lookup {
    seed: u64,
    depth: AtomicU32,
    directory: Chunks<AtomicU64>,
    buckets: Chunks<Bucket>,
}

/// What only the writer knows of a segment.
#[derive(Debug, Clone, Copy)]
struct Segment {
    depth: u32,
    incarnation: u32,
    entries: u32,
    /// Entries that a `reserve` in progress counts on.
    promised: u32,
}

/// The writer's part of a table; it comes with each change.
#[derive(Debug, Default)]
pub(super) struct LookupWriter {
    segments: Vec<Segment>,
    unused: Vec<u32>,
    entries: usize,
}

impl LookupWriter {
    pub(super) fn len(&self) -> usize {
        self.entries
    }
}

impl Lookup {
    pub(super) fn new(seed: u64) -> Result<(Self, LookupWriter), ReuseError> {
        let table = Self {
            seed,
            depth: AtomicU32::new(0),
            directory: Chunks::new(8, 1)?,
            buckets: Chunks::new(SEGMENT_BITS + CHUNK_SEGMENTS_BITS, 1)?,
        };
        let mut writer = LookupWriter::default();
        table.directory.ensure(0, "segments of a table")?;
        let segment = table.take_segment(&mut writer)?;
        writer.segments[segment as usize].depth = 0;
        table.publish(&writer, 0, segment);
        Ok((table, writer))
    }

    /// Folds a 128-bit product, so that every bit of key and seed reaches every bit of the place.
    fn place(&self, key: u64) -> Place {
        let product = u128::from(key ^ self.seed) * u128::from(self.seed | 0x9e37_79b9_7f4a_7c15);
        let folded = (product >> 64) as u64 ^ product as u64;
        Place(folded ^ (folded >> 32))
    }

    fn bucket(&self, segment: usize, bucket: usize) -> &Bucket {
        self.buckets.at(segment << SEGMENT_BITS | bucket)
    }

    fn entry(&self, index: usize, ordering: Ordering) -> Entry {
        Entry(self.directory.at(index).load(ordering))
    }

    /// The slot under `key` that `is` says yes to; any thread.
    pub(super) fn find(&self, key: u64, mut is: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let place = self.place(key);
        loop {
            let depth = self.depth.load(Ordering::Acquire);
            let index = place.directory_index(depth);
            let entry = self.entry(index, Ordering::Acquire);
            if let Some(slot) = self.find_in(entry.segment(), place, &mut is) {
                return Some(slot);
            }
            fence(Ordering::Acquire);
            let is_same = self.depth.load(Ordering::Relaxed) == depth
                && self.entry(index, Ordering::Relaxed) == entry;
            if is_same {
                return None;
            }
        }
    }

    fn find_in(
        &self,
        segment: usize,
        place: Place,
        is: &mut impl FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let tag = place.tag();
        for step in 0..BUCKETS {
            let bucket = self.bucket(segment, (place.bucket() + step) % BUCKETS);
            let low = bucket.tags[0].load(Ordering::Acquire);
            let high = bucket.tags[1].load(Ordering::Acquire);
            // The count is no tag.
            let matches = [equal_bytes(low, tag), equal_bytes(high, tag) & 0xffff_ffff];
            for (word, mut bits) in matches.into_iter().enumerate() {
                while bits != 0 {
                    let place = word * 8 + bits.trailing_zeros() as usize / 8;
                    let slot = bucket.slots[place].load(Ordering::Relaxed);
                    if is(slot) {
                        return Some(slot);
                    }
                    bits &= bits - 1;
                }
            }
            if high < FURTHER_ONE {
                break;
            }
        }
        None
    }

    /// A slot that `find` would look at first, or none: a guess that costs one look at a bucket.
    pub(super) fn guess(&self, key: u64) -> Option<Slot> {
        let place = self.place(key);
        let index = place.directory_index(self.depth.load(Ordering::Acquire));
        let segment = self.entry(index, Ordering::Acquire).segment();
        let bucket = self.bucket(segment, place.bucket());
        let low = equal_bytes(bucket.tags[0].load(Ordering::Acquire), place.tag());
        let at = if low != 0 {
            low.trailing_zeros() as usize / 8
        } else {
            let high = equal_bytes(bucket.tags[1].load(Ordering::Acquire), place.tag());
            8 + (high & 0xffff_ffff != 0).then(|| high.trailing_zeros() as usize / 8)?
        };
        Some(bucket.slots[at].load(Ordering::Relaxed))
    }

    /// Makes room for one more entry under `key`; `key_of` gives the key of those already there.
    pub(super) fn reserve_one(
        &self,
        writer: &mut LookupWriter,
        key: u64,
        key_of: impl Fn(Slot) -> u64,
    ) -> Result<(), ReuseError> {
        let place = self.place(key);
        loop {
            let depth = self.depth.load(Ordering::Relaxed);
            let index = place.directory_index(depth);
            let segment = self.entry(index, Ordering::Relaxed).segment();
            if writer.segments[segment].entries < SEGMENT_FULL {
                return Ok(());
            }
            self.split(writer, segment, index, &key_of)?;
        }
    }

    /// Makes room for an entry under each of `keys`, as `reserve_one` does for one.
    pub(super) fn reserve(
        &self,
        writer: &mut LookupWriter,
        keys: &[u64],
        key_of: impl Fn(Slot) -> u64,
    ) -> Result<(), ReuseError> {
        // Each round but the last splits a segment.
        loop {
            let depth = self.depth.load(Ordering::Relaxed);
            let index_of = |key: &u64| self.place(*key).directory_index(depth);
            let segment_of = |index| self.entry(index, Ordering::Relaxed).segment();
            for key in keys {
                writer.segments[segment_of(index_of(key))].promised = 0;
            }
            let full = keys.iter().map(index_of).find(|index| {
                let segment = &mut writer.segments[segment_of(*index)];
                segment.promised += 1;
                segment.entries + segment.promised > SEGMENT_FULL
            });
            let Some(index) = full else {
                return Ok(());
            };
            self.split(writer, segment_of(index), index, &key_of)?;
        }
    }

    /// Adds an entry for which there is none yet; `reserve_one` has made room.
    pub(super) fn insert(&self, writer: &mut LookupWriter, key: u64, slot: Slot) {
        let place = self.place(key);
        let index = place.directory_index(self.depth.load(Ordering::Relaxed));
        let segment = self.entry(index, Ordering::Relaxed).segment();
        self.insert_in(segment, place, slot);
        writer.segments[segment].entries += 1;
        writer.entries += 1;
    }

    fn insert_in(&self, segment: usize, place: Place, slot: Slot) {
        for step in 0..BUCKETS {
            let bucket = self.bucket(segment, (place.bucket() + step) % BUCKETS);
            if let Some(empty) = bucket.empty_place() {
                return bucket.put(empty, place.tag(), slot);
            }
            // Counted before the entry is there: a reader goes too far rather than not far enough.
            bucket.count_further(FURTHER_ONE);
        }
        debug_assert!(false, "a segment splits before it is full");
    }

    /// Where the entry of `slot` lies: steps from its first bucket, bucket, place.
    fn locate(&self, segment: usize, place: Place, slot: Slot) -> Option<(usize, &Bucket, usize)> {
        (0..BUCKETS).find_map(|step| {
            let bucket = self.bucket(segment, (place.bucket() + step) % BUCKETS);
            let is_it = |at: &usize| {
                bucket.tag(*at) == place.tag() && bucket.slots[*at].load(Ordering::Relaxed) == slot
            };
            Some((step, bucket, (0..SLOTS).find(is_it)?))
        })
    }

    /// Takes the entry of `slot` away, or puts `heir` (of the same key) in its place.
    pub(super) fn remove(
        &self,
        writer: &mut LookupWriter,
        key: u64,
        slot: Slot,
        heir: Option<Slot>,
    ) {
        let place = self.place(key);
        let index = place.directory_index(self.depth.load(Ordering::Relaxed));
        let segment = self.entry(index, Ordering::Relaxed).segment();
        let Some((steps, bucket, at)) = self.locate(segment, place, slot) else {
            debug_assert!(false, "only entries that are there are removed");
            return;
        };
        if let Some(heir) = heir {
            return bucket.slots[at].store(heir, Ordering::Release);
        }
        bucket.set_tag(at, 0);
        for step in 0..steps {
            let passed = self.bucket(segment, (place.bucket() + step) % BUCKETS);
            passed.count_further(FURTHER_ONE.wrapping_neg());
        }
        writer.segments[segment].entries -= 1;
        writer.entries -= 1;
    }

    /// A segment that no directory entry leads to, empty.
    fn take_segment(&self, writer: &mut LookupWriter) -> Result<u32, ReuseError> {
        let segment = match writer.unused.last() {
            Some(segment) => *segment,
            None => {
                let segment = writer.segments.len();
                self.buckets.ensure(segment << SEGMENT_BITS, "segments of a table")?;
                writer.segments.try_reserve(1)?;
                writer.unused.try_reserve(segment + 1)?;
                writer.segments.push(Segment { depth: 0, incarnation: 0, entries: 0, promised: 0 });
                writer.unused.push(segment as u32);
                segment as u32
            }
        };
        let state = &mut writer.segments[segment as usize];
        state.incarnation = state.incarnation.wrapping_add(1);
        state.entries = 0;
        writer.unused.pop();
        // After the directory's change: a reader that sees its entries go looks again.
        fence(Ordering::Release);
        for bucket in 0..BUCKETS {
            let bucket = self.bucket(segment as usize, bucket);
            bucket.tags.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        Ok(segment)
    }

    fn publish(&self, writer: &LookupWriter, index: usize, segment: u32) {
        let incarnation = writer.segments[segment as usize].incarnation;
        let entry = Entry::new(segment, incarnation);
        self.directory.at(index).store(entry.0, Ordering::Release);
    }

    /// Twice as many directory entries.
    fn deepen(&self, depth: u32) -> Result<(), ReuseError> {
        let entries = 1_usize << depth;
        if depth >= MAX_DEPTH {
            return Err(ReuseError::Limit { what: "segments of a table", limit: entries });
        }
        for index in (entries..2 * entries).step_by(self.directory.chunk_rows()) {
            self.directory.ensure(index, "segments of a table")?;
        }
        for index in 0..entries {
            let entry = self.entry(index, Ordering::Relaxed);
            self.directory.at(entries + index).store(entry.0, Ordering::Relaxed);
        }
        self.depth.store(depth + 1, Ordering::Release);
        Ok(())
    }

    fn split(
        &self,
        writer: &mut LookupWriter,
        old: usize,
        index: usize,
        key_of: impl Fn(Slot) -> u64,
    ) -> Result<(), ReuseError> {
        let local_depth = writer.segments[old].depth;
        let depth = self.depth.load(Ordering::Relaxed);
        if local_depth == depth {
            self.deepen(depth)?;
        }
        let depth = self.depth.load(Ordering::Relaxed);
        let zero = self.take_segment(writer)?;
        let one = match self.take_segment(writer) {
            Ok(one) => one,
            Err(error) => {
                // Its place in the list is still there.
                writer.unused.push(zero);
                return Err(error);
            }
        };
        // First all keys: so many nodes are far away, and come at the same time.
        let mut entries = [(0_u64, 0 as Slot); BUCKETS * SLOTS];
        let mut count = 0;
        for bucket in 0..BUCKETS {
            let bucket = self.bucket(old, bucket);
            for at in (0..SLOTS).filter(|at| bucket.tag(*at) != 0) {
                let slot = bucket.slots[at].load(Ordering::Relaxed);
                entries[count] = (key_of(slot), slot);
                count += 1;
            }
        }
        for (key, slot) in &entries[..count] {
            let place = self.place(*key);
            let half = if place.0 >> local_depth & 1 == 0 { zero } else { one };
            self.insert_in(half as usize, place, *slot);
            writer.segments[half as usize].entries += 1;
        }
        for half in [zero, one] {
            writer.segments[half as usize].depth = local_depth + 1;
        }
        let first = index & ((1 << local_depth) - 1);
        for index in (first..1 << depth).step_by(1 << local_depth) {
            let half = if index >> local_depth & 1 == 0 { zero } else { one };
            self.publish(writer, index, half);
        }
        writer.unused.push(old as u32);
        Ok(())
    }

    /// Checks what the table says of itself; for tests.
    pub(super) fn verify(
        &self,
        writer: &LookupWriter,
        key_of: impl Fn(Slot) -> u64,
    ) -> Result<(), String> {
        let mut total = 0;
        let depth = self.depth.load(Ordering::Relaxed);
        let mut seen = vec![false; writer.segments.len()];
        for index in 0..1_usize << depth {
            let entry = self.entry(index, Ordering::Relaxed);
            let segment = entry.segment();
            if entry != Entry::new(segment as u32, writer.segments[segment].incarnation) {
                return Err("a directory entry is of another incarnation".to_owned());
            }
            if std::mem::replace(&mut seen[segment], true) {
                continue;
            }
            let mut further = [0_u64; BUCKETS];
            let mut entries = 0;
            for bucket in 0..BUCKETS {
                let tags = &self.bucket(segment, bucket).tags;
                if tags.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                    continue;
                }
                for at in (0..SLOTS).filter(|at| self.bucket(segment, bucket).tag(*at) != 0) {
                    entries += 1;
                    let slot = self.bucket(segment, bucket).slots[at].load(Ordering::Relaxed);
                    let place = self.place(key_of(slot));
                    let mut step = place.bucket();
                    while step != bucket {
                        further[step] += 1;
                        step = (step + 1) % BUCKETS;
                    }
                    let local = writer.segments[segment].depth;
                    if place.directory_index(local) != index & ((1 << local) - 1) {
                        return Err("an entry lies in the wrong segment".to_owned());
                    }
                }
            }
            for (bucket, further) in further.iter().enumerate() {
                let counted = self.bucket(segment, bucket).tags[1].load(Ordering::Relaxed) >> 32;
                if counted != *further {
                    return Err("entries further on are counted wrongly".to_owned());
                }
            }
            if entries != writer.segments[segment].entries {
                return Err("a segment's entries are counted wrongly".to_owned());
            }
            total += entries as usize;
        }
        let unused = seen.iter().filter(|seen| !**seen).count();
        if total != writer.entries || unused != writer.unused.len() {
            return Err("a table's entries or segments are counted wrongly".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn entries_are_found_until_they_are_removed_while_the_table_grows_and_shrinks() {
        let (table, mut writer) = Lookup::new(7).expect("memory");
        let key_of = |slot: Slot| u64::from(slot) * 3;
        let find = |slot: Slot| table.find(key_of(slot), |found| found == slot);
        for round in 0..3 {
            for slot in 1..20_000 {
                assert_eq!(find(slot), None);
                table.reserve_one(&mut writer, key_of(slot), key_of).expect("memory");
                table.insert(&mut writer, key_of(slot), slot);
                assert_eq!(find(slot), Some(slot));
            }
            table.verify(&writer, key_of).expect("it adds up");
            let kept = 7 + round;
            for slot in (1..20_000).filter(|slot| slot % kept != 0) {
                table.remove(&mut writer, key_of(slot), slot, None);
            }
            table.verify(&writer, key_of).expect("it adds up");
            for slot in 1..20_000 {
                assert_eq!(find(slot).is_some(), slot % kept == 0, "{slot}");
            }
            for slot in (1..20_000).filter(|slot| slot % kept == 0) {
                table.remove(&mut writer, key_of(slot), slot, None);
            }
            assert_eq!(writer.len(), 0);
        }
    }

    #[test]
    fn an_heir_takes_the_place() {
        let (table, mut writer) = Lookup::new(7).expect("memory");
        table.insert(&mut writer, 5, 1);
        table.remove(&mut writer, 5, 1, Some(2));
        assert_eq!((table.find(5, |slot| slot == 2), table.guess(5)), (Some(2), Some(2)));
        table.remove(&mut writer, 5, 2, None);
        assert_eq!((table.find(5, |_| true), writer.len()), (None, 0));
    }

    #[test]
    fn readers_find_what_stays_while_segments_split() {
        let (table, mut writer) = Lookup::new(9).expect("memory");
        let key_of = |slot: Slot| u64::from(slot).wrapping_mul(0x1234_5678_9abc_def1);
        let stored = AtomicU32::new(0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let count = stored.load(Ordering::Acquire);
                    for slot in (1..=count).rev().take(500) {
                        assert_eq!(table.find(key_of(slot), |found| found == slot), Some(slot));
                    }
                }
            });
            for slot in 1..50_000 {
                table.reserve_one(&mut writer, key_of(slot), key_of).expect("memory");
                table.insert(&mut writer, key_of(slot), slot);
                stored.store(slot, Ordering::Release);
            }
            is_over.store(true, Ordering::Release);
        });
        table.verify(&writer, key_of).expect("it adds up");
    }
}
