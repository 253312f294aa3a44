//! `kvh_batch_t`: the requests of one broadcast round, as given on rank 0 or as received.

use std::collections::TryReserveError;
use std::sync::Arc;

use super::args::{self, Params};
use super::guard;
use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Owned};
use super::plan::kvh_plan_t;
use super::snapshot::kvh_snapshot_t;
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use super::types::kvh_bytes_t;
use crate::broadcast::batch::{Batch, BatchError, ReceivedBatch, Request};
use crate::hint::Snapshot;
use crate::plan::Plan;
use crate::poison::Poisonable;

/// What a batch handle holds.
pub struct BatchObject {
    pub(super) requests: Requests,
    /// The requests' plans as objects that C callers can look at, up to the last that has one; boxed,
    /// so that they stay in place while requests are added.
    plans: Vec<Option<Box<Guarded<Plan>>>>,
}

/// On which side of a round the requests are.
pub(super) enum Requests {
    /// To be given. Bodies are the caller's, by the contract of `kvh_batch_add`.
    Given(Batch<'static>),
    Received(ReceivedBatch),
}

impl BatchObject {
    fn new() -> Self {
        Self { requests: Requests::Given(Batch::new()), plans: Vec::new() }
    }

    /// What a rank received, for its caller.
    pub(super) fn received(batch: ReceivedBatch) -> Result<Guarded<Self>, TryReserveError> {
        let mut plans = Vec::new();
        for index in 0..batch.len() {
            keep_plan(&mut plans, index, batch.get(index).and_then(|view| view.plan))?;
        }
        Ok(Guarded::new(Self { requests: Requests::Received(batch), plans }))
    }

    /// Bytes that a round gives to the other ranks: bodies, and each request's snapshot.
    pub(super) fn payload_bytes(&self) -> usize {
        let Requests::Given(batch) = &self.requests else { return 0 };
        let snapshot = |snapshot: &Snapshot| snapshot.json().len();
        let of = |request: &Request<'_>| {
            request.body.len() + request.snapshot.as_ref().map_or(0, snapshot)
        };
        batch.requests().iter().map(of).sum()
    }

    fn add(&mut self, request: Request<'static>) -> CallResult {
        let Requests::Given(batch) = &mut self.requests else { return Err(KVH_ERR_STATE) };
        let index = batch.requests().len();
        keep_plan(&mut self.plans, index, request.plan.as_deref())?;
        batch.add(request).map_err(|error| {
            self.plans.truncate(index);
            error.into()
        })
    }
}

/// Keeps the plan of the request at `index`, behind those of the requests before it.
fn keep_plan(
    plans: &mut Vec<Option<Box<Guarded<Plan>>>>,
    index: usize,
    plan: Option<&Plan>,
) -> Result<(), TryReserveError> {
    let Some(plan) = plan else { return Ok(()) };
    plans.try_reserve(index + 1 - plans.len())?;
    plans.resize_with(index, || None);
    plans.push(Some(Box::new(Guarded::new(plan.clone()))));
    Ok(())
}

/// The requests of one broadcast round, in order. Made by the caller on rank 0, by kvh_broadcast on
/// the other ranks. Given to the other threads only when nobody adds to it any more.
pub struct kvh_batch_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_batch_t {
    type Object = Guarded<BatchObject>;
}
impl Owned for kvh_batch_t {}

/// flags of a request: it has a parent.
pub const KVH_BATCH_REQUEST_HAS_PARENT: u32 = 1;

/// One request of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_batch_request_t {
    /// sizeof(kvh_batch_request_t).
    pub struct_size: usize,
    /// The host's name for the request.
    pub id: u64,
    /// The host's own serialised request, opaque to the library; at most 1 GiB.
    pub body: kvh_bytes_t,
    /// The request's hints, or NULL. A request with a parent and NULL here has its parent's.
    pub snapshot: *const kvh_snapshot_t,
    /// The decision made from the hints, or NULL where it is local.
    pub plan: *const kvh_plan_t,
    /// KVH_BATCH_REQUEST_*.
    pub flags: u32,
    /// With KVH_BATCH_REQUEST_HAS_PARENT: index of an earlier request of the batch. Else 0.
    pub parent: u32,
}

// SAFETY: repr(C), struct_size first, only integers, raw pointers and structs of these.
unsafe impl Params for kvh_batch_request_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

impl From<BatchError> for kvh_status {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::ParentUnknown { .. } => KVH_ERR_INVALID_ARGUMENT,
            BatchError::TooManyRequests
            | BatchError::BodyTooLong { .. }
            | BatchError::SnapshotTooLong { .. } => KVH_ERR_LIMIT,
            BatchError::NoMemory => KVH_ERR_NO_MEMORY,
        }
    }
}

/// Creates an empty batch. Destroy it with kvh_batch_destroy.
///
/// # Safety
/// `batch_out` points at a writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_batch_create(batch_out: *mut *mut kvh_batch_t) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let batch_out = unsafe { args::out(batch_out) }?;
        batch_out.write(handle::give(Guarded::new(BatchObject::new())));
        Ok(())
    })
}

/// Adds a request at the end. The body is borrowed: it must stay as it is until the batch has been
/// broadcast, or is destroyed. Snapshot and plan are kept by the batch itself.
/// KVH_ERR_INVALID_ARGUMENT: unknown flags, or a parent that is not an earlier request.
/// KVH_ERR_LIMIT: more than 16,384 requests, or a body or snapshot that is too long.
/// KVH_ERR_STATE: a received batch. KVH_ERR_POISONED: so is the snapshot or plan. On any error the batch is as before.
///
/// # Safety
/// `batch` is a live batch used by this call alone; `request` points at a request struct whose
/// pointers are live; its body outlives the batch or the batch's use.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_batch_add(
    batch: *mut kvh_batch_t,
    request: *const kvh_batch_request_t,
) -> kvh_status_t {
    let body = |batch: &mut BatchObject| {
        // SAFETY: the caller's promise.
        let request = unsafe { args::read_params(request) }?;
        let parent = match request.flags {
            0 if request.parent == 0 => None,
            KVH_BATCH_REQUEST_HAS_PARENT => Some(request.parent),
            _ => return Err(KVH_ERR_INVALID_ARGUMENT),
        };
        batch.add(Request {
            id: request.id,
            // SAFETY: the caller promises that the body stays until the batch is not used any more.
            body: unsafe { args::bytes(request.body) }?,
            // SAFETY: NULL, or held by the caller during this call.
            snapshot: unsafe { snapshot_of(request.snapshot) }?,
            plan: match request.plan.is_null() {
                true => None,
                // SAFETY: live during this call.
                false => Some(Box::new(unsafe { guarded::get(request.plan) }?.clone())),
            },
            parent,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::change(batch, body) }
}

/// # Safety
/// `snapshot` is NULL or held during the call.
unsafe fn snapshot_of(snapshot: *const kvh_snapshot_t) -> Result<Option<Snapshot>, kvh_status> {
    if snapshot.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL; the caller's promise.
    let data = unsafe { handle::cloned(snapshot) };
    if data.poison().is_set() {
        return Err(KVH_ERR_POISONED);
    }
    Ok(Some(Snapshot::from_shared(data)))
}

/// How many requests the batch has. 0 for NULL.
///
/// # Safety
/// `batch` is NULL or a live batch that nobody adds to during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_batch_count(batch: *const kvh_batch_t) -> usize {
    // SAFETY: the caller's promise.
    match unsafe { guarded::get(batch) }.map(|batch| &batch.requests) {
        Ok(Requests::Given(given)) => given.requests().len(),
        Ok(Requests::Received(received)) => received.len(),
        Err(_) => 0,
    }
}

/// Fills in the `index`-th request; the caller sets struct_size before. The views in it are valid
/// until the batch is destroyed; retain the snapshot to keep it longer.
/// KVH_ERR_INVALID_ARGUMENT: an index that is not less than kvh_batch_count.
///
/// # Safety
/// `batch` is a live batch that nobody adds to during the call; `request_out` points at a request
/// struct.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_batch_get(
    batch: *const kvh_batch_t,
    index: usize,
    request_out: *mut kvh_batch_request_t,
) -> kvh_status_t {
    let body = |batch: &BatchObject| {
        let request = match &batch.requests {
            Requests::Given(given) => given
                .requests()
                .get(index)
                .map(|given| view(given.id, given.body, given.snapshot.as_ref(), given.parent)),
            Requests::Received(received) => {
                received.get(index).map(|got| view(got.id, got.body, got.snapshot, got.parent))
            }
        };
        let mut request = request.ok_or(KVH_ERR_INVALID_ARGUMENT)?;
        if let Some(Some(plan)) = batch.plans.get(index) {
            request.plan = std::ptr::from_ref::<Guarded<Plan>>(plan).cast();
        }
        // SAFETY: the caller's promise.
        unsafe { args::write_struct(request_out, &request) }
    };
    // SAFETY: the caller's promise.
    unsafe { guarded::read(batch, body) }
}

fn view(
    id: u64,
    body: &[u8],
    snapshot: Option<&Snapshot>,
    parent: Option<u32>,
) -> kvh_batch_request_t {
    kvh_batch_request_t {
        struct_size: size_of::<kvh_batch_request_t>(),
        id,
        body: kvh_bytes_t::borrow(body),
        // The batch keeps the snapshot, so the pointer outlives this reference.
        snapshot: snapshot
            .map_or(std::ptr::null(), |snapshot| Arc::as_ptr(snapshot.shared()).cast()),
        plan: std::ptr::null(),
        flags: if parent.is_some() { KVH_BATCH_REQUEST_HAS_PARENT } else { 0 },
        parent: parent.unwrap_or(0),
    }
}

/// Destroys the batch; views into it end. NULL is fine.
///
/// # Safety
/// `batch` is NULL or a live batch, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_batch_destroy(batch: *mut kvh_batch_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(batch) }));
}
