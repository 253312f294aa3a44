//! Memory that UCX has been told of once, for as long as a worker lives.
//!
//! What it is for: wires that read memory themselves need it pinned and known to their devices first.
//! UCX does so for each send, and finds what it knows already; a pool that it was told of is known from
//! the first block on.
//!
//! Guards: it is told of the end exactly once, after the worker, when nothing reads there any more. What
//! cannot be registered, for want of memory that may be locked, say, is sent as before.
//! Never does: give a key to anybody. UCX itself puts one into the offers of data that lies there, and
//! over RDMA that key opens all that was registered with it: who may register what is not decided here.

use std::sync::Arc;

use ucx_sys::{ucp_mem_h, ucp_mem_map_params_t};

use super::context::Context;
use crate::transfer::transport::Segment;

/// See the module.
pub(super) struct Registration {
    handle: ucp_mem_h,
    context: Arc<Context>,
}

impl Registration {
    /// Registers memory that stays where it is until this is dropped; `None` where UCX refuses.
    pub fn of(context: &Arc<Context>, memory: Segment) -> Option<Self> {
        // SAFETY: all-zero bytes are a valid value; only the masked fields are read.
        let mut params: ucp_mem_map_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(
            ucx_sys::UCP_MEM_MAP_PARAM_FIELD_ADDRESS | ucx_sys::UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        );
        params.address = memory.data.cast();
        params.length = memory.len;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live context, parameters that live during the call, memory of the caller's.
        let status = unsafe { context.ucx().ucp_mem_map(context.handle(), &params, &mut handle) };
        (status == ucx_sys::UCS_OK).then(|| Self { handle, context: Arc::clone(context) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: ours, ended once; its worker is gone, so nothing uses it. Whatever the status, there
        // is nothing more to be done.
        unsafe { self.context.ucx().ucp_mem_unmap(self.context.handle(), self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use ucx_sys::{ucp_context_h, ucp_worker_h, ucs_status_t, Ucx};

    use super::*;
    use crate::transfer::transport::{Event, Transport};
    use crate::transfer::ucx::{availability, UcxOptions, UcxTransport};

    const SENDS: usize = 1_000;
    const BLOCK_BYTES: usize = 16 << 10;
    const BLOCKS: usize = 64;

    /// With UCX's own functions; how often each was called.
    static OWN: OnceLock<Context> = OnceLock::new();
    static MAPS: AtomicUsize = AtomicUsize::new(0);
    static UNMAPS: AtomicUsize = AtomicUsize::new(0);
    static WORKERS_ENDED: AtomicUsize = AtomicUsize::new(0);
    /// Calls that ended a registration before its worker.
    static TOO_EARLY: AtomicUsize = AtomicUsize::new(0);
    static REGISTERED_BYTES: AtomicUsize = AtomicUsize::new(0);

    fn own() -> &'static Ucx {
        OWN.get().expect("set before anything is called").ucx()
    }

    unsafe extern "C" fn counted_map(
        context: ucp_context_h,
        params: *const ucp_mem_map_params_t,
        handle: *mut ucp_mem_h,
    ) -> ucs_status_t {
        MAPS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's arguments, handed on.
        unsafe {
            REGISTERED_BYTES.fetch_add((*params).length, Ordering::SeqCst);
            own().ucp_mem_map(context, params, handle)
        }
    }

    unsafe extern "C" fn counted_unmap(context: ucp_context_h, handle: ucp_mem_h) -> ucs_status_t {
        UNMAPS.fetch_add(1, Ordering::SeqCst);
        if WORKERS_ENDED.load(Ordering::SeqCst) == 0 {
            TOO_EARLY.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's arguments, handed on.
        unsafe { own().ucp_mem_unmap(context, handle) }
    }

    unsafe extern "C" fn counted_end(worker: ucp_worker_h) {
        WORKERS_ENDED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's argument, handed on.
        unsafe { own().ucp_worker_destroy(worker) }
    }

    unsafe extern "C" fn refusing_map(
        _: ucp_context_h,
        _: *const ucp_mem_map_params_t,
        _: *mut ucp_mem_h,
    ) -> ucs_status_t {
        ucx_sys::UCS_ERR_NO_MEMORY
    }

    fn options() -> UcxOptions {
        UcxOptions {
            tls: Some("all".to_owned()),
            net_devices: Some("lo".to_owned()),
            ..UcxOptions::default()
        }
    }

    /// A transport whose UCX was changed.
    fn open(change: impl FnOnce(&mut Ucx)) -> UcxTransport {
        let mut context = Context::open(&options()).expect("UCX starts");
        change(context.ucx_mut());
        UcxTransport::over(context, options()).expect("UCX starts")
    }

    /// Sends blocks out of a pool that was registered, one after the other.
    fn sends_from_a_pool(mut source: UcxTransport, sends: usize) {
        let mut pool = vec![7u8; BLOCK_BYTES * BLOCKS];
        source.register(Segment { data: pool.as_mut_ptr(), len: pool.len() });
        let mut destination = open(|_| {});
        let address = source.address().to_vec();
        let peer = destination.connect(&address).expect("a good address");
        destination.send_message(peer, b"hello".to_vec()).expect("open");
        let mut target = vec![0u8; BLOCK_BYTES];
        let (mut begun, mut received) = (0, 0);
        let mut at_source = None;
        let start = Instant::now();
        while received < sends {
            while let Some(event) = source.progress() {
                if let Event::Message { peer, .. } = event {
                    at_source = Some(peer);
                }
            }
            if let Some(to) = at_source.filter(|_| begun == received) {
                let first = (begun % BLOCKS) * BLOCK_BYTES;
                let block = Segment { data: pool[first..].as_mut_ptr(), len: BLOCK_BYTES };
                source.send_data(to, Vec::new(), vec![block]).expect("open");
                begun += 1;
            }
            while let Some(event) = destination.progress() {
                match event {
                    Event::Data { id, .. } => {
                        let memory = Segment { data: target.as_mut_ptr(), len: target.len() };
                        destination.receive_data(id, memory).expect("announced");
                    }
                    Event::Received { result, .. } => {
                        assert_eq!(result, Ok(()));
                        received += 1;
                    }
                    _ => {}
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{received} of {sends}");
        }
        assert!(target.iter().all(|byte| *byte == 7));
        drop(source);
    }

    #[test]
    fn a_pool_is_registered_once_and_let_go_once_after_its_last_use() {
        if let Err(error) = availability() {
            return println!("skipped: {error}");
        }
        assert!(OWN.set(Context::open(&options()).expect("UCX starts")).is_ok());
        sends_from_a_pool(
            open(|ucx| {
                ucx.ucp_mem_map = counted_map;
                ucx.ucp_mem_unmap = counted_unmap;
                ucx.ucp_worker_destroy = counted_end;
            }),
            SENDS,
        );
        let counts =
            [&MAPS, &UNMAPS, &WORKERS_ENDED, &TOO_EARLY].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [1, 1, 1, 0]);
        assert_eq!(REGISTERED_BYTES.load(Ordering::SeqCst), BLOCK_BYTES * BLOCKS);
    }

    #[test]
    fn a_pool_that_cannot_be_registered_is_sent_as_it_is() {
        if let Err(error) = availability() {
            return println!("skipped: {error}");
        }
        sends_from_a_pool(open(|ucx| ucx.ucp_mem_map = refusing_map), 10);
    }
}
