//! Reading little-endian numbers and runs of bytes from foreign bytes, and writing them.
//!
//! Guards: no read goes past the end, whatever the lengths in the bytes say.

/// The unread rest of some foreign bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes, if there are as many.
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A u64 that counts bytes or things in memory.
    pub(crate) fn size(&mut self) -> Option<usize> {
        self.u64().and_then(|value| usize::try_from(value).ok())
    }
}

/// Writes `bytes` at `at` and tells where the next ones go. The caller made the place.
pub(crate) fn put(place: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at + bytes.len();
    place[at..end].copy_from_slice(bytes);
    end
}
