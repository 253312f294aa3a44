//! How a communicator is used; the same on all ranks.

use super::limits::{DEFAULT_CHUNK_BYTES, DEFAULT_FIRST_MESSAGE_BYTES};
use super::topology::Topology;

/// What the ranks that do not decide get to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Snapshots and plans.
    Full = 1,
    /// Plans only: rank 0 decided.
    Decided = 2,
}

/// How hints travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintForm {
    /// As their canonical text.
    Text = 1,
    /// With block hashes as eight bytes each: fewer bytes, more work at both ends.
    Packed = 2,
}

/// How a rank sends on to the next pipeline stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineSends {
    /// A call returns when the messages may be forgotten.
    Synchronous = 1,
    /// A call returns before; the next round's waits for them first.
    Asynchronous = 2,
}

/// What all ranks must have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Who gets a message from whom.
    pub topology: Topology,
    /// What travels.
    pub mode: Mode,
    /// How hints travel.
    pub hint_form: HintForm,
    /// How the pipeline's stages get it.
    pub pipeline_sends: PipelineSends,
    /// Bytes of the longest message; in [`CHUNK_BYTES_RANGE`](super::limits::CHUNK_BYTES_RANGE).
    pub chunk_bytes: usize,
    /// Bytes of a round's first message: the header and the beginning of what follows; in
    /// [`FIRST_MESSAGE_BYTES_RANGE`](super::limits::FIRST_MESSAGE_BYTES_RANGE).
    pub first_message_bytes: usize,
}

impl Settings {
    /// The full mode, and the defaults of everything else.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            mode: Mode::Full,
            hint_form: HintForm::Text,
            pipeline_sends: PipelineSends::Synchronous,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            first_message_bytes: DEFAULT_FIRST_MESSAGE_BYTES,
        }
    }

    /// As numbers, to compare with those of other ranks.
    pub fn numbers(&self) -> [u64; 8] {
        let [tensor, pipeline, context] = self.topology.sizes().map(u64::from);
        [
            tensor,
            pipeline,
            context,
            self.mode as u64,
            self.hint_form as u64,
            self.pipeline_sends as u64,
            self.chunk_bytes as u64,
            self.first_message_bytes as u64,
        ]
    }
}
