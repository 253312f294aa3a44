//! A queue of block ids in the order of a key, from which any id can be taken out.
//!
//! A binary heap that knows where each id stands in it: putting in and taking out cost O(log n),
//! looking at the first O(1). Guards: an id is in it once or not at all. All memory is asked for
//! when it is made, for as many ids as there are blocks; nothing later can fail.

use super::error::ReuseError;
use super::node::BlockId;

/// Where an id stands that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// Ids 0 .. capacity, each with a key of its own.
#[derive(Debug)]
pub(super) struct BlockHeap<K> {
    entries: Vec<(K, BlockId)>,
    /// By id: its place in `entries`.
    places: Vec<u32>,
}

impl<K: Copy + Ord> BlockHeap<K> {
    /// An empty heap for the ids `0..capacity`.
    pub(super) fn new(capacity: usize) -> Result<Self, ReuseError> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(capacity)?;
        let mut places = Vec::new();
        places.try_reserve_exact(capacity)?;
        places.resize(capacity, ABSENT);
        Ok(Self { entries, places })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The id with the least key.
    pub(super) fn first(&self) -> Option<(K, BlockId)> {
        self.entries.first().copied()
    }

    pub(super) fn contains(&self, id: BlockId) -> bool {
        self.places[id as usize] != ABSENT
    }

    /// Puts an id in, or gives the one that is in another key.
    pub(super) fn insert(&mut self, id: BlockId, key: K) {
        self.remove(id);
        let place = self.entries.len();
        self.entries.push((key, id));
        self.places[id as usize] = place as u32;
        self.rise(place);
    }

    /// Takes an id out; nothing happens if it is not in.
    pub(super) fn remove(&mut self, id: BlockId) {
        let place = self.places[id as usize];
        if place == ABSENT {
            return;
        }
        let place = place as usize;
        self.places[id as usize] = ABSENT;
        self.entries.swap_remove(place);
        if let Some((_, moved)) = self.entries.get(place) {
            self.places[*moved as usize] = place as u32;
            self.rise(place);
            self.sink(place);
        }
    }

    fn swap(&mut self, left: usize, right: usize) {
        self.entries.swap(left, right);
        for place in [left, right] {
            self.places[self.entries[place].1 as usize] = place as u32;
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.entries[parent].0 <= self.entries[place].0 {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.entries.len());
            let Some(least) = children.min_by_key(|child| self.entries[*child].0) else {
                break;
            };
            if self.entries[place].0 <= self.entries[least].0 {
                break;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_sorted_map_by_key(steps in prop::collection::vec((0..12_i32, prop::option::of(0..9_u64)), 0..200)) {
            let mut heap = BlockHeap::new(12).expect("memory");
            let mut model: BTreeMap<BlockId, (u64, i32)> = BTreeMap::new();
            for (id, key) in steps {
                match key {
                    // Keys are made unique by the id.
                    Some(key) => {
                        heap.insert(id, (key, id));
                        model.insert(id, (key, id));
                    }
                    None => {
                        heap.remove(id);
                        model.remove(&id);
                    }
                }
                prop_assert_eq!(heap.len(), model.len());
                prop_assert_eq!(heap.first().map(|(key, _)| key), model.values().min().copied());
                for id in 0..12 {
                    prop_assert_eq!(heap.contains(id), model.contains_key(&id));
                }
            }
            let mut drained = Vec::new();
            while let Some((key, id)) = heap.first() {
                drained.push(key);
                heap.remove(id);
            }
            let mut sorted: Vec<_> = model.into_values().collect();
            sorted.sort();
            prop_assert_eq!(drained, sorted);
        }
    }
}
