//! One snapshot, retained, read and released by eight threads at once through the C interface, and
//! hints admitted by eight threads on one context. `scripts/sanitize.sh` runs it under sanitizers.
//!
//! The tests that are ignored are controls: each is wrong on purpose, and the script asks that the
//! sanitizer says so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kvhints::capi::admit::{kvh_admit, KVH_INGRESS_TRUSTED, KVH_VERDICT_ADMITTED};
use kvhints::capi::context::{kvh_context_create, kvh_context_destroy, kvh_context_t};
use kvhints::capi::snapshot::{
    kvh_action_t, kvh_snapshot_action, kvh_snapshot_json, kvh_snapshot_one_action,
    kvh_snapshot_release, kvh_snapshot_retain, kvh_snapshot_t,
};

const THREADS: usize = 8;
const TURNS: usize = 2_000;

const HINT: &str = r#"{"protocol_version":"0.1","message_id":"m\n","actions":[
    {"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{"x":[1,2]}}]}"#;

/// A pointer for other threads. Calls on contexts and snapshots may come from any.
struct Sent<T>(*mut T);

impl<T> Clone for Sent<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Sent<T> {}
// SAFETY: what the header says of contexts and snapshots.
unsafe impl<T> Send for Sent<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Sent<T> {}

impl<T> Sent<T> {
    fn pointer(&self) -> *mut T {
        self.0
    }
}

fn context() -> Sent<kvh_context_t> {
    let mut context = std::ptr::null_mut();
    // SAFETY: NULL parameters mean defaults; the output is ours.
    assert_eq!(unsafe { kvh_context_create(std::ptr::null(), &mut context) }, 0);
    Sent(context)
}

fn admitted(context: Sent<kvh_context_t>, hint: &str) -> Sent<kvh_snapshot_t> {
    let (mut verdict, mut snapshot) = (-1, std::ptr::null_mut());
    // SAFETY: the context is live, the text is a slice of its length, the outputs are ours.
    let status = unsafe {
        kvh_admit(
            context.pointer(),
            KVH_INGRESS_TRUSTED,
            hint.as_ptr(),
            hint.len(),
            &mut verdict,
            &mut snapshot,
        )
    };
    assert_eq!((status, verdict), (0, KVH_VERDICT_ADMITTED));
    Sent(snapshot)
}

/// Reads all of a snapshot; how many bytes there are.
fn read(snapshot: Sent<kvh_snapshot_t>) -> usize {
    // SAFETY: the caller holds a reference; views are read while it does.
    unsafe {
        let json = kvh_snapshot_json(snapshot.pointer());
        let text = std::slice::from_raw_parts(json.data, json.len);
        assert!(text.starts_with(b"{") && text.ends_with(b"]}"));
        let mut action = std::mem::MaybeUninit::<kvh_action_t>::uninit();
        assert_eq!(kvh_snapshot_action(snapshot.pointer(), 0, action.as_mut_ptr()), 0);
        let action = action.assume_init();
        assert_eq!(std::slice::from_raw_parts(action.id.data.cast::<u8>(), action.id.len), b"a");
        json.len
    }
}

#[test]
fn eight_threads_retain_read_and_release_one_snapshot() {
    let context = context();
    let snapshot = admitted(context, HINT);
    // SAFETY: made above and not used again; snapshots outlive their context.
    unsafe { kvh_context_destroy(context.pointer()) };
    let len = read(snapshot);
    let reads = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            // SAFETY: the snapshot is held; each thread gives back the reference made for it.
            unsafe { kvh_snapshot_retain(snapshot.pointer()) };
            let reads = &reads;
            scope.spawn(move || {
                for turn in 0..TURNS {
                    // SAFETY: this thread holds a reference throughout; what it makes it releases.
                    unsafe {
                        let again = Sent(kvh_snapshot_retain(snapshot.pointer()));
                        assert_eq!(read(again), len);
                        if turn % 64 == 0 {
                            let mut alone = std::ptr::null_mut();
                            let status = kvh_snapshot_one_action(again.pointer(), 0, &mut alone);
                            assert_eq!((status, read(Sent(alone))), (0, len));
                            kvh_snapshot_release(alone);
                        }
                        kvh_snapshot_release(again.pointer());
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                // SAFETY: the reference made for this thread.
                unsafe { kvh_snapshot_release(snapshot.pointer()) };
            });
        }
        // The threads' references keep it alive from here on.
        // SAFETY: the reference from admission.
        unsafe { kvh_snapshot_release(snapshot.pointer()) };
    });
    // Not taken out of the atomic: ThreadSanitizer does not see how a scope waits for its threads.
    assert_eq!(reads.load(Ordering::Relaxed), THREADS * TURNS);
}

#[test]
fn eight_threads_admit_hints_on_one_context() {
    let context = context();
    let spaced = HINT.replace(':', " : ");
    let hints = [HINT, spaced.as_str()];
    let lens: Vec<usize> = thread::scope(|scope| {
        let admit = |thread: usize| {
            let hint = hints[thread % 2];
            scope.spawn(move || {
                let mut len = 0;
                for _ in 0..TURNS / 4 {
                    let snapshot = admitted(context, hint);
                    len = read(snapshot);
                    // SAFETY: the reference from admission.
                    unsafe { kvh_snapshot_release(snapshot.pointer()) };
                }
                len
            })
        };
        let threads: Vec<_> = (0..THREADS).map(admit).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    assert!(lens.iter().all(|len| *len == lens[0]), "{lens:?}");
    // SAFETY: made above and not used again.
    unsafe { kvh_context_destroy(context.pointer()) };
}

#[test]
#[ignore = "a control for scripts/sanitize.sh: wrong on purpose"]
fn control_a_release_too_many() {
    let context = context();
    let snapshot = admitted(context, HINT);
    // SAFETY: none: the second release and the read after it are what a sanitizer has to see.
    unsafe {
        kvh_snapshot_release(snapshot.pointer());
        kvh_snapshot_release(snapshot.pointer());
        kvh_context_destroy(context.pointer());
    }
}

#[test]
#[ignore = "a control for scripts/sanitize.sh: wrong on purpose"]
fn control_a_release_too_few() {
    let context = context();
    let snapshot = admitted(context, HINT);
    // SAFETY: held; one reference more than will be given back.
    unsafe {
        kvh_snapshot_retain(snapshot.pointer());
        kvh_snapshot_release(snapshot.pointer());
        kvh_context_destroy(context.pointer());
    }
}

#[test]
#[ignore = "a control for scripts/sanitize.sh: wrong on purpose"]
fn control_a_count_that_orders_nothing() {
    let count = AtomicUsize::new(2);
    let mut payload = Box::new([1u8; 64]);
    let pointer = Sent(std::ptr::from_mut(&mut *payload));
    thread::scope(|scope| {
        for thread in 0..2u8 {
            let count = &count;
            scope.spawn(move || {
                let pointer = pointer;
                // SAFETY: none: that nothing orders the read before the write is what a sanitizer has
                // to see.
                unsafe {
                    std::hint::black_box((*pointer.pointer())[usize::from(thread)]);
                    if count.fetch_sub(1, Ordering::Relaxed) == 1 {
                        (*pointer.pointer()).fill(thread);
                    }
                }
            });
        }
    });
    drop(payload);
}
