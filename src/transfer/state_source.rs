//! The port through which a transceiver learns other workers' states.
//!
//! Its adapter is the metadata service, which fetches them over HTTP. The port is here so that the
//! rest of the transfer does not know how, and runs where there is no network and no thread.

use std::time::Duration;

use super::metadata::MetadataService;
pub use super::metadata::{Reply, StateResult};
use crate::plan::Endpoint;

/// Where states of workers come from.
pub trait StateSource: Send + Sync {
    /// Asks for the state at an endpoint. The reply is called once, from any thread, perhaps before
    /// this returns; within `timeout` or with an error that says so.
    fn request(&self, endpoint: &Endpoint, timeout: Duration, reply: Reply);

    /// The state of that endpoint led nowhere: it is to be asked for anew the next time.
    fn forget(&self, endpoint: &Endpoint);
}

impl StateSource for MetadataService {
    fn request(&self, endpoint: &Endpoint, timeout: Duration, reply: Reply) {
        MetadataService::request(self, endpoint, timeout, reply);
    }

    fn forget(&self, endpoint: &Endpoint) {
        MetadataService::forget(self, endpoint);
    }
}
