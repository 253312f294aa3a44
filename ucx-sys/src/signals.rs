//! Keeping the host's signal handlers while UCX starts.
//!
//! UCX before 1.20 puts its own handlers on the signals of crashes when it is loaded. The host's
//! launcher or runtime may need its own. So the dispositions are read before and put back after.
//! What remains: for the moment between, another thread of the host sees UCX's handlers, and a
//! handler that the host itself installs at that very moment is undone.

use std::sync::{Mutex, PoisonError};

/// One at a time: two overlapping calls would take UCX's handlers for the host's.
static STARTING: Mutex<()> = Mutex::new(());

/// The classic signals; UCX touches no real-time ones at start.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=31;

/// Runs `work`, then restores each signal disposition that it changed.
pub fn with_signals_kept<T>(work: impl FnOnce() -> T) -> T {
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let before: Vec<_> = SIGNALS.map(|signal| (signal, disposition(signal))).collect();
    let answer = work();
    for (signal, old) in before {
        let Some(old) = old else { continue };
        let unchanged = disposition(signal).is_some_and(|new| {
            new.sa_sigaction == old.sa_sigaction && new.sa_flags == old.sa_flags
        });
        if !unchanged {
            // SAFETY: a disposition that was in force before.
            unsafe { libc::sigaction(signal, &old, std::ptr::null_mut()) };
        }
    }
    answer
}

/// `None` where a signal has none (SIGKILL, SIGSTOP).
fn disposition(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the disposition into a local.
    let status = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    (status == 0).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_changed_inside_is_put_back() {
        extern "C" fn other(_: i32) {}
        let before = disposition(libc::SIGUSR2).expect("SIGUSR2 has a disposition");
        with_signals_kept(|| {
            // SAFETY: all-zero bytes are a valid sigaction; the handler does nothing.
            unsafe {
                let mut changed: libc::sigaction = std::mem::zeroed();
                changed.sa_sigaction = other as *const () as usize;
                libc::sigaction(libc::SIGUSR2, &changed, std::ptr::null_mut());
            }
            let inside = disposition(libc::SIGUSR2).expect("SIGUSR2 has a disposition");
            assert_ne!(inside.sa_sigaction, before.sa_sigaction, "the test changed it");
        });
        let after = disposition(libc::SIGUSR2).expect("SIGUSR2 has a disposition");
        assert_eq!(after.sa_sigaction, before.sa_sigaction);
    }
}
