//! Faults that reuse trees were seen to have, each as a test; and rules that no random history
//! reaches by itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use kvhints::reuse::{
    BlockId, BlockRange, Evicted, Name, NoObserver, Policy, RangeRequest, ReuseError, ReuseTree,
    ReuseTreeConfig, Sequence, SequenceParams, Tier, TreeObserver, TreeStatistics, WINDOW_FULL,
};

const BLOCK: usize = 4;

fn tree_with(windows: &[i32], seed: u64, observer: Arc<dyn TreeObserver>) -> ReuseTree {
    let config = ReuseTreeConfig { tokens_per_block: BLOCK, windows, seed, observer };
    ReuseTree::new(config).expect("a good configuration")
}

fn tree() -> ReuseTree {
    tree_with(&[], 1, Arc::new(NoObserver))
}

fn params(tokens: &[i32]) -> SequenceParams<'_> {
    SequenceParams { tokens_per_block: BLOCK, tokens, ..Default::default() }
}

fn sequence(tokens: impl IntoIterator<Item = i32>) -> Sequence {
    Sequence::new(&params(&tokens.into_iter().collect::<Vec<i32>>())).expect("a good sequence")
}

fn store(tree: &ReuseTree, sequence: &Sequence, ids: &[BlockId]) -> Vec<Option<BlockId>> {
    tree.store(WINDOW_FULL, sequence, 0, ids).expect("a good store")
}

fn strict(first_block: usize, block_count: usize) -> RangeRequest {
    let policy = Policy::Strict;
    RangeRequest { first_block, block_count, policy, lease_deadline_ns: None }
}

fn pin(tree: &ReuseTree, window: i32, sequence: &Sequence, blocks: usize) -> BlockRange {
    let outcome = tree.pin_range(window, sequence, &strict(0, blocks)).expect("a good range");
    outcome.range.expect("all blocks are there")
}

fn matched(tree: &ReuseTree, sequence: &Sequence) -> usize {
    tree.matched_tokens(WINDOW_FULL, sequence, usize::MAX).expect("a good match")
}

#[test]
fn a_block_evicted_between_request_end_and_send_cannot_be_pinned_and_a_pinned_one_not_evicted() {
    let (tree, prompt) = (tree(), sequence(0..8));
    store(&tree, &prompt, &[10, 11]);
    let range = pin(&tree, WINDOW_FULL, &prompt, 2);
    assert_eq!(tree.evict(WINDOW_FULL, 10), Ok(Evicted::Busy));
    assert_eq!(tree.evict(WINDOW_FULL, 11), Ok(Evicted::Busy));
    drop(range);
    assert_eq!(tree.evict(WINDOW_FULL, 11), Ok(Evicted::Left { blocks: 1 }));
    let late = tree.pin_range(WINDOW_FULL, &prompt, &strict(0, 2)).expect("a good range");
    assert_eq!((late.present, late.range.is_none()), (1, true));
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn a_sequence_and_a_tree_that_go_while_a_send_reads_leave_the_range_whole() {
    let tree = tree();
    let range = {
        let prompt = sequence(0..8);
        store(&tree, &prompt, &[10, 11]);
        pin(&tree, WINDOW_FULL, &prompt, 2)
    };
    drop(tree);
    assert_eq!(range.ids().expect("live").collect::<Vec<_>>(), [10, 11]);
    assert_eq!(range.unpin(), Ok(()));
    assert_eq!(range.unpin(), Err(ReuseError::NotLive));
}

#[test]
fn pins_of_several_windows_are_released_one_by_one() {
    let tree = tree_with(&[WINDOW_FULL, 8], 1, Arc::new(NoObserver));
    let prompt = sequence(0..8);
    for window in [WINDOW_FULL, 8] {
        tree.store(window, &prompt, 0, &[1, 2]).expect("a good store");
    }
    let (full, sliding) = (pin(&tree, WINDOW_FULL, &prompt, 2), pin(&tree, 8, &prompt, 2));
    full.unpin().expect("a live pin");
    assert_eq!(tree.evict(8, 1), Ok(Evicted::Busy), "the other window's pin still protects");
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Left { blocks: 2 }));
    sliding.unpin().expect("a live pin");
    assert_eq!(tree.evict(8, 1), Ok(Evicted::Left { blocks: 2 }));
}

#[test]
fn an_offloaded_block_is_not_sent() {
    let (tree, prompt) = (tree(), sequence(0..8));
    store(&tree, &prompt, &[10, 11]);
    assert_eq!(tree.set_tier(WINDOW_FULL, 11, Tier::Secondary), Ok(Some(true)));
    let outcome = tree.pin_range(WINDOW_FULL, &prompt, &strict(0, 2)).expect("a good range");
    assert_eq!((outcome.present, outcome.range.is_none()), (1, true));
    let named = tree.pin_named(WINDOW_FULL, prompt.names(), None, Policy::BestEffort, None);
    assert_eq!(named.expect("a good list").present, 1);
    assert_eq!(matched(&tree, &prompt), 8, "it can still be matched, and brought back");

    tree.set_tier(WINDOW_FULL, 11, Tier::Primary).expect("a known window");
    let range = pin(&tree, WINDOW_FULL, &prompt, 2);
    assert_eq!(tree.set_tier(WINDOW_FULL, 10, Tier::Secondary), Ok(Some(false)), "protected");
    assert!(range.tiers().expect("live").all(|tier| tier == Tier::Primary));
}

#[test]
fn freeing_an_inner_block_never_strands_a_pinned_one_below() {
    let (tree, prompt) = (tree(), sequence(0..12));
    store(&tree, &prompt, &[1, 2, 3]);
    let range = tree.pin_range(WINDOW_FULL, &prompt, &strict(2, 1)).expect("a good range").range;
    for id in [1, 2, 3] {
        assert_eq!(tree.evict(WINDOW_FULL, id), Ok(Evicted::Busy), "the pin covers all before");
    }
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(3));
    drop(range);
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
    assert_eq!(tree.evict(WINDOW_FULL, 2), Ok(Evicted::Left { blocks: 2 }));
    assert_eq!(tree.evict(WINDOW_FULL, 3), Ok(Evicted::NotFound), "it left with the one above");
}

#[test]
fn two_requests_of_a_batch_that_store_one_key_keep_one_block() {
    let (tree, prompt) = (tree(), sequence(0..8));
    assert_eq!(store(&tree, &prompt, &[10, 11]), [Some(10), Some(11)]);
    assert_eq!(store(&tree, &prompt, &[20, 21]), [Some(10), Some(11)], "20, 21 are handed back");
    assert_eq!(tree.evict(WINDOW_FULL, 20), Ok(Evicted::NotFound));
    assert_eq!(tree.statistics().blocks_duplicate, 2);
}

#[test]
fn one_id_at_two_places_of_a_path_stays_at_the_first() {
    let (tree, prompt) = (tree(), sequence(0..12));
    assert_eq!(store(&tree, &prompt, &[5, 5, 6]), [Some(5), None, None]);
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn a_tail_that_grew_full_moves_its_id() {
    let tree = tree();
    let mut prompt = sequence(0..6);
    assert_eq!(store(&tree, &prompt, &[1, 2]), [Some(1), Some(2)]);
    prompt.append(&[6, 7], &[], &[]).expect("good tokens");
    assert_eq!(store(&tree, &prompt, &[1, 2]), [Some(1), Some(2)]);
    assert_eq!(matched(&tree, &prompt), 8);
    assert_eq!(tree.statistics().stored_blocks, 2, "the short node left");
}

/// The inverse of the 64-bit mixing step of the block hash: an extra id that gives a chosen hash.
fn extra_id_for(target: u64, seed: u64) -> u64 {
    let inverse = |odd: u64| {
        (0..6).fold(odd, |inverse, _| {
            inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)))
        })
    };
    let unshift = |value: u64, bits: u32| {
        let mut whole = value;
        for _ in 0..64 / bits {
            whole = value ^ (whole >> bits);
        }
        whole
    };
    let mut value =
        (target ^ seed).wrapping_sub(0x9e37_79b9).wrapping_sub(seed << 6).wrapping_sub(seed >> 2);
    value = unshift(value, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    value = unshift(value, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(value, 30)
}

fn with_extra_ids(tokens: &[i32], extra_ids: &[u64]) -> Sequence {
    let params =
        SequenceParams { tokens_per_block: 1, extra_ids: Some(extra_ids), ..params(tokens) };
    Sequence::new(&params).expect("a good sequence")
}

/// Two prompts of one block each whose block hashes are equal.
fn colliding() -> (Sequence, Sequence) {
    let victim = with_extra_ids(&[1], &[0]);
    let target = victim.block_hash(0).expect("a block");
    // Before the extra id, the hash of another token alone, as the rule has it.
    let mut token = 2_u32;
    for _ in 0..2 {
        token = ((token >> 16) ^ token).wrapping_mul(0x045d_9f3b);
    }
    token = ((token >> 16) ^ token).wrapping_add(0x9e37_79b9);
    let length_seed = 1_u64;
    let seed = length_seed ^ u64::from(token).wrapping_add(length_seed << 6);
    let attacker = with_extra_ids(&[2], &[extra_id_for(target, seed)]);
    assert_eq!(attacker.block_hash(0), Some(target), "the collision was forced");
    (victim, attacker)
}

#[test]
fn equal_block_hashes_never_give_one_prompt_the_blocks_of_another() {
    let (victim, attacker) = colliding();
    assert_ne!(victim.name(0), attacker.name(0));
    let config = ReuseTreeConfig {
        tokens_per_block: 1,
        windows: &[],
        seed: 1,
        observer: Arc::new(NoObserver),
    };
    let tree = ReuseTree::new(config).expect("a good configuration");
    store(&tree, &attacker, &[66]);
    assert_eq!(matched(&tree, &victim), 0, "another prompt's block");
    let named = tree.pin_named(WINDOW_FULL, victim.names(), None, Policy::BestEffort, None);
    assert_eq!(named.expect("a good list").present, 0);
    assert_eq!(store(&tree, &victim, &[77]), [Some(77)]);
    tree.verify().expect("the tree's parts agree");
    let hash = victim.block_hash(0).expect("a block");
    for id in [66, 77] {
        assert!(tree.find_hash(WINDOW_FULL, hash).expect("a known window").is_some());
        assert_eq!(tree.evict(WINDOW_FULL, id), Ok(Evicted::Left { blocks: 1 }));
        tree.verify().expect("the tree's parts agree");
    }
    assert_eq!(tree.find_hash(WINDOW_FULL, hash), Ok(None));
}

#[test]
fn protected_blocks_outlive_a_reset_as_busy_and_refused_until_the_last_unpin() {
    let (tree, prompt, other) = (tree(), sequence(0..8), sequence(50..58));
    store(&tree, &prompt, &[1, 2]);
    let (first, second) =
        (pin(&tree, WINDOW_FULL, &prompt, 2), pin(&tree, WINDOW_FULL, &prompt, 1));
    tree.reset();
    assert_eq!(matched(&tree, &prompt), 0);
    assert_eq!(tree.find_id(WINDOW_FULL, 1), Ok(None));
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Busy));
    assert_eq!(store(&tree, &other, &[1]), [None], "its bytes are being read");
    drop(first);
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Busy), "the second pin holds it");
    assert_eq!(tree.evict(WINDOW_FULL, 2), Ok(Evicted::NotFound));
    drop(second);
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::NotFound));
    assert_eq!(store(&tree, &other, &[1]), [Some(1)]);
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
}

#[test]
fn a_pin_below_a_removed_subtree_still_protects_what_is_above() {
    let (tree, prompt) = (tree(), sequence(0..12));
    store(&tree, &prompt, &[1, 2, 3]);
    let range = pin(&tree, WINDOW_FULL, &prompt, 3);
    assert_eq!(tree.remove_subtree(WINDOW_FULL, 2), Ok(2));
    tree.verify().expect("the tree's parts agree");
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Busy));
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(3));
    drop(range);
    tree.verify().expect("the tree's parts agree");
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Left { blocks: 1 }));
}

#[test]
fn tail_tokens_are_found_in_any_block_that_starts_with_them() {
    let tree = tree();
    store(&tree, &sequence(0..8), &[1, 2]);
    let short = sequence(0..6);
    let range = pin(&tree, WINDOW_FULL, &short, 2);
    assert_eq!(
        (range.ids().expect("live").collect::<Vec<_>>(), range.tail_tokens()),
        (vec![1, 2], 2)
    );
    // A short prompt lives in one partial block.
    let prompt = sequence(70..73);
    store(&tree, &prompt, &[7]);
    let range = pin(&tree, WINDOW_FULL, &sequence(70..72), 1);
    assert_eq!((range.ids().expect("live").collect::<Vec<_>>(), range.tail_tokens()), (vec![7], 2));
    let longer = tree.pin_range(WINDOW_FULL, &sequence(70..74), &strict(0, 1)).expect("good");
    assert_eq!((longer.present, longer.range.is_none()), (0, true), "a full block is wanted");
}

#[test]
fn of_equally_long_heads_the_one_stored_first_counts() {
    let tree = tree();
    let ids = |prompt: &Sequence| {
        let (_, blocks) = tree.match_prefix(WINDOW_FULL, prompt, usize::MAX).expect("a good match");
        blocks.iter().map(|(id, _)| *id).collect::<Vec<_>>()
    };
    store(&tree, &sequence([1, 2, 9, 9]), &[1]);
    store(&tree, &sequence([1, 2]), &[2]);
    assert_eq!(ids(&sequence([1, 2, 3])), [1]);
    tree.evict(WINDOW_FULL, 1).expect("a known window");
    store(&tree, &sequence([1, 2, 9, 9]), &[3]);
    assert_eq!(ids(&sequence([1, 2, 3])), [2]);
    assert_eq!(ids(&sequence([1, 2, 9, 8])), [3], "longer beats older");
}

#[test]
fn a_peer_gets_nothing_of_an_adapter_that_only_this_host_knows() {
    let tree = tree();
    let tokens: Vec<i32> = (0..8).collect();
    let with = |adapter_digest| {
        let params = SequenceParams { lora_id: Some(3), adapter_digest, ..params(&tokens) };
        Sequence::new(&params).expect("a good sequence")
    };
    let present = |prompt: &Sequence| {
        let outcome = tree.pin_named(WINDOW_FULL, prompt.names(), None, Policy::BestEffort, None);
        outcome.expect("a good list").present
    };
    let (local, global) = (with(b""), with(b"digest"));
    store(&tree, &local, &[1, 2]);
    store(&tree, &global, &[3, 4]);
    assert_eq!((present(&local), present(&global)), (0, 2));
    assert_eq!(matched(&tree, &local), 8, "on this host it is reused");
}

#[test]
fn names_in_another_order_or_from_the_middle_are_a_miss() {
    let (tree, prompt) = (tree(), sequence(0..12));
    store(&tree, &prompt, &[1, 2, 3]);
    let present = |names: &[Name]| {
        let outcome = tree.pin_named(WINDOW_FULL, names, None, Policy::BestEffort, None);
        outcome.expect("a good list").present
    };
    let names = prompt.names();
    assert_eq!(present(names), 3);
    assert_eq!(present(&names[1..]), 0, "not a first block");
    assert_eq!(present(&[names[0], names[2]]), 1, "a gap");
    assert_eq!(present(&[names[0], names[0]]), 1, "twice");
    assert_eq!(present(&[Name([0; 32])]), 0);
    assert_eq!(present(&[]), 0);
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
}

#[test]
fn pins_of_another_tree_are_refused_and_change_nothing() {
    let (ours, theirs) = (tree(), tree_with(&[], 2, Arc::new(NoObserver)));
    let prompt = sequence(0..4);
    store(&ours, &prompt, &[1]);
    store(&theirs, &prompt, &[1]);
    let (range, other) = (pin(&ours, 0, &prompt, 1), pin(&theirs, 0, &prompt, 1));
    assert_eq!(theirs.unpin(range.pin_id()), Err(ReuseError::NotLive));
    assert_eq!(ours.protected_blocks(0), Ok(1));
    assert_eq!(theirs.protected_blocks(0), Ok(1));
    assert_eq!(ours.unpin(range.pin_id()), Ok(()));
    drop(range);
    assert_eq!(other.unpin(), Ok(()));
}

#[test]
fn an_expired_lease_is_reported_and_still_protects() {
    let (tree, prompt) = (tree(), sequence(0..4));
    store(&tree, &prompt, &[1]);
    let leased = RangeRequest { lease_deadline_ns: Some(100), ..strict(0, 1) };
    let outcome = tree.pin_range(WINDOW_FULL, &prompt, &leased).expect("a good range");
    let _unleased = pin(&tree, WINDOW_FULL, &prompt, 1);
    let range = outcome.range.expect("it is there");
    assert_eq!(tree.expired_leases(99), Ok(vec![]));
    assert_eq!(tree.expired_leases(100), Ok(vec![range.pin_id()]));
    assert_eq!(tree.evict(WINDOW_FULL, 1), Ok(Evicted::Busy));
    drop(range);
    assert_eq!(tree.expired_leases(u64::MAX), Ok(vec![]));
}

#[test]
fn a_sliding_window_matches_across_a_hole_that_attention_no_longer_sees() {
    let tree = tree_with(&[4], 1, Arc::new(NoObserver));
    let prompt = sequence(0..12);
    assert_eq!(tree.store(4, &prompt, 0, &[1, -1, 3]), Ok(vec![Some(1), None, Some(3)]));
    let (found, blocks) = tree.match_prefix(4, &prompt, usize::MAX).expect("a good match");
    assert_eq!((found.matched_tokens, found.first_block), (12, 2));
    assert_eq!(blocks, [(3, Tier::Primary)]);
    assert_eq!(tree.matched_tokens(4, &prompt, 11), Ok(4), "token 7 of the hole would be needed");
}

#[test]
fn a_pin_in_a_sliding_window_protects_exactly_its_range() {
    let tree = tree_with(&[4], 1, Arc::new(NoObserver));
    let prompt = sequence(0..12);
    tree.store(4, &prompt, 0, &[1, 2, 3]).expect("a good store");
    let range = tree.pin_range(4, &prompt, &strict(1, 1)).expect("a good range").range;
    assert_eq!(tree.protected_blocks(4), Ok(1));
    assert_eq!(tree.evict(4, 2), Ok(Evicted::Busy));
    // What was below leaves with a block; the pinned one stays protected, outside the tree.
    assert_eq!(tree.evict(4, 1), Ok(Evicted::Left { blocks: 3 }));
    tree.verify().expect("the tree's parts agree");
    assert_eq!(tree.evict(4, 2), Ok(Evicted::Busy));
    assert_eq!(tree.store(4, &prompt, 0, &[2]), Ok(vec![None]));
    drop(range);
    assert_eq!(tree.store(4, &prompt, 0, &[2]), Ok(vec![Some(2)]));
}

#[test]
fn calls_that_make_no_sense_are_refused_by_name() {
    let (tree, prompt) = (tree(), sequence(0..8));
    assert_eq!(tree.evict(9, 1), Err(ReuseError::UnknownWindow { window: 9 }));
    assert_eq!(tree.store(0, &prompt, 0, &[-1]), Err(ReuseError::Placeholder));
    for (first, count) in [(0, 0), (0, 3), (2, 1), (usize::MAX, 2), (1, usize::MAX)] {
        let refused = tree.pin_range(0, &prompt, &strict(first, count)).err();
        assert_eq!(refused, Some(ReuseError::BadRange { first, count, blocks: 2 }));
    }
    let refused = tree.store(0, &prompt, 1, &[1, 2]).err();
    assert_eq!(refused, Some(ReuseError::BadRange { first: 1, count: 2, blocks: 2 }));
    let other_size = with_extra_ids(&[1], &[1]);
    let refused = ReuseError::OtherBlockSize { tree: BLOCK, sequence: 1 };
    assert_eq!(tree.matched_tokens(0, &other_size, 1), Err(refused));
    for windows in [&[0, 0][..], &[-1], &[4, 8, 4]] {
        let config = ReuseTreeConfig {
            tokens_per_block: BLOCK,
            windows,
            seed: 1,
            observer: Arc::new(NoObserver),
        };
        assert!(matches!(ReuseTree::new(config), Err(ReuseError::BadWindow { .. })));
    }
}

/// Adds up what it hears, as metrics do.
#[derive(Default)]
struct Sums {
    stored: AtomicUsize,
    protected: AtomicUsize,
    pins: AtomicUsize,
}

impl TreeObserver for Sums {
    fn changed(&self, before: &TreeStatistics, after: &TreeStatistics) {
        for (sum, before, after) in [
            (&self.stored, before.stored_blocks, after.stored_blocks),
            (&self.protected, before.protected_blocks, after.protected_blocks),
            (&self.pins, before.live_pins, after.live_pins),
        ] {
            sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

#[test]
fn nothing_is_left_and_all_counts_are_back_when_tree_and_ranges_are_gone() {
    let sums = Arc::new(Sums::default());
    let tree = tree_with(&[], 1, Arc::<Sums>::clone(&sums));
    let prompt = sequence(0..8);
    store(&tree, &prompt, &[1, 2]);
    let range = pin(&tree, WINDOW_FULL, &prompt, 2);
    let read =
        || [&sums.stored, &sums.protected, &sums.pins].map(|sum| sum.load(Ordering::Relaxed));
    tree.report();
    assert_eq!(read(), [2, 2, 1]);
    tree.report();
    assert_eq!(read(), [2, 2, 1], "told once");
    drop(tree);
    assert_eq!(Arc::strong_count(&sums), 2, "the range keeps what it needs");
    drop(range);
    assert_eq!(Arc::strong_count(&sums), 1, "nothing owns itself");
    assert_eq!(read(), [0, 0, 0]);
}

#[test]
fn very_long_chains_are_torn_down_without_deep_recursion() {
    let tree = tree_with(&[], 1, Arc::new(NoObserver));
    let prompt = sequence(0..400_000);
    let ids: Vec<BlockId> = (0..100_000).collect();
    assert_eq!(store(&tree, &prompt, &ids).len(), ids.len());
    let range = pin(&tree, WINDOW_FULL, &prompt, ids.len());
    tree.reset();
    drop(range);
    assert_eq!(tree.statistics().stored_blocks, 0);
    store(&tree, &prompt, &ids);
    assert_eq!(tree.evict(WINDOW_FULL, 0), Ok(Evicted::Left { blocks: ids.len() }));
}

#[test]
fn very_many_equal_block_hashes_in_one_store_cost_no_more_than_others() {
    // Blocks of one token: each extra id is chosen so that all block hashes are one.
    let (mut tokens, mut extra_ids) = (vec![1], vec![0]);
    let target = with_extra_ids(&tokens, &extra_ids).block_hash(0).expect("a block");
    for token in 0..2000_i32 {
        let mut mixed = token as u32;
        for _ in 0..2 {
            mixed = ((mixed >> 16) ^ mixed).wrapping_mul(0x045d_9f3b);
        }
        mixed = ((mixed >> 16) ^ mixed).wrapping_add(0x9e37_79b9);
        let length_seed = 1 ^ target.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let seed = length_seed
            ^ u64::from(mixed).wrapping_add(length_seed << 6).wrapping_add(length_seed >> 2);
        tokens.push(token);
        extra_ids.push(extra_id_for(target, seed));
    }
    let prompt = with_extra_ids(&tokens, &extra_ids);
    assert!(prompt.block_hashes().iter().all(|hash| *hash == target), "the collision was forced");
    let observer = Arc::new(NoObserver);
    let config = ReuseTreeConfig { tokens_per_block: 1, windows: &[], seed: 1, observer };
    let tree = ReuseTree::new(config).expect("a good configuration");
    let ids: Vec<BlockId> = (0..2001).collect();
    assert!(store(&tree, &prompt, &ids).iter().zip(&ids).all(|(held, id)| *held == Some(*id)));
    assert_eq!(matched(&tree, &prompt), 2001);
    assert_eq!(tree.evict(WINDOW_FULL, 0), Ok(Evicted::Left { blocks: 2001 }));
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn blocks_that_a_request_holds_are_protected_stored_or_not() {
    let (tree, prompt, other) = (tree(), sequence(0..12), sequence(50..62));
    store(&tree, &prompt, &[1, 2]);
    let held = tree.pin_blocks(WINDOW_FULL, &[1, 2, 9, -1], None).expect("a known window");
    let held = held.expect("blocks are held");
    assert_eq!(held.ids().expect("live").collect::<Vec<_>>(), [1, 2, 9]);
    tree.verify().expect("the tree's parts agree");
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(3));
    for id in [1, 2, 9] {
        assert_eq!(tree.evict(WINDOW_FULL, id), Ok(Evicted::Busy));
        assert_eq!(store(&tree, &other, &[id]), [None], "its bytes are in use");
    }
    assert_eq!(tree.find_id(WINDOW_FULL, 9), Ok(None), "known, not stored");
    let again = tree.pin_blocks(WINDOW_FULL, &[9], None).expect("a known window");
    drop(held);
    assert_eq!(tree.evict(WINDOW_FULL, 9), Ok(Evicted::Busy), "the second pin holds it");
    drop(again);
    assert_eq!(tree.evict(WINDOW_FULL, 9), Ok(Evicted::NotFound));
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
    tree.verify().expect("the tree's parts agree");
    assert!(tree.pin_blocks(WINDOW_FULL, &[-1], None).expect("a known window").is_none());
}

#[test]
fn what_was_stored_can_be_pinned_in_the_same_step() {
    let (tree, prompt) = (tree(), sequence(0..12));
    store(&tree, &prompt, &[1]);
    let (holds, range) =
        tree.store_and_pin(WINDOW_FULL, &prompt, 0, &[7, 8, 9], None).expect("a good store");
    assert_eq!(holds, [Some(1), Some(8), Some(9)]);
    let range = range.expect("blocks are held");
    assert_eq!(range.ids().expect("live").collect::<Vec<_>>(), [1, 8, 9]);
    assert_eq!(tree.evict(WINDOW_FULL, 9), Ok(Evicted::Busy));
    tree.reset();
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(3));
    tree.verify().expect("the tree's parts agree");
    drop(range);
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn a_block_behind_a_fence_is_matched_and_not_sent_until_the_fence_has_passed() {
    let (tree, prompt) = (tree(), sequence(0..10));
    store(&tree, &prompt, &[1]);
    tree.store_with_fence(WINDOW_FULL, &prompt, 1, &[2, 3], 5).expect("a good store");
    let present = || {
        let request = RangeRequest { policy: Policy::BestEffort, ..strict(0, 3) };
        let ranged = tree.pin_range(WINDOW_FULL, &prompt, &request).expect("a good range").present;
        let named = tree.pin_named(WINDOW_FULL, prompt.names(), None, Policy::BestEffort, None);
        (ranged, named.expect("a good list").present)
    };
    assert_eq!((matched(&tree, &prompt), present()), (10, (1, 1)));
    tree.fence_passed(4);
    assert_eq!(present(), (1, 1));
    tree.fence_passed(5);
    assert_eq!(present(), (3, 2));
    assert_eq!(tree.protected_blocks(WINDOW_FULL), Ok(0));
}

#[test]
fn a_range_knows_its_blocks_after_a_reset_and_not_after_an_unasked_unpin() {
    let (tree, prompt) = (tree(), sequence(0..80));
    let ids: Vec<BlockId> = (100..120).collect();
    store(&tree, &prompt, &ids);
    let (asked, unasked) =
        (pin(&tree, WINDOW_FULL, &prompt, 20), pin(&tree, WINDOW_FULL, &prompt, 20));
    tree.reset();
    // The same content again, in other blocks: they are not the pinned ones.
    store(&tree, &prompt, &(200..220).collect::<Vec<_>>());
    assert_eq!(asked.ids().expect("live").collect::<Vec<_>>(), ids);
    asked.unpin().expect("live");
    unasked.unpin().expect("live");
    assert_eq!(asked.ids().expect("asked before").collect::<Vec<_>>(), ids);
    assert_eq!(unasked.ids().err(), Some(ReuseError::NotLive));
    tree.verify().expect("the tree's parts agree");
}

#[test]
fn a_head_among_very_many_siblings_is_found_by_what_was_stored_first() {
    let tree = tree();
    for sibling in 0..2000 {
        store(&tree, &sequence([7, sibling % 50, sibling, 0]), &[sibling]);
    }
    tree.verify().expect("the tree's parts agree");
    let first_of = |tokens: [i32; 4]| {
        let (_, blocks) =
            tree.match_prefix(WINDOW_FULL, &sequence(tokens), usize::MAX).expect("a good match");
        blocks.iter().map(|(id, _)| *id).collect::<Vec<_>>()
    };
    assert_eq!(first_of([7, 13, -1, 0]), [13]);
    assert_eq!(first_of([7, 60, 0, 0]), [0]);
    assert_eq!(first_of([7, 13, 1963, 5]), [1963]);
    tree.evict(WINDOW_FULL, 13).expect("a known window");
    assert_eq!(first_of([7, 13, -1, 0]), [63]);
    assert_eq!(first_of([8, 13, 13, 0]), [] as [i32; 0]);
}

#[test]
fn the_oldest_pin_says_how_long_it_lives() {
    let (tree, prompt) = (tree(), sequence(0..4));
    store(&tree, &prompt, &[1]);
    assert_eq!(tree.longest_pin_age_ns(50), 0);
    tree.set_now(10);
    let first = pin(&tree, WINDOW_FULL, &prompt, 1);
    tree.set_now(30);
    let _second = pin(&tree, WINDOW_FULL, &prompt, 1);
    assert_eq!(tree.longest_pin_age_ns(50), 40);
    drop(first);
    assert_eq!(tree.longest_pin_age_ns(50), 20);
}
