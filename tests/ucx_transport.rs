//! The UCX adapter against the real library, on the loopback device: the conformance suite, two
//! processes, a killed peer, and what must not grow.
//!
//! Skipped, with a reason printed, where there is no UCX. A test that needs a process of its own
//! starts this very program again: `child` then plays the part that [`PART`] names.

mod transport_conformance;
mod ucx_support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvhints::transfer::transport::{Event, Segment, Transport, TransportError};
use kvhints::transfer::ucx::{availability, UcxOptions, UcxTransport};
use transport_conformance::{
    alone, connected, data, gone, message, pattern, received, run, sent, until, whole, Side,
    PATIENCE,
};
use ucx_support::{open, ucx_is_here};

/// The environment variable that tells a started copy of this program what to do.
const PART: &str = "KVHINTS_UCX_TEST_PART";

/// `scripts/ucx_versions.sh` says which UCX the loader is to find.
#[test]
fn ucx_is_the_one_that_is_expected() {
    let Ok(expected) = std::env::var("KVHINTS_EXPECT_UCX") else { return };
    assert_eq!(availability().expect("a UCX").to_string(), expected);
}

#[test]
fn conforms_over_tcp() {
    if ucx_is_here() {
        run(&mut || (Box::new(open("tcp")), Box::new(open("tcp"))));
    }
}

#[test]
fn conforms_over_whatever_ucx_chooses() {
    if ucx_is_here() {
        run(&mut || (Box::new(open("all")), Box::new(open("all"))));
    }
}

#[test]
fn a_wire_that_does_not_exist_is_an_error() {
    if !ucx_is_here() {
        return;
    }
    for (tls, devices) in [("no-such-wire", None), ("tcp", Some("no-such-device")), ("a\0b", None)]
    {
        let options = UcxOptions {
            tls: Some(tls.to_owned()),
            net_devices: devices.map(str::to_owned),
            ..UcxOptions::default()
        };
        let error = UcxTransport::open(options).err().expect("nothing to open");
        assert!(matches!(error, TransportError::Unavailable(_)), "{error}");
    }
}

#[test]
fn a_transport_may_connect_to_itself() {
    if !ucx_is_here() {
        return;
    }
    let mut transport = open("tcp");
    let address = transport.address().to_vec();
    let to_self = transport.connect(&address).expect("a good address");
    transport.send_message(to_self, b"me".to_vec()).expect("open");
    let start = Instant::now();
    let from_self = loop {
        match transport.progress() {
            Some(Event::Message { peer, bytes }) => {
                assert_eq!(bytes, b"me");
                break peer;
            }
            Some(_) => {}
            None => transport.wait(Duration::from_millis(10)),
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert_ne!(from_self, to_self, "the two ends are two connections");
}

#[test]
fn the_wires_are_told() {
    if !ucx_is_here() {
        return;
    }
    let (mut first, mut second) = (open("tcp"), open("tcp"));
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let (to_b, to_a) = connected(&mut a, &mut b);
    // A side that has not heard the other may not ask UCX yet: 1.22 would crash.
    assert_eq!(a.transport.describe(to_b), "");
    b.transport.send_message(to_a, b"heard".to_vec()).expect("open");
    until(&mut a, &mut b, "the answer", |a, _| a.take(message));
    assert_eq!(a.transport.describe(to_b), "tcp/lo");
    assert_eq!(b.transport.describe(to_a), "tcp/lo");
    // What UCX chooses differs from machine to machine.
    let (mut first, mut second) = (open("all"), open("all"));
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let (_, to_a) = connected(&mut a, &mut b);
    assert!(b.transport.describe(to_a).contains('/'), "{:?}", b.transport.describe(to_a));
}

#[test]
fn connections_are_bounded() {
    if !ucx_is_here() {
        return;
    }
    let options = UcxOptions {
        tls: Some("tcp".to_owned()),
        net_devices: Some("lo".to_owned()),
        max_connections: 1,
        ..UcxOptions::default()
    };
    let (mut first, mut second) = (open("tcp"), UcxTransport::open(options).expect("UCX starts"));
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let (_, to_a) = connected(&mut a, &mut b);
    let address = a.transport.address().to_vec();
    let error = b.transport.connect(&address).expect_err("one is the limit");
    assert!(matches!(error, TransportError::Unavailable(_)), "{error}");
    b.transport.disconnect(to_a);
    // The place is free again as soon as UCX has let go.
    let start = Instant::now();
    while b.transport.connect(&address).is_err() {
        assert!(start.elapsed() < PATIENCE);
        assert!(b.transport.progress().is_none());
    }
}

#[test]
fn callers_over_the_bound_are_turned_away() {
    if !ucx_is_here() {
        return;
    }
    let options = UcxOptions {
        tls: Some("tcp".to_owned()),
        net_devices: Some("lo".to_owned()),
        max_connections: 1,
        ..UcxOptions::default()
    };
    let (mut first, mut second) = (open("tcp"), open("tcp"));
    let mut full = UcxTransport::open(options).expect("UCX starts");
    let mut at_full = Side::new(&mut full);
    let mut served = Side::new(&mut first);
    let (_, to_served) = connected(&mut served, &mut at_full);
    let address = at_full.transport.address().to_vec();
    for _ in 0..20 {
        let mut refused = Side::new(&mut second);
        let peer = refused.transport.connect(&address).expect("a good address");
        refused.transport.send_message(peer, b"me too".to_vec()).expect("open");
        until(&mut refused, &mut at_full, "the refusal", |refused, _| refused.take(gone(peer)));
    }
    // Whoever is there is served as before.
    at_full.transport.send_message(to_served, b"still".to_vec()).expect("open");
    let (_, still) = until(&mut served, &mut at_full, "it", |served, _| served.take(message));
    assert_eq!(still, b"still");
}

// ---- two processes ------------------------------------------------------------------------------

/// A copy of this program that plays `part`; killed when dropped.
struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(part: &str) -> Self {
        let program = std::env::current_exe().expect("a program");
        let mut child = Command::new(program)
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// The rest of the line that has `word`.
    fn line(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("readable") > 0 {
            // The harness of the tests writes on the same lines.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended without {word}: {}", self.errors());
    }

    fn address(&mut self) -> Vec<u8> {
        from_digits(&self.line("ADDRESS "))
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(stream) = &mut self.child.stderr {
            stream.read_to_string(&mut text).expect("readable");
        }
        text
    }

    /// Waits for its end: it did well and wrote nothing on stderr.
    fn ends_well(mut self) {
        let errors = self.errors();
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {errors}");
        assert_eq!(errors, "", "nothing may be written on stderr");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Fails where it ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: plays a part in the tests below, in their child processes.
#[test]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    match part.as_str() {
        "echo" => play_echo("all"),
        "echo over tcp" => play_echo("tcp"),
        "server" => play_server(),
        "stuck" => play_stuck(),
        "many connections" => play_many_connections(),
        other => match other.split_once(" calls ") {
            Some((tls, digits)) => play_caller(tls, &from_digits(digits)),
            None => panic!("no part {other}"),
        },
    }
}

fn to_digits(address: &[u8]) -> String {
    address.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_digits(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex"))
        .collect()
}

fn tell_address(transport: &UcxTransport) {
    println!("\nADDRESS {}", to_digits(transport.address()));
}

/// Sends back what it gets, until its peer leaves.
fn play_echo(tls: &str) {
    let mut transport = open(tls);
    tell_address(&transport);
    let mut side = Side::new(&mut transport);
    let mut kept = Vec::new();
    alone(&mut side, "the end of the peer", |side| {
        for event in std::mem::take(&mut side.events) {
            match event {
                Event::Message { peer, bytes } => {
                    side.transport.send_message(peer, bytes).expect("open");
                }
                Event::Data { peer, header, len, id } => {
                    let mut memory = vec![0; len];
                    let ticket =
                        side.transport.receive_data(id, whole(&mut memory)).expect("announced");
                    kept.push((ticket, peer, header, memory));
                }
                Event::Received { ticket, result } => {
                    result.expect("received");
                    let found = kept.iter_mut().find(|(of, ..)| *of == ticket).expect("known");
                    let (_, peer, header, memory) = found;
                    let segments = vec![whole(memory)];
                    side.transport.send_data(*peer, header.clone(), segments).expect("open");
                }
                Event::Sent { .. } => {}
                Event::PeerGone { .. } => return Some(()),
            }
        }
        None
    });
}

/// Sends messages back to whoever comes and goes, until one says that it is enough.
fn play_server() {
    let mut transport = open("tcp");
    tell_address(&transport);
    let mut side = Side::new(&mut transport);
    let mut was_enough = None;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for event in std::mem::take(&mut side.events) {
            match event {
                Event::Message { peer, bytes } => {
                    let is_enough = bytes == ENOUGH;
                    // Whoever is gone by now gets no answer.
                    let ticket = side.transport.send_message(peer, bytes).ok();
                    was_enough = was_enough.or(ticket.filter(|_| is_enough));
                }
                Event::Sent { ticket, .. } if was_enough == Some(ticket) => return,
                Event::Sent { .. } | Event::PeerGone { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        match side.transport.progress() {
            Some(event) => side.events.push(event),
            None => side.transport.wait(Duration::from_millis(50)),
        }
    }
    panic!("nobody said that it is enough");
}

/// The message that ends a server.
const ENOUGH: &[u8] = b"enough";

/// The server is alive, and able to work with others.
fn end_server(mut other: Other, address: &[u8]) {
    assert!(other.child.try_wait().expect("a child").is_none(), "it ended: {}", other.errors());
    let mut transport = open("tcp");
    let mut side = Side::new(&mut transport);
    let peer = side.transport.connect(address).expect("a good address");
    side.transport.send_message(peer, ENOUGH.to_vec()).expect("open");
    let (_, answer) = alone(&mut side, "the answer", |side| side.take(message));
    assert_eq!(answer, ENOUGH);
    other.ends_well();
}

/// How a destination goes away.
#[derive(Debug, Clone, Copy)]
enum Leaving {
    Drop,
    Disconnect,
    DisconnectAndDrop,
}

/// Connects and leaves `after` so long, wherever the connection is by then.
fn connect_and_leave(
    transport: &mut Option<UcxTransport>,
    address: &[u8],
    after: Duration,
    how: Leaving,
) {
    let leaver = transport.get_or_insert_with(|| open("tcp"));
    let peer = leaver.connect(address).expect("a good address");
    for text in [&b"first"[..], &[7; 100_000]] {
        leaver.send_message(peer, text.to_vec()).expect("open");
    }
    let start = Instant::now();
    while start.elapsed() < after {
        leaver.progress();
    }
    if matches!(how, Leaving::Disconnect | Leaving::DisconnectAndDrop) {
        leaver.disconnect(peer);
    }
    if matches!(how, Leaving::Drop | Leaving::DisconnectAndDrop) {
        *transport = None;
    }
}

#[test]
fn destinations_that_leave_while_they_connect_are_survived() {
    if !ucx_is_here() {
        return;
    }
    for how in [Leaving::Drop, Leaving::Disconnect, Leaving::DisconnectAndDrop] {
        let mut other = Other::start("server");
        let address = other.address();
        let start = Instant::now();
        let mut transport = None;
        // Connecting takes about a millisecond.
        for step in 0..60 {
            let after = Duration::from_micros(50) * step;
            connect_and_leave(&mut transport, &address, after, how);
            assert!(start.elapsed() < PATIENCE, "{how:?} at step {step}");
        }
        drop(transport);
        end_server(other, &address);
    }
}

#[test]
fn destinations_that_are_killed_while_they_connect_are_survived() {
    if !ucx_is_here() {
        return;
    }
    let mut other = Other::start("server");
    let address = other.address();
    let start = Instant::now();
    for step in 0..60u64 {
        let mut caller = Other::start(&format!("tcp calls {}", to_digits(&address)));
        // It says so just before it connects; the moments after that are spread.
        caller.line("CALLS");
        let until = Instant::now() + Duration::from_micros(100) * (step as u32);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        drop(caller);
        assert!(start.elapsed() < PATIENCE, "step {step}");
    }
    end_server(other, &address);
}

#[test]
fn many_that_leave_at_once_are_survived() {
    if !ucx_is_here() {
        return;
    }
    let mut other = Other::start("server");
    let address = other.address();
    for round in 0..5u32 {
        let mut leavers: Vec<UcxTransport> = (0..8).map(|_| open("tcp")).collect();
        for leaver in &mut leavers {
            let peer = leaver.connect(&address).expect("a good address");
            leaver.send_message(peer, b"hello".to_vec()).expect("open");
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(500) * round {
            leavers.iter_mut().for_each(|leaver| drop(leaver.progress()));
        }
    }
    end_server(other, &address);
}

#[test]
fn where_to_listen_is_chosen_and_judged() {
    if !ucx_is_here() {
        return;
    }
    let at = |listen: &str| {
        UcxTransport::open(UcxOptions {
            tls: Some("tcp".to_owned()),
            net_devices: Some("lo".to_owned()),
            listen: listen.parse().expect("an address"),
            ..UcxOptions::default()
        })
    };
    for unfit in ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "::1"] {
        let error = at(unfit).err().expect("nobody could connect to it");
        assert!(matches!(error, TransportError::BadAddress(_)), "{error}");
        assert!(error.to_string().contains(unfit), "{error}");
    }
    // An address for documentation, of no machine.
    let error = at("192.0.2.1").err().expect("not an address of this machine");
    assert!(matches!(error, TransportError::Unavailable(_)), "{error}");
}

#[test]
fn forged_addresses_are_refused_or_lead_nowhere() {
    if !ucx_is_here() {
        return;
    }
    let mut transport = open("tcp");
    let good = transport.address().to_vec();
    for len in 0..good.len() {
        let error = transport.connect(&good[..len]).expect_err("cut off");
        assert!(matches!(error, TransportError::BadAddress(_)), "{error}");
    }
    // Every other port and address is one where nobody, or somebody else, listens.
    let mut side = Side::new(&mut transport);
    for port in [1u16, 9, 65_535] {
        let mut forged = good.clone();
        forged[10..12].copy_from_slice(&port.to_le_bytes());
        if let Ok(peer) = side.transport.connect(&forged) {
            alone(&mut side, "the news", |side| side.take(gone(peer)));
        }
    }
}

/// Connects, sends one message, and waits for nothing.
fn play_caller(tls: &str, address: &[u8]) {
    let mut transport = open(tls);
    println!("\nCALLS");
    let mut side = Side::new(&mut transport);
    let peer = side.transport.connect(address).expect("a good address");
    side.transport.send_message(peer, b"hello".to_vec()).expect("open");
    alone(&mut side, "the end by force", |_| None::<()>);
}

/// Announces a lot, answers nothing.
fn play_stuck() {
    let mut transport = open("all");
    tell_address(&transport);
    let mut side = Side::new(&mut transport);
    let (peer, _) = alone(&mut side, "a message", |side| side.take(message));
    let mut block = vec![7; 8 << 20];
    for _ in 0..4 {
        side.transport.send_data(peer, Vec::new(), vec![whole(&mut block)]).expect("open");
    }
    alone(&mut side, "the end by force", |_| None::<()>);
}

#[test]
fn two_processes_exchange_data() {
    if !ucx_is_here() {
        return;
    }
    let mut other = Other::start("echo");
    let address = other.address();
    let mut transport = open("all");
    let mut side = Side::new(&mut transport);
    let peer = side.transport.connect(&address).expect("a good address");
    for (seed, len) in (0u64..).zip([1, 1_000, 65_536, 1 << 20, 8 << 20]) {
        let mut bytes = pattern(len, seed);
        let (left, right) = bytes.split_at_mut(len / 3);
        let segments = vec![whole(right), whole(left)];
        let header = seed.to_le_bytes().to_vec();
        let sending = side.transport.send_data(peer, header.clone(), segments).expect("open");
        side.transport.send_message(peer, header.clone()).expect("open");
        assert_eq!(alone(&mut side, "the message", |side| side.take(message)).1, header);
        let (_, seen, back_len, id) = alone(&mut side, "the data", |side| side.take(data));
        assert_eq!((seen, back_len), (header, len));
        let mut memory = vec![0; len];
        let receiving = side.transport.receive_data(id, whole(&mut memory)).expect("announced");
        assert_eq!(alone(&mut side, "the end", |side| side.take(received(receiving))), Ok(()));
        assert_eq!(alone(&mut side, "the end", |side| side.take(sent(sending))), Ok(()));
        assert!(memory[..len - len / 3] == bytes[len / 3..], "{len} bytes differ");
        assert!(memory[len - len / 3..] == bytes[..len / 3], "{len} bytes differ");
    }
    side.transport.disconnect(peer);
    while side.transport.progress().is_some() {}
    drop(transport);
    other.ends_well();
}

#[test]
fn a_killed_peer_is_gone_and_every_ticket_ends() {
    if !ucx_is_here() {
        return;
    }
    let mut other = Other::start("stuck");
    let address = other.address();
    let mut transport = open("all");
    let mut side = Side::new(&mut transport);
    let peer = side.transport.connect(&address).expect("a good address");
    let mut tickets = vec![side.transport.send_message(peer, b"go".to_vec()).expect("open")];
    let (_, _, len, id) = alone(&mut side, "the data", |side| side.take(data));
    // Nobody at the other side works on these any more.
    let mut blocks: Vec<Vec<u8>> = (0..8).map(|at| pattern(4 << 20, at)).collect();
    for block in &mut blocks {
        let segments = vec![whole(block)];
        tickets.push(side.transport.send_data(peer, Vec::new(), segments).expect("open"));
    }
    let mut memory = vec![0; len];
    let receiving = side.transport.receive_data(id, whole(&mut memory)).expect("announced");
    other.child.kill().expect("it lives");
    other.child.wait().expect("a child");
    alone(&mut side, "the news", |side| side.take(gone(peer)));
    alone(&mut side, "the receive's event", |side| side.take(received(receiving))).ok();
    memory.fill(0);
    for ticket in tickets {
        alone(&mut side, "a ticket's event", |side| side.take(sent(ticket))).ok();
    }
    assert!(side.transport.send_message(peer, Vec::new()).is_err());
    side.events.clear();
    // What remains is able to work with others, and at its end nothing waits for the dead.
    let mut fresh = open("all");
    let mut second = Side::new(&mut fresh);
    connected(&mut side, &mut second);
    drop(transport);
    assert!(memory.iter().all(|byte| *byte == 0), "written after the event");
}

/// A driver that has nothing else to do waits right after it has cut a peer off. A peer that stands
/// still gives no sign that could wake it.
#[test]
fn whoever_cuts_a_peer_off_and_waits_is_told_of_its_sends_at_once() {
    if !ucx_is_here() {
        return;
    }
    for tls in ["tcp", "all"] {
        let mut other = Other::start("stuck");
        let address = other.address();
        let mut transport = open(tls);
        let peer = transport.connect(&address).expect("a good address");
        let mut side = Side::new(&mut transport);
        side.transport.send_message(peer, b"go".to_vec()).expect("open");
        alone(&mut side, "the data", |side| side.take(data));
        let mut blocks: Vec<Vec<u8>> = (0..8).map(|at| pattern(4 << 20, at)).collect();
        let mut open_sends = std::collections::HashSet::new();
        for block in &mut blocks {
            let segments = vec![whole(block)];
            open_sends.insert(side.transport.send_data(peer, Vec::new(), segments).expect("open"));
        }
        // SAFETY: a signal to a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(other.child.id() as i32, libc::SIGSTOP) }, 0);
        while side.transport.progress().is_some() {}
        let start = Instant::now();
        side.transport.disconnect(peer);
        while !open_sends.is_empty() {
            side.transport.wait(PATIENCE);
            while let Some(event) = side.transport.progress() {
                if let Event::Sent { ticket, .. } = event {
                    open_sends.remove(&ticket);
                }
            }
            assert!(start.elapsed() < PATIENCE, "it slept although there was work to do");
        }
    }
}

#[test]
fn a_killed_caller_that_was_never_answered_is_gone() {
    if !ucx_is_here() {
        return;
    }
    for tls in ["tcp", "all"] {
        let mut transport = open(tls);
        let address = to_digits(transport.address());
        let mut other = Other::start(&format!("{tls} calls {address}"));
        let mut side = Side::new(&mut transport);
        let (peer, _) = alone(&mut side, "a message", |side| side.take(message));
        other.child.kill().expect("it lives");
        alone(&mut side, "the news", |side| side.take(gone(peer)));
    }
}

/// Whatever both were doing: `moment` events after the start, the other one dies.
fn survives_a_death_at(moment: usize, tls: &str, part: &str) {
    let mut other = Other::start(part);
    let address = other.address();
    let mut transport = open(tls);
    let peer = transport.connect(&address).expect("a good address");
    let mut blocks: Vec<Vec<u8>> = (0..6).map(|at| pattern(50_000 << at, at)).collect();
    let mut open_sends = std::collections::HashSet::new();
    let mut open_receives = std::collections::HashMap::new();
    let mut received_events = 0;
    let mut is_gone = false;
    let mut left = moment;
    for block in &mut blocks {
        let segments = vec![whole(block)];
        open_sends.insert(transport.send_data(peer, vec![1; 300], segments).expect("open"));
    }
    let start = Instant::now();
    while !is_gone || !open_sends.is_empty() || !open_receives.is_empty() {
        if left == 0 {
            other.child.kill().expect("a child");
        }
        left = left.wrapping_sub(1);
        match transport.progress() {
            Some(Event::Sent { ticket, .. }) => assert!(open_sends.remove(&ticket)),
            Some(Event::Data { id, len, .. }) => {
                let mut memory = vec![0; len];
                let ticket =
                    transport.receive_data(id, whole(&mut memory)).expect("announced just now");
                open_receives.insert(ticket, memory);
            }
            Some(Event::Received { ticket, .. }) => {
                received_events += 1;
                assert!(open_receives.remove(&ticket).is_some());
            }
            Some(Event::PeerGone { peer: of, .. }) => {
                assert!(of == peer && !is_gone);
                is_gone = true;
            }
            Some(event) => panic!("unexpected: {event:?}"),
            None => transport.wait(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < PATIENCE, "{moment}: {open_sends:?} {received_events} {is_gone}");
    }
    assert!(transport.progress().is_none(), "one event for each ticket");
}

#[test]
fn a_death_at_any_moment_is_survived() {
    if !ucx_is_here() {
        return;
    }
    for moment in [0, 1, 2, 3, 5, 8, 10, 12, 14, 16, 18, 21, 25, 30, 40] {
        survives_a_death_at(moment, "tcp", "echo over tcp");
        survives_a_death_at(moment, "all", "echo");
    }
}

#[test]
fn a_transport_may_be_dropped_with_everything_pending() {
    if !ucx_is_here() {
        return;
    }
    for tls in ["tcp", "all"] {
        for first_to_go in 0..2 {
            let (mut first, mut second) = (open(tls), open(tls));
            let mut blocks: Vec<Vec<u8>> = (0..6).map(|at| pattern(50_000 << at, at)).collect();
            let mut memory = vec![0; 50_000];
            let mut a = Side::new(&mut first);
            let mut b = Side::new(&mut second);
            let (to_b, to_a) = connected(&mut a, &mut b);
            for block in &mut blocks {
                a.transport.send_data(to_b, vec![1; 300], vec![whole(block)]).expect("open");
                b.transport.send_message(to_a, vec![2; 1 << 20]).expect("open");
            }
            let (.., id) = until(&mut a, &mut b, "the announcement", |_, b| b.take(data));
            b.transport.receive_data(id, whole(&mut memory)).expect("announced");
            let start = Instant::now();
            if first_to_go == 0 {
                drop(first);
                drop(second);
            } else {
                drop(second);
                drop(first);
            }
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn a_dead_address_is_a_gone_peer() {
    if !ucx_is_here() {
        return;
    }
    let address = open("tcp").address().to_vec();
    let mut transport = open("tcp");
    let mut side = Side::new(&mut transport);
    // Refused at once, or told later: both are right.
    if let Ok(peer) = side.transport.connect(&address) {
        let ticket = side.transport.send_message(peer, b"anybody?".to_vec());
        alone(&mut side, "the news", |side| side.take(gone(peer)));
        if let Ok(ticket) = ticket {
            let result = alone(&mut side, "the ticket", |side| side.take(sent(ticket)));
            assert!(result.is_err());
        }
    }
}

#[test]
fn many_connections_leave_nothing_behind() {
    if ucx_is_here() {
        Other::start("many connections").ends_well();
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a Linux").count()
}

fn play_many_connections() {
    let (mut first, mut second) = (open("tcp"), open("tcp"));
    let one = |first: &mut UcxTransport, second: &mut UcxTransport, at: usize| {
        let (mut a, mut b) = (Side::new(first), Side::new(second));
        let (to_b, to_a) = connected(&mut a, &mut b);
        let mut bytes = pattern(20_000, 1);
        // Left in all states: with nothing, with data announced, from either side.
        if at.is_multiple_of(2) {
            let segments: Vec<Segment> = vec![whole(&mut bytes)];
            let ticket = a.transport.send_data(to_b, Vec::new(), segments).expect("open");
            until(&mut a, &mut b, "the announcement", |_, b| b.take(data));
            a.transport.disconnect(to_b);
            until(&mut a, &mut b, "the end", |a, _| a.take(sent(ticket))).ok();
            until(&mut a, &mut b, "the news", |_, b| b.take(gone(to_a)));
        } else {
            b.transport.disconnect(to_a);
            until(&mut a, &mut b, "the news", |a, _| a.take(gone(to_b)));
        }
    };
    let settle = |first: &mut UcxTransport, second: &mut UcxTransport| {
        let start = Instant::now();
        while first.connection_count() + second.connection_count() > 0 {
            assert!(start.elapsed() < PATIENCE);
            assert!(first.progress().is_none() && second.progress().is_none());
        }
    };
    for at in 0..20 {
        one(&mut first, &mut second, at);
    }
    settle(&mut first, &mut second);
    let before = open_descriptors();
    for at in 0..200 {
        one(&mut first, &mut second, at);
    }
    settle(&mut first, &mut second);
    let after = open_descriptors();
    assert!(after <= before + 4, "{before} descriptors grew to {after}");
    drop((first, second));
    assert!(open_descriptors() < before, "the transports keep descriptors");
}
