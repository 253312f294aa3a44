//! One attempt to fetch blocks: what the host's handle and the library's thread share.
//!
//! The thread changes the state machine; the host looks at it, claims, and lets go. The lock is held
//! for a few instructions only, never across a copy, so a poll is cheap.
//!
//! Guards: after [`Attempt::let_go`] returns, nothing writes to the host's blocks any more.

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::prefetch::{Outcome, Prefetch, Progress, State};
use super::sources::Wanted;
use super::state::State as WorkerState;
use crate::plan::Endpoint;
use crate::reuse::{Name, Policy};

/// Where the source's state comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// It is fetched from a listed endpoint.
    Endpoint(Endpoint),
    /// The host has it.
    State(std::sync::Arc<WorkerState>),
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
    shared: Mutex<Shared>,
    copy_ended: Condvar,
}

/// What changes, under the attempt's lock.
#[derive(Debug)]
pub struct Shared {
    /// The life cycle.
    pub prefetch: Prefetch,
    /// Bytes verified and put in place.
    pub bytes: u64,
    /// See [`Report::foreign_hashes`].
    pub foreign_hashes: u32,
    /// Whether the blocks may be lent to other attempts again.
    pub is_given_back: bool,
    /// Whether the host asked for an end; asking twice changes nothing.
    pub is_cancel_asked: bool,
    /// Whether the host dropped its handle: its blocks must not be written any more.
    pub is_let_go: bool,
}

impl Attempt {
    /// An attempt that has begun.
    pub fn new(order: Order, prefetch: Prefetch) -> Self {
        Self {
            order,
            shared: Mutex::new(Shared {
                prefetch,
                bytes: 0,
                foreign_hashes: 0,
                is_given_back: false,
                is_cancel_asked: false,
                is_let_go: false,
            }),
            copy_ended: Condvar::new(),
        }
    }

    /// For the thread: what changes.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock()
    }

    /// For the thread: a copy into the host's blocks ended.
    pub(super) fn tell_copy_ended(&self) {
        self.copy_ended.notify_all();
    }

    /// State and outcome now.
    pub fn poll(&self, now_ns: u64) -> (State, Option<Outcome>) {
        let mut shared = self.shared.lock();
        if shared.prefetch.state() == State::PrefetchComplete {
            // Time alone ends this state, and asks for nothing to be done.
            shared.prefetch.handle(now_ns, super::prefetch::Event::Tick);
        }
        (shared.prefetch.state(), shared.prefetch.outcome())
    }

    /// Whether no access to the host's blocks is possible any more, and other attempts may have
    /// them.
    pub fn is_quiesced(&self) -> bool {
        let shared = self.shared.lock();
        shared.prefetch.is_quiesced() && shared.is_given_back
    }

    /// Takes the delivered blocks; how many, or `None` when there are none to take.
    pub fn claim(&self, now_ns: u64) -> Option<u32> {
        let mut shared = self.shared.lock();
        match shared.prefetch.outcome() {
            Some(Outcome::Delivered { blocks }) => shared.prefetch.claim(now_ns).then_some(blocks),
            _ => None,
        }
    }

    /// The host wants no more; whether the thread has to be told.
    pub fn ask_cancel(&self, now_ns: u64) -> bool {
        let mut shared = self.shared.lock();
        if shared.prefetch.outcome().is_some() {
            // Only delivered blocks can be given up now, which needs nothing to be done.
            shared.prefetch.handle(now_ns, super::prefetch::Event::Cancel);
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
            bytes: shared.bytes,
            foreign_hashes: shared.foreign_hashes,
            hint_check,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
