//! The messages between a destination, which wants blocks, and a source, which holds them.
//!
//! `docs/protocol.md` describes the conversation. Each message starts with a prefix that no version
//! changes: a mark, the major version, the kind, and the request's key. So a side can always say
//! which request it is that it cannot read.
//!
//! Guards: decoding is total on hostile bytes and allocates no more than arrived.
//! Never does: decide. What a message means is the source's and the destination's matter.

use twox_hash::XxHash3_64;

use super::block_part::{BlockPart, HeadRange};
use super::layout::MAX_LAYOUT_ENTRIES;
use super::reason::RefuseReason;
use super::state::{Incarnation, MAX_NAMESPACE_BYTES, MAX_STATE_BYTES};
use super::transport::MAX_MESSAGE_BYTES;
use super::wire::{self, Reader, WireError};
use crate::reuse::{Name, Policy, TextTail, MAX_TOKENS_PER_BLOCK};

/// The protocol's major version. Messages of another one are refused by name.
pub const MAJOR: u8 = 1;

/// Most blocks that one request can name.
pub const MAX_BLOCKS_PER_REQUEST: usize = 65_536;

/// Most blocks that one data header can describe.
pub const MAX_BLOCKS_PER_RUN: usize = 4096;

const MARK: [u8; 2] = *b"KT";

const KIND_FETCH: u8 = 1;
const KIND_ANSWER: u8 = 2;
const KIND_DATA: u8 = 3;
const KIND_CANCEL: u8 = 4;
const KIND_STATE: u8 = 5;

/// What stands before a state over plain TCP: a prefix and the state's length.
pub const STATE_HEAD_BYTES: usize = 32;

const PART_WHOLE: u8 = 0;
const PART_HEADS: u8 = 1;

const TAIL_NONE: u8 = 0;
const TAIL_TEXT: u8 = 1;

const ANSWER_ACCEPTED: u8 = 0;
const ANSWER_MISSING: u8 = 1;
const ANSWER_REFUSED: u8 = 2;

// The longest request and answer fit into one message.
const _: () = assert!(
    MAX_BLOCKS_PER_REQUEST * 32
        + MAX_TOKENS_PER_BLOCK * 4
        + MAX_NAMESPACE_BYTES
        + MAX_LAYOUT_ENTRIES * 8
        + 512
        < MAX_MESSAGE_BYTES
);

/// Names one attempt: unique among all destinations, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// The destination's start.
    pub destination: Incarnation,
    /// Its attempts, counted.
    pub sequence: u64,
}

/// A destination asks for blocks by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// The attempt.
    pub key: RequestKey,
    /// The start of the source that the destination means.
    pub source: Incarnation,
    /// What the names are about.
    pub namespace: Vec<u8>,
    /// [`super::layout::digest`] of the source, as the destination knows it.
    pub layout_digest: u64,
    /// Which part of each block is wanted.
    pub part: BlockPart,
    /// Whether a part of the blocks is of use.
    pub policy: Policy,
    /// How long the source may have to hold the blocks: the destination's deadline and a margin.
    pub hold_time_ns: u64,
    /// How many of the named blocks, from the first, are only named.
    pub skipped_blocks: u32,
    /// After the skipped ones, each block of so many is wanted, from the first on; not 0.
    pub step: u32,
    /// The prefix, from its first block to the last one wanted.
    pub names: Vec<Name>,
    /// What the last name is made of, where it is a short block's of text: the block may be the head
    /// of a longer one.
    pub tail: Option<TextTail>,
}

/// What a source says to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The blocks with these hashes follow: the first of those wanted, all of them under `strict`.
    Accepted {
        /// One block hash for each block that follows.
        block_hashes: Vec<u64>,
    },
    /// Nothing follows: the source holds this many of the first blocks, too few for the policy.
    Missing {
        /// How many of the wanted blocks it holds, from the first one.
        present: u32,
    },
    /// Nothing follows, and nothing was looked up.
    Refused(RefuseReason),
}

/// xxh3 of a block's bytes, or of a part of them, seeded with the beginning of the block's name: a
/// request or a header that was changed on its way may lead to other blocks, and then it does not fit.
pub fn block_checksum(name: &Name, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(checksum_seed(name), bytes)
}

/// What the checksum of a block with that name is seeded with.
pub(super) fn checksum_seed(name: &Name) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = name.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// What a run of block data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataHeader {
    /// The attempt.
    pub key: RequestKey,
    /// Position of the run's first block among the wanted ones.
    pub first_block: u32,
    /// [`block_checksum`] of each block, taken while the block was pinned.
    pub checksums: Vec<u64>,
}

/// One control message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a box would be memory that cannot be refused")]
pub enum Message {
    /// Destination to source.
    Fetch(FetchRequest),
    /// Source to destination.
    Answer(RequestKey, Answer),
    /// Destination to source: send no more.
    Cancel(RequestKey),
}

/// What came instead of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// What is wrong.
    pub error: WireError,
    /// The request that it belongs to, if that much could be read and it is a request.
    pub request: Option<RequestKey>,
}

impl Message {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Fetch(request) => {
                let mut out = prefix(KIND_FETCH, request.key);
                out.extend_from_slice(&request.source.0);
                wire::put_bytes(&mut out, &request.namespace);
                out.extend_from_slice(&request.layout_digest.to_le_bytes());
                put_part(&mut out, &request.part);
                out.push(match request.policy {
                    Policy::Strict => 1,
                    Policy::BestEffort => 2,
                });
                out.extend_from_slice(&request.hold_time_ns.to_le_bytes());
                out.extend_from_slice(&request.skipped_blocks.to_le_bytes());
                out.extend_from_slice(&request.step.to_le_bytes());
                out.extend_from_slice(&(request.names.len() as u32).to_le_bytes());
                request.names.iter().for_each(|name| out.extend_from_slice(&name.0));
                put_tail(&mut out, request.tail.as_ref());
                out
            }
            Self::Answer(key, answer) => {
                let mut out = prefix(KIND_ANSWER, *key);
                match answer {
                    Answer::Accepted { block_hashes } => {
                        out.push(ANSWER_ACCEPTED);
                        wire::put_u64s(&mut out, block_hashes);
                    }
                    Answer::Missing { present } => {
                        out.push(ANSWER_MISSING);
                        out.extend_from_slice(&present.to_le_bytes());
                    }
                    Answer::Refused(reason) => {
                        out.extend_from_slice(&[ANSWER_REFUSED, *reason as u8]);
                    }
                }
                out
            }
            Self::Cancel(key) => prefix(KIND_CANCEL, *key),
        }
    }

    /// Reads a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(bytes);
        let (kind, key) = read_prefix(&mut reader)?;
        let request = (kind == KIND_FETCH).then_some(key);
        Self::decode_body(kind, key, reader).map_err(|error| Unreadable { error, request })
    }

    fn decode_body(kind: u8, key: RequestKey, mut reader: Reader<'_>) -> Result<Self, WireError> {
        let message = match kind {
            KIND_FETCH => Self::Fetch(FetchRequest {
                key,
                source: Incarnation(reader.array()?),
                namespace: reader.byte_vec("namespace", MAX_NAMESPACE_BYTES)?,
                layout_digest: reader.u64()?,
                part: read_part(&mut reader)?,
                policy: match reader.u8()? {
                    1 => Policy::Strict,
                    2 => Policy::BestEffort,
                    _ => return Err(WireError::BadValue { what: "policy" }),
                },
                hold_time_ns: reader.u64()?,
                skipped_blocks: reader.u32()?,
                step: match reader.u32()? {
                    0 => return Err(WireError::BadValue { what: "step" }),
                    step => step,
                },
                names: reader.list("names", MAX_BLOCKS_PER_REQUEST, Name)?,
                tail: read_tail(&mut reader)?,
            }),
            KIND_ANSWER => {
                let answer = match reader.u8()? {
                    ANSWER_ACCEPTED => Answer::Accepted {
                        block_hashes: reader.list(
                            "block hashes",
                            MAX_BLOCKS_PER_REQUEST,
                            u64::from_le_bytes,
                        )?,
                    },
                    ANSWER_MISSING => Answer::Missing { present: reader.u32()? },
                    ANSWER_REFUSED => Answer::Refused(
                        RefuseReason::from_code(reader.u8()?)
                            .ok_or(WireError::BadValue { what: "reason" })?,
                    ),
                    _ => return Err(WireError::BadValue { what: "answer" }),
                };
                Self::Answer(key, answer)
            }
            KIND_CANCEL => Self::Cancel(key),
            _ => return Err(WireError::BadValue { what: "message kind" }),
        };
        reader.end()?;
        Ok(message)
    }
}

impl DataHeader {
    /// The header as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = prefix(KIND_DATA, self.key);
        out.extend_from_slice(&self.first_block.to_le_bytes());
        wire::put_u64s(&mut out, &self.checksums);
        out
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let (kind, key) = read_prefix(&mut reader).map_err(|unreadable| unreadable.error)?;
        if kind != KIND_DATA {
            return Err(WireError::BadValue { what: "message kind" });
        }
        let first_block = reader.u32()?;
        let checksums = reader.list("checksums", MAX_BLOCKS_PER_RUN, u64::from_le_bytes)?;
        reader.end()?;
        Ok(Self { key, first_block, checksums })
    }
}

/// What a worker says first, and only, over plain TCP: here is a state of so many bytes.
pub fn state_head(state_bytes: u32) -> Vec<u8> {
    let nobody = RequestKey { destination: Incarnation([0; 16]), sequence: 0 };
    let mut head = prefix(KIND_STATE, nobody);
    head.extend_from_slice(&state_bytes.to_le_bytes());
    head
}

/// How many bytes of a state follow its head.
pub fn read_state_head(head: &[u8; STATE_HEAD_BYTES]) -> Result<usize, WireError> {
    let mut reader = Reader::new(head);
    let (kind, _) = read_prefix(&mut reader).map_err(|unreadable| unreadable.error)?;
    if kind != KIND_STATE {
        return Err(WireError::BadValue { what: "message kind" });
    }
    reader.count("state", MAX_STATE_BYTES)
}

fn put_part(out: &mut Vec<u8>, part: &BlockPart) {
    match part {
        BlockPart::Whole => out.push(PART_WHOLE),
        BlockPart::Heads { first_layer, heads } => {
            out.push(PART_HEADS);
            out.extend_from_slice(&first_layer.to_le_bytes());
            out.extend_from_slice(&(heads.len() as u32).to_le_bytes());
            for range in heads {
                out.extend_from_slice(&range.first.to_le_bytes());
                out.extend_from_slice(&range.count.to_le_bytes());
            }
        }
    }
}

fn read_part(reader: &mut Reader<'_>) -> Result<BlockPart, WireError> {
    match reader.u8()? {
        PART_WHOLE => Ok(BlockPart::Whole),
        PART_HEADS => Ok(BlockPart::Heads {
            first_layer: reader.u32()?,
            heads: reader.list(
                "layers",
                MAX_LAYOUT_ENTRIES,
                |[a, b, c, d, e, f, g, h]: [u8; 8]| HeadRange {
                    first: u32::from_le_bytes([a, b, c, d]),
                    count: u32::from_le_bytes([e, f, g, h]),
                },
            )?,
        }),
        _ => Err(WireError::BadValue { what: "part" }),
    }
}

fn put_tail(out: &mut Vec<u8>, tail: Option<&TextTail>) {
    let Some(tail) = tail else { return out.push(TAIL_NONE) };
    out.push(TAIL_TEXT);
    out.extend_from_slice(&tail.parent().0);
    out.extend_from_slice(&tail.traits());
    out.extend_from_slice(&(tail.tokens().len() as u32).to_le_bytes());
    tail.tokens().iter().for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
}

fn read_tail(reader: &mut Reader<'_>) -> Result<Option<TextTail>, WireError> {
    match reader.u8()? {
        TAIL_NONE => Ok(None),
        TAIL_TEXT => {
            let (parent, traits) = (Name(reader.array()?), reader.array()?);
            let tokens = reader.list("tail tokens", MAX_TOKENS_PER_BLOCK, i32::from_le_bytes)?;
            let tail = TextTail::new(parent, &traits, tokens);
            tail.map(Some).ok_or(WireError::BadValue { what: "tail" })
        }
        _ => Err(WireError::BadValue { what: "tail" }),
    }
}

impl FetchRequest {
    /// How many of the first `blocks` named blocks are wanted.
    pub fn wanted_of(&self, blocks: usize) -> usize {
        blocks.saturating_sub(self.skipped_blocks as usize).div_ceil(self.step.max(1) as usize)
    }
}

fn prefix(kind: u8, key: RequestKey) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&[MAJOR, kind]);
    out.extend_from_slice(&key.destination.0);
    out.extend_from_slice(&key.sequence.to_le_bytes());
    out
}

fn read_prefix(reader: &mut Reader<'_>) -> Result<(u8, RequestKey), Unreadable> {
    let unknown = |error| Unreadable { error, request: None };
    if reader.array::<2>().map_err(unknown)? != MARK {
        return Err(unknown(WireError::NotOurs));
    }
    let major = reader.u8().map_err(unknown)?;
    let kind = reader.u8().map_err(unknown)?;
    let destination = Incarnation(reader.array().map_err(unknown)?);
    let sequence = reader.u64().map_err(unknown)?;
    let key = RequestKey { destination, sequence };
    if major != MAJOR {
        let request = (kind == KIND_FETCH).then_some(key);
        return Err(Unreadable {
            error: WireError::OtherMajor { found: major, ours: MAJOR },
            request,
        });
    }
    Ok((kind, key))
}
