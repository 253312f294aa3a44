//! Blocks in the memory of a CUDA device, on a real one: `scripts/gpu_check`.
//!
//! Copies out of a pool on the device and back, whole blocks and heads, with kernels and without; then
//! fetches from worker to worker, blocks on the device at both ends. Every byte is compared with what
//! host code makes of it; a difference ends the program with 1. Without a device: 77, and why.

use std::ops::Range;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{result, CudaContext};
use kvhints::clock::SystemClock;
use kvhints::poison::Poison;
use kvhints::reuse::{NoObserver, Policy, ReuseTree, ReuseTreeConfig, Sequence, SequenceParams};
use kvhints::telemetry::Metrics;
use kvhints::transfer::device::cuda::{availability, CudaDriver};
use kvhints::transfer::device::driver::DeviceDriver;
use kvhints::transfer::device::plan::Direction;
use kvhints::transfer::device::pool::DevicePool;
use kvhints::transfer::layout::{Attention, CacheLayout, DataType, ParallelLayout};
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::memory::{BlockMemory, BlockPool};
use kvhints::transfer::prefetch::{Deadlines, Outcome};
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::transceiver::{
    DestinationLimits, FetchOrder, Origin, SourceLimits, Surroundings, Transceiver,
    TransceiverConfig, TreeAndPool,
};
use kvhints::transfer::transport::Transport;
use kvhints::transfer::ucx::{UcxOptions, UcxTransport};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Copies that are under way at a time, as for a fetch.
const COPIES_AT_ONCE: usize = 8;
const REPEATS: usize = 7;
const POOL_BYTES: usize = 256 << 20;
const RUN_BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    if let Err(why) = availability() {
        println!("no GPU was checked: {why}");
        return ExitCode::from(77);
    }
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Fallible<()> {
    let context = CudaContext::new(0)?;
    println!("{}", context.name()?);
    for has_kernels in [true, false] {
        let words = if has_kernels { "copies and kernels" } else { "plain copies only" };
        println!("\n{words}\n{:>24} {:>14} {:>14}", "GB/s", "gather", "scatter");
        for (name, block_bytes, is_scattered, pieces) in cases() {
            let speeds = copies(has_kernels, block_bytes, is_scattered, &pieces)?;
            println!("{name:>24} {:>14.1} {:>14.1}", speeds[0], speeds[1]);
        }
    }
    println!("\nfrom worker to worker, the device at both ends");
    for (theirs, ours) in [(1, 1), (2, 1), (1, 2)] {
        let hub = LoopbackHub::new(1);
        let within = || -> Fallible<Box<dyn Transport>> { Ok(Box::new(hub.transport())) };
        println!(
            "{theirs} to {ours} ranks, in one process: {:.1} GB/s",
            fetch(theirs, ours, &within)?
        );
    }
    for wires in ["tcp", "all"] {
        let over_ucx = || -> Fallible<Box<dyn Transport>> {
            let options = UcxOptions {
                tls: Some(wires.to_owned()),
                net_devices: Some("lo".to_owned()),
                ..UcxOptions::default()
            };
            Ok(Box::new(UcxTransport::open(options)?))
        };
        if let Err(error) = over_ucx() {
            println!("SKIPPED UCX: {error}");
            break;
        }
        println!("over UCX ({wires}): {:.1} GB/s", fetch(1, 1, &over_ucx)?);
    }
    Ok(())
}

/// Name, bytes of a block, whether blocks lie apart, and the pieces that are copied.
fn cases() -> Vec<(&'static str, usize, bool, Vec<Range<usize>>)> {
    let whole = |bytes: usize| std::iter::once(0..bytes).collect();
    // One of eight heads of 32 layers: keys and values of 32 tokens, 128 numbers of two bytes.
    let head = 32 * 128 * 2;
    let heads = |first: usize, count: usize| {
        (0..64).map(|row| (row * 8 + first) * head..(row * 8 + first + count) * head).collect()
    };
    vec![
        ("32 KiB, side by side", 32 << 10, false, whole(32 << 10)),
        ("32 KiB, apart", 32 << 10, true, whole(32 << 10)),
        ("64 KiB, apart", 64 << 10, true, whole(64 << 10)),
        ("1 MiB, apart", 1 << 20, true, whole(1 << 20)),
        ("one head of eight", 512 * head, true, heads(3, 1)),
        ("four heads of eight", 512 * head, true, heads(4, 4)),
        ("odd bytes, apart", 10_001, true, Vec::from([1..4_000, 5_001..10_000])),
    ]
}

fn byte_at(index: usize, salt: usize) -> u8 {
    (index * 7 + index / 251 + salt * 31) as u8
}

/// Memory of the device.
struct DeviceMemory {
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    fn new(bytes: usize, salt: usize) -> Fallible<Self> {
        // SAFETY: the context is this thread's; freed once.
        let memory = Self { address: unsafe { result::malloc_sync(bytes) }?, bytes };
        memory.write(&(0..bytes).map(|index| byte_at(index, salt)).collect::<Vec<u8>>())?;
        Ok(memory)
    }

    fn write(&self, bytes: &[u8]) -> Fallible<()> {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: as long as that; nothing else runs on the device now.
        unsafe { result::memcpy_htod_sync(self.address, bytes) }?;
        // From memory that is not pinned the last bytes may still be on their way.
        Ok(result::ctx::synchronize()?)
    }

    fn read(&self) -> Fallible<Vec<u8>> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address) }?;
        Ok(bytes)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated once; no pool has it any more.
        if let Err(error) = unsafe { result::free_sync(self.address) } {
            println!("memory was not freed: {error}");
        }
    }
}

fn driver_of(memory: &DeviceMemory) -> Fallible<CudaDriver> {
    // SAFETY: no stream and no event.
    let driver = unsafe { CudaDriver::open(memory.address, memory.bytes, null_mut(), null_mut()) }?;
    if driver.has_kernels() {
        return Ok(driver);
    }
    Err("the device takes no kernels".into())
}

/// Gathers and scatters all blocks, in runs, compares, and says how fast both were.
fn copies(
    has_kernels: bool,
    block_bytes: usize,
    is_scattered: bool,
    pieces: &[Range<usize>],
) -> Fallible<[f64; 2]> {
    let block_count = (POOL_BYTES / block_bytes).min(2048);
    let memory = DeviceMemory::new(block_bytes * block_count, 1)?;
    let mut driver = driver_of(&memory)?;
    if !has_kernels {
        driver = driver.without_kernels();
    }
    // SAFETY: the memory is dropped after the pool.
    let pool =
        unsafe { DevicePool::new(Arc::new(driver), memory.address, block_bytes, block_count) }?;
    let step = if is_scattered { 2 } else { 1 };
    let ids: Vec<i32> = (0..block_count as i32).step_by(step).collect();
    let part_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let runs: Vec<&[i32]> = ids.chunks((RUN_BYTES / part_bytes).max(1)).collect();
    let mut expected = memory.read()?;
    // SAFETY: as long as the device's, and outlives the pool.
    let reference = unsafe { BlockPool::new(expected.as_mut_ptr(), block_bytes, block_count) }?;

    let mut speeds = [0.0; 2];
    for direction in [Direction::Gather, Direction::Scatter] {
        let mut times = Vec::new();
        for repeat in 0..REPEATS {
            let mut time = Duration::ZERO;
            for some in runs.chunks(COPIES_AT_ONCE) {
                let mut stagings = Vec::new();
                for run in some {
                    let bytes = run.len() * part_bytes;
                    let mut staging = pool.staging(bytes).ok_or("no staging")?;
                    let data = staging.segment().data;
                    for index in 0..bytes {
                        // SAFETY: inside of the staging, which no copy has now.
                        unsafe { data.add(index).write(byte_at(index, repeat)) };
                    }
                    stagings.push(staging);
                }
                let start = Instant::now();
                let mut copies = Vec::new();
                for (run, staging) in some.iter().zip(stagings) {
                    copies.push((run, pool.begin(direction, run, Some(pieces), staging)?));
                }
                let mut ended = Vec::new();
                for (run, mut copy) in copies {
                    let staging = loop {
                        if let Some(staging) = copy.poll() {
                            break staging?;
                        }
                    };
                    ended.push((run, staging));
                }
                time += start.elapsed();
                for (run, staging) in ended {
                    compare_run(&reference, direction, run, pieces, staging.bytes())?;
                }
            }
            times.push(time);
            if memory.read()? != expected {
                return Err(format!("{direction:?} left other bytes on the device").into());
            }
        }
        times.sort_unstable();
        let bytes = (ids.len() * part_bytes) as f64;
        speeds[direction as usize] = bytes / times[REPEATS / 2].as_secs_f64() / 1e9;
    }
    Ok(speeds)
}

/// After a gather staging is what host code gathers; a scatter is done to the reference too.
fn compare_run(
    reference: &BlockPool,
    direction: Direction,
    run: &[i32],
    pieces: &[Range<usize>],
    staging: &[u8],
) -> Fallible<()> {
    let parts = staging.chunks_exact(staging.len() / run.len());
    for (id, part) in run.iter().zip(parts) {
        let mut gathered = Vec::new();
        let is_right = match direction {
            Direction::Gather => reference.gather(*id, pieces, &mut gathered) && gathered == part,
            Direction::Scatter => reference.scatter(*id, pieces, part),
        };
        if !is_right {
            return Err(format!("block {id} was gathered wrongly").into());
        }
    }
    Ok(())
}

const TOKENS_PER_BLOCK: usize = 32;
const LAYERS: usize = 16;
const HEADS: usize = 8;
const BLOCKS: usize = 64;
/// Keys or values of one head and block: 128 numbers of two bytes for each token.
const HEAD_BYTES: usize = TOKENS_PER_BLOCK * 128 * 2;

/// One rank. The memory goes last.
struct Rank {
    transceiver: Transceiver,
    tree: ReuseTree,
    memory: DeviceMemory,
}

impl Rank {
    fn new(transport: Box<dyn Transport>, ranks: usize, rank: usize) -> Fallible<Self> {
        let block_bytes = LAYERS * 2 * (HEADS / ranks) * HEAD_BYTES;
        let memory = DeviceMemory::new(block_bytes * BLOCKS, 0)?;
        let driver = Arc::new(driver_of(&memory)?);
        // SAFETY: the memory is dropped after the transceiver.
        let pool = unsafe { DevicePool::new(driver, memory.address, block_bytes, BLOCKS) }?;
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: 7,
            observer: Arc::new(NoObserver),
        })?;
        let config = TransceiverConfig {
            rank: rank as u32,
            namespace: b"gpu_check".to_vec(),
            cache: CacheLayout {
                kv_heads_per_layer: vec![(HEADS / ranks) as u32; LAYERS],
                head_size: 128,
                tokens_per_block: TOKENS_PER_BLOCK as u32,
                data_type: DataType::Bfloat16,
                attention: Attention::KeysAndValues,
                kv_factor: 2,
                windows: vec![0],
            },
            parallel: ParallelLayout {
                tensor: ranks as u32,
                pipeline: 1,
                context: 1,
                attention_data: 1,
                layers_per_pipeline_rank: Vec::new(),
            },
            owner: Arc::new(TreeAndPool { tree: tree.clone(), window: 0, pool }),
            source_limits: SourceLimits::default(),
            destination_limits: DestinationLimits::default(),
            max_prefetches: 16,
        };
        let mut incarnation = [0; 16];
        getrandom::fill(&mut incarnation)?;
        let surroundings = Surroundings {
            incarnation: Incarnation(incarnation),
            clock: Arc::new(SystemClock::default()),
            metrics: Arc::new(Metrics::new()),
            poison: Arc::new(Poison::default()),
        };
        let transceiver = Transceiver::start(config, transport, surroundings)?;
        Ok(Self { transceiver, tree, memory })
    }
}

fn worker(
    ranks: usize,
    transport: &dyn Fn() -> Fallible<Box<dyn Transport>>,
) -> Fallible<Vec<Rank>> {
    let ranks = (0..ranks)
        .map(|rank| Rank::new(transport()?, ranks, rank))
        .collect::<Fallible<Vec<Rank>>>()?;
    let entries: Vec<&[u8]> = ranks.iter().map(|rank| rank.transceiver.rank_entry()).collect();
    for rank in &ranks {
        rank.transceiver.set_state(&entries)?;
    }
    Ok(ranks)
}

/// What all of a rank's blocks hold.
fn bytes_of(ranks: usize, rank: usize) -> Vec<u8> {
    let heads = HEADS / ranks;
    let mut bytes = Vec::new();
    for row in 0..BLOCKS * LAYERS * 2 {
        for head in rank * heads..(rank + 1) * heads {
            bytes.extend((0..HEAD_BYTES).map(|at| byte_at(at, row * HEADS + head)));
        }
    }
    bytes
}

/// Fetches all blocks several times, and says how fast.
fn fetch(
    theirs: usize,
    ours: usize,
    transport: &dyn Fn() -> Fallible<Box<dyn Transport>>,
) -> Fallible<f64> {
    let tokens: Vec<i32> = (0..(BLOCKS * TOKENS_PER_BLOCK) as i32).collect();
    let sequence = Sequence::new(&SequenceParams {
        tokens_per_block: TOKENS_PER_BLOCK,
        namespace: b"gpu_check",
        tokens: &tokens,
        extra_ids: None,
        lora_id: None,
        adapter_digest: &[],
        salt: None,
        salt_bytes: &[],
        mm_items: &[],
    })?;
    let sources = worker(theirs, transport)?;
    let ids: Vec<i32> = (0..BLOCKS as i32).collect();
    for (rank, source) in sources.iter().enumerate() {
        source.memory.write(&bytes_of(theirs, rank))?;
        source.tree.store(0, &sequence, 0, &ids)?;
    }
    let destinations = worker(ours, transport)?;
    let state = sources[0].transceiver.state().ok_or("no state")?;
    let origin = Origin::State(Arc::new(State::decode(&state)?));
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        for destination in &destinations {
            destination.memory.write(&vec![0; destination.memory.bytes])?;
        }
        let start = Instant::now();
        let mut handles = Vec::new();
        for destination in &destinations {
            handles.push(destination.transceiver.begin(&FetchOrder {
                sequence: &sequence,
                origin: origin.clone(),
                hint: None,
                first_block: 0,
                source_attention_data_rank: 0,
                max_tokens: tokens.len(),
                destination: &ids,
                policy: Policy::Strict,
                deadlines: Deadlines::default(),
            })?);
        }
        for handle in &handles {
            let outcome = loop {
                if let Some(outcome) = handle.poll().1 {
                    break outcome;
                }
                std::thread::yield_now();
            };
            if outcome != (Outcome::Delivered { blocks: BLOCKS as u32 }) {
                return Err(format!("a fetch ended with {outcome:?}").into());
            }
        }
        times.push(start.elapsed());
        for (rank, destination) in destinations.iter().enumerate() {
            if destination.memory.read()? != bytes_of(ours, rank) {
                return Err("a fetch delivered other bytes".into());
            }
        }
    }
    times.sort_unstable();
    let bytes: usize = destinations.iter().map(|rank| rank.memory.bytes).sum();
    Ok(bytes as f64 / times[REPEATS / 2].as_secs_f64() / 1e9)
}
