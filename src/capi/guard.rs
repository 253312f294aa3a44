//! What every exported function that returns a status runs inside of: no panic leaves it, and no
//! call is served by a poisoned object or in a forked child.

use super::context::{kvh_context_t, Context};
use super::handle::{self, Handle};
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use crate::poison::{Poison, Poisonable};

fn to_status(outcome: Result<CallResult, crate::poison::Poisoned>) -> kvh_status_t {
    let status = match outcome {
        Ok(Ok(())) => KVH_OK,
        Ok(Err(status)) => status,
        Err(poisoned) => kvh_status::from(poisoned),
    };
    status as kvh_status_t
}

/// A call on a context, or on an object that belongs to one: a panic poisons the context.
pub fn with_context(context: &Context, body: impl FnOnce() -> CallResult) -> kvh_status_t {
    if context.is_forked() {
        return KVH_ERR_FORKED as kvh_status_t;
    }
    let outcome = context.poison().catch(body);
    if outcome.is_err() {
        context.tell_poisoned();
    }
    to_status(outcome)
}

/// A call whose first argument is a context handle.
///
/// # Safety
/// `context` is NULL or a live context.
pub unsafe fn on_context(
    context: *const kvh_context_t,
    body: impl FnOnce(&Context) -> CallResult,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(context) } {
        Ok(context) => with_context(context, || body(context)),
        Err(status) => status as kvh_status_t,
    }
}

/// A call that the other ranks of a worker wait for. It takes part on a poisoned context too: `body`
/// is told whether it is one, does what the others need, and the status is `KVH_ERR_POISONED`.
pub fn collective(context: &Context, body: impl FnOnce(bool) -> CallResult) -> kvh_status_t {
    if context.is_forked() {
        return KVH_ERR_FORKED as kvh_status_t;
    }
    let is_poisoned = context.poison().is_set();
    let this_call = Poison::default();
    let outcome = this_call.catch(|| body(is_poisoned));
    if let Some(location) = this_call.location() {
        context.poison().set_at(location.to_owned());
    }
    if context.poison().is_set() {
        context.tell_poisoned();
    }
    if is_poisoned {
        return KVH_ERR_POISONED as kvh_status_t;
    }
    to_status(outcome)
}

/// A call on an object that has no context: a panic poisons that object.
pub fn with_object(object: &impl Poisonable, body: impl FnOnce() -> CallResult) -> kvh_status_t {
    to_status(object.poison().catch(body))
}

/// A call whose first argument is the handle of an object that has no context.
///
/// # Safety
/// `handle` is NULL or a live handle.
pub(crate) unsafe fn on_object<H: Handle>(
    handle: *const H,
    body: impl FnOnce(&H::Object) -> CallResult,
) -> kvh_status_t
where
    H::Object: Poisonable,
{
    // SAFETY: the caller's promise.
    match unsafe { handle::get(handle) } {
        Ok(object) => with_object(object, || body(object)),
        Err(status) => status as kvh_status_t,
    }
}

/// A call that has no object yet: a panic is only reported.
pub fn without_object(body: impl FnOnce() -> CallResult) -> kvh_status_t {
    to_status(Poison::default().catch(body))
}

/// For destroy and release functions, which return nothing and must always work.
pub fn quietly(body: impl FnOnce()) {
    // There is nobody to tell: the object is gone either way.
    let _ = Poison::default().catch(body);
}
