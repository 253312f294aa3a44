//! Collection of candidates against `vectors/selection.json`, and what the vectors cannot show.

mod plan_support;

use std::collections::BTreeMap;

use kvhints::plan::{Candidates, Capabilities, CapabilitiesFull, Counts};
use plan_support::{admitted, hint};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    actions: serde_json::Value,
    capabilities: BTreeMap<String, Vec<(String, String)>>,
    candidates: Vec<Expected>,
    unknown_type: usize,
    version_unmatched: usize,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Expected {
    action: usize,
    families: Vec<String>,
}

fn found(candidates: &Candidates) -> Vec<Expected> {
    let families = |names: &[std::sync::Arc<str>]| names.iter().map(|n| n.to_string()).collect();
    candidates
        .list()
        .iter()
        .map(|c| Expected { action: c.action_index, families: families(c.families()) })
        .collect()
}

fn collect(actions: &[(&str, &str, &str)], capabilities: &Capabilities) -> Candidates {
    Candidates::collect(&hint(actions), capabilities).expect("memory")
}

#[test]
fn the_vectors_hold() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("vectors/selection.json")).expect("the vectors");
    assert_eq!(cases.len(), 21);
    for case in cases {
        let snapshot = admitted(&format!(
            r#"{{"protocol_version":"0.1","message_id":"m","actions":{}}}"#,
            case.actions
        ));
        // Registration order must not matter: forwards and backwards.
        for backwards in [false, true] {
            let mut entries: Vec<(&str, &str, &str)> = Vec::new();
            for (family, supported) in &case.capabilities {
                entries.extend(supported.iter().map(|(t, v)| (&**family, &**t, &**v)));
            }
            if backwards {
                entries.reverse();
            }
            let mut capabilities = Capabilities::new();
            for (family, action_type, version) in entries {
                capabilities.add(family, action_type, version).expect("room");
            }
            let candidates = Candidates::collect(&snapshot, &capabilities).expect("memory");
            assert_eq!(found(&candidates), case.candidates, "{}", case.name);
            let counts = Counts {
                candidates: case.candidates.len(),
                unknown_type: case.unknown_type,
                version_unmatched: case.version_unmatched,
            };
            assert_eq!(candidates.counts(), counts, "{}", case.name);
        }
    }
}

#[test]
fn later_changes_of_the_capability_set_change_nothing_collected() {
    let mut capabilities = Capabilities::new();
    capabilities.add("M", "kv.fetch", "1.0").unwrap();
    let candidates = collect(&[("kv.fetch", "1.0", "{}")], &capabilities);
    capabilities.add("A", "kv.fetch", "1.0").unwrap();
    capabilities.add("Z", "kv.fetch", "1.0").unwrap();
    assert_eq!(found(&candidates)[0].families, ["M"]);
    let again = collect(&[("kv.fetch", "1.0", "{}")], &capabilities);
    assert_eq!(found(&again)[0].families, ["A", "M", "Z"]);
    drop(capabilities);
    assert_eq!(found(&again)[0].families, ["A", "M", "Z"]);
}

#[test]
fn candidates_keep_the_hint_alive() {
    let mut capabilities = Capabilities::new();
    capabilities.add("F", "kv.fetch", "1.0").unwrap();
    let candidates = collect(&[("kv.fetch", "1.0", r#"{"k":1}"#)], &capabilities);
    let action = candidates.snapshot().action(0).expect("the action");
    assert_eq!(action.payload, br#"{"k":1}"#);
}

#[test]
fn families_are_sorted_by_bytes_and_named_once() {
    let mut capabilities = Capabilities::new();
    for family in ["b", "a", "B", "é", "", "a", "b"] {
        capabilities.add(family, "kv.fetch", "1.0").unwrap();
    }
    let candidates = collect(&[("kv.fetch", "1.0", "{}")], &capabilities);
    assert_eq!(found(&candidates)[0].families, ["", "B", "a", "b", "é"]);
    assert!(candidates.list()[0].is_supported_by("é"));
    assert!(!candidates.list()[0].is_supported_by("A"));
}

#[test]
fn a_capability_set_has_a_limit_and_stays_as_it_was_beyond_it() {
    let mut capabilities = Capabilities::new();
    for i in 0..Capabilities::MAX_ENTRIES {
        capabilities.add(&format!("f{i}"), "kv.fetch", "1.0").unwrap();
    }
    assert_eq!(capabilities.add("more", "kv.fetch", "1.0"), Err(CapabilitiesFull));
    assert_eq!(capabilities.add("more", "kv.other", "1.0"), Err(CapabilitiesFull));
    assert_eq!(capabilities.add("f7", "kv.fetch", "1.0"), Ok(()), "said twice is no new entry");
    let candidates = collect(&[("kv.fetch", "1.0", "{}")], &capabilities);
    assert_eq!(candidates.list()[0].families().len(), Capabilities::MAX_ENTRIES);
    let other = collect(&[("kv.other", "1.0", "{}")], &capabilities);
    assert_eq!(other.counts().unknown_type, 1, "the refused entry left nothing behind");
    let long = "x".repeat(129);
    assert_eq!(Capabilities::new().add(&long, "t", "v"), Err(CapabilitiesFull));
    assert_eq!(Capabilities::new().add("f", &long, "v"), Err(CapabilitiesFull));
    assert_eq!(Capabilities::new().add("f", "t", &long), Err(CapabilitiesFull));
}
