//! Waiting for other ranks without calling the system at first, as MPI itself does: what is awaited
//! usually is there within microseconds.
//!
//! Guards: a wait ends when a rank is known to have left, or at the deadline. While it lasts, MPI gets
//! its turns, so that the host's own messages go on.

use std::time::{Duration, Instant};

use super::sys::Comm;
use super::window::Gone;
use crate::broadcast::communicator::CommunicatorError;

/// Turns before the core is offered to others: some ten microseconds.
const SPINS: u32 = 500;

/// Turns between looks at the clock, at who left, and at MPI.
const TURNS_BETWEEN_LOOKS: u32 = 16;

/// How long to wait, and who gets a turn meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch {
    pub(super) deadline: Option<Duration>,
    pub(super) progress: Comm,
}

/// One wait.
#[derive(Debug)]
pub(super) struct Patience {
    watch: Watch,
    until: Option<Instant>,
    turns: u32,
}

impl Watch {
    pub(super) fn patience(self) -> Patience {
        Patience { watch: self, until: None, turns: 0 }
    }
}

impl Patience {
    /// One turn. `gone` tells whether somebody who is waited for has left.
    pub(super) fn wait(&mut self, gone: impl Fn() -> Gone) -> Result<(), CommunicatorError> {
        self.turns = self.turns.saturating_add(1);
        if self.turns < SPINS {
            std::hint::spin_loop();
            return Ok(());
        }
        if self.turns.is_multiple_of(TURNS_BETWEEN_LOOKS) || self.turns == SPINS {
            if let Some(gone) = gone() {
                return Err(CommunicatorError::RankGone(gone));
            }
            self.watch.progress.progress()?;
            self.check_deadline()?;
        }
        if self.turns == u32::MAX {
            self.turns = SPINS;
        }
        std::thread::yield_now();
        Ok(())
    }

    fn check_deadline(&mut self) -> Result<(), CommunicatorError> {
        let Some(deadline) = self.watch.deadline else { return Ok(()) };
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| now.checked_add(deadline).unwrap_or(now));
        if now < until {
            return Ok(());
        }
        let waited_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        Err(CommunicatorError::Deadline { waited_ns })
    }
}
