//! What the transport knows of one connection.

use std::collections::BTreeMap;
use std::time::Instant;

use ucx_sys::ucp_ep_h;

use super::inbox::Inbox;
use super::neighbour::Ways;
use super::segment::{Nonce, Piece, View};
use crate::transfer::transport::{Ticket, TransportError};

/// How far a connection is. It only moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// In use.
    Open,
    /// Left by the caller; the goodbye is on its way, and waited for until then.
    Leaving { until: Instant },
    /// The endpoint is being closed.
    Closing,
    /// The endpoint is gone; only the ends of operations may still come.
    Closed,
}

/// See the module.
pub(super) struct Connection {
    /// Not to be used once `Closing`.
    pub endpoint: ucp_ep_h,
    pub state: State,
    /// The number of the next message sent.
    pub next_sequence: u64,
    pub inbox: Inbox,
    /// The caller's header of the next data, where it came ahead.
    pub long_header: Option<Vec<u8>>,
    /// Bytes of announced data that UCX holds here until the caller answers.
    pub announced_bytes: usize,
    /// Announced data that the caller has not answered.
    pub announced_count: usize,
    /// Operations that UCX has.
    pub operations: usize,
    /// Bytes of them that the peer has not taken.
    pub queued_bytes: usize,
    /// Why it ended: the error of operations that end because of that.
    pub cause: Option<TransportError>,
    /// Whether the caller knows it: then its end has to be told.
    pub is_shown: bool,
    /// Whether the peer said anything: then UCX is done with choosing wires. Until then its report on
    /// an endpoint may crash (seen in 1.22).
    pub is_heard: bool,
    /// Whether pieces are put together before they are sent; known with the first such send.
    pub gathers: Option<bool>,
    /// What of this side's memory the peer said that it reads.
    pub read_by_peer: Ways,
    /// Data of this side that lies where the peer reads it, by the number of the message that said
    /// so: until the peer took it, or the connection ends.
    pub placed: BTreeMap<u64, (Ticket, Option<Piece>)>,
    /// What the peer has to show in its memory: made here, so that nothing that lies there already can be
    /// it. `None` where it was not asked, or has answered.
    pub question: Option<Nonce>,
    /// What this side shows the peer, which asked for it; stays where it is.
    pub shown: Option<Box<Nonce>>,
    /// The peer's process, where its memory can be read.
    pub peer_process: Option<u32>,
    /// The peer's segment, where it can be mapped.
    pub peer_segment: Option<View>,
}

// SAFETY: the endpoint is only passed to UCX, by whoever has the transport for itself.
unsafe impl Send for Connection {}

impl Connection {
    /// A connection that was just made.
    pub fn new(endpoint: ucp_ep_h, is_connector: bool) -> Self {
        Self {
            endpoint,
            state: State::Open,
            next_sequence: 0,
            inbox: Inbox::starting_at(0),
            long_header: None,
            announced_bytes: 0,
            announced_count: 0,
            operations: 0,
            queued_bytes: 0,
            cause: None,
            is_shown: is_connector,
            is_heard: false,
            gathers: None,
            read_by_peer: Ways::default(),
            placed: BTreeMap::new(),
            question: None,
            shown: None,
            peer_process: None,
            peer_segment: None,
        }
    }
}
