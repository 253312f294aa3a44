//! Fetches a transceiver state from a listed endpoint.
//!
//! Guards: one deadline covers resolving, connecting and every byte; it may be moved, and the fetch
//! may be cancelled, from another thread. The answer's size is capped; a name is resolved once, each
//! address it has is judged, and only those very addresses are connected to.
//! Never does: follow a redirect, use a proxy (of the environment neither), keep a connection, or
//! judge whether the endpoint is listed. That is its caller's duty.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Token};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::Agent;

use super::patience::{GaveUp, Patience};
use super::tcp;
use crate::plan::{AddressBounds, Endpoint, Scheme};
use crate::transfer::state::MAX_STATE_BYTES;

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 16;
/// Name look-ups at once, those included that nobody waits for any more.
const MAX_LOOK_UPS: usize = 128;

/// Why there is no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// This release speaks no TLS.
    #[error("https endpoints are not supported by this build: list the http or tcp endpoint")]
    UnsupportedScheme,
    /// Every address that the name has is outside of the allowed ranges.
    #[error("the endpoint resolves only to addresses outside of the allowed ranges")]
    AddressDenied,
    /// Those who asked would not wait longer, or it was cancelled. Says nothing of the endpoint.
    #[error("the fetch was given up before the endpoint answered")]
    GivenUp,
    /// The endpoint took longer than any may.
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

/// Fetches what the endpoint serves. Blocks, at most as long as `patience` lasts.
pub fn fetch(
    endpoint: &Endpoint,
    bounds: &AddressBounds,
    patience: &Arc<Patience>,
) -> Result<Vec<u8>, FetchError> {
    let by_the_system: Arc<LookUp> =
        Arc::new(|host, port| (host, port).to_socket_addrs().map(Vec::from_iter));
    fetch_resolved_by(by_the_system, endpoint, bounds, patience)
}

/// The addresses of a host name, with this port; may block.
type LookUp = dyn Fn(&str, u16) -> std::io::Result<Vec<SocketAddr>> + Send + Sync;

/// As [`fetch`], with names resolved by `look_up`.
fn fetch_resolved_by(
    look_up: Arc<LookUp>,
    endpoint: &Endpoint,
    bounds: &AddressBounds,
    patience: &Arc<Patience>,
) -> Result<Vec<u8>, FetchError> {
    if endpoint.scheme() == Scheme::Https {
        return Err(FetchError::UnsupportedScheme);
    }
    let config = Agent::config_builder()
        // The default would read the environment.
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .user_agent(concat!("kvhints/", env!("CARGO_PKG_VERSION")))
        .build();
    let resolver = JudgedResolver {
        endpoint: endpoint.clone(),
        bounds: bounds.clone(),
        patience: Arc::clone(patience),
        look_up,
    };
    let connector = PatientConnector(Arc::clone(patience));
    patience.begin();
    let fetched = match endpoint.scheme() {
        Scheme::Tcp => read_over_tcp(&resolver, &connector),
        _ => read(&Agent::with_parts(config, connector, resolver), endpoint),
    };
    fetched.map_err(|error| {
        // What was interrupted shows in many forms; why it was is known here.
        match patience.gave_up() {
            Some(GaveUp::Asked) => FetchError::GivenUp,
            Some(GaveUp::Exhausted) => FetchError::Timeout,
            None => error,
        }
    })
}

fn read(agent: &Agent, endpoint: &Endpoint) -> Result<Vec<u8>, FetchError> {
    let mut response = agent.get(endpoint.canonical()).call().map_err(as_fetch_error)?;
    if response.status().as_u16() != 200 {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let body = response.body_mut().with_config().limit(MAX_STATE_BYTES as u64);
    body.read_to_vec().map_err(as_fetch_error)
}

fn read_over_tcp(
    resolver: &JudgedResolver,
    connector: &PatientConnector,
) -> Result<Vec<u8>, FetchError> {
    let addresses = resolver.allowed().map_err(as_fetch_error)?;
    let mut stream = connector.connect_to_one_of(&addresses).map_err(as_fetch_error)?;
    tcp::read_state(&mut stream, &connector.0)
}

fn as_fetch_error(error: ureq::Error) -> FetchError {
    match error {
        ureq::Error::Timeout(_) => FetchError::Timeout,
        ureq::Error::BodyExceedsLimit(_) => FetchError::TooLong,
        ureq::Error::Io(error) if error.kind() == DENIED => FetchError::AddressDenied,
        ureq::Error::Io(error) if error.kind() == ErrorKind::TimedOut => FetchError::Timeout,
        _ => FetchError::Failed,
    }
}

/// Resolves the endpoint's name, and lets through only addresses that may be connected to.
struct JudgedResolver {
    endpoint: Endpoint,
    bounds: AddressBounds,
    patience: Arc<Patience>,
    look_up: Arc<LookUp>,
}

impl std::fmt::Debug for JudgedResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JudgedResolver")
    }
}

/// What [`JudgedResolver`] says when it denies; recognised by its kind.
const DENIED: ErrorKind = ErrorKind::PermissionDenied;

impl Resolver for JudgedResolver {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut allowed = self.empty();
        self.allowed()?.into_iter().for_each(|address| allowed.push(address));
        Ok(allowed)
    }
}

impl JudgedResolver {
    /// The endpoint's addresses that may be connected to; at least one.
    fn allowed(&self) -> Result<Vec<SocketAddr>, ureq::Error> {
        let mut addresses = match self.endpoint.address() {
            Some(address) => vec![SocketAddr::new(address, self.endpoint.port())],
            None => self.addresses()?,
        };
        addresses.retain(|address| self.bounds.allows(address.ip()));
        addresses.truncate(MAX_ADDRESSES);
        if addresses.is_empty() {
            return Err(ureq::Error::Io(DENIED.into()));
        }
        Ok(addresses)
    }

    /// Asks for the name's addresses, which cannot be interrupted: a thread waits for them, and ends
    /// by itself when nobody waits for that thread any more.
    fn addresses(&self) -> Result<Vec<SocketAddr>, ureq::Error> {
        static LOOK_UPS: AtomicUsize = AtomicUsize::new(0);
        if LOOK_UPS.fetch_add(1, Ordering::Relaxed) >= MAX_LOOK_UPS {
            LOOK_UPS.fetch_sub(1, Ordering::Relaxed);
            return Err(ureq::Error::HostNotFound);
        }
        let found = Arc::new(OnceLock::new());
        let (host, port) = (self.endpoint.host().to_owned(), self.endpoint.port());
        let (answer, patience) = (Arc::clone(&found), Arc::clone(&self.patience));
        let look_up = Arc::clone(&self.look_up);
        let thread = std::thread::Builder::new().name("kvhints-resolve".to_owned());
        let thread = thread.spawn(move || {
            let _ = answer.set(look_up(&host, port).ok());
            LOOK_UPS.fetch_sub(1, Ordering::Relaxed);
            patience.wake();
        });
        if let Err(error) = thread {
            LOOK_UPS.fetch_sub(1, Ordering::Relaxed);
            return Err(error.into());
        }
        loop {
            if let Some(found) = found.get() {
                return found.clone().ok_or(ureq::Error::HostNotFound);
            }
            self.patience.wait(None)?;
        }
    }
}

/// Connects, and gives up when patience ends.
#[derive(Debug)]
struct PatientConnector(Arc<Patience>);

impl Connector for PatientConnector {
    type Out = PatientTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<PatientTransport>, ureq::Error> {
        let stream = self.connect_to_one_of(&details.addrs)?;
        let config = details.config;
        let sizes = (config.input_buffer_size(), config.output_buffer_size());
        let buffers = LazyBuffers::new(sizes.0, sizes.1);
        let patience = Arc::clone(&self.0);
        Ok(Some(PatientTransport { stream, buffers, patience }))
    }
}

impl PatientConnector {
    /// A connection to the first address that answers.
    fn connect_to_one_of(&self, addresses: &[SocketAddr]) -> Result<TcpStream, ureq::Error> {
        let mut refusal = ureq::Error::ConnectionFailed;
        let count = addresses.len();
        for (index, address) in addresses.iter().enumerate() {
            let left = self.0.left()?;
            // An address that does not answer leaves the others their share of the time.
            let is_last = index + 1 == count;
            let share = (!is_last).then(|| Instant::now() + left / (count - index) as u32);
            match self.connect_to(*address, share) {
                Ok(stream) => return Ok(stream),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn connect_to(
        &self,
        address: SocketAddr,
        until: Option<Instant>,
    ) -> Result<TcpStream, ureq::Error> {
        let mut stream = TcpStream::connect(address)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.0.register(&mut stream, Token(0), interest)?;
        loop {
            if let Some(error) = stream.take_error()? {
                return Err(error.into());
            }
            match stream.peer_addr() {
                Ok(_) => return Ok(stream),
                Err(error) if error.kind() == ErrorKind::NotConnected => {}
                Err(error) => return Err(error.into()),
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(ureq::Error::Io(ErrorKind::TimedOut.into()));
            }
            self.0.wait(until)?;
        }
    }
}

/// A connection that is given up when patience ends.
struct PatientTransport {
    stream: TcpStream,
    buffers: LazyBuffers,
    patience: Arc<Patience>,
}

impl std::fmt::Debug for PatientTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PatientTransport")
    }
}

impl Transport for PatientTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, _: NextTimeout) -> Result<(), ureq::Error> {
        let mut rest = &self.buffers.output()[..amount];
        while !rest.is_empty() {
            self.patience.left()?;
            match self.stream.write(rest) {
                Ok(0) => return Err(ureq::Error::Io(ErrorKind::WriteZero.into())),
                Ok(len) => rest = &rest[len..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.patience.wait(None)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, _: NextTimeout) -> Result<bool, ureq::Error> {
        loop {
            // Also while there is always something to read.
            self.patience.left()?;
            match self.stream.read(self.buffers.input_append_buf()) {
                Ok(len) => {
                    self.buffers.input_appended(len);
                    return Ok(len > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.patience.wait(None)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        // Never used twice.
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

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

        fn answer(&self) -> Vec<SocketAddr> {
            let question = self.asked.fetch_add(1, Ordering::SeqCst);
            self.answers.get(question).or(self.answers.last()).expect("an answer").clone()
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
        let names = names.clone();
        let longest = Duration::from_secs(30);
        let patience = Arc::new(Patience::new(Instant::now() + longest, longest).unwrap());
        fetch_resolved_by(Arc::new(move |_, _| Ok(names.answer())), &endpoint, &bounds, &patience)
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
