//! `kvh_key_ring_t`: the host's keys for signed hints.

use super::buffer::kvh_buffer_t;
use super::error::{self, kvh_error_t};
use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Shared};
use super::snapshot::kvh_snapshot_t;
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use super::types::kvh_str_t;
use super::{args, args::Params, guard};
use crate::hint::signature::{KeyRing, KeyRingError, Rules, SignError, Signing};
use crate::hint::Snapshot;
use std::sync::Arc;

/// Named keys for signed hints. A context that has a ring trusts a hint over HTTP only if the hint's
/// "auth" is a signature by one of the ring's keys. Every call may be made from any thread, also
/// while hints are judged: add a key before its first signer uses it, remove it when its last hint
/// has expired. Transceivers may have a ring too, with the keys of their peers (peer_keys): a key that
/// is removed begins no more sessions, and those that it began go on. Several contexts and transceivers
/// may share a ring; it is kept as long as one of them is there.
pub struct kvh_key_ring_t {
    _opaque: [u8; 0],
}

/// What the handle points at, and what contexts keep.
pub(crate) type KeyRingObject = Guarded<KeyRing>;

impl Handle for kvh_key_ring_t {
    type Object = KeyRingObject;
}
// Shared inside the library only: contexts keep it alive.
impl Shared for kvh_key_ring_t {}

/// expiry: a hint must say when it expires.
pub const KVH_EXPIRY_REQUIRED: u32 = 0;
/// expiry: a hint that does not say so never expires.
pub const KVH_EXPIRY_OPTIONAL: u32 = 1;

/// What a ring asks of signed hints beyond a good code. Zero fields mean default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_key_ring_params_t {
    /// sizeof(kvh_key_ring_params_t).
    pub struct_size: usize,
    /// The "aud" that hints must name, at most 256 bytes; empty: any or none.
    pub audience: kvh_str_t,
    /// KVH_EXPIRY_*.
    pub expiry: u32,
    /// How often one signed hint is admitted before it expires; 0: any number of times. Needs
    /// KVH_EXPIRY_REQUIRED.
    pub admissions_max: u32,
    /// How many hints are remembered for that, at most 16,777,216; 0: 65,536. When so many have not
    /// expired, further ones are not trusted.
    pub replay_entries_max: usize,
}

// SAFETY: repr(C), struct_size first, only integers and a struct of a raw pointer and an integer.
unsafe impl Params for kvh_key_ring_params_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// What a signature says.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_signing_params_t {
    /// sizeof(kvh_signing_params_t).
    pub struct_size: usize,
    /// The key to sign with.
    pub key_id: kvh_str_t,
    /// When the hint expires, seconds since 1970-01-01 UTC; 0: never, if the ring allows it.
    pub expiry_unix_seconds: u64,
    /// For whom the hint is, at most 256 bytes; empty: not said.
    pub audience: kvh_str_t,
    /// What makes two signatures of one envelope differ, at most 256 bytes; empty: not said.
    pub nonce: kvh_str_t,
}

// SAFETY: repr(C), struct_size first, only integers and structs of a raw pointer and an integer.
unsafe impl Params for kvh_signing_params_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

fn status_of(error: &KeyRingError) -> kvh_status {
    match error {
        KeyRingError::Known => KVH_ERR_STATE,
        KeyRingError::TooManyKeys => KVH_ERR_LIMIT,
        KeyRingError::CountsForEver
        | KeyRingError::TooManyEntries { .. }
        | KeyRingError::LongAudience { .. }
        | KeyRingError::KeyId { .. }
        | KeyRingError::Secret { .. } => KVH_ERR_INVALID_ARGUMENT,
    }
}

/// Creates a ring without keys: nothing is trusted. Destroy it with kvh_key_ring_destroy.
/// KVH_ERR_INVALID_ARGUMENT: a value out of range; error_out, unless NULL, then says which.
///
/// # Safety
/// `params` points at a parameter struct; `ring_out` is writable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_key_ring_create(
    params: *const kvh_key_ring_params_t,
    ring_out: *mut *mut kvh_key_ring_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let (params, ring_out) = unsafe { (args::read_params(params)?, args::out(ring_out)?) };
        // SAFETY: the caller's promise.
        let audience = unsafe { args::text(params.audience) }?;
        let rules = Rules {
            audience: (!audience.is_empty()).then(|| audience.to_owned()),
            expiry_is_optional: match params.expiry {
                KVH_EXPIRY_REQUIRED => false,
                KVH_EXPIRY_OPTIONAL => true,
                _ => return Err(KVH_ERR_INVALID_ARGUMENT),
            },
            admissions_max: params.admissions_max,
            replay_entries_max: params.replay_entries_max,
        };
        let ring = KeyRing::new(rules).map_err(|error| {
            // SAFETY: the caller's promise.
            unsafe { error::explain(error_out, &error) };
            status_of(&error)
        })?;
        ring_out.write(handle::share(Arc::new(Guarded::new(ring))));
        Ok(())
    })
}

/// Adds an HMAC-SHA-256 key: an id of 1 to 128 bytes and a secret of 32 to 1,024 bytes, which the
/// ring does not keep. KVH_ERR_STATE: there is a key of that id. KVH_ERR_LIMIT: there are 64 keys.
/// error_out, unless NULL, says what was wrong.
///
/// # Safety
/// `ring` is a live ring; `key_id` and `secret` are readable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_key_ring_add(
    ring: *const kvh_key_ring_t,
    key_id: kvh_str_t,
    secret: super::types::kvh_bytes_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let body = |ring: &KeyRing| {
        // SAFETY: the caller's promise.
        let (key_id, secret) = unsafe { (args::text(key_id)?, args::bytes(secret)?) };
        ring.add(key_id, secret).map_err(|error| {
            // SAFETY: the caller's promise.
            unsafe { error::explain(error_out, &error) };
            status_of(&error)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::read(ring, body) }
}

/// Removes a key; hints signed with it are not trusted any more. KVH_NOT_FOUND: there is none of
/// that id.
///
/// # Safety
/// `ring` is a live ring; `key_id` is readable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_key_ring_remove(
    ring: *const kvh_key_ring_t,
    key_id: kvh_str_t,
) -> kvh_status_t {
    let body = |ring: &KeyRing| {
        // SAFETY: the caller's promise.
        let key_id = unsafe { args::text(key_id) }?;
        if ring.remove(key_id) {
            Ok(())
        } else {
            Err(KVH_NOT_FOUND)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::read(ring, body) }
}

/// Signs an envelope: *json_out gets its canonical JSON with an "auth" at the end, to be sent as it
/// is; release it with kvh_buffer_release. KVH_NOT_FOUND: no such key. KVH_ERR_STATE: the envelope
/// has an "auth". KVH_ERR_LIMIT: longer than 65,536 bytes with it. error_out, unless NULL, says what
/// was wrong.
///
/// # Safety
/// `ring` is a live ring; `envelope` is held; `params` points at a parameter struct whose texts are
/// readable; `json_out` is writable; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_key_ring_sign(
    ring: *const kvh_key_ring_t,
    envelope: *const kvh_snapshot_t,
    params: *const kvh_signing_params_t,
    json_out: *mut *mut kvh_buffer_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let body = |ring: &KeyRing| {
        // SAFETY: the caller's promise.
        let (params, json_out) = unsafe { (args::read_params(params)?, args::out(json_out)?) };
        // SAFETY: the caller's promise.
        let [key_id, audience, nonce] = unsafe {
            [args::text(params.key_id)?, args::text(params.audience)?, args::text(params.nonce)?]
        };
        // SAFETY: the caller's promise.
        let envelope = unsafe {
            handle::get(envelope)?;
            Snapshot::from_shared(handle::cloned(envelope))
        };
        let signing = Signing {
            key_id,
            expiry_unix_seconds: Some(params.expiry_unix_seconds).filter(|seconds| *seconds > 0),
            audience: Some(audience).filter(|text| !text.is_empty()),
            nonce: Some(nonce).filter(|text| !text.is_empty()),
        };
        let json = ring.sign(&envelope, signing).map_err(|error| {
            // SAFETY: the caller's promise.
            unsafe { error::explain(error_out, &error) };
            match error {
                SignError::UnknownKey => KVH_NOT_FOUND,
                SignError::HasAuth => KVH_ERR_STATE,
                SignError::LongText | SignError::NoExpiry => KVH_ERR_INVALID_ARGUMENT,
                SignError::TooLong { .. } => KVH_ERR_LIMIT,
                SignError::NoMemory(_) => KVH_ERR_NO_MEMORY,
            }
        })?;
        json_out.write(handle::give(json));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::read(ring, body) }
}

/// Destroys the ring. NULL is fine. Contexts that have it go on with it.
///
/// # Safety
/// `ring` is NULL or a live ring, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_key_ring_destroy(ring: *mut kvh_key_ring_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| unsafe { handle::release(ring) });
}
