//! The in-process transport: stations of one hub, which hand each other messages and let each other
//! copy from memory that was announced.
//!
//! Guards: memory is read only between `send_data` and its `Sent`, and written only inside
//! `receive_data`. The hub's lock is never held across a copy.
//! Never does: reach anything outside of its hub; an address of another hub is refused.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Waker, MAX_MESSAGE_BYTES,
};

/// The name of this transport in states and reports.
pub const NAME: &str = "loopback";

/// Most events that wait at a station; who sends more than it reads is cut off.
const MAX_WAITING_EVENTS: usize = 65_536;

/// Where stations of one process meet.
pub struct LoopbackHub {
    id: u64,
    stations: Mutex<Stations>,
    /// A copy out of somebody's memory ended.
    copy_ended: Condvar,
}

#[derive(Default)]
struct Stations {
    last_number: u64,
    by_number: HashMap<u64, Station>,
}

struct Station {
    waker: Arc<StationWaker>,
    waiting: VecDeque<Event>,
    links: HashMap<PeerId, Link>,
    announced: HashMap<DataId, Announced>,
    last_peer: u64,
    last_data: u64,
    /// Copies that others are making out of this station's memory.
    copies_running: usize,
}

/// One end of a connection.
#[derive(Clone, Copy)]
struct Link {
    station: u64,
    /// What this connection is called there.
    peer: PeerId,
}

/// Data that waits at its receiver.
struct Announced {
    peer: PeerId,
    sender: u64,
    ticket: Ticket,
    segments: Vec<Segment>,
    len: usize,
}

impl LoopbackHub {
    /// A hub without stations. `id` keeps addresses of different hubs apart: a random number.
    pub fn new(id: u64) -> Arc<Self> {
        Arc::new(Self { id, stations: Mutex::new(Stations::default()), copy_ended: Condvar::new() })
    }

    /// A new station.
    pub fn transport(self: &Arc<Self>) -> LoopbackTransport {
        let waker = Arc::new(StationWaker::default());
        let mut stations = self.stations.lock();
        stations.last_number += 1;
        let number = stations.last_number;
        stations.by_number.insert(
            number,
            Station {
                waker: Arc::clone(&waker),
                waiting: VecDeque::new(),
                links: HashMap::new(),
                announced: HashMap::new(),
                last_peer: 0,
                last_data: 0,
                copies_running: 0,
            },
        );
        let mut address = NAME.as_bytes().to_vec();
        address.extend_from_slice(&self.id.to_le_bytes());
        address.extend_from_slice(&number.to_le_bytes());
        LoopbackTransport { hub: Arc::clone(self), number, address, last_ticket: 0, waker }
    }

    fn number_in(&self, address: &[u8]) -> Option<u64> {
        let rest = address.strip_prefix(NAME.as_bytes())?;
        let (hub, number) = rest.split_first_chunk::<8>()?;
        (u64::from_le_bytes(*hub) == self.id).then_some(u64::from_le_bytes(number.try_into().ok()?))
    }
}

impl Stations {
    /// Adds an event, for a station that may be gone; `false` when its queue is full.
    fn post(&mut self, number: u64, event: Event) -> bool {
        let Some(station) = self.by_number.get_mut(&number) else { return true };
        // Ends of transfers always find room: a station has no more of them than it started.
        let is_end = matches!(event, Event::Sent { .. } | Event::Received { .. });
        if !is_end && station.waiting.len() >= MAX_WAITING_EVENTS {
            return false;
        }
        station.waiting.push_back(event);
        station.waker.wake();
        true
    }

    fn link(&self, number: u64, peer: PeerId) -> Result<Link, TransportError> {
        self.by_number
            .get(&number)
            .and_then(|station| station.links.get(&peer).copied())
            .ok_or_else(|| TransportError::PeerGone("not connected".to_owned()))
    }

    /// Ends a connection that `number` calls `peer`; the other end is told.
    fn cut(&mut self, number: u64, peer: PeerId, why: &str) {
        let Ok(link) = self.link(number, peer) else { return };
        // What `number` had announced there ends as cancelled, what was announced to it as lost.
        self.cut_one_end(link.station, link.peer, &TransportError::Cancelled);
        let gone = TransportError::PeerGone(why.to_owned());
        self.cut_one_end(number, peer, &gone);
        if let Some(station) = self.by_number.get_mut(&link.station) {
            // Past the bound on purpose: one for each connection, and it must not be lost.
            station.waiting.push_back(Event::PeerGone { peer: link.peer, error: gone });
            station.waker.wake();
        }
    }

    /// Forgets `peer` at `number`; senders of data that waits there learn `error`.
    fn cut_one_end(&mut self, number: u64, peer: PeerId, error: &TransportError) {
        let Some(station) = self.by_number.get_mut(&number) else { return };
        station.links.remove(&peer);
        station
            .waiting
            .retain(|event| !matches!(event, Event::Data { peer: sender, .. } if *sender == peer));
        let ended: Vec<DataId> = station
            .announced
            .iter()
            .filter(|(_, announced)| announced.peer == peer)
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            let station = self.by_number.get_mut(&number);
            if let Some(announced) = station.and_then(|station| station.announced.remove(&id)) {
                let result = Err(error.clone());
                self.post(announced.sender, Event::Sent { ticket: announced.ticket, result });
            }
        }
    }
}

/// One station of a [`LoopbackHub`].
pub struct LoopbackTransport {
    hub: Arc<LoopbackHub>,
    number: u64,
    address: Vec<u8>,
    last_ticket: u64,
    waker: Arc<StationWaker>,
}

impl LoopbackTransport {
    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }
}

fn check_length(what: &str, len: usize) -> Result<(), TransportError> {
    if len > MAX_MESSAGE_BYTES {
        return Err(TransportError::Unavailable(format!(
            "a {what} of {len} bytes is above the limit of {MAX_MESSAGE_BYTES}"
        )));
    }
    Ok(())
}

fn flooded() -> TransportError {
    TransportError::PeerGone("the receiver's queue is full".to_owned())
}

impl Transport for LoopbackTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn host(&self, _: &[u8]) -> Option<std::net::IpAddr> {
        None
    }

    fn describe(&self, peer: PeerId) -> String {
        match self.hub.stations.lock().link(self.number, peer) {
            Ok(_) => "memory of this process".to_owned(),
            Err(_) => String::new(),
        }
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        let remote = self.hub.number_in(address).ok_or_else(|| {
            TransportError::BadAddress("expected a station of the same loopback hub".to_owned())
        })?;
        let mut stations = self.hub.stations.lock();
        let mut peer_at = |number: u64| {
            let station = stations.by_number.get_mut(&number).ok_or_else(|| {
                TransportError::PeerGone("the loopback station is gone".to_owned())
            })?;
            station.last_peer += 1;
            Ok(PeerId(station.last_peer))
        };
        let remote_peer = peer_at(remote)?;
        let own_peer = peer_at(self.number)?;
        for (number, peer, link) in [
            (remote, remote_peer, Link { station: self.number, peer: own_peer }),
            (self.number, own_peer, Link { station: remote, peer: remote_peer }),
        ] {
            if let Some(station) = stations.by_number.get_mut(&number) {
                station.links.insert(peer, link);
            }
        }
        Ok(own_peer)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        check_length("message", bytes.len())?;
        let ticket = self.next_ticket();
        let mut stations = self.hub.stations.lock();
        let link = stations.link(self.number, peer)?;
        if !stations.post(link.station, Event::Message { peer: link.peer, bytes }) {
            return Err(flooded());
        }
        stations.post(self.number, Event::Sent { ticket, result: Ok(()) });
        Ok(ticket)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        check_length("data header", header.len())?;
        let len = segments
            .iter()
            .try_fold(0usize, |len, segment| len.checked_add(segment.len))
            .ok_or_else(|| TransportError::Unavailable("segments overflow".to_owned()))?;
        let ticket = self.next_ticket();
        let mut stations = self.hub.stations.lock();
        let link = stations.link(self.number, peer)?;
        let Some(receiver) = stations.by_number.get_mut(&link.station) else {
            return Err(TransportError::PeerGone("the loopback station is gone".to_owned()));
        };
        receiver.last_data += 1;
        let id = DataId(receiver.last_data);
        if !stations.post(link.station, Event::Data { peer: link.peer, header, len, id }) {
            return Err(flooded());
        }
        if let Some(receiver) = stations.by_number.get_mut(&link.station) {
            let announced =
                Announced { peer: link.peer, sender: self.number, ticket, segments, len };
            receiver.announced.insert(id, announced);
        }
        Ok(ticket)
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        let announced = {
            let mut stations = self.hub.stations.lock();
            let own = stations.by_number.get_mut(&self.number);
            let gone = || TransportError::PeerGone("the announced data is gone".to_owned());
            let own = own.ok_or_else(gone)?;
            let len = own.announced.get(&data).ok_or_else(gone)?.len;
            if len != memory.len {
                return Err(TransportError::Unavailable(format!(
                    "memory of {} bytes was offered for data of {len}",
                    memory.len
                )));
            }
            let announced = own.announced.remove(&data).ok_or_else(gone)?;
            if let Some(sender) = stations.by_number.get_mut(&announced.sender) {
                sender.copies_running += 1;
            }
            announced
        };
        let mut at = memory.data;
        for segment in &announced.segments {
            // SAFETY: the sender keeps its segments alive until `Sent`, which is posted below, and
            // its station waits for this copy before it goes. The lengths add up to the offered
            // memory's, which the caller keeps alive and which nobody else writes.
            unsafe {
                std::ptr::copy_nonoverlapping(segment.data, at, segment.len);
                at = at.add(segment.len);
            }
        }
        let ticket = self.next_ticket();
        let mut stations = self.hub.stations.lock();
        if let Some(sender) = stations.by_number.get_mut(&announced.sender) {
            sender.copies_running -= 1;
        }
        self.hub.copy_ended.notify_all();
        stations.post(announced.sender, Event::Sent { ticket: announced.ticket, result: Ok(()) });
        stations.post(self.number, Event::Received { ticket, result: Ok(()) });
        Ok(ticket)
    }

    fn discard_data(&mut self, data: DataId) {
        let mut stations = self.hub.stations.lock();
        let own = stations.by_number.get_mut(&self.number);
        if let Some(announced) = own.and_then(|own| own.announced.remove(&data)) {
            let ended = Event::Sent { ticket: announced.ticket, result: Ok(()) };
            stations.post(announced.sender, ended);
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        let mut stations = self.hub.stations.lock();
        stations.cut(self.number, peer, "the other side disconnected");
        if let Some(own) = stations.by_number.get_mut(&self.number) {
            own.waiting.retain(
                |event| !matches!(event, Event::Message { peer: sender, .. } if *sender == peer),
            );
        }
    }

    fn progress(&mut self) -> Option<Event> {
        self.hub.stations.lock().by_number.get_mut(&self.number)?.waiting.pop_front()
    }

    fn wait(&mut self, timeout: Duration) {
        let is_idle = {
            let stations = self.hub.stations.lock();
            let own = stations.by_number.get(&self.number);
            own.is_some_and(|own| own.waiting.is_empty())
        };
        self.waker.sleep(if is_idle { timeout } else { Duration::ZERO });
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }
}

impl Drop for LoopbackTransport {
    fn drop(&mut self) {
        let mut stations = self.hub.stations.lock();
        let peers: Vec<PeerId> = stations
            .by_number
            .get(&self.number)
            .map(|own| own.links.keys().copied().collect())
            .unwrap_or_default();
        for peer in peers {
            stations.cut(self.number, peer, "the other side is gone");
        }
        // Whoever dropped this transport may free the memory that it sent from.
        while stations.by_number.get(&self.number).is_some_and(|own| own.copies_running > 0) {
            self.hub.copy_ended.wait(&mut stations);
        }
        stations.by_number.remove(&self.number);
    }
}

#[derive(Default)]
struct StationWaker {
    is_awake: Mutex<bool>,
    woken: Condvar,
}

impl StationWaker {
    fn sleep(&self, timeout: Duration) {
        let mut is_awake = self.is_awake.lock();
        if !*is_awake && !timeout.is_zero() {
            self.woken.wait_for(&mut is_awake, timeout);
        }
        *is_awake = false;
    }
}

impl Waker for StationWaker {
    fn wake(&self) {
        *self.is_awake.lock() = true;
        self.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: &mut [u8]) -> Segment {
        Segment { data: bytes.as_mut_ptr(), len: bytes.len() }
    }

    fn events(transport: &mut LoopbackTransport) -> Vec<Event> {
        std::iter::from_fn(|| transport.progress()).collect()
    }

    fn pair() -> (LoopbackTransport, LoopbackTransport, PeerId) {
        let hub = LoopbackHub::new(7);
        let (mut a, b) = (hub.transport(), hub.transport());
        let peer = a.connect(b.address()).unwrap();
        (a, b, peer)
    }

    #[test]
    fn messages_and_data_arrive_in_order() {
        let (mut a, mut b, peer) = pair();
        let (mut head, mut tail) = (vec![1u8; 10], vec![2u8; 5]);
        let message = a.send_message(peer, b"first".to_vec()).unwrap();
        let data =
            a.send_data(peer, b"h".to_vec(), vec![segment(&mut head), segment(&mut tail)]).unwrap();
        let arrived = events(&mut b);
        let [Event::Message { bytes, .. }, Event::Data { header, len: 15, id, .. }] = &arrived[..]
        else {
            panic!("{arrived:?}")
        };
        assert_eq!((&bytes[..], &header[..]), (&b"first"[..], &b"h"[..]));
        let ended = events(&mut a);
        assert!(
            matches!(ended[..], [Event::Sent { ticket, result: Ok(()) }] if ticket == message),
            "the data is not sent before it is received: {ended:?}"
        );
        let mut place = [0u8; 15];
        b.receive_data(*id, Segment { data: place.as_mut_ptr(), len: 14 }).unwrap_err();
        let received = b.receive_data(*id, segment(&mut place)).unwrap();
        assert_eq!(place, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert!(
            matches!(events(&mut b)[..], [Event::Received { ticket, result: Ok(()) }] if ticket == received)
        );
        assert!(
            matches!(events(&mut a)[..], [Event::Sent { ticket, result: Ok(()) }] if ticket == data)
        );
        b.receive_data(*id, segment(&mut place)).unwrap_err();
    }

    #[test]
    fn a_disconnect_ends_every_ticket_once_and_tells_the_other_side() {
        let (mut a, mut b, peer) = pair();
        let mut bytes = vec![1u8; 10];
        let ticket = a.send_data(peer, Vec::new(), vec![segment(&mut bytes)]).unwrap();
        a.disconnect(peer);
        a.disconnect(peer);
        assert!(matches!(
            events(&mut a)[..],
            [Event::Sent { ticket: ended, result: Err(TransportError::Cancelled) }] if ended == ticket
        ));
        assert!(matches!(events(&mut b)[..], [Event::PeerGone { .. }]));
        assert!(a.send_message(peer, Vec::new()).is_err());
    }

    #[test]
    fn a_station_that_goes_takes_its_announcements_along() {
        let (mut a, b, peer) = pair();
        let mut bytes = vec![1u8; 10];
        let ticket = a.send_data(peer, Vec::new(), vec![segment(&mut bytes)]).unwrap();
        drop(b);
        let ended = events(&mut a);
        assert!(
            matches!(ended[..], [Event::Sent { ticket: ended, result: Err(_) }, Event::PeerGone { .. }] if ended == ticket),
            "{ended:?}"
        );
    }

    #[test]
    fn addresses_of_other_hubs_and_nonsense_are_refused() {
        let (mut a, b, _) = pair();
        let other = LoopbackHub::new(8).transport();
        let bad = [other.address(), b"", b"loopback", &[0; 24]];
        for address in bad {
            assert!(matches!(a.connect(address), Err(TransportError::BadAddress(_))));
        }
        let address = b.address().to_vec();
        drop(b);
        assert!(matches!(a.connect(&address), Err(TransportError::PeerGone(_))));
    }

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let (mut a, _b, _) = pair();
        a.waker().wake();
        a.wait(Duration::from_secs(3600));
    }
}
