//! A plan as bytes: how rank 0 tells the other ranks what it decided.
//!
//! ```text
//! "KVHP" | version u8 | kind u8 | flags u8 | reason u8
//! kind 2 only: action index u32 | block count u32 | last block hash u64
//!              | id length u16 | endpoint length u16 | envelope length u32 | id | endpoint | envelope
//! XXH3-64 of all bytes before it, u64
//! ```
//! Integers are little-endian. Bounded: without an envelope, which only some bindings ask for, a plan
//! is at most [`Plan::MAX_BYTES_WITHOUT_ENVELOPE`] long.
//!
//! Guards: a plan that was damaged, cut, lengthened or made by another version is an error and never
//! another plan; an endpoint must stand in its canonical spelling. The checksum finds damage, not
//! forgery: bytes come from rank 0 of the same job.

use std::collections::TryReserveError;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::decision::{NamedFetch, Plan, Refusal};
use super::{Endpoint, MAX_BLOCKS, MAX_NAME_BYTES};

const MAGIC: [u8; 4] = *b"KVHP";
const VERSION: u8 = 1;
const KIND_LOCAL: u8 = 1;
const KIND_NAMED_FETCH: u8 = 2;
const FLAG_THEN_PAIRED_SOURCE: u8 = 1;
const FLAG_ENVELOPE: u8 = 2;
const HEAD_BYTES: usize = 8;
const FETCH_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;
/// An admitted envelope's own limit; one with fewer actions is no longer.
const MAX_ENVELOPE_BYTES: usize = 65_536;

/// Why bytes are not a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanBytesError {
    /// Too short, too long, or not beginning as a plan does.
    #[error("expected a serialised plan, found other bytes")]
    NotAPlan,
    /// Made by another release.
    #[error("expected plan version {VERSION}, found {0}; run one release on all ranks")]
    Version(u8),
    /// Changed on the way.
    #[error("expected an undamaged plan, found a checksum that does not match; send it again")]
    Damaged,
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
    /// A field outside its range.
    #[error("expected a plan with fields in their ranges, found one outside")]
    Field,
}

impl From<TryReserveError> for PlanBytesError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl Plan {
    /// Longest plan without an envelope, in bytes.
    pub const MAX_BYTES_WITHOUT_ENVELOPE: usize =
        HEAD_BYTES + FETCH_BYTES + MAX_NAME_BYTES + Endpoint::MAX_BYTES + CHECKSUM_BYTES;

    /// Longest plan, in bytes.
    pub const MAX_BYTES: usize = Self::MAX_BYTES_WITHOUT_ENVELOPE + MAX_ENVELOPE_BYTES;

    /// The plan as bytes that [`Plan::from_bytes`] reads. Fails only for want of memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TryReserveError> {
        let envelope_len = match self {
            Self::NamedFetch(fetch) => fetch.envelope.as_deref().map_or(0, Vec::len),
            Self::Local(_) => 0,
        };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(Self::MAX_BYTES_WITHOUT_ENVELOPE + envelope_len)?;
        bytes.extend_from_slice(&MAGIC);
        match self {
            Self::Local(refusal) => {
                bytes.extend_from_slice(&[VERSION, KIND_LOCAL, 0, *refusal as u8]);
            }
            Self::NamedFetch(fetch) => write_fetch(&mut bytes, fetch),
        }
        bytes.extend_from_slice(&XxHash3_64::oneshot(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Reads a plan; refuses everything that [`Plan::to_bytes`] does not make.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanBytesError> {
        if bytes.len() > Self::MAX_BYTES || bytes.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(PlanBytesError::NotAPlan);
        }
        let version = *bytes.get(MAGIC.len()).ok_or(PlanBytesError::NotAPlan)?;
        if version != VERSION {
            return Err(PlanBytesError::Version(version));
        }
        let (body, checksum) =
            bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(PlanBytesError::NotAPlan)?;
        if u64::from_le_bytes(*checksum) != XxHash3_64::oneshot(body) {
            return Err(PlanBytesError::Damaged);
        }
        let (head, rest) =
            body.split_first_chunk::<HEAD_BYTES>().ok_or(PlanBytesError::NotAPlan)?;
        let plan = match *head {
            [_, _, _, _, _, KIND_LOCAL, 0, reason] if rest.is_empty() => {
                Refusal::from_number(reason).map(|refusal| Ok(Self::Local(refusal)))
            }
            [_, _, _, _, _, KIND_NAMED_FETCH, flags, 0] => {
                read_fetch(flags, rest).map(|fetch| fetch.map(Self::NamedFetch))
            }
            _ => None,
        };
        Ok(plan.ok_or(PlanBytesError::Field)??)
    }
}

fn write_fetch(bytes: &mut Vec<u8>, fetch: &NamedFetch) {
    let endpoint = fetch.endpoint.canonical();
    let envelope = fetch.envelope.as_deref().map(Vec::as_slice);
    let mut flags = 0;
    flags |= if fetch.then_paired_source { FLAG_THEN_PAIRED_SOURCE } else { 0 };
    flags |= if envelope.is_some() { FLAG_ENVELOPE } else { 0 };
    let envelope = envelope.unwrap_or_default();
    bytes.extend_from_slice(&[VERSION, KIND_NAMED_FETCH, flags, 0]);
    bytes.extend_from_slice(&fetch.action_index.to_le_bytes());
    bytes.extend_from_slice(&fetch.block_count.to_le_bytes());
    bytes.extend_from_slice(&fetch.last_block_hash.to_le_bytes());
    // Bounded where they were made: names by MAX_NAME_BYTES, endpoints and envelopes by theirs.
    bytes.extend_from_slice(&(fetch.binding_id.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(endpoint.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(envelope.len() as u32).to_le_bytes());
    bytes.extend_from_slice(fetch.binding_id.as_bytes());
    bytes.extend_from_slice(endpoint.as_bytes());
    bytes.extend_from_slice(envelope);
}

/// A fetch; `None` when a field cannot be.
fn read_fetch(flags: u8, bytes: &[u8]) -> Option<Result<NamedFetch, TryReserveError>> {
    if flags & !(FLAG_THEN_PAIRED_SOURCE | FLAG_ENVELOPE) != 0 {
        return None;
    }
    let (action_index, bytes) = bytes.split_first_chunk()?;
    let (block_count, bytes) = bytes.split_first_chunk()?;
    let (last_block_hash, bytes) = bytes.split_first_chunk()?;
    let (id_len, bytes) = bytes.split_first_chunk()?;
    let (endpoint_len, bytes) = bytes.split_first_chunk()?;
    let (envelope_len, bytes) = bytes.split_first_chunk()?;
    let (id, bytes) = bytes.split_at_checked(u16::from_le_bytes(*id_len).into())?;
    let (endpoint, bytes) = bytes.split_at_checked(u16::from_le_bytes(*endpoint_len).into())?;
    let has_envelope = flags & FLAG_ENVELOPE != 0;
    let envelope_len = usize::try_from(u32::from_le_bytes(*envelope_len)).ok()?;
    let is_id = (1..=MAX_NAME_BYTES).contains(&id.len());
    let is_envelope = has_envelope == (envelope_len > 0) && bytes.len() == envelope_len;
    let block_count = u32::from_le_bytes(*block_count);
    if !is_id || !is_envelope || !(1..=MAX_BLOCKS).contains(&block_count) {
        return None;
    }
    let endpoint = std::str::from_utf8(endpoint).ok()?;
    let endpoint = Endpoint::parse(endpoint).ok().filter(|read| read.canonical() == endpoint)?;
    let mut envelope = Vec::new();
    if let Err(error) = envelope.try_reserve_exact(envelope_len) {
        return Some(Err(error));
    }
    envelope.extend_from_slice(bytes);
    Some(Ok(NamedFetch {
        binding_id: std::str::from_utf8(id).ok()?.into(),
        endpoint,
        action_index: u32::from_le_bytes(*action_index),
        block_count,
        last_block_hash: u64::from_le_bytes(*last_block_hash),
        then_paired_source: flags & FLAG_THEN_PAIRED_SOURCE != 0,
        envelope: has_envelope.then(|| Arc::new(envelope)),
    }))
}
