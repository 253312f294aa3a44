//! What a thread has hashed, so that tests can say that nothing is hashed twice.
//!
//! Counts in unit tests only; elsewhere the calls are empty.

use std::cell::Cell;

/// How much was hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Of keys.
    pub(super) key_bytes: usize,
    /// Steps of the chain.
    pub(super) names: usize,
}

pub(super) const NONE: Work = Work { key_bytes: 0, names: 0 };

thread_local! {
    static DONE: Cell<Work> = const { Cell::new(NONE) };
}

fn add(more: Work) {
    if cfg!(test) {
        let Work { key_bytes, names } = DONE.get();
        DONE.set(Work { key_bytes: key_bytes + more.key_bytes, names: names + more.names });
    }
}

pub(super) fn key_bytes(more: usize) {
    add(Work { key_bytes: more, ..NONE });
}

pub(super) fn names(more: usize) {
    add(Work { names: more, ..NONE });
}

/// What `work` hashes.
#[cfg(test)]
pub(super) fn during<T>(work: impl FnOnce() -> T) -> (Work, T) {
    let before = DONE.get();
    let result = work();
    let after = DONE.get();
    let done =
        Work { key_bytes: after.key_bytes - before.key_bytes, names: after.names - before.names };
    (done, result)
}
