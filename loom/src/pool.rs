//! The pool of scratch memory, used by threads at once.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;

use crate::capi::scratch_pool::ScratchPool;
use crate::sync::Mutex;

pub const CHECKS: &[(&str, fn())] = &[
    ("scratch is lent to one at a time", scratch_is_lent_to_one_at_a_time),
    ("scratch lent twice is found", scratch_lent_twice_is_found),
];

/// Which scratch each of two threads has at hand; 0 for none.
#[derive(Default)]
struct AtHand([AtomicUsize; 2]);

impl AtHand {
    fn use_at(&self, me: usize, address: usize) {
        self.0[me].store(address, SeqCst);
        let other = self.0[1 - me].load(SeqCst);
        assert_ne!(other, address, "two threads have the same scratch");
        self.0[me].store(0, SeqCst);
    }
}

/// Two threads, each twice, with what `lend` lends them.
fn two_threads<P: Send + Sync + 'static>(
    pool: impl Fn() -> P + Send + Sync + 'static,
    lend: fn(&P, &AtHand, usize),
) {
    loom::model(move || {
        let pool = Arc::new(pool());
        let at_hand = Arc::new(AtHand::default());
        let (pool_there, at_hand_there) = (pool.clone(), at_hand.clone());
        let other = thread::spawn(move || {
            (0..2).for_each(|_| lend(&pool_there, &at_hand_there, 1));
        });
        (0..2).for_each(|_| lend(&pool, &at_hand, 0));
        other.join().expect("the thread does not panic");
    });
}

fn scratch_is_lent_to_one_at_a_time() {
    two_threads(
        || ScratchPool::new(7),
        |pool, at_hand, me| {
            pool.with(|scratch| at_hand.use_at(me, std::ptr::from_mut(scratch) as usize));
        },
    );
}

/// The control: a pool that lends without taking out.
fn scratch_lent_twice_is_found() {
    struct Shelf(Mutex<Vec<usize>>);
    let found = catch_unwind(AssertUnwindSafe(|| {
        two_threads(
            || Shelf(Mutex::new(vec![1])),
            |shelf, at_hand, me| {
                let lent = shelf.0.lock()[0];
                at_hand.use_at(me, lent);
            },
        );
    }));
    assert!(found.is_err(), "scratch lent twice was not found");
}
