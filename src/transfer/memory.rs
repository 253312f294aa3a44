//! The host's block memory: one pool, in which block id i lies at `base + i * block_bytes`.
//!
//! In arbiter mode (the host owns eviction) a block's id is its slot in the pool, so ids of the
//! reuse tree are positions here.
//!
//! Guards: an id outside of the pool is never turned into an address. What may be *accessed* when is
//! not known here: a source reads only blocks that are pinned, a destination writes only blocks that
//! the host lent to a prefetch.

use std::ops::Range;

use super::checked_copy::copy_and_sum;
use super::copying::copy_bulk;
use super::device::pool::DevicePool;
use super::protocol::{block_checksum, checksum_seed};
use super::transport::Segment;
use crate::reuse::Name;

/// Memory of the host that holds blocks.
#[derive(Debug, Clone, Copy)]
pub struct BlockPool {
    base: *mut u8,
    block_bytes: usize,
    block_count: usize,
}

// SAFETY: plain addresses; the host promises that the pool stays valid as long as the transceiver,
// whichever thread of the library looks at it.
unsafe impl Send for BlockPool {}
// SAFETY: as above. Accesses are ordered by pins and by the prefetch's life, not by this type.
unsafe impl Sync for BlockPool {}

/// Why memory is no block pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPool {
    /// A zero or NULL.
    #[error(
        "a block pool needs an address, a block size and a number of blocks, none of them zero"
    )]
    Empty,
    /// Larger than memory can be.
    #[error(
        "block size times number of blocks is more than memory can be, or ids do not fit 31 bits"
    )]
    TooLarge,
}

impl BlockPool {
    /// A pool of the host's memory.
    ///
    /// # Safety
    /// `base` points at `block_bytes * block_count` bytes that stay valid as long as the pool or a
    /// copy of it is used. Whoever else has this memory does not write blocks that are pinned in
    /// the reuse tree, and does not touch blocks that are lent to a prefetch.
    pub unsafe fn new(
        base: *mut u8,
        block_bytes: usize,
        block_count: usize,
    ) -> Result<Self, BadPool> {
        if base.is_null() || block_bytes == 0 || block_count == 0 {
            return Err(BadPool::Empty);
        }
        let bytes = block_bytes.checked_mul(block_count).ok_or(BadPool::TooLarge)?;
        let end = (base as usize).checked_add(bytes);
        if bytes > isize::MAX as usize || end.is_none() || block_count > i32::MAX as usize {
            return Err(BadPool::TooLarge);
        }
        Ok(Self { base, block_bytes, block_count })
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Whether the pool has that block.
    pub fn contains(&self, id: i32) -> bool {
        usize::try_from(id).is_ok_and(|slot| slot < self.block_count)
    }

    /// Where a block lies.
    pub fn block(&self, id: i32) -> Option<Segment> {
        let slot = usize::try_from(id).ok().filter(|slot| *slot < self.block_count)?;
        // SAFETY: the slot is inside of the pool, whose extent `new` checked.
        let data = unsafe { self.base.add(slot * self.block_bytes) };
        Some(Segment { data, len: self.block_bytes })
    }
}

// SAFETY: blocks lie inside of the pool, whose extent `new` checked.
unsafe impl BlockMemory for BlockPool {
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn block(&self, id: i32) -> Option<Segment> {
        BlockPool::block(self, id)
    }

    fn whole(&self) -> Option<Segment> {
        // `new` checked that it is no more than memory can be.
        Some(Segment { data: self.base, len: self.block_bytes * self.block_count })
    }
}

/// Where blocks lie, and what is read and written there.
///
/// # Safety
/// What [`BlockMemory::block`] says of an id is that many bytes, valid for reads as long as the block
/// is pinned, and for writes by nobody else as long as it is lent to a prefetch.
pub unsafe trait BlockMemory: Send + Sync {
    /// Bytes of one block.
    fn block_bytes(&self) -> usize;

    /// Where a block lies; `None` for an id that is none, and where the host's processors cannot reach
    /// it. As long as [`BlockMemory::block_bytes`].
    fn block(&self, id: i32) -> Option<Segment>;

    /// Memory in one piece that all blocks lie in, and nothing else; `None` where they lie anywhere.
    fn whole(&self) -> Option<Segment> {
        None
    }

    /// The pool of a device that has the blocks; `None` where the host's processors reach them. With one,
    /// what is read and written below is not there: blocks are copied by the device.
    fn device(&self) -> Option<&DevicePool> {
        None
    }

    /// Whether there is that block.
    fn contains(&self, id: i32) -> bool {
        self.block(id).is_some()
    }

    /// [`block_checksum`] of a block that is pinned.
    fn checksum(&self, id: i32, name: &Name) -> Option<u64> {
        let block = self.block(id)?;
        // SAFETY: inside of the block, and nobody writes a pinned block, as the implementor promises.
        let bytes = unsafe { std::slice::from_raw_parts(block.data, block.len) };
        Some(block_checksum(name, bytes))
    }

    /// Copies a block that is pinned to `to`: its [`block_checksum`], in the same pass. `None`, and nothing
    /// copied, when it is not in the pool or `to` is not as long.
    fn copy_out(&self, id: i32, name: &Name, to: &mut [u8]) -> Option<u64> {
        let block = self.block(id).filter(|block| block.len == to.len())?;
        // SAFETY: inside of the block, which nobody writes while it is pinned, as the implementor
        // promises; so `to`, a slice to be written, is not in it.
        Some(unsafe { copy_and_sum(block.data, to.as_mut_ptr(), to.len(), checksum_seed(name)) })
    }

    /// Fills a block that is lent to a prefetch, one of many (`is_bulk`) or of few; `false` when it is
    /// not in the pool or `bytes` is not one block.
    fn fill(&self, id: i32, bytes: &[u8], is_bulk: bool) -> bool {
        let Some(block) = self.block(id).filter(|block| block.len == bytes.len()) else {
            return false;
        };
        // SAFETY: inside of the block, as long as `bytes`, and nobody else touches a lent block, as
        // `new` was promised; so `bytes`, a Rust slice, is not in it.
        unsafe {
            match is_bulk {
                true => copy_bulk(bytes.as_ptr(), block.data, block.len),
                false => std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.data, block.len),
            }
        }
        true
    }

    /// Appends pieces of a block that is pinned to `out`; `false`, and nothing appended, when one of
    /// them is not in the pool. The caller sees to it that `out` has room.
    fn gather(&self, id: i32, pieces: &[Range<usize>], out: &mut Vec<u8>) -> bool {
        let is_inside =
            |piece: &Range<usize>| piece.start <= piece.end && piece.end <= self.block_bytes();
        let Some(block) = self.block(id).filter(|_| pieces.iter().all(is_inside)) else {
            return false;
        };
        // SAFETY: inside of the block, and nobody writes a pinned block, as the implementor promises.
        let bytes = unsafe { std::slice::from_raw_parts(block.data, block.len) };
        pieces.iter().for_each(|piece| out.extend_from_slice(&bytes[piece.clone()]));
        true
    }

    /// Fills pieces of a block that is lent to a prefetch, one after the other; `false`, and nothing
    /// written, when one is not in the pool or `bytes` is not as long as all of them.
    fn scatter(&self, id: i32, pieces: &[Range<usize>], bytes: &[u8]) -> bool {
        let is_inside =
            |piece: &Range<usize>| piece.start <= piece.end && piece.end <= self.block_bytes();
        let Some(block) = self.block(id).filter(|_| pieces.iter().all(is_inside)) else {
            return false;
        };
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() != bytes.len() {
            return false;
        }
        let mut rest = bytes;
        for piece in pieces {
            let (part, left) = rest.split_at(piece.len());
            // SAFETY: the piece is inside of the block and as long as `part`, and nobody else
            // touches a lent block, as the implementor promises; so `part`, a Rust slice, is not in it.
            unsafe {
                let target = block.data.add(piece.start);
                std::ptr::copy_nonoverlapping(part.as_ptr(), target, part.len());
            }
            rest = left;
        }
        true
    }

    /// Where a run of blocks lies, neighbours in memory joined; `None` when one is not in the pool.
    fn segments(&self, ids: &[i32]) -> Option<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::with_capacity(ids.len());
        for id in ids {
            let block = self.block(*id)?;
            match segments.last_mut() {
                Some(last) if last.data.wrapping_add(last.len) == block.data => {
                    last.len += block.len;
                }
                _ => segments.push(block),
            }
        }
        Some(segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_have_no_address_and_neighbours_are_joined() {
        let mut bytes = vec![0u8; 40];
        let base = bytes.as_mut_ptr();
        // SAFETY: `bytes` outlives the pool and is 4 blocks long.
        let pool = unsafe { BlockPool::new(base, 10, 4) }.unwrap();
        assert!(
            pool.block(-1).is_none() && pool.block(4).is_none() && pool.block(i32::MIN).is_none()
        );
        assert_eq!(pool.block(3).unwrap().data as usize - base as usize, 30);
        let whole = pool.whole().unwrap();
        assert_eq!((whole.data, whole.len), (base, 40));
        let lens = |ids: &[i32]| -> Vec<usize> {
            pool.segments(ids).unwrap().iter().map(|segment| segment.len).collect()
        };
        assert_eq!(lens(&[0, 1, 2]), [30]);
        assert_eq!(lens(&[1, 0, 2, 3]), [10, 10, 20]);
        assert!(pool.segments(&[0, 4]).is_none());
        assert!(
            pool.fill(2, &[7; 10], true)
                && !pool.fill(2, &[7; 9], false)
                && !pool.fill(4, &[7; 10], true)
        );
        let name = Name([3; 32]);
        assert_eq!(pool.checksum(2, &name), Some(block_checksum(&name, &[7; 10])));
        assert_ne!(pool.checksum(2, &Name([4; 32])), pool.checksum(2, &name));
        assert_eq!(pool.checksum(4, &name), None);
        let mut copy = [0; 10];
        assert_eq!(pool.copy_out(2, &name, &mut copy), pool.checksum(2, &name));
        assert_eq!(copy, [7; 10]);
        assert_eq!(pool.copy_out(2, &name, &mut copy[..9]), None);
        assert_eq!(pool.copy_out(4, &name, &mut copy), None);
        assert_eq!(bytes[15..35], [[0; 5].as_slice(), &[7; 10], &[0; 5]].concat());
    }

    #[test]
    fn pieces_outside_of_a_block_are_neither_read_nor_written() {
        let mut bytes: Vec<u8> = (0..40).collect();
        // SAFETY: `bytes` outlives the pool and is 4 blocks long.
        let pool = unsafe { BlockPool::new(bytes.as_mut_ptr(), 10, 4) }.unwrap();
        let mut out = Vec::new();
        assert!(pool.gather(1, &[2..4, 9..10, 0..0], &mut out));
        assert_eq!(out, [12, 13, 19]);
        #[allow(clippy::reversed_empty_ranges)] // What a fault could make.
        let outside = [0..11, usize::MAX - 1..usize::MAX, 4..2];
        for piece in outside {
            assert!(!pool.gather(1, &[0..1, piece.clone()], &mut out), "{piece:?}");
            assert!(
                !pool.scatter(1, std::slice::from_ref(&piece), &vec![0; piece.len().min(64)]),
                "{piece:?}"
            );
        }
        assert_eq!(out.len(), 3);
        let first = std::slice::from_ref(&(0..1));
        assert!(!pool.gather(4, first, &mut out) && !pool.scatter(-1, first, &[0]));
        assert!(!pool.scatter(2, &[0..2, 5..6], &[1, 2]), "too few bytes");
        assert!(pool.scatter(2, &[0..2, 5..6], &[101, 102, 103]));
        assert_eq!(bytes[19..27], [19, 101, 102, 22, 23, 24, 103, 26]);
    }

    #[test]
    fn impossible_pools_are_refused() {
        let mut byte = 0u8;
        // SAFETY: none of these pools is made.
        let new = |base, bytes, count| unsafe { BlockPool::new(base, bytes, count) }.unwrap_err();
        assert_eq!(new(std::ptr::null_mut(), 1, 1), BadPool::Empty);
        assert_eq!(new(&mut byte, 0, 1), BadPool::Empty);
        assert_eq!(new(&mut byte, usize::MAX, 2), BadPool::TooLarge);
        assert_eq!(new(&mut byte, 1, usize::MAX / 2), BadPool::TooLarge);
        assert_eq!(new(&mut byte, 1, 1 << 31), BadPool::TooLarge);
    }
}
