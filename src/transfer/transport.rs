//! The transport port: control messages and block data between two workers.
//!
//! A transport is driven by one thread, which calls [`Transport::progress`] until it has nothing
//! more to tell and then [`Transport::wait`]. Nothing here blocks except `wait`.
//!
//! Guards: a peer never writes into memory that this side did not offer for that very message.
//! Data is *announced* with a header first; the receiver names the memory, or discards it.
//! Never does: interpret messages, retry, or time anything out. Those are the protocol's.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::checked_copy::copy_and_sum;
use super::protocol::checksum_seed;
use crate::reuse::Name;

/// One connection of a transport. Never reused within the transport's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// One started send or receive; comes back in exactly one [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Data that a peer announced and that waits to be received or discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataId(pub u64);

/// Memory outside the transport: the caller keeps it alive and in place until the ticket's event.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// First byte.
    pub data: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: a plain address; whoever starts a transfer promises that the memory stays valid until
// its event, from whichever thread the transport is driven.
unsafe impl Send for Segment {}

/// Memory that this process reads and somebody else may still write: its bytes can only be copied.
#[derive(Debug, Clone, Copy)]
pub struct Unsettled<'a> {
    data: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl Unsettled<'_> {
    /// Memory at `data`.
    ///
    /// # Safety
    /// `len` bytes are readable there for as long as the value lives, and no reference of this process
    /// that could write leads there.
    pub unsafe fn new(data: *const u8, len: usize) -> Self {
        Self { data, len, life: PhantomData }
    }

    /// Bytes that can be copied.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies all of the bytes; `false`, and nothing copied, when `to` is not as long.
    pub fn copy(&self, to: &mut [u8]) -> bool {
        if to.len() != self.len {
            return false;
        }
        // SAFETY: readable, as the maker promised; a slice of this process does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.data, to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies the bytes from `start` on to a block: the [checksum](super::protocol::block_checksum) of the
    /// block as it is then, under a name. `None`, and nothing copied, when there are fewer bytes.
    pub fn copy_block(&self, start: usize, to: &mut [u8], name: &Name) -> Option<u64> {
        if start.checked_add(to.len())? > self.len {
            return None;
        }
        // SAFETY: readable, as the maker promised and as just seen; a slice of this process does not
        // overlap it.
        Some(unsafe {
            copy_and_sum(self.data.add(start), to.as_mut_ptr(), to.len(), checksum_seed(name))
        })
    }
}

/// Why a transport could not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The peer cannot be reached, went away, or broke the connection.
    #[error("the peer cannot be reached or went away: {0}")]
    PeerGone(String),
    /// The address is not one of this transport.
    #[error("not an address of this transport: {0}")]
    BadAddress(String),
    /// The transport as a whole failed or is missing on this machine.
    #[error("the transport does not work here: {0}")]
    Unavailable(String),
    /// The operation was cancelled, by this side.
    #[error("cancelled")]
    Cancelled,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A control message arrived. A peer that connected to us shows first in an event like this.
    Message {
        /// Who sent it.
        peer: PeerId,
        /// The message, at most [`MAX_MESSAGE_BYTES`].
        bytes: Vec<u8>,
    },
    /// A peer wants to send data: answer with `receive_data` or `discard_data`.
    Data {
        /// Who sends it.
        peer: PeerId,
        /// What it is, at most [`MAX_MESSAGE_BYTES`].
        header: Vec<u8>,
        /// How much it is.
        len: usize,
        /// Its name until it is received or discarded.
        id: DataId,
    },
    /// A send ended: the transport no longer reads the memory given to it.
    Sent {
        /// Which one.
        ticket: Ticket,
        /// How it ended.
        result: Result<(), TransportError>,
    },
    /// A receive ended: the transport no longer writes the memory given to it.
    Received {
        /// Which one.
        ticket: Ticket,
        /// How it ended.
        result: Result<(), TransportError>,
    },
    /// The peer is gone. Its pending tickets still get their own events, before or after this one;
    /// its announced data is discarded.
    PeerGone {
        /// Which one.
        peer: PeerId,
        /// Why.
        error: TransportError,
    },
}

/// Longest control message and longest data header, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Ends a [`Transport::wait`] from another thread.
pub trait Waker: Send + Sync {
    /// Makes the present or next `wait` return soon.
    fn wake(&self);
}

/// A way for bytes to reach other workers. See the module for who calls what.
pub trait Transport: Send {
    /// What it is called in reports: `ucx`, `loopback`.
    fn name(&self) -> &'static str;

    /// Where peers reach this transport; opaque to everybody else.
    fn address(&self) -> &[u8];

    /// The host that [`Transport::connect`] would contact for an address; `None` where it leads to
    /// no other host, or is no address of this transport.
    fn host(&self, address: &[u8]) -> Option<IpAddr>;

    /// Which wires lead to a peer, for people to read; empty when not known, as before its first word.
    fn describe(&self, peer: PeerId) -> String;

    /// Starts a connection. Errors that take time show as [`Event::PeerGone`].
    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError>;

    /// Sends a control message of at most [`MAX_MESSAGE_BYTES`]. Messages and data of one peer
    /// arrive in the order sent, or not at all.
    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError>;

    /// Announces and sends `segments` as one run of bytes, described by `header`. The memory is
    /// read until the ticket's event.
    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError>;

    /// Memory of the transport's own, as long as `segments` together, in which their bytes go to that
    /// peer the fastest way. Whoever fills it and calls [`Transport::send_room`] next saves a copy, and can
    /// do more with the bytes on the way. `None` where they are best sent from where they lie.
    fn room(&mut self, _peer: PeerId, _segments: &[Segment]) -> Option<&mut [u8]> {
        None
    }

    /// Announces and sends what was written to the room that the last call gave, described by `header`.
    fn send_room(&mut self, _peer: PeerId, _header: Vec<u8>) -> Result<Ticket, TransportError> {
        Err(TransportError::Unavailable("no room was asked for: ask right before".to_owned()))
    }

    /// Shows `take` announced data where it lies, when this process can read it there; with the call's end
    /// it is answered, and no event follows. `false`, and it stays announced, where it has to be received.
    fn read_data(&mut self, _data: DataId, _take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        false
    }

    /// Says that data will be sent out of this memory time and again, until the transport's end: what
    /// its wires need to read there is prepared once, where it can be. Wires that let peers read it
    /// themselves may open all of it to whoever is sent anything from there.
    fn register(&mut self, _memory: Segment) {}

    /// Receives announced data into `memory`, whose length must be the announced one. The memory
    /// is written until the ticket's event.
    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError>;

    /// Refuses announced data.
    fn discard_data(&mut self, data: DataId);

    /// Ends a connection by force: pending tickets of the peer end with an error, each with its
    /// event, as soon as no memory is touched any more. No `PeerGone` follows.
    fn disconnect(&mut self, peer: PeerId);

    /// Makes progress and tells the next thing that happened, if any.
    fn progress(&mut self) -> Option<Event>;

    /// Sleeps until something may have happened, [`Waker::wake`] was called, or `timeout` passed.
    fn wait(&mut self, timeout: Duration);

    /// A handle that ends `wait` from any thread.
    fn waker(&self) -> Arc<dyn Waker>;
}
