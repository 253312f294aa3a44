//! Serves the transceiver state: `GET /v1/data_transceiver_state`, and nothing else; or over plain
//! TCP, where whoever connects is told it.
//!
//! One thread, `kvhints-http` or `kvhints-tcp`, waits for all sockets at once. Each connection asks
//! one question over HTTP, is answered, and closed.
//!
//! Guards: connections, request size and the time a connection may take are bounded; a connection
//! that does not keep to it is closed, and the others do not notice. When all places are taken, a
//! new connection gets the place of the oldest that has not asked yet, of the address that has
//! most: connections that say nothing keep nobody waiting.
//! Never does: read a request body, keep a connection, or serve any other path.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::CStr;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::RwLock;

use super::STATE_PATH;
use crate::poison::Poison;
use crate::telemetry::nvtx;
use crate::transfer::protocol::state_head;

/// Connections served at once; one more takes the place of another.
const MAX_CONNECTIONS: usize = 64;
/// Connections accepted before those that are there are looked at again.
const ACCEPTS_PER_ROUND: usize = MAX_CONNECTIONS / 2;
/// Longest request head.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// From accepting a connection to having answered it.
const CONNECTION_TIME: Duration = Duration::from_secs(5);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;

/// What is served; `None` until the worker's state is known.
pub type ServedState = Arc<RwLock<Option<Arc<Vec<u8>>>>>;

/// How a server speaks to who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// HTTP, one path.
    Http,
    /// The library's own protocol, one message.
    Tcp,
}

impl Language {
    fn thread_name(self) -> &'static CStr {
        match self {
            Self::Http => c"kvhints-http",
            Self::Tcp => c"kvhints-tcp",
        }
    }
}

/// A running server; dropping it ends its thread.
pub struct StateServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl StateServer {
    /// Listens on `address` (port 0: any) and serves.
    pub fn start(
        address: SocketAddr,
        language: Language,
        state: ServedState,
        poison: Arc<Poison>,
    ) -> std::io::Result<Self> {
        let mut listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server {
            poll,
            listener,
            language,
            state,
            stop: Arc::clone(&stop),
            connections: HashMap::new(),
            last_token: FIRST_CONNECTION,
        };
        let name = language.thread_name();
        let thread = std::thread::Builder::new().name(name.to_string_lossy().into_owned()).spawn(
            move || {
                nvtx::name_this_thread(name);
                // A panic poisons the context; the listener closes either way.
                let _ = poison.catch(|| server.run());
            },
        )?;
        Ok(Self { address, stop, waker, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StateServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Without a wake the thread still ends with its next round.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    language: Language,
    state: ServedState,
    stop: Arc<AtomicBool>,
    connections: HashMap<Token, Connection>,
    last_token: usize,
}

struct Connection {
    stream: TcpStream,
    /// Whose it is.
    address: IpAddr,
    deadline: Instant,
    request: Vec<u8>,
    answer: Option<Answer>,
}

struct Answer {
    head: Vec<u8>,
    body: Arc<Vec<u8>>,
    written: usize,
}

/// What became of a connection when it was looked at.
#[derive(PartialEq, Eq)]
enum Progress {
    Waits,
    Over,
}

impl Server {
    fn run(mut self) {
        // With connections, their deadlines are looked at this often; without, nothing is due.
        const ROUND: Duration = Duration::from_millis(250);
        const IDLE_ROUND: Duration = Duration::from_secs(10);
        let mut events = Events::with_capacity(128);
        let mut may_have_more = false;
        while !self.stop.load(Ordering::Acquire) {
            let round = match (may_have_more, self.connections.is_empty()) {
                (true, _) => Duration::ZERO,
                (false, true) => IDLE_ROUND,
                (false, false) => ROUND,
            };
            if let Err(error) = self.poll.poll(&mut events, Some(round)) {
                if error.kind() != ErrorKind::Interrupted {
                    return;
                }
            }
            for event in &events {
                if event.token().0 >= FIRST_CONNECTION {
                    self.advance(event.token());
                }
            }
            let now = Instant::now();
            self.connections.retain(|_, connection| now < connection.deadline);
            // Each round, whatever the events say: not all that waited may have been accepted.
            may_have_more = self.accept(now);
        }
    }

    /// Accepts those who wait; whether there may be more of them.
    fn accept(&mut self, now: Instant) -> bool {
        for _ in 0..ACCEPTS_PER_ROUND {
            let (mut stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                // The one peer's; others may wait behind it.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                // "No one waits", or there is no memory for one; the next round asks again.
                Err(_) => return false,
            };
            self.last_token += 1;
            let token = Token(self.last_token);
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, token, interest).is_err() {
                continue;
            }
            let deadline = now + CONNECTION_TIME;
            let address = peer.ip().to_canonical();
            let answer = match self.language {
                Language::Http => None,
                // Until the state is known there is nothing to say.
                Language::Tcp => match state_over_tcp(&self.state) {
                    Some(answer) => Some(answer),
                    None => continue,
                },
            };
            let connection = Connection { stream, address, deadline, request: Vec::new(), answer };
            self.make_room();
            self.connections.insert(token, connection);
            self.advance(token);
        }
        true
    }

    /// When all places are taken, frees one.
    fn make_room(&mut self) {
        if self.connections.len() < MAX_CONNECTIONS {
            return;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.connections.values() {
            *counts.entry(connection.address).or_default() += 1;
        }
        // Tokens count up: the least is the oldest.
        let victim = self.connections.iter().min_by_key(|(token, connection)| {
            let of_its_address = counts.get(&connection.address).copied().unwrap_or(0);
            (connection.answer.is_some(), Reverse(of_its_address), token.0)
        });
        if let Some(token) = victim.map(|(token, _)| *token) {
            self.connections.remove(&token);
        }
    }

    fn advance(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.advance(&self.state) == Progress::Over {
            self.connections.remove(&token);
        }
    }
}

impl Connection {
    fn advance(&mut self, state: &ServedState) -> Progress {
        if self.answer.is_none() && self.read(state) == Progress::Over {
            return Progress::Over;
        }
        self.write()
    }

    fn read(&mut self, state: &ServedState) -> Progress {
        let mut chunk = [0u8; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Progress::Over,
                Ok(len) => self.request.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waits,
                Err(_) => return Progress::Over,
            }
            self.answer = answer_to(&self.request, state);
            if self.answer.is_some() {
                return Progress::Waits;
            }
        }
    }

    fn write(&mut self) -> Progress {
        let Some(answer) = &mut self.answer else { return Progress::Waits };
        loop {
            let body_at = answer.written.saturating_sub(answer.head.len());
            let rest = match answer.head.get(answer.written..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &answer.body[body_at..],
            };
            if rest.is_empty() {
                // The peer reads the rest of what was sent, then the end.
                let _ = self.stream.shutdown(std::net::Shutdown::Write);
                return Progress::Over;
            }
            match self.stream.write(rest) {
                Ok(0) => return Progress::Over,
                Ok(len) => answer.written += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waits,
                Err(_) => return Progress::Over,
            }
        }
    }
}

/// The state, as it is told over plain TCP; `None` until it is known.
fn state_over_tcp(state: &ServedState) -> Option<Answer> {
    let body = state.read().clone()?;
    let head = state_head(u32::try_from(body.len()).ok()?);
    Some(Answer { head, body, written: 0 })
}

/// The answer to a request head, or `None` while it is incomplete.
fn answer_to(request: &[u8], state: &ServedState) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let (status, body): (&str, Option<Arc<Vec<u8>>>) = match head.parse(request) {
        Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST_BYTES => return None,
        Ok(httparse::Status::Partial) => ("431 Request Header Fields Too Large", None),
        Err(httparse::Error::TooManyHeaders) => ("431 Request Header Fields Too Large", None),
        Err(_) => ("400 Bad Request", None),
        Ok(httparse::Status::Complete(_)) if head.path != Some(STATE_PATH) => {
            ("404 Not Found", None)
        }
        Ok(httparse::Status::Complete(_)) if head.method != Some("GET") => {
            ("405 Method Not Allowed", None)
        }
        Ok(httparse::Status::Complete(_)) => match state.read().clone() {
            Some(state) => ("200 OK", Some(state)),
            None => ("503 Service Unavailable", None),
        },
    };
    let body = body.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Some(Answer { head: head.into_bytes(), body, written: 0 })
}
