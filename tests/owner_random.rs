//! Random histories of requests, pins and time in owner mode, compared with a naive batch manager
//! after each step; and a router that knows the tree from its events alone.

mod owner_model;
mod reuse_model;
mod reuse_prompts;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use kvhints::reuse::{
    BlockCopy, BlockRange, CopyReason, Event, EventKind, Evicted, NoObserver, OwnedBlocks, Owner,
    Place, Policy, RangeRequest, Request, RequestParams, RequestPin, Retention, RetentionRange,
    ReuseError, ReuseTreeConfig, StoredBlock, Tier,
};
use owner_model::{Manager, NoFreeBlock};
use proptest::prelude::*;
use reuse_prompts::{prompts, Prompt, BLOCK};

const WINDOWS: [i32; 2] = [0, 3];
const PRIMARY: usize = 7;
const SECONDARY: usize = 3;
const IDS: i32 = (PRIMARY + SECONDARY) as i32;
/// Small, so that it overflows.
const EVENTS: usize = 12;

type ModelRange = owner_model::Range;

/// Numbers in an operation are taken modulo what there is.
#[derive(Debug, Clone)]
enum Operation {
    Add { prompt: Prompt, most: usize, ranges: Vec<ModelRange> },
    Grow { which: usize, tokens: usize, retention: (u8, Option<u64>) },
    StoreContext { which: usize, tokens: usize },
    StoreAndPin { which: usize, tokens: usize, window: usize },
    Finish { which: usize, more: Vec<i32>, unstored: usize },
    FinishAsAnother { which: usize, prompt: Prompt },
    Drop { which: usize },
    PinRequest { which: usize },
    UnpinRequest { which: usize },
    PinRange { window: usize, prompt: Prompt, count: usize },
    MatchAndPin { window: usize, prompt: Prompt },
    Unpin { which: usize },
    Take { window: usize, retention: (u8, Option<u64>) },
    Claim { window: usize, id: i32, priority: Option<u8>, duration: Option<u64> },
    Release { window: usize, id: i32 },
    Offload { window: usize, id: i32 },
    Onboard { window: usize, id: i32 },
    SetRetention { window: usize, id: i32, retention: (u8, Option<u64>) },
    Copied { count: usize },
    Refresh { by: u64 },
    Evict { window: usize, id: i32 },
    RemoveSubtree { window: usize, id: i32 },
    Reset,
    ReadEvents { most: usize },
}

fn retentions() -> impl Strategy<Value = (u8, Option<u64>)> {
    let priority = prop_oneof![3 => Just(35_u8), 1 => Just(10), 1 => Just(29), 2 => Just(60)];
    (priority, prop::option::weighted(0.3, 0..6_u64))
}

fn ranges() -> impl Strategy<Value = Vec<ModelRange>> {
    let range = (0..3_usize, 1..4_usize, retentions());
    (prop::collection::vec(range, 0..3), any::<bool>()).prop_map(|(ranges, is_open)| {
        let (mut from, last) = (0, ranges.len());
        let placed = ranges.into_iter().enumerate().map(|(index, (gap, length, retention))| {
            let start = from + gap;
            from = start + length;
            (start, (!is_open || index + 1 < last).then_some(from), retention)
        });
        placed.collect()
    })
}

fn operations() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let which = || 0..8_usize;
    let window = || 0..WINDOWS.len();
    let ids = || 0..IDS;
    prop_oneof![
        30 => (prompts(), 0..12_usize, ranges())
            .prop_map(|(prompt, most, ranges)| Add { prompt, most, ranges }),
        10 => (which(), 0..4_usize, retentions())
            .prop_map(|(which, tokens, retention)| Grow { which, tokens, retention }),
        6 => (which(), 0..9_usize).prop_map(|(which, tokens)| StoreContext { which, tokens }),
        4 => (which(), 0..9_usize, window())
            .prop_map(|(which, tokens, window)| StoreAndPin { which, tokens, window }),
        22 => (which(), prop::collection::vec(0..2_i32, 0..3), 0..3_usize)
            .prop_map(|(which, more, unstored)| Finish { which, more, unstored }),
        2 => (which(), prompts()).prop_map(|(which, prompt)| FinishAsAnother { which, prompt }),
        2 => which().prop_map(|which| Drop { which }),
        3 => which().prop_map(|which| PinRequest { which }),
        4 => which().prop_map(|which| UnpinRequest { which }),
        4 => (window(), prompts(), 1..4_usize)
            .prop_map(|(window, prompt, count)| PinRange { window, prompt, count }),
        3 => (window(), prompts()).prop_map(|(window, prompt)| MatchAndPin { window, prompt }),
        7 => which().prop_map(|which| Unpin { which }),
        2 => (window(), retentions()).prop_map(|(window, retention)| Take { window, retention }),
        2 => (window(), ids(), prop::option::of(0..70_u8), prop::option::of(0..5_u64)).prop_map(
            |(window, id, priority, duration)| Claim { window, id, priority, duration }
        ),
        6 => (window(), ids()).prop_map(|(window, id)| Release { window, id }),
        4 => (window(), ids()).prop_map(|(window, id)| Offload { window, id }),
        4 => (window(), ids()).prop_map(|(window, id)| Onboard { window, id }),
        4 => (window(), ids(), retentions())
            .prop_map(|(window, id, retention)| SetRetention { window, id, retention }),
        6 => (0..5_usize).prop_map(|count| Copied { count }),
        5 => (0..5_u64).prop_map(|by| Refresh { by }),
        2 => (window(), ids()).prop_map(|(window, id)| Evict { window, id }),
        1 => (window(), ids()).prop_map(|(window, id)| RemoveSubtree { window, id }),
        1 => Just(Reset),
        8 => (1..40_usize).prop_map(|most| ReadEvents { most }),
    ]
}

/// What a router knows: blocks by window and id.
#[derive(Debug, Default)]
struct Router {
    blocks: BTreeMap<(i32, i32), StoredBlock>,
    last_number: u64,
    is_behind_gap: bool,
}

impl Router {
    fn apply(&mut self, event: Event) {
        let expected = match event.kind {
            EventKind::Gap { lost } => self.last_number + lost,
            _ => self.last_number + 1,
        };
        assert_eq!(event.number, expected, "events are numbered without holes");
        self.last_number = event.number;
        match event.kind {
            EventKind::Gap { .. } => self.is_behind_gap = true,
            _ if self.is_behind_gap => {}
            EventKind::Stored(block) => {
                let before = self.blocks.insert((block.window, block.id), block);
                assert!(before.is_none(), "stored twice: {block:?}");
                if block.position > 0 && block.window == 0 {
                    let is_parent = |other: &&StoredBlock| {
                        (other.window, other.position, other.hash)
                            == (block.window, block.position - 1, block.parent_hash)
                    };
                    assert!(self.blocks.values().any(|other| is_parent(&other)), "no parent");
                }
            }
            EventKind::Removed(block) => {
                let before = self.blocks.remove(&(block.window, block.id));
                assert_eq!(before, Some(block), "what leaves is what was there");
            }
            EventKind::Updated(block) => {
                let before = self.blocks.insert((block.window, block.id), block);
                let before = before.expect("what is updated is there");
                assert_ne!((before.tier, before.priority), (block.tier, block.priority));
                let moved = StoredBlock { tier: before.tier, priority: before.priority, ..block };
                assert_eq!(moved, before, "nothing else changes");
            }
        }
    }

    /// Lists what is stored, a few at a time.
    fn list(owner: &Owner) -> BTreeMap<(i32, i32), StoredBlock> {
        let mut blocks = BTreeMap::new();
        for window in WINDOWS {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let each = |block: StoredBlock| {
                    let before = blocks.insert((block.window, block.id), block);
                    assert!(before.is_none(), "listed twice: {block:?}");
                };
                cursor = owner.tree().stored_blocks(window, from, 3, each).expect("a window");
            }
        }
        blocks
    }
}

struct Live {
    request: Request,
    model: owner_model::Request,
    prompt: Prompt,
}

/// Ids that a request holds, window by window.
type HeldBlocks = Vec<(usize, Vec<i32>)>;

struct Pair {
    owner: Owner,
    model: Manager,
    requests: Vec<Live>,
    request_pins: Vec<(RequestPin, HeldBlocks)>,
    /// Live ranges: window, ids that the model protects for it.
    pins: Vec<(BlockRange, usize, Vec<i32>)>,
    /// Blocks claimed one by one.
    claims: Vec<(usize, i32)>,
    router: Router,
    now: u64,
}

fn retention((priority, duration_ns): (u8, Option<u64>)) -> Retention {
    Retention { priority, duration_ns }
}

fn place(place: Place) -> owner_model::Place {
    (place.tier == Tier::Primary, place.slot)
}

fn is_refusal<T: std::fmt::Debug>(outcome: &Result<T, ReuseError>) -> bool {
    matches!(outcome, Err(ReuseError::NoFreeBlock { .. } | ReuseError::BlockState { .. }))
}

impl Pair {
    fn new() -> Self {
        let config = ReuseTreeConfig {
            tokens_per_block: BLOCK,
            windows: &WINDOWS,
            seed: 1,
            observer: Arc::new(NoObserver),
        };
        let blocks = OwnedBlocks { primary: PRIMARY, secondary: SECONDARY };
        Self {
            owner: Owner::new(config, blocks, EVENTS).expect("a good configuration"),
            model: Manager::new(&WINDOWS, PRIMARY, SECONDARY, BLOCK),
            requests: Vec::new(),
            request_pins: Vec::new(),
            pins: Vec::new(),
            claims: Vec::new(),
            router: Router::default(),
            now: 0,
        }
    }

    /// Compares a pin of the tree with the ids that the model says are there.
    fn pinned(&mut self, window: usize, range: Option<BlockRange>, ids: &[i32]) -> bool {
        let Some(range) = range else {
            assert!(ids.is_empty(), "a hit was not pinned");
            return false;
        };
        assert_eq!(range.ids().expect("its ids").collect::<Vec<_>>(), ids);
        let protected = self.model.pools[window].tree.pin(ids);
        self.pins.push((range, window, protected));
        true
    }

    fn same<T, U: std::fmt::Debug + PartialEq>(
        &self,
        outcome: Result<U, ReuseError>,
        expected: Result<T, NoFreeBlock>,
        value: impl FnOnce(&T) -> U,
    ) -> Option<T> {
        match expected {
            Ok(expected) => {
                assert_eq!(outcome.expect("the model can"), value(&expected));
                Some(expected)
            }
            Err(NoFreeBlock) => {
                assert!(is_refusal(&outcome), "the model cannot: {outcome:?}");
                None
            }
        }
    }

    /// Does one operation on both; returns what it came to, in a few words.
    fn step(&mut self, operation: Operation) -> &'static str {
        match operation {
            Operation::Add { prompt, most, ranges } => self.add(prompt, most, &ranges),
            Operation::Grow { which, tokens, retention: wanted } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { request, model, .. } = &mut self.requests[live];
                let outcome = request.grow(tokens, retention(wanted));
                let before = model.held[1].0;
                match self.model.grow(model, tokens, wanted) {
                    Ok(()) => {
                        outcome.expect("the model can");
                        if model.held[1].0 > before {
                            return "grow past a window";
                        }
                        "grow"
                    }
                    Err(NoFreeBlock) => {
                        assert!(is_refusal(&outcome), "the model cannot: {outcome:?}");
                        "grow refused"
                    }
                }
            }
            Operation::StoreContext { which, tokens } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { request, model, prompt } = &self.requests[live];
                let tokens = tokens % prompt.tokens.len();
                request.store_context(&prompt.sequence(), tokens).expect("it is stored");
                let key = |block, most| prompt.key(block, most);
                let shown = owner_model::Prompt { key: &key, tokens: prompt.tokens.len() };
                self.model.store(model, &shown, tokens, tokens / BLOCK);
                "store context"
            }
            Operation::StoreAndPin { which, tokens, window } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { request, model, prompt } = &self.requests[live];
                let tokens = tokens % prompt.tokens.len();
                let range =
                    request.store_and_pin(&prompt.sequence(), tokens, WINDOWS[window], None);
                let range = range.expect("it is stored");
                let key = |block, most| prompt.key(block, most);
                let shown = owner_model::Prompt { key: &key, tokens: prompt.tokens.len() };
                self.model.store(model, &shown, tokens, tokens / BLOCK);
                let path: Vec<_> = (0..).map_while(|block| prompt.key(block, tokens)).collect();
                let first = model.held[window].0.min(path.len());
                let tree = &self.model.pools[window].tree;
                let ids = tree.sendable(&path, first..path.len(), tokens / BLOCK);
                match self.pinned(window, range, &ids) {
                    true => "store and pin",
                    false => "store and pin nothing",
                }
            }
            Operation::Finish { which, more, unstored } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { request, model, mut prompt } = self.requests.swap_remove(live);
                if let Some(extra_ids) = &mut prompt.extra_ids {
                    extra_ids.extend(more.iter().map(|token| *token as u64 / 2));
                }
                prompt.tokens.extend(more);
                self.finish(request, &model, &prompt, unstored);
                "finish"
            }
            Operation::FinishAsAnother { which, prompt } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { request, model, .. } = self.requests.swap_remove(live);
                self.finish(request, &model, &prompt, 0);
                "finish as another"
            }
            Operation::Drop { which } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { model, .. } = self.requests.swap_remove(live);
                self.model.give_back(&model.held);
                "drop"
            }
            Operation::PinRequest { which } => {
                let Some(live) = index(which, &self.requests) else {
                    return "nothing to do";
                };
                let Live { request, model, .. } = &self.requests[live];
                let pin = request.pin().expect("requests can be pinned");
                for (pool, (window, (_, ids))) in
                    self.model.pools.iter_mut().zip(WINDOWS.iter().zip(&model.held))
                {
                    assert_eq!(pin.ids(*window), Ok(ids.as_slice()));
                    for id in ids {
                        let (priority, duration) = pool.blocks[*id as usize].retention;
                        pool.hold(*id, Some(priority), duration);
                    }
                }
                self.request_pins.push((pin, model.held.clone()));
                "pin a request"
            }
            Operation::UnpinRequest { which } => {
                let Some(pin) = index(which, &self.request_pins) else {
                    return "nothing to do";
                };
                let (pin, held) = self.request_pins.swap_remove(pin);
                drop(pin);
                self.model.give_back(&held);
                "unpin a request"
            }
            Operation::PinRange { window, prompt, count } => {
                let path = prompt.path();
                let count = count.min(path.len());
                let request = RangeRequest {
                    first_block: 0,
                    block_count: count,
                    policy: Policy::BestEffort,
                    lease_deadline_ns: None,
                };
                let tree = self.owner.tree();
                let outcome = tree.pin_range(WINDOWS[window], &prompt.sequence(), &request);
                if count == 0 {
                    assert!(outcome.is_err());
                    return "nothing to do";
                }
                let full_blocks = prompt.tokens.len() / BLOCK;
                let ids = self.model.pools[window].tree.sendable(&path, 0..count, full_blocks);
                match self.pinned(window, outcome.expect("a good range").range, &ids) {
                    true => "pin a range",
                    false => "pin nothing",
                }
            }
            Operation::MatchAndPin { window, prompt } => {
                let tokens = prompt.tokens.len();
                let sequence = prompt.sequence();
                let outcome =
                    self.owner.tree().match_and_pin(WINDOWS[window], &sequence, tokens, None);
                let (_, range) = outcome.expect("a good match");
                let whole = tokens / BLOCK;
                let full = &prompt.path()[..whole];
                let cut: Vec<_> = (0..=whole).map(|block| prompt.key(block, tokens)).collect();
                let (.., ids, _) = self.model.pools[window].tree.match_prefix(full, &cut, BLOCK);
                match self.pinned(window, range, &ids) {
                    true => "match and pin",
                    false => "match nothing",
                }
            }
            Operation::Unpin { which } => {
                let Some(pin) = index(which, &self.pins) else {
                    return "nothing to do";
                };
                let (range, window, protected) = self.pins.swap_remove(pin);
                drop(range);
                self.model.pools[window].tree.unpin(&protected);
                "unpin"
            }
            Operation::Take { window, retention: wanted } => {
                let outcome = self.owner.take(WINDOWS[window], retention(wanted));
                let expected = self.model.take(window, wanted);
                match self.same(outcome, expected, |id| *id) {
                    Some(id) => {
                        self.claims.push((window, id));
                        "take"
                    }
                    None => "take refused",
                }
            }
            Operation::Claim { window, id, priority, duration } => {
                self.owner.claim(WINDOWS[window], id, priority, duration).expect("a good block");
                self.model.pools[window].hold(id, priority, duration);
                self.claims.push((window, id));
                "claim"
            }
            Operation::Release { window, id } => {
                if self.model.pools[window].blocks[id as usize].users == 0 {
                    let outcome = self.owner.release(WINDOWS[window], id);
                    assert!(matches!(outcome, Err(ReuseError::BlockState { .. })));
                    return "release refused";
                }
                // Only what was claimed one by one: requests give back what is theirs.
                let Some(claim) = index(id as usize, &self.claims) else {
                    return "nothing to do";
                };
                let (window, id) = self.claims.swap_remove(claim);
                self.owner.release(WINDOWS[window], id).expect("it was claimed");
                let now = self.model.now;
                self.model.pools[window].let_go(id, now);
                "release"
            }
            Operation::Offload { window, id } => {
                let outcome = self.owner.offload(WINDOWS[window], id);
                let was_primary = self.model.pools[window].blocks[id as usize].place.0;
                let expected = self.model.offload(window, id);
                match (self.same(outcome, expected, |done| *done), was_primary) {
                    (Some(true), true) => "offload",
                    (Some(true), false) => "offload again",
                    (Some(false), _) => "offload busy",
                    (None, _) => "offload refused",
                }
            }
            Operation::Onboard { window, id } => {
                let outcome = self.owner.onboard(WINDOWS[window], id);
                let was_primary = self.model.pools[window].blocks[id as usize].place.0;
                let expected = self.model.onboard(window, id);
                match (self.same(outcome, expected, |done| *done), was_primary) {
                    (Some(true), false) => "onboard",
                    (Some(true), true) => "onboard again",
                    (Some(false), _) => "onboard busy",
                    (None, _) => "onboard refused",
                }
            }
            Operation::SetRetention { window, id, retention: wanted } => {
                let outcome = self.owner.set_retention(WINDOWS[window], id, retention(wanted));
                outcome.expect("a good block");
                let now = self.model.now;
                self.model.pools[window].set_retention(id, wanted, now);
                "set retention"
            }
            Operation::Copied { count } => {
                let waiting = self.model.copies.len();
                if count > waiting {
                    let outcome = self.owner.copied(count);
                    assert!(matches!(outcome, Err(ReuseError::Limit { .. })));
                    return "copied too many";
                }
                self.owner.copied(count).expect("they were asked for");
                self.model.copied(count);
                if count == 0 {
                    return "nothing to do";
                }
                "copied"
            }
            Operation::Refresh { by } => {
                self.now += by;
                let found = self.owner.refresh(self.now).expect("time passes");
                let expired = self.model.refresh(self.now);
                assert_eq!(found.priorities_expired, expired);
                if expired > 0 {
                    return "refresh: a priority ends";
                }
                "refresh"
            }
            Operation::Evict { window, id } => {
                let pool = &mut self.model.pools[window];
                let is_busy = pool.blocks[id as usize].users > 0 || pool.tree.is_protected(id);
                let (expected, word) = match pool.tree.find_id(id).cloned() {
                    _ if is_busy => (Evicted::Busy, "evict busy"),
                    None => (Evicted::NotFound, "evict not found"),
                    Some(stored) => {
                        let blocks = pool.tree.remove_below(&stored.path);
                        (Evicted::Left { blocks }, "evict")
                    }
                };
                assert_eq!(self.owner.evict(WINDOWS[window], id), Ok(expected));
                word
            }
            Operation::RemoveSubtree { window, id } => {
                let tree = &mut self.model.pools[window].tree;
                let path = tree.find_id(id).map(|stored| stored.path.clone());
                let expected = path.map_or(0, |path| tree.remove_below(&path));
                assert_eq!(self.owner.remove_subtree(WINDOWS[window], id), Ok(expected));
                if expected == 0 {
                    return "nothing to do";
                }
                "remove"
            }
            Operation::Reset => {
                self.owner.reset();
                self.model.pools.iter_mut().for_each(|pool| pool.tree.stored.clear());
                "reset"
            }
            Operation::ReadEvents { most } => {
                let mut events = Vec::new();
                self.owner.tree().events(most, |event| events.push(event));
                assert!(events.len() <= most);
                events.into_iter().for_each(|event| self.router.apply(event));
                if !self.router.is_behind_gap {
                    return "read events";
                }
                // As a router would: what is stored, as of a number read before.
                let last_number = self.owner.tree().last_event_number();
                self.owner.tree().events(usize::MAX, |event| self.router.apply(event));
                assert_eq!(self.router.last_number, last_number);
                self.router.blocks = Router::list(&self.owner);
                self.router.is_behind_gap = false;
                "read events with a gap"
            }
        }
    }

    fn add(&mut self, prompt: Prompt, most: usize, ranges: &[ModelRange]) -> &'static str {
        let sequence = prompt.sequence();
        let shown_ranges: Vec<RetentionRange> = ranges
            .iter()
            .map(|(start, end, wanted)| RetentionRange {
                start: *start,
                end: *end,
                retention: retention(*wanted),
            })
            .collect();
        let added = self.owner.add(&RequestParams {
            sequence: &sequence,
            max_matched_tokens: most,
            retention: &shown_ranges,
        });
        if prompt.tokens.is_empty() {
            assert!(matches!(added, Err(ReuseError::TokenCount { .. })));
            return "add refused: no tokens";
        }
        let copies = self.model.copies.len();
        let key = |block, most| prompt.key(block, most);
        let shown = owner_model::Prompt { key: &key, tokens: prompt.tokens.len() };
        let Ok(model) = self.model.add(&shown, most, ranges) else {
            assert!(matches!(added, Err(ReuseError::NoFreeBlock { .. })), "{added:?}");
            return "add refused";
        };
        let request = added.expect("the model can");
        assert_eq!(request.matched_tokens(), model.matched);
        let matched = model.matched;
        let reuses = self.model.copies[copies..].iter().any(|copy| copy.2 == "reuse");
        let onboards = self.model.copies[copies..].iter().any(|copy| copy.2 == "onboard");
        self.requests.push(Live { request, model, prompt });
        match (matched, onboards, reuses) {
            (0, ..) => "add, nothing matches",
            (_, true, _) => "add, brought back",
            (_, _, true) => "add, copied",
            (matched, ..) if matched % BLOCK > 0 => "add, taken over",
            _ => "add, whole blocks",
        }
    }

    fn finish(
        &mut self,
        mut request: Request,
        model: &owner_model::Request,
        prompt: &Prompt,
        unstored: usize,
    ) {
        let tokens = prompt.tokens.len().saturating_sub(unstored);
        request.finish(&prompt.sequence(), tokens).expect("requests end");
        let key = |block, most| prompt.key(block, most);
        let shown = owner_model::Prompt { key: &key, tokens: prompt.tokens.len() };
        self.model.store(model, &shown, tokens, tokens.div_ceil(BLOCK));
        self.model.give_back(&model.held);
    }

    /// Everything that can be asked is asked of both.
    fn compare(&self) {
        self.owner.verify().expect("the parts agree");
        for (window, pool) in WINDOWS.iter().zip(&self.model.pools) {
            for (tier, is_primary) in [(Tier::Primary, true), (Tier::Secondary, false)] {
                assert_eq!(self.owner.free_count(*window, tier), Ok(pool.free(is_primary)));
            }
            for (id, block) in pool.blocks.iter().enumerate() {
                let id = id as i32;
                let found = (
                    self.owner.users(*window, id).expect("a block") as usize,
                    place(self.owner.place(*window, id).expect("a block")),
                    self.owner.retention(*window, id).expect("a block"),
                );
                let expected = (block.users, block.place, retention(block.retention));
                assert_eq!(found, expected, "block {id} of window {window}");
                let found = self.owner.tree().find_id(*window, id).expect("a window");
                let facts = found.map(|found| (found.position, found.token_count, found.tier));
                let expected = pool.tree.find_id(id).map(|stored| {
                    let (last, above) = stored.path.split_last().expect("a path is not empty");
                    let tier = if stored.is_primary { Tier::Primary } else { Tier::Secondary };
                    (above.len(), last.tokens.len(), tier)
                });
                assert_eq!(facts, expected, "block {id} of window {window}");
            }
        }
        for live in &self.requests {
            assert_eq!(live.request.token_count(), live.model.tokens);
            for (window, (first, ids)) in WINDOWS.iter().zip(&live.model.held) {
                assert_eq!(live.request.blocks(*window), Ok((*first, ids.as_slice())));
            }
        }
        let mut copies = Vec::new();
        self.owner.copies(usize::MAX, |copy: &BlockCopy| {
            let window = WINDOWS.iter().position(|window| *window == copy.window);
            let reason = match copy.reason {
                CopyReason::Offload => "offload",
                CopyReason::Onboard => "onboard",
                CopyReason::Reuse => "reuse",
            };
            let (from, to) = (place(copy.from), place(copy.to));
            copies.push((window.expect("a window"), copy.id, reason, from, to, copy.token_count));
        });
        assert_eq!(copies, self.model.copies);
        let statistics = self.owner.statistics();
        let sum = |count: fn(&owner_model::Pool) -> usize| self.model.pools.iter().map(count).sum();
        let offloaded: usize = sum(|pool| pool.offloaded);
        let onboarded: usize = sum(|pool| pool.onboarded);
        assert_eq!(
            (statistics.blocks_offloaded, statistics.blocks_onboarded),
            (offloaded as u64, onboarded as u64)
        );
        assert_eq!(statistics.waiting_copies, copies.len());
        self.compare_listed();
    }

    fn compare_listed(&self) {
        let listed = Router::list(&self.owner);
        let stored: usize = self.model.pools.iter().map(|pool| pool.tree.stored.len()).sum();
        assert_eq!(listed.len(), stored);
        for ((window, id), block) in &listed {
            let place = WINDOWS.iter().position(|other| other == window).expect("a window");
            let pool = &self.model.pools[place];
            assert_eq!(block.priority, pool.blocks[*id as usize].retention.0, "{block:?}");
            assert!(pool.tree.find_id(*id).is_some());
        }
        if self.owner.tree().waiting_events() == 0 && !self.router.is_behind_gap {
            assert_eq!(self.router.blocks, listed, "events alone tell what is stored");
        }
    }
}

fn index<T>(which: usize, all: &[T]) -> Option<usize> {
    (!all.is_empty()).then(|| which % all.len())
}

#[test]
fn the_owner_does_what_the_model_does() {
    let outcomes = RefCell::new(BTreeMap::<&str, usize>::new());
    let cases = if cfg!(debug_assertions) { 500 } else { 5000 };
    let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let histories = prop::collection::vec(operations(), 1..120);
    let result = runner.run(&histories, |history| {
        let mut pair = Pair::new();
        for operation in history {
            let outcome = pair.step(operation);
            *outcomes.borrow_mut().entry(outcome).or_default() += 1;
            pair.compare();
        }
        // Whatever is left goes back, and everything is free once.
        pair.pins.clear();
        pair.request_pins.clear();
        pair.requests.clear();
        for (window, id) in std::mem::take(&mut pair.claims) {
            pair.owner.release(WINDOWS[window], id).expect("it was claimed");
        }
        pair.owner.verify().expect("the parts agree");
        for window in WINDOWS {
            let free = |tier| pair.owner.free_count(window, tier);
            assert_eq!((free(Tier::Primary), free(Tier::Secondary)), (Ok(PRIMARY), Ok(SECONDARY)));
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let outcomes = outcomes.into_inner();
    println!("{outcomes:#?}");
    for outcome in [
        "add refused",
        "add refused: no tokens",
        "add, brought back",
        "add, copied",
        "add, nothing matches",
        "add, taken over",
        "add, whole blocks",
        "claim",
        "copied",
        "copied too many",
        "drop",
        "evict",
        "evict busy",
        "evict not found",
        "finish",
        "finish as another",
        "grow",
        "grow past a window",
        "grow refused",
        "match and pin",
        "match nothing",
        "offload",
        "offload again",
        "offload busy",
        "offload refused",
        "onboard",
        "onboard again",
        "onboard busy",
        "onboard refused",
        "pin a range",
        "pin a request",
        "pin nothing",
        "read events",
        "read events with a gap",
        "refresh",
        "refresh: a priority ends",
        "release",
        "release refused",
        "remove",
        "reset",
        "set retention",
        "store and pin",
        "store and pin nothing",
        "store context",
        "take",
        "take refused",
        "unpin",
        "unpin a request",
    ] {
        assert!(outcomes.contains_key(outcome), "{outcome}: {outcomes:?}");
    }
}
