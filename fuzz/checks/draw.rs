//! Bytes as decisions: a fuzzer that changes a byte changes a decision.

/// Decisions, one after the other. When the bytes are used up every decision is the first choice.
pub struct Draw<'d> {
    rest: &'d [u8],
}

impl<'d> Draw<'d> {
    /// Decides by these bytes.
    pub fn new(bytes: &'d [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether no byte is left.
    pub fn is_used_up(&self) -> bool {
        self.rest.is_empty()
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'d [u8] {
        std::mem::take(&mut self.rest)
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// Less than `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound <= 1 {
            return 0;
        }
        let low = usize::from(self.byte());
        let number = if bound > 256 { low << 8 | usize::from(self.byte()) } else { low };
        number % bound
    }

    /// True one time in so many, up to 256.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}
