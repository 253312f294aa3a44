//! One copy for all ranks of a node: a stream of bytes through memory that they share (an MPI shared
//! memory window). Rank 0 of the node writes, the others read, each at its own pace.
//!
//! ```text
//! line 0         written u64: bytes written so far
//! line 1 + 2r    read u64: bytes that node rank r has read
//! line 2 + 2r    gone u64; rank u64: its rank among all
//! ring           RING_BYTES, from line 1 + 2 * node size on                (lines of 64 bytes)
//! ```
//!
//! What changes all the time has a line of its own: others look at the rest without fetching it anew.
//!
//! A writer waits while the ring holds bytes that some reader has not read; a reader waits while there
//! are none for it. Both look at the other's counter: acquire after release, so that bytes are there
//! when the counter says so.
//!
//! Guards: nobody waits for a rank that left (`gone`), nor beyond the deadline. What was written
//! before its writer left is still read. Ranks copy out; nobody keeps a view into the ring.
//! Never does: call MPI while moving bytes, but for the host's own messages while it waits.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sys::{Comm, SharedMemory};
use super::watch::Watch;
use crate::broadcast::communicator::CommunicatorError;

/// Bytes between writer and slowest reader.
const RING_BYTES: usize = 1 << 20;

/// Bytes after which the other side is told: it copies while this one goes on.
const PIECE_BYTES: usize = 16 << 10;

const LINE_BYTES: usize = 64;

/// Lines before the ring, for this many ranks.
const fn lines(node_size: usize) -> usize {
    1 + 2 * node_size
}

// Where the words lie.
const WRITTEN: usize = 0;

const fn read_by(node_rank: usize) -> usize {
    LINE_BYTES * (1 + 2 * node_rank)
}

const fn gone_of(node_rank: usize) -> usize {
    LINE_BYTES * (2 + 2 * node_rank)
}

const fn rank_of(node_rank: usize) -> usize {
    gone_of(node_rank) + size_of::<u64>()
}

/// A rank that left, if one did: its rank among all.
pub(super) type Gone = Option<u32>;

/// One rank's end of the stream.
#[derive(Debug)]
pub(super) struct Window {
    memory: SharedMemory,
    base: NonNull<u8>,
    node_rank: usize,
    node_size: usize,
    /// Bytes that this rank has written or read.
    position: u64,
    /// Of these, the bytes that the readers were told of.
    told: u64,
    /// Bytes that every reader has read, as last seen by the writer.
    seen: u64,
}

// SAFETY: the base points into memory that stays mapped until MPI is finalised, and what is shared
// there is only reached through atomics and the ring's protocol, whatever thread does it.
unsafe impl Send for Window {}

impl Window {
    /// Collective over `node`, the ranks of one node. `None` on all of them where one of them cannot.
    pub(super) fn allocate(node: Comm, rank: u32) -> Result<Option<Self>, CommunicatorError> {
        let (node_rank, node_size) = node.rank_and_size()?;
        let (node_rank, node_size) = (node_rank as usize, node_size as usize);
        let len = LINE_BYTES * lines(node_size) + RING_BYTES;
        // A rank that gets none tells the others, as one whose memory cannot be used.
        let memory = node.allocate_shared(if node_rank == 0 { len } else { 0 }).ok();
        let mine = memory.map(|memory| Self {
            base: memory.base(),
            memory,
            node_rank,
            node_size,
            position: 0,
            told: 0,
            seen: 0,
        });
        let is_aligned =
            |base: NonNull<u8>| base.as_ptr().align_offset(align_of::<AtomicU64>()) == 0;
        let mine = mine.filter(|mine| is_aligned(mine.base));
        if let Some(mine) = &mine {
            if node_rank == 0 {
                mine.word(WRITTEN).store(0, Ordering::Relaxed);
            }
            mine.word(read_by(node_rank)).store(0, Ordering::Relaxed);
            mine.word(gone_of(node_rank)).store(0, Ordering::Relaxed);
            mine.word(rank_of(node_rank)).store(u64::from(rank), Ordering::Release);
        }
        // Also a barrier: nobody looks before all have written.
        let mut have_all = [u64::from(mine.is_some())];
        node.min_reduce(&mut have_all)?;
        // Where one has none, the others' memory stays until MPI_Finalize: freeing takes all ranks.
        Ok(mine.filter(|_| have_all[0] == 1))
    }

    /// Whether this rank writes.
    pub(super) fn is_writer(&self) -> bool {
        self.node_rank == 0
    }

    /// The writer: puts `bytes` into the stream. Readers learn of them after a while, or by `flush`.
    pub(super) fn write(&mut self, bytes: &[u8], watch: Watch) -> Result<(), CommunicatorError> {
        for piece in bytes.chunks(PIECE_BYTES) {
            let needed = (self.position + piece.len() as u64).saturating_sub(RING_BYTES as u64);
            let mut patience = watch.patience();
            while self.seen < needed {
                self.flush();
                self.seen = self.slowest();
                if self.seen < needed {
                    patience.wait(|| self.gone())?;
                }
            }
            self.copy_in(piece);
            self.position += piece.len() as u64;
            if self.position - self.told >= PIECE_BYTES as u64 {
                self.flush();
            }
        }
        Ok(())
    }

    /// The writer: tells the readers of all that was written.
    pub(super) fn flush(&mut self) {
        if self.told < self.position {
            self.told = self.position;
            self.written().store(self.position, Ordering::Release);
        }
    }

    /// A reader: fills `buffer` from the stream.
    pub(super) fn read(
        &mut self,
        buffer: &mut [u8],
        watch: Watch,
    ) -> Result<(), CommunicatorError> {
        let mut rest = buffer;
        let mut patience = watch.patience();
        while !rest.is_empty() {
            let there = self.written().load(Ordering::Acquire) - self.position;
            if there == 0 {
                patience.wait(|| self.writer_gone())?;
                continue;
            }
            let len = rest.len().min(PIECE_BYTES).min(usize::try_from(there).unwrap_or(usize::MAX));
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            self.copy_out(piece);
            self.position += len as u64;
            self.word(read_by(self.node_rank)).store(self.position, Ordering::Release);
            patience = watch.patience();
        }
        Ok(())
    }

    /// Any other rank of the node that left.
    pub(super) fn gone(&self) -> Gone {
        (0..self.node_size).find(|rank| self.has_left(*rank)).map(|rank| self.rank_of(rank))
    }

    /// This rank makes no further calls. Only while MPI runs: later the memory is gone.
    pub(super) fn leave(&self) {
        self.word(gone_of(self.node_rank)).store(1, Ordering::Release);
    }

    /// Collective over the node.
    pub(super) fn free(self) -> Result<(), CommunicatorError> {
        self.memory.free()
    }

    fn writer_gone(&self) -> Gone {
        // What it wrote before is looked for once more by the caller, who comes back here only when
        // there is nothing: the mark was set after the last byte.
        let is_over = self.has_left(0) && self.written().load(Ordering::Acquire) == self.position;
        is_over.then(|| self.rank_of(0))
    }

    fn has_left(&self, node_rank: usize) -> bool {
        node_rank != self.node_rank && self.word(gone_of(node_rank)).load(Ordering::Acquire) != 0
    }

    fn rank_of(&self, node_rank: usize) -> u32 {
        self.word(rank_of(node_rank)).load(Ordering::Relaxed) as u32
    }

    fn slowest(&self) -> u64 {
        (1..self.node_size)
            .map(|rank| self.word(read_by(rank)).load(Ordering::Acquire))
            .min()
            .unwrap_or(self.position)
    }

    fn written(&self) -> &AtomicU64 {
        self.word(WRITTEN)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + size_of::<u64>() <= LINE_BYTES * lines(self.node_size));
        // SAFETY: inside the lines in front of the ring; aligned, as `allocate` checked; all ranks
        // reach these words as atomics only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The ring from the present position on: where it lies and how much fits before its end.
    fn ring_at_position(&self) -> (NonNull<u8>, usize) {
        let at = (self.position % RING_BYTES as u64) as usize;
        let start = LINE_BYTES * lines(self.node_size) + at;
        // SAFETY: inside the memory, which has RING_BYTES behind the lines.
        (unsafe { self.base.add(start) }, RING_BYTES - at)
    }

    fn ring_start(&self) -> NonNull<u8> {
        // SAFETY: inside the memory.
        unsafe { self.base.add(LINE_BYTES * lines(self.node_size)) }
    }

    #[inline]
    fn copy_in(&self, piece: &[u8]) {
        let (at, fits) = self.ring_at_position();
        let (first, second) = piece.split_at(piece.len().min(fits));
        // SAFETY: both ranges lie inside the ring, since a piece is shorter than it. No reader looks
        // at them: all have read what stood there, and the new bytes are not announced yet.
        unsafe {
            std::ptr::copy_nonoverlapping(first.as_ptr(), at.as_ptr(), first.len());
            if !second.is_empty() {
                let start = self.ring_start();
                std::ptr::copy_nonoverlapping(second.as_ptr(), start.as_ptr(), second.len());
            }
        }
    }

    #[inline]
    fn copy_out(&self, piece: &mut [u8]) {
        let (at, fits) = self.ring_at_position();
        let first_len = piece.len().min(fits);
        let (first, second) = piece.split_at_mut(first_len);
        // SAFETY: both ranges lie inside the ring. The writer announced these bytes and changes none
        // before this rank says that it has read them.
        unsafe {
            std::ptr::copy_nonoverlapping(at.as_ptr(), first.as_mut_ptr(), first.len());
            if !second.is_empty() {
                let start = self.ring_start();
                std::ptr::copy_nonoverlapping(start.as_ptr(), second.as_mut_ptr(), second.len());
            }
        }
    }
}
