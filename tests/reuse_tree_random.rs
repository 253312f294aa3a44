//! Random operations on a reuse tree, compared with a naive model after each step.

mod reuse_model;
mod reuse_prompts;

use std::cell::RefCell;
use std::sync::Arc;

use kvhints::reuse::{
    BlockRange, Evicted, NoObserver, Policy, RangeRequest, ReuseError, ReuseTree, ReuseTreeConfig,
    Tier,
};
use proptest::prelude::*;
use reuse_model::Window;
use reuse_prompts::{prompts, Prompt, BLOCK};

const WINDOWS: [i32; 2] = [0, 3];
const IDS: i32 = 14;

/// Numbers in an operation are taken modulo what there is.
#[derive(Debug, Clone)]
enum Operation {
    Store { window: usize, prompt: Prompt, first: usize, ids: Vec<i32> },
    Match { window: usize, prompt: Prompt, max_tokens: usize, pin: bool },
    PinRange { window: usize, prompt: Prompt, first: usize, count: usize, strict: bool },
    PinNamed { window: usize, prompt: Prompt, strict: bool },
    Unpin { which: usize, by_drop: bool },
    UnpinAgain { which: usize },
    Evict { window: usize, id: i32 },
    RemoveSubtree { window: usize, id: i32 },
    SetTier { window: usize, id: i32, primary: bool },
    Reset,
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![60 => usual_operations(), 1 => Just(Operation::Reset)]
}

fn usual_operations() -> impl Strategy<Value = Operation> {
    let window = || 0..WINDOWS.len();
    // Mostly one block after the other, sometimes anything.
    let ids = prop_oneof![
        3 => (0..IDS, 0..=5).prop_map(|(first, count)| {
            (first..first + count).map(|id| id % IDS).collect::<Vec<i32>>()
        }),
        1 => prop::collection::vec(-1..IDS, 0..=5),
    ];
    prop_oneof![
        8 => (window(), prompts(), prop_oneof![3 => Just(0_usize), 1 => 0..5_usize], ids)
            .prop_map(|(window, prompt, first, ids)| Operation::Store { window, prompt, first, ids }),
        4 => (window(), prompts(), 0..12_usize, any::<bool>()).prop_map(
            |(window, prompt, max_tokens, pin)| Operation::Match { window, prompt, max_tokens, pin }
        ),
        5 => (window(), prompts(), 0..3_usize, 0..4_usize, any::<bool>()).prop_map(
            |(window, prompt, first, count, strict)| Operation::PinRange {
                window, prompt, first, count, strict
            }
        ),
        2 => (window(), prompts(), any::<bool>())
            .prop_map(|(window, prompt, strict)| Operation::PinNamed { window, prompt, strict }),
        4 => (0..8_usize, any::<bool>())
            .prop_map(|(which, by_drop)| Operation::Unpin { which, by_drop }),
        1 => (0..8_usize).prop_map(|which| Operation::UnpinAgain { which }),
        2 => (window(), 0..IDS).prop_map(|(window, id)| Operation::Evict { window, id }),
        1 => (window(), 4..IDS).prop_map(|(window, id)| Operation::RemoveSubtree { window, id }),
        2 => (window(), 0..IDS, any::<bool>())
            .prop_map(|(window, id, primary)| Operation::SetTier { window, id, primary }),
    ]
}

struct Pair {
    tree: ReuseTree,
    model: Vec<Window>,
    /// Live ranges: window, ids that the model protects for it.
    pins: Vec<(BlockRange, usize, Vec<i32>)>,
    /// Ranges that were unpinned and not dropped.
    released: Vec<BlockRange>,
}

impl Pair {
    fn new() -> Self {
        let config = ReuseTreeConfig {
            tokens_per_block: BLOCK,
            windows: &WINDOWS,
            seed: 1,
            observer: Arc::new(NoObserver),
        };
        let tree = ReuseTree::new(config).expect("a good configuration");
        let model = WINDOWS.iter().map(|tokens| Window::new(*tokens as usize)).collect();
        Self { tree, model, pins: Vec::new(), released: Vec::new() }
    }

    /// Compares a pin of the tree with the ids that the model says are present.
    fn pinned(&mut self, window: usize, range: Option<BlockRange>, ids: &[i32], enough: bool) {
        if !enough {
            assert!(range.is_none(), "a miss was pinned");
            return;
        }
        let range = range.expect("a hit was not pinned");
        assert_eq!(range.ids().expect("live").collect::<Vec<_>>(), ids);
        let protected = self.model[window].pin(ids);
        self.pins.push((range, window, protected));
    }

    /// Does one operation on both; returns what it came to, in a word.
    fn step(&mut self, operation: Operation) -> &'static str {
        match operation {
            Operation::Store { window, prompt, first, mut ids } => {
                let path = prompt.path();
                let first = first % (path.len() + 1);
                ids.truncate(path.len() - first);
                let sequence = prompt.sequence();
                let stored = self.tree.store(WINDOWS[window], &sequence, first, &ids);
                if WINDOWS[window] == 0 && ids.contains(&-1) {
                    assert_eq!(stored, Err(ReuseError::Placeholder));
                    return "store refused";
                }
                let expected = self.model[window].store(&path, first, &ids);
                assert_eq!(stored, Ok(expected.clone()));
                let is_taken = |(held, id): (&Option<i32>, &i32)| *held == Some(*id);
                let taken = expected.iter().zip(&ids).filter(|pair| is_taken(*pair)).count();
                if taken == ids.len() {
                    "store whole"
                } else {
                    "store partly"
                }
            }
            Operation::Match { window, prompt, max_tokens, pin } => {
                let sequence = prompt.sequence();
                let whole = max_tokens.min(prompt.tokens.len()) / BLOCK;
                let full = &prompt.path()[..whole];
                let cut: Vec<_> = (0..=whole).map(|block| prompt.key(block, max_tokens)).collect();
                let expected = self.model[window].match_prefix(full, &cut, BLOCK);
                let (tokens, first_block, ids, partial_tokens) = expected;
                let window_tokens = WINDOWS[window];
                let matched = self.tree.matched_tokens(window_tokens, &sequence, max_tokens);
                assert_eq!(matched, Ok(tokens));
                let (found, found_ids, range) = if pin {
                    let (found, range) = self
                        .tree
                        .match_and_pin(window_tokens, &sequence, max_tokens, None)
                        .expect("a good match");
                    let ids = range.as_ref().map(|range| range.ids().expect("live").collect());
                    (found, ids.unwrap_or_default(), range)
                } else {
                    let found = self.tree.match_prefix(window_tokens, &sequence, max_tokens);
                    let (found, blocks) = found.expect("a good match");
                    (found, blocks.iter().map(|(id, _)| *id).collect::<Vec<i32>>(), None)
                };
                assert_eq!(
                    (found.matched_tokens, found.first_block, found_ids, found.partial_tokens),
                    (tokens, first_block, ids.clone(), partial_tokens)
                );
                self.pinned(window, range, &ids, pin && tokens > 0);
                match (tokens, partial_tokens) {
                    (0, _) => "match nothing",
                    (_, 0) => "match whole blocks",
                    _ => "match a head",
                }
            }
            Operation::PinRange { window, prompt, first, count, strict } => {
                let path = prompt.path();
                let policy = if strict { Policy::Strict } else { Policy::BestEffort };
                let request = RangeRequest {
                    first_block: first,
                    block_count: count,
                    policy,
                    lease_deadline_ns: None,
                };
                let outcome = self.tree.pin_range(WINDOWS[window], &prompt.sequence(), &request);
                if count == 0 || first + count > path.len() {
                    let refused = matches!(outcome, Err(ReuseError::BadRange { .. }));
                    assert!(refused, "{outcome:?}");
                    return "range refused";
                }
                let outcome = outcome.expect("a good range");
                let full_blocks = prompt.tokens.len() / BLOCK;
                let ids = self.model[window].sendable(&path, first..first + count, full_blocks);
                assert_eq!(outcome.present, ids.len());
                let enough = !ids.is_empty() && (!strict || ids.len() == count);
                self.pinned(window, outcome.range, &ids, enough);
                match (enough, ids.len() == count) {
                    (false, _) => "range miss",
                    (true, false) => "range partly",
                    (true, true) => "range whole",
                }
            }
            Operation::PinNamed { window, prompt, strict } => {
                let sequence = prompt.sequence();
                let policy = if strict { Policy::Strict } else { Policy::BestEffort };
                let tail = sequence.text_tail().expect("memory");
                let mut names = sequence.names().to_vec();
                let full_blocks = names.len();
                if tail.is_some() {
                    names.extend(sequence.name(full_blocks));
                }
                let names = &names;
                let tail = tail.as_ref();
                let outcome = self.tree.pin_named(WINDOWS[window], names, tail, policy, None);
                let outcome = outcome.expect("a good list");
                let range = if prompt.lora.is_some() { 0..0 } else { 0..names.len() };
                let ids = self.model[window].sendable(&prompt.path(), range, full_blocks);
                assert_eq!(outcome.present, ids.len());
                let enough = !ids.is_empty() && (!strict || ids.len() == names.len());
                self.pinned(window, outcome.range, &ids, enough);
                if enough && ids.len() > full_blocks {
                    "named tail hit"
                } else if enough {
                    "named hit"
                } else {
                    "named miss"
                }
            }
            Operation::Unpin { which, by_drop } => {
                if self.pins.is_empty() {
                    return "nothing to unpin";
                }
                let (range, window, protected) = self.pins.swap_remove(which % self.pins.len());
                if !by_drop {
                    assert_eq!(range.unpin(), Ok(()));
                    self.released.push(range);
                }
                self.model[window].unpin(&protected);
                "unpin"
            }
            Operation::UnpinAgain { which } => {
                if self.released.is_empty() {
                    return "nothing to unpin";
                }
                let range = &self.released[which % self.released.len()];
                assert_eq!(range.unpin(), Err(ReuseError::NotLive));
                assert_eq!(self.tree.unpin(range.pin_id()), Err(ReuseError::NotLive));
                "unpin again"
            }
            Operation::Evict { window, id } => {
                let model = &mut self.model[window];
                let (expected, word) = match model.find_id(id).cloned() {
                    _ if model.is_protected(id) => (Evicted::Busy, "evict busy"),
                    None => (Evicted::NotFound, "evict not found"),
                    Some(stored) => {
                        let blocks = model.remove_below(&stored.path);
                        (Evicted::Left { blocks }, "evict")
                    }
                };
                assert_eq!(self.tree.evict(WINDOWS[window], id), Ok(expected));
                word
            }
            Operation::RemoveSubtree { window, id } => {
                let model = &mut self.model[window];
                let path = model.find_id(id).map(|stored| stored.path.clone());
                let expected = path.map_or(0, |path| model.remove_below(&path));
                assert_eq!(self.tree.remove_subtree(WINDOWS[window], id), Ok(expected));
                "remove"
            }
            Operation::SetTier { window, id, primary } => {
                let model = &mut self.model[window];
                let is_protected = model.is_protected(id);
                let expected =
                    model.stored.iter_mut().find(|stored| stored.id == id).map(|stored| {
                        let is_allowed = primary || !is_protected;
                        if is_allowed {
                            stored.is_primary = primary;
                        }
                        is_allowed
                    });
                let tier = if primary { Tier::Primary } else { Tier::Secondary };
                assert_eq!(self.tree.set_tier(WINDOWS[window], id, tier), Ok(expected));
                match expected {
                    Some(true) => "tier set",
                    Some(false) => "tier busy",
                    None => "tier not found",
                }
            }
            Operation::Reset => {
                self.tree.reset();
                self.model.iter_mut().for_each(|window| window.stored.clear());
                "reset"
            }
        }
    }

    /// Everything that can be asked is asked of both.
    fn compare(&self) {
        self.tree.verify().expect("the tree's parts agree");
        for (tokens, model) in WINDOWS.iter().zip(&self.model) {
            assert_eq!(self.tree.protected_blocks(*tokens), Ok(model.protected.len()));
            for id in 0..IDS {
                let found = self.tree.find_id(*tokens, id).expect("a known window");
                let facts = found.map(|found| {
                    let is_primary = found.tier == Tier::Primary;
                    (found.position, found.token_count, is_primary, found.is_protected)
                });
                let expected = model.find_id(id).map(|stored| {
                    let (last, above) = stored.path.split_last().expect("a path is not empty");
                    let tokens = last.tokens.len();
                    (above.len(), tokens, stored.is_primary, model.is_protected(id))
                });
                assert_eq!(facts, expected, "block {id} of window {tokens}");
                if let Some(found) = found {
                    let same_hash = self.tree.find_hash(*tokens, found.hash);
                    assert_eq!(
                        same_hash.expect("a known window").map(|same| same.hash),
                        Some(found.hash)
                    );
                }
            }
        }
        let statistics = self.tree.statistics();
        let sum = |count: fn(&Window) -> usize| self.model.iter().map(count).sum::<usize>();
        assert_eq!(statistics.stored_blocks, sum(|window| window.stored.len()));
        assert_eq!(statistics.protected_blocks, sum(|window| window.protected.len()));
        assert_eq!(statistics.live_pins, self.pins.len());
        let stayed = statistics.blocks_taken - statistics.blocks_removed;
        assert_eq!(stayed, statistics.stored_blocks as u64);
    }
}

#[test]
fn the_tree_does_what_the_model_does() {
    let outcomes = RefCell::new(std::collections::BTreeMap::<&str, usize>::new());
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let histories = prop::collection::vec(operations(), 1..80);
    let result = runner.run(&histories, |history| {
        let mut pair = Pair::new();
        for operation in history {
            let outcome = pair.step(operation);
            *outcomes.borrow_mut().entry(outcome).or_default() += 1;
            pair.compare();
        }
        pair.pins.clear();
        pair.model.iter_mut().for_each(|window| window.protected.clear());
        pair.compare();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let outcomes = outcomes.into_inner();
    for outcome in [
        "store whole",
        "store partly",
        "store refused",
        "match nothing",
        "match whole blocks",
        "match a head",
        "range miss",
        "range partly",
        "range whole",
        "range refused",
        "named hit",
        "named tail hit",
        "named miss",
        "unpin",
        "unpin again",
        "evict",
        "evict busy",
        "evict not found",
        "remove",
        "tier set",
        "tier busy",
        "tier not found",
        "reset",
    ] {
        // The rarest comes some twenty times; a higher bar than one would hang on the seed.
        assert!(outcomes.contains_key(outcome), "{outcome}: {outcomes:?}");
    }
}
