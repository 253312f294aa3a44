//! `kvh_snapshot_t`: an admitted hint, immutable and reference-counted.

use super::buffer::kvh_buffer_t;
use super::guard;
use super::handle::{self, Handle, Shared};
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use super::types::{kvh_bytes_t, kvh_str_t};
use super::{args, error::kvh_error_t};
use crate::hint::snapshot::SnapshotData;
use crate::hint::{Snapshot, SnapshotError};
use crate::poison::Poisonable;

/// A hint that was admitted. Immutable; shared by reference count; every call on it may be made
/// from any thread. It stays valid after its context is destroyed.
pub struct kvh_snapshot_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_snapshot_t {
    type Object = SnapshotData;
}
impl Shared for kvh_snapshot_t {}

/// One action of a snapshot: its strings unescaped, its payload and itself as canonical JSON. Valid
/// as long as the snapshot is held. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_action_t {
    /// action_id
    pub id: kvh_str_t,
    /// action_type
    pub r#type: kvh_str_t,
    /// action_version
    pub version: kvh_str_t,
    /// The payload object.
    pub payload: kvh_bytes_t,
    /// The whole action object.
    pub json: kvh_bytes_t,
}

/// Adds a reference and returns the same snapshot; NULL for NULL. One atomic operation.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_retain(
    snapshot: *const kvh_snapshot_t,
) -> *mut kvh_snapshot_t {
    if !snapshot.is_null() {
        // SAFETY: not NULL, and held by the caller's promise.
        unsafe { handle::retain(snapshot) };
    }
    snapshot.cast_mut()
}

/// Drops a reference; the last one frees the snapshot. NULL is fine. One atomic operation.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held, and this reference is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_release(snapshot: *mut kvh_snapshot_t) {
    // SAFETY: the caller's promise. Freeing a snapshot runs no code that could panic.
    unsafe { handle::release(snapshot) };
}

/// The envelope in canonical form: JSON without blanks, with the least escaping. (NULL, 0) for NULL.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_json(snapshot: *const kvh_snapshot_t) -> kvh_bytes_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(snapshot) } {
        Ok(snapshot) => kvh_bytes_t::borrow(snapshot.json()),
        Err(_) => kvh_bytes_t::EMPTY,
    }
}

/// The envelope's protocol_version. (NULL, 0) for NULL.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_protocol_version(
    snapshot: *const kvh_snapshot_t,
) -> kvh_str_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(snapshot) } {
        Ok(snapshot) => kvh_str_t::borrow(snapshot.protocol_version()),
        Err(_) => kvh_str_t::EMPTY,
    }
}

/// The envelope's message_id, unescaped; it may hold NUL characters. (NULL, 0) for NULL.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_message_id(snapshot: *const kvh_snapshot_t) -> kvh_str_t {
    // SAFETY: the caller's promise.
    match unsafe { handle::get(snapshot) } {
        Ok(snapshot) => kvh_str_t::borrow_bytes(snapshot.message_id_bytes()),
        Err(_) => kvh_str_t::EMPTY,
    }
}

/// How many actions there are; 0 for NULL.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_action_count(snapshot: *const kvh_snapshot_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { handle::get(snapshot) }.map_or(0, SnapshotData::action_count)
}

/// The action at index, from 0 on. KVH_ERR_INVALID_ARGUMENT: there are not so many actions.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held; `action_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_action(
    snapshot: *const kvh_snapshot_t,
    index: usize,
    action_out: *mut kvh_action_t,
) -> kvh_status_t {
    // Without the guard, which would cost more than the answer: nothing in here can panic.
    let answer = || {
        // SAFETY: the caller's promise.
        let snapshot = unsafe { handle::get(snapshot) }?;
        if snapshot.poison().is_set() {
            return Err(KVH_ERR_POISONED);
        }
        // SAFETY: the caller's promise.
        let action_out = unsafe { args::out(action_out) }?;
        let action = snapshot.action_bytes(index).ok_or(KVH_ERR_INVALID_ARGUMENT)?;
        action_out.write(kvh_action_t {
            id: kvh_str_t::borrow_bytes(action.id),
            r#type: kvh_str_t::borrow_bytes(action.action_type),
            version: kvh_str_t::borrow_bytes(action.version),
            payload: kvh_bytes_t::borrow(action.payload),
            json: kvh_bytes_t::borrow(action.json),
        });
        Ok(())
    };
    answer().map_or_else(|status| status as kvh_status_t, |()| KVH_OK as kvh_status_t)
}

/// A new snapshot of the same envelope with the action at index alone, everything else and the
/// order of members as they were. Release it with kvh_snapshot_release. KVH_ERR_INVALID_ARGUMENT:
/// there are not so many actions.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held; `envelope_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_one_action(
    snapshot: *const kvh_snapshot_t,
    index: usize,
    envelope_out: *mut *mut kvh_snapshot_t,
) -> kvh_status_t {
    let call = |snapshot: &SnapshotData| {
        // SAFETY: the caller's promise.
        let envelope_out = unsafe { args::out(envelope_out) }?;
        let envelope = snapshot.one_action(index)?.ok_or(KVH_ERR_INVALID_ARGUMENT)?;
        envelope_out.write(handle::share(envelope));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_object(snapshot, call) }
}

/// The envelope as MessagePack: the same maps and arrays in the same order, integers in their
/// smallest form, floats as f64. Release the buffer with kvh_buffer_release.
///
/// # Safety
/// `snapshot` is NULL or a snapshot that is held; `msgpack_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_msgpack(
    snapshot: *const kvh_snapshot_t,
    msgpack_out: *mut *mut kvh_buffer_t,
) -> kvh_status_t {
    let call = |snapshot: &SnapshotData| {
        // SAFETY: the caller's promise.
        let msgpack_out = unsafe { args::out(msgpack_out) }?;
        msgpack_out.write(handle::give(snapshot.to_msgpack()?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_object(snapshot, call) }
}

/// Rebuilds a snapshot from the bytes of kvh_snapshot_json, for example in another process that
/// trusts the sender. Not judged for trust, not counted. KVH_ERR_INVALID_ARGUMENT: the bytes are
/// not the canonical form of an envelope; error_out, unless NULL, then says so in words.
///
/// # Safety
/// `json` points at `json_len` readable bytes or is NULL with 0; `snapshot_out` is writable;
/// `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_snapshot_from_json(
    json: *const u8,
    json_len: usize,
    snapshot_out: *mut *mut kvh_snapshot_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let (json, snapshot_out) =
            unsafe { (args::slice(json, json_len)?, args::out(snapshot_out)?) };
        let snapshot = Snapshot::from_canonical(json).map_err(|error| {
            // SAFETY: the caller's promise.
            unsafe { super::error::explain(error_out, &error) };
            match error {
                SnapshotError::Damaged => KVH_ERR_INVALID_ARGUMENT,
                SnapshotError::NoMemory(_) => KVH_ERR_NO_MEMORY,
            }
        })?;
        snapshot_out.write(handle::share(snapshot.into_shared()));
        Ok(())
    })
}
