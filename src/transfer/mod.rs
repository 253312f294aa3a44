//! Blocks from worker to worker: the source's side, the destination's side, and what they share.
//!
//! [`transport`] is the port through which bytes leave the process; its adapters are named only
//! where a transceiver is composed.

pub mod attempt;
pub mod cuda;
mod destination;
mod driver;
pub mod http;
pub mod layout;
pub mod loopback;
pub mod memory;
mod metadata;
pub mod prefetch;
pub mod protocol;
pub mod reason;
mod source;
pub mod state;
pub mod transceiver;
pub mod transport;
pub mod ucx;
mod wire;

pub use wire::WireError;
