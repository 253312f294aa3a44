//! What UCX's callbacks leave behind while a worker makes progress.
//!
//! Callbacks only check, copy and note down; everything else happens after UCX has returned. All
//! of them run inside calls that the transport itself makes, on its thread.
//!
//! Guards: a panic never unwinds into UCX (it becomes a [`Mailbox::fault`]); lengths a peer
//! announces are checked before anything is allocated.
//! Never does: call UCX, but to free a finished request.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use ucx_sys::{ucp_am_recv_param_t, ucp_conn_request_h, ucp_ep_h, ucs_status_t};

use super::context::Context;
use super::frame::{Header, Kind};
use super::neighbour::Place;
use super::operation::Operation;
use crate::transfer::transport::MAX_MESSAGE_BYTES;

/// A payload that arrived.
pub(super) enum Payload {
    /// Copied, because UCX did not leave it with us.
    Owned(Vec<u8>),
    /// Left with us by UCX: whole data, or an offer to fetch it. Must be received or released.
    Descriptor { data: *mut c_void, is_offer: bool },
    /// Dropped: longer than its kind may be, or no memory for it.
    Refused,
    /// Lying in the sender's memory, told by the message of that number.
    Placed { sequence: u64, place: Place },
}

impl Payload {
    /// Whether its bytes are still with the sender.
    pub fn is_offer(&self) -> bool {
        matches!(self, Self::Descriptor { is_offer: true, .. } | Self::Placed { .. })
    }
}

/// A message that arrived.
pub(super) struct Arrival {
    /// The endpoint that leads to its sender.
    pub endpoint: ucp_ep_h,
    pub header: Header,
    pub payload: Payload,
    pub len: usize,
}

/// See the module.
pub(super) struct Mailbox {
    pub arrivals: RefCell<Vec<Arrival>>,
    /// Endpoints that broke.
    pub failures: RefCell<Vec<(ucp_ep_h, ucs_status_t)>>,
    /// Peers that want to connect: each is to be accepted or rejected.
    pub callers: RefCell<Vec<ucp_conn_request_h>>,
    /// Operations that ended.
    pub completions: RefCell<Vec<Operation>>,
    /// Operations that UCX has.
    pub outstanding: RefCell<HashSet<*mut Operation>>,
    /// A callback panicked.
    pub fault: Cell<bool>,
    context: Arc<Context>,
}

impl Mailbox {
    pub fn new(context: Arc<Context>) -> Box<Self> {
        Box::new(Self {
            arrivals: RefCell::default(),
            failures: RefCell::default(),
            callers: RefCell::default(),
            completions: RefCell::default(),
            outstanding: RefCell::default(),
            fault: Cell::new(false),
            context,
        })
    }

    /// Notes what a callback has to say, and keeps a panic in.
    fn guarded<T>(&self, on_panic: T, body: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
            // Dropping a payload may panic once more.
            std::mem::forget(payload);
            self.fault.set(true);
            on_panic
        })
    }

    /// An operation that UCX will not touch any more.
    fn ended(&self, operation: *mut Operation, status: ucs_status_t) {
        if self.outstanding.borrow_mut().remove(&operation) {
            // SAFETY: it was outstanding, so it came from Box::into_raw and this is its only
            // return.
            let mut operation = *unsafe { Box::from_raw(operation) };
            operation.status = status;
            self.completions.borrow_mut().push(operation);
        }
    }

    fn arrived(
        &self,
        endpoint: ucp_ep_h,
        header: &[u8],
        data: *mut c_void,
        len: usize,
        attributes: u64,
    ) -> ucs_status_t {
        let is_offer = attributes & u64::from(ucx_sys::UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
        let may_keep = attributes & u64::from(ucx_sys::UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
        // An offer's sender sees the refusal; a whole message is simply dropped.
        let refusal = if is_offer { ucx_sys::UCS_ERR_REJECTED } else { ucx_sys::UCS_OK };
        // Not one of ours: there is no connection to blame.
        let Some(header) = Header::decode(header) else { return refusal };
        let push = |header, payload| {
            self.arrivals.borrow_mut().push(Arrival { endpoint, header, payload, len });
        };
        let (longest, must_be_whole) = match header.kind {
            Kind::Data => (isize::MAX as usize, false),
            Kind::Bye => (0, true),
            _ => (MAX_MESSAGE_BYTES, false),
        };
        if len > longest || (is_offer && must_be_whole) {
            push(header, Payload::Refused);
            return refusal;
        }
        if is_offer || (may_keep && header.kind == Kind::Data && len > 0) {
            push(header, Payload::Descriptor { data, is_offer });
            return ucx_sys::UCS_INPROGRESS;
        }
        let mut copy = Vec::new();
        if copy.try_reserve_exact(len).is_err() {
            push(header, Payload::Refused);
            return refusal;
        }
        if len > 0 {
            // SAFETY: UCX passes `len` readable bytes that last until this callback returns.
            copy.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast(), len) });
        }
        push(header, Payload::Owned(copy));
        ucx_sys::UCS_OK
    }
}

/// `ucp_am_recv_callback_t`; `arg` is the worker's mailbox.
pub(super) unsafe extern "C" fn on_message(
    arg: *mut c_void,
    header: *const c_void,
    header_len: usize,
    data: *mut c_void,
    len: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: registered with the mailbox, which outlives its worker.
    let mailbox = unsafe { &*arg.cast::<Mailbox>() };
    mailbox.guarded(ucx_sys::UCS_OK, || {
        // SAFETY: UCX passes its parameters for the time of the call.
        let (attributes, reply_endpoint) = unsafe { ((*param).recv_attr, (*param).reply_ep) };
        // Set by our own side of the protocol always; NULL is no connection's.
        let is_known = attributes & u64::from(ucx_sys::UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
        let endpoint = if is_known { reply_endpoint } else { std::ptr::null_mut() };
        let header = if header_len == 0 {
            &[]
        } else {
            // SAFETY: UCX passes that many readable bytes.
            unsafe { std::slice::from_raw_parts(header.cast::<u8>(), header_len) }
        };
        mailbox.arrived(endpoint, header, data, len, attributes)
    })
}

/// `ucp_listener_conn_callback_t`; `arg` is the worker's mailbox.
pub(super) unsafe extern "C" fn on_caller(caller: ucp_conn_request_h, arg: *mut c_void) {
    // SAFETY: registered with the mailbox, which outlives its worker.
    let mailbox = unsafe { &*arg.cast::<Mailbox>() };
    mailbox.guarded((), || mailbox.callers.borrow_mut().push(caller));
}

/// `ucp_err_handler_cb_t`; `arg` is the worker's mailbox.
pub(super) unsafe extern "C" fn on_failure(
    arg: *mut c_void,
    endpoint: ucp_ep_h,
    status: ucs_status_t,
) {
    // SAFETY: registered with the mailbox, which outlives its worker.
    let mailbox = unsafe { &*arg.cast::<Mailbox>() };
    mailbox.guarded((), || mailbox.failures.borrow_mut().push((endpoint, status)));
}

/// `ucp_send_nbx_callback_t`, for sends and closes; `user_data` is the operation.
pub(super) unsafe extern "C" fn on_sent(
    request: *mut c_void,
    status: ucs_status_t,
    user_data: *mut c_void,
) {
    let operation = user_data.cast::<Operation>();
    // SAFETY: an operation is alive until it is taken out of `outstanding`, here or when UCX did
    // not take it; its mailbox outlives the worker.
    let mailbox = unsafe { &*(*operation).mailbox };
    mailbox.guarded((), || mailbox.ended(operation, status));
    // SAFETY: UCX allows to free a request in its own callback, and nobody else knows it.
    unsafe { mailbox.context.ucx().ucp_request_free(request) };
}

/// `ucp_am_recv_data_nbx_callback_t`; `user_data` is the operation.
pub(super) unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: ucs_status_t,
    _len: usize,
    user_data: *mut c_void,
) {
    // SAFETY: the same contract.
    unsafe { on_sent(request, status, user_data) };
}
