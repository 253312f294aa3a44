//! A process that stands still for longer than every deadline and then goes on (`SIGSTOP`, `SIGCONT`).
//! What it does late must touch no memory that has been used for something else since, on either side.

use std::time::{Duration, Instant};

use crate::process::{DestinationProcess, SourceProcess};
use crate::states::Side;
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here, WIRES};

/// No deadline of [`hasty`] is so long.
const LONGER_THAN_ALL: Duration = Duration::from_millis(500);

/// Shorter than any stop, so that all of them have passed: a stop ends only when the other side says
/// that it has given up, and its memory is used anew.
fn hasty(wires: &str) -> Settings {
    Settings::default()
        .with("wires", wires)
        .with("metadata_ms", 300)
        .with("transfer_ms", 300)
        .with("hold_ms", 400)
}

fn states(side: Side) -> Vec<&'static str> {
    let all: &[&str] = match side {
        Side::Source => &["challenged", "asked", "pinned", "answered", "sending", "partly_sent"],
        Side::Destination => &["asked", "accepted", "receiving", "placing"],
    };
    let step = if is_long() { 1 } else { 3 };
    all.iter().copied().step_by(step).collect()
}

#[test]
fn a_source_that_goes_on_late_writes_into_nothing_that_is_used_again() {
    if !ucx_is_here() {
        return;
    }
    let mut lines = String::new();
    for wires in WIRES {
        let mut destination = DestinationProcess::start(&hasty(wires), None);
        for state in states(Side::Source) {
            let mut source = SourceProcess::start(&Settings::default().with("wires", wires), None);
            source.process.hold(state);
            destination.begin(&source);
            source.process.hears("held");
            source.process.stop();
            // It would go on if it could.
            source.process.tell("go");
            let ended = destination.outcome();
            assert_eq!(ended.how, "transfer_timeout", "{state}");
            // The same blocks are full of somebody else's bytes, and then free again.
            let mut fresh = SourceProcess::start(&Settings::default().with("wires", wires), None);
            destination.begin(&fresh);
            assert!(destination.outcome().is_delivered());
            source.process.go_on();
            // All that it does late has been done, and its blocks are its own.
            source.process.asks("settle");
            // Verified before the stopped one went on; claimed, filled, and compared after.
            destination.claim();
            destination.process.asks("settle");
            destination.fetches(&source);
            destination.fetches(&fresh);
            fresh.process.asks("settle");
            source.process.asks("settle");
            lines += &format!("| source | {wires} | `{state}` | {} | delivered |\n", ended.how);
        }
    }
    report(Side::Source, &lines);
}

#[test]
fn a_destination_that_goes_on_late_gets_nothing_that_is_used_again() {
    if !ucx_is_here() {
        return;
    }
    let mut lines = String::new();
    for wires in WIRES {
        let mut source = SourceProcess::start(&hasty(wires), None);
        for state in states(Side::Destination) {
            let settings = hasty(wires);
            let mut destination = DestinationProcess::start(&settings, None);
            destination.process.hold(state);
            destination.begin(&source);
            let begun = Instant::now();
            destination.process.hears("held");
            destination.process.stop();
            destination.process.tell("go");
            // Whichever state the destination is in, the source has pinned by now.
            source.process.hears("at sending");
            // The hold time ends, nothing is pinned, and the host writes other bytes over the blocks.
            source.process.tell("reuse");
            source.process.hears("reuse");
            // Time is what this is about: where the source was done at once, its own deadline has yet to
            // pass.
            while begun.elapsed() < LONGER_THAN_ALL {
                std::thread::park_timeout(LONGER_THAN_ALL);
            }
            destination.process.go_on();
            // Its own deadline has passed as well. Wrong bytes would be told of.
            let ended = destination.outcome();
            assert!(
                ["transfer_timeout", "peer_gone"].contains(&ended.how.as_str()),
                "{state}: {ended:?}"
            );
            destination.process.asks("settle");
            source.process.tell("store");
            source.process.hears("store");
            destination.fetches(&source);
            destination.process.asks("settle");
            source.process.asks("settle");
            lines +=
                &format!("| destination | {wires} | `{state}` | {} | delivered |\n", ended.how);
        }
    }
    report(Side::Destination, &lines);
}

fn report(side: Side, lines: &str) {
    tell(&format!(
        "### A {} stopped for longer than every deadline\n\n| stopped | may take | in the state | the fetch ended | \
         the next fetch |\n|---|---|---|---|---|\n{lines}",
        side.part()
    ));
}
