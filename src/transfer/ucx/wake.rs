//! Sleeping until a worker has something to do, somebody wakes us, or the time is over.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::time::Duration;

use crate::transfer::transport::{TransportError, Waker};

/// An eventfd of our own: unlike a worker's it outlives every worker, so that a waker held by
/// another thread stays harmless after the transport is gone.
pub(super) struct WakeEvent(File);

impl WakeEvent {
    pub fn new() -> Result<Self, TransportError> {
        // SAFETY: makes a new descriptor.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(TransportError::Unavailable(format!(
                "no event descriptor: {}",
                std::io::Error::last_os_error()
            )));
        }
        // SAFETY: just made, owned by nobody else.
        Ok(Self(unsafe { File::from_raw_fd(descriptor) }))
    }

    /// Sleeps for at most `timeout`, on this event and on the worker's descriptor.
    pub fn wait(&self, worker: RawFd, timeout: Duration) {
        let own = self.0.as_raw_fd();
        let mut polled =
            [own, worker].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // Rounded up, so that a short wait is no spinning.
        let timeout_ms = i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        // SAFETY: as many structs as said. A signal or an error only ends the sleep early.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
        // Nothing there is as good as read.
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl Waker for WakeEvent {
    fn wake(&self) {
        // Full means that a wake is waiting to be seen already.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}
