//! What happens when the library itself is at fault: a panic is caught, kept quiet, and marks the
//! object it happened in as *poisoned*.
//!
//! Every object that a C caller can hold is covered by one [`Poison`], its own or its context's.
//! [`Poison::catch`] runs a piece of work, turns a panic into [`Poisoned`], and refuses all work
//! after it. The mark is never cleared. Nothing is printed: the place of the panic (never its
//! message, which could hold contents of a hint) is kept for [`Poison::location`].

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

thread_local! {
    /// How many `catch` calls this thread is inside of; panics there belong to us.
    static CATCH_DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the last such panic of this thread happened.
    static PANIC_LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The object is poisoned: a panic happened inside it, now or earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fault of the library happened inside this object; destroy it and create a new one")]
pub struct Poisoned;

/// Set once, when a panic was caught; read at each call.
#[derive(Debug, Default)]
pub struct Poison {
    set: AtomicBool,
    location: OnceLock<String>,
}

impl Poison {
    /// Whether a panic happened inside the object.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Source file and line of the first panic, once there was one.
    pub fn location(&self) -> Option<&str> {
        self.location.get().map(String::as_str)
    }

    /// Marks the object as unusable because of something found at `location`.
    pub fn set_at(&self, location: String) {
        // Only the first cause is kept: later ones follow from it.
        let _ = self.location.set(location);
        self.set.store(true, Ordering::Release);
    }

    /// Runs `work` unless the object is poisoned; a panic in it poisons the object.
    pub fn catch<T>(&self, work: impl FnOnce() -> T) -> Result<T, Poisoned> {
        if self.is_set() {
            return Err(Poisoned);
        }
        keep_own_panics_quiet();
        // Looked up once: in a shared library that is what costs.
        let outcome = CATCH_DEPTH.with(|depth| {
            depth.set(depth.get() + 1);
            // A half-changed object is never looked at again: that is what the mark is for.
            let outcome = panic::catch_unwind(AssertUnwindSafe(work));
            depth.set(depth.get() - 1);
            outcome
        });
        outcome.map_err(|payload| {
            // Dropping a payload may panic once more, and it is a few bytes once in a lifetime.
            std::mem::forget(payload);
            let location = PANIC_LOCATION.take().unwrap_or_else(|| "unknown".to_owned());
            self.set_at(location);
            Poisoned
        })
    }
}

/// An object covered by a [`Poison`].
pub trait Poisonable {
    /// The mark that covers this object.
    fn poison(&self) -> &Poison;
}

impl Poisonable for Poison {
    fn poison(&self) -> &Poison {
        self
    }
}

/// Replaces the default message on stderr, for panics inside [`Poison::catch`] only; all others go
/// to the hook that was there before. In the shared library the hook is private to the library.
fn keep_own_panics_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // `try_with`: a thread that is ending has no thread-locals any more.
            if CATCH_DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                return previous(info);
            }
            let location =
                info.location().map(|place| format!("{}:{}", place.file(), place.line()));
            let _ = PANIC_LOCATION.try_with(|slot| *slot.borrow_mut() = location);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_poisons_for_good_and_names_its_place() {
        let poison = Poison::default();
        assert_eq!(poison.catch(|| 7), Ok(7));
        assert_eq!(poison.catch(|| panic!("secret")), Err::<(), _>(Poisoned));
        assert!(poison.is_set());
        let location = poison.location().expect("a location");
        assert!(location.contains("poison.rs:"), "{location}");
        assert!(!location.contains("secret"));
        assert_eq!(poison.catch(|| 7), Err(Poisoned), "work after the panic is refused");
    }

    #[test]
    fn the_first_cause_is_kept() {
        let poison = Poison::default();
        poison.set_at("first".to_owned());
        poison.set_at("second".to_owned());
        assert_eq!(poison.location(), Some("first"));
    }
}
