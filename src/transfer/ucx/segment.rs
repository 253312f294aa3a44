//! Memory that processes of one machine share, and reading another process's own.
//!
//! A [`Segment`] is this side's: it writes what it sends, and peers map it to read. A [`View`] is
//! another process's segment, mapped for reading. [`read_memory`] copies out of another process
//! without its help. Who may do either the kernel says, as for a debugger: the same user.
//!
//! Guards: nobody but the segment's owner can ever write to it (it is sealed); a view cannot be cut
//! under its reader; what is opened is a segment of this library or nothing.
//! Never does: trust what it reads. What is read was perhaps written anew meanwhile; the checksums
//! of what is copied out decide.

use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::transfer::transport::Unsettled;

/// Shared out in pieces of so many bytes.
const CHUNK_BYTES: usize = 128 << 10;
/// As many as a number has bits.
const CHUNKS: usize = 64;
/// Ahead of the chunks: the number that shows a reader whose segment it is.
const HEAD_BYTES: usize = 4096;
const SEGMENT_BYTES: usize = HEAD_BYTES + CHUNKS * CHUNK_BYTES;

/// Shows whose memory is seen.
pub(super) type Nonce = [u8; 16];

/// Its name among a process's descriptors.
const NAME: &str = "kvhints";

/// Most pieces of memory that the kernel reads at a time (`UIO_MAXIOV`).
const MAX_PIECES_A_CALL: usize = 1024;

/// A piece of another process's memory, or of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Address, or place in the segment.
    pub at: u64,
    pub len: u64,
}

/// Memory mapped here, unmapped when dropped.
struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: plain memory of the process, used by whoever has the transport for itself.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File, len: usize, protection: i32) -> Result<Self, Error> {
        // SAFETY: a new mapping at a place of the system's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Self { base: base.cast(), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once; nobody keeps an address in it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// This side's segment.
pub(super) struct Segment {
    file: File,
    mapping: Mapping,
    nonce: Nonce,
    /// One bit for each chunk that a peer has not given back.
    taken: u64,
}

impl Segment {
    pub fn new() -> Result<Self, Error> {
        let name = CString::new(NAME)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string; makes a new descriptor.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(SEGMENT_BYTES as u64)?;
        let mapping = Mapping::new(&file, SEGMENT_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
        let seals =
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: a live descriptor and a number.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(Error::last_os_error());
        }
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(Error::other)?;
        // SAFETY: the head is longer than a nonce; nobody else knows the mapping yet.
        unsafe { std::ptr::copy_nonoverlapping(nonce.as_ptr(), mapping.base, nonce.len()) };
        Ok(Self { file, mapping, nonce, taken: 0 })
    }

    pub fn descriptor(&self) -> u32 {
        self.file.as_raw_fd().unsigned_abs()
    }

    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Free chunks in a row for so many bytes, if there are enough. They stay free until they are taken.
    pub fn room(&self, len: usize) -> Option<Piece> {
        let chunks = len.div_ceil(CHUNK_BYTES);
        let mask = mask_of(chunks)?;
        let first = (0..=CHUNKS - chunks).find(|first| self.taken & (mask << first) == 0)?;
        Some(Piece { at: (HEAD_BYTES + first * CHUNK_BYTES) as u64, len: len as u64 })
    }

    /// The bytes of what `room` gave.
    pub fn bytes_mut(&mut self, piece: Piece) -> &mut [u8] {
        let (at, len) = (piece.at as usize, piece.len as usize);
        assert!(at.checked_add(len).is_some_and(|end| end <= self.mapping.len), "a room's place");
        // SAFETY: inside of the mapping, as just seen, which lives as long as `self`. Peers only read
        // it, and what they read of chunks that are not taken counts for nothing.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.add(at), len) }
    }

    /// Chunks that `room` gave are a peer's until they are freed.
    pub fn take(&mut self, piece: Piece) {
        self.taken |= chunks_of(piece);
    }

    /// Takes back what a peer had.
    pub fn free(&mut self, piece: Piece) {
        self.taken &= !chunks_of(piece);
    }
}

/// One bit for each chunk that a piece lies in.
fn chunks_of(piece: Piece) -> u64 {
    let first = (piece.at as usize - HEAD_BYTES) / CHUNK_BYTES;
    mask_of((piece.len as usize).div_ceil(CHUNK_BYTES)).map_or(0, |mask| mask << first)
}

/// So many low bits; `None` for none and for more than there are.
fn mask_of(chunks: usize) -> Option<u64> {
    match chunks {
        0 => None,
        CHUNKS => Some(u64::MAX),
        1..CHUNKS => Some((1 << chunks) - 1),
        _ => None,
    }
}

/// Another process's segment.
pub(super) struct View(Mapping);

impl View {
    /// Opens what a process says is its segment, if it is one and bears that nonce.
    pub fn open(process: u32, descriptor: u32, nonce: &Nonce) -> Result<Self, Error> {
        let refused = |why: &str| Err(Error::other(why.to_owned()));
        let path = format!("/proc/{process}/fd/{descriptor}");
        // Opening anything else may have effects of its own.
        let target = std::fs::read_link(&path)?;
        if !target.to_string_lossy().starts_with(&format!("/memfd:{NAME}")) {
            return refused("it is no segment");
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(&path)?;
        // SAFETY: a live descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
        if seals < 0 || seals & wanted != wanted || file.metadata()?.len() != SEGMENT_BYTES as u64 {
            return refused("it is not sealed, or of another size");
        }
        let view = Self(Mapping::new(&file, SEGMENT_BYTES, libc::PROT_READ)?);
        let mut found = Nonce::default();
        let head = view.bytes(Piece { at: 0, len: 16 });
        if head.is_some_and(|head| head.copy(&mut found)) && found == *nonce {
            Ok(view)
        } else {
            refused("it is another one")
        }
    }

    /// Whether the segment has such a piece.
    pub fn has(&self, piece: Piece) -> bool {
        piece.at.checked_add(piece.len).is_some_and(|end| end <= self.0.len as u64)
    }

    /// Where a piece lies; `None` when there is none such. Its owner may write it at any time.
    pub fn bytes(&self, piece: Piece) -> Option<Unsettled<'_>> {
        if !self.has(piece) {
            return None;
        }
        // SAFETY: inside of the mapping, which is sealed against being cut and can only be read.
        Some(unsafe { Unsettled::new(self.0.base.add(piece.at as usize), piece.len as usize) })
    }
}

/// Copies pieces of another process's memory one behind the other.
pub(super) fn read_memory(process: u32, pieces: &[Piece], to: &mut [u8]) -> Result<(), Error> {
    let mut done = 0;
    for pieces in pieces.chunks(MAX_PIECES_A_CALL) {
        let theirs: Vec<libc::iovec> = pieces
            .iter()
            .map(|piece| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(piece.at as usize),
                iov_len: piece.len as usize,
            })
            .collect();
        let wanted: usize = theirs.iter().map(|piece| piece.iov_len).sum();
        if wanted > to.len() - done {
            return Err(Error::other("more than the memory that it is for"));
        }
        let target = &mut to[done..done + wanted];
        let ours = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: wanted };
        let process = process.cast_signed();
        // SAFETY: the local piece is a slice of ours; the kernel judges the others.
        let read = unsafe {
            libc::process_vm_readv(process, &ours, 1, theirs.as_ptr(), theirs.len() as u64, 0)
        };
        if read < 0 {
            return Err(Error::last_os_error());
        }
        if read.unsigned_abs() != wanted {
            return Err(Error::other("a part of it is not there"));
        }
        done += wanted;
    }
    if done == to.len() {
        Ok(())
    } else {
        Err(Error::other("less than the memory that it is for"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_view(segment: &Segment) -> Result<View, Error> {
        View::open(std::process::id(), segment.descriptor(), &segment.nonce())
    }

    fn place(segment: &mut Segment, bytes: &[u8]) -> Option<Piece> {
        let piece = segment.room(bytes.len())?;
        segment.bytes_mut(piece).copy_from_slice(bytes);
        segment.take(piece);
        Some(piece)
    }

    #[test]
    fn what_is_placed_is_seen_and_chunks_are_used_again() {
        let mut segment = Segment::new().unwrap();
        let view = own_view(&segment).unwrap();
        let small = vec![1u8; CHUNK_BYTES + 1];
        let first = place(&mut segment, &small).unwrap();
        let other = vec![2u8; 10];
        let second = place(&mut segment, &other).unwrap();
        let mut seen = vec![0u8; small.len()];
        let copy = |piece, to: &mut [u8]| view.bytes(piece).is_some_and(|bytes| bytes.copy(to));
        assert!(copy(first, &mut seen));
        assert_eq!(seen, small);
        assert!(copy(second, &mut seen[..10]));
        assert_eq!(seen[..10], other);
        assert!(!copy(Piece { len: 9, ..second }, &mut seen[..10]), "another length");
        let outside = Piece { at: SEGMENT_BYTES as u64 - 9, len: 10 };
        assert!(!copy(outside, &mut seen[..10]));
        let wrapping = Piece { at: u64::MAX - 3, len: 10 };
        assert!(!copy(wrapping, &mut seen[..10]));
        let rest = vec![3u8; (CHUNKS - 3) * CHUNK_BYTES];
        let third = place(&mut segment, &rest).expect("the rest fits");
        assert_eq!(place(&mut segment, &other), None, "all chunks are taken");
        segment.free(first);
        assert!(place(&mut segment, &small).is_some());
        [second, third].into_iter().for_each(|piece| segment.free(piece));
        assert_eq!(place(&mut segment, &[]), None);
        let whole = vec![4u8; CHUNKS * CHUNK_BYTES];
        assert_eq!(place(&mut segment, &whole), None, "two chunks are still taken");
    }

    #[test]
    fn only_a_segment_with_the_nonce_is_opened_and_nobody_can_write_to_it() {
        let segment = Segment::new().unwrap();
        let process = std::process::id();
        assert!(View::open(process, segment.descriptor(), &[0; 16]).is_err());
        let other = File::open("/dev/zero").unwrap();
        assert!(View::open(process, other.as_raw_fd() as u32, &segment.nonce()).is_err());
        assert!(View::open(process, 1 << 30, &segment.nonce()).is_err());
        assert!(View::open(0, segment.descriptor(), &segment.nonce()).is_err());
        let path = format!("/proc/{process}/fd/{}", segment.descriptor());
        let writable = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let mapped = writable.and_then(|file| {
            Mapping::new(&file, SEGMENT_BYTES, libc::PROT_READ | libc::PROT_WRITE).map(|_| ())
        });
        assert!(mapped.is_err(), "sealed against later writers");
    }

    #[test]
    fn memory_is_read_in_pieces_and_bad_places_are_errors() {
        let mut source: Vec<u8> = (0..=255).collect();
        let base = source.as_mut_ptr().addr() as u64;
        let process = std::process::id();
        let mut target = [0u8; 5];
        let pieces = [Piece { at: base + 200, len: 3 }, Piece { at: base + 1, len: 2 }];
        read_memory(process, &pieces, &mut target).unwrap();
        assert_eq!(target, [200, 201, 202, 1, 2]);
        assert!(read_memory(process, &pieces[..1], &mut target).is_err(), "too little");
        assert!(read_memory(process, &pieces, &mut target[..4]).is_err(), "too much");
        let nowhere = [Piece { at: 8, len: 5 }];
        assert!(read_memory(process, &nowhere, &mut target).is_err());
        let many = vec![Piece { at: base, len: 1 }; 3000];
        let mut all = vec![7u8; 3000];
        read_memory(process, &many, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 0));
    }
}
