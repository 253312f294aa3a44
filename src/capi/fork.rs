//! Finding out, without a system call, that this process is a forked child.
//!
//! A page marked "wipe on fork" holds a one; the kernel gives a child the page filled with zeros.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Knows whether a fork happened since it was made.
#[derive(Debug)]
pub(crate) struct ForkMark {
    page: Option<NonNull<AtomicU8>>,
    creator_pid: u32,
}

// SAFETY: the page is only read and written through an atomic, and unmapped by the only owner.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

const PAGE_BYTES: usize = 4096;

impl ForkMark {
    /// A mark that belongs to this process.
    pub(crate) fn new() -> Self {
        Self { page: wiped_on_fork(), creator_pid: std::process::id() }
    }

    /// Whether this process is a child of the one that made the mark.
    pub(crate) fn is_forked(&self) -> bool {
        match self.page {
            // SAFETY: the page stays mapped as long as `self` lives.
            Some(page) => unsafe { page.as_ref() }.load(Ordering::Relaxed) == 0,
            // A kernel older than 4.14: one system call per question.
            None => std::process::id() != self.creator_pid,
        }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: mapped by `wiped_on_fork` with this size, and not used after this.
            unsafe { libc::munmap(page.as_ptr().cast(), PAGE_BYTES) };
        }
    }
}

fn wiped_on_fork() -> Option<NonNull<AtomicU8>> {
    // SAFETY: asks for a new private page; touches no memory of anybody else.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped and is ours.
    if unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(page, PAGE_BYTES) };
        return None;
    }
    let page = NonNull::new(page.cast::<AtomicU8>())?;
    // SAFETY: mapped, writable and aligned to a page.
    unsafe { page.as_ref() }.store(1, Ordering::Relaxed);
    Some(page)
}
