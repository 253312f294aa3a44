//! `kvh_context_t`: configuration, metrics and clock that the other objects share.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::args::{self, Params};
use super::fork::ForkMark;
use super::guard;
use super::handle::{self, Handle, Shared};
use super::key_ring::{kvh_key_ring_t, KeyRingObject};
use super::scratch_pool::ScratchPool;
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use crate::clock::{Clock, SystemClock};
use crate::hint::limits::BODY_MAX_BYTES;
use crate::poison::{Poison, Poisonable};
use crate::reuse::WeakReuseTree;
use crate::telemetry::log::{Event, Value};
use crate::telemetry::{nvtx, Metrics};

/// The environment variable that trusts hints over HTTP when it is exactly `1`.
const TRUST_VARIABLE: &str = "TRTLLM_TRUST_KV_HINTS";

/// What the library shares between the objects of one context.
pub struct Context {
    /// Whether hints that came over HTTP are trusted, where there is no key ring.
    pub(crate) http_trusted: bool,
    /// Decides instead of the switch.
    pub(crate) key_ring: Option<Arc<KeyRingObject>>,
    /// Longest HTTP request body that is looked at.
    pub(crate) body_max_bytes: usize,
    pub(crate) scratch: ScratchPool,
    pub(crate) metrics: Arc<Metrics>,
    /// The context's reuse trees, which are asked for their numbers when metrics are.
    pub(crate) trees: Mutex<Vec<WeakReuseTree>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) poison: Arc<Poison>,
    is_poison_told: AtomicBool,
    fork_mark: ForkMark,
}

impl Context {
    pub(crate) fn is_forked(&self) -> bool {
        self.fork_mark.is_forked()
    }

    /// Tells once that the context is poisoned. Whoever notices it first does: a thread of the
    /// library may have been the one at fault.
    pub(super) fn tell_poisoned(&self) {
        if self.is_poison_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let place = self.poison.location().unwrap_or("unknown");
        self.log(Event::Poisoned, &[("place", Value::Place(place))]);
    }

    /// Brings what the metrics say of reuse trees up to date.
    fn hear_trees(&self) {
        let now_ns = self.clock.monotonic_ns();
        let mut oldest_pin_age_ns = 0;
        // Asked outside of the lock, which nobody holds for longer than a moment.
        let tree_at = |index| self.trees.lock().get(index).cloned();
        for tree in (0..).map_while(tree_at) {
            if let Some(tree) = tree.upgrade() {
                tree.set_now(now_ns);
                tree.report();
                oldest_pin_age_ns = oldest_pin_age_ns.max(tree.longest_pin_age_ns(now_ns));
            }
        }
        self.metrics.reuse_oldest_pin_age.set(0, oldest_pin_age_ns);
    }
}

impl Poisonable for Context {
    fn poison(&self) -> &Poison {
        &self.poison
    }
}

/// A library context: configuration, metrics, clock. All calls on it may be made concurrently.
/// Objects created from a context keep what they need of it: it may be destroyed before them.
pub struct kvh_context_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_context_t {
    type Object = Context;
}
// Shared inside the library only: objects made from a context keep it alive.
impl Shared for kvh_context_t {}

/// Reads a clock; called from any thread, must not block and must not throw.
pub type kvh_clock_fn = Option<unsafe extern "C" fn(user_data: *mut c_void) -> u64>;

/// Called exactly once, when the user data is no longer needed; must not throw.
pub type kvh_destroy_fn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// trust_http_hints: on only if the environment variable TRTLLM_TRUST_KV_HINTS is exactly "1" when
/// the context is created.
pub const KVH_TRUST_FROM_ENVIRONMENT: u32 = 0;
/// trust_http_hints: on.
pub const KVH_TRUST_ON: u32 = 1;
/// trust_http_hints: off.
pub const KVH_TRUST_OFF: u32 = 2;

/// How a context behaves. Zero fields mean default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_context_params_t {
    /// sizeof(kvh_context_params_t).
    pub struct_size: usize,
    /// Whether hints that come over HTTP are trusted: KVH_TRUST_*.
    pub trust_http_hints: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Monotonic nanoseconds; give both clocks or none (the system's).
    pub clock_monotonic_ns: kvh_clock_fn,
    /// Seconds since 1970-01-01 UTC.
    pub clock_unix_seconds: kvh_clock_fn,
    /// Passed to both clocks.
    pub clock_user_data: *mut c_void,
    /// Called with clock_user_data exactly once, with clocks or without: when the last object of the
    /// context is gone, or before kvh_context_create returns an error. May be NULL. A struct_size that
    /// ends before or within this field does not name it: then nothing is taken over or called.
    pub clock_destroy: kvh_destroy_fn,
    /// Longest HTTP request body that kvh_admit_body looks at; 0: 64 MiB.
    pub body_max_bytes: usize,
    /// Trusts hints that come over HTTP by their signatures; trust_http_hints says nothing then. The
    /// context holds a reference of its own. NULL: there are no signed hints.
    pub key_ring: *const kvh_key_ring_t,
}

// SAFETY: repr(C), struct_size first, only integers, raw pointers and optional functions.
unsafe impl Params for kvh_context_params_t {
    const MIN_SIZE: usize = offset_of!(Self, key_ring);
}

/// User data of a callback, destroyed exactly once.
pub(super) struct UserData {
    pub(super) pointer: *mut c_void,
    pub(super) destroy: kvh_destroy_fn,
}

// SAFETY: the header asks for callbacks that may be called from any thread.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the caller registered the function for this pointer; this is the only call.
            unsafe { destroy(self.pointer) };
        }
    }
}

/// The host's clocks.
struct HostClock {
    monotonic_ns: unsafe extern "C" fn(*mut c_void) -> u64,
    unix_seconds: unsafe extern "C" fn(*mut c_void) -> u64,
    user_data: UserData,
}

impl Clock for HostClock {
    fn monotonic_ns(&self) -> u64 {
        // SAFETY: the host registered the function with this user data, for any thread.
        unsafe { (self.monotonic_ns)(self.user_data.pointer) }
    }

    fn unix_seconds(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (self.unix_seconds)(self.user_data.pointer) }
    }
}

/// The system's clocks, for a host that brings only user data: it is kept as long.
struct SystemClockWithData {
    clock: SystemClock,
    _user_data: UserData,
}

impl Clock for SystemClockWithData {
    fn monotonic_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    fn unix_seconds(&self) -> u64 {
        self.clock.unix_seconds()
    }
}

fn clock_from(params: &kvh_context_params_t) -> Result<Arc<dyn Clock>, kvh_status> {
    // Taken first, so that the destroy function runs whatever is wrong below.
    let user_data = UserData { pointer: params.clock_user_data, destroy: params.clock_destroy };
    match (params.clock_monotonic_ns, params.clock_unix_seconds) {
        (None, None) => {
            let clock = SystemClock::new();
            Ok(Arc::new(SystemClockWithData { clock, _user_data: user_data }))
        }
        (Some(monotonic_ns), Some(unix_seconds)) => {
            Ok(Arc::new(HostClock { monotonic_ns, unix_seconds, user_data }))
        }
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

fn http_trusted(params: &kvh_context_params_t) -> Result<bool, kvh_status> {
    match params.trust_http_hints {
        KVH_TRUST_FROM_ENVIRONMENT => {
            Ok(std::env::var_os(TRUST_VARIABLE).is_some_and(|value| value == "1"))
        }
        KVH_TRUST_ON => Ok(true),
        KVH_TRUST_OFF => Ok(false),
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

/// Creates a context. NULL params mean all defaults. Destroy it with kvh_context_destroy.
/// KVH_ERR_INVALID_ARGUMENT: an unknown value, or one clock without the other.
///
/// # Safety
/// `params` is NULL or points at a parameter struct whose `key_ring` is NULL or held; `context_out`
/// at a writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_context_create(
    params: *const kvh_context_params_t,
    context_out: *mut *mut kvh_context_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: zero is a valid value of every field.
        let mut chosen: kvh_context_params_t = unsafe { std::mem::zeroed() };
        let mut rest = Ok(());
        if !params.is_null() {
            // SAFETY: the caller's promise.
            (chosen, rest) = unsafe { args::read_known_params(params) }?;
        }
        // Before anything can fail: it owns the user data from here on.
        let clock = clock_from(&chosen);
        rest?;
        // SAFETY: the caller's promise.
        let context_out = unsafe { args::out(context_out) }?;
        if chosen.reserved != 0 {
            return Err(KVH_ERR_ABI);
        }
        let context = Context {
            http_trusted: http_trusted(&chosen)?,
            // SAFETY: the caller's promise that it is NULL or a ring that is held.
            key_ring: (!chosen.key_ring.is_null())
                .then(|| unsafe { handle::cloned(chosen.key_ring) }),
            body_max_bytes: match chosen.body_max_bytes {
                0 => BODY_MAX_BYTES,
                chosen => chosen,
            },
            // Keys the tables that find repeated member names.
            scratch: ScratchPool::new(getrandom::u64().map_err(|_| KVH_ERR_UNSUPPORTED)?),
            metrics: Arc::new(Metrics::new()),
            trees: Mutex::default(),
            clock: clock?,
            poison: Arc::new(Poison::default()),
            is_poison_told: AtomicBool::new(false),
            fork_mark: ForkMark::new(),
        };
        nvtx::attach();
        context_out.write(handle::share(Arc::new(context)));
        Ok(())
    })
}

/// Destroys a context. NULL is fine. Objects created from it stay usable.
///
/// # Safety
/// `context` is NULL or a live context, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_context_destroy(context: *mut kvh_context_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| unsafe { handle::release(context) });
}

/// The context's metrics as Prometheus text exposition, not NUL-terminated. (NULL, 0) asks for the
/// length, which is written in every case but an error of the arguments; numbers may grow between
/// two calls, so bring some room.
///
/// # Safety
/// `context` is a live context; `buf` has room for `buf_len` bytes; `len_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_context_metrics(
    context: *const kvh_context_t,
    buf: *mut c_char,
    buf_len: usize,
    len_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guard::on_context(context, |context| {
            context.hear_trees();
            let text = context.metrics.render()?;
            args::copy_out(text.as_bytes(), buf.cast(), buf_len, len_out)
        })
    }
}

/// Where in the library's source the fault happened that poisoned the context ("file:line", not
/// NUL-terminated); length 0 when it is not poisoned. Works on a poisoned context; for bug reports.
///
/// # Safety
/// `context` is a live context; `buf` has room for `buf_len` bytes; `len_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_context_poison_location(
    context: *const kvh_context_t,
    buf: *mut c_char,
    buf_len: usize,
    len_out: *mut usize,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { handle::get(context) }?;
        let location = context.poison.location().unwrap_or("");
        // SAFETY: the caller's promise.
        unsafe { args::copy_out(location.as_bytes(), buf.cast(), buf_len, len_out) }
    })
}
