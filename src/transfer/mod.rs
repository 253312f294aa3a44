//! Blocks from worker to worker: the source's side, the destination's side, and what they share.
//!
//! [`transport`] is the port through which bytes leave the process; its adapters are named only
//! where a transceiver is composed.

pub mod transport;
pub mod ucx;
