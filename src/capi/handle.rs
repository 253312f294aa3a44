//! Opaque handles: what a C pointer to each object owns, declared once.
//!
//! A handle type implements exactly one of [`Owned`] (created, then destroyed by one caller) and
//! [`Shared`] (retained and released by many); freeing one kind as the other does not compile.

use crate::sync::Arc;

use super::status::kvh_status::{self, KVH_ERR_INVALID_ARGUMENT};

/// A C handle type and the Rust object behind it.
pub(crate) trait Handle {
    /// What the pointer points at.
    type Object;
}

/// A handle with one owner.
pub(crate) trait Owned: Handle {}

/// A handle with a reference count.
pub(crate) trait Shared: Handle {}

/// Gives an object to the C caller, which must destroy it once.
pub(crate) fn give<H: Owned>(object: H::Object) -> *mut H {
    Box::into_raw(Box::new(object)).cast()
}

/// Takes an owned object back from the C caller; `None` for NULL.
///
/// # Safety
/// `handle` is NULL or came from [`give`] of the same type, and is never used again.
pub(crate) unsafe fn take<H: Owned>(handle: *mut H) -> Option<Box<H::Object>> {
    // SAFETY: a pointer from `give` is a leaked Box of this type, and this is its only return.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast()) })
}

/// Gives one reference to the C caller, which must release it once.
pub(crate) fn share<H: Shared>(object: Arc<H::Object>) -> *mut H {
    Arc::into_raw(object).cast_mut().cast()
}

/// Adds one reference.
///
/// # Safety
/// `handle` came from [`share`] of the same type and is still held.
pub(crate) unsafe fn retain<H: Shared>(handle: *const H) {
    // SAFETY: the pointer came from Arc::into_raw of this type and its count is at least one.
    unsafe { Arc::increment_strong_count(handle.cast::<H::Object>()) };
}

/// Drops one reference; NULL is fine.
///
/// # Safety
/// `handle` is NULL or came from [`share`] of the same type, and this reference is never used again.
pub(crate) unsafe fn release<H: Shared>(handle: *mut H) {
    if !handle.is_null() {
        // SAFETY: the pointer came from Arc::into_raw of this type and holds one reference.
        drop(unsafe { Arc::from_raw(handle.cast::<H::Object>()) });
    }
}

/// A further reference to a shared object, for the library itself.
///
/// # Safety
/// `handle` came from [`share`] of the same type and is held during the call.
pub(crate) unsafe fn cloned<H: Shared>(handle: *const H) -> Arc<H::Object> {
    // SAFETY: as for `retain`; the count added here is owned by the returned Arc.
    unsafe {
        retain(handle);
        Arc::from_raw(handle.cast::<H::Object>())
    }
}

/// Looks at the object behind a handle; NULL is `KVH_ERR_INVALID_ARGUMENT`.
///
/// # Safety
/// `handle` is NULL or came from [`give`] or [`share`] of the same type and stays alive for `'a`.
pub(crate) unsafe fn get<'a, H: Handle>(handle: *const H) -> Result<&'a H::Object, kvh_status> {
    // SAFETY: not NULL and alive by the caller's promise; objects behind handles are only ever
    // borrowed shared, except through `get_mut`.
    unsafe { handle.cast::<H::Object>().as_ref() }.ok_or(KVH_ERR_INVALID_ARGUMENT)
}

/// Changes the object behind a handle with one owner.
///
/// # Safety
/// As for [`get`], and nobody else uses the handle during the call (its C parameter is not `const`).
pub(crate) unsafe fn get_mut<'a, H: Owned>(
    handle: *mut H,
) -> Result<&'a mut H::Object, kvh_status> {
    // SAFETY: not NULL, alive and used by this call alone, by the caller's promise.
    unsafe { handle.cast::<H::Object>().as_mut() }.ok_or(KVH_ERR_INVALID_ARGUMENT)
}
