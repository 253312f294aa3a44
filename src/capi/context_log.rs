//! `kvh_context_set_log`: where the host takes the library's log.

use std::ffi::c_void;
use std::sync::Arc;

use super::context::{kvh_context_t, kvh_destroy_fn, Context, UserData};
use super::guard;
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use super::types::kvh_str_t;
use crate::telemetry::log::{Event, Level, Record, Sink, Value};

/// level of a log record: a fault of the library, or a broadcast that failed.
pub const KVH_LOG_ERROR: u32 = 1;
/// level of a log record: something was lost that would have been of use; requests go on.
pub const KVH_LOG_WARNING: u32 = 2;
/// level of a log record: what operators may want to know of normal work.
pub const KVH_LOG_INFO: u32 = 3;
/// level of a log record: what became of each request.
pub const KVH_LOG_DEBUG: u32 = 4;

/// One line of the log. Strings live during the call only. New members are added at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_log_record_t {
    /// sizeof(kvh_log_record_t) of the library: members beyond it are not there.
    pub struct_size: usize,
    /// KVH_LOG_*.
    pub level: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// The event's stable name, such as "prefetch_failed".
    pub event: kvh_str_t,
    /// What it means, for people; the same for each record of an event.
    pub message: kvh_str_t,
    /// The event's numbers and words, as one JSON object. Nothing of a hint's contents is in it.
    pub fields: kvh_str_t,
    /// Records of the same event that were left out since the last one, so that nobody can flood
    /// the log.
    pub left_out: u64,
    /// When, on the context's monotonic clock.
    pub time_ns: u64,
}

/// Takes one record; called from any thread, several at once, without a lock of the library. Must
/// not throw, and must not wait: requests and transfers wait for it meanwhile.
pub type kvh_log_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, record: *const kvh_log_record_t)>;

/// The host's function.
struct HostSink {
    log: unsafe extern "C" fn(*mut c_void, *const kvh_log_record_t),
    user_data: UserData,
}

impl Sink for HostSink {
    fn write(&self, record: &Record<'_>) {
        let record = kvh_log_record_t {
            struct_size: size_of::<kvh_log_record_t>(),
            level: record.level as u32,
            reserved: 0,
            event: kvh_str_t::borrow(record.event),
            message: kvh_str_t::borrow(record.message),
            fields: kvh_str_t::borrow(record.fields),
            left_out: record.left_out,
            time_ns: record.time_ns,
        };
        // SAFETY: the host registered the function with this user data, for any thread; the record
        // and its strings live during the call.
        unsafe { (self.log)(self.user_data.pointer, &raw const record) };
    }
}

/// Sends the context's log to `log`: records up to `level` (KVH_LOG_*), each event at most ten times
/// a second. Once for each context, before it is used. destroy is called with user_data exactly
/// once: when the last object of the context is gone, or before this returns an error; both may
/// be NULL. KVH_ERR_STATE: there is a log already. KVH_ERR_INVALID_ARGUMENT: no log, or
/// no such level.
///
/// # Safety
/// `context` is a live context; `log` and `destroy` may be called with `user_data` as said.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_context_set_log(
    context: *const kvh_context_t,
    level: u32,
    log: kvh_log_fn,
    user_data: *mut c_void,
    destroy: kvh_destroy_fn,
) -> kvh_status_t {
    // Taken first, so that the destroy function runs whatever is wrong below.
    let user_data = UserData { pointer: user_data, destroy };
    // SAFETY: the caller's promise.
    unsafe {
        guard::on_context(context, move |context| {
            let log = log.ok_or(KVH_ERR_INVALID_ARGUMENT)?;
            let level = match level {
                KVH_LOG_ERROR => Level::Error,
                KVH_LOG_WARNING => Level::Warning,
                KVH_LOG_INFO => Level::Info,
                KVH_LOG_DEBUG => Level::Debug,
                _ => return Err(KVH_ERR_INVALID_ARGUMENT),
            };
            let sink = Box::new(HostSink { log, user_data });
            let clock = Arc::clone(&context.clock);
            context.metrics.log.set_sink(level, clock, sink).map_err(|_| KVH_ERR_STATE)
        })
    }
}

impl Context {
    /// Tells of an event.
    pub(super) fn log(&self, event: Event, fields: &[(&'static str, Value<'_>)]) {
        self.metrics.log.write(event, fields);
    }
}
