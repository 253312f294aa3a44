//! Workers, their network and its faults, simulated: seeded, in virtual time, with the shipped tree,
//! source, destination and state machines, and every promise looked at after each step.
//!
//! `cargo test --test simulation` lives a few hundred seeds. More: `scripts/simulate.sh SEEDS [FIRST]`.
//! A seed that breaks a promise is printed with its last steps; FIRST replays it.
//!
//! | file | what |
//! |---|---|
//! | `world` | one seed's life: what happens next, faults, the end |
//! | `worker` | the shipped code and a host that uses it; the promises |
//! | `network`, `states` | the simulated adapters of the transport's and the states' port |
//! | `conformance` | that the network's adapter keeps the port's contract in fair weather |
//! | `stranger` | somebody who is no worker |
//! | `clock`, `prompts` | virtual time; what is fetched |
//! | `report` | what happened, and what must have |
//! | `sabotage` | what is broken on purpose, and must be found |

mod clock;
mod conformance;
#[path = "../forwarding/mod.rs"]
mod forwarding;
mod network;
mod prompts;
#[path = "../random/mod.rs"]
mod random;
mod report;
mod sabotage;
mod states;
mod stranger;
#[path = "../transport_conformance/mod.rs"]
mod transport_conformance;
mod worker;
mod world;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use report::Report;
use sabotage::Sabotage;

/// Seeds in an ordinary test run.
const SEEDS: u64 = 300;
/// A sabotage must be found within so many.
const SEEDS_TO_FIND: u64 = 60;
/// With fewer seeds, not everything need occur.
const SEEDS_FOR_ALL: u64 = 300;
/// Steps shown of a seed that broke a promise.
const STEPS_SHOWN: usize = 60;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")),
        Err(_) => default,
    }
}

/// What became of a seed: its report, or how a promise was broken.
fn live(seed: u64, sabotage: Option<Sabotage>) -> Result<Report, String> {
    let lived = catch_unwind(AssertUnwindSafe(|| world::live(seed, sabotage, false)));
    match lived {
        Ok(lived) => match lived.broken {
            None => Ok(lived.report),
            Some(broken) => Err(broken),
        },
        Err(_) => Err("a panic outside of the shipped code's guard; see above".to_owned()),
    }
}

/// The last steps of a seed.
fn last_steps(seed: u64) -> String {
    let lived = catch_unwind(AssertUnwindSafe(|| world::live(seed, None, true)));
    let trace = lived.map(|lived| lived.trace).unwrap_or_default();
    trace[trace.len().saturating_sub(STEPS_SHOWN)..].join("\n")
}

#[test]
fn every_promise_is_kept_in_every_seed() {
    let first = number("KVHINTS_SIMULATION_FIRST", 1);
    let seeds = number("KVHINTS_SIMULATION_SEEDS", SEEDS);
    let next = AtomicU64::new(first);
    let sum = Mutex::new(Report::default());
    let broken = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + seeds || broken.lock().len() >= 10 {
                    return;
                }
                match live(seed, None) {
                    Ok(report) => sum.lock().merge(&report),
                    Err(what) => broken.lock().push((seed, what)),
                }
            });
        }
    });
    let mut broken = broken.into_inner();
    broken.sort();
    println!("{}", sum.lock().render());
    if let Some((seed, _)) = broken.first() {
        println!("the last steps of seed {seed}:\n{}", last_steps(*seed));
        for (seed, what) in &broken {
            println!("seed {seed}: {what}; replay: scripts/simulate.sh 1 {seed}");
        }
        panic!("{} seeds broke a promise", broken.len());
    }
    if seeds >= SEEDS_FOR_ALL {
        let missing = sum.lock().missing();
        assert!(missing.is_empty(), "never happened, so nothing is proven of it: {missing:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 4, 5, 6] {
        let (once, again) = (world::live(seed, None, true), world::live(seed, None, true));
        assert!(once.trace.len() > 100);
        assert_eq!(once.trace, again.trace);
        assert_eq!(once.report, again.report);
    }
}

#[test]
fn what_is_broken_on_purpose_is_found() {
    for sabotage in sabotage::ALL {
        let found = (1..=SEEDS_TO_FIND)
            .find_map(|seed| live(seed, Some(sabotage)).err().map(|what| (seed, what)));
        let (seed, what) =
            found.unwrap_or_else(|| panic!("{sabotage:?} was not found in {SEEDS_TO_FIND} seeds"));
        println!("{sabotage:?}: found in seed {seed}: {what}");
    }
}
