//! The transceiver state over HTTP, a server of one path and a client that fetches it; and the same
//! over plain TCP, for `tcp` endpoints.

pub mod client;
pub mod patience;
pub mod server;
mod tcp;

/// Where a state is served.
pub const STATE_PATH: &str = "/v1/data_transceiver_state";
