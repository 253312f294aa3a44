//! Where data is put together before it is sent, when it does not go from where it lies.
//!
//! Guards: buffers are used again, since new memory is dear, and only so many are kept.
//! Never does: know to whom data goes, or what it is.

use super::segment::Piece;

/// Most bytes that are put together for a wire.
pub(super) const MAX_BUFFER_BYTES: usize = 4 << 20;
const MAX_SPARE_BUFFERS: usize = 8;

/// Memory of this transport's for the data that is sent next.
pub(super) enum Room {
    /// In the segment, whose part it takes when it is sent.
    Segment(Piece),
    /// A buffer, for a wire that takes one run much faster than many pieces.
    Buffer(Vec<u8>),
}

/// Buffers that nobody uses.
#[derive(Default)]
pub(super) struct SpareBuffers(Vec<Vec<u8>>);

impl SpareBuffers {
    /// A buffer of that length; what is in it is anything. `None` without memory.
    pub fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.try_reserve_exact(len.saturating_sub(buffer.len())).ok()?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// Takes a buffer back.
    pub fn put(&mut self, buffer: Vec<u8>) {
        if self.0.len() < MAX_SPARE_BUFFERS {
            self.0.push(buffer);
        }
    }
}
