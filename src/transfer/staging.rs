//! Memory of the library's own between blocks and wire: what is received lies here until it is
//! verified, and parts that are cut out of blocks until they are sent.
//!
//! Never does: know what lies in it.

use super::block_owner::BlockOwner;
use super::device::pool::PinnedStaging;
use super::transport::Segment;

/// Bytes on their way.
pub enum Staging {
    /// Plain memory, for blocks that the host's processors reach.
    Plain(Vec<u8>),
    /// Memory that a device reaches, for blocks that lie there.
    Pinned(PinnedStaging),
}

impl Staging {
    /// Staging for an owner's blocks; plain memory is taken from `spare`, so that it is cleared once
    /// only. `None` without memory.
    pub fn new(owner: &dyn BlockOwner, len: usize, spare: &mut Vec<Vec<u8>>) -> Option<Self> {
        if let Some(pool) = owner.device() {
            return pool.staging(len).map(Self::Pinned);
        }
        let mut plain = spare.pop().unwrap_or_default();
        plain.try_reserve_exact(len.saturating_sub(plain.len())).ok()?;
        plain.resize(len, 0);
        Some(Self::Plain(plain))
    }

    /// What lies there.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Pinned(staging) => staging.bytes(),
        }
    }

    /// Where it lies.
    pub fn segment(&mut self) -> Segment {
        match self {
            Self::Plain(bytes) => Segment { data: bytes.as_mut_ptr(), len: bytes.len() },
            Self::Pinned(staging) => staging.segment(),
        }
    }
}
