//! The fixed header of a round: what kind of frame follows and how long its parts are.
//!
//! ```text
//! magic u32 | version u16 | kind u8 | reason u8 | request_count u32 | large_count u32 |
//! front_len u64 | payload_len u64 | front_checksum u64 | lengths_checksum u64 | round u64 |
//! header_checksum u64                                                        (little-endian)
//! ```
//!
//! After a header of kind *batch* follow the *front* (see `frame`), then the large parts; together they
//! are the payload. The front begins with the lengths of the large parts, which have a checksum of
//! their own because they say which messages follow. Behind large parts, if there are any, follows
//! their checksum: it is computed while they travel. After *aborted* follows nothing.
//!
//! Guards: nothing in it is believed before its checksum, and no length before its bound.

use twox_hash::XxHash3_64;

use super::limits::{MAX_PAYLOAD_BYTES, MAX_REQUESTS};
use crate::wire::{put, Reader};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;

/// The version of all that this room puts on the wire; all ranks must have the same.
pub const WIRE_VERSION: u16 = 3;

const MAGIC: u32 = u32::from_le_bytes(*b"KVHB");
const CHECKED_BYTES: usize = HEADER_BYTES - 8;
const KIND_BATCH: u8 = 1;
const KIND_ABORTED: u8 = 2;

/// Why rank 0 has no batch to give. The numbers are part of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum AbortReason {
    /// No batch, or one that cannot be sent.
    #[error("rank 0 was given no valid batch")]
    InvalidBatch = 1,
    /// Too large.
    #[error("the batch of rank 0 is larger than a round may be")]
    Limit = 2,
    /// Rank 0 had no memory.
    #[error("rank 0 had no memory to prepare the batch")]
    NoMemory = 3,
    /// A fault of the library on rank 0.
    #[error("a fault of the library happened on rank 0")]
    Poisoned = 4,
}

impl AbortReason {
    fn from_wire(number: u8) -> Option<Self> {
        [Self::InvalidBatch, Self::Limit, Self::NoMemory, Self::Poisoned]
            .into_iter()
            .find(|reason| *reason as u8 == number)
    }
}

/// What follows the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A batch.
    Batch(Lengths),
    /// Nothing.
    Aborted(AbortReason),
}

/// How long the parts of a batch are, and their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lengths {
    /// Requests in the batch.
    pub request_count: usize,
    /// Snapshots and bodies that travel by themselves.
    pub large_count: usize,
    /// Bytes of the front.
    pub front_len: usize,
    /// Bytes of the front and the large parts.
    pub payload_len: usize,
    /// Of the front.
    pub front_checksum: u64,
    /// Of the list of the large parts' lengths.
    pub lengths_checksum: u64,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// How many rounds went before; shows ranks that are out of step.
    pub round: u64,
}

/// Foreign bytes are not a header of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a header, or changed on the way.
    #[error("damaged header: bytes of a round were expected")]
    Damaged,
    /// Another release's.
    #[error(
        "header of wire version {found}, expected {WIRE_VERSION}: run one release on all ranks"
    )]
    Version {
        /// The version found.
        found: u16,
    },
}

impl Header {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (kind, reason, lengths) = match self.kind {
            Kind::Batch(lengths) => (KIND_BATCH, 0, lengths),
            Kind::Aborted(reason) => (KIND_ABORTED, reason as u8, Lengths::default()),
        };
        let mut bytes = [0; HEADER_BYTES];
        let at = put(&mut bytes, 0, &MAGIC.to_le_bytes());
        let at = put(&mut bytes, at, &WIRE_VERSION.to_le_bytes());
        let at = put(&mut bytes, at, &[kind, reason]);
        let at = put(&mut bytes, at, &(lengths.request_count as u32).to_le_bytes());
        let at = put(&mut bytes, at, &(lengths.large_count as u32).to_le_bytes());
        let at = put(&mut bytes, at, &(lengths.front_len as u64).to_le_bytes());
        let at = put(&mut bytes, at, &(lengths.payload_len as u64).to_le_bytes());
        let at = put(&mut bytes, at, &lengths.front_checksum.to_le_bytes());
        let at = put(&mut bytes, at, &lengths.lengths_checksum.to_le_bytes());
        let at = put(&mut bytes, at, &self.round.to_le_bytes());
        let checksum = XxHash3_64::oneshot(&bytes[..at]);
        put(&mut bytes, at, &checksum.to_le_bytes());
        bytes
    }

    /// Reads foreign bytes.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let mut reader = Reader::new(bytes);
        if reader.u32() != Some(MAGIC) {
            return Err(HeaderError::Damaged);
        }
        // A header of another version may be laid out differently: its checksum is not looked for.
        match reader.u16() {
            Some(WIRE_VERSION) => {}
            Some(found) => return Err(HeaderError::Version { found }),
            None => return Err(HeaderError::Damaged),
        }
        Self::decode_rest(bytes, &mut reader).ok_or(HeaderError::Damaged)
    }

    fn decode_rest(bytes: &[u8; HEADER_BYTES], reader: &mut Reader<'_>) -> Option<Self> {
        let (kind, reason) = (reader.u8()?, reader.u8()?);
        let lengths = Lengths {
            request_count: reader.u32()? as usize,
            large_count: reader.u32()? as usize,
            front_len: reader.size()?,
            payload_len: reader.size()?,
            front_checksum: reader.u64()?,
            lengths_checksum: reader.u64()?,
        };
        let round = reader.u64()?;
        if reader.u64()? != XxHash3_64::oneshot(&bytes[..CHECKED_BYTES]) {
            return None;
        }
        let kind = match kind {
            KIND_BATCH if reason == 0 && lengths.are_possible() => Kind::Batch(lengths),
            KIND_ABORTED => Kind::Aborted(AbortReason::from_wire(reason)?),
            _ => return None,
        };
        Some(Self { kind, round })
    }
}

impl Lengths {
    fn are_possible(&self) -> bool {
        self.request_count <= MAX_REQUESTS
            && self.large_count <= 2 * self.request_count
            && 8 * self.large_count <= self.front_len
            && self.front_len <= self.payload_len
            && self.payload_len <= MAX_PAYLOAD_BYTES
            && (self.large_count > 0 || self.front_len == self.payload_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: Lengths = Lengths {
        request_count: 3,
        large_count: 1,
        front_len: 500,
        payload_len: 200_000,
        front_checksum: 7,
        lengths_checksum: 8,
    };

    #[test]
    fn a_header_comes_back() {
        for kind in [
            Kind::Batch(LENGTHS),
            Kind::Aborted(AbortReason::InvalidBatch),
            Kind::Aborted(AbortReason::Poisoned),
        ] {
            let header = Header { kind, round: 9 };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn every_changed_bit_is_found() {
        let good = Header { kind: Kind::Batch(LENGTHS), round: 9 }.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            Header::decode(&bytes).expect_err("a changed bit");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_even_with_a_good_checksum() {
        for lengths in [
            Lengths { request_count: MAX_REQUESTS + 1, ..LENGTHS },
            Lengths { large_count: 7, ..LENGTHS },
            Lengths { front_len: 7, ..LENGTHS },
            Lengths { front_len: 200_001, ..LENGTHS },
            Lengths { payload_len: MAX_PAYLOAD_BYTES + 1, ..LENGTHS },
            Lengths { large_count: 0, ..LENGTHS },
        ] {
            let header = Header { kind: Kind::Batch(lengths), round: 0 };
            assert_eq!(Header::decode(&header.encode()), Err(HeaderError::Damaged), "{lengths:?}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Header { kind: Kind::Batch(LENGTHS), round: 0 }.encode();
        bytes[4] = 1;
        assert_eq!(Header::decode(&bytes), Err(HeaderError::Version { found: 1 }));
    }
}
