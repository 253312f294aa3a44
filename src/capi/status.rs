//! Status codes: what a call came to, grouped by what the caller has to rebuild.

use crate::poison::Poisoned;

/// What a call came to. 0 is success, a positive status is an answer and no error, a negative one
/// says by its range what has to be mended:
/// -1..-19 the caller's arguments, -20..-39 limits and resources, -40..-59 one peer,
/// -60..-79 the communicator, -80..-99 a fault of the library.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kvh_status {
    /// Done.
    KVH_OK = 0,
    /// Not finished; ask again.
    KVH_IN_PROGRESS = 1,
    /// What was asked for is not there.
    KVH_NOT_FOUND = 2,
    /// In use now; take another or try later.
    KVH_BUSY = 3,
    /// An argument is NULL, out of range, or contradicts another.
    KVH_ERR_INVALID_ARGUMENT = -1,
    /// The call does not fit the object's present state.
    KVH_ERR_STATE = -2,
    /// struct_size is not one this library knows, or an unknown field is set.
    KVH_ERR_ABI = -3,
    /// The buffer is too small; the length output says how much is needed.
    KVH_ERR_TOO_SMALL = -4,
    /// The context was created before a fork and this is the child.
    KVH_ERR_FORKED = -5,
    /// The request body is not one strict JSON object, or is over the cap.
    KVH_ERR_BODY = -6,
    /// A configured limit was reached.
    KVH_ERR_LIMIT = -20,
    /// Memory could not be had.
    KVH_ERR_NO_MEMORY = -21,
    /// This build or this machine cannot do it.
    KVH_ERR_UNSUPPORTED = -22,
    /// A peer cannot be reached or went away.
    KVH_ERR_PEER = -40,
    /// The source that a request requires did not deliver: that request cannot go on.
    KVH_ERR_REQUIRED_SOURCE = -41,
    /// The communicator failed, or its ranks do not agree; build a new one.
    KVH_ERR_COMMUNICATOR = -60,
    /// The library was at fault; the object can only be destroyed.
    KVH_ERR_POISONED = -80,
}

/// The type of every status result: a value of `enum kvh_status`.
pub type kvh_status_t = i32;

/// What an exported function's body returns; `Err` holds positive statuses too.
pub(crate) type CallResult = Result<(), kvh_status>;

impl From<Poisoned> for kvh_status {
    fn from(_: Poisoned) -> Self {
        kvh_status::KVH_ERR_POISONED
    }
}

impl From<std::collections::TryReserveError> for kvh_status {
    fn from(_: std::collections::TryReserveError) -> Self {
        kvh_status::KVH_ERR_NO_MEMORY
    }
}

const ALL: [(kvh_status, &std::ffi::CStr); 17] = {
    use kvh_status::*;
    [
        (KVH_OK, c"ok"),
        (KVH_IN_PROGRESS, c"in progress: ask again"),
        (KVH_NOT_FOUND, c"not found"),
        (KVH_BUSY, c"busy: in use now"),
        (KVH_ERR_INVALID_ARGUMENT, c"invalid argument: NULL, out of range, or contradictory"),
        (KVH_ERR_STATE, c"the call does not fit the object's state"),
        (KVH_ERR_ABI, c"struct_size unknown, or a field unknown to this library is set"),
        (KVH_ERR_TOO_SMALL, c"buffer too small: the length output says what is needed"),
        (KVH_ERR_FORKED, c"context used in a child process after fork: create one there"),
        (KVH_ERR_BODY, c"request body is not one strict object, or over the cap"),
        (KVH_ERR_LIMIT, c"a limit was reached"),
        (KVH_ERR_NO_MEMORY, c"out of memory"),
        (KVH_ERR_UNSUPPORTED, c"not supported by this build or machine"),
        (KVH_ERR_PEER, c"a peer cannot be reached or went away"),
        (KVH_ERR_REQUIRED_SOURCE, c"a required source did not deliver: fail the request"),
        (KVH_ERR_COMMUNICATOR, c"communicator failed: build a new one"),
        (KVH_ERR_POISONED, c"fault inside the library: destroy the object"),
    ]
};

/// Static English text for `status`, never NULL; "unknown status" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvh_status_string(status: kvh_status_t) -> *const std::ffi::c_char {
    ALL.iter()
        .find(|(known, _)| *known as i32 == status)
        .map_or(c"unknown status", |(_, text)| text)
        .as_ptr()
}
