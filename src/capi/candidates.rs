//! `kvh_candidates_t`: the actions of a hint that some family supports.

use super::capabilities::kvh_capabilities_t;
use super::guarded::{self, Guarded};
use super::handle::{self, Handle, Owned};
use super::snapshot::kvh_snapshot_t;
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use super::types::kvh_str_t;
use super::{args, guard};
use crate::hint::Snapshot;
use crate::plan::{Candidate, Candidates};
use crate::poison::Poisonable;

/// The kv.fetch actions of one hint that at least one family supports, in the producer's order.
/// Immutable; holds the snapshot it was collected from.
pub struct kvh_candidates_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_candidates_t {
    type Object = Guarded<Candidates>;
}
impl Owned for kvh_candidates_t {}

/// What a collection came to; each action counts at most once. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_candidate_counts_t {
    /// Actions that a family supports.
    pub candidates: usize,
    /// Actions that are not kv.fetch and whose type no family lists in any version.
    pub unknown_type: usize,
    /// kv.fetch actions whose version no family lists.
    pub version_unmatched: usize,
}

/// Collects the candidates of a hint. Counts nothing in any metrics: kvh_plan_decide does, once per
/// request. Destroy them with kvh_candidates_destroy.
///
/// # Safety
/// `snapshot` is held; `capabilities` is live; `candidates_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_candidates_collect(
    snapshot: *const kvh_snapshot_t,
    capabilities: *const kvh_capabilities_t,
    candidates_out: *mut *mut kvh_candidates_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guarded::read(capabilities, |capabilities| {
            let snapshot = snapshot_from(snapshot)?;
            let candidates_out = args::out(candidates_out)?;
            let candidates = Candidates::collect(&snapshot, capabilities)?;
            candidates_out.write(handle::give(Guarded::new(candidates)));
            Ok(())
        })
    }
}

/// A further reference to the caller's snapshot.
///
/// # Safety
/// `snapshot` is NULL or held.
pub(super) unsafe fn snapshot_from(
    snapshot: *const kvh_snapshot_t,
) -> Result<Snapshot, kvh_status> {
    // SAFETY: the caller's promise.
    if unsafe { handle::get(snapshot) }?.poison().is_set() {
        return Err(KVH_ERR_POISONED);
    }
    // SAFETY: not NULL, and held by the caller's promise.
    Ok(Snapshot::from_shared(unsafe { handle::cloned(snapshot) }))
}

/// How many actions there were of each sort.
///
/// # Safety
/// `candidates` is live; `counts_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_candidates_counts(
    candidates: *const kvh_candidates_t,
    counts_out: *mut kvh_candidate_counts_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guarded::read(candidates, |candidates| {
            let counts = candidates.counts();
            args::out(counts_out)?.write(kvh_candidate_counts_t {
                candidates: counts.candidates,
                unknown_type: counts.unknown_type,
                version_unmatched: counts.version_unmatched,
            });
            Ok(())
        })
    }
}

fn candidate(candidates: &Candidates, index: usize) -> Result<&Candidate, kvh_status> {
    candidates.list().get(index).ok_or(KVH_ERR_INVALID_ARGUMENT)
}

/// The index-th candidate: its action's position in the snapshot, and how many families support it.
/// KVH_ERR_INVALID_ARGUMENT: there are not so many candidates.
///
/// # Safety
/// `candidates` is live; the outputs are writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_candidates_get(
    candidates: *const kvh_candidates_t,
    index: usize,
    action_index_out: *mut usize,
    family_count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guarded::read(candidates, |candidates| {
            let candidate = candidate(candidates, index)?;
            let action_index_out = args::out(action_index_out)?;
            let family_count_out = args::out(family_count_out)?;
            action_index_out.write(candidate.action_index);
            family_count_out.write(candidate.families().len());
            Ok(())
        })
    }
}

/// The name of the family_index-th family that supports the index-th candidate; names are sorted
/// bytewise. Valid until the candidates are destroyed. KVH_ERR_INVALID_ARGUMENT: there are not so
/// many.
///
/// # Safety
/// `candidates` is live; `family_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_candidates_family(
    candidates: *const kvh_candidates_t,
    index: usize,
    family_index: usize,
    family_out: *mut kvh_str_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe {
        guarded::read(candidates, |candidates| {
            let families = candidate(candidates, index)?.families();
            let family = families.get(family_index).ok_or(KVH_ERR_INVALID_ARGUMENT)?;
            args::out(family_out)?.write(kvh_str_t::borrow(family));
            Ok(())
        })
    }
}

/// Destroys the candidates. NULL is fine.
///
/// # Safety
/// `candidates` is NULL or live, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_candidates_destroy(candidates: *mut kvh_candidates_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(candidates) }));
}
