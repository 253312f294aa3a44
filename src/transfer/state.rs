//! The transceiver state: what another worker must know to fetch blocks from this one.
//!
//! A self-describing blob: a mark, a version, fields with tag and length, a checksum. A reader skips
//! fields it does not know, and refuses another major version by name. One rank's state is the
//! *rank entry*; the host gathers the entries of all ranks and joins them to the worker's state.
//!
//! Guards: a blob comes from the network. Everything is bounded and checked before it is used.
//! Never does: interpret a transport address, or compare it with anything.
//!
//! ```text
//! 'KVHS'  major u8  minor u8   { tag u16  length u32  value }*   xxh3 of all before, u64
//! ```

use std::collections::TryReserveError;

use twox_hash::XxHash3_64;

use super::layout::{CacheLayout, ParallelLayout};
use super::wire::{self, Reader, WireError};

/// Longest blob that is read.
pub const MAX_STATE_BYTES: usize = 4 << 20;
/// Most ranks of one worker.
pub const MAX_RANKS: usize = 4096;
/// Longest address of one transport.
pub const MAX_ADDRESS_BYTES: usize = 64 << 10;
/// Longest namespace.
pub const MAX_NAMESPACE_BYTES: usize = 65_536;
/// Longest name of a transport.
const MAX_TRANSPORT_NAME_BYTES: usize = 32;

const MARK: [u8; 4] = *b"KVHS";
const MAJOR: u8 = 1;
const MINOR: u8 = 0;

const TAG_NAMESPACE: u16 = 1;
const TAG_CACHE_LAYOUT: u16 = 2;
const TAG_PARALLEL_LAYOUT: u16 = 3;
const TAG_RANK: u16 = 4;

/// One start of one rank: random, so that no two starts share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub [u8; 16]);

/// How one rank is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankAddress {
    /// The rank within the worker.
    pub rank: u32,
    /// This start of the rank.
    pub incarnation: Incarnation,
    /// The transport's name.
    pub transport: String,
    /// What that transport's peers connect to.
    pub address: Vec<u8>,
    /// Bytes of one of its blocks, padding and scales included.
    pub block_bytes: u64,
}

/// A worker's state, or one rank's entry of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Model, weights and whatever else makes names mean the same.
    pub namespace: Vec<u8>,
    /// What its blocks are made of.
    pub cache: CacheLayout,
    /// How ranks share the model.
    pub parallel: ParallelLayout,
    /// The ranks, by number.
    pub ranks: Vec<RankAddress>,
}

/// Why entries do not make a worker's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There is nothing to join.
    #[error("no rank entry was given")]
    Empty,
    /// One of them cannot be read.
    #[error("rank entry {index}: {error}")]
    Unreadable {
        /// Which of the entries.
        index: usize,
        /// Why.
        error: WireError,
    },
    /// Ranks of one worker agree on everything but their addresses.
    #[error("rank entry {index} differs from entry 0 in namespace or layout: ranks of one worker are configured alike")]
    Differs {
        /// Which of the entries.
        index: usize,
    },
    /// Two entries name one rank, or a rank outside of the worker.
    #[error("rank {rank} is named twice or is outside of the worker's {rank_count} ranks")]
    BadRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        rank_count: u32,
    },
    /// Ranks are missing: their peers would find nobody.
    #[error("{found} of the worker's {rank_count} ranks: give the entries of all")]
    Incomplete {
        /// How many ranks the entries name.
        found: usize,
        /// How many there are.
        rank_count: u32,
    },
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
}

impl From<TryReserveError> for JoinError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl State {
    /// The state as bytes.
    pub fn encode(&self) -> Result<Vec<u8>, TryReserveError> {
        let mut out = Vec::new();
        // Asked for once: what is written below fits.
        out.try_reserve_exact(self.encoded_max_bytes())?;
        out.extend_from_slice(&MARK);
        out.extend_from_slice(&[MAJOR, MINOR]);
        put_field(&mut out, TAG_NAMESPACE, |value| value.extend_from_slice(&self.namespace));
        put_field(&mut out, TAG_CACHE_LAYOUT, |value| self.cache.encode(value));
        put_field(&mut out, TAG_PARALLEL_LAYOUT, |value| self.parallel.encode(value));
        for rank in &self.ranks {
            put_field(&mut out, TAG_RANK, |value| {
                value.extend_from_slice(&rank.rank.to_le_bytes());
                value.extend_from_slice(&rank.incarnation.0);
                wire::put_bytes(value, rank.transport.as_bytes());
                wire::put_bytes(value, &rank.address);
                value.extend_from_slice(&rank.block_bytes.to_le_bytes());
            });
        }
        let checksum = XxHash3_64::oneshot(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        debug_assert!(out.len() <= self.encoded_max_bytes(), "the bound is one");
        Ok(out)
    }

    fn encoded_max_bytes(&self) -> usize {
        /// A field's head, and the numbers of its value.
        const FIELD_MAX_BYTES: usize = 80;
        let numbers = self.cache.kv_heads_per_layer.len()
            + self.cache.windows.len()
            + self.parallel.layers_per_pipeline_rank.len();
        let rank_bytes = |rank: &RankAddress| rank.transport.len() + rank.address.len();
        let ranks = self.ranks.iter().map(|rank| FIELD_MAX_BYTES + rank_bytes(rank));
        4 * FIELD_MAX_BYTES + self.namespace.len() + 4 * numbers + ranks.sum::<usize>()
    }

    /// Reads a blob.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > MAX_STATE_BYTES {
            return Err(WireError::TooMuch { what: "state", limit: MAX_STATE_BYTES });
        }
        let mut reader = Reader::new(bytes);
        if reader.array::<4>()? != MARK {
            return Err(WireError::NotOurs);
        }
        let major = reader.u8()?;
        if major != MAJOR {
            return Err(WireError::OtherMajor { found: major, ours: MAJOR });
        }
        let (body, checksum) = bytes.split_last_chunk::<8>().ok_or(WireError::Truncated)?;
        if XxHash3_64::oneshot(body) != u64::from_le_bytes(*checksum) {
            return Err(WireError::Checksum);
        }
        let fields = body.get(MARK.len() + 2..).ok_or(WireError::Truncated)?;
        Self::decode_fields(Reader::new(fields))
    }

    fn decode_fields(mut reader: Reader<'_>) -> Result<Self, WireError> {
        let (mut namespace, mut cache, mut parallel) = (None, None, None);
        let mut ranks: Vec<RankAddress> = Vec::new();
        while !reader.is_empty() {
            let tag = reader.u16()?;
            let value = reader.bytes("field", MAX_STATE_BYTES)?;
            match tag {
                TAG_NAMESPACE if value.len() > MAX_NAMESPACE_BYTES => {
                    return Err(WireError::TooMuch {
                        what: "namespace",
                        limit: MAX_NAMESPACE_BYTES,
                    });
                }
                TAG_NAMESPACE => once("namespace", &mut namespace, wire::kept(value)?)?,
                TAG_CACHE_LAYOUT => {
                    once("cache layout", &mut cache, CacheLayout::decode(value)?)?;
                }
                TAG_PARALLEL_LAYOUT => {
                    once("parallel layout", &mut parallel, ParallelLayout::decode(value)?)?;
                }
                TAG_RANK if ranks.len() == MAX_RANKS => {
                    return Err(WireError::TooMuch { what: "ranks", limit: MAX_RANKS });
                }
                TAG_RANK => {
                    ranks.try_reserve(1).map_err(|_| WireError::NoMemory)?;
                    ranks.push(RankAddress::decode(value)?);
                }
                // A later release knows what it is; this one does without.
                _ => {}
            }
        }
        let missing = |what| WireError::MissingOrRepeated { what };
        let parallel: ParallelLayout = parallel.ok_or(missing("parallel layout"))?;
        if ranks.is_empty() {
            return Err(missing("rank"));
        }
        ranks.sort_by_key(|rank| rank.rank);
        if ranks.windows(2).any(|pair| pair[0].rank == pair[1].rank) {
            return Err(missing("rank"));
        }
        let rank_count = parallel.rank_count().unwrap_or(0);
        if ranks.iter().any(|rank| rank.rank >= rank_count || rank.block_bytes == 0) {
            return Err(WireError::BadValue { what: "rank" });
        }
        let cache: CacheLayout = cache.ok_or(missing("cache layout"))?;
        if parallel.layers(cache.kv_heads_per_layer.len()).is_none() {
            return Err(WireError::BadValue { what: "layers per pipeline rank" });
        }
        Ok(Self { namespace: namespace.ok_or(missing("namespace"))?, cache, parallel, ranks })
    }

    /// Joins the entries of all ranks, in any order, to the state of their worker.
    pub fn join(entries: &[&[u8]]) -> Result<Self, JoinError> {
        let mut joined: Option<Self> = None;
        for (index, bytes) in entries.iter().enumerate() {
            let entry = Self::decode(bytes).map_err(|error| match error {
                WireError::NoMemory => JoinError::NoMemory,
                error => JoinError::Unreadable { index, error },
            })?;
            let Some(state) = &mut joined else {
                joined = Some(entry);
                continue;
            };
            let same = state.namespace == entry.namespace
                && state.cache == entry.cache
                && state.parallel == entry.parallel;
            if !same {
                return Err(JoinError::Differs { index });
            }
            for rank in entry.ranks {
                match state.ranks.binary_search_by_key(&rank.rank, |known| known.rank) {
                    Err(position) => {
                        state.ranks.try_reserve(1)?;
                        state.ranks.insert(position, rank);
                    }
                    Ok(_) => {
                        let rank_count = state.parallel.rank_count().unwrap_or(0);
                        return Err(JoinError::BadRank { rank: rank.rank, rank_count });
                    }
                }
            }
        }
        let joined = joined.ok_or(JoinError::Empty)?;
        let rank_count = joined.parallel.rank_count().unwrap_or(0);
        if joined.ranks.len() != rank_count as usize {
            return Err(JoinError::Incomplete { found: joined.ranks.len(), rank_count });
        }
        Ok(joined)
    }

    /// How rank `rank` is reached, if the state knows.
    pub fn rank(&self, rank: u32) -> Option<&RankAddress> {
        let position = self.ranks.binary_search_by_key(&rank, |known| known.rank).ok()?;
        self.ranks.get(position)
    }
}

impl RankAddress {
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        Ok(Self {
            rank: reader.u32()?,
            incarnation: Incarnation(reader.array()?),
            transport: std::str::from_utf8(reader.bytes("transport", MAX_TRANSPORT_NAME_BYTES)?)
                .map_err(|_| WireError::BadValue { what: "transport" })?
                .to_owned(),
            address: reader.byte_vec("address", MAX_ADDRESS_BYTES)?,
            block_bytes: reader.u64()?,
        })
    }
}

fn put_field(out: &mut Vec<u8>, tag: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&tag.to_le_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let length = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
}

fn once<T>(what: &'static str, place: &mut Option<T>, value: T) -> Result<(), WireError> {
    if place.is_some() {
        return Err(WireError::MissingOrRepeated { what });
    }
    *place = Some(value);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::transfer::layout::tests::{cache, parallel};

    pub(crate) fn entry(rank: u32) -> State {
        State {
            namespace: b"model@7".to_vec(),
            cache: cache(),
            parallel: parallel(),
            ranks: vec![RankAddress {
                rank,
                incarnation: Incarnation([rank as u8; 16]),
                transport: "loopback".to_owned(),
                address: vec![1, 2, 3],
                block_bytes: 4096,
            }],
        }
    }

    fn with_checksum(mut body: Vec<u8>) -> Vec<u8> {
        body.extend_from_slice(&XxHash3_64::oneshot(&body).to_le_bytes());
        body
    }

    #[test]
    fn entries_join_in_any_order_and_read_back() {
        let (first, second) = (entry(0).encode().unwrap(), entry(1).encode().unwrap());
        let joined = State::join(&[&second, &first]).unwrap();
        assert_eq!(State::decode(&joined.encode().unwrap()).unwrap(), joined);
        assert_eq!(joined.rank(1).unwrap().incarnation, Incarnation([1; 16]));
        assert_eq!(joined.rank(2), None);
    }

    #[test]
    fn entries_that_do_not_belong_together_are_refused() {
        let first = entry(0).encode().unwrap();
        assert_eq!(State::join(&[]), Err(JoinError::Empty));
        assert_eq!(
            State::join(&[&first, &first]),
            Err(JoinError::BadRank { rank: 0, rank_count: 2 })
        );
        let mut other = entry(1);
        other.namespace = b"model@8".to_vec();
        assert_eq!(
            State::join(&[&first, &other.encode().unwrap()]),
            Err(JoinError::Differs { index: 1 })
        );
        assert_eq!(
            State::join(&[&first, b"x"]),
            Err(JoinError::Unreadable { index: 1, error: WireError::Truncated })
        );
        assert_eq!(
            State::decode(&entry(2).encode().unwrap()),
            Err(WireError::BadValue { what: "rank" }),
            "two ranks have the numbers 0 and 1"
        );
    }

    #[test]
    fn unknown_fields_are_skipped_and_another_major_is_named() {
        let blob = entry(0).encode().unwrap();
        let mut body = blob[..blob.len() - 8].to_vec();
        body[5] = 9;
        put_field(&mut body, 999, |value| value.extend_from_slice(b"from the future"));
        assert_eq!(State::decode(&with_checksum(body)).unwrap(), entry(0));

        let mut other = blob.clone();
        other[4] = 2;
        let error = State::decode(&other).unwrap_err();
        assert_eq!(error, WireError::OtherMajor { found: 2, ours: 1 });
        assert!(error.to_string().contains("version 2"));
    }

    #[test]
    fn repeated_fields_are_refused() {
        let blob = entry(0).encode().unwrap();
        let mut body = blob[..blob.len() - 8].to_vec();
        put_field(&mut body, TAG_NAMESPACE, |value| value.extend_from_slice(b"other"));
        assert_eq!(
            State::decode(&with_checksum(body)),
            Err(WireError::MissingOrRepeated { what: "namespace" })
        );
    }

    #[test]
    fn no_changed_byte_and_no_cut_goes_unseen() {
        let blob = entry(0).encode().unwrap();
        for position in 0..blob.len() {
            // The minor version says nothing that a reader of this release uses, but it is summed.
            for change in [1u8, 0x80, 0xff] {
                let mut changed = blob.clone();
                changed[position] ^= change;
                assert!(State::decode(&changed).is_err(), "byte {position} ^ {change}");
            }
            assert!(State::decode(&blob[..position]).is_err(), "cut at {position}");
        }
    }

    #[test]
    fn hostile_fields_under_a_good_checksum_are_refused_or_read_never_worse() {
        let blob = entry(0).encode().unwrap();
        let body = &blob[..blob.len() - 8];
        for position in 6..body.len() {
            for value in [0u8, 1, 0x7f, 0x80, 0xff] {
                let mut changed = body.to_vec();
                changed[position] = value;
                if let Ok(state) = State::decode(&with_checksum(changed)) {
                    assert_eq!(State::decode(&state.encode().unwrap()).as_ref(), Ok(&state));
                }
            }
        }
    }
}
