//! Finds a member name that occurs twice in one object, in linear time.
//!
//! Names are compared in canonical form, in which equal names have equal bytes. An object's first
//! names are compared one by one; from [`FEW`] on the object uses a hash table that all objects of
//! all scans share. Entries are never removed: each carries the serial number of its object, and
//! numbers of earlier scans count as empty, so that nothing has to be cleared.
//!
//! Guards: hostile names. The hash (SipHash-1-3) is keyed by a seed nobody outside knows; the
//! table cannot fill up, because [`CANONICAL_MAX_BYTES`] have no room for so many names.
//! Never does: look at values, or at an object after it was closed.

use std::collections::TryReserveError;
use std::ops::Range;

use siphasher::sip::SipHasher13;

use super::canonical::Canonical;
use super::limits::CANONICAL_MAX_BYTES;

/// Up to so many names of an object are compared one by one.
const FEW: usize = 16;

/// Slots of the table, a power of two.
const SLOTS: usize = 1 << 14;

/// The shortest member, with its comma: `"":0,`.
const MEMBER_MIN_BYTES: usize = 5;

const _: () = assert!(CANONICAL_MAX_BYTES / MEMBER_MIN_BYTES + 2 * FEW < SLOTS);

/// A name in canonical form.
#[derive(Debug, Clone, Copy)]
struct Name {
    start: u32,
    end: u32,
    /// Its first bytes, to tell most names apart without looking at the rest.
    head: u64,
}

/// An object that is open.
#[derive(Debug, Clone, Copy)]
struct Object {
    /// Where its names begin in `few`.
    first: usize,
    /// Its number in the table; 0 as long as it has few names.
    serial: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    serial: u32,
    start: u32,
    end: u32,
}

/// The names of the objects that are open.
#[derive(Debug)]
pub struct Names {
    seed: u64,
    few: Vec<Name>,
    open: Vec<Object>,
    /// Empty until first needed.
    table: Vec<Slot>,
    last_serial: u32,
    /// Smaller serials are of earlier scans.
    first_serial: u32,
    no_memory: Option<TryReserveError>,
}

impl Names {
    /// No names; `seed` must not be guessable.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            few: Vec::new(),
            open: Vec::new(),
            table: Vec::new(),
            last_serial: 0,
            first_serial: 1,
            no_memory: None,
        }
    }

    /// Forgets everything, for a new scan.
    pub fn clear(&mut self) {
        self.few.clear();
        self.open.clear();
        self.no_memory = None;
        if self.last_serial > u32::MAX - CANONICAL_MAX_BYTES as u32 {
            self.table.fill(Slot::default());
            self.last_serial = 0;
        }
        self.first_serial = self.last_serial + 1;
    }

    /// Memory held, in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.few.capacity() * size_of::<Name>()
            + self.open.capacity() * size_of::<Object>()
            + self.table.capacity() * size_of::<Slot>()
    }

    /// The memory that could not be had, if any was needed.
    pub fn no_memory(&mut self) -> Option<TryReserveError> {
        self.no_memory.take()
    }

    /// An object opens.
    #[inline]
    pub fn open(&mut self) {
        match self.open.try_reserve(1) {
            Ok(()) => self.open.push(Object { first: self.few.len(), serial: 0 }),
            Err(error) => self.no_memory = Some(error),
        }
    }

    /// The innermost object closes.
    #[inline]
    pub fn close(&mut self) {
        if let Some(object) = self.open.pop() {
            self.few.truncate(object.first);
        }
    }

    /// Adds the name at `range` of `canonical` to the innermost object; whether it was there.
    #[inline]
    pub fn is_repeated(&mut self, canonical: &Canonical<'_, '_>, range: Range<usize>) -> bool {
        let Some(object) = self.open.last().copied() else { return false };
        let name = canonical.bytes(range.clone());
        if object.serial != 0 {
            return self.is_in_table(canonical, object.serial, range);
        }
        let new = Name { start: range.start as u32, end: range.end as u32, head: head(name) };
        for known in &self.few[object.first..] {
            let known_range = known.start as usize..known.end as usize;
            if known.head == new.head
                && known_range.len() == name.len()
                && canonical.bytes(known_range) == name
            {
                return true;
            }
        }
        if let Err(error) = self.few.try_reserve(1) {
            self.no_memory = Some(error);
            return false;
        }
        self.few.push(new);
        if self.few.len() - object.first == FEW {
            self.move_to_table(canonical, object.first);
        }
        false
    }

    /// The innermost object has many names: from now on it uses the table.
    #[cold]
    fn move_to_table(&mut self, canonical: &Canonical<'_, '_>, first: usize) {
        if self.table.is_empty() {
            if let Err(error) = self.table.try_reserve_exact(SLOTS) {
                self.no_memory = Some(error);
                return;
            }
            self.table.resize(SLOTS, Slot::default());
        }
        self.last_serial += 1;
        let serial = self.last_serial;
        for index in first..self.few.len() {
            let range = self.few[index].start as usize..self.few[index].end as usize;
            self.is_in_table(canonical, serial, range);
        }
        if let Some(object) = self.open.last_mut() {
            object.serial = serial;
        }
    }

    fn is_in_table(
        &mut self,
        canonical: &Canonical<'_, '_>,
        serial: u32,
        range: Range<usize>,
    ) -> bool {
        let name = canonical.bytes(range.clone());
        let hash = SipHasher13::new_with_keys(self.seed, u64::from(serial)).hash(name);
        let mut index = hash as usize % SLOTS;
        // The table has more slots than a hint can have names: an empty one comes.
        loop {
            let slot = &mut self.table[index];
            if slot.serial < self.first_serial {
                *slot = Slot { serial, start: range.start as u32, end: range.end as u32 };
                return false;
            }
            let known = slot.start as usize..slot.end as usize;
            if slot.serial == serial && known.len() == name.len() && canonical.bytes(known) == name
            {
                return true;
            }
            index = (index + 1) % SLOTS;
        }
    }
}

/// The first eight bytes of a name; of a shorter one all bytes, some of them twice, and zeros. Names
/// of one length have the same head if and only if they begin with the same bytes.
#[inline]
fn head(name: &[u8]) -> u64 {
    if let Some(first) = name.first_chunk::<8>() {
        return u64::from_le_bytes(*first);
    }
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last));
    }
    name.iter().fold(0, |head, byte| head << 8 | u64::from(*byte))
}
