//! Source states by endpoint: fetched on threads of their own, kept while they are of use.
//!
//! Each endpoint that is being fetched has a thread, `kvhints-metadata`, so that one that hangs
//! keeps nobody waiting but those who asked for it; requests for an endpoint that is being fetched
//! share its answer. A fetch goes on as long as one of them would wait. A state is kept until
//! somebody says that it is stale; a failure of the endpoint is kept for a short while, so that a
//! burst of requests does not become a burst of connections. That somebody would not wait longer is
//! no failure of the endpoint.
//!
//! Guards: the provider's own list is asked here, whatever the planner's list said, before the
//! endpoint is contacted, and the addresses again when it is connected to. Fetches, threads, those
//! who wait and the cache are bounded: when all places are taken, the oldest fetch loses its place,
//! and only if none is older than [`FAIR_TIME`] is a request refused. No request is ever queued.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::http::client::{self, FetchError};
use super::http::patience::Patience;
use super::reason::FailReason;
use super::state::State;
use crate::clock::Clock;
use crate::plan::{AllowList, Endpoint};
use crate::poison::Poison;
use crate::telemetry::nvtx;

/// Endpoints that are fetched at once.
const MAX_FETCHES: usize = 64;
/// Threads at once: fetches, and those that lost their places and are about to end.
const MAX_THREADS: usize = 2 * MAX_FETCHES;
/// Requests that share one fetch.
const MAX_ASKERS: usize = 1024;
/// Endpoints whose answer is kept.
const MAX_CACHED: usize = 1024;
/// How long a failure is kept.
const FAILURE_KEPT_NS: u64 = 1_000_000_000;
/// How long a fetch has its place for certain.
const FAIR_TIME: Duration = Duration::from_millis(250);
/// Longest single fetch, whatever the requests' deadlines are. One that has not answered by then
/// has failed.
const MAX_FETCH_TIME: Duration = Duration::from_secs(30);

/// A source's state, or why there is none.
pub type StateResult = Result<Arc<State>, FailReason>;

/// Called once with the answer, from the asking thread or a metadata thread.
pub type Reply = Box<dyn FnOnce(StateResult) + Send>;

/// Fetches and their answers. Dropping it cancels the fetches and ends their threads; a look-up of
/// a name, which cannot be cancelled, ends by itself and touches nothing.
pub struct MetadataService {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Mutex<Inner>,
    allow_list: Arc<RwLock<AllowList>>,
    clock: Arc<dyn Clock>,
    poison: Arc<Poison>,
}

#[derive(Default)]
struct Inner {
    fetches: HashMap<Endpoint, Fetch>,
    /// Of all fetches, until they have ended.
    threads: Vec<JoinHandle<()>>,
    last_number: u64,
    cache: HashMap<Endpoint, Cached>,
    is_closed: bool,
}

/// An endpoint that is being fetched.
struct Fetch {
    /// Tells it from an earlier one of the same endpoint.
    number: u64,
    begun: Instant,
    patience: Arc<Patience>,
    askers: Vec<Asker>,
}

struct Asker {
    deadline: Instant,
    reply: Reply,
}

/// Replies and what they say; called without the lock.
type Due = Vec<(Reply, StateResult)>;

enum Cached {
    State(Arc<State>),
    Failure(FailReason, u64),
}

impl MetadataService {
    /// Fetches nothing yet.
    pub fn new(
        allow_list: Arc<RwLock<AllowList>>,
        clock: Arc<dyn Clock>,
        poison: Arc<Poison>,
    ) -> Self {
        let inner = Mutex::new(Inner::default());
        Self { shared: Arc::new(Shared { inner, allow_list, clock, poison }) }
    }

    /// Asks for the state at an endpoint. The reply may come before this returns; when the time is
    /// over it may come late, but then it says so.
    pub fn request(&self, endpoint: &Endpoint, timeout: Duration, reply: Reply) {
        if self.shared.allow_list.read().check(endpoint).is_err() {
            return reply(Err(FailReason::EndpointDenied));
        }
        let asker = Asker { deadline: Instant::now() + timeout.min(MAX_FETCH_TIME), reply };
        let mut due = Due::new();
        self.shared.ask(endpoint, asker, &mut due);
        answer(due);
    }

    /// Forgets a state that turned out to be stale.
    pub fn forget(&self, endpoint: &Endpoint) {
        self.shared.inner.lock().cache.remove(endpoint);
    }
}

impl Drop for MetadataService {
    fn drop(&mut self) {
        self.shared.close(FailReason::Shutdown);
        let threads = std::mem::take(&mut self.shared.inner.lock().threads);
        for thread in threads {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}

fn answer(due: Due) {
    due.into_iter().for_each(|(reply, answer)| reply(answer));
}

impl Shared {
    fn ask(self: &Arc<Self>, endpoint: &Endpoint, asker: Asker, due: &mut Due) {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return due.push((asker.reply, Err(FailReason::Shutdown)));
        }
        if let Some(known) = inner.cached(endpoint, self.clock.monotonic_ns()) {
            return due.push((asker.reply, known));
        }
        if let Some(fetch) = inner.fetches.get_mut(endpoint) {
            return fetch.join(asker, due);
        }
        if !inner.make_room(due) {
            return due.push((asker.reply, Err(FailReason::Limit)));
        }
        match self.begin(&mut inner, endpoint, asker.deadline) {
            Ok(mut fetch) => {
                fetch.askers.push(asker);
                inner.fetches.insert(endpoint.clone(), fetch);
            }
            // No thread, or no file descriptors.
            Err(_) => due.push((asker.reply, Err(FailReason::Limit))),
        }
    }

    /// Starts a fetch's thread, which finds the fetch once the lock is let go.
    fn begin(
        self: &Arc<Self>,
        inner: &mut Inner,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> std::io::Result<Fetch> {
        let patience = Arc::new(Patience::new(deadline, MAX_FETCH_TIME)?);
        inner.last_number += 1;
        let number = inner.last_number;
        let shared = Arc::clone(self);
        let (its_endpoint, its_patience) = (endpoint.clone(), Arc::clone(&patience));
        let thread = std::thread::Builder::new().name("kvhints-metadata".to_owned());
        let thread = thread.spawn(move || {
            nvtx::name_this_thread(c"kvhints-metadata");
            let run = || shared.run(&its_endpoint, number, &its_patience);
            if shared.poison.catch(run).is_err() {
                shared.close(FailReason::Fault);
            }
        })?;
        inner.threads.push(thread);
        Ok(Fetch { number, begun: Instant::now(), patience, askers: Vec::new() })
    }

    /// A fetch's thread: fetches, and again when it was given up while somebody still waits.
    fn run(&self, endpoint: &Endpoint, number: u64, patience: &Arc<Patience>) {
        let mut is_over = false;
        while !is_over {
            let mut due = Due::new();
            is_over = match self.fetch(endpoint, patience) {
                Some(result) => {
                    let now_ns = self.clock.monotonic_ns();
                    self.inner.lock().finish(endpoint, number, &result, now_ns, &mut due);
                    true
                }
                None => self.inner.lock().give_up(endpoint, number, &mut due),
            };
            answer(due);
        }
    }

    /// What the endpoint says, or why it does not; `None` when the fetch was given up.
    fn fetch(&self, endpoint: &Endpoint, patience: &Arc<Patience>) -> Option<StateResult> {
        // Asked again: the list may have changed meanwhile.
        let Ok(bounds) = self.allow_list.read().check(endpoint).cloned() else {
            return Some(Err(FailReason::EndpointDenied));
        };
        Some(match client::fetch(endpoint, &bounds, patience) {
            Ok(bytes) => {
                State::decode(&bytes).map(Arc::new).map_err(|_| FailReason::MetadataFailed)
            }
            Err(FetchError::GivenUp) => return None,
            Err(FetchError::AddressDenied) => Err(FailReason::EndpointDenied),
            Err(FetchError::UnsupportedScheme) => Err(FailReason::Unsupported),
            Err(FetchError::Timeout) => Err(FailReason::MetadataTimeout),
            Err(FetchError::Status(_) | FetchError::TooLong | FetchError::Failed) => {
                Err(FailReason::MetadataFailed)
            }
        })
    }

    /// Refuses further requests, answers all that wait, and cancels the fetches.
    fn close(&self, reason: FailReason) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        let fetches = std::mem::take(&mut inner.fetches);
        drop(inner);
        for fetch in fetches.into_values() {
            let mut due = Due::new();
            fetch.end(reason, &mut due);
            answer(due);
        }
    }
}

impl Fetch {
    /// One more waits for the answer.
    fn join(&mut self, asker: Asker, due: &mut Due) {
        if self.askers.len() >= MAX_ASKERS {
            self.dismiss_late(due);
        }
        if self.askers.len() >= MAX_ASKERS {
            return due.push((asker.reply, Err(FailReason::Limit)));
        }
        self.patience.extend(asker.deadline);
        self.askers.push(asker);
    }

    /// Answers those whose time is over.
    fn dismiss_late(&mut self, due: &mut Due) {
        let now = Instant::now();
        let late = self.askers.extract_if(.., |asker| asker.deadline <= now);
        due.extend(late.map(|asker| (asker.reply, Err(FailReason::MetadataTimeout))));
    }

    /// Cancels it, and answers all who wait.
    fn end(self, reason: FailReason, due: &mut Due) {
        self.patience.cancel();
        due.extend(self.askers.into_iter().map(|asker| (asker.reply, Err(reason))));
    }
}

impl Inner {
    /// Whether one more endpoint can be fetched; the oldest may lose its place for it.
    fn make_room(&mut self, due: &mut Due) -> bool {
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() >= MAX_THREADS {
            return false;
        }
        if self.fetches.len() < MAX_FETCHES {
            return true;
        }
        let oldest = self.fetches.iter().min_by_key(|(_, fetch)| fetch.number);
        let oldest = oldest.filter(|(_, fetch)| fetch.begun.elapsed() >= FAIR_TIME);
        let Some(endpoint) = oldest.map(|(endpoint, _)| endpoint.clone()) else { return false };
        if let Some(fetch) = self.fetches.remove(&endpoint) {
            fetch.end(FailReason::MetadataTimeout, due);
        }
        true
    }

    /// The fetch of that number, unless it lost its place.
    fn fetch_of(&mut self, endpoint: &Endpoint, number: u64) -> Option<&mut Fetch> {
        self.fetches.get_mut(endpoint).filter(|fetch| fetch.number == number)
    }

    /// The endpoint answered, or failed.
    fn finish(
        &mut self,
        endpoint: &Endpoint,
        number: u64,
        result: &StateResult,
        now_ns: u64,
        due: &mut Due,
    ) {
        if self.fetch_of(endpoint, number).is_none() {
            return;
        }
        self.remember(endpoint, result, now_ns);
        let askers = self.fetches.remove(endpoint).map(|fetch| fetch.askers);
        let askers = askers.into_iter().flatten();
        due.extend(askers.map(|asker| (asker.reply, result.clone())));
    }

    /// The fetch was given up; whether for good. Somebody may have come at the last moment.
    fn give_up(&mut self, endpoint: &Endpoint, number: u64, due: &mut Due) -> bool {
        let Some(fetch) = self.fetch_of(endpoint, number) else { return true };
        fetch.dismiss_late(due);
        let is_over = fetch.askers.is_empty();
        if is_over {
            self.fetches.remove(endpoint);
        }
        is_over
    }

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
