//! What drives a transceiver's transfers: the only place where transport, source and destination
//! meet. Usually the library's thread `kvhints-transfer` does, for its whole life; whoever has a
//! driver and no such thread calls [`Driver::round`] instead, and deadlines hold by the next call.
//!
//! Guards: a peer whose message cannot be read is cut off and nothing else happens; a panic poisons
//! the context, and however the driver ends, every attempt gets its outcome.
//! Never does: wait for anything but its transport, or call the host (but for the clock). What a device
//! copies is asked about now and then: a device wakes nobody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::attempt::{Attempt, Origin};
use super::destination::Destination;
use super::protocol::Message;
use super::reason::FailReason;
use super::source::Source;
use super::state_source::{StateResult, StateSource};
use super::transport::{Event, PeerId, Transport, Waker};
use crate::clock::Clock;
use crate::poison::Poison;
use crate::telemetry::transfer_gauges::{TransferGauges, TransferNumbers};
use crate::telemetry::{log, nvtx, Metrics};

/// Events handled before time and sends are looked at again.
const EVENTS_PER_ROUND: usize = 64;
/// The longest sleep while a deadline is pending: a host's clock may run faster than ours.
const SLEEP_WITH_DEADLINE: Duration = Duration::from_millis(50);
/// The longest sleep while nothing is pending.
const SLEEP_IDLE: Duration = Duration::from_secs(10);
/// How often a device is asked while it copies: a run takes it about as long.
const SLEEP_WHILE_COPYING: Duration = Duration::from_micros(20);

/// What other threads ask of the transfer thread.
pub(super) enum Command {
    /// Begin an attempt.
    Begin(Arc<Attempt>),
    /// The source's state of an attempt came, or will not.
    Metadata(u64, StateResult),
    /// The host wants an attempt no more.
    Cancel(u64),
}

/// Commands on their way to the thread. Bounded by the attempts, which are bounded: each has at
/// most one of each kind here.
pub(super) struct Mailbox {
    queue: Mutex<Queue>,
    waker: Arc<dyn Waker>,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    is_stopping: bool,
    is_closed: bool,
}

impl Mailbox {
    pub(super) fn new(waker: Arc<dyn Waker>) -> Self {
        Self { queue: Mutex::new(Queue::default()), waker }
    }

    /// Hands a command over, or back when the thread takes no more.
    pub(super) fn send(&self, command: Command) -> Result<(), Command> {
        {
            let mut queue = self.queue.lock();
            if queue.is_closed || queue.is_stopping {
                return Err(command);
            }
            queue.commands.push_back(command);
        }
        self.waker.wake();
        Ok(())
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.queue.lock().is_stopping = true;
        self.waker.wake();
    }

    /// What came since the last time; `None` when the thread is to end.
    fn take(&self) -> Option<VecDeque<Command>> {
        let mut queue = self.queue.lock();
        (!queue.is_stopping).then(|| std::mem::take(&mut queue.commands))
    }

    /// Refuses everything from now on; what was not taken.
    fn close(&self) -> VecDeque<Command> {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        std::mem::take(&mut queue.commands)
    }

    fn is_empty(&self) -> bool {
        let queue = self.queue.lock();
        queue.commands.is_empty() && !queue.is_stopping
    }
}

/// What a transceiver is doing, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Sources connected to.
    pub sources: usize,
    /// Destinations that asked for something.
    pub destinations: usize,
    /// Requests of destinations being served.
    pub requests_in_flight: usize,
    /// Which wires lead to each source.
    pub wires: String,
}

/// What a round left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// There may be more to do at once.
    Busy,
    /// Nothing, until the transport's waker is called or the deadline comes.
    Idle,
    /// As above, but a device copies: the next round, soon, may see that it is done.
    Copying,
    /// It takes no more: end it.
    Stopped,
}

/// What drives one transceiver's transfers. Dropping it ends everything: every attempt has its outcome
/// then, and nothing of the host's is touched any more.
pub struct Driver {
    parts: Option<Parts>,
    poison: Arc<Poison>,
}

/// What a driver is made of.
pub(super) struct Parts {
    pub(super) transport: Box<dyn Transport>,
    pub(super) source: Source,
    pub(super) destination: Destination,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) states: Arc<dyn StateSource>,
    pub(super) status: Arc<Mutex<Status>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) gauges: TransferGauges,
    /// What the published wires were made from: sources, and attempts that had ended.
    pub(super) wires_of: (Vec<PeerId>, u64),
}

impl Driver {
    pub(super) fn new(parts: Parts, poison: Arc<Poison>) -> Self {
        Self { parts: Some(parts), poison }
    }

    /// The thread's whole life.
    pub(super) fn live(mut self) {
        nvtx::name_this_thread(c"kvhints-transfer");
        loop {
            match self.round() {
                Round::Busy => {}
                Round::Idle => self.sleep(),
                Round::Copying => std::thread::sleep(SLEEP_WHILE_COPYING),
                Round::Stopped => return,
            }
        }
    }

    /// Does what is due. A panic poisons the context, and then nothing is done any more.
    pub fn round(&mut self) -> Round {
        let Some(parts) = &mut self.parts else { return Round::Stopped };
        self.poison.catch(|| parts.work()).unwrap_or(Round::Stopped)
    }

    /// When time alone makes the next round worth while; `u64::MAX` for never.
    pub fn deadline_ns(&self) -> u64 {
        self.parts.as_ref().map_or(u64::MAX, Parts::deadline_ns)
    }

    fn sleep(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.sleep();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let reason = if self.poison.is_set() { FailReason::Fault } else { FailReason::Shutdown };
        // A transport that panics when it is dropped: pollers learn it from the context.
        if Poison::default().catch(|| parts.end(reason)).is_err() {
            self.poison.set_at("transfer/driver.rs: the transport's end".to_owned());
        }
    }
}

impl Parts {
    fn work(&mut self) -> Round {
        let Some(commands) = self.mailbox.take() else { return Round::Stopped };
        commands.into_iter().for_each(|command| self.obey(command));
        let is_idle = self.handle_events();
        let now_ns = self.clock.monotonic_ns();
        let transport = self.transport.as_mut();
        self.destination.see_copied(now_ns, transport);
        self.destination.tick(now_ns, transport);
        self.source.tick(now_ns, transport);
        let has_more = self.source.pump(transport);
        self.tell_each_other(now_ns);
        self.publish_status();
        let is_copying = self.source.is_gathering() || self.destination.is_scattering();
        match is_idle && !has_more && self.mailbox.is_empty() {
            true if is_copying => Round::Copying,
            true => Round::Idle,
            false => Round::Busy,
        }
    }

    fn deadline_ns(&self) -> u64 {
        self.destination.deadline_ns().min(self.source.deadline_ns())
    }

    fn sleep(&mut self) {
        let deadline_ns = self.deadline_ns();
        let longest = match deadline_ns {
            u64::MAX => SLEEP_IDLE,
            _ => SLEEP_WITH_DEADLINE,
        };
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.clock.monotonic_ns()));
        self.transport.wait(left.min(longest));
    }

    fn obey(&mut self, command: Command) {
        let now_ns = self.clock.monotonic_ns();
        let transport = self.transport.as_mut();
        match command {
            Command::Begin(attempt) => {
                self.destination.begin(Arc::clone(&attempt));
                self.fetch_metadata(&attempt);
            }
            Command::Metadata(sequence, state) => {
                self.destination.metadata(now_ns, transport, sequence, state);
            }
            Command::Cancel(sequence) => self.destination.cancel(now_ns, transport, sequence),
        }
    }

    fn fetch_metadata(&mut self, attempt: &Attempt) {
        let sequence = attempt.order.sequence;
        let now_ns = self.clock.monotonic_ns();
        match &attempt.order.origin {
            Origin::State(state) => {
                let state = Ok(Arc::clone(state));
                self.destination.metadata(now_ns, self.transport.as_mut(), sequence, state);
            }
            Origin::Endpoint(endpoint) => {
                let deadline_ns = attempt.deadline_ns();
                let timeout = Duration::from_nanos(deadline_ns.saturating_sub(now_ns));
                let mailbox = Arc::clone(&self.mailbox);
                let reply = Box::new(move |state| {
                    // A thread that takes no more has ended the attempt itself.
                    let _ = mailbox.send(Command::Metadata(sequence, state));
                });
                self.states.request(endpoint, timeout, reply);
            }
        }
    }

    /// Handles what the transport has to tell; whether that was all.
    fn handle_events(&mut self) -> bool {
        for _ in 0..EVENTS_PER_ROUND {
            let Some(event) = self.transport.progress() else { return true };
            self.handle(event);
        }
        false
    }

    fn handle(&mut self, event: Event) {
        let now_ns = self.clock.monotonic_ns();
        let transport = self.transport.as_mut();
        match event {
            Event::Message { peer, bytes } => match Message::decode(&bytes) {
                Ok(Message::Fetch(request)) => {
                    self.source.fetch(now_ns, transport, peer, request);
                }
                Ok(Message::Cancel(key)) => self.source.cancel(now_ns, peer, key),
                Ok(Message::Answer(key, answer)) => {
                    self.destination.answered(now_ns, transport, peer, key, answer);
                }
                Err(unreadable) if unreadable.request.is_some() => {
                    self.metrics.transfer_messages_unreadable.add(0, 1);
                    self.source.refuse_unreadable(transport, peer, unreadable);
                }
                Err(_) => self.cut_off(now_ns, peer),
            },
            Event::Data { peer, header, len, id } => {
                let announced =
                    self.destination.announced(now_ns, transport, peer, &header, len, id);
                if announced.is_err() {
                    self.cut_off(now_ns, peer);
                }
            }
            Event::Sent { ticket, result } => self.source.sent(ticket, result.is_ok()),
            Event::Received { ticket, result } => {
                self.destination.received(now_ns, transport, ticket, result);
            }
            Event::PeerGone { peer, .. } => {
                self.source.peer_gone(peer);
                self.destination.peer_gone(now_ns, transport, peer);
            }
        }
    }

    /// A peer sent what no peer of ours sends.
    fn cut_off(&mut self, now_ns: u64, peer: PeerId) {
        self.metrics.transfer_messages_unreadable.add(0, 1);
        self.metrics.log.write(log::Event::PeerCutOff, &[]);
        self.transport.disconnect(peer);
        self.source.peer_gone(peer);
        self.destination.peer_gone(now_ns, self.transport.as_mut(), peer);
    }

    /// One side's news for the other.
    fn tell_each_other(&mut self, now_ns: u64) {
        for peer in self.source.take_disconnected() {
            self.destination.peer_gone(now_ns, self.transport.as_mut(), peer);
        }
        for peer in self.destination.take_disconnected() {
            self.source.peer_gone(peer);
        }
        for endpoint in self.destination.take_stale_endpoints() {
            self.states.forget(&endpoint);
        }
    }

    fn publish_status(&mut self) {
        let mut sources: Vec<PeerId> = self.destination.peers().collect();
        sources.sort_unstable();
        self.gauges.set(TransferNumbers {
            sources: sources.len(),
            destinations: self.source.peer_count(),
            requests_served: self.source.requests_in_flight(),
            runs_waiting: self.destination.runs_waiting(),
            staging_bytes: self.destination.staging_bytes(),
        });
        let mut status = self.status.lock();
        status.sources = sources.len();
        status.destinations = self.source.peer_count();
        status.requests_in_flight = self.source.requests_in_flight();
        // Some transports choose their wires with the first bytes.
        let seen = (sources, self.destination.ended_count());
        if seen != self.wires_of {
            let wires: Vec<String> =
                seen.0.iter().map(|peer| self.transport.describe(*peer)).collect();
            status.wires = wires.join("; ");
            self.wires_of = seen;
        }
    }

    /// Ends what is left. The transport goes first: after it nothing is read or written any more,
    /// so pins and blocks can be given back.
    fn end(self, reason: FailReason) {
        let left = self.mailbox.close();
        let now_ns = self.clock.monotonic_ns();
        drop(self.transport);
        drop(self.source);
        self.destination.shut_down(now_ns, reason);
        for command in left {
            if let Command::Begin(attempt) = command {
                attempt.shut_down(now_ns, reason);
            }
        }
        *self.status.lock() = Status::default();
    }
}
