//! One round: the batch of rank 0 reaches all ranks, or all ranks learn that there is none.
//!
//! A round is a sequence of messages, each of which goes from rank 0 to everybody the same way
//! (`topology`): a first message with the header, then what the header says. Parts are cut at the same
//! places by all ranks, because the cuts follow from the lengths alone. Where sends along the pipeline
//! are asynchronous, they begin when all of the round is there, and the next round waits for them.
//!
//! Guards: what is wrong with a batch never keeps a rank from taking part. A rank that finds a frame
//! damaged passes it on as it came, ends the round in step, and is unwell from then on. Only where
//! the header itself cannot be read is a rank out of step; then it makes no further calls.

use std::collections::TryReserveError;
use std::sync::Arc;

use bytes::Bytes;

use super::agreement::Agreement;
use super::batch::{Batch, ReceivedBatch};
use super::communicator::{Communicator, CommunicatorError};
use super::frame::{
    self, Encoded, Format, FrameError, PartsChecksum, PARTS_CHECKSUM_BYTES, PIECE_BYTES,
};
use super::header::{AbortReason, Header, HeaderError, Kind, Lengths, HEADER_BYTES};
use super::limits::{CHUNK_BYTES_RANGE, FIRST_MESSAGE_BYTES_RANGE, MAX_LARGE_PARTS};
use super::pool::BufferPool;
use super::settings::{PipelineSends, Settings};
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
    /// An agreement was begun and is not over.
    #[error("an agreement is under way: ask for its result first")]
    AgreementOpen,
    /// No agreement was begun, or one with another number of values.
    #[error("no agreement with that number of values is under way: begin one")]
    NoAgreement,
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
    first_message: Vec<u8>,
    list: Vec<u8>,
    discarded: Vec<u8>,
}

impl Equipment {
    /// Takes the memory.
    pub fn new(settings: Settings) -> Result<Self, TryReserveError> {
        debug_assert!(CHUNK_BYTES_RANGE.contains(&settings.chunk_bytes));
        debug_assert!(FIRST_MESSAGE_BYTES_RANGE.contains(&settings.first_message_bytes));
        let (mut first_message, mut list, mut discarded) = (Vec::new(), Vec::new(), Vec::new());
        first_message.try_reserve_exact(settings.first_message_bytes)?;
        first_message.resize(settings.first_message_bytes, 0);
        list.try_reserve_exact(8 * MAX_LARGE_PARTS)?;
        discarded.try_reserve_exact(settings.chunk_bytes)?;
        Ok(Self { settings, first_message, list, discarded })
    }
}

/// A batch that is ready for its round.
#[derive(Debug)]
pub struct Prepared<'b> {
    batch: &'b Batch<'b>,
    encoded: Encoded,
}

/// One rank's place in the rounds of a worker.
pub struct Rounds {
    pub(super) communicator: Box<dyn Communicator>,
    pub(super) agreement: Option<Agreement>,
    settings: Settings,
    metrics: Arc<Metrics>,
    health: Health,
    round: u64,
    /// Memory of the last batch, for the next one; rank 0.
    encoded: Encoded,
    /// Memory for what is received, and for what is given where that outlives the call.
    pool: BufferPool,
    /// Room for a first message.
    first_message: Vec<u8>,
    /// Room for the lengths of as many large parts as there can be.
    list: Vec<u8>,
    /// Room for one chunk that nobody wants.
    discarded: Vec<u8>,
}

/// What a round brought this rank, not looked into yet.
enum Taken {
    Aborted(AbortReason),
    Frame {
        lengths: Lengths,
        payload: Bytes,
        /// Whether its large parts are those that were sent.
        parts: Result<(), FrameError>,
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
        let Equipment { settings, first_message, list, discarded } = equipment;
        debug_assert_eq!(communicator.size(), settings.topology.rank_count());
        Self {
            communicator,
            agreement: None,
            settings,
            metrics,
            health: Health::Well,
            round: 0,
            encoded: Encoded::default(),
            pool: BufferPool::default(),
            first_message,
            list,
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
    pub fn prepare<'b>(&mut self, batch: &'b Batch<'_>) -> Result<Prepared<'b>, AbortReason> {
        let Settings { mode, hint_form, .. } = self.settings;
        let large_from_bytes = self.communicator.large_from_bytes();
        let format = Format { mode, hint_form, large_from_bytes };
        let encoded = frame::encode(batch, format, std::mem::take(&mut self.encoded))?;
        Ok(Prepared { batch, encoded })
    }

    /// Rank 0: one round, with a batch or with the reason for none, which then is the error.
    pub fn give(&mut self, prepared: Result<Prepared<'_>, AbortReason>) -> Result<(), RoundError> {
        let outcome = self.in_step(|rounds| rounds.give_messages(&prepared));
        let outcome = match (outcome, prepared) {
            (Err(error), _) => Err(error),
            (Ok(()), Err(reason)) => Err(reason.into()),
            (Ok(()), Ok(Prepared { encoded, .. })) => {
                let lengths = encoded.lengths;
                if encoded.front.capacity() <= KEPT_FRONT_BYTES {
                    self.encoded = encoded;
                }
                Ok(lengths)
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
        let outcome = self.in_step(|rounds| match rounds.take_header()? {
            Kind::Batch(lengths) => {
                rounds.discard_payload(&lengths)?;
                Ok(Ok(lengths))
            }
            Kind::Aborted(reason) => Ok(Err(RoundError::Aborted(reason))),
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
        self.finish_min()?;
        self.in_step(|rounds| {
            rounds.communicator.finish_sends()?;
            Ok(rounds.communicator.close()?)
        })?;
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
        self.communicator.check_usable()?;
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
            Taken::Frame { lengths, payload, parts } => parts
                .and_then(|()| frame::decode(&lengths, payload, &self.pool))
                .map(|batch| (batch, lengths)),
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

/// Which bytes of the payload travel in the first message, behind the header.
fn led_len(settings: &Settings, lengths: &Lengths) -> usize {
    (settings.first_message_bytes - HEADER_BYTES).min(lengths.front_len)
}

/// The messages of a round, in their order, on either side.
impl Rounds {
    fn give_messages(
        &mut self,
        prepared: &Result<Prepared<'_>, AbortReason>,
    ) -> Result<(), RoundError> {
        if self.settings.topology.source(self.rank()) != Source::Root {
            return Err(RoundError::WrongRank);
        }
        self.communicator.finish_sends()?;
        let (kind, front) = match prepared {
            Ok(Prepared { encoded, .. }) => {
                (Kind::Batch(encoded.lengths), encoded.front.as_slice())
            }
            Err(reason) => (Kind::Aborted(*reason), [].as_slice()),
        };
        let led_len = front.len().min(self.settings.first_message_bytes - HEADER_BYTES);
        let (led, front) = front.split_at(led_len);
        let mut first_message = std::mem::take(&mut self.first_message);
        first_message[..HEADER_BYTES].copy_from_slice(&Header { kind, round: self.round }.encode());
        first_message[HEADER_BYTES..HEADER_BYTES + led_len].copy_from_slice(led);
        self.round += 1;
        self.give_message(&first_message)?;
        let chunk_bytes = self.settings.chunk_bytes;
        front.chunks(chunk_bytes).try_for_each(|chunk| self.give_message(chunk))?;
        let parts_checksum = match prepared {
            Ok(prepared) => self.give_large_parts(prepared)?,
            Err(_) => None,
        };
        self.communicator.flush()?;
        if self.sends_later() {
            self.start_send(&first_message)?;
            front.chunks(chunk_bytes).try_for_each(|chunk| self.start_send(chunk))?;
            if let (Ok(prepared), Some(parts_checksum)) = (prepared, parts_checksum) {
                for part in prepared.encoded.large_parts(prepared.batch, self.settings.hint_form) {
                    part.chunks(chunk_bytes).try_for_each(|chunk| self.start_send(chunk))?;
                }
                self.start_send(&parts_checksum)?;
            }
        }
        self.first_message = first_message;
        Ok(())
    }

    /// Gives the large parts and what follows them, their checksum; nothing where there are none.
    fn give_large_parts(
        &mut self,
        prepared: &Prepared<'_>,
    ) -> Result<Option<[u8; PARTS_CHECKSUM_BYTES]>, RoundError> {
        let Prepared { batch, encoded } = prepared;
        if encoded.lengths.large_count == 0 {
            return Ok(None);
        }
        let mut checksum = PartsChecksum::new(&encoded.lengths);
        let is_stream = self.is_stream();
        for part in encoded.large_parts(batch, self.settings.hint_form) {
            if is_stream {
                for piece in part.chunks(PIECE_BYTES) {
                    checksum.add_piece(piece);
                    self.give_message(piece)?;
                }
            } else {
                checksum.add(part);
                let mut chunks = part.chunks(self.settings.chunk_bytes);
                chunks.try_for_each(|chunk| self.give_message(chunk))?;
            }
        }
        let checksum = checksum.to_bytes();
        self.give_message(&checksum)?;
        Ok(Some(checksum))
    }

    fn take_header(&mut self) -> Result<Kind, RoundError> {
        self.communicator.finish_sends()?;
        let mut bytes = std::mem::take(&mut self.first_message);
        self.take_message(&mut bytes)?;
        self.first_message = bytes;
        let header = self.first_message.first_chunk().ok_or(HeaderError::Damaged)?;
        let header = Header::decode(header)?;
        if header.round != self.round {
            return Err(RoundError::OtherRound { expected: self.round, found: header.round });
        }
        self.round += 1;
        if let (Kind::Aborted(_), true) = (header.kind, self.sends_later()) {
            self.send_first_message_later()?;
        }
        Ok(header.kind)
    }

    fn take_frame(&mut self) -> Result<Taken, RoundError> {
        let lengths = match self.take_header()? {
            Kind::Batch(lengths) => lengths,
            Kind::Aborted(reason) => return Ok(Taken::Aborted(reason)),
        };
        let Ok(mut payload) = self.pool.take(lengths.payload_len) else {
            self.discard_payload(&lengths)?;
            return Ok(Taken::Lost);
        };
        let chunk_bytes = self.settings.chunk_bytes;
        let led_len = led_len(&self.settings, &lengths);
        let (front, large) = payload.as_mut_slice().split_at_mut(lengths.front_len);
        let (led, rest) = front.split_at_mut(led_len);
        led.copy_from_slice(&self.first_message[HEADER_BYTES..HEADER_BYTES + led_len]);
        rest.chunks_mut(chunk_bytes).try_for_each(|chunk| self.take_message(chunk))?;
        let list = &front[..frame::list_len(&lengths)];
        frame::check_list(list, &lengths)?;
        let taken = self.take_large_parts(&lengths, list, large)?;
        let payload = payload.freeze();
        if self.sends_later() {
            self.send_later(&lengths, &payload, taken.map(|(_, sent)| sent))?;
        }
        let parts = taken.map_or(Ok(()), |(checksum, sent)| checksum.check(sent));
        Ok(Taken::Frame { lengths, payload, parts })
    }

    /// Takes the large parts, of which there is a checked list, and what follows them: returns their
    /// checksum and the one that was sent.
    fn take_large_parts(
        &mut self,
        lengths: &Lengths,
        list: &[u8],
        large: &mut [u8],
    ) -> Result<Option<(PartsChecksum, [u8; PARTS_CHECKSUM_BYTES])>, RoundError> {
        if lengths.large_count == 0 {
            return Ok(None);
        }
        let mut checksum = PartsChecksum::new(lengths);
        if self.is_stream() {
            self.take_stream(list, large, &mut checksum)?;
        } else {
            let mut large = large;
            for large_len in frame::large_lengths(list) {
                let (part, behind) = std::mem::take(&mut large).split_at_mut(large_len);
                large = behind;
                let mut chunks = part.chunks_mut(self.settings.chunk_bytes);
                chunks.try_for_each(|chunk| self.take_message(chunk))?;
                checksum.add(part);
            }
        }
        let mut sent = [0; PARTS_CHECKSUM_BYTES];
        self.take_message(&mut sent)?;
        Ok(Some((checksum, sent)))
    }

    /// Large parts that come as a stream: taken as many bytes at once as stay near the processor until
    /// they are hashed, whatever parts they belong to.
    fn take_stream(
        &mut self,
        list: &[u8],
        large: &mut [u8],
        checksum: &mut PartsChecksum,
    ) -> Result<(), RoundError> {
        let (mut taken, mut hashed) = (0, 0);
        for large_len in frame::large_lengths(list) {
            let part_end = hashed + large_len;
            while hashed < part_end {
                let piece_end = part_end.min(hashed + PIECE_BYTES);
                if taken < piece_end {
                    // At least the piece: no less was taken than was hashed.
                    let end = large.len().min(taken + PIECE_BYTES);
                    self.take_message(&mut large[taken..end])?;
                    taken = end;
                }
                checksum.add_piece(&large[hashed..piece_end]);
                hashed = piece_end;
            }
        }
        Ok(())
    }

    /// Whether messages are one stream of bytes for all that get them: they are cut as suits each side.
    fn is_stream(&self) -> bool {
        self.communicator.is_stream() && self.settings.topology.is_one_stage()
    }

    /// Takes what follows the header, for the others, chunk by chunk.
    fn discard_payload(&mut self, lengths: &Lengths) -> Result<(), RoundError> {
        let sends_later = self.sends_later();
        if sends_later {
            self.send_first_message_later()?;
        }
        let led_len = led_len(&self.settings, lengths);
        let list_len = frame::list_len(lengths);
        // Both within their capacity: a header has at most MAX_LARGE_PARTS, a chunk its size.
        let mut list = std::mem::take(&mut self.list);
        let mut chunk = std::mem::take(&mut self.discarded);
        list.clear();
        list.extend_from_slice(&self.first_message[HEADER_BYTES..][..led_len.min(list_len)]);
        let mut take_part = |rounds: &mut Self, mut left: usize, list: Option<&mut Vec<u8>>| {
            let mut list = list;
            while left > 0 {
                chunk.resize(left.min(rounds.settings.chunk_bytes), 0);
                rounds.take_message(&mut chunk)?;
                if sends_later {
                    rounds.start_send(&chunk)?;
                }
                if let Some(list) = &mut list {
                    list.extend_from_slice(&chunk[..chunk.len().min(list_len - list.len())]);
                }
                left -= chunk.len();
            }
            Ok::<_, RoundError>(())
        };
        take_part(self, lengths.front_len - led_len, Some(&mut list))?;
        frame::check_list(&list, lengths)?;
        for large_len in frame::large_lengths(&list) {
            take_part(self, large_len, None)?;
        }
        if lengths.large_count > 0 {
            take_part(self, PARTS_CHECKSUM_BYTES, None)?;
        }
        (self.list, self.discarded) = (list, chunk);
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
            Some(next) if self.settings.pipeline_sends == PipelineSends::Synchronous => {
                Ok(self.communicator.send(next, bytes)?)
            }
            _ => Ok(()),
        }
    }
}

/// Asynchronous sends: in the order of the round, when all of it is there.
impl Rounds {
    fn sends_later(&self) -> bool {
        self.settings.pipeline_sends == PipelineSends::Asynchronous
            && self.settings.topology.next(self.rank()).is_some()
    }

    /// Sends on what was received, from where it lies.
    fn send_later(
        &mut self,
        lengths: &Lengths,
        payload: &Bytes,
        parts_checksum: Option<[u8; PARTS_CHECKSUM_BYTES]>,
    ) -> Result<(), RoundError> {
        let Some(next) = self.settings.topology.next(self.rank()) else { return Ok(()) };
        self.send_first_message_later()?;
        let chunk_bytes = self.settings.chunk_bytes;
        let mut at = led_len(&self.settings, lengths);
        let rest_of_front = lengths.front_len - at;
        let list = payload.slice(..frame::list_len(lengths));
        for mut left in std::iter::once(rest_of_front).chain(frame::large_lengths(&list)) {
            while left > 0 {
                let len = left.min(chunk_bytes);
                self.communicator.start_send(next, payload.slice(at..at + len))?;
                (at, left) = (at + len, left - len);
            }
        }
        parts_checksum.map_or(Ok(()), |checksum| self.start_send(&checksum))
    }

    fn send_first_message_later(&mut self) -> Result<(), RoundError> {
        let first_message = std::mem::take(&mut self.first_message);
        let outcome = self.start_send(&first_message);
        self.first_message = first_message;
        outcome
    }

    /// Sends a copy, which outlives the call.
    fn start_send(&mut self, bytes: &[u8]) -> Result<(), RoundError> {
        let Some(next) = self.settings.topology.next(self.rank()) else { return Ok(()) };
        let no_memory = |_| CommunicatorError::NoMemory(bytes.len());
        let mut copy = self.pool.take(bytes.len()).map_err(no_memory)?;
        copy.as_mut_slice().copy_from_slice(bytes);
        Ok(self.communicator.start_send(next, copy.freeze())?)
    }
}
