//! What operations of the reuse tree cost, on one tree of a million blocks: `cargo bench --bench
//! tree_cost`. Prints medians; what beside other libraries it comes to is `benches/reuse`'s business.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use kvhints::reuse::{
    BlockId, Evicted, NoObserver, Policy, RangeRequest, ReuseTree, ReuseTreeConfig, Sequence,
    SequenceParams, WINDOW_FULL,
};

const BLOCK: usize = 32;
const PREFIX: usize = 4096;
const PROMPTS: usize = 244;

fn tree(windows: &[i32]) -> ReuseTree {
    let observer = Arc::new(NoObserver);
    let config = ReuseTreeConfig { tokens_per_block: BLOCK, windows, seed: 7, observer };
    ReuseTree::new(config).expect("a good configuration")
}

fn sequence(tokens: &[i32]) -> Sequence {
    let params = SequenceParams { tokens_per_block: BLOCK, tokens, ..Default::default() };
    Sequence::new(&params).expect("a good sequence")
}

fn prompt(seed: usize, blocks: usize) -> Sequence {
    let token = |index: usize| (seed.wrapping_mul(0x9e37_79b9) ^ index) as i32;
    sequence(&(0..blocks * BLOCK).map(token).collect::<Vec<i32>>())
}

/// The median of seven rounds, each the mean of `rounds` calls, in nanoseconds.
fn median_ns(rounds: usize, mut call: impl FnMut(usize)) -> f64 {
    let mut times: Vec<f64> = (0..7)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(&mut call);
            start.elapsed().as_nanos() as f64 / rounds as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn percentile_ns(times: &mut [u64], percent: usize) -> u64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

fn store(tree: &ReuseTree, window: i32, sequence: &Sequence, from: usize) {
    let ids: Vec<BlockId> = (from..from + sequence.block_count()).map(|id| id as i32).collect();
    let held = tree.store(window, sequence, 0, &ids).expect("a good store");
    assert!(held.iter().zip(&ids).all(|(held, id)| *held == Some(*id)));
}

fn main() {
    let tree = tree(&[WINDOW_FULL, 4096]);
    let prompts: Vec<Sequence> = (0..PROMPTS).map(|seed| prompt(seed, PREFIX)).collect();
    let start = Instant::now();
    for (index, prompt) in prompts.iter().enumerate() {
        store(&tree, WINDOW_FULL, prompt, index * PREFIX);
    }
    let blocks = PROMPTS * PREFIX;
    let each = start.elapsed().as_nanos() as f64 / blocks as f64;
    println!("store                                {each:>12.0} ns a block, {blocks} blocks");

    let one = |index: usize| &prompts[index % PROMPTS];
    let pin = |index: usize| {
        let (found, range) = tree
            .match_and_pin(WINDOW_FULL, one(index), PREFIX * BLOCK, None)
            .expect("a good match");
        assert_eq!(found.matched_tokens, PREFIX * BLOCK);
        range.expect("all is there")
    };
    let show = |what: &str, ns: f64| println!("{what:<36} {ns:>12.0} ns");
    show(
        "match + pin + unpin, 4096 blocks",
        median_ns(20_000, |index| drop(black_box(pin(index)))),
    );
    let request = RangeRequest {
        first_block: 0,
        block_count: PREFIX,
        policy: Policy::Strict,
        lease_deadline_ns: None,
    };
    let pin_range = |index: usize| {
        let outcome = tree.pin_range(WINDOW_FULL, one(index), &request).expect("a good range");
        outcome.range.expect("all is there")
    };
    show("pin for sending + unpin", median_ns(20_000, |index| drop(black_box(pin_range(index)))));
    let sum_ids = |index: usize| {
        let range = pin(index);
        black_box(range.ids().expect("live").map(i64::from).sum::<i64>());
    };
    show("the same with ids", median_ns(500, sum_ids));
    let named = |index: usize| {
        let names = one(index).names();
        let outcome = tree.pin_named(WINDOW_FULL, names, None, Policy::Strict, None);
        black_box(outcome.expect("a good list").range.expect("all is there"));
    };
    show("pin by names", median_ns(500, named));
    let miss = prompt(PROMPTS + 1, PREFIX);
    let match_miss = |_: usize| {
        black_box(tree.matched_tokens(WINDOW_FULL, &miss, usize::MAX).expect("a good match"));
    };
    show("match, nothing stored", median_ns(20_000, match_miss));

    // Siblings.
    let siblings = 100_000;
    for index in 0..siblings {
        let tokens: Vec<i32> = (0..BLOCK as i32).map(|token| token - index * 64 - 5).collect();
        let id = (blocks as i32) + index;
        tree.store(WINDOW_FULL, &sequence(&tokens), 0, &[id]).expect("a good store");
    }
    let odd = sequence(&[-5, -4, -3, 7, 8]);
    let heads = |_: usize| {
        black_box(tree.matched_tokens(WINDOW_FULL, &odd, usize::MAX).expect("a good match"));
    };
    show("match of a head, 100k siblings", median_ns(20_000, heads));

    // A sliding window of 128 blocks over a prompt of 4096.
    store(&tree, 4096, &prompts[0], 0);
    let slide = |_: usize| {
        black_box(tree.matched_tokens(4096, &prompts[0], usize::MAX).expect("a good match"));
    };
    show("match, sliding window of 128 blocks", median_ns(2_000, slide));

    // The executor's evict and store, alone and beside a thread that pins without pause.
    for beside in [false, true] {
        let is_over = AtomicBool::new(false);
        let (evict, store) = std::thread::scope(|scope| {
            if beside {
                scope.spawn(|| {
                    let mut index = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        drop(black_box(pin(index % 100)));
                        index += 1;
                    }
                });
            }
            let (mut evict, mut store) = (Vec::new(), Vec::new());
            for index in 0..100_000 {
                let prompt = &prompts[100 + index % 100];
                let id = ((100 + index % 100) * PREFIX + PREFIX - 1) as i32;
                let start = Instant::now();
                let evicted = tree.evict(WINDOW_FULL, id).expect("a known window");
                evict.push(start.elapsed().as_nanos() as u64);
                assert_eq!(evicted, Evicted::Left { blocks: 1 });
                let start = Instant::now();
                tree.store(WINDOW_FULL, prompt, PREFIX - 1, &[id]).expect("a good store");
                store.push(start.elapsed().as_nanos() as u64);
            }
            is_over.store(true, Ordering::Relaxed);
            (evict, store)
        });
        for (what, mut times) in [("evict", evict), ("store", store)] {
            let (half, most) = (percentile_ns(&mut times, 50), percentile_ns(&mut times, 99));
            let beside = if beside { "beside a pinning thread" } else { "alone" };
            println!("{what}, {beside:<29} {half:>12} ns p50, {most} ns p99");
        }
    }

    // Lookups and pins a second.
    let mut rates = Vec::new();
    for threads in [1, 2] {
        let mut best: Vec<f64> = (0..5)
            .map(|_| {
                let done = AtomicUsize::new(0);
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        let (done, pin) = (&done, &pin);
                        scope.spawn(move || {
                            let calls = 200_000;
                            for index in 0..calls {
                                drop(black_box(pin(thread * 120 + index % 120)));
                            }
                            done.fetch_add(calls, Ordering::Relaxed);
                        });
                    }
                });
                done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
            })
            .collect();
        best.sort_by(f64::total_cmp);
        println!("match + pin + unpin, {threads} threads      {:>12.0} a second", best[2]);
        rates.push(best[2]);
    }
    println!("2 threads to 1                       {:>12.2} x", rates[1] / rates[0]);
}
