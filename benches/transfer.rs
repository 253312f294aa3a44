//! Blocks between two processes: whole fetches through the library, the transport alone, and one
//! thread that copies the same blocks inside of one process.
//!
//!   transfer library TLS REPEATS | transport TLS REPEATS | copy REPEATS
//!
//! The program starts a copy of itself as the source. With KVHINTS_CORES=A,B the source runs on core
//! A and the destination on core B. Prints lines of: subject, wires, block bytes, blocks, order, least
//! and median in microseconds; every byte that arrived is compared between the repetitions' end and the line.
//! `benches/transfer.sh` runs it beside its peers.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvhints::clock::SystemClock;
use kvhints::plan::Endpoint;
use kvhints::poison::Poison;
use kvhints::reuse::{NoObserver, Policy, ReuseTree, ReuseTreeConfig, Sequence, SequenceParams};
use kvhints::telemetry::Metrics;
use kvhints::transfer::layout::{Attention, CacheLayout, DataType, ParallelLayout};
use kvhints::transfer::memory::BlockPool;
use kvhints::transfer::prefetch::{Deadlines, Outcome};
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::state_source::{StateResult, StateSource};
use kvhints::transfer::transceiver::{
    DestinationLimits, Driver, FetchOrder, Origin, Round, SourceLimits, Surroundings, Transceiver,
    TransceiverConfig, TreeAndPool,
};
use kvhints::transfer::transport::{Event, Segment, Transport};
use kvhints::transfer::ucx::{UcxOptions, UcxTransport};

/// Blocks lie scattered in the first part of a pool, and in a row in the second.
const SCATTERED_BYTES: usize = 256 << 20;
const ROW_BYTES: usize = 128 << 20;
const POOL_BYTES: usize = SCATTERED_BYTES + ROW_BYTES;

const BLOCK_BYTES: [usize; 3] = [32 << 10, 64 << 10, 1 << 20];
const TOKENS_PER_BLOCK: usize = 4;
const NAMESPACE: &[u8] = b"bench";
/// As many bytes as the library sends at a time.
const RUN_BYTES: usize = 1 << 20;
/// And as many of those at once.
const RUNS_IN_FLIGHT: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Scattered,
    Row,
}

/// What is moved: so many blocks of one size, in that order in memory.
#[derive(Clone, Copy)]
struct Case {
    block_bytes: usize,
    blocks: usize,
    order: Order,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for block_bytes in BLOCK_BYTES {
        let most = if block_bytes == 1 << 20 { 256 } else { 1024 };
        for blocks in [1, 16, most] {
            cases.push(Case { block_bytes, blocks, order: Order::Scattered });
        }
        let row = most.min(ROW_BYTES / block_bytes);
        cases.push(Case { block_bytes, blocks: row, order: Order::Row });
    }
    cases
}

impl Case {
    fn bytes(&self) -> usize {
        self.block_bytes * self.blocks
    }

    /// Which blocks of a pool; `seed` makes the two sides differ.
    fn ids(&self, seed: u64) -> Vec<i32> {
        let first_of_row = SCATTERED_BYTES / self.block_bytes;
        match self.order {
            Order::Row => (first_of_row..first_of_row + self.blocks).map(|id| id as i32).collect(),
            Order::Scattered => {
                let mut ids: Vec<i32> = (0..first_of_row as i32).collect();
                let mut state = seed;
                for at in (1..ids.len()).rev() {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    ids.swap(at, (state >> 33) as usize % (at + 1));
                }
                ids.truncate(self.blocks);
                ids
            }
        }
    }

    fn repeats(&self, wanted: usize) -> usize {
        // Small transfers are over soon, and their medians need more of them.
        if self.bytes() <= 1 << 20 {
            wanted * 20
        } else {
            wanted
        }
    }

    fn sequence(&self) -> Sequence {
        // Scattered blocks of one size are one sequence, of which fewer blocks are a prefix.
        let salt = if self.order == Order::Row { 1 << 20 } else { 0 };
        let tokens: Vec<i32> =
            (0..(self.blocks * TOKENS_PER_BLOCK) as i32).map(|token| token + salt).collect();
        let params = SequenceParams {
            tokens_per_block: TOKENS_PER_BLOCK,
            namespace: NAMESPACE,
            tokens: &tokens,
            ..SequenceParams::default()
        };
        Sequence::new(&params).expect("a good sequence")
    }

    fn print(&self, subject: &str, wires: &str, mut times: Vec<f64>) {
        times.sort_by(f64::total_cmp);
        let order = if self.order == Order::Row { "row" } else { "scattered" };
        println!(
            "{subject}\t{wires}\t{}\t{}\t{order}\t{:.2}\t{:.2}",
            self.block_bytes,
            self.blocks,
            times[0],
            times[times.len() / 2]
        );
    }
}

/// A block pool, in small pages, all there.
struct Memory(Vec<u64>);

impl Memory {
    fn filled(word: impl Fn(usize) -> u64) -> Self {
        Self((0..POOL_BYTES / 8).map(word).collect())
    }

    fn base(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    fn clear(&mut self, ids: &[i32], block_bytes: usize) {
        let words = block_bytes / 8;
        for id in ids {
            self.0[*id as usize * words..][..words].fill(0);
        }
    }

    /// Whether these blocks are what the source has in `theirs`.
    fn verify(&self, ours: &[i32], theirs: &[i32], block_bytes: usize) -> Fallible<()> {
        let words = block_bytes / 8;
        for (our, their) in ours.iter().zip(theirs) {
            let start = *their as usize * words;
            let block = &self.0[*our as usize * words..][..words];
            let is_right = block.iter().enumerate().all(|(at, word)| *word == pattern(start + at));
            if !is_right {
                return Err(format!("block {our} has other bytes than block {their}").into());
            }
        }
        Ok(())
    }
}

/// What stands at a place of the source's pool.
fn pattern(word: usize) -> u64 {
    (word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn pin(place: usize) -> Fallible<()> {
    let Ok(cores) = std::env::var("KVHINTS_CORES") else { return Ok(()) };
    let core: usize = cores.split(',').nth(place).ok_or("KVHINTS_CORES=A,B")?.parse()?;
    // SAFETY: all-zero bytes are an empty set, which lives during the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        if libc::sched_setaffinity(0, size_of_val(&set), &set) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    Ok(())
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["copy", repeats] => copy(repeats.parse()?),
        ["library", tls, repeats] => library(tls, repeats.parse()?),
        ["transport", tls, repeats] => transport(tls, repeats.parse()?),
        ["serve-library", tls, block_bytes] => serve_library(tls, block_bytes.parse()?),
        ["serve-transport", tls] => serve_transport(tls),
        // `cargo test --benches` and the like run it without a word.
        _ => Ok(()),
    }
}

fn copy(repeats: usize) -> Fallible<()> {
    pin(1)?;
    let (mut source, mut target) = (Memory::filled(pattern), Memory::filled(|_| 0));
    for case in cases() {
        let (theirs, ours) = (case.ids(1), case.ids(2));
        let words = case.block_bytes / 8;
        let mut times = Vec::new();
        for _ in 0..=case.repeats(repeats) {
            let start = Instant::now();
            for (their, our) in theirs.iter().zip(&ours) {
                let from = &source.0[*their as usize * words..][..words];
                target.0[*our as usize * words..][..words].copy_from_slice(from);
            }
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        target.verify(&ours, &theirs, case.block_bytes)?;
        times.remove(0);
        case.print("copy", "none", times);
    }
    std::hint::black_box(source.base());
    Ok(())
}

fn options(tls: &str) -> UcxOptions {
    UcxOptions {
        tls: (tls != "default").then(|| tls.to_owned()),
        net_devices: Some("lo".to_owned()),
        ..UcxOptions::default()
    }
}

/// The other process, and what it said first.
struct Served {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Served {
    fn start(words: &[&str]) -> Fallible<(Self, Vec<u8>)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut digits = String::new();
        lines.read_line(&mut digits)?;
        let digits = digits.trim();
        let said = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16))
            .collect::<Result<_, _>>()?;
        Ok((Self { child, lines }, said))
    }

    /// The other process ends when its input does.
    fn end(mut self) -> Fallible<()> {
        drop(self.child.stdin.take());
        drop(self.lines);
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the source ended with {status}").into())
        }
    }
}

fn say(bytes: &[u8]) -> Fallible<()> {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{digits}");
    std::io::stdout().flush()?;
    Ok(())
}

fn wait_for_end_of_input() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

struct Worker {
    transceiver: Transceiver,
    /// None where the library's own thread drives.
    driver: Option<Driver>,
    tree: ReuseTree,
}

/// States are handed in: nobody asks for one.
struct NoStates;

impl StateSource for NoStates {
    fn request(&self, _: &Endpoint, _: Duration, reply: Box<dyn FnOnce(StateResult) + Send>) {
        reply(Err(FailReason::MetadataFailed));
    }

    fn forget(&self, _: &Endpoint) {}
}

impl Worker {
    /// With number 1 a source, driven by the library's thread; else a destination that its host drives.
    fn new(memory: &mut Memory, tls: &str, block_bytes: usize, number: u8) -> Fallible<Self> {
        // SAFETY: the memory outlives the worker: callers declare it first.
        let pool = unsafe { BlockPool::new(memory.base(), block_bytes, POOL_BYTES / block_bytes) }?;
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: 7,
            observer: Arc::new(NoObserver),
        })
        .expect("a tree");
        let config = TransceiverConfig {
            rank: 0,
            namespace: NAMESPACE.to_vec(),
            cache: CacheLayout {
                kv_heads_per_layer: vec![8],
                head_size: block_bytes as u32 / (8 * 2 * 2 * TOKENS_PER_BLOCK as u32),
                tokens_per_block: TOKENS_PER_BLOCK as u32,
                data_type: DataType::Bfloat16,
                attention: Attention::KeysAndValues,
                kv_factor: 2,
                windows: vec![0],
            },
            parallel: ParallelLayout {
                tensor: 1,
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
        let surroundings = Surroundings {
            incarnation: Incarnation([number; 16]),
            clock: Arc::new(SystemClock::default()),
            metrics: Arc::new(Metrics::new()),
            poison: Arc::new(Poison::default()),
        };
        let transport = Box::new(UcxTransport::open(options(tls))?);
        let (transceiver, driver) = match number {
            1 => (Transceiver::start(config, transport, surroundings)?, None),
            _ => {
                let states = Arc::new(NoStates);
                let (transceiver, driver) =
                    Transceiver::without_thread(config, transport, states, surroundings)?;
                (transceiver, Some(driver))
            }
        };
        Ok(Self { transceiver, driver, tree })
    }

    fn round(&mut self) -> Fallible<()> {
        match self.driver.as_mut().map(Driver::round) {
            Some(Round::Stopped) => Err("the driver stopped".into()),
            _ => Ok(()),
        }
    }
}

fn serve_library(tls: &str, block_bytes: usize) -> Fallible<()> {
    pin(0)?;
    let mut memory = Memory::filled(pattern);
    let worker = Worker::new(&mut memory, tls, block_bytes, 1)?;
    let of_size = cases().into_iter().filter(|case| case.block_bytes == block_bytes);
    for case in of_size.filter(|case| case.blocks > 16) {
        let ids = case.ids(1);
        let held = worker.tree.store(0, &case.sequence(), 0, &ids)?;
        if held.iter().zip(&ids).any(|(held, id)| *held != Some(*id)) {
            return Err("the tree did not take the blocks".into());
        }
    }
    say(&worker.transceiver.state().ok_or("no state")?)?;
    wait_for_end_of_input();
    drop(worker);
    Ok(())
}

/// Whole fetches: asked for by name, pinned, moved, compared, in place.
fn library(tls: &str, repeats: usize) -> Fallible<()> {
    pin(1)?;
    let mut memory = Memory::filled(|_| 0);
    for block_bytes in BLOCK_BYTES {
        let (served, state) = Served::start(&["serve-library", tls, &block_bytes.to_string()])?;
        let mut worker = Worker::new(&mut memory, tls, block_bytes, 2)?;
        let state = Arc::new(State::decode(&state)?);
        for case in cases().into_iter().filter(|case| case.block_bytes == block_bytes) {
            let ours = case.ids(2);
            memory.clear(&ours, block_bytes);
            let sequence = case.sequence();
            let mut times = Vec::new();
            for _ in 0..case.repeats(repeats) + 2 {
                let start = Instant::now();
                let handle = worker.transceiver.begin(&FetchOrder {
                    sequence: &sequence,
                    origin: Origin::State(Arc::clone(&state)),
                    hint: None,
                    first_block: 0,
                    source_attention_data_rank: 0,
                    max_tokens: sequence.token_count(),
                    destination: &ours,
                    policy: Policy::Strict,
                    deadlines: Deadlines::default(),
                })?;
                let outcome = loop {
                    if let Some(outcome) = handle.poll().1 {
                        break outcome;
                    }
                    worker.round()?;
                    if start.elapsed() > PATIENCE {
                        return Err("a fetch does not end".into());
                    }
                };
                times.push(start.elapsed().as_secs_f64() * 1e6);
                if outcome != (Outcome::Delivered { blocks: case.blocks as u32 }) {
                    return Err(format!("a fetch ended as {outcome:?}").into());
                }
                handle.claim();
                while !handle.is_quiesced() {
                    worker.round()?;
                }
            }
            memory.verify(&ours, &case.ids(1), block_bytes)?;
            // The first ones make the connection and its memory.
            case.print("library", tls, times.split_off(2));
        }
        eprintln!("wires: {}", worker.transceiver.status().wires);
        drop(worker);
        served.end()?;
    }
    Ok(())
}

/// Sends the case whose number each message names, as the library would: in runs.
fn serve_transport(tls: &str) -> Fallible<()> {
    pin(0)?;
    let mut memory = Memory::filled(pattern);
    let mut transport = UcxTransport::open(options(tls))?;
    say(transport.address())?;
    let base = memory.base();
    let cases = cases();
    let (mut waiting, mut in_flight) = (VecDeque::new(), 0);
    loop {
        match next(&mut transport)? {
            Event::Message { peer, bytes } => {
                let number: usize = std::str::from_utf8(&bytes)?.parse()?;
                let case = cases[number];
                for ids in case.ids(1).chunks((RUN_BYTES / case.block_bytes).max(1)) {
                    let segment = |id: &i32| Segment {
                        data: base.wrapping_add(*id as usize * case.block_bytes),
                        len: case.block_bytes,
                    };
                    waiting.push_back((peer, ids.iter().map(segment).collect::<Vec<_>>()));
                }
            }
            // One that failed is told of once more, as the end of the connection.
            Event::Sent { .. } => in_flight -= 1,
            Event::PeerGone { .. } => return Ok(()),
            _ => {}
        }
        while in_flight < RUNS_IN_FLIGHT {
            let Some((peer, run)) = waiting.pop_front() else { break };
            transport.send_data(peer, Vec::new(), run)?;
            in_flight += 1;
        }
    }
}

/// The transport alone: runs into memory that is used again, nothing compared. `announced` is the
/// time of one run from its announcement on, `transport` that of the whole with the asking.
fn transport(tls: &str, repeats: usize) -> Fallible<()> {
    pin(1)?;
    let (mut served, address) = Served::start(&["serve-transport", tls])?;
    let mut transport = UcxTransport::open(options(tls))?;
    let peer = transport.connect(&address)?;
    let mut staging: Vec<Vec<u8>> = Vec::new();
    for (number, case) in cases().into_iter().enumerate() {
        let (mut times, mut announced_times) = (Vec::new(), Vec::new());
        for _ in 0..case.repeats(repeats) + 2 {
            let start = Instant::now();
            let mut announced_at = start;
            transport.send_message(peer, number.to_string().into_bytes())?;
            let (mut received, mut on_their_way) = (0, Vec::new());
            while received < case.bytes() {
                match next(&mut transport)? {
                    Event::Data { id, len, .. } => {
                        announced_at = Instant::now();
                        let mut memory = staging.pop().unwrap_or_default();
                        memory.resize(len, 0);
                        let segment = Segment { data: memory.as_mut_ptr(), len };
                        on_their_way.push((transport.receive_data(id, segment)?, memory));
                    }
                    Event::Received { ticket, result } => {
                        result?;
                        let of_ticket = on_their_way.iter().position(|(of, _)| *of == ticket);
                        let (_, memory) = on_their_way.remove(of_ticket.ok_or("whose end?")?);
                        received += memory.len();
                        staging.push(memory);
                    }
                    Event::PeerGone { error, .. } => return Err(error.into()),
                    _ => {}
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e6);
            announced_times.push(announced_at.elapsed().as_secs_f64() * 1e6);
        }
        let last = staging.last().ok_or("nothing came")?;
        let (first, of_run) = (last[0], (RUN_BYTES / case.block_bytes).max(1));
        let last_run = case.ids(1);
        let last_run = last_run.chunks(of_run).next_back().ok_or("no blocks")?;
        let expected = pattern(last_run[0] as usize * case.block_bytes / 8).to_ne_bytes()[0];
        if case.blocks <= of_run && first != expected {
            return Err("other bytes than those sent".into());
        }
        case.print("transport", tls, times.split_off(2));
        if case.blocks == 1 {
            case.print("announced", tls, announced_times.split_off(2));
        }
    }
    eprintln!("wires: {}", transport.describe(peer));
    transport.disconnect(peer);
    drop(transport);
    let _ = served.child.stdin.take();
    served.end()
}

/// The next event. Both sides only wait for each other, so they spin, as benchmarks of UCX do.
fn next(transport: &mut UcxTransport) -> Fallible<Event> {
    let start = Instant::now();
    loop {
        if let Some(event) = transport.progress() {
            return Ok(event);
        }
        if start.elapsed() > PATIENCE {
            return Err("nothing happens".into());
        }
    }
}
