//! Why a call of this room was refused. A refused call changed nothing.

/// What was wrong; never says what the tokens were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReuseError {
    /// Tokens per block are 0 or too many.
    #[error("tokens per block must be 1 to 65536, found {found}")]
    TokensPerBlock {
        /// What was asked for.
        found: usize,
    },
    /// One extra id for each token, or none at all.
    #[error(
        "expected {expected} extra ids (one a token if the sequence uses them), found {found}"
    )]
    ExtraIds {
        /// How many would fit.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// A multimodal run is empty, outside the tokens it came with, or overlaps another.
    #[error("multimodal run {index} is empty, not within the tokens it came with, or overlaps")]
    MultimodalRun {
        /// Its place in the call's list.
        index: usize,
    },
    /// An adapter digest without an adapter.
    #[error("an adapter digest needs a LoRA id")]
    DigestWithoutLora,
    /// A bound of this room was reached.
    #[error("{what}: at most {limit}")]
    Limit {
        /// What there was too much of.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// The tree has no such window.
    #[error("the tree has no window of {window} tokens")]
    UnknownWindow {
        /// What was asked for.
        window: i32,
    },
    /// The tree's list of windows holds a negative one or one twice.
    #[error("windows must be distinct and not negative, found {window}")]
    BadWindow {
        /// The one at fault.
        window: i32,
    },
    /// The sequence is cut into blocks of another size than the tree's.
    #[error("the tree has {tree} tokens per block, the sequence {sequence}")]
    OtherBlockSize {
        /// The tree's.
        tree: usize,
        /// The sequence's.
        sequence: usize,
    },
    /// A range is empty or reaches beyond the sequence.
    #[error("blocks {first}..{first}+{count} are empty or not within the sequence's {blocks}")]
    BadRange {
        /// First block.
        first: usize,
        /// How many.
        count: usize,
        /// How many the sequence has.
        blocks: usize,
    },
    /// A negative block id where a block is needed.
    #[error("the full window holds no placeholders: block ids must not be negative")]
    Placeholder,
    /// The pin is not live: released before, or of another tree.
    #[error("no live pin of this tree has this id; it was released before, or is another tree's")]
    NotLive,
    /// A priority beyond the highest.
    #[error("priorities are 0 to 100, found {found}")]
    Priority {
        /// The one at fault.
        found: u32,
    },
    /// Retention ranges overlap, are empty, or follow one without an end.
    #[error("retention range {index} is empty, overlaps one before it, or follows an open one")]
    RetentionRange {
        /// Its place in the list.
        index: usize,
    },
    /// Owner mode: not enough blocks are free. What was matched is not counted among the free ones.
    #[error(
        "window {window} needs {needed} free blocks in {memory} memory and has {free}; release some"
    )]
    NoFreeBlock {
        /// The window at fault.
        window: i32,
        /// Which memory.
        memory: &'static str,
        /// How many were needed.
        needed: usize,
        /// How many there were.
        free: usize,
    },
    /// Owner mode: no block has this id.
    #[error("window {window} has blocks 0 to {blocks} (exclusive), found {id}")]
    UnknownBlock {
        /// The window.
        window: i32,
        /// What was asked for.
        id: i32,
        /// How many there are.
        blocks: usize,
    },
    /// Owner mode: the block is not in the state that the call needs.
    #[error("block {id} of window {window} {found}")]
    BlockState {
        /// The window.
        window: i32,
        /// The block.
        id: i32,
        /// What it is instead.
        found: &'static str,
    },
    /// The request was finished before.
    #[error("the request holds no blocks any more: it was finished before")]
    Finished,
    /// Fewer or more tokens than the call needs.
    #[error("expected {expected} tokens or {bound}, found {found}")]
    TokenCount {
        /// The bound.
        expected: usize,
        /// On which side of it.
        bound: &'static str,
        /// How many there were.
        found: usize,
    },
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
}

impl From<std::collections::TryReserveError> for ReuseError {
    fn from(_: std::collections::TryReserveError) -> Self {
        Self::NoMemory
    }
}
