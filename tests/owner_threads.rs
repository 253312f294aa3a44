//! Owner mode while other threads pin: no block that is pinned is handed out, and no pin makes a
//! block free twice or never.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use kvhints::reuse::{
    NoObserver, OwnedBlocks, Owner, Policy, RangeRequest, RequestParams, Retention, ReuseError,
    ReuseTreeConfig, Sequence, SequenceParams, Tier, WINDOW_FULL,
};

const BLOCK: usize = 4;
const PRIMARY: usize = 24;
const SECONDARY: usize = 6;

fn sequence(tokens: &[i32]) -> Sequence {
    Sequence::new(&SequenceParams { tokens_per_block: BLOCK, tokens, ..Default::default() })
        .expect("a good sequence")
}

/// A small generator with a fixed beginning: the same prompts each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Of few heads, so that prompts share them.
    fn prompt(&mut self) -> Vec<i32> {
        let (head, length) = (self.below(3) as i32, 1 + self.below(20) as usize);
        let mut tokens: Vec<i32> = (0..length as i32).map(|token| head * 100 + token).collect();
        if self.below(2) == 0 {
            let last = tokens.len() - 1;
            tokens[last] = -(self.below(4) as i32) - 1;
        }
        tokens
    }
}

#[test]
fn pins_of_other_threads_keep_blocks_from_being_handed_out() {
    let config = ReuseTreeConfig {
        tokens_per_block: BLOCK,
        windows: &[],
        seed: 1,
        observer: Arc::new(NoObserver),
    };
    let blocks = OwnedBlocks { primary: PRIMARY, secondary: SECONDARY };
    let owner = Owner::new(config, blocks, 64).expect("a good configuration");
    // By id: which request wrote to the block last.
    let writer_of: Vec<AtomicU64> = (0..PRIMARY + SECONDARY).map(|_| AtomicU64::new(0)).collect();
    let (is_over, hits) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut admitted, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (owner, writer_of, is_over, hits) = (&owner, &writer_of, &is_over, &hits);
            scope.spawn(move || {
                let mut random = Random(thread + 7);
                while !is_over.load(Ordering::Acquire) {
                    let sequence = sequence(&random.prompt());
                    let request = RangeRequest {
                        first_block: 0,
                        block_count: sequence.block_count(),
                        policy: Policy::BestEffort,
                        lease_deadline_ns: None,
                    };
                    let outcome = owner.tree().pin_range(WINDOW_FULL, &sequence, &request);
                    let Some(range) = outcome.expect("a good range").range else {
                        continue;
                    };
                    let ids: Vec<i32> = range.ids().expect("its ids").collect();
                    let read = || -> Vec<u64> {
                        ids.iter()
                            .map(|id| writer_of[*id as usize].load(Ordering::SeqCst))
                            .collect()
                    };
                    let before = read();
                    for _ in 0..random.below(200) {
                        std::hint::spin_loop();
                    }
                    assert_eq!(read(), before, "a pinned block was written to");
                    hits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut random = Random(1);
        let mut live = Vec::new();
        for step in 1..6_000_u64 {
            let tokens = random.prompt();
            let prompt = sequence(&tokens);
            let params =
                RequestParams { sequence: &prompt, max_matched_tokens: usize::MAX, retention: &[] };
            match owner.add(&params) {
                Ok(request) => {
                    admitted += 1;
                    let (_, ids) = request.blocks(WINDOW_FULL).expect("the window is there");
                    // What was not matched is computed, that is, written.
                    for id in &ids[request.matched_tokens() / BLOCK..] {
                        writer_of[*id as usize].store(step, Ordering::SeqCst);
                    }
                    live.push((request, prompt, tokens.len()));
                }
                Err(ReuseError::NoFreeBlock { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            let waiting = owner.copies(usize::MAX, |_| ());
            // What moves is written too, where it arrives; ids stay, and pinned ones do not move.
            owner.copied(waiting).expect("they were asked for");
            if live.len() > 3 || random.below(3) == 0 {
                if let Some((mut request, prompt, tokens)) = live.pop() {
                    if random.below(4) > 0 {
                        let grown = request.grow(BLOCK, Retention::default());
                        assert!(matches!(grown, Ok(()) | Err(ReuseError::NoFreeBlock { .. })));
                    }
                    request.finish(&prompt, tokens - 1).expect("requests end");
                }
            }
            let free = owner.free_count(WINDOW_FULL, Tier::Primary).expect("the window is there");
            assert!(free <= PRIMARY);
            if step % 500 == 0 {
                owner.refresh(step).expect("time passes");
            }
        }
        is_over.store(true, Ordering::Release);
    });
    owner.verify().expect("the parts agree");
    for (tier, blocks) in [(Tier::Primary, PRIMARY), (Tier::Secondary, SECONDARY)] {
        assert_eq!(owner.free_count(WINDOW_FULL, tier), Ok(blocks), "all free again, each once");
    }
    let hits = hits.load(Ordering::Relaxed);
    assert!(hits > 0 && admitted > 0, "{hits} pins, {admitted} requests, {refused} refused");
}
