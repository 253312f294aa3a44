//! The communicator port: how bytes reach the other ranks of this worker.
//!
//! Calls block, and are collective or matched one to one, as in MPI: what each rank calls, in which
//! order and with how many bytes, is decided by `round` and `agreement` alone. The *first stage* are
//! the ranks 0..n that share one broadcast; n is fixed when the communicator is made.
//!
//! Guards: an error, but for [`CommunicatorError::Unusable`], is final. Nobody knows which messages of a failed communicator arrived, so its
//! user makes no further calls. Dropping one makes no call that others would have to answer.

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

    /// Rank 0 only: gives `bytes` to every other rank of the first stage.
    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError>;

    /// The other ranks of the first stage: fills `buffer` with what rank 0 gives.
    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError>;

    /// Gives `bytes` to rank `to`, which receives as many.
    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError>;

    /// Fills `buffer` with what rank `from` sends.
    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError>;

    /// All ranks, with equally many values: each becomes the smallest of all ranks'.
    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError>;

    /// This rank makes no further calls. Tells others that wait for it, where that needs no call
    /// of theirs.
    fn abandon(&mut self);

    /// All ranks: gives back what the communicator holds. No call follows.
    fn close(&mut self) -> Result<(), CommunicatorError>;
}

/// All ranks: whether every rank gave the same `values` (at most 16).
pub fn all_equal(
    communicator: &mut dyn Communicator,
    values: &[u64],
) -> Result<bool, CommunicatorError> {
    // The smallest complement belongs to the largest value: equal only if all are.
    let mut reduced = [u64::MAX; 32];
    let both = &mut reduced[..values.len() * 2];
    for (index, value) in values.iter().enumerate() {
        both[index * 2] = *value;
        both[index * 2 + 1] = !*value;
    }
    communicator.min_reduce(both)?;
    Ok(both.chunks_exact(2).all(|pair| pair[0] == !pair[1]))
}
