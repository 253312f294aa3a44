//! One worker: the shipped transceiver, tree and driver, and a host that uses them as an engine
//! would. The host remembers what every block of its pool must hold.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use kvhints::clock::Clock;
use kvhints::plan::AddressBounds;
use kvhints::poison::Poison;
use kvhints::reuse::{BlockRange, Evicted, Name, NoObserver, Policy, ReuseTree, ReuseTreeConfig};
use kvhints::telemetry::Metrics;
use kvhints::transfer::layout::{Attention, CacheLayout, DataType, ParallelLayout};
use kvhints::transfer::memory::{BlockMemory, BlockPool};
use kvhints::transfer::prefetch::{Deadlines, LeaseEnd, Outcome, State};
use kvhints::transfer::state::{Incarnation, State as WorkerState};
use kvhints::transfer::transceiver::{
    BeginError, DestinationLimits, Driver, FetchOrder, HintCheck, Origin, PrefetchHandle, Round,
    SourceLimits, Surroundings, Transceiver, TransceiverConfig, TreeAndPool,
};

use crate::clock::{WorkerClock, WorldClock, MS};
use crate::network::{host_address, Flag, Guarded, Net, Network};
use crate::prompts::{Prompts, NAMESPACE, TOKENS_PER_BLOCK};
use crate::random::SplitMix;
use crate::report::Report;
use crate::sabotage::Sabotage;
use crate::states::{endpoint, Published, SimulatedStates};

pub const BLOCK_BYTES: usize = 40;
pub const BLOCK_COUNT: usize = 28;

/// A promise that was kept, or how it was broken.
pub type Kept = Result<(), String>;

/// Returns with what was broken unless it was kept.
#[macro_export]
macro_rules! promise {
    ($kept:expr, $($what:tt)+) => {
        if !$kept {
            return Err(format!($($what)+));
        }
    };
}

/// What an action may use of the world.
pub struct Around<'a> {
    pub rng: &'a mut SplitMix,
    pub report: &'a mut Report,
    pub prompts: &'a Prompts,
    pub published: &'a Published,
    pub sabotage: Option<Sabotage>,
    pub hosts: usize,
    pub now_ns: u64,
    pub damages: bool,
}

/// Who has a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Free,
    Stored,
    /// Stored, and its bytes come when this fence passes.
    Fenced(u64),
    /// Out of the tree, and perhaps still protected.
    Left,
    /// Lent to the fetch of that number.
    Lent(u64),
}

pub struct Fetch {
    number: u64,
    handle: PrefetchHandle,
    prompt: usize,
    first_block: usize,
    blocks: Vec<i32>,
    policy: Policy,
    deadlines: Deadlines,
    begun_ns: u64,
    in_progress_ns: Option<u64>,
    state: State,
    outcome: Option<Outcome>,
    is_quiesced: bool,
    is_claimed: bool,
    is_cancelled: bool,
    /// What the fetch builds on stays while it runs.
    _prefix: Option<BlockRange>,
}

impl Fetch {
    fn is_over(&self) -> bool {
        self.is_quiesced && self.state == State::ContextInit
    }
}

pub struct Worker {
    pub station: u64,
    pub clock: Arc<WorkerClock>,
    pub tree: ReuseTree,
    pub metrics: Arc<Metrics>,
    pub poison: Arc<Poison>,
    pub waker: Arc<Flag>,
    pub driver: Option<Driver>,
    pub transceiver: Option<Transceiver>,
    pub fetches: Vec<Fetch>,
    pub stalled_until_ns: u64,
    pub is_busy: bool,
    pub may_panic: bool,
    uses: Vec<Use>,
    /// What each block not lent must hold.
    shadow: Vec<u8>,
    pins: Vec<BlockRange>,
    fences: VecDeque<(u64, Vec<(i32, Name)>)>,
    last_fence: u64,
    begun: u64,
    /// Fetches whose handle was dropped before they had an outcome.
    dropped_open: u64,
    /// Fetches whose handle was dropped before they were quiesced.
    dropped_running: usize,
    /// Blocks of dropped handles that the library may still hold.
    winding: BTreeSet<i32>,
    max_prefetches: usize,
    // After everything that points into it.
    pool: BlockPool,
    _memory: Vec<u8>,
}

fn cache_layout() -> CacheLayout {
    CacheLayout {
        kv_heads_per_layer: vec![1; 2],
        head_size: 8,
        tokens_per_block: TOKENS_PER_BLOCK as u32,
        data_type: DataType::Bfloat16,
        attention: Attention::KeysAndValues,
        kv_factor: 2,
        windows: vec![0],
    }
}

const ONE_RANK: ParallelLayout = ParallelLayout {
    tensor: 1,
    pipeline: 1,
    context: 1,
    attention_data: 1,
    layers_per_pipeline_rank: Vec::new(),
};

pub fn layout_digest() -> u64 {
    kvhints::transfer::layout::digest(&cache_layout(), &ONE_RANK)
}

/// The bytes that a block of that name has, wherever it lies.
fn content(name: &Name) -> [u8; BLOCK_BYTES] {
    let mut rng = SplitMix(u64::from_le_bytes(name.0[..8].try_into().unwrap()));
    std::array::from_fn(|_| rng.below(256) as u8)
}

fn state_name(state: State) -> &'static str {
    match state {
        State::ContextInit => "context_init",
        State::PrefetchInit => "init",
        State::PrefetchInProgress => "in_progress",
        State::PrefetchComplete => "complete",
    }
}

impl Worker {
    pub fn start(
        network: &Network,
        clock: &Arc<WorldClock>,
        host: usize,
        around: &mut Around,
    ) -> Self {
        let rng = &mut *around.rng;
        let transport = Net::transport(network, host);
        let (station, waker) = (transport.number, Arc::clone(&transport.waker));
        let tick_ns = match around.sabotage {
            Some(Sabotage::ClockStandsStill) => 1_000 * MS,
            _ => 1,
        };
        let start_ns = rng.below(1 << 40) as u64;
        let clock = Arc::new(WorkerClock::new(Arc::clone(clock), start_ns, tick_ns));
        let mut memory = vec![0u8; BLOCK_BYTES * BLOCK_COUNT];
        memory.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
        let shadow = memory.clone();
        // SAFETY: the memory lives in the worker, which drops it after all that uses the pool.
        let pool =
            unsafe { BlockPool::new(memory.as_mut_ptr(), BLOCK_BYTES, BLOCK_COUNT) }.unwrap();
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: rng.below(usize::MAX) as u64,
            observer: Arc::new(NoObserver),
        })
        .unwrap();
        let guarded = Guarded {
            tree: tree.clone(),
            base: pool.block(0).unwrap().data as usize,
            block_bytes: BLOCK_BYTES,
            block_count: BLOCK_COUNT,
        };
        network.lock().guarded.insert(station, guarded);
        let max_prefetches = 2 + rng.below(4);
        let runs = 1 + rng.below(3);
        let config = TransceiverConfig {
            rank: 0,
            namespace: NAMESPACE.to_vec(),
            cache: cache_layout(),
            parallel: ONE_RANK,
            owner: Arc::new(TreeAndPool { tree: tree.clone(), window: 0, pool }),
            source_limits: SourceLimits {
                peers: 1 + rng.below(4),
                requests: 2 + rng.below(8),
                bytes_in_flight: BLOCK_BYTES * (1 + rng.below(12)),
                hold_time_ns: (300 + rng.below(1500) as u64) * MS,
                run_bytes: BLOCK_BYTES * runs,
            },
            destination_limits: DestinationLimits {
                connections: 1 + rng.below(3),
                staging_bytes: BLOCK_BYTES * (1 + rng.below(6)),
            },
            max_prefetches,
        };
        let (metrics, poison) = (Arc::new(Metrics::new()), Arc::new(Poison::default()));
        let surroundings = Surroundings {
            incarnation: Incarnation(std::array::from_fn(|_| rng.below(256) as u8)),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            metrics: Arc::clone(&metrics),
            poison: Arc::clone(&poison),
        };
        let seed = rng.below(usize::MAX) as u64;
        let states = SimulatedStates::new(network, around.published, around.hosts, seed);
        let transport = Box::new(transport);
        let (transceiver, driver) =
            Transceiver::without_thread(config, transport, Arc::new(states), surroundings).unwrap();
        for other in 0..around.hosts {
            let bounds = AddressBounds::within(&[host_address(other).to_string()]).unwrap();
            transceiver.allow(endpoint(other), bounds).unwrap();
        }
        let state = WorkerState::decode(&transceiver.state().unwrap()).unwrap();
        around.published.lock().insert(host, Arc::new(state));
        Self {
            station,
            clock,
            tree,
            metrics,
            poison,
            waker,
            driver: Some(driver),
            transceiver: Some(transceiver),
            fetches: Vec::new(),
            stalled_until_ns: 0,
            is_busy: false,
            may_panic: false,
            uses: vec![Use::Free; BLOCK_COUNT],
            shadow,
            pins: Vec::new(),
            fences: VecDeque::new(),
            last_fence: 0,
            begun: 0,
            dropped_open: 0,
            dropped_running: 0,
            winding: BTreeSet::new(),
            max_prefetches,
            pool,
            _memory: memory,
        }
    }

    // ---- driving ----

    /// When the driver has something to do, in the world's time.
    pub fn due_ns(&self) -> u64 {
        let shown_ns = self.driver.as_ref().map_or(u64::MAX, Driver::deadline_ns);
        match shown_ns {
            u64::MAX => u64::MAX,
            _ => self.clock.in_world_ns(shown_ns),
        }
    }

    pub fn round(&mut self, around: &mut Around) -> Kept {
        around.report.one("steps", "driver rounds");
        self.waker.take();
        let Some(driver) = &mut self.driver else { return Ok(()) };
        let round = driver.round();
        self.is_busy = round == Round::Busy;
        if round == Round::Stopped {
            promise!(self.may_panic, "a driver stopped by itself: {:?}", self.poison.location());
            around.report.one("faults", "thread panicked");
            self.end()?;
            return Ok(());
        }
        self.check_deadlines(around)
    }

    /// Ends the driver; what it must leave behind.
    pub fn end(&mut self) -> Kept {
        drop(self.driver.take());
        let own_pins = self.own_pins();
        let pins = self.tree.statistics().live_pins;
        promise!(pins == own_pins, "after the end {pins} pins are left, {own_pins} are the host's");
        for fetch in &self.fetches {
            let ended = fetch.handle.poll().1.is_some() && fetch.handle.is_quiesced();
            promise!(ended, "fetch {} has no end after its driver's", fetch.number);
        }
        if let Some(transceiver) = &self.transceiver {
            let running = transceiver.prefetches_in_flight();
            promise!(running == 0, "{running} prefetches are in flight after the end");
        }
        self.winding.clear();
        Ok(())
    }

    fn own_pins(&self) -> usize {
        self.pins.len() + self.fetches.iter().filter(|fetch| fetch._prefix.is_some()).count()
    }

    // ---- memory ----

    fn bytes(&self, id: i32) -> &[u8] {
        let block = self.pool.block(id).unwrap();
        // SAFETY: inside of the pool; everything runs on this thread, and nobody writes now.
        unsafe { std::slice::from_raw_parts(block.data, block.len) }
    }

    fn shadow(&self, id: i32) -> &[u8] {
        &self.shadow[id as usize * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    /// The host writes a block that is its own.
    fn write(&mut self, id: i32, bytes: &[u8]) {
        assert!(self.pool.fill(id, bytes, false));
        self.shadow[id as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(bytes);
    }

    fn scribble(&mut self, id: i32, rng: &mut SplitMix) {
        let junk: [u8; BLOCK_BYTES] = std::array::from_fn(|_| rng.below(256) as u8);
        self.write(id, &junk);
    }

    /// The host takes what lies in a block for granted.
    fn accept(&mut self, id: i32) {
        let bytes = self.bytes(id).to_vec();
        self.shadow[id as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&bytes);
    }

    fn free(&mut self, id: i32, rng: &mut SplitMix) {
        self.uses[id as usize] = Use::Free;
        self.scribble(id, rng);
    }

    fn with_use(&self, wanted: impl Fn(Use) -> bool) -> Vec<i32> {
        let ids = self.uses.iter().enumerate().filter(|(_, used)| wanted(**used));
        ids.map(|(id, _)| id as i32).collect()
    }

    /// Some free blocks, in any order.
    fn some_free(&self, count: usize, rng: &mut SplitMix) -> Option<Vec<i32>> {
        let mut free = self.with_use(|used| used == Use::Free);
        if free.len() < count {
            return None;
        }
        Some((0..count).map(|_| free.swap_remove(rng.below(free.len()))).collect())
    }

    // ---- the host's own use of the tree ----

    pub fn store(&mut self, around: &mut Around, prompt: usize, blocks: usize) {
        let sequence = around.prompts.sequence(prompt);
        let blocks = blocks.min(sequence.block_count());
        let tokens = blocks * TOKENS_PER_BLOCK;
        let first = self.tree.matched_tokens(0, sequence, tokens).unwrap() / TOKENS_PER_BLOCK;
        let count = blocks - first;
        if count == 0 {
            return;
        }
        let Some(ids) = self.some_free(count, around.rng) else { return self.evict_one(around) };
        let names: Vec<Name> = (first..blocks).filter_map(|block| sequence.name(block)).collect();
        let is_fenced = around.rng.below(5) == 0;
        if is_fenced {
            self.last_fence += 1;
            let fence = self.last_fence;
            let held = self.tree.store_with_fence(0, sequence, first, &ids, fence).unwrap();
            let coming = ids.iter().copied().zip(names).collect();
            self.fences.push_back((fence, coming));
            for (id, held) in ids.iter().zip(held) {
                if held == Some(*id) {
                    around.report.one("transfers", "blocks fenced");
                    self.uses[*id as usize] = Use::Fenced(fence);
                }
            }
            if around.sabotage == Some(Sabotage::FenceSkipped) {
                self.tree.fence_passed(fence);
            }
            return;
        }
        for (id, name) in ids.iter().zip(&names) {
            let mut bytes = content(name);
            if around.sabotage == Some(Sabotage::WrongBytes) && around.rng.below(8) == 0 {
                bytes[0] ^= 1;
            }
            self.write(*id, &bytes);
        }
        self.note_stored(around, prompt, first, &ids);
    }

    /// Puts blocks into the tree, and notes which of them it holds.
    fn note_stored(&mut self, around: &mut Around, prompt: usize, first: usize, ids: &[i32]) {
        let sequence = around.prompts.sequence(prompt);
        let held = self.tree.store(0, sequence, first, ids).unwrap();
        for (id, held) in ids.iter().zip(held) {
            if held == Some(*id) {
                self.uses[*id as usize] = Use::Stored;
            } else {
                self.free(*id, around.rng);
            }
        }
    }

    pub fn pass_fence(&mut self) {
        let Some((fence, coming)) = self.fences.pop_front() else { return };
        for (id, name) in coming {
            if self.uses[id as usize] == Use::Fenced(fence) {
                self.write(id, &content(&name));
                self.uses[id as usize] = Use::Stored;
            }
        }
        self.tree.fence_passed(fence);
    }

    pub fn evict_one(&mut self, around: &mut Around) {
        let stored = self.with_use(|used| matches!(used, Use::Stored | Use::Fenced(_)));
        let Some(id) = stored.get(around.rng.below(stored.len())).copied() else { return };
        match self.tree.evict(0, id).unwrap() {
            Evicted::Busy => {
                around.report.one("transfers", "evictions refused: busy");
                if around.sabotage == Some(Sabotage::BusyIgnored) {
                    self.scribble(id, around.rng);
                }
            }
            Evicted::Left { .. } | Evicted::NotFound => {}
        }
        self.see_what_left(around);
    }

    /// Blocks leave the tree although they may be on their way to a peer.
    pub fn remove(&mut self, around: &mut Around) {
        let pins = self.tree.statistics().live_pins;
        let stored = self.with_use(|used| matches!(used, Use::Stored | Use::Fenced(_)));
        if around.rng.below(3) == 0 {
            self.tree.reset();
        } else if let Some(id) = stored.get(around.rng.below(stored.len())) {
            self.tree.remove_subtree(0, *id).unwrap();
        }
        if pins > self.own_pins() {
            around.report.one("faults", "source's pool removed under a pin");
        }
        self.see_what_left(around);
    }

    fn see_what_left(&mut self, around: &mut Around) {
        for id in self.with_use(|used| matches!(used, Use::Stored | Use::Fenced(_))) {
            if self.tree.find_id(0, id).unwrap().is_none() {
                self.uses[id as usize] = Use::Left;
            }
        }
        for id in self.with_use(|used| used == Use::Left) {
            if self.tree.first_held(0, &[id]).unwrap().is_none() {
                self.free(id, around.rng);
            }
        }
    }

    pub fn pin_or_unpin(&mut self, around: &mut Around) {
        if self.pins.len() > 2 || around.rng.below(2) == 0 {
            if !self.pins.is_empty() {
                let nth = around.rng.below(self.pins.len());
                drop(self.pins.swap_remove(nth));
            }
            return;
        }
        let sequence = around.prompts.sequence(around.prompts.any_common(around.rng));
        let tokens = 1 + around.rng.below(sequence.token_count());
        let lease_ns = around.now_ns + around.rng.below(100) as u64 * MS;
        let (_, range) = self.tree.match_and_pin(0, sequence, tokens, Some(lease_ns)).unwrap();
        self.pins.extend(range);
    }

    pub fn refresh(&mut self) {
        self.tree.refresh(self.clock.monotonic_ns()).unwrap();
    }

    // ---- fetches ----

    pub fn begin(&mut self, around: &mut Around) -> Kept {
        let prompt = around.prompts.any(around.rng);
        let source = around.rng.below(around.hosts);
        let policy = if around.rng.below(2) == 0 { Policy::Strict } else { Policy::BestEffort };
        self.begin_of(around, prompt, source, policy, false)
    }

    /// Begins a fetch of what the host does not have of a prompt.
    pub fn begin_of(
        &mut self,
        around: &mut Around,
        prompt: usize,
        source: usize,
        policy: Policy,
        is_probe: bool,
    ) -> Kept {
        let sequence = around.prompts.sequence(prompt);
        let full = sequence.full_block_count();
        let is_context = !is_probe && around.rng.below(3) == 0;
        let max_tokens = if is_context { 0 } else { sequence.token_count() };
        let usable =
            if is_context { (sequence.token_count() - 1) / TOKENS_PER_BLOCK } else { full };
        let (found, prefix) =
            self.tree.match_and_pin(0, sequence, usable * TOKENS_PER_BLOCK, None).unwrap();
        let first_block = found.matched_tokens / TOKENS_PER_BLOCK;
        let hashes = sequence.block_hashes();
        let hint = match around.rng.below(6) {
            _ if is_probe => None,
            0 => Some((full, hashes[full - 1])),
            1 => Some((full - 1, hashes[full - 1])),
            2 => Some((full, 12_345)),
            3 => Some((full + 3, hashes[0])),
            _ => None,
        };
        let end = hint.map_or(usable, |(blocks, _)| usable.min(blocks));
        let mut wanted = end.saturating_sub(first_block);
        let has_tail = sequence.block_count() > full
            && !is_context
            && hint.is_none_or(|(blocks, _)| blocks > full);
        if has_tail && (is_probe || around.rng.below(2) == 0) {
            wanted += 1;
        }
        let room = match policy {
            Policy::BestEffort if !is_probe => (1 + around.rng.below(wanted.max(1))).min(wanted),
            _ => wanted,
        };
        let Some(mut blocks) = self.some_free(room, around.rng) else {
            drop(prefix);
            self.evict_one(around);
            return Ok(());
        };
        let expected = if wanted == 0 { Err(BeginError::NothingToFetch) } else { Ok(()) };
        wanted = wanted.min(room);
        // At times an order that must be refused.
        let mischief =
            if is_probe || expected.is_err() { usize::MAX } else { around.rng.below(24) };
        let running = self.fetches.iter().filter(|fetch| !fetch.is_over());
        let lent: Vec<i32> = running.flat_map(|fetch| fetch.blocks.clone()).collect();
        let stored = self.with_use(|used| !matches!(used, Use::Lent(_) | Use::Free));
        let refusal = match mischief {
            0 if !lent.is_empty() => {
                blocks[0] = lent[0];
                Some(BeginError::DestinationInUse)
            }
            1 | 2 if !stored.is_empty() => {
                blocks[0] = stored[around.rng.below(stored.len())];
                // What only just left the tree may be free in fact.
                let is_held = self.tree.first_held(0, &blocks[..1]).unwrap().is_some();
                is_held.then_some(BeginError::DestinationHeld)
            }
            3 if blocks.len() > 1 => {
                blocks[0] = blocks[1];
                Some(BeginError::BadDestination)
            }
            4 => {
                blocks[0] = if around.rng.below(2) == 0 { -1 } else { BLOCK_COUNT as i32 };
                Some(BeginError::BadDestination)
            }
            _ => None,
        };
        if refusal.is_none() && matches!(mischief, 1 | 2) && !stored.is_empty() {
            // It was free in fact, and now it is not for this host to lend.
            return Ok(());
        }
        let expected = refusal.map_or(expected, Err);
        let from_bytes = around.rng.below(4) == 0;
        let state = around.published.lock().get(&source).cloned();
        let origin = match state {
            Some(state) if from_bytes => {
                around.report.one("transfers", "from state bytes");
                Origin::State(state)
            }
            _ => Origin::Endpoint(endpoint(source)),
        };
        let some_ms = |rng: &mut SplitMix, most: usize| (5 + rng.below(most)) as u64 * MS;
        let deadlines = if is_probe {
            Deadlines::default()
        } else {
            Deadlines {
                metadata_ns: some_ms(around.rng, 40),
                transfer_ns: some_ms(around.rng, 150),
                abandonment_ns: some_ms(around.rng, 200),
            }
        };
        let order = FetchOrder {
            sequence,
            origin,
            hint,
            first_block,
            source_attention_data_rank: 0,
            max_tokens,
            destination: &blocks,
            policy,
            deadlines,
        };
        let Some(transceiver) = &self.transceiver else { return Ok(()) };
        let in_flight = transceiver.prefetches_in_flight();
        let begun = transceiver.begin(&order);
        let handle = match (begun, expected) {
            (Ok(handle), Ok(())) => handle,
            (Err(refused), Err(expected)) if refused == expected => {
                around.report.one("begins refused", refusal_name(refused));
                return Ok(());
            }
            (Err(BeginError::Limit), _) if in_flight >= self.max_prefetches => {
                around.report.one("begins refused", "limit");
                return Ok(());
            }
            (Err(BeginError::DestinationInUse), _)
                if blocks.iter().any(|id| self.winding.contains(id)) =>
            {
                return Ok(());
            }
            (Err(BeginError::Closed), Ok(())) if self.driver.is_none() => return Ok(()),
            (begun, expected) => {
                let begun = begun.map(|_| ());
                return Err(format!("an order led to {begun:?} and not to {expected:?}"));
            }
        };
        promise!(in_flight < self.max_prefetches, "more prefetches than allowed");
        self.begun += 1;
        let strict = if policy == Policy::Strict { "strict" } else { "best effort" };
        around.report.one("transfers", strict);
        if first_block > 0 {
            around.report.one("transfers", "local prefix skipped");
        }
        let number = self.begun;
        blocks.truncate(wanted);
        for id in &blocks {
            self.winding.remove(id);
            self.uses[*id as usize] = Use::Lent(number);
        }
        let (state, _) = handle.poll();
        around.report.one("states", state_name(state));
        self.fetches.push(Fetch {
            number,
            handle,
            prompt,
            first_block,
            blocks,
            policy,
            deadlines,
            begun_ns: around.now_ns,
            in_progress_ns: None,
            state,
            outcome: None,
            is_quiesced: false,
            is_claimed: false,
            is_cancelled: false,
            _prefix: prefix,
        });
        Ok(())
    }

    pub fn cancel_one(&mut self, around: &mut Around) {
        let Some(fetch) = self.any_fetch(around.rng) else { return };
        let what = match (fetch.state, fetch.outcome, fetch.is_quiesced) {
            (_, Some(_), false) => "cancelled before quiesced",
            (State::PrefetchInit, ..) => "cancelled in init",
            (State::PrefetchInProgress, ..) => "cancelled in in_progress",
            (State::PrefetchComplete, ..) => "cancelled in complete",
            (State::ContextInit, ..) => "cancelled when over",
        };
        fetch.handle.cancel();
        fetch.is_cancelled = true;
        around.report.one("ends forced by the host", what);
    }

    fn any_fetch(&mut self, rng: &mut SplitMix) -> Option<&mut Fetch> {
        let nth = self.any_index(rng);
        self.fetches.get_mut(nth)
    }

    /// Any of the fetches, and rather one that has ended and is not quiesced: few are, and not for long.
    fn any_index(&self, rng: &mut SplitMix) -> usize {
        let is_between = |fetch: &Fetch| fetch.outcome.is_some() && !fetch.is_quiesced;
        let any = rng.below(self.fetches.len());
        match rng.below(2) {
            0 => any,
            _ => self.fetches.iter().position(is_between).unwrap_or(any),
        }
    }

    /// Destroys a fetch in whatever state, and uses its blocks for something else at once.
    pub fn drop_one(&mut self, around: &mut Around) -> Kept {
        if self.fetches.is_empty() {
            return Ok(());
        }
        let fetch = self.fetches.swap_remove(self.any_index(around.rng));
        let what = match (fetch.state, fetch.outcome, fetch.is_quiesced) {
            (_, Some(_), false) => "dropped before quiesced",
            (State::PrefetchInit, ..) => "dropped in init",
            (State::PrefetchInProgress, ..) => "dropped in in_progress",
            (State::PrefetchComplete, ..) => "dropped in complete",
            (State::ContextInit, ..) => "dropped when over",
        };
        around.report.one("ends forced by the host", what);
        self.dropped_open += u64::from(fetch.outcome.is_none());
        self.dropped_running += usize::from(!fetch.is_quiesced);
        if !fetch.is_over() && fetch.state != State::PrefetchComplete {
            self.winding.extend(&fetch.blocks);
        }
        for (index, id) in fetch.blocks.iter().enumerate() {
            self.check_lent(around, &fetch, index)?;
            self.accept(*id);
        }
        let blocks = fetch.blocks.clone();
        drop(fetch);
        for id in blocks {
            self.free(id, around.rng);
        }
        Ok(())
    }

    /// Does what an engine does with fetches that came to an end.
    pub fn settle(&mut self, around: &mut Around, claims: bool) -> Kept {
        let mut index = 0;
        while index < self.fetches.len() {
            let fetch = &mut self.fetches[index];
            if fetch.state == State::PrefetchComplete && claims {
                let Some(Outcome::Delivered { blocks }) = fetch.outcome else {
                    return Err("complete without blocks".to_owned());
                };
                let claimed = fetch.handle.claim();
                if fetch.handle.lease_end() == Some(LeaseEnd::Abandoned) {
                    promise!(claimed.is_none(), "abandoned blocks were claimed");
                } else {
                    promise!(claimed == Some(blocks), "claimed {claimed:?} of {blocks}");
                    fetch.is_claimed = true;
                    let (first, prompt) = (fetch.first_block, fetch.prompt);
                    let token_end = fetch.handle.token_end(blocks, TOKENS_PER_BLOCK);
                    let token_count = around.prompts.sequence(prompt).token_count();
                    let expected = ((first + blocks as usize) * TOKENS_PER_BLOCK).min(token_count);
                    promise!(token_end == expected, "token_end {token_end}, not {expected}");
                    promise!(fetch.handle.claim().is_none(), "claimed twice");
                    let ids = fetch.blocks[..blocks as usize].to_vec();
                    self.note_stored(around, prompt, first, &ids);
                }
                let fetch = &mut self.fetches[index];
                fetch.state = fetch.handle.poll().0;
            }
            let fetch = &self.fetches[index];
            if !fetch.is_over() {
                index += 1;
                continue;
            }
            let fetch = self.fetches.swap_remove(index);
            around.report.one("ends forced by the host", "dropped when over");
            for id in &fetch.blocks {
                if self.uses[*id as usize] == Use::Lent(fetch.number) {
                    self.free(*id, around.rng);
                }
            }
        }
        Ok(())
    }

    // ---- promises ----

    /// After a round every deadline that has passed has had its effect.
    fn check_deadlines(&self, around: &Around) -> Kept {
        for fetch in &self.fetches {
            let (state, _) = fetch.handle.poll();
            let late = match state {
                State::PrefetchInit => fetch.begun_ns + fetch.deadlines.metadata_ns,
                State::PrefetchInProgress => {
                    let since_ns = fetch.in_progress_ns.unwrap_or(around.now_ns);
                    since_ns + fetch.deadlines.transfer_ns
                }
                _ => continue,
            };
            let (number, now_ns) = (fetch.number, around.now_ns);
            promise!(now_ns < late, "fetch {number} is {state:?} at {now_ns}, due at {late}");
        }
        Ok(())
    }

    /// Everything that must be so at any moment.
    pub fn check(&mut self, around: &mut Around) -> Kept {
        around.report.one("steps", "promises checked");
        promise!(self.may_panic || !self.poison.is_set(), "poisoned: {:?}", self.poison.location());
        self.observe(around)?;
        self.check_memory(around)?;
        self.tree.verify().map_err(|what| format!("the tree: {what}"))?;
        self.check_counts()
    }

    /// Looks at every fetch: its states, its outcome, its report.
    fn observe(&mut self, around: &mut Around) -> Kept {
        for index in 0..self.fetches.len() {
            let newly_delivered = self.observe_one(around, index)?;
            if newly_delivered {
                let fetch = &self.fetches[index];
                let Some(Outcome::Delivered { blocks }) = fetch.outcome else { continue };
                let blocks = blocks as usize;
                for (offset, id) in fetch.blocks[..blocks].iter().enumerate() {
                    let position = fetch.first_block + offset;
                    let mut names = around.prompts.holding(fetch.prompt, position);
                    let found = names.find(|name| self.bytes(*id) == content(name));
                    let own = around.prompts.sequence(fetch.prompt).name(position);
                    if found.is_some() && found != own {
                        around.report.one("transfers", "short last block in a longer one");
                    }
                    promise!(
                        found.is_some(),
                        "fetch {}: block {id} is not what it is",
                        fetch.number
                    );
                }
                let ids = fetch.blocks.clone();
                ids.into_iter().for_each(|id| self.accept(id));
            }
        }
        Ok(())
    }

    /// Whether it was delivered since it was looked at last.
    fn observe_one(&mut self, around: &mut Around, index: usize) -> Result<bool, String> {
        let fetch = &mut self.fetches[index];
        let number = fetch.number;
        let (state, outcome) = fetch.handle.poll();
        let is_quiesced = fetch.handle.is_quiesced();
        let report = fetch.handle.report();
        let progress = report.progress;
        let now_ns = around.now_ns;
        if fetch.outcome.is_some() && outcome != fetch.outcome {
            return Err(format!("fetch {number}: {:?} became {outcome:?}", fetch.outcome));
        }
        if fetch.is_quiesced && !is_quiesced {
            return Err(format!("fetch {number} was quiesced and is not"));
        }
        if is_quiesced && outcome.is_none() {
            return Err(format!("fetch {number} is quiesced without an outcome"));
        }
        let is_consistent = match (state, outcome) {
            (State::PrefetchInit | State::PrefetchInProgress, None) => true,
            (State::PrefetchComplete, Some(Outcome::Delivered { .. })) => is_quiesced,
            (State::ContextInit, Some(_)) => true,
            _ => false,
        };
        if !is_consistent {
            return Err(format!("fetch {number} is {state:?} with {outcome:?}"));
        }
        if state != fetch.state {
            around.report.one("states", state_name(state));
            let order = |state| match state {
                State::PrefetchInit => 0,
                State::PrefetchInProgress => 1,
                State::PrefetchComplete => 2,
                State::ContextInit => 3,
            };
            if order(state) < order(fetch.state) {
                return Err(format!("fetch {number} went from {:?} to {state:?}", fetch.state));
            }
            if state == State::PrefetchInProgress {
                fetch.in_progress_ns = Some(now_ns);
            }
        }
        let present = progress.present.unwrap_or(0);
        if !(progress.moved <= present && present <= progress.requested)
            || progress.requested as usize != fetch.blocks.len()
            || report.bytes != u64::from(progress.moved) * BLOCK_BYTES as u64
            || report.skipped_local != fetch.first_block
        {
            return Err(format!("fetch {number}: a report that cannot be: {report:?}"));
        }
        let is_new = outcome.is_some() && fetch.outcome.is_none();
        let mut is_delivered = false;
        match outcome.filter(|_| is_new) {
            Some(Outcome::Delivered { blocks }) => {
                is_delivered = true;
                around.report.one("outcomes", "delivered");
                if blocks != progress.moved || blocks == 0 {
                    return Err(format!("fetch {number}: delivered {blocks}: {report:?}"));
                }
                if fetch.policy == Policy::Strict && blocks != progress.requested {
                    return Err(format!("fetch {number}: a part under strict"));
                }
                let sequence = around.prompts.sequence(fetch.prompt);
                if fetch.first_block + blocks as usize > sequence.full_block_count() {
                    around.report.one("transfers", "short last block delivered");
                }
                if blocks < progress.requested {
                    around.report.one("transfers", "best effort in part");
                }
                // Seen in the step that delivered it, at the same time.
                let since_ns = fetch.in_progress_ns.unwrap_or(now_ns);
                if now_ns >= since_ns + fetch.deadlines.transfer_ns {
                    return Err(format!("fetch {number}: a late completion was believed"));
                }
            }
            Some(Outcome::ContentMiss) => around.report.one("outcomes", "content_miss"),
            Some(Outcome::Cancelled) => {
                around.report.one("outcomes", "cancelled");
                if !fetch.is_cancelled {
                    return Err(format!("fetch {number}: cancelled by nobody"));
                }
            }
            Some(Outcome::Failed(reason)) => {
                around.report.one("outcomes", "failed");
                around.report.one("reasons", reason.name());
                if reason.name() == "corrupted" && !around.damages {
                    return Err(format!("fetch {number}: corrupted, and nothing was damaged"));
                }
            }
            None => {}
        }
        if is_new {
            let check = match report.hint_check {
                HintCheck::Unknown => "unknown",
                HintCheck::Matches => "matches",
                HintCheck::Stale => "stale",
                HintCheck::Shifted => "shifted",
                HintCheck::Unrelated => "unrelated",
            };
            around.report.one("hint checks", check);
        }
        fetch.state = state;
        fetch.outcome = outcome;
        let is_newly_quiesced = is_quiesced && !fetch.is_quiesced;
        fetch.is_quiesced = is_quiesced;
        if is_newly_quiesced && !is_delivered {
            // From here on nothing may change any more, whatever is in the blocks.
            let fetch = &self.fetches[index];
            let (count, ids) = (fetch.blocks.len(), fetch.blocks.clone());
            for offset in 0..count {
                self.check_lent(around, &self.fetches[index], offset)?;
            }
            ids.into_iter().for_each(|id| self.accept(id));
        }
        Ok(is_delivered)
    }

    /// A block lent to a running fetch holds what it held, or what is fetched.
    fn check_lent(&self, around: &Around, fetch: &Fetch, offset: usize) -> Kept {
        let id = fetch.blocks[offset];
        let bytes = self.bytes(id);
        let is_old = bytes == self.shadow(id);
        let mut names = around.prompts.holding(fetch.prompt, fetch.first_block + offset);
        let mut is_new = || names.any(|name| bytes == content(&name));
        promise!(is_old || is_new(), "fetch {}: block {id} holds nonsense", fetch.number);
        Ok(())
    }

    fn check_memory(&self, around: &Around) -> Kept {
        for fetch in self.fetches.iter().filter(|fetch| !fetch.is_quiesced) {
            for offset in 0..fetch.blocks.len() {
                self.check_lent(around, fetch, offset)?;
            }
        }
        let is_running = |number: u64| {
            self.fetches.iter().any(|fetch| fetch.number == number && !fetch.is_quiesced)
        };
        for id in 0..BLOCK_COUNT as i32 {
            let used = self.uses[id as usize];
            if matches!(used, Use::Lent(number) if is_running(number)) {
                continue;
            }
            let is_same = self.bytes(id) == self.shadow(id);
            promise!(is_same, "block {id}, {used:?}, was written by somebody else");
        }
        Ok(())
    }

    fn check_counts(&self) -> Kept {
        let Some(transceiver) = self.transceiver.as_ref().filter(|_| self.driver.is_some()) else {
            return Ok(());
        };
        let metrics = &self.metrics;
        let failed: u64 =
            (0..Metrics::PREFETCH_FAILURES.len()).map(|at| metrics.prefetches_failed.get(at)).sum();
        let ended = metrics.prefetches_delivered.get(0)
            + metrics.prefetches_missed.get(0)
            + metrics.prefetches_cancelled.get(0)
            + failed;
        let accepted = metrics.prefetches_accepted.get(0);
        promise!(accepted == self.begun, "{accepted} accepted, {} begun", self.begun);
        let open = self.fetches.iter().filter(|fetch| fetch.outcome.is_none()).count() as u64;
        let is_counted = ended + open <= accepted && accepted <= ended + open + self.dropped_open;
        promise!(is_counted, "{accepted} accepted, {ended} ended, {open} open");
        let running = transceiver.prefetches_in_flight();
        let unquiesced = self.fetches.iter().filter(|fetch| !fetch.is_quiesced).count();
        let is_in = (unquiesced..=unquiesced + self.dropped_running).contains(&running);
        promise!(
            is_in,
            "{running} in flight, {unquiesced} not quiesced, {} dropped before: {}",
            self.dropped_running,
            self.fetches_in_words()
        );
        let lent = transceiver.blocks_lent();
        let of_handles: usize =
            self.fetches.iter().filter(|f| !f.is_over()).map(|f| f.blocks.len()).sum();
        let is_in = of_handles <= lent && lent <= of_handles + self.winding.len();
        promise!(is_in, "{lent} blocks lent, {of_handles} of live fetches");
        let pins = self.tree.statistics().live_pins;
        let (own, serving) = (self.own_pins(), transceiver.status().requests_in_flight);
        promise!(pins == own + serving, "{pins} pins: {own} the host's, {serving} requests served");
        Ok(())
    }

    /// What its fetches are at, for whoever looks at a seed.
    pub fn fetches_in_words(&self) -> String {
        let words = self.fetches.iter().map(|fetch| {
            format!("{} {:?} {:?}", fetch.number, fetch.handle.poll(), fetch.handle.report())
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// Whether anything is still going on.
    pub fn is_settled(&self) -> bool {
        let Some(transceiver) = &self.transceiver else { return true };
        transceiver.prefetches_in_flight() == 0
            && transceiver.blocks_lent() == 0
            && transceiver.status().requests_in_flight == 0
    }

    /// What must be so when all is quiet.
    pub fn check_settled(&mut self, around: &mut Around) -> Kept {
        self.fetches.iter_mut().for_each(|fetch| fetch.state = fetch.handle.poll().0);
        self.settle(around, true)?;
        promise!(self.fetches.is_empty(), "{} fetches never ended", self.fetches.len());
        while !self.fences.is_empty() {
            self.pass_fence();
        }
        self.pins.clear();
        let statistics = self.tree.statistics();
        let (pins, protected) = (statistics.live_pins, statistics.protected_blocks);
        promise!(
            pins == 0 && protected == 0,
            "{pins} pins, {protected} blocks protected at the end"
        );
        self.see_what_left(around);
        let free = self.with_use(|used| used == Use::Free).len();
        let stored = self.with_use(|used| used == Use::Stored).len();
        let in_tree = statistics.stored_blocks;
        promise!(free + stored == BLOCK_COUNT && stored == in_tree, "{free} free, {stored} stored");
        self.winding.clear();
        if self.driver.is_none() {
            return Ok(());
        }
        (self.dropped_open, self.dropped_running) = (0, 0);
        self.check_counts()?;
        let metrics = &self.metrics;
        let delivered = metrics.prefetches_delivered.get(0);
        let ends: u64 =
            (0..Metrics::LEASE_ENDS.len()).map(|at| metrics.prefetch_leases_ended.get(at)).sum();
        promise!(ends == delivered, "{delivered} delivered, {ends} leases ended");
        let states = &metrics.prefetch_state_seconds;
        let counted = [states.count(0), states.count(2)];
        promise!(counted == [self.begun, delivered], "times of {counted:?} states");
        Ok(())
    }

    /// Adds what the metrics say to a report.
    pub fn tell(&self, report: &mut Report) {
        let metrics = &self.metrics;
        for (index, name) in Metrics::SOURCE_REFUSALS.iter().enumerate() {
            report.add("refusals", name, metrics.source_requests_refused.get(index));
        }
        for (index, name) in Metrics::LEASE_ENDS.iter().enumerate() {
            report.add("lease ends", name, metrics.prefetch_leases_ended.get(index));
        }
        report.add("traffic", "blocks delivered", metrics.prefetch_blocks.get(0));
        report.add("traffic", "bytes delivered", metrics.prefetch_bytes.get(0));
        report.add("traffic", "prefetches accepted", metrics.prefetches_accepted.get(0));
        report.add("traffic", "requests served", metrics.source_requests_served.get(0));
        report.add("traffic", "requests missed", metrics.source_requests_missed.get(0));
        let unreadable = metrics.transfer_messages_unreadable.get(0);
        report.add("traffic", "messages unreadable", unreadable);
    }

    /// Something writes where it must not.
    pub fn write_late(&mut self) {
        let Some(fetch) = self.fetches.iter().find(|fetch| fetch.is_quiesced) else { return };
        let mut bytes = self.bytes(fetch.blocks[0]).to_vec();
        bytes[0] ^= 1;
        assert!(self.pool.fill(fetch.blocks[0], &bytes, false));
    }
}

fn refusal_name(refusal: BeginError) -> &'static str {
    match refusal {
        BeginError::NothingToFetch => "nothing_to_fetch",
        BeginError::BadDestination => "bad_destination",
        BeginError::DestinationInUse => "destination_in_use",
        BeginError::DestinationHeld => "destination_held",
        BeginError::Limit => "limit",
        _ => "other",
    }
}
