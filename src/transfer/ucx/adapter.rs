//! The transport itself: connections, announced data, events.
//!
//! One round is: let the worker progress, then read its mailbox. UCX is only asked for more when
//! every event of the round before was told, so what arrives waits in UCX's own queues, and its
//! wires push back on the senders.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucx_sys::{ucp_conn_request_h, ucp_dt_iov_t, ucp_ep_h, ucs_status_t, UCP_AM_SEND_FLAG_EAGER};

use super::connection::{Connection, State};
use super::context::Context;
use super::frame::{self, Header, Kind, MAX_INLINE_BYTES};
use super::inbox::{Item, Slot};
use super::mailbox::{Arrival, Payload};
use super::neighbour::{
    self, Introduction, Machine, Place, Placed, SegmentPlace, Ways, MAX_DIRECT_BYTES,
    MAX_DIRECT_PIECES,
};
use super::operation::{joined, Operation, Purpose};
use super::room::{Room, SpareBuffers, MAX_BUFFER_BYTES};
use super::segment::{self, Nonce, Piece, View};
use super::wake::WakeEvent;
use super::worker::{Started, Worker, CONTROL_ID, DATA_ID};
use super::{describe, status, UcxOptions};
use crate::transfer::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Unsettled, Waker,
    MAX_MESSAGE_BYTES,
};

/// How long a goodbye is waited for, and how long dropping a transport may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How often an endpoint that is being closed is looked at: UCX ends it when it is called, and does not
/// wake anybody for that.
const CLOSING: Duration = Duration::from_millis(5);

/// Rounds that one `progress` tries before it lets its caller do something else.
const MAX_ROUNDS: usize = 64;

/// What one peer may have announced without an answer from the caller.
const MAX_ANNOUNCED: usize = 1 << 16;
const MAX_ANNOUNCED_BYTES: usize = 256 << 20;

/// What may wait for one peer to take it; blocks, which wait where they lie, are not counted in the bytes.
pub(super) const MAX_QUEUED: usize = 1 << 16;
const MAX_QUEUED_BYTES: usize = 128 << 20;

/// Data that the caller has to receive or discard.
struct Announced {
    peer: PeerId,
    payload: Payload,
    len: usize,
}

// SAFETY: a descriptor is only passed to UCX, by whoever has the transport for itself.
unsafe impl Send for Announced {}

/// See the module above.
pub struct UcxTransport {
    /// Before the context, which it shares.
    worker: Worker,
    context: Arc<Context>,
    connections: HashMap<PeerId, Connection>,
    /// Whose endpoint it is, by its place in memory, until it is closed.
    by_endpoint: HashMap<usize, PeerId>,
    announced: HashMap<DataId, Announced>,
    events: VecDeque<Event>,
    address: Vec<u8>,
    wake_event: Arc<WakeEvent>,
    max_connections: usize,
    next_id: u64,
    /// How data may go between processes of this machine.
    ways: Ways,
    machine: Option<Machine>,
    /// Made for the first peer on this machine.
    segment: Option<segment::Segment>,
    /// Given out for the data that is sent next, to that peer.
    room: Option<(PeerId, Room)>,
    spare_buffers: SpareBuffers,
    /// Data that was taken, which its senders are told when the caller has its events.
    taken: Vec<(PeerId, u64)>,
    /// A fault inside a callback: nothing works any more.
    broken: bool,
}

impl UcxTransport {
    /// Opens UCX and starts to accept connections.
    pub fn open(options: UcxOptions) -> Result<Self, TransportError> {
        judge_listening(options.listen)?;
        Self::over(Context::open(&options)?, options)
    }

    /// As [`UcxTransport::open`], over a UCX that is set up.
    pub(super) fn over(context: Context, options: UcxOptions) -> Result<Self, TransportError> {
        let listen = judge_listening(options.listen)?;
        let context = Arc::new(context);
        let tls = options.tls.or_else(|| std::env::var("UCX_TLS").ok());
        let ways = Ways::of(tls.as_deref().unwrap_or("all"));
        let wake_event = Arc::new(WakeEvent::new()?);
        let mut worker = Worker::create(&context)?;
        let address =
            frame::encode_address(worker.listen(SocketAddrV4::new(listen, options.port))?);
        Ok(Self {
            worker,
            context,
            connections: HashMap::new(),
            by_endpoint: HashMap::new(),
            announced: HashMap::new(),
            events: VecDeque::new(),
            address,
            wake_event,
            max_connections: options.max_connections,
            next_id: 0,
            ways,
            machine: if ways.any() { neighbour::this_machine() } else { None },
            segment: None,
            room: None,
            spare_buffers: SpareBuffers::default(),
            taken: Vec::new(),
            broken: false,
        })
    }

    /// Connections that are not over yet, those being closed included.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn usable(&self) -> Result<(), TransportError> {
        if self.broken {
            return Err(TransportError::Unavailable(
                "a fault happened in a callback of this transport; open a new one".to_owned(),
            ));
        }
        Ok(())
    }

    fn open_connection(&mut self, peer: PeerId) -> Result<&mut Connection, TransportError> {
        self.usable()?;
        match self.connections.get_mut(&peer) {
            Some(connection) if connection.state == State::Open => Ok(connection),
            _ => Err(TransportError::PeerGone("there is no such connection now".to_owned())),
        }
    }

    fn add(&mut self, endpoint: ucp_ep_h, is_connector: bool) -> PeerId {
        let peer = PeerId(self.new_id());
        self.by_endpoint.insert(endpoint.addr(), peer);
        self.connections.insert(peer, Connection::new(endpoint, is_connector));
        peer
    }

    /// Sends one message of an open connection; how it ended, if it did at once, is dealt with.
    fn send(
        &mut self,
        peer: PeerId,
        kind: Kind,
        purpose: Purpose,
        inline: Vec<u8>,
        fill: impl FnOnce(&mut Operation),
    ) -> Result<(), TransportError> {
        let connection = self.open_connection(peer)?;
        let header = Header { kind, sequence: connection.next_sequence, inline };
        connection.next_sequence += 1;
        connection.operations += 1;
        let endpoint = connection.endpoint;
        let mut operation = Operation::new(peer, purpose, &self.worker.mailbox);
        operation.header = header.encode();
        fill(&mut operation);
        let connection = self.open_connection(peer)?;
        connection.queued_bytes += operation.queued_bytes();
        let is_too_much =
            connection.operations > MAX_QUEUED || connection.queued_bytes > MAX_QUEUED_BYTES;
        let id = if kind == Kind::Data { DATA_ID } else { CONTROL_ID };
        let flags = if kind == Kind::Bye { UCP_AM_SEND_FLAG_EAGER } else { 0 };
        if let Started::Ended(operation) = self.worker.send(endpoint, id, flags, operation) {
            self.operation_ended(*operation);
        }
        if is_too_much {
            self.fail(peer, broke_rules("it is asked for answers that it does not take"));
        }
        Ok(())
    }

    fn error_of(&self, status: ucs_status_t) -> TransportError {
        status::of_peer(self.context.ucx(), status)
    }

    /// Reads what callbacks left; whether there was anything.
    fn read_mailbox(&mut self) -> bool {
        let arrivals = self.worker.mailbox.arrivals.take();
        let completions = self.worker.mailbox.completions.take();
        let failures = self.worker.mailbox.failures.take();
        let callers = self.worker.mailbox.callers.take();
        let is_fault = self.worker.mailbox.fault.get();
        let anything = !(arrivals.is_empty()
            && completions.is_empty()
            && failures.is_empty()
            && callers.is_empty());
        // Endpoints are looked up before any is closed or made below: UCX uses places again.
        let failed: Vec<(PeerId, ucs_status_t)> = failures
            .into_iter()
            .filter_map(|(endpoint, status)| Some((self.peer_of(endpoint)?, status)))
            .collect();
        let arrived: Vec<(Option<PeerId>, Arrival)> =
            arrivals.into_iter().map(|arrival| (self.peer_of(arrival.endpoint), arrival)).collect();
        for (peer, arrival) in arrived {
            self.arrived(peer, arrival);
        }
        for operation in completions {
            self.operation_ended(operation);
        }
        for (peer, status) in failed {
            self.fail(peer, self.error_of(status));
        }
        for caller in callers {
            self.called(caller);
        }
        if is_fault && !self.broken {
            self.broken = true;
            let error = TransportError::Unavailable("a fault happened in a callback".to_owned());
            for peer in self.connections.keys().copied().collect::<Vec<_>>() {
                self.fail(peer, error.clone());
            }
            return true;
        }
        anything
    }

    /// A peer wants to connect. It shows only when it sends something.
    fn called(&mut self, caller: ucp_conn_request_h) {
        if self.broken || self.connections.len() >= self.max_connections {
            return self.worker.reject(caller);
        }
        // Whoever cannot be answered learns it from UCX, or by its own deadline.
        if let Ok(endpoint) = self.worker.accept(caller) {
            self.add(endpoint, false);
        }
    }

    fn arrived(&mut self, peer: Option<PeerId>, arrival: Arrival) {
        let open = peer.and_then(|peer| Some((peer, self.connections.get_mut(&peer)?)));
        let Some((peer, connection)) = open.filter(|(_, of)| of.state == State::Open) else {
            // Of a connection that was closed here, or of none.
            return self.release(arrival.payload);
        };
        connection.is_heard = true;
        let Header { kind, sequence, inline, .. } = arrival.header;
        let slot = match (kind, arrival.payload) {
            (_, Payload::Refused) => {
                return self.fail(peer, broke_rules("a message is longer than its kind may be"));
            }
            (Kind::Data, payload) => {
                Slot::Ready(Item::Data { header: inline, payload, len: arrival.len })
            }
            (kind, Payload::Descriptor { data, .. }) => {
                Slot::Offered { kind, descriptor: data, len: arrival.len }
            }
            (Kind::LongHeader, Payload::Owned(bytes)) => Slot::Ready(Item::LongHeader(bytes)),
            (Kind::Message, Payload::Owned(bytes)) => Slot::Ready(Item::Message(bytes)),
            (Kind::Bye, _) => Slot::Ready(Item::Bye),
            (kind, Payload::Owned(bytes)) => Slot::Ready(Item::Neighbour(kind, sequence, bytes)),
            // Made further below, and nowhere else.
            (_, Payload::Placed { .. }) => return,
        };
        if let Err(refused) = connection.inbox.put(sequence, slot) {
            if let Some(descriptor) = refused.into_descriptor() {
                self.worker.release(descriptor);
            }
            return self.fail(peer, broke_rules("messages are misnumbered or too many"));
        }
        self.read_inbox(peer);
    }

    /// Tells what has its turn.
    fn read_inbox(&mut self, peer: PeerId) {
        loop {
            let Some(connection) = self.connections.get_mut(&peer) else { return };
            if connection.state != State::Open {
                return;
            }
            let Some(item) = connection.inbox.take_ready() else { break };
            match item {
                Item::Message(bytes) => {
                    connection.is_shown = true;
                    self.events.push_back(Event::Message { peer, bytes });
                }
                Item::LongHeader(bytes) => {
                    if connection.long_header.replace(bytes).is_some() {
                        return self.fail(peer, broke_rules("two headers without data between"));
                    }
                }
                Item::Data { header, payload, len } => self.announce(peer, header, payload, len),
                Item::Neighbour(kind, sequence, bytes) => {
                    if self.neighbour_said(peer, kind, sequence, &bytes).is_none() {
                        return self
                            .fail(peer, broke_rules("a message between neighbours is none"));
                    }
                }
                Item::Bye => {
                    let closed = "the peer closed the connection".to_owned();
                    return self.fail(peer, TransportError::PeerGone(closed));
                }
            }
        }
        self.fetch_offered(peer);
    }

    fn announce(&mut self, peer: PeerId, inline: Vec<u8>, payload: Payload, len: usize) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let id = DataId(self.next_id + 1);
        self.next_id = id.0;
        connection.is_shown = true;
        connection.announced_count += 1;
        connection.announced_bytes += if payload.is_offer() { 0 } else { len };
        let is_too_much = connection.announced_count > MAX_ANNOUNCED
            || connection.announced_bytes > MAX_ANNOUNCED_BYTES;
        let header = connection.long_header.take().unwrap_or(inline);
        self.announced.insert(id, Announced { peer, payload, len });
        if is_too_much {
            return self.fail(peer, broke_rules("more data announced than anybody answers"));
        }
        self.events.push_back(Event::Data { peer, header, len, id });
    }

    /// The peer, perhaps on this machine, says something to this transport itself; `None` when it
    /// says what no peer does.
    fn neighbour_said(
        &mut self,
        peer: PeerId,
        kind: Kind,
        sequence: u64,
        bytes: &[u8],
    ) -> Option<()> {
        match kind {
            Kind::Machine => {
                let Introduction { machine, question } = Introduction::decode(bytes)?;
                let connection = self.connections.get_mut(&peer)?;
                if connection.shown.is_some() {
                    return None;
                }
                if self.machine == Some(machine) {
                    let shown = connection.shown.insert(Box::new(question));
                    let address = shown.as_ptr().addr() as u64;
                    self.show_segment(peer, address);
                }
            }
            Kind::Segment => self.look_at(peer, SegmentPlace::decode(bytes)?)?,
            Kind::Reached => {
                let read = Ways::decode(bytes)?;
                let connection = self.connections.get_mut(&peer)?;
                connection.read_by_peer = Ways {
                    segment: read.segment && self.ways.segment,
                    memory: read.memory && self.ways.memory,
                };
            }
            Kind::Placed => {
                let Placed { header, place } = Placed::decode(bytes)?;
                let len = place.len()?;
                let connection = self.connections.get(&peer)?;
                let is_there = match &place {
                    Place::Segment(piece) => connection.peer_segment.as_ref()?.has(*piece),
                    Place::Memory(_) => connection.peer_process.is_some(),
                };
                if !is_there {
                    return None;
                }
                self.announce(peer, header, Payload::Placed { sequence, place }, len);
            }
            Kind::Taken => {
                let sequence = neighbour::decode_taken(bytes)?;
                let (ticket, piece) = self.connections.get_mut(&peer)?.placed.remove(&sequence)?;
                self.free(piece);
                self.events.push_back(Event::Sent { ticket, result: Ok(()) });
            }
            Kind::Message | Kind::LongHeader | Kind::Data | Kind::Bye => return None,
        }
        Some(())
    }

    /// Tells a peer that was connected to which machine this is, and what to show of its memory if it is
    /// there too. Where that cannot be made up, data goes over the wire.
    fn introduce(&mut self, peer: PeerId) {
        let mut question = Nonce::default();
        let (Some(machine), Ok(())) = (self.machine, getrandom::fill(&mut question)) else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.question = Some(question);
        }
        self.tell(peer, Kind::Machine, Introduction { machine, question }.encode());
    }

    /// Tells a peer on this machine where this side's memory is, and where in it what the peer asked for.
    /// Without a segment there is nothing to tell, and data goes over the wire.
    fn show_segment(&mut self, peer: PeerId, answer_address: u64) {
        if self.segment.is_none() {
            self.segment = segment::Segment::new().ok();
        }
        let Some(segment) = &self.segment else { return };
        let place = SegmentPlace {
            process: std::process::id(),
            descriptor: segment.descriptor(),
            answer_address,
            nonce: segment.nonce(),
        };
        self.tell(peer, Kind::Segment, place.encode());
    }

    /// Tries what can be read of a peer's memory, and tells it; `None` when it was not asked. Memory that it
    /// names is compared with nothing but what this side made up for it: whatever the answer, it tells
    /// nothing of what lies there.
    fn look_at(&mut self, peer: PeerId, place: SegmentPlace) -> Option<()> {
        let SegmentPlace { process, descriptor, answer_address, nonce } = place;
        let question = self.connections.get_mut(&peer)?.question.take()?;
        let view = match self.ways.segment {
            true => View::open(process, descriptor, &nonce).ok(),
            false => None,
        };
        let mut seen = Nonce::default();
        let pieces = [Piece { at: answer_address, len: seen.len() as u64 }];
        let reads_memory = self.ways.memory
            && segment::read_memory(process, &pieces, &mut seen).is_ok()
            && seen == question;
        let connection = self.connections.get_mut(&peer)?;
        let ways = Ways { segment: view.is_some(), memory: reads_memory };
        connection.peer_segment = view;
        connection.peer_process = reads_memory.then_some(process);
        if ways.any() {
            self.tell(peer, Kind::Reached, ways.encode());
        }
        Some(())
    }

    /// Says something to the peer's transport. A connection that broke says so by its own event.
    fn tell(&mut self, peer: PeerId, kind: Kind, bytes: Vec<u8>) {
        let fill = |operation: &mut Operation| operation.bytes = bytes;
        let _ = self.send(peer, kind, Purpose::Own, Vec::new(), fill);
    }

    /// Where data for a peer is best put together; `None` where it goes from where it lies, or there is
    /// no memory.
    fn room_for(&mut self, peer: PeerId, segments: &[Segment], len: usize) -> Option<Room> {
        let connection = self.connections.get_mut(&peer)?;
        let ways = connection.read_by_peer;
        if ways.memory && (len <= MAX_DIRECT_BYTES || !ways.segment) {
            return None;
        }
        if let Some(segment) = self.segment.as_ref().filter(|_| ways.segment) {
            let piece = segment.room(len);
            // Full, or too small for it.
            if piece.is_some() || ways.memory {
                return piece.map(Room::Segment);
            }
        }
        if len > MAX_BUFFER_BYTES || !connection.is_heard || joined(segments).len() < 2 {
            return None;
        }
        let ucx = self.context.ucx();
        let endpoint = connection.endpoint;
        // A stream copies in any case; a device that reads memory itself takes pieces well.
        let is_stream = || {
            let wires = describe::wires(ucx, endpoint);
            !wires.is_empty() && wires.split(", ").all(|wire| wire.starts_with("tcp"))
        };
        if !*connection.gathers.get_or_insert_with(is_stream) {
            return None;
        }
        self.spare_buffers.take(len).map(Room::Buffer)
    }

    /// Where a peer can read data that stays where it is, if it can.
    fn own_place(&self, peer: PeerId, segments: &[Segment]) -> Option<Place> {
        self.connections.get(&peer).filter(|of| of.read_by_peer.memory)?;
        let runs = joined(segments);
        let piece =
            |run: &ucp_dt_iov_t| Piece { at: run.buffer.addr() as u64, len: run.length as u64 };
        (runs.len() <= MAX_DIRECT_PIECES).then(|| Place::Memory(runs.iter().map(piece).collect()))
    }

    /// Tells a peer where data lies.
    fn send_placed(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        place: Place,
    ) -> Result<Ticket, TransportError> {
        let sequence = self.open_connection(peer)?.next_sequence;
        let ticket = Ticket(self.new_id());
        let piece = match &place {
            Place::Segment(piece) => Some(*piece),
            Place::Memory(_) => None,
        };
        if let (Some(segment), Some(piece)) = (&mut self.segment, piece) {
            segment.take(piece);
        }
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.placed.insert(sequence, (ticket, piece));
        }
        // If this breaks the connection, the ticket ends with all others.
        self.tell(peer, Kind::Placed, Placed { header, place }.encode());
        Ok(ticket)
    }

    /// Sends data over the wire, ahead of it a header that is too long to go with it.
    fn send_by_wire(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        fill: impl FnOnce(&mut Operation),
    ) -> Result<Ticket, TransportError> {
        let ticket = Ticket(self.new_id());
        let inline = if header.len() <= MAX_INLINE_BYTES {
            header
        } else {
            let fill = |operation: &mut Operation| operation.bytes = header;
            self.send(peer, Kind::LongHeader, Purpose::Own, Vec::new(), fill)?;
            Vec::new()
        };
        self.send(peer, Kind::Data, Purpose::Send(ticket), inline, fill)?;
        Ok(ticket)
    }

    /// Tells senders what was taken.
    fn tell_taken(&mut self) {
        for (peer, sequence) in std::mem::take(&mut self.taken) {
            self.tell(peer, Kind::Taken, neighbour::encode_taken(sequence));
        }
    }

    fn free(&mut self, piece: Option<Piece>) {
        if let (Some(segment), Some(piece)) = (&mut self.segment, piece) {
            segment.free(piece);
        }
    }

    /// Ends what the peer has not taken. It may still be reading: what it reads then is nothing that
    /// it waits for.
    fn end_placed(&mut self, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let placed = std::mem::take(&mut connection.placed);
        connection.read_by_peer = Ways::default();
        let cause = connection.cause.clone().unwrap_or(TransportError::Cancelled);
        for (ticket, piece) in placed.into_values() {
            self.free(piece);
            self.events.push_back(Event::Sent { ticket, result: Err(cause.clone()) });
        }
    }

    /// Reads placed data into `memory`, at once.
    fn read_placed(
        &self,
        peer: PeerId,
        place: &Place,
        memory: &mut [u8],
    ) -> Result<(), TransportError> {
        let gone = |why: String| TransportError::PeerGone(why);
        let connection = self.connections.get(&peer);
        let connection = connection.ok_or_else(|| gone("there is no connection now".to_owned()))?;
        let nothing_to_read = || gone("its memory cannot be read".to_owned());
        match (place, &connection.peer_segment, connection.peer_process) {
            (Place::Segment(piece), Some(view), _) => {
                let is_read = view.bytes(*piece).is_some_and(|bytes| bytes.copy(memory));
                is_read.then_some(()).ok_or_else(nothing_to_read)
            }
            (Place::Memory(pieces), _, Some(process)) => {
                segment::read_memory(process, pieces, memory)
                    .map_err(|error| gone(format!("its memory cannot be read: {error}")))
            }
            _ => Err(nothing_to_read()),
        }
    }

    /// Fetches the long message whose turn it is.
    fn fetch_offered(&mut self, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let Some((_, descriptor, len)) = connection.inbox.take_offered() else { return };
        let mut operation = Operation::new(peer, Purpose::Fetch, &self.worker.mailbox);
        if operation.bytes.try_reserve_exact(len).is_err() {
            self.worker.release(descriptor);
            let no_memory = "no memory for a message".to_owned();
            return self.fail(peer, TransportError::Unavailable(no_memory));
        }
        operation.bytes.resize(len, 0);
        let memory = Segment { data: operation.bytes.as_mut_ptr(), len };
        connection.operations += 1;
        if let Started::Ended(operation) = self.worker.receive(descriptor, memory, operation) {
            self.operation_ended(*operation);
        }
    }

    /// The one place where an operation ends.
    fn operation_ended(&mut self, mut operation: Operation) {
        let peer = operation.peer;
        let queued_bytes = operation.queued_bytes();
        if operation.is_gathered {
            self.spare_buffers.put(std::mem::take(&mut operation.bytes));
        }
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if operation.purpose == Purpose::Close {
            connection.state = State::Closed;
            return;
        }
        connection.operations -= 1;
        connection.queued_bytes -= queued_bytes;
        let (state, cause) = (connection.state, connection.cause.clone());
        let result = match operation.status {
            ucx_sys::UCS_OK => Ok(()),
            status => Err(cause.unwrap_or_else(|| self.error_of(status))),
        };
        match operation.purpose {
            Purpose::Send(ticket) => {
                self.events.push_back(Event::Sent { ticket, result: result.clone() });
            }
            Purpose::Receive(ticket) => {
                // The connection can go on: this one piece of data is lost, and numbered nowhere.
                return self.events.push_back(Event::Received { ticket, result });
            }
            Purpose::Fetch if result.is_ok() && state == State::Open => {
                if let Some(connection) = self.connections.get_mut(&peer) {
                    connection.inbox.fetched(operation.bytes);
                }
                return self.read_inbox(peer);
            }
            Purpose::Bye if matches!(state, State::Leaving { .. }) => {
                return self.close(peer);
            }
            Purpose::Fetch | Purpose::Bye | Purpose::Own | Purpose::Close => {}
        }
        if let (Err(error), State::Open) = (result, state) {
            // A message is lost, and the peer would wait for its number.
            self.fail(peer, error);
        }
    }

    /// Whose endpoint that is; none's, once it is being closed.
    fn peer_of(&self, endpoint: ucp_ep_h) -> Option<PeerId> {
        self.by_endpoint.get(&endpoint.addr()).copied()
    }

    /// Ends a connection that broke, and tells.
    fn fail(&mut self, peer: PeerId, error: TransportError) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        match connection.state {
            State::Open => {
                connection.cause = Some(error.clone());
                let is_shown = connection.is_shown;
                self.close(peer);
                if is_shown {
                    self.events.push_back(Event::PeerGone { peer, error });
                }
            }
            State::Leaving { .. } => self.close(peer),
            State::Closing | State::Closed => {}
        }
    }

    /// Closes the endpoint by force: UCX ends its operations.
    fn close(&mut self, peer: PeerId) {
        self.forget_incoming(peer);
        self.end_placed(peer);
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        connection.state = State::Closing;
        self.by_endpoint.remove(&connection.endpoint.addr());
        let operation = Operation::new(peer, Purpose::Close, &self.worker.mailbox);
        // Whatever an ended close came to (a reset by the peer is one), the endpoint is gone.
        if let Started::Ended(operation) = self.worker.close(connection.endpoint, operation) {
            self.operation_ended(*operation);
        }
    }

    /// Nothing of that peer is told, received or held any more.
    fn forget_incoming(&mut self, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let held = connection.inbox.drain();
        self.events.retain(|event| !matches!(event, Event::Data { peer: of, .. } if *of == peer));
        let ids: Vec<DataId> = self
            .announced
            .iter()
            .filter_map(|(id, announced)| (announced.peer == peer).then_some(*id))
            .collect();
        for id in ids {
            if let Some(announced) = self.announced.remove(&id) {
                self.release(announced.payload);
            }
        }
        held.into_iter().for_each(|descriptor| self.worker.release(descriptor));
    }

    fn release(&self, payload: Payload) {
        if let Payload::Descriptor { data, .. } = payload {
            self.worker.release(data);
        }
    }

    /// Takes announced data out of the books.
    fn answer(&mut self, id: DataId) -> Option<Announced> {
        let announced = self.announced.remove(&id)?;
        if let Some(connection) = self.connections.get_mut(&announced.peer) {
            connection.announced_count -= 1;
            connection.announced_bytes -=
                if announced.payload.is_offer() { 0 } else { announced.len };
        }
        Some(announced)
    }

    /// Ends goodbyes that took too long, and forgets what is over.
    fn settle(&mut self) {
        let is_late = |connection: &Connection| matches!(connection.state, State::Leaving { until } if until <= Instant::now());
        let late: Vec<PeerId> = self
            .connections
            .iter()
            .filter_map(|(peer, connection)| is_late(connection).then_some(*peer))
            .collect();
        late.into_iter().for_each(|peer| self.close(peer));
        self.connections
            .retain(|_, connection| connection.state != State::Closed || connection.operations > 0);
    }

    /// One round; whether anything happened.
    fn round(&mut self) -> bool {
        self.tell_taken();
        let progressed = self.worker.progress();
        let anything = self.read_mailbox();
        self.settle();
        progressed || anything
    }
}

fn broke_rules(how: &str) -> TransportError {
    TransportError::PeerGone(format!("the peer broke the rules: {how}"))
}

fn judge_listening(ip: IpAddr) -> Result<Ipv4Addr, TransportError> {
    match ip {
        IpAddr::V4(ip) if !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast() => {
            Ok(ip)
        }
        IpAddr::V4(_) => Err(TransportError::BadAddress(format!(
            "expected the IPv4 address of one interface to listen at, found {ip}: peers are told \
             it and could not connect to it"
        ))),
        IpAddr::V6(_) => Err(TransportError::BadAddress(format!(
            "expected the IPv4 address of one interface to listen at, found {ip}: UCX's own \
             connections over IPv6 are not safe"
        ))),
    }
}

fn judge_length(len: usize, what: &str) -> Result<(), TransportError> {
    if len > MAX_MESSAGE_BYTES {
        return Err(TransportError::Unavailable(format!(
            "a {what} of {len} bytes is over the limit of {MAX_MESSAGE_BYTES}"
        )));
    }
    Ok(())
}

impl Transport for UcxTransport {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn host(&self, address: &[u8]) -> Option<IpAddr> {
        Some(IpAddr::V4(*frame::decode_address(address).ok()?.ip()))
    }

    fn describe(&self, peer: PeerId) -> String {
        match self.connections.get(&peer) {
            Some(connection) if connection.state == State::Open && connection.is_heard => {
                let mut wires = describe::wires(self.context.ucx(), connection.endpoint);
                let read = connection.read_by_peer;
                if connection.peer_segment.is_some() || read.segment {
                    wires.push_str(", memory/segment");
                }
                if connection.peer_process.is_some() || read.memory {
                    wires.push_str(", memory/process");
                }
                wires
            }
            _ => String::new(),
        }
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        self.usable()?;
        let listening = frame::decode_address(address).map_err(TransportError::BadAddress)?;
        if self.connections.len() >= self.max_connections {
            return Err(TransportError::Unavailable(format!(
                "{} connections are the limit",
                self.max_connections
            )));
        }
        let endpoint = self.worker.connect(listening).map_err(|status| self.error_of(status))?;
        let peer = self.add(endpoint, true);
        self.introduce(peer);
        Ok(peer)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        judge_length(bytes.len(), "message")?;
        let ticket = Ticket(self.new_id());
        let fill = |operation: &mut Operation| operation.bytes = bytes;
        self.send(peer, Kind::Message, Purpose::Send(ticket), Vec::new(), fill)?;
        Ok(ticket)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        judge_length(header.len(), "header")?;
        let total = segments.iter().try_fold(0usize, |sum, segment| sum.checked_add(segment.len));
        let Some(total) = total.filter(|total| *total <= isize::MAX as usize) else {
            return Err(TransportError::Unavailable("segments beyond all memory".to_owned()));
        };
        // A header with a place is one message.
        if total > 0 && header.len() <= MAX_MESSAGE_BYTES / 2 {
            if let Some(mut rest) = self.room(peer, &segments) {
                for segment in segments.iter().filter(|segment| segment.len > 0) {
                    let (target, after) = rest.split_at_mut(segment.len);
                    // SAFETY: readable, as the caller promises, and nothing of the transport's own.
                    target.copy_from_slice(unsafe {
                        std::slice::from_raw_parts(segment.data, segment.len)
                    });
                    rest = after;
                }
                return self.send_room(peer, header);
            }
            if let Some(place) = self.own_place(peer, &segments) {
                return self.send_placed(peer, header, place);
            }
        }
        self.send_by_wire(peer, header, |operation| operation.segments = joined(&segments))
    }

    fn room(&mut self, peer: PeerId, segments: &[Segment]) -> Option<&mut [u8]> {
        // What nobody sent.
        if let Some((_, Room::Buffer(buffer))) = self.room.take() {
            self.spare_buffers.put(buffer);
        }
        let len = segments.iter().try_fold(0usize, |sum, segment| sum.checked_add(segment.len))?;
        self.open_connection(peer).ok()?;
        let room = self.room_for(peer, segments, len)?;
        match &mut self.room.insert((peer, room)).1 {
            Room::Segment(piece) => Some(self.segment.as_mut()?.bytes_mut(*piece)),
            Room::Buffer(buffer) => Some(buffer),
        }
    }

    fn send_room(&mut self, peer: PeerId, header: Vec<u8>) -> Result<Ticket, TransportError> {
        judge_length(header.len().saturating_mul(2), "header, twice")?;
        match self.room.take() {
            Some((of, Room::Segment(piece))) if of == peer => {
                self.send_placed(peer, header, Place::Segment(piece))
            }
            Some((of, Room::Buffer(bytes))) if of == peer => {
                self.send_by_wire(peer, header, |operation| {
                    operation.bytes = bytes;
                    operation.is_gathered = true;
                })
            }
            _ => Err(TransportError::Unavailable(
                "no room was asked for data to that peer: ask right before".to_owned(),
            )),
        }
    }

    fn read_data(&mut self, data: DataId, take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        let Some(Announced { peer, payload, len }) = self.announced.get(&data) else {
            return false;
        };
        match payload {
            Payload::Descriptor { data, is_offer: false } => {
                // SAFETY: whole data of that length, which UCX left with us until it is released below.
                take(unsafe { Unsettled::new(data.cast(), *len) });
            }
            Payload::Placed { place: Place::Segment(piece), .. } => {
                let view = self.connections.get(peer).and_then(|of| of.peer_segment.as_ref());
                let Some(bytes) = view.and_then(|view| view.bytes(*piece)) else { return false };
                take(bytes);
            }
            _ => return false,
        }
        // Read, which is all that its sender is told of either.
        self.discard_data(data);
        true
    }

    fn register(&mut self, memory: Segment) {
        self.worker.register(memory);
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        self.usable()?;
        let Some(announced) = self.announced.get(&data) else {
            return Err(TransportError::PeerGone("there is no such announced data".to_owned()));
        };
        if announced.len != memory.len {
            return Err(TransportError::Unavailable(format!(
                "memory of {} bytes for data of {}",
                memory.len, announced.len
            )));
        }
        let peer = announced.peer;
        let ticket = Ticket(self.new_id());
        let Some(announced) = self.answer(data) else { return Ok(ticket) };
        let Some(connection) = self.connections.get_mut(&peer) else { return Ok(ticket) };
        let worker = &self.worker;
        match announced.payload {
            Payload::Descriptor { data, is_offer: true } => {
                connection.operations += 1;
                let operation = Operation::new(peer, Purpose::Receive(ticket), &worker.mailbox);
                if let Started::Ended(operation) = worker.receive(data, memory, operation) {
                    self.operation_ended(*operation);
                }
                return Ok(ticket);
            }
            // UCX 1.13 keeps the buffer of what came in one piece if it is asked to receive it.
            // SAFETY: whole data of that length, taken out of the books above; the caller
            // promises the memory.
            Payload::Descriptor { data, .. } => unsafe { worker.copy_out(data, memory) },
            // SAFETY: as many bytes as announced; the caller promises the memory.
            Payload::Owned(bytes) => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.data, bytes.len());
            },
            Payload::Refused => {}
            Payload::Placed { sequence, place } => {
                // SAFETY: the caller promises the memory, of which nobody else has a reference.
                let memory = unsafe { std::slice::from_raw_parts_mut(memory.data, memory.len) };
                let result = self.read_placed(peer, &place, memory);
                self.events.push_back(Event::Received { ticket, result });
                self.taken.push((peer, sequence));
                return Ok(ticket);
            }
        }
        self.events.push_back(Event::Received { ticket, result: Ok(()) });
        Ok(ticket)
    }

    fn discard_data(&mut self, data: DataId) {
        let Some(Announced { peer, payload, .. }) = self.answer(data) else { return };
        match payload {
            Payload::Placed { sequence, .. } => self.taken.push((peer, sequence)),
            payload => self.release(payload),
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.tell_taken();
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if connection.state != State::Open {
            return;
        }
        let is_busy = connection.operations > 0;
        connection.cause = Some(TransportError::Cancelled);
        // The caller knows already: whatever happens now, its end is not told.
        connection.is_shown = false;
        self.forget_incoming(peer);
        self.end_placed(peer);
        self.events
            .retain(|event| !matches!(event, Event::Message { peer: of, .. } if *of == peer));
        // The news of it: on most wires the peer would also see the endpoint go.
        let said = self.send(peer, Kind::Bye, Purpose::Bye, Vec::new(), |_| {});
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if connection.state != State::Open {
            return;
        }
        if said.is_ok() && !is_busy && connection.operations > 0 {
            connection.state = State::Leaving { until: Instant::now() + GOODBYE };
        } else {
            self.close(peer);
        }
    }

    fn progress(&mut self) -> Option<Event> {
        for _ in 0..MAX_ROUNDS {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if !self.round() {
                break;
            }
        }
        self.events.pop_front()
    }

    fn wait(&mut self, timeout: Duration) {
        self.tell_taken();
        if !self.events.is_empty() || !self.worker.arm() {
            return;
        }
        let now = Instant::now();
        let first_end = self.connections.values().filter_map(|connection| match connection.state {
            State::Leaving { until } => Some(until.saturating_duration_since(now)),
            State::Closing | State::Closed => Some(CLOSING),
            State::Open => None,
        });
        let timeout = first_end.fold(timeout, Duration::min);
        self.wake_event.wait(self.worker.event_descriptor(), timeout);
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.wake_event) as Arc<dyn Waker>
    }
}

impl Drop for UcxTransport {
    /// Says goodbye, closes everything, and waits for UCX to let go, for a bounded time.
    fn drop(&mut self) {
        let peers: Vec<PeerId> = self.connections.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.disconnect(peer));
        let until = Instant::now() + GOODBYE;
        while !self.connections.is_empty() && Instant::now() < until {
            self.events.clear();
            if !self.round() {
                self.wait(Duration::from_millis(10));
            }
        }
        // Goodbyes that nobody took are given up; a worker whose endpoints would not close in time
        // is left behind (see there).
        for peer in self.connections.keys().copied().collect::<Vec<_>>() {
            let state = self.connections.get(&peer).map(|connection| connection.state);
            if matches!(state, Some(State::Leaving { .. })) {
                self.close(peer);
            }
        }
        for _ in 0..MAX_ROUNDS {
            self.round();
        }
    }
}
