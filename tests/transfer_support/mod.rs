//! Two workers in one process, and transports that misbehave on demand.

// Each test file uses its part of this.
#![allow(dead_code)]

#[path = "../forwarding/mod.rs"]
pub mod forwarding;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvhints::clock::Clock;
use kvhints::poison::Poison;
use kvhints::reuse::{NoObserver, Policy, ReuseTree, ReuseTreeConfig, Sequence, SequenceParams};
use kvhints::telemetry::Metrics;
use kvhints::transfer::layout::{Attention, CacheLayout, DataType, ParallelLayout};
use kvhints::transfer::loopback::{LoopbackHub, LoopbackTransport};
use kvhints::transfer::memory::BlockPool;
use kvhints::transfer::prefetch::{Deadlines, Outcome, State as PrefetchState};
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::transceiver::{
    BeginError, DestinationLimits, FetchOrder, Origin, PrefetchHandle, SourceLimits, Surroundings,
    Transceiver, TransceiverConfig, TreeAndPool,
};
use kvhints::transfer::transport::{Event, PeerId, Segment, Ticket, Transport, TransportError};

use forwarding::Around;
pub use forwarding::Forwarding;

pub const TOKENS_PER_BLOCK: usize = 4;
pub const NAMESPACE: &[u8] = b"model@7";

/// A clock that the test moves.
#[derive(Debug, Default)]
pub struct HandClock {
    now_ns: AtomicU64,
}

impl HandClock {
    pub fn pass(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn monotonic_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn unix_seconds(&self) -> u64 {
        0
    }
}

/// How a worker is built; the default is a small one that behaves.
pub struct Setup {
    pub block_bytes: usize,
    pub block_count: usize,
    pub source_limits: SourceLimits,
    pub destination_limits: DestinationLimits,
    pub max_prefetches: usize,
    pub incarnation: u8,
    pub rank: u32,
    pub cache: CacheLayout,
    pub parallel: ParallelLayout,
    pub mischief: Arc<Mischief>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            block_bytes: 1024,
            block_count: 64,
            source_limits: SourceLimits::default(),
            destination_limits: DestinationLimits::default(),
            max_prefetches: 16,
            incarnation: 1,
            rank: 0,
            cache: cache_layout(),
            parallel: ONE_RANK,
            mischief: Arc::new(Mischief::default()),
        }
    }
}

/// One worker of one rank. The pool is dropped after the transceiver.
pub struct Worker {
    pub transceiver: Transceiver,
    pub tree: ReuseTree,
    pub metrics: Arc<Metrics>,
    pub poison: Arc<Poison>,
    pub clock: Arc<HandClock>,
    pub pool: BlockPool,
    _memory: Vec<u8>,
}

pub fn cache_layout() -> CacheLayout {
    CacheLayout {
        kv_heads_per_layer: vec![8; 2],
        head_size: 64,
        tokens_per_block: TOKENS_PER_BLOCK as u32,
        data_type: DataType::Bfloat16,
        attention: Attention::KeysAndValues,
        kv_factor: 2,
        windows: vec![0],
    }
}

pub const ONE_RANK: ParallelLayout = ParallelLayout {
    tensor: 1,
    pipeline: 1,
    context: 1,
    attention_data: 1,
    layers_per_pipeline_rank: Vec::new(),
};

impl Worker {
    pub fn new(hub: &Arc<LoopbackHub>, setup: Setup) -> Self {
        let transport = Box::new(hub.transport());
        Self::over(transport, setup)
    }

    pub fn over(transport: Box<dyn Transport>, setup: Setup) -> Self {
        let mut memory = vec![0u8; setup.block_bytes * setup.block_count];
        // SAFETY: the memory lives in the worker, which drops it after its transceiver.
        let pool =
            unsafe { BlockPool::new(memory.as_mut_ptr(), setup.block_bytes, setup.block_count) }
                .unwrap();
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: 7,
            observer: Arc::new(NoObserver),
        })
        .unwrap();
        let clock = Arc::new(HandClock::default());
        let metrics = Arc::new(Metrics::new());
        let poison = Arc::new(Poison::default());
        let config = TransceiverConfig {
            rank: setup.rank,
            namespace: NAMESPACE.to_vec(),
            cache: setup.cache,
            parallel: setup.parallel,
            owner: Arc::new(TreeAndPool { tree: tree.clone(), window: 0, pool }),
            source_limits: setup.source_limits,
            destination_limits: setup.destination_limits,
            max_prefetches: setup.max_prefetches,
        };
        let surroundings = Surroundings {
            incarnation: Incarnation([setup.incarnation; 16]),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            metrics: Arc::clone(&metrics),
            poison: Arc::clone(&poison),
        };
        let transport = Box::new(Forwarding(Mischievous::new(transport, setup.mischief)));
        let transceiver = Transceiver::start(config, transport, surroundings).unwrap();
        Self { transceiver, tree, metrics, poison, clock, pool, _memory: memory }
    }

    /// Fills blocks with bytes that depend on their place in the sequence, and stores them.
    pub fn hold(&self, sequence: &Sequence, ids: &[i32]) {
        for (position, id) in ids.iter().enumerate() {
            self.fill(*id, |index| pattern(position, index));
        }
        let held = self.tree.store(0, sequence, 0, ids).unwrap();
        assert!(held.iter().zip(ids).all(|(held, id)| *held == Some(*id)));
    }

    pub fn fill(&self, id: i32, byte: impl Fn(usize) -> u8) {
        let block = self.pool.block(id).unwrap();
        for index in 0..block.len {
            // SAFETY: inside of the block, which no transfer uses now.
            unsafe { block.data.add(index).write(byte(index)) };
        }
    }

    /// Whether the block holds what `hold` put at that place of the sequence.
    pub fn has(&self, id: i32, position: usize) -> bool {
        self.read(id).iter().enumerate().all(|(index, byte)| *byte == pattern(position, index))
    }

    pub fn read(&self, id: i32) -> Vec<u8> {
        let block = self.pool.block(id).unwrap();
        // SAFETY: inside of the pool; called when no transfer writes there.
        unsafe { std::slice::from_raw_parts(block.data, block.len) }.to_vec()
    }

    /// The worker's state, as another worker gets it.
    pub fn origin(&self) -> Origin {
        let state = State::decode(&self.transceiver.state().unwrap()).unwrap();
        Origin::State(Arc::new(state))
    }

    pub fn begin(
        &self,
        from: &Worker,
        sequence: &Sequence,
        destination: &[i32],
        policy: Policy,
    ) -> Result<PrefetchHandle, BeginError> {
        self.begin_order(&order(from.origin(), sequence, destination, policy))
    }

    pub fn begin_order(&self, order: &FetchOrder<'_>) -> Result<PrefetchHandle, BeginError> {
        self.transceiver.begin(order)
    }

    pub fn failed(&self, reason: kvhints::transfer::reason::FailReason) -> u64 {
        self.metrics.prefetches_failed.get(reason as usize)
    }

    /// Waits until nothing is pinned, lent or served any more.
    pub fn settles(&self) {
        wait_until("no pins, no prefetches, no requests", || {
            self.tree.statistics().live_pins == 0
                && self.tree.statistics().protected_blocks == 0
                && self.transceiver.prefetches_in_flight() == 0
                && self.transceiver.status().requests_in_flight == 0
        });
        assert!(!self.poison.is_set(), "{:?}", self.poison.location());
    }
}

pub fn order<'a>(
    origin: Origin,
    sequence: &'a Sequence,
    destination: &'a [i32],
    policy: Policy,
) -> FetchOrder<'a> {
    FetchOrder {
        sequence,
        origin,
        hint: None,
        first_block: 0,
        source_attention_data_rank: 0,
        max_tokens: sequence.token_count(),
        destination,
        policy,
        deadlines: Deadlines::default(),
    }
}

fn pattern(position: usize, index: usize) -> u8 {
    (position * 31 + index * 7 + index / 256) as u8
}

/// A sequence of full blocks.
pub fn sequence(blocks: usize, salt: i32) -> Sequence {
    let tokens: Vec<i32> = (0..(blocks * TOKENS_PER_BLOCK) as i32).map(|t| t + salt).collect();
    sequence_of(&tokens, None)
}

pub fn sequence_of(tokens: &[i32], lora_id: Option<u64>) -> Sequence {
    Sequence::new(&SequenceParams {
        tokens_per_block: TOKENS_PER_BLOCK,
        namespace: NAMESPACE,
        tokens,
        extra_ids: None,
        lora_id,
        adapter_digest: &[],
        salt: None,
        salt_bytes: &[],
        mm_items: &[],
    })
    .unwrap()
}

/// Waits for something that another thread does; a limit that no healthy run meets ends the test.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "still waiting for: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Waits for the outcome, and for quiescence.
pub fn outcome(handle: &PrefetchHandle) -> Outcome {
    wait_until("an outcome", || handle.poll().1.is_some() && handle.is_quiesced());
    handle.poll().1.unwrap()
}

pub fn reaches(handle: &PrefetchHandle, state: PrefetchState) {
    wait_until("a state", || handle.poll().0 == state);
}

/// What a transport does wrong.
#[derive(Default)]
pub struct Mischief {
    /// Arriving messages are lost.
    pub is_deaf: AtomicBool,
    /// Arriving data waits until this is off.
    pub holds_data: AtomicBool,
    /// One byte of everything sent is changed.
    pub corrupts: AtomicBool,
    /// The connection breaks instead of the n-th send of data; 0: never.
    pub breaks_at_send: AtomicU64,
    /// `progress` panics.
    pub panics: AtomicBool,
    /// Data that was held when it was looked at last.
    pub held: AtomicU64,
    /// Whatever arrives from peers up to this one is lost.
    pub lost_up_to: AtomicU64,
    /// The peer that was connected to last, and how many were.
    pub latest_peer: AtomicU64,
    pub connections_made: AtomicU64,
    /// How often memory was registered, and how many bytes in all.
    pub registrations: AtomicU64,
    pub registered_bytes: AtomicU64,
}

impl Mischief {
    pub fn set(flag: &AtomicBool, on: bool) {
        flag.store(on, Ordering::SeqCst);
    }
}

pub struct Mischievous {
    inner: Box<dyn Transport>,
    mischief: Arc<Mischief>,
    held: VecDeque<Event>,
    changed: HashMap<Ticket, Vec<u8>>,
    sends: u64,
}

impl Mischievous {
    pub fn new(inner: Box<dyn Transport>, mischief: Arc<Mischief>) -> Self {
        Self { inner, mischief, held: VecDeque::new(), changed: HashMap::new(), sends: 0 }
    }
}

impl Around for Mischievous {
    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Transport {
        &mut *self.inner
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        let peer = self.inner.connect(address)?;
        self.mischief.latest_peer.store(peer.0, Ordering::SeqCst);
        self.mischief.connections_made.fetch_add(1, Ordering::SeqCst);
        Ok(peer)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        self.sends += 1;
        if self.sends == self.mischief.breaks_at_send.load(Ordering::SeqCst) {
            self.inner.disconnect(peer);
            return Err(TransportError::PeerGone("broken by the test".to_owned()));
        }
        if !self.mischief.corrupts.load(Ordering::SeqCst) {
            return self.inner.send_data(peer, header, segments);
        }
        let mut bytes = Vec::new();
        for segment in segments {
            // SAFETY: the caller keeps its segments alive until the ticket's event.
            let part = unsafe { std::slice::from_raw_parts(segment.data, segment.len) };
            bytes.extend_from_slice(part);
        }
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let segment = Segment { data: bytes.as_mut_ptr(), len: bytes.len() };
        let ticket = self.inner.send_data(peer, header, vec![segment])?;
        self.changed.insert(ticket, bytes);
        Ok(ticket)
    }

    /// Bytes are sent from where they lie, where this side can change them.
    fn room(&mut self, _peer: PeerId, _segments: &[Segment]) -> Option<&mut [u8]> {
        None
    }

    fn register(&mut self, memory: Segment) {
        self.mischief.registrations.fetch_add(1, Ordering::SeqCst);
        self.mischief.registered_bytes.fetch_add(memory.len as u64, Ordering::SeqCst);
        self.inner.register(memory);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.held.retain(|event| !matches!(event, Event::Data { peer: from, .. } if *from == peer));
        self.inner.disconnect(peer);
    }

    fn progress(&mut self) -> Option<Event> {
        assert!(!self.mischief.panics.load(Ordering::SeqCst), "a fault, made by the test");
        if !self.mischief.holds_data.load(Ordering::SeqCst) {
            if let Some(event) = self.held.pop_front() {
                return Some(event);
            }
        }
        loop {
            let event = self.inner.progress()?;
            let lost_up_to = self.mischief.lost_up_to.load(Ordering::SeqCst);
            match &event {
                Event::Message { peer, .. } | Event::Data { peer, .. } if peer.0 <= lost_up_to => {}
                Event::Message { .. } if self.mischief.is_deaf.load(Ordering::SeqCst) => {}
                Event::Data { .. } if self.mischief.holds_data.load(Ordering::SeqCst) => {
                    self.held.push_back(event);
                    self.mischief.held.store(self.held.len() as u64, Ordering::SeqCst);
                }
                Event::PeerGone { peer, .. } => {
                    let gone = *peer;
                    self.held.retain(
                        |event| !matches!(event, Event::Data { peer, .. } if *peer == gone),
                    );
                    return Some(event);
                }
                _ => return Some(event),
            }
        }
    }

    fn wait(&mut self, timeout: Duration) {
        // The test changes flags without a wake: look often.
        self.inner.wait(timeout.min(Duration::from_millis(5)));
    }
}

/// A station of the loopback hub, as if addresses led to hosts.
pub struct Placed {
    pub inner: LoopbackTransport,
    pub host: Box<HostOf>,
}

/// The host that an address leads to.
pub type HostOf = dyn Fn(&[u8]) -> Option<IpAddr> + Send;

impl Around for Placed {
    fn inner(&self) -> &dyn Transport {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Transport {
        &mut self.inner
    }

    fn host(&self, address: &[u8]) -> Option<IpAddr> {
        (self.host)(address)
    }
}
