//! What every adapter of the transport port must do, as one suite over pairs of transports.
//!
//! An adapter's test makes pairs and calls [`run`]. Everything is driven from the calling thread;
//! a step that does not come to its end within [`PATIENCE`] fails the test instead of hanging it.

use std::time::{Duration, Instant};

use kvhints::reuse::Name;
use kvhints::transfer::protocol::block_checksum;
use kvhints::transfer::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, MAX_MESSAGE_BYTES,
};

/// Far longer than any step takes; only there so that a fault is no hang.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A transport and what it told so far.
pub struct Side<'a> {
    pub transport: &'a mut dyn Transport,
    pub events: Vec<Event>,
}

impl<'a> Side<'a> {
    pub fn new(transport: &'a mut dyn Transport) -> Self {
        Self { transport, events: Vec::new() }
    }

    fn progress(&mut self) {
        while let Some(event) = self.transport.progress() {
            self.events.push(event);
        }
    }

    /// Takes the first event that `pick` turns into something.
    pub fn take<T>(&mut self, pick: impl Fn(&Event) -> Option<T>) -> Option<T> {
        let (index, found) = self
            .events
            .iter()
            .enumerate()
            .find_map(|(index, event)| pick(event).map(|found| (index, found)))?;
        self.events.remove(index);
        Some(found)
    }
}

/// Drives one side alone, whose other side is in another process, until `done` gives something.
#[allow(dead_code)] // The simulation has no other process.
pub fn alone<T>(side: &mut Side, what: &str, mut done: impl FnMut(&mut Side) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        side.progress();
        if let Some(found) = done(side) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}: {:?}", side.events);
        side.transport.wait(Duration::from_millis(50));
    }
}

/// Drives both sides until `done` gives something.
pub fn until<T>(
    a: &mut Side,
    b: &mut Side,
    what: &str,
    mut done: impl FnMut(&mut Side, &mut Side) -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        a.progress();
        b.progress();
        if let Some(found) = done(a, b) {
            return found;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "waited in vain for {what}: {:?} {:?}",
            a.events,
            b.events
        );
        b.transport.wait(Duration::from_millis(1));
    }
}

pub fn message(event: &Event) -> Option<(PeerId, Vec<u8>)> {
    match event {
        Event::Message { peer, bytes } => Some((*peer, bytes.clone())),
        _ => None,
    }
}

pub fn data(event: &Event) -> Option<(PeerId, Vec<u8>, usize, DataId)> {
    match event {
        Event::Data { peer, header, len, id } => Some((*peer, header.clone(), *len, *id)),
        _ => None,
    }
}

pub fn sent(ticket: Ticket) -> impl Fn(&Event) -> Option<Result<(), TransportError>> {
    move |event| match event {
        Event::Sent { ticket: of, result } if *of == ticket => Some(result.clone()),
        _ => None,
    }
}

pub fn received(ticket: Ticket) -> impl Fn(&Event) -> Option<Result<(), TransportError>> {
    move |event| match event {
        Event::Received { ticket: of, result } if *of == ticket => Some(result.clone()),
        _ => None,
    }
}

pub fn gone(peer: PeerId) -> impl Fn(&Event) -> Option<TransportError> {
    move |event| match event {
        Event::PeerGone { peer: of, error } if *of == peer => Some(error.clone()),
        _ => None,
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

pub fn whole(bytes: &mut [u8]) -> Segment {
    Segment { data: bytes.as_mut_ptr(), len: bytes.len() }
}

/// Connects `a` to `b`: what each calls the other.
pub fn connected(a: &mut Side, b: &mut Side) -> (PeerId, PeerId) {
    let address = b.transport.address().to_vec();
    let b_at_a = a.transport.connect(&address).expect("a good address");
    let ticket = a.transport.send_message(b_at_a, b"hello".to_vec()).expect("open");
    let (a_at_b, bytes) = until(a, b, "the first message", |_, b| b.take(message));
    assert_eq!(bytes, b"hello");
    let result = until(a, b, "its end", |a, _| a.take(sent(ticket)));
    assert_eq!(result, Ok(()));
    (b_at_a, a_at_b)
}

type Step = fn(&mut Side, &mut Side);

/// The whole suite; `make` gives two fresh transports of the same kind.
pub fn run(make: &mut dyn FnMut() -> (Box<dyn Transport>, Box<dyn Transport>)) {
    let steps: [(&str, Step); 14] = [
        ("messages come in order", messages_come_in_order),
        ("data of all sizes arrives", data_of_all_sizes_arrives),
        ("order holds between kinds", order_holds_between_kinds),
        ("long headers arrive", long_headers_arrive),
        ("discarding ends the send", discarding_ends_the_send),
        ("memory must fit exactly", memory_must_fit_exactly),
        ("data may be read where it lies", data_may_be_read_where_it_lies),
        ("a room is sent once", a_room_is_sent_once),
        ("many blocks are in flight", many_blocks_are_in_flight),
        ("bad calls are refused", bad_calls_are_refused),
        ("connections do not mix", connections_do_not_mix),
        ("the sender may leave", the_sender_may_leave),
        ("the receiver may leave", the_receiver_may_leave),
        ("a waker ends a wait", a_waker_ends_a_wait),
    ];
    for (name, step) in steps {
        let start = Instant::now();
        let (mut first, mut second) = make();
        let mut a = Side::new(&mut *first);
        let mut b = Side::new(&mut *second);
        step(&mut a, &mut b);
        drop((first, second));
        println!("  {name}: {:?}", start.elapsed());
    }
}

fn messages_come_in_order(a: &mut Side, b: &mut Side) {
    let (to_b, to_a) = connected(a, b);
    let lens = [0, 1, 100, 5_000, 70_000, 3, MAX_MESSAGE_BYTES, 2, 300_000, 1];
    let mut tickets = Vec::new();
    for round in 0..5u64 {
        for (at, len) in (0u64..).zip(lens) {
            let bytes = pattern(len, round * 100 + at);
            tickets.push(a.transport.send_message(to_b, bytes).expect("open"));
        }
    }
    for round in 0..5u64 {
        for (at, len) in (0u64..).zip(lens) {
            let (peer, bytes) = until(a, b, "a message", |_, b| b.take(message));
            assert_eq!(peer, to_a);
            assert!(bytes == pattern(len, round * 100 + at), "round {round}, {len} bytes");
        }
    }
    for ticket in tickets {
        assert_eq!(until(a, b, "an end", |a, _| a.take(sent(ticket))), Ok(()));
    }
    // And back, on the same connection.
    let back = b.transport.send_message(to_a, b"answer".to_vec()).expect("open");
    assert_eq!(until(a, b, "the answer", |a, _| a.take(message)), (to_b, b"answer".to_vec()));
    assert_eq!(until(a, b, "its end", |_, b| b.take(sent(back))), Ok(()));
}

/// Sends `bytes` cut into `pieces` and receives them between guard bytes.
fn transfer(a: &mut Side, b: &mut Side, to: PeerId, bytes: &[u8], pieces: usize) {
    let mut copies: Vec<Vec<u8>> = Vec::new();
    let step = bytes.len().div_ceil(pieces).max(1);
    for piece in bytes.chunks(step) {
        copies.push(piece.to_vec());
    }
    let segments = copies.iter_mut().map(|piece| whole(piece)).collect();
    let header = format!("{} in {pieces}", bytes.len()).into_bytes();
    let sending = a.transport.send_data(to, header.clone(), segments).expect("open");
    let (_, seen, len, id) = until(a, b, "the announcement", |_, b| b.take(data));
    assert_eq!((seen, len), (header, bytes.len()));
    let mut memory = vec![0xa5; len + 64];
    let target = Segment { data: memory[32..].as_mut_ptr(), len };
    let receiving = b.transport.receive_data(id, target).expect("announced");
    assert_eq!(until(a, b, "the receive", |_, b| b.take(received(receiving))), Ok(()));
    assert_eq!(until(a, b, "the send", |a, _| a.take(sent(sending))), Ok(()));
    assert!(memory[32..32 + len] == *bytes, "{len} bytes in {pieces} pieces differ");
    assert!(memory[..32].iter().chain(&memory[32 + len..]).all(|byte| *byte == 0xa5));
}

fn data_of_all_sizes_arrives(a: &mut Side, b: &mut Side) {
    let (to_b, to_a) = connected(a, b);
    for (seed, len) in (1u64..).zip([0, 1, 7, 4_096, 8_193, 65_536, 300_001, 1 << 20, 8 << 20]) {
        let bytes = pattern(len, seed);
        for pieces in [1, 2, 16, 64] {
            transfer(a, b, to_b, &bytes, pieces);
        }
        transfer(b, a, to_a, &bytes, 1);
    }
}

fn order_holds_between_kinds(a: &mut Side, b: &mut Side) {
    let (to_b, _) = connected(a, b);
    let mut blocks: Vec<Vec<u8>> = (0..4).map(|at| pattern(1 << (8 + 4 * at), at)).collect();
    for (at, block) in blocks.iter_mut().enumerate() {
        a.transport.send_message(to_b, pattern(200_000, at as u64)).expect("open");
        a.transport.send_data(to_b, vec![at as u8], vec![whole(block)]).expect("open");
        a.transport.send_message(to_b, vec![at as u8]).expect("open");
    }
    let mut kinds = Vec::new();
    until(a, b, "all of them", |_, b| {
        kinds.extend(b.events.drain(..).filter_map(|event| match event {
            Event::Message { bytes, .. } if bytes.len() == 1 => Some(("short", bytes[0])),
            Event::Message { .. } => Some(("long", 0)),
            Event::Data { header, id, .. } => {
                b.transport.discard_data(id);
                Some(("data", header[0]))
            }
            _ => None,
        }));
        (kinds.len() == 12).then_some(())
    });
    let expected: Vec<_> =
        (0..4).flat_map(|at| [("long", 0), ("data", at), ("short", at)]).collect();
    assert_eq!(kinds, expected);
    until(a, b, "the ends", |a, _| {
        let ends = a.events.iter().filter(|event| matches!(event, Event::Sent { .. })).count();
        (ends == 12).then_some(())
    });
}

fn long_headers_arrive(a: &mut Side, b: &mut Side) {
    let (to_b, _) = connected(a, b);
    for len in [0, 1, 219, 220, 221, 5_000, 100_000, MAX_MESSAGE_BYTES] {
        let header = pattern(len, 3);
        let mut bytes = pattern(1_000, len as u64);
        let ticket =
            a.transport.send_data(to_b, header.clone(), vec![whole(&mut bytes)]).expect("open");
        let (_, seen, len, id) = until(a, b, "the announcement", |_, b| b.take(data));
        assert!(seen == header, "header of {} bytes", header.len());
        let mut memory = vec![0; len];
        let receiving = b.transport.receive_data(id, whole(&mut memory)).expect("announced");
        assert_eq!(until(a, b, "the receive", |_, b| b.take(received(receiving))), Ok(()));
        assert_eq!(until(a, b, "the send", |a, _| a.take(sent(ticket))), Ok(()));
        assert_eq!(memory, bytes);
    }
}

fn discarding_ends_the_send(a: &mut Side, b: &mut Side) {
    let (to_b, to_a) = connected(a, b);
    for len in [10, 100_000, 4 << 20] {
        let mut bytes = pattern(len, 9);
        let ticket =
            a.transport.send_data(to_b, Vec::new(), vec![whole(&mut bytes)]).expect("open");
        let (peer, _, _, id) = until(a, b, "the announcement", |_, b| b.take(data));
        assert_eq!(peer, to_a);
        b.transport.discard_data(id);
        until(a, b, "the send's end", |a, _| a.take(sent(ticket))).ok();
        let mut memory = vec![0; len];
        assert!(b.transport.receive_data(id, whole(&mut memory)).is_err(), "it is gone");
        b.transport.discard_data(id);
    }
    transfer(a, b, to_b, &pattern(50_000, 4), 3);
}

fn memory_must_fit_exactly(a: &mut Side, b: &mut Side) {
    let (to_b, _) = connected(a, b);
    let mut bytes = pattern(10_000, 1);
    let ticket = a.transport.send_data(to_b, Vec::new(), vec![whole(&mut bytes)]).expect("open");
    let (_, _, len, id) = until(a, b, "the announcement", |_, b| b.take(data));
    for wrong in [0, len - 1, len + 1] {
        let mut memory = vec![0; wrong];
        assert!(b.transport.receive_data(id, whole(&mut memory)).is_err(), "{wrong} bytes");
        assert!(memory.iter().all(|byte| *byte == 0));
    }
    let mut memory = vec![0; len];
    let receiving = b.transport.receive_data(id, whole(&mut memory)).expect("still announced");
    assert_eq!(until(a, b, "the receive", |_, b| b.take(received(receiving))), Ok(()));
    assert_eq!(until(a, b, "the send", |a, _| a.take(sent(ticket))), Ok(()));
    assert_eq!(memory, bytes);
}

/// What was announced, received one way or the other: the bytes.
fn take_announced(a: &mut Side, b: &mut Side) -> (Vec<u8>, Vec<u8>) {
    let (_, header, len, id) = until(a, b, "the announcement", |_, b| b.take(data));
    let mut memory = vec![0; len];
    let is_read = b.transport.read_data(id, &mut |bytes| {
        assert_eq!(bytes.len(), len);
        assert!(!bytes.copy(&mut vec![0; len + 1]), "another length");
        assert!(bytes.copy(&mut memory));
        let name = Name([7; 32]);
        let mut block = vec![0; len - len / 3];
        let sum = bytes.copy_block(len / 3, &mut block, &name);
        assert!(block == memory[len / 3..]);
        assert_eq!(sum, Some(block_checksum(&name, &block)));
        assert_eq!(bytes.copy_block(len / 3 + 1, &mut block, &name), None, "beyond the end");
        assert_eq!(bytes.copy_block(usize::MAX, &mut block[..1], &name), None);
    });
    if is_read {
        assert!(!b.transport.read_data(id, &mut |_| panic!("it is answered")));
        assert!(b.transport.receive_data(id, whole(&mut memory)).is_err(), "it is answered");
    } else {
        let receiving = b.transport.receive_data(id, whole(&mut memory)).expect("still announced");
        assert_eq!(until(a, b, "the receive", |_, b| b.take(received(receiving))), Ok(()));
    }
    (header, memory)
}

fn data_may_be_read_where_it_lies(a: &mut Side, b: &mut Side) {
    let (to_b, _) = connected(a, b);
    for (seed, len) in (1u64..).zip([1, 1_000, 70_000, 300_001, 1 << 20, 1 << 20, 1 << 20]) {
        let mut bytes = pattern(len, seed);
        let sending = a.transport.send_data(to_b, vec![9], vec![whole(&mut bytes)]).expect("open");
        assert!(take_announced(a, b) == (vec![9], bytes));
        assert_eq!(until(a, b, "the send", |a, _| a.take(sent(sending))), Ok(()));
    }
    assert!(!b.transport.read_data(DataId(u64::MAX), &mut |_| panic!("there is none such")));
}

fn a_room_is_sent_once(a: &mut Side, b: &mut Side) {
    let (to_b, _) = connected(a, b);
    assert!(a.transport.send_room(to_b, Vec::new()).is_err(), "none was asked for");
    for (seed, len) in (1u64..).zip([2, 70_000, 300_001, 1 << 20, 1 << 20, 1 << 20]) {
        let bytes = pattern(len, seed);
        let mut pieces: Vec<Vec<u8>> = bytes.chunks(len / 2).map(<[u8]>::to_vec).collect();
        let segments: Vec<Segment> = pieces.iter_mut().map(|piece| whole(piece)).collect();
        // One that is not sent, and one that is.
        if let Some(room) = a.transport.room(to_b, &segments) {
            assert_eq!(room.len(), len);
            room.fill(1);
        }
        let sending = match a.transport.room(to_b, &segments) {
            Some(room) => {
                room.copy_from_slice(&bytes);
                a.transport.send_room(to_b, vec![8])
            }
            None => a.transport.send_data(to_b, vec![8], segments),
        };
        let sending = sending.expect("open");
        assert!(a.transport.send_room(to_b, vec![7]).is_err(), "it is sent");
        assert!(take_announced(a, b) == (vec![8], bytes));
        assert_eq!(until(a, b, "the send", |a, _| a.take(sent(sending))), Ok(()));
    }
    assert!(a.transport.room(PeerId(u64::MAX), &[]).is_none());
    transfer(a, b, to_b, &pattern(300_001, 4), 3);
}

fn many_blocks_are_in_flight(a: &mut Side, b: &mut Side) {
    const BLOCKS: usize = 256;
    let (to_b, _) = connected(a, b);
    let mut blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|at| pattern(32 << 10, at as u64)).collect();
    let mut targets: Vec<Vec<u8>> = vec![vec![0; 32 << 10]; BLOCKS];
    for (at, block) in (0u32..).zip(&mut blocks) {
        let header = at.to_le_bytes().to_vec();
        a.transport.send_data(to_b, header, vec![whole(block)]).expect("open");
    }
    let (mut sends, mut receives) = (0, 0);
    until(a, b, "all blocks", |a, b| {
        for event in b.events.drain(..) {
            match event {
                Event::Data { header, id, .. } => {
                    let at = u32::from_le_bytes(header.try_into().expect("four bytes")) as usize;
                    b.transport.receive_data(id, whole(&mut targets[at])).expect("announced");
                }
                Event::Received { result, .. } => {
                    assert_eq!(result, Ok(()));
                    receives += 1;
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
        for event in a.events.drain(..) {
            assert!(matches!(event, Event::Sent { result: Ok(()), .. }), "unexpected: {event:?}");
            sends += 1;
        }
        (sends == BLOCKS && receives == BLOCKS).then_some(())
    });
    assert!(targets == blocks);
}

fn bad_calls_are_refused(a: &mut Side, b: &mut Side) {
    for address in [&b""[..], b"nonsense", &[0; 4096]] {
        let error = a.transport.connect(address).expect_err("no address");
        assert!(matches!(error, TransportError::BadAddress(_)), "{error}");
    }
    let stranger = PeerId(u64::MAX);
    assert!(a.transport.send_message(stranger, Vec::new()).is_err());
    assert!(a.transport.send_data(stranger, Vec::new(), Vec::new()).is_err());
    assert!(a.transport.receive_data(DataId(u64::MAX), whole(&mut [])).is_err());
    a.transport.discard_data(DataId(u64::MAX));
    a.transport.disconnect(stranger);
    assert_eq!(a.transport.describe(stranger), "");
    let (to_b, _) = connected(a, b);
    assert!(a.transport.send_message(to_b, vec![0; MAX_MESSAGE_BYTES + 1]).is_err());
    assert!(a.transport.send_data(to_b, vec![0; MAX_MESSAGE_BYTES + 1], Vec::new()).is_err());
    transfer(a, b, to_b, b"still good", 1);
}

fn connections_do_not_mix(a: &mut Side, b: &mut Side) {
    let (first, first_at_b) = connected(a, b);
    let (second, second_at_b) = connected(a, b);
    let (third_at_b, third) = connected(b, a);
    assert_ne!(first, second);
    assert_ne!(first_at_b, second_at_b);
    a.transport.disconnect(first);
    until(a, b, "the end of the first", |_, b| b.take(gone(first_at_b)));
    transfer(a, b, second, &pattern(100_000, 1), 1);
    transfer(b, a, second_at_b, &pattern(100_000, 2), 1);
    transfer(b, a, third_at_b, &pattern(100_000, 3), 1);
    transfer(a, b, third, &pattern(100_000, 4), 1);
    let stray = |event: &Event| matches!(event, Event::PeerGone { .. });
    assert!(!a.events.iter().any(stray), "{:?}", a.events);
    assert!(!b.events.iter().any(stray), "{:?}", b.events);
}

fn the_sender_may_leave(a: &mut Side, b: &mut Side) {
    let (to_b, to_a) = connected(a, b);
    let mut blocks: Vec<Vec<u8>> = (0..8).map(|at| pattern(1 << 20, at)).collect();
    let tickets: Vec<Ticket> = blocks
        .iter_mut()
        .map(|block| a.transport.send_data(to_b, Vec::new(), vec![whole(block)]).expect("open"))
        .collect();
    let (_, _, len, id) = until(a, b, "an announcement", |_, b| b.take(data));
    let mut memory = vec![0; len];
    let receiving = b.transport.receive_data(id, whole(&mut memory)).expect("announced");
    a.transport.disconnect(to_b);
    for ticket in tickets {
        // Sent or cancelled: which of the two is a race.
        until(a, b, "the ticket's event", |a, _| a.take(sent(ticket))).ok();
    }
    blocks.iter_mut().for_each(|block| block.fill(0));
    until(a, b, "the receive's event", |_, b| b.take(received(receiving))).ok();
    until(a, b, "the news", |_, b| b.take(gone(to_a)));
    assert!(b.transport.send_message(to_a, Vec::new()).is_err(), "it is gone");
    assert!(a.transport.send_message(to_b, Vec::new()).is_err(), "it was left");
    assert!(a.take(gone(to_b)).is_none(), "whoever leaves is not told");
    // What was told of the connection before its end means nothing any more.
    a.events.clear();
    b.events.clear();
    let (again, _) = connected(a, b);
    transfer(a, b, again, &pattern(100_000, 5), 2);
}

fn the_receiver_may_leave(a: &mut Side, b: &mut Side) {
    let (to_b, to_a) = connected(a, b);
    let mut blocks: Vec<Vec<u8>> = (0..8).map(|at| pattern(1 << 20, at)).collect();
    let tickets: Vec<Ticket> = blocks
        .iter_mut()
        .map(|block| a.transport.send_data(to_b, Vec::new(), vec![whole(block)]).expect("open"))
        .collect();
    let (_, _, len, id) = until(a, b, "an announcement", |_, b| b.take(data));
    let mut memory = vec![0; len];
    let receiving = b.transport.receive_data(id, whole(&mut memory)).expect("announced");
    b.transport.disconnect(to_a);
    until(a, b, "the receive's event", |_, b| b.take(received(receiving))).ok();
    memory.fill(0);
    for ticket in tickets {
        until(a, b, "the ticket's event", |a, _| a.take(sent(ticket))).ok();
    }
    until(a, b, "the news", |a, _| a.take(gone(to_b)));
    assert!(memory.iter().all(|byte| *byte == 0), "written after the event");
    assert!(b.take(gone(to_a)).is_none(), "whoever leaves is not told");
    // What was told of the connection before its end means nothing any more.
    a.events.clear();
    b.events.clear();
    let (again, _) = connected(a, b);
    transfer(a, b, again, &pattern(100_000, 5), 2);
}

fn a_waker_ends_a_wait(a: &mut Side, b: &mut Side) {
    connected(a, b);
    let waker = a.transport.waker();
    let waking = std::thread::spawn(move || waker.wake());
    // Ends by the wake, whether it comes before or during the wait; else this is the hang that
    // the test's harness reports.
    a.progress();
    a.transport.wait(PATIENCE);
    waking.join().expect("waking does not panic");
    b.progress();
}
