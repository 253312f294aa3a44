//! MPI ranks, on duplicates of a communicator that the host gives.
//!
//! | file | subject |
//! |---|---|
//! | `sys` | the MPI calls that are made |
//! | `window` | one copy for all ranks of a node |
//! | `watch` | waiting, with an end |
//!
//! The broadcast goes through shared memory inside a node, and by `MPI_Bcast` between the first ranks
//! of nodes; where no two ranks share a node, or the host does not want it, by `MPI_Bcast` among all.
//!
//! The host owns MPI. Guards: every collective call asks first whether MPI runs and whether this
//! thread may call it (a few loads). With a deadline, or on one node, no wait is without end; without,
//! it ends as MPI and its launcher end it. Dropping a communicator calls nothing: freeing is
//! collective, and the host may have finalised MPI. So one that is dropped without
//! [`Communicator::close`] leaks its duplicates on purpose, until MPI_Finalize.

mod sys;
mod watch;
mod window;

use std::time::Duration;

use bytes::Bytes;

use self::sys::{Comm, Pending, Reduced};
use self::watch::Watch;
use self::window::Window;
use super::communicator::{all_equal, Communicator, CommunicatorError};
use super::limits::{LARGE_FROM_BYTES_MESSAGES, LARGE_FROM_BYTES_STREAM};
use super::round::Equipment;
use super::settings::Settings;

/// One MPI rank.
#[derive(Debug)]
pub struct MpiCommunicator {
    all: Comm,
    /// Agreements may be under way while rounds take place: they need an order of their own.
    agreements: Comm,
    /// The ranks of this rank's pipeline stage; `None` if there is one stage.
    stage: Option<Comm>,
    nodes: Option<Nodes>,
    rank: u32,
    size: u32,
    deadline: Option<Duration>,
    /// Of the last round, to the next stage.
    sends: Vec<Pending<Bytes>>,
    reduction: Option<Pending<Reduced>>,
    /// Memory for messages that may outlive their call.
    staging: Vec<u8>,
}

/// How the first stage's broadcast goes where ranks share nodes.
#[derive(Debug)]
struct Nodes {
    node: Comm,
    /// On a node with one rank there is none.
    window: Option<Window>,
    /// The first ranks of all nodes; `None` on other ranks, and where there is one node.
    leaders: Option<Comm>,
}

/// What the host chose.
#[derive(Debug)]
pub struct Choice {
    /// Settings and memory.
    pub equipment: Equipment,
    /// How long a call waits for other ranks; `None` leaves that to MPI.
    pub deadline: Option<Duration>,
    /// Whether ranks of one node share one copy.
    pub node_window: bool,
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
/// told the number of ranks) for this rank's choice, and checks that all ranks have the same. A rank
/// that has none takes part in that check, so that all ranks return.
pub fn connect<E>(
    fortran_handle: i64,
    prepare: impl FnOnce(u32) -> Result<Choice, E>,
) -> Result<(MpiCommunicator, Equipment), ConnectError<E>> {
    sys::may_call()?;
    let host = Comm::from_fortran(fortran_handle)?;
    let (rank, size) = host.rank_and_size()?;
    let mut communicator = MpiCommunicator {
        all: host.duplicate()?,
        agreements: host.duplicate()?,
        stage: None,
        nodes: None,
        rank,
        size,
        deadline: None,
        sends: Vec::new(),
        reduction: None,
        staging: Vec::new(),
    };
    let prepared = prepare(size);
    let compared = prepared.as_ref().ok().map(Choice::numbers);
    let are_equal = all_equal(&mut communicator, compared.as_ref())?;
    match prepared {
        Ok(choice) if are_equal => {
            communicator.arrange(&choice.equipment.settings, choice.node_window)?;
            communicator.deadline = choice.deadline;
            Ok((communicator, choice.equipment))
        }
        // All ranks come here together: each had bad input, or saw that not all are equal.
        Ok(_) => {
            communicator.free()?;
            Err(ConnectError::Disagree)
        }
        Err(error) => {
            communicator.free()?;
            Err(ConnectError::Own(error))
        }
    }
}

impl Choice {
    fn numbers(&self) -> [u64; 10] {
        let mut numbers = [0; 10];
        let settings = self.equipment.settings.numbers();
        numbers[..settings.len()].copy_from_slice(&settings);
        numbers[8] = self.deadline.map_or(0, |deadline| deadline.as_nanos() as u64);
        numbers[9] = u64::from(self.node_window);
        numbers
    }
}

impl MpiCommunicator {
    /// Collective: the communicators that broadcasts need.
    fn arrange(&mut self, settings: &Settings, node_window: bool) -> Result<(), CommunicatorError> {
        let stage_size = settings.topology.stage_size();
        if stage_size < self.size {
            self.stage = Some(self.all.split(self.rank / stage_size, self.rank)?);
        }
        if node_window && stage_size > 1 && self.rank < stage_size {
            self.nodes = self.arrange_nodes()?;
        }
        Ok(())
    }

    /// Collective over the first stage.
    fn arrange_nodes(&self) -> Result<Option<Nodes>, CommunicatorError> {
        let stage = self.first_stage();
        let (stage_rank, stage_size) = stage.rank_and_size()?;
        let node = stage.split_by_node(stage_rank)?;
        let (node_rank, node_size) = node.rank_and_size()?;
        let window = if node_size > 1 { Window::allocate(node, self.rank)? } else { None };
        // The smallest complement belongs to the largest node; and whether each that should have a
        // window has one.
        let mut facts = [
            u64::from(!node_size),
            u64::from(node_size),
            u64::from(node_size == 1 || window.is_some()),
        ];
        stage.min_reduce(&mut facts)?;
        let largest = !(facts[0] as u32);
        if largest == 1 || facts[2] == 0 {
            window.map_or(Ok(()), Window::free)?;
            node.free()?;
            return Ok(None);
        }
        let is_one_node = facts[1] == u64::from(stage_size);
        let leaders = if is_one_node {
            None
        } else {
            let group = stage.split(u32::from(node_rank > 0), stage_rank)?;
            if node_rank == 0 {
                Some(group)
            } else {
                group.free()?;
                None
            }
        };
        Ok(Some(Nodes { node, window, leaders }))
    }

    fn first_stage(&self) -> Comm {
        self.stage.unwrap_or(self.all)
    }

    fn watch(&self) -> Watch {
        Watch { deadline: self.deadline, progress: self.all }
    }

    fn gone(&self) -> window::Gone {
        self.nodes.as_ref().and_then(|nodes| nodes.window.as_ref()).and_then(Window::gone)
    }

    /// Waits for a call under way as long as nobody is known to have left.
    fn wait_for<M>(&self, pending: &mut Pending<M>) -> Result<(), CommunicatorError> {
        let mut patience = self.watch().patience();
        while !pending.is_over()? {
            patience.wait(|| self.gone())?;
        }
        Ok(())
    }

    /// A message of MPI's, blocking as MPI does, or with a deadline through memory that may outlive
    /// the call.
    fn broadcast_message(
        &mut self,
        comm: Comm,
        bytes: Message<'_>,
    ) -> Result<(), CommunicatorError> {
        if self.deadline.is_none() {
            return match bytes {
                Message::Out(bytes) => comm.broadcast_out(bytes),
                Message::In(buffer) => comm.broadcast_in(buffer),
            };
        }
        let buffer = self.staged(&bytes)?;
        let mut pending = comm.start_broadcast(buffer)?;
        self.wait_for(&mut pending)?;
        self.unstage(pending, bytes);
        Ok(())
    }

    fn staged(&mut self, bytes: &Message<'_>) -> Result<Vec<u8>, CommunicatorError> {
        let len = bytes.len();
        let mut buffer = std::mem::take(&mut self.staging);
        buffer.clear();
        buffer.try_reserve_exact(len).map_err(|_| CommunicatorError::NoMemory(len))?;
        match bytes {
            Message::Out(bytes) => buffer.extend_from_slice(bytes),
            Message::In(_) => buffer.resize(len, 0),
        }
        Ok(buffer)
    }

    fn unstage(&mut self, pending: Pending<Vec<u8>>, bytes: Message<'_>) {
        let Some(buffer) = pending.into_memory() else { return };
        if let Message::In(into) = bytes {
            into.copy_from_slice(&buffer);
        }
        self.staging = buffer;
    }

    fn broadcast(&mut self, mut bytes: Message<'_>) -> Result<(), CommunicatorError> {
        let Some(nodes) = &self.nodes else {
            return self.broadcast_message(self.first_stage(), bytes);
        };
        if let Some(leaders) = nodes.leaders {
            self.broadcast_message(leaders, bytes.reborrow())?;
        }
        let watch = self.watch();
        let window = self.nodes.as_mut().and_then(|nodes| nodes.window.as_mut());
        let Some(window) = window else { return Ok(()) };
        match bytes {
            Message::Out(bytes) => window.write(bytes, watch),
            // The first rank of another node: it has no end of a round to wait for.
            Message::In(buffer) if window.is_writer() => {
                window.write(buffer, watch)?;
                window.flush();
                Ok(())
            }
            Message::In(buffer) => window.read(buffer, watch),
        }
    }

    /// Collective.
    fn free(&mut self) -> Result<(), CommunicatorError> {
        if let Some(Nodes { node, window, leaders }) = self.nodes.take() {
            window.map_or(Ok(()), Window::free)?;
            leaders.map_or(Ok(()), Comm::free)?;
            node.free()?;
        }
        if let Some(stage) = self.stage.take() {
            stage.free()?;
        }
        self.agreements.free()?;
        self.all.free()
    }
}

/// One side of a broadcast.
enum Message<'a> {
    Out(&'a [u8]),
    In(&'a mut [u8]),
}

impl Message<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Out(bytes) => bytes.len(),
            Self::In(buffer) => buffer.len(),
        }
    }

    fn reborrow(&mut self) -> Message<'_> {
        match self {
            Self::Out(bytes) => Message::Out(bytes),
            Self::In(buffer) => Message::In(buffer),
        }
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn check_usable(&self) -> Result<(), CommunicatorError> {
        sys::may_call()
    }

    fn large_from_bytes(&self) -> usize {
        // Where other nodes or stages get them too, there are messages to count.
        if self.is_stream() && self.stage.is_none() {
            LARGE_FROM_BYTES_STREAM
        } else {
            LARGE_FROM_BYTES_MESSAGES
        }
    }

    fn is_stream(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| nodes.leaders.is_none())
    }

    fn flush(&mut self) -> Result<(), CommunicatorError> {
        if let Some(window) = self.nodes.as_mut().and_then(|nodes| nodes.window.as_mut()) {
            window.flush();
            // A reader that left would be missed only when the ring is full.
            if let Some(gone) = window.gone() {
                return Err(CommunicatorError::RankGone(gone));
            }
        }
        Ok(())
    }

    fn broadcast_out(&mut self, bytes: &[u8]) -> Result<(), CommunicatorError> {
        self.broadcast(Message::Out(bytes))
    }

    fn broadcast_in(&mut self, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        self.broadcast(Message::In(buffer))
    }

    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CommunicatorError> {
        if self.deadline.is_none() {
            return self.all.send(to, bytes);
        }
        let buffer = self.staged(&Message::Out(bytes))?;
        let mut pending = self.all.start_send(to, buffer.into())?;
        self.wait_for(&mut pending)
    }

    fn start_send(&mut self, to: u32, bytes: Bytes) -> Result<(), CommunicatorError> {
        self.sends.try_reserve(1).map_err(|_| CommunicatorError::NoMemory(bytes.len()))?;
        self.sends.push(self.all.start_send(to, bytes)?);
        Ok(())
    }

    fn finish_sends(&mut self) -> Result<(), CommunicatorError> {
        while let Some(mut pending) = self.sends.pop() {
            self.wait_for(&mut pending)?;
        }
        Ok(())
    }

    fn receive(&mut self, from: u32, buffer: &mut [u8]) -> Result<(), CommunicatorError> {
        if self.deadline.is_none() {
            return self.all.receive(from, buffer);
        }
        let bytes = Message::In(buffer);
        let staged = self.staged(&bytes)?;
        let mut pending = self.all.start_receive(from, staged)?;
        self.wait_for(&mut pending)?;
        self.unstage(pending, bytes);
        Ok(())
    }

    fn min_reduce(&mut self, values: &mut [u64]) -> Result<(), CommunicatorError> {
        // On all ranks the same call of MPI, which does not match blocking and non-blocking ones with
        // each other: only some ranks have a node's window to look at while they wait.
        let mut pending = self.agreements.start_min_reduce(values)?;
        self.wait_for(&mut pending)?;
        if let Some(reduced) = pending.into_memory() {
            values.copy_from_slice(&reduced.smallest);
        }
        Ok(())
    }

    fn begin_min_reduce(&mut self, values: &[u64]) -> Result<(), CommunicatorError> {
        self.reduction = Some(self.agreements.start_min_reduce(values)?);
        Ok(())
    }

    fn poll_min_reduce(&mut self, values: &mut [u64]) -> Result<bool, CommunicatorError> {
        let Some(mut pending) = self.reduction.take() else { return Ok(false) };
        if !pending.is_over()? {
            if let Some(gone) = self.gone() {
                return Err(CommunicatorError::RankGone(gone));
            }
            self.reduction = Some(pending);
            return Ok(false);
        }
        if let Some(reduced) = pending.into_memory() {
            values.copy_from_slice(&reduced.smallest);
        }
        Ok(true)
    }

    fn abandon(&mut self) {
        // Where there is no window nothing reaches the others without a call of theirs; MPI, its
        // launcher or the deadline ends their wait. After MPI_Finalize the window's memory is gone.
        if sys::is_running() {
            if let Some(window) = self.nodes.as_ref().and_then(|nodes| nodes.window.as_ref()) {
                window.leave();
            }
        }
    }

    fn close(&mut self) -> Result<(), CommunicatorError> {
        // Freeing waits for all: nobody may have left.
        if let Some(gone) = self.gone() {
            return Err(CommunicatorError::RankGone(gone));
        }
        self.free()
    }
}
