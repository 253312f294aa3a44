//! What real processes do to each other: workers over UCX that are killed, stopped, restarted, cut off
//! and flooded, and what is left in those that live on.
//!
//! `cargo test --test process_faults` does a little of each; `scripts/process_faults.sh` does all of it
//! and prints a report. A test that needs another process starts this very program again: `child` then
//! plays the part that the environment names. Both sides of a transfer tell over a socket which state
//! of the protocol they are in, and can be told to stay in one, so the state in which a process died is
//! known, not guessed.
//!
//! | file | what |
//! |---|---|
//! | `link` | lines between the test and its processes; holding a process in a state |
//! | `process` | a process that was started: what it says, and its death |
//! | `states` | the states of both sides |
//! | `watched` | a transport that tells in which state the protocol is |
//! | `worker`, `source`, `destination`, `crowd` | the parts that processes play |
//! | `kills`, `stops`, `vanish`, `restart`, `network`, `growth` | the tests |
//! | `road` | a network of packets that get lost, late, or nowhere |

mod crowd;
mod destination;
mod growth;
mod kills;
mod link;
mod network;
mod process;
#[allow(dead_code)] // Made for inputs of other tests.
#[path = "../random/mod.rs"]
mod random;
mod restart;
mod road;
mod source;
mod states;
mod stops;
#[path = "../transfer_support/mod.rs"]
mod transfer_support;
mod vanish;
mod watched;
mod worker;

use std::io::Write;

use kvhints::transfer::ucx::availability;

/// Tells a started copy of this program which part to play, and how.
const PART: &str = "KVHINTS_PROCESS_FAULTS_PART";
/// Set to `long` by `scripts/process_faults.sh`.
const LENGTH: &str = "KVHINTS_PROCESS_FAULTS";

/// What UCX may take between workers of one machine: the network alone, or all that it has, shared memory
/// among it. Which of it a transfer then takes is told in the report.
const WIRES: [&str; 2] = ["tcp", "all"];

/// Not a test of its own: plays a part in the tests, in their processes.
#[test]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    let settings = worker::Settings::read(&part);
    match settings.part() {
        "source" => source::play(&settings),
        "destination" => destination::play(&settings),
        "crowd" => crowd::play(&settings),
        other => panic!("no part {other}"),
    }
}

fn is_long() -> bool {
    std::env::var(LENGTH).is_ok_and(|length| length == "long")
}

/// Writes past the test harness, which keeps what passing tests print.
fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody reads it: nothing to tell.
    let _ = writeln!(out, "\n{text}");
}

/// False, and says so, where UCX is not installed.
fn ucx_is_here() -> bool {
    match availability() {
        Ok(_) => true,
        Err(error) => {
            tell(&format!("SKIPPED process_faults: {error}"));
            false
        }
    }
}
