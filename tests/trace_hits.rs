//! Requests of real serving traffic against the reuse tree: each must find as many blocks as a naive
//! oracle says, with room for everything and with a host that evicts.
//!
//! `KVHINTS_TRACES` names the traces, with `:` between them: one JSON object a line, whose `hash_ids`
//! stand for the blocks of the request's input; equal leading ids mean an equal prefix.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kvhints::reuse::{
    BlockId, Evicted, NoObserver, ReuseTree, ReuseTreeConfig, Sequence, SequenceParams, WINDOW_FULL,
};

/// Tokens that stand for one block of the trace: fewer than in the trace, for nothing depends on it.
const TOKENS_PER_BLOCK: usize = 16;

/// Trees up to this size are verified whole.
const VERIFIED_BLOCKS: usize = 5_000;

/// The prefixes that are held, as a child would keep them. Knows nothing of the library.
#[derive(Default)]
struct Oracle {
    /// Number of a prefix: by its parent's number and the trace's id of its last block.
    numbers: HashMap<(usize, u64), usize>,
    /// Block ids, by number of the prefix that ends with the block.
    held: HashMap<usize, BlockId>,
}

impl Oracle {
    /// The numbers of all prefixes of a request, shortest first. The empty prefix is number 0.
    fn prefixes(&mut self, hash_ids: &[u64]) -> Vec<usize> {
        let mut parent = 0;
        let mut number = |id: &u64| {
            let next = self.numbers.len() + 1;
            parent = *self.numbers.entry((parent, *id)).or_insert(next);
            parent
        };
        hash_ids.iter().map(&mut number).collect()
    }

    fn hits(&self, prefixes: &[usize]) -> usize {
        prefixes.iter().take_while(|prefix| self.held.contains_key(prefix)).count()
    }
}

/// When each block was needed last: what a host knows that evicts the block needed longest ago.
#[derive(Default)]
struct Recency {
    by_time: BTreeMap<(usize, usize), usize>,
    time_of: HashMap<usize, (usize, usize)>,
}

impl Recency {
    /// Of one request the last blocks count as older: nothing is evicted below which something lies.
    fn touch(&mut self, request: usize, prefixes: &[usize]) {
        for (position, prefix) in prefixes.iter().enumerate() {
            let time = (request, usize::MAX - position);
            if let Some(before) = self.time_of.insert(*prefix, time) {
                self.by_time.remove(&before);
            }
            self.by_time.insert(time, *prefix);
        }
    }

    fn oldest(&mut self) -> usize {
        let (_, prefix) = self.by_time.pop_first().expect("something is held");
        self.time_of.remove(&prefix);
        prefix
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    requests: usize,
    blocks: usize,
    hits: usize,
    evictions: usize,
}

fn sequence(hash_ids: &[u64]) -> Sequence {
    let token = |id: &u64, at: usize| (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (2 * at)) as i32;
    let tokens: Vec<i32> =
        hash_ids.iter().flat_map(|id| (0..TOKENS_PER_BLOCK).map(move |at| token(id, at))).collect();
    let params = SequenceParams {
        tokens_per_block: TOKENS_PER_BLOCK,
        tokens: &tokens,
        ..Default::default()
    };
    Sequence::new(&params).expect("a good sequence")
}

/// Runs all requests; each finds in the tree what it finds in the oracle. The oracle's counts.
fn replay(trace: &[Vec<u64>], capacity_blocks: usize) -> Counts {
    let tree = ReuseTree::new(ReuseTreeConfig {
        tokens_per_block: TOKENS_PER_BLOCK,
        windows: &[],
        seed: 5,
        observer: Arc::new(NoObserver),
    })
    .expect("a good configuration");
    let (mut oracle, mut recency, mut counts) =
        (Oracle::default(), Recency::default(), Counts::default());
    let mut next_id = 0;
    for (request, hash_ids) in trace.iter().enumerate() {
        let hash_ids = &hash_ids[..hash_ids.len().min(capacity_blocks)];
        let (sequence, prefixes) = (sequence(hash_ids), oracle.prefixes(hash_ids));
        let hits = oracle.hits(&prefixes);
        let found = tree.matched_tokens(WINDOW_FULL, &sequence, usize::MAX).expect("a good match");
        assert_eq!(found, hits * TOKENS_PER_BLOCK, "request {request}");
        counts.requests += 1;
        counts.blocks += hash_ids.len();
        counts.hits += hits;

        recency.touch(request, &prefixes);
        while oracle.held.len() + prefixes.len() - hits > capacity_blocks {
            let id = oracle.held.remove(&recency.oldest()).expect("old blocks are held");
            assert_eq!(tree.evict(WINDOW_FULL, id), Ok(Evicted::Left { blocks: 1 }));
            counts.evictions += 1;
        }
        let ids: Vec<BlockId> = (next_id..).take(prefixes.len() - hits).collect();
        next_id += ids.len() as BlockId;
        let held = tree.store(WINDOW_FULL, &sequence, hits, &ids).expect("a good store");
        assert!(held.iter().zip(&ids).all(|(held, id)| *held == Some(*id)), "request {request}");
        oracle.held.extend(prefixes[hits..].iter().copied().zip(ids));
    }
    assert_eq!(tree.statistics().stored_blocks, oracle.held.len());
    // It looks at each block from each side: minutes for a large tree.
    if oracle.held.len() <= VERIFIED_BLOCKS {
        tree.verify().expect("the tree's parts agree");
    }
    counts
}

fn parse(text: &str) -> Vec<Vec<u64>> {
    let line = |line: &str| {
        let request: serde_json::Value = serde_json::from_str(line).expect("a JSON object a line");
        let ids = request["hash_ids"].as_array().expect("hash_ids is a list");
        ids.iter().map(|id| id.as_u64().expect("ids are numbers")).collect()
    };
    text.lines().map(line).collect()
}

#[test]
fn every_request_of_a_trace_finds_what_the_oracle_says() {
    let Ok(paths) = std::env::var("KVHINTS_TRACES") else {
        println!("SKIPPED every_request_of_a_trace_finds_what_the_oracle_says: KVHINTS_TRACES is not set");
        return;
    };
    for path in paths.split(':') {
        let trace = parse(&std::fs::read_to_string(path).expect("the trace is readable"));
        for capacity_blocks in [usize::MAX, 50_000, 5_000] {
            let counts = replay(&trace, capacity_blocks);
            assert!(counts.hits > 0, "{path}: a trace without any reuse shows nothing");
            println!("{path}, room for {capacity_blocks} blocks: {counts:?}");
        }
    }
}

#[test]
fn a_small_trace_has_the_hits_counted_by_hand() {
    let trace = parse(
        r#"{"hash_ids": [0, 1, 2]}
{"hash_ids": [0, 1, 3]}
{"hash_ids": [1, 2]}
{"hash_ids": [0, 1, 2, 4]}"#,
    );
    let counts = |hits, evictions| Counts { requests: 4, blocks: 12, hits, evictions };
    // 0, then 0 1, then nothing, then 0 1 2.
    assert_eq!(replay(&trace, usize::MAX), counts(5, 0));
    // The third request drives out 2 and 3 of the first two, the last finds 0 1.
    assert_eq!(replay(&trace, 4), counts(4, 4));
}
