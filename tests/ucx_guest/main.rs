//! UCX is a guest in the host's process: whatever happens to it, the host's output, signal handlers and
//! environment stay as they were, and a UCX that the host has loaded itself is not mixed with another.
//!
//! Each of it is looked at in a process of its own: a test starts this very program again, `child` then
//! plays the part that the environment names, and the test reads all that was written. Skipped, with a
//! reason printed, where there is no UCX.
//!
//! | file | what |
//! |---|---|
//! | `process` | a process whose output is kept |
//! | `faults` | everything that goes wrong with peers; nothing of it is printed |
//! | `signals` | signal handlers and the environment |
//! | `copies` | a UCX that the host loaded, before or after |

mod copies;
mod faults;
mod process;
mod signals;
#[allow(dead_code)] // Of this it uses what drives two sides.
#[path = "../transport_conformance/mod.rs"]
mod transport_conformance;
#[path = "../ucx_support/mod.rs"]
mod ucx_support;

/// Not a test of its own: plays a part in the tests, in their processes.
#[test]
fn child() {
    let Some(part) = process::part() else { return };
    let line = process::be_watched();
    let (what, how) = part.split_once(' ').unwrap_or((&part, ""));
    match what {
        "faults" => faults::play(),
        "start" => faults::play_start(),
        "faults_beside_the_host" => faults::play_beside_the_host(),
        "stuck" => faults::play_stuck(line, how),
        "signals" => signals::play(),
        "signals_of_ucx_itself" => signals::play_ucx_itself(),
        "copies" => copies::play(how),
        other => panic!("no part {other}"),
    }
    // Past the harness, which would print its verdict. What UCX says at its end is said here.
    std::process::exit(0);
}
