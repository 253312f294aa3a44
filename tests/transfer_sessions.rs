//! Who is heard: peers prove to each other that they hold a key before the first name is answered.
//! Each attack on that ends with nothing learned, nothing pinned and nothing sent.

mod transfer_support;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvhints::hint::signature::{KeyRing, Rules};
use kvhints::reuse::{Name, Policy, Sequence, TextTail};
use kvhints::telemetry::Metrics;
use kvhints::transfer::block_part::BlockPart;
use kvhints::transfer::gate::{Gate, Peers};
use kvhints::transfer::layout::digest;
use kvhints::transfer::loopback::{LoopbackHub, LoopbackTransport};
use kvhints::transfer::prefetch::Outcome;
use kvhints::transfer::protocol::{Answer, FetchRequest, Message, RequestKey};
use kvhints::transfer::reason::{FailReason, RefuseReason};
use kvhints::transfer::session::{Nonce, Role, SessionMessage, Transcript};
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::transport::{Event, PeerId, Segment, Transport};
use transfer_support::*;

fn ring(secrets: &[(&str, u8)]) -> Arc<KeyRing> {
    let ring = KeyRing::new(Rules::default()).unwrap();
    secrets.iter().for_each(|(id, secret)| ring.add(id, &[*secret; 32]).unwrap());
    Arc::new(ring)
}

fn with_key(id: &str, secrets: &[(&str, u8)]) -> Peers {
    Peers::WithKey(ring(secrets), id.to_owned())
}

fn key() -> Peers {
    with_key("k", &[("k", 5)])
}

fn worker(hub: &Arc<LoopbackHub>, incarnation: u8, peers: Peers) -> Worker {
    let gate = Gate::new(Box::new(hub.transport()), peers, Arc::default());
    Worker::over(Box::new(gate), Setup { incarnation, ..Setup::default() })
}

/// A source that holds three blocks.
fn source(hub: &Arc<LoopbackHub>, peers: Peers) -> (Worker, Sequence) {
    let source = worker(hub, 1, peers);
    let wanted = sequence(3, 0);
    source.hold(&wanted, &[0, 1, 2]);
    (source, wanted)
}

/// Over RDMA a peer that is sent one block of memory that was registered as a whole can reach all of it.
#[test]
fn a_pool_is_registered_only_where_every_peer_has_proven_itself() {
    let hub = LoopbackHub::new(42);
    let policies = [(key(), 1), (Peers::OfThisMachine, 0), (Peers::Anybody, 0)];
    for (peers, count) in policies {
        let mischief = Arc::new(Mischief::default());
        let inner = Forwarding(Mischievous::new(Box::new(hub.transport()), Arc::clone(&mischief)));
        let gate = Gate::new(Box::new(inner), peers, Arc::default());
        let worker = Worker::over(Box::new(gate), Setup::default());
        assert_eq!(mischief.registrations.load(Ordering::SeqCst), count);
        drop(worker);
    }
}

#[test]
fn peers_with_one_key_exchange_blocks_in_both_directions() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, with_key("new", &[("old", 4), ("new", 5)]));
    let destination = worker(&hub, 2, with_key("old", &[("new", 5), ("old", 4)]));
    for places in [[10, 11, 12], [20, 21, 22]] {
        let handle = destination.begin(&source, &wanted, &places, Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 3 });
        assert!((0..3).all(|at| destination.has(places[at], at)));
    }
    destination.tree.store(0, &wanted, 0, &[10, 11, 12]).unwrap();
    let back = source.begin(&destination, &wanted, &[30, 31, 32], Policy::Strict).unwrap();
    assert_eq!(outcome(&back), Outcome::Delivered { blocks: 3 });
    source.settles();
    destination.settles();
}

#[test]
fn many_requests_wait_for_one_proof() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, key());
    let destination = worker(&hub, 2, key());
    let handles: Vec<_> = (0..8)
        .map(|at| {
            let places = [10 + 3 * at, 11 + 3 * at, 12 + 3 * at];
            destination.begin(&source, &wanted, &places, Policy::Strict).unwrap()
        })
        .collect();
    for handle in &handles {
        assert_eq!(outcome(handle), Outcome::Delivered { blocks: 3 });
    }
    source.settles();
    destination.settles();
}

#[test]
fn peers_that_do_not_share_a_key_exchange_nothing() {
    let cases = [
        ("another secret", key(), with_key("k", &[("k", 6)])),
        ("another id", key(), with_key("l", &[("l", 5)])),
        ("no key at the destination", key(), Peers::Anybody),
        ("no key at the source", Peers::Anybody, key()),
        ("an id whose key is gone", key(), with_key("k", &[])),
    ];
    for (what, of_source, of_destination) in cases {
        let hub = LoopbackHub::new(42);
        let (source, wanted) = source(&hub, of_source);
        let destination = worker(&hub, 2, of_destination);
        for _ in 0..2 {
            let handle = destination.begin(&source, &wanted, &[10, 11, 12], Policy::Strict);
            let ended = outcome(&handle.unwrap());
            assert_eq!(ended, Outcome::Failed(FailReason::Unauthenticated), "{what}");
        }
        assert_eq!(source.metrics.source_requests_served.get(0), 0, "{what}");
        assert_eq!(source.metrics.source_requests_missed.get(0), 0, "{what}");
        assert!(destination.read(10).iter().all(|byte| *byte == 0), "{what}");
        source.settles();
        destination.settles();
    }
}

/// Somebody who writes what it likes to a source.
struct Stranger {
    transport: LoopbackTransport,
    peer: PeerId,
}

impl Stranger {
    fn at(hub: &Arc<LoopbackHub>, source: &Worker) -> Self {
        let state = State::decode(&source.transceiver.state().unwrap()).unwrap();
        let mut transport = hub.transport();
        let peer = transport.connect(&state.ranks[0].address).unwrap();
        Self { transport, peer }
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.transport.send_message(self.peer, bytes).unwrap();
    }

    /// The next message, or that the connection was cut.
    fn hear(&mut self) -> Result<Vec<u8>, ()> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing is heard");
            match self.transport.progress() {
                Some(Event::Message { bytes, .. }) => return Ok(bytes),
                Some(Event::PeerGone { .. }) => return Err(()),
                Some(Event::Data { .. }) => panic!("data for a stranger"),
                Some(_) => {}
                None => self.transport.wait(Duration::from_millis(5)),
            }
        }
    }

    fn say(&mut self, message: &SessionMessage) -> Result<SessionMessage, ()> {
        self.send(message.encode());
        self.hear().map(|bytes| SessionMessage::decode(&bytes).unwrap())
    }
}

fn request_of(source: &Worker, names: &[Name]) -> FetchRequest {
    FetchRequest {
        key: RequestKey { destination: Incarnation([9; 16]), sequence: 1 },
        source: source.transceiver.incarnation(),
        namespace: NAMESPACE.to_vec(),
        layout_digest: digest(&cache_layout(), &ONE_RANK),
        part: BlockPart::Whole,
        policy: Policy::Strict,
        hold_time_ns: 1_000_000_000,
        skipped_blocks: 0,
        step: 1,
        names: names.to_vec(),
        tail: None,
    }
}

fn fetch(source: &Worker, names: &[Name]) -> (RequestKey, Vec<u8>) {
    let request = request_of(source, names);
    (request.key, Message::Fetch(request).encode())
}

#[test]
fn a_tail_that_does_not_make_the_last_name_is_refused_before_anything_is_looked_up() {
    let hub = LoopbackHub::new(42);
    let (source, _) = source(&hub, Peers::Anybody);
    let wanted = sequence_of(&[1, 2, 3, 4, 5, 6], None);
    source.hold(&wanted, &[20, 21]);
    let names = [wanted.name(0).unwrap(), wanted.name(1).unwrap()];
    let good = wanted.text_tail().unwrap().unwrap();
    let tail = |parent: Name, tokens: &[i32]| TextTail::new(parent, &good.traits(), tokens.into());
    let all = [
        (tail(*good.parent(), &[5, 6]), None),
        (tail(*good.parent(), &[5]), Some(RefuseReason::BadRequest)),
        (tail(*good.parent(), &[5, 7]), Some(RefuseReason::BadRequest)),
        (tail(*good.parent(), &[5, 6, 7, 8]), Some(RefuseReason::BadRequest)),
        (tail(names[1], &[5, 6]), Some(RefuseReason::BadRequest)),
    ];
    for (sequence, (tail, refusal)) in (1..).zip(all) {
        let mut stranger = Stranger::at(&hub, &source);
        let mut request = request_of(&source, &names);
        request.key.sequence = sequence;
        request.tail = tail;
        stranger.send(Message::Fetch(request.clone()).encode());
        let heard = Message::decode(&stranger.hear().unwrap()).unwrap();
        let Message::Answer(key, answer) = heard else { panic!("{heard:?}") };
        assert_eq!(key, request.key);
        match (refusal, answer) {
            (Some(reason), answer) => assert_eq!(answer, Answer::Refused(reason)),
            (None, answer) => assert!(matches!(answer, Answer::Accepted { .. }), "{answer:?}"),
        }
    }
}

#[test]
fn a_refusal_is_the_same_whether_a_name_is_there_or_not() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, key());
    let mut answers = Vec::new();
    for names in [wanted.names(), sequence(3, 77).names()] {
        let mut stranger = Stranger::at(&hub, &source);
        let (key, request) = fetch(&source, names);
        stranger.send(request);
        let answer = stranger.hear().unwrap();
        let refused = Answer::Refused(RefuseReason::Unauthenticated);
        assert_eq!(Message::decode(&answer), Ok(Message::Answer(key, refused)));
        answers.push(answer);
    }
    assert_eq!(answers[0], answers[1]);
    source.settles();
}

#[test]
fn a_proof_of_an_earlier_session_opens_no_other() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, key());
    let keys = ring(&[("k", 5)]);
    let address = State::decode(&source.transceiver.state().unwrap()).unwrap();
    let address = address.ranks[0].address.clone();
    let nonce: Nonce = [7; 32];
    let hello = SessionMessage::Hello { key_id: "k".to_owned(), nonce };
    // What somebody recorded of a good session.
    let mut good = Stranger::at(&hub, &source);
    let Ok(SessionMessage::Challenge { nonce: theirs, code }) = good.say(&hello) else {
        panic!("a challenge")
    };
    let transcript = Transcript { key_id: "k".to_owned(), destination: nonce, source: theirs };
    assert!(transcript.verifies(&*keys, Role::Source, &address, &code));
    let proof = transcript.code(&*keys, Role::Destination, &address).unwrap();
    good.send(SessionMessage::Proof { code: proof }.encode());
    let (_, request) = fetch(&source, wanted.names());
    good.send(request.clone());
    assert!(matches!(
        Message::decode(&good.hear().unwrap()),
        Ok(Message::Answer(_, Answer::Accepted { .. }))
    ));
    drop(good);
    // The same words again: the source's nonce is another.
    let mut replaying = Stranger::at(&hub, &source);
    let Ok(SessionMessage::Challenge { nonce: other, .. }) = replaying.say(&hello) else {
        panic!("a challenge")
    };
    assert_ne!(other, theirs);
    replaying.send(SessionMessage::Proof { code: proof }.encode());
    replaying.hear().unwrap_err();
    source.settles();
}

#[test]
fn what_a_source_says_cannot_be_held_up_to_it() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, key());
    // Its own code, as if it were the destination's.
    let mut reflecting = Stranger::at(&hub, &source);
    let hello = SessionMessage::Hello { key_id: "k".to_owned(), nonce: [7; 32] };
    let Ok(SessionMessage::Challenge { code, .. }) = reflecting.say(&hello) else {
        panic!("a challenge")
    };
    reflecting.send(SessionMessage::Proof { code }.encode());
    reflecting.hear().unwrap_err();
    // Its nonce as the destination's of a second session: the roles' codes still differ.
    let mut first = Stranger::at(&hub, &source);
    let Ok(SessionMessage::Challenge { nonce, .. }) = first.say(&hello) else {
        panic!("a challenge")
    };
    let mut second = Stranger::at(&hub, &source);
    let mirrored = SessionMessage::Hello { key_id: "k".to_owned(), nonce };
    let Ok(SessionMessage::Challenge { code, .. }) = second.say(&mirrored) else {
        panic!("a challenge")
    };
    first.send(SessionMessage::Proof { code }.encode());
    first.hear().unwrap_err();
    // Out of turn.
    for message in [
        SessionMessage::Proof { code },
        SessionMessage::Refused,
        SessionMessage::Challenge { nonce, code },
    ] {
        let mut early = Stranger::at(&hub, &source);
        early.say(&message).unwrap_err();
    }
    let mut twice = Stranger::at(&hub, &source);
    twice.say(&hello).unwrap();
    twice.say(&hello).unwrap_err();
    let mut nonsense = Stranger::at(&hub, &source);
    nonsense.send(b"KA\x01\x01nonsense".to_vec());
    nonsense.hear().unwrap_err();
    // Between hello and proof nothing is answered but a refusal.
    let mut hasty = Stranger::at(&hub, &source);
    hasty.say(&hello).unwrap();
    let (key, request) = fetch(&source, wanted.names());
    hasty.send(request);
    let refused = Message::Answer(key, Answer::Refused(RefuseReason::Unauthenticated));
    assert_eq!(Message::decode(&hasty.hear().unwrap()), Ok(refused));
    let mut bytes = [1u8; 8];
    let segment = Segment { data: bytes.as_mut_ptr(), len: 8 };
    hasty.transport.send_data(hasty.peer, b"KT".to_vec(), vec![segment]).unwrap();
    source.settles();
    assert_eq!(source.metrics.source_requests_served.get(0), 0);
}

#[test]
fn who_hands_words_on_between_two_honest_peers_gets_no_session() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, key());
    let destination = worker(&hub, 2, key());
    // A state that leads to somebody in between, who talks to the source at the same time.
    let mut between = hub.transport();
    let mut state = State::decode(&source.transceiver.state().unwrap()).unwrap();
    let mut behind = Stranger::at(&hub, &source);
    state.ranks[0].address = between.address().to_vec();
    let origin = kvhints::transfer::transceiver::Origin::State(Arc::new(state));
    let handle =
        destination.begin_order(&order(origin, &wanted, &[10, 11, 12], Policy::Strict)).unwrap();
    let mut heard = Vec::new();
    while handle.poll().1.is_none() {
        match between.progress() {
            Some(Event::Message { peer, bytes }) => {
                heard.push(bytes.clone());
                behind.send(bytes);
                if let Ok(answer) = behind.hear() {
                    let _ = between.send_message(peer, answer);
                }
            }
            Some(_) => {}
            None => between.wait(Duration::from_millis(5)),
        }
    }
    // The code names another address than the one that was connected to.
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::Unauthenticated));
    assert_eq!(heard.len(), 1, "only a hello was heard, no name");
    source.settles();
    destination.settles();
}

#[test]
fn without_keys_only_this_machine_is_served_unless_told_otherwise() {
    let outside = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
    let inside = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
    let delivered = Outcome::Delivered { blocks: 3 };
    let refused = Outcome::Failed(FailReason::Unauthenticated);
    for (host, peers, expected) in [
        (outside, Peers::OfThisMachine, refused),
        (inside, Peers::OfThisMachine, delivered),
        (outside, Peers::Anybody, delivered),
        (outside, key(), refused),
    ] {
        let hub = LoopbackHub::new(42);
        let at = Placed { inner: hub.transport(), host: Box::new(move |_| Some(host)) };
        let metrics = Arc::new(Metrics::new());
        let word = match (&peers, host == outside) {
            (Peers::WithKey(..), _) => None,
            (Peers::Anybody, _) => Some("anybody"),
            (Peers::OfThisMachine, true) => Some("nobody"),
            (Peers::OfThisMachine, false) => Some("this_machine"),
        };
        let gate = Gate::new(Box::new(Forwarding(at)), peers, Arc::clone(&metrics));
        assert_eq!(gate.served_without_proof(), word);
        let source = Worker::over(Box::new(gate), Setup::default());
        let wanted = sequence(3, 0);
        source.hold(&wanted, &[0, 1, 2]);
        let destination = worker(&hub, 2, Peers::OfThisMachine);
        let handle = destination.begin(&source, &wanted, &[10, 11, 12], Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), expected, "{host}");
        let count = metrics.source_requests_refused.get(RefuseReason::Unauthenticated.index());
        assert_eq!(count, u64::from(expected == refused));
        // Whom this side asks may answer, wherever it is.
        destination.hold(&sequence(3, 50), &[1, 2, 3]);
        if expected == delivered {
            let wanted = sequence(3, 50);
            let back = source.begin(&destination, &wanted, &[20, 21, 22], Policy::Strict).unwrap();
            assert_eq!(outcome(&back), delivered);
        }
        source.settles();
        destination.settles();
    }
}

#[test]
fn a_source_that_never_proves_itself_runs_into_the_deadline_and_leaks_nothing() {
    let hub = LoopbackHub::new(42);
    let (source, wanted) = source(&hub, key());
    let destination = worker(&hub, 2, key());
    let mut silent = hub.transport();
    let mut state = State::decode(&source.transceiver.state().unwrap()).unwrap();
    state.ranks[0].address = silent.address().to_vec();
    let origin = kvhints::transfer::transceiver::Origin::State(Arc::new(state));
    let handle = destination
        .begin_order(&order(origin.clone(), &wanted, &[10, 11, 12], Policy::Strict))
        .unwrap();
    reaches(&handle, kvhints::transfer::prefetch::State::PrefetchInProgress);
    destination.clock.pass(60_000_000_000);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::TransferTimeout));
    while let Some(event) = silent.progress() {
        if let Event::Message { bytes, .. } = event {
            assert!(SessionMessage::is_one(&bytes), "no name was sent");
        }
    }
    let handle =
        destination.begin_order(&order(origin, &wanted, &[10, 11, 12], Policy::Strict)).unwrap();
    reaches(&handle, kvhints::transfer::prefetch::State::PrefetchInProgress);
    drop(silent);
    assert_eq!(outcome(&handle), Outcome::Failed(FailReason::PeerGone));
    destination.settles();
    source.settles();
}
