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

/// Most keys in a key ring.
pub const KEYS_MAX: usize = 64;

/// Longest name of a key.
pub const KEY_ID_MAX_BYTES: usize = 128;

/// Shortest secret: as long as the code it makes (RFC 7518, 3.2).
pub const SECRET_MIN_BYTES: usize = 32;

/// Longest secret.
pub const SECRET_MAX_BYTES: usize = 1024;

/// Longest audience that a ring names or a signature says.
pub const AUDIENCE_MAX_BYTES: usize = 256;

/// Longest nonce that a signature made here says.
pub const NONCE_MAX_BYTES: usize = 256;

/// Signed hints that a ring remembers unless it says otherwise, if it counts admissions.
pub const REPLAY_ENTRIES_DEFAULT: usize = 65_536;

/// Most signed hints that a ring remembers.
pub const REPLAY_ENTRIES_MAX: usize = 1 << 24;
