//! The reuse room: naming a prompt beside SHA-256 over the same bytes; finding, pinning and
//! unpinning stored prefixes; an executor's calls while another thread reads; memory.
//!
//!   reuse names ROUNDS | tree BLOCKS ROUNDS | executor BLOCKS ROUNDS | threads BLOCKS ROUNDS |
//!         memory BLOCKS
//!
//! Prints lines of: case, subject, unit, least and median. Times are those of the thread on its core,
//! but for `executor` and `threads`, where waiting counts. What is compared takes turns within each round. `benches/reuse.sh` runs it beside its peers.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvhints::reuse::{
    BlockId, Evicted, NoObserver, Policy, RangeRequest, ReuseTree, ReuseTreeConfig, Sequence,
    SequenceParams, WINDOW_FULL,
};
use sha2::{Digest, Sha256};

const TOKENS_PER_BLOCK: usize = 32;
const CHAIN_LENGTHS: [usize; 3] = [4096, 1024, 32];

/// Numbers that look random and are the same in each run.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn tokens(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| (self.next() % 128_000) as i32).collect()
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.next() as usize % among.len()]
    }
}

/// What the calling thread has spent on a core: other programs on a busy machine do not count.
fn spent_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the output is ours.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// How long `work` keeps a core busy.
fn timed_ns<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = spent_ns();
    let result = work();
    (spent_ns() - start, result)
}

/// One kind of measurement over all rounds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    fn report(mut self, case: &str, subject: &str, unit: &str) {
        self.0.sort_by(f64::total_cmp);
        let (least, median) = (self.0[0], self.0[self.0.len() / 2]);
        println!("{case}\t{subject}\t{unit}\t{least:.3}\t{median:.3}");
    }
}

fn sequence(tokens: &[i32]) -> Sequence {
    let params =
        SequenceParams { tokens_per_block: TOKENS_PER_BLOCK, tokens, ..Default::default() };
    Sequence::new(&params).expect("a good sequence")
}

/// A tree and what it holds.
struct Stored {
    tree: ReuseTree,
    chains: Vec<Sequence>,
    next_id: BlockId,
}

impl Stored {
    /// Half of the blocks in the longest chains, a quarter in each of the others.
    fn new(blocks: usize, random: &mut SplitMix) -> Self {
        Self::in_pieces(blocks, usize::MAX, random)
    }

    /// The same, stored so many blocks of each chain in turn.
    fn in_pieces(blocks: usize, piece_blocks: usize, random: &mut SplitMix) -> Self {
        let counts =
            [(blocks / 2 / 4096).max(1), (blocks / 4 / 1024).max(2), (blocks / 4 / 32).max(64)];
        let mut chains = Vec::new();
        for (length, count) in CHAIN_LENGTHS.into_iter().zip(counts) {
            for _ in 0..count {
                chains.push(sequence(&random.tokens(length * TOKENS_PER_BLOCK)));
            }
        }
        let tree = ReuseTree::new(ReuseTreeConfig {
            tokens_per_block: TOKENS_PER_BLOCK,
            windows: &[],
            seed: 7,
            observer: Arc::new(NoObserver),
        })
        .expect("a good configuration");
        let mut stored = Self { tree, chains, next_id: 0 };
        stored.fill(piece_blocks);
        stored
    }

    fn fill(&mut self, piece_blocks: usize) {
        let longest = CHAIN_LENGTHS[0];
        for first in (0..longest).step_by(piece_blocks.min(longest)) {
            for chain in &self.chains {
                let end = chain.block_count().min(first.saturating_add(piece_blocks));
                if first >= end {
                    continue;
                }
                let next_id = self.next_id + (end - first) as BlockId;
                let ids: Vec<BlockId> = (self.next_id..next_id).collect();
                self.next_id = next_id;
                let held = self.tree.store(WINDOW_FULL, chain, first, &ids).expect("a good store");
                assert!(held.iter().zip(&ids).all(|(held, id)| *held == Some(*id)));
            }
        }
    }

    fn of_length(&self, length: usize) -> Vec<&Sequence> {
        self.chains.iter().filter(|chain| chain.block_count() == length).collect()
    }
}

/// Finds a stored prefix, pins and unpins it; with its ids if `ids` is there to take them.
fn match_pin_unpin(tree: &ReuseTree, chain: &Sequence, ids: Option<&mut Vec<BlockId>>) {
    let matched = tree.matched_tokens(WINDOW_FULL, chain, usize::MAX).expect("a good match");
    assert_eq!(matched, chain.token_count());
    let request = RangeRequest {
        first_block: 0,
        block_count: chain.block_count(),
        policy: Policy::Strict,
        lease_deadline_ns: None,
    };
    let outcome = tree.pin_range(WINDOW_FULL, chain, &request).expect("a good range");
    let range = outcome.range.expect("all blocks are there");
    if let Some(ids) = ids {
        ids.clear();
        ids.extend(range.ids().expect("the pin lives"));
        assert_eq!(black_box(&ids).len(), chain.block_count());
    }
    range.unpin().expect("a live pin");
}

/// Lets the heap keep what it has: a running engine's memory was used before. Else the system gives
/// out each large piece afresh, and clears it.
fn keep_memory() {
    for option in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: only sets an option of the heap.
        assert_eq!(unsafe { libc::mallopt(option, 1 << 30) }, 1);
    }
}

fn names(rounds: usize) {
    for (memory, is_kept) in [("new memory", false), ("", true)] {
        if is_kept {
            keep_memory();
        }
        let mut random = SplitMix(1);
        for tokens_per_block in [16, 32, 64, 128] {
            let (mut ours, mut floor) = (Times::default(), Times::default());
            for _ in 0..rounds {
                let tokens = random.tokens(131_072);
                let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
                let (time_ns, digest) = timed_ns(|| Sha256::digest(black_box(&bytes)));
                black_box(digest);
                floor.add(time_ns / 1e3);

                let params =
                    SequenceParams { tokens_per_block, tokens: &tokens, ..Default::default() };
                let (time_ns, sequence) = timed_ns(|| Sequence::new(black_box(&params)));
                let sequence = sequence.expect("a good sequence");
                ours.add(time_ns / 1e3);
                assert_eq!(black_box(sequence).full_block_count(), 131_072 / tokens_per_block);
            }
            let case = format!("{tokens_per_block} tokens a block {memory}");
            ours.report(case.trim_end(), "names and hashes", "us");
            floor.report(case.trim_end(), "sha2", "us");
        }
    }
}

fn tree(blocks: usize, rounds: usize) {
    // As a prompt is computed in one go; as prompts are computed in chunks, in turn.
    for (pieces, piece_blocks) in [("", usize::MAX), (", stored in turn", 64)] {
        tree_of(blocks, piece_blocks, pieces, rounds);
    }
}

fn tree_of(blocks: usize, piece_blocks: usize, pieces: &str, rounds: usize) {
    let mut random = SplitMix(2);
    let stored = Stored::in_pieces(blocks, piece_blocks, &mut random);
    for length in CHAIN_LENGTHS {
        let alike = stored.of_length(length);
        let repeats = (65_536 / length).min(512);
        let [mut without, mut with, mut matches] = <[Times; 3]>::default();
        let mut ids = Vec::new();
        for _ in 0..rounds {
            let mut time = |work: &mut dyn FnMut(&Sequence)| {
                let (time_ns, ()) = timed_ns(|| {
                    for _ in 0..repeats {
                        work(random.pick(&alike));
                    }
                });
                time_ns / (repeats * length) as f64
            };
            without.add(time(&mut |chain| match_pin_unpin(&stored.tree, chain, None)));
            with.add(time(&mut |chain| match_pin_unpin(&stored.tree, chain, Some(&mut ids))));
            matches.add(time(&mut |chain| {
                let found = stored.tree.matched_tokens(WINDOW_FULL, chain, usize::MAX);
                black_box(found.expect("a good match"));
            }));
        }
        let case = format!("{blocks}/{length}{pieces}");
        without.report(&case, "match, pin, unpin", "ns a block");
        with.report(&case, "match, pin, unpin, ids", "ns a block");
        matches.report(&case, "match", "ns a block");
    }
}

/// Lets the calling thread run on one core only: threads that share one would measure the system's
/// scheduler.
fn stay_on_core(core: usize) {
    // SAFETY: the set is a plain value of ours, valid when zeroed, and as large as is said.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(set, 0, "core {core} is not for this process");
}

/// Runs `work` while `readers` other threads match, pin and unpin chains without pause.
fn with_readers<T>(stored: &Stored, readers: usize, work: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    let alike = stored.of_length(1024);
    std::thread::scope(|scope| {
        for reader in 0..readers {
            let (ends, alike) = (&ends, &alike);
            scope.spawn(move || {
                stay_on_core(reader);
                let mut random = SplitMix(reader as u64);
                while !ends.load(Ordering::Relaxed) {
                    match_pin_unpin(&stored.tree, random.pick(alike), None);
                }
            });
        }
        let result = work();
        ends.store(true, Ordering::Relaxed);
        result
    })
}

fn executor(blocks: usize, rounds: usize) {
    const CALLS: usize = 2000;
    const LENGTH: usize = 32;
    let mut random = SplitMix(3);
    let stored = Stored::new(blocks, &mut random);
    stay_on_core(1);
    let fresh: Vec<Sequence> =
        (0..256).map(|_| sequence(&random.tokens(LENGTH * TOKENS_PER_BLOCK))).collect();
    let ids: Vec<BlockId> = (0..LENGTH).map(|id| stored.next_id + id as BlockId).collect();
    let calls = || {
        let [mut store, mut evict] = <[Times; 2]>::default();
        for call in 0..CALLS {
            let chain = &fresh[call % fresh.len()];
            let start = Instant::now();
            let held = stored.tree.store(WINDOW_FULL, chain, 0, &ids).expect("a good store");
            let between = Instant::now();
            // One by one from the tail, as an arbiter does.
            for id in ids.iter().rev() {
                let evicted = stored.tree.evict(WINDOW_FULL, *id).expect("a known window");
                assert_eq!(evicted, Evicted::Left { blocks: 1 });
            }
            evict.add(between.elapsed().as_nanos() as f64 / LENGTH as f64);
            store.add((between - start).as_nanos() as f64);
            assert!(held.iter().all(Option::is_some));
        }
        [store, evict].map(|mut times| {
            times.0.sort_by(f64::total_cmp);
            [times.0[CALLS / 2], times.0[CALLS * 99 / 100]]
        })
    };
    let mut all = <[[Times; 4]; 2]>::default();
    for _ in 0..rounds {
        for (readers, all) in all.iter_mut().enumerate() {
            let found = with_readers(&stored, readers, calls);
            all.iter_mut().zip(found.as_flattened()).for_each(|(times, value)| times.add(*value));
        }
    }
    for (all, subject) in all.into_iter().zip(["alone", "beside a reader"]) {
        let cases = ["store 32 p50", "store 32 p99", "evict p50", "evict p99"];
        for (times, case) in all.into_iter().zip(cases) {
            times.report(case, subject, "ns");
        }
    }
}

fn threads(blocks: usize, rounds: usize) {
    let mut random = SplitMix(4);
    let stored = Stored::new(blocks, &mut random);
    let alike = stored.of_length(1024);
    let mut all = <[Times; 2]>::default();
    for _ in 0..rounds {
        for (before, times) in all.iter_mut().enumerate() {
            let ends = AtomicBool::new(false);
            let start = Instant::now();
            let done: u64 = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..=before)
                    .map(|worker| {
                        let (stored, alike, ends) = (&stored, &alike, &ends);
                        scope.spawn(move || {
                            stay_on_core(worker);
                            let mut random = SplitMix(worker as u64);
                            let mut done = 0;
                            while !ends.load(Ordering::Relaxed) {
                                match_pin_unpin(&stored.tree, random.pick(alike), None);
                                done += 1;
                            }
                            done
                        })
                    })
                    .collect();
                std::thread::sleep(Duration::from_millis(400));
                ends.store(true, Ordering::Relaxed);
                workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
            });
            times.add(done as f64 / start.elapsed().as_secs_f64() / 1e3);
        }
    }
    for (times, subject) in all.into_iter().zip(["1 thread", "2 threads"]) {
        times.report("lookups and pins", subject, "thousands a second");
    }
}

/// Bytes that the heap has given out.
fn heap_bytes() -> usize {
    // SAFETY: only asks.
    let heap = unsafe { libc::mallinfo2() };
    heap.uordblks + heap.hblkhd
}

fn memory(blocks: usize) {
    let mut random = SplitMix(5);
    let mut stored = Stored::new(blocks, &mut random);
    let count = stored.next_id as f64;
    // Dropped in this order: the difference is the tree's alone.
    stored.chains = Vec::new();
    let with_tree = heap_bytes();
    drop(stored);
    let mut bytes = Times::default();
    bytes.add((with_tree - heap_bytes()) as f64 / count);
    bytes.report(&format!("{blocks}"), "memory", "bytes a block, keys' tokens (128) included");
}

fn main() {
    // `cargo bench` adds a flag of its own.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok());
    match (arguments.first().map(String::as_str), number(1), number(2)) {
        (Some("names"), Some(rounds), None) => names(rounds),
        (Some("tree"), Some(blocks), Some(rounds)) => tree(blocks, rounds),
        (Some("executor"), Some(blocks), Some(rounds)) => executor(blocks, rounds),
        (Some("threads"), Some(blocks), Some(rounds)) => threads(blocks, rounds),
        (Some("memory"), Some(blocks), None) => memory(blocks),
        _ => {
            eprintln!("reuse names ROUNDS | tree, executor, threads BLOCKS ROUNDS | memory BLOCKS");
            std::process::exit(2);
        }
    }
}
