//! Signal handlers and the environment: the host's, before and after.

use std::ffi::{CString, OsString};

use kvhints::transfer::ucx::availability;

use crate::faults::bytes_that_arrive;
use crate::process::play as play_part;
use crate::ucx_support::ucx_is_here;

/// All that this system has, those for real time included.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// A flag that the C library adds to each disposition that goes through it.
const SET_BY_THE_C_LIBRARY: i32 = 0x0400_0000;

/// Those that a host may care for: crashes, and what launchers and runtimes send.
const TAKEN: [i32; 9] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGHUP,
    libc::SIGALRM,
];

#[test]
fn signal_handlers_and_environment_stay_the_hosts() {
    if ucx_is_here() {
        play_part("signals", &[]).is_silent();
        // As above, with what makes UCX take more of them.
        play_part("signals", &[("UCX_HANDLE_ERRORS", "bt,freeze")]).is_silent();
    }
}

/// Without this the test above would be about nothing: UCX by itself takes some.
#[test]
fn ucx_by_itself_takes_signal_handlers() {
    if ucx_is_here() {
        play_part("signals_of_ucx_itself", &[]).is_silent();
    }
}

/// Handler, flags and mask of each signal that has any.
fn dispositions() -> Vec<Option<(usize, i32, Vec<bool>)>> {
    let one = |signal: i32| {
        // SAFETY: all-zero bytes are a valid value.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the disposition into a local.
        let status = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
        // SAFETY: a mask that the system filled in.
        let is_masked = |other| unsafe { libc::sigismember(&now.sa_mask, other) } == 1;
        let flags = now.sa_flags & !SET_BY_THE_C_LIBRARY;
        (status == 0).then(|| (now.sa_sigaction, flags, SIGNALS.map(is_masked).collect::<Vec<_>>()))
    };
    SIGNALS.map(one).collect()
}

/// The host takes some signals, with flags and a mask of its own.
fn take_signals() {
    extern "C" fn taken(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    for signal in TAKEN {
        // SAFETY: all-zero bytes are a valid value; the handler does nothing.
        unsafe {
            let mut own: libc::sigaction = std::mem::zeroed();
            own.sa_sigaction = taken as *const () as usize;
            own.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaddset(&mut own.sa_mask, libc::SIGTERM);
            assert_eq!(libc::sigaction(signal, &own, std::ptr::null_mut()), 0);
        }
    }
}

pub fn play() {
    let environment = || std::env::vars_os().collect::<Vec<(OsString, OsString)>>();
    let before = (dispositions(), environment());
    let is_unchanged = |before: &(Vec<_>, Vec<_>)| {
        for (signal, (was, is)) in SIGNALS.zip(before.0.iter().zip(dispositions())) {
            assert!(*was == is, "signal {signal}: {was:?} became {is:?}");
        }
        assert!(environment() == before.1, "the environment was changed");
    };
    availability().expect("there is a UCX");
    is_unchanged(&before);
    bytes_that_arrive("all");
    is_unchanged(&before);
    // A host that takes its signals late keeps them as well.
    take_signals();
    let before = (dispositions(), environment());
    for tls in ["tcp", "all"] {
        bytes_that_arrive(tls);
        is_unchanged(&before);
    }
}

pub fn play_ucx_itself() {
    take_signals();
    let before = dispositions();
    let name = CString::new("libucp.so.0").expect("a name");
    // SAFETY: what a host does that uses UCX itself.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    assert!(dispositions() != before, "this UCX takes no handler: there is nothing to keep");
}
