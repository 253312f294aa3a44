//! How long a fetch goes on: until a deadline that other threads may move further away, until they
//! cancel it, or until it has lasted longer than any fetch may.
//!
//! Guards: whoever waits here is woken by a cancellation; no wait outlives the longest time.
//! Never does: end a fetch whose deadline was moved in time.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;

const WAKER: Token = Token(usize::MAX);

/// Shared by the one thread that fetches and all who wait for its answer.
pub struct Patience {
    until: Mutex<Until>,
    longest: Instant,
    /// Used by the fetching thread only.
    poll: Mutex<(Poll, Events)>,
    waker: Waker,
}

struct Until {
    deadline: Instant,
    is_cancelled: bool,
    gave_up: Option<GaveUp>,
}

/// Why a fetch was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GaveUp {
    /// Nobody wanted it any longer.
    Asked,
    /// It lasted longer than any fetch may.
    Exhausted,
}

impl Patience {
    /// Patience until `deadline`; moved deadlines included, no longer than for `longest`.
    pub fn new(deadline: Instant, longest: Duration) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let until = Until { deadline, is_cancelled: false, gave_up: None };
        Ok(Self {
            until: Mutex::new(until),
            longest: Instant::now() + longest,
            poll: Mutex::new((poll, Events::with_capacity(4))),
            waker,
        })
    }

    /// Moves the deadline further away, never nearer.
    pub fn extend(&self, deadline: Instant) {
        let mut until = self.until.lock();
        // One that waits for the old deadline looks again before it gives up.
        until.deadline = until.deadline.max(deadline);
    }

    /// Ends the fetch now.
    pub fn cancel(&self) {
        self.until.lock().is_cancelled = true;
        self.wake();
    }

    /// Makes the fetching thread look again.
    pub fn wake(&self) {
        // Without a wake it looks again at its deadline.
        let _ = self.waker.wake();
    }

    /// Whether a fetch was given up since it began, and why.
    pub fn gave_up(&self) -> Option<GaveUp> {
        self.until.lock().gave_up
    }

    pub(super) fn begin(&self) {
        self.until.lock().gave_up = None;
    }

    /// How much time is left, or that there is none.
    pub(super) fn left(&self) -> Result<Duration, ureq::Error> {
        let now = Instant::now();
        let mut until = self.until.lock();
        let gave_up = if now >= self.longest {
            Some(GaveUp::Exhausted)
        } else if until.is_cancelled || now >= until.deadline {
            Some(GaveUp::Asked)
        } else {
            None
        };
        if gave_up.is_some() {
            until.gave_up = gave_up;
            return Err(ureq::Error::Timeout(ureq::Timeout::Global));
        }
        Ok(until.deadline.min(self.longest) - now)
    }

    /// Waits until something may have happened, at most until the deadline, or `until`.
    pub(super) fn wait(&self, until: Option<Instant>) -> Result<(), ureq::Error> {
        let mut left = self.left()?;
        if let Some(until) = until {
            left = left.min(until.saturating_duration_since(Instant::now()));
        }
        let (poll, events) = &mut *self.poll.lock();
        match poll.poll(events, Some(left)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    pub(super) fn register(
        &self,
        source: &mut impl Source,
        token: Token,
        interest: Interest,
    ) -> std::io::Result<()> {
        self.poll.lock().0.registry().register(source, token, interest)
    }
}

impl std::fmt::Debug for Patience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Patience")
    }
}
