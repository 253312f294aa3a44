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

/// Containers in a word below its mark.
const IN_WORD: usize = 63;

/// A stack of containers.
#[derive(Debug)]
pub struct ContainerStack {
    /// The innermost ones, the innermost lowest, set for arrays; above them a mark, the highest bit
    /// that is set. The mark alone: none is open.
    inner: u64,
    /// Those further out, [`IN_WORD`] in each below its mark.
    outer: Vec<u64>,
}

impl Default for ContainerStack {
    fn default() -> Self {
        Self { inner: 1, outer: Vec::new() }
    }
}

impl ContainerStack {
    /// Forgets what is open; keeps the memory.
    pub fn clear(&mut self) {
        self.inner = 1;
        self.outer.clear();
    }

    /// How many are open.
    #[inline]
    pub fn len(&self) -> usize {
        self.outer.len() * IN_WORD + self.inner.ilog2() as usize
    }

    /// Memory held, in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.outer.capacity() * size_of::<u64>()
    }

    /// Opens one.
    #[inline]
    pub fn push(&mut self, container: Container) -> Result<(), TryReserveError> {
        if self.inner >> IN_WORD != 0 {
            self.outer.try_reserve(1)?;
            self.outer.push(self.inner);
            self.inner = 1;
        }
        self.inner = self.inner << 1 | u64::from(container == Container::Array);
        Ok(())
    }

    /// The innermost one.
    #[inline]
    pub fn top(&self) -> Option<Container> {
        let is_array = self.inner & 1 == 1;
        (self.inner > 1).then_some(if is_array { Container::Array } else { Container::Object })
    }

    /// Closes the innermost one.
    #[inline]
    pub fn pop(&mut self) {
        self.inner >>= 1;
        if self.inner <= 1 {
            self.inner = self.outer.pop().unwrap_or(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opened_last_closes_first_at_every_depth() {
        let mut stack = ContainerStack::default();
        let mut plain = Vec::new();
        // Down and up again across the words' borders, by steps of several lengths.
        for (step, down) in [63, 1, 1, 65, 200, 130, 3].into_iter().enumerate() {
            for index in 0..down {
                let is_array = (index * 7 + step) % 3 == 0;
                let container = if is_array { Container::Array } else { Container::Object };
                stack.push(container).expect("memory");
                plain.push(container);
            }
            for _ in 0..down / 2 {
                stack.pop();
                plain.pop();
                assert_eq!((stack.len(), stack.top()), (plain.len(), plain.last().copied()));
            }
        }
        while plain.pop().is_some() {
            stack.pop();
            assert_eq!((stack.len(), stack.top()), (plain.len(), plain.last().copied()));
        }
        stack.pop();
        assert_eq!((stack.len(), stack.top()), (0, None));
    }
}
