//! One attempt to fetch blocks: what the host's handle and the library's thread share.
//!
//! Both feed the state machine: the thread with what happens, the host with its wishes and with time.
//! Whoever does, what follows from it is done here, under the attempt's lock: outcome, states and
//! lease are counted, and the loan ends. The lock is held for a few instructions only, never across
//! a copy, so a poll is cheap.
//!
//! Guards: after [`Attempt::let_go`] returns, nothing writes to the host's blocks any more; each
//! attempt is counted once, and its blocks are given back once, when it is over.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::loans::Loan;
use super::prefetch::{Action, Event, LeaseEnd, Outcome, Prefetch, Progress, State};
use super::reason::FailReason;
use super::sources::Wanted;
use super::state::State as WorkerState;
use crate::plan::Endpoint;
use crate::reuse::{Name, Policy, TextTail};
use crate::telemetry::Metrics;

/// Where the source's state comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// It is fetched from a listed endpoint.
    Endpoint(Endpoint),
    /// The host has it.
    State(Arc<WorkerState>),
}

/// How the hint's last hash relates to the request's own hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintRelation {
    /// There was no hint, or it names more than the request has.
    Unknown,
    /// It is the hash of the block it is said to be.
    Equal,
    /// It is the hash of another block of the request.
    Shifted,
    /// It is the hash of no block of the request.
    Unrelated,
}

/// What the hint was worth, for the report. Never decides anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum HintCheck {
    /// Nothing to compare, or the source has not answered.
    Unknown = 0,
    /// The hint says the same as the request, and the source holds what it said.
    Matches = 1,
    /// The hint says the same as the request, but the source does not hold it.
    Stale = 2,
    /// The hint's last hash belongs to another block of the request.
    Shifted = 3,
    /// The hint is about another prompt, or in another dialect.
    Unrelated = 4,
}

impl HintRelation {
    /// Compares a hint's last hash with the hashes of the request's blocks.
    pub fn new(hashes: &[u64], hinted_blocks: usize, last_hash: u64) -> Self {
        match hinted_blocks.checked_sub(1).map(|last| hashes.get(last)) {
            None | Some(None) => Self::Unknown,
            Some(Some(hash)) if *hash == last_hash => Self::Equal,
            Some(Some(_)) if hashes.contains(&last_hash) => Self::Shifted,
            Some(Some(_)) => Self::Unrelated,
        }
    }
}

/// What is to be fetched. Never changes.
#[derive(Debug)]
pub struct Order {
    /// The attempt's number.
    pub sequence: u64,
    /// Where the source's state comes from.
    pub origin: Origin,
    /// Names from the root to the last wanted block.
    pub names: Vec<Name>,
    /// What the last name is made of, where it is a short block's.
    pub tail: Option<TextTail>,
    /// Tokens of the whole sequence.
    pub token_count: usize,
    /// How many leading blocks are here already.
    pub skipped_blocks: usize,
    /// Which of the named blocks are wanted.
    pub wanted: Wanted,
    /// The prefix, in blocks, that is here when all wanted ones are: blocks after the last wanted
    /// one may be other ranks'.
    pub covered_blocks: usize,
    /// The attention data parallel part of the source that holds the blocks.
    pub source_attention_data_rank: u32,
    /// This side's hashes of the wanted blocks.
    pub hashes: Vec<u64>,
    /// Where the wanted blocks go.
    pub destination: Vec<i32>,
    /// Whether a part is of use.
    pub policy: Policy,
    /// How long the source has to hold the blocks.
    pub hold_time_ns: u64,
    /// What the hint says of the same blocks.
    pub hint: HintRelation,
}

/// How an attempt went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Counts and times.
    pub progress: Progress,
    /// Leading blocks that were here already.
    pub skipped_local: usize,
    /// Bytes verified and put in place.
    pub bytes: u64,
    /// Blocks that the source knows by another block hash than this side, under one name.
    pub foreign_hashes: u32,
    /// What the hint was worth.
    pub hint_check: HintCheck,
}

/// An attempt. Shared by one handle and one thread.
#[derive(Debug)]
pub struct Attempt {
    /// What is to be fetched.
    pub order: Order,
    /// Bytes of one block.
    block_bytes: u64,
    metrics: Arc<Metrics>,
    shared: Mutex<Shared>,
    copy_ended: Condvar,
}

/// What changes, under the attempt's lock.
#[derive(Debug)]
struct Shared {
    prefetch: Prefetch,
    /// The destination blocks, until the attempt is over.
    loan: Option<Loan>,
    /// See [`Report::foreign_hashes`].
    foreign_hashes: u32,
    /// Whether the host asked for an end; asking twice changes nothing.
    is_cancel_asked: bool,
    /// Whether the host dropped its handle: its blocks must not be written any more.
    is_let_go: bool,
}

/// What an event led to.
#[derive(Debug)]
pub(super) struct Step {
    /// To be done, in order.
    pub(super) actions: Vec<Action>,
    /// Whether the attempt has its outcome from this event on.
    pub(super) has_ended: bool,
}

impl Attempt {
    /// An attempt that has begun, with the blocks lent to it.
    pub fn new(
        order: Order,
        prefetch: Prefetch,
        loan: Loan,
        block_bytes: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        metrics.prefetches_accepted.add(0, 1);
        let shared = Mutex::new(Shared {
            prefetch,
            loan: Some(loan),
            foreign_hashes: 0,
            is_cancel_asked: false,
            is_let_go: false,
        });
        let block_bytes = block_bytes as u64;
        Self { order, block_bytes, metrics, shared, copy_ended: Condvar::new() }
    }

    /// For the thread: something happened.
    pub(super) fn handle(&self, now_ns: u64, event: Event) -> Step {
        let mut shared = self.shared.lock();
        let had_ended = shared.prefetch.outcome().is_some();
        let mut actions = Vec::new();
        if shared.is_let_go {
            actions = self.feed(&mut shared, |prefetch| prefetch.handle(now_ns, Event::Cancel));
        }
        actions.extend(self.feed(&mut shared, |prefetch| prefetch.handle(now_ns, event)));
        let has_ended = !had_ended && shared.prefetch.outcome().is_some();
        drop(shared);
        if matches!(event, Event::Committed { .. }) {
            self.copy_ended.notify_all();
        }
        Step { actions, has_ended }
    }

    /// For the thread, or where there is none: nothing is in flight any more, and nothing will be.
    pub(super) fn shut_down(&self, now_ns: u64, reason: FailReason) {
        let mut shared = self.shared.lock();
        self.feed(&mut shared, |prefetch| prefetch.shut_down(now_ns, reason));
        drop(shared);
        self.copy_ended.notify_all();
    }

    /// For the thread: when time alone will change something.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.shared.lock().prefetch.deadline_ns()
    }

    /// For the thread: whether it ended in a way that sources are not told of by the machine.
    pub(super) fn needs_no_more(&self) -> bool {
        let outcome = self.shared.lock().prefetch.outcome();
        matches!(outcome, Some(Outcome::Delivered { .. } | Outcome::ContentMiss))
    }

    /// For the thread: whether it ended because a source could not be reached, or went away.
    pub(super) fn has_lost_a_source(&self) -> bool {
        let outcome = self.shared.lock().prefetch.outcome();
        matches!(outcome, Some(Outcome::Failed(FailReason::PeerGone)))
    }

    /// For the thread: whether it ended because a source took too long.
    pub(super) fn has_timed_out(&self) -> bool {
        let outcome = self.shared.lock().prefetch.outcome();
        matches!(outcome, Some(Outcome::Failed(FailReason::TransferTimeout)))
    }

    /// For the thread: whether nothing is left to happen.
    pub(super) fn is_over(&self) -> bool {
        self.shared.lock().prefetch.is_over()
    }

    /// For the thread: so many more blocks are known to a source by other hashes.
    pub(super) fn note_foreign_hashes(&self, count: u32) {
        self.shared.lock().foreign_hashes += count;
    }

    /// Lets the machine do something, and does what follows from what changed.
    fn feed<T>(&self, shared: &mut Shared, change: impl FnOnce(&mut Prefetch) -> T) -> T {
        let state_before = shared.prefetch.state();
        let had_ended = shared.prefetch.outcome().is_some();
        let result = change(&mut shared.prefetch);
        let prefetch = &shared.prefetch;
        if let Some(outcome) = prefetch.outcome().filter(|_| !had_ended) {
            self.count(outcome);
        }
        if let Some(end) = prefetch.lease_end().filter(|_| state_before == State::PrefetchComplete)
        {
            self.metrics.prefetch_leases_ended.add(end as usize, 1);
        }
        if prefetch.is_over() {
            shared.loan = None;
        } else if prefetch.is_quiesced() {
            shared.loan.iter_mut().for_each(Loan::end_use);
        }
        result
    }

    fn count(&self, outcome: Outcome) {
        let metrics = &self.metrics;
        match outcome {
            Outcome::Delivered { blocks } => {
                metrics.prefetches_delivered.add(0, 1);
                metrics.prefetch_blocks.add(0, blocks.into());
                metrics.prefetch_bytes.add(0, u64::from(blocks) * self.block_bytes);
            }
            Outcome::ContentMiss => metrics.prefetches_missed.add(0, 1),
            Outcome::Cancelled => metrics.prefetches_cancelled.add(0, 1),
            Outcome::Failed(reason) => metrics.prefetches_failed.add(reason as usize, 1),
        }
    }

    /// State and outcome now.
    pub fn poll(&self, now_ns: u64) -> (State, Option<Outcome>) {
        let mut shared = self.shared.lock();
        if shared.prefetch.state() == State::PrefetchComplete {
            // Time alone ends this state, and asks for nothing to be done.
            self.feed(&mut shared, |prefetch| prefetch.handle(now_ns, Event::Tick));
        }
        (shared.prefetch.state(), shared.prefetch.outcome())
    }

    /// Whether no access to the host's blocks is possible any more. Other attempts may have them
    /// then, unless they are on a lease.
    pub fn is_quiesced(&self) -> bool {
        self.shared.lock().prefetch.is_quiesced()
    }

    /// How the lease on delivered blocks ended, once it did.
    pub fn lease_end(&self) -> Option<LeaseEnd> {
        self.shared.lock().prefetch.lease_end()
    }

    /// Takes the delivered blocks; how many, or `None` when there are none to take.
    pub fn claim(&self, now_ns: u64) -> Option<u32> {
        let mut shared = self.shared.lock();
        let is_claimed = self.feed(&mut shared, |prefetch| prefetch.claim(now_ns));
        match shared.prefetch.outcome() {
            Some(Outcome::Delivered { blocks }) if is_claimed => Some(blocks),
            _ => None,
        }
    }

    /// The host wants no more; whether the thread has to be told.
    pub fn ask_cancel(&self, now_ns: u64) -> bool {
        let mut shared = self.shared.lock();
        if shared.prefetch.outcome().is_some() {
            // Only delivered blocks can be given up now, which needs nothing to be done.
            if shared.prefetch.state() == State::PrefetchComplete {
                self.feed(&mut shared, |prefetch| prefetch.handle(now_ns, Event::Cancel));
            }
            return false;
        }
        !std::mem::replace(&mut shared.is_cancel_asked, true)
    }

    /// The host drops its handle: waits for a copy that is being made, at most one run's.
    pub fn let_go(&self) {
        let mut shared = self.shared.lock();
        shared.is_let_go = true;
        while shared.prefetch.is_committing() {
            self.copy_ended.wait(&mut shared);
        }
    }

    /// How it went so far.
    pub fn report(&self) -> Report {
        let shared = self.shared.lock();
        let progress = shared.prefetch.progress();
        let hint_check = match (self.order.hint, progress.present) {
            (HintRelation::Unknown, _) | (HintRelation::Equal, None) => HintCheck::Unknown,
            (HintRelation::Shifted, _) => HintCheck::Shifted,
            (HintRelation::Unrelated, _) => HintCheck::Unrelated,
            (HintRelation::Equal, Some(present)) if present < progress.requested => {
                HintCheck::Stale
            }
            (HintRelation::Equal, Some(_)) => HintCheck::Matches,
        };
        Report {
            progress,
            skipped_local: self.order.skipped_blocks,
            bytes: u64::from(progress.moved) * self.block_bytes,
            foreign_hashes: shared.foreign_hashes,
            hint_check,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::loans::Loans;
    use super::super::prefetch::{Deadlines, QUIESCE_GRACE_NS};
    use super::super::state::Incarnation;
    use super::*;

    const BLOCK_BYTES: usize = 64;

    /// An attempt on two blocks that has been accepted and receives both.
    fn receiving() -> (Attempt, Arc<Loans>, Arc<Metrics>) {
        let (loans, metrics) = (Arc::new(Loans::new(1)), Arc::new(Metrics::new()));
        let destination = vec![4, 5];
        let loan = loans.lend(&destination).unwrap();
        let state = WorkerState {
            namespace: Vec::new(),
            cache: crate::transfer::layout::CacheLayout {
                kv_heads_per_layer: vec![1],
                head_size: 1,
                tokens_per_block: 1,
                data_type: crate::transfer::layout::DataType::Float16,
                attention: crate::transfer::layout::Attention::Latent,
                kv_factor: 1,
                windows: vec![0],
            },
            parallel: crate::transfer::layout::ParallelLayout {
                tensor: 1,
                pipeline: 1,
                context: 1,
                attention_data: 1,
                layers_per_pipeline_rank: Vec::new(),
            },
            ranks: vec![crate::transfer::state::RankAddress {
                rank: 0,
                incarnation: Incarnation([1; 16]),
                transport: String::new(),
                address: Vec::new(),
                block_bytes: BLOCK_BYTES as u64,
            }],
        };
        let order = Order {
            sequence: 1,
            origin: Origin::State(Arc::new(state)),
            names: vec![Name([1; 32]), Name([2; 32])],
            tail: None,
            token_count: 2,
            skipped_blocks: 0,
            wanted: Wanted { first: 0, step: 1, count: 2 },
            covered_blocks: 2,
            source_attention_data_rank: 0,
            hashes: vec![1, 2],
            destination,
            policy: Policy::Strict,
            hold_time_ns: 0,
            hint: HintRelation::Unknown,
        };
        let (prefetch, _) = Prefetch::begin(0, 2, Policy::Strict, Deadlines::default());
        let attempt = Attempt::new(order, prefetch, loan, BLOCK_BYTES, Arc::clone(&metrics));
        attempt.handle(0, Event::MetadataReady);
        attempt.handle(0, Event::Accepted { present: 2 });
        let announced = Event::Announced { first_block: 0, blocks: 2 };
        assert_eq!(attempt.handle(0, announced).actions, [Action::Receive]);
        (attempt, loans, metrics)
    }

    fn delivered() -> (Attempt, Arc<Loans>, Arc<Metrics>) {
        let (attempt, loans, metrics) = receiving();
        attempt.handle(1, Event::Received { blocks: 2, verdict: Ok(()) });
        let step = attempt.handle(1, Event::Committed { blocks: 2 });
        assert!(step.has_ended && attempt.is_quiesced() && !attempt.is_over());
        (attempt, loans, metrics)
    }

    #[test]
    fn what_a_host_asks_late_takes_no_work_from_the_thread() {
        type Ask = fn(&Attempt, u64);
        let asks: [Ask; 4] = [
            |attempt, now_ns| assert!(!attempt.ask_cancel(now_ns)),
            |attempt, now_ns| assert_eq!(attempt.claim(now_ns), None),
            |attempt, now_ns| assert!(attempt.poll(now_ns).1.is_some()),
            |attempt, _| attempt.let_go(),
        ];
        for ask in asks {
            let (attempt, loans, _) = receiving();
            attempt.handle(2, Event::Cancel);
            ask(&attempt, 3 + QUIESCE_GRACE_NS);
            // The receive still runs; only the thread can cut it off.
            let step = attempt.handle(3 + QUIESCE_GRACE_NS, Event::Tick);
            assert_eq!(step.actions, [Action::Disconnect]);
            assert_eq!((loans.in_use(), loans.blocks()), (1, 2));
            attempt.handle(4 + QUIESCE_GRACE_NS, Event::Received { blocks: 2, verdict: Ok(()) });
            assert!(attempt.is_over());
            assert_eq!((loans.in_use(), loans.blocks()), (0, 0));
        }
    }

    #[test]
    fn a_claim_or_a_poll_after_the_deadline_leaves_the_end_to_the_thread() {
        let (attempt, loans, _) = receiving();
        let late_ns = Deadlines::default().transfer_ns;
        assert_eq!(attempt.claim(late_ns), None);
        assert_eq!(attempt.poll(late_ns), (State::PrefetchInProgress, None));
        let step = attempt.handle(late_ns, Event::Tick);
        assert_eq!(step.actions, [Action::SendCancel]);
        assert!(step.has_ended);
        assert_eq!(loans.in_use(), 1, "a receive still runs");
    }

    #[test]
    fn delivered_blocks_stay_lent_until_the_lease_ends_however_it_does() {
        type End = fn(&Attempt);
        let ends: [(LeaseEnd, End); 4] = [
            (LeaseEnd::Claimed, |attempt| assert_eq!(attempt.claim(2), Some(2))),
            (LeaseEnd::Released, |attempt| assert!(!attempt.ask_cancel(2))),
            (LeaseEnd::Abandoned, |attempt| {
                assert_eq!(attempt.claim(1 + Deadlines::default().abandonment_ns), None);
            }),
            (LeaseEnd::Abandoned, |attempt| {
                attempt.poll(1 + Deadlines::default().abandonment_ns);
            }),
        ];
        for (expected, end) in ends {
            let (attempt, loans, metrics) = delivered();
            assert_eq!((loans.in_use(), loans.blocks()), (0, 2), "on a lease");
            end(&attempt);
            assert_eq!(attempt.lease_end(), Some(expected));
            assert_eq!((loans.in_use(), loans.blocks()), (0, 0));
            assert_eq!(attempt.claim(3), None);
            let ended: Vec<u64> = (0..Metrics::LEASE_ENDS.len())
                .map(|at| metrics.prefetch_leases_ended.get(at))
                .collect();
            let only: Vec<u64> = (0..Metrics::LEASE_ENDS.len())
                .map(|at| u64::from(at == expected as usize))
                .collect();
            assert_eq!(ended, only);
        }
    }

    #[test]
    fn an_attempt_is_counted_once_with_its_time_in_each_state() {
        let (attempt, _, metrics) = delivered();
        attempt.claim(5);
        attempt.shut_down(6, FailReason::Shutdown);
        attempt.handle(7, Event::Failed(FailReason::Fault));
        assert_eq!(metrics.prefetches_accepted.get(0), 1);
        assert_eq!(metrics.prefetches_delivered.get(0), 1);
        assert_eq!(metrics.prefetch_bytes.get(0), 2 * BLOCK_BYTES as u64);
        assert!((0..FailReason::NAMES.len()).all(|at| metrics.prefetches_failed.get(at) == 0));
        assert_eq!(attempt.report().progress.spent_ns, [0, 1, 4]);
    }

    #[test]
    fn a_hint_is_compared_with_the_requests_own_hashes() {
        let hashes = [10, 20, 30];
        assert_eq!(HintRelation::new(&hashes, 2, 20), HintRelation::Equal);
        assert_eq!(HintRelation::new(&hashes, 2, 30), HintRelation::Shifted);
        assert_eq!(HintRelation::new(&hashes, 2, 40), HintRelation::Unrelated);
        assert_eq!(HintRelation::new(&hashes, 4, 40), HintRelation::Unknown);
        assert_eq!(HintRelation::new(&hashes, 0, 10), HintRelation::Unknown);
    }
}
