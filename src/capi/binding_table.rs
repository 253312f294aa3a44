//! `kvh_binding_table_t`: the server's bindings and its registry of endpoints.

use super::error::{explain, kvh_error_t};
use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Owned};
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use super::types::{kvh_bytes_t, kvh_str_t};
use super::{args, args::Params, guard};
use crate::plan::{Addressing, BindingTable, BindingTableError, HashDialect};

/// Server configuration: which bindings may serve which endpoints, actions and namespaces. A family
/// is a kind of backend, and its capabilities say what its code understands (kvh_capabilities_t); a
/// binding is one configured pool of such a backend, and says what that pool may serve. Nothing is
/// allowed that was not said. Build it once; keep it unchanged while requests are decided.
pub struct kvh_binding_table_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_binding_table_t {
    type Object = Guarded<BindingTable>;
}
impl Owned for kvh_binding_table_t {}

/// addressing: blocks are found by their content names; what a hint can ask for.
pub const KVH_ADDRESSING_CONTENT_NAMED: u32 = 1;
/// addressing: blocks are found by the request of a paired worker; never reached by a hint.
pub const KVH_ADDRESSING_REQUEST_PAIRED: u32 = 2;

/// flags of a binding: its plans carry the envelope with the chosen action alone; the file's
/// one_action_envelope.
pub const KVH_BINDING_ONE_ACTION_ENVELOPE: u32 = 1;

/// hash_dialect: JSON integers; a negative one stands for its two's complement. The default.
pub const KVH_HASH_DIALECT_UNSIGNED_NUMBER: u32 = 1;
/// hash_dialect: strings of decimal digits.
pub const KVH_HASH_DIALECT_DECIMAL_STRING: u32 = 2;
/// hash_dialect: strings of at least 16 hexadecimal digits, of which the first 16 count.
pub const KVH_HASH_DIALECT_HEX_DIGITS: u32 = 3;

/// A binding that can do nothing yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_binding_params_t {
    /// sizeof(kvh_binding_params_t).
    pub struct_size: usize,
    /// Its name, 1 to 128 bytes, unique in the table.
    pub id: kvh_str_t,
    /// The family it belongs to, as in the capability set.
    pub family: kvh_str_t,
    /// How it finds blocks: KVH_ADDRESSING_*; must be said.
    pub addressing: u32,
    /// KVH_BINDING_* bits.
    pub flags: u32,
}

// SAFETY: repr(C), struct_size first, only integers and structs of pointers and integers.
unsafe impl Params for kvh_binding_params_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// Says what is wrong to a caller who asked, and gives the status for it.
///
/// # Safety
/// `error_out` is NULL or writable.
unsafe fn refused(error_out: *mut *mut kvh_error_t, error: &BindingTableError) -> kvh_status {
    // SAFETY: the caller's promise.
    unsafe { explain(error_out, error) };
    match error {
        BindingTableError::Full { .. } => KVH_ERR_LIMIT,
        BindingTableError::NoMemory => KVH_ERR_NO_MEMORY,
        _ => KVH_ERR_INVALID_ARGUMENT,
    }
}

/// A text argument; says which one is not UTF-8.
///
/// # Safety
/// `text` is readable; `error_out` is NULL or writable.
unsafe fn text<'a>(
    what: &str,
    text: kvh_str_t,
    error_out: *mut *mut kvh_error_t,
) -> Result<&'a str, kvh_status> {
    // SAFETY: the caller's promise.
    unsafe {
        args::text(text).inspect_err(|_| {
            explain(error_out, format_args!("expected {what} in UTF-8, found other bytes or NULL"));
        })
    }
}

/// Creates an empty table: every hint is refused. Destroy it with kvh_binding_table_destroy.
///
/// # Safety
/// `table_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_create(
    table_out: *mut *mut kvh_binding_table_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let table_out = unsafe { args::out(table_out) }?;
        table_out.write(handle::give(Guarded::new(BindingTable::new())));
        Ok(())
    })
}

/// Creates a table from the bytes of one JSON file:
///
///   {"version": 1, "hash_dialect": "unsigned_number",
///    "bindings": [{"id": "pool-a", "family": "native", "addressing": "content_named",
///                  "actions": [{"type": "kv.fetch", "version": "1.0"}],
///                  "namespaces": ["text"], "namespaces_hex": ["00ff"],
///                  "one_action_envelope": false}],
///    "endpoints": [{"endpoint": "http://10.0.0.7:8000", "bindings": ["pool-a"]}]}
///
/// hash_dialect (or decimal_string, hex_digits), namespaces, namespaces_hex and one_action_envelope
/// may be left out; addressing may be request_paired; unknown members are errors. A file has at most
/// 16 MiB, a string in it at most 8 KiB. On an error there is no table, and *error_out, where error_out is not NULL, gets a text that names the place.
///
/// # Safety
/// `json` points at `json_len` readable bytes or is NULL with 0; `table_out` is writable;
/// `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_load(
    json: *const u8,
    json_len: usize,
    table_out: *mut *mut kvh_binding_table_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    guard::without_object(|| unsafe {
        let json = args::slice(json, json_len)?;
        let table_out = args::out(table_out)?;
        let table = BindingTable::from_json(json).map_err(|error| refused(error_out, &error))?;
        table_out.write(handle::give(Guarded::new(table)));
        Ok(())
    })
}

/// Says how senders write block hashes: KVH_HASH_DIALECT_*. Never guessed.
///
/// # Safety
/// `table` is a live table that nobody else uses during the call.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_set_hash_dialect(
    table: *mut kvh_binding_table_t,
    hash_dialect: u32,
) -> kvh_status_t {
    let body = |table: &mut BindingTable| {
        table.set_hash_dialect(match hash_dialect {
            KVH_HASH_DIALECT_UNSIGNED_NUMBER => HashDialect::UnsignedNumber,
            KVH_HASH_DIALECT_DECIMAL_STRING => HashDialect::DecimalString,
            KVH_HASH_DIALECT_HEX_DIGITS => HashDialect::HexDigits,
            _ => return Err(KVH_ERR_INVALID_ARGUMENT),
        });
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(table, body) }
}

/// Adds a binding without actions, namespaces and endpoints. On an error the table stays as it was,
/// and *error_out, where error_out is not NULL, gets a text; so for the calls below.
///
/// # Safety
/// `table` is a live table that nobody else uses during the call; `binding` points at a parameter
/// struct; `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_add_binding(
    table: *mut kvh_binding_table_t,
    binding: *const kvh_binding_params_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    let body = |table: &mut BindingTable| {
        // SAFETY: the caller's promise.
        let (binding, id, family) = unsafe {
            let binding = args::read_params(binding)?;
            let id = text("a binding id", binding.id, error_out)?;
            (binding, id, text("a family name", binding.family, error_out)?)
        };
        let addressing = match binding.addressing {
            KVH_ADDRESSING_CONTENT_NAMED => Addressing::ContentNamed,
            KVH_ADDRESSING_REQUEST_PAIRED => Addressing::RequestPaired,
            other => {
                let message = format_args!("expected addressing KVH_ADDRESSING_*, found {other}");
                // SAFETY: the caller's promise.
                unsafe { explain(error_out, message) };
                return Err(KVH_ERR_INVALID_ARGUMENT);
            }
        };
        if binding.flags & !KVH_BINDING_ONE_ACTION_ENVELOPE != 0 {
            return Err(KVH_ERR_ABI);
        }
        let wants_envelope = binding.flags & KVH_BINDING_ONE_ACTION_ENVELOPE != 0;
        table
            .add_binding(id, family, addressing, wants_envelope)
            // SAFETY: the caller's promise.
            .map_err(|error| unsafe { refused(error_out, &error) })
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(table, body) }
}

/// Says that this very binding can do this version of this action.
///
/// # Safety
/// `table` is a live table that nobody else uses during the call; the strings are readable;
/// `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_add_action(
    table: *mut kvh_binding_table_t,
    binding_id: kvh_str_t,
    action_type: kvh_str_t,
    action_version: kvh_str_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let body = |table: &mut BindingTable| unsafe {
        let binding_id = text("a binding id", binding_id, error_out)?;
        let action_type = text("an action type", action_type, error_out)?;
        let action_version = text("an action version", action_version, error_out)?;
        table
            .add_action(binding_id, action_type, action_version)
            .map_err(|error| refused(error_out, &error))
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(table, body) }
}

/// Lets the binding serve requests of a namespace: bytes of the host's choice, at most 1,024, the
/// same that the request's profile brings.
///
/// # Safety
/// `table` is a live table that nobody else uses during the call; the strings are readable;
/// `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_authorise_namespace(
    table: *mut kvh_binding_table_t,
    binding_id: kvh_str_t,
    namespace_bytes: kvh_bytes_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let body = |table: &mut BindingTable| unsafe {
        let binding_id = text("a binding id", binding_id, error_out)?;
        let namespace = args::bytes(namespace_bytes)?;
        table.authorise_namespace(binding_id, namespace).map_err(|error| refused(error_out, &error))
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(table, body) }
}

/// Lists an endpoint for a binding: http://, https:// or tcp://host:port, in any spelling. This
/// means trusting its content for the namespaces that the binding serves.
///
/// # Safety
/// `table` is a live table that nobody else uses during the call; the strings are readable;
/// `error_out` is NULL or writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_allow_endpoint(
    table: *mut kvh_binding_table_t,
    endpoint: kvh_str_t,
    binding_id: kvh_str_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let body = |table: &mut BindingTable| unsafe {
        let endpoint = text("an endpoint", endpoint, error_out)?;
        let binding_id = text("a binding id", binding_id, error_out)?;
        table.allow_endpoint(endpoint, binding_id).map_err(|error| refused(error_out, &error))
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(table, body) }
}

/// Destroys the table. NULL is fine. Plans made with it stay as they are.
///
/// # Safety
/// `table` is NULL or a live table, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_binding_table_destroy(table: *mut kvh_binding_table_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(table) }));
}
