//! Virtual time: one clock for the world, and one for each worker that starts anywhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use kvhints::clock::Clock;

pub const MS: u64 = 1_000_000;

/// The world's time, in nanoseconds.
#[derive(Default)]
pub struct WorldClock(AtomicU64);

impl WorldClock {
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn advance_to(&self, now_ns: u64) {
        assert!(now_ns >= self.now_ns(), "time went back");
        self.0.store(now_ns, Ordering::SeqCst);
    }
}

/// What a worker reads.
pub struct WorkerClock {
    world: Arc<WorldClock>,
    start_ns: u64,
    /// A clock that shows only multiples of this; 1 unless somebody sabotages it.
    tick_ns: u64,
}

impl WorkerClock {
    pub fn new(world: Arc<WorldClock>, start_ns: u64, tick_ns: u64) -> Self {
        Self { world, start_ns, tick_ns }
    }

    /// The world's time when this clock shows `shown_ns`.
    pub fn in_world_ns(&self, shown_ns: u64) -> u64 {
        shown_ns.saturating_sub(self.start_ns).div_ceil(self.tick_ns).saturating_mul(self.tick_ns)
    }
}

impl Clock for WorkerClock {
    fn monotonic_ns(&self) -> u64 {
        self.start_ns + self.world.now_ns() / self.tick_ns * self.tick_ns
    }

    fn unix_seconds(&self) -> u64 {
        0
    }
}
