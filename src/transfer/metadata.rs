//! Source states by endpoint: fetched on a thread of their own, kept while they are of use.
//!
//! The thread, `kvhints-metadata`, makes one fetch at a time; requests for an endpoint that is being
//! fetched share its answer. A state is kept until somebody says that it is stale; a failure is kept
//! for a short while, so that a burst of requests does not become a burst of connections.
//!
//! Guards: the provider's own list is asked here, whatever the planner's list said, before the
//! endpoint is queued, and the addresses again when it is connected to. Queue and cache are bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};

use super::http::client::{self, FetchError};
use super::reason::FailReason;
use super::state::State;
use crate::clock::Clock;
use crate::plan::{AllowList, Endpoint};
use crate::poison::Poison;

/// Endpoints that wait to be fetched.
const MAX_WAITING: usize = 64;
/// Endpoints whose answer is kept.
const MAX_CACHED: usize = 1024;
/// How long a failure is kept.
const FAILURE_KEPT_NS: u64 = 1_000_000_000;
/// Longest single fetch, whatever the requests' deadlines are: it bounds how long a drop waits.
const MAX_FETCH_TIME: Duration = Duration::from_secs(5);

/// A source's state, or why there is none.
pub type StateResult = Result<Arc<State>, FailReason>;

/// Called once with the answer, from the asking thread or the metadata thread.
pub type Reply = Box<dyn FnOnce(StateResult) + Send>;

/// The metadata thread and its cache. Dropping it ends the thread after its present fetch.
pub struct MetadataService {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inner: Mutex<Inner>,
    work: Condvar,
    allow_list: Arc<RwLock<AllowList>>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Fetch>,
    /// Who waits for an endpoint that is queued or being fetched.
    askers: HashMap<Endpoint, Vec<Reply>>,
    cache: HashMap<Endpoint, Cached>,
    is_closed: bool,
}

struct Fetch {
    endpoint: Endpoint,
    deadline: Instant,
}

enum Cached {
    State(Arc<State>),
    Failure(FailReason, u64),
}

impl MetadataService {
    /// Starts the thread.
    pub fn start(
        allow_list: Arc<RwLock<AllowList>>,
        clock: Arc<dyn Clock>,
        poison: Arc<Poison>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner::default()),
            work: Condvar::new(),
            allow_list,
            clock,
        });
        let worker = Arc::clone(&shared);
        let name = "kvhints-metadata".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if poison.catch(|| worker.run()).is_err() {
                worker.close(FailReason::Fault);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks for the state at an endpoint. The reply may come before this returns.
    pub fn request(&self, endpoint: &Endpoint, timeout: Duration, reply: Reply) {
        if self.shared.allow_list.read().check(endpoint).is_err() {
            return reply(Err(FailReason::EndpointDenied));
        }
        let mut inner = self.shared.inner.lock();
        let known = if inner.is_closed {
            Some(Err(FailReason::Shutdown))
        } else {
            inner.cached(endpoint, self.shared.clock.monotonic_ns())
        };
        let refused = match known {
            Some(answer) => answer,
            None if inner.askers.contains_key(endpoint) => {
                inner.askers.entry(endpoint.clone()).or_default().push(reply);
                return;
            }
            None if inner.waiting.len() >= MAX_WAITING => Err(FailReason::Limit),
            None => {
                let deadline = Instant::now() + timeout.min(MAX_FETCH_TIME);
                inner.waiting.push_back(Fetch { endpoint: endpoint.clone(), deadline });
                inner.askers.insert(endpoint.clone(), vec![reply]);
                self.shared.work.notify_one();
                return;
            }
        };
        // Replies run without the lock.
        drop(inner);
        reply(refused);
    }

    /// Forgets a state that turned out to be stale.
    pub fn forget(&self, endpoint: &Endpoint) {
        self.shared.inner.lock().cache.remove(endpoint);
    }
}

impl Drop for MetadataService {
    fn drop(&mut self) {
        self.shared.close(FailReason::Shutdown);
        if let Some(thread) = self.thread.take() {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(fetch) = self.next() {
            let answer = self.fetch(&fetch);
            let now_ns = self.clock.monotonic_ns();
            let mut inner = self.inner.lock();
            inner.remember(&fetch.endpoint, &answer, now_ns);
            let replies = inner.askers.remove(&fetch.endpoint).unwrap_or_default();
            drop(inner);
            replies.into_iter().for_each(|reply| reply(answer.clone()));
        }
    }

    fn next(&self) -> Option<Fetch> {
        let mut inner = self.inner.lock();
        loop {
            if inner.is_closed {
                return None;
            }
            if let Some(fetch) = inner.waiting.pop_front() {
                return Some(fetch);
            }
            self.work.wait(&mut inner);
        }
    }

    fn fetch(&self, fetch: &Fetch) -> StateResult {
        let timeout = fetch.deadline.saturating_duration_since(Instant::now());
        if timeout.is_zero() {
            return Err(FailReason::MetadataTimeout);
        }
        // Asked again: the list may have changed while the endpoint waited.
        let Ok(bounds) = self.allow_list.read().check(&fetch.endpoint).cloned() else {
            return Err(FailReason::EndpointDenied);
        };
        match client::fetch(&fetch.endpoint, &bounds, timeout) {
            Ok(bytes) => {
                State::decode(&bytes).map(Arc::new).map_err(|_| FailReason::MetadataFailed)
            }
            Err(FetchError::AddressDenied) => Err(FailReason::EndpointDenied),
            Err(FetchError::UnsupportedScheme) => Err(FailReason::Unsupported),
            Err(FetchError::Timeout) => Err(FailReason::MetadataTimeout),
            Err(FetchError::Status(_) | FetchError::TooLong | FetchError::Failed) => {
                Err(FailReason::MetadataFailed)
            }
        }
    }

    /// Refuses further requests, and answers all that wait.
    fn close(&self, reason: FailReason) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        inner.waiting.clear();
        let askers = std::mem::take(&mut inner.askers);
        drop(inner);
        self.work.notify_all();
        askers.into_values().flatten().for_each(|reply| reply(Err(reason)));
    }
}

impl Inner {
    fn cached(&self, endpoint: &Endpoint, now_ns: u64) -> Option<StateResult> {
        match self.cache.get(endpoint)? {
            Cached::State(state) => Some(Ok(Arc::clone(state))),
            Cached::Failure(reason, until_ns) if now_ns < *until_ns => Some(Err(*reason)),
            Cached::Failure(..) => None,
        }
    }

    fn remember(&mut self, endpoint: &Endpoint, answer: &StateResult, now_ns: u64) {
        if self.cache.len() >= MAX_CACHED && !self.cache.contains_key(endpoint) {
            let is_expired = |cached: &Cached| matches!(cached, Cached::Failure(_, until_ns) if *until_ns <= now_ns);
            self.cache.retain(|_, cached| !is_expired(cached));
            // Full of what is still of use: any one makes room, and is fetched again if wanted.
            if self.cache.len() >= MAX_CACHED {
                if let Some(victim) = self.cache.keys().next().cloned() {
                    self.cache.remove(&victim);
                }
            }
        }
        let cached = match answer {
            Ok(state) => Cached::State(Arc::clone(state)),
            Err(reason) => Cached::Failure(*reason, now_ns.saturating_add(FAILURE_KEPT_NS)),
        };
        self.cache.insert(endpoint.clone(), cached);
    }
}
