//! The gate before source and destination: a transport that lets nothing through between peers that
//! have not proven to each other what they have to.
//!
//! With keys, every connection begins with the exchange of [`super::session`], whoever connects.
//! Requests wait until the source has proven itself; a source hears nobody before its peer has.
//! Without keys a source serves processes of its own machine only, unless it is told to serve
//! anybody: where its address leads from other machines, nobody.
//!
//! Guards: until then a request is answered with *unauthenticated* whatever it names, data is
//! refused, and nothing reaches the sides behind the gate. Waiting requests and unproven peers are
//! bounded.
//! Never does: retry, time out, or look into what it lets through.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::hint::signature::Code;
use crate::telemetry::log::{self, Value};
use crate::telemetry::Metrics;

use super::protocol::{Answer, Message};
use super::reason::RefuseReason;
use super::session::{Nonce, Role, SessionKeys, SessionMessage, Transcript};
use super::transport::{
    DataId, Event, PeerId, Segment, Ticket, Transport, TransportError, Unsettled, Waker,
};

/// Messages that wait for one source's proof.
const MAX_WAITING: usize = 1024;
/// Peers that have not proven themselves.
const MAX_UNPROVEN: usize = 1024;
/// Tickets of messages that waited; the transport's own count up from 1.
const FIRST_TICKET: u64 = 1 << 63;

/// Who is served.
#[derive(Clone)]
pub enum Peers {
    /// Who proves to have one of these keys; this side proves to have the one of that id.
    WithKey(Arc<dyn SessionKeys>, String),
    /// Processes of this machine.
    OfThisMachine,
    /// Anybody.
    Anybody,
}

/// A transport behind a gate.
pub struct Gate {
    inner: Box<dyn Transport>,
    policy: Peers,
    metrics: Arc<Metrics>,
    /// Whether only processes of this machine can reach the transport.
    is_local: bool,
    peers: BTreeMap<PeerId, Standing>,
    /// What waited and was handed on: its ticket at the transport, and the one its sender has.
    handed_on: BTreeMap<Ticket, Ticket>,
    events: VecDeque<Event>,
    last_ticket: u64,
}

/// How a peer stands to this side. One that connected to it and said nothing of a session yet is not
/// known here.
enum Standing {
    /// This side connected to it, and waits for its proof.
    Connecting(Connecting),
    /// This side connected to it, and hears it.
    Source,
    /// It connected to this side, said hello, and was challenged.
    Challenged(Transcript),
    /// It connected to this side, and is heard.
    Destination,
}

struct Connecting {
    address: Vec<u8>,
    nonce: Nonce,
    waiting: Vec<(Ticket, Vec<u8>)>,
}

impl Gate {
    /// A gate before `inner`.
    pub fn new(inner: Box<dyn Transport>, policy: Peers, metrics: Arc<Metrics>) -> Self {
        // Where an address leads to a host, that host is what peers connect to.
        let is_local = inner.host(inner.address()).is_none_or(|host| host.is_loopback());
        Self {
            inner,
            policy,
            metrics,
            is_local,
            peers: BTreeMap::new(),
            handed_on: BTreeMap::new(),
            events: VecDeque::new(),
            last_ticket: FIRST_TICKET,
        }
    }

    /// Who is served without a proof, as a word of the log; `None` where all have to prove themselves.
    pub fn served_without_proof(&self) -> Option<&'static str> {
        match (&self.policy, self.is_local) {
            (Peers::WithKey(..), _) => None,
            (Peers::Anybody, _) => Some("anybody"),
            (Peers::OfThisMachine, true) => Some("this_machine"),
            (Peers::OfThisMachine, false) => Some("nobody"),
        }
    }

    /// Only who was heard is sent anything.
    fn judge_open(&self, peer: PeerId) -> Result<(), TransportError> {
        match self.is_open_to(peer) {
            true => Ok(()),
            false => Err(TransportError::PeerGone("it has not proven itself".to_owned())),
        }
    }

    /// Whether what a peer sends reaches the sides behind the gate.
    fn is_open_to(&self, peer: PeerId) -> bool {
        match (self.peers.get(&peer), &self.policy) {
            (Some(Standing::Source | Standing::Destination), _) => true,
            (_, Peers::WithKey(..)) => false,
            (_, Peers::OfThisMachine) => self.is_local,
            (_, Peers::Anybody) => true,
        }
    }

    /// What a message is to the sides behind the gate, if anything.
    fn message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Option<Event> {
        match self.peers.get(&peer) {
            Some(Standing::Connecting(_)) => {
                self.source_said(peer, &bytes);
                None
            }
            Some(Standing::Source) => Some(Event::Message { peer, bytes }),
            _ if SessionMessage::is_one(&bytes) => {
                self.caller_said(peer, &bytes);
                None
            }
            _ if self.is_open_to(peer) => Some(Event::Message { peer, bytes }),
            _ => {
                // The same whatever it names. Who says anything else is told nothing.
                if let Ok(Message::Fetch(request)) = Message::decode(&bytes) {
                    let reason = RefuseReason::Unauthenticated;
                    self.metrics.source_requests_refused.add(reason.index(), 1);
                    let word = Value::Word(Metrics::SOURCE_REFUSALS[reason.index()]);
                    self.metrics.log.write(log::Event::SourceRequestRefused, &[("reason", word)]);
                    let answer = Message::Answer(request.key, Answer::Refused(reason)).encode();
                    // A peer that is gone needs no answer.
                    let _ = self.inner.send_message(peer, answer);
                }
                None
            }
        }
    }

    /// A source that this side connected to says its first word: its proof, or it is none of ours.
    fn source_said(&mut self, peer: PeerId, bytes: &[u8]) {
        let Some(Standing::Connecting(connecting)) = self.peers.remove(&peer) else { return };
        let Some(code) = self.answer_to_challenge(&connecting, bytes) else {
            return self.give_up(peer, connecting);
        };
        self.peers.insert(peer, Standing::Source);
        let proof = SessionMessage::Proof { code }.encode();
        // A peer that is gone says so by its own event.
        let _ = self.inner.send_message(peer, proof);
        for (ticket, bytes) in connecting.waiting {
            match self.inner.send_message(peer, bytes) {
                Ok(inner) => {
                    self.handed_on.insert(inner, ticket);
                }
                Err(error) => self.events.push_back(Event::Sent { ticket, result: Err(error) }),
            }
        }
    }

    /// This side's proof, when the source's is good.
    fn answer_to_challenge(&self, connecting: &Connecting, bytes: &[u8]) -> Option<Code> {
        let Peers::WithKey(keys, key_id) = &self.policy else { return None };
        let Ok(SessionMessage::Challenge { nonce, code }) = SessionMessage::decode(bytes) else {
            return None;
        };
        let transcript =
            Transcript { key_id: key_id.clone(), destination: connecting.nonce, source: nonce };
        let address = &connecting.address;
        if !transcript.verifies(&**keys, Role::Source, address, &code) {
            return None;
        }
        transcript.code(&**keys, Role::Destination, address)
    }

    /// Cuts a source off that did not prove itself. Its requests learn why.
    fn give_up(&mut self, peer: PeerId, connecting: Connecting) {
        self.inner.disconnect(peer);
        let why = "the source did not prove that it has a key of this host's";
        let error = TransportError::PeerGone(why.to_owned());
        for (ticket, bytes) in connecting.waiting {
            if let Ok(Message::Fetch(request)) = Message::decode(&bytes) {
                let refused = Answer::Refused(RefuseReason::Unauthenticated);
                let bytes = Message::Answer(request.key, refused).encode();
                self.events.push_back(Event::Message { peer, bytes });
            }
            self.events.push_back(Event::Sent { ticket, result: Err(error.clone()) });
        }
        self.events.push_back(Event::PeerGone { peer, error });
    }

    /// A peer that connected to this side speaks of a session.
    fn caller_said(&mut self, peer: PeerId, bytes: &[u8]) {
        match (SessionMessage::decode(bytes), self.peers.remove(&peer)) {
            (Ok(SessionMessage::Hello { key_id, nonce }), None) => {
                let answer = self.challenge(peer, key_id, nonce);
                let answer = answer.unwrap_or(SessionMessage::Refused).encode();
                // A peer that is gone says so by its own event.
                let _ = self.inner.send_message(peer, answer);
            }
            (Ok(SessionMessage::Proof { code }), Some(Standing::Challenged(transcript)))
                if self.has_proven(&transcript, &code) =>
            {
                self.peers.insert(peer, Standing::Destination);
            }
            // Out of turn, unreadable, or a wrong code.
            _ => {
                self.inner.disconnect(peer);
                let error = TransportError::PeerGone("it broke the session's rules".to_owned());
                self.events.push_back(Event::PeerGone { peer, error });
            }
        }
    }

    /// The source's proof and question, for a key that it has.
    fn challenge(&mut self, peer: PeerId, key_id: String, hello: Nonce) -> Option<SessionMessage> {
        let Peers::WithKey(keys, _) = &self.policy else { return None };
        let challenged = |standing: &&Standing| matches!(standing, Standing::Challenged(_));
        if self.peers.values().filter(challenged).count() >= MAX_UNPROVEN {
            return None;
        }
        let transcript = Transcript { key_id, destination: hello, source: new_nonce()? };
        let code = transcript.code(&**keys, Role::Source, self.inner.address())?;
        let nonce = transcript.source;
        self.peers.insert(peer, Standing::Challenged(transcript));
        Some(SessionMessage::Challenge { nonce, code })
    }

    fn has_proven(&self, transcript: &Transcript, code: &Code) -> bool {
        let Peers::WithKey(keys, _) = &self.policy else { return false };
        transcript.verifies(&**keys, Role::Destination, self.inner.address(), code)
    }

    /// Forgets a peer; what waited for it ends with `error`.
    fn forget(&mut self, peer: PeerId, error: &TransportError) {
        if let Some(Standing::Connecting(connecting)) = self.peers.remove(&peer) {
            let ended = connecting
                .waiting
                .into_iter()
                .map(|(ticket, _)| Event::Sent { ticket, result: Err(error.clone()) });
            self.events.extend(ended);
        }
    }
}

/// Fresh from the system; `None` when it gives none.
fn new_nonce() -> Option<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).ok()?;
    Some(nonce)
}

impl Transport for Gate {
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
        let Peers::WithKey(_, key_id) = &self.policy else {
            let peer = self.inner.connect(address)?;
            self.peers.insert(peer, Standing::Source);
            return Ok(peer);
        };
        let nonce = new_nonce().ok_or_else(|| {
            TransportError::Unavailable("the system gives no random numbers".to_owned())
        })?;
        let hello = SessionMessage::Hello { key_id: key_id.clone(), nonce }.encode();
        let peer = self.inner.connect(address)?;
        let connecting = Connecting { address: address.to_vec(), nonce, waiting: Vec::new() };
        self.peers.insert(peer, Standing::Connecting(connecting));
        if let Err(error) = self.inner.send_message(peer, hello) {
            self.disconnect(peer);
            return Err(error);
        }
        Ok(peer)
    }

    fn send_message(&mut self, peer: PeerId, bytes: Vec<u8>) -> Result<Ticket, TransportError> {
        let Some(Standing::Connecting(connecting)) = self.peers.get_mut(&peer) else {
            return self.inner.send_message(peer, bytes);
        };
        if connecting.waiting.len() >= MAX_WAITING {
            let why = "too many messages wait for its proof".to_owned();
            return Err(TransportError::PeerGone(why));
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        connecting.waiting.push((ticket, bytes));
        Ok(ticket)
    }

    fn send_data(
        &mut self,
        peer: PeerId,
        header: Vec<u8>,
        segments: Vec<Segment>,
    ) -> Result<Ticket, TransportError> {
        self.judge_open(peer)?;
        self.inner.send_data(peer, header, segments)
    }

    fn room(&mut self, peer: PeerId, segments: &[Segment]) -> Option<&mut [u8]> {
        if self.is_open_to(peer) {
            self.inner.room(peer, segments)
        } else {
            None
        }
    }

    fn send_room(&mut self, peer: PeerId, header: Vec<u8>) -> Result<Ticket, TransportError> {
        self.judge_open(peer)?;
        self.inner.send_room(peer, header)
    }

    fn read_data(&mut self, data: DataId, take: &mut dyn FnMut(Unsettled<'_>)) -> bool {
        self.inner.read_data(data, take)
    }

    fn register(&mut self, memory: Segment) {
        // A key to all of it is only for those who have proven that they may have what is in it.
        if let Peers::WithKey(..) = self.policy {
            self.inner.register(memory);
        }
    }

    fn receive_data(&mut self, data: DataId, memory: Segment) -> Result<Ticket, TransportError> {
        self.inner.receive_data(data, memory)
    }

    fn discard_data(&mut self, data: DataId) {
        self.inner.discard_data(data);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.forget(peer, &TransportError::Cancelled);
        self.events
            .retain(|event| !matches!(event, Event::Message { peer: from, .. } if *from == peer));
        self.inner.disconnect(peer);
    }

    fn progress(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.inner.progress()? {
                Event::Message { peer, bytes } => {
                    let event = self.message(peer, bytes);
                    if event.is_some() {
                        return event;
                    }
                }
                Event::Data { peer, id, .. } if !self.is_open_to(peer) => {
                    self.inner.discard_data(id);
                }
                Event::PeerGone { peer, error } => {
                    self.forget(peer, &error);
                    self.events.push_back(Event::PeerGone { peer, error });
                }
                Event::Sent { ticket, result } => {
                    let ticket = self.handed_on.remove(&ticket).unwrap_or(ticket);
                    return Some(Event::Sent { ticket, result });
                }
                event => return Some(event),
            }
        }
    }

    fn wait(&mut self, timeout: Duration) {
        // Events of the gate's own are taken before anybody waits.
        let timeout = if self.events.is_empty() { timeout } else { Duration::ZERO };
        self.inner.wait(timeout);
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }
}
