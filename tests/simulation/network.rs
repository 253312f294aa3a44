//! The network between stations, in virtual time: the third adapter of the transport port.
//!
//! A frame is a message, an announcement of data, or the word that a connection is gone. Frames are
//! held up, lost, repeated, overtaken, damaged, and stopped by partitions. Announced data moves in
//! parts, read from the sender's memory and written to the receiver's while both may be doing
//! something else. A frame that finds no connection is answered with the word that it is gone.
//!
//! It keeps the port's contract where memory is concerned: each ticket has one event, and after it
//! the memory is not touched. In bad weather it breaks the promise of order, on purpose.
//! It checks for itself that what it reads is protected in the sender's tree.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use kvhints::reuse::ReuseTree;
use kvhints::transfer::state_source::{Reply, StateResult};
use kvhints::transfer::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Unsettled, Waker,
    MAX_MESSAGE_BYTES,
};
use parking_lot::Mutex;

use crate::clock::WorldClock;
use crate::random::SplitMix;
use crate::report::Report;
use crate::sabotage::Sabotage;

pub const NAME: &str = "simulated";

/// Chances in ten thousand, for each frame or transfer, and times.
#[derive(Clone, Copy, Default, Debug)]
pub struct Weather {
    pub lost: usize,
    pub repeated: usize,
    pub overtakes: usize,
    pub damaged: usize,
    pub held_up: usize,
    pub data_damaged: usize,
    pub breaks_off: usize,
    pub refused: usize,
    pub reset: usize,
    pub state_trouble: usize,
    pub delay_ns: u64,
    pub held_up_ns: u64,
}

impl Weather {
    /// Whether anything may arrive that was not sent.
    pub fn damages(&self) -> bool {
        self.damaged + self.data_damaged > 0
    }
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    station: u64,
    peer: PeerId,
}

struct Link {
    remote: End,
    /// When the last frame on it arrives.
    last_due_ns: u64,
}

struct Station {
    host: usize,
    inbox: VecDeque<Event>,
    links: BTreeMap<PeerId, Link>,
    announced: BTreeMap<DataId, u64>,
    sending: BTreeMap<Ticket, PeerId>,
    receiving: BTreeMap<Ticket, PeerId>,
    waker: Arc<Flag>,
    last_number: u64,
    /// Events that `progress` may still tell in this round.
    budget: usize,
    will_panic: bool,
    dies_silently: bool,
}

enum Bytes {
    /// In the sender's memory.
    There(Vec<Segment>),
    /// A repetition carries its own.
    Here(Vec<u8>),
}

struct Transfer {
    from: End,
    to: End,
    /// The sender's, while it has not been told.
    ticket: Option<Ticket>,
    bytes: Bytes,
    len: usize,
    receive: Option<(Ticket, Segment)>,
    moved: usize,
}

#[derive(Clone)]
enum Frame {
    Message(Vec<u8>),
    Announcement { header: Vec<u8>, transfer: u64 },
    Gone,
}

enum Flight {
    Frame {
        from: End,
        to: End,
        frame: Frame,
    },
    /// A part of a transfer's bytes, up to here.
    Part {
        transfer: u64,
        up_to: usize,
    },
    /// The sender learns that a transfer ended.
    Sent {
        station: u64,
        ticket: Ticket,
    },
    State {
        reply: Reply,
        answer: Asked,
    },
}

/// What the answer to a question for a worker's state will be.
pub enum Asked {
    /// What the worker says when the answer is made.
    Current(usize),
    Fixed(StateResult),
}

/// Something that the world has to do, outside of the network's lock.
pub enum Arrived {
    Frame,
    State(Reply, Asked),
}

/// A worker's memory and tree, to see whether what is read is protected.
pub struct Guarded {
    pub tree: ReuseTree,
    pub base: usize,
    pub block_bytes: usize,
    pub block_count: usize,
}

pub struct Net {
    pub clock: Arc<WorldClock>,
    pub weather: Weather,
    pub report: Report,
    pub violations: Vec<String>,
    pub sabotage: Option<Sabotage>,
    pub guarded: BTreeMap<u64, Guarded>,
    /// Frames that were sent lately, for strangers to play with.
    pub overheard: VecDeque<Vec<u8>>,
    rng: SplitMix,
    stations: BTreeMap<u64, Station>,
    /// Which station listens at a host's port, or did last.
    ports: BTreeMap<(usize, u64), u64>,
    flights: BTreeMap<(u64, u64), Flight>,
    transfers: BTreeMap<u64, Transfer>,
    parted: BTreeSet<(usize, usize)>,
    last_number: u64,
}

pub type Network = Arc<Mutex<Net>>;

fn gone(why: &str) -> TransportError {
    TransportError::PeerGone(why.to_owned())
}

fn check_length(len: usize) -> Result<(), TransportError> {
    if len > MAX_MESSAGE_BYTES {
        return Err(TransportError::Unavailable(format!("{len} bytes are above the limit")));
    }
    Ok(())
}

fn address_of(host: usize, port: u64) -> Vec<u8> {
    let mut address = NAME.as_bytes().to_vec();
    address.push(host as u8);
    address.extend_from_slice(&port.to_le_bytes());
    address
}

fn parsed(address: &[u8]) -> Option<(usize, u64)> {
    let (host, port) = address.strip_prefix(NAME.as_bytes())?.split_first()?;
    Some((usize::from(*host), u64::from_le_bytes(port.try_into().ok()?)))
}

/// The address of that host, as transports tell it.
pub fn host_address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
}

impl Net {
    pub fn new(clock: Arc<WorldClock>, seed: u64, weather: Weather) -> Self {
        Self {
            clock,
            weather,
            report: Report::default(),
            violations: Vec::new(),
            sabotage: None,
            guarded: BTreeMap::new(),
            overheard: VecDeque::new(),
            rng: SplitMix(seed),
            stations: BTreeMap::new(),
            ports: BTreeMap::new(),
            flights: BTreeMap::new(),
            transfers: BTreeMap::new(),
            parted: BTreeSet::new(),
            last_number: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn chance(&mut self, of_ten_thousand: usize) -> bool {
        self.rng.below(10_000) < of_ten_thousand
    }

    fn delay_ns(&mut self) -> u64 {
        1 + self.rng.below(self.weather.delay_ns as usize) as u64
    }

    fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    // ---- partitions ----

    pub fn part(&mut self, a: usize, b: usize) {
        self.parted.insert((a.min(b), a.max(b)));
    }

    pub fn heal(&mut self) {
        self.parted.clear();
    }

    pub fn is_parted(&self, a: usize, b: usize) -> bool {
        self.parted.contains(&(a.min(b), a.max(b)))
    }

    // ---- what the world asks ----

    /// When something arrives next.
    pub fn next_ns(&self) -> Option<u64> {
        self.flights.keys().next().map(|(due_ns, _)| *due_ns)
    }

    pub fn has_events(&self, station: u64) -> bool {
        self.stations.get(&station).is_some_and(|station| !station.inbox.is_empty())
    }

    pub fn allow_events(&mut self, station: u64, budget: usize) {
        if let Some(station) = self.stations.get_mut(&station) {
            station.budget = budget;
        }
    }

    pub fn make_panic(&mut self, station: u64) {
        if let Some(station) = self.stations.get_mut(&station) {
            station.will_panic = true;
        }
    }

    pub fn silence(&mut self, station: u64) {
        if let Some(station) = self.stations.get_mut(&station) {
            station.dies_silently = true;
        }
    }

    /// What is left of transfers and tickets; nothing once all stations are gone.
    pub fn leftovers(&self) -> usize {
        self.transfers.len() + self.stations.len()
    }

    pub fn ask_state(&mut self, after_ns: u64, reply: Reply, answer: Asked) {
        let due_ns = self.clock.now_ns() + after_ns;
        let number = self.number();
        self.flights.insert((due_ns, number), Flight::State { reply, answer });
    }

    /// Lets the next due thing arrive.
    pub fn arrive(&mut self) -> Option<Arrived> {
        let (due_ns, number) = *self.flights.keys().next()?;
        if due_ns > self.clock.now_ns() {
            return None;
        }
        match self.flights.remove(&(due_ns, number))? {
            Flight::Frame { from, to, frame } => self.frame_arrives(from, to, frame),
            Flight::Part { transfer, up_to } => self.part_arrives(transfer, up_to),
            Flight::Sent { station, ticket } => self.tell_sent(station, ticket, Ok(())),
            Flight::State { reply, answer } => return Some(Arrived::State(reply, answer)),
        }
        Some(Arrived::Frame)
    }

    /// A connection of that station is reset by the network; whether there was one.
    pub fn reset_one(&mut self, station: u64) -> bool {
        let links = self.stations.get(&station).map(|station| station.links.len()).unwrap_or(0);
        if links == 0 {
            return false;
        }
        let nth = self.rng.below(links);
        let peer = self.stations.get(&station).and_then(|s| s.links.keys().nth(nth).copied());
        if let Some(peer) = peer {
            self.cut(End { station, peer }, &gone("reset"), true);
        }
        true
    }

    // ---- events of stations ----

    fn post(&mut self, station: u64, event: Event) {
        if let Some(station) = self.stations.get_mut(&station) {
            station.inbox.push_back(event);
            station.waker.wake();
        }
    }

    fn tell_sent(&mut self, station: u64, ticket: Ticket, result: Result<(), TransportError>) {
        let Some(owner) = self.stations.get_mut(&station) else { return };
        if owner.sending.remove(&ticket).is_none() {
            return;
        }
        if self.sabotage == Some(Sabotage::SentIsLost) && self.rng.below(4) == 0 {
            return;
        }
        self.post(station, Event::Sent { ticket, result });
    }

    /// Ends one end of a connection: its tickets end, its announced data is gone, the other end is
    /// told if the word gets there.
    fn cut(&mut self, end: End, error: &TransportError, tells_owner: bool) {
        let Some(station) = self.stations.get_mut(&end.station) else { return };
        let Some(link) = station.links.remove(&end.peer) else { return };
        station.announced.retain(|_, transfer| {
            self.transfers.get(transfer).is_some_and(|transfer| transfer.to != end)
        });
        station.inbox.retain(|event| match event {
            Event::Data { peer, .. } => *peer != end.peer,
            Event::Message { peer, .. } => tells_owner || *peer != end.peer,
            _ => true,
        });
        let of_peer = |tickets: &BTreeMap<Ticket, PeerId>| -> Vec<Ticket> {
            tickets
                .iter()
                .filter(|(_, peer)| **peer == end.peer)
                .map(|(ticket, _)| *ticket)
                .collect()
        };
        let (sending, receiving) = (of_peer(&station.sending), of_peer(&station.receiving));
        station.receiving.retain(|_, peer| *peer != end.peer);
        // Before the events: after them no memory of this end is touched.
        self.transfers.retain(|_, transfer| {
            let is_sender = transfer.from == end && matches!(transfer.bytes, Bytes::There(_));
            !is_sender && transfer.to != end
        });
        let is_told_first = tells_owner && self.rng.below(2) == 0;
        let told = Event::PeerGone { peer: end.peer, error: error.clone() };
        if is_told_first {
            self.post(end.station, told.clone_gone());
        }
        for ticket in sending {
            self.tell_sent(end.station, ticket, Err(error.clone()));
        }
        for ticket in receiving {
            self.post(end.station, Event::Received { ticket, result: Err(error.clone()) });
        }
        if tells_owner && !is_told_first {
            self.post(end.station, told);
        }
        self.launch(end, link.remote, Frame::Gone, 0);
    }

    // ---- frames ----

    /// Sends a frame on its way, whatever becomes of it.
    fn launch(&mut self, from: End, to: End, frame: Frame, not_before_ns: u64) {
        let hosts = (self.stations.get(&from.station), self.stations.get(&to.station));
        let (Some(from_host), to_host) = (hosts.0.map(|s| s.host), hosts.1.map(|s| s.host)) else {
            return;
        };
        if to_host.is_some_and(|to_host| self.is_parted(from_host, to_host)) {
            self.report.one("faults", "frame lost in a partition");
            return;
        }
        if self.chance(self.weather.lost) {
            self.report.one("faults", "frame lost");
            return;
        }
        let mut frame = frame;
        if self.chance(self.weather.damaged) && self.damage(&mut frame) {
            self.report.one("faults", "frame damaged");
        }
        let mut due_ns = (self.clock.now_ns() + self.delay_ns()).max(not_before_ns);
        if self.chance(self.weather.held_up) {
            self.report.one("faults", "frame held up");
            due_ns += self.rng.below(self.weather.held_up_ns as usize) as u64;
        }
        let overtakes = self.chance(self.weather.overtakes);
        let link = self.stations.get_mut(&from.station).and_then(|s| s.links.get_mut(&from.peer));
        if let Some(link) = link {
            if !overtakes {
                due_ns = due_ns.max(link.last_due_ns);
                link.last_due_ns = due_ns;
            } else if due_ns < link.last_due_ns {
                self.report.one("faults", "frame overtook another");
            }
        }
        if self.chance(self.weather.repeated) {
            if let Some(repetition) = self.repetition(&frame) {
                self.report.one("faults", "frame repeated");
                let later_ns = due_ns + self.delay_ns();
                let number = self.number();
                self.flights
                    .insert((later_ns, number), Flight::Frame { from, to, frame: repetition });
            }
        }
        let number = self.number();
        self.flights.insert((due_ns, number), Flight::Frame { from, to, frame });
    }

    fn damage(&mut self, frame: &mut Frame) -> bool {
        let bytes = match frame {
            Frame::Message(bytes) | Frame::Announcement { header: bytes, .. } => bytes,
            Frame::Gone => return false,
        };
        let at = self.rng.below(bytes.len());
        match self.rng.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.push(at as u8),
            _ if bytes.is_empty() => return false,
            _ => bytes[at] ^= 1 << self.rng.below(8),
        }
        true
    }

    fn repetition(&mut self, frame: &Frame) -> Option<Frame> {
        match frame {
            Frame::Message(_) => Some(frame.clone()),
            Frame::Gone => None,
            Frame::Announcement { header, transfer } => {
                let original = self.transfers.get(transfer)?;
                let Bytes::There(segments) = &original.bytes else { return None };
                let mut bytes = Vec::new();
                for segment in segments {
                    // SAFETY: the sender has not been told, so its segments are alive.
                    let part = unsafe { std::slice::from_raw_parts(segment.data, segment.len) };
                    bytes.extend_from_slice(part);
                }
                let (from, to, len) = (original.from, original.to, original.len);
                let bytes = Bytes::Here(bytes);
                let copy = Transfer { from, to, ticket: None, bytes, len, receive: None, moved: 0 };
                let number = self.number();
                self.transfers.insert(number, copy);
                Some(Frame::Announcement { header: header.clone(), transfer: number })
            }
        }
    }

    fn frame_arrives(&mut self, from: End, to: End, frame: Frame) {
        self.report.one("steps", "frames arrived");
        let is_linked =
            self.stations.get(&to.station).is_some_and(|s| s.links.contains_key(&to.peer));
        if !is_linked {
            if let Frame::Announcement { transfer, .. } = &frame {
                // A repetition has no sender that would end it.
                let is_repetition = |t: &Transfer| matches!(t.bytes, Bytes::Here(_));
                if self.transfers.get(transfer).is_some_and(is_repetition) {
                    self.transfers.remove(transfer);
                }
            }
            // Nobody knows that connection here: the sender hears of it, if it is not too.
            if !matches!(frame, Frame::Gone) && self.stations.contains_key(&from.station) {
                let due_ns = self.clock.now_ns() + self.delay_ns();
                let number = self.number();
                let word = Flight::Frame { from: to, to: from, frame: Frame::Gone };
                self.flights.insert((due_ns, number), word);
            }
            return;
        }
        match frame {
            Frame::Message(bytes) => self.post(to.station, Event::Message { peer: to.peer, bytes }),
            Frame::Gone => self.cut(to, &gone("the other side is gone"), true),
            Frame::Announcement { header, transfer } => {
                let Some(len) = self.transfers.get(&transfer).map(|transfer| transfer.len) else {
                    return;
                };
                let Some(station) = self.stations.get_mut(&to.station) else { return };
                station.last_number += 1;
                let id = DataId(station.last_number);
                station.announced.insert(id, transfer);
                self.post(to.station, Event::Data { peer: to.peer, header, len, id });
            }
        }
    }

    // ---- data ----

    fn part_arrives(&mut self, number: u64, up_to: usize) {
        let Some(transfer) = self.transfers.get(&number) else { return };
        let (from, to) = (transfer.from, transfer.to);
        let host = |net: &Self, end: End| net.stations.get(&end.station).map(|s| s.host);
        if let (Some(a), Some(b)) = (host(self, from), host(self, to)) {
            if self.is_parted(a, b) {
                self.report.one("faults", "frame lost in a partition");
                return;
            }
        }
        if self.chance(self.weather.breaks_off) {
            self.report.one("faults", "transfer broke off");
            self.cut(to, &gone("broke off"), true);
            return;
        }
        let is_damaged = self.chance(self.weather.data_damaged);
        let Some(transfer) = self.transfers.get_mut(&number) else { return };
        let Some((ticket, memory)) = transfer.receive else { return };
        let (start, end) = (transfer.moved, up_to);
        transfer.moved = up_to;
        let mut read = Vec::new();
        match &transfer.bytes {
            Bytes::Here(bytes) => {
                // SAFETY: the receiver keeps its memory until its ticket's event, which comes below
                // or removes this transfer.
                let place = unsafe { std::slice::from_raw_parts_mut(memory.data, memory.len) };
                place[start..end].copy_from_slice(&bytes[start..end]);
            }
            Bytes::There(segments) => {
                let mut at = 0;
                for segment in segments {
                    let overlap = start.max(at)..end.min(at + segment.len);
                    if overlap.start < overlap.end {
                        // SAFETY: the sender keeps its segments until its ticket's event, which
                        // removes this transfer, or comes after the last part; the receiver as above.
                        unsafe {
                            let source = segment.data.add(overlap.start - at);
                            let place = memory.data.add(overlap.start);
                            std::ptr::copy_nonoverlapping(source, place, overlap.len());
                        }
                        let first = segment.data as usize + overlap.start - at;
                        read.push((first, overlap.len()));
                    }
                    at += segment.len;
                }
            }
        }
        if is_damaged && end > start {
            self.report.one("faults", "data damaged");
            let at = start + self.rng.below(end - start);
            // SAFETY: as above.
            unsafe { *memory.data.add(at) ^= 1 << self.rng.below(8) };
        }
        for (address, len) in read {
            self.check_protected(from.station, address, len);
        }
        let Some(transfer) = self.transfers.get(&number) else { return };
        if up_to < transfer.len {
            return;
        }
        let sender_ticket = transfer.ticket;
        self.transfers.remove(&number);
        if let Some(station) = self.stations.get_mut(&to.station) {
            station.receiving.remove(&ticket);
        }
        self.post(to.station, Event::Received { ticket, result: Ok(()) });
        if let Some(ticket) = sender_ticket {
            self.sent_later(from.station, ticket);
        }
    }

    fn sent_later(&mut self, station: u64, ticket: Ticket) {
        let due_ns = self.clock.now_ns() + self.delay_ns();
        let number = self.number();
        self.flights.insert((due_ns, number), Flight::Sent { station, ticket });
    }

    /// What is read from a worker's pool must be protected in its tree at that moment.
    fn check_protected(&mut self, station: u64, address: usize, len: usize) {
        let Some(guarded) = self.guarded.get(&station) else { return };
        let offset = address.wrapping_sub(guarded.base);
        if offset >= guarded.block_bytes * guarded.block_count {
            return;
        }
        let first = offset / guarded.block_bytes;
        let last = (offset + len.max(1) - 1) / guarded.block_bytes;
        let mut unprotected = Vec::new();
        for id in first as i32..=last as i32 {
            let is_protected = match guarded.tree.find_id(0, id) {
                Ok(Some(block)) => block.is_protected,
                // Out of the tree, but known as long as it is protected.
                _ => guarded.tree.first_held(0, &[id]) == Ok(Some(id)),
            };
            if !is_protected {
                unprotected.push(id);
            }
        }
        for id in unprotected {
            self.violated(format!("block {id} of station {station} was read without protection"));
        }
    }

    /// A station on that host, and its transport. It listens at the port of an earlier one, or at
    /// one of its own.
    pub fn transport(network: &Network, host: usize) -> SimulatedTransport {
        let mut net = network.lock();
        let number = net.number();
        let used = net.ports.keys().rev().find(|(at, _)| *at == host).map(|(_, port)| *port);
        let port = if net.rng.below(2) == 0 { used.unwrap_or(number) } else { number };
        net.ports.insert((host, port), number);
        let waker = Arc::new(Flag::default());
        net.stations.insert(
            number,
            Station {
                host,
                inbox: VecDeque::new(),
                links: BTreeMap::new(),
                announced: BTreeMap::new(),
                sending: BTreeMap::new(),
                receiving: BTreeMap::new(),
                waker: Arc::clone(&waker),
                last_number: 0,
                budget: usize::MAX,
                will_panic: false,
                dies_silently: false,
            },
        );
        drop(net);
        let address = address_of(host, port);
        let (room, rooms) = (None, BTreeMap::new());
        SimulatedTransport { network: Arc::clone(network), number, address, waker, room, rooms }
    }

    fn link(&self, station: u64, peer: PeerId) -> Result<End, TransportError> {
        let station = self.stations.get(&station);
        let link = station.and_then(|station| station.links.get(&peer));
        link.map(|link| link.remote).ok_or_else(|| gone("not connected"))
    }

    fn next_number(&mut self, station: u64) -> u64 {
        self.stations.get_mut(&station).map_or(0, |station| {
            station.last_number += 1;
            station.last_number
        })
    }

    fn overhear(&mut self, bytes: &[u8]) {
        self.overheard.push_back(bytes.to_vec());
        if self.overheard.len() > 32 {
            self.overheard.pop_front();
        }
    }
}

trait CloneGone {
    fn clone_gone(&self) -> Event;
}

impl CloneGone for Event {
    /// Events are not cloned but for this one, which is told before or after others.
    fn clone_gone(&self) -> Event {
        match self {
            Event::PeerGone { peer, error } => {
                Event::PeerGone { peer: *peer, error: error.clone() }
            }
            _ => unreachable!("only the word that a peer is gone"),
        }
    }
}

/// Whether somebody asked for attention.
#[derive(Default)]
pub struct Flag(AtomicBool);

impl Flag {
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Waker for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub struct SimulatedTransport {
    network: Network,
    pub number: u64,
    address: Vec<u8>,
    pub waker: Arc<Flag>,
    /// Given out for the data that is sent next, and those on their way.
    room: Option<Vec<u8>>,
    rooms: BTreeMap<Ticket, Vec<u8>>,
}

impl Transport for SimulatedTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn host(&self, address: &[u8]) -> Option<IpAddr> {
        parsed(address).map(|(host, _)| host_address(host))
    }

    fn describe(&self, _: PeerId) -> String {
        String::new()
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        let bad = || TransportError::BadAddress("not a station of this simulation".to_owned());
        let (to_host, port) = parsed(address).ok_or_else(bad)?;
        let mut net = self.network.lock();
        let to = net.ports.get(&(to_host, port)).copied().unwrap_or(0);
        let refused = net.weather.refused;
        if net.chance(refused) {
            net.report.one("faults", "connection refused");
            return Err(gone("refused"));
        }
        let own_host = net.stations.get(&self.number).map(|station| station.host).unwrap_or(0);
        let is_reachable = net.stations.contains_key(&to) && !net.is_parted(own_host, to_host);
        if !is_reachable && net.rng.below(2) == 0 {
            return Err(gone("nobody is there"));
        }
        let own_peer = PeerId(net.next_number(self.number));
        // Where nobody is, the first frame finds out.
        let there = if is_reachable { PeerId(net.next_number(to)) } else { PeerId(0) };
        let (own_end, remote_end) =
            (End { station: self.number, peer: own_peer }, End { station: to, peer: there });
        if is_reachable {
            if let Some(station) = net.stations.get_mut(&to) {
                station.links.insert(there, Link { remote: own_end, last_due_ns: 0 });
            }
        }
        if let Some(station) = net.stations.get_mut(&self.number) {
            station.links.insert(own_peer, Link { remote: remote_end, last_due_ns: 0 });
        }
        Ok(own_peer)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        check_length(bytes.len())?;
        let mut net = self.network.lock();
        let remote = net.link(self.number, peer)?;
        let ticket = Ticket(net.next_number(self.number));
        net.overhear(&bytes);
        net.post(self.number, Event::Sent { ticket, result: Ok(()) });
        net.launch(End { station: self.number, peer }, remote, Frame::Message(bytes), 0);
        Ok(ticket)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        check_length(header.len())?;
        let mut net = self.network.lock();
        let reset = net.weather.reset;
        if net.chance(reset) {
            net.report.one("faults", "connection reset");
            net.cut(End { station: self.number, peer }, &gone("reset"), true);
        }
        let remote = net.link(self.number, peer)?;
        let ticket = Ticket(net.next_number(self.number));
        net.overhear(&header);
        let end = End { station: self.number, peer };
        let len = segments.iter().map(|segment| segment.len).sum();
        let number = net.number();
        net.transfers.insert(
            number,
            Transfer {
                from: end,
                to: remote,
                ticket: Some(ticket),
                bytes: Bytes::There(segments),
                len,
                receive: None,
                moved: 0,
            },
        );
        if let Some(station) = net.stations.get_mut(&self.number) {
            station.sending.insert(ticket, peer);
        }
        net.launch(end, remote, Frame::Announcement { header, transfer: number }, 0);
        Ok(ticket)
    }

    fn room(&mut self, peer: PeerId, segments: &[Segment]) -> Option<&mut [u8]> {
        self.room = None;
        let mut net = self.network.lock();
        net.link(self.number, peer).ok()?;
        if net.rng.below(2) == 0 {
            return None;
        }
        net.report.one("ways", "sent out of a room");
        for segment in segments {
            net.check_protected(self.number, segment.data as usize, segment.len);
        }
        let len = segments.iter().map(|segment| segment.len).sum();
        Some(self.room.insert(vec![0; len]))
    }

    fn send_room(&mut self, peer: PeerId, header: Vec<u8>) -> Result<Ticket, TransportError> {
        let mut room = self.room.take().ok_or_else(|| gone("no room was asked for"))?;
        let segment = Segment { data: room.as_mut_ptr(), len: room.len() };
        let ticket = self.send_data(peer, header, vec![segment])?;
        self.rooms.insert(ticket, room);
        Ok(ticket)
    }

    fn read_data(&mut self, data: DataId, take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        let mut net = self.network.lock();
        let station = net.stations.get(&self.number);
        let number = station.and_then(|station| station.announced.get(&data)).copied();
        // Some sources are within reach and some are not.
        if net.rng.below(2) == 0 {
            return false;
        }
        let Some(transfer) = number.and_then(|number| net.transfers.get(&number)) else {
            return false;
        };
        let from = transfer.from.station;
        let segments = match &transfer.bytes {
            Bytes::There(segments) => segments.clone(),
            Bytes::Here(_) => return false,
        };
        let mut bytes = Vec::with_capacity(transfer.len);
        for segment in segments {
            // SAFETY: the sender has not been told, so its segments are alive.
            let part = unsafe { std::slice::from_raw_parts(segment.data, segment.len) };
            bytes.extend_from_slice(part);
            net.check_protected(from, segment.data as usize, segment.len);
        }
        let damaged = net.weather.data_damaged;
        if net.chance(damaged) && !bytes.is_empty() {
            net.report.one("faults", "data damaged");
            let at = net.rng.below(bytes.len());
            bytes[at] ^= 1 << net.rng.below(8);
        }
        net.report.one("ways", "read where it lies");
        drop(net);
        // SAFETY: the copy's own bytes, which outlive the call.
        take(unsafe { Unsettled::new(bytes.as_ptr(), bytes.len()) });
        self.discard_data(data);
        true
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        let mut net = self.network.lock();
        let lost = || gone("the announced data is gone");
        let station = net.stations.get(&self.number).ok_or_else(lost)?;
        let number = *station.announced.get(&data).ok_or_else(lost)?;
        let transfer = net.transfers.get(&number).ok_or_else(lost)?;
        let (len, peer) = (transfer.len, transfer.to.peer);
        if len != memory.len {
            let what = format!("{} bytes were offered for data of {len}", memory.len);
            return Err(TransportError::Unavailable(what));
        }
        if let Some(station) = net.stations.get_mut(&self.number) {
            station.announced.remove(&data);
        }
        let ticket = Ticket(net.next_number(self.number));
        if let Some(station) = net.stations.get_mut(&self.number) {
            station.receiving.insert(ticket, peer);
        }
        if let Some(transfer) = net.transfers.get_mut(&number) {
            transfer.receive = Some((ticket, memory));
        }
        let parts = 1 + net.rng.below(3);
        let mut due_ns = net.clock.now_ns();
        for part in 1..=parts {
            due_ns += net.delay_ns();
            let up_to = len * part / parts;
            let flight = net.number();
            net.flights.insert((due_ns, flight), Flight::Part { transfer: number, up_to });
        }
        Ok(ticket)
    }

    fn discard_data(&mut self, data: DataId) {
        let mut net = self.network.lock();
        let Some(station) = net.stations.get_mut(&self.number) else { return };
        let Some(number) = station.announced.remove(&data) else { return };
        let Some(transfer) = net.transfers.remove(&number) else { return };
        if let Some(ticket) = transfer.ticket {
            net.sent_later(transfer.from.station, ticket);
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        let end = End { station: self.number, peer };
        self.network.lock().cut(end, &TransportError::Cancelled, false);
    }

    fn progress(&mut self) -> Option<Event> {
        let mut net = self.network.lock();
        let station = net.stations.get_mut(&self.number)?;
        if std::mem::take(&mut station.will_panic) {
            drop(net);
            panic!("a fault, made by the simulation");
        }
        station.budget = station.budget.checked_sub(1)?;
        let event = station.inbox.pop_front();
        if let Some(Event::Sent { ticket, .. }) = &event {
            self.rooms.remove(ticket);
        }
        event
    }

    fn wait(&mut self, _: Duration) {
        unreachable!("who is driven by rounds does not sleep")
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }
}

impl Drop for SimulatedTransport {
    fn drop(&mut self) {
        let mut net = self.network.lock();
        let Some(station) = net.stations.get(&self.number) else { return };
        let is_silent = station.dies_silently;
        let peers: Vec<PeerId> = station.links.keys().copied().collect();
        for peer in peers {
            let end = End { station: self.number, peer };
            if !is_silent {
                net.cut(end, &gone("the station is gone"), false);
            }
        }
        let number = self.number;
        net.transfers.retain(|_, transfer| {
            let is_sender =
                transfer.from.station == number && matches!(transfer.bytes, Bytes::There(_));
            !is_sender && transfer.to.station != number
        });
        net.stations.remove(&number);
        net.guarded.remove(&number);
    }
}
