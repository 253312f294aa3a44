//! Little-endian reading and writing of bytes that cross a worker's border.
//!
//! Guards: reading is total. Every length is checked against what is there before anything is
//! allocated, and each failure is a [`WireError`].
//! Never does: panic, or trust a length it read.

use crate::wire;

/// Why bytes from another worker were not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It does not start like anything of ours.
    #[error("not kvhints data: the leading bytes are not its mark")]
    NotOurs,
    /// Made by a release whose format cannot be read.
    #[error("format version {found} cannot be read here, which reads version {ours}: use releases of the same major format")]
    OtherMajor {
        /// The version found.
        found: u8,
        /// The version understood.
        ours: u8,
    },
    /// It ends too early.
    #[error("truncated: a field is longer than the bytes that are left")]
    Truncated,
    /// Bytes are left over.
    #[error("bytes follow where the end was expected")]
    TrailingBytes,
    /// A count or length is above its bound.
    #[error("{what} is above the limit of {limit}")]
    TooMuch {
        /// Which field.
        what: &'static str,
        /// Its bound.
        limit: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{what} has an impossible value")]
    BadValue {
        /// Which field.
        what: &'static str,
    },
    /// A field that must be there is not, or is there twice.
    #[error("{what} is missing or repeated")]
    MissingOrRepeated {
        /// Which field.
        what: &'static str,
    },
    /// Memory for what was read could not be had.
    #[error("out of memory")]
    NoMemory,
    /// The bytes were changed on their way.
    #[error("the checksum does not fit the bytes: they were changed or cut on their way")]
    Checksum,
}

/// Takes values off the front of a byte string: [`wire::Reader`], with a reason for what is not there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: wire::Reader<'a>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: wire::Reader::new(bytes) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.remaining() == 0
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        self.rest.take(len).ok_or(WireError::Truncated)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.rest.array().ok_or(WireError::Truncated)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        self.rest.u8().ok_or(WireError::Truncated)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.rest.u16().ok_or(WireError::Truncated)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.rest.u32().ok_or(WireError::Truncated)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.rest.u64().ok_or(WireError::Truncated)
    }

    /// A u32 count that must not be above `limit`.
    pub(crate) fn count(&mut self, what: &'static str, limit: usize) -> Result<usize, WireError> {
        let count = self.u32()? as usize;
        if count > limit {
            return Err(WireError::TooMuch { what, limit });
        }
        Ok(count)
    }

    /// A byte string preceded by its u32 length.
    pub(crate) fn bytes(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], WireError> {
        let len = self.count(what, limit)?;
        self.take(len)
    }

    /// A list preceded by its u32 count, each entry `N` bytes.
    pub(crate) fn list<const N: usize, T>(
        &mut self,
        what: &'static str,
        limit: usize,
        entry: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, WireError> {
        let count = self.count(what, limit)?;
        // `limit` times N stays far below the address space, and `take` proves that the bytes are
        // there before the list is allocated.
        let (entries, _) = self.take(count * N)?.as_chunks::<N>();
        let mut list = Vec::new();
        list.try_reserve_exact(count).map_err(|_| WireError::NoMemory)?;
        list.extend(entries.iter().map(|bytes| entry(*bytes)));
        Ok(list)
    }

    /// As [`Reader::bytes`], kept.
    pub(crate) fn byte_vec(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<u8>, WireError> {
        let len = self.count(what, limit)?;
        kept(self.take(len)?)
    }

    pub(crate) fn end(self) -> Result<(), WireError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(WireError::TrailingBytes)
        }
    }
}

/// A copy, for which memory is asked.
pub(crate) fn kept(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| WireError::NoMemory)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Appends a byte string preceded by its u32 length. Callers bound the length first.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(u32::try_from(bytes.len()).is_ok(), "callers bound what they write");
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a u32 list preceded by its count.
pub(crate) fn put_u32s(out: &mut Vec<u8>, values: &[u32]) {
    out.extend_from_slice(&(values.len() as u32).to_le_bytes());
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}

/// Appends a u64 list preceded by its count.
pub(crate) fn put_u64s(out: &mut Vec<u8>, values: &[u64]) {
    out.extend_from_slice(&(values.len() as u32).to_le_bytes());
    values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
}
