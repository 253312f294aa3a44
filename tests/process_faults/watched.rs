//! A transport that tells in which state the protocol is, as seen from what passes through it.
//!
//! What a message leads to is done when the driver asks for the next one; states that begin there are
//! told then. Never changes, drops or delays anything, but while the process is held in a state.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kvhints::transfer::protocol::{Answer, Message};
use kvhints::transfer::session::SessionMessage;
use kvhints::transfer::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Waker,
};

use crate::link::Link;
use crate::states::Side;

pub struct Watched {
    inner: Box<dyn Transport>,
    side: Side,
    /// Runs of a whole fetch.
    runs: usize,
    link: Arc<Link>,
    /// Sends of data that have not ended.
    sends: Vec<Ticket>,
    begun: usize,
    ended: usize,
    /// What begins when the last event has been handled.
    next: Option<&'static str>,
}

impl Watched {
    pub fn new(inner: Box<dyn Transport>, side: Side, runs: usize, link: Arc<Link>) -> Self {
        Self { inner, side, runs, link, sends: Vec::new(), begun: 0, ended: 0, next: None }
    }

    fn begins_anew(&mut self) {
        (self.begun, self.ended, self.next) = (0, 0, None);
        self.sends.clear();
    }

    /// Before the driver handles it.
    fn came(&mut self, event: &Event) {
        match (self.side, event) {
            (Side::Source, Event::Message { bytes, .. }) => {
                if let Ok(Message::Fetch(_)) = Message::decode(bytes) {
                    self.begins_anew();
                    self.link.at("asked");
                }
            }
            (Side::Destination, Event::Message { bytes, .. }) => {
                if let Ok(Message::Answer(_, Answer::Accepted { .. })) = Message::decode(bytes) {
                    self.next = Some("accepted");
                }
            }
            (Side::Destination, Event::Received { result: Ok(()), .. }) => {
                self.ended += 1;
                // After the last one all is there, which the host tells.
                self.next = (self.ended < self.runs).then_some("placing");
            }
            (Side::Source, Event::Sent { ticket, result }) => {
                let was_open = self.sends.len();
                self.sends.retain(|open| open != ticket);
                if self.sends.len() < was_open && result.is_ok() {
                    self.ended += 1;
                    let is_all = self.ended == self.runs;
                    self.next = Some(if is_all { "all_sent" } else { "partly_sent" });
                }
            }
            _ => {}
        }
    }
}

impl Transport for Watched {
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
        self.link.at("connecting");
        self.inner.connect(address)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        let after = if SessionMessage::is_one(&bytes) {
            match SessionMessage::decode(&bytes) {
                Ok(SessionMessage::Hello { .. }) => Some("proving"),
                Ok(SessionMessage::Challenge { .. }) => Some("challenged"),
                _ => None,
            }
        } else {
            match Message::decode(&bytes) {
                Ok(Message::Fetch(_)) => {
                    self.begins_anew();
                    Some("asked")
                }
                Ok(Message::Answer(_, Answer::Accepted { .. })) => {
                    self.link.at("pinned");
                    Some("answered")
                }
                _ => None,
            }
        };
        let sent = self.inner.send_message(peer, bytes);
        if let Some(state) = after {
            self.link.at(state);
        }
        sent
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        let ticket = self.inner.send_data(peer, header, segments)?;
        self.sends.push(ticket);
        self.begun += 1;
        if self.begun == 1 {
            self.link.at("sending");
        }
        Ok(ticket)
    }

    fn register(&mut self, memory: Segment) {
        self.inner.register(memory);
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        let ticket = self.inner.receive_data(data, memory)?;
        self.begun += 1;
        if self.begun == 1 {
            self.link.at("receiving");
        }
        Ok(ticket)
    }

    fn discard_data(&mut self, data: DataId) {
        self.inner.discard_data(data);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.inner.disconnect(peer);
    }

    fn progress(&mut self) -> Option<Event> {
        if let Some(state) = self.next.take() {
            self.link.at(state);
        }
        let event = self.inner.progress()?;
        self.came(&event);
        Some(event)
    }

    fn wait(&mut self, timeout: Duration) {
        self.inner.wait(timeout);
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }
}
