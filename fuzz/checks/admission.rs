//! Admission against the slow reference of the tests: the same verdict, the same canonical bytes,
//! with wide registers and without.

use std::cell::RefCell;

use kvhints::hint::{admit, Ingress, Scratch, Snapshot, Verdict};

use super::bytes::prepared;
use super::tally::Tally;
use super::Check;
use crate::reference::{self, Outcome, RULES};

pub const CHECK: Check = Check {
    name: "admission",
    run: |data, tally| {
        let (raw, trusted) = prepared(data);
        check(&raw, trusted, tally);
    },
    kinds,
};

const VERDICTS: [&str; 6] =
    ["admitted", "absent", "untrusted", "unknown_version", "oversized", "malformed"];
const REWRITTEN: &str = "admitted, not canonical before";

pub fn kinds() -> Vec<String> {
    let verdicts = VERDICTS.iter().map(|verdict| (*verdict).to_owned());
    let rules = RULES.iter().map(|rule| format!("rule: {rule}"));
    verdicts.chain([REWRITTEN.to_owned()]).chain(rules).collect()
}

thread_local! {
    // The same for all inputs, as a host has: what an input leaves behind must not matter to the
    // next.
    static SCRATCHES: RefCell<[Scratch; 2]> =
        RefCell::new([Scratch::new(0x5eed), Scratch::portable(0x5eed)]);
}

/// What `judge` says with wide registers, and without.
pub fn both_ways<T>(mut judge: impl FnMut(&mut Scratch) -> T) -> [T; 2] {
    SCRATCHES.with_borrow_mut(|scratches| {
        scratches.each_mut().map(|scratch| {
            let said = judge(scratch);
            scratch.trim();
            said
        })
    })
}

/// The verdict as the reference puts it.
pub fn outcome(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Admitted(snapshot) => Outcome::Admitted(
            String::from_utf8(snapshot.json().to_vec()).expect("a canonical form is UTF-8"),
        ),
        Verdict::Absent => Outcome::Absent,
        Verdict::Untrusted | Verdict::BadlySigned(_) => Outcome::Untrusted,
        Verdict::UnknownVersion => Outcome::UnknownVersion,
        Verdict::Oversized => Outcome::Oversized,
        Verdict::Malformed => Outcome::Malformed,
    }
}

/// The metric's word for an outcome.
pub fn word(outcome: &Outcome) -> &'static str {
    VERDICTS[match outcome {
        Outcome::Admitted(_) => 0,
        Outcome::Absent => 1,
        Outcome::Untrusted => 2,
        Outcome::UnknownVersion => 3,
        Outcome::Oversized => 4,
        Outcome::Malformed => 5,
    }]
}

/// One hint.
pub fn check(raw: &[u8], trusted: bool, tally: &mut Tally) {
    let ingress = Ingress::Http { trusted };
    let verdicts = both_ways(|scratch| admit(raw, ingress, scratch).expect("memory"));
    let (expected, rules) = reference::judge(raw, trusted);
    for verdict in &verdicts {
        assert!(outcome(verdict) == expected, "verdict {verdict:?}, expected {}", word(&expected));
    }
    tally.count(word(&expected));
    for rule in rules {
        tally.count(&format!("rule: {rule}"));
    }
    if let [Verdict::Admitted(snapshot), Verdict::Admitted(same)] = &verdicts {
        assert!(snapshot == same);
        check_snapshot(snapshot);
        if snapshot.json() != raw {
            tally.count(REWRITTEN);
        }
    }
}

/// What a snapshot's own bytes say again, and each action's alone.
fn check_snapshot(snapshot: &Snapshot) {
    let again = Snapshot::from_canonical(snapshot.json()).expect("its own bytes");
    assert!(again == *snapshot);
    assert!(again.actions().eq(snapshot.actions()), "actions");
    assert_eq!(again.message_id(), snapshot.message_id());
    for index in 0..snapshot.action_count().min(3) {
        let alone = snapshot.one_action(index).expect("memory").expect("an action");
        let same = Snapshot::from_canonical(alone.json()).expect("an envelope");
        assert!(alone.action(0) == same.action(0), "an action alone");
        assert!(alone.message_id() == same.message_id(), "message_id beside an action alone");
        assert!(
            alone.action(0).map(|action| action.json) == snapshot.action(index).map(|a| a.json)
        );
    }
}
