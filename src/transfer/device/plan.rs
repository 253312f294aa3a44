//! How parts of blocks get from a device into staging, or back: as plain copies, or as one launch of a
//! kernel. A pure function of addresses and sizes.
//!
//! Long pieces are copied by the device's copy engines, one command each, which leaves its processors
//! alone; for many short ones the commands would take longer than the bytes, so one kernel moves them
//! all. Without kernels everything is plain copies: the same bytes, slower.
//!
//! Guards: a piece outside of a block has no plan. Every byte of every part is moved exactly once.
//! Never does: touch memory.

use std::ops::Range;

/// Which way parts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Out of blocks, into staging.
    Gather,
    /// Out of staging, into blocks.
    Scatter,
}

/// Names of the kernels in `kernels.ptx`, by direction.
pub const KERNELS: [&str; 2] = ["kvhints_gather", "kvhints_scatter"];

/// Pieces that are this long on average are copied one by one: a copy engine needs about as long to
/// take a command as to move this much. Chosen by that reckoning, not by a measurement.
pub const COPY_FROM_BYTES: usize = 128 << 10;
/// Threads of one thread block.
pub const THREADS: u32 = 256;
/// Most thread blocks of a launch: enough to fill the way to the host, few enough to leave a device's
/// processors to those who compute.
pub const MAX_THREAD_BLOCKS: u32 = 64;

/// One plain copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// The device's address.
    pub device: u64,
    /// Where in staging, in bytes from its beginning.
    pub staging_offset: usize,
    /// How much.
    pub bytes: usize,
}

/// One launch of a kernel: see `kernels.cu`, which says what the numbers mean to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks: in x they share out pieces of blocks, in y the words of a piece.
    pub grid: (u32, u32),
    /// The blocks' addresses, then each piece's first byte in the block, its bytes, and its first byte
    /// in the part.
    pub table: Vec<u64>,
    /// Blocks.
    pub block_count: u64,
    /// Pieces of each.
    pub piece_count: u64,
    /// Bytes of a part.
    pub part_bytes: u64,
    /// Bytes that one thread moves at a time: 16, 4 or 1.
    pub word_bytes: u64,
}

impl Launch {
    /// What the kernel is given, in its order.
    pub fn arguments(&self, table: *const u64, staging: *mut u8) -> [u64; 6] {
        [
            table as u64,
            staging as u64,
            self.block_count,
            self.piece_count,
            self.part_bytes,
            self.word_bytes,
        ]
    }
}

/// What moves the parts of some blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Copies, in any order.
    Copies(Vec<Copy>),
    /// A launch.
    Kernel(Launch),
}

/// Plans to move `pieces` of each of these blocks; parts lie in staging one after the other. `None`
/// when a piece is not inside of a block, or nothing is to be moved, or memory could not be had. With
/// `table_bytes` no launch has a longer table; 0 where there are no kernels.
pub fn plan(
    blocks: &[u64],
    block_bytes: usize,
    pieces: &[Range<usize>],
    table_bytes: usize,
) -> Option<Plan> {
    let is_inside = |piece: &Range<usize>| piece.start < piece.end && piece.end <= block_bytes;
    let has_room = |block: &u64| block.checked_add(block_bytes as u64).is_some();
    if !pieces.iter().all(is_inside) || !blocks.iter().all(has_room) {
        return None;
    }
    let part_bytes = pieces
        .iter()
        .try_fold(0usize, |bytes, piece| bytes.checked_add(piece.len()))
        .filter(|bytes| *bytes > 0)?;
    let bytes = part_bytes.checked_mul(blocks.len()).filter(|bytes| *bytes > 0)?;
    let copies = copies(blocks, pieces, part_bytes)?;
    let table_len = blocks.len() + 3 * pieces.len();
    if bytes / copies.len() >= COPY_FROM_BYTES
        || copies.len() == 1
        || table_len * size_of::<u64>() > table_bytes
    {
        return Some(Plan::Copies(copies));
    }
    launch(blocks, pieces, part_bytes, table_len).map(Plan::Kernel)
}

fn copies(blocks: &[u64], pieces: &[Range<usize>], part_bytes: usize) -> Option<Vec<Copy>> {
    let mut copies: Vec<Copy> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let mut staging_offset = index * part_bytes;
        for piece in pieces {
            let device = block + piece.start as u64;
            match copies.last_mut() {
                // What lies side by side on the device does so in staging: there is no gap there.
                Some(last) if last.device + last.bytes as u64 == device => {
                    last.bytes += piece.len();
                }
                _ => {
                    copies.try_reserve(1).ok()?;
                    copies.push(Copy { device, staging_offset, bytes: piece.len() });
                }
            }
            staging_offset += piece.len();
        }
    }
    Some(copies)
}

fn launch(
    blocks: &[u64],
    pieces: &[Range<usize>],
    part_bytes: usize,
    table_len: usize,
) -> Option<Launch> {
    let mut table = Vec::new();
    table.try_reserve_exact(table_len).ok()?;
    table.extend_from_slice(blocks);
    let mut offset = 0;
    for piece in pieces {
        table.extend([piece.start as u64, piece.len() as u64, offset]);
        offset += piece.len() as u64;
    }
    // What divides all addresses and sizes divides their bits taken together; a part's bytes are a sum
    // of pieces', and staging itself is aligned to more.
    let bits = table.iter().fold(0, |bits, number| bits | number);
    let word_bytes = match bits.trailing_zeros() {
        4.. => 16,
        2..4 => 4,
        _ => 1,
    };
    let units = (blocks.len() * pieces.len()).min(MAX_THREAD_BLOCKS as usize) as u32;
    let longest = pieces.iter().map(|piece| piece.len()).max().unwrap_or(0) as u64 / word_bytes;
    let slices = u32::try_from(longest.div_ceil(THREADS.into())).unwrap_or(u32::MAX);
    Some(Launch {
        grid: (units, slices.clamp(1, MAX_THREAD_BLOCKS / units)),
        table,
        block_count: blocks.len() as u64,
        piece_count: pieces.len() as u64,
        part_bytes: part_bytes as u64,
        word_bytes,
    })
}
