//! The source's side: serves requests for names, out of the owner's blocks, with no request object
//! of its own.
//!
//! Each request runs: validate, pin, answer, send run by run, unpin. A run of blocks that a device has
//! is first gathered into staging, and sent from there when that is done. Blocks are unpinned when their
//! [`Serving`] is dropped, which happens once on every path, and never while the transport or a device
//! still reads them: not before the last send has ended, and the transport is dropped before this is.
//!
//! Guards: a request that is not for this worker is refused before any name is looked up; peers,
//! requests and bytes in flight are bounded, and over the bounds the answer is *busy*; a destination
//! that does not receive is cut off when its hold time is over. The same events lead to the same
//! actions in the same order: no table here is walked in a random one.
//! Never does: let one peer's message or failure touch another peer's request.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::block_owner::{BlockOwner, Pinned};
use super::block_part::{piece_bytes, BlockPart, BlockShape};
use super::device::plan::Direction;
use super::device::pool::{PinnedStaging, RunningCopy};
use super::protocol::{
    block_checksum, Answer, DataHeader, FetchRequest, Message, RequestKey, Unreadable,
    MAX_BLOCKS_PER_RUN,
};
use super::reason::RefuseReason;
use super::staging::Staging;
use super::state::Incarnation;
use super::transport::{PeerId, Segment, Ticket, Transport};
use super::wire::WireError;
use crate::reuse::{Name, Policy, TextTail};
use crate::telemetry::nvtx::{self, Step};
use crate::telemetry::{log, Metrics};

/// What makes a worker's rank itself, to its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This start.
    pub incarnation: Incarnation,
    /// What its names are about.
    pub namespace: Vec<u8>,
    /// [`super::layout::digest`] of its layout.
    pub layout_digest: u64,
    /// How its blocks can be cut; `None` when they are only sent whole.
    pub shape: Option<BlockShape>,
}

/// What a source allows at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLimits {
    /// Destinations that are connected.
    pub peers: usize,
    /// Requests being served; one destination gets at most a quarter of them.
    pub requests: usize,
    /// Bytes handed to the transport and not yet taken. A destination that has none of them may
    /// always be sent one run.
    pub bytes_in_flight: usize,
    /// Longest time that blocks are held for one request.
    pub hold_time_ns: u64,
    /// A run is as many blocks as fit into this, and at least one.
    pub run_bytes: usize,
}

impl Default for SourceLimits {
    fn default() -> Self {
        Self {
            peers: 64,
            requests: 256,
            bytes_in_flight: 64 << 20,
            hold_time_ns: 60_000_000_000,
            run_bytes: 1 << 20,
        }
    }
}

/// Runs of one request that are on their way at a time.
const RUNS_IN_FLIGHT: usize = 8;
/// Peers beyond the limit whose connection is left open, for the answer to reach them.
const MAX_TURNED_AWAY: usize = 16;

/// Serves the blocks of one rank.
pub struct Source {
    identity: Arc<Identity>,
    owner: Arc<dyn BlockOwner>,
    limits: SourceLimits,
    metrics: Arc<Metrics>,
    /// Runs on their way out of a device, oldest first. Before `serving`: dropping them waits for the
    /// device, and their blocks are pinned until then.
    gathers: VecDeque<Gather>,
    peers: BTreeMap<PeerId, PeerRecord>,
    serving: BTreeMap<(PeerId, RequestKey), Serving>,
    sends: BTreeMap<Ticket, Send>,
    bytes_in_flight: usize,
    /// Peers that were told *busy*; kept for a while, so that the answer reaches them.
    turned_away: VecDeque<PeerId>,
    /// Peers that this side cut off and the rest of the transceiver has yet to hear of.
    disconnected: Vec<PeerId>,
}

struct PeerRecord {
    last_heard_ns: u64,
    requests: usize,
    runs_in_flight: usize,
}

/// One accepted request. Dropping it unpins its blocks.
struct Serving {
    /// Held for its effect: the blocks stay what they are.
    _pinned: Pinned,
    ids: Vec<i32>,
    /// What each of them is.
    names: Vec<Name>,
    /// Where the wanted part of a block lies; `None` for whole blocks.
    pieces: Option<Vec<Range<usize>>>,
    next_block: usize,
    runs_in_flight: usize,
    deadline_ns: u64,
    is_stopped: bool,
}

impl Serving {
    fn is_over(&self) -> bool {
        self.runs_in_flight == 0 && (self.is_stopped || self.next_block == self.ids.len())
    }
}

struct Send {
    peer: PeerId,
    key: RequestKey,
    bytes: usize,
    /// What is sent, where it is not the blocks themselves: read until the send has ended.
    _parts: Staging,
}

/// A run that a device copies into staging. It counts as in flight, as its send will.
struct Gather {
    peer: PeerId,
    key: RequestKey,
    blocks: Range<usize>,
    bytes: usize,
    copy: RunningCopy,
}

impl Source {
    /// A source of the owner's blocks.
    pub fn new(
        identity: Arc<Identity>,
        owner: Arc<dyn BlockOwner>,
        limits: SourceLimits,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            identity,
            owner,
            limits,
            metrics,
            gathers: VecDeque::new(),
            peers: BTreeMap::new(),
            serving: BTreeMap::new(),
            sends: BTreeMap::new(),
            bytes_in_flight: 0,
            turned_away: VecDeque::new(),
            disconnected: Vec::new(),
        }
    }

    /// Requests being served.
    pub fn requests_in_flight(&self) -> usize {
        self.serving.len()
    }

    /// Destinations known.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Peers that the source cut off since the last question.
    pub fn take_disconnected(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.disconnected)
    }

    /// A destination asks.
    pub fn fetch(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        peer: PeerId,
        request: FetchRequest,
    ) {
        let key = request.key;
        if !self.admit_peer(now_ns, transport, peer) {
            self.refuse(transport, peer, key, RefuseReason::Busy);
            self.turn_away(transport, peer);
            return;
        }
        let pieces = match self.validate(peer, &request) {
            Ok(pieces) => pieces,
            Err(reason) => {
                self.refuse(transport, peer, key, reason);
                return;
            }
        };
        let (skipped, step) = (request.skipped_blocks as usize, request.step as usize);
        let wanted = request.wanted_of(request.names.len());
        let bytes = wanted * self.owner.block_bytes();
        let range = nvtx::Range::push_of_attempt(Step::Pin, key.sequence, bytes);
        let pinned = self.owner.pin(&request.names, request.tail.as_ref(), request.policy);
        drop(range);
        let Ok(held) = pinned else {
            // No memory for the answer: later perhaps.
            self.refuse(transport, peer, key, RefuseReason::Busy);
            return;
        };
        let Some(pinned) = held.pinned else {
            let present = request.wanted_of(held.present).min(wanted - 1);
            self.answer_missing(transport, peer, key, present);
            return;
        };
        // The owner may know blocks that are not in this memory: they cannot be sent.
        let blocks = pinned.blocks.iter().zip(&request.names).skip(skipped).step_by(step);
        let blocks = blocks.take_while(|(block, _)| self.owner.contains(block.id));
        let (mut ids, mut names, mut block_hashes) = (Vec::new(), Vec::new(), Vec::new());
        for (block, name) in blocks {
            ids.push(block.id);
            names.push(*name);
            block_hashes.push(block.block_hash);
        }
        let is_enough = match request.policy {
            Policy::Strict => ids.len() == wanted,
            Policy::BestEffort => !ids.is_empty(),
        };
        if !is_enough {
            self.answer_missing(transport, peer, key, ids.len());
            return;
        }
        let accepted = Message::Answer(key, Answer::Accepted { block_hashes });
        if transport.send_message(peer, accepted.encode()).is_err() {
            // The peer is gone, which its own event says; `pinned` unpins here.
            return;
        }
        self.metrics.source_requests_served.add(0, 1);
        let hold_ns = request.hold_time_ns.min(self.limits.hold_time_ns);
        let serving = Serving {
            _pinned: pinned,
            ids,
            names,
            pieces,
            next_block: 0,
            runs_in_flight: 0,
            deadline_ns: now_ns.saturating_add(hold_ns),
            is_stopped: false,
        };
        self.serving.insert((peer, key), serving);
        if let Some(record) = self.peers.get_mut(&peer) {
            record.requests += 1;
        }
    }

    /// A destination wants no more.
    pub fn cancel(&mut self, now_ns: u64, peer: PeerId, key: RequestKey) {
        if let Some(record) = self.peers.get_mut(&peer) {
            record.last_heard_ns = now_ns;
        }
        if let Some(serving) = self.serving.get_mut(&(peer, key)) {
            serving.is_stopped = true;
        }
        self.forget_if_over(peer, key);
    }

    /// A request came that cannot be read.
    pub fn refuse_unreadable(
        &mut self,
        transport: &mut dyn Transport,
        peer: PeerId,
        unreadable: Unreadable,
    ) {
        if let Some(key) = unreadable.request {
            let reason = match unreadable.error {
                WireError::OtherMajor { .. } => RefuseReason::Version,
                WireError::NoMemory => RefuseReason::Busy,
                _ => RefuseReason::BadRequest,
            };
            self.refuse(transport, peer, key, reason);
        }
    }

    /// A send ended, however it ended. Sends of messages are not waited for.
    pub fn sent(&mut self, ticket: Ticket, is_ok: bool) {
        let Some(send) = self.sends.remove(&ticket) else { return };
        self.run_ended(send.peer, send.key, send.bytes, is_ok);
    }

    /// A run is in flight no more.
    fn run_ended(&mut self, peer: PeerId, key: RequestKey, bytes: usize, is_ok: bool) {
        self.bytes_in_flight -= bytes;
        if let Some(record) = self.peers.get_mut(&peer) {
            // Saturating: the record may be younger than the run.
            record.runs_in_flight = record.runs_in_flight.saturating_sub(1);
        }
        if let Some(serving) = self.serving.get_mut(&(peer, key)) {
            serving.runs_in_flight -= 1;
            serving.is_stopped |= !is_ok;
        }
        self.forget_if_over(peer, key);
    }

    /// Whether a device copies something that [`Source::pump`] will send.
    pub fn is_gathering(&self) -> bool {
        !self.gathers.is_empty()
    }

    /// A destination is gone: its requests end as soon as their sends have.
    pub fn peer_gone(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.turned_away.retain(|other| *other != peer);
        let keys: Vec<RequestKey> =
            self.serving.keys().filter(|(owner, _)| *owner == peer).map(|(_, key)| *key).collect();
        for key in keys {
            if let Some(serving) = self.serving.get_mut(&(peer, key)) {
                serving.is_stopped = true;
            }
            self.forget_if_over(peer, key);
        }
    }

    /// When [`Source::tick`] has something to do.
    pub fn deadline_ns(&self) -> u64 {
        self.serving.values().map(|serving| serving.deadline_ns).min().unwrap_or(u64::MAX)
    }

    /// Ends requests that were held long enough: a destination that still has not received cuts
    /// itself off by that.
    pub fn tick(&mut self, now_ns: u64, transport: &mut dyn Transport) {
        let mut late: Vec<PeerId> = self
            .serving
            .iter()
            .filter(|(_, serving)| serving.deadline_ns <= now_ns)
            .map(|((peer, _), _)| *peer)
            .collect();
        late.sort_unstable();
        late.dedup();
        for peer in late {
            self.disconnect(transport, peer);
            // The sends' events follow; asking again before they came would change nothing.
            for ((owner, _), serving) in &mut self.serving {
                if *owner == peer {
                    serving.deadline_ns = u64::MAX;
                }
            }
        }
    }

    /// Sends what may be sent now: one run of each request in turn, as far as the bounds allow.
    /// Returns whether more could be sent at once.
    pub fn pump(&mut self, transport: &mut dyn Transport) -> bool {
        self.send_gathered(transport);
        let mut has_more = false;
        let keys: Vec<(PeerId, RequestKey)> = self.serving.keys().copied().collect();
        for (peer, key) in keys {
            has_more |= self.send_run(transport, peer, key);
            self.forget_if_over(peer, key);
        }
        has_more
    }

    fn send_run(&mut self, transport: &mut dyn Transport, peer: PeerId, key: RequestKey) -> bool {
        let Some(serving) = self.serving.get_mut(&(peer, key)) else { return false };
        let left = &serving.ids[serving.next_block..];
        if serving.is_stopped || left.is_empty() || serving.runs_in_flight == RUNS_IN_FLIGHT {
            return false;
        }
        let block_bytes = serving.pieces.as_deref().map_or(self.owner.block_bytes(), piece_bytes);
        let run_blocks =
            (self.limits.run_bytes / block_bytes).clamp(1, MAX_BLOCKS_PER_RUN).min(left.len());
        let bytes = run_blocks * block_bytes;
        let Some(record) = self.peers.get_mut(&peer) else { return false };
        // Destinations that do not receive cannot starve the others.
        let fits = self.bytes_in_flight + bytes <= self.limits.bytes_in_flight;
        if !fits && record.runs_in_flight > 0 {
            return false;
        }
        let run = &left[..run_blocks];
        let names = &serving.names[serving.next_block..][..run_blocks];
        if let Some(pool) = self.owner.device() {
            let begin = |staging| {
                pool.begin(Direction::Gather, run, serving.pieces.as_deref(), staging).ok()
            };
            let Some(copy) = pool.staging(bytes).and_then(begin) else {
                serving.is_stopped = true;
                // So that the destination need not wait for what will not come.
                self.refuse(transport, peer, key, RefuseReason::Busy);
                return false;
            };
            let blocks = serving.next_block..serving.next_block + run_blocks;
            serving.next_block += run_blocks;
            serving.runs_in_flight += 1;
            record.runs_in_flight += 1;
            self.bytes_in_flight += bytes;
            self.gathers.push_back(Gather { peer, key, blocks, bytes, copy });
            return true;
        }
        let mut parts = Vec::new();
        let ready = match &serving.pieces {
            None => ready_blocks(&*self.owner, transport, peer, run, names),
            Some(pieces) => cut(&*self.owner, run, names, pieces, bytes, &mut parts),
        };
        let Some((ready, checksums)) = ready else {
            // Checked when the request was accepted; without memory there is nothing to send.
            serving.is_stopped = true;
            return false;
        };
        let header = DataHeader { key, first_block: serving.next_block as u32, checksums };
        let sent = match ready {
            Ready::Room => transport.send_room(peer, header.encode()),
            Ready::Memory(segments) => transport.send_data(peer, header.encode(), segments),
        };
        match sent {
            Ok(ticket) => {
                serving.next_block += run_blocks;
                serving.runs_in_flight += 1;
                record.runs_in_flight += 1;
                self.bytes_in_flight += bytes;
                let parts = Staging::Plain(parts);
                self.sends.insert(ticket, Send { peer, key, bytes, _parts: parts });
                true
            }
            Err(_) => {
                serving.is_stopped = true;
                false
            }
        }
    }

    /// Sends what a device has gathered since the last time, in the order in which it was begun.
    fn send_gathered(&mut self, transport: &mut dyn Transport) {
        while let Some(gather) = self.gathers.front_mut() {
            let Some(result) = gather.copy.poll() else { return };
            let Some(gather) = self.gathers.pop_front() else { return };
            let Gather { peer, key, blocks, bytes, .. } = gather;
            let is_wanted = |serving: &&Serving| !serving.is_stopped;
            let serving = self.serving.get(&(peer, key)).filter(is_wanted);
            let sent = match (result, serving) {
                (Ok(staging), Some(serving)) => {
                    send_staged(transport, peer, key, serving, &blocks, staging)
                }
                (Err(_), Some(_)) => {
                    self.refuse(transport, peer, key, RefuseReason::Busy);
                    None
                }
                (_, None) => None,
            };
            match sent {
                Some((ticket, staging)) => {
                    let send = Send { peer, key, bytes, _parts: Staging::Pinned(staging) };
                    self.sends.insert(ticket, send);
                }
                None => self.run_ended(peer, key, bytes, false),
            }
        }
    }

    /// Whether the request may be served, and where the wanted part of a block lies.
    fn validate(
        &self,
        peer: PeerId,
        request: &FetchRequest,
    ) -> Result<Option<Vec<Range<usize>>>, RefuseReason> {
        let identity = &self.identity;
        if request.source != identity.incarnation {
            return Err(RefuseReason::Incarnation);
        }
        if request.namespace != identity.namespace {
            return Err(RefuseReason::Namespace);
        }
        if request.layout_digest != identity.layout_digest {
            return Err(RefuseReason::Layout);
        }
        let names_something = (request.skipped_blocks as usize) < request.names.len();
        if !names_something || self.serving.contains_key(&(peer, request.key)) {
            return Err(RefuseReason::BadRequest);
        }
        let is_of_last = |tail: &TextTail| {
            let last = request.names.last();
            last.is_some_and(|name| tail.is_of(name, self.owner.tokens_per_block()))
        };
        if !request.tail.as_ref().is_none_or(is_of_last) {
            return Err(RefuseReason::BadRequest);
        }
        let share = (self.limits.requests / 4).max(1);
        let has_share = self.peers.get(&peer).is_some_and(|record| record.requests >= share);
        if has_share || self.serving.len() >= self.limits.requests {
            return Err(RefuseReason::Busy);
        }
        match &request.part {
            BlockPart::Whole => Ok(None),
            BlockPart::Heads { first_layer, heads } => {
                let shape = identity.shape.as_ref().ok_or(RefuseReason::Layout)?;
                let pieces = shape.pieces(*first_layer, heads);
                pieces.map(Some).ok_or(RefuseReason::BadRequest)
            }
        }
    }

    /// Whether the peer may ask at all; the longest idle one makes room for a new one.
    fn admit_peer(&mut self, now_ns: u64, transport: &mut dyn Transport, peer: PeerId) -> bool {
        if let Some(record) = self.peers.get_mut(&peer) {
            record.last_heard_ns = now_ns;
            return true;
        }
        if self.peers.len() >= self.limits.peers {
            let idle = self.peers.iter().filter(|(_, record)| record.requests == 0);
            let Some((longest_idle, _)) = idle.min_by_key(|(_, record)| record.last_heard_ns)
            else {
                return false;
            };
            let longest_idle = *longest_idle;
            self.disconnect(transport, longest_idle);
        }
        self.peers
            .insert(peer, PeerRecord { last_heard_ns: now_ns, requests: 0, runs_in_flight: 0 });
        true
    }

    fn disconnect(&mut self, transport: &mut dyn Transport, peer: PeerId) {
        transport.disconnect(peer);
        self.peer_gone(peer);
        self.disconnected.push(peer);
    }

    fn turn_away(&mut self, transport: &mut dyn Transport, peer: PeerId) {
        if !self.turned_away.contains(&peer) {
            self.turned_away.push_back(peer);
        }
        if self.turned_away.len() > MAX_TURNED_AWAY {
            if let Some(oldest) = self.turned_away.pop_front() {
                self.disconnect(transport, oldest);
            }
        }
    }

    fn refuse(
        &mut self,
        transport: &mut dyn Transport,
        peer: PeerId,
        key: RequestKey,
        reason: RefuseReason,
    ) {
        self.metrics.source_requests_refused.add(reason.index(), 1);
        let word = log::Value::Word(Metrics::SOURCE_REFUSALS[reason.index()]);
        self.metrics.log.write(log::Event::SourceRequestRefused, &[("reason", word)]);
        let refused = Message::Answer(key, Answer::Refused(reason));
        // A peer that is gone needs no answer.
        let _ = transport.send_message(peer, refused.encode());
    }

    fn answer_missing(
        &mut self,
        transport: &mut dyn Transport,
        peer: PeerId,
        key: RequestKey,
        present: usize,
    ) {
        self.metrics.source_requests_missed.add(0, 1);
        let missing = Message::Answer(key, Answer::Missing { present: present as u32 });
        // As above.
        let _ = transport.send_message(peer, missing.encode());
    }

    fn forget_if_over(&mut self, peer: PeerId, key: RequestKey) {
        if self.serving.get(&(peer, key)).is_some_and(Serving::is_over) {
            self.serving.remove(&(peer, key));
            if let Some(record) = self.peers.get_mut(&peer) {
                // Saturating: the record may be younger than the request.
                record.requests = record.requests.saturating_sub(1);
            }
        }
    }
}

/// Where the bytes of a run are, when they are ready to be sent.
enum Ready {
    /// In the room that the transport gave for it.
    Room,
    Memory(Vec<Segment>),
}

/// Whole pinned blocks, with a checksum of each: in one pass with the copy, where the transport wants one.
fn ready_blocks(
    owner: &dyn BlockOwner,
    transport: &mut dyn Transport,
    peer: PeerId,
    ids: &[i32],
    names: &[Name],
) -> Option<(Ready, Vec<u64>)> {
    let segments = owner.segments(ids)?;
    let blocks = ids.iter().zip(names);
    let Some(room) = transport.room(peer, &segments) else {
        let checksums = blocks.map(|(id, name)| owner.checksum(*id, name)).collect::<Option<_>>();
        return Some((Ready::Memory(segments), checksums?));
    };
    let targets = room.chunks_exact_mut(owner.block_bytes());
    let copied = blocks.zip(targets).map(|((id, name), target)| owner.copy_out(*id, name, target));
    let checksums = copied.collect::<Option<_>>();
    Some((Ready::Room, checksums?))
}

/// Copies the wanted parts of pinned blocks into `parts`: what is sent, and a checksum of each.
fn cut(
    owner: &dyn BlockOwner,
    ids: &[i32],
    names: &[Name],
    pieces: &[Range<usize>],
    bytes: usize,
    parts: &mut Vec<u8>,
) -> Option<(Ready, Vec<u64>)> {
    parts.try_reserve_exact(bytes).ok()?;
    if !ids.iter().all(|id| owner.gather(*id, pieces, parts)) {
        return None;
    }
    let each = parts.chunks_exact(piece_bytes(pieces)).zip(names);
    let checksums = each.map(|(part, name)| block_checksum(name, part)).collect();
    let segments = vec![Segment { data: parts.as_mut_ptr(), len: parts.len() }];
    Some((Ready::Memory(segments), checksums))
}

/// Sends a run out of staging, with a checksum of each part; `None` when it cannot be sent.
fn send_staged(
    transport: &mut dyn Transport,
    peer: PeerId,
    key: RequestKey,
    serving: &Serving,
    blocks: &Range<usize>,
    mut staging: PinnedStaging,
) -> Option<(Ticket, PinnedStaging)> {
    let names = &serving.names[blocks.clone()];
    let parts = staging.bytes().chunks_exact(staging.bytes().len() / names.len());
    let checksums = parts.zip(names).map(|(part, name)| block_checksum(name, part)).collect();
    let header = DataHeader { key, first_block: blocks.start as u32, checksums };
    let sent = transport.send_data(peer, header.encode(), vec![staging.segment()]);
    sent.ok().map(|ticket| (ticket, staging))
}
