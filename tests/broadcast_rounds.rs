//! Rounds over threads as ranks: every topology delivers, every failure reaches every rank.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use kvhints::broadcast::batch::{Batch, ReceivedBatch, Request};
use kvhints::broadcast::communicator::{
    all_equal, all_equal_in_version, Communicator, CommunicatorError,
};
use kvhints::broadcast::header::AbortReason;
use kvhints::broadcast::limits::{LOCAL_LARGE_FROM_BYTES, MAX_AGREED_VALUES};
use kvhints::broadcast::local::{LocalGroup, LocalGroupError};
use kvhints::broadcast::round::{Equipment, RoundError, Rounds};
use kvhints::broadcast::settings::{HintForm, Mode, PipelineSends, Settings};
use kvhints::broadcast::topology::Topology;
use kvhints::hint::Snapshot;
use kvhints::plan::{Endpoint, NamedFetch, Plan, Refusal};
use kvhints::telemetry::Metrics;

const SMALL_CHUNK_BYTES: usize = 4096;

/// Bodies of this size travel by themselves.
const LARGE: usize = LOCAL_LARGE_FROM_BYTES;

fn settings(tensor: u32, pipeline: u32, context: u32) -> Settings {
    let topology = Topology::new(tensor, pipeline, context).expect("small sizes");
    Settings { chunk_bytes: SMALL_CHUNK_BYTES, ..Settings::new(topology) }
}

fn rounds(communicator: impl Communicator + 'static, settings: Settings) -> Rounds {
    let equipment = Equipment::new(settings).expect("memory");
    Rounds::new(Box::new(communicator), equipment, Arc::new(Metrics::new()))
}

/// Runs `rank_main` on a thread for each rank and gives the results in the order of ranks.
fn on_all_ranks<T: Send>(settings: Settings, rank_main: impl Fn(Rounds) -> T + Sync) -> Vec<T> {
    let group = LocalGroup::new(settings.topology.rank_count()).expect("a group");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..group.size())
            .map(|rank| {
                let communicator = group.take(rank, settings, None).expect("a free rank");
                let rank_main = &rank_main;
                scope.spawn(move || rank_main(rounds(communicator, settings)))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank's thread")).collect()
    })
}

fn hint(hash: u64) -> Snapshot {
    let hashes = vec![hash.to_string(); 50].join(",");
    let text = format!(
        r#"{{"protocol_version":"0.1","message_id":"m","actions":[{{"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{{"source_control_endpoint":"tcp://h:1","block_hashes":[{hashes}]}}}}]}}"#
    );
    Snapshot::from_canonical(text.as_bytes()).expect("an envelope in canonical form")
}

fn body(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ seed as u8).collect()
}

/// Bodies of every class: none, small, just large, several chunks.
fn bodies() -> Vec<Vec<u8>> {
    [0, 1, 500, LARGE - 1, LARGE, 30 * LARGE + 7]
        .into_iter()
        .enumerate()
        .map(|(seed, len)| body(seed as u64, len))
        .collect()
}

fn named_fetch() -> Plan {
    Plan::NamedFetch(NamedFetch {
        binding_id: "pool-a".into(),
        endpoint: Endpoint::parse("http://kv.example").expect("an endpoint"),
        action_index: 0,
        block_count: 50,
        last_block_hash: u64::MAX,
        then_paired_source: false,
        envelope: None,
    })
}

/// The plan of a request: a fetch, a local one, or none.
fn plan(index: usize) -> Option<Plan> {
    match index {
        0 | 4 => Some(named_fetch()),
        1 => Some(Plan::Local(Refusal::NoCandidate)),
        _ => None,
    }
}

/// One request for each body. The first two share a snapshot, the third is the first one's child,
/// the fourth has an equal but not the same one, the others have none.
fn batch(bodies: &[Vec<u8>]) -> Batch<'_> {
    let shared = hint(u64::MAX);
    let mut batch = Batch::new();
    for (index, body) in bodies.iter().enumerate() {
        let snapshot = match index {
            0 | 1 => Some(shared.clone()),
            3 => Some(hint(u64::MAX)),
            _ => None,
        };
        let parent = (index == 2).then_some(0);
        let id = 1_000 + index as u64;
        let request = Request { id, body, snapshot, parent, plan: plan(index).map(Box::new) };
        batch.add(request).expect("a good request");
    }
    batch
}

fn check_received(received: &ReceivedBatch, bodies: &[Vec<u8>], mode: Mode) {
    assert_eq!(received.len(), bodies.len());
    let place = |index: usize| {
        received.get(index).and_then(|request| request.snapshot).map(|hint| hint.json().as_ptr())
    };
    for (index, body) in bodies.iter().enumerate() {
        let request = received.get(index).expect("a request");
        assert_eq!(request.id, 1_000 + index as u64);
        assert_eq!(request.body, body);
        assert_eq!(request.parent, (index == 2).then_some(0));
        // Where only decisions travel, a local one travels as none.
        let is_told = |plan: &Plan| mode == Mode::Full || !matches!(plan, Plan::Local(_));
        assert_eq!(request.plan, plan(index).filter(is_told).as_ref());
        let has_snapshot = mode == Mode::Full && index < 4;
        let expected = has_snapshot.then(|| hint(u64::MAX).json().to_vec());
        assert_eq!(request.snapshot.map(|hint| hint.json().to_vec()), expected);
    }
    if mode == Mode::Full {
        assert_eq!(place(0), place(1), "a shared snapshot is one snapshot");
        assert_eq!(place(0), place(2), "a child has its parent's");
        assert_ne!(place(0), place(3), "equal ones stay two");
    }
    assert!(received.get(bodies.len()).is_none());
}

fn deliver_thrice(settings: Settings) {
    let bodies = bodies();
    on_all_ranks(settings, |mut rounds| {
        for _ in 0..3 {
            if rounds.rank() == 0 {
                let batch = batch(&bodies);
                let prepared = rounds.prepare(&batch);
                rounds.give(prepared).expect("a round");
            } else {
                check_received(&rounds.receive().expect("a round"), &bodies, settings.mode);
            }
        }
        rounds.close().expect("a collective close");
        assert_eq!(rounds.close(), Err(RoundError::Closed));
    });
}

#[test]
fn every_topology_delivers_to_every_rank() {
    for [tensor, pipeline, context] in [
        [1, 1, 1],
        [2, 1, 1],
        [1, 2, 1],
        [1, 1, 2],
        [4, 1, 1],
        [2, 2, 1],
        [1, 4, 1],
        [8, 1, 1],
        [2, 2, 2],
        [1, 8, 1],
        [2, 4, 1],
    ] {
        deliver_thrice(settings(tensor, pipeline, context));
    }
}

#[test]
fn snapshots_stay_on_rank_0_where_only_decisions_travel() {
    deliver_thrice(Settings { mode: Mode::Decided, ..settings(2, 2, 1) });
}

#[test]
fn every_form_of_messages_delivers() {
    for hint_form in [HintForm::Text, HintForm::Packed] {
        for pipeline_sends in [PipelineSends::Synchronous, PipelineSends::Asynchronous] {
            // The header alone, some of the front, more than all of it.
            for first_message_bytes in [64, 65, 200, 64 << 10] {
                for [tensor, pipeline] in [[2, 2], [1, 3]] {
                    deliver_thrice(Settings {
                        hint_form,
                        pipeline_sends,
                        first_message_bytes,
                        ..settings(tensor, pipeline, 1)
                    });
                }
            }
        }
    }
}

#[test]
fn an_empty_batch_travels() {
    on_all_ranks(settings(2, 1, 1), |mut rounds| {
        if rounds.rank() == 0 {
            let batch = Batch::new();
            let prepared = rounds.prepare(&batch);
            rounds.give(prepared).expect("a round");
        } else {
            assert!(rounds.receive().expect("a round").is_empty());
        }
    });
}

#[test]
fn all_ranks_get_the_reason_of_rank_0_and_the_next_round_works() {
    let bodies = bodies();
    for reason in [
        AbortReason::InvalidBatch,
        AbortReason::Limit,
        AbortReason::NoMemory,
        AbortReason::Poisoned,
    ] {
        let outcomes = on_all_ranks(settings(2, 2, 1), |mut rounds| {
            if rounds.rank() == 0 {
                let outcome = rounds.give(Err(reason));
                let batch = batch(&bodies);
                let prepared = rounds.prepare(&batch);
                rounds.give(prepared).expect("a round");
                return outcome;
            }
            let outcome = rounds.receive().map(|_| ());
            check_received(&rounds.receive().expect("a round"), &bodies, Mode::Full);
            outcome
        });
        assert_eq!(outcomes, vec![Err(RoundError::Aborted(reason)); 4]);
    }
}

#[test]
fn a_rank_that_does_not_want_a_batch_stays_in_step_and_passes_it_on() {
    let bodies = bodies();
    on_all_ranks(settings(1, 4, 1), |mut rounds| match rounds.rank() {
        0 => {
            for _ in 0..2 {
                let batch = batch(&bodies);
                let prepared = rounds.prepare(&batch);
                rounds.give(prepared).expect("a round");
            }
        }
        1 => {
            rounds.discard().expect("a round");
            check_received(&rounds.receive().expect("a round"), &bodies, Mode::Full);
        }
        _ => {
            for _ in 0..2 {
                check_received(&rounds.receive().expect("a round"), &bodies, Mode::Full);
            }
        }
    });
}

#[test]
fn a_rank_that_panics_wakes_all_others() {
    for [tensor, pipeline] in [[4, 1], [1, 4], [2, 2]] {
        let bodies = bodies();
        let outcomes = on_all_ranks(settings(tensor, pipeline, 1), |mut rounds| {
            let rank = rounds.rank();
            let run = AssertUnwindSafe(|| {
                // Moved in, so that unwinding drops it as it would end a thread.
                let mut rounds = std::mem::replace(&mut rounds, spare());
                if rank == 1 {
                    std::panic::resume_unwind(Box::new("this rank ends here"));
                }
                if rank == 0 {
                    let batch = batch(&bodies);
                    let prepared = rounds.prepare(&batch);
                    rounds.give(prepared)?;
                } else {
                    rounds.receive()?;
                }
                rounds.min_reduce(Some(&mut [rank.into()]))
            });
            std::panic::catch_unwind(run).ok()
        });
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                None => assert_eq!(rank, 1),
                Some(outcome) => {
                    let is_told = matches!(
                        outcome,
                        Err(RoundError::Communicator(CommunicatorError::RankGone(_)))
                    );
                    assert!(is_told, "rank {rank}: {outcome:?}");
                }
            }
        }
    }
}

/// A rank of nobody, to put in the place of one that was moved out.
fn spare() -> Rounds {
    let settings = settings(1, 1, 1);
    let group = LocalGroup::new(1).expect("a group");
    rounds(group.take(0, settings, None).expect("a free rank"), settings)
}

#[test]
fn nobody_waits_for_ranks_that_are_never_made() {
    let settings = settings(2, 1, 1);
    let group = LocalGroup::new(2).expect("a group");
    let mut only = rounds(group.take(1, settings, None).expect("a free rank"), settings);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || only.receive().map(|_| ()));
        drop(group);
        let outcome = waiting.join().expect("the thread");
        assert_eq!(outcome, Err(RoundError::Communicator(CommunicatorError::RankGone(0))));
    });
}

#[test]
fn a_deadline_ends_the_wait_and_the_communicator() {
    let settings = settings(2, 1, 1);
    let group = LocalGroup::new(2).expect("a group");
    let deadline = Some(std::time::Duration::from_nanos(1));
    let mut hasty = rounds(group.take(1, settings, deadline).expect("a free rank"), settings);
    let mut other = rounds(group.take(0, settings, deadline).expect("a free rank"), settings);
    let outcome = hasty.receive().map(|_| ());
    let passed = CommunicatorError::Deadline { waited_ns: 1 };
    assert_eq!(outcome, Err(RoundError::Communicator(passed)));
    assert_eq!(hasty.receive().map(|_| ()), Err(RoundError::FailedEarlier));
    let outcome = other.min_reduce(Some(&mut [1]));
    assert_eq!(outcome, Err(RoundError::Communicator(CommunicatorError::RankGone(1))));
}

#[test]
fn the_smallest_values_reach_all_ranks() {
    for count in [0, 1, 61, 62, 1_000] {
        let outcomes = on_all_ranks(settings(4, 1, 1), |mut rounds| {
            let rank = u64::from(rounds.rank());
            let mut values: Vec<u64> = (0..count).map(|at| (at + rank) % 4 + at * 10).collect();
            rounds.min_reduce(Some(&mut values)).expect("an agreement");
            values
        });
        let expected: Vec<u64> = (0..count).map(|at| at * 10).collect();
        assert_eq!(outcomes, vec![expected; 4]);
    }
}

#[test]
fn ranks_that_disagree_all_learn_of_it_and_stay_in_step() {
    let too_many = MAX_AGREED_VALUES + 1;
    for odd in [None, Some(2), Some(100), Some(too_many)] {
        on_all_ranks(settings(4, 1, 1), |mut rounds| {
            let mut values = vec![7; 3];
            let mut odd_values = odd.map(|count| vec![7; count]);
            let given = match rounds.rank() {
                2 => odd_values.as_deref_mut(),
                _ => Some(values.as_mut_slice()),
            };
            assert_eq!(rounds.min_reduce(given), Err(RoundError::Disagree));
            rounds.min_reduce(Some(&mut values)).expect("an agreement");
            assert_eq!(values, [7; 3]);
        });
    }
}

#[test]
fn an_agreement_that_was_begun_ends_while_rounds_go_on() {
    let bodies = bodies();
    for count in [0, 1, 61, 62, 1_000] {
        let outcomes = on_all_ranks(settings(2, 2, 1), |mut rounds| {
            let rank = u64::from(rounds.rank());
            let mine: Vec<u64> = (0..count).map(|at| (at + rank) % 4 + at * 10).collect();
            rounds.begin_min(Some(&mine)).expect("none is under way");
            assert_eq!(rounds.begin_min(Some(&mine)), Err(RoundError::AgreementOpen));
            assert_eq!(rounds.min_reduce(Some(&mut [1])), Err(RoundError::AgreementOpen));
            let mut too_many = vec![0; mine.len() + 1];
            assert_eq!(rounds.poll_min(&mut too_many), Err(RoundError::NoAgreement));
            if rank == 0 {
                let batch = batch(&bodies);
                let prepared = rounds.prepare(&batch);
                rounds.give(prepared).expect("a round");
            } else {
                check_received(&rounds.receive().expect("a round"), &bodies, Mode::Full);
            }
            let mut smallest = vec![0; mine.len()];
            while !rounds.poll_min(&mut smallest).expect("an agreement") {
                std::thread::yield_now();
            }
            assert_eq!(rounds.poll_min(&mut smallest), Err(RoundError::NoAgreement));
            rounds.close().expect("a collective close");
            smallest
        });
        let expected: Vec<u64> = (0..count).map(|at| at * 10).collect();
        assert_eq!(outcomes, vec![expected; 4]);
    }
}

#[test]
fn an_agreement_that_was_begun_tells_of_ranks_that_disagree_or_left() {
    on_all_ranks(settings(4, 1, 1), |mut rounds| {
        let is_odd = rounds.rank() == 2;
        rounds.begin_min(if is_odd { None } else { Some(&[7; 70]) }).expect("none is under way");
        let mut values = vec![0; if is_odd { 0 } else { 70 }];
        let outcome = loop {
            match rounds.poll_min(&mut values) {
                Ok(false) => std::thread::yield_now(),
                outcome => break outcome,
            }
        };
        assert_eq!(outcome, Err(RoundError::Disagree));
        // Closing ends what nobody asks for any more.
        rounds.begin_min(Some(&[7; 70])).expect("none is under way");
        rounds.close().expect("a collective close");
    });
    let outcomes = on_all_ranks(settings(4, 1, 1), |mut rounds| {
        if rounds.rank() == 2 {
            return None;
        }
        rounds.begin_min(Some(&[7])).expect("none is under way");
        loop {
            match rounds.poll_min(&mut [0]) {
                Ok(false) => std::thread::yield_now(),
                outcome => break Some(outcome),
            }
        }
    });
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let is_told =
            matches!(outcome, Some(Err(RoundError::Communicator(CommunicatorError::RankGone(_)))));
        assert_eq!(is_told, rank != 2, "rank {rank}: {outcome:?}");
    }
}

#[test]
fn different_settings_or_releases_are_found_by_all() {
    let settings = settings(3, 1, 1);
    let odd_settings = Settings { mode: Mode::Decided, ..settings };
    let numbers = |settings: Settings| {
        let mut numbers = [0; 10];
        numbers[..8].copy_from_slice(&settings.numbers());
        numbers
    };
    let group = LocalGroup::new(3).expect("a group");
    let outcomes: Vec<[bool; 4]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let mut ours = group.take(rank, settings, None).expect("a free rank");
                scope.spawn(move || {
                    let is_odd = ours.rank() == 2;
                    let same = numbers(settings);
                    let own = numbers(if is_odd { odd_settings } else { settings });
                    let version = if is_odd { 77 } else { 2 };
                    [
                        all_equal(&mut ours, Some(&same)),
                        all_equal(&mut ours, Some(&own)),
                        all_equal(&mut ours, Some(&same).filter(|_| !is_odd)),
                        all_equal_in_version(&mut ours, version, Some(&same)),
                    ]
                    .map(|outcome| outcome.expect("a reduction"))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread")).collect()
    });
    assert_eq!(outcomes, [[true, false, false, false]; 3]);
}

#[test]
fn each_rank_of_a_group_is_taken_once_and_with_the_same_settings() {
    assert!(LocalGroup::new(0).is_none());
    assert!(LocalGroup::new(257).is_none());
    let group = LocalGroup::new(2).expect("a group");
    let first = group.take(0, settings(2, 1, 1), None).expect("a free rank");
    let refused = |outcome: Result<_, LocalGroupError>| outcome.map(drop).expect_err("refused");
    assert_eq!(refused(group.take(0, settings(2, 1, 1), None)), LocalGroupError::Taken(0));
    drop(first);
    assert_eq!(refused(group.take(0, settings(2, 1, 1), None)), LocalGroupError::Taken(0));
    assert_eq!(refused(group.take(1, settings(1, 2, 1), None)), LocalGroupError::OtherSettings);
    let deadline = Some(std::time::Duration::from_secs(1));
    let other = group.take(1, settings(2, 1, 1), deadline);
    assert_eq!(refused(other), LocalGroupError::OtherSettings);
    group.take(1, settings(2, 1, 1), None).expect("what was refused took no rank");
    let missing = LocalGroupError::NoSuchRank { rank: 2, size: 2 };
    assert_eq!(refused(group.take(2, settings(2, 1, 1), None)), missing);
}

/// Changes one message of a round on its way.
struct Damaging<C> {
    inner: C,
    /// How many messages still pass unharmed.
    unharmed: usize,
    place: Place,
}

/// Which byte of the message is changed.
#[derive(Clone, Copy)]
enum Place {
    Start,
    Middle,
}

impl<C: Communicator> Communicator for Damaging<C> {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }
    fn size(&self) -> u32 {
        self.inner.size()
    }
    fn large_from_bytes(&self) -> usize {
        self.inner.large_from_bytes()
    }
    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError> {
        self.inner.broadcast_out(bytes)
    }
    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        self.inner.broadcast_in(buffer)?;
        if self.unharmed == 0 {
            let at = match self.place {
                Place::Start => 0,
                Place::Middle => buffer.len() / 2,
            };
            buffer[at] ^= 1;
        }
        self.unharmed = self.unharmed.wrapping_sub(1);
        Ok(())
    }
    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError> {
        self.inner.send(to, bytes)
    }
    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        self.inner.receive(from, buffer)
    }
    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError> {
        self.inner.min_reduce(values)
    }
    fn begin_min_reduce(&mut self, values: &[u64]) -> Result<(), CommunicatorError> {
        self.inner.begin_min_reduce(values)
    }
    fn poll_min_reduce(&mut self, values: &mut [u64]) -> Result<bool, CommunicatorError> {
        self.inner.poll_min_reduce(values)
    }
    fn abandon(&mut self) {
        self.inner.abandon();
    }
    fn close(&mut self) -> Result<(), CommunicatorError> {
        self.inner.close()
    }
}

/// Damages rank 1's message number `message`; gives what each rank got from the first round, from a
/// second one and from an agreement.
fn with_damage(message: usize) -> Vec<[Result<(), RoundError>; 3]> {
    with_damage_at(message, Place::Middle)
}

fn with_damage_at(message: usize, place: Place) -> Vec<[Result<(), RoundError>; 3]> {
    let bodies = bodies();
    let settings = settings(3, 1, 1);
    let group = LocalGroup::new(3).expect("a group");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let communicator = group.take(rank, settings, None).expect("a free rank");
                let unharmed = if rank == 1 { message } else { usize::MAX };
                let bodies = &bodies;
                scope.spawn(move || {
                    let damaging = Damaging { inner: communicator, unharmed, place };
                    let mut rounds = rounds(damaging, settings);
                    let mut round = || {
                        if rank > 0 {
                            return rounds.receive().map(|_| ());
                        }
                        let batch = batch(bodies);
                        let prepared = rounds.prepare(&batch);
                        rounds.give(prepared)
                    };
                    [round(), round(), rounds.min_reduce(Some(&mut [1]))]
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread")).collect()
    })
}

#[test]
fn damage_seen_by_one_rank_is_told_to_all_at_the_next_agreement() {
    // Message 0 is the header, 1 the front, whose middle is no list of lengths, 2 a large part.
    for message in [1, 2] {
        let outcomes = with_damage(message);
        for (rank, [first, second, agreement]) in outcomes.into_iter().enumerate() {
            if rank == 1 {
                assert!(matches!(first, Err(RoundError::Frame(_))), "{first:?}");
                assert_eq!(second, Err(RoundError::FailedEarlier));
            } else {
                assert_eq!((first, second), (Ok(()), Ok(())), "rank {rank} is not concerned");
            }
            assert_eq!(agreement, Err(RoundError::Disagree));
        }
    }
}

#[test]
fn a_rank_that_cannot_follow_leaves_nobody_waiting() {
    // The header; and the list of lengths, at the beginning of the front.
    for (message, place) in [(0, Place::Middle), (1, Place::Start)] {
        let outcomes = with_damage_at(message, place);
        assert!(outcomes[1].iter().all(Result::is_err), "{outcomes:?}");
        assert_eq!(outcomes[1][2], Err(RoundError::FailedEarlier));
        for rank in [0, 2] {
            let agreement = &outcomes[rank][2];
            assert!(agreement.is_err(), "rank {rank}: {agreement:?}");
        }
    }
}
