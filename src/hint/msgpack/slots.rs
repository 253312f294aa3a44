//! What a MessagePack reader still waits for, two bits each.
//!
//! Opening an array of n makes n values and one end due; opening a map of n, n times key and value
//! and one end. Nothing else has to be remembered of a container, so any depth fits: what is due
//! never exceeds the bytes still to come by more than the containers that are open.

use std::collections::TryReserveError;

/// One thing that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Slot {
    /// Any value.
    Value = 0,
    /// A map's key.
    Key = 1,
    /// The end of an array, which has no bytes of its own.
    ArrayEnd = 2,
    /// The end of a map.
    MapEnd = 3,
}

const ALL: [Slot; 4] = [Slot::Value, Slot::Key, Slot::ArrayEnd, Slot::MapEnd];

/// Things due, the next one on top.
#[derive(Debug, Default)]
pub struct Slots {
    words: Vec<u64>,
    len: usize,
    /// Keys and values among them: each takes at least one byte.
    values: usize,
}

impl Slots {
    /// Nothing is due.
    pub fn clear(&mut self) {
        self.len = 0;
        self.values = 0;
    }

    /// Memory held, in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// How many keys and values are due.
    pub fn values_due(&self) -> usize {
        self.values
    }

    /// Makes something due before everything else.
    #[inline]
    pub fn push(&mut self, slot: Slot) -> Result<(), TryReserveError> {
        let (word, shift) = (self.len / 32, self.len % 32 * 2);
        if word == self.words.len() {
            self.words.try_reserve(1)?;
            self.words.push(0);
        }
        self.words[word] = (self.words[word] & !(3 << shift)) | ((slot as u64) << shift);
        self.len += 1;
        self.values += usize::from(matches!(slot, Slot::Value | Slot::Key));
        Ok(())
    }

    /// Takes what is due next.
    #[inline]
    pub fn pop(&mut self) -> Option<Slot> {
        self.len = self.len.checked_sub(1)?;
        let slot = ALL[(self.words[self.len / 32] >> (self.len % 32 * 2) & 3) as usize];
        self.values -= usize::from(matches!(slot, Slot::Value | Slot::Key));
        Some(slot)
    }
}
