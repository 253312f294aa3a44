//! Two transceivers over the loopback hub: what is fetched, what fails and how, and that after each
//! nothing is pinned, lent or stuck.

mod transfer_support;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use kvhints::reuse::{Evicted, Policy};
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::prefetch::{Deadlines, LeaseEnd, Outcome, State};
use kvhints::transfer::reason::{FailReason, RefuseReason};
use kvhints::transfer::state::{Incarnation, State as WorkerState};
use kvhints::transfer::transceiver::{
    BeginError, DestinationLimits, FetchOrder, HintCheck, Origin, SourceLimits,
};
use transfer_support::*;

fn hub() -> Arc<LoopbackHub> {
    LoopbackHub::new(42)
}

fn workers(source: Setup, destination: Setup) -> (Worker, Worker) {
    let hub = hub();
    let destination = Setup { incarnation: 2, ..destination };
    (Worker::new(&hub, source), Worker::new(&hub, destination))
}

fn two() -> (Worker, Worker) {
    workers(Setup::default(), Setup::default())
}

#[test]
fn a_full_hit_moves_every_block() {
    let (source, destination) = two();
    let wanted = sequence(8, 0);
    source.hold(&wanted, &[3, 4, 5, 9, 8, 7, 20, 0]);
    let places = [10, 11, 12, 13, 40, 39, 38, 37];
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 8 });
    assert_eq!(handle.poll().0, State::PrefetchComplete);
    for (position, id) in places.iter().enumerate() {
        assert!(destination.has(*id, position), "block {position}");
    }
    let report = handle.report();
    assert_eq!((report.progress.requested, report.progress.moved), (8, 8));
    assert_eq!((report.bytes, report.foreign_hashes), (8 * 1024, 0));
    assert_eq!(handle.claim(), Some(8));
    assert_eq!(handle.token_end(8, TOKENS_PER_BLOCK), 32);
    assert_eq!(handle.claim(), None, "a second claim");
    assert_eq!(handle.poll().0, State::ContextInit);
    let held = destination.tree.store(0, &wanted, 0, &places).unwrap();
    assert_eq!(held[7], Some(37));
    source.settles();
    destination.settles();
    assert_eq!(destination.metrics.prefetch_blocks.get(0), 8);
    assert_eq!(destination.metrics.prefetch_bytes.get(0), 8 * 1024);
    assert_eq!(source.metrics.source_requests_served.get(0), 1);
    assert_eq!(source.tree.evict(0, 0).unwrap(), Evicted::Left { blocks: 1 });
}

#[test]
fn many_runs_of_large_blocks_pass_through_little_staging() {
    let block_bytes = 300 << 10;
    let setup = || Setup {
        block_bytes,
        block_count: 40,
        destination_limits: DestinationLimits { staging_bytes: 1, ..Default::default() },
        source_limits: SourceLimits { bytes_in_flight: 1, ..Default::default() },
        ..Setup::default()
    };
    let (source, destination) = workers(setup(), setup());
    let wanted = sequence(40, 0);
    let ids: Vec<i32> = (0..40).collect();
    source.hold(&wanted, &ids);
    let places: Vec<i32> = (0..40).rev().collect();
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 40 });
    assert!(places.iter().enumerate().all(|(position, id)| destination.has(*id, position)));
    source.settles();
    destination.settles();
}

#[test]
fn a_local_prefix_is_skipped() {
    let (source, destination) = two();
    let wanted = sequence(5, 0);
    source.hold(&wanted, &[0, 1, 2, 3, 4]);
    let order = FetchOrder {
        first_block: 2,
        ..order(source.origin(), &wanted, &[30, 31, 32], Policy::Strict)
    };
    let handle = destination.begin_order(&order).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 3 });
    assert!((0..3).all(|index| destination.has(30 + index, 2 + index as usize)));
    assert_eq!(handle.report().skipped_local, 2);
    assert_eq!(handle.token_end(3, TOKENS_PER_BLOCK), 20);
    source.settles();
    destination.settles();
}

#[test]
fn a_context_request_leaves_its_last_token_and_a_hint_bounds_the_range() {
    let (source, destination) = two();
    let wanted = sequence(4, 0);
    source.hold(&wanted, &[0, 1, 2, 3]);
    let places = [10, 11, 12, 13];
    let context =
        FetchOrder { max_tokens: 0, ..order(source.origin(), &wanted, &places, Policy::Strict) };
    let handle = destination.begin_order(&context).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 3 });
    assert_eq!(handle.report().hint_check, HintCheck::Unknown);
    drop(handle);
    let hashes = wanted.block_hashes().to_vec();
    let cases = [
        ((2, hashes[1]), HintCheck::Matches),
        ((2, hashes[3]), HintCheck::Shifted),
        ((2, 12345), HintCheck::Unrelated),
    ];
    for (hint, expected) in cases {
        let hinted = FetchOrder {
            hint: Some(hint),
            ..order(source.origin(), &wanted, &places, Policy::Strict)
        };
        let handle = destination.begin_order(&hinted).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
        assert_eq!(handle.report().hint_check, expected);
    }
    source.settles();
    destination.settles();
}

#[test]
fn a_short_prompt_is_fetched_in_its_one_partial_block() {
    let (source, destination) = two();
    let short = sequence_of(&[1, 2, 3], None);
    source.hold(&short, &[0]);
    let handle = destination.begin(&source, &short, &[5], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 1 });
    assert!(destination.has(5, 0));
    assert_eq!(handle.token_end(1, TOKENS_PER_BLOCK), 3);
    assert_eq!(handle.claim(), Some(1));
    assert_eq!(destination.tree.store(0, &short, 0, &[5]).unwrap(), [Some(5)]);
    // Names and tokens decide: neither a shorter nor another block stands in for it.
    for other in [&[1, 2, 3, 4][..], &[1, 2, 4]] {
        let wanted = sequence_of(other, None);
        let handle = destination.begin(&source, &wanted, &[6], Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::ContentMiss, "{other:?}");
    }
    source.settles();
    destination.settles();
}

#[test]
fn the_short_last_block_comes_along_where_there_is_room_for_it() {
    let (source, destination) = two();
    let wanted = sequence_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9], None);
    source.hold(&wanted, &[0, 1, 2]);
    let cases = [
        (&[5, 6][..], Policy::Strict, 2, 8),
        (&[5, 6, 7], Policy::Strict, 3, 9),
        (&[5], Policy::BestEffort, 1, 4),
        (&[5, 6, 7, 8], Policy::BestEffort, 3, 9),
    ];
    for (places, policy, blocks, token_end) in cases {
        let handle = destination.begin(&source, &wanted, places, policy).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks });
        assert_eq!(handle.token_end(blocks, TOKENS_PER_BLOCK), token_end);
        assert!((0..blocks as usize).all(|index| destination.has(places[index], index)));
    }
    source.settles();
    assert_eq!(source.tree.evict(0, 2).unwrap(), Evicted::Left { blocks: 1 });
    let begin = |policy| destination.begin(&source, &wanted, &[5, 6, 7], policy).unwrap();
    assert_eq!(outcome(&begin(Policy::Strict)), Outcome::ContentMiss);
    assert_eq!(outcome(&begin(Policy::BestEffort)), Outcome::Delivered { blocks: 2 });
    source.settles();
    destination.settles();
}

#[test]
fn best_effort_takes_what_is_there_and_strict_does_not() {
    let (source, destination) = two();
    let wanted = sequence(6, 0);
    source.hold(&wanted, &[0, 1, 2, 3]);
    let places = [10, 11, 12, 13, 14, 15];
    let hashes = wanted.block_hashes().to_vec();
    let with_hint = |policy| FetchOrder {
        hint: Some((6, hashes[5])),
        ..order(source.origin(), &wanted, &places, policy)
    };
    let handle = destination.begin_order(&with_hint(Policy::BestEffort)).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 4 });
    let report = handle.report();
    assert_eq!((report.progress.requested, report.progress.present), (6, Some(4)));
    assert_eq!(report.hint_check, HintCheck::Stale);
    assert!((0..4).all(|index| destination.has(10 + index, index as usize)));
    drop(handle);
    let handle = destination.begin_order(&with_hint(Policy::Strict)).unwrap();
    assert_eq!(outcome(&handle), Outcome::ContentMiss);
    assert_eq!(handle.report().progress.present, Some(4));
    assert_eq!(handle.poll().0, State::ContextInit);
    assert_eq!(handle.claim(), None);
    source.settles();
    destination.settles();
    assert_eq!(destination.metrics.prefetches_missed.get(0), 1);
    assert_eq!(source.metrics.source_requests_missed.get(0), 1);
}

#[test]
fn blocks_that_were_evicted_are_missed() {
    let (source, destination) = two();
    let wanted = sequence(3, 0);
    source.hold(&wanted, &[0, 1, 2]);
    source.tree.evict(0, 0).unwrap();
    for policy in [Policy::Strict, Policy::BestEffort] {
        let handle = destination.begin(&source, &wanted, &[5, 6, 7], policy).unwrap();
        assert_eq!(outcome(&handle), Outcome::ContentMiss);
        assert_eq!(handle.report().progress.present, Some(0));
    }
    source.settles();
    destination.settles();
}

#[test]
fn a_block_being_sent_cannot_be_evicted() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(3, 0);
    source.hold(&wanted, &[0, 1, 2]);
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &[5, 6, 7], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    assert_eq!(source.tree.evict(0, 2).unwrap(), Evicted::Busy);
    Mischief::set(&mischief.holds_data, false);
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 3 });
    source.settles();
    assert_eq!(source.tree.evict(0, 2).unwrap(), Evicted::Left { blocks: 1 });
    destination.settles();
}

#[test]
fn a_source_that_was_restarted_refuses() {
    let (source, destination) = two();
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let mut state = WorkerState::decode(&source.transceiver.state().unwrap()).unwrap();
    state.ranks[0].incarnation = Incarnation([99; 16]);
    let stale = Origin::State(Arc::new(state));
    let handle = destination.begin_order(&order(stale, &wanted, &[5, 6], Policy::Strict)).unwrap();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::SourceRestarted));
    source.settles();
    destination.settles();
    let refused = source.metrics.source_requests_refused.get(RefuseReason::Incarnation.index());
    assert_eq!(refused, 1);
}

#[test]
fn states_that_do_not_fit_are_refused_before_any_contact() {
    let (source, destination) = two();
    let wanted = sequence(2, 0);
    type Change = fn(&mut WorkerState);
    let changes: [(FailReason, Change); 5] = [
        (FailReason::NamespaceMismatch, |state| state.namespace = b"model@8".to_vec()),
        (FailReason::LayoutMismatch, |state| state.cache.head_size += 1),
        (FailReason::LayoutMismatch, |state| state.parallel.tensor = 2),
        (FailReason::Unsupported, |state| state.ranks[0].transport = "ucx".to_owned()),
        (FailReason::MetadataFailed, |state| state.ranks[0].address = vec![1, 2, 3]),
    ];
    for (reason, change) in changes {
        let mut state = WorkerState::decode(&source.transceiver.state().unwrap()).unwrap();
        change(&mut state);
        let origin = Origin::State(Arc::new(state));
        let handle =
            destination.begin_order(&order(origin, &wanted, &[5, 6], Policy::Strict)).unwrap();
        assert_eq!(outcome(&handle), Outcome::Failed(reason));
    }
    assert_eq!(destination.transceiver.status().sources, 0);
    source.settles();
    destination.settles();
}

#[test]
fn sequences_that_mean_something_else_elsewhere_are_not_fetched() {
    let (source, destination) = two();
    let tokens: Vec<i32> = (0..8).collect();
    let with_adapter = sequence_of(&tokens, Some(3));
    let handle = destination.begin(&source, &with_adapter, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::NotShareable));
    assert_eq!(destination.failed(FailReason::NotShareable), 1);
    destination.settles();
}

#[test]
fn a_short_last_block_is_found_at_the_head_of_a_longer_one() {
    let (source, destination) = two();
    // The same prompts went on elsewhere: one in its first block, one in its third.
    let whole: Vec<i32> = (0..12).collect();
    source.hold(&sequence_of(&whole, None), &[0, 1, 2]);
    for (tokens, ids) in [(&whole[..3], vec![5]), (&whole[..9], vec![6, 7, 8])] {
        let wanted = sequence_of(tokens, None);
        let handle = destination.begin(&source, &wanted, &ids, Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: ids.len() as u32 });
        assert_eq!(handle.report().foreign_hashes, 0, "a longer block has another hash");
        for (position, id) in ids.iter().enumerate() {
            assert!(destination.has(*id, position));
        }
        assert_eq!(handle.claim(), Some(ids.len() as u32));
    }
    let other = sequence_of(&[0, 1, 9], None);
    let handle = destination.begin(&source, &other, &[9], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::ContentMiss);
    destination.settles();
    source.settles();
}

#[test]
fn bad_orders_are_refused_and_lend_nothing() {
    let (source, destination) = two();
    let wanted = sequence(2, 0);
    let begin = |ids: &[i32], policy| destination.begin(&source, &wanted, ids, policy).err();
    assert_eq!(begin(&[5, 5], Policy::Strict), Some(BeginError::BadDestination));
    assert_eq!(begin(&[5, 64], Policy::Strict), Some(BeginError::BadDestination));
    assert_eq!(begin(&[5, -1], Policy::Strict), Some(BeginError::BadDestination));
    assert_eq!(begin(&[5], Policy::Strict), Some(BeginError::BadDestination));
    assert_eq!(begin(&[], Policy::BestEffort), Some(BeginError::BadDestination));
    let short = sequence_of(&[1, 2, 3], None);
    let context =
        FetchOrder { max_tokens: 0, ..order(source.origin(), &short, &[5], Policy::Strict) };
    let nothing = destination.begin_order(&context).err();
    assert_eq!(nothing, Some(BeginError::NothingToFetch));
    assert_eq!(destination.transceiver.prefetches_in_flight(), 0);

    source.hold(&wanted, &[0, 1]);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    destination.settles();
    source.settles();
}

#[test]
fn a_block_belongs_to_one_prefetch_at_a_time() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), max_prefetches: 2, ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let first = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    let clash = destination.begin(&source, &wanted, &[7, 6], Policy::Strict).err();
    assert_eq!(clash, Some(BeginError::DestinationInUse));
    let second = destination.begin(&source, &wanted, &[7, 8], Policy::Strict).unwrap();
    let third = destination.begin(&source, &wanted, &[9, 10], Policy::Strict).err();
    assert_eq!(third, Some(BeginError::Limit));
    Mischief::set(&mischief.holds_data, false);
    assert_eq!(outcome(&first), Outcome::Delivered { blocks: 2 });
    assert_eq!(outcome(&second), Outcome::Delivered { blocks: 2 });
    destination.settles();
    source.settles();
}

#[test]
fn delivered_blocks_are_leased_until_somebody_claims_them_or_nobody_does_in_time() {
    let (source, destination) = two();
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let begin = || destination.begin(&source, &wanted, &[5, 6], Policy::Strict);
    let handle = begin().unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    assert_eq!(begin().err(), Some(BeginError::DestinationInUse), "on a lease");
    assert_eq!(destination.transceiver.prefetches_in_flight(), 0, "and not in flight");
    assert_eq!(handle.claim(), Some(2));
    assert_eq!(handle.lease_end(), Some(LeaseEnd::Claimed));
    // A handle that lives but is not looked at: the thread ends the lease.
    let handle = begin().unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    destination.clock.pass(Deadlines::default().abandonment_ns);
    wait_until("the end of the lease", || destination.transceiver.blocks_lent() == 0);
    assert_eq!(handle.lease_end(), Some(LeaseEnd::Abandoned));
    assert_eq!(handle.claim(), None);
    drop(begin().unwrap());
    destination.settles();
    source.settles();
}

#[test]
fn a_block_that_the_tree_holds_is_not_written() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let own = sequence(3, 500);
    destination.hold(&own, &[5, 6, 7]);
    let begin = |ids: &[i32]| destination.begin(&source, &wanted, ids, Policy::Strict);
    assert_eq!(begin(&[9, 6]).err(), Some(BeginError::DestinationHeld));
    // Out of the tree, but somebody may still read it.
    let (_, pin) = destination.tree.match_and_pin(0, &own, 12, None).unwrap();
    destination.tree.reset();
    assert_eq!(begin(&[9, 6]).err(), Some(BeginError::DestinationHeld));
    drop(pin);
    let handle = begin(&[9, 6]).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    assert_eq!(destination.metrics.prefetches_accepted.get(0), 1, "refusals begin nothing");
    destination.settles();
    source.settles();
}

#[test]
fn blocks_can_be_lent_again_as_soon_as_quiesced() {
    let (source, destination) = two();
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    for _ in 0..200 {
        let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    }
    source.settles();
    destination.settles();
}

#[test]
fn a_prefetch_can_be_cancelled_in_every_state() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let places = [5, 6];
    // At once: whatever the thread has done by now.
    for _ in 0..50 {
        let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
        handle.cancel();
        let ended = outcome(&handle);
        let is_fine = matches!(ended, Outcome::Cancelled | Outcome::Delivered { .. });
        assert!(is_fine, "{ended:?}");
        destination.settles();
    }
    // While data is on its way.
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    reaches(&handle, State::PrefetchInProgress);
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    handle.cancel();
    handle.cancel();
    assert_eq!(outcome(&handle), Outcome::Cancelled);
    Mischief::set(&mischief.holds_data, false);
    destination.settles();
    source.settles();
    // When complete: what was delivered stays delivered, and cannot be claimed any more.
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    handle.cancel();
    assert_eq!(handle.poll(), (State::ContextInit, Some(Outcome::Delivered { blocks: 2 })));
    assert_eq!(handle.claim(), None);
    destination.settles();
    source.settles();
}

#[test]
fn a_prefetch_dropped_before_its_end_writes_nothing_more() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    drop(handle);
    destination.fill(5, |_| 77);
    Mischief::set(&mischief.holds_data, false);
    destination.settles();
    source.settles();
    assert!(destination.read(5).iter().all(|byte| *byte == 77));
    assert_eq!(destination.metrics.prefetches_cancelled.get(0), 1);
}

#[test]
fn a_busy_source_says_so() {
    let limits = SourceLimits { requests: 0, ..SourceLimits::default() };
    let setup = Setup { source_limits: limits, ..Setup::default() };
    let (source, destination) = workers(setup, Setup::default());
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::SourceBusy));
    source.settles();
    destination.settles();
}

#[test]
fn destinations_beyond_the_limit_take_the_place_of_idle_ones_only() {
    let limits = SourceLimits { peers: 1, ..SourceLimits::default() };
    let hub = hub();
    let source = Worker::new(&hub, Setup { source_limits: limits, ..Setup::default() });
    let mischief = Arc::new(Mischief::default());
    let holding = Setup { incarnation: 2, mischief: Arc::clone(&mischief), ..Setup::default() };
    let first = Worker::new(&hub, holding);
    let second = Worker::new(&hub, Setup { incarnation: 3, ..Setup::default() });
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let busy = first.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    let turned_away = second.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&turned_away), Outcome::Failed(FailReason::SourceBusy));
    Mischief::set(&mischief.holds_data, false);
    assert_eq!(outcome(&busy), Outcome::Delivered { blocks: 2 });
    source.settles();
    let served = second.begin(&source, &wanted, &[7, 8], Policy::Strict).unwrap();
    assert_eq!(outcome(&served), Outcome::Delivered { blocks: 2 });
    assert_eq!(source.transceiver.status().destinations, 1);
    [&source, &first, &second].iter().for_each(|worker| worker.settles());
}

#[test]
fn a_destination_that_does_not_receive_starves_nobody() {
    let limits = SourceLimits { requests: 4, bytes_in_flight: 1, ..SourceLimits::default() };
    let hub = hub();
    let source = Worker::new(&hub, Setup { source_limits: limits, ..Setup::default() });
    let mischief = Arc::new(Mischief::default());
    let holding = Setup { incarnation: 2, mischief: Arc::clone(&mischief), ..Setup::default() };
    let slow = Worker::new(&hub, holding);
    let other = Worker::new(&hub, Setup { incarnation: 3, ..Setup::default() });
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let first = slow.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    let beyond_its_share = slow.begin(&source, &wanted, &[7, 8], Policy::Strict).unwrap();
    assert_eq!(outcome(&beyond_its_share), Outcome::Failed(FailReason::SourceBusy));
    let served = other.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&served), Outcome::Delivered { blocks: 2 });
    Mischief::set(&mischief.holds_data, false);
    assert_eq!(outcome(&first), Outcome::Delivered { blocks: 2 });
    [&source, &slow, &other].iter().for_each(|worker| worker.settles());
}

#[test]
fn corrupted_blocks_are_never_delivered() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(setup, Setup::default());
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    destination.fill(5, |_| 77);
    destination.fill(6, |_| 77);
    Mischief::set(&mischief.corrupts, true);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::Corrupted));
    assert!([5, 6].iter().all(|id| destination.read(*id).iter().all(|byte| *byte == 77)));
    Mischief::set(&mischief.corrupts, false);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    source.settles();
    destination.settles();
}

#[test]
fn a_source_that_breaks_off_fails_the_attempt_and_the_next_one_reconnects() {
    let mischief = Arc::new(Mischief::default());
    let big = || Setup { block_bytes: 600 << 10, block_count: 16, ..Setup::default() };
    let setup = Setup { mischief: Arc::clone(&mischief), ..big() };
    let (source, destination) = workers(setup, big());
    let wanted = sequence(8, 0);
    source.hold(&wanted, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let places: Vec<i32> = (8..16).collect();
    mischief.breaks_at_send.store(3, Ordering::SeqCst);
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::PeerGone));
    source.settles();
    destination.settles();
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 8 });
    source.settles();
    destination.settles();
}

#[test]
fn a_source_that_goes_away_mid_transfer_leaves_nothing_behind() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    let tree = source.tree.clone();
    drop(source);
    assert_eq!(tree.statistics().live_pins, 0, "a shutdown unpins");
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::PeerGone));
    destination.settles();
}

#[test]
fn a_destination_that_goes_away_mid_transfer_is_unpinned() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    assert_eq!(source.tree.statistics().live_pins, 1);
    drop(destination);
    assert_eq!(handle.poll().1, Some(Outcome::Failed(FailReason::Shutdown)));
    assert!(handle.is_quiesced());
    source.settles();
}

#[test]
fn a_source_that_never_answers_runs_into_the_deadline() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(setup, Setup::default());
    Mischief::set(&mischief.is_deaf, true);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    reaches(&handle, State::PrefetchInProgress);
    destination.clock.pass(Deadlines::default().transfer_ns - 1);
    assert_eq!(handle.poll().1, None);
    destination.clock.pass(1);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::TransferTimeout));
    destination.settles();
    source.settles();
}

/// However much is fetched out of it.
#[test]
fn a_pool_is_registered_once_and_as_a_whole() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (block_bytes, block_count) = (setup.block_bytes, setup.block_count);
    let (source, destination) = workers(setup, Setup::default());
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    for _ in 0..1_000 {
        let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
        assert_eq!(handle.claim(), Some(2));
    }
    assert_eq!(mischief.registrations.load(Ordering::SeqCst), 1);
    let registered = mischief.registered_bytes.load(Ordering::SeqCst);
    assert_eq!(registered, (block_bytes * block_count) as u64);
    source.settles();
    destination.settles();
}

/// A connection over which something came too late is not asked over again: what the network lost of it
/// may take long to be sent anew, although the source is there.
#[test]
fn who_was_late_is_asked_anew_over_another_connection() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let begin = |places: &[i32]| destination.begin(&source, &wanted, places, Policy::Strict);
    let handle = begin(&[5, 6]).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    let made = || mischief.connections_made.load(Ordering::SeqCst);
    assert_eq!(made(), 1);
    for (count, places) in (2..).zip([[7, 8], [9, 10]]) {
        // The connection that is there carries nothing any more.
        mischief.lost_up_to.store(mischief.latest_peer.load(Ordering::SeqCst), Ordering::SeqCst);
        let late = begin(&places).unwrap();
        reaches(&late, State::PrefetchInProgress);
        destination.clock.pass(Deadlines::default().transfer_ns);
        assert_eq!(outcome(&late), Outcome::Failed(FailReason::TransferTimeout));
        let next = begin(&places).unwrap();
        assert_eq!(outcome(&next), Outcome::Delivered { blocks: 2 });
        assert_eq!(made(), count);
    }
    wait_until("the late ones being closed", || {
        destination.transceiver.status().sources == 1
            && source.transceiver.status().destinations == 1
    });
    source.settles();
    destination.settles();
}

/// Who is only slow goes on with what others asked it over the connection on which one came too late.
#[test]
fn a_slow_source_still_delivers_what_others_wait_for() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let begin = |places: &[i32], deadlines: Deadlines| {
        let order = order(source.origin(), &wanted, places, Policy::Strict);
        destination.begin_order(&FetchOrder { deadlines, ..order }).unwrap()
    };
    let patient = Deadlines::default();
    let hasty = Deadlines { transfer_ns: patient.transfer_ns / 10, ..patient };
    Mischief::set(&mischief.holds_data, true);
    let (late, waits) = (begin(&[5, 6], hasty), begin(&[7, 8], patient));
    wait_until("data of both on its way", || mischief.held.load(Ordering::SeqCst) == 2);
    destination.clock.pass(hasty.transfer_ns);
    assert_eq!(outcome(&late), Outcome::Failed(FailReason::TransferTimeout));
    // Another one is asked over a connection of its own, and the first is not closed for that.
    let next = begin(&[9, 10], patient);
    wait_until("its data on its way", || mischief.held.load(Ordering::SeqCst) == 3);
    assert_eq!(mischief.connections_made.load(Ordering::SeqCst), 2);
    assert_eq!(destination.transceiver.status().sources, 2);
    Mischief::set(&mischief.holds_data, false);
    for handle in [waits, next] {
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    }
    wait_until("the late one being closed", || {
        destination.transceiver.status().sources == 1
            && source.transceiver.status().destinations == 1
    });
    source.settles();
    destination.settles();
}

/// One source that accepts and never answers, asked with short and with long deadlines, takes one
/// connection for each that was late; with all of them taken, others that are well are not asked at all.
#[test]
fn a_source_that_is_always_late_leaves_connections_for_others() {
    let hub = hub();
    let mischief = Arc::new(Mischief::default());
    let stuck = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let connections = 4;
    let destination_limits = DestinationLimits { connections, ..Default::default() };
    let stuck = Worker::new(&hub, stuck);
    let well = Worker::new(&hub, Setup { incarnation: 3, ..Setup::default() });
    let setup = Setup { incarnation: 2, destination_limits, ..Setup::default() };
    let destination = Worker::new(&hub, setup);
    let wanted = sequence(2, 0);
    [&stuck, &well].into_iter().for_each(|source| source.hold(&wanted, &[0, 1]));
    Mischief::set(&mischief.is_deaf, true);
    let begin = |from: &Worker, places: &[i32], deadlines: Deadlines| {
        let order = order(from.origin(), &wanted, places, Policy::Strict);
        destination.begin_order(&FetchOrder { deadlines, ..order }).unwrap()
    };
    let patient = Deadlines::default();
    let hasty = Deadlines { transfer_ns: patient.transfer_ns / 10, ..patient };
    let mut waiting = Vec::new();
    for first in [10, 20, 30, 40] {
        let waits = begin(&stuck, &[first, first + 1], patient);
        let late = begin(&stuck, &[first + 2, first + 3], hasty);
        reaches(&waits, State::PrefetchInProgress);
        reaches(&late, State::PrefetchInProgress);
        waiting.push(waits);
        destination.clock.pass(hasty.transfer_ns);
        assert_eq!(outcome(&late), Outcome::Failed(FailReason::TransferTimeout));
    }
    let sources = destination.transceiver.status().sources;
    let next = begin(&well, &[50, 51], patient);
    assert_eq!(outcome(&next), Outcome::Delivered { blocks: 2 }, "{sources} connections");
}

#[test]
fn a_destination_that_never_receives_is_cut_off_when_the_hold_time_is_over() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    assert_eq!(source.tree.statistics().live_pins, 1);
    source.clock.pass(Deadlines::default().transfer_ns * 2);
    source.settles();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::PeerGone));
    destination.settles();
}

#[test]
fn blocks_that_nobody_claims_are_given_up() {
    let (source, destination) = two();
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    destination.clock.pass(Deadlines::default().abandonment_ns);
    assert_eq!(handle.poll().0, State::ContextInit);
    assert_eq!(handle.claim(), None);
    destination.settles();
}

#[test]
fn a_fault_in_the_thread_ends_every_attempt_and_poisons() {
    let mischief = Arc::new(Mischief::default());
    let setup = Setup { mischief: Arc::clone(&mischief), ..Setup::default() };
    let (source, destination) = workers(Setup::default(), setup);
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    Mischief::set(&mischief.holds_data, true);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
    Mischief::set(&mischief.panics, true);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::Fault));
    assert!(destination.poison.is_set());
    let closed = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).err();
    assert_eq!(closed, Some(BeginError::Closed));
    assert_eq!(destination.transceiver.prefetches_in_flight(), 0);
    source.settles();
}

#[test]
fn nonsense_from_a_peer_harms_only_that_peer() {
    use kvhints::transfer::transport::Transport;
    let hub = hub();
    let source = Worker::new(&hub, Setup::default());
    let destination = Worker::new(&hub, Setup { incarnation: 2, ..Setup::default() });
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    let state = WorkerState::decode(&source.transceiver.state().unwrap()).unwrap();
    let address = &state.ranks[0].address;
    let mut stranger = hub.transport();
    for nonsense in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 1000], b"KT\x01\x01"] {
        let peer = stranger.connect(address).unwrap();
        stranger.send_message(peer, nonsense.to_vec()).unwrap();
        wait_until("being cut off", || source.metrics.transfer_messages_unreadable.get(0) > 0);
    }
    let peer = stranger.connect(address).unwrap();
    let mut bytes = vec![1u8; 64];
    let segment = kvhints::transfer::transport::Segment { data: bytes.as_mut_ptr(), len: 64 };
    stranger.send_data(peer, b"nonsense".to_vec(), vec![segment]).unwrap();
    wait_until("everything being read", || source.metrics.transfer_messages_unreadable.get(0) == 5);
    let handle = destination.begin(&source, &wanted, &[5, 6], Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
    drop(stranger);
    source.settles();
    destination.settles();
}
