//! Where time comes from: the one port through which it enters the library.
//!
//! Pure rooms take time as a value. Adapters and the C boundary ask a [`Clock`], so that a host or
//! a simulation can give its own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of time. Called from any thread; must not block.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary start; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Seconds since 1970-01-01 UTC.
    fn unix_seconds(&self) -> u64;
}

/// The operating system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        // 2^64 ns are 584 years: the cast loses nothing within a process's life.
        self.start.elapsed().as_nanos() as u64
    }

    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}
