//! `kvh_error_t`: the text of an error, for calls that are rare enough to explain themselves.

use super::guard;
use super::handle::{self, Handle, Owned};
use super::types::kvh_str_t;

/// What went wrong, in words: what was expected, what was found, what to do. Owned by the caller.
/// Never holds contents of a hint.
pub struct kvh_error_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_error_t {
    type Object = String;
}
impl Owned for kvh_error_t {}

/// Hands `message` to a caller that asked for it (`error_out` not NULL).
///
/// # Safety
/// `error_out` is NULL or points at a writable pointer.
pub(crate) unsafe fn explain(error_out: *mut *mut kvh_error_t, message: impl std::fmt::Display) {
    if !error_out.is_null() {
        // SAFETY: not NULL; the caller promises that it is writable.
        unsafe { error_out.write(handle::give(message.to_string())) };
    }
}

/// The error's text, valid until it is destroyed. (NULL, 0) for NULL.
///
/// # Safety
/// `error` is NULL or a live error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_error_message(error: *const kvh_error_t) -> kvh_str_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(error) } {
        Ok(message) => kvh_str_t::borrow(message),
        Err(_) => kvh_str_t::EMPTY,
    }
}

/// Destroys the error. NULL is fine.
///
/// # Safety
/// `error` is NULL or a live error, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_error_destroy(error: *mut kvh_error_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(error) }));
}
