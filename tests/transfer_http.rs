//! States over HTTP: served, fetched from listed endpoints only, and every way in which a server
//! can misbehave. Loopback sockets only.

mod transfer_support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use kvhints::plan::{AddressBounds, Endpoint};
use kvhints::reuse::Policy;
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::prefetch::{Deadlines, Outcome, State as PrefetchState};
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::{Incarnation, JoinError, RankAddress, State};
use kvhints::transfer::transceiver::{
    FetchOrder, Origin, PrefetchHandle, SetStateError, Surroundings, Transceiver,
    TransceiverConfig, TreeAndPool,
};
use transfer_support::*;

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn endpoint_at(address: SocketAddr) -> Endpoint {
    Endpoint::parse(&format!("http://{address}")).unwrap()
}

fn begin_at(worker: &Worker, endpoint: &Endpoint, place: i32) -> PrefetchHandle {
    begin_within(worker, endpoint, place, 20_000_000_000)
}

fn begin_within(
    worker: &Worker,
    endpoint: &Endpoint,
    place: i32,
    metadata_ns: u64,
) -> PrefetchHandle {
    let wanted = sequence(1, 0);
    let deadlines = Deadlines { metadata_ns, ..Deadlines::default() };
    let places = [place];
    let origin = Origin::Endpoint(endpoint.clone());
    let order = FetchOrder { deadlines, ..order(origin, &wanted, &places, Policy::Strict) };
    worker.begin_order(&order).unwrap()
}

fn allow(worker: &Worker, endpoint: &Endpoint) {
    worker.transceiver.allow(endpoint.clone(), AddressBounds::unbounded()).unwrap();
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // A server that refuses early may reset while the rest of the request is still on its way.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Listens, and fails the test if anybody connected.
struct Untouched(TcpListener);

impl Untouched {
    fn new() -> Self {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn check(&self) {
        let nobody = self.0.accept().unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::WouldBlock, "somebody connected");
    }
}

/// A server that reads a request and then does as told; counts its connections.
fn server(answer: impl Fn(&mut TcpStream) + Send + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    // Ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
            let mut request = [0u8; 2048];
            let _ = stream.read(&mut request);
            answer(&mut stream);
        }
    });
    (address, count)
}

fn fails_with(reason: FailReason, answer: impl Fn(&mut TcpStream) + Send + 'static) {
    let (address, count) = server(answer);
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let endpoint = endpoint_at(address);
    allow(&worker, &endpoint);
    let handle = begin_at(&worker, &endpoint, 5);
    assert_eq!(outcome(&handle), Outcome::Failed(reason));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    worker.settles();
}

#[test]
fn a_served_state_leads_to_the_blocks_and_is_fetched_once() {
    let hub = LoopbackHub::new(1);
    let source = Worker::new(&hub, Setup::default());
    let destination = Worker::new(&hub, Setup { incarnation: 2, ..Setup::default() });
    source.hold(&sequence(1, 0), &[3]);
    let address = source.transceiver.serve_http(ANY_PORT).unwrap();
    source.transceiver.serve_http(ANY_PORT).unwrap_err();
    let endpoint = endpoint_at(address);
    allow(&destination, &endpoint);
    for place in [5, 6, 7] {
        let handle = begin_at(&destination, &endpoint, place);
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 1 });
        assert!(destination.has(place, 0));
    }
    source.settles();
    destination.settles();
}

#[test]
fn a_restarted_source_is_found_again() {
    let hub = LoopbackHub::new(1);
    let source = Worker::new(&hub, Setup::default());
    let destination = Worker::new(&hub, Setup { incarnation: 2, ..Setup::default() });
    source.hold(&sequence(1, 0), &[3]);
    let address = source.transceiver.serve_http(ANY_PORT).unwrap();
    let endpoint = endpoint_at(address);
    allow(&destination, &endpoint);
    let handle = begin_at(&destination, &endpoint, 5);
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 1 });
    drop(source);
    let restarted = Worker::new(&hub, Setup { incarnation: 9, ..Setup::default() });
    restarted.hold(&sequence(1, 0), &[4]);
    restarted.transceiver.serve_http(address).unwrap();
    wait_until("the old connection to be gone", || destination.transceiver.status().sources == 0);
    let stale = begin_at(&destination, &endpoint, 6);
    assert_eq!(outcome(&stale), Outcome::Failed(FailReason::PeerGone));
    destination.settles();
    wait_until("the state being fetched anew", || {
        let handle = begin_at(&destination, &endpoint, 7);
        outcome(&handle) == Outcome::Delivered { blocks: 1 }
    });
    destination.settles();
    restarted.settles();
}

#[test]
fn only_get_of_the_one_path_is_answered() {
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let address = worker.transceiver.serve_http(ANY_PORT).unwrap();
    let path = "/v1/data_transceiver_state";
    let good = ask(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.contains("KVHS"));
    let long = format!("GET {path} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET {path} HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "404"),
        (b"GET /v1/data_transceiver_state/../x HTTP/1.1\r\n\r\n".to_vec(), "404"),
        (format!("POST {path} HTTP/1.1\r\n\r\n").into_bytes(), "405"),
        (b"\x00\x01\x02\r\n\r\n".to_vec(), "400"),
        (many.into_bytes(), "431"),
    ];
    for (request, status) in cases {
        let answer = ask(address, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
    let answer = ask(address, long.as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    // Connections that say nothing do not keep others from being served.
    let idle: Vec<TcpStream> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
    let good = ask(address, format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
    assert!(good.starts_with("HTTP/1.1 200 OK\r\n"));
    drop(idle);
    drop(worker);
    TcpStream::connect(address).unwrap_err();
}

#[test]
fn a_flood_of_connections_that_do_not_ask_keeps_nobody_from_the_state() {
    let floods: [(&str, &[u8]); 3] = [
        ("silence", b""),
        ("half a request", b"GET /v1/data_transceiver_state HTTP/1.1\r\nX: "),
        ("one byte", b"G"),
    ];
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let address = worker.transceiver.serve_http(ANY_PORT).unwrap();
    let begun = Instant::now();
    for (what, bytes) in floods {
        let mut flood = Vec::new();
        for _ in 0..5 {
            for _ in 0..60 {
                let mut stream = TcpStream::connect(address).unwrap();
                // The server may have closed it already.
                let _ = stream.write_all(bytes);
                flood.push(stream);
            }
            let answer = ask(address, b"GET /v1/data_transceiver_state HTTP/1.1\r\n\r\n");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{what}: {answer}");
        }
    }
    // Waiting for the floods to run out of time, 64 connections at once, takes more than 60 s.
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_worker_of_several_ranks_serves_nothing_until_the_entries_are_joined() {
    let hub = LoopbackHub::new(1);
    let template = Worker::new(&hub, Setup::default());
    let config = TransceiverConfig {
        rank: 1,
        namespace: NAMESPACE.to_vec(),
        cache: cache_layout(),
        parallel: kvhints::transfer::layout::ParallelLayout { tensor: 2, ..ONE_RANK },
        owner: Arc::new(TreeAndPool {
            tree: template.tree.clone(),
            window: 0,
            pool: template.pool,
        }),
        source_limits: Default::default(),
        destination_limits: Default::default(),
        max_prefetches: 1,
    };
    let surroundings = Surroundings {
        incarnation: Incarnation([8; 16]),
        clock: Arc::clone(&template.clock) as _,
        metrics: Arc::clone(&template.metrics),
        poison: Arc::clone(&template.poison),
    };
    let transceiver = Transceiver::start(config, Box::new(hub.transport()), surroundings).unwrap();
    let address = transceiver.serve_http(ANY_PORT).unwrap();
    let request = b"GET /v1/data_transceiver_state HTTP/1.1\r\n\r\n";
    assert!(ask(address, request).starts_with("HTTP/1.1 503 "));
    assert!(transceiver.state().is_none());
    let own = transceiver.rank_entry();
    let mut other = State::decode(own).unwrap();
    other.ranks = vec![RankAddress { rank: 0, ..other.ranks[0].clone() }];
    let other = other.encode().unwrap();
    assert_eq!(transceiver.set_state(&[&other]), Err(SetStateError::OwnEntryMissing));
    let incomplete = JoinError::Incomplete { found: 1, rank_count: 2 };
    assert_eq!(transceiver.set_state(&[own]), Err(SetStateError::Join(incomplete)));
    transceiver.set_state(&[&other, own]).unwrap();
    let state = State::decode(&transceiver.state().unwrap()).unwrap();
    assert_eq!(state.ranks.len(), 2);
    assert!(ask(address, request).starts_with("HTTP/1.1 200 "));
}

#[test]
fn an_unlisted_endpoint_is_never_connected_to() {
    let listener = Untouched::new();
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let other = Endpoint::parse("http://127.0.0.1:1").unwrap();
    allow(&worker, &other);
    let handle = begin_at(&worker, &endpoint_at(listener.address()), 5);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::EndpointDenied));
    listener.check();
    worker.settles();
}

#[test]
fn a_listed_endpoint_outside_of_its_addresses_is_never_connected_to() {
    let listener = Untouched::new();
    let port = listener.address().port();
    for host in ["127.0.0.1", "localhost"] {
        let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
        let endpoint = Endpoint::parse(&format!("http://{host}:{port}")).unwrap();
        let bounds = AddressBounds::within(&["10.0.0.0/8"]).unwrap();
        worker.transceiver.allow(endpoint.clone(), bounds).unwrap();
        let handle = begin_at(&worker, &endpoint, 5);
        assert_eq!(outcome(&handle), Outcome::Failed(FailReason::EndpointDenied), "{host}");
        worker.settles();
    }
    listener.check();
}

#[test]
fn redirects_and_the_environments_proxy_are_not_followed() {
    let elsewhere = Untouched::new();
    let target = elsewhere.address();
    for variable in ["http_proxy", "HTTP_PROXY", "ALL_PROXY"] {
        std::env::set_var(variable, format!("http://{target}"));
    }
    fails_with(FailReason::MetadataFailed, move |stream| {
        let answer = format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{target}/\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).unwrap();
    });
    elsewhere.check();
}

#[test]
fn answers_that_are_no_state_fail() {
    fails_with(FailReason::MetadataFailed, |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
    });
    fails_with(FailReason::MetadataFailed, |stream| {
        stream.write_all(b"SSH-2.0-nothing of yours\r\n\r\n").unwrap();
    });
    fails_with(FailReason::MetadataFailed, |_| {});
    fails_with(FailReason::MetadataFailed, |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // Without end, until the client has enough.
        while stream.write_all(&[0; 65_536]).is_ok() {}
    });
}

#[test]
fn an_endpoint_that_accepts_and_never_answers_runs_into_the_deadline() {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let endpoint = endpoint_at(listener.local_addr().unwrap());
    allow(&worker, &endpoint);
    let handle = begin_within(&worker, &endpoint, 5, 50_000_000);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::MetadataTimeout));
    worker.settles();
}

#[test]
fn https_is_answered_clearly() {
    let listener = Untouched::new();
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let endpoint = format!("https://127.0.0.1:{}", listener.address().port());
    let endpoint = Endpoint::parse(&endpoint).unwrap();
    allow(&worker, &endpoint);
    let handle = begin_at(&worker, &endpoint, 5);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::Unsupported));
    listener.check();
}

#[test]
fn a_failure_is_remembered_for_a_while_and_one_fetch_serves_all_who_wait() {
    let (address, count) = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n");
    });
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    let endpoint = endpoint_at(address);
    allow(&worker, &endpoint);
    let burst: Vec<PrefetchHandle> =
        (0..10).map(|place| begin_at(&worker, &endpoint, place)).collect();
    let failed = Outcome::Failed(FailReason::MetadataFailed);
    assert!(burst.iter().all(|handle| outcome(handle) == failed));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    worker.clock.pass(1_000_000_000);
    assert_eq!(outcome(&begin_at(&worker, &endpoint, 11)), failed);
    assert_eq!(count.load(Ordering::SeqCst), 2);
    worker.settles();
}

/// Listens, and lets everybody wait.
struct Hung(TcpListener);

impl Hung {
    fn listed_at(worker: &Worker) -> (Self, Endpoint) {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let endpoint = endpoint_at(listener.local_addr().unwrap());
        allow(worker, &endpoint);
        (Self(listener), endpoint)
    }
}

/// A source that holds a block, and a destination with room for many fetches.
fn source_and_destination() -> (Worker, Endpoint, Worker) {
    let hub = LoopbackHub::new(1);
    let source = Worker::new(&hub, Setup::default());
    source.hold(&sequence(1, 0), &[3]);
    let endpoint = endpoint_at(source.transceiver.serve_http(ANY_PORT).unwrap());
    let many = Setup { incarnation: 2, block_count: 256, max_prefetches: 256, ..Setup::default() };
    let destination = Worker::new(&hub, many);
    allow(&destination, &endpoint);
    (source, endpoint, destination)
}

#[test]
fn endpoints_that_hang_keep_no_other_source_waiting() {
    // One, some, and more than there are places for fetches.
    for hung_count in [1, 8, 100] {
        let (source, good, destination) = source_and_destination();
        let hung: Vec<(Hung, Endpoint)> =
            (0..hung_count).map(|_| Hung::listed_at(&destination)).collect();
        let waiting: Vec<PrefetchHandle> = (1..)
            .zip(&hung)
            .map(|(place, (_, endpoint))| begin_at(&destination, endpoint, place))
            .collect();
        // A fetch has its place for a moment for certain: the first try may find none.
        wait_until("blocks from the source that answers", || {
            let handle = begin_at(&destination, &good, 0);
            outcome(&handle) == Outcome::Delivered { blocks: 1 }
        });
        if hung_count <= 8 {
            assert_eq!(waiting[0].poll().1, None, "it still has time");
        }
        drop(waiting);
        destination.settles();
        source.settles();
    }
}

#[test]
fn a_transceiver_goes_while_endpoints_hang() {
    let start = Instant::now();
    for _ in 0..5 {
        let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
        let hung: Vec<(Hung, Endpoint)> = (0..8).map(|_| Hung::listed_at(&worker)).collect();
        let waiting: Vec<PrefetchHandle> = (1..)
            .zip(&hung)
            .map(|(place, (_, endpoint))| begin_within(&worker, endpoint, place, u64::MAX))
            .collect();
        let (last, _) = &hung[7];
        let (mut connection, _) = last.0.accept().unwrap();
        drop(worker);
        let shut_down = Outcome::Failed(FailReason::Shutdown);
        assert!(waiting.iter().all(|handle| outcome(handle) == shut_down));
        let mut request = Vec::new();
        // Closed by the time the transceiver is gone.
        connection.set_nonblocking(true).unwrap();
        match connection.read_to_end(&mut request) {
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "still connected"),
        }
    }
    // The longest fetch takes more than that.
    assert!(start.elapsed() < Duration::from_secs(20));
}

fn send_state(stream: &mut TcpStream, state: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", state.len());
    // Whoever asked may be gone.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(state);
}

/// A server that answers each connection with the source's state when the gate is passed.
fn gated(source: &Worker) -> (SocketAddr, Arc<AtomicUsize>, Arc<Barrier>) {
    let state = source.transceiver.state().unwrap();
    let gate = Arc::new(Barrier::new(2));
    let held = Arc::clone(&gate);
    let (address, count) = server(move |stream| {
        held.wait();
        send_state(stream, &state);
    });
    (address, count, gate)
}

#[test]
fn that_somebody_would_not_wait_is_no_failure_of_the_endpoint() {
    let (source, _, destination) = source_and_destination();
    let state = source.transceiver.state().unwrap();
    let first = Mutex::new(None);
    let (address, count) = server(move |stream| {
        let mut first = first.lock().unwrap();
        match *first {
            // Neither answered nor closed.
            None => *first = Some(stream.try_clone().unwrap()),
            Some(_) => send_state(stream, &state),
        }
    });
    let endpoint = endpoint_at(address);
    allow(&destination, &endpoint);
    let hurried = begin_within(&destination, &endpoint, 5, 200_000_000);
    assert_eq!(outcome(&hurried), Outcome::Failed(FailReason::MetadataTimeout));
    // No time has passed on the clock by which failures are remembered.
    let patient = begin_at(&destination, &endpoint, 6);
    assert_eq!(outcome(&patient), Outcome::Delivered { blocks: 1 });
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[test]
fn a_fetch_lives_as_long_as_the_most_patient_asker() {
    let (source, _, destination) = source_and_destination();
    let (address, count, gate) = gated(&source);
    let endpoint = endpoint_at(address);
    allow(&destination, &endpoint);
    let second = 1_000_000_000;
    let hurried = begin_within(&destination, &endpoint, 5, 15 * second);
    let patient = begin_within(&destination, &endpoint, 6, 20 * second);
    let as_hurried = begin_within(&destination, &endpoint, 7, 15 * second);
    wait_until("the request", || count.load(Ordering::SeqCst) == 1);
    destination.clock.pass(15 * second);
    let late = Outcome::Failed(FailReason::MetadataTimeout);
    assert_eq!(outcome(&hurried), late);
    assert_eq!(outcome(&as_hurried), late);
    assert_eq!(patient.poll(), (PrefetchState::PrefetchInit, None));
    gate.wait();
    assert_eq!(outcome(&patient), Outcome::Delivered { blocks: 1 });
    assert_eq!(count.load(Ordering::SeqCst), 1, "one fetch for all");
}

#[test]
fn a_fetch_that_a_hurried_asker_began_goes_on_for_a_patient_one() {
    let (source, _, destination) = source_and_destination();
    let (address, count, gate) = gated(&source);
    let endpoint = endpoint_at(address);
    allow(&destination, &endpoint);
    let begun = Instant::now();
    let hurried_time = Duration::from_millis(300);
    let hurried = begin_within(&destination, &endpoint, 5, hurried_time.as_nanos() as u64);
    wait_until("the request", || count.load(Ordering::SeqCst) == 1);
    let patient = begin_at(&destination, &endpoint, 6);
    let was_shared = begun.elapsed() < hurried_time;
    // The hurried one's time is over by both clocks.
    wait_until("its time to be over", || begun.elapsed() > 2 * hurried_time);
    destination.clock.pass(hurried_time.as_nanos() as u64);
    assert_eq!(outcome(&hurried), Outcome::Failed(FailReason::MetadataTimeout));
    assert_eq!(patient.poll(), (PrefetchState::PrefetchInit, None));
    gate.wait();
    if was_shared {
        assert_eq!(outcome(&patient), Outcome::Delivered { blocks: 1 });
        assert_eq!(count.load(Ordering::SeqCst), 1, "one fetch for both");
    }
}
