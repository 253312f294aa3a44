//! Fetches a transceiver state from a listed endpoint.
//!
//! Guards: one deadline covers resolving, connecting and every byte; the answer's size is capped;
//! each address a name resolves to is judged, and only those very addresses are connected to.
//! Never does: follow a redirect, use a proxy (of the environment neither), keep a connection, or
//! judge whether the endpoint is listed. That is its caller's duty.

use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{NextTimeout, TcpConnector};
use ureq::Agent;

use crate::plan::{AddressBounds, Endpoint, Scheme};
use crate::transfer::state::MAX_STATE_BYTES;

/// Why there is no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// This release speaks plain HTTP only.
    #[error("https and tcp endpoints are not supported by this build: list the http endpoint")]
    UnsupportedScheme,
    /// Every address that the name has is outside of the allowed ranges.
    #[error("the endpoint resolves only to addresses outside of the allowed ranges")]
    AddressDenied,
    /// The deadline passed.
    #[error("the endpoint did not answer in time")]
    Timeout,
    /// An answer other than 200.
    #[error("expected HTTP status 200, found {0}")]
    Status(u16),
    /// The answer is longer than any state.
    #[error("the answer is longer than a state can be")]
    TooLong,
    /// Resolving, connecting or reading failed.
    #[error("the endpoint could not be reached or did not answer in HTTP")]
    Failed,
}

/// Resolves names, and lets through only addresses that may be connected to.
#[derive(Debug)]
struct JudgedResolver {
    bounds: AddressBounds,
    names: DefaultResolver,
}

/// What [`JudgedResolver`] says when it denies; recognised by its kind.
const DENIED: std::io::ErrorKind = std::io::ErrorKind::PermissionDenied;

impl Resolver for JudgedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let resolved = self.names.resolve(uri, config, timeout)?;
        let mut allowed = self.empty();
        for address in resolved.iter().filter(|address| self.bounds.allows(address.ip())) {
            allowed.push(*address);
        }
        if allowed.is_empty() {
            return Err(ureq::Error::Io(DENIED.into()));
        }
        Ok(allowed)
    }
}

/// Fetches what the endpoint serves. Blocks, at most for `timeout`.
pub fn fetch(
    endpoint: &Endpoint,
    bounds: &AddressBounds,
    timeout: Duration,
) -> Result<Vec<u8>, FetchError> {
    if endpoint.scheme() != Scheme::Http {
        return Err(FetchError::UnsupportedScheme);
    }
    let config = Agent::config_builder()
        .timeout_global(Some(timeout))
        // The default would read the environment.
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .user_agent(concat!("kvhints/", env!("CARGO_PKG_VERSION")))
        .build();
    let resolver = JudgedResolver { bounds: bounds.clone(), names: DefaultResolver::default() };
    let agent = Agent::with_parts(config, TcpConnector::default(), resolver);
    let mut response = agent.get(endpoint.canonical()).call().map_err(as_fetch_error)?;
    if response.status().as_u16() != 200 {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let body = response.body_mut().with_config().limit(MAX_STATE_BYTES as u64);
    body.read_to_vec().map_err(as_fetch_error)
}

fn as_fetch_error(error: ureq::Error) -> FetchError {
    match error {
        ureq::Error::Timeout(_) => FetchError::Timeout,
        ureq::Error::BodyExceedsLimit(_) => FetchError::TooLong,
        ureq::Error::Io(error) if error.kind() == DENIED => FetchError::AddressDenied,
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            FetchError::Timeout
        }
        _ => FetchError::Failed,
    }
}
