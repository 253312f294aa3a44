//! `kvh_broadcast`: one round, in which the batch of rank 0 reaches every rank.

use super::args;
use super::batch::{kvh_batch_t, BatchObject, Requests};
use super::communicator::{failed, kvh_communicator_t, CommunicatorObject};
use super::context::Context;
use super::guard;
use super::guarded;
use super::handle;
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use crate::broadcast::header::AbortReason;
use crate::broadcast::round::Rounds;
use crate::poison::Poisonable;
use crate::telemetry::nvtx::{Range, Step};

/// Collective: one round. Rank 0 gives a batch that it filled with kvh_batch_add; its bodies are no
/// longer needed when the call returns, and received_out may be NULL (NULL is written otherwise).
/// The other ranks give NULL, and get a new batch, which they destroy: bodies and parents as given,
/// plans and, unless the mode is KVH_BROADCAST_DECIDED, snapshots equal to those given. Snapshots
/// are not judged or counted again; requests that shared one share one.
///
/// Where rank 0 has no batch to give (NULL, a received one, too large, no memory, poisoned), all
/// ranks get the status that says so, and nothing was delivered: KVH_ERR_INVALID_ARGUMENT,
/// KVH_ERR_LIMIT, KVH_ERR_NO_MEMORY or KVH_ERR_POISONED. Another rank with a batch or without
/// received_out takes part, receives nothing and gets KVH_ERR_INVALID_ARGUMENT.
/// KVH_ERR_COMMUNICATOR: a rank is gone, or this rank got a damaged frame; then its context is
/// poisoned, and the other ranks learn of it at their next agreement.
/// KVH_ERR_NO_MEMORY on one rank alone: it lost this batch, and from now on gets
/// KVH_ERR_COMMUNICATOR; the other ranks learn of it at their next agreement.
///
/// # Safety
/// `communicator` is live and used by this call alone; `batch` is NULL or live, with live bodies;
/// `received_out` is NULL or points at a writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_broadcast(
    communicator: *mut kvh_communicator_t,
    batch: *const kvh_batch_t,
    received_out: *mut *mut kvh_batch_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let object = match unsafe { handle::get_mut(communicator) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    let CommunicatorObject { context, rounds } = object;
    // SAFETY: the caller's promise.
    let given = unsafe { guarded::get(batch) };
    let _range = Range::push(Step::Broadcast, || given.map_or(0, BatchObject::payload_bytes));
    guard::collective(context, |is_poisoned| {
        // SAFETY: the caller's promise.
        let received_out = unsafe { args::out(received_out) };
        let batch = if batch.is_null() { None } else { Some(given) };
        if rounds.rank() == 0 {
            give(context, rounds, batch, is_poisoned)?;
            if let Ok(received_out) = received_out {
                received_out.write(std::ptr::null_mut());
            }
            return Ok(());
        }
        match (batch, received_out) {
            (None, Ok(received_out)) if !is_poisoned => {
                let received = rounds.receive().map_err(|error| failed(context, error))?;
                let received = BatchObject::received(received);
                let received = received.inspect_err(|_| rounds.lose_batch())?;
                received_out.write(handle::give(received));
                Ok(())
            }
            _ => {
                rounds.discard().map_err(|error| failed(context, error))?;
                Err(KVH_ERR_INVALID_ARGUMENT)
            }
        }
    })
}

/// Whatever is wrong with the batch, the round takes place.
fn give(
    context: &Context,
    rounds: &mut Rounds,
    batch: Option<Result<&BatchObject, kvh_status>>,
    is_poisoned: bool,
) -> CallResult {
    let prepared = match batch {
        _ if is_poisoned => Err(AbortReason::Poisoned),
        Some(Ok(BatchObject { requests: Requests::Given(given), .. })) => {
            // A panic in here poisons the context, and the round still takes place.
            let prepared = context.poison().catch(|| rounds.prepare(given));
            prepared.unwrap_or(Err(AbortReason::Poisoned))
        }
        _ => Err(AbortReason::InvalidBatch),
    };
    Ok(rounds.give(prepared)?)
}

#[cfg(test)]
mod tests {
    use super::super::batch::{kvh_batch_count, kvh_batch_create, kvh_batch_destroy};
    use super::super::communicator::*;
    use super::super::context::{kvh_context_create, kvh_context_destroy, kvh_context_t};
    use super::*;

    const RANKS: u32 = 3;

    /// What `rank_main` comes to on three ranks, of which `poisoned_rank` has a poisoned context.
    fn with_poisoned(
        poisoned_rank: u32,
        rank_main: impl Fn(*mut kvh_communicator_t) -> [kvh_status_t; 2] + Sync,
    ) -> Vec<[kvh_status_t; 2]> {
        let mut group = std::ptr::null_mut();
        // SAFETY: a writable place.
        assert_eq!(unsafe { kvh_local_group_create(RANKS, &mut group) }, KVH_OK as kvh_status_t);
        // SAFETY: zero is a valid value of every field.
        let mut params: kvh_communicator_params_t = unsafe { std::mem::zeroed() };
        params.struct_size = size_of_val(&params);
        params.pipeline_size = RANKS;

        let contexts: Vec<*mut kvh_context_t> = (0..RANKS).map(|_| context()).collect();
        let communicators: Vec<usize> = (0..RANKS)
            .map(|rank| {
                let mut communicator = std::ptr::null_mut();
                let context = contexts[rank as usize];
                // SAFETY: all handles are live, the places writable.
                let status = unsafe {
                    kvh_communicator_create_local(context, group, rank, &params, &mut communicator)
                };
                assert_eq!(status, KVH_OK as kvh_status_t);
                communicator as usize
            })
            .collect();
        // SAFETY: live.
        let poisoned = unsafe { handle::get(contexts[poisoned_rank as usize]) };
        poisoned.expect("a context").poison.set_at("test".to_owned());

        let statuses = std::thread::scope(|scope| {
            let threads: Vec<_> = communicators
                .iter()
                .map(|communicator| {
                    let rank_main = &rank_main;
                    // An address: each handle is used by one thread.
                    scope.spawn(move || rank_main(*communicator as *mut kvh_communicator_t))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("the thread")).collect()
        });
        // SAFETY: each is live and destroyed once.
        unsafe {
            communicators.iter().for_each(|place| kvh_communicator_destroy(*place as *mut _));
            contexts.iter().for_each(|context| kvh_context_destroy(*context));
            kvh_local_group_destroy(group);
        }
        statuses
    }

    fn context() -> *mut kvh_context_t {
        let mut context = std::ptr::null_mut();
        // SAFETY: NULL params are allowed; the place is writable.
        let status = unsafe { kvh_context_create(std::ptr::null(), &mut context) };
        assert_eq!(status, KVH_OK as kvh_status_t);
        context
    }

    fn two_rounds(communicator: *mut kvh_communicator_t) -> [kvh_status_t; 2] {
        [(); 2].map(|()| {
            let (mut batch, mut received) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: live handles and writable places.
            unsafe {
                if kvh_communicator_rank(communicator) == 0 {
                    assert_eq!(kvh_batch_create(&mut batch), KVH_OK as kvh_status_t);
                }
                let status = kvh_broadcast(communicator, batch, &mut received);
                assert_eq!(kvh_batch_count(received), 0);
                kvh_batch_destroy(batch);
                kvh_batch_destroy(received);
                status
            }
        })
    }

    #[test]
    fn a_poisoned_rank_0_tells_all_ranks_in_each_round() {
        let poisoned = KVH_ERR_POISONED as kvh_status_t;
        assert_eq!(with_poisoned(0, two_rounds), [[poisoned; 2]; 3]);
    }

    #[test]
    fn another_poisoned_rank_takes_part_and_passes_on() {
        let (ok, poisoned) = (KVH_OK as kvh_status_t, KVH_ERR_POISONED as kvh_status_t);
        assert_eq!(with_poisoned(1, two_rounds), [[ok; 2], [poisoned; 2], [ok; 2]]);
    }

    #[test]
    fn a_poisoned_rank_shows_in_agreements_and_can_close() {
        let statuses = with_poisoned(1, |communicator| {
            let mut value = 1u64;
            let place = &raw mut value;
            // SAFETY: a live handle; the value is readable and writable.
            unsafe {
                [
                    kvh_communicator_min(communicator, place, 1, place),
                    kvh_communicator_close(communicator),
                ]
            }
        });
        let (ok, poisoned) = (KVH_OK as kvh_status_t, KVH_ERR_POISONED as kvh_status_t);
        let told = KVH_ERR_COMMUNICATOR as kvh_status_t;
        assert_eq!(statuses, [[told, ok], [poisoned; 2], [told, ok]]);
    }
}
