//! A growing table whose rows never move and are never given back while it lives.
//!
//! Readers look at rows without a lock: a row may mean something else by the time they have read
//! it, but it is always a row. Guards: growing is asked for and can be refused; nothing is ever
//! moved or freed. Never does: say what a row means or who may change it.

use std::sync::OnceLock;

use super::error::ReuseError;

/// Chunks that lie behind one entry of the top.
const GROUP_BITS: u32 = 8;
const GROUPS: usize = 256;

type Chunk<T> = OnceLock<Box<[T]>>;
type Group<T> = OnceLock<Box<[Chunk<T>]>>;

/// Rows of `row_length` values each. See the module.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunk_bits: u32,
    row_length: usize,
    groups: Box<[Group<T>]>,
}

/// As many rows a chunk as fit into `bytes`, as a power of two; at least one.
pub(super) fn chunk_bits_within(bytes: usize, row_bytes: usize) -> u32 {
    (bytes / row_bytes.max(1)).max(1).ilog2()
}

fn fallible<T>(length: usize, make: impl FnMut() -> T) -> Result<Box<[T]>, ReuseError> {
    let mut values = Vec::new();
    values.try_reserve_exact(length)?;
    values.resize_with(length, make);
    Ok(values.into_boxed_slice())
}

impl<T: Default> Chunks<T> {
    /// No rows yet; a chunk has `1 << chunk_bits` of them.
    pub(super) fn new(chunk_bits: u32, row_length: usize) -> Result<Self, ReuseError> {
        Ok(Self { chunk_bits, row_length, groups: fallible(GROUPS, OnceLock::new)? })
    }

    /// How many rows there can be.
    pub(super) fn limit(&self) -> usize {
        (GROUPS << GROUP_BITS) << self.chunk_bits
    }

    /// Rows of one chunk.
    pub(super) fn chunk_rows(&self) -> usize {
        1 << self.chunk_bits
    }

    fn place(&self, row: usize) -> (usize, usize, usize) {
        let chunk = row >> self.chunk_bits;
        (chunk >> GROUP_BITS, chunk & ((1 << GROUP_BITS) - 1), row & (self.chunk_rows() - 1))
    }

    /// Makes sure that a row is there, with the default values if it was not.
    pub(super) fn ensure(&self, row: usize, what: &'static str) -> Result<(), ReuseError> {
        let (group, chunk, _) = self.place(row);
        let limit = self.limit();
        let slot = self.groups.get(group).ok_or(ReuseError::Limit { what, limit })?;
        // Where two make the same at once one of them is dropped: nobody waits.
        if slot.get().is_none() {
            let _ = slot.set(fallible(1 << GROUP_BITS, OnceLock::new)?);
        }
        let chunks = slot.get().ok_or(ReuseError::NoMemory)?;
        if chunks[chunk].get().is_none() {
            let values = self.row_length << self.chunk_bits;
            let _ = chunks[chunk].set(fallible(values, T::default)?);
        }
        Ok(())
    }

    /// A row, if it was ever made.
    pub(super) fn try_row(&self, row: usize) -> Option<&[T]> {
        let (group, chunk, offset) = self.place(row);
        let chunk = self.groups.get(group)?.get()?[chunk].get()?;
        chunk.get(offset * self.row_length..(offset + 1) * self.row_length)
    }

    /// A row that was made.
    pub(super) fn row(&self, row: usize) -> &[T] {
        self.try_row(row).expect("a row is made before anything leads to it")
    }

    /// The value of a row that was made, where rows have one.
    pub(super) fn at(&self, row: usize) -> &T {
        debug_assert_eq!(self.row_length, 1);
        let (group, chunk, offset) = self.place(row);
        let value = self.groups.get(group).and_then(|group| group.get()?[chunk].get()?.get(offset));
        value.expect("a row is made before anything leads to it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn rows_stay_where_they_are_while_the_table_grows() {
        let table = Chunks::<AtomicU32>::new(2, 3).expect("memory");
        assert!(table.try_row(0).is_none());
        table.ensure(0, "rows").expect("memory");
        let first = &table.row(0)[2];
        for row in 0..5000 {
            table.ensure(row, "rows").expect("memory");
            table.row(row)[1].store(row as u32, Ordering::Relaxed);
        }
        assert!(std::ptr::eq(first, &table.row(0)[2]));
        for row in 0..5000 {
            assert_eq!(table.row(row)[1].load(Ordering::Relaxed), row as u32);
        }
        let limit = table.limit();
        assert_eq!(limit, 4 << 16);
        let refused = table.ensure(limit, "rows");
        assert_eq!(refused, Err(ReuseError::Limit { what: "rows", limit }));
        assert!(table.try_row(limit).is_none());
    }

    #[test]
    fn chunks_have_a_size_in_bytes_whatever_the_rows() {
        assert_eq!(chunk_bits_within(1 << 16, 64), 10);
        assert_eq!(chunk_bits_within(1 << 16, 1 << 20), 0);
        assert_eq!(chunk_bits_within(1 << 16, 100), 9);
    }
}
