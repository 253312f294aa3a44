//! A transport around another one: hands everything on but what its [`Around`] does in another way. So a
//! method that the port gets is written once for all tests that stand between a driver and its transport.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kvhints::transfer::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Unsettled, Waker,
};

/// What a test does in its own way.
pub trait Around: Send {
    /// The transport inside.
    fn inner(&self) -> &dyn Transport;

    /// The same.
    fn inner_mut(&mut self) -> &mut dyn Transport;

    fn host(&self, address: &[u8]) -> Option<IpAddr> {
        self.inner().host(address)
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        self.inner_mut().connect(address)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        self.inner_mut().send_message(peer, bytes)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        self.inner_mut().send_data(peer, header, segments)
    }

    fn room(&mut self, peer: PeerId, segments: &[Segment]) -> Option<&mut [u8]> {
        self.inner_mut().room(peer, segments)
    }

    fn send_room(&mut self, peer: PeerId, header: Vec<u8>) -> Result<Ticket, TransportError> {
        self.inner_mut().send_room(peer, header)
    }

    fn read_data(&mut self, data: DataId, take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        self.inner_mut().read_data(data, take)
    }

    fn register(&mut self, memory: Segment) {
        self.inner_mut().register(memory);
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        self.inner_mut().receive_data(data, memory)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.inner_mut().disconnect(peer);
    }

    fn progress(&mut self) -> Option<Event> {
        self.inner_mut().progress()
    }

    fn wait(&mut self, timeout: Duration) {
        self.inner_mut().wait(timeout);
    }
}

/// The transport that the driver gets.
pub struct Forwarding<T>(pub T);

impl<T: Around> Transport for Forwarding<T> {
    fn name(&self) -> &'static str {
        self.0.inner().name()
    }

    fn address(&self) -> &[u8] {
        self.0.inner().address()
    }

    fn host(&self, address: &[u8]) -> Option<IpAddr> {
        self.0.host(address)
    }

    fn describe(&self, peer: PeerId) -> String {
        self.0.inner().describe(peer)
    }

    fn connect(&mut self, address: &[u8]) -> Result<PeerId, TransportError> {
        self.0.connect(address)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        self.0.send_message(peer, bytes)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        self.0.send_data(peer, header, segments)
    }

    fn room(&mut self, peer: PeerId, segments: &[Segment]) -> Option<&mut [u8]> {
        self.0.room(peer, segments)
    }

    fn send_room(&mut self, peer: PeerId, header: Vec<u8>) -> Result<Ticket, TransportError> {
        self.0.send_room(peer, header)
    }

    fn read_data(&mut self, data: DataId, take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        self.0.read_data(data, take)
    }

    fn register(&mut self, memory: Segment) {
        self.0.register(memory);
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        self.0.receive_data(data, memory)
    }

    fn discard_data(&mut self, data: DataId) {
        self.0.inner_mut().discard_data(data);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.0.disconnect(peer);
    }

    fn progress(&mut self) -> Option<Event> {
        self.0.progress()
    }

    fn wait(&mut self, timeout: Duration) {
        self.0.wait(timeout);
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.0.inner().waker()
    }
}
