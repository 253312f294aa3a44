//! MPI ranks, on a duplicate of a communicator that the host gives.
//!
//! The host owns MPI. Guards: every call asks first whether MPI runs and whether this thread may
//! call it (a few loads). Dropping a communicator calls nothing: freeing is collective, and the host
//! may have finalised MPI. So one that is dropped without [`Communicator::close`] leaks its
//! duplicates on purpose, until MPI_Finalize.

mod sys;

use self::sys::Comm;
use super::communicator::{all_equal, Communicator, CommunicatorError};
use super::header::WIRE_VERSION;
use super::round::Equipment;

/// One MPI rank.
#[derive(Debug)]
pub struct MpiCommunicator {
    all: Comm,
    /// The ranks of this rank's pipeline stage; `None` if there is one stage.
    stage: Option<Comm>,
    rank: u32,
    size: u32,
}

/// Why this rank is not connected. No rank is, then.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError<E> {
    /// What `prepare` said on this rank.
    #[error("bad input on this rank")]
    Own(E),
    /// Other ranks have other settings, another release, or bad input.
    #[error(
        "the ranks do not agree: expected the same release and params on all ranks, \
         and no bad input on any"
    )]
    Disagree,
    /// MPI.
    #[error(transparent)]
    Communicator(#[from] CommunicatorError),
}

/// Collective over the communicator behind `fortran_handle`: duplicates it, asks `prepare` (which is
/// told the number of ranks) for this rank's equipment, and checks that all ranks have the same. A
/// rank that has none takes part in that check, so that all ranks return.
pub fn connect<E>(
    fortran_handle: i64,
    prepare: impl FnOnce(u32) -> Result<Equipment, E>,
) -> Result<(MpiCommunicator, Equipment), ConnectError<E>> {
    sys::may_call()?;
    let host = Comm::from_fortran(fortran_handle)?;
    let (rank, size) = host.rank_and_size()?;
    let mut communicator = MpiCommunicator { all: host.duplicate()?, stage: None, rank, size };

    let prepared = prepare(size);
    let settings = prepared.as_ref().map(|equipment| equipment.settings);
    let mut compared = [0; 7];
    compared[0] = u64::from(WIRE_VERSION);
    if let Ok(settings) = settings {
        compared[1] = 1;
        compared[2..].copy_from_slice(&settings.numbers());
    }
    let are_equal = all_equal(&mut communicator, &compared)?;
    match prepared {
        Ok(equipment) if are_equal => {
            let stage_size = equipment.settings.topology.stage_size();
            if stage_size < size {
                communicator.stage = Some(communicator.all.split(rank / stage_size, rank)?);
            }
            Ok((communicator, equipment))
        }
        // All ranks come here together: each had bad input, or saw that not all are equal.
        Ok(_) => {
            communicator.all.free()?;
            Err(ConnectError::Disagree)
        }
        Err(error) => {
            communicator.all.free()?;
            Err(ConnectError::Own(error))
        }
    }
}

impl MpiCommunicator {
    fn first_stage(&self) -> Comm {
        self.stage.unwrap_or(self.all)
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError> {
        sys::may_call()?;
        self.first_stage().broadcast_out(bytes)
    }

    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        sys::may_call()?;
        self.first_stage().broadcast_in(buffer)
    }

    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError> {
        sys::may_call()?;
        self.all.send(to, bytes)
    }

    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        sys::may_call()?;
        self.all.receive(from, buffer)
    }

    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError> {
        sys::may_call()?;
        self.all.min_reduce(values)
    }

    fn abandon(&mut self) {
        // Nothing reaches the others without a call of theirs; MPI or its launcher ends their wait.
    }

    fn close(&mut self) -> Result<(), CommunicatorError> {
        sys::may_call()?;
        if let Some(stage) = self.stage.take() {
            stage.free()?;
        }
        self.all.free()
    }
}
