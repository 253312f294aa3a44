//! kvbm-logical beside the reuse tree: a block manager that finds and pins the blocks of a prefix in
//! one call and releases them one by one when they are dropped.
//!
//!   kvbm BLOCKS ROUNDS     lines of: case, subject, unit, least and median

use std::hint::black_box;

use kvbm_logical::{BlockManager, BlockRegistry, ImmutableBlock, SequenceHash};

const TOKENS_PER_BLOCK: usize = 32;
const CHAIN_LENGTHS: [usize; 3] = [4096, 1024, 32];

#[derive(Clone)]
struct Memory;

/// What the calling thread has spent on a core: other programs on a busy machine do not count.
fn spent_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the output is ours.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

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
}

/// Half of the blocks in the longest chains, a quarter in each of the others.
fn chain_counts(blocks: usize) -> [usize; 3] {
    [(blocks / 2 / 4096).max(1), (blocks / 4 / 1024).max(2), (blocks / 4 / 32).max(64)]
}

/// The identities of a chain's blocks, each with its parent's: what the manager is asked with.
fn chain(random: &mut SplitMix, length: usize) -> Vec<SequenceHash> {
    let mut parent = None;
    let identity = |position| {
        let hash = random.next();
        SequenceHash::new(hash, parent.replace(hash), position)
    };
    (0..length as u64).map(identity).collect()
}

fn manager(blocks: usize, chains: &[Vec<SequenceHash>]) -> BlockManager<Memory> {
    let manager = BlockManager::<Memory>::builder()
        .block_count(blocks + 64)
        .block_size(TOKENS_PER_BLOCK)
        .registry(BlockRegistry::builder().build())
        .with_lru_backend()
        .build()
        .ok()
        .expect("a good configuration");
    for chain in chains {
        let free = manager.allocate_blocks(chain.len()).expect("as many blocks as were asked for");
        let complete = free.into_iter().zip(chain).map(|(block, identity)| {
            block.stage(*identity, TOKENS_PER_BLOCK).ok().expect("a block of the right size")
        });
        drop(manager.register_blocks(complete.collect()));
    }
    manager
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _inside = runtime.enter();
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let blocks: usize = arguments.next().expect("BLOCKS");
    let rounds: usize = arguments.next().expect("ROUNDS");

    let mut random = SplitMix(7);
    let mut chains = Vec::new();
    for (length, count) in CHAIN_LENGTHS.into_iter().zip(chain_counts(blocks)) {
        chains.extend((0..count).map(|_| chain(&mut random, length)));
    }
    let total = chains.iter().map(Vec::len).sum();
    let manager = manager(total, &chains);

    for length in CHAIN_LENGTHS {
        let alike: Vec<_> = chains.iter().filter(|chain| chain.len() == length).collect();
        let repeats = (65_536 / length).min(512);
        let mut times: Vec<f64> = (0..rounds)
            .map(|_| {
                let start = spent_ns();
                for _ in 0..repeats {
                    let chain = alike[random.next() as usize % alike.len()];
                    let found: Vec<ImmutableBlock<Memory>> = manager.match_blocks(chain);
                    assert_eq!(black_box(&found).len(), length);
                    drop(found);
                }
                (spent_ns() - start) / (repeats * length) as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (least, median) = (times[0], times[times.len() / 2]);
        println!("{blocks}/{length}\tkvbm\tns a block\t{least:.3}\t{median:.3}");
    }
}
