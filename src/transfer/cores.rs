//! On which cores a library thread runs, where the host wants to say so.
//!
//! Guards: a core that the process may not use is an error, not a thread somewhere else.
//! Never does: move the host's own threads.

use std::io::Error;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// Why a thread cannot be put there.
#[derive(Debug, thiserror::Error)]
pub enum BadCores {
    /// No machine has it.
    #[error("core {0} is beyond all that the system can name")]
    Beyond(u32),
    /// The system refuses.
    #[error("the system refuses, give cores that this process may use: {0}")]
    Refused(Error),
}

/// Some cores.
pub(super) struct CoreSet(libc::cpu_set_t);

impl CoreSet {
    /// These cores.
    pub fn new(cores: &[u32]) -> Result<Self, BadCores> {
        // SAFETY: all-zero bytes are an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for core in cores {
            if *core as usize >= libc::CPU_SETSIZE as usize {
                return Err(BadCores::Beyond(*core));
            }
            // SAFETY: below the size of the set.
            unsafe { libc::CPU_SET(*core as usize, &mut set) };
        }
        Ok(Self(set))
    }

    /// Puts a thread there that runs.
    pub fn pin(&self, thread: &JoinHandle<()>) -> Result<(), BadCores> {
        let handle = thread.as_pthread_t();
        // SAFETY: a thread that was not joined, and a set that lives during the call.
        let refused =
            unsafe { libc::pthread_setaffinity_np(handle, size_of_val(&self.0), &self.0) };
        match refused {
            0 => Ok(()),
            code => Err(BadCores::Refused(Error::from_raw_os_error(code))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cores that the calling thread may use.
    fn own_cores() -> Vec<u32> {
        // SAFETY: all-zero bytes are an empty set, which the call fills.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
            (0..libc::CPU_SETSIZE as u32)
                .filter(|core| libc::CPU_ISSET(*core as usize, &set))
                .collect()
        }
    }

    #[test]
    fn a_thread_runs_where_it_was_put_and_impossible_cores_are_errors() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, hear) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = wait.recv();
            tell.send(own_cores()).unwrap();
        });
        let core = *own_cores().last().unwrap();
        CoreSet::new(&[core]).unwrap().pin(&thread).unwrap();
        let highest = libc::CPU_SETSIZE as u32 - 1;
        if !own_cores().contains(&highest) {
            let refused = CoreSet::new(&[highest]).unwrap().pin(&thread);
            assert!(matches!(refused, Err(BadCores::Refused(_))));
        }
        drop(go);
        assert_eq!(hear.recv().unwrap(), [core]);
        thread.join().unwrap();
        assert!(matches!(CoreSet::new(&[0, highest + 1]), Err(BadCores::Beyond(_))));
    }
}
