//! Two transceivers over UCX on the loopback device. Skipped, with a reason printed, where there is
//! no UCX.

mod transfer_support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use kvhints::plan::{AddressBounds, Endpoint};
use kvhints::reuse::Policy;
use kvhints::transfer::prefetch::{Deadlines, Outcome, State as PrefetchState};
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::State;
use kvhints::transfer::transceiver::Origin;
use kvhints::transfer::transport::Transport;
use kvhints::transfer::ucx::{availability, UcxOptions, UcxTransport};
use transfer_support::*;

/// A transport over the chosen wires; `None`, and says so, where UCX is not installed.
fn transport(wires: &str) -> Option<Box<dyn Transport>> {
    if let Err(error) = availability() {
        println!("skipped: {error}");
        return None;
    }
    let options = UcxOptions {
        tls: Some(wires.to_owned()),
        net_devices: Some("lo".to_owned()),
        ..UcxOptions::default()
    };
    Some(Box::new(UcxTransport::open(options).expect("UCX starts")))
}

fn two(wires: &str, source: Setup, destination: Setup) -> Option<(Worker, Worker)> {
    let source = Worker::over(transport(wires)?, source);
    let destination = Setup { incarnation: 2, ..destination };
    Some((source, Worker::over(transport(wires)?, destination)))
}

fn large() -> Setup {
    Setup { block_bytes: 96 << 10, block_count: 128, ..Setup::default() }
}

fn moves_everything(wires: &str) {
    let Some((source, destination)) = two(wires, large(), large()) else { return };
    let wanted = sequence(100, 0);
    let ids: Vec<i32> = (0..100).map(|index| (index * 37) % 128).collect();
    source.hold(&wanted, &ids);
    let places: Vec<i32> = (0..100).map(|index| (index * 11) % 128).collect();
    for _ in 0..3 {
        let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 100 });
        for (position, id) in places.iter().enumerate() {
            assert!(destination.has(*id, position), "block {position}");
            destination.fill(*id, |_| 0);
        }
    }
    wait_until("the wires being known", || {
        let status = destination.transceiver.status();
        status.sources == 1 && !status.wires.is_empty()
    });
    source.settles();
    destination.settles();
}

#[test]
fn blocks_move_over_tcp() {
    moves_everything("tcp");
}

#[test]
fn blocks_move_over_whatever_ucx_chooses() {
    moves_everything("all");
}

#[test]
fn small_blocks_partial_hits_and_misses() {
    let Some((source, destination)) = two("tcp", Setup::default(), Setup::default()) else {
        return;
    };
    let wanted = sequence(6, 0);
    source.hold(&wanted, &[0, 1, 2, 3]);
    let places = [10, 11, 12, 13, 14, 15];
    let handle = destination.begin(&source, &wanted, &places, Policy::BestEffort).unwrap();
    assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 4 });
    assert!((0..4).all(|index| destination.has(10 + index, index as usize)));
    assert_eq!(handle.claim(), Some(4));
    let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::ContentMiss);
    source.settles();
    destination.settles();
}

#[test]
fn corruption_is_found_and_cancels_reach_an_end() {
    let mischief = Arc::new(Mischief::default());
    let corrupting = Setup { mischief: Arc::clone(&mischief), ..large() };
    let Some((source, destination)) = two("tcp", corrupting, large()) else { return };
    let wanted = sequence(20, 0);
    let ids: Vec<i32> = (0..20).collect();
    source.hold(&wanted, &ids);
    Mischief::set(&mischief.corrupts, true);
    let handle = destination.begin(&source, &wanted, &ids, Policy::Strict).unwrap();
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::Corrupted));
    Mischief::set(&mischief.corrupts, false);
    destination.settles();
    source.settles();
    for _ in 0..20 {
        let handle = destination.begin(&source, &wanted, &ids, Policy::Strict).unwrap();
        handle.cancel();
        let ended = outcome(&handle);
        let is_fine = matches!(ended, Outcome::Cancelled | Outcome::Delivered { .. });
        assert!(is_fine, "{ended:?}");
        destination.settles();
    }
    source.settles();
}

#[test]
fn either_side_may_go_away_mid_transfer() {
    for source_goes in [true, false] {
        let mischief = Arc::new(Mischief::default());
        let holding = Setup { mischief: Arc::clone(&mischief), ..large() };
        let Some((source, destination)) = two("tcp", large(), holding) else { return };
        let wanted = sequence(20, 0);
        let ids: Vec<i32> = (0..20).collect();
        source.hold(&wanted, &ids);
        Mischief::set(&mischief.holds_data, true);
        let handle = destination.begin(&source, &wanted, &ids, Policy::Strict).unwrap();
        reaches(&handle, PrefetchState::PrefetchInProgress);
        wait_until("data on its way", || mischief.held.load(Ordering::SeqCst) > 0);
        if source_goes {
            let tree = source.tree.clone();
            drop(source);
            assert_eq!(tree.statistics().live_pins, 0);
            // Where the wire does not tell, the deadline does.
            wait_until("the loss to be noticed", || {
                destination.clock.pass(Deadlines::default().transfer_ns / 100);
                handle.poll().1.is_some()
            });
            Mischief::set(&mischief.holds_data, false);
            let ended = outcome(&handle);
            let is_loss = matches!(
                ended,
                Outcome::Failed(FailReason::PeerGone | FailReason::TransferTimeout)
            );
            assert!(is_loss, "{ended:?}");
            destination.settles();
        } else {
            drop(destination);
            assert_eq!(handle.poll().1, Some(Outcome::Failed(FailReason::Shutdown)));
            wait_until("the loss to be noticed", || {
                source.clock.pass(Deadlines::default().transfer_ns / 100);
                source.tree.statistics().live_pins == 0
            });
            source.settles();
        }
    }
}

/// A listed endpoint may send a destination to hosts within its bounds only.
#[test]
fn a_state_that_names_a_host_outside_of_the_bounds_is_denied() {
    let Some((source, near)) = two("tcp", Setup::default(), Setup::default()) else { return };
    let wanted = sequence(2, 0);
    source.hold(&wanted, &[0, 1]);
    // The source tells the state at 127.0.0.1 and is itself at 127.0.0.1: within the bounds.
    let any_port = "127.0.0.1:0".parse().unwrap();
    let honest = source.transceiver.serve_http(any_port).unwrap();
    let endpoint = Endpoint::parse(&format!("http://{honest}")).unwrap();
    let bounds = || AddressBounds::within(&["127.0.0.1/32"]).unwrap();
    near.transceiver.allow(endpoint.clone(), bounds()).unwrap();
    let begin = |endpoint| {
        let places = [5, 6];
        let origin = Origin::Endpoint(endpoint);
        let handle = near.begin_order(&order(origin, &wanted, &places, Policy::Strict)).unwrap();
        outcome(&handle)
    };
    assert_eq!(begin(endpoint), Outcome::Delivered { blocks: 2 });
    // The same state, but for a transport address that is somebody else's.
    let mut forged = State::decode(&source.transceiver.state().unwrap()).unwrap();
    let address = &mut forged.ranks[0].address;
    let host = address.len() - 4;
    address[host..].copy_from_slice(&[127, 0, 0, 9]);
    let server = Served::start(forged.encode().unwrap());
    let endpoint = Endpoint::parse(&format!("http://{}", server.address)).unwrap();
    near.transceiver.allow(endpoint.clone(), bounds()).unwrap();
    assert_eq!(begin(endpoint), Outcome::Failed(FailReason::EndpointDenied));
    assert_eq!(near.transceiver.status().sources, 1, "nobody else was connected to");
    near.settles();
    source.settles();
}

/// Answers one request for a state.
struct Served {
    address: std::net::SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn start(state: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
                state.len()
            );
            stream.write_all(&[head.as_bytes(), &state].concat()).unwrap();
        });
        Self { address, thread: Some(thread) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
