//! A worker of one rank as processes have it: the shipped transceiver with its thread, over UCX, behind
//! a gate with keys, on the system's clock. Blocks hold bytes that only their place can tell.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvhints::clock::SystemClock;
use kvhints::hint::signature::{KeyRing, Rules};
use kvhints::poison::Poison;
use kvhints::reuse::{NoObserver, ReuseTree, ReuseTreeConfig, Sequence};
use kvhints::telemetry::Metrics;
use kvhints::transfer::gate::{Gate, Peers};
use kvhints::transfer::memory::BlockPool;
use kvhints::transfer::prefetch::Deadlines;
use kvhints::transfer::state::Incarnation;
use kvhints::transfer::transceiver::{
    DestinationLimits, SourceLimits, Surroundings, Transceiver, TransceiverConfig, TreeAndPool,
};
use kvhints::transfer::transport::Transport;
use kvhints::transfer::ucx::{UcxOptions, UcxTransport};

use crate::link::Link;
use crate::process::PATIENCE;
use crate::states::Side;
use crate::transfer_support::forwarding::Forwarding;
use crate::transfer_support::{cache_layout, sequence, NAMESPACE, ONE_RANK, TOKENS_PER_BLOCK};
use crate::watched::Watched;

/// What a free block is filled with, so that a late write shows.
pub const FREE: u8 = 0x5A;

/// How a process plays its part: words and values, as they travel in the environment.
#[derive(Debug, Clone, Default)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    pub fn read(text: &str) -> Self {
        let pairs = text.split(' ').filter_map(|part| part.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    pub fn with(&self, key: &str, value: impl fmt::Display) -> Self {
        let mut settings = self.clone();
        settings.0.insert(key.to_owned(), value.to_string());
        settings
    }

    pub fn playing(&self, part: &str) -> Self {
        self.with("part", part)
    }

    pub fn part(&self) -> &str {
        self.get("part").unwrap_or_default()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn number(&self, key: &str, default: usize) -> usize {
        self.get(key).map_or(default, |value| value.parse().expect("a number"))
    }

    /// Blocks of one fetch.
    pub fn blocks(&self) -> usize {
        self.number("blocks", 32)
    }

    pub fn block_bytes(&self) -> usize {
        self.number("block_bytes", 64 << 10)
    }

    fn run_bytes(&self) -> usize {
        self.number("run_bytes", 128 << 10)
    }

    /// Runs of one fetch.
    pub fn runs(&self) -> usize {
        self.blocks().div_ceil((self.run_bytes() / self.block_bytes()).max(1))
    }

    pub fn host(&self) -> &str {
        self.get("host").unwrap_or("127.0.0.1")
    }

    pub fn deadlines(&self) -> Deadlines {
        let ns = |key, default_ms| self.number(key, default_ms) as u64 * 1_000_000;
        Deadlines {
            metadata_ns: ns("metadata_ms", 20_000),
            transfer_ns: ns("transfer_ms", 20_000),
            abandonment_ns: ns("abandonment_ms", 60_000),
        }
    }

    pub fn transport(&self) -> UcxTransport {
        let options = UcxOptions {
            tls: Some(self.get("wires").unwrap_or("tcp").to_owned()),
            net_devices: Some(self.get("device").unwrap_or("lo").to_owned()),
            listen: self.host().parse().expect("an address"),
            port: self.number("port", 0) as u16,
            keepalive: Duration::from_millis(200),
            ..UcxOptions::default()
        };
        UcxTransport::open(options).expect("UCX starts")
    }

    /// All workers have the same key; a caller in the crowd knows it too.
    pub fn gated(&self, transport: Box<dyn Transport>) -> Gate {
        let ring = KeyRing::new(Rules::default()).expect("memory");
        ring.add("pool", &[7; 32]).expect("a good key");
        let peers = Peers::WithKey(Arc::new(ring), "pool".to_owned());
        Gate::new(transport, peers, Arc::default())
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        formatter.write_str(&pairs.join(" "))
    }
}

/// The pool is dropped after the transceiver.
pub struct Worker {
    pub transceiver: Transceiver,
    pub tree: ReuseTree,
    pub metrics: Arc<Metrics>,
    poison: Arc<Poison>,
    pub wanted: Sequence,
    pool: BlockPool,
    _memory: Vec<u64>,
}

impl Worker {
    pub fn new(settings: &Settings, side: Side, link: &Arc<Link>) -> Self {
        let (block_bytes, block_count) = (settings.block_bytes(), settings.blocks());
        let mut memory = vec![0u64; block_bytes * block_count / 8];
        let base = memory.as_mut_ptr().cast();
        // SAFETY: the memory lives in the worker, which drops it after its transceiver.
        let pool = unsafe { BlockPool::new(base, block_bytes, block_count) }.expect("a pool");
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: 7,
            observer: Arc::new(NoObserver),
        })
        .expect("a tree");
        let metrics = Arc::new(Metrics::new());
        let poison = Arc::new(Poison::default());
        let config = TransceiverConfig {
            rank: 0,
            namespace: NAMESPACE.to_vec(),
            cache: cache_layout(),
            parallel: ONE_RANK,
            owner: Arc::new(TreeAndPool { tree: tree.clone(), window: 0, pool }),
            source_limits: SourceLimits {
                run_bytes: settings.run_bytes(),
                hold_time_ns: settings.number("hold_ms", 60_000) as u64 * 1_000_000,
                ..SourceLimits::default()
            },
            destination_limits: DestinationLimits::default(),
            max_prefetches: 16,
        };
        let mut incarnation = [0; 16];
        getrandom::fill(&mut incarnation).expect("random numbers");
        let surroundings = Surroundings {
            incarnation: Incarnation(incarnation),
            clock: Arc::new(SystemClock::new()),
            metrics: Arc::clone(&metrics),
            poison: Arc::clone(&poison),
        };
        let watched =
            Watched::new(Box::new(settings.transport()), side, settings.runs(), Arc::clone(link));
        let gate = settings.gated(Box::new(Forwarding(watched)));
        let transceiver =
            Transceiver::start(config, Box::new(gate), surroundings).expect("a transceiver");
        let wanted = sequence(block_count, settings.number("salt", 0) as i32);
        Self { transceiver, tree, metrics, poison, wanted, pool, _memory: memory }
    }

    pub fn ids(&self) -> Vec<i32> {
        (0..self.wanted.full_block_count() as i32).collect()
    }

    /// Fills all blocks with what they must be, or with `FREE`.
    pub fn fill(&self, with: Content) {
        for id in self.ids() {
            let block = self.pool.block(id).expect("in the pool");
            let words = block.data.cast::<u64>();
            for index in 0..block.len / 8 {
                // SAFETY: inside of the block, whose memory is made of u64; no transfer uses it now.
                unsafe { words.add(index).write_volatile(with.word(id, index)) };
            }
        }
    }

    /// The first block that holds anything else.
    pub fn differs(&self, from: Content) -> Option<i32> {
        self.ids().into_iter().find(|id| {
            let block = self.pool.block(*id).expect("in the pool");
            let words = block.data.cast::<u64>();
            // SAFETY: inside of the block, whose memory is made of u64. A late write would be a
            // fault of the library, which this is to find: hence volatile.
            (0..block.len / 8)
                .any(|index| unsafe { words.add(index).read_volatile() } != from.word(*id, index))
        })
    }

    /// What is left in flight, in one line.
    pub fn left(&self) -> String {
        let tree = self.tree.statistics();
        let status = self.transceiver.status();
        format!(
            "pins={} protected={} attempts={} lent={} requests={}",
            tree.live_pins,
            tree.protected_blocks,
            self.transceiver.prefetches_in_flight(),
            self.transceiver.blocks_lent(),
            status.requests_in_flight,
        )
    }

    /// Waits until nothing is in flight, and says what remains.
    pub fn settles(&self) -> String {
        const NOTHING: &str = "pins=0 protected=0 attempts=0 lent=0 requests=0";
        wait_for("nothing in flight", || self.left() == NOTHING);
        assert!(!self.poison.is_set(), "{:?}", self.poison.location());
        let metrics = &self.metrics;
        let begun = metrics.prefetches_accepted.get(0);
        let failed: u64 =
            (0..Metrics::PREFETCH_FAILURES.len()).map(|at| metrics.prefetches_failed.get(at)).sum();
        let ended = failed
            + metrics.prefetches_delivered.get(0)
            + metrics.prefetches_missed.get(0)
            + metrics.prefetches_cancelled.get(0);
        let served = metrics.source_requests_served.get(0);
        format!("{} begun={begun} ended={ended} served={served} {}", self.left(), resources())
    }
}

/// What blocks are filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// What a block must be, by its place.
    Right,
    /// What nobody sends.
    Free,
    /// What a block becomes when the source uses it for something else.
    Other,
}

impl Content {
    fn word(self, id: i32, index: usize) -> u64 {
        match self {
            Self::Right => ((id as u64) << 32 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Self::Free => u64::from_ne_bytes([FREE; 8]),
            Self::Other => !Self::Right.word(id, index),
        }
    }
}

/// Waits for something that another thread of this process does.
pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "still waiting for: {what}");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

/// What this process has of the system.
pub fn resources() -> String {
    let entries = |path: &str| std::fs::read_dir(path).expect("a Linux").count();
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    format!(
        "descriptors={} threads={} resident_kib={} heap_bytes={}",
        // The one that reads them is none.
        entries("/proc/self/fd") - 1,
        entries("/proc/self/task"),
        pages * 4,
        heap_bytes(),
    )
}

/// Bytes that are allocated and not freed.
#[cfg(target_env = "gnu")]
fn heap_bytes() -> usize {
    // SAFETY: asks the allocator, which locks itself.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Not known of this allocator: memory is seen by what is resident alone.
#[cfg(not(target_env = "gnu"))]
fn heap_bytes() -> usize {
    0
}
