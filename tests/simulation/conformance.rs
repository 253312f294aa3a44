//! The simulated adapter under the suite that every adapter of the transport port has to pass: in fair
//! weather it keeps the whole contract, so what goes wrong otherwise is the weather's doing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kvhints::transfer::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Unsettled, Waker,
};
use parking_lot::Mutex;

use crate::clock::{WorldClock, MS};
use crate::network::{Net, Network, SimulatedTransport, Weather};
use crate::transport_conformance;

/// A station whose network goes on whenever it is looked at.
struct Driven {
    inner: SimulatedTransport,
    network: Network,
    clock: Arc<WorldClock>,
}

impl Transport for Driven {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn address(&self) -> &[u8] {
        self.inner.address()
    }

    fn host(&self, address: &[u8]) -> Option<IpAddr> {
        self.inner.host(address)
    }

    fn describe(&self, peer: PeerId) -> String {
        self.inner.describe(peer)
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        self.inner.connect(address)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        self.inner.send_message(peer, bytes)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        self.inner.send_data(peer, header, segments)
    }

    fn room(&mut self, peer: PeerId, segments: &[Segment]) -> Option<&mut [u8]> {
        self.inner.room(peer, segments)
    }

    fn send_room(&mut self, peer: PeerId, header: Vec<u8>) -> Result<Ticket, TransportError> {
        self.inner.send_room(peer, header)
    }

    fn read_data(&mut self, data: DataId, take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        self.inner.read_data(data, take)
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        self.inner.receive_data(data, memory)
    }

    fn discard_data(&mut self, data: DataId) {
        self.inner.discard_data(data);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.inner.disconnect(peer);
    }

    fn progress(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.inner.progress() {
                return Some(event);
            }
            let mut net = self.network.lock();
            let next_ns = net.next_ns()?;
            self.clock.advance_to(next_ns.max(self.clock.now_ns()));
            net.arrive();
        }
    }

    fn wait(&mut self, _: Duration) {
        // Time passes when somebody looks.
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }
}

#[test]
fn conforms() {
    let mut seed = 0;
    transport_conformance::run(&mut || {
        seed += 1;
        let clock = Arc::new(WorldClock::default());
        let weather = Weather { delay_ns: MS, ..Weather::default() };
        let net = Net::new(Arc::clone(&clock), seed, weather);
        let network: Network = Arc::new(Mutex::new(net));
        let station = |host| -> Box<dyn Transport> {
            let inner = Net::transport(&network, host);
            Box::new(Driven { inner, network: Arc::clone(&network), clock: Arc::clone(&clock) })
        };
        (station(0), station(1))
    });
}
