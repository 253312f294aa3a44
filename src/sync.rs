//! Atomics, counts and the mutex that concurrent code takes, so that a model checker can stand in for
//! them: shuttle here, loom in the workspace `loom`, which has a module of its own for this one.
//!
//! With `--cfg kvhints_shuttle` they are shuttle's, which runs the code that uses them under one
//! schedule after another (`scripts/model_check.sh`); otherwise they are the standard library's and
//! parking_lot's. Guards: that nothing else differs between what is checked and what is shipped.

#[cfg(not(kvhints_shuttle))]
pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::Arc;
#[cfg(not(kvhints_shuttle))]
pub(crate) use std::{hint::spin_loop, sync::atomic};

#[cfg(kvhints_shuttle)]
pub(crate) use checked::Mutex;
#[cfg(kvhints_shuttle)]
pub(crate) use shuttle::{hint::spin_loop, sync::atomic};

#[cfg(kvhints_shuttle)]
mod checked {
    use shuttle::sync::MutexGuard;
    use std::sync::{PoisonError, TryLockError};

    /// shuttle's mutex under parking_lot's calls.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
