//! One round: the batch of rank 0 reaches all ranks, or all ranks learn that there is none.
//!
//! A round is a sequence of messages, each of which goes from rank 0 to everybody the same way
//! (`topology`): a header, then what the header says. Bodies and front are cut at the same places by
//! all ranks, because the cuts follow from the lengths alone.
//!
//! Guards: what is wrong with a batch never keeps a rank from taking part. A rank that finds a frame
//! damaged passes it on as it came, ends the round in step, and is unwell from then on. Only where
//! the header itself cannot be read is a rank out of step; then it makes no further calls.

use std::collections::TryReserveError;
use std::sync::Arc;

use super::batch::{Batch, ReceivedBatch};
use super::communicator::{Communicator, CommunicatorError};
use super::frame::{self, Encoded, FrameError};
use super::header::{AbortReason, Header, HeaderError, Kind, Lengths, HEADER_BYTES};
use super::limits::{CHUNK_BYTES_RANGE, MAX_REQUESTS};
use super::settings::Settings;
use super::topology::Source;
use crate::telemetry::Metrics;

/// Memory for encoding that is kept for the next round, at most.
const KEPT_FRONT_BYTES: usize = 16 << 20;

/// Why a rank leaves a round without a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoundError {
    /// Rank 0 had none to give; all ranks get this.
    #[error(transparent)]
    Aborted(#[from] AbortReason),
    /// The communicator failed.
    #[error(transparent)]
    Communicator(#[from] CommunicatorError),
    /// The header could not be read; what follows it is not known.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A header of another round than this rank is in.
    #[error("ranks out of step: expected round {expected}, found {found}")]
    OtherRound {
        /// Rounds of this rank before this one.
        expected: u64,
        /// Rounds of the sender before this one.
        found: u64,
    },
    /// The frame is damaged, or there was no memory for it. The round was ended in step.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Something above happened in an earlier call on this rank.
    #[error("this rank failed in an earlier call: destroy the communicator and make a new one")]
    FailedEarlier,
    /// The communicator was closed.
    #[error("the communicator was closed")]
    Closed,
    /// Rank 0 waits for a batch, or another rank gives one.
    #[error("rank 0 gives and the other ranks receive: this rank did the opposite")]
    WrongRank,
    /// A rank failed earlier, or the ranks called an agreement with different counts.
    #[error("ranks disagree: one failed earlier, or gave another number of values")]
    Disagree,
}

/// How it stands with this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// Lost a batch that others got. Still takes part, and tells in the next agreement.
    Unwell,
    /// Does not know what the others wait for: makes no calls.
    OutOfStep,
    Closed,
}

/// What a rank needs before it joins: settings, and the memory that it must not lack in a round.
#[derive(Debug)]
pub struct Equipment {
    /// The settings; the same on all ranks.
    pub settings: Settings,
    large_lengths: Vec<u8>,
    discarded: Vec<u8>,
}

impl Equipment {
    /// Takes the memory.
    pub fn new(settings: Settings) -> Result<Self, TryReserveError> {
        debug_assert!(CHUNK_BYTES_RANGE.contains(&settings.chunk_bytes));
        let (mut large_lengths, mut discarded) = (Vec::new(), Vec::new());
        large_lengths.try_reserve_exact(8 * MAX_REQUESTS)?;
        discarded.try_reserve_exact(settings.chunk_bytes)?;
        Ok(Self { settings, large_lengths, discarded })
    }
}

/// One rank's place in the rounds of a worker.
pub struct Rounds {
    pub(super) communicator: Box<dyn Communicator>,
    settings: Settings,
    metrics: Arc<Metrics>,
    health: Health,
    round: u64,
    /// Memory of the last front, for the next one; rank 0.
    front: Vec<u8>,
    /// Room for the lengths of as many large bodies as there can be.
    large_lengths: Vec<u8>,
    /// Room for one chunk that nobody wants.
    discarded: Vec<u8>,
}

/// What a round brought this rank, not looked into yet.
enum Taken {
    Aborted(AbortReason),
    Frame {
        lengths: Lengths,
        payload: Vec<u8>,
    },
    /// There was a frame, and no memory for it.
    Lost,
}

impl Rounds {
    /// Makes no call. All ranks must have the same settings: whoever made the communicator checked.
    pub fn new(
        communicator: Box<dyn Communicator>,
        equipment: Equipment,
        metrics: Arc<Metrics>,
    ) -> Self {
        let Equipment { settings, large_lengths, discarded } = equipment;
        debug_assert_eq!(communicator.size(), settings.topology.rank_count());
        Self {
            communicator,
            settings,
            metrics,
            health: Health::Well,
            round: 0,
            front: Vec::new(),
            large_lengths,
            discarded,
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    /// All ranks.
    pub fn size(&self) -> u32 {
        self.communicator.size()
    }

    /// Rank 0, before the round: the batch as bytes. Makes no call.
    pub fn prepare<'a>(&mut self, batch: &Batch<'a>) -> Result<Encoded<'a>, AbortReason> {
        frame::encode(batch, self.settings.mode, std::mem::take(&mut self.front))
    }

    /// Rank 0: one round, with a batch or with the reason for none, which then is the error.
    pub fn give(&mut self, prepared: Result<Encoded<'_>, AbortReason>) -> Result<(), RoundError> {
        let outcome = self.in_step(|rounds| rounds.give_messages(&prepared));
        let outcome = match (outcome, prepared) {
            (Err(error), _) => Err(error),
            (Ok(()), Err(reason)) => Err(reason.into()),
            (Ok(()), Ok(encoded)) => {
                if encoded.front.capacity() <= KEPT_FRONT_BYTES {
                    self.front = encoded.front;
                }
                Ok(encoded.lengths)
            }
        };
        self.count(outcome.as_ref());
        outcome.map(|_| ())
    }

    /// The other ranks: one round.
    pub fn receive(&mut self) -> Result<ReceivedBatch, RoundError> {
        let outcome = self.in_step(Self::take_frame).and_then(|taken| self.open(taken));
        self.count(outcome.as_ref().map(|(_, lengths)| lengths));
        outcome.map(|(batch, _)| batch)
    }

    /// The other ranks: one round whose batch this rank does not want.
    pub fn discard(&mut self) -> Result<(), RoundError> {
        let outcome = self.in_step(|rounds| {
            let lengths = match rounds.take_header()? {
                Kind::Batch(lengths) => lengths,
                Kind::Aborted(reason) => return Ok(Err(RoundError::Aborted(reason))),
            };
            rounds.take_large_lengths(&lengths)?;
            rounds.discard_payload(&lengths)?;
            Ok(Ok(lengths))
        });
        let outcome = outcome.and_then(|aborted_or_not| aborted_or_not);
        self.count(outcome.as_ref());
        outcome.map(|_| ())
    }

    /// The caller could not keep what it received: from now on this rank is unwell.
    pub fn lose_batch(&mut self) {
        if self.health == Health::Well {
            self.health = Health::Unwell;
        }
    }

    /// All ranks, once: gives back what the communicator holds.
    pub fn close(&mut self) -> Result<(), RoundError> {
        self.in_step(|rounds| Ok(rounds.communicator.close()?))?;
        self.health = Health::Closed;
        Ok(())
    }

    /// Whether this rank has all that the others got so far.
    pub(super) fn is_well(&self) -> bool {
        self.health == Health::Well
    }

    /// Runs the calls of one collective operation. An error, or a panic, in between leaves this
    /// rank out of step for good: nobody knows which of its messages arrived.
    pub(super) fn in_step<T>(
        &mut self,
        calls: impl FnOnce(&mut Self) -> Result<T, RoundError>,
    ) -> Result<T, RoundError> {
        match self.health {
            Health::Well | Health::Unwell => {}
            Health::OutOfStep => {
                // Once more, for the case that a panic was in the way before.
                self.communicator.abandon();
                return Err(RoundError::FailedEarlier);
            }
            Health::Closed => return Err(RoundError::Closed),
        }
        let health = std::mem::replace(&mut self.health, Health::OutOfStep);
        let outcome = calls(self);
        match &outcome {
            Ok(_) => self.health = health,
            // Nothing was called, so nothing is out of step.
            Err(RoundError::Communicator(CommunicatorError::Unusable(_))) => self.health = health,
            Err(_) => self.communicator.abandon(),
        }
        outcome
    }

    /// Looks into a frame. This rank is in step again, whatever becomes of it.
    fn open(&mut self, taken: Taken) -> Result<(ReceivedBatch, Lengths), RoundError> {
        if !self.is_well() {
            return Err(RoundError::FailedEarlier);
        }
        let opened = match taken {
            Taken::Aborted(reason) => return Err(reason.into()),
            Taken::Lost => Err(FrameError::NoMemory),
            Taken::Frame { lengths, payload } => {
                frame::decode(&lengths, &self.large_lengths, payload).map(|batch| (batch, lengths))
            }
        };
        opened.map_err(|error| {
            self.health = Health::Unwell;
            error.into()
        })
    }

    fn count(&self, outcome: Result<&Lengths, &RoundError>) {
        let metrics = &self.metrics;
        let index = match outcome {
            Ok(lengths) => {
                metrics.broadcast_requests.add(0, lengths.request_count as u64);
                metrics.broadcast_bytes.add(0, lengths.payload_len as u64);
                Metrics::ROUND_DELIVERED
            }
            Err(RoundError::Aborted(_)) => Metrics::ROUND_ABORTED,
            Err(_) => Metrics::ROUND_FAILED,
        };
        metrics.broadcast_rounds.add(index, 1);
    }
}

/// The messages of a round, in their order, on either side.
impl Rounds {
    fn give_messages(
        &mut self,
        prepared: &Result<Encoded<'_>, AbortReason>,
    ) -> Result<(), RoundError> {
        if self.settings.topology.source(self.rank()) != Source::Root {
            return Err(RoundError::WrongRank);
        }
        let kind = match prepared {
            Ok(encoded) => Kind::Batch(encoded.lengths),
            Err(reason) => Kind::Aborted(*reason),
        };
        self.give_message(&Header { kind, round: self.round }.encode())?;
        self.round += 1;
        let Ok(encoded) = prepared else { return Ok(()) };
        if !encoded.large_lengths.is_empty() {
            self.give_message(&encoded.large_lengths)?;
        }
        for part in std::iter::once(encoded.front.as_slice()).chain(encoded.large.iter().copied()) {
            for chunk in part.chunks(self.settings.chunk_bytes) {
                self.give_message(chunk)?;
            }
        }
        Ok(())
    }

    fn take_header(&mut self) -> Result<Kind, RoundError> {
        let mut bytes = [0; HEADER_BYTES];
        self.take_message(&mut bytes)?;
        let header = Header::decode(&bytes)?;
        if header.round != self.round {
            return Err(RoundError::OtherRound { expected: self.round, found: header.round });
        }
        self.round += 1;
        Ok(header.kind)
    }

    fn take_large_lengths(&mut self, lengths: &Lengths) -> Result<(), RoundError> {
        let mut bytes = std::mem::take(&mut self.large_lengths);
        // Within the capacity: a header has at most MAX_REQUESTS large bodies.
        bytes.resize(8 * lengths.large_count, 0);
        if !bytes.is_empty() {
            self.take_message(&mut bytes)?;
        }
        self.large_lengths = bytes;
        Ok(frame::check_large_lengths(&self.large_lengths, lengths)?)
    }

    fn take_frame(&mut self) -> Result<Taken, RoundError> {
        let lengths = match self.take_header()? {
            Kind::Batch(lengths) => lengths,
            Kind::Aborted(reason) => return Ok(Taken::Aborted(reason)),
        };
        self.take_large_lengths(&lengths)?;
        let mut payload = Vec::new();
        if payload.try_reserve_exact(lengths.payload_len).is_err() {
            self.discard_payload(&lengths)?;
            return Ok(Taken::Lost);
        }
        payload.resize(lengths.payload_len, 0);
        let mut rest = payload.as_mut_slice();
        self.for_each_part(&lengths, |rounds, part_len| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(part_len);
            rest = behind;
            part.chunks_mut(rounds.settings.chunk_bytes)
                .try_for_each(|chunk| rounds.take_message(chunk))
        })?;
        Ok(Taken::Frame { lengths, payload })
    }

    fn discard_payload(&mut self, lengths: &Lengths) -> Result<(), RoundError> {
        let mut chunk = std::mem::take(&mut self.discarded);
        self.for_each_part(lengths, |rounds, part_len| {
            let mut left = part_len;
            while left > 0 {
                // Within the capacity, which is one chunk.
                chunk.resize(left.min(rounds.settings.chunk_bytes), 0);
                rounds.take_message(&mut chunk)?;
                left -= chunk.len();
            }
            Ok(())
        })?;
        self.discarded = chunk;
        Ok(())
    }

    /// The front, then each large body: parts are cut into chunks each by itself.
    fn for_each_part(
        &mut self,
        lengths: &Lengths,
        mut take: impl FnMut(&mut Self, usize) -> Result<(), RoundError>,
    ) -> Result<(), RoundError> {
        take(self, lengths.front_len)?;
        let large_lengths = std::mem::take(&mut self.large_lengths);
        for large_len in frame::large_lengths(&large_lengths) {
            take(self, large_len)?;
        }
        self.large_lengths = large_lengths;
        Ok(())
    }

    fn give_message(&mut self, bytes: &[u8]) -> Result<(), RoundError> {
        if self.settings.topology.has_broadcast() {
            self.communicator.broadcast_out(bytes)?;
        }
        self.pass_on(bytes)
    }

    fn take_message(&mut self, buffer: &mut [u8]) -> Result<(), RoundError> {
        match self.settings.topology.source(self.rank()) {
            Source::Root => return Err(RoundError::WrongRank),
            Source::Broadcast => self.communicator.broadcast_in(buffer)?,
            Source::Previous(rank) => self.communicator.receive(rank, buffer)?,
        }
        self.pass_on(buffer)
    }

    fn pass_on(&mut self, bytes: &[u8]) -> Result<(), RoundError> {
        match self.settings.topology.next(self.rank()) {
            Some(next) => Ok(self.communicator.send(next, bytes)?),
            None => Ok(()),
        }
    }
}
