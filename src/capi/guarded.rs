//! An object that belongs to no context: a value and its own poison mark.

use super::guard;
use super::handle::{self, Handle, Owned};
use super::status::{kvh_status, kvh_status_t, CallResult};
use crate::poison::Poison;

/// What the handle of an object without a context points at.
#[derive(Debug)]
pub struct Guarded<T> {
    pub(crate) poison: Poison,
    pub(crate) value: T,
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { poison: Poison::default(), value }
    }

    /// The value, for a call on another object, whose guard covers both.
    pub(crate) fn usable(&self) -> Result<&T, kvh_status> {
        if self.poison.is_set() {
            return Err(kvh_status::KVH_ERR_POISONED);
        }
        Ok(&self.value)
    }
}

/// The value of an object that is used in a call on another one, whose guard covers both.
///
/// # Safety
/// `handle` is NULL or stays live for `'a`.
pub(crate) unsafe fn get<'a, T: 'a, H: Handle<Object = Guarded<T>>>(
    handle: *const H,
) -> Result<&'a T, kvh_status> {
    // SAFETY: the caller's promise.
    unsafe { handle::get(handle) }?.usable()
}

/// A call that reads the object; a panic in it poisons the object.
///
/// # Safety
/// `handle` is NULL or live.
pub(crate) unsafe fn read<T, H: Handle<Object = Guarded<T>>>(
    handle: *const H,
    body: impl FnOnce(&T) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(handle) } {
        Ok(object) => guard::with_object(&object.poison, || body(&object.value)),
        Err(status) => status as kvh_status_t,
    }
}

/// A call that changes the object; a panic in it poisons the object.
///
/// # Safety
/// `handle` is NULL or live, and nobody else uses it during the call.
pub(crate) unsafe fn change<T, H: Owned<Object = Guarded<T>>>(
    handle: *mut H,
    body: impl FnOnce(&mut T) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get_mut(handle) } {
        Ok(Guarded { poison, value }) => guard::with_object(&*poison, || body(value)),
        Err(status) => status as kvh_status_t,
    }
}
