//! Copying blocks that nobody reads soon.
//!
//! What it is for: many blocks at a time go past the caches into memory that is not read first, which
//! takes a third of the traffic away; few blocks go the ordinary way and are in the caches afterwards.
//! Never does: decide what may be written.

/// From so many bytes at a time on, the caches are no help: about half of a core's own.
pub(super) const BULK_BYTES: usize = 512 << 10;

/// Copies bytes past the caches, where this machine has instructions for that.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, and the two do not overlap.
pub(super) unsafe fn copy_bulk(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        x86::copy(from, to, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, len);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// A cache line.
    const LINE: usize = 64;

    /// # Safety
    /// As of `copy_bulk`.
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let head = to.align_offset(LINE).min(len);
        let lines = (len - head) / LINE;
        // SAFETY: head, lines and tail are the whole length, one behind the other, and the stores of
        // the lines are aligned. x86-64 has these instructions always. The fence orders the stores
        // before whatever tells others of them.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            for line in 0..lines {
                let at = head + line * LINE;
                let (source, target) =
                    (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                let quarters = [0, 1, 2, 3].map(|quarter| _mm_loadu_si128(source.add(quarter)));
                for (quarter, bytes) in quarters.into_iter().enumerate() {
                    _mm_stream_si128(target.add(quarter), bytes);
                }
            }
            let done = head + lines * LINE;
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside() {
        let source: Vec<u8> = (0..1024u32).map(|at| (at * 7 + 1) as u8 | 1).collect();
        for start in 0..70 {
            for len in [0, 1, 15, 63, 64, 65, 127, 128, 200, 500] {
                let mut target = vec![0u8; 700];
                // SAFETY: both are long enough, and two vectors do not overlap.
                unsafe { copy_bulk(source.as_ptr().add(3), target.as_mut_ptr().add(start), len) };
                assert!(target[..start].iter().all(|byte| *byte == 0));
                assert_eq!(target[start..start + len], source[3..3 + len]);
                assert!(target[start + len..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
