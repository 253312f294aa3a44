//! Which attempts to fetch are under way, seen from outside while they run.
//!
//! Each attempt has an [`AttemptTrace`], told of every state that the attempt enters: it shows the
//! state to a profiler, and on the context's [`AttemptBoard`] to whoever asks for the status.
//!
//! Guards: looking at the board takes no lock and allocates nothing, so it works while every thread
//! of the library hangs; what it shows of an attempt was true at one moment; the board is bounded,
//! and says how many had no place on it.

use std::sync::atomic::{fence, AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use super::nvtx::{CrossThreadRange, Step};
use super::Metrics;

/// Attempts that have a place. More may run; they are only counted.
const PLACES: usize = 512;
/// How often a place is read again that changed meanwhile.
const READS: usize = 8;
/// In place of a state: the place shows nothing.
const EMPTY: u64 = AttemptState::ALL.len() as u64;

/// Where an attempt stands: what is shown of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum AttemptState {
    /// It has its outcome; the host still has its handle, or memory is still being touched.
    Ended = 0,
    /// The source's state is awaited.
    Init = 1,
    /// Blocks are on their way.
    InProgress = 2,
    /// Blocks are here and wait to be claimed.
    Complete = 3,
}

impl AttemptState {
    /// All, by number.
    pub const ALL: [Self; 4] = [Self::Ended, Self::Init, Self::InProgress, Self::Complete];

    /// Its name in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Init => "init",
            Self::InProgress => "in_progress",
            Self::Complete => "complete",
        }
    }

    /// Its place among the label values of [`Metrics::prefetch_state_seconds`].
    fn timed_index(self) -> Option<usize> {
        (self as usize).checked_sub(1)
    }

    /// What a profiler sees of it.
    const fn step(self) -> Option<Step> {
        match self {
            Self::Ended => None,
            Self::Init => Some(Step::Metadata),
            Self::InProgress => Some(Step::Fetch),
            Self::Complete => Some(Step::Claim),
        }
    }
}

/// One attempt, as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptSeen {
    /// Its number, counted by its transceiver.
    pub number: u64,
    /// Where it stands.
    pub state: AttemptState,
    /// When it began.
    pub begun_ns: u64,
    /// When it entered the state.
    pub entered_ns: u64,
    /// Bytes of the blocks that it asks for.
    pub bytes: u64,
}

/// A place on the board. Only its holder writes, between two steps of `version`.
#[derive(Debug)]
struct Place {
    is_taken: AtomicBool,
    /// Odd while the rest changes.
    version: AtomicU64,
    number: AtomicU64,
    state: AtomicU64,
    begun_ns: AtomicU64,
    entered_ns: AtomicU64,
    bytes: AtomicU64,
}

impl Place {
    fn new() -> Self {
        let [version, number, begun_ns, entered_ns, bytes] = [(); 5].map(|()| AtomicU64::new(0));
        let (is_taken, state) = (AtomicBool::new(false), AtomicU64::new(EMPTY));
        Self { is_taken, version, number, state, begun_ns, entered_ns, bytes }
    }

    fn show(&self, seen: &AttemptSeen) {
        self.change(|| {
            self.number.store(seen.number, Ordering::Relaxed);
            self.state.store(seen.state as u64, Ordering::Relaxed);
            self.begun_ns.store(seen.begun_ns, Ordering::Relaxed);
            self.entered_ns.store(seen.entered_ns, Ordering::Relaxed);
            self.bytes.store(seen.bytes, Ordering::Relaxed);
        });
    }

    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // What follows is not seen before the odd version.
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }

    /// What is there, unless it is empty or changes all the time.
    fn read(&self) -> Option<AttemptSeen> {
        for _ in 0..READS {
            let before = self.version.load(Ordering::Acquire);
            let state = AttemptState::ALL.get(self.state.load(Ordering::Relaxed) as usize);
            let seen = state.map(|state| AttemptSeen {
                number: self.number.load(Ordering::Relaxed),
                state: *state,
                begun_ns: self.begun_ns.load(Ordering::Relaxed),
                entered_ns: self.entered_ns.load(Ordering::Relaxed),
                bytes: self.bytes.load(Ordering::Relaxed),
            });
            // What was read above was not read after the version below.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return seen;
            }
        }
        None
    }
}

/// The attempts of one context.
#[derive(Debug)]
pub struct AttemptBoard {
    places: Box<[Place]>,
    /// Where the next search for a place begins.
    search_from: AtomicUsize,
    without_place: AtomicU64,
}

impl Default for AttemptBoard {
    fn default() -> Self {
        let places = std::iter::repeat_with(Place::new).take(PLACES).collect();
        Self { places, search_from: AtomicUsize::new(0), without_place: AtomicU64::new(0) }
    }
}

impl AttemptBoard {
    /// Each attempt that has a place, in no order.
    pub fn seen(&self) -> impl Iterator<Item = AttemptSeen> + '_ {
        self.places.iter().filter_map(Place::read)
    }

    /// How many attempts have no place.
    pub fn without_place(&self) -> u64 {
        self.without_place.load(Ordering::Relaxed)
    }

    fn take_place(&self) -> Option<usize> {
        let first = self.search_from.fetch_add(1, Ordering::Relaxed);
        let found = (0..PLACES).map(|step| first.wrapping_add(step) % PLACES).find(|index| {
            let is_taken = &self.places[*index].is_taken;
            !is_taken.load(Ordering::Relaxed) && !is_taken.swap(true, Ordering::AcqRel)
        });
        if found.is_none() {
            self.without_place.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    fn leave_place(&self, place: Option<usize>) {
        match place {
            Some(index) => {
                let place = &self.places[index];
                place.change(|| place.state.store(EMPTY, Ordering::Relaxed));
                place.is_taken.store(false, Ordering::Release);
            }
            None => {
                self.without_place.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// One attempt, shown to whoever looks. The default shows nothing to nobody: for state machines that
/// run without a library around them.
#[derive(Debug, Default)]
pub struct AttemptTrace(Option<Shown>);

#[derive(Debug)]
struct Shown {
    metrics: Arc<Metrics>,
    place: Option<usize>,
    seen: AttemptSeen,
    range: Option<CrossThreadRange>,
}

impl AttemptTrace {
    /// Shows an attempt that has just begun.
    pub fn begin(metrics: &Arc<Metrics>, number: u64, bytes: u64, now_ns: u64) -> Self {
        let state = AttemptState::Ended;
        let seen = AttemptSeen { number, state, begun_ns: now_ns, entered_ns: now_ns, bytes };
        let place = metrics.attempts.take_place();
        let shown = Shown { metrics: Arc::clone(metrics), place, seen, range: None };
        let mut trace = Self(Some(shown));
        trace.enter(AttemptState::Init, now_ns);
        trace
    }

    /// The attempt enters a state.
    pub fn enter(&mut self, state: AttemptState, now_ns: u64) {
        let Some(Shown { metrics, place, seen, range }) = &mut self.0 else { return };
        if let Some(index) = seen.state.timed_index() {
            let spent_ns = now_ns.saturating_sub(seen.entered_ns);
            metrics.prefetch_state_seconds.observe_ns(index, spent_ns);
        }
        seen.state = state;
        seen.entered_ns = now_ns;
        if let Some(index) = place {
            metrics.attempts.places[*index].show(seen);
        }
        // The range before ends first: they follow each other.
        *range = None;
        let bytes = usize::try_from(seen.bytes).unwrap_or(usize::MAX);
        *range = state.step().map(|step| CrossThreadRange::start(step, seen.number, bytes));
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.metrics.attempts.leave_place(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(metrics: &Metrics) -> Vec<(u64, AttemptState)> {
        let mut all: Vec<_> =
            metrics.attempts.seen().map(|seen| (seen.number, seen.state)).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }

    #[test]
    fn an_attempt_is_shown_from_its_beginning_until_it_is_dropped() {
        let metrics = Arc::new(Metrics::new());
        let mut first = AttemptTrace::begin(&metrics, 1, 512, 100);
        let second = AttemptTrace::begin(&metrics, 2, 512, 150);
        first.enter(AttemptState::InProgress, 170);
        let timed = [0, 1, 2].map(|state| metrics.prefetch_state_seconds.count(state));
        assert_eq!(timed, [1, 0, 0], "a state that was left is timed");
        let shown = metrics.attempts.seen().find(|seen| seen.number == 1);
        let state = AttemptState::InProgress;
        let wanted = AttemptSeen { number: 1, state, begun_ns: 100, entered_ns: 170, bytes: 512 };
        assert_eq!(shown, Some(wanted));
        drop(first);
        assert_eq!(numbers(&metrics), [(2, AttemptState::Init)]);
        drop(second);
        assert_eq!(numbers(&metrics), []);
    }

    #[test]
    fn attempts_without_a_place_are_counted() {
        let metrics = Arc::new(Metrics::new());
        let count = PLACES as u64 + 3;
        let mut traces: Vec<_> =
            (0..count).map(|number| AttemptTrace::begin(&metrics, number, 0, 0)).collect();
        assert_eq!((numbers(&metrics).len(), metrics.attempts.without_place()), (PLACES, 3));
        traces.clear();
        assert_eq!((numbers(&metrics).len(), metrics.attempts.without_place()), (0, 0));
        let _one_more = AttemptTrace::begin(&metrics, 7, 0, 0);
        assert_eq!(numbers(&metrics), [(7, AttemptState::Init)]);
    }

    /// The fields of one attempt are a function of its number, so a mixture would show.
    #[test]
    fn what_is_shown_was_true_at_one_moment() {
        let metrics = Arc::new(Metrics::new());
        let is_over = AtomicBool::new(false);
        let seen_count = std::thread::scope(|scope| {
            for writer in 0..2 {
                let (metrics, is_over) = (&metrics, &is_over);
                scope.spawn(move || {
                    let mut number = writer;
                    while !is_over.load(Ordering::Relaxed) {
                        number += 2;
                        let trace = AttemptTrace::begin(metrics, number, number * 3, number * 5);
                        drop(trace);
                    }
                });
            }
            let mut seen_count = 0;
            while seen_count < 10_000 {
                for seen in metrics.attempts.seen() {
                    let of_number = (seen.bytes, seen.begun_ns, seen.entered_ns);
                    let number = seen.number;
                    assert_eq!(of_number, (number * 3, number * 5, number * 5));
                    seen_count += 1;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            seen_count
        });
        assert!(seen_count >= 10_000);
    }
}
