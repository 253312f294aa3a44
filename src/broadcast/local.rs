//! Threads of one process as ranks.
//!
//! One lock and one condition cover a group: a slot for one message from each rank to each, and one
//! reduction. Sending waits until the slot is empty, receiving until it is full. The lock is held
//! for moving pointers and adding up reductions, never while bytes are copied.
//!
//! Guards: nobody waits for a rank that cannot come. A [`LocalCommunicator`] that is dropped, by a
//! panic too, wakes all others; so does dropping a [`LocalGroup`] before all ranks were taken. What
//! a rank sent before it went is still delivered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::communicator::{Communicator, CommunicatorError};
use super::limits::{LOCAL_LARGE_FROM_BYTES, MAX_LOCAL_RANKS};
use super::settings::Settings;

/// Ranks that have not all been taken yet.
#[derive(Debug)]
pub struct LocalGroup {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    size: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Settings and deadline of the first rank taken.
    settings: Option<(Settings, Option<Duration>)>,
    places: Vec<Place>,
    /// `messages[to * size + from]`.
    messages: Vec<Option<Arc<[u8]>>>,
    reduction: Reduction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Taken,
    /// Left, or will never be taken.
    Gone,
}

#[derive(Debug, Default)]
struct Reduction {
    /// How many are complete.
    completed: u64,
    arrived: u32,
    values: Vec<u64>,
    result: Vec<u64>,
}

/// Why a rank could not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LocalGroupError {
    /// No such rank.
    #[error("rank {rank} was asked for in a group of {size}")]
    NoSuchRank {
        /// The rank asked for.
        rank: u32,
        /// Ranks in the group.
        size: u32,
    },
    /// Somebody has it, or had it.
    #[error("rank {0} was taken before: each rank is taken once")]
    Taken(u32),
    /// Other settings or another deadline than the ranks taken before have.
    #[error("the ranks of the group taken before have other settings or another deadline: give all the same")]
    OtherSettings,
}

impl LocalGroup {
    /// A group of `size` ranks; `None` if that is 0 or more than [`MAX_LOCAL_RANKS`].
    pub fn new(size: u32) -> Option<Self> {
        if !(1..=MAX_LOCAL_RANKS).contains(&size) {
            return None;
        }
        let state = State {
            settings: None,
            places: vec![Place::Free; size as usize],
            messages: vec![None; (size * size) as usize],
            reduction: Reduction::default(),
        };
        Some(Self {
            shared: Arc::new(Shared { size, state: Mutex::new(state), changed: Condvar::new() }),
        })
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// Takes a rank. Calls of it that wait longer than `deadline` for others fail; with none they
    /// wait as long as the others are there. The same for all ranks, as the settings are.
    pub fn take(
        &self,
        rank: u32,
        settings: Settings,
        deadline: Option<Duration>,
    ) -> Result<LocalCommunicator, LocalGroupError> {
        let shared = &self.shared;
        if rank >= shared.size {
            return Err(LocalGroupError::NoSuchRank { rank, size: shared.size });
        }
        let mut state = shared.state.lock();
        if state.places[rank as usize] != Place::Free {
            return Err(LocalGroupError::Taken(rank));
        }
        if *state.settings.get_or_insert((settings, deadline)) != (settings, deadline) {
            return Err(LocalGroupError::OtherSettings);
        }
        state.places[rank as usize] = Place::Taken;
        drop(state);
        let stage_size = settings.topology.stage_size();
        let shared = Arc::clone(shared);
        Ok(LocalCommunicator { shared, rank, stage_size, deadline, begun: None })
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        for place in state.places.iter_mut().filter(|place| **place == Place::Free) {
            *place = Place::Gone;
        }
        self.shared.changed.notify_all();
    }
}

/// One rank of a [`LocalGroup`].
#[derive(Debug)]
pub struct LocalCommunicator {
    shared: Arc<Shared>,
    rank: u32,
    stage_size: u32,
    deadline: Option<Duration>,
    /// The number of the reduction that was begun.
    begun: Option<u64>,
}

impl Drop for LocalCommunicator {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl LocalCommunicator {
    /// Waits until `ready` finds what it looks for, or says why it will never come.
    fn wait_for<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<Result<T, CommunicatorError>>,
    ) -> Result<T, CommunicatorError> {
        let until = self.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let mut state = self.shared.state.lock();
        loop {
            if let Some(outcome) = ready(&mut state) {
                // Somebody may wait for what was taken or given just now.
                self.shared.changed.notify_all();
                return outcome;
            }
            self.wait(&mut state, until)?;
        }
    }

    fn wait(
        &self,
        state: &mut MutexGuard<'_, State>,
        until: Option<Instant>,
    ) -> Result<(), CommunicatorError> {
        let (Some(until), Some(deadline)) = (until, self.deadline) else {
            self.shared.changed.wait(state);
            return Ok(());
        };
        if Instant::now() >= until {
            let waited_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
            return Err(CommunicatorError::Deadline { waited_ns });
        }
        self.shared.changed.wait_until(state, until);
        Ok(())
    }

    fn slot(&self, to: u32, from: u32) -> usize {
        (to * self.shared.size + from) as usize
    }

    fn give(&self, to: u32, message: Arc<[u8]>) -> Result<(), CommunicatorError> {
        let slot = self.slot(to, self.rank);
        let mut message = Some(message);
        self.wait_for(|state| {
            if state.places[to as usize] == Place::Gone {
                return Some(Err(CommunicatorError::RankGone(to)));
            }
            let is_empty = state.messages[slot].is_none();
            is_empty.then(|| {
                state.messages[slot] = message.take();
                Ok(())
            })
        })
    }
}

fn copied(bytes: &[u8]) -> Result<Arc<[u8]>, CommunicatorError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| CommunicatorError::NoMemory(bytes.len()))?;
    copy.extend_from_slice(bytes);
    Ok(copy.into())
}

impl Communicator for LocalCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.shared.size
    }

    fn large_from_bytes(&self) -> usize {
        // A message is a pointer that changes hands: copying it once is all that it costs.
        LOCAL_LARGE_FROM_BYTES
    }

    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError> {
        let message = copied(bytes)?;
        (1..self.stage_size).try_for_each(|to| self.give(to, Arc::clone(&message)))
    }

    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        self.receive(0, buffer)
    }

    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError> {
        self.give(to, copied(bytes)?)
    }

    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        let slot = self.slot(self.rank, from);
        let message = self.wait_for(|state| match state.messages[slot].take() {
            Some(message) => Some(Ok(message)),
            None if state.places[from as usize] == Place::Gone => {
                Some(Err(CommunicatorError::RankGone(from)))
            }
            None => None,
        })?;
        let (expected, found) = (buffer.len(), message.len());
        if expected != found {
            return Err(CommunicatorError::OutOfStep { from, expected, found });
        }
        buffer.copy_from_slice(&message);
        Ok(())
    }

    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError> {
        self.begin_min_reduce(values)?;
        let number = self.begun.take().unwrap_or_default();
        self.wait_for(|state| state.result_of(number, values))
    }

    fn begin_min_reduce(&mut self, values: &[u64]) -> Result<(), CommunicatorError> {
        let mut state = self.shared.state.lock();
        self.begun = Some(state.reduction.add(self.rank, self.shared.size, values)?);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn poll_min_reduce(&mut self, values: &mut [u64]) -> Result<bool, CommunicatorError> {
        // Nothing begun is nothing to wait for.
        let Some(number) = self.begun else { return Ok(false) };
        let outcome = self.shared.state.lock().result_of(number, values);
        if outcome.is_some() {
            self.begun = None;
        }
        outcome.transpose().map(|done| done.is_some())
    }

    fn abandon(&mut self) {
        self.shared.state.lock().places[self.rank as usize] = Place::Gone;
        self.shared.changed.notify_all();
    }

    fn close(&mut self) -> Result<(), CommunicatorError> {
        // After this nobody waits for anybody: all may go.
        self.min_reduce(&mut [])
    }
}

impl State {
    /// The result of a reduction that this rank added to, once it is there or never will be.
    fn result_of(&self, number: u64, values: &mut [u64]) -> Option<Result<(), CommunicatorError>> {
        if self.reduction.completed > number {
            // Nobody completes another one before this rank adds to it: the result stays.
            values.copy_from_slice(&self.reduction.result);
            return Some(Ok(()));
        }
        let gone = self.places.iter().position(|place| *place == Place::Gone)?;
        Some(Err(CommunicatorError::RankGone(gone as u32)))
    }
}

impl Reduction {
    /// Adds a rank's values to the present reduction and tells its number.
    fn add(&mut self, rank: u32, size: u32, values: &[u64]) -> Result<u64, CommunicatorError> {
        if self.arrived == 0 {
            self.values.clear();
            self.values.extend_from_slice(values);
        }
        if self.values.len() != values.len() {
            return Err(CommunicatorError::OutOfStep {
                from: rank,
                expected: 8 * self.values.len(),
                found: 8 * values.len(),
            });
        }
        for (smallest, value) in self.values.iter_mut().zip(values) {
            *smallest = (*smallest).min(*value);
        }
        let number = self.completed;
        self.arrived += 1;
        if self.arrived == size {
            self.arrived = 0;
            self.completed += 1;
            std::mem::swap(&mut self.values, &mut self.result);
        }
        Ok(number)
    }
}
