//! A batch as bytes: what follows the header of a round.
//!
//! ```text
//! payload   = front, large parts
//! front     = length u64 * large_count, snapshot_count u32, entry * snapshot_count,
//!             record * request_count, indices, snapshots that are not large, plans,
//!             bodies that are not large
//! entry     = text_len u32, data_len u32, index_len u32, flags u32
//! record    = id u64, body_len u64, snapshot u32, parent u32, plan_len u32, flags u32
//! large part = a snapshot or a body; first all such snapshots, then all such bodies, in order
//!                                                                            (little-endian)
//! ```
//!
//! The front has its checksum in the header, the large parts behind them ([`PartsChecksum`]).
//!
//! `snapshot` and `parent` are numbers of an entry or a record, or 2^32-1. Each distinct snapshot
//! travels once, however many requests hold it, as its canonical text or packed (`packed`), with the
//! index that `hint` makes of it. Large parts are sent from where they lie and not copied here; from
//! which size on, the communicator says ([`Communicator::large_from_bytes`]).
//!
//! Guards: decoding is total. A payload whose checksum is right is still read as foreign bytes.
//!
//! [`Communicator::large_from_bytes`]: super::communicator::Communicator::large_from_bytes

use std::collections::TryReserveError;
use std::ops::Range;

use bytes::Bytes;
use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use super::batch::{Batch, ReceivedBatch, ReceivedRequest, Request};
use super::header::{AbortReason, Lengths};
use super::limits::{MAX_BODY_BYTES, MAX_PAYLOAD_BYTES, MAX_PLAN_BYTES, MAX_SNAPSHOT_BYTES};
use super::packed::{self, UnpackError};
use super::pool::BufferPool;
use super::settings::{HintForm, Mode};
use crate::hint::{Snapshot, SnapshotError};
use crate::plan::{Plan, PlanBytesError};
use crate::wire::{put, Reader};

const ENTRY_BYTES: usize = 16;
const RECORD_BYTES: usize = 32;
const LENGTH_BYTES: usize = 8;
const NONE: u32 = u32::MAX;
/// Of an entry or a record: the snapshot or body is a large part.
const FLAG_LARGE: u32 = 1;
/// Of an entry: the snapshot is packed.
const FLAG_PACKED: u32 = 2;
/// Of a record: there is a plan.
const FLAG_PLAN: u32 = 2;

/// What is the same for each round of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// What travels.
    pub mode: Mode,
    /// How hints travel.
    pub hint_form: HintForm,
    /// Parts from this size on are large.
    pub large_from_bytes: usize,
}

/// A batch ready to be sent, but for its large parts; and memory for the next one.
#[derive(Debug, Default)]
pub struct Encoded {
    /// For the header.
    pub lengths: Lengths,
    /// The first part of the payload.
    pub front: Vec<u8>,
    large: Vec<Part>,
    snapshots: Snapshots,
}

/// A snapshot or body that is a large part.
#[derive(Debug, Clone, Copy)]
struct Part {
    what: What,
    /// Of the request with this number.
    request: u32,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Snapshot,
    Body,
}

impl From<TryReserveError> for AbortReason {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Each distinct snapshot of a batch, and which one each request has.
#[derive(Debug, Default)]
struct Snapshots {
    distinct: Vec<Distinct>,
    of_request: Vec<u32>,
    /// Numbers in `distinct`, found by where the snapshot lies.
    by_place: HashTable<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Distinct {
    /// The request that first has it.
    first: u32,
    /// Bytes of it as it travels.
    data_len: usize,
}

/// A snapshot's bytes never move nor change: where they lie tells which one it is.
fn place(snapshot: &Snapshot) -> usize {
    snapshot.json().as_ptr() as usize
}

impl Snapshots {
    fn collect(&mut self, requests: &[Request<'_>], format: Format) -> Result<(), AbortReason> {
        let Self { distinct, of_request, by_place } = self;
        distinct.clear();
        of_request.clear();
        by_place.clear();
        of_request.try_reserve_exact(requests.len())?;
        // Places are no foreign input: spreading their bits is enough.
        let hash =
            |place: usize| (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
        let place_of = |distinct: Distinct| {
            requests[distinct.first as usize].snapshot.as_ref().map_or(0, place)
        };
        for (index, request) in requests.iter().enumerate() {
            let snapshot = request.snapshot.as_ref().filter(|_| format.mode == Mode::Full);
            let Some(snapshot) = snapshot else {
                of_request.push(NONE);
                continue;
            };
            let place = place(snapshot);
            let is_same = |number: &u32| place_of(distinct[*number as usize]) == place;
            if let Some(number) = by_place.find(hash(place), is_same) {
                of_request.push(*number);
                continue;
            }
            let number = distinct.len() as u32;
            distinct.try_reserve(1)?;
            let data_len = snapshot_data(snapshot, format.hint_form)?.len();
            distinct.push(Distinct { first: index as u32, data_len });
            let rehash = |number: &u32| hash(place_of(distinct[*number as usize]));
            by_place.try_reserve(1, rehash).map_err(|_| AbortReason::NoMemory)?;
            by_place.insert_unique(hash(place), number, rehash);
            of_request.push(number);
        }
        Ok(())
    }
}

/// A snapshot as it travels.
fn snapshot_data(snapshot: &Snapshot, form: HintForm) -> Result<&[u8], TryReserveError> {
    match form {
        HintForm::Text => Ok(snapshot.json()),
        HintForm::Packed => snapshot.packed(packed::pack_to_vec),
    }
}

impl Encoded {
    /// The large parts of the batch that this was made from.
    pub fn large_parts<'b>(
        &'b self,
        batch: &'b Batch<'_>,
        form: HintForm,
    ) -> impl Iterator<Item = &'b [u8]> {
        self.large.iter().map(move |part| {
            let request = &batch.requests()[part.request as usize];
            match part.what {
                What::Body => request.body,
                // Packed while encoding, so that no memory is asked for here.
                What::Snapshot => request
                    .snapshot
                    .as_ref()
                    .and_then(|snapshot| snapshot_data(snapshot, form).ok())
                    .unwrap_or_default(),
            }
        })
    }
}

/// Encodes `batch`, in the memory of an earlier one.
pub fn encode(
    batch: &Batch<'_>,
    format: Format,
    mut encoded: Encoded,
) -> Result<Encoded, AbortReason> {
    let requests = batch.requests();
    let Encoded { front, large, snapshots, .. } = &mut encoded;
    front.clear();
    large.clear();
    snapshots.collect(requests, format)?;
    let is_large = |len: usize| len >= format.large_from_bytes;
    let snapshot_of = |distinct: &Distinct| requests[distinct.first as usize].snapshot.as_ref();

    // The list of large parts comes first, so what is large has to be known first.
    let mut small_len = 0;
    large.try_reserve(snapshots.distinct.len() + requests.len())?;
    for distinct in &snapshots.distinct {
        let Distinct { first, data_len } = *distinct;
        if is_large(data_len) {
            large.push(Part { what: What::Snapshot, request: first, len: data_len });
        } else {
            small_len += data_len;
        }
        small_len += snapshot_of(distinct).map_or(0, Snapshot::index_len);
    }
    for (index, request) in requests.iter().enumerate() {
        let len = request.body.len();
        if is_large(len) {
            large.push(Part { what: What::Body, request: index as u32, len });
        } else {
            small_len += len;
        }
    }

    let entries_start = LENGTH_BYTES * large.len() + 4;
    let records_start = entries_start + ENTRY_BYTES * snapshots.distinct.len();
    let table_end = records_start + RECORD_BYTES * requests.len();
    if table_end + small_len > MAX_PAYLOAD_BYTES {
        return Err(AbortReason::Limit);
    }
    front.try_reserve(table_end + small_len)?;
    front.resize(table_end, 0);
    put(front, entries_start - 4, &(snapshots.distinct.len() as u32).to_le_bytes());

    let packed = if format.hint_form == HintForm::Packed { FLAG_PACKED } else { 0 };
    let mut at = entries_start;
    for distinct in &snapshots.distinct {
        let Some(snapshot) = snapshot_of(distinct) else { continue };
        let flags = packed | if is_large(distinct.data_len) { FLAG_LARGE } else { 0 };
        at = put(front, at, &(snapshot.json().len() as u32).to_le_bytes());
        at = put(front, at, &(distinct.data_len as u32).to_le_bytes());
        at = put(front, at, &(snapshot.index_len() as u32).to_le_bytes());
        at = put(front, at, &flags.to_le_bytes());
        snapshot.write_index(front)?;
    }
    for distinct in snapshots.distinct.iter().filter(|distinct| !is_large(distinct.data_len)) {
        let Some(snapshot) = snapshot_of(distinct) else { continue };
        front.extend_from_slice(snapshot_data(snapshot, format.hint_form)?);
    }
    for (index, request) in requests.iter().enumerate() {
        let plan = plan_that_travels(request, format.mode).map(Plan::to_bytes).transpose()?;
        let plan_bytes = plan.as_deref().unwrap_or_default();
        if plan_bytes.len() > MAX_PLAN_BYTES {
            return Err(AbortReason::Limit);
        }
        front.try_reserve(plan_bytes.len())?;
        front.extend_from_slice(plan_bytes);
        let large = if is_large(request.body.len()) { FLAG_LARGE } else { 0 };
        let flags = large | if plan.is_some() { FLAG_PLAN } else { 0 };
        let at = records_start + RECORD_BYTES * index;
        let at = put(front, at, &request.id.to_le_bytes());
        let at = put(front, at, &(request.body.len() as u64).to_le_bytes());
        let at = put(front, at, &snapshots.of_request[index].to_le_bytes());
        let at = put(front, at, &request.parent.unwrap_or(NONE).to_le_bytes());
        let at = put(front, at, &(plan_bytes.len() as u32).to_le_bytes());
        put(front, at, &flags.to_le_bytes());
    }
    for request in requests {
        if !is_large(request.body.len()) {
            front.try_reserve(request.body.len())?;
            front.extend_from_slice(request.body);
        }
    }
    encoded.seal(requests.len())
}

impl Encoded {
    /// Fills in the list of large parts, and the lengths and checksums for the header.
    fn seal(mut self, request_count: usize) -> Result<Self, AbortReason> {
        let front = &mut self.front;
        let mut payload_len = front.len();
        let mut at = 0;
        for part in &self.large {
            at = put(front, at, &(part.len as u64).to_le_bytes());
            // No overflow: at most 2 * MAX_REQUESTS parts of at most MAX_BODY_BYTES.
            payload_len += part.len;
        }
        if payload_len > MAX_PAYLOAD_BYTES {
            return Err(AbortReason::Limit);
        }
        let lengths_checksum = XxHash3_64::oneshot(&front[..at]);
        let front_checksum = XxHash3_64::oneshot(front);
        self.lengths = Lengths {
            request_count,
            large_count: self.large.len(),
            front_len: front.len(),
            payload_len,
            front_checksum,
            lengths_checksum,
        };
        Ok(self)
    }
}

/// Large parts are hashed in pieces of this size, the last piece of each part being what is left: near
/// the processor, while the other side is busy with the piece before.
pub const PIECE_BYTES: usize = 16 << 10;

/// Bytes of the checksum that follows large parts.
pub const PARTS_CHECKSUM_BYTES: usize = 8;

/// The checksum of large parts, made while they pass: of each piece by itself. What came out before is
/// turned and multiplied, so that pieces that changed places are found too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartsChecksum(u64);

impl PartsChecksum {
    /// Before the first part of a payload with this front.
    pub fn new(lengths: &Lengths) -> Self {
        Self(lengths.front_checksum)
    }

    /// Adds the next piece of a part, at most [`PIECE_BYTES`].
    pub fn add_piece(&mut self, piece: &[u8]) {
        let before = self.0.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = before ^ XxHash3_64::oneshot(piece);
    }

    /// Adds a whole part.
    pub fn add(&mut self, part: &[u8]) {
        part.chunks(PIECE_BYTES).for_each(|piece| self.add_piece(piece));
    }

    /// As it travels.
    pub fn to_bytes(self) -> [u8; PARTS_CHECKSUM_BYTES] {
        self.0.to_le_bytes()
    }

    /// Whether the parts that were added are those that the sender meant.
    pub fn check(self, sent: [u8; PARTS_CHECKSUM_BYTES]) -> Result<(), FrameError> {
        if self.to_bytes() == sent {
            return Ok(());
        }
        Err(FrameError::Damaged("checksum of the large parts"))
    }
}

/// Where only decisions travel, no plan says "local".
fn plan_that_travels<'b>(request: &'b Request<'_>, mode: Mode) -> Option<&'b Plan> {
    let is_local = |plan: &Plan| matches!(plan, Plan::Local(_));
    request.plan.as_deref().filter(|plan| mode == Mode::Full || !is_local(plan))
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

/// Bytes of the list of large parts' lengths, with which a front begins.
pub fn list_len(lengths: &Lengths) -> usize {
    LENGTH_BYTES * lengths.large_count
}

/// Checks the list of the large parts' lengths. It says which messages follow, so that is done
/// before they are waited for.
pub fn check_list(list: &[u8], lengths: &Lengths) -> Result<(), FrameError> {
    if list.len() != list_len(lengths) || XxHash3_64::oneshot(list) != lengths.lengths_checksum {
        return Err(FrameError::Damaged("checksum of the lengths of large parts"));
    }
    let mut sum = lengths.front_len;
    for len in large_lengths(list) {
        if len == 0 || len > MAX_BODY_BYTES {
            return Err(FrameError::Damaged("length of a large part"));
        }
        // No overflow: a bounded count of bounded lengths.
        sum += len;
    }
    if sum != lengths.payload_len {
        return Err(FrameError::Damaged("sum of the lengths of large parts"));
    }
    Ok(())
}

/// The lengths in a checked list.
pub fn large_lengths(list: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut reader = Reader::new(list);
    std::iter::from_fn(move || reader.size())
}

/// Decodes a received payload. The batch keeps it, and hands out views into it; `pool` gives memory
/// for hints that travelled packed. Whether the list of large parts was checked before or not, it is
/// of no effect here: it only says how the payload is cut, and the front's checksum covers it. That
/// of the large parts is the caller's business ([`PartsChecksum`]).
pub fn decode(
    lengths: &Lengths,
    payload: Bytes,
    pool: &BufferPool,
) -> Result<ReceivedBatch, FrameError> {
    let (front, _) = payload.split_at_checked(lengths.front_len).ok_or(CUT)?;
    let (list, front_behind) = front.split_at_checked(list_len(lengths)).ok_or(CUT)?;
    let found = XxHash3_64::oneshot(front);
    if found != lengths.front_checksum || payload.len() != lengths.payload_len {
        return Err(FrameError::Damaged("checksum of the front"));
    }
    let front = front_behind;
    let tables = Tables::read(front, lengths.request_count)?;
    let mut large = Large { lengths: large_lengths(list), end: lengths.front_len };
    let mut small =
        Small { end: lengths.front_len - tables.data.remaining(), limit: lengths.front_len };
    let snapshots = snapshots(&tables, &payload, &mut small, &mut large, pool)?;
    let requests = requests(&tables, snapshots.len(), &payload, &mut small, &mut large)?;
    if large.lengths.next().is_some() || large.end != payload.len() || small.end != small.limit {
        return Err(FrameError::Damaged("bytes that belong to no request"));
    }
    drop(large);
    Ok(ReceivedBatch { payload, snapshots, requests })
}

const CUT: FrameError = FrameError::Damaged("front ends too early");

/// The tables of a front, still foreign, and what follows them.
struct Tables<'a> {
    entries: Reader<'a>,
    records: Reader<'a>,
    data: Reader<'a>,
    snapshot_count: usize,
    request_count: usize,
}

impl<'a> Tables<'a> {
    fn read(front: &'a [u8], request_count: usize) -> Result<Self, FrameError> {
        let mut reader = Reader::new(front);
        let snapshot_count = reader.u32().ok_or(CUT)? as usize;
        if snapshot_count > request_count {
            return Err(FrameError::Damaged("more snapshots than requests"));
        }
        let entries = Reader::new(reader.take(ENTRY_BYTES * snapshot_count).ok_or(CUT)?);
        let records = Reader::new(reader.take(RECORD_BYTES * request_count).ok_or(CUT)?);
        Ok(Self { entries, records, data: reader, snapshot_count, request_count })
    }
}

/// Where in the payload the next part in the front lies.
struct Small {
    end: usize,
    limit: usize,
}

impl Small {
    fn next(&mut self, len: usize) -> Result<Range<usize>, FrameError> {
        if len > self.limit - self.end {
            return Err(CUT);
        }
        let start = self.end;
        self.end += len;
        Ok(start..self.end)
    }
}

/// Where in the payload the next large part lies.
struct Large<L> {
    lengths: L,
    end: usize,
}

impl<L: Iterator<Item = usize>> Large<L> {
    fn next(&mut self, len: usize) -> Result<Range<usize>, FrameError> {
        let listed = self.lengths.next().filter(|listed| *listed == len && len > 0);
        let end = listed.and_then(|len| self.end.checked_add(len));
        let end = end.ok_or(FrameError::Damaged("length of a large part"))?;
        let start = std::mem::replace(&mut self.end, end);
        Ok(start..end)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    text_len: usize,
    data_len: usize,
    index_len: usize,
    flags: u32,
}

impl Entry {
    fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let entry = (|| {
            Some(Self {
                text_len: reader.u32()? as usize,
                data_len: reader.u32()? as usize,
                index_len: reader.u32()? as usize,
                flags: reader.u32()?,
            })
        })()
        .ok_or(CUT)?;
        let is_packed = entry.flags & FLAG_PACKED != 0;
        let is_possible = entry.flags & !(FLAG_LARGE | FLAG_PACKED) == 0
            && entry.text_len <= MAX_SNAPSHOT_BYTES
            && entry.data_len <= packed::max_packed_len(MAX_SNAPSHOT_BYTES)
            && (is_packed || entry.text_len == entry.data_len)
            // No packed form is much shorter, so no memory is asked for that bytes do not stand for.
            && entry.text_len <= entry.data_len.saturating_mul(3);
        is_possible.then_some(entry).ok_or(FrameError::Damaged("entry of a snapshot"))
    }
}

fn snapshots(
    tables: &Tables<'_>,
    payload: &Bytes,
    small: &mut Small,
    large: &mut Large<impl Iterator<Item = usize>>,
    pool: &BufferPool,
) -> Result<Vec<Snapshot>, FrameError> {
    let mut snapshots = Vec::new();
    snapshots.try_reserve_exact(tables.snapshot_count)?;
    let mut indices = small.end;
    let (mut entries, mut texts_len) = (tables.entries, 0);
    while entries.remaining() > 0 {
        let entry = Entry::read(&mut entries)?;
        small.next(entry.index_len)?;
        texts_len += if entry.flags & FLAG_PACKED != 0 { entry.text_len } else { 0 };
    }
    let mut entries = tables.entries;
    let mut texts = pool.take(texts_len)?;
    let mut rest = texts.as_mut_slice();
    // Where each snapshot's text lies: in the payload, or in the texts that are unpacked here.
    let mut places = Vec::new();
    places.try_reserve_exact(tables.snapshot_count)?;
    let mut unpacked_end = 0;
    while entries.remaining() > 0 {
        let entry = Entry::read(&mut entries)?;
        let data = if entry.flags & FLAG_LARGE != 0 {
            large.next(entry.data_len)?
        } else {
            small.next(entry.data_len)?
        };
        if entry.flags & FLAG_PACKED == 0 {
            places.push((false, data));
            continue;
        }
        let (text, behind) = std::mem::take(&mut rest).split_at_mut(entry.text_len);
        rest = behind;
        packed::unpack_into(payload.get(data).ok_or(CUT)?, text).map_err(|error| match error {
            UnpackError::Damaged => FrameError::Damaged("packed snapshot"),
            UnpackError::NoMemory => FrameError::NoMemory,
        })?;
        places.push((true, unpacked_end..unpacked_end + entry.text_len));
        unpacked_end += entry.text_len;
    }
    let texts = texts.freeze();
    let mut entries = tables.entries;
    for (is_unpacked, place) in places {
        let index_len = Entry::read(&mut entries)?.index_len;
        let index = payload.get(indices..indices + index_len).ok_or(CUT)?;
        indices += index_len;
        let from = if is_unpacked { &texts } else { payload };
        if place.end > from.len() {
            return Err(CUT);
        }
        let snapshot =
            Snapshot::from_index(from.slice(place), index).map_err(|error| match error {
                SnapshotError::Damaged => FrameError::Damaged("index of a snapshot"),
                SnapshotError::NoMemory(_) => FrameError::NoMemory,
            })?;
        snapshots.push(snapshot);
    }
    Ok(snapshots)
}

fn requests(
    tables: &Tables<'_>,
    snapshot_count: usize,
    payload: &Bytes,
    small: &mut Small,
    large: &mut Large<impl Iterator<Item = usize>>,
) -> Result<Vec<ReceivedRequest>, FrameError> {
    let mut requests: Vec<ReceivedRequest> = Vec::new();
    requests.try_reserve_exact(tables.request_count)?;
    let mut records = tables.records;
    for index in 0..tables.request_count {
        let record = Record::read(&mut records)?;
        let plan_bytes = payload.get(small.next(record.plan_len)?).ok_or(CUT)?;
        requests.push(ReceivedRequest {
            id: record.id,
            body: 0..0,
            snapshot: match record.snapshot {
                NONE => None,
                number if (number as usize) < snapshot_count => Some(number),
                _ => return Err(FrameError::Damaged("number of a snapshot")),
            },
            parent: parent(record.parent, index)?,
            plan: plan(&record, plan_bytes)?,
        });
    }
    // Bodies lie behind all plans.
    let mut records = tables.records;
    for request in &mut requests {
        let record = Record::read(&mut records)?;
        request.body = if record.flags & FLAG_LARGE != 0 {
            large.next(record.body_len)?
        } else {
            small.next(record.body_len)?
        };
        if request.body.end > payload.len() {
            return Err(CUT);
        }
    }
    Ok(requests)
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

fn parent(parent: u32, index: usize) -> Result<Option<u32>, FrameError> {
    match parent {
        NONE => Ok(None),
        parent if (parent as usize) < index => Ok(Some(parent)),
        _ => Err(FrameError::Damaged("number of a parent")),
    }
}

fn plan(record: &Record, bytes: &[u8]) -> Result<Option<Box<Plan>>, FrameError> {
    if record.flags & FLAG_PLAN == 0 {
        return Ok(None);
    }
    Plan::from_bytes(bytes).map(|plan| Some(Box::new(plan))).map_err(|error| match error {
        PlanBytesError::NoMemory => FrameError::NoMemory,
        _ => FrameError::Damaged("plan"),
    })
}
