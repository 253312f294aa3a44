//! The tree under a model checker: the shipped code, run under many schedules of its atomics and its
//! lock. `scripts/model_check.sh` runs it.
//!
//! Each property comes with a control: the same scenario with one step done wrong, which must be
//! found. The checker explores orders of steps, all of them sequentially consistent; which weaker
//! orderings are enough is argued where they stand, and watched by ThreadSanitizer.

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{thread, Config, Runner};

use super::core::Core;
use super::node::{BlockFacts, Info, Node, NodeFacts, Tier, ORIGIN};
use super::tree::{
    Evicted, NoObserver, Policy, RangeRequest, ReuseTree, ReuseTreeConfig, WINDOW_FULL,
};
use super::{Name, Sequence, SequenceParams};

const ITERATIONS: usize = 300;

/// Decides the schedules: the same ones each time.
const SEED: u64 = 7;
/// Most times that a schedule takes the turn from a thread that could go on: most faults need few.
const SWITCHES: usize = 3;
/// A thread's stack: the checker's own atomics are large, and a tree is made of many.
const STACK_BYTES: usize = 1 << 20;

/// Half of the schedules let a thread run far ahead of the others, where the other half, which draws
/// each step, keeps them side by side.
fn explore(scenario: impl Fn() + Send + Sync + 'static, iterations: usize) {
    let scenario = Arc::new(scenario);
    let ahead = PctScheduler::new_from_seed(SEED, SWITCHES, iterations.div_ceil(2));
    run(&scenario, ahead);
    run(&scenario, RandomScheduler::new_from_seed(SEED, iterations / 2));
}

fn run(scenario: &Arc<impl Fn() + Send + Sync + 'static>, scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    // That orders of memory are not explored is known: see above.
    config.silence_warnings = true;
    let scenario = Arc::clone(scenario);
    Runner::new(scheduler, config).run(move || scenario());
}

/// Runs `scenario` under many schedules; fails if one of them does.
fn check(scenario: impl Fn() + Send + Sync + 'static) {
    let iterations = std::option_env!("KVHINTS_MODEL_ITERATIONS")
        .map_or(ITERATIONS, |text| text.parse().expect("KVHINTS_MODEL_ITERATIONS is a number"));
    explore(scenario, iterations);
}

/// A control: some schedule must make `scenario` fail, and with these words.
fn must_fail(words: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        explore(scenario, 10 * ITERATIONS);
    }));
    std::panic::set_hook(hook);
    let panic = outcome.expect_err("the wrong step was not found");
    let found = panic.downcast_ref::<String>().map(String::as_str);
    let found = found.or(panic.downcast_ref::<&str>().copied()).unwrap_or("other than words");
    assert!(found.contains(words), "expected a failure with {words:?}, found: {found}");
}

fn tree() -> ReuseTree {
    let observer = Arc::new(NoObserver);
    let config = ReuseTreeConfig { tokens_per_block: 4, windows: &[], seed: 3, observer };
    ReuseTree::new(config).expect("a good configuration")
}

fn prompt(blocks: i32) -> Sequence {
    let tokens: Vec<i32> = (0..4 * blocks).collect();
    let params = SequenceParams { tokens_per_block: 4, tokens: &tokens, ..Default::default() };
    Sequence::new(&params).expect("a good sequence")
}

fn stored(blocks: i32) -> (ReuseTree, Sequence) {
    let (tree, prompt) = (tree(), prompt(blocks));
    let ids: Vec<i32> = (1..=blocks).collect();
    tree.store(WINDOW_FULL, &prompt, 0, &ids).expect("a good store");
    (tree, prompt)
}

fn request(count: usize) -> RangeRequest {
    let policy = Policy::Strict;
    RangeRequest { first_block: 0, block_count: count, policy, lease_deadline_ns: None }
}

/// One thread pins all of a chain while `evict` takes its inner block: not both may succeed.
fn pin_and_evict(evict: fn(&ReuseTree) -> bool) {
    let (tree, prompt) = stored(3);
    let other = tree.clone();
    let evictor = thread::spawn(move || evict(&other));
    let (_, range) =
        tree.match_and_pin(WINDOW_FULL, &prompt, usize::MAX, None).expect("a good match");
    let has_left = evictor.join().expect("no panic");
    if let Some(range) = range {
        let left = if has_left { 1 } else { 3 };
        assert_eq!(range.block_count(), left, "a pinned block left the tree");
        let ids: Vec<i32> = range.ids().expect("live").collect();
        assert_eq!(ids, (1..=left as i32).collect::<Vec<_>>());
        assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Busy));
    } else {
        assert!(has_left, "a miss without a reason");
    }
    tree.verify().expect("the tree's parts agree");
    assert_eq!(tree.evict(WINDOW_FULL, 1).map(|out| out != Evicted::Busy), Ok(true));
}

#[test]
fn a_pinned_chain_does_not_lose_an_inner_block() {
    check(|| {
        pin_and_evict(|tree| {
            let evicted = tree.evict(WINDOW_FULL, 2).expect("a known window");
            evicted != Evicted::Busy
        });
    });
}

#[test]
fn control_an_eviction_that_overrules_pins_is_found() {
    must_fail("a pinned block left the tree", || {
        pin_and_evict(|tree| tree.remove_subtree(WINDOW_FULL, 2).expect("a known window") > 0);
    });
}

/// One thread pins a chain for sending while `offload` takes its first block to secondary memory:
/// what is pinned for sending is in primary memory.
fn pin_and_offload(offload: fn(&ReuseTree)) {
    let (tree, prompt) = stored(3);
    let other = tree.clone();
    let offloader = thread::spawn(move || offload(&other));
    let outcome = tree.pin_range(WINDOW_FULL, &prompt, &request(3)).expect("a good range");
    offloader.join().expect("no panic");
    let state = tree.find_id(WINDOW_FULL, 1).expect("a known window").expect("it is stored");
    if outcome.range.is_some() {
        assert_eq!(state.tier, Tier::Primary, "a block that is sent was offloaded");
    }
    drop(outcome);
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn what_is_pinned_for_sending_is_not_offloaded() {
    check(|| {
        pin_and_offload(|tree| {
            tree.set_tier(WINDOW_FULL, 1, Tier::Secondary).expect("a known window");
        });
    });
}

#[test]
fn control_an_offload_that_looks_for_no_pin_is_found() {
    must_fail("a block that is sent was offloaded", || {
        pin_and_offload(|tree| {
            let core: &Core = tree.core();
            let _writer = core.writer.lock();
            let slot = core.windows[0].find_id(1).expect("it is stored");
            core.windows[0].set_tier(slot, Tier::Secondary);
        });
    });
}

/// One thread lets go of a chain while another empties the tree: afterwards nothing is known of it.
fn unpin_and_reset(unpin: fn(&ReuseTree, super::PinId)) {
    let (tree, prompt) = stored(2);
    let (_, range) =
        tree.match_and_pin(WINDOW_FULL, &prompt, usize::MAX, None).expect("a good match");
    let range = range.expect("all is there");
    let (pin, other) = (range.pin_id(), tree.clone());
    range.abandon();
    let unpinner = thread::spawn(move || unpin(&other, pin));
    tree.reset();
    unpinner.join().expect("no panic");
    for id in [1, 2] {
        assert_eq!(tree.evict(WINDOW_FULL, id), Ok(Evicted::NotFound), "left for ever");
    }
    tree.verify().expect("the tree's parts agree");
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
}

#[test]
fn a_reset_and_the_last_unpin_leave_nothing() {
    check(|| unpin_and_reset(|tree, pin| tree.unpin(pin).expect("live")));
}

#[test]
fn control_an_unpin_that_tells_nobody_is_found() {
    must_fail("left for ever", || {
        unpin_and_reset(|tree, pin| {
            let core = tree.core();
            let place = core.pins.release(pin).expect("live");
            let (target, _) = core.pins.next_released(place);
            core.windows[0].node(target.expect("a node").slot).unpin();
        });
    });
}

/// Threads pin and unpin one block while another evicts it and one counts.
fn pins_come_and_go(unpin: fn(&ReuseTree, super::PinId)) {
    let (tree, prompt) = stored(1);
    let prompt = Arc::new(prompt);
    let pinner = |tree: ReuseTree, prompt: Arc<Sequence>| {
        thread::spawn(move || {
            let (_, range) =
                tree.match_and_pin(WINDOW_FULL, &prompt, usize::MAX, None).expect("a good match");
            if let Some(range) = range {
                let pin = range.pin_id();
                range.abandon();
                unpin(&tree, pin);
            }
        })
    };
    let pinners = [(); 2].map(|()| pinner(tree.clone(), Arc::clone(&prompt)));
    let evicted = tree.evict(WINDOW_FULL, 1).expect("a known window");
    let counted = tree.protected_blocks(WINDOW_FULL).expect("a known window");
    assert!(counted <= usize::from(evicted == Evicted::Busy), "what left counts as protected");
    tree.store(WINDOW_FULL, &prompt, 0, &[7]).expect("a good store");
    pinners.into_iter().for_each(|pinner| pinner.join().expect("no panic"));
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
    assert_eq!(tree.statistics().live_pins, 0);
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn pins_that_come_and_go_add_up() {
    check(|| pins_come_and_go(|tree, pin| tree.unpin(pin).expect("live")));
}

#[test]
fn control_a_node_unpinned_before_its_entry_is_dead_is_found() {
    must_fail("what left counts as protected", || {
        pins_come_and_go(|tree, pin| {
            let core = tree.core();
            let target = core.pins.targets().next().expect("it is pinned");
            core.unpin_node(target.window, target.slot);
            let place = core.pins.release(pin).expect("live");
            core.pins.next_released(place);
        });
    });
}

/// A block becomes visible: who pins it sees all of it.
fn store_and_read(order: fn(&Node, &BlockFacts)) {
    let node = Arc::new(Node::default());
    let writer = Arc::clone(&node);
    let storing = thread::spawn(move || {
        writer.fill(&NodeFacts { name: Name([7; 32]), parent: ORIGIN, position: 0 });
        order(&writer, &BlockFacts { id: 3, hash: 9, info: Info::new(4, 0) });
    });
    let word = loop {
        let word = node.word();
        if word.is_alive() {
            break word;
        }
        thread::yield_now();
    };
    assert!(node.try_pin(word), "nobody closes it");
    assert_eq!((node.id(), node.hash()), (3, 9), "seen before it was whole");
    storing.join().expect("no panic");
}

#[test]
fn a_block_that_can_be_pinned_is_whole() {
    check(|| {
        store_and_read(|node, block| {
            node.fill_block(block);
            node.attach_block();
        });
    });
}

#[test]
fn control_a_block_that_is_attached_too_early_is_found() {
    must_fail("seen before it was whole", || {
        store_and_read(|node, block| {
            node.attach_block();
            node.fill_block(block);
        });
    });
}

#[test]
fn a_leaving_block_is_left_alone_by_two_evictions() {
    check(|| {
        let (tree, _) = stored(2);
        let other = tree.clone();
        let evictor = thread::spawn(move || other.evict(WINDOW_FULL, 1).expect("a known window"));
        let second = tree.evict(WINDOW_FULL, 2).expect("a known window");
        let first = evictor.join().expect("no panic");
        let left = |evicted: Evicted| match evicted {
            Evicted::Left { blocks } => blocks,
            _ => 0,
        };
        assert_eq!(left(first) + left(second), 2);
        assert_eq!(tree.statistics().stored_blocks, 0);
        tree.verify().expect("the tree's parts agree");
    });
}
