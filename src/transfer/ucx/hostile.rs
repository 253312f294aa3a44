//! Tests with a peer that speaks the transport's wire, but not by its rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Context;
use super::frame::{decode_address, Header, Kind};
use super::operation::{Operation, Purpose};
use super::worker::{Started, Worker, CONTROL_ID, DATA_ID};
use super::{availability, UcxOptions, UcxTransport};
use crate::transfer::transport::{Event, PeerId, Transport, TransportError, MAX_MESSAGE_BYTES};

const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> UcxOptions {
    UcxOptions {
        tls: Some("tcp".to_owned()),
        net_devices: Some("lo".to_owned()),
        ..UcxOptions::default()
    }
}

/// A worker of UCX and an endpoint to the transport under test.
struct Rogue {
    worker: Worker,
    endpoint: ucx_sys::ucp_ep_h,
}

impl Rogue {
    fn new(transport: &UcxTransport) -> Self {
        let context = Arc::new(Context::open(&options()).expect("UCX starts"));
        let worker = Worker::create(&context).expect("a worker");
        let address = decode_address(transport.address()).expect("a good address");
        let endpoint = worker.connect(address).expect("an endpoint");
        Self { worker, endpoint }
    }

    fn send_raw(&self, id: u32, header: Vec<u8>, bytes: Vec<u8>) {
        let mut operation = Operation::new(PeerId(0), Purpose::Own, &self.worker.mailbox);
        operation.header = header;
        operation.bytes = bytes;
        if let Started::Ended(operation) = self.worker.send(self.endpoint, id, 0, operation) {
            assert_eq!(operation.status, ucx_sys::UCS_OK);
        }
    }

    fn send(&self, kind: Kind, sequence: u64, inline: &[u8], bytes: Vec<u8>) {
        let header = Header { kind, sequence, inline: inline.to_vec() };
        let id = if kind == Kind::Data { DATA_ID } else { CONTROL_ID };
        self.send_raw(id, header.encode(), bytes);
    }

    /// Drives both until the transport tells something.
    fn event(&self, transport: &mut UcxTransport) -> Event {
        let start = Instant::now();
        loop {
            self.worker.progress();
            if let Some(event) = transport.progress() {
                return event;
            }
            assert!(start.elapsed() < PATIENCE, "nothing happened");
        }
    }

    /// Sends a first message, so that the transport's caller knows the connection.
    fn introduced(&self, transport: &mut UcxTransport) -> PeerId {
        self.send(Kind::Message, 0, b"", b"first".to_vec());
        match self.event(transport) {
            Event::Message { peer, bytes } => {
                assert_eq!(bytes, b"first");
                peer
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        let close = Operation::new(PeerId(0), Purpose::Close, &self.worker.mailbox);
        drop(self.worker.close(self.endpoint, close));
        let start = Instant::now();
        while !self.worker.mailbox.outstanding.borrow().is_empty() && start.elapsed() < PATIENCE {
            self.worker.progress();
        }
    }
}

fn with_rogue(test: impl FnOnce(&mut UcxTransport, &Rogue)) {
    if let Err(error) = availability() {
        return println!("skipped: {error}");
    }
    let mut transport = UcxTransport::open(options()).expect("UCX starts");
    let rogue = Rogue::new(&transport);
    test(&mut transport, &rogue);
}

/// Whatever `misbehave` sends ends the connection, and nothing else.
fn ends_the_connection(misbehave: impl FnOnce(&Rogue)) {
    with_rogue(|transport, rogue| {
        let peer = rogue.introduced(transport);
        misbehave(rogue);
        match rogue.event(transport) {
            Event::PeerGone { peer: of, error: TransportError::PeerGone(text) } => {
                assert_eq!(of, peer);
                assert!(text.contains("broke the rules"), "{text}");
            }
            other => panic!("unexpected: {other:?}"),
        }
        assert!(transport.send_message(peer, Vec::new()).is_err());
        let address = transport.address().to_vec();
        transport.connect(&address).expect("others are served");
    });
}

#[test]
fn a_number_used_twice_ends_the_connection() {
    ends_the_connection(|rogue| rogue.send(Kind::Message, 0, b"", b"again".to_vec()));
}

#[test]
fn a_number_far_ahead_ends_the_connection() {
    ends_the_connection(|rogue| rogue.send(Kind::Data, 1 << 40, b"", vec![1; 100_000]));
}

#[test]
fn a_message_over_the_limit_ends_the_connection() {
    ends_the_connection(|rogue| {
        rogue.send(Kind::Message, 1, b"", vec![0; MAX_MESSAGE_BYTES + 1]);
    });
}

#[test]
fn two_long_headers_end_the_connection() {
    ends_the_connection(|rogue| {
        rogue.send(Kind::LongHeader, 1, b"", b"one".to_vec());
        rogue.send(Kind::LongHeader, 2, b"", b"two".to_vec());
    });
}

#[test]
fn what_is_none_of_ours_is_dropped() {
    with_rogue(|transport, rogue| {
        rogue.send_raw(CONTROL_ID, Vec::new(), b"no header".to_vec());
        rogue.send_raw(CONTROL_ID, vec![0xff; 40], vec![0; 1 << 20]);
        rogue.send_raw(DATA_ID, vec![0; 36], vec![0; 1 << 20]);
        let peer = rogue.introduced(transport);
        rogue.send_raw(CONTROL_ID, vec![0xff; 40], vec![0; 1 << 20]);
        rogue.send(Kind::Message, 1, b"", b"second".to_vec());
        match rogue.event(transport) {
            Event::Message { peer: of, bytes } => {
                assert_eq!((of, &bytes[..]), (peer, &b"second"[..]));
            }
            other => panic!("unexpected: {other:?}"),
        }
    });
}

#[test]
fn whoever_connects_and_leaves_was_never_there() {
    with_rogue(|transport, rogue| {
        rogue.send(Kind::Bye, 0, b"", Vec::new());
        let start = Instant::now();
        let mut was_there = false;
        while !was_there || transport.connection_count() > 0 {
            rogue.worker.progress();
            assert!(transport.progress().is_none(), "nobody was told of it before");
            was_there |= transport.connection_count() > 0 || start.elapsed().as_secs() > 1;
            assert!(start.elapsed() < PATIENCE);
        }
    });
}

/// All of the above once more in a process of its own, for what they have UCX print: nothing. Its standard
/// output has the harness's words only.
#[test]
fn nothing_is_printed_because_of_them() {
    if let Err(error) = availability() {
        return println!("skipped: {error}");
    }
    let others = module_path!().split_once("::").expect("inside of the crate").1;
    let output = std::process::Command::new(std::env::current_exe().expect("a program"))
        .args([others, "--skip", "nothing_is_printed", "--nocapture", "--test-threads=1"])
        .env_remove("UCX_LOG_LEVEL")
        .output()
        .expect("this program starts");
    let [written, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{written}{errors}");
    let is_the_harness =
        |line: &str| line.is_empty() || line.starts_with("running ") || line.starts_with("test ");
    assert!(written.lines().all(is_the_harness) && errors.is_empty(), "{written}{errors}");
    assert!(written.contains("a_number_used_twice_ends_the_connection ... ok"), "{written}");
}

/// A peer that was not asked names any process and any address. Were what lies there compared with something
/// that it chose, the answer would tell it, byte by byte, what that is; nobody has proven to have a key yet.
#[test]
fn nobody_learns_what_is_in_memory_by_guessing() {
    if let Err(error) = availability() {
        return println!("skipped: {error}");
    }
    let with_memory = UcxOptions { tls: Some("tcp,cma".to_owned()), ..options() };
    // Fifteen bytes that are known, and one of a key.
    let memory: Box<[u8; 16]> = Box::new(*b"fifteen known...");
    let answers = |guess: u8| {
        let mut transport = UcxTransport::open(with_memory.clone()).expect("UCX starts");
        let rogue = Rogue::new(&transport);
        let peer = rogue.introduced(&mut transport);
        let mut nonce = *memory;
        nonce[15] = guess;
        let question = super::neighbour::SegmentPlace {
            process: std::process::id(),
            descriptor: u32::MAX,
            answer_address: memory.as_ptr().addr() as u64,
            nonce,
        };
        rogue.send(Kind::Segment, 1, b"", question.encode());
        let start = Instant::now();
        let mut kinds = Vec::new();
        loop {
            rogue.worker.progress();
            let arrivals = rogue.worker.mailbox.arrivals.take();
            kinds.extend(arrivals.iter().map(|arrival| arrival.header.kind));
            match transport.progress() {
                Some(Event::PeerGone { peer: gone, .. }) if gone == peer => return kinds,
                Some(event) => panic!("{event:?}"),
                None => assert!(start.elapsed() < PATIENCE, "it is still connected"),
            }
        }
    };
    for guess in [b'?', b'.'] {
        assert!(!answers(guess).contains(&Kind::Reached), "it was told what it guessed");
    }
}

/// A peer that asks and asks and reads no answer: each request is answered, whatever the answer, and what UCX
/// cannot get rid of waits here.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    for bytes in [100, 100_000] {
        with_rogue(|transport, rogue| {
            let peer = rogue.introduced(transport);
            // Some wait in the sockets, where the system bounds them.
            for _ in 0..4 * super::adapter::MAX_QUEUED {
                let is_refused = transport.send_message(peer, vec![0; bytes]).is_err();
                while let Some(event) = transport.progress() {
                    if matches!(event, Event::PeerGone { .. }) {
                        return;
                    }
                }
                assert!(!is_refused, "refused by a connection that is there");
            }
            panic!("all that was sent waits for a peer that reads nothing");
        });
    }
}
