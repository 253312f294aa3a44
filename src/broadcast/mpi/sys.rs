//! The MPI calls that the room makes, each with the promise that makes it sound, and MPI's error
//! codes as errors.
//!
//! Guards: no call before MPI_Init or after MPI_Finalize, nor from a thread that may not call MPI
//! ([`may_call`]); counts fit MPI's `int`. Never does: initialise, finalise, abort.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ::mpi::ffi as raw;
use bytes::Bytes;

use crate::broadcast::communicator::CommunicatorError;

/// An MPI communicator handle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Comm(raw::MPI_Comm);

// SAFETY: a handle is a number, or a pointer that only MPI looks behind. Calls come from one thread
// at a time, and `may_call` asks before each whether it may be this one.
unsafe impl Send for Comm {}

/// One tag is enough: messages between two ranks keep their order.
const TAG: c_int = 0;

/// Values of one reduction; bounds what is copied to the stack.
const REDUCED_AT_ONCE: usize = 512;

fn check(call: &'static str, code: c_int) -> Result<(), CommunicatorError> {
    if code == raw::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; raw::MPI_MAX_ERROR_STRING as usize + 1];
    let mut len: c_int = 0;
    // SAFETY: the buffer is longer than the longest text of this MPI.
    let told = unsafe { raw::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) };
    let len = if told == raw::MPI_SUCCESS as c_int { usize::try_from(len).unwrap_or(0) } else { 0 };
    let reason = String::from_utf8_lossy(&text[..len.min(text.len())]).into_owned();
    Err(CommunicatorError::Library { call, reason })
}

fn count(len: usize) -> Result<c_int, CommunicatorError> {
    c_int::try_from(len).map_err(|_| CommunicatorError::Unusable("a message of 2^31 bytes or more"))
}

/// Whether MPI is running. Asks nothing else, so any thread may ask at any time.
pub(super) fn is_running() -> bool {
    let (mut initialized, mut finalized): (c_int, c_int) = (0, 0);
    // SAFETY: these two may be called at any time, from any thread.
    let codes =
        unsafe { [raw::MPI_Initialized(&mut initialized), raw::MPI_Finalized(&mut finalized)] };
    codes == [raw::MPI_SUCCESS as c_int; 2] && initialized != 0 && finalized == 0
}

/// Whether MPI is running and this thread may call it.
pub(super) fn may_call() -> Result<(), CommunicatorError> {
    let (mut initialized, mut finalized): (c_int, c_int) = (0, 0);
    // SAFETY: these two may be called at any time, from any thread.
    unsafe {
        check("MPI_Initialized", raw::MPI_Initialized(&mut initialized))?;
        check("MPI_Finalized", raw::MPI_Finalized(&mut finalized))?;
    }
    if initialized == 0 {
        return Err(CommunicatorError::Unusable(
            "MPI is not initialised: the host calls MPI_Init_thread first",
        ));
    }
    if finalized != 0 {
        return Err(CommunicatorError::Unusable(
            "MPI is finalised already: communicators are closed before MPI_Finalize",
        ));
    }
    let (mut level, mut is_main): (c_int, c_int) = (0, 0);
    // SAFETY: MPI is running; these two may be called from any thread.
    unsafe {
        check("MPI_Query_thread", raw::MPI_Query_thread(&mut level))?;
        check("MPI_Is_thread_main", raw::MPI_Is_thread_main(&mut is_main))?;
    }
    // SAFETY: a constant of the MPI library.
    if level < unsafe { raw::RSMPI_THREAD_SERIALIZED } && is_main == 0 {
        return Err(CommunicatorError::Unusable(
            "MPI was initialised for calls from its main thread only: call from there, \
             or initialise with MPI_THREAD_SERIALIZED",
        ));
    }
    Ok(())
}

impl Comm {
    /// The communicator behind a Fortran handle. The caller asked [`may_call`].
    pub(super) fn from_fortran(fortran_handle: i64) -> Result<Self, CommunicatorError> {
        const NOT_ONE: CommunicatorError = CommunicatorError::Unusable(
            "not a communicator: pass MPI_Comm_c2f of an intra-communicator",
        );
        let fortran_handle = raw::RSMPI_Fint::try_from(fortran_handle).map_err(|_| NOT_ONE)?;
        // SAFETY: MPI is running; the conversion takes any number.
        let comm = Self(unsafe { raw::RSMPI_Comm_f2c(fortran_handle) });
        // SAFETY: a constant of the MPI library.
        if comm.0 == unsafe { raw::RSMPI_COMM_NULL } {
            return Err(NOT_ONE);
        }
        let mut is_inter: c_int = 0;
        // SAFETY: the host promises that the handle is that of a live communicator.
        check("MPI_Comm_test_inter", unsafe { raw::MPI_Comm_test_inter(comm.0, &mut is_inter) })?;
        if is_inter != 0 {
            return Err(NOT_ONE);
        }
        Ok(comm)
    }

    /// This rank and the number of ranks.
    pub(super) fn rank_and_size(self) -> Result<(u32, u32), CommunicatorError> {
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: a live communicator.
        unsafe {
            check("MPI_Comm_rank", raw::MPI_Comm_rank(self.0, &mut rank))?;
            check("MPI_Comm_size", raw::MPI_Comm_size(self.0, &mut size))?;
        }
        // MPI's ranks and sizes are not negative.
        Ok((rank as u32, size as u32))
    }

    /// Collective: a communicator of the same ranks whose errors are returned.
    pub(super) fn duplicate(self) -> Result<Self, CommunicatorError> {
        let mut copy = self;
        // SAFETY: a live communicator, and a place for the new one.
        check("MPI_Comm_dup", unsafe { raw::MPI_Comm_dup(self.0, &mut copy.0) })?;
        copy.return_errors()
    }

    /// Collective: the ranks of the same `colour`, in the same order.
    pub(super) fn split(self, colour: u32, rank: u32) -> Result<Self, CommunicatorError> {
        let mut part = self;
        // SAFETY: a live communicator, and a place for the new one.
        let code =
            unsafe { raw::MPI_Comm_split(self.0, colour as c_int, rank as c_int, &mut part.0) };
        check("MPI_Comm_split", code)?;
        part.return_errors()
    }

    fn return_errors(self) -> Result<Self, CommunicatorError> {
        // SAFETY: a live communicator of this library's own; the handler is a constant of MPI.
        let code = unsafe { raw::MPI_Comm_set_errhandler(self.0, raw::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", code)?;
        Ok(self)
    }

    /// Collective: gives the communicator back.
    pub(super) fn free(mut self) -> Result<(), CommunicatorError> {
        // SAFETY: a live communicator of this library's own, not used after this.
        check("MPI_Comm_free", unsafe { raw::MPI_Comm_free(&mut self.0) })
    }

    /// Rank 0's side of a broadcast.
    pub(super) fn broadcast_out(self, bytes: &[u8]) -> Result<(), CommunicatorError> {
        // SAFETY: MPI only reads the root's buffer; the parameter is not const because the other
        // ranks' is written.
        unsafe { self.broadcast(bytes.as_ptr().cast_mut(), bytes.len()) }
    }

    /// The other ranks' side of a broadcast.
    pub(super) fn broadcast_in(self, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        // SAFETY: the buffer is writable and as long as said.
        unsafe { self.broadcast(buffer.as_mut_ptr(), buffer.len()) }
    }

    /// # Safety
    /// `data` points at `len` bytes, readable on rank 0 and writable on others.
    unsafe fn broadcast(self, data: *mut u8, len: usize) -> Result<(), CommunicatorError> {
        let len = count(len)?;
        // SAFETY: a live communicator; the buffer is the caller's promise.
        let code =
            unsafe { raw::MPI_Bcast(data.cast::<c_void>(), len, raw::RSMPI_UINT8_T, 0, self.0) };
        check("MPI_Bcast", code)
    }

    /// Sends to one rank.
    pub(super) fn send(self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError> {
        let len = count(bytes.len())?;
        let data = bytes.as_ptr().cast::<c_void>();
        // SAFETY: a live communicator; the bytes are readable during the call, which blocks.
        let code =
            unsafe { raw::MPI_Send(data, len, raw::RSMPI_UINT8_T, to as c_int, TAG, self.0) };
        check("MPI_Send", code)
    }

    /// Receives from one rank exactly as many bytes as the buffer has.
    pub(super) fn receive(self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        let len = count(buffer.len())?;
        let data = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: all-zero bytes are a valid status: it holds only integers.
        let mut status: raw::MPI_Status = unsafe { std::mem::zeroed() };
        let mut found: c_int = 0;
        // SAFETY: a live communicator; the buffer is writable during the call, which blocks, and
        // MPI writes no more than `len` bytes. The status is the one just filled in.
        unsafe {
            let byte = raw::RSMPI_UINT8_T;
            let from = from as c_int;
            let code = raw::MPI_Recv(data, len, byte, from, TAG, self.0, &mut status);
            check("MPI_Recv", code)?;
            check("MPI_Get_count", raw::MPI_Get_count(&status, byte, &mut found))?;
        }
        if found != len {
            let found = usize::try_from(found).unwrap_or(0);
            return Err(CommunicatorError::OutOfStep { from, expected: buffer.len(), found });
        }
        Ok(())
    }

    /// Collective: each value becomes the smallest of all ranks'.
    pub(super) fn min_reduce(self, values: &mut [u64]) -> Result<(), CommunicatorError> {
        for part in values.chunks_mut(REDUCED_AT_ONCE) {
            let mut own = [0u64; REDUCED_AT_ONCE];
            own[..part.len()].copy_from_slice(part);
            let len = count(part.len())?;
            // SAFETY: a live communicator; both buffers have `len` values and do not overlap.
            let code = unsafe {
                raw::MPI_Allreduce(
                    own.as_ptr().cast::<c_void>(),
                    part.as_mut_ptr().cast::<c_void>(),
                    len,
                    raw::RSMPI_UINT64_T,
                    raw::RSMPI_MIN,
                    self.0,
                )
            };
            check("MPI_Allreduce", code)?;
        }
        Ok(())
    }
}

/// A call under way, and the memory that MPI uses until it is over.
#[derive(Debug)]
pub(super) struct Pending<M> {
    request: raw::MPI_Request,
    /// `None` once given back.
    memory: Option<M>,
    call: &'static str,
    is_over: bool,
}

// SAFETY: as for `Comm`: a request is a number or a pointer that only MPI looks behind.
unsafe impl<M: Send> Send for Pending<M> {}

impl<M> Drop for Pending<M> {
    fn drop(&mut self) {
        if !self.is_over {
            // MPI may still read or write it.
            std::mem::forget(self.memory.take());
        }
    }
}

impl<M> Pending<M> {
    /// Runs `start`, which hands memory behind `memory` to MPI.
    ///
    /// # Safety
    /// What `start` hands over stays in place while `memory` is kept, and nobody uses it otherwise
    /// until the call is over.
    unsafe fn start(
        call: &'static str,
        mut memory: M,
        start: impl FnOnce(&mut M, &mut raw::MPI_Request) -> c_int,
    ) -> Result<Self, CommunicatorError> {
        // SAFETY: a constant of the MPI library.
        let mut request = unsafe { raw::RSMPI_REQUEST_NULL };
        check(call, start(&mut memory, &mut request))?;
        Ok(Self { request, memory: Some(memory), call, is_over: false })
    }

    /// Whether it is over; gives MPI a turn.
    pub(super) fn is_over(&mut self) -> Result<bool, CommunicatorError> {
        if !self.is_over {
            let mut flag: c_int = 0;
            // SAFETY: a request of this library's own that is not over; a status is not asked for.
            let code =
                unsafe { raw::MPI_Test(&mut self.request, &mut flag, raw::RSMPI_STATUS_IGNORE) };
            check(self.call, code)?;
            self.is_over = flag != 0;
        }
        Ok(self.is_over)
    }

    /// The memory, once it is over.
    pub(super) fn into_memory(mut self) -> Option<M> {
        if self.is_over {
            self.memory.take()
        } else {
            None
        }
    }
}

/// What each rank gives to a reduction, and its result.
#[derive(Debug)]
pub(super) struct Reduced {
    given: Vec<u64>,
    pub(super) smallest: Vec<u64>,
}

impl Reduced {
    pub(super) fn of(values: &[u64]) -> Result<Self, CommunicatorError> {
        let (mut given, mut smallest) = (Vec::new(), Vec::new());
        let no_memory = |_| CommunicatorError::NoMemory(8 * values.len());
        given.try_reserve_exact(values.len()).map_err(no_memory)?;
        smallest.try_reserve_exact(values.len()).map_err(no_memory)?;
        given.extend_from_slice(values);
        smallest.extend_from_slice(values);
        Ok(Self { given, smallest })
    }
}

impl Comm {
    /// Begins to send `bytes`, which are kept until they are sent.
    pub(super) fn start_send(
        self,
        to: u32,
        bytes: Bytes,
    ) -> Result<Pending<Bytes>, CommunicatorError> {
        let len = count(bytes.len())?;
        let start = |bytes: &mut Bytes, request: &mut raw::MPI_Request| {
            let data = bytes.as_ptr().cast::<c_void>();
            // SAFETY: a live communicator and readable bytes.
            unsafe {
                raw::MPI_Isend(data, len, raw::RSMPI_UINT8_T, to as c_int, TAG, self.0, request)
            }
        };
        // SAFETY: bytes do not move nor change while they are kept.
        unsafe { Pending::start("MPI_Isend", bytes, start) }
    }

    /// Begins a broadcast of `buffer`, read on rank 0 and written on the others.
    pub(super) fn start_broadcast(
        self,
        buffer: Vec<u8>,
    ) -> Result<Pending<Vec<u8>>, CommunicatorError> {
        let len = count(buffer.len())?;
        let start = |buffer: &mut Vec<u8>, request: &mut raw::MPI_Request| {
            let data = buffer.as_mut_ptr().cast::<c_void>();
            // SAFETY: a live communicator and a buffer as long as said.
            unsafe { raw::MPI_Ibcast(data, len, raw::RSMPI_UINT8_T, 0, self.0, request) }
        };
        // SAFETY: the buffer lies on the heap and is not touched while the call is under way.
        unsafe { Pending::start("MPI_Ibcast", buffer, start) }
    }

    /// Begins to receive from one rank; a longer message is an error, a shorter one is found by
    /// the room's checksums.
    pub(super) fn start_receive(
        self,
        from: u32,
        buffer: Vec<u8>,
    ) -> Result<Pending<Vec<u8>>, CommunicatorError> {
        let len = count(buffer.len())?;
        let start = |buffer: &mut Vec<u8>, request: &mut raw::MPI_Request| {
            let data = buffer.as_mut_ptr().cast::<c_void>();
            // SAFETY: a live communicator and a buffer as long as said.
            unsafe {
                raw::MPI_Irecv(data, len, raw::RSMPI_UINT8_T, from as c_int, TAG, self.0, request)
            }
        };
        // SAFETY: the buffer lies on the heap and is not touched while the call is under way.
        unsafe { Pending::start("MPI_Irecv", buffer, start) }
    }

    /// Begins a reduction.
    pub(super) fn start_min_reduce(
        self,
        values: &[u64],
    ) -> Result<Pending<Reduced>, CommunicatorError> {
        let len = count(values.len())?;
        let start = |reduced: &mut Reduced, request: &mut raw::MPI_Request| {
            let given = reduced.given.as_ptr().cast::<c_void>();
            let smallest = reduced.smallest.as_mut_ptr().cast::<c_void>();
            // SAFETY: a live communicator; both buffers have `len` values and do not overlap.
            unsafe {
                let (value, min) = (raw::RSMPI_UINT64_T, raw::RSMPI_MIN);
                raw::MPI_Iallreduce(given, smallest, len, value, min, self.0, request)
            }
        };
        // SAFETY: both buffers lie on the heap and are not touched while the call is under way.
        unsafe { Pending::start("MPI_Iallreduce", Reduced::of(values)?, start) }
    }

    /// Gives MPI a turn, for whatever is under way.
    pub(super) fn progress(self) -> Result<(), CommunicatorError> {
        let mut flag: c_int = 0;
        // SAFETY: a live communicator; only asks, and a status is not asked for.
        let code = unsafe {
            let (any_rank, any_tag) = (raw::RSMPI_ANY_SOURCE, raw::RSMPI_ANY_TAG);
            raw::MPI_Iprobe(any_rank, any_tag, self.0, &mut flag, raw::RSMPI_STATUS_IGNORE)
        };
        check("MPI_Iprobe", code)
    }

    /// Collective: the ranks of this one's node, in the same order.
    pub(super) fn split_by_node(self, rank: u32) -> Result<Self, CommunicatorError> {
        let mut part = self;
        // SAFETY: a live communicator, a place for the new one, and constants of the MPI library.
        let code = unsafe {
            let (shared, info) = (raw::RSMPI_COMM_TYPE_SHARED, raw::RSMPI_INFO_NULL);
            raw::MPI_Comm_split_type(self.0, shared, rank as c_int, info, &mut part.0)
        };
        check("MPI_Comm_split_type", code)?;
        part.return_errors()
    }

    /// Collective over ranks of one node: memory that all of them see, `len` bytes given by rank 0.
    pub(super) fn allocate_shared(self, len: usize) -> Result<SharedMemory, CommunicatorError> {
        let mut base: *mut c_void = std::ptr::null_mut();
        // SAFETY: a constant of the MPI library.
        let mut window = unsafe { raw::RSMPI_WIN_NULL };
        // Within a few mebibytes.
        let len = len as raw::MPI_Aint;
        // SAFETY: a live communicator whose ranks share memory, and places for the results; the base
        // is written as a pointer, as MPI documents for this parameter.
        let code = unsafe {
            let base = std::ptr::from_mut(&mut base).cast::<c_void>();
            raw::MPI_Win_allocate_shared(len, 1, raw::RSMPI_INFO_NULL, self.0, base, &mut window)
        };
        check("MPI_Win_allocate_shared", code)?;
        let (mut rank_0_len, mut unit): (raw::MPI_Aint, c_int) = (0, 0);
        // SAFETY: a live window, and places for the results.
        let code = unsafe {
            let base = std::ptr::from_mut(&mut base).cast::<c_void>();
            raw::MPI_Win_shared_query(window, 0, &mut rank_0_len, &mut unit, base)
        };
        check("MPI_Win_shared_query", code)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(CommunicatorError::Library {
            call: "MPI_Win_shared_query",
            reason: "no address".to_owned(),
        })?;
        Ok(SharedMemory { window, base })
    }
}

/// Memory that the ranks of a node share, until it is freed or MPI finalised.
#[derive(Debug)]
pub(super) struct SharedMemory {
    window: raw::MPI_Win,
    base: NonNull<u8>,
}

// SAFETY: as for `Comm`; the base is a pointer into memory that does not move.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Where rank 0's bytes lie in this process.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Collective: nobody uses it after this.
    pub(super) fn free(mut self) -> Result<(), CommunicatorError> {
        // SAFETY: a live window of this library's own, not used after this.
        check("MPI_Win_free", unsafe { raw::MPI_Win_free(&mut self.window) })
    }
}
