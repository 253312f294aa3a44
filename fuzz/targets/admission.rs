//! Admission against the slow reference of the tests: the same verdict, the same canonical bytes.
//!
//! The first byte of an input says how to read the rest, so that small inputs reach the limits on
//! length: see [`input`]. At the end a table of verdicts and rules is printed; a zero in it fails the
//! run, because a fuzzer that never saw a verdict says nothing about it.

#![no_main]

mod input;
#[path = "../../tests/reference/mod.rs"]
mod reference;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use input::prepared;
use kvhints::hint::{admit, Ingress, Scratch, Snapshot, Verdict};
use libfuzzer_sys::fuzz_target;
use reference::{Outcome, RULES};

const VERDICTS: [&str; 6] =
    ["admitted", "absent", "untrusted", "unknown_version", "oversized", "malformed"];

static SEEN_VERDICTS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
static SEEN_RULES: [AtomicU64; RULES.len()] = [const { AtomicU64::new(0) }; RULES.len()];
/// Envelopes that were not canonical already.
static REWRITTEN: AtomicU64 = AtomicU64::new(0);

extern "C" fn report() {
    let mut zeros = 0;
    let mut line = |name: &str, count: &AtomicU64| {
        let count = count.load(Ordering::Relaxed);
        zeros += u32::from(count == 0);
        println!("{count:>12}  {name}");
    };
    VERDICTS.iter().zip(&SEEN_VERDICTS).for_each(|(name, count)| line(name, count));
    line("admitted, not canonical before", &REWRITTEN);
    RULES.iter().zip(&SEEN_RULES).for_each(|(name, count)| line(&format!("rule: {name}"), count));
    if zeros > 0 {
        println!("{zeros} of these were never seen: run longer, or mend the corpus");
        // SAFETY: ends the process, which is ending anyway.
        unsafe { libc::_exit(3) };
    }
}

thread_local! {
    // One for all inputs, as a host has: what an input leaves behind must not matter to the next.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new(0x5eed));
}

fuzz_target!(
    init: {
        // SAFETY: the function is there as long as the process.
        unsafe { libc::atexit(report) };
    },
    |data: &[u8]| {
        let (raw, trusted) = prepared(data);
        let ingress = Ingress::Http { trusted };
        let verdict = SCRATCH.with_borrow_mut(|scratch| {
            let verdict = admit(&raw, ingress, scratch).expect("memory");
            scratch.trim();
            verdict
        });
        let (expected, rules) = reference::judge(&raw, trusted);
        for rule in rules {
            let index = RULES.iter().position(|known| *known == rule).expect("a known rule");
            SEEN_RULES[index].fetch_add(1, Ordering::Relaxed);
        }
        let index = match (&verdict, &expected) {
            (Verdict::Admitted(snapshot), Outcome::Admitted(canonical)) => {
                assert_eq!(snapshot.json(), canonical.as_bytes(), "canonical bytes");
                if snapshot.json() != raw {
                    REWRITTEN.fetch_add(1, Ordering::Relaxed);
                }
                let again = Snapshot::from_canonical(snapshot.json()).expect("its own bytes");
                assert!(again == *snapshot);
                for index in 0..snapshot.action_count().min(3) {
                    let alone = snapshot.one_action(index).expect("memory").expect("an action");
                    let same = Snapshot::from_canonical(alone.json()).expect("an envelope");
                    assert_eq!(alone.action(0), same.action(0));
                    assert_eq!(alone.message_id(), same.message_id());
                }
                0
            }
            (Verdict::Absent, Outcome::Absent) => 1,
            (Verdict::Untrusted, Outcome::Untrusted) => 2,
            (Verdict::UnknownVersion, Outcome::UnknownVersion) => 3,
            (Verdict::Oversized, Outcome::Oversized) => 4,
            (Verdict::Malformed, Outcome::Malformed) => 5,
            _ => panic!("verdict {verdict:?}, the reference says {expected:?}"),
        };
        SEEN_VERDICTS[index].fetch_add(1, Ordering::Relaxed);
    }
);
