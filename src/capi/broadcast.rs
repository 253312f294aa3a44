//! `kvh_broadcast`: one round, in which the batch of rank 0 reaches every rank.

use super::args;
use super::batch::{kvh_batch_t, BatchObject, Requests};
use super::communicator::{kvh_communicator_t, CommunicatorObject};
use super::context::Context;
use super::guard;
use super::guarded;
use super::handle;
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use crate::broadcast::header::AbortReason;
use crate::broadcast::round::Rounds;
use crate::poison::Poisonable;

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
/// KVH_ERR_COMMUNICATOR: a rank is gone, or this rank got a damaged frame, now or earlier.
/// KVH_ERR_NO_MEMORY on one rank alone: it lost this batch, and from now on gets
/// KVH_ERR_COMMUNICATOR; the other ranks learn of it at the next kvh_communicator_min.
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
    guard::collective(context, |is_poisoned| {
        // SAFETY: the caller's promise.
        let received_out = unsafe { args::out(received_out) };
        // SAFETY: the caller's promise.
        let batch = if batch.is_null() { None } else { Some(unsafe { guarded::get(batch) }) };
        if rounds.rank() == 0 {
            give(context, rounds, batch, is_poisoned)?;
            if let Ok(received_out) = received_out {
                received_out.write(std::ptr::null_mut());
            }
            return Ok(());
        }
        match (batch, received_out) {
            (None, Ok(received_out)) if !is_poisoned => {
                let received = BatchObject::received(rounds.receive()?);
                let received = received.inspect_err(|_| rounds.lose_batch())?;
                received_out.write(handle::give(received));
                Ok(())
            }
            _ => {
                rounds.discard()?;
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
