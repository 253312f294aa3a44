//! `kvh_envelope_builder_t`: envelopes made by routers and application code.

use super::args;
use super::error::{self, kvh_error_t};
use super::guard;
use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Owned};
use super::snapshot::kvh_snapshot_t;
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use super::types::{kvh_bytes_t, kvh_str_t};
use crate::hint::builder::{ActionParts, BuildError, EnvelopeBuilder, FetchParts, Rule};

/// An envelope of version 0.1 in the making. Each part is checked when it is added, by the rules of
/// admission, and refused with its place and the rule; a refused part changes nothing.
pub struct kvh_envelope_builder_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_envelope_builder_t {
    type Object = Guarded<EnvelopeBuilder>;
}
impl Owned for kvh_envelope_builder_t {}

/// The status of an error, which is told in words to a caller that asked for it.
///
/// # Safety
/// `error_out` is NULL or writable.
unsafe fn explained(error_out: *mut *mut kvh_error_t, error: BuildError) -> kvh_status {
    // SAFETY: the caller's promise.
    unsafe { error::explain(error_out, &error) };
    match error {
        BuildError::Refused { rule: Rule::TooLong, .. } => KVH_ERR_LIMIT,
        BuildError::Refused { rule: Rule::NoAction, .. } => KVH_ERR_STATE,
        BuildError::Refused { .. } => KVH_ERR_INVALID_ARGUMENT,
        BuildError::NoMemory(_) => KVH_ERR_NO_MEMORY,
    }
}

/// The bytes of a text argument; whether they are UTF-8 the builder says, with the place.
///
/// # Safety
/// As for [`args::slice`].
unsafe fn text<'a>(text: kvh_str_t) -> Result<&'a [u8], kvh_status> {
    // SAFETY: the caller's promise.
    unsafe { args::slice(text.data.cast::<u8>(), text.len) }
}

/// Runs `change` on the builder and explains its error.
///
/// # Safety
/// `builder` is NULL or a live builder that nobody else uses; `error_out` is NULL or writable.
unsafe fn change(
    builder: *mut kvh_envelope_builder_t,
    error_out: *mut *mut kvh_error_t,
    change: impl FnOnce(&mut EnvelopeBuilder) -> Result<Result<(), BuildError>, kvh_status>,
) -> kvh_status_t {
    let body = |builder: &mut EnvelopeBuilder| -> CallResult {
        // SAFETY: the caller's promise.
        change(builder)?.map_err(|error| unsafe { explained(error_out, error) })
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(builder, body) }
}

/// Begins an envelope without actions. Destroy it with kvh_envelope_builder_destroy.
/// KVH_ERR_INVALID_ARGUMENT: message_id is not UTF-8. KVH_ERR_LIMIT: it is too long. error_out,
/// unless NULL, says so in words.
///
/// # Safety
/// `message_id` is readable; `builder_out` is writable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_create(
    message_id: kvh_str_t,
    builder_out: *mut *mut kvh_envelope_builder_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let (message_id, builder_out) = unsafe { (text(message_id)?, args::out(builder_out)?) };
        // Keys the table that finds repeated member names.
        let seed = getrandom::u64().map_err(|_| KVH_ERR_UNSUPPORTED)?;
        let builder = EnvelopeBuilder::new(message_id, seed)
            // SAFETY: the caller's promise.
            .map_err(|error| unsafe { explained(error_out, error) })?;
        builder_out.write(handle::give(Guarded::new(builder)));
        Ok(())
    })
}

/// Adds an action; payload is a JSON object. KVH_ERR_INVALID_ARGUMENT: a part breaks a rule;
/// KVH_ERR_LIMIT: the envelope would be too long. error_out, unless NULL, names the part and the
/// rule, and the builder is as it was.
///
/// # Safety
/// `builder` is a live builder that nobody else uses during the call; the strings and bytes are
/// readable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_add_action(
    builder: *mut kvh_envelope_builder_t,
    action_id: kvh_str_t,
    action_type: kvh_str_t,
    action_version: kvh_str_t,
    payload: kvh_bytes_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let add = |builder: &mut EnvelopeBuilder| {
        // SAFETY: the caller's promise.
        let parts = unsafe {
            ActionParts {
                id: text(action_id)?,
                action_type: text(action_type)?,
                version: text(action_version)?,
                payload: args::bytes(payload)?,
            }
        };
        Ok(builder.add_action(parts))
    };
    // SAFETY: the caller's promise.
    unsafe { change(builder, error_out, add) }
}

/// Adds an action "kv.fetch" that names hash_count block hashes and the control endpoint of the
/// worker that holds the blocks. Errors as for kvh_envelope_builder_add_action.
///
/// # Safety
/// `builder` is a live builder that nobody else uses during the call; the strings are readable;
/// `hashes` points at `hash_count` values or is NULL with 0; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_add_fetch(
    builder: *mut kvh_envelope_builder_t,
    action_id: kvh_str_t,
    action_version: kvh_str_t,
    source_control_endpoint: kvh_str_t,
    hashes: *const u64,
    hash_count: usize,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let add = |builder: &mut EnvelopeBuilder| {
        // SAFETY: the caller's promise.
        let parts = unsafe {
            FetchParts {
                id: text(action_id)?,
                version: text(action_version)?,
                endpoint: text(source_control_endpoint)?,
                hashes: args::slice(hashes, hash_count)?,
            }
        };
        Ok(builder.add_fetch(parts))
    };
    // SAFETY: the caller's promise.
    unsafe { change(builder, error_out, add) }
}

/// Adds a member of extra metadata to the envelope; value is any JSON value. Errors as for
/// kvh_envelope_builder_add_action.
///
/// # Safety
/// `builder` is a live builder that nobody else uses during the call; `name` and `value` are
/// readable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_add_extra(
    builder: *mut kvh_envelope_builder_t,
    name: kvh_str_t,
    value: kvh_bytes_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let add = |builder: &mut EnvelopeBuilder| {
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (text(name)?, args::bytes(value)?) };
        Ok(builder.add_extra(name, value))
    };
    // SAFETY: the caller's promise.
    unsafe { change(builder, error_out, add) }
}

/// Adds a member of extra metadata to the action that was added last; KVH_ERR_STATE: there is none.
/// Other errors as for kvh_envelope_builder_add_action.
///
/// # Safety
/// As for kvh_envelope_builder_add_extra.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_add_action_extra(
    builder: *mut kvh_envelope_builder_t,
    name: kvh_str_t,
    value: kvh_bytes_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let add = |builder: &mut EnvelopeBuilder| {
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (text(name)?, args::bytes(value)?) };
        Ok(builder.add_action_extra(name, value))
    };
    // SAFETY: the caller's promise.
    unsafe { change(builder, error_out, add) }
}

/// The envelope as a snapshot, to be released with kvh_snapshot_release; its bytes are those of
/// kvh_snapshot_json. The builder stays as it is and can go on. Nothing is counted.
///
/// # Safety
/// `builder` is a live builder that nobody else uses during the call; `snapshot_out` is writable;
/// `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_finish(
    builder: *mut kvh_envelope_builder_t,
    snapshot_out: *mut *mut kvh_snapshot_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let finish = |builder: &mut EnvelopeBuilder| {
        // SAFETY: the caller's promise.
        let snapshot_out = unsafe { args::out(snapshot_out) }?;
        Ok(builder.finish().map(|snapshot| {
            snapshot_out.write(handle::share(snapshot.into_shared()));
        }))
    };
    // SAFETY: the caller's promise.
    unsafe { change(builder, error_out, finish) }
}

/// Destroys the builder. NULL is fine. Snapshots made with it stay as they are.
///
/// # Safety
/// `builder` is NULL or a live builder, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_envelope_builder_destroy(builder: *mut kvh_envelope_builder_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(builder) }));
}
