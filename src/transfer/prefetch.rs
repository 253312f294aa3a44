//! One prefetch as a state machine: events in, actions out. No clock, socket, thread or memory.
//!
//! ```text
//! CONTEXT_INIT -> PREFETCH_INIT -> PREFETCH_IN_PROGRESS -> PREFETCH_COMPLETE -> CONTEXT_INIT
//!                      |                   |             (claimed, abandoned or released)
//!                      +------- any end ---+--> CONTEXT_INIT, as if there had been no hint
//! ```
//!
//! Delivered blocks are on a *lease* while the state is `PREFETCH_COMPLETE`.
//!
//! Guards: exactly one outcome, which never changes; nothing is committed after it; whatever is
//! seen after its deadline counts as late; *quiesced* is not said while a receive or a copy runs; one
//! event changes the state at most once.

use super::reason::FailReason;
use crate::reuse::Policy;
use crate::telemetry::attempts::{AttemptState, AttemptTrace};

/// Where the request stands. The names are those of the serving engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum State {
    /// Schedulable: not begun, or over.
    ContextInit = 0,
    /// The source's state is being fetched.
    PrefetchInit = 1,
    /// Blocks were asked for.
    PrefetchInProgress = 2,
    /// Blocks are here and wait to be claimed.
    PrefetchComplete = 3,
}

impl State {
    /// The state's place among those that last a while, for which time is kept.
    pub fn timed_index(self) -> Option<usize> {
        (self as usize).checked_sub(1)
    }
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// This many blocks are in their places, whole and verified.
    Delivered {
        /// Blocks, from the first asked for.
        blocks: u32,
    },
    /// The source does not hold what was asked for.
    ContentMiss,
    /// It could not be done.
    Failed(FailReason),
    /// This side wanted it no more.
    Cancelled,
}

/// How the lease on delivered blocks ended: the numbers are those of the metric's labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum LeaseEnd {
    /// The request took the blocks.
    Claimed = 0,
    /// Nobody did in time.
    Abandoned = 1,
    /// The host wanted them no more.
    Released = 2,
}

/// How long each part may take. All are counted from the part's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Until the source's state is known.
    pub metadata_ns: u64,
    /// From the request until the last block is verified.
    pub transfer_ns: u64,
    /// From the end of the transfer until the blocks are claimed.
    pub abandonment_ns: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self { metadata_ns: 2 * SECOND, transfer_ns: 10 * SECOND, abandonment_ns: 30 * SECOND }
    }
}

/// After an end, receives still running get this long before the connection is cut.
pub const QUIESCE_GRACE_NS: u64 = 500_000_000;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The source's state is known and fits.
    MetadataReady,
    /// The request could not be sent, or something else went wrong.
    Failed(FailReason),
    /// The source will send this many blocks.
    Accepted {
        /// Blocks, from the first asked for.
        present: u32,
    },
    /// The source holds this many, too few, and sends nothing.
    Missing {
        /// Blocks, from the first asked for.
        present: u32,
    },
    /// A run of blocks is announced.
    Announced {
        /// Position of its first block.
        first_block: u32,
        /// Its blocks.
        blocks: u32,
    },
    /// A run of one of several sources is announced, in that source's order.
    PartAnnounced {
        /// Its blocks.
        blocks: u32,
    },
    /// A run that was let in arrived in the library's own memory.
    Received {
        /// Its blocks.
        blocks: u32,
        /// Whether it is what the source said.
        verdict: Result<(), FailReason>,
    },
    /// A verified run was copied into the host's blocks.
    Committed {
        /// Blocks that are whole with it, whoever sent their parts.
        blocks: u32,
    },
    /// Time passed.
    Tick,
    /// The host wants it no more.
    Cancel,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Get the source's state.
    FetchMetadata,
    /// Connect, and send the request.
    SendRequest,
    /// Tell the source to stop.
    SendCancel,
    /// Let the announced run in; answered by `Received`.
    Receive,
    /// Refuse the announced run.
    Discard,
    /// Copy the received run into the host's blocks; answered by `Committed`.
    Commit,
    /// Cut the connection, so that receives end.
    Disconnect,
}

/// How far a prefetch came, for its report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks asked for.
    pub requested: u32,
    /// What the source said it holds of them; `None` before its answer.
    pub present: Option<u32>,
    /// Blocks verified and in their places.
    pub moved: u32,
    /// Time spent in `PREFETCH_INIT`, `PREFETCH_IN_PROGRESS`, `PREFETCH_COMPLETE`.
    pub spent_ns: [u64; 3],
}

/// One prefetch.
#[derive(Debug)]
pub struct Prefetch {
    state: State,
    outcome: Option<Outcome>,
    policy: Policy,
    deadlines: Deadlines,
    progress: Progress,
    entered_ns: u64,
    /// When the present state, or after an end the wait for quiescence, has lasted too long.
    deadline_ns: u64,
    /// Next block position that may be announced.
    next_block: u32,
    /// Runs let in and not yet received.
    receiving: u32,
    /// Runs being copied into the host's blocks.
    committing: u32,
    is_request_sent: bool,
    lease_end: Option<LeaseEnd>,
    trace: AttemptTrace,
}

impl Prefetch {
    /// A prefetch of `requested` blocks, and the first thing to do.
    pub fn begin(
        now_ns: u64,
        requested: u32,
        policy: Policy,
        deadlines: Deadlines,
    ) -> (Self, Action) {
        let mut prefetch = Self {
            state: State::ContextInit,
            outcome: None,
            policy,
            deadlines,
            progress: Progress { requested, ..Progress::default() },
            entered_ns: now_ns,
            deadline_ns: u64::MAX,
            next_block: 0,
            receiving: 0,
            committing: 0,
            is_request_sent: false,
            lease_end: None,
            trace: AttemptTrace::default(),
        };
        prefetch.enter(State::PrefetchInit, now_ns, deadlines.metadata_ns);
        (prefetch, Action::FetchMetadata)
    }

    /// Shows from now on what becomes of it.
    pub fn shown_by(&mut self, trace: AttemptTrace) {
        self.trace = trace;
    }

    /// Where the request stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// How it ended, once it did.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Whether no access to any memory of this prefetch is possible any more.
    pub fn is_quiesced(&self) -> bool {
        self.outcome.is_some() && self.receiving == 0 && self.committing == 0
    }

    /// Whether the host's blocks are being written at this moment.
    pub fn is_committing(&self) -> bool {
        self.committing > 0
    }

    /// How the lease on delivered blocks ended, once it did.
    pub fn lease_end(&self) -> Option<LeaseEnd> {
        self.lease_end
    }

    /// Whether nothing is left to happen: the blocks are the host's alone.
    pub fn is_over(&self) -> bool {
        self.is_quiesced() && self.state == State::ContextInit
    }

    /// How far it came.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// When [`Event::Tick`] will change something; `u64::MAX` for never.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Takes an event in; says what to do, in order.
    pub fn handle(&mut self, now_ns: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        // Before time is looked at: a receive that has ended is none to cut off.
        match event {
            Event::Received { .. } => self.receiving = self.receiving.saturating_sub(1),
            Event::Committed { .. } => self.committing = self.committing.saturating_sub(1),
            _ => {}
        }
        self.expire(now_ns, &mut actions);
        match event {
            Event::Tick => {}
            Event::Cancel => self.cancel(now_ns, &mut actions),
            Event::Failed(reason) => self.fail(now_ns, reason, &mut actions),
            Event::MetadataReady => {
                if self.state == State::PrefetchInit {
                    self.enter(State::PrefetchInProgress, now_ns, self.deadlines.transfer_ns);
                    self.is_request_sent = true;
                    actions.push(Action::SendRequest);
                }
            }
            Event::Accepted { present } => self.accepted(now_ns, present, &mut actions),
            Event::Missing { present } => self.missing(now_ns, present, &mut actions),
            Event::Announced { first_block, blocks } => {
                self.announced(now_ns, first_block, blocks, &mut actions);
            }
            Event::PartAnnounced { blocks } => {
                let is_expected = blocks > 0 && self.state == State::PrefetchInProgress;
                self.receiving += u32::from(is_expected);
                actions.push(if is_expected { Action::Receive } else { Action::Discard });
            }
            Event::Received { blocks: _, verdict } => {
                if self.state == State::PrefetchInProgress {
                    match verdict {
                        Ok(()) => {
                            self.committing += 1;
                            actions.push(Action::Commit);
                        }
                        Err(reason) => self.fail(now_ns, reason, &mut actions),
                    }
                }
            }
            Event::Committed { blocks } => {
                let moved = self.progress.moved.saturating_add(blocks);
                if self.state == State::PrefetchInProgress
                    && moved > self.progress.present.unwrap_or(0)
                {
                    // More than was agreed on.
                    self.fail(now_ns, FailReason::Protocol, &mut actions);
                }
                if self.state == State::PrefetchInProgress {
                    self.progress.moved = moved;
                    if Some(self.progress.moved) == self.progress.present {
                        let outcome = Outcome::Delivered { blocks: self.progress.moved };
                        self.outcome = Some(outcome);
                        let wait_ns = self.deadlines.abandonment_ns;
                        self.enter(State::PrefetchComplete, now_ns, wait_ns);
                    }
                }
            }
        }
        if self.is_over() {
            self.deadline_ns = u64::MAX;
        }
        actions
    }

    /// The host takes delivered blocks; `false` when there are none, or no more.
    pub fn claim(&mut self, now_ns: u64) -> bool {
        if self.state == State::PrefetchComplete {
            // In any other state time may ask for something, which is not for the claimer to do.
            self.handle(now_ns, Event::Tick);
        }
        if self.state != State::PrefetchComplete {
            return false;
        }
        self.end_lease(now_ns, LeaseEnd::Claimed);
        true
    }

    /// The thread that drove this prefetch is at its end, and its transport is gone: nothing is in
    /// flight any more.
    pub fn shut_down(&mut self, now_ns: u64, reason: FailReason) {
        self.fail(now_ns, reason, &mut Vec::new());
        self.receiving = 0;
        self.committing = 0;
        if self.is_over() {
            self.deadline_ns = u64::MAX;
        }
    }

    fn accepted(&mut self, now_ns: u64, present: u32, actions: &mut Vec<Action>) {
        if self.state != State::PrefetchInProgress {
            return;
        }
        let requested = self.progress.requested;
        let enough = match self.policy {
            Policy::Strict => present == requested,
            Policy::BestEffort => (1..=requested).contains(&present),
        };
        if self.progress.present.is_some() || !enough {
            self.fail(now_ns, FailReason::Protocol, actions);
        } else {
            self.progress.present = Some(present);
        }
    }

    fn missing(&mut self, now_ns: u64, present: u32, actions: &mut Vec<Action>) {
        if self.state != State::PrefetchInProgress {
            return;
        }
        if self.progress.present.is_some() || present >= self.progress.requested {
            self.fail(now_ns, FailReason::Protocol, actions);
        } else {
            self.progress.present = Some(present);
            self.end(now_ns, Outcome::ContentMiss);
        }
    }

    fn announced(&mut self, now_ns: u64, first_block: u32, blocks: u32, actions: &mut Vec<Action>) {
        let end = first_block.checked_add(blocks);
        let is_expected = self.progress.present.is_some_and(|present| {
            blocks > 0 && first_block == self.next_block && end.is_some_and(|end| end <= present)
        });
        if self.state != State::PrefetchInProgress {
            actions.push(Action::Discard);
        } else if is_expected {
            self.next_block += blocks;
            self.receiving += 1;
            actions.push(Action::Receive);
        } else {
            actions.push(Action::Discard);
            self.fail(now_ns, FailReason::Protocol, actions);
        }
    }

    fn cancel(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        match self.state {
            State::PrefetchInit | State::PrefetchInProgress => {
                self.tell_source(actions);
                self.end(now_ns, Outcome::Cancelled);
            }
            // Delivered stays delivered; the blocks are just not wanted any more.
            State::PrefetchComplete => self.end_lease(now_ns, LeaseEnd::Released),
            State::ContextInit => {}
        }
    }

    fn fail(&mut self, now_ns: u64, reason: FailReason, actions: &mut Vec<Action>) {
        if self.outcome.is_none() {
            self.tell_source(actions);
            self.end(now_ns, Outcome::Failed(reason));
        }
    }

    fn tell_source(&mut self, actions: &mut Vec<Action>) {
        if self.is_request_sent {
            actions.push(Action::SendCancel);
        }
    }

    fn end(&mut self, now_ns: u64, outcome: Outcome) {
        debug_assert!(self.outcome.is_none(), "one outcome for each prefetch");
        self.outcome = Some(outcome);
        self.enter(State::ContextInit, now_ns, QUIESCE_GRACE_NS);
    }

    fn end_lease(&mut self, now_ns: u64, end: LeaseEnd) {
        self.lease_end = Some(end);
        self.enter(State::ContextInit, now_ns, u64::MAX);
    }

    fn expire(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        if now_ns < self.deadline_ns {
            return;
        }
        match self.state {
            State::PrefetchInit => self.fail(now_ns, FailReason::MetadataTimeout, actions),
            State::PrefetchInProgress => self.fail(now_ns, FailReason::TransferTimeout, actions),
            State::PrefetchComplete => self.end_lease(now_ns, LeaseEnd::Abandoned),
            State::ContextInit => {
                self.deadline_ns = u64::MAX;
                if self.receiving > 0 {
                    actions.push(Action::Disconnect);
                }
            }
        }
    }

    fn enter(&mut self, state: State, now_ns: u64, lasts_ns: u64) {
        let spent_ns = now_ns.saturating_sub(self.entered_ns);
        if let Some(index) = self.state.timed_index() {
            self.progress.spent_ns[index] = spent_ns;
        }
        self.trace.enter(AttemptState::ALL[state as usize], now_ns);
        self.state = state;
        self.entered_ns = now_ns;
        self.deadline_ns = now_ns.saturating_add(lasts_ns);
    }
}
