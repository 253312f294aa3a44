//! The UCX worker: its listener, its endpoints' operations, its mailbox.
//!
//! All calls into UCX for a connection are here. A worker is destroyed before its mailbox and
//! before its context, and only if UCX has nothing of ours any more.

use std::ffi::c_void;
use std::net::SocketAddrV4;
use std::os::fd::RawFd;
use std::sync::Arc;

use ucx_sys::{
    ucp_am_handler_param_t, ucp_conn_request_h, ucp_ep_h, ucp_ep_params_t, ucp_listener_attr_t,
    ucp_listener_h, ucp_listener_params_t, ucp_request_param_t, ucp_worker_attr_t, ucp_worker_h,
    ucp_worker_params_t, ucs_sock_addr_t, ucs_status_ptr_t, ucs_status_t,
};

use super::context::Context;
use super::frame::{HEADER_BYTES, MAX_INLINE_BYTES};
use super::mailbox::{self, Mailbox};
use super::operation::Operation;
use super::registration::Registration;
use super::socket::{port_of, Socket};
use super::status;
use crate::transfer::transport::{Segment, TransportError};

/// Control messages: UCX leaves nothing of them with us.
pub(super) const CONTROL_ID: u32 = 1;
/// Data: UCX may leave what arrived whole with us until it is received.
pub(super) const DATA_ID: u32 = 2;

/// One byte at a time, in a run.
const CONTIGUOUS: u64 = 1 << ucx_sys::UCP_DATATYPE_SHIFT;
/// A list of runs.
const LIST: u64 = ucx_sys::UCP_DATATYPE_IOV as u64;

/// What became of an operation at once.
pub(super) enum Started {
    /// It comes back through the mailbox.
    Pending,
    /// It ended; the status is in it.
    Ended(Box<Operation>),
}

/// See the module.
pub(super) struct Worker {
    context: Arc<Context>,
    handle: ucp_worker_h,
    /// NULL until it listens.
    listener: ucp_listener_h,
    event_descriptor: RawFd,
    /// Dropped after the worker was destroyed.
    registrations: Vec<Registration>,
    pub mailbox: Box<Mailbox>,
}

// SAFETY: UCX allows a worker of mode SERIALIZED to be used by any thread, one at a time, which
// `&mut` of the transport gives; callbacks run inside such uses.
unsafe impl Send for Worker {}

impl Worker {
    pub fn create(context: &Arc<Context>) -> Result<Self, TransportError> {
        let ucx = context.ucx();
        // SAFETY: all-zero bytes are a valid value; only the masked field is read.
        let mut params: ucp_worker_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(ucx_sys::UCP_WORKER_PARAM_FIELD_THREAD_MODE);
        params.thread_mode = ucx_sys::UCS_THREAD_MODE_SERIALIZED;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live context and parameters that live during the call.
        let created = unsafe { ucx.ucp_worker_create(context.handle(), &params, &mut handle) };
        status::check(ucx, created, "no worker")?;
        // From here on Drop destroys it.
        let mut worker = Self {
            mailbox: Mailbox::new(Arc::clone(context)),
            context: Arc::clone(context),
            handle,
            listener: std::ptr::null_mut(),
            event_descriptor: -1,
            registrations: Vec::new(),
        };
        worker.judge_header_room()?;
        // SAFETY: a live worker and a writable number.
        let got = unsafe { ucx.ucp_worker_get_efd(handle, &mut worker.event_descriptor) };
        status::check(ucx, got, "no event descriptor")?;
        worker.take_messages(CONTROL_ID, 0)?;
        worker.take_messages(DATA_ID, ucx_sys::UCP_AM_FLAG_PERSISTENT_DATA)?;
        Ok(worker)
    }

    fn judge_header_room(&self) -> Result<(), TransportError> {
        let ucx = self.context.ucx();
        // SAFETY: all-zero bytes are a valid value; only the masked field is written.
        let mut attributes: ucp_worker_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = u64::from(ucx_sys::UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER);
        // SAFETY: a live worker and a writable struct.
        let queried = unsafe { ucx.ucp_worker_query(self.handle, &mut attributes) };
        status::check(ucx, queried, "no worker attributes")?;
        let needed = HEADER_BYTES + MAX_INLINE_BYTES;
        if attributes.max_am_header < needed {
            return Err(TransportError::Unavailable(format!(
                "the wires that UCX may use carry headers of {} bytes, {needed} are needed",
                attributes.max_am_header
            )));
        }
        Ok(())
    }

    /// Starts to listen there, at a port of the system's choice where none is named: where it listens.
    pub fn listen(&mut self, wanted: SocketAddrV4) -> Result<SocketAddrV4, TransportError> {
        let ucx = self.context.ucx();
        let socket = Socket::from(wanted);
        // SAFETY: all-zero bytes are a valid value; only the masked fields are read.
        let mut params: ucp_listener_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(
            ucx_sys::UCP_LISTENER_PARAM_FIELD_SOCK_ADDR
                | ucx_sys::UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        );
        params.sockaddr = ucs_sock_addr_t { addr: socket.as_ptr(), addrlen: socket.len() };
        params.conn_handler.cb = Some(mailbox::on_caller);
        params.conn_handler.arg = self.mailbox_argument();
        let what = format!("UCX cannot listen at {wanted}");
        let mut listener = std::ptr::null_mut();
        // SAFETY: a live worker; the parameters live during the call, the mailbox longer than the
        // worker.
        let made = unsafe { ucx.ucp_listener_create(self.handle, &params, &mut listener) };
        status::check(ucx, made, &what)?;
        // From here on Drop destroys it.
        self.listener = listener;
        // SAFETY: all-zero bytes are a valid value; only the masked field is written.
        let mut attributes: ucp_listener_attr_t = unsafe { std::mem::zeroed() };
        attributes.field_mask = u64::from(ucx_sys::UCP_LISTENER_ATTR_FIELD_SOCKADDR);
        // SAFETY: a live listener and a writable struct.
        let queried = unsafe { ucx.ucp_listener_query(listener, &mut attributes) };
        status::check(ucx, queried, &what)?;
        port_of(&attributes.sockaddr)
            .map(|port| SocketAddrV4::new(*wanted.ip(), port))
            .ok_or_else(|| TransportError::Unavailable(format!("{what}: it has no port")))
    }

    fn take_messages(&self, id: u32, flags: u32) -> Result<(), TransportError> {
        // SAFETY: all-zero bytes are a valid value; only the masked fields are read.
        let mut handler: ucp_am_handler_param_t = unsafe { std::mem::zeroed() };
        handler.field_mask = u64::from(
            ucx_sys::UCP_AM_HANDLER_PARAM_FIELD_ID
                | ucx_sys::UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | ucx_sys::UCP_AM_HANDLER_PARAM_FIELD_CB
                | ucx_sys::UCP_AM_HANDLER_PARAM_FIELD_ARG,
        );
        handler.id = id;
        handler.flags = flags | ucx_sys::UCP_AM_FLAG_WHOLE_MSG;
        handler.cb = Some(mailbox::on_message);
        handler.arg = self.mailbox_argument();
        // SAFETY: a live worker; the mailbox is boxed and outlives the worker.
        let set =
            unsafe { self.context.ucx().ucp_worker_set_am_recv_handler(self.handle, &handler) };
        status::check(self.context.ucx(), set, "no message handler")
    }

    fn mailbox_argument(&self) -> *mut c_void {
        std::ptr::from_ref::<Mailbox>(&self.mailbox).cast_mut().cast()
    }

    /// Tells UCX of memory that stays where it is as long as the worker lives.
    pub fn register(&mut self, memory: Segment) {
        self.registrations.extend(Registration::of(&self.context, memory));
    }

    /// Lets UCX work; whether it did anything.
    pub fn progress(&self) -> bool {
        // SAFETY: a live worker.
        unsafe { self.context.ucx().ucp_worker_progress(self.handle) != 0 }
    }

    /// Prepares to sleep: whether the descriptor will tell of everything from now on.
    pub fn arm(&self) -> bool {
        // SAFETY: a live worker.
        unsafe { self.context.ucx().ucp_worker_arm(self.handle) == ucx_sys::UCS_OK }
    }

    pub fn event_descriptor(&self) -> RawFd {
        self.event_descriptor
    }

    /// A new endpoint to whoever listens there.
    pub fn connect(&self, listening: SocketAddrV4) -> Result<ucp_ep_h, ucs_status_t> {
        let socket = Socket::from(listening);
        self.create_endpoint(|params| {
            params.field_mask |= u64::from(
                ucx_sys::UCP_EP_PARAM_FIELD_FLAGS | ucx_sys::UCP_EP_PARAM_FIELD_SOCK_ADDR,
            );
            params.flags = ucx_sys::UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
            params.sockaddr = ucs_sock_addr_t { addr: socket.as_ptr(), addrlen: socket.len() };
        })
    }

    /// A new endpoint to a peer that wants to connect, which is used up in any case.
    pub fn accept(&self, caller: ucp_conn_request_h) -> Result<ucp_ep_h, ucs_status_t> {
        self.create_endpoint(|params| {
            params.field_mask |= u64::from(ucx_sys::UCP_EP_PARAM_FIELD_CONN_REQUEST);
            params.conn_request = caller;
        })
    }

    /// Turns a peer away that wants to connect.
    pub fn reject(&self, caller: ucp_conn_request_h) {
        // SAFETY: the live listener that the request came from; the request is used once. Whether
        // the peer can still be told does not matter.
        unsafe { self.context.ucx().ucp_listener_reject(self.listener, caller) };
    }

    fn create_endpoint(
        &self,
        choose: impl FnOnce(&mut ucp_ep_params_t),
    ) -> Result<ucp_ep_h, ucs_status_t> {
        // SAFETY: all-zero bytes are a valid value; only the masked fields are read.
        let mut params: ucp_ep_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(
            ucx_sys::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | ucx_sys::UCP_EP_PARAM_FIELD_ERR_HANDLER,
        );
        params.err_mode = ucx_sys::UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler.cb = Some(mailbox::on_failure);
        params.err_handler.arg = self.mailbox_argument();
        choose(&mut params);
        let mut endpoint = std::ptr::null_mut();
        // SAFETY: a live worker; what `choose` put in lives during the call, the mailbox longer
        // than the worker.
        let status =
            unsafe { self.context.ucx().ucp_ep_create(self.handle, &params, &mut endpoint) };
        if status == ucx_sys::UCS_OK {
            Ok(endpoint)
        } else {
            Err(status)
        }
    }

    /// Sends the operation's header and payload.
    pub fn send(
        &self,
        endpoint: ucp_ep_h,
        id: u32,
        flags: u32,
        operation: Box<Operation>,
    ) -> Started {
        let (buffer, count, datatype): (*const c_void, usize, u64) = match &operation.segments[..] {
            [] => (operation.bytes.as_ptr().cast(), operation.bytes.len(), CONTIGUOUS),
            [one] => (one.buffer, one.length, CONTIGUOUS),
            list => (list.as_ptr().cast(), list.len(), LIST),
        };
        let (header, header_len) = (operation.header.as_ptr(), operation.header.len());
        self.start(operation, |param| {
            param.op_attr_mask |=
                ucx_sys::UCP_OP_ATTR_FIELD_DATATYPE | ucx_sys::UCP_OP_ATTR_FIELD_FLAGS;
            param.cb.send = Some(mailbox::on_sent);
            param.datatype = datatype;
            // The receiver learns from it which endpoint the message came through.
            param.flags = flags | ucx_sys::UCP_AM_SEND_FLAG_REPLY;
            // SAFETY: a live endpoint; header and payload belong to the operation, or to the
            // caller until its event, and stay in place until UCX is done with them.
            unsafe {
                self.context.ucx().ucp_am_send_nbx(
                    endpoint,
                    id,
                    header.cast(),
                    header_len,
                    buffer,
                    count,
                    param,
                )
            }
        })
    }

    /// Fetches what UCX was offered into `memory`; takes the descriptor in any case.
    pub fn receive(
        &self,
        descriptor: *mut c_void,
        memory: Segment,
        operation: Box<Operation>,
    ) -> Started {
        self.start(operation, |param| {
            param.op_attr_mask |= ucx_sys::UCP_OP_ATTR_FIELD_DATATYPE;
            param.cb.recv_am = Some(mailbox::on_received);
            param.datatype = CONTIGUOUS;
            // SAFETY: a descriptor that UCX left with us, used once; the memory is writable until
            // the operation's end.
            unsafe {
                self.context.ucx().ucp_am_recv_data_nbx(
                    self.handle,
                    descriptor,
                    memory.data.cast(),
                    memory.len,
                    param,
                )
            }
        })
    }

    /// Copies what arrived whole, and gives its buffer back.
    ///
    /// # Safety
    /// `descriptor` is whole data of `memory.len` bytes that UCX left with us, not used again;
    /// `memory` is writable.
    pub unsafe fn copy_out(&self, descriptor: *mut c_void, memory: Segment) {
        // SAFETY: the caller's promise; UCX's buffer is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(descriptor.cast(), memory.data, memory.len) };
        self.release(descriptor);
    }

    /// Gives back what UCX left with us.
    pub fn release(&self, descriptor: *mut c_void) {
        // SAFETY: left with us by this worker, used once.
        unsafe { self.context.ucx().ucp_am_data_release(self.handle, descriptor) };
    }

    /// Ends the endpoint by force; it is not used again.
    pub fn close(&self, endpoint: ucp_ep_h, operation: Box<Operation>) -> Started {
        self.start(operation, |param| {
            param.op_attr_mask |= ucx_sys::UCP_OP_ATTR_FIELD_FLAGS;
            param.cb.send = Some(mailbox::on_sent);
            param.flags = ucx_sys::UCP_EP_CLOSE_FLAG_FORCE;
            // SAFETY: a live endpoint, closed once.
            unsafe { self.context.ucx().ucp_ep_close_nbx(endpoint, param) }
        })
    }

    /// Hands an operation to UCX, which calls back unless it answers at once.
    fn start(
        &self,
        operation: Box<Operation>,
        call: impl FnOnce(&mut ucp_request_param_t) -> ucs_status_ptr_t,
    ) -> Started {
        let operation = Box::into_raw(operation);
        self.mailbox.outstanding.borrow_mut().insert(operation);
        // SAFETY: all-zero bytes are a valid value; only the masked fields are read.
        let mut param: ucp_request_param_t = unsafe { std::mem::zeroed() };
        param.op_attr_mask =
            ucx_sys::UCP_OP_ATTR_FIELD_CALLBACK | ucx_sys::UCP_OP_ATTR_FIELD_USER_DATA;
        param.user_data = operation.cast();
        let Some(status) = status::at_once(call(&mut param)) else { return Started::Pending };
        if !self.mailbox.outstanding.borrow_mut().remove(&operation) {
            // It called back nevertheless.
            return Started::Pending;
        }
        // SAFETY: it was outstanding, so this is the only return of what into_raw gave.
        let mut operation = unsafe { Box::from_raw(operation) };
        operation.status = status;
        Started::Ended(operation)
    }
}

impl Drop for Worker {
    /// Destroys the worker. UCX aborts the process if one with unfinished operations is destroyed;
    /// such a worker, whose endpoints would not close, is left to the end of the process.
    fn drop(&mut self) {
        for caller in self.mailbox.callers.take() {
            self.reject(caller);
        }
        if !self.listener.is_null() {
            // SAFETY: ours, destroyed once.
            unsafe { self.context.ucx().ucp_listener_destroy(self.listener) };
        }
        if !self.mailbox.outstanding.borrow().is_empty() {
            let unused = Mailbox::new(Arc::clone(&self.context));
            std::mem::forget(std::mem::replace(&mut self.mailbox, unused));
            std::mem::forget(Arc::clone(&self.context));
            // What it has begun may still read there.
            std::mem::forget(std::mem::take(&mut self.registrations));
            return;
        }
        // SAFETY: ours, destroyed once; its callbacks still find the mailbox.
        unsafe { self.context.ucx().ucp_worker_destroy(self.handle) };
    }
}
