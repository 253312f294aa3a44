//! One send, receive or close that UCX works on, with the memory that UCX reads for it.
//!
//! UCX holds the address of an [`Operation`] as user data until it calls back; the mailbox keeps
//! a list of those out there.

use ucx_sys::{ucp_dt_iov_t, ucs_status_t};

use super::mailbox::Mailbox;
use crate::transfer::transport::{PeerId, Segment, Ticket};

/// What an operation is, which decides what its end means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A message or data of the caller's.
    Send(Ticket),
    /// Data into the caller's memory.
    Receive(Ticket),
    /// A long message into [`Operation::bytes`].
    Fetch,
    /// A message of the connection's own, such as a long header.
    Own,
    /// The last message of this side.
    Bye,
    /// The end of the endpoint.
    Close,
}

/// See the module.
pub(super) struct Operation {
    pub peer: PeerId,
    pub purpose: Purpose,
    /// The active message's header.
    pub header: Vec<u8>,
    /// The payload, where it belongs to the transport: read by a send, written by a receive.
    pub bytes: Vec<u8>,
    /// Whether `bytes` is the caller's payload put together: a buffer to be used again.
    pub is_gathered: bool,
    /// The payload, where it is the caller's.
    pub segments: Vec<ucp_dt_iov_t>,
    /// How it ended.
    pub status: ucs_status_t,
    /// Where to put it when it ended.
    pub mailbox: *const Mailbox,
}

impl Operation {
    pub fn new(peer: PeerId, purpose: Purpose, mailbox: &Mailbox) -> Box<Self> {
        Box::new(Self {
            peer,
            purpose,
            header: Vec::new(),
            bytes: Vec::new(),
            is_gathered: false,
            segments: Vec::new(),
            status: ucx_sys::UCS_INPROGRESS,
            mailbox,
        })
    }

    /// Bytes of the transport's own that wait here for the peer; none of what is received.
    pub fn queued_bytes(&self) -> usize {
        match self.purpose {
            Purpose::Send(_) | Purpose::Own | Purpose::Bye if !self.is_gathered => {
                self.header.len() + self.bytes.len()
            }
            _ => 0,
        }
    }
}

/// UCX's list of segments: empty ones left out, neighbours joined (one run of memory goes the
/// fastest way).
pub(super) fn joined(segments: &[Segment]) -> Vec<ucp_dt_iov_t> {
    let mut runs: Vec<ucp_dt_iov_t> = Vec::with_capacity(segments.len());
    for segment in segments.iter().filter(|segment| segment.len > 0) {
        match runs.last_mut() {
            Some(run) if run.buffer.addr().checked_add(run.length) == Some(segment.data.addr()) => {
                run.length += segment.len;
            }
            _ => runs.push(ucp_dt_iov_t { buffer: segment.data.cast(), length: segment.len }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_empty_segments_vanish() {
        let mut memory = [0u8; 16];
        let base = memory.as_mut_ptr();
        let at = |offset: usize, len| Segment { data: base.wrapping_add(offset), len };
        let runs = joined(&[at(0, 4), at(9, 0), at(4, 4), at(9, 2), at(8, 1)]);
        let seen: Vec<_> =
            runs.iter().map(|run| (run.buffer.addr() - base.addr(), run.length)).collect();
        assert_eq!(seen, [(0, 8), (9, 2), (8, 1)]);
    }
}
