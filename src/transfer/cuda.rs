//! Whether this machine has a CUDA driver and a device. A missing driver is an answer, not an error.
//!
//! Guards: the driver library is opened at run time only; without it, calls into the crate panic,
//! so its presence is asked first and everything else runs where a panic is caught.
//! Never does: create a context, allocate, or copy. Pools in device memory are not served yet.

use std::sync::OnceLock;

use crate::poison::Poison;

/// Number of CUDA devices; 0 where there is no driver. Asked once in a process's life, because
/// loading a driver is slow and its answer does not change.
pub fn device_count() -> u32 {
    static COUNT: OnceLock<u32> = OnceLock::new();
    *COUNT.get_or_init(|| Poison::default().catch(ask).unwrap_or(0))
}

fn ask() -> u32 {
    // SAFETY: looks for a library by name; the driver has no initialiser with a precondition.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return 0;
    }
    cudarc::driver::result::init().ok();
    cudarc::driver::CudaContext::device_count().map_or(0, |count| count.max(0) as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn asking_is_safe_with_and_without_a_driver() {
        let count = super::device_count();
        assert_eq!(super::device_count(), count);
        assert!(count < 1024);
    }
}
