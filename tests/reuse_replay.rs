//! Histories of a batch manager, step by step, with the figures that each step must come to:
//! `tests/vectors/reuse_replay.json`.
//!
//! A step that fails must say how many blocks were free besides those it had matched, and change
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvhints::reuse::{
    BlockRange, NoObserver, OwnedBlocks, Owner, Request, RequestParams, RequestPin, Retention,
    RetentionRange, ReuseError, ReuseTreeConfig, Sequence, SequenceParams, Tier, DEFAULT_PRIORITY,
    WINDOW_FULL,
};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    primary_blocks: usize,
    secondary_blocks: usize,
    tokens_per_block: usize,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    start: usize,
    end: Option<usize>,
    priority: u8,
    duration_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    op: String,
    request: Option<u64>,
    tokens: Option<Vec<i32>>,
    final_tokens: Option<Vec<i32>>,
    #[serde(default)]
    retention: Vec<Range>,
    salt: Option<u64>,
    priority: Option<u8>,
    now: Option<u64>,
    pin: Option<String>,
    matched_tokens: Option<usize>,
    blocks_in_use: Option<usize>,
    pinned_blocks: Option<usize>,
    error: Option<String>,
    free_primary: usize,
    #[serde(rename = "note")]
    _note: Option<String>,
}

const NS_PER_MS: u64 = 1_000_000;

/// What a pin of either kind keeps alive.
#[derive(Debug)]
enum Pin {
    Request(#[allow(dead_code, reason = "held")] RequestPin),
    Range(#[allow(dead_code, reason = "held")] BlockRange),
}

struct Replay {
    owner: Owner,
    tokens_per_block: usize,
    requests: BTreeMap<u64, (Request, Vec<i32>, Option<u64>)>,
    pins: BTreeMap<String, Pin>,
}

impl Replay {
    fn sequence(&self, tokens: &[i32], salt: Option<u64>) -> Sequence {
        let tokens_per_block = self.tokens_per_block;
        Sequence::new(&SequenceParams { tokens_per_block, tokens, salt, ..Default::default() })
            .expect("a good sequence")
    }

    fn free_primary(&self) -> usize {
        self.owner.free_count(WINDOW_FULL, Tier::Primary).expect("the window is there")
    }

    /// Does one step; `Err` with what was free when blocks were missing.
    fn step(&mut self, step: &Step) -> Result<(), usize> {
        match step.op.as_str() {
            "add" => {
                let tokens = step.tokens.as_ref().expect("tokens");
                let sequence = self.sequence(tokens, step.salt);
                let ranges: Vec<RetentionRange> = step
                    .retention
                    .iter()
                    .map(|range| RetentionRange {
                        start: range.start,
                        end: range.end,
                        retention: Retention {
                            priority: range.priority,
                            duration_ns: range.duration_ms.map(|ms| ms * NS_PER_MS),
                        },
                    })
                    .collect();
                let added = self.owner.add(&RequestParams {
                    sequence: &sequence,
                    max_matched_tokens: usize::MAX,
                    retention: &ranges,
                });
                let request = added.map_err(free_at_refusal)?;
                assert_eq!(Some(request.matched_tokens()), step.matched_tokens, "matched");
                let (first_block, ids) = request.blocks(WINDOW_FULL).expect("the window is there");
                assert_eq!((first_block, Some(ids.len())), (0, step.blocks_in_use), "blocks");
                let key = step.request.expect("a request");
                let before = self.requests.insert(key, (request, tokens.clone(), step.salt));
                assert!(before.is_none(), "a request is added once");
            }
            "remove" => {
                let key = step.request.expect("a request");
                let (mut request, _, salt) = self.requests.remove(&key).expect("it was added");
                let tokens = step.final_tokens.as_ref().expect("final tokens");
                let sequence = self.sequence(tokens, salt);
                request.finish(&sequence, tokens.len() - 1).expect("requests end");
            }
            "grow_one_block" => {
                let retention = Retention {
                    priority: step.priority.unwrap_or(DEFAULT_PRIORITY),
                    duration_ns: None,
                };
                let block = self.tokens_per_block;
                let (request, ..) = self.request(step);
                let (_, ids) = request.blocks(WINDOW_FULL).expect("the window is there");
                let before = ids.len();
                let tokens = before * block + 1 - request.token_count();
                request.grow(tokens, retention).map_err(free_at_refusal)?;
                let (_, ids) = request.blocks(WINDOW_FULL).expect("the window is there");
                assert_eq!(ids.len(), before + 1, "one block more");
            }
            "store_context" | "store_and_pin" => {
                let (_, tokens, salt) = self.request(step);
                let (tokens, salt) = (tokens.clone(), *salt);
                let sequence = self.sequence(&tokens, salt);
                let (request, ..) = self.request(step);
                if step.op == "store_context" {
                    request.store_context(&sequence, tokens.len() - 1).expect("it is stored");
                } else {
                    let pinned =
                        request.store_and_pin(&sequence, tokens.len() - 1, WINDOW_FULL, None);
                    let range = pinned.expect("it is stored").expect("and pinned");
                    assert_eq!(Some(range.block_count()), step.pinned_blocks, "pinned");
                    self.pins.insert(step.pin.clone().expect("a pin"), Pin::Range(range));
                }
            }
            "pin_request" => {
                let (request, ..) = self.request(step);
                let pin = request.pin().expect("requests can be pinned");
                let ids = pin.ids(WINDOW_FULL).expect("the window is there");
                assert_eq!(Some(ids.len()), step.pinned_blocks, "pinned");
                self.pins.insert(step.pin.clone().expect("a pin"), Pin::Request(pin));
            }
            "unpin" => {
                let pin = self.pins.remove(step.pin.as_ref().expect("a pin"));
                drop(pin.expect("it is live"));
            }
            "time_ms_and_refresh" => {
                let now_ns = step.now.expect("a time") * NS_PER_MS;
                self.owner.refresh(now_ns).expect("time passes");
            }
            other => panic!("unknown step {other}"),
        }
        Ok(())
    }

    fn request(&mut self, step: &Step) -> &mut (Request, Vec<i32>, Option<u64>) {
        self.requests.get_mut(&step.request.expect("a request")).expect("it was added")
    }
}

fn free_at_refusal(error: ReuseError) -> usize {
    match error {
        ReuseError::NoFreeBlock { needed, free, .. } => {
            assert!(needed > free, "refused although there was enough: {error}");
            free
        }
        other => panic!("refused for another reason: {other}"),
    }
}

#[test]
fn every_step_comes_to_its_figures() {
    let text = include_str!("vectors/reuse_replay.json");
    let scenarios: Vec<Scenario> = serde_json::from_str(text).expect("the vectors can be read");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for scenario in &scenarios {
        let config = ReuseTreeConfig {
            tokens_per_block: scenario.tokens_per_block,
            windows: &[],
            seed: 1,
            observer: Arc::new(NoObserver),
        };
        let blocks =
            OwnedBlocks { primary: scenario.primary_blocks, secondary: scenario.secondary_blocks };
        let mut replay = Replay {
            owner: Owner::new(config, blocks, 0).expect("a good configuration"),
            tokens_per_block: scenario.tokens_per_block,
            requests: BTreeMap::new(),
            pins: BTreeMap::new(),
        };
        for (index, step) in scenario.steps.iter().enumerate() {
            println!("{}, step {index}: {step:?}", scenario.name);
            let before = replay.free_primary();
            match (replay.step(step), &step.error) {
                (Ok(()), None) => assert_eq!(replay.free_primary(), step.free_primary, "free"),
                (Err(free), Some(error)) => {
                    assert_eq!((error.as_str(), free), ("no free block", step.free_primary));
                    assert_eq!(replay.free_primary(), before, "a refusal changes nothing");
                }
                (outcome, error) => panic!("came to {outcome:?}, not to {error:?}"),
            }
            replay.owner.verify().expect("the parts agree");
            *seen.entry(step.op.clone()).or_default() += 1;
        }
        // Whatever is left goes back.
        replay.requests.clear();
        replay.pins.clear();
        assert_eq!(replay.free_primary(), scenario.primary_blocks, "{}", scenario.name);
        replay.owner.verify().expect("the parts agree");
    }
    assert_eq!(scenarios.len(), 13);
    for op in [
        "add",
        "remove",
        "grow_one_block",
        "store_context",
        "store_and_pin",
        "pin_request",
        "unpin",
        "time_ms_and_refresh",
    ] {
        assert!(seen.contains_key(op), "{op} is in no scenario: {seen:?}");
    }
}
