//! A source that is killed and comes back at the same ports: it is another start, whatever its address.

use std::collections::BTreeMap;
use std::net::TcpListener;

use crate::process::{DestinationProcess, SourceProcess};
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here};

#[test]
fn a_source_that_restarts_on_its_ports_is_known_to_be_another_start() {
    if !ucx_is_here() {
        return;
    }
    let rounds = if is_long() { 21 } else { 3 };
    let settings = Settings::default();
    let ports = settings.with("http", free_port()).with("port", free_port());
    let mut source = SourceProcess::start(&ports, None);
    let mut destination = DestinationProcess::start(&settings, None);
    let mut ends = BTreeMap::<String, usize>::new();
    for round in 0..rounds {
        destination.fetches(&source);
        // Idle, or with a fetch under way.
        let state = ["", "sending", "partly_sent"][round % 3];
        if state.is_empty() {
            source.process.kill();
        } else {
            source.process.hold(state);
            destination.begin(&source);
            source.process.hears("held");
            source.process.kill();
            assert_eq!(destination.outcome().how, "peer_gone");
        }
        source = SourceProcess::start(&ports, None);
        if state.is_empty() {
            // Nobody was told: the state that the destination has is of the earlier start.
            destination.begin(&source);
            let ended = destination.outcome();
            let refused = source.process.asks("settle");
            assert_eq!(refused.number("served"), 0, "nothing is served to the mistaken");
            assert_eq!(ended.how, "source_restarted");
            *ends.entry(ended.how).or_default() += 1;
        }
        // The state that led nowhere was forgotten, so the new one is asked for.
        destination.fetches(&source);
        destination.process.asks("settle");
        source.process.asks("settle");
    }
    tell(&format!(
        "### A source restarted {rounds} times on the same ports\n\n- killed while idle, the first fetch from the \
         new start, with the state of the old one: {ends:?}; nothing was served to it\n- the next, and the first \
         after a death in mid-transfer: delivered, each time\n"
    ));
}

/// A port that is free now, and most probably in a moment: the system hands others out first.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it listens").port()
}
