//! Scratch memory for scans, lent to one call at a time and used again by the next.
//!
//! Each place is locked by the call that uses its scratch. Nobody waits for a lock: a call goes on to
//! the next place, and one that finds all of them in use has scratch of its own, freed after use.

use crate::hint::Scratch;
use crate::sync::Mutex;

/// How many are kept while nobody uses them.
const KEPT_MAX: usize = 8;

/// The scratch memory of one context.
pub(crate) struct ScratchPool {
    seed: u64,
    // Boxed: most places stay empty.
    places: [Mutex<Option<Box<Scratch>>>; KEPT_MAX],
}

impl ScratchPool {
    /// An empty pool; `seed` must not be guessable.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, places: std::array::from_fn(|_| Mutex::new(None)) }
    }

    /// Lends scratch to `work`. If that panics, its scratch is not used again.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut place = self.places.iter().find_map(Mutex::try_lock);
        let kept = place.as_mut().and_then(|place| place.take());
        let mut scratch = kept.unwrap_or_else(|| Box::new(Scratch::new(self.seed)));
        let done = work(&mut scratch);
        if let Some(place) = &mut place {
            scratch.trim();
            **place = Some(scratch);
        }
        done
    }
}
