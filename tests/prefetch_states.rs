//! The prefetch's state machine under events in any order: one outcome, nothing written after it,
//! quiescence only when no memory is in use.

use kvhints::reuse::Policy;
use kvhints::transfer::prefetch::{
    Action, Deadlines, Event, LeaseEnd, Outcome, Prefetch, State, QUIESCE_GRACE_NS,
};
use kvhints::transfer::reason::FailReason;
use proptest::prelude::*;

const DEADLINES: Deadlines =
    Deadlines { metadata_ns: 100, transfer_ns: 1_000, abandonment_ns: 10_000 };

fn begun(requested: u32, policy: Policy) -> Prefetch {
    let (prefetch, action) = Prefetch::begin(0, requested, policy, DEADLINES);
    assert_eq!(action, Action::FetchMetadata);
    assert_eq!(prefetch.state(), State::PrefetchInit);
    prefetch
}

#[test]
fn a_full_hit_goes_through_every_state() {
    let mut prefetch = begun(3, Policy::Strict);
    assert_eq!(prefetch.handle(10, Event::MetadataReady), [Action::SendRequest]);
    assert_eq!(prefetch.state(), State::PrefetchInProgress);
    assert_eq!(prefetch.handle(20, Event::Accepted { present: 3 }), []);
    for (first_block, blocks) in [(0, 2), (2, 1)] {
        let announced = Event::Announced { first_block, blocks };
        assert_eq!(prefetch.handle(30, announced), [Action::Receive]);
        assert!(!prefetch.is_quiesced());
        let received = Event::Received { blocks, verdict: Ok(()) };
        assert_eq!(prefetch.handle(40, received), [Action::Commit]);
        assert!(prefetch.is_committing());
        assert_eq!(prefetch.handle(50, Event::Committed { blocks }), []);
    }
    assert_eq!(prefetch.outcome(), Some(Outcome::Delivered { blocks: 3 }));
    assert_eq!(prefetch.state(), State::PrefetchComplete);
    assert!(prefetch.is_quiesced());
    assert!(prefetch.claim(60));
    assert!(!prefetch.claim(60), "a second claim finds nothing");
    assert_eq!(prefetch.state(), State::ContextInit);
    assert_eq!(prefetch.progress().spent_ns, [10, 40, 10]);
}

#[test]
fn blocks_that_nobody_claims_are_abandoned_and_stay_delivered() {
    let mut prefetch = begun(1, Policy::Strict);
    prefetch.handle(0, Event::MetadataReady);
    prefetch.handle(0, Event::Accepted { present: 1 });
    prefetch.handle(0, Event::Announced { first_block: 0, blocks: 1 });
    prefetch.handle(0, Event::Received { blocks: 1, verdict: Ok(()) });
    prefetch.handle(0, Event::Committed { blocks: 1 });
    assert!(!prefetch.claim(DEADLINES.abandonment_ns));
    assert_eq!(prefetch.state(), State::ContextInit);
    assert_eq!(prefetch.outcome(), Some(Outcome::Delivered { blocks: 1 }));
    assert_eq!(prefetch.lease_end(), Some(LeaseEnd::Abandoned));
}

#[test]
fn what_completes_after_the_deadline_failed() {
    let mut prefetch = begun(1, Policy::Strict);
    prefetch.handle(0, Event::MetadataReady);
    prefetch.handle(0, Event::Accepted { present: 1 });
    prefetch.handle(0, Event::Announced { first_block: 0, blocks: 1 });
    let late = Event::Received { blocks: 1, verdict: Ok(()) };
    assert_eq!(prefetch.handle(DEADLINES.transfer_ns, late), [Action::SendCancel]);
    assert_eq!(prefetch.outcome(), Some(Outcome::Failed(FailReason::TransferTimeout)));
    assert_eq!(prefetch.progress().moved, 0);
    assert!(prefetch.is_quiesced());
}

#[test]
fn a_receive_that_does_not_end_is_cut_off_once() {
    let mut prefetch = begun(1, Policy::Strict);
    prefetch.handle(0, Event::MetadataReady);
    prefetch.handle(0, Event::Accepted { present: 1 });
    prefetch.handle(0, Event::Announced { first_block: 0, blocks: 1 });
    assert_eq!(prefetch.handle(5, Event::Cancel), [Action::SendCancel]);
    assert_eq!(prefetch.outcome(), Some(Outcome::Cancelled));
    assert!(!prefetch.is_quiesced());
    assert_eq!(prefetch.deadline_ns(), 5 + QUIESCE_GRACE_NS);
    assert_eq!(prefetch.handle(5 + QUIESCE_GRACE_NS, Event::Tick), [Action::Disconnect]);
    assert_eq!(prefetch.handle(6 + QUIESCE_GRACE_NS, Event::Tick), []);
    let broken = Event::Received { blocks: 1, verdict: Err(FailReason::PeerGone) };
    assert_eq!(prefetch.handle(7 + QUIESCE_GRACE_NS, broken), []);
    assert!(prefetch.is_quiesced());
}

#[test]
fn the_end_of_the_last_receive_cuts_nothing_off_however_late_it_is() {
    let mut prefetch = begun(1, Policy::Strict);
    prefetch.handle(0, Event::MetadataReady);
    prefetch.handle(0, Event::Accepted { present: 1 });
    prefetch.handle(0, Event::Announced { first_block: 0, blocks: 1 });
    prefetch.handle(5, Event::Cancel);
    let late = Event::Received { blocks: 1, verdict: Ok(()) };
    assert_eq!(prefetch.handle(5 + QUIESCE_GRACE_NS, late), []);
    assert!(prefetch.is_quiesced());
}

#[test]
fn a_source_that_contradicts_itself_is_believed_nothing() {
    let after_acceptance: [&[Event]; 6] = [
        &[Event::Announced { first_block: 1, blocks: 1 }],
        &[Event::Announced { first_block: 0, blocks: 4 }],
        &[Event::Announced { first_block: 0, blocks: 0 }],
        &[Event::Announced { first_block: u32::MAX, blocks: u32::MAX }],
        &[Event::Accepted { present: 3 }],
        &[Event::Missing { present: 2 }],
    ];
    for events in after_acceptance {
        let mut prefetch = begun(3, Policy::BestEffort);
        prefetch.handle(0, Event::MetadataReady);
        prefetch.handle(0, Event::Accepted { present: 3 });
        for event in events {
            prefetch.handle(0, *event);
        }
        let expected = Some(Outcome::Failed(FailReason::Protocol));
        assert_eq!(prefetch.outcome(), expected, "{events:?}");
    }
    for (policy, present) in [(Policy::Strict, 2), (Policy::BestEffort, 0), (Policy::BestEffort, 4)]
    {
        let mut prefetch = begun(3, policy);
        prefetch.handle(0, Event::MetadataReady);
        prefetch.handle(0, Event::Accepted { present });
        assert_eq!(prefetch.outcome(), Some(Outcome::Failed(FailReason::Protocol)));
    }
}

#[test]
fn a_claim_that_comes_too_early_or_too_late_changes_nothing() {
    let mut prefetch = begun(1, Policy::Strict);
    assert!(!prefetch.claim(DEADLINES.metadata_ns), "too early, and after a deadline");
    assert_eq!((prefetch.state(), prefetch.outcome()), (State::PrefetchInit, None));
    prefetch.handle(DEADLINES.metadata_ns, Event::Tick);
    assert_eq!(prefetch.outcome(), Some(Outcome::Failed(FailReason::MetadataTimeout)));
    assert!(!prefetch.claim(DEADLINES.metadata_ns + 1));
    assert_eq!(prefetch.lease_end(), None);
}

/// A machine, and what the world outside of it knows.
struct Walk {
    policy: Policy,
    prefetch: Prefetch,
    /// All that it was told.
    path: Vec<(u64, Event)>,
    now_ns: u64,
    receiving: Vec<u32>,
    committing: Vec<u32>,
}

/// From which state to which, and with which outcome.
type Exits = std::collections::BTreeMap<(u32, u32, &'static str), u64>;

impl Clone for Walk {
    /// A machine is not copied: another one is told the same.
    fn clone(&self) -> Self {
        let mut prefetch = begun(2, self.policy);
        for (now_ns, event) in &self.path {
            prefetch.handle(*now_ns, *event);
        }
        Self {
            policy: self.policy,
            prefetch,
            path: self.path.clone(),
            now_ns: self.now_ns,
            receiving: self.receiving.clone(),
            committing: self.committing.clone(),
        }
    }
}

impl Walk {
    fn outcome_name(&self) -> &'static str {
        match self.prefetch.outcome() {
            None => "none",
            Some(Outcome::Delivered { .. }) => "delivered",
            Some(Outcome::ContentMiss) => "missed",
            Some(Outcome::Failed(_)) => "failed",
            Some(Outcome::Cancelled) => "cancelled",
        }
    }

    /// One event; `false` when it cannot happen, because only what was started ends.
    fn step(&mut self, passed_ns: u64, mut event: Event, exits: &mut Exits) -> bool {
        let ending = match &mut event {
            Event::Received { blocks, .. } => Some((blocks, &mut self.receiving)),
            Event::Committed { blocks } => Some((blocks, &mut self.committing)),
            _ => None,
        };
        if let Some((blocks, started)) = ending {
            let Some(begun) = started.pop() else { return false };
            *blocks = begun;
        }
        self.now_ns += passed_ns;
        self.path.push((self.now_ns, event));
        let (state, outcome) = (self.prefetch.state(), self.prefetch.outcome());
        for action in self.prefetch.handle(self.now_ns, event) {
            match (action, event) {
                (Action::Receive, Event::Announced { blocks, .. }) => self.receiving.push(blocks),
                (Action::Commit, Event::Received { blocks, .. }) => {
                    assert_eq!(outcome, None, "nothing is written after the end");
                    self.committing.push(blocks);
                }
                _ => {}
            }
        }
        let is_idle = self.receiving.is_empty() && self.committing.is_empty();
        assert_eq!(self.prefetch.is_quiesced(), self.prefetch.outcome().is_some() && is_idle);
        assert!(outcome.is_none() || self.prefetch.outcome() == outcome, "an outcome stays");
        if self.prefetch.state() != state {
            let exit = (state as u32, self.prefetch.state() as u32, self.outcome_name());
            *exits.entry(exit).or_insert(0) += 1;
        }
        true
    }

    fn explore(&self, depth: u32, exits: &mut Exits) {
        const EVENTS: [(u64, Event); 12] = [
            (0, Event::MetadataReady),
            (0, Event::Failed(FailReason::PeerGone)),
            (0, Event::Accepted { present: 2 }),
            (0, Event::Accepted { present: 1 }),
            (0, Event::Missing { present: 1 }),
            (0, Event::Announced { first_block: 0, blocks: 2 }),
            (0, Event::Announced { first_block: 0, blocks: 1 }),
            (0, Event::Received { blocks: 1, verdict: Ok(()) }),
            (0, Event::Received { blocks: 1, verdict: Err(FailReason::Corrupted) }),
            (0, Event::Committed { blocks: 1 }),
            (0, Event::Cancel),
            (DEADLINES.abandonment_ns, Event::Tick),
        ];
        for (passed_ns, event) in EVENTS {
            let mut next = self.clone();
            // What is over stays so: one more event is enough to see it.
            let left = if self.prefetch.is_over() { 0 } else { depth };
            if next.step(passed_ns, event, exits) && left > 0 {
                next.explore(left - 1, exits);
            }
        }
    }
}

/// Every event in every state, to a depth that reaches every exit: which exits there are, and what the
/// machine may never do.
#[test]
fn the_machine_has_these_exits_and_no_others() {
    let mut exits = Exits::new();
    for policy in [Policy::Strict, Policy::BestEffort] {
        let prefetch = begun(2, policy);
        let walk = Walk {
            policy,
            prefetch,
            path: Vec::new(),
            now_ns: 0,
            receiving: Vec::new(),
            committing: Vec::new(),
        };
        walk.explore(6, &mut exits);
    }
    let found: Vec<_> = exits.keys().copied().collect();
    let expected = [
        (1, 0, "cancelled"),
        (1, 0, "failed"),
        (1, 2, "none"),
        (2, 0, "cancelled"),
        (2, 0, "failed"),
        (2, 0, "missed"),
        (2, 3, "delivered"),
        (3, 0, "delivered"),
    ];
    assert_eq!(found, expected, "{exits:?}");
}

fn any_event() -> impl Strategy<Value = Event> {
    let small = 0u32..6;
    prop_oneof![
        Just(Event::MetadataReady),
        Just(Event::Tick),
        Just(Event::Cancel),
        Just(Event::Failed(FailReason::PeerGone)),
        small.clone().prop_map(|present| Event::Accepted { present }),
        small.clone().prop_map(|present| Event::Missing { present }),
        (small.clone(), small.clone())
            .prop_map(|(first_block, blocks)| Event::Announced { first_block, blocks }),
        Just(Event::Announced { first_block: 0, blocks: 2 }),
        small.clone().prop_map(|blocks| Event::PartAnnounced { blocks }),
        small.clone().prop_map(|blocks| Event::Received { blocks, verdict: Ok(()) }),
        small.prop_map(|blocks| Event::Received { blocks, verdict: Err(FailReason::Corrupted) }),
    ]
}

/// Mostly short beside the deadlines, at times long enough for a connection to be cut.
fn any_wait() -> impl Strategy<Value = u64> {
    prop_oneof![40 => 0u64..200, 1 => Just(QUIESCE_GRACE_NS)]
}

/// What the world outside of the machine knows: it only reports ends of what was started.
#[derive(Default)]
struct World {
    receiving: Vec<u32>,
    committing: Vec<u32>,
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn any_order_of_events_keeps_the_promises(
        requested in 1u32..5,
        strict: bool,
        steps in proptest::collection::vec((any_event(), any_wait(), any::<bool>()), 1..60),
    ) {
        let policy = if strict { Policy::Strict } else { Policy::BestEffort };
        let mut prefetch = begun(requested, policy);
        let mut world = World::default();
        let mut now_ns = 0;
        let mut cancels_sent = 0;
        let mut requests_sent = 0;
        for (event, passed_ns, commit_now) in steps {
            now_ns += passed_ns;
            for is_copy_end in [false, true] {
                // Only what was started can end, and it ends when the machine hears of it.
                let event = match (is_copy_end, event) {
                    (false, Event::Received { verdict, .. }) => match world.receiving.pop() {
                        Some(blocks) => Event::Received { blocks, verdict },
                        None => Event::Tick,
                    },
                    (false, other) => other,
                    (true, _) => match commit_now.then(|| world.committing.pop()).flatten() {
                        Some(blocks) => Event::Committed { blocks },
                        None => break,
                    },
                };
                let outcome_before = prefetch.outcome();
                let (state_before, spent_before) = (prefetch.state(), prefetch.progress().spent_ns);
                let actions = prefetch.handle(now_ns, event);
                for action in actions {
                    match (action, event) {
                        (
                            Action::Receive,
                            Event::Announced { blocks, .. } | Event::PartAnnounced { blocks },
                        ) => {
                            prop_assert!(prefetch.outcome().is_none());
                            world.receiving.push(blocks);
                        }
                        (Action::Commit, Event::Received { blocks, .. }) => {
                            prop_assert!(prefetch.outcome().is_none(), "no write after the end");
                            world.committing.push(blocks);
                        }
                        (
                            Action::Discard,
                            Event::Announced { .. } | Event::PartAnnounced { .. },
                        ) => {}
                        (Action::SendCancel, _) => cancels_sent += 1,
                        (Action::SendRequest, Event::MetadataReady) => requests_sent += 1,
                        (Action::Disconnect, _) => prop_assert!(!world.receiving.is_empty()),
                        (action, event) => prop_assert!(false, "{action:?} for {event:?}"),
                    }
                }
                for (index, before) in spent_before.iter().enumerate() {
                    // Time is noted when a state is left, and at no other moment.
                    let is_left = state_before.timed_index() == Some(index)
                        && prefetch.state() != state_before;
                    let spent = prefetch.progress().spent_ns[index];
                    prop_assert!(is_left || spent == *before);
                }
                if outcome_before.is_some() {
                    prop_assert_eq!(prefetch.outcome(), outcome_before, "an outcome stays");
                }
                let is_idle = world.receiving.is_empty() && world.committing.is_empty();
                prop_assert_eq!(prefetch.is_quiesced(), prefetch.outcome().is_some() && is_idle);
                prop_assert_eq!(prefetch.is_committing(), !world.committing.is_empty());
                prop_assert!(prefetch.progress().moved <= requested);
                match (prefetch.state(), prefetch.outcome()) {
                    (State::PrefetchInit | State::PrefetchInProgress, outcome) => {
                        prop_assert_eq!(outcome, None);
                    }
                    (State::PrefetchComplete, Some(Outcome::Delivered { blocks })) => {
                        prop_assert_eq!(Some(blocks), prefetch.progress().present);
                        prop_assert!(!strict || blocks == requested);
                    }
                    (State::PrefetchComplete, other) => prop_assert!(false, "{other:?}"),
                    (State::ContextInit, outcome) => prop_assert!(outcome.is_some()),
                }
            }
        }
        prop_assert!(cancels_sent <= 1 && requests_sent <= 1);
        // The clock alone ends whatever is left, once running receives and copies have ended.
        prefetch.handle(now_ns + 2_000, Event::Tick);
        for blocks in world.receiving.drain(..) {
            prefetch.handle(now_ns + 2_000, Event::Received { blocks, verdict: Ok(()) });
        }
        for blocks in world.committing.drain(..) {
            prefetch.handle(now_ns + 2_000, Event::Committed { blocks });
        }
        prefetch.handle(now_ns + 20_000, Event::Tick);
        prop_assert!(prefetch.outcome().is_some() && prefetch.is_quiesced());
        prop_assert_eq!(prefetch.state(), State::ContextInit);
    }
}
