//! Model checking of what threads share of hints: reference counts of snapshots as C callers use
//! them, and the pool of scratch memory. The sources checked are the library's own files, with loom's
//! `Arc` and `Mutex` in the place of the real ones (`crate::sync`).
//!
//! What it proves, for two and three threads and every order of their steps: that the library takes
//! and gives back exactly the references it should, that whoever frees a snapshot does so after all
//! others have read, and that scratch is never lent twice at a time. What it does not: that the
//! standard library's own `Arc` orders memory as loom's does. `counter` shows what that order is, and
//! that loom sees when it is too weak.
//!
//! Each property has a control beside it that must fail, which is what a control's check asks.

#[path = "../../src/hint/mod.rs"]
#[allow(dead_code, unused_imports)]
mod hint;
#[path = "../../src/poison.rs"]
#[allow(dead_code)]
mod poison;
#[path = "../../src/wire.rs"]
#[allow(dead_code)]
mod wire;

/// What [`crate::sync`] is in the library, by loom.
mod sync {
    pub use loom::sync::Arc;

    /// loom's mutex under parking_lot's calls.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no panic while it is held")
        }

        pub fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

#[allow(dead_code, non_camel_case_types)]
#[path = "../../src/capi"]
mod capi {
    pub mod handle;
    pub mod scratch_pool;
    pub mod status;
}

mod counter;
mod pool;
mod snapshots;

fn main() {
    // A program and not tests: the sources' own unit tests are not wanted here.
    for (name, check) in [counter::CHECKS, pool::CHECKS, snapshots::CHECKS].concat() {
        // A check that fails panics, which ends the program.
        check();
        println!("passed: {name}");
    }
}
