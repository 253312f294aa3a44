//! Fetches between workers whose blocks a device has: what a device has not finished is neither sent nor
//! delivered, memory that it may touch stays, and whatever fails, every fetch ends and everything is
//! back. Workers have no threads here, but for one test, and devices do what the test lets them.

mod device_support;
mod transfer_support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use device_support::{Asked, FakeDevice};
use kvhints::clock::Clock;
use kvhints::plan::Endpoint;
use kvhints::poison::Poison;
use kvhints::reuse::{NoObserver, Policy, ReuseTree, ReuseTreeConfig, Sequence};
use kvhints::telemetry::Metrics;
use kvhints::transfer::device::plan::Direction;
use kvhints::transfer::device::pool::DevicePool;
use kvhints::transfer::layout::{CacheLayout, ParallelLayout};
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::memory::BlockMemory;
use kvhints::transfer::prefetch::Outcome;
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::state_source::{Reply, StateSource};
use kvhints::transfer::transceiver::{
    BeginError, DestinationLimits, Driver, FetchOrder, Origin, PrefetchHandle, Round, SourceLimits,
    Surroundings, Transceiver, TransceiverConfig, TreeAndPool,
};
use transfer_support::{
    cache_layout, order, outcome, sequence, wait_until, HandClock, NAMESPACE, ONE_RANK,
    TOKENS_PER_BLOCK,
};

const BLOCK_COUNT: usize = 32;
const LAYERS: usize = 2;
const HEADS: usize = 4;
/// Of keys or values of one block.
const HEAD_BYTES: usize = 64 * TOKENS_PER_BLOCK * 2;

/// States come with the orders.
struct NoStates;

impl StateSource for NoStates {
    fn request(&self, _: &Endpoint, _: Duration, _: Reply) {
        panic!("nobody asks for a state");
    }

    fn forget(&self, _: &Endpoint) {}
}

/// One rank whose blocks a device has.
struct DeviceWorker {
    // First: dropped before the memory.
    driver: Option<Driver>,
    transceiver: Option<Transceiver>,
    tree: ReuseTree,
    device: Arc<FakeDevice>,
    clock: Arc<HandClock>,
    metrics: Arc<Metrics>,
    block_bytes: usize,
    base: *mut u8,
    memory: Vec<u128>,
}

/// How a worker is cut, and what it has.
#[derive(Clone, Copy)]
struct Make {
    number: u8,
    tensor_ranks: usize,
    rank: usize,
    has_kernels: bool,
    /// Blocks of a run.
    run_blocks: usize,
    /// Whether the library's thread does the rounds.
    has_thread: bool,
}

const PLAIN: Make = Make {
    number: 1,
    tensor_ranks: 1,
    rank: 0,
    has_kernels: true,
    run_blocks: 4,
    has_thread: false,
};

fn block_bytes(tensor_ranks: usize) -> usize {
    LAYERS * 2 * (HEADS / tensor_ranks) * HEAD_BYTES
}

impl DeviceWorker {
    fn new(hub: &Arc<LoopbackHub>, make: Make) -> Self {
        let block_bytes = block_bytes(make.tensor_ranks);
        let mut memory = vec![0u128; block_bytes * BLOCK_COUNT / 16];
        let base = memory.as_mut_ptr().cast::<u8>();
        let device = FakeDevice::new(make.has_kernels);
        device.runs_at_once(true);
        let driver = Arc::clone(&device);
        // SAFETY: the memory is dropped after driver and transceiver.
        let pool = unsafe { DevicePool::new(driver, base as u64, block_bytes, BLOCK_COUNT) };
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: 7,
            observer: Arc::new(NoObserver),
        })
        .unwrap();
        let clock = Arc::new(HandClock::default());
        let metrics = Arc::new(Metrics::new());
        let run_bytes = make.run_blocks * block_bytes;
        let config = TransceiverConfig {
            rank: make.rank as u32,
            namespace: NAMESPACE.to_vec(),
            cache: CacheLayout {
                kv_heads_per_layer: vec![(HEADS / make.tensor_ranks) as u32; LAYERS],
                ..cache_layout()
            },
            parallel: ParallelLayout { tensor: make.tensor_ranks as u32, ..ONE_RANK },
            owner: Arc::new(TreeAndPool { tree: tree.clone(), window: 0, pool: pool.unwrap() }),
            source_limits: SourceLimits { run_bytes, ..SourceLimits::default() },
            destination_limits: DestinationLimits::default(),
            max_prefetches: 16,
        };
        let surroundings = Surroundings {
            incarnation: Incarnation([make.number * 16 + make.rank as u8; 16]),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            metrics: Arc::clone(&metrics),
            poison: Arc::new(Poison::default()),
        };
        let transport = Box::new(hub.transport());
        let (transceiver, driver) = if make.has_thread {
            (Transceiver::start(config, transport, surroundings).unwrap(), None)
        } else {
            let states = Arc::new(NoStates);
            let (transceiver, driver) =
                Transceiver::without_thread(config, transport, states, surroundings).unwrap();
            (transceiver, Some(driver))
        };
        Self {
            driver,
            transceiver: Some(transceiver),
            tree,
            device,
            clock,
            metrics,
            block_bytes,
            base,
            memory,
        }
    }

    fn transceiver(&self) -> &Transceiver {
        self.transceiver.as_ref().unwrap()
    }

    fn round(&mut self) -> Round {
        self.driver.as_mut().map_or(Round::Stopped, Driver::round)
    }

    fn block(&mut self, id: i32) -> &mut [u8] {
        // SAFETY: inside of the memory, which devices touch in rounds and when told to, only.
        unsafe {
            let start = self.base.add(id as usize * self.block_bytes);
            std::slice::from_raw_parts_mut(start, self.block_bytes)
        }
    }

    /// Puts a prompt's blocks from a rank's point of view, with the ids from 0 on.
    fn hold(&mut self, sequence: &Sequence, make: Make) {
        let ids: Vec<i32> = (0..sequence.names().len() as i32).collect();
        for id in &ids {
            let bytes = bytes_of(make, *id as usize);
            self.block(*id).copy_from_slice(&bytes);
        }
        self.tree.store(0, sequence, 0, &ids).unwrap();
    }

    fn origin(&self) -> Origin {
        Origin::State(Arc::new(State::decode(&self.transceiver().state().unwrap()).unwrap()))
    }

    fn begin(
        &self,
        from: &DeviceWorker,
        sequence: &Sequence,
        destination: &[i32],
    ) -> Result<PrefetchHandle, BeginError> {
        self.begin_order(&order(from.origin(), sequence, destination, Policy::Strict))
    }

    fn begin_order(&self, order: &FetchOrder<'_>) -> Result<PrefetchHandle, BeginError> {
        self.transceiver().begin(order)
    }

    fn pins(&self) -> usize {
        self.tree.statistics().live_pins
    }

    /// Ends it, and sees that the device gave everything back, and touched nothing that was gone.
    fn end(mut self, may_leak: bool) {
        self.driver = None;
        self.transceiver = None;
        self.device.assert_clean();
        assert!(may_leak || self.device.allocations() == 0, "all staging is given back");
        assert_eq!(self.pins(), 0);
        assert!(!self.memory.is_empty());
    }
}

/// What a rank's block holds of one place of a prompt.
fn bytes_of(make: Make, position: usize) -> Vec<u8> {
    let heads = HEADS / make.tensor_ranks;
    let mut bytes = Vec::new();
    for layer in 0..LAYERS {
        for kv in 0..2 {
            for head in make.rank * heads..(make.rank + 1) * heads {
                let place = ((position * LAYERS + layer) * 2 + kv) * HEADS + head;
                bytes.extend((0..HEAD_BYTES).map(|at| (place * 37 + at * 3 + at / 256 + 1) as u8));
            }
        }
    }
    bytes
}

/// Rounds of all, until nothing is to be done but for what a device has to do.
fn turn(workers: &mut [&mut DeviceWorker]) {
    for _ in 0..10_000 {
        let rounds: Vec<Round> = workers.iter_mut().map(|worker| worker.round()).collect();
        if rounds.iter().all(|round| *round != Round::Busy) {
            // What one of them did last may be news to another.
            let again: Vec<Round> = workers.iter_mut().map(|worker| worker.round()).collect();
            if again == rounds {
                return;
            }
        }
    }
    panic!("there is always more to do");
}

/// A source that holds six blocks, in runs of two, and a destination, of one rank each.
fn pair(has_kernels: bool) -> (DeviceWorker, DeviceWorker, Sequence) {
    let hub = LoopbackHub::new(1);
    let sequence = sequence(6, 1);
    let make = Make { has_kernels, run_blocks: 2, ..PLAIN };
    let mut source = DeviceWorker::new(&hub, make);
    source.hold(&sequence, make);
    let destination = DeviceWorker::new(&hub, Make { number: 2, ..make });
    (source, destination, sequence)
}

const TARGETS: [i32; 6] = [20, 9, 31, 10, 11, 12];

fn is_in_place(destination: &mut DeviceWorker) -> bool {
    TARGETS
        .iter()
        .enumerate()
        .all(|(position, id)| destination.block(*id) == bytes_of(PLAIN, position))
}

fn is_untouched(destination: &mut DeviceWorker) -> bool {
    TARGETS.iter().all(|id| destination.block(*id).iter().all(|byte| *byte == 0))
}

#[test]
fn what_a_device_has_not_finished_is_neither_sent_nor_delivered() {
    for has_kernels in [true, false] {
        let (mut source, mut destination, sequence) = pair(has_kernels);
        source.device.runs_at_once(false);
        destination.device.runs_at_once(false);
        let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();

        turn(&mut [&mut source, &mut destination]);
        assert_eq!(source.round(), Round::Copying);
        assert!(source.pins() > 0, "pinned as long as the device reads");
        assert_eq!(destination.metrics.transfer_staging_bytes.get(0), 0, "nothing was sent");
        // All that the first copy does, but for the event after it.
        let asked = source.device.asked();
        let first_record = asked.iter().position(|asked| *asked == Asked::Record).unwrap();
        source.device.run(first_record);
        turn(&mut [&mut source, &mut destination]);
        assert_eq!(destination.metrics.transfer_staging_bytes.get(0), 0, "nothing was sent");
        source.device.run(1);
        turn(&mut [&mut source, &mut destination]);
        let two_blocks = 2 * destination.block_bytes as u64;
        assert_eq!(destination.metrics.transfer_staging_bytes.get(0), two_blocks);
        source.device.run(usize::MAX);
        turn(&mut [&mut source, &mut destination]);
        assert_eq!(source.pins(), 0, "all is sent");

        assert!(is_untouched(&mut destination));
        assert_eq!(destination.round(), Round::Copying);
        while destination.device.pending() > 1 {
            destination.device.run(1);
            turn(&mut [&mut source, &mut destination]);
            assert_eq!(handle.poll().1, None, "the last event has not come");
            assert!(!handle.is_quiesced());
        }
        assert!(is_in_place(&mut destination));
        destination.device.run(1);
        turn(&mut [&mut source, &mut destination]);
        assert_eq!(handle.poll().1, Some(Outcome::Delivered { blocks: 6 }));
        assert!(handle.is_quiesced());
        assert_eq!(handle.claim(), Some(6));
        assert_eq!(destination.metrics.transfer_staging_bytes.get(0), 0);
        assert_eq!((source.device.waits(), destination.device.waits()), (0, 0), "nobody waited");
        drop(handle);
        source.end(false);
        destination.end(false);
    }
}

#[test]
fn each_copy_follows_the_hosts_work_and_ends_with_its_event() {
    for (has_kernels, direction) in
        [(true, Direction::Gather), (false, Direction::Gather), (true, Direction::Scatter)]
    {
        let (mut source, mut destination, sequence) = pair(has_kernels);
        let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
        turn(&mut [&mut source, &mut destination]);
        assert_eq!(handle.poll().1, Some(Outcome::Delivered { blocks: 6 }));
        let device = match direction {
            Direction::Gather => &source.device,
            Direction::Scatter => &destination.device,
        };
        let asked = device.asked();
        let runs: Vec<&[Asked]> = asked.split_inclusive(|asked| *asked == Asked::Record).collect();
        assert_eq!(runs.len(), 3);
        for run in runs {
            let (first, rest) = run.split_first().unwrap();
            let (last, moves) = rest.split_last().unwrap();
            assert_eq!((*first, *last), (Asked::Follow, Asked::Record));
            let is_move = |asked: &Asked| match asked {
                Asked::Copy(way) | Asked::Launch(way) => *way == direction,
                _ => false,
            };
            assert!(!moves.is_empty() && moves.iter().all(is_move), "{moves:?}");
        }
        drop(handle);
        source.end(false);
        destination.end(false);
    }
}

#[test]
fn a_cancelled_fetch_keeps_its_blocks_until_the_device_is_done() {
    let (mut source, mut destination, sequence) = pair(true);
    destination.device.runs_at_once(false);
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    handle.cancel();
    turn(&mut [&mut source, &mut destination]);
    assert_eq!(handle.poll().1, Some(Outcome::Cancelled));
    assert!(!handle.is_quiesced(), "the device may write still");
    let again = || destination.begin(&source, &sequence, &TARGETS).map(|_| ());
    assert_eq!(again(), Err(BeginError::DestinationInUse));
    // However long it takes.
    destination.clock.pass(3_600_000_000_000);
    turn(&mut [&mut source, &mut destination]);
    assert!(!handle.is_quiesced());
    destination.device.runs_at_once(true);
    turn(&mut [&mut source, &mut destination]);
    assert!(handle.is_quiesced());
    assert_eq!(handle.poll().1, Some(Outcome::Cancelled));
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    assert_eq!(handle.poll().1, Some(Outcome::Delivered { blocks: 6 }));
    drop(handle);
    source.end(false);
    destination.end(false);
}

#[test]
fn a_late_copy_is_no_delivery() {
    let (mut source, mut destination, sequence) = pair(true);
    destination.device.runs_at_once(false);
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    destination.clock.pass(3_600_000_000_000);
    destination.device.runs_at_once(true);
    turn(&mut [&mut source, &mut destination]);
    assert_eq!(handle.poll().1, Some(Outcome::Failed(FailReason::TransferTimeout)));
    assert!(handle.is_quiesced());
    drop(handle);
    source.end(false);
    destination.end(false);
}

#[test]
fn who_destroys_a_fetch_waits_for_the_device() {
    let (mut source, mut destination, sequence) = pair(true);
    destination.device.runs_at_once(false);
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    let device = Arc::clone(&destination.device);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let dropping = std::thread::spawn({
        let is_dropped = Arc::clone(&is_dropped);
        move || {
            drop(handle);
            assert_eq!(device.pending(), 0, "nothing is written afterwards");
            is_dropped.store(true, Ordering::SeqCst);
        }
    });
    for _ in 0..100 {
        destination.round();
        std::thread::yield_now();
    }
    assert!(!is_dropped.load(Ordering::SeqCst));
    destination.device.runs_at_once(true);
    turn(&mut [&mut source, &mut destination]);
    dropping.join().unwrap();
    turn(&mut [&mut source, &mut destination]);
    assert_eq!(destination.transceiver().blocks_lent(), 0);
    source.end(false);
    destination.end(false);
}

#[test]
fn a_destination_that_goes_leaves_pins_until_the_device_is_done() {
    let (mut source, mut destination, sequence) = pair(true);
    source.device.runs_at_once(false);
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    let pins = source.pins();
    destination.driver = None;
    assert_eq!(handle.poll().1, Some(Outcome::Failed(FailReason::Shutdown)));
    turn(&mut [&mut source]);
    assert_eq!(source.pins(), pins, "the device reads still");
    source.device.runs_at_once(true);
    turn(&mut [&mut source]);
    assert_eq!(source.pins(), 0);
    assert_eq!(source.transceiver().status().requests_in_flight, 0);
    drop(handle);
    source.end(false);
    destination.end(false);
}

#[test]
fn an_end_waits_for_what_a_device_copies() {
    // The source's end.
    let (mut source, mut destination, sequence) = pair(true);
    source.device.runs_at_once(false);
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    let waits = source.device.waits();
    let tree = source.tree.clone();
    source.device.when_waited_for(move || assert!(tree.statistics().live_pins > 0));
    source.driver = None;
    assert!(source.device.waits() > waits && source.device.pending() == 0);
    turn(&mut [&mut destination]);
    assert_eq!(handle.poll().1, Some(Outcome::Failed(FailReason::PeerGone)));
    drop(handle);
    source.end(false);
    destination.end(false);
    // The destination's.
    let (mut source, mut destination, sequence) = pair(true);
    destination.device.runs_at_once(false);
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    turn(&mut [&mut source, &mut destination]);
    assert!(!handle.is_quiesced());
    destination.driver = None;
    assert_eq!(destination.device.pending(), 0);
    assert_eq!(handle.poll().1, Some(Outcome::Failed(FailReason::Shutdown)));
    assert!(handle.is_quiesced());
    turn(&mut [&mut source]);
    drop(handle);
    source.end(false);
    destination.end(false);
}

/// One fetch with the n-th call to one side's device failing; whether the call came.
fn fails_at(call: usize, at_source: bool, stays: bool, at_once: bool) -> bool {
    let (mut source, mut destination, sequence) = pair(at_once);
    let failing = Arc::clone(if at_source { &source.device } else { &destination.device });
    failing.runs_at_once(at_once);
    failing.fails_at(call, stays);
    let what = format!("call {call}, at the source: {at_source}, for good: {stays}");
    let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
    for _ in 0..100 {
        turn(&mut [&mut source, &mut destination]);
        let are_blocks_free = if at_source { source.pins() == 0 } else { handle.is_quiesced() };
        assert!(!are_blocks_free || failing.pending() == 0, "{what}: the device still copies");
        if handle.is_quiesced() && source.pins() == 0 {
            break;
        }
        failing.run(3);
    }
    assert!(handle.is_quiesced(), "{what}");
    let has_failed = failing.has_failed();
    match handle.poll().1.unwrap() {
        Outcome::Delivered { blocks: 6 } => assert!(is_in_place(&mut destination), "{what}"),
        _ if !has_failed => panic!("{what}: {:?}", handle.poll()),
        Outcome::Failed(FailReason::SourceBusy) => assert!(at_source, "{what}"),
        Outcome::Failed(FailReason::DeviceFailed | FailReason::Limit) => {
            assert!(!at_source, "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
    drop(handle);
    turn(&mut [&mut source, &mut destination]);
    assert_eq!((source.pins(), destination.transceiver().blocks_lent()), (0, 0), "{what}");
    assert_eq!(source.metrics.source_requests_in_flight.get(0), 0, "{what}");
    assert_eq!(destination.metrics.transfer_staging_bytes.get(0), 0, "{what}");
    if has_failed && !stays {
        // The next fetch is none the worse for it.
        failing.runs_at_once(true);
        let handle = destination.begin(&source, &sequence, &TARGETS).unwrap();
        turn(&mut [&mut source, &mut destination]);
        assert_eq!(handle.poll().1, Some(Outcome::Delivered { blocks: 6 }), "{what}");
        assert!(is_in_place(&mut destination), "{what}");
    }
    // What a device that failed for good may still touch is not given back.
    source.end(stays);
    destination.end(stays);
    has_failed
}

#[test]
fn a_device_that_fails_at_any_call_ends_the_fetch_and_nothing_else() {
    for at_source in [true, false] {
        for stays in [true, false] {
            for at_once in [true, false] {
                let calls = (1..10_000).take_while(|n| fails_at(*n, at_source, stays, at_once));
                assert!(calls.count() > 10, "all kinds of calls are made");
            }
        }
    }
}

#[test]
fn heads_are_split_and_joined_by_devices() {
    for (theirs, ours) in [(2, 1), (1, 2), (4, 2), (2, 4)] {
        for has_kernels in [true, false] {
            let hub = LoopbackHub::new(1);
            let sequence = sequence(5, 1);
            let worker = |number, tensor_ranks| -> Vec<DeviceWorker> {
                let make = |rank| Make { number, tensor_ranks, rank, has_kernels, ..PLAIN };
                let ranks: Vec<DeviceWorker> =
                    (0..tensor_ranks).map(|rank| DeviceWorker::new(&hub, make(rank))).collect();
                let entries: Vec<&[u8]> =
                    ranks.iter().map(|rank| rank.transceiver().rank_entry()).collect();
                ranks.iter().for_each(|rank| rank.transceiver().set_state(&entries).unwrap());
                ranks
            };
            let mut sources = worker(1, theirs);
            for (rank, source) in sources.iter_mut().enumerate() {
                source.hold(&sequence, Make { tensor_ranks: theirs, rank, ..PLAIN });
            }
            let mut destinations = worker(2, ours);
            let targets = [7, 3, 19, 4, 5];
            let handles: Vec<PrefetchHandle> = destinations
                .iter()
                .map(|of_rank| of_rank.begin(&sources[0], &sequence, &targets).unwrap())
                .collect();
            let mut all: Vec<&mut DeviceWorker> =
                sources.iter_mut().chain(&mut destinations).collect();
            turn(&mut all);
            for handle in &handles {
                assert_eq!(handle.poll().1, Some(Outcome::Delivered { blocks: 5 }));
            }
            for (rank, destination) in destinations.iter_mut().enumerate() {
                let make = Make { tensor_ranks: ours, rank, ..PLAIN };
                for (position, id) in targets.iter().enumerate() {
                    assert!(destination.block(*id) == bytes_of(make, position));
                }
                let is_launch = |asked: &Asked| matches!(asked, Asked::Launch(_));
                assert_eq!(destination.device.asked().iter().any(is_launch), has_kernels);
            }
            drop(handles);
            sources.into_iter().chain(destinations).for_each(|worker| worker.end(false));
        }
    }
}

#[test]
fn a_device_pool_says_nothing_of_the_hosts_memory_and_bounds_its_ids() {
    let device = FakeDevice::new(true);
    // SAFETY: nothing is copied.
    let pool = unsafe { DevicePool::new(device.clone(), 4096, 64, 4) }.unwrap();
    assert!((0..4).all(|id| pool.contains(id) && pool.block(id).is_none()));
    assert!([-1, 4, i32::MIN, i32::MAX].iter().all(|id| !pool.contains(*id)));
    for ids in [vec![-1], vec![4], vec![0, 9], vec![], vec![0, 1]] {
        let staging = pool.staging(64).unwrap();
        assert!(pool.begin(Direction::Scatter, &ids, None, staging).is_err(), "{ids:?}");
    }
    assert_eq!(device.pending(), 0);
    let refused = |base, bytes, count| {
        // SAFETY: no pool is made.
        unsafe { DevicePool::new(device.clone(), base, bytes, count) }.is_err()
    };
    assert!(refused(0, 64, 4) && refused(4096, 0, 4) && refused(4096, 64, 0));
    assert!(refused(u64::MAX - 64, 64, 4) && refused(4096, usize::MAX, 2));
    assert!(refused(4096, 1, 1 << 31));
    drop(pool);
    assert_eq!(device.allocations(), 0);
    device.assert_clean();
}

#[test]
fn the_librarys_thread_sees_what_a_device_has_done() {
    let hub = LoopbackHub::new(1);
    let prompt = sequence(6, 1);
    let make = Make { run_blocks: 2, has_thread: true, ..PLAIN };
    let mut source = DeviceWorker::new(&hub, make);
    source.hold(&prompt, make);
    let mut destination = DeviceWorker::new(&hub, Make { number: 2, ..make });
    source.device.runs_at_once(false);
    destination.device.runs_at_once(false);
    let handle = destination.begin(&source, &prompt, &TARGETS).unwrap();
    for device in [&source.device, &destination.device] {
        wait_until("a copy", || device.pending() > 0);
        assert_eq!(handle.poll().1, None);
        device.runs_at_once(true);
    }
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 6 });
    wait_until("no pins", || source.pins() == 0);
    assert!(is_in_place(&mut destination));
    drop(handle);
    source.end(false);
    destination.end(false);
}
