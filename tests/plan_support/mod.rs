//! Hints for the tests of planning.

// Not each of the tests that include this file uses all of it.
#![allow(dead_code)]

pub mod server;

use kvhints::hint::Snapshot;

/// An admitted hint from canonical bytes.
pub fn admitted(json: &str) -> Snapshot {
    Snapshot::from_canonical(json.as_bytes()).expect("a hint that is admitted")
}

/// An admitted hint with these actions: (type, version, payload).
pub fn hint(actions: &[(&str, &str, &str)]) -> Snapshot {
    let actions: Vec<String> = actions
        .iter()
        .map(|(action_type, version, payload)| {
            format!(
                r#"{{"action_id":"a","action_type":"{action_type}","action_version":"{version}","payload":{payload}}}"#
            )
        })
        .collect();
    admitted(&format!(
        r#"{{"protocol_version":"0.1","message_id":"m","actions":[{}]}}"#,
        actions.join(",")
    ))
}
