//! The communicator port: how bytes reach the other ranks of this worker.
//!
//! Calls block, and are collective or matched one to one, as in MPI: what each rank calls, in which
//! order and with how many bytes, is decided by `round` and `agreement` alone. The *first stage* are
//! the ranks 0..n that share one broadcast; n is fixed when the communicator is made.
//!
//! Guards: an error, but for [`CommunicatorError::Unusable`], is final. Nobody knows which messages of
//! a failed communicator arrived, so its user makes no further calls. Dropping one makes no call that
//! others would have to answer.

use bytes::Bytes;

use super::header::WIRE_VERSION;
use super::limits::LARGE_FROM_BYTES_MESSAGES;

/// Why a communicator failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommunicatorError {
    /// Another rank is gone and what it owed will not come.
    #[error("rank {0} is gone: destroy the communicator and make a new one with the ranks left")]
    RankGone(u32),
    /// The other ranks did not answer by the deadline.
    #[error("expected the other ranks within {waited_ns} ns, they did not come: make a new communicator")]
    Deadline {
        /// How long the call waited.
        waited_ns: u64,
    },
    /// The ranks called different things, or with different sizes.
    #[error("ranks out of step: expected {expected} bytes from rank {from}, found {found}")]
    OutOfStep {
        /// Who sent.
        from: u32,
        /// What this rank waits for.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// The message-passing library reported an error.
    #[error("{call} failed: {reason}")]
    Library {
        /// Which call.
        call: &'static str,
        /// The library's own text.
        reason: String,
    },
    /// The message-passing library cannot be called now, from here. Nothing was called.
    #[error("{0}")]
    Unusable(&'static str),
    /// Memory for a message inside the process could not be had.
    #[error("memory for a message of {0} bytes could not be had")]
    NoMemory(usize),
}

/// One rank's access to the others. Used by one thread at a time.
pub trait Communicator: Send {
    /// This rank, 0..size.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn size(&self) -> u32;

    /// Asked before each collective call: whether it may be made now, from here.
    fn check_usable(&self) -> Result<(), CommunicatorError> {
        Ok(())
    }

    /// Parts from this size on are better sent from where they lie than copied together.
    fn large_from_bytes(&self) -> usize {
        LARGE_FROM_BYTES_MESSAGES
    }

    /// Whether broadcasts are one stream of bytes: then the others need not take them in the pieces in
    /// which rank 0 gives them.
    fn is_stream(&self) -> bool {
        false
    }

    /// Rank 0 only, after the last broadcast of a round: nothing given is kept back any longer.
    fn flush(&mut self) -> Result<(), CommunicatorError> {
        Ok(())
    }

    /// Rank 0 only: gives `bytes` to every other rank of the first stage.
    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError>;

    /// The other ranks of the first stage: fills `buffer` with what rank 0 gives.
    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError>;

    /// Gives `bytes` to rank `to`, which receives as many.
    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError>;

    /// As [`send`](Communicator::send), but may return before `bytes` are sent. At most one round's
    /// are under way: [`finish_sends`](Communicator::finish_sends) comes first.
    fn start_send(&mut self, to: u32, bytes: Bytes) -> Result<(), CommunicatorError> {
        self.send(to, &bytes)
    }

    /// Waits until nothing that was started is under way.
    fn finish_sends(&mut self) -> Result<(), CommunicatorError> {
        Ok(())
    }

    /// Fills `buffer` with what rank `from` sends.
    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError>;

    /// All ranks, with equally many values: each becomes the smallest of all ranks'.
    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError>;

    /// All ranks: begins what [`min_reduce`](Communicator::min_reduce) does at once. One at a time;
    /// broadcasts and sends may come in between.
    fn begin_min_reduce(&mut self, values: &[u64]) -> Result<(), CommunicatorError>;

    /// Fills `values`, as many as were begun with, and tells that they are there; does not wait.
    fn poll_min_reduce(&mut self, values: &mut [u64]) -> Result<bool, CommunicatorError>;

    /// This rank makes no further calls. Tells others that wait for it, where that needs no call
    /// of theirs.
    fn abandon(&mut self);

    /// All ranks: gives back what the communicator holds. No call follows.
    fn close(&mut self) -> Result<(), CommunicatorError>;
}

/// Values that all ranks compare when a communicator is made, and those of the exchange itself. Fixed
/// for all releases, so that ranks of different ones find out here and nowhere later.
const COMPARED: usize = 16;

/// All ranks: whether every rank runs the same wire version and gave the same `numbers`. A rank with
/// bad input gives none, and then they are not equal.
pub fn all_equal(
    communicator: &mut dyn Communicator,
    numbers: Option<&[u64; 10]>,
) -> Result<bool, CommunicatorError> {
    all_equal_in_version(communicator, WIRE_VERSION, numbers)
}

/// As [`all_equal`], for a rank that runs `wire_version`.
pub fn all_equal_in_version(
    communicator: &mut dyn Communicator,
    wire_version: u16,
    numbers: Option<&[u64; 10]>,
) -> Result<bool, CommunicatorError> {
    let mut values = [0; COMPARED];
    values[0] = u64::from(wire_version);
    if let Some(numbers) = numbers {
        values[1] = 1;
        values[2..2 + numbers.len()].copy_from_slice(numbers);
    }
    // The smallest complement belongs to the largest value: equal only if all are.
    let mut both = [0; 2 * COMPARED];
    both[..COMPARED].copy_from_slice(&values);
    both[COMPARED..].copy_from_slice(&values.map(|value| !value));
    communicator.min_reduce(&mut both)?;
    let (smallest, complements) = both.split_at(COMPARED);
    Ok(smallest[1] == 1 && smallest.iter().zip(complements).all(|(least, most)| *least == !*most))
}
