//! The destination's side: carries out what the prefetches' state machines ask for.
//!
//! Blocks arrive in memory of the library (*staging*), are compared with their checksums, and only
//! then copied into the blocks that the host lent. No peer ever learns an address of this side. Into
//! blocks that a device has, the device copies them: they count as moved when it is done.
//!
//! Guards: data is let in only for an attempt that waits for it, from the peer that it asked, in
//! order, and at the exact size; staging is bounded; what fails ends one attempt, never the thread. The
//! same events lead to the same actions in the same order: no table here is walked in a random one.
//! Never does: decide anything about an attempt's life. [`super::prefetch`] does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::RwLock;

use super::attempt::{Attempt, Origin, Step as AttemptStep};
use super::block_owner::BlockOwner;
use super::copying::BULK_BYTES;
use super::device::plan::Direction;
use super::device::pool::{PinnedStaging, RunningCopy};
use super::layout::{self, CacheLayout, ParallelLayout};
use super::prefetch::{Action, Event};
use super::protocol::{block_checksum, Answer, DataHeader, FetchRequest, Message, RequestKey};
use super::reason::{FailReason, RefuseReason};
use super::share::{shares, RankOf, SourceWorker};
use super::source::Identity;
use super::sources::{gives_any, Agreed, Source, Sources};
use super::staging::Staging;
use super::state::{RankAddress, State};
use super::state_source::StateResult;
use super::transport::{DataId, PeerId, Ticket, Transport, TransportError};
use crate::plan::{AllowList, Endpoint};
use crate::reuse::Name;
use crate::telemetry::nvtx::{Range, Step};

/// Staging that is kept for the next runs. A source says how long its runs are: what is longer than
/// sources of this library send is given back.
const MAX_SPARE: usize = 8;
const MAX_SPARE_BYTES: usize = 8 << 20;

/// What a destination allows itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationLimits {
    /// Sources that are connected. As many connections again may be ending.
    pub connections: usize,
    /// Bytes received and not yet copied into the host's blocks.
    pub staging_bytes: usize,
}

impl Default for DestinationLimits {
    fn default() -> Self {
        Self { connections: 64, staging_bytes: 64 << 20 }
    }
}

/// Fetches blocks for one rank.
pub struct Destination {
    identity: Arc<Identity>,
    cache: CacheLayout,
    parallel: ParallelLayout,
    rank: u32,
    owner: Arc<dyn BlockOwner>,
    limits: DestinationLimits,
    allow_list: Arc<RwLock<AllowList>>,
    running: BTreeMap<u64, Running>,
    /// Attempts whose delivered blocks are on a lease, by the attempt's number.
    leased: BTreeMap<u64, Arc<Attempt>>,
    connections: BTreeMap<Vec<u8>, Connection>,
    /// Connections over which something came too late, with their addresses: nothing new is asked over
    /// them, and they are closed when the last attempt that asked over them needs them no more. One for
    /// an address, and as many as there may be others, so that who is always late leaves room.
    retired: BTreeMap<PeerId, Vec<u8>>,
    receives: BTreeMap<Ticket, Receive>,
    /// Announced runs that wait for staging.
    waiting: VecDeque<Run>,
    /// Verified runs on their way into a device, oldest first.
    scatters: VecDeque<Scatter>,
    staging_bytes: usize,
    spare: Vec<Vec<u8>>,
    ended_count: u64,
    stale_endpoints: Vec<Endpoint>,
    disconnected: Vec<PeerId>,
}

struct Running {
    attempt: Arc<Attempt>,
    sources: Option<Sources>,
    /// [`layout::digest`] of the source.
    layout_digest: u64,
}

impl Running {
    /// Whom it asks.
    fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.sources.iter().flat_map(|sources| sources.ranks().iter().map(|rank| rank.peer))
    }

    fn asks(&self, peer: PeerId) -> bool {
        self.peers().any(|asked| asked == peer)
    }
}

struct Connection {
    peer: PeerId,
    last_used_ns: u64,
}

/// An announced run that its attempt let in.
struct Run {
    sequence: u64,
    peer: PeerId,
    data: DataId,
    len: usize,
    header: DataHeader,
}

struct Receive {
    run: Run,
    staging: Staging,
}

/// A run that a device copies into the host's blocks.
struct Scatter {
    run: Run,
    copy: RunningCopy,
}

impl Run {
    fn blocks(&self) -> u32 {
        self.header.checksums.len() as u32
    }
}

impl Destination {
    /// A destination that writes to those of the owner's blocks that its attempts were lent.
    pub fn new(
        identity: Arc<Identity>,
        cache: CacheLayout,
        parallel: ParallelLayout,
        rank: u32,
        owner: Arc<dyn BlockOwner>,
        limits: DestinationLimits,
        allow_list: Arc<RwLock<AllowList>>,
    ) -> Self {
        Self {
            identity,
            cache,
            parallel,
            rank,
            owner,
            limits,
            allow_list,
            running: BTreeMap::new(),
            leased: BTreeMap::new(),
            connections: BTreeMap::new(),
            retired: BTreeMap::new(),
            receives: BTreeMap::new(),
            waiting: VecDeque::new(),
            scatters: VecDeque::new(),
            staging_bytes: 0,
            spare: Vec::new(),
            ended_count: 0,
            stale_endpoints: Vec::new(),
            disconnected: Vec::new(),
        }
    }

    /// Sources connected to, for the status.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        let current = self.connections.values().map(|connection| connection.peer);
        current.chain(self.retired.keys().copied())
    }

    /// Announced runs that wait for staging.
    pub fn runs_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes received and not yet copied into the host's blocks.
    pub fn staging_bytes(&self) -> usize {
        self.staging_bytes
    }

    /// Attempts that have ended, ever.
    pub fn ended_count(&self) -> u64 {
        self.ended_count
    }

    /// Endpoints whose state turned out to be stale since the last question.
    pub fn take_stale_endpoints(&mut self) -> Vec<Endpoint> {
        std::mem::take(&mut self.stale_endpoints)
    }

    /// Peers that the destination cut off since the last question.
    pub fn take_disconnected(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.disconnected)
    }

    /// Takes an attempt in, whose source state is being fetched.
    pub fn begin(&mut self, attempt: Arc<Attempt>) {
        self.running
            .insert(attempt.order.sequence, Running { attempt, sources: None, layout_digest: 0 });
    }

    /// The host wants an attempt no more.
    pub fn cancel(&mut self, now_ns: u64, transport: &mut dyn Transport, sequence: u64) {
        self.step(now_ns, transport, sequence, Event::Cancel);
    }

    /// The source's state came, or will not.
    pub fn metadata(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        sequence: u64,
        state: StateResult,
    ) {
        let waiting = self.running.get(&sequence).filter(|running| running.sources.is_none());
        let Some(attempt) = waiting.map(|running| Arc::clone(&running.attempt)) else { return };
        let chosen = state.and_then(|state| {
            let sources = self.choose(now_ns, transport, &state, &attempt)?;
            Ok((sources, layout::digest(&state.cache, &state.parallel)))
        });
        let event = match chosen {
            Ok((sources, layout_digest)) => {
                if let Some(running) = self.running.get_mut(&sequence) {
                    running.sources = Some(sources);
                    running.layout_digest = layout_digest;
                }
                Event::MetadataReady
            }
            Err(reason) => Event::Failed(reason),
        };
        self.step(now_ns, transport, sequence, event);
    }

    /// A source answered.
    pub fn answered(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        peer: PeerId,
        key: RequestKey,
        answer: Answer,
    ) {
        if !self.is_asked(peer, key) {
            return;
        }
        let Some(running) = self.running.get_mut(&key.sequence) else { return };
        let Some(sources) = &mut running.sources else { return };
        let agreed = match answer {
            Answer::Accepted { block_hashes } => {
                // A longer block that begins with a short last one has another hash.
                let order = &running.attempt.order;
                let own = &order.hashes[..order.hashes.len() - usize::from(order.tail.is_some())];
                let foreign = sources.foreign_hashes(peer, own, &block_hashes);
                running.attempt.note_foreign_hashes(foreign as u32);
                sources.accepted(peer, block_hashes.len())
            }
            Answer::Missing { present } => sources.missing(peer, present as usize),
            Answer::Refused(reason) => {
                if reason == RefuseReason::Incarnation {
                    self.note_stale(key.sequence);
                }
                let refused = Event::Failed(reason.as_failure());
                self.step(now_ns, transport, key.sequence, refused);
                return;
            }
        };
        let event = match agreed {
            Agreed::NotYet => return,
            Agreed::Accepted { present } => Event::Accepted { present },
            Agreed::Missing { present } => Event::Missing { present },
            Agreed::Broken => Event::Failed(FailReason::Protocol),
        };
        self.step(now_ns, transport, key.sequence, event);
        self.tell_whole(now_ns, transport, key.sequence);
    }

    /// Parts that came before all had answered may be all that was missing.
    fn tell_whole(&mut self, now_ns: u64, transport: &mut dyn Transport, sequence: u64) {
        let sources = self.running.get_mut(&sequence).and_then(|running| running.sources.as_mut());
        let blocks = sources.map_or(0, Sources::take_whole);
        if blocks > 0 {
            self.step(now_ns, transport, sequence, Event::Committed { blocks });
        }
    }

    /// Data is announced. `Err` when the peer broke the protocol and should be cut off.
    pub fn announced(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        peer: PeerId,
        header: &[u8],
        len: usize,
        data: DataId,
    ) -> Result<(), super::WireError> {
        let header = match DataHeader::decode(header) {
            Ok(header) => header,
            Err(error) => {
                transport.discard_data(data);
                return Err(error);
            }
        };
        if !self.is_asked(peer, header.key) {
            // The tail of an attempt that is over.
            transport.discard_data(data);
            return Ok(());
        }
        let sequence = header.key.sequence;
        let first_block = header.first_block;
        let run = Run { sequence, peer, data, len, header };
        let blocks = run.blocks();
        let sources = self.running.get_mut(&sequence).and_then(|running| running.sources.as_mut());
        let Some(sources) = sources else { return Ok(()) };
        let part_bytes = sources.of(peer).map_or(0, |rank| rank.part_bytes);
        let is_only_source = sources.ranks().len() == 1;
        if (blocks as usize).checked_mul(part_bytes) != Some(len)
            || !sources.announced(peer, first_block, blocks)
        {
            transport.discard_data(data);
            self.step(now_ns, transport, sequence, Event::Failed(FailReason::Protocol));
            return Ok(());
        }
        let announced = match is_only_source {
            true => Event::Announced { first_block, blocks },
            false => Event::PartAnnounced { blocks },
        };
        if self.step(now_ns, transport, sequence, announced) == Some(Action::Receive) {
            self.waiting.push_back(run);
            self.let_in(now_ns, transport);
        } else {
            transport.discard_data(data);
        }
        Ok(())
    }

    /// A receive ended, however it ended.
    pub fn received(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        ticket: Ticket,
        result: Result<(), TransportError>,
    ) {
        let Some(receive) = self.receives.remove(&ticket) else { return };
        let verdict = match result {
            Ok(()) => {
                let Receive { run, staging } = &receive;
                let _range = Range::push_of_attempt(Step::Verify, run.sequence, run.len);
                self.compare(run, |name, place| {
                    staging.bytes().get(place).map(|part| block_checksum(name, part))
                })
            }
            Err(_) => Err(FailReason::PeerGone),
        };
        self.run_ended(now_ns, transport, receive, verdict);
        self.let_in(now_ns, transport);
    }

    /// A run is here and compared, or will not be: nothing of it is received any more.
    fn run_ended(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        receive: Receive,
        verdict: Result<(), FailReason>,
    ) {
        let run = &receive.run;
        let ended = Event::Received { blocks: run.blocks(), verdict };
        let is_for_us = self.step(now_ns, transport, run.sequence, ended) == Some(Action::Commit);
        match receive {
            Receive { run, staging: Staging::Pinned(staging) } if is_for_us => {
                self.begin_scatter(now_ns, transport, run, staging);
            }
            Receive { run, staging: Staging::Plain(staging) } => {
                if is_for_us {
                    let blocks = self.commit(&run, &staging);
                    self.step(now_ns, transport, run.sequence, Event::Committed { blocks });
                }
                self.staging_bytes -= run.len;
                if self.spare.len() < MAX_SPARE && staging.capacity() <= MAX_SPARE_BYTES {
                    self.spare.push(staging);
                }
            }
            Receive { run, .. } => self.staging_bytes -= run.len,
        }
    }

    /// Whether a device copies something, of which [`Destination::see_copied`] will tell.
    pub fn is_scattering(&self) -> bool {
        !self.scatters.is_empty()
    }

    /// Takes note of what a device has copied since the last time, in the order in which it was begun.
    pub fn see_copied(&mut self, now_ns: u64, transport: &mut dyn Transport) {
        while let Some(scatter) = self.scatters.front_mut() {
            let Some(result) = scatter.copy.poll() else { return };
            let Some(Scatter { run, .. }) = self.scatters.pop_front() else { return };
            self.scattered(now_ns, transport, run, result.is_ok());
        }
    }

    /// Has the device copy a verified run into the blocks that the host lent.
    fn begin_scatter(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        run: Run,
        staging: PinnedStaging,
    ) {
        match self.scatter(&run, staging) {
            Some(copy) => self.scatters.push_back(Scatter { run, copy }),
            None => self.scattered(now_ns, transport, run, false),
        }
    }

    fn scatter(&self, run: &Run, staging: PinnedStaging) -> Option<RunningCopy> {
        let running = self.running.get(&run.sequence)?;
        let rank = running.sources.as_ref()?.of(run.peer)?;
        let destination = &running.attempt.order.destination;
        let first = run.header.first_block as usize;
        let targets = (first..first + run.blocks() as usize).map(|index| rank.wanted_index(index));
        let targets: Option<Vec<i32>> =
            targets.map(|index| destination.get(index).copied()).collect();
        let pieces = rank.own_pieces.as_deref();
        self.owner.device()?.begin(Direction::Scatter, &targets?, pieces, staging).ok()
    }

    /// A device copied a run, or failed to: nothing of it is written any more.
    fn scattered(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        run: Run,
        is_in_place: bool,
    ) {
        let blocks = if is_in_place {
            self.moved(&run)
        } else {
            // Before the copy's end is told: what is not in its place must not be delivered.
            let failed = Event::Failed(FailReason::DeviceFailed);
            self.step(now_ns, transport, run.sequence, failed);
            0
        };
        self.step(now_ns, transport, run.sequence, Event::Committed { blocks });
        self.staging_bytes -= run.len;
        self.let_in(now_ns, transport);
    }

    /// A connection is gone.
    pub fn peer_gone(&mut self, now_ns: u64, transport: &mut dyn Transport, peer: PeerId) {
        self.connections.retain(|_, connection| connection.peer != peer);
        self.retired.remove(&peer);
        let asked: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, running)| running.asks(peer))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in asked {
            self.step(now_ns, transport, sequence, Event::Failed(FailReason::PeerGone));
        }
    }

    /// When [`Destination::tick`] has something to do.
    pub fn deadline_ns(&self) -> u64 {
        let running = self.running.values().map(|running| running.attempt.deadline_ns());
        let leased = self.leased.values().map(|attempt| attempt.deadline_ns());
        running.chain(leased).min().unwrap_or(u64::MAX)
    }

    /// Lets time pass.
    pub fn tick(&mut self, now_ns: u64, transport: &mut dyn Transport) {
        let due: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, running)| running.attempt.deadline_ns() <= now_ns)
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in due {
            self.step(now_ns, transport, sequence, Event::Tick);
        }
        self.leased.retain(|_, attempt| {
            attempt.poll(now_ns);
            !attempt.is_over()
        });
    }

    /// Ends everything. The transport is gone: nothing is in flight. Waits for what a device copies.
    pub fn shut_down(self, now_ns: u64, reason: FailReason) {
        drop(self.scatters);
        for running in self.running.into_values() {
            running.attempt.shut_down(now_ns, reason);
        }
    }

    /// Whether the attempt of that key waits for this peer.
    fn is_asked(&self, peer: PeerId, key: RequestKey) -> bool {
        key.destination == self.identity.incarnation
            && self.running.get(&key.sequence).is_some_and(|running| running.asks(peer))
    }

    /// Checks a source's state, and connects to the ranks that have parts of our blocks.
    fn choose(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        state: &State,
        attempt: &Attempt,
    ) -> Result<Sources, FailReason> {
        if state.namespace != self.identity.namespace {
            return Err(FailReason::NamespaceMismatch);
        }
        let order = &attempt.order;
        let block_bytes = self.owner.block_bytes();
        let own = RankOf {
            cache: &self.cache,
            parallel: &self.parallel,
            rank: self.rank,
            block_bytes: block_bytes as u64,
        };
        let worker = SourceWorker {
            cache: &state.cache,
            parallel: &state.parallel,
            attention_data_rank: order.source_attention_data_rank,
        };
        let bytes_of = |rank| state.rank(rank).map(|rank| rank.block_bytes);
        let shares = shares(own, worker, bytes_of).map_err(|_| FailReason::LayoutMismatch)?;
        for rank in &state.ranks {
            self.judge_host(transport, rank, &order.origin)?;
        }
        let mut ranks: Vec<Source> = Vec::new();
        for share in shares.into_iter().filter(|share| gives_any(share, order.wanted)) {
            let rank = state.rank(share.rank).ok_or(FailReason::MetadataFailed)?;
            let chosen: Vec<PeerId> = ranks.iter().map(|rank| rank.peer).collect();
            let peer = self.connect(now_ns, transport, rank, &chosen)?;
            ranks.extend(Source::new(share, order.wanted, block_bytes, peer, rank.incarnation));
        }
        Ok(Sources::new(ranks, order.wanted, order.policy))
    }

    /// A connection to a rank, the one that is there or another; those of `chosen` stay.
    fn connect(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        rank: &RankAddress,
        chosen: &[PeerId],
    ) -> Result<PeerId, FailReason> {
        if rank.transport != transport.name() {
            return Err(FailReason::Unsupported);
        }
        if let Some(connection) = self.connections.get_mut(&rank.address) {
            connection.last_used_ns = now_ns;
            return Ok(connection.peer);
        }
        if self.connections.len() >= self.limits.connections {
            self.close_idle_connection(transport, chosen)?;
        }
        let peer = transport.connect(&rank.address).map_err(|error| match error {
            TransportError::BadAddress(_) => FailReason::MetadataFailed,
            TransportError::Unavailable(_) => FailReason::Unsupported,
            TransportError::PeerGone(_) | TransportError::Cancelled => FailReason::PeerGone,
        })?;
        let connection = Connection { peer, last_used_ns: now_ns };
        self.connections.insert(rank.address.clone(), connection);
        Ok(peer)
    }

    /// Whether a state from there may name that rank's address: one that leads elsewhere spoils the
    /// whole state, whoever would be asked. A state that the host handed in
    /// is the host's to answer for.
    fn judge_host(
        &self,
        transport: &dyn Transport,
        rank: &RankAddress,
        origin: &Origin,
    ) -> Result<(), FailReason> {
        let Origin::Endpoint(endpoint) = origin else { return Ok(()) };
        // Addresses of another transport are nobody's to connect to.
        if rank.transport != transport.name() {
            return Ok(());
        }
        let Some(host) = transport.host(&rank.address) else { return Ok(()) };
        match self.allow_list.read().check(endpoint) {
            Ok(bounds) if bounds.allows(host) => Ok(()),
            _ => Err(FailReason::EndpointDenied),
        }
    }

    fn close_idle_connection(
        &mut self,
        transport: &mut dyn Transport,
        chosen: &[PeerId],
    ) -> Result<(), FailReason> {
        let asked = self.running.values().flat_map(Running::peers);
        let busy: BTreeSet<PeerId> = asked.chain(chosen.iter().copied()).collect();
        let idle = self.connections.values().filter(|connection| !busy.contains(&connection.peer));
        let longest_idle = idle.min_by_key(|connection| connection.last_used_ns);
        let peer = longest_idle.ok_or(FailReason::Limit)?.peer;
        transport.disconnect(peer);
        self.connections.retain(|_, connection| connection.peer != peer);
        self.disconnected.push(peer);
        Ok(())
    }

    /// Feeds an attempt's machine and does what it says. Returns what only the caller can do:
    /// `Receive`, `Discard` or `Commit`.
    fn step(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        sequence: u64,
        event: Event,
    ) -> Option<Action> {
        let attempt = Arc::clone(&self.running.get(&sequence)?.attempt);
        let AttemptStep { mut actions, has_ended } = attempt.handle(now_ns, event);
        self.ended_count += u64::from(has_ended);
        let for_caller = actions.extract_if(.., |action| {
            matches!(action, Action::Receive | Action::Discard | Action::Commit)
        });
        let for_caller = for_caller.last();
        for action in actions {
            self.act(now_ns, transport, sequence, &attempt, action);
        }
        if has_ended && attempt.needs_no_more() {
            self.call_off(transport, sequence);
        }
        if has_ended && attempt.has_lost_a_source() {
            self.note_stale(sequence);
        }
        if has_ended && attempt.has_timed_out() {
            self.retire(sequence);
        }
        if has_ended {
            self.forget_waiting(now_ns, transport, sequence);
        }
        if attempt.is_quiesced() && self.running.remove(&sequence).is_some() {
            self.close_retired(transport);
            if !attempt.is_over() {
                self.leased.insert(sequence, attempt);
            }
        }
        for_caller
    }

    /// Who let an attempt wait too long is asked anew over another connection: what the network has
    /// swallowed of this one, TCP may take long to send again although the peer is there. A peer that
    /// is only slow goes on with what others asked it over this one.
    fn retire(&mut self, sequence: u64) {
        let Some(running) = self.running.get(&sequence) else { return };
        let ranks = running.sources.iter().flat_map(Sources::ranks);
        let late: BTreeSet<PeerId> =
            ranks.filter(|rank| rank.is_pending()).map(|rank| rank.peer).collect();
        let (retired, limit) = (&mut self.retired, self.limits.connections);
        // One that is gone, or retired already, is not among them.
        self.connections.retain(|address, connection| {
            let is_kept = !late.contains(&connection.peer)
                || retired.len() >= limit
                || retired.values().any(|other| other == address);
            if !is_kept {
                retired.insert(connection.peer, address.clone());
            }
            is_kept
        });
    }

    /// Closes the retired connections over which nothing is under way any more.
    fn close_retired(&mut self, transport: &mut dyn Transport) {
        let asked: BTreeSet<PeerId> = self.running.values().flat_map(Running::peers).collect();
        let disconnected = &mut self.disconnected;
        self.retired.retain(|peer, _| {
            let is_asked = asked.contains(peer);
            if !is_asked {
                transport.disconnect(*peer);
                disconnected.push(*peer);
            }
            is_asked
        });
    }

    fn act(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        sequence: u64,
        attempt: &Attempt,
        action: Action,
    ) {
        let Some(running) = self.running.get(&sequence) else { return };
        let Some(sources) = &running.sources else { return };
        let peers: Vec<PeerId> = running.peers().collect();
        let key = RequestKey { destination: self.identity.incarnation, sequence };
        match action {
            Action::SendRequest => {
                let order = &attempt.order;
                let requests = sources.ranks().iter().map(|source| {
                    let (first, step, end) = source.positions(sources.wanted());
                    let request = Message::Fetch(FetchRequest {
                        key,
                        source: source.incarnation,
                        namespace: self.identity.namespace.clone(),
                        layout_digest: running.layout_digest,
                        part: source.part.clone(),
                        policy: order.policy,
                        hold_time_ns: order.hold_time_ns,
                        skipped_blocks: first as u32,
                        step: step as u32,
                        names: order.names[..end].to_vec(),
                        tail: order.tail.clone().filter(|_| end == order.names.len()),
                    });
                    (source.peer, request)
                });
                let mut sent = requests
                    .map(|(peer, request)| transport.send_message(peer, request.encode()).is_ok());
                if !sent.all(|is_sent| is_sent) {
                    self.step(now_ns, transport, sequence, Event::Failed(FailReason::PeerGone));
                }
            }
            Action::SendCancel => {
                for peer in peers {
                    // A peer that is gone needs no word.
                    let _ = transport.send_message(peer, Message::Cancel(key).encode());
                }
            }
            Action::Disconnect => {
                for peer in peers {
                    transport.disconnect(peer);
                    self.disconnected.push(peer);
                    self.peer_gone(now_ns, transport, peer);
                }
            }
            // Asked for when the attempt was begun.
            Action::FetchMetadata => {}
            // Handed to the caller of `step`.
            Action::Receive | Action::Discard | Action::Commit => {}
        }
    }

    /// Tells those who would send more than is of use.
    fn call_off(&mut self, transport: &mut dyn Transport, sequence: u64) {
        let Some(running) = self.running.get(&sequence) else { return };
        let key = RequestKey { destination: self.identity.incarnation, sequence };
        let ranks = running.sources.iter().flat_map(Sources::ranks);
        for rank in ranks.filter(|rank| rank.is_pending()) {
            // A peer that is gone needs no word.
            let _ = transport.send_message(rank.peer, Message::Cancel(key).encode());
        }
    }

    /// Receives runs that wait, as far as staging allows; one may always be received.
    fn let_in(&mut self, now_ns: u64, transport: &mut dyn Transport) {
        while let Some(next) = self.waiting.front() {
            let fits = next.len <= self.limits.staging_bytes.saturating_sub(self.staging_bytes);
            if !fits && self.staging_bytes > 0 {
                return;
            }
            let Some(run) = self.waiting.pop_front() else { return };
            let blocks = run.blocks();
            let sequence = run.sequence;
            let reason = match self.receive(now_ns, transport, run) {
                Ok(()) => continue,
                Err(reason) => reason,
            };
            let failed = Event::Received { blocks, verdict: Err(reason) };
            self.step(now_ns, transport, sequence, failed);
        }
    }

    /// Begins to receive a run, or has it at once.
    fn receive(
        &mut self,
        now_ns: u64,
        transport: &mut dyn Transport,
        run: Run,
    ) -> Result<(), FailReason> {
        let Some(mut staging) = Staging::new(&*self.owner, run.len, &mut self.spare) else {
            transport.discard_data(run.data);
            return Err(FailReason::Limit);
        };
        if let Some(verdict) = self.read(transport, &run, &mut staging) {
            self.staging_bytes += run.len;
            self.run_ended(now_ns, transport, Receive { run, staging }, verdict);
            return Ok(());
        }
        match transport.receive_data(run.data, staging.segment()) {
            Ok(ticket) => {
                self.staging_bytes += run.len;
                self.receives.insert(ticket, Receive { run, staging });
                Ok(())
            }
            Err(_) => Err(FailReason::PeerGone),
        }
    }

    /// Drops runs of an attempt that is over before they were received.
    fn forget_waiting(&mut self, now_ns: u64, transport: &mut dyn Transport, sequence: u64) {
        let (over, waiting): (VecDeque<Run>, VecDeque<Run>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|run| run.sequence == sequence);
        self.waiting = waiting;
        for run in over {
            transport.discard_data(run.data);
            debug_assert!(self.is_asked(run.peer, run.header.key));
            let dropped =
                Event::Received { blocks: run.blocks(), verdict: Err(FailReason::Shutdown) };
            self.step(now_ns, transport, sequence, dropped);
        }
    }

    /// Copies a run out of the memory of whoever sent it, and compares it in the same pass; `None` where it
    /// has to be received.
    fn read(
        &self,
        transport: &mut dyn Transport,
        run: &Run,
        staging: &mut Staging,
    ) -> Option<Result<(), FailReason>> {
        let Staging::Plain(memory) = staging else { return None };
        let mut verdict = None;
        transport.read_data(run.data, &mut |bytes| {
            let _range = Range::push_of_attempt(Step::Verify, run.sequence, run.len);
            verdict = Some(self.compare(run, |name, place| {
                bytes.copy_block(place.start, memory.get_mut(place)?, name)
            }));
        });
        verdict
    }

    /// Compares a run with its checksums: `sum` is asked for that of each part, by the name and the part's
    /// place in the run.
    fn compare(
        &self,
        run: &Run,
        mut sum: impl FnMut(&Name, std::ops::Range<usize>) -> Option<u64>,
    ) -> Result<(), FailReason> {
        let DataHeader { first_block, checksums, .. } = &run.header;
        let running = self.running.get(&run.sequence);
        let asked = running.and_then(|running| Some((running, running.sources.as_ref()?)));
        let Some((Running { attempt, .. }, sources)) = asked else {
            return Err(FailReason::Corrupted);
        };
        let Some(rank) = sources.of(run.peer) else { return Err(FailReason::Corrupted) };
        let wanted = sources.wanted();
        let is_whole = checksums.iter().enumerate().all(|(at, checksum)| {
            let index = rank.wanted_index(*first_block as usize + at);
            let name = attempt.order.names.get(wanted.first + index * wanted.step);
            let place = at * rank.part_bytes..(at + 1) * rank.part_bytes;
            name.and_then(|name| sum(name, place)) == Some(*checksum)
        });
        if is_whole {
            Ok(())
        } else {
            Err(FailReason::Corrupted)
        }
    }

    /// Copies a verified run into the blocks that the host lent; how many are whole with it.
    fn commit(&mut self, run: &Run, staging: &[u8]) -> u32 {
        let Some(running) = self.running.get(&run.sequence) else { return 0 };
        let Some(sources) = &running.sources else { return 0 };
        let Some(rank) = sources.of(run.peer) else { return 0 };
        let first = run.header.first_block as usize;
        let parts = staging.chunks_exact(rank.part_bytes.max(1));
        let is_bulk = staging.len() >= BULK_BYTES;
        for (index, part) in parts.enumerate() {
            let target = running.attempt.order.destination.get(rank.wanted_index(first + index));
            let is_filled = target.is_some_and(|target| match &rank.own_pieces {
                None => self.owner.fill(*target, part, is_bulk),
                Some(pieces) => self.owner.scatter(*target, pieces, part),
            });
            debug_assert!(is_filled, "the order's blocks were checked when it was begun");
        }
        self.moved(run)
    }

    /// A run is in its place: how many blocks are whole with it.
    fn moved(&mut self, run: &Run) -> u32 {
        let running = self.running.get_mut(&run.sequence);
        let Some(sources) = running.and_then(|running| running.sources.as_mut()) else { return 0 };
        sources.moved(run.peer, run.blocks());
        sources.take_whole()
    }

    /// The state of an attempt's endpoint led nowhere: it is to be fetched anew.
    fn note_stale(&mut self, sequence: u64) {
        if let Some(running) = self.running.get(&sequence) {
            if let Origin::Endpoint(endpoint) = &running.attempt.order.origin {
                self.stale_endpoints.push(endpoint.clone());
            }
        }
    }
}
