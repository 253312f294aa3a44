//! Which containers are open: one bit each.
//!
//! A hint of 1 MiB or a body of 64 MiB may open a container with every byte. One bit each bounds the
//! memory (64 KiB, 4 MiB) without a limit on depth, which is for others to judge.

use std::collections::TryReserveError;

/// The two kinds of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
}

/// A stack of containers.
#[derive(Debug, Default)]
pub struct ContainerStack {
    words: Vec<u64>,
    len: usize,
}

impl ContainerStack {
    /// Forgets what is open; keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory held, in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// Opens one.
    #[inline]
    pub fn push(&mut self, container: Container) -> Result<(), TryReserveError> {
        let (word, bit) = (self.len / 64, self.len % 64);
        if word == self.words.len() {
            self.words.try_reserve(1)?;
            self.words.push(0);
        }
        let is_array = u64::from(container == Container::Array);
        self.words[word] = (self.words[word] & !(1 << bit)) | (is_array << bit);
        self.len += 1;
        Ok(())
    }

    /// The innermost one.
    #[inline]
    pub fn top(&self) -> Option<Container> {
        let last = self.len.checked_sub(1)?;
        let is_array = self.words[last / 64] >> (last % 64) & 1 == 1;
        Some(if is_array { Container::Array } else { Container::Object })
    }

    /// Closes the innermost one.
    #[inline]
    pub fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
    }
}
