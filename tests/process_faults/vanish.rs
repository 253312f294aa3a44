//! Peers that connect and vanish, by the thousand: the source serves on, and keeps nothing of them.

use std::time::Instant;

use crate::process::{DestinationProcess, Process, Reply, SourceProcess, PATIENCE};
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here, WIRES};

/// Peers of one process of the crowd: they die together.
const PEERS_A_PROCESS: usize = 20;

/// What a peer that vanished may cost for good, most of it a page here and there.
const BYTES_A_PEER: u64 = 256;

#[test]
fn a_crowd_that_connects_and_vanishes_leaves_the_source_as_it_was() {
    if ucx_is_here() {
        WIRES.iter().for_each(|wires| vanish_from(wires));
    }
}

fn vanish_from(wires: &str) {
    let processes = if is_long() { 50 } else { 4 };
    let settings =
        Settings::default().with("wires", wires).with("blocks", 16).with("block_bytes", 16 << 10);
    let mut source = SourceProcess::start(&settings, None);
    let mut friend = DestinationProcess::start(&settings, None);
    let mut looks: Vec<(usize, Reply)> = Vec::new();
    for number in 1..=processes {
        let crowd = settings.playing("crowd").with("peers", PEERS_A_PROCESS);
        let crowd = crowd.with("state", &source.state);
        let mut crowd = Process::start(&crowd, None);
        crowd.hears("here");
        // Among all of them.
        friend.fetches(&source);
        crowd.kill();
        let mut left = source.process.asks("settle");
        // The system tells of dead peers one after the other.
        let until = Instant::now() + PATIENCE;
        let usual = looks.first().map_or(u64::MAX, |(_, look)| look.number("descriptors"));
        while left.number("descriptors") > usual && Instant::now() < until {
            left = source.process.asks("settle");
        }
        if number % (processes / 4) == 0 {
            looks.push((number * PEERS_A_PROCESS, left));
        }
    }
    friend.fetches(&source);
    friend.process.asks("settle");
    let rows = looks.iter().map(|(peers, left)| format!("| {peers} | {} |\n", left.row()));
    let table = format!(
        "### Peers that connect and vanish: {}, {wires} allowed\n\nThe source, after so many; it served somebody else all the \
         time.\n\n| peers | descriptors | threads | allocated, bytes | resident, KiB |\n|---|---|---|---|---|\n{}",
        processes * PEERS_A_PROCESS,
        rows.collect::<String>(),
    );
    tell(&table);
    let (first, last) = (&looks[0], &looks[looks.len() - 1]);
    let grown = |name| last.1.number(name).saturating_sub(first.1.number(name));
    assert!(grown("descriptors") <= 2 && grown("threads") == 0, "{table}");
    let peers = (last.0 - first.0) as u64;
    assert!(!is_long() || grown("resident_kib") * 1024 <= BYTES_A_PEER * peers, "{table}");
}
