//! How a communicator is used; the same on all ranks.

use super::limits::DEFAULT_CHUNK_BYTES;
use super::topology::Topology;

/// What the ranks that do not decide get to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Snapshots and plans.
    Full = 1,
    /// Plans only: rank 0 decided.
    Decided = 2,
}

/// What all ranks must have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Who gets a message from whom.
    pub topology: Topology,
    /// What travels.
    pub mode: Mode,
    /// Bytes of the longest message; in [`CHUNK_BYTES_RANGE`](super::limits::CHUNK_BYTES_RANGE).
    pub chunk_bytes: usize,
}

impl Settings {
    /// The full mode and chunks of the default size.
    pub fn new(topology: Topology) -> Self {
        Self { topology, mode: Mode::Full, chunk_bytes: DEFAULT_CHUNK_BYTES }
    }

    /// As numbers, to compare with those of other ranks.
    pub fn numbers(&self) -> [u64; 5] {
        let [tensor, pipeline, context] = self.topology.sizes().map(u64::from);
        [tensor, pipeline, context, self.mode as u64, self.chunk_bytes as u64]
    }
}
