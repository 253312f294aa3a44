//! One thread that stores, evicts and resets as an executor does, others that match and pin as
//! transfers do. What is pinned must keep its content, whatever the executor does meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use kvhints::reuse::{
    BlockRange, Evicted, NoObserver, Policy, RangeRequest, ReuseTree, ReuseTreeConfig, Sequence,
    SequenceParams, Tier, WINDOW_FULL,
};

const BLOCK: usize = 4;
const SLIDING: i32 = 12;
const IDS: i32 = 96;
const STEPS: usize = 30_000;

/// A small generator of its own: the same steps each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn prompts() -> Vec<Sequence> {
    // Common beginnings, and different ends and lengths.
    let prompt = |index: i32| {
        let length = BLOCK as i32 * (3 + index % 6) + index % 4;
        let token = |place: i32| if place < 8 { place } else { place * (1 + index % 5) };
        let tokens: Vec<i32> = (0..length).map(token).collect();
        let params =
            SequenceParams { tokens_per_block: BLOCK, tokens: &tokens, ..Default::default() };
        Sequence::new(&params).expect("a good sequence")
    };
    (0..20).map(prompt).collect()
}

/// What a block of a window holds: a part of its name.
fn content(sequence: &Sequence, block: usize) -> u64 {
    let name = sequence.name(block).expect("a block");
    u64::from_le_bytes(name.0[..8].try_into().expect("eight bytes"))
}

struct Cache {
    tree: ReuseTree,
    /// The bytes of each block, by window and id, as the executor wrote them.
    bytes: [Vec<AtomicU64>; 2],
}

fn index_of(window: i32) -> usize {
    usize::from(window != WINDOW_FULL)
}

impl Cache {
    /// Reads all whole blocks of a range, twice: they are what the sequence says.
    fn read(&self, range: &BlockRange, sequence: &Sequence) -> usize {
        let ids: Vec<i32> = range.ids().expect("live").collect();
        let whole = ids.len() - usize::from(range.tail_tokens() > 0);
        for _ in 0..2 {
            for (offset, id) in ids[..whole].iter().enumerate() {
                let bytes = &self.bytes[index_of(range.window())][*id as usize];
                let expected = content(sequence, range.first_block() + offset);
                assert_eq!(bytes.load(Ordering::Acquire), expected, "a pinned block changed");
            }
            std::hint::spin_loop();
        }
        whole
    }

    /// One request's worth of an executor's work.
    fn execute(&self, draw: &mut Draw, prompts: &[Sequence]) {
        let window = [WINDOW_FULL, SLIDING][draw.below(2)];
        let sequence = &prompts[draw.below(prompts.len())];
        match draw.below(40) {
            0 => self.tree.reset(),
            1 => {
                let id = draw.below(IDS as usize) as i32;
                self.tree.remove_subtree(window, id).expect("a known window");
            }
            2..6 => {
                let id = draw.below(IDS as usize) as i32;
                let tier = [Tier::Primary, Tier::Secondary][draw.below(2)];
                self.tree.set_tier(window, id, tier).expect("a known window");
            }
            6 => {
                self.tree.protected_blocks(window).expect("a known window");
            }
            _ => {
                let mut ids = Vec::new();
                for position in 0..sequence.block_count() {
                    // A victim that is not busy is the executor's: nobody can come by it.
                    let victim = std::iter::from_fn(|| Some(draw.below(IDS as usize) as i32))
                        .take(200)
                        .filter(|id| !ids.contains(id))
                        .find(|id| self.tree.evict(window, *id) != Ok(Evicted::Busy));
                    let Some(id) = victim else { break };
                    let bytes = &self.bytes[index_of(window)][id as usize];
                    bytes.store(content(sequence, position), Ordering::Release);
                    ids.push(id);
                }
                self.tree.store(window, sequence, 0, &ids).expect("a good store");
            }
        }
    }

    /// A transfer's or a scheduler's question; how many blocks were read.
    fn ask(&self, draw: &mut Draw, prompts: &[Sequence]) -> usize {
        let window = [WINDOW_FULL, SLIDING][draw.below(2)];
        let sequence = &prompts[draw.below(prompts.len())];
        let range = match draw.below(3) {
            0 => {
                let limit = draw.below(sequence.token_count() + 1);
                let (found, range) =
                    self.tree.match_and_pin(window, sequence, limit, None).expect("a good match");
                assert!(found.matched_tokens <= limit);
                range
            }
            1 => {
                let count = 1 + draw.below(sequence.block_count());
                let request = RangeRequest {
                    first_block: draw.below(sequence.block_count() - count + 1),
                    block_count: count,
                    policy: [Policy::Strict, Policy::BestEffort][draw.below(2)],
                    lease_deadline_ns: Some(draw.below(9) as u64),
                };
                self.tree.pin_range(window, sequence, &request).expect("a good range").range
            }
            _ => {
                let names = sequence.names();
                let pinned = self.tree.pin_named(window, names, None, Policy::BestEffort, None);
                pinned.expect("a good list").range
            }
        };
        self.tree.expired_leases(4).expect("memory");
        range.map_or(0, |range| self.read(&range, sequence))
    }
}

#[test]
fn what_is_pinned_keeps_its_content_while_an_executor_works() {
    let config = ReuseTreeConfig {
        tokens_per_block: BLOCK,
        windows: &[WINDOW_FULL, SLIDING],
        seed: 11,
        observer: Arc::new(NoObserver),
    };
    let bytes = || (0..IDS).map(|_| AtomicU64::new(0)).collect();
    let tree = ReuseTree::new(config).expect("a good configuration");
    let cache = Cache { tree, bytes: [bytes(), bytes()] };
    let prompts = prompts();
    let (is_over, read) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for reader in 1..=3 {
            let (cache, prompts, is_over, read) = (&cache, &prompts, &is_over, &read);
            scope.spawn(move || {
                let mut draw = Draw(reader * 0x9e37_79b9);
                while !is_over.load(Ordering::Acquire) {
                    read.fetch_add(cache.ask(&mut draw, prompts), Ordering::Relaxed);
                }
            });
        }
        let mut draw = Draw(0x1234_5678);
        let mut step = 0;
        // At least so many steps, and until the readers had their share.
        while step < STEPS || read.load(Ordering::Relaxed) < STEPS {
            cache.execute(&mut draw, &prompts);
            step += 1;
        }
        is_over.store(true, Ordering::Release);
    });
    cache.tree.verify().expect("the tree's parts agree");
    let statistics = cache.tree.statistics();
    assert_eq!((statistics.live_pins, statistics.protected_blocks), (0, 0));
    assert!(statistics.evictions_busy > 0, "no pin ever met an eviction");
    println!("{} blocks read under pins, {statistics:?}", read.load(Ordering::Relaxed));
    cache.tree.reset();
    assert_eq!(cache.tree.statistics().stored_blocks, 0);
    cache.tree.verify().expect("the tree's parts agree");
}
