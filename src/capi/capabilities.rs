//! `kvh_capabilities_t`: what each family of backends supports.

use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Owned};
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use super::types::kvh_str_t;
use super::{args, guard};
use crate::plan::Capabilities;

/// A capability set: which versions of which actions each family of backends supports. Build it
/// once; keep it unchanged while requests are decided with it.
pub struct kvh_capabilities_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_capabilities_t {
    type Object = Guarded<Capabilities>;
}
impl Owned for kvh_capabilities_t {}

/// Creates an empty set: nothing is supported. Destroy it with kvh_capabilities_destroy.
///
/// # Safety
/// `capabilities_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_capabilities_create(
    capabilities_out: *mut *mut kvh_capabilities_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let capabilities_out = unsafe { args::out(capabilities_out) }?;
        capabilities_out.write(handle::give(Guarded::new(Capabilities::new())));
        Ok(())
    })
}

/// Says that family supports this version of this action. Strings are kept as they are, byte for
/// byte; saying it twice changes nothing. KVH_ERR_INVALID_ARGUMENT: not UTF-8. KVH_ERR_LIMIT: more
/// than 4,096 entries, or a string of more than 128 bytes; the set stays as it was.
///
/// # Safety
/// `capabilities` is a live set that nobody else uses during the call; the strings are readable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_capabilities_add(
    capabilities: *mut kvh_capabilities_t,
    family: kvh_str_t,
    action_type: kvh_str_t,
    action_version: kvh_str_t,
) -> kvh_status_t {
    let body = |set: &mut Capabilities| {
        // SAFETY: the caller's promise.
        let [family, action_type, action_version] =
            unsafe { [args::text(family)?, args::text(action_type)?, args::text(action_version)?] };
        set.add(family, action_type, action_version).map_err(|_| KVH_ERR_LIMIT)
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(capabilities, body) }
}

/// Destroys the set. NULL is fine. Candidates collected with it stay as they are.
///
/// # Safety
/// `capabilities` is NULL or a live set, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_capabilities_destroy(capabilities: *mut kvh_capabilities_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(capabilities) }));
}
