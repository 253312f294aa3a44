//! What is worth a line in the host's log: a closed list of events, each with a level and fields.
//!
//! Guards: a field is a number or a word of the library's own, so that nothing of a hint can get
//! into a log; each event is written at most [`BURST`] times at once and ten times a second, and the
//! next line says how many were left out; without a sink an event costs one load.
//! Never does: write anywhere itself, or hold a lock while the sink runs.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::clock::Clock;

/// Lines of one event that may follow each other without a pause.
pub const BURST: u64 = 10;
/// The pause that each line costs.
const PAUSE_NS: u64 = 100_000_000;
/// The most that the fields of one event have as text.
const FIELDS_MAX_BYTES: usize = 512;

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// The library is at fault, or a worker's ranks are.
    Error = 1,
    /// Something was lost that would have been of use; requests go on.
    Warning = 2,
    /// What operators may want to know of normal work.
    Info = 3,
    /// What happened to each request.
    Debug = 4,
}

/// What can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// The context is poisoned.
    Poisoned,
    /// A broadcast round failed on this rank.
    BroadcastFailed,
    /// A prefetch failed.
    PrefetchFailed,
    /// A peer sent what no peer sends, and was cut off.
    PeerCutOff,
    /// A transceiver has no keys of its peers.
    PeersUnauthenticated,
    /// A hint was not admitted.
    HintIgnored,
    /// A hint led to no fetch.
    PlanRefused,
    /// A peer's request for blocks was refused.
    SourceRequestRefused,
    /// A transceiver was created.
    TransceiverCreated,
    /// A prefetch ended, and did not fail.
    PrefetchEnded,
}

impl Event {
    /// All, by number.
    pub const ALL: [Self; 10] = [
        Self::Poisoned,
        Self::BroadcastFailed,
        Self::PrefetchFailed,
        Self::PeerCutOff,
        Self::PeersUnauthenticated,
        Self::HintIgnored,
        Self::PlanRefused,
        Self::SourceRequestRefused,
        Self::TransceiverCreated,
        Self::PrefetchEnded,
    ];

    /// Its level, its name, and what it means.
    const fn told(self) -> (Level, &'static str, &'static str) {
        match self {
            Self::Poisoned => (
                Level::Error,
                "poisoned",
                "a fault of the library was caught; destroy the context and create a new one",
            ),
            Self::BroadcastFailed => (
                Level::Error,
                "broadcast_failed",
                "a broadcast round failed on this rank; see the status of the call",
            ),
            Self::PrefetchFailed => (
                Level::Warning,
                "prefetch_failed",
                "blocks could not be fetched; the request goes on as without a hint",
            ),
            Self::PeerCutOff => (
                Level::Warning,
                "peer_cut_off",
                "a peer sent what could not be read; the connection was closed",
            ),
            Self::PeersUnauthenticated => (
                Level::Warning,
                "peers_unauthenticated",
                "a transceiver has no keys of its peers; see who is served, or give it a key ring",
            ),
            Self::HintIgnored => (
                Level::Info,
                "hint_ignored",
                "a hint was not admitted; the request goes on without",
            ),
            Self::PlanRefused => {
                (Level::Info, "plan_refused", "a hint led to no fetch; the request goes on without")
            }
            Self::SourceRequestRefused => {
                (Level::Info, "source_request_refused", "a peer's request for blocks was refused")
            }
            Self::TransceiverCreated => {
                (Level::Info, "transceiver_created", "this rank takes part in transfers")
            }
            Self::PrefetchEnded => (Level::Debug, "prefetch_ended", "a prefetch has its outcome"),
        }
    }

    /// Its level.
    pub const fn level(self) -> Level {
        self.told().0
    }

    /// Its stable name.
    pub const fn name(self) -> &'static str {
        self.told().1
    }
}

/// What a field says.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A word of the library.
    Word(&'static str),
    /// A place in the library's source.
    Place(&'a str),
}

/// One line, as a sink gets it.
#[derive(Debug)]
pub struct Record<'a> {
    /// How much it matters.
    pub level: Level,
    /// The event's stable name.
    pub event: &'static str,
    /// What it means, for people.
    pub message: &'static str,
    /// The event's fields, as one JSON object.
    pub fields: &'a str,
    /// How many lines of the same event were left out since the last one.
    pub left_out: u64,
    /// When, on the context's monotonic clock.
    pub time_ns: u64,
}

/// Takes lines. Called from any thread, without a lock.
pub trait Sink: Send + Sync {
    /// Takes one line.
    fn write(&self, record: &Record<'_>);
}

/// Bounds the lines of one event (the generic cell rate algorithm, in one word).
#[derive(Debug, Default)]
struct Limit {
    /// When the pauses of all lines so far are over.
    paid_until_ns: AtomicU64,
    left_out: AtomicU64,
}

impl Limit {
    /// How many were left out before this line; `None` when it is left out itself.
    fn pass(&self, now_ns: u64) -> Option<u64> {
        let pay = |paid_until_ns: u64| {
            let from_ns = paid_until_ns.max(now_ns);
            let may_pass = from_ns - now_ns <= (BURST - 1) * PAUSE_NS;
            may_pass.then(|| from_ns.saturating_add(PAUSE_NS))
        };
        let paid = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        if paid.is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

/// Who takes the lines.
struct Listener {
    level: Level,
    clock: Arc<dyn Clock>,
    sink: Box<dyn Sink>,
}

/// A context's log.
#[derive(Default)]
pub struct Log {
    listener: OnceLock<Listener>,
    limits: [Limit; Event::ALL.len()],
}

impl fmt::Debug for Log {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Log").field("has_sink", &self.listener.get().is_some()).finish()
    }
}

impl Log {
    /// Lines up to this level go to `sink` from now on; `Err` gives it back when there is one.
    pub fn set_sink(
        &self,
        level: Level,
        clock: Arc<dyn Clock>,
        sink: Box<dyn Sink>,
    ) -> Result<(), Box<dyn Sink>> {
        let listener = Listener { level, clock, sink };
        self.listener.set(listener).map_err(|listener| listener.sink)
    }

    /// Tells of an event.
    pub fn write(&self, event: Event, fields: &[(&'static str, Value<'_>)]) {
        let Some(listener) = self.listener.get() else { return };
        let (level, name, message) = event.told();
        if level > listener.level {
            return;
        }
        let time_ns = listener.clock.monotonic_ns();
        let Some(left_out) = self.limits[event as usize].pass(time_ns) else { return };
        let mut text = Fields { bytes: [0; FIELDS_MAX_BYTES], len: 0 };
        let fields = match text.fill(fields) {
            Ok(()) => text.as_str(),
            // Fields are few and short; a line without them is better than none.
            Err(fmt::Error) => "{}",
        };
        listener.sink.write(&Record { level, event: name, message, fields, left_out, time_ns });
    }
}

/// The fields as text, in memory that needs no allocator.
struct Fields {
    bytes: [u8; FIELDS_MAX_BYTES],
    len: usize,
}

impl Fields {
    fn fill(&mut self, fields: &[(&'static str, Value<'_>)]) -> fmt::Result {
        self.write_char('{')?;
        for (index, (name, value)) in fields.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(self, "{comma}\"{name}\":")?;
            match value {
                Value::Number(number) => write!(self, "{number}")?,
                Value::Word(text) => self.quoted(text)?,
                Value::Place(text) => self.quoted(text)?,
            }
        }
        self.write_char('}')
    }

    /// A path or a word; what would need an escape becomes a question mark.
    fn quoted(&mut self, text: &str) -> fmt::Result {
        self.write_char('"')?;
        for character in text.chars() {
            let needs_escape = character.is_control() || matches!(character, '"' | '\\');
            self.write_char(if needs_escape { '?' } else { character })?;
        }
        self.write_char('"')
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("{}")
    }
}

impl Write for Fields {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let end = self.len + more.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(more.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Sink for Arc<Kept> {
        fn write(&self, record: &Record<'_>) {
            let Record { level, event, fields, left_out, time_ns, .. } = record;
            let line = format!("{time_ns} {level:?} {event} {fields} {left_out}");
            self.0.lock().expect("no panic").push(line);
        }
    }

    #[derive(Default)]
    struct SetClock(AtomicU64);

    impl Clock for SetClock {
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn unix_seconds(&self) -> u64 {
            panic!("not asked")
        }
    }

    struct Fixture {
        log: Log,
        kept: Arc<Kept>,
        clock: Arc<SetClock>,
    }

    impl Fixture {
        fn new(level: Level) -> Self {
            let (log, kept, clock) = <(Log, Arc<Kept>, Arc<SetClock>)>::default();
            let (sink, its_clock) = (Box::new(Arc::clone(&kept)), Arc::clone(&clock));
            assert!(log.set_sink(level, its_clock, sink).is_ok());
            Self { log, kept, clock }
        }

        fn at(&self, now_ns: u64) -> &Log {
            self.clock.0.store(now_ns, Ordering::Relaxed);
            &self.log
        }

        fn lines(&self) -> Vec<String> {
            lines(&self.kept)
        }
    }

    fn lines(kept: &Kept) -> Vec<String> {
        std::mem::take(&mut kept.0.lock().expect("no panic"))
    }

    #[test]
    fn a_line_has_level_event_fields_and_time() {
        let fixture = Fixture::new(Level::Debug);
        let fields = [
            ("attempt", Value::Number(7)),
            ("reason", Value::Word("peer_gone")),
            ("place", Value::Place("src/\"a\\b\n.rs:1")),
        ];
        fixture.at(5).write(Event::PrefetchFailed, &fields);
        let fields = r#"{"attempt":7,"reason":"peer_gone","place":"src/?a?b?.rs:1"}"#;
        assert_eq!(fixture.lines(), [format!("5 Warning prefetch_failed {fields} 0")]);
        assert!(serde_json::from_str::<serde_json::Value>(fields).is_ok());
    }

    #[test]
    fn only_what_matters_enough_is_written() {
        let fixture = Fixture::new(Level::Warning);
        fixture.log.write(Event::HintIgnored, &[]);
        fixture.at(1).write(Event::PeerCutOff, &[]);
        fixture.at(1).write(Event::Poisoned, &[]);
        assert_eq!(fixture.lines(), ["1 Warning peer_cut_off {} 0", "1 Error poisoned {} 0"]);
        Log::default().write(Event::Poisoned, &[]);
    }

    #[test]
    fn an_event_is_written_ten_times_a_second_and_what_is_left_out_is_counted() {
        let fixture = Fixture::new(Level::Debug);
        (0..1_000).for_each(|_| fixture.at(0).write(Event::HintIgnored, &[]));
        assert_eq!(fixture.lines().len() as u64, BURST);
        fixture.at(0).write(Event::PlanRefused, &[]);
        assert_eq!(fixture.lines().len(), 1, "each event has its own limit");
        // One line a pause from now on; the first one says what was left out.
        fixture.at(PAUSE_NS).write(Event::HintIgnored, &[]);
        fixture.at(PAUSE_NS).write(Event::HintIgnored, &[]);
        assert_eq!(fixture.lines(), [format!("{PAUSE_NS} Info hint_ignored {{}} 990")]);
        // A long rest gives a whole burst again, and not more.
        (0..1_000).for_each(|_| fixture.at(1_000 * PAUSE_NS).write(Event::HintIgnored, &[]));
        assert_eq!(fixture.lines().len() as u64, BURST);
    }

    #[test]
    fn there_is_one_sink() {
        let fixture = Fixture::new(Level::Debug);
        let (second, clock) = <(Arc<Kept>, Arc<SetClock>)>::default();
        let sink = Box::new(Arc::clone(&second));
        assert!(fixture.log.set_sink(Level::Debug, clock, sink).is_err());
        fixture.log.write(Event::Poisoned, &[]);
        assert_eq!((fixture.lines().len(), lines(&second).len()), (1, 0));
    }

    #[test]
    fn too_many_fields_cost_the_fields_and_not_the_line() {
        let fixture = Fixture::new(Level::Debug);
        let long = "x".repeat(FIELDS_MAX_BYTES);
        fixture.at(1).write(Event::Poisoned, &[("place", Value::Place(&long))]);
        assert_eq!(fixture.lines(), ["1 Error poisoned {} 0"]);
    }

    #[test]
    fn events_are_numbered_in_order_and_have_names_of_their_own() {
        for (index, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, index);
            let others = Event::ALL.into_iter().filter(|other| other.name() == event.name());
            assert_eq!(others.count(), 1);
        }
    }
}
