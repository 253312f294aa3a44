//! A table from 64-bit keys to slots, whose full keys lie in the nodes.
//!
//! Guards: the seed keeps whoever chooses tokens from choosing where entries fall. Keys of two
//! entries may be equal only by chance; a caller whose keys others can make equal (block hashes)
//! keeps one entry a key and chains the rest.

use hashbrown::HashTable;

use super::error::ReuseError;
use super::node::Slot;

#[derive(Debug)]
pub(super) struct Lookup {
    seed: u64,
    table: HashTable<Slot>,
}

impl Lookup {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, table: HashTable::new() }
    }

    /// The slot under `key` that `is` says yes to.
    pub(super) fn find(&self, key: u64, mut is: impl FnMut(Slot) -> bool) -> Option<Slot> {
        self.table.find(spread(self.seed, key), |slot| is(*slot)).copied()
    }

    /// Makes room for `additional` entries; `key_of` gives the key of those already there.
    pub(super) fn try_reserve(
        &mut self,
        additional: usize,
        key_of: impl Fn(Slot) -> u64,
    ) -> Result<(), ReuseError> {
        let seed = self.seed;
        self.table
            .try_reserve(additional, |slot| spread(seed, key_of(*slot)))
            .map_err(|_| ReuseError::NoMemory)
    }

    /// Adds an entry for which there is none yet.
    pub(super) fn insert(&mut self, slot: Slot, key_of: impl Fn(Slot) -> u64) {
        let seed = self.seed;
        let hash_of = |slot: &Slot| spread(seed, key_of(*slot));
        self.table.insert_unique(hash_of(&slot), slot, hash_of);
    }

    /// Takes the entry of `slot` away, or puts `heir` (of the same key) in its place.
    pub(super) fn remove(&mut self, key: u64, slot: Slot, heir: Option<Slot>) {
        let found = self.table.find_entry(spread(self.seed, key), |entry| *entry == slot);
        match (found, heir) {
            (Ok(mut entry), Some(heir)) => *entry.get_mut() = heir,
            (Ok(entry), None) => drop(entry.remove()),
            (Err(_), _) => debug_assert!(false, "only entries that are there are removed"),
        }
    }

    /// Some entry, if there is any.
    pub(super) fn any(&self) -> Option<Slot> {
        self.table.iter().next().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

/// Folds a 128-bit product, so that every bit of key and seed reaches every bit of the hash.
fn spread(seed: u64, key: u64) -> u64 {
    let product = u128::from(key ^ seed) * u128::from(seed | 0x9e37_79b9_7f4a_7c15);
    let folded = (product >> 64) as u64 ^ product as u64;
    folded ^ (folded >> 32)
}
