//! `kvh_communicator_t`: one rank's access to the other ranks of its worker, over MPI, inside one
//! process, or by callbacks of the host (`communicator_ops`); and `kvh_local_group_t`, where ranks
//! inside one process come from.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use super::args::{self, Params};
use super::context::{kvh_context_t, Context};
use super::error::{self, kvh_error_t};
use super::guard;
use super::handle::{self, Handle, Owned};
use super::status::kvh_status::{self, *};
use super::status::kvh_status_t;
use crate::broadcast::communicator::CommunicatorError;
use crate::broadcast::frame::FrameError;
use crate::broadcast::header::AbortReason;
use crate::broadcast::limits::{
    CHUNK_BYTES_RANGE, DEFAULT_CHUNK_BYTES, DEFAULT_FIRST_MESSAGE_BYTES, FIRST_MESSAGE_BYTES_RANGE,
    MAX_AGREED_VALUES,
};
use crate::broadcast::local::LocalGroup;
use crate::broadcast::round::{Equipment, RoundError, Rounds};
use crate::broadcast::settings::{HintForm, Mode, PipelineSends, Settings};
use crate::broadcast::topology::Topology;
use crate::poison::Poisonable;
use crate::telemetry::log::Event;

/// What a communicator handle holds.
pub struct CommunicatorObject {
    pub(super) context: Arc<Context>,
    pub(super) rounds: Rounds,
}

/// One rank's access to the other ranks of its worker. Belongs to one thread at a time.
///
/// Calls that say "collective" are made by all ranks, in the same order; each waits for the others.
/// A rank that has nothing to give, was called with bad arguments, or whose context is poisoned
/// takes part all the same and gets its error afterwards. After KVH_ERR_COMMUNICATOR from a call
/// the communicator of this rank can only be destroyed, unless the call says otherwise. A rank that
/// finds what it received damaged poisons its context, and the others learn of it at their next
/// agreement (kvh_communicator_min, kvh_communicator_min_begin).
pub struct kvh_communicator_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_communicator_t {
    type Object = CommunicatorObject;
}
impl Owned for kvh_communicator_t {}

/// Ranks inside one process, each used by a thread of its own.
pub struct kvh_local_group_t {
    _opaque: [u8; 0],
}

impl Handle for kvh_local_group_t {
    type Object = LocalGroup;
}
impl Owned for kvh_local_group_t {}

/// mode: every rank gets snapshots and plans. The default.
pub const KVH_BROADCAST_FULL: u32 = 1;
/// mode: rank 0 decided; plans travel, snapshots stay on rank 0.
pub const KVH_BROADCAST_DECIDED: u32 = 2;

/// pipeline_sends: a round ends on a rank when what it sends on to the next stage is out of its
/// hands. The default.
pub const KVH_PIPELINE_SYNCHRONOUS: u32 = 1;
/// pipeline_sends: a round ends before; the next one waits for these sends first.
pub const KVH_PIPELINE_ASYNCHRONOUS: u32 = 2;

/// hint_form: hints travel as they are. The default.
pub const KVH_HINT_FORM_TEXT: u32 = 1;
/// hint_form: block hashes travel as eight bytes each: about 0.4 of the bytes, for more work on all
/// ranks. For slow networks.
pub const KVH_HINT_FORM_PACKED: u32 = 2;

/// node_window: ranks of one node share one copy, in memory that MPI gives. The default.
pub const KVH_NODE_WINDOW_ON: u32 = 1;
/// node_window: every rank gets its messages from MPI.
pub const KVH_NODE_WINDOW_OFF: u32 = 2;

/// How the ranks are arranged and what travels. The same on all ranks. Zero fields mean default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_communicator_params_t {
    /// sizeof(kvh_communicator_params_t).
    pub struct_size: usize,
    /// Tensor-parallel size. Default: all ranks that pipeline_size and context_size leave.
    pub tensor_size: u32,
    /// Pipeline-parallel size. Default 1.
    pub pipeline_size: u32,
    /// Context-parallel size. Default 1.
    /// rank = pp * (tensor_size * context_size) + tp * context_size + cp.
    pub context_size: u32,
    /// KVH_BROADCAST_*. Default KVH_BROADCAST_FULL.
    pub mode: u32,
    /// Bytes of the longest message, 4 KiB to 1 GiB. Default 4 MiB.
    pub chunk_bytes: u32,
    /// KVH_PIPELINE_*. Default KVH_PIPELINE_SYNCHRONOUS.
    pub pipeline_sends: u32,
    /// How long a call waits for the other ranks before the communicator fails. Default: local ranks
    /// wait as long as the others exist, MPI decides by itself. With MPI a deadline costs a copy of
    /// each message that does not go through the node window. Must be 0 with callbacks.
    pub deadline_ns: u64,
    /// KVH_HINT_FORM_*. Default KVH_HINT_FORM_TEXT.
    pub hint_form: u32,
    /// With MPI: KVH_NODE_WINDOW_*. Default KVH_NODE_WINDOW_ON.
    pub node_window: u32,
    /// Bytes of a round's first message, 64 to 1 MiB: a header of 64 and the beginning of what
    /// follows, so that a short round is one message. It always has this size. Default 64.
    pub first_message_bytes: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, only integers.
unsafe impl Params for kvh_communicator_params_t {
    const MIN_SIZE: usize = offset_of!(Self, hint_form);
}

/// What both numbers and 0, the first, stand for.
fn either<T>(number: u32, values: [T; 2]) -> Result<T, kvh_status> {
    let [first, second] = values;
    match number {
        0 | 1 => Ok(first),
        2 => Ok(second),
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

/// A size that the host chose, or the default for 0.
fn size_in(
    chosen: u32,
    range: std::ops::RangeInclusive<usize>,
    default: usize,
) -> Result<usize, kvh_status> {
    match chosen as usize {
        0 => Ok(default),
        chosen if range.contains(&chosen) => Ok(chosen),
        _ => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

/// The settings of a communicator of `size` ranks.
pub(super) fn settings_from(
    params: &kvh_communicator_params_t,
    size: u32,
) -> Result<Settings, kvh_status> {
    if params.reserved != 0 {
        return Err(KVH_ERR_ABI);
    }
    let or_one = |value: u32| value.max(1);
    let (pipeline, context) = (or_one(params.pipeline_size), or_one(params.context_size));
    let others = pipeline.checked_mul(context).ok_or(KVH_ERR_INVALID_ARGUMENT)?;
    let tensor = if params.tensor_size == 0 { size / others } else { params.tensor_size };
    let topology = Topology::new(tensor, pipeline, context).ok_or(KVH_ERR_INVALID_ARGUMENT)?;
    if topology.rank_count() != size {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    node_window_from(params)?;
    let first = params.first_message_bytes;
    Ok(Settings {
        topology,
        // Each pair in the order of its constants.
        mode: either(params.mode, [Mode::Full, Mode::Decided])?,
        hint_form: either(params.hint_form, [HintForm::Text, HintForm::Packed])?,
        pipeline_sends: either(
            params.pipeline_sends,
            [PipelineSends::Synchronous, PipelineSends::Asynchronous],
        )?,
        chunk_bytes: size_in(params.chunk_bytes, CHUNK_BYTES_RANGE, DEFAULT_CHUNK_BYTES)?,
        first_message_bytes: size_in(
            first,
            FIRST_MESSAGE_BYTES_RANGE,
            DEFAULT_FIRST_MESSAGE_BYTES,
        )?,
    })
}

fn node_window_from(params: &kvh_communicator_params_t) -> Result<bool, kvh_status> {
    either(params.node_window, [true, false])
}

/// A deadline, or none.
fn deadline_from(params: &kvh_communicator_params_t) -> Option<Duration> {
    (params.deadline_ns > 0).then(|| Duration::from_nanos(params.deadline_ns))
}

/// The status of a failed collective call. A rank that finds what it received damaged is poisoned:
/// what it holds is not what the others hold.
pub(super) fn failed(context: &Context, error: RoundError) -> kvh_status {
    if matches!(
        error,
        RoundError::Header(_)
            | RoundError::OtherRound { .. }
            | RoundError::Frame(FrameError::Damaged(_))
    ) {
        context.poison().set_at("a damaged broadcast round".to_owned());
    }
    let status = kvh_status::from(error);
    if status == KVH_ERR_COMMUNICATOR {
        context.log(Event::BroadcastFailed, &[]);
    }
    status
}

impl From<AbortReason> for kvh_status {
    fn from(reason: AbortReason) -> Self {
        match reason {
            AbortReason::InvalidBatch => KVH_ERR_INVALID_ARGUMENT,
            AbortReason::Limit => KVH_ERR_LIMIT,
            AbortReason::NoMemory => KVH_ERR_NO_MEMORY,
            AbortReason::Poisoned => KVH_ERR_POISONED,
        }
    }
}

impl From<RoundError> for kvh_status {
    fn from(error: RoundError) -> Self {
        match error {
            RoundError::Aborted(reason) => reason.into(),
            RoundError::Frame(FrameError::NoMemory) => KVH_ERR_NO_MEMORY,
            RoundError::Closed
            | RoundError::AgreementOpen
            | RoundError::NoAgreement
            | RoundError::Communicator(CommunicatorError::Unusable(_)) => KVH_ERR_STATE,
            RoundError::WrongRank => KVH_ERR_INVALID_ARGUMENT,
            RoundError::Communicator(_)
            | RoundError::Header(_)
            | RoundError::OtherRound { .. }
            | RoundError::Frame(FrameError::Damaged(_))
            | RoundError::FailedEarlier
            | RoundError::Disagree => KVH_ERR_COMMUNICATOR,
        }
    }
}

/// Creates a group of `size` ranks inside this process, 1 to 256. Destroy it with
/// kvh_local_group_destroy.
///
/// # Safety
/// `group_out` points at a writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_local_group_create(
    size: u32,
    group_out: *mut *mut kvh_local_group_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let group_out = unsafe { args::out(group_out) }?;
        let group = LocalGroup::new(size).ok_or(KVH_ERR_INVALID_ARGUMENT)?;
        group_out.write(handle::give(group));
        Ok(())
    })
}

/// Destroys the group. Communicators made from it stay usable; ranks that were not made by now
/// never will be, and those that wait for them get KVH_ERR_COMMUNICATOR. NULL is fine.
///
/// # Safety
/// `group` is NULL or a live group, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_local_group_destroy(group: *mut kvh_local_group_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(group) }));
}

/// Creates the communicator of one rank of a group. Not collective. Each rank is made once.
/// Destroying one, in whatever way its thread ends, wakes all ranks that wait for it with
/// KVH_ERR_COMMUNICATOR.
/// KVH_ERR_INVALID_ARGUMENT: no such rank, or sizes that do not multiply to the group's.
/// KVH_ERR_STATE: the rank was made before, or other ranks of the group with other params.
///
/// # Safety
/// `context` and `group` are live; `params` points at a parameter struct; `communicator_out` at a
/// writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_create_local(
    context: *const kvh_context_t,
    group: *const kvh_local_group_t,
    rank: u32,
    params: *const kvh_communicator_params_t,
    communicator_out: *mut *mut kvh_communicator_t,
) -> kvh_status_t {
    let create = |shared: &Context| {
        // SAFETY: the caller's promise.
        let (group, params, communicator_out) = unsafe {
            (handle::get(group)?, args::read_params(params)?, args::out(communicator_out)?)
        };
        let settings = settings_from(&params, group.size())?;
        let equipment = Equipment::new(settings)?;
        if rank >= group.size() {
            return Err(KVH_ERR_INVALID_ARGUMENT);
        }
        let deadline = deadline_from(&params);
        let communicator = group.take(rank, settings, deadline).map_err(|_| KVH_ERR_STATE)?;
        let metrics = Arc::clone(&shared.metrics);
        communicator_out.write(handle::give(CommunicatorObject {
            // SAFETY: the context is held during this call.
            context: unsafe { handle::cloned(context) },
            rounds: Rounds::new(Box::new(communicator), equipment, metrics),
        }));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard::on_context(context, create) }
}

/// Creates a communicator over MPI: `fortran_handle` is MPI_Comm_c2f of an intra-communicator of
/// the MPI that this library was built with. Collective over that communicator, which is duplicated
/// and not used otherwise. All ranks must give equal params and run the same release.
///
/// The host owns MPI: it initialises MPI before and finalises it after. If MPI was initialised with
/// less than MPI_THREAD_SERIALIZED, every call on the communicator comes from MPI's main thread.
/// `error_out` may be NULL; else an error's text may be written to it, which the caller destroys.
/// KVH_ERR_UNSUPPORTED: built without MPI. KVH_ERR_STATE: MPI not initialised, finalised already,
/// or this thread may not call it; nothing was called. KVH_ERR_COMMUNICATOR: MPI failed, or the
/// ranks do not agree. Bad params of this rank are its error, and KVH_ERR_COMMUNICATOR on others.
///
/// # Safety
/// `context` is live; `params` points at a parameter struct; the handle is one of a live
/// communicator; `communicator_out` points at a writable pointer, as does `error_out` unless NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_create_mpi(
    context: *const kvh_context_t,
    params: *const kvh_communicator_params_t,
    fortran_handle: i64,
    communicator_out: *mut *mut kvh_communicator_t,
    error_out: *mut *mut kvh_error_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let shared = match unsafe { handle::get(context) } {
        Ok(context) => context,
        Err(status) => return status as kvh_status_t,
    };
    guard::collective(shared, |is_poisoned| {
        // SAFETY: the caller's promise. What is wrong on this rank waits until the others know.
        let arguments = unsafe {
            args::read_params(params).and_then(|params| Ok((params, args::out(communicator_out)?)))
        };
        let arguments = if is_poisoned { Err(KVH_ERR_POISONED) } else { arguments };
        // SAFETY: the context is held during this call.
        let context = unsafe { handle::cloned(context) };
        connect(context, fortran_handle, arguments).map_err(|(status, message)| {
            // SAFETY: the caller's promise.
            unsafe { error::explain(error_out, message) };
            status
        })
    })
}

type MpiArguments<'a> =
    (kvh_communicator_params_t, &'a mut std::mem::MaybeUninit<*mut kvh_communicator_t>);

#[cfg(feature = "mpi")]
fn connect(
    context: Arc<Context>,
    fortran_handle: i64,
    arguments: Result<MpiArguments<'_>, kvh_status>,
) -> Result<(), (kvh_status, String)> {
    use crate::broadcast::mpi::{self, Choice, ConnectError};

    let mut place = None;
    let connected = mpi::connect(fortran_handle, |size| {
        let (params, out) = arguments?;
        let equipment = Equipment::new(settings_from(&params, size)?)?;
        let (deadline, node_window) = (deadline_from(&params), node_window_from(&params)?);
        place = Some(out);
        Ok(Choice { equipment, deadline, node_window })
    });
    let (communicator, equipment) = connected.map_err(|error| {
        let message = error.to_string();
        let status = match error {
            ConnectError::Own(status) => status,
            ConnectError::Disagree => KVH_ERR_COMMUNICATOR,
            ConnectError::Communicator(error) => RoundError::from(error).into(),
        };
        (status, message)
    })?;
    let metrics = Arc::clone(&context.metrics);
    let rounds = Rounds::new(Box::new(communicator), equipment, metrics);
    if let Some(out) = place {
        out.write(handle::give(CommunicatorObject { context, rounds }));
    }
    Ok(())
}

#[cfg(not(feature = "mpi"))]
fn connect(
    _context: Arc<Context>,
    _fortran_handle: i64,
    arguments: Result<MpiArguments<'_>, kvh_status>,
) -> Result<(), (kvh_status, String)> {
    let refused = |status| (status, "bad input on this rank".to_owned());
    arguments.map_err(refused)?;
    let message = "this library was built without MPI: build it with the feature `mpi`";
    Err((KVH_ERR_UNSUPPORTED, message.to_owned()))
}

/// This rank, less than kvh_communicator_size. 0 for NULL.
///
/// # Safety
/// `communicator` is NULL or a live communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_rank(communicator: *const kvh_communicator_t) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { handle::get(communicator) }.map_or(0, |object| object.rounds.rank())
}

/// How many ranks there are. 0 for NULL.
///
/// # Safety
/// `communicator` is NULL or a live communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_size(communicator: *const kvh_communicator_t) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { handle::get(communicator) }.map_or(0, |object| object.rounds.size())
}

/// Collective: result[i] becomes the smallest of all ranks' mine[i]. All ranks give the same count,
/// at most 65,536; mine and result may be the same array.
/// KVH_ERR_COMMUNICATOR: the counts differ, or a rank was called with bad arguments, is poisoned, or
/// lost a batch earlier; that is how the others learn of it. When all ranks got it for that reason,
/// the communicator stays in step.
///
/// # Safety
/// `communicator` is live and used by this call alone; `mine` points at `count` readable values and
/// `result` at as many writable ones.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_min(
    communicator: *mut kvh_communicator_t,
    mine: *const u64,
    count: usize,
    result: *mut u64,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let object = match unsafe { handle::get_mut(communicator) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    let CommunicatorObject { context, rounds } = object;
    guard::collective(context, |is_poisoned| {
        // SAFETY: the caller's promise.
        let mut values = unsafe { values_of(mine, count, result) };
        if is_poisoned {
            // As in kvh_communicator_min_begin.
            rounds.finish_min()?;
        }
        let given = values.as_mut().ok().filter(|_| !is_poisoned);
        let outcome = rounds.min_reduce(given.map(Vec::as_mut_slice));
        // What is wrong on this rank says more than that the ranks disagree.
        let values = values?;
        outcome.map_err(|error| failed(context, error))?;
        if count > 0 {
            // SAFETY: checked by `values_of`: not NULL, aligned; the caller promises the room.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), result, count) };
        }
        Ok(())
    })
}

/// Collective: begins what kvh_communicator_min does at once, and waits for nobody. An executor
/// calls it once an iteration with one value for each open attempt, in the order in which rank 0
/// broadcast their requests, and asks for the result with kvh_communicator_min_poll. One at a time;
/// rounds may come in between. With callbacks the reduction is made in this call.
/// KVH_ERR_STATE: one is under way. Bad arguments and poisoned contexts are told to all ranks by
/// kvh_communicator_min_poll, as by kvh_communicator_min; this rank gets its own error here, and
/// polls with count 0.
///
/// # Safety
/// `communicator` is live and used by this call alone; `mine` points at `count` readable values.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_min_begin(
    communicator: *mut kvh_communicator_t,
    mine: *const u64,
    count: usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let object = match unsafe { handle::get_mut(communicator) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    let CommunicatorObject { context, rounds } = object;
    guard::collective(context, |is_poisoned| {
        // SAFETY: the caller's promise.
        let values = unsafe { args::slice(mine, count) };
        let values = values.and_then(|values| match values.len() <= MAX_AGREED_VALUES {
            true => Ok(values),
            false => Err(KVH_ERR_INVALID_ARGUMENT),
        });
        if is_poisoned {
            // Its caller may have stopped asking; the others still need this rank for the last one.
            rounds.finish_min()?;
        }
        let given = values.as_ref().ok().filter(|_| !is_poisoned);
        rounds.begin_min(given.copied()).map_err(|error| failed(context, error))?;
        values.map(|_| ())
    })
}

/// Whether the agreement that was begun is over: KVH_IN_PROGRESS while not all ranks are known to have
/// begun it; KVH_OK and result[i] is the smallest of all ranks' mine[i]; other statuses as
/// kvh_communicator_min. Does not wait. `count` is the one that the agreement was begun with, or 0
/// where that call was refused. KVH_ERR_STATE: none is under way, or one with another count.
///
/// # Safety
/// `communicator` is live and used by this call alone; `result` points at `count` writable values.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_min_poll(
    communicator: *mut kvh_communicator_t,
    result: *mut u64,
    count: usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let object = match unsafe { handle::get_mut(communicator) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    let CommunicatorObject { context, rounds } = object;
    guard::collective(context, |is_poisoned| {
        if is_poisoned {
            return Ok(rounds.finish_min()?);
        }
        let open_count = rounds.open_min_count().ok_or(KVH_ERR_STATE)?;
        // SAFETY: the caller's promise; the slice is only looked at for its length and alignment.
        if open_count != count || unsafe { args::slice(result, count) }.is_err() {
            return Err(KVH_ERR_STATE);
        }
        let mut values = Vec::new();
        values.try_reserve_exact(open_count)?;
        values.resize(open_count, 0);
        if !rounds.poll_min(&mut values).map_err(|error| failed(context, error))? {
            return Err(KVH_IN_PROGRESS);
        }
        if open_count > 0 {
            // SAFETY: checked above: not NULL, aligned; the caller promises the room.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), result, open_count) };
        }
        Ok(())
    })
}

/// A copy of the caller's values, once both arrays are known to be usable.
///
/// # Safety
/// `mine` is NULL or points at `count` readable values.
unsafe fn values_of(
    mine: *const u64,
    count: usize,
    result: *mut u64,
) -> Result<Vec<u64>, kvh_status> {
    if count > MAX_AGREED_VALUES || (count > 0 && (result.is_null() || !result.is_aligned())) {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    let mine = unsafe { args::slice(mine, count) }?;
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.extend_from_slice(mine);
    Ok(values)
}

/// Collective: gives back what the communicator holds; only destroying it is left. With MPI this
/// comes before MPI_Finalize. KVH_ERR_STATE: closed before, or MPI finalised already.
///
/// # Safety
/// `communicator` is live and used by this call alone.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_close(
    communicator: *mut kvh_communicator_t,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let object = match unsafe { handle::get_mut(communicator) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    let CommunicatorObject { context, rounds } = object;
    guard::collective(context, |_| rounds.close().map_err(|error| failed(context, error)))
}

/// Destroys the communicator, and calls no MPI: without kvh_communicator_close before, what it
/// holds of MPI is leaked, on purpose, until MPI_Finalize. Local ranks that wait for this one get
/// KVH_ERR_COMMUNICATOR. NULL is fine.
///
/// # Safety
/// `communicator` is NULL or a live communicator, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_communicator_destroy(communicator: *mut kvh_communicator_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(communicator) }));
}
