//! Which of several copies of a thing that all readers write the calling thread takes, so that threads
//! on different cores do not write the same line of memory.
//!
//! Never does: promise a thread a copy of its own. With more threads than copies some share one.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many copies there are.
pub(super) const SHARDS: usize = 16;

/// The copy of the calling thread: threads take turns.
pub(super) fn shard_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }
    // A thread that is ending has no such value any more; any copy will do.
    SHARD.try_with(Cell::get).unwrap_or(0)
}
