//! Ranges that a profiler sees: NVTX domain `kvhints`, one range for each step of a request.
//!
//! A range's name is its step, with the attempt's number where the step belongs to one (`fetch
//! #7`); its category is the step alone, so that tools can sum up; its payload is bytes. A step that
//! begins and ends in one call is pushed and popped ([`Range`]); one that goes from thread to thread
//! is started and ended ([`CrossThreadRange`]).
//!
//! Guards: what is begun is ended, on every way out; without a profiler a range is one load of a
//! pointer.
//! Never does: show what a hint says.

mod tool;

use std::ffi::CStr;
use std::fmt::Write;
use std::marker::PhantomData;

/// What the library does for a request, in the order in which data flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Bytes of a hint, or of a body with one, are judged.
    Admit = 1,
    /// A request's fetch is decided.
    Plan,
    /// A batch reaches all ranks.
    Broadcast,
    /// A sequence is looked up in a reuse tree.
    Match,
    /// Blocks are protected.
    Pin,
    /// A source's state is awaited.
    Metadata,
    /// Blocks are on their way.
    Fetch,
    /// Checksums are compared.
    Verify,
    /// Delivered blocks wait for the host, which claims them.
    Claim,
}

impl Step {
    /// All steps, by number from 1.
    pub const ALL: [Self; 9] = [
        Self::Admit,
        Self::Plan,
        Self::Broadcast,
        Self::Match,
        Self::Pin,
        Self::Metadata,
        Self::Fetch,
        Self::Verify,
        Self::Claim,
    ];

    /// Its name, as profilers show it.
    pub const fn name(self) -> &'static CStr {
        match self {
            Self::Admit => c"admit",
            Self::Plan => c"plan",
            Self::Broadcast => c"broadcast",
            Self::Match => c"match",
            Self::Pin => c"pin",
            Self::Metadata => c"metadata",
            Self::Fetch => c"fetch",
            Self::Verify => c"verify",
            Self::Claim => c"claim",
        }
    }
}

/// The name of one range: its step, and the number of its attempt. Never longer than its room.
struct Message {
    text: [u8; Message::ROOM],
    len: usize,
}

impl Message {
    /// The longest step, " #", the digits of u64::MAX, and a NUL.
    const ROOM: usize = 9 + 2 + 20 + 1;

    fn new(step: Step, attempt: u64) -> Self {
        let mut message = Self { text: [0; Self::ROOM], len: 0 };
        // Cannot fail: the room is counted above, and a test compares.
        let _ = write!(message, "{} #{attempt}", step.name().to_string_lossy());
        message
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.text).unwrap_or(c"")
    }
}

impl Write for Message {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        let end = self.len + more.len();
        // One byte stays for the NUL.
        let room = self.text.get_mut(self.len..end).filter(|_| end < Self::ROOM);
        room.ok_or(std::fmt::Error)?.copy_from_slice(more.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Looks for a profiler, once in the life of the process; what is asked for before is not seen.
pub fn attach() {
    tool::attach();
}

/// Tells the profiler what the present thread is called.
pub fn name_this_thread(name: &CStr) {
    tool::name_this_thread(name);
}

/// A step that begins and ends on one thread, inside those that enclose it. Ends when dropped.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    is_pushed: bool,
    // Ranges of a thread are a stack of that thread.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Range {
    /// Begins a step that concerns so many bytes; 0 where it reads and moves none. They are only
    /// counted for a profiler.
    #[inline]
    pub fn push(step: Step, bytes: impl FnOnce() -> usize) -> Self {
        let is_pushed = tool::wants_ranges();
        if is_pushed {
            tool::push(step, step.name(), bytes() as u64);
        }
        Self { is_pushed, _stays_on_its_thread: PhantomData }
    }

    /// Begins a step of one attempt.
    #[inline]
    pub fn push_of_attempt(step: Step, attempt: u64, bytes: usize) -> Self {
        let is_pushed = tool::wants_ranges();
        if is_pushed {
            tool::push(step, Message::new(step, attempt).as_c_str(), bytes as u64);
        }
        Self { is_pushed, _stays_on_its_thread: PhantomData }
    }
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        if self.is_pushed {
            tool::pop();
        }
    }
}

/// A step of one attempt that may end on another thread than it began on. Ends when dropped.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct CrossThreadRange {
    /// The profiler's number of the range; `None` where there is no profiler.
    id: Option<u64>,
}

impl CrossThreadRange {
    /// Begins a step of one attempt that concerns `bytes`.
    pub fn start(step: Step, attempt: u64, bytes: usize) -> Self {
        let id = tool::wants_ranges()
            .then(|| tool::start(step, Message::new(step, attempt).as_c_str(), bytes as u64));
        Self { id }
    }
}

impl Drop for CrossThreadRange {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            tool::end(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_in_their_order() {
        for (index, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, index + 1);
        }
    }

    #[test]
    fn the_longest_name_has_room() {
        for step in Step::ALL {
            let message = Message::new(step, u64::MAX);
            let wanted = format!("{} #{}", step.name().to_str().expect("ASCII"), u64::MAX);
            assert_eq!(message.as_c_str().to_str(), Ok(wanted.as_str()));
        }
    }

    #[test]
    fn without_a_profiler_nothing_is_begun() {
        assert!(!Range::push(Step::Admit, || 7).is_pushed);
        assert!(!Range::push_of_attempt(Step::Verify, 1, 7).is_pushed);
        assert_eq!(CrossThreadRange::start(Step::Fetch, 1, 7).id, None);
    }
}
