//! Fetches a transceiver state from a listed endpoint.
//!
//! Guards: one deadline covers resolving, connecting and every byte; the answer's size is capped; a
//! name is resolved once, each address it has is judged, and only those very addresses are connected
//! to.
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
struct JudgedResolver<N> {
    bounds: AddressBounds,
    names: N,
}

/// What [`JudgedResolver`] says when it denies; recognised by its kind.
const DENIED: std::io::ErrorKind = std::io::ErrorKind::PermissionDenied;

impl<N: Resolver> Resolver for JudgedResolver<N> {
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
    fetch_resolved_by(DefaultResolver::default(), endpoint, bounds, timeout)
}

/// As [`fetch`], with names resolved by `names`.
fn fetch_resolved_by(
    names: impl Resolver,
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
    let resolver = JudgedResolver { bounds: bounds.clone(), names };
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    use super::*;

    /// Answers each question from the list, the last answer for ever; counts the questions.
    #[derive(Debug, Clone)]
    struct Names {
        answers: Vec<Vec<SocketAddr>>,
        asked: Arc<AtomicUsize>,
    }

    impl Names {
        fn new(answers: &[&[SocketAddr]]) -> Self {
            let answers = answers.iter().map(|answer| answer.to_vec()).collect();
            Self { answers, asked: Arc::new(AtomicUsize::new(0)) }
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    impl Resolver for Names {
        fn resolve(
            &self,
            _uri: &Uri,
            _config: &Config,
            _timeout: NextTimeout,
        ) -> Result<ResolvedSocketAddrs, ureq::Error> {
            let question = self.asked.fetch_add(1, Ordering::SeqCst);
            let mut found = self.empty();
            let answer = self.answers.get(question).or(self.answers.last());
            answer.expect("an answer").iter().for_each(|address| found.push(*address));
            Ok(found)
        }
    }

    /// Listens, and nobody must come.
    struct Trap(TcpListener);

    impl Trap {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.2:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            Self(listener)
        }

        fn address(&self) -> SocketAddr {
            self.0.local_addr().unwrap()
        }

        fn check(&self) {
            let nobody = self.0.accept().unwrap_err();
            assert_eq!(nobody.kind(), ErrorKind::WouldBlock, "somebody connected");
        }
    }

    fn fetch_from(names: &Names) -> Result<Vec<u8>, FetchError> {
        let endpoint = Endpoint::parse("http://kv.example:1").unwrap();
        let bounds = AddressBounds::within(&["127.0.0.1"]).unwrap();
        fetch_resolved_by(names.clone(), &endpoint, &bounds, Duration::from_secs(30))
    }

    /// Answers one request at 127.0.0.1.
    fn source() -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let len = stream.read(&mut request).unwrap();
            assert!(request[..len].starts_with(b"GET /v1/data_transceiver_state HTTP/1.1"));
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstate").unwrap();
        });
        (address, thread)
    }

    #[test]
    fn a_name_that_changes_its_answer_is_asked_once() {
        let (trap, (address, thread)) = (Trap::new(), source());
        let names = Names::new(&[&[address], &[trap.address()]]);
        assert_eq!(fetch_from(&names), Ok(b"state".to_vec()));
        thread.join().unwrap();
        assert_eq!(names.asked(), 1);
        trap.check();
    }

    #[test]
    fn of_several_addresses_only_those_within_the_bounds_are_connected_to() {
        let (trap, (address, thread)) = (Trap::new(), source());
        let names = Names::new(&[&[trap.address(), address, trap.address()]]);
        assert_eq!(fetch_from(&names), Ok(b"state".to_vec()));
        thread.join().unwrap();
        trap.check();
    }

    #[test]
    fn with_no_address_within_the_bounds_nobody_is_connected_to() {
        let trap = Trap::new();
        let names = Names::new(&[&[trap.address()]]);
        assert_eq!(fetch_from(&names), Err(FetchError::AddressDenied));
        assert_eq!(names.asked(), 1);
        trap.check();
    }

    #[test]
    fn an_address_that_does_not_answer_is_not_replaced_by_another_answer() {
        let trap = Trap::new();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let names = Names::new(&[&[closed], &[trap.address()]]);
        assert_eq!(fetch_from(&names), Err(FetchError::Failed));
        assert_eq!(names.asked(), 1);
        trap.check();
    }
}
