//! The UCX adapter of the transport port.
//!
//! What it is for: bytes between workers by the fastest wire that UCX finds (RDMA, TCP). UCX is
//! opened at run time; [`availability`] tells whether it is there.
//!
//! How it works: a transport has one worker with a listener at an IP address and a port, which is
//! the transport's whole address. UCX connects through its socket connection manager: each
//! connection is one endpoint on either side, known to both before the first message, so no two can
//! be mixed up, and none needs a peer's help to be ended. Every message bears a number, so order is
//! kept ([`inbox`]).
//!
//! Which way bytes go UCX's options say. Between processes of one host UCX itself takes TCP: it gives
//! up shared memory on connections that must notice a dead peer (seen from 1.13 to 1.22). So there
//! this adapter moves data itself, where UCX's list of wires (`TLS`) has shared memory in it and the
//! peer's memory turns out to be readable ([`neighbour`], [`segment`]): small data is read where it
//! lies, more of it through a segment, which one side fills while the other empties it. Messages, and
//! the news of a death, still come over UCX.
//!
//! Guards: data is written here only into memory named by the caller, by this side: it is fetched, and
//! no peer gets a key to where it goes (what UCX's keys open at a sender over RDMA: [`registration`]). What a peer can make this side hold is bounded. Callbacks never unwind into
//! UCX ([`mailbox`]). Every ticket ends exactly once, after UCX has let go of its memory.
//!
//! What it cannot guard: UCX trusts its wire. Whoever can reach the ports that UCX opens, or whoever
//! is connected to, can end the process by speaking UCX's inner protocol wrongly (some zero bytes
//! sent to the listener's port are enough for UCX 1.13). Keep UCX on networks that only workers
//! reach. An address is an IP address and a port, no more: it can be
//! judged before it is connected to, and a forged one only leads elsewhere.
//!
//! A copy of UCX that the host has loaded, under whatever name, is the one that is used. A host that loads
//! another one later keeps it to itself (`RTLD_LOCAL`): made visible to all (`RTLD_GLOBAL`), it takes calls
//! that this one's modules make of UCX for the first time, such as those at the process's end.
//!
//! Never does: change the environment, print, or keep UCX's signal handlers. UCX's own log is
//! turned off only where this library is the first to load UCX, and `UCX_LOG_LEVEL` is not set.

mod adapter;
mod connection;
mod context;
mod describe;
mod frame;
#[cfg(test)]
mod hostile;
mod inbox;
mod mailbox;
mod neighbour;
mod operation;
mod registration;
mod room;
mod segment;
mod socket;
mod status;
mod wake;
mod worker;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub use adapter::UcxTransport;
pub use ucx_sys::Version;

use super::transport::TransportError;

/// How a transport uses UCX. The default leaves the choice of wires to UCX and to the operator's
/// `UCX_*` variables.
#[derive(Debug, Clone)]
pub struct UcxOptions {
    /// UCX's `TLS`: which kinds of wires, such as `tcp` or `rc`.
    pub tls: Option<String>,
    /// UCX's `NET_DEVICES`: which devices, such as `lo`. UCX has ports open on all that are allowed.
    pub net_devices: Option<String>,
    /// The IP address at which peers connect; it is told to them, so it is one of this machine's
    /// own, not a wildcard. Only IPv4: connections over IPv6 corrupt memory in UCX 1.13.
    pub listen: IpAddr,
    /// The port there; 0: one that the system chooses. A port that was in use until just now can be
    /// had again at once.
    pub port: u16,
    /// How often UCX looks whether silent peers are alive. Where a wire does not tell of a death,
    /// [`PeerGone`](super::transport::Event::PeerGone) comes a few of these later.
    pub keepalive: Duration,
    /// Most connections at once, both ways together.
    pub max_connections: usize,
}

impl Default for UcxOptions {
    fn default() -> Self {
        Self {
            tls: None,
            net_devices: None,
            listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            keepalive: Duration::from_secs(2),
            max_connections: 1024,
        }
    }
}

/// Which UCX is here, or why none can be used.
pub fn availability() -> Result<Version, TransportError> {
    context::open_library().map(|library| library.version)
}
