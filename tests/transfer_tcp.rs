//! States over plain TCP, for `tcp` endpoints: served, fetched from listed endpoints only, and every
//! way in which the other end can misbehave. Loopback sockets only.

mod transfer_support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use kvhints::plan::{AddressBounds, Endpoint};
use kvhints::reuse::Policy;
use kvhints::transfer::layout::ParallelLayout;
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::prefetch::{Deadlines, Outcome};
use kvhints::transfer::protocol::state_head;
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::{State, MAX_STATE_BYTES};
use kvhints::transfer::transceiver::{FetchOrder, Origin, PrefetchHandle};
use transfer_support::*;

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn endpoint_at(address: SocketAddr) -> Endpoint {
    Endpoint::parse(&format!("tcp://{address}")).unwrap()
}

fn begin_within(worker: &Worker, address: SocketAddr, metadata_ns: u64) -> PrefetchHandle {
    let (wanted, places) = (sequence(1, 0), [5]);
    let deadlines = Deadlines { metadata_ns, ..Deadlines::default() };
    let origin = Origin::Endpoint(endpoint_at(address));
    let order = FetchOrder { deadlines, ..order(origin, &wanted, &places, Policy::Strict) };
    worker.begin_order(&order).unwrap()
}

fn begin(worker: &Worker, address: SocketAddr) -> PrefetchHandle {
    begin_within(worker, address, 20_000_000_000)
}

fn allow(worker: &Worker, address: SocketAddr) {
    worker.transceiver.allow(endpoint_at(address), AddressBounds::unbounded()).unwrap();
}

fn two() -> (Worker, Worker) {
    let hub = LoopbackHub::new(1);
    let source = Worker::new(&hub, Setup::default());
    source.hold(&sequence(1, 0), &[3]);
    (source, Worker::new(&hub, Setup { incarnation: 2, ..Setup::default() }))
}

/// Says `bytes` to everybody who connects, and stays or goes.
fn server(bytes: Vec<u8>, stays: bool) -> SocketAddr {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process.
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // Who has read enough may be gone.
            let _ = stream.write_all(&bytes);
            if stays {
                kept.push(stream);
            }
        }
    });
    address
}

#[test]
fn a_state_that_is_told_leads_to_the_blocks() {
    let (source, destination) = two();
    let address = source.transceiver.serve_tcp(ANY_PORT).unwrap();
    source.transceiver.serve_tcp(ANY_PORT).unwrap_err();
    // Both may be served.
    source.transceiver.serve_http(ANY_PORT).unwrap();
    allow(&destination, address);
    let handle = begin(&destination, address);
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 1 });
    assert!(destination.has(5, 0));
    source.settles();
    destination.settles();
}

#[test]
fn what_is_told_is_one_message_and_the_end() {
    let (source, _) = two();
    let address = source.transceiver.serve_tcp(ANY_PORT).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut told = Vec::new();
    stream.read_to_end(&mut told).unwrap();
    let state = source.transceiver.state().unwrap();
    // As docs/protocol.md has it.
    let mut head = b"KT\x01\x05".to_vec();
    head.extend_from_slice(&[0; 24]);
    head.extend_from_slice(&(state.len() as u32).to_le_bytes());
    assert_eq!(told[..32], head);
    assert_eq!(told[32..], state[..]);
    assert!(State::decode(&told[32..]).is_ok());
    drop(source);
    TcpStream::connect(address).unwrap_err();
}

#[test]
fn a_worker_whose_state_is_not_known_yet_says_nothing() {
    let parallel = ParallelLayout { tensor: 2, ..ONE_RANK };
    let setup = Setup { parallel, ..Setup::default() };
    let worker = Worker::new(&LoopbackHub::new(1), setup);
    let address = worker.transceiver.serve_tcp(ANY_PORT).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut told = Vec::new();
    // Closed, or reset.
    let _ = stream.read_to_end(&mut told);
    assert!(told.is_empty());
}

#[test]
fn what_is_no_state_fails_at_once() {
    let (source, destination) = two();
    let state = source.transceiver.state().unwrap();
    let whole = [&state_head(state.len() as u32)[..], &state].concat();
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    let cases = [
        ("nothing", Vec::new()),
        ("half a head", whole[..17].to_vec()),
        ("half a state", whole[..whole.len() / 2].to_vec()),
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("another mark", changed(0, b'X')),
        ("another version", changed(2, 2)),
        ("another kind", changed(3, 1)),
        ("a changed state", changed(60, 0xff)),
        ("an empty state", state_head(0)),
        ("a state of hostile size", state_head(MAX_STATE_BYTES as u32 + 1)),
        ("a state of the greatest size", state_head(u32::MAX)),
    ];
    for (what, bytes) in cases {
        let address = server(bytes, false);
        allow(&destination, address);
        let ended = outcome(&begin(&destination, address));
        assert_eq!(ended, Outcome::Failed(FailReason::MetadataFailed), "{what}");
    }
    // Behind the state there may be anything: it is not read.
    let address = server([&whole[..], b"more"].concat(), true);
    allow(&destination, address);
    assert_eq!(outcome(&begin(&destination, address)), Outcome::Delivered { blocks: 1 });
    source.settles();
    destination.settles();
}

#[test]
fn whoever_accepts_and_never_tells_runs_into_the_deadline() {
    let (source, destination) = two();
    let state = source.transceiver.state().unwrap();
    let whole = [&state_head(state.len() as u32)[..], &state].concat();
    for told in [0, 17, 32, whole.len() - 1] {
        let address = server(whole[..told].to_vec(), true);
        allow(&destination, address);
        let handle = begin_within(&destination, address, 50_000_000);
        destination.clock.pass(50_000_000);
        let ended = outcome(&handle);
        assert_eq!(ended, Outcome::Failed(FailReason::MetadataTimeout), "{told} bytes");
    }
    source.settles();
    destination.settles();
}

#[test]
fn one_address_that_leads_elsewhere_spoils_the_whole_state() {
    const ELSEWHERE: &[u8] = b"elsewhere";
    let hub = LoopbackHub::new(1);
    let parallel = ParallelLayout { tensor: 2, ..ONE_RANK };
    let of_rank = |rank, incarnation| Setup {
        rank,
        incarnation,
        parallel: parallel.clone(),
        ..Setup::default()
    };
    let source = [0, 1].map(|rank| Worker::new(&hub, of_rank(rank, 1 + rank as u8)));
    source.iter().for_each(|rank| rank.hold(&sequence(1, 0), &[3]));
    let entries = source.each_ref().map(|rank| rank.transceiver.rank_entry());
    source[0].transceiver.set_state(&entries).unwrap();
    // As if all were reached at 127.0.0.1, but for one.
    let host = |address: &[u8]| {
        let last = if address == ELSEWHERE { 9 } else { 1 };
        Some(IpAddr::from([127, 0, 0, last]))
    };
    let placed = Placed { inner: hub.transport(), host: Box::new(host) };
    let destination = Worker::over(Box::new(Forwarding(placed)), of_rank(0, 9));
    let honest = State::decode(&source[0].transceiver.state().unwrap()).unwrap();
    let mut forged = honest.clone();
    forged.ranks[1].address = ELSEWHERE.to_vec();
    let denied = Outcome::Failed(FailReason::EndpointDenied);
    for (state, expected) in [(forged, denied), (honest, Outcome::Delivered { blocks: 1 })] {
        let state = state.encode().unwrap();
        let address = server([&state_head(state.len() as u32)[..], &state].concat(), false);
        let bounds = AddressBounds::within(&["127.0.0.1"]).unwrap();
        destination.transceiver.allow(endpoint_at(address), bounds).unwrap();
        // Only rank 0 would be asked.
        assert_eq!(outcome(&begin(&destination, address)), expected);
        assert_eq!(destination.transceiver.status().sources, usize::from(expected != denied));
    }
    source.iter().for_each(Worker::settles);
    destination.settles();
}

#[test]
fn only_listed_endpoints_within_their_bounds_are_connected_to() {
    let (source, destination) = two();
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let denied = Outcome::Failed(FailReason::EndpointDenied);
    assert_eq!(outcome(&begin(&destination, address)), denied);
    // The same place over HTTP is another endpoint.
    let http = Endpoint::parse(&format!("http://{address}")).unwrap();
    destination.transceiver.allow(http, AddressBounds::unbounded()).unwrap();
    assert_eq!(outcome(&begin(&destination, address)), denied);
    let bounds = AddressBounds::within(&["10.0.0.0/8"]).unwrap();
    destination.transceiver.allow(endpoint_at(address), bounds.clone()).unwrap();
    assert_eq!(outcome(&begin(&destination, address)), denied);
    // A name that leads elsewhere than it may.
    let named = Endpoint::parse(&format!("tcp://localhost:{}", address.port())).unwrap();
    destination.transceiver.allow(named.clone(), bounds).unwrap();
    let (wanted, places) = (sequence(1, 0), [5]);
    let order = order(Origin::Endpoint(named), &wanted, &places, Policy::Strict);
    assert_eq!(outcome(&destination.begin_order(&order).unwrap()), denied);
    let nobody = listener.accept().unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock, "somebody connected");
    source.settles();
    destination.settles();
}
