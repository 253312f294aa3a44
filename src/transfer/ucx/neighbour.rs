//! What two transports of one machine tell each other, so that data need not go over a wire.
//!
//! | who | kind | what |
//! |---|---|---|
//! | who connected | machine | which machine it is on, a digest, and a number to be shown in memory |
//! | the other | segment | the same machine: where its segment is, and where that number |
//! | who connected | reached | what of it could be read: tried, not assumed |
//! | the other | placed | data, as a place in its segment or as addresses, instead of the bytes |
//! | who connected | taken | that data was read, or is not wanted: the place is free |
//!
//! Until *reached* came, and whenever a place is not to be had, data goes over the wire.
//!
//! Guards: nothing that is read here is believed but for its form.
//! Never does: read or write anybody's memory.

use sha2::{Digest, Sha256};

use super::segment::{Nonce, Piece};

/// Which machine, as far as processes can see each other.
pub(super) type Machine = [u8; 16];

/// Data of at most so many bytes is read where it lies: faster than copying it twice.
pub(super) const MAX_DIRECT_BYTES: usize = 128 << 10;
/// Most pieces of data that is read where it lies.
pub(super) const MAX_DIRECT_PIECES: usize = 1024;

/// Which ways to the memory of other processes UCX's `TLS` leaves open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ways {
    /// A segment that both map.
    pub segment: bool,
    /// Reading the other process's own memory.
    pub memory: bool,
}

impl Ways {
    /// The ways that UCX's list of wires names, by the words that UCX has for its own.
    pub fn of(tls: &str) -> Self {
        let (is_negated, list) = match tls.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, tls),
        };
        let names = |words: &[&str]| list.split(',').any(|word| words.contains(&word.trim()));
        if is_negated {
            return Self {
                segment: !names(&["sm", "shm", "mm", "posix"]),
                memory: !names(&["sm", "shm", "cma"]),
            };
        }
        Self {
            segment: names(&["all", "sm", "shm", "mm", "posix", "sysv"]),
            memory: names(&["all", "sm", "shm", "cma"]),
        }
    }

    pub fn any(self) -> bool {
        self.segment || self.memory
    }

    pub fn encode(self) -> Vec<u8> {
        vec![u8::from(self.segment) | u8::from(self.memory) << 1]
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [flags @ 0..=3] => Some(Self { segment: flags & 1 != 0, memory: flags & 2 != 0 }),
            _ => None,
        }
    }
}

/// Which machine this is; `None` where the system does not tell.
pub(super) fn this_machine() -> Option<Machine> {
    let start = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    // Processes find each other by numbers only within one such space.
    let processes = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let mut digest = Sha256::new();
    digest.update(b"kvhints machine v2");
    digest.update(start);
    digest.update(processes.as_os_str().as_encoded_bytes());
    digest.finalize()[..16].try_into().ok()
}

/// What somebody who connects says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Introduction {
    pub machine: Machine,
    /// What the other side is to show in its memory.
    pub question: Nonce,
}

impl Introduction {
    pub fn encode(&self) -> Vec<u8> {
        [self.machine, self.question].concat()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        Some(Self { machine: bytes[..16].try_into().ok()?, question: bytes[16..].try_into().ok()? })
    }
}

/// Where a transport's segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentPlace {
    pub process: u32,
    pub descriptor: u32,
    /// Where what the peer asked for stands in that process's memory.
    pub answer_address: u64,
    /// What the segment begins with.
    pub nonce: Nonce,
}

impl SegmentPlace {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        bytes.extend_from_slice(&self.process.to_le_bytes());
        bytes.extend_from_slice(&self.descriptor.to_le_bytes());
        bytes.extend_from_slice(&self.answer_address.to_le_bytes());
        bytes.extend_from_slice(&self.nonce);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        Some(Self {
            process: u32::from_le_bytes(bytes[..4].try_into().ok()?),
            descriptor: u32::from_le_bytes(bytes[4..8].try_into().ok()?),
            answer_address: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
            nonce: bytes[16..].try_into().ok()?,
        })
    }
}

/// Where data lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the sender's segment.
    Segment(Piece),
    /// In the sender's own memory.
    Memory(Vec<Piece>),
}

impl Place {
    /// Bytes in all; `None` for more than there can be.
    pub fn len(&self) -> Option<usize> {
        let sum = match self {
            Self::Segment(piece) => Some(piece.len),
            Self::Memory(pieces) => {
                pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len))
            }
        };
        sum.and_then(|sum| isize::try_from(sum).ok()).map(isize::unsigned_abs)
    }
}

/// Data that was placed instead of sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    /// The caller's header.
    pub header: Vec<u8>,
    pub place: Place,
}

impl Placed {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, pieces) = match &self.place {
            Place::Segment(piece) => (0, std::slice::from_ref(piece)),
            Place::Memory(pieces) => (1, &pieces[..]),
        };
        let mut bytes = Vec::with_capacity(9 + self.header.len() + pieces.len() * 16);
        bytes.push(kind);
        // Both are bounded far below 32 bits.
        bytes.extend_from_slice(&(pieces.len() as u32).to_le_bytes());
        for piece in pieces {
            bytes.extend_from_slice(&piece.at.to_le_bytes());
            bytes.extend_from_slice(&piece.len.to_le_bytes());
        }
        bytes.extend_from_slice(&self.header);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        if count > MAX_DIRECT_PIECES {
            return None;
        }
        let (pieces, header) = rest.split_at_checked(count * 16)?;
        let (pieces, _) = pieces.as_chunks::<16>();
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        let pieces = pieces
            .iter()
            .map(|piece| Some(Piece { at: number(&piece[..8])?, len: number(&piece[8..])? }))
            .collect::<Option<Vec<Piece>>>()?;
        let place = match (kind, &pieces[..]) {
            (0, [piece]) => Place::Segment(*piece),
            (1, _) => Place::Memory(pieces),
            _ => return None,
        };
        Some(Self { header: header.to_vec(), place })
    }
}

/// Which data was taken: the number of the message that placed it.
pub(super) fn encode_taken(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().to_vec()
}

pub(super) fn decode_taken(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_follow_the_words_of_ucx() {
        let ways = |segment, memory| Ways { segment, memory };
        for (tls, expected) in [
            ("all", ways(true, true)),
            ("tcp", ways(false, false)),
            ("tcp,self", ways(false, false)),
            ("tcp,sm", ways(true, true)),
            ("tcp,shm,rc", ways(true, true)),
            ("tcp,posix", ways(true, false)),
            ("tcp, cma", ways(false, true)),
            ("^cma", ways(true, false)),
            ("^sm", ways(false, false)),
            ("^rc", ways(true, true)),
            ("rc_x", ways(false, false)),
            ("", ways(false, false)),
        ] {
            assert_eq!(Ways::of(tls), expected, "{tls}");
            assert_eq!(Ways::decode(&expected.encode()), Some(expected));
        }
        assert_eq!(Ways::decode(&[4]), None);
        assert_eq!(Ways::decode(&[]), None);
        assert_eq!(Ways::decode(&[1, 0]), None);
    }

    #[test]
    fn what_is_told_comes_back_and_cut_is_refused() {
        let segment =
            SegmentPlace { process: 7, descriptor: 9, answer_address: 1 << 40, nonce: [3; 16] };
        assert_eq!(SegmentPlace::decode(&segment.encode()), Some(segment));
        let cut = segment.encode();
        assert!((0..cut.len()).all(|len| SegmentPlace::decode(&cut[..len]).is_none()));
        let introduction = Introduction { machine: [1; 16], question: [2; 16] };
        assert_eq!(Introduction::decode(&introduction.encode()), Some(introduction));
        assert_eq!(Introduction::decode(&introduction.encode()[..31]), None);
        let piece = |at, len| Piece { at, len };
        for place in [
            Place::Segment(piece(4096, 100)),
            Place::Memory(vec![piece(1, 2), piece(u64::MAX, 3)]),
            Place::Memory(Vec::new()),
        ] {
            let placed = Placed { header: b"what it is".to_vec(), place };
            let bytes = placed.encode();
            assert_eq!(Placed::decode(&bytes), Some(placed));
            let fixed = bytes.len() - b"what it is".len();
            assert!((0..fixed).all(|len| Placed::decode(&bytes[..len]).is_none()));
        }
        assert_eq!(Placed::decode(&[2, 1, 0, 0, 0]), None);
        assert_eq!(Placed::decode(&[0, 0, 0, 0, 0]), None, "a place in a segment is one");
        assert_eq!(Placed::decode(&[1, 255, 255, 255, 255]), None);
        assert_eq!(decode_taken(&encode_taken(1 << 50)), Some(1 << 50));
        assert_eq!(decode_taken(&[0; 7]), None);
    }

    #[test]
    fn lengths_beyond_memory_are_none() {
        let piece = |len| Piece { at: 0, len };
        assert_eq!(Place::Segment(piece(u64::MAX)).len(), None);
        assert_eq!(Place::Memory(vec![piece(u64::MAX), piece(2)]).len(), None);
        assert_eq!(Place::Memory(vec![piece(5), piece(2)]).len(), Some(7));
    }

    #[test]
    fn a_machine_is_itself() {
        assert!(this_machine().is_some());
        assert_eq!(this_machine(), this_machine());
    }
}
