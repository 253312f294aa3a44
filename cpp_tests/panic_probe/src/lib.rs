//! The whole library, exported again, plus `kvh_probe_panic`: a call that panics inside the guard.
//!
//! A shared library of its own, so that the product carries no branch for tests.

use kvhints::capi::context::kvh_context_t;
use kvhints::capi::guard;
use kvhints::capi::status::kvh_status_t;

/// Panics in a call on `context`, as a fault of the library would.
///
/// # Safety
/// `context` is a live context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_probe_panic(context: *const kvh_context_t) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { guard::on_context(context, |_| panic!("the probe's secret message")) }
}
