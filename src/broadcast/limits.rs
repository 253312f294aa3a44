//! The bounds of everything that the room takes, sends or receives, in one place.

/// Requests in one batch.
pub const MAX_REQUESTS: usize = 16_384;

/// Bytes of one request's body.
pub const MAX_BODY_BYTES: usize = 1 << 30;

/// Canonical bytes of one snapshot; admission lets no longer ones in.
pub const MAX_SNAPSHOT_BYTES: usize = crate::hint::limits::CANONICAL_MAX_BYTES;

/// Bytes of one serialised plan.
pub const MAX_PLAN_BYTES: usize = crate::plan::Plan::MAX_BYTES;

/// Bytes of all that follows a header.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 32;

/// Parts from this size on are sent from where they lie, where a message costs little more than its
/// bytes: copying so much costs more than looking after another part.
pub const LARGE_FROM_BYTES_STREAM: usize = 256;

/// The same between threads.
pub const LOCAL_LARGE_FROM_BYTES: usize = 4 * 1024;

/// The same where each message costs a message.
pub const LARGE_FROM_BYTES_MESSAGES: usize = 128 * 1024;

/// Parts of one batch that are sent from where they lie: a snapshot and a body for each request.
pub const MAX_LARGE_PARTS: usize = 2 * MAX_REQUESTS;

/// Bytes of one message, where the host does not choose.
pub const DEFAULT_CHUNK_BYTES: usize = 4 << 20;

/// Bounds of the host's choice; message-passing libraries count in 32 bits.
pub const CHUNK_BYTES_RANGE: std::ops::RangeInclusive<usize> = 4096..=1 << 30;

/// Bytes of a round's first message, where the host does not choose: the header alone.
pub const DEFAULT_FIRST_MESSAGE_BYTES: usize = super::header::HEADER_BYTES;

/// Bounds of the host's choice.
pub const FIRST_MESSAGE_BYTES_RANGE: std::ops::RangeInclusive<usize> =
    DEFAULT_FIRST_MESSAGE_BYTES..=1 << 20;

/// Ranks of one communicator.
pub const MAX_RANKS: u32 = 65_536;

/// Ranks of one in-process group.
pub const MAX_LOCAL_RANKS: u32 = 256;

/// Values in one agreement.
pub const MAX_AGREED_VALUES: usize = 65_536;
