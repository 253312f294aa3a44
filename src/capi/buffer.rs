//! `kvh_buffer_t`: bytes that the library made for the caller.

use super::guard;
use super::handle::{self, Handle, Owned};
use super::types::kvh_bytes_t;

/// Bytes made by the library, owned by the caller until released. Immutable.
pub struct kvh_buffer_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_buffer_t {
    type Object = Vec<u8>;
}
impl Owned for kvh_buffer_t {}

/// The buffer's bytes, valid until it is released. (NULL, 0) for NULL.
///
/// # Safety
/// `buffer` is NULL or a live buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_buffer_bytes(buffer: *const kvh_buffer_t) -> kvh_bytes_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(buffer) } {
        Ok(bytes) => kvh_bytes_t::borrow(bytes),
        Err(_) => kvh_bytes_t::EMPTY,
    }
}

/// Gives the buffer back. NULL is fine.
///
/// # Safety
/// `buffer` is NULL or a live buffer, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_buffer_release(buffer: *mut kvh_buffer_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(buffer) }));
}
