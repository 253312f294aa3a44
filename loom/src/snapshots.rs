//! Snapshots shared by threads through C handles.

use std::panic::{catch_unwind, AssertUnwindSafe};

use loom::thread;

use crate::capi::handle::{self, Handle, Shared};
use crate::hint::snapshot::SnapshotData;
use crate::hint::Snapshot;

pub const CHECKS: &[(&str, fn())] = &[
    (
        "each thread reads what it holds and the last one frees",
        each_thread_reads_what_it_holds_and_the_last_one_frees,
    ),
    (
        "threads take more references while others give theirs back",
        threads_take_more_references_while_others_give_theirs_back,
    ),
    ("a release too few is found", a_release_too_few_is_found),
];

/// The C handle, as `src/capi/snapshot.rs` declares it.
struct SnapshotHandle;

impl Handle for SnapshotHandle {
    type Object = SnapshotData;
}
impl Shared for SnapshotHandle {}

/// A handle on its way to another thread.
#[derive(Clone, Copy)]
struct Sent(*mut SnapshotHandle);

// SAFETY: calls on snapshots may come from any thread; that is what is checked here.
unsafe impl Send for Sent {}

impl Sent {
    /// Reads the snapshot.
    fn read(self) {
        // SAFETY: each caller holds a reference.
        let snapshot = unsafe { handle::get(self.0.cast_const()) }.expect("not NULL");
        assert_eq!(snapshot.message_id_bytes(), b"m");
        assert_eq!(snapshot.action_count(), 0);
    }

    fn retain(self) {
        // SAFETY: each caller holds a reference.
        unsafe { handle::retain(self.0.cast_const()) };
    }

    fn release(self) {
        // SAFETY: each caller gives back a reference that it holds.
        unsafe { handle::release(self.0) };
    }

    /// Another reference, as the library itself takes one.
    fn clone_and_drop(self) {
        // SAFETY: each caller holds a reference.
        drop(unsafe { handle::cloned(self.0.cast_const()) });
    }
}

fn snapshot() -> Sent {
    let json = br#"{"protocol_version":"0.1","message_id":"m","actions":[]}"#;
    let snapshot = Snapshot::from_canonical(json).expect("an envelope");
    Sent(handle::share(snapshot.into_shared()))
}

fn each_thread_reads_what_it_holds_and_the_last_one_frees() {
    loom::model(|| {
        let snapshot = snapshot();
        let others: Vec<_> = (0..2)
            .map(|_| {
                snapshot.retain();
                thread::spawn(move || {
                    snapshot.read();
                    snapshot.release();
                })
            })
            .collect();
        snapshot.release();
        others.into_iter().for_each(|other| other.join().expect("no thread panics"));
    });
}

fn threads_take_more_references_while_others_give_theirs_back() {
    loom::model(|| {
        let snapshot = snapshot();
        snapshot.retain();
        let other = thread::spawn(move || {
            snapshot.retain();
            snapshot.release();
            snapshot.clone_and_drop();
            snapshot.read();
            snapshot.release();
        });
        snapshot.retain();
        snapshot.read();
        snapshot.release();
        snapshot.clone_and_drop();
        snapshot.release();
        other.join().expect("the thread does not panic");
    });
}

/// The control: loom sees a reference that nobody gives back.
fn a_release_too_few_is_found() {
    let found = catch_unwind(AssertUnwindSafe(|| {
        loom::model(|| {
            let snapshot = snapshot();
            snapshot.retain();
            let other = thread::spawn(move || snapshot.read());
            snapshot.release();
            other.join().expect("the thread does not panic");
        });
    }));
    assert!(found.is_err(), "a leak was not found");
}
