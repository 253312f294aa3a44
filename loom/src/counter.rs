//! A reference count as the standard library's `Arc` has one, with its memory orders as arguments:
//! which orders the count needs, and that loom tells when they are too weak or the count is wrong.
//! The control for [`crate::snapshots`], whose count is loom's own.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};
use loom::sync::atomic::{fence, AtomicUsize};
use loom::thread;

pub const CHECKS: &[(&str, fn())] = &[
    ("release and an acquire fence suffice", release_and_an_acquire_fence_suffice),
    ("weaker orders and wrong counts are found", weaker_orders_and_wrong_counts_are_found),
];

struct Counted {
    count: AtomicUsize,
    is_freed: UnsafeCell<bool>,
}

impl Counted {
    fn read(&self) {
        // SAFETY: loom checks that nobody writes meanwhile, which is what is asked here.
        self.is_freed.with(|is_freed| assert!(!unsafe { *is_freed }, "read after it was freed"));
    }

    fn release(&self, order: Ordering, last: Ordering) {
        let before = self.count.fetch_sub(1, order);
        assert!(before > 0, "released once too often");
        if before == 1 {
            if last != Relaxed {
                fence(last);
            }
            // SAFETY: as above.
            self.is_freed.with_mut(|is_freed| unsafe { *is_freed = true });
        }
    }
}

/// Three holders; the first one gives back `releases` references.
fn share(order: Ordering, last: Ordering, releases: usize) {
    loom::model(move || {
        let counted =
            Arc::new(Counted { count: AtomicUsize::new(3), is_freed: UnsafeCell::new(false) });
        let others: Vec<_> = (0..2)
            .map(|_| {
                let counted = counted.clone();
                thread::spawn(move || {
                    counted.read();
                    counted.release(order, last);
                })
            })
            .collect();
        counted.read();
        (0..releases).for_each(|_| counted.release(order, last));
        others.into_iter().for_each(|other| other.join().expect("no thread panics"));
    });
}

fn is_wrong(order: Ordering, last: Ordering, releases: usize) -> bool {
    catch_unwind(AssertUnwindSafe(|| share(order, last, releases))).is_err()
}

fn release_and_an_acquire_fence_suffice() {
    share(Release, Acquire, 1);
}

fn weaker_orders_and_wrong_counts_are_found() {
    assert!(is_wrong(Relaxed, Acquire, 1), "a relaxed release");
    assert!(is_wrong(Release, Relaxed, 1), "no fence before freeing");
    assert!(is_wrong(Release, Acquire, 2), "a release too many");
}
