//! `kvh_loopback_t`: where transceivers of one process meet.

use std::sync::Arc;

use super::args;
use super::context::kvh_context_t;
use super::guard;
use super::handle::{self, Handle, Shared};
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use crate::transfer::loopback::LoopbackHub;

/// A hub for transceivers of this process (KVH_TRANSPORT_LOOPBACK): those made with the same hub
/// reach each other, whatever their contexts. For tests and for workers that share a process.
pub struct kvh_loopback_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_loopback_t {
    type Object = LoopbackHub;
}
// Shared inside the library only: transceivers keep their hub alive.
impl Shared for kvh_loopback_t {}

/// Creates a hub. Destroy it with kvh_loopback_destroy.
///
/// # Safety
/// `context` is a live context; `loopback_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_loopback_create(
    context: *const kvh_context_t,
    loopback_out: *mut *mut kvh_loopback_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guard::on_context(context, |_| {
            let loopback_out = args::out(loopback_out)?;
            let id = getrandom::u64().map_err(|_| KVH_ERR_UNSUPPORTED)?;
            loopback_out.write(handle::share(LoopbackHub::new(id)));
            Ok(())
        })
    }
}

/// Destroys the hub. NULL is fine. Transceivers made with it go on.
///
/// # Safety
/// `loopback` is NULL or a live hub, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_loopback_destroy(loopback: *mut kvh_loopback_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| unsafe { handle::release(loopback) });
}

/// The hub behind a handle, for a transceiver.
///
/// # Safety
/// `loopback` is a live hub.
pub(crate) unsafe fn hub(loopback: *const kvh_loopback_t) -> Arc<LoopbackHub> {
    // SAFETY: the caller's promise.
    unsafe { handle::cloned(loopback) }
}
