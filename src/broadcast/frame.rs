//! A batch as bytes: what follows the header of a round.
//!
//! ```text
//! front     = snapshot_count u32, packed_len u32 * snapshot_count, record * request_count,
//!             packed snapshots, plans, bodies that are not large
//! record    = id u64, body_len u64, snapshot u32, parent u32, plan_len u32, flags u32
//! payload   = front, large bodies                                          (little-endian)
//! ```
//!
//! `snapshot` and `parent` are indices or 2^32-1. Each distinct snapshot travels once, however many
//! requests hold it. Large bodies are sent from where they lie; see [`LARGE_BODY_BYTES`].
//!
//! Guards: decoding is total. A payload whose checksum is right is still read as foreign bytes.

use std::collections::{HashMap, TryReserveError};

use xxhash_rust::xxh3::{xxh3_64, Xxh3};

use super::batch::{Batch, ReceivedBatch, ReceivedRequest, Request};
use super::header::{AbortReason, Lengths};
use super::limits::{LARGE_BODY_BYTES, MAX_BODY_BYTES, MAX_PAYLOAD_BYTES, MAX_PLAN_BYTES};
use super::packed::{self, UnpackError};
use super::settings::Mode;
use super::wire::{put, Reader};
use crate::hint::{Snapshot, SnapshotError};
use crate::plan::{Plan, PlanBytesError};

const RECORD_BYTES: usize = 32;
const NONE: u32 = u32::MAX;
const FLAG_LARGE: u32 = 1;
const FLAG_PLAN: u32 = 2;

/// A batch ready to be sent.
#[derive(Debug)]
pub struct Encoded<'a> {
    /// For the header.
    pub lengths: Lengths,
    /// The lengths of the large bodies, as they travel.
    pub large_lengths: Vec<u8>,
    /// The first part of the payload.
    pub front: Vec<u8>,
    /// The rest of the payload.
    pub large: Vec<&'a [u8]>,
}

impl From<TryReserveError> for AbortReason {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Each distinct snapshot of a batch, and which one each request has.
struct Snapshots<'b> {
    distinct: Vec<&'b Snapshot>,
    of_request: Vec<u32>,
}

impl<'b> Snapshots<'b> {
    fn of(requests: &'b [Request<'_>], mode: Mode) -> Result<Self, TryReserveError> {
        let mut distinct = Vec::new();
        let mut of_request = Vec::new();
        of_request.try_reserve_exact(requests.len())?;
        let mut indices: HashMap<*const u8, u32> = HashMap::new();
        for request in requests {
            let snapshot = request.snapshot.as_ref().filter(|_| mode == Mode::Full);
            let Some(snapshot) = snapshot else {
                of_request.push(NONE);
                continue;
            };
            // A snapshot's bytes never move nor change: where they lie tells which one it is.
            let place = snapshot.json().as_ptr();
            if let Some(index) = indices.get(&place) {
                of_request.push(*index);
                continue;
            }
            let index = distinct.len() as u32;
            indices.try_reserve(1)?;
            distinct.try_reserve(1)?;
            indices.insert(place, index);
            distinct.push(snapshot);
            of_request.push(index);
        }
        Ok(Self { distinct, of_request })
    }
}

/// Encodes `batch`. `front` is memory to use again; what it holds is dropped.
pub fn encode<'a>(
    batch: &Batch<'a>,
    mode: Mode,
    mut front: Vec<u8>,
) -> Result<Encoded<'a>, AbortReason> {
    let requests = batch.requests();
    let snapshots = Snapshots::of(requests, mode)?;
    front.clear();

    let table_start = 4 + 4 * snapshots.distinct.len();
    let table_end = table_start + RECORD_BYTES * requests.len();
    front.try_reserve(table_end)?;
    front.resize(table_end, 0);
    put(&mut front, 0, &(snapshots.distinct.len() as u32).to_le_bytes());

    for (index, snapshot) in snapshots.distinct.iter().enumerate() {
        let start = front.len();
        packed::pack(snapshot.json(), &mut front)?;
        let packed_len = front.len() - start;
        put(&mut front, 4 + 4 * index, &(packed_len as u32).to_le_bytes());
    }

    for (index, request) in requests.iter().enumerate() {
        let plan = plan_that_travels(request, mode).map(Plan::to_bytes).transpose()?;
        let plan_bytes = plan.as_deref().unwrap_or_default();
        if plan_bytes.len() > MAX_PLAN_BYTES {
            return Err(AbortReason::Limit);
        }
        front.try_reserve(plan_bytes.len())?;
        front.extend_from_slice(plan_bytes);
        let large = if is_large(request.body.len()) { FLAG_LARGE } else { 0 };
        let flags = large | if plan.is_some() { FLAG_PLAN } else { 0 };
        let at = table_start + RECORD_BYTES * index;
        let at = put(&mut front, at, &request.id.to_le_bytes());
        let at = put(&mut front, at, &(request.body.len() as u64).to_le_bytes());
        let at = put(&mut front, at, &snapshots.of_request[index].to_le_bytes());
        let at = put(&mut front, at, &request.parent.unwrap_or(NONE).to_le_bytes());
        let at = put(&mut front, at, &(plan_bytes.len() as u32).to_le_bytes());
        put(&mut front, at, &flags.to_le_bytes());
    }

    let (mut large, mut large_lengths) = (Vec::new(), Vec::new());
    for request in requests {
        if is_large(request.body.len()) {
            large.try_reserve(1)?;
            large_lengths.try_reserve(8)?;
            large.push(request.body);
            large_lengths.extend_from_slice(&(request.body.len() as u64).to_le_bytes());
        } else {
            front.try_reserve(request.body.len())?;
            front.extend_from_slice(request.body);
        }
    }
    let payload_len = front.len() + large.iter().map(|body| body.len()).sum::<usize>();
    if payload_len > MAX_PAYLOAD_BYTES {
        return Err(AbortReason::Limit);
    }
    let lengths = Lengths {
        request_count: requests.len(),
        large_count: large.len(),
        front_len: front.len(),
        payload_len,
        payload_checksum: checksum(&front, &large),
        lengths_checksum: xxh3_64(&large_lengths),
    };
    Ok(Encoded { lengths, large_lengths, front, large })
}

/// Where only decisions travel, no plan says "local".
fn plan_that_travels<'b>(request: &'b Request<'_>, mode: Mode) -> Option<&'b Plan> {
    let is_local = |plan: &Plan| matches!(plan, Plan::Local(_));
    request.plan.as_ref().filter(|plan| mode == Mode::Full || !is_local(plan))
}

fn is_large(body_len: usize) -> bool {
    body_len >= LARGE_BODY_BYTES
}

/// The same as of all parts in a row.
fn checksum(front: &[u8], large: &[&[u8]]) -> u64 {
    if large.is_empty() {
        return xxh3_64(front);
    }
    let mut hasher = Xxh3::new();
    hasher.update(front);
    large.iter().for_each(|body| hasher.update(body));
    hasher.digest()
}

/// Received bytes are not what [`encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Changed on the way, or of another release.
    #[error("damaged frame: {0}")]
    Damaged(&'static str),
    /// Memory for the batch could not be had.
    #[error("memory for the received batch could not be had")]
    NoMemory,
}

impl From<TryReserveError> for FrameError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Checks the list of the large bodies' lengths. It says which messages follow, so that is done
/// before they are waited for.
pub fn check_large_lengths(bytes: &[u8], lengths: &Lengths) -> Result<(), FrameError> {
    if bytes.len() != lengths.large_count * 8
        || (lengths.large_count > 0 && xxh3_64(bytes) != lengths.lengths_checksum)
    {
        return Err(FrameError::Damaged("checksum of the lengths of large bodies"));
    }
    let mut sum = lengths.front_len;
    for len in large_lengths(bytes) {
        if !is_large(len) || len > MAX_BODY_BYTES {
            return Err(FrameError::Damaged("length of a large body"));
        }
        // No overflow: at most MAX_REQUESTS lengths of at most MAX_BODY_BYTES.
        sum += len;
    }
    if sum != lengths.payload_len {
        return Err(FrameError::Damaged("sum of the lengths of large bodies"));
    }
    Ok(())
}

/// The lengths in a checked list.
pub fn large_lengths(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(move || reader.size())
}

/// Decodes a received payload, given the checked list of its large bodies' lengths. The batch keeps
/// the payload, and hands out views into it.
pub fn decode(
    lengths: &Lengths,
    large_lengths: &[u8],
    payload: Vec<u8>,
) -> Result<ReceivedBatch, FrameError> {
    if payload.len() != lengths.payload_len || xxh3_64(&payload) != lengths.payload_checksum {
        return Err(FrameError::Damaged("checksum of the payload"));
    }
    let front = payload.get(..lengths.front_len).ok_or(CUT)?;
    let large_lengths = self::large_lengths(large_lengths);
    let requests = Front::read(front, lengths.request_count)?.requests(large_lengths)?;
    Ok(ReceivedBatch { payload, requests })
}

/// The parts of a front, each still foreign.
struct Front<'a> {
    front_len: usize,
    snapshots: Vec<Snapshot>,
    records: Reader<'a>,
    /// Plans and bodies.
    data: Reader<'a>,
    request_count: usize,
}

const CUT: FrameError = FrameError::Damaged("front ends too early");

impl<'a> Front<'a> {
    fn read(front: &'a [u8], request_count: usize) -> Result<Self, FrameError> {
        let mut reader = Reader::new(front);
        let snapshot_count = reader.u32().ok_or(CUT)? as usize;
        if snapshot_count > request_count {
            return Err(FrameError::Damaged("more snapshots than requests"));
        }
        let mut packed_lens = Reader::new(reader.take(4 * snapshot_count).ok_or(CUT)?);
        let records = Reader::new(reader.take(RECORD_BYTES * request_count).ok_or(CUT)?);
        let mut snapshots = Vec::new();
        snapshots.try_reserve_exact(snapshot_count)?;
        while let Some(packed_len) = packed_lens.u32() {
            snapshots.push(snapshot(reader.take(packed_len as usize).ok_or(CUT)?)?);
        }
        Ok(Self { front_len: front.len(), snapshots, records, data: reader, request_count })
    }

    fn requests(
        mut self,
        mut large_lengths: impl Iterator<Item = usize>,
    ) -> Result<Vec<ReceivedRequest>, FrameError> {
        let mut requests: Vec<ReceivedRequest> = Vec::new();
        requests.try_reserve_exact(self.request_count)?;
        let mut bodies = Bodies::behind_plans(self.records, &self.data, self.front_len)?;
        for index in 0..self.request_count {
            let record = Record::read(&mut self.records)?;
            let body = if record.flags & FLAG_LARGE == 0 {
                bodies.next_in_front(record.body_len)?
            } else if large_lengths.next() == Some(record.body_len) {
                bodies.next_large(record.body_len)
            } else {
                return Err(FrameError::Damaged("length of a large body"));
            };
            requests.push(ReceivedRequest {
                id: record.id,
                body,
                snapshot: self.snapshot(record.snapshot)?,
                parent: parent(record.parent, index)?,
                plan: plan(&record, &mut self.data)?,
            });
        }
        if large_lengths.next().is_some() || bodies.in_front != self.front_len {
            return Err(FrameError::Damaged("bytes that belong to no request"));
        }
        Ok(requests)
    }

    fn snapshot(&self, index: u32) -> Result<Option<Snapshot>, FrameError> {
        if index == NONE {
            return Ok(None);
        }
        let snapshot = self.snapshots.get(index as usize);
        snapshot.cloned().map(Some).ok_or(FrameError::Damaged("index of a snapshot"))
    }
}

/// Where in the payload the next bodies lie.
struct Bodies {
    in_front: usize,
    front_len: usize,
    large: usize,
}

impl Bodies {
    fn behind_plans(
        mut records: Reader<'_>,
        data: &Reader<'_>,
        front_len: usize,
    ) -> Result<Self, FrameError> {
        let mut plans_len = 0;
        while records.remaining() > 0 {
            plans_len += Record::read(&mut records)?.plan_len;
        }
        // No overflow: at most MAX_REQUESTS plans of at most MAX_PLAN_BYTES.
        let in_front = front_len - data.remaining() + plans_len;
        if in_front > front_len {
            return Err(CUT);
        }
        Ok(Self { in_front, front_len, large: front_len })
    }

    fn next_in_front(&mut self, len: usize) -> Result<std::ops::Range<usize>, FrameError> {
        if len > self.front_len - self.in_front {
            return Err(CUT);
        }
        let start = self.in_front;
        self.in_front += len;
        Ok(start..self.in_front)
    }

    /// The caller compared `len` with the list of lengths, whose sum was checked.
    fn next_large(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.large;
        self.large += len;
        start..self.large
    }
}

struct Record {
    id: u64,
    body_len: usize,
    snapshot: u32,
    parent: u32,
    plan_len: usize,
    flags: u32,
}

impl Record {
    fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let record = (|| {
            Some(Self {
                id: reader.u64()?,
                body_len: reader.size()?,
                snapshot: reader.u32()?,
                parent: reader.u32()?,
                plan_len: reader.u32()? as usize,
                flags: reader.u32()?,
            })
        })()
        .ok_or(CUT)?;
        let is_possible = record.flags & !(FLAG_LARGE | FLAG_PLAN) == 0
            && record.plan_len <= MAX_PLAN_BYTES
            && (record.flags & FLAG_PLAN != 0 || record.plan_len == 0);
        is_possible.then_some(record).ok_or(FrameError::Damaged("record of a request"))
    }
}

fn snapshot(packed: &[u8]) -> Result<Snapshot, FrameError> {
    let text = packed::unpack(packed).map_err(|error| match error {
        UnpackError::Damaged => FrameError::Damaged("packed snapshot"),
        UnpackError::NoMemory => FrameError::NoMemory,
    })?;
    Snapshot::from_canonical(&text).map_err(|error| match error {
        SnapshotError::Damaged => FrameError::Damaged("snapshot"),
        SnapshotError::NoMemory(_) => FrameError::NoMemory,
    })
}

fn parent(parent: u32, index: usize) -> Result<Option<u32>, FrameError> {
    match parent {
        NONE => Ok(None),
        parent if (parent as usize) < index => Ok(Some(parent)),
        _ => Err(FrameError::Damaged("index of a parent")),
    }
}

fn plan(record: &Record, data: &mut Reader<'_>) -> Result<Option<Plan>, FrameError> {
    if record.flags & FLAG_PLAN == 0 {
        return Ok(None);
    }
    let bytes = data.take(record.plan_len).ok_or(CUT)?;
    Plan::from_bytes(bytes).map(Some).map_err(|error| match error {
        PlanBytesError::NoMemory => FrameError::NoMemory,
        _ => FrameError::Damaged("plan"),
    })
}
