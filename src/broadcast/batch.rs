//! What travels in one round: requests, each with the host's own bytes and optionally a snapshot, a
//! parent and a plan.
//!
//! On rank 0 a [`Batch`] borrows the bodies; on the other ranks a [`ReceivedBatch`] holds one buffer
//! and hands out views into it. Snapshots are such views too, and keep the buffer as long as they live.

use std::ops::Range;

use bytes::Bytes;

use super::limits::{MAX_BODY_BYTES, MAX_REQUESTS, MAX_SNAPSHOT_BYTES};
use crate::hint::Snapshot;
use crate::plan::Plan;

/// One request as rank 0 gives it.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The host's name for the request.
    pub id: u64,
    /// The host's own serialised request; opaque here.
    pub body: &'a [u8],
    /// The request's hints. A request with a parent and none of its own has its parent's.
    pub snapshot: Option<Snapshot>,
    /// Index of an earlier request of the batch.
    pub parent: Option<u32>,
    /// The decision made from the hints; `None` where it is local. Boxed: most requests have none, and
    /// a request is moved a few times.
    pub plan: Option<Box<Plan>>,
}

/// Why a request was not added; the batch is as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The parent is not in the batch yet.
    #[error("parent {parent} is not one of the {count} requests added before")]
    ParentUnknown {
        /// The index given.
        parent: u32,
        /// Requests in the batch.
        count: usize,
    },
    /// The batch is full.
    #[error("a batch holds at most {MAX_REQUESTS} requests: start another round")]
    TooManyRequests,
    /// The body is too long.
    #[error("a body has {found} bytes, at most {MAX_BODY_BYTES} travel")]
    BodyTooLong {
        /// Its bytes.
        found: usize,
    },
    /// The snapshot is longer than admission lets in.
    #[error("a snapshot has {found} bytes, at most {MAX_SNAPSHOT_BYTES} travel")]
    SnapshotTooLong {
        /// Its bytes.
        found: usize,
    },
    /// Memory for the list of requests could not be had.
    #[error("memory for one more request could not be had")]
    NoMemory,
}

/// The requests of one round, on rank 0.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    requests: Vec<Request<'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch; it travels too.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a request at the end.
    pub fn add(&mut self, mut request: Request<'a>) -> Result<(), BatchError> {
        let count = self.requests.len();
        if count == MAX_REQUESTS {
            return Err(BatchError::TooManyRequests);
        }
        if request.body.len() > MAX_BODY_BYTES {
            return Err(BatchError::BodyTooLong { found: request.body.len() });
        }
        if let Some(parent) = request.parent {
            let Some(parent_request) = self.requests.get(parent as usize) else {
                return Err(BatchError::ParentUnknown { parent, count });
            };
            if request.snapshot.is_none() {
                request.snapshot.clone_from(&parent_request.snapshot);
            }
        }
        if let Some(snapshot) = &request.snapshot {
            let found = snapshot.json().len();
            if found > MAX_SNAPSHOT_BYTES {
                return Err(BatchError::SnapshotTooLong { found });
            }
        }
        self.requests.try_reserve(1).map_err(|_| BatchError::NoMemory)?;
        self.requests.push(request);
        Ok(())
    }

    /// The requests, in the order added.
    pub fn requests(&self) -> &[Request<'a>] {
        &self.requests
    }
}

/// One request as it arrived.
#[derive(Debug)]
pub(super) struct ReceivedRequest {
    pub(super) id: u64,
    pub(super) body: Range<usize>,
    /// Its place among the batch's snapshots.
    pub(super) snapshot: Option<u32>,
    pub(super) parent: Option<u32>,
    pub(super) plan: Option<Box<Plan>>,
}

/// The requests of one round, on the other ranks.
#[derive(Debug)]
pub struct ReceivedBatch {
    /// Bodies, snapshots, and more that was needed to decode.
    pub(super) payload: Bytes,
    /// Each distinct one once.
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) requests: Vec<ReceivedRequest>,
}

/// One received request, as long as its batch is held.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedView<'a> {
    /// As rank 0 gave it.
    pub id: u64,
    /// As rank 0 gave it.
    pub body: &'a [u8],
    /// Its own or its parent's hints; requests that shared a snapshot share one here. `None` too
    /// where only decisions travel.
    pub snapshot: Option<&'a Snapshot>,
    /// Index in this batch.
    pub parent: Option<u32>,
    /// The common decision; `None` where it is local.
    pub plan: Option<&'a Plan>,
}

impl ReceivedBatch {
    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The `index`-th request.
    pub fn get(&self, index: usize) -> Option<ReceivedView<'_>> {
        let request = self.requests.get(index)?;
        Some(ReceivedView {
            id: request.id,
            // Decoding checked the ranges against the payload.
            body: &self.payload[request.body.clone()],
            // Decoding checked the number.
            snapshot: request.snapshot.map(|number| &self.snapshots[number as usize]),
            parent: request.parent,
            plan: request.plan.as_deref(),
        })
    }
}
