//! `kvh_communicator_from_ops`: a communicator made of the host's own operations, for hosts whose ranks
//! talk through NCCL, torch.distributed or anything else.
//!
//! Guards: user data is destroyed exactly once, whatever goes wrong. No lock is held while a callback
//! runs. Never does: call one after it failed, or from a destructor.

use std::ffi::c_void;
use std::sync::Arc;

use super::args::{self, Params};
use super::communicator::{
    kvh_communicator_params_t, kvh_communicator_t, settings_from, CommunicatorObject,
};
use super::context::{kvh_context_t, kvh_destroy_fn, UserData};
use super::error::{self, kvh_error_t};
use super::guard;
use super::handle;
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use crate::broadcast::communicator::{all_equal, Communicator, CommunicatorError};
use crate::broadcast::limits::MAX_RANKS;
use crate::broadcast::round::{Equipment, RoundError, Rounds};

/// Rank 0 gives `len` bytes at `data` to ranks 1 to rank_count - 1, which get them at theirs. Called on
/// these ranks alone. 0 is success.
pub type kvh_broadcast_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        data: *mut c_void,
        len: usize,
        rank_count: u32,
    ) -> i32,
>;
/// Gives `len` bytes at `data` to rank `to`. They are not needed any more when it returns. 0 is success.
pub type kvh_send_fn = Option<
    unsafe extern "C" fn(user_data: *mut c_void, to: u32, data: *const c_void, len: usize) -> i32,
>;
/// Gets the `len` bytes that rank `from` sends. Between two ranks they keep their order. 0 is success.
pub type kvh_receive_fn = Option<
    unsafe extern "C" fn(user_data: *mut c_void, from: u32, data: *mut c_void, len: usize) -> i32,
>;
/// Each of `count` values becomes the smallest of all ranks'. Called on all ranks. 0 is success.
pub type kvh_min_reduce_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, values: *mut u64, count: usize) -> i32>;

/// How a host's ranks talk. All functions block, are called from the thread that makes the call on
/// the communicator, with no lock held, and must not throw. Another result than 0 fails the
/// communicator; none is called after that.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_communicator_ops_t {
    /// sizeof(kvh_communicator_ops_t).
    pub struct_size: usize,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// This rank, less than size.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// Not NULL.
    pub broadcast: kvh_broadcast_fn,
    /// Not NULL where there is more than one pipeline stage.
    pub send: kvh_send_fn,
    /// As send.
    pub receive: kvh_receive_fn,
    /// Not NULL.
    pub min_reduce: kvh_min_reduce_fn,
    /// Called with user_data exactly once: when the communicator is destroyed, or before
    /// kvh_communicator_from_ops returns an error. May be NULL. A struct_size that ends before or
    /// within this field does not name it: then nothing is taken over or called.
    pub destroy: kvh_destroy_fn,
}

// SAFETY: repr(C), struct_size first, only integers, a raw pointer and optional functions.
unsafe impl Params for kvh_communicator_ops_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// A rank whose messages the host moves.
struct OpsCommunicator {
    ops: kvh_communicator_ops_t,
    user_data: UserData,
    /// Ranks of the first pipeline stage.
    stage_size: u32,
    /// Of a reduction that was begun, and so made.
    reduced: Option<Vec<u64>>,
}

// SAFETY: used by one thread at a time, and the header says that functions and user data are used by
// whichever thread makes a call.
unsafe impl Send for OpsCommunicator {}

fn outcome(call: &'static str, code: Option<i32>) -> Result<(), CommunicatorError> {
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(CommunicatorError::Library {
            call,
            reason: format!("the host's function returned {code}, expected 0"),
        }),
        None => Err(CommunicatorError::Unusable("the host gave no function for this operation")),
    }
}

impl OpsCommunicator {
    /// # Safety
    /// `data` points at `len` bytes, readable on rank 0 and writable on others.
    unsafe fn broadcast(&mut self, data: *mut u8, len: usize) -> Result<(), CommunicatorError> {
        let (user_data, stage_size) = (self.user_data.pointer, self.stage_size);
        // SAFETY: the host registered the function with this user data; the bytes are the caller's
        // promise.
        let call = |function: unsafe extern "C" fn(_, _, _, _) -> i32| unsafe {
            function(user_data, data.cast::<c_void>(), len, stage_size)
        };
        outcome("broadcast", self.ops.broadcast.map(call))
    }
}

impl Communicator for OpsCommunicator {
    fn rank(&self) -> u32 {
        self.ops.rank
    }

    fn size(&self) -> u32 {
        self.ops.size
    }

    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError> {
        // SAFETY: rank 0's bytes are only read, as the header asks of the function.
        unsafe { self.broadcast(bytes.as_ptr().cast_mut(), bytes.len()) }
    }

    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        // SAFETY: the buffer is writable and as long as said.
        unsafe { self.broadcast(buffer.as_mut_ptr(), buffer.len()) }
    }

    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError> {
        let user_data = self.user_data.pointer;
        // SAFETY: the host registered the function with this user data; the bytes are readable.
        let call = |function: unsafe extern "C" fn(_, _, _, _) -> i32| unsafe {
            function(user_data, to, bytes.as_ptr().cast::<c_void>(), bytes.len())
        };
        outcome("send", self.ops.send.map(call))
    }

    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        let user_data = self.user_data.pointer;
        // SAFETY: the host registered the function with this user data; the buffer is writable.
        let call = |function: unsafe extern "C" fn(_, _, _, _) -> i32| unsafe {
            function(user_data, from, buffer.as_mut_ptr().cast::<c_void>(), buffer.len())
        };
        outcome("receive", self.ops.receive.map(call))
    }

    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError> {
        let user_data = self.user_data.pointer;
        // SAFETY: the host registered the function with this user data; the values are writable.
        let call = |function: unsafe extern "C" fn(_, _, _) -> i32| unsafe {
            function(user_data, values.as_mut_ptr(), values.len())
        };
        outcome("min_reduce", self.ops.min_reduce.map(call))
    }

    fn begin_min_reduce(&mut self, values: &[u64]) -> Result<(), CommunicatorError> {
        // Made at once: ranks that poll at other times would call other things in between.
        let mut reduced = Vec::new();
        let no_memory = |_| CommunicatorError::NoMemory(8 * values.len());
        reduced.try_reserve_exact(values.len()).map_err(no_memory)?;
        reduced.extend_from_slice(values);
        self.min_reduce(&mut reduced)?;
        self.reduced = Some(reduced);
        Ok(())
    }

    fn poll_min_reduce(&mut self, values: &mut [u64]) -> Result<bool, CommunicatorError> {
        let Some(reduced) = self.reduced.take() else { return Ok(false) };
        values.copy_from_slice(&reduced);
        Ok(true)
    }

    fn abandon(&mut self) {
        // The host's ranks learn of it through the host: the call that failed says so.
    }

    fn close(&mut self) -> Result<(), CommunicatorError> {
        Ok(())
    }
}

/// Creates a communicator from the host's own operations. Collective: all ranks give equal params and
/// run the same release, which is compared with min_reduce. Destroying it calls `destroy`, whatever
/// this returns; see there. `error_out` may be NULL; else an error's text may be written to it, which
/// the caller destroys. KVH_ERR_INVALID_ARGUMENT: a function is missing, no such rank, sizes that do not
/// multiply to size, or a deadline. KVH_ERR_COMMUNICATOR: a function failed, or the ranks do not agree.
/// Bad params of this rank are its error, and KVH_ERR_COMMUNICATOR on others.
///
/// # Safety
/// `context` is live; `params` and `ops` point at their structs; the functions are as documented;
/// `communicator_out` points at a writable pointer, as does `error_out` unless NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_from_ops(
    context: *const kvh_context_t,
    params: *const kvh_communicator_params_t,
    ops: *const kvh_communicator_ops_t,
    communicator_out: *mut *mut kvh_communicator_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let (ops, rest) = match unsafe { args::read_known_params(ops) } {
        Ok(known) => known,
        Err(status) => return status as kvh_status_t,
    };
    // Before anything can fail: it owns the user data from here on.
    let user_data = UserData { pointer: ops.user_data, destroy: ops.destroy };
    // SAFETY: the caller's promise.
    let shared = match unsafe { handle::get(context) } {
        Ok(context) => context,
        Err(status) => return status as kvh_status_t,
    };
    guard::collective(shared, |is_poisoned| {
        let is_complete = ops.broadcast.is_some() && ops.min_reduce.is_some();
        let is_rank = ops.rank < ops.size && ops.size <= MAX_RANKS;
        rest?;
        if !is_complete || !is_rank {
            return Err(KVH_ERR_INVALID_ARGUMENT);
        }
        // What is wrong from here on waits until the others know.
        // SAFETY: the caller's promise.
        let chosen = unsafe {
            args::read_params(params).and_then(|params| Ok((params, args::out(communicator_out)?)))
        };
        let prepared = match chosen {
            _ if is_poisoned => Err(KVH_ERR_POISONED),
            Ok((params, out)) => equipment(&params, &ops).map(|equipment| (equipment, out)),
            Err(status) => Err(status),
        };
        let stage_size =
            prepared.as_ref().map_or(1, |(equipment, _)| equipment.settings.topology.stage_size());
        let mut communicator = OpsCommunicator { ops, user_data, stage_size, reduced: None };
        let numbers = prepared.as_ref().ok().map(|(equipment, _)| {
            let mut numbers = [0; 10];
            let settings = equipment.settings.numbers();
            numbers[..settings.len()].copy_from_slice(&settings);
            numbers
        });
        let explain = |message: String| {
            // SAFETY: the caller's promise.
            unsafe { error::explain(error_out, message) };
        };
        let are_equal = all_equal(&mut communicator, numbers.as_ref()).map_err(|error| {
            explain(error.to_string());
            kvh_status::from(RoundError::from(error))
        })?;
        let (equipment, out) = prepared.inspect_err(|_| {
            explain("bad input on this rank: see the parameters' documentation".to_owned());
        })?;
        if !are_equal {
            explain(
                "the ranks do not agree: expected the same release and params on all".to_owned(),
            );
            return Err(KVH_ERR_COMMUNICATOR);
        }
        let metrics = Arc::clone(&shared.metrics);
        out.write(handle::give(CommunicatorObject {
            // SAFETY: the context is held during this call.
            context: unsafe { handle::cloned(context) },
            rounds: Rounds::new(Box::new(communicator), equipment, metrics),
        }));
        Ok(())
    })
}

fn equipment(
    params: &kvh_communicator_params_t,
    ops: &kvh_communicator_ops_t,
) -> Result<Equipment, kvh_status> {
    let settings = settings_from(params, ops.size)?;
    let has_stages = settings.topology.rank_count() > settings.topology.stage_size();
    let moves_messages = ops.send.is_some() && ops.receive.is_some();
    if params.deadline_ns != 0 || (has_stages && !moves_messages) {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    Ok(Equipment::new(settings)?)
}
