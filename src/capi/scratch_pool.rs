//! Scratch memory for scans, lent to one call at a time and used again by the next.
//!
//! The lock is held to take and to give back, never during a scan; so many threads may scan at
//! once, and each finds scratch of its own. Keeps a few; more than that is freed after use.

use crate::hint::Scratch;
use crate::sync::Mutex;

/// How many are kept while nobody uses them.
const KEPT_MAX: usize = 8;

/// The scratch memory of one context.
#[allow(clippy::vec_box)]
pub(crate) struct ScratchPool {
    seed: u64,
    // Boxed: lending one moves a pointer.
    idle: Mutex<Vec<Box<Scratch>>>,
}

impl ScratchPool {
    /// An empty pool; `seed` must not be guessable.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, idle: Mutex::new(Vec::with_capacity(KEPT_MAX)) }
    }

    /// Lends scratch to `work`. If that panics, its scratch is not used again.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let idle = self.idle.lock().pop();
        let mut scratch = idle.unwrap_or_else(|| Box::new(Scratch::new(self.seed)));
        let done = work(&mut scratch);
        scratch.trim();
        let mut idle = self.idle.lock();
        if idle.len() < KEPT_MAX {
            idle.push(scratch);
        }
        done
    }
}
