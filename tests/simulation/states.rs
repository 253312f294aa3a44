//! Where a simulated worker learns the states of others: late, wrong, stale or never, as a metadata
//! service over a bad network would.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvhints::plan::Endpoint;
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::State;
use kvhints::transfer::state_source::{Reply, StateResult, StateSource};
use parking_lot::Mutex;

use crate::network::{Arrived, Asked, Network};
use crate::random::SplitMix;

/// What each host's worker says of itself at the moment; none while it is down.
pub type Published = Arc<Mutex<BTreeMap<usize, Arc<State>>>>;

pub fn endpoint(host: usize) -> Endpoint {
    Endpoint::parse(&format!("http://10.0.0.{}:8000", host + 1)).unwrap()
}

pub struct SimulatedStates {
    network: Network,
    published: Published,
    hosts: Vec<Endpoint>,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    rng: SplitMix,
    cache: BTreeMap<usize, Arc<State>>,
}

impl SimulatedStates {
    pub fn new(network: &Network, published: &Published, hosts: usize, seed: u64) -> Self {
        Self {
            network: Arc::clone(network),
            published: Arc::clone(published),
            hosts: (0..hosts).map(endpoint).collect(),
            inner: Arc::new(Mutex::new(Inner { rng: SplitMix(seed), cache: BTreeMap::new() })),
        }
    }

    fn host_of(&self, endpoint: &Endpoint) -> Option<usize> {
        self.hosts.iter().position(|host| host == endpoint)
    }

    /// A state that is not what the worker says.
    fn spoilt(&self, host: usize, how: usize) -> (StateResult, &'static str) {
        let Some(state) = self.published.lock().get(&host).cloned() else {
            return (Err(FailReason::MetadataFailed), "state refused");
        };
        let mut state = State::clone(&state);
        let what = match how {
            0 => {
                state.namespace = b"another".to_vec();
                "state of another namespace"
            }
            1 => {
                state.cache.head_size += 1;
                "state of another layout"
            }
            2 => {
                state.ranks[0].transport = "another".to_owned();
                "state of another transport"
            }
            3 => {
                // At a host where this endpoint must not lead.
                let at = crate::network::NAME.len();
                state.ranks[0].address[at] = 200;
                "state elsewhere"
            }
            4 => {
                let bytes = state.encode().unwrap();
                let state = State::decode(&bytes[..bytes.len() - 1]);
                let result = state.map(Arc::new).map_err(|_| FailReason::MetadataFailed);
                return (result, "state damaged");
            }
            _ => return (Err(FailReason::MetadataFailed), "state refused"),
        };
        (Ok(Arc::new(state)), what)
    }
}

impl StateSource for SimulatedStates {
    fn request(&self, endpoint: &Endpoint, timeout: Duration, reply: Reply) {
        let Some(host) = self.host_of(endpoint) else {
            return reply(Err(FailReason::EndpointDenied));
        };
        let mut inner = self.inner.lock();
        let trouble = self.network.lock().weather.state_trouble;
        let is_trouble = inner.rng.below(10_000) < trouble;
        let kind = inner.rng.below(10);
        let delay_ns = 1 + inner.rng.below(3_000_000) as u64;
        let timeout_ns = timeout.as_nanos() as u64;
        if !is_trouble {
            if let Some(state) = inner.cache.get(&host).cloned() {
                drop(inner);
                return reply(Ok(state));
            }
            let cache = Arc::clone(&self.inner);
            let keeping: Reply = Box::new(move |state| {
                if let Ok(state) = &state {
                    cache.lock().cache.insert(host, Arc::clone(state));
                }
                reply(state);
            });
            return self.network.lock().ask_state(delay_ns, keeping, Asked::Current(host));
        }
        drop(inner);
        let (answer, after_ns, what) = match kind {
            // Nobody hears of it; the machine has a deadline of its own.
            0 => {
                self.network.lock().report.one("faults", "state lost");
                return;
            }
            1 => (Asked::Fixed(Err(FailReason::MetadataTimeout)), timeout_ns, "state late"),
            2 => (Asked::Current(host), timeout_ns + delay_ns, "state late"),
            how => {
                let (result, what) = self.spoilt(host, how - 3);
                (Asked::Fixed(result), delay_ns, what)
            }
        };
        let mut net = self.network.lock();
        net.report.one("faults", what);
        net.ask_state(after_ns, reply, answer);
    }

    fn forget(&self, endpoint: &Endpoint) {
        if let Some(host) = self.host_of(endpoint) {
            let was_known = self.inner.lock().cache.remove(&host).is_some();
            if was_known {
                self.network.lock().report.one("faults", "state stale");
            }
        }
    }
}

/// Gives an answer that has arrived.
pub fn answer(published: &Published, arrived: Arrived) {
    let Arrived::State(reply, asked) = arrived else { return };
    let result = match asked {
        Asked::Fixed(result) => result,
        Asked::Current(host) => {
            published.lock().get(&host).cloned().ok_or(FailReason::MetadataFailed)
        }
    };
    reply(result);
}
