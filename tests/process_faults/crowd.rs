//! The part of a crowd: many peers in one process, each with a transport of its own, that connect to a
//! source, come to different points, and stay there until they are killed.

use std::time::Duration;

use kvhints::reuse::Policy;
use kvhints::transfer::block_part::BlockPart;
use kvhints::transfer::layout::digest;
use kvhints::transfer::protocol::{FetchRequest, Message, RequestKey};
use kvhints::transfer::session::SessionMessage;
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::transport::{Event, PeerId, Transport};

use crate::link::Link;
use crate::transfer_support::{sequence, NAMESPACE};
use crate::worker::Settings;

/// How far a peer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// Connected, and silent.
    Connected,
    /// Challenged, and silent.
    Challenged,
    /// Sent what is no message.
    Garbled,
    /// Asked, and had the answer.
    Answered,
    /// Has data announced that it never takes.
    Announced,
}

const POINTS: [Point; 5] =
    [Point::Connected, Point::Challenged, Point::Garbled, Point::Answered, Point::Announced];

struct Peer {
    transport: Box<dyn Transport>,
    point: Point,
    is_there: bool,
}

pub fn play(settings: &Settings) {
    let link = Link::to_the_test();
    let state = State::decode(&from_digits(settings.get("state").expect("a state")));
    let state = state.expect("the source's own");
    let count = settings.number("peers", 1);
    let mut peers: Vec<Peer> = (0..count)
        .map(|number| start(settings, &state, POINTS[number % POINTS.len()], number as u8))
        .collect();
    let mut is_told = false;
    loop {
        let mut is_idle = true;
        for peer in &mut peers {
            while let Some(event) = peer.transport.progress() {
                is_idle = false;
                peer.is_there |= comes_so_far(peer.point, &event);
            }
        }
        if !is_told && peers.iter().all(|peer| peer.is_there) {
            is_told = true;
            link.say("here");
        }
        if is_idle {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

fn start(settings: &Settings, state: &State, point: Point, number: u8) -> Peer {
    let rank = &state.ranks[0];
    let raw = Box::new(settings.transport());
    let mut transport: Box<dyn Transport> = match point {
        Point::Connected | Point::Challenged | Point::Garbled => raw,
        Point::Answered | Point::Announced => Box::new(settings.gated(raw)),
    };
    let peer = transport.connect(&rank.address).expect("a good address");
    match point {
        Point::Connected => {}
        Point::Challenged => say(&mut *transport, peer, hello()),
        Point::Garbled => say(&mut *transport, peer, b"what is this".to_vec()),
        Point::Answered | Point::Announced => {
            let wanted = sequence(settings.blocks(), 0);
            let missing = sequence(settings.blocks(), 1_000);
            let names = if point == Point::Answered { missing.names() } else { wanted.names() };
            let request = Message::Fetch(FetchRequest {
                key: RequestKey { destination: Incarnation([number; 16]), sequence: 1 },
                source: rank.incarnation,
                namespace: NAMESPACE.to_vec(),
                layout_digest: digest(&state.cache, &state.parallel),
                part: BlockPart::Whole,
                policy: Policy::Strict,
                hold_time_ns: 60_000_000_000,
                skipped_blocks: 0,
                step: 1,
                names: names.to_vec(),
                tail: None,
            });
            say(&mut *transport, peer, request.encode());
        }
    }
    let is_there = matches!(point, Point::Connected);
    Peer { transport, point, is_there }
}

fn hello() -> Vec<u8> {
    SessionMessage::Hello { key_id: "pool".to_owned(), nonce: [3; 32] }.encode()
}

fn say(transport: &mut dyn Transport, peer: PeerId, bytes: Vec<u8>) {
    transport.send_message(peer, bytes).expect("open");
}

fn comes_so_far(point: Point, event: &Event) -> bool {
    match (point, event) {
        (Point::Challenged | Point::Answered, Event::Message { .. }) => true,
        // Nobody answers it: it was sent.
        (Point::Garbled, Event::Sent { .. } | Event::PeerGone { .. }) => true,
        (Point::Announced, Event::Data { .. }) => true,
        _ => false,
    }
}

fn from_digits(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}
