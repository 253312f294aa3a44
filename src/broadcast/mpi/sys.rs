//! The MPI calls that the room makes, each with the promise that makes it sound, and MPI's error
//! codes as errors.
//!
//! Guards: no call before MPI_Init or after MPI_Finalize, nor from a thread that may not call MPI
//! ([`may_call`]); counts fit MPI's `int`. Never does: initialise, finalise, abort.

use std::ffi::{c_int, c_void};

use ::mpi::ffi as raw;

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
