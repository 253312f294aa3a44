//! Every edit of one byte, at every place, of hints as long as those in use: what the scanner reads in
//! blocks is judged there like everything else. Against the slow reference, with wide registers and
//! without, as a hint and as a hint in a body.

mod reference;

use std::collections::BTreeMap;

use kvhints::hint::{admit, admit_body, Ingress, Scratch, Verdict};
use reference::Outcome;

const TRUSTED: Ingress = Ingress::InProcess;

/// What is put in, or instead: all that means something in JSON, and a little that does not.
const BYTES: &[u8] = b",[]{}:\"\\019-+.eE \n\ttx\x00\x7f\xc3";

/// Hints with arrays that are read in blocks: of long integers and short ones, with blanks as routers
/// put them, with other elements in between, at the very end, several in a row.
fn hints() -> Vec<String> {
    let integers = |count: usize, of: &str, between: &str| vec![of; count].join(between);
    let envelope = |rest: &str| {
        format!("{{\"protocol_version\":\"0.1\",\"message_id\":\"m\",\"actions\":[]{rest}}}")
    };
    let hashes = integers(7, "18446744073709551615", ",");
    let spaced = integers(7, "1844674407370955161", ", ");
    let short = integers(50, "7", ",");
    vec![
        envelope(&format!(",\"x\":[{hashes}]")),
        envelope(&format!(",\"x\":[ {spaced} ] ")),
        envelope(&format!(",\"x\":[[{short}],[{hashes}],{{\"y\":[{short}]}}]")),
        envelope(&format!(",\"x\":[{short},null,{hashes},-1,{spaced}]")),
        format!(
            "{{\"actions\":[{{\"action_id\":\"a\",\"action_type\":\"kv.fetch\",\"action_version\":\"1.0\",\
             \"payload\":{{\"block_hashes\":[{hashes}],\"source_control_endpoint\":\"tcp://h:1\"}}}}],\
             \"message_id\":\"m\",\"protocol_version\":\"0.1\"}}"
        ),
    ]
}

fn outcome(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Admitted(snapshot) => {
            Outcome::Admitted(String::from_utf8(snapshot.json().to_vec()).expect("UTF-8"))
        }
        Verdict::Absent => Outcome::Absent,
        Verdict::Untrusted => Outcome::Untrusted,
        Verdict::UnknownVersion => Outcome::UnknownVersion,
        Verdict::Oversized => Outcome::Oversized,
        Verdict::Malformed => Outcome::Malformed,
        Verdict::BadlySigned(_) => panic!("nothing is signed"),
    }
}

#[test]
fn every_edit_of_one_byte_is_judged_as_the_reference_judges_it() {
    let mut scratches = [Scratch::new(1), Scratch::portable(1)];
    let mut seen = BTreeMap::new();
    let mut check = |hint: &[u8]| {
        let expected = reference::admit(hint, true);
        let body = [b"{\"kv_hints\":", hint, b"}"].concat();
        let is_body = reference::body::split(&body).is_some_and(|split| split.rest == b"{}");
        for scratch in &mut scratches {
            let verdict = admit(hint, TRUSTED, scratch).expect("memory");
            assert_eq!(outcome(&verdict), expected, "{:?}", String::from_utf8_lossy(hint));
            match admit_body(&body, body.len(), TRUSTED, scratch) {
                Err(_) => assert!(!is_body, "{:?}", String::from_utf8_lossy(&body)),
                Ok(split) if is_body => assert_eq!(outcome(&split.verdict), expected),
                Ok(split) => assert_ne!(split.body, b"{}", "{:?}", String::from_utf8_lossy(&body)),
            }
        }
        *seen.entry(matches!(expected, Outcome::Admitted(_))).or_insert(0u32) += 1;
    };
    for hint in hints() {
        let hint = hint.as_bytes();
        check(hint);
        for at in 0..=hint.len() {
            for byte in BYTES {
                check(&[&hint[..at], &[*byte], &hint[at..]].concat());
                if at < hint.len() {
                    check(&[&hint[..at], &[*byte], &hint[at + 1..]].concat());
                }
            }
            if at < hint.len() {
                check(&[&hint[..at], &hint[at + 1..]].concat());
            }
        }
    }
    assert!(seen[&true] > 1000 && seen[&false] > 10_000, "{seen:?}");
}
