//! Every bound of this room, in one place.

/// Longest raw hint that is parsed at all.
pub const RAW_MAX_BYTES: usize = 1 << 20;

/// Longest canonical form of a hint.
pub const CANONICAL_MAX_BYTES: usize = 65_536;

/// Most containers open at once in a hint.
pub const DEPTH_MAX: usize = 200;

/// Longest HTTP request body that is looked at, unless the context says otherwise.
pub const BODY_MAX_BYTES: usize = 64 << 20;

/// Most memory that a pooled [`super::Scratch`] keeps between two hints.
pub const SCRATCH_MAX_BYTES: usize = 512 << 10;
