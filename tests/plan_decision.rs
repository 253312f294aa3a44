//! The decision where it is a fetch, and what must not matter to it. Refusals: plan_refusals.rs.

mod plan_support;

use kvhints::hint::{admit, Ingress, Scratch, Snapshot, Verdict};
use kvhints::plan::{
    decide, Addressing, BindingTable, Capabilities, Counts, HashDialect, Plan, Refusal::*,
    RequestKind::*,
};
use plan_support::hint;
use plan_support::server::*;

#[test]
fn a_named_fetch_says_all_that_is_needed() {
    let snapshot = hint(&[
        ("kv.evict", "1.0", "{}"),
        ("kv.fetch", "2.0", GOOD),
        ("kv.fetch", "1.0", GOOD),
        ("kv.fetch", "1.0", "{}"),
    ]);
    let decision = decided(Some(&snapshot), &profile(Context));
    assert_eq!(decision.counts, Counts { candidates: 2, unknown_type: 1, version_unmatched: 1 });
    let fetch = fetch(decision);
    assert_eq!(&*fetch.binding_id, "good");
    assert_eq!(fetch.endpoint.canonical(), "tcp://good:1");
    assert_eq!((fetch.action_index, fetch.block_count, fetch.last_block_hash), (2, 2, 22));
    assert_eq!((fetch.then_paired_source, fetch.envelope), (false, None));
}

#[test]
fn named_fetches_of_all_sorts() {
    let prefix = r#"{"source_control_endpoint":"tcp://good:1","prefix":{"blocks":5000,"last":-2,"every":5001,"hashes":[]}}"#;
    let cut = r#"{"source_control_endpoint":"tcp://good:1","block_hashes":[1,2,3,null,5]}"#;
    let cases: &[(&str, &str, String, &str, u32, u64)] = &[
        ("spelling", "1.0", at("TCP://GOOD.:00001"), "tcp://good:1", 2, 22),
        ("default path", "1.0", at("HTTP://Web"), "http://web:80/v1/data_transceiver_state", 2, 22),
        (
            "one of two is supported",
            "1.0",
            at("tcp://one-supported:1"),
            "tcp://one-supported:1",
            2,
            22,
        ),
        ("prefix form", "1.1", prefix.to_owned(), "tcp://good:1", 5000, u64::MAX - 1),
        ("cut list", "1.0", cut.to_owned(), "tcp://good:1", 3, 3),
    ];
    for (name, version, payload, endpoint, block_count, last_block_hash) in cases {
        let snapshot = hint(&[("kv.fetch", version, payload)]);
        for kind in [Context, GenerationOnly] {
            let fetch = fetch(decided(Some(&snapshot), &profile(kind)));
            assert_eq!(fetch.endpoint.canonical(), *endpoint, "{name}");
            let range = (fetch.block_count, fetch.last_block_hash);
            assert_eq!(range, (*block_count, *last_block_hash), "{name}");
            assert_eq!(fetch.then_paired_source, kind == GenerationOnly, "{name}");
            assert_eq!(&*fetch.binding_id, "good", "{name}");
        }
    }
}

#[test]
fn without_a_hint_there_is_nothing_to_do_and_nothing_to_count() {
    for kind in [Context, GenerationOnly] {
        // A hint that admission dropped is no hint either.
        let dropped = admit(b"{", Ingress::InProcess, &mut Scratch::new(7)).unwrap();
        assert!(dropped.into_snapshot().is_none());
        let decision = decided(None, &profile(kind));
        assert_eq!(decision.plan, Plan::Local(NoCandidate));
        assert_eq!(decision.counts, Counts::default());
    }
    assert_eq!(decided(None, &profile(Other)).plan, Plan::Local(NotEligible));
}

#[test]
fn an_empty_configuration_refuses_everything() {
    let snapshot = hint(&[("kv.fetch", "1.0", GOOD)]);
    let plan = |capabilities: &Capabilities, table: &BindingTable| {
        decide(Some(&snapshot), capabilities, table, &profile(Context)).unwrap().plan
    };
    assert_eq!(plan(&Capabilities::new(), &table()), Plan::Local(NoCandidate));
    assert_eq!(plan(&capabilities(), &BindingTable::new()), Plan::Local(EndpointUnlisted));
}

#[test]
fn the_hash_dialect_is_the_tables() {
    let mut table = table();
    table.set_hash_dialect(HashDialect::HexDigits);
    let payload =
        r#"{"source_control_endpoint":"tcp://good:1","block_hashes":["00000000000000Ff"]}"#;
    for (payload, expected) in [(payload, Some(255)), (GOOD, None)] {
        let snapshot = hint(&[("kv.fetch", "1.0", payload)]);
        let plan =
            decide(Some(&snapshot), &capabilities(), &table, &profile(Context)).unwrap().plan;
        match (plan, expected) {
            (Plan::NamedFetch(fetch), Some(hash)) => assert_eq!(fetch.last_block_hash, hash),
            (plan, None) => assert_eq!(plan, Plan::Local(BadPayload)),
            (plan, _) => panic!("{plan:?}"),
        }
    }
}

#[test]
fn the_envelope_travels_only_where_the_binding_asks_for_it() {
    let mut table = table();
    table.add_binding("wants", "F", Addressing::ContentNamed, true).unwrap();
    table.add_action("wants", "kv.fetch", "1.0").unwrap();
    table.authorise_namespace("wants", NAMESPACE).unwrap();
    table.allow_endpoint("tcp://wants:1", "wants").unwrap();
    let snapshot = hint(&[("kv.evict", "1.0", "{}"), ("kv.fetch", "1.0", &at("tcp://wants:1"))]);
    let decision = decide(Some(&snapshot), &capabilities(), &table, &profile(Context)).unwrap();
    let envelope = fetch(decision).envelope.expect("an envelope");
    assert_eq!(*envelope, snapshot.one_action(1).expect("memory").expect("the action").json());
    assert!(!String::from_utf8_lossy(&envelope).contains("kv.evict"));
}

#[test]
fn the_order_of_registration_decides_nothing() {
    let forwards = table();
    let mut backwards = BindingTable::new();
    for id in ["other-family", "good-2", "good"] {
        let binding = forwards.binding(id).unwrap();
        backwards.add_binding(id, binding.family(), binding.addressing(), false).unwrap();
        backwards.add_action(id, "kv.fetch", "1.0").unwrap();
        backwards.authorise_namespace(id, NAMESPACE).unwrap();
    }
    for (endpoint, id) in [
        ("tcp://two-families:1", "other-family"),
        ("tcp://ambiguous:1", "good-2"),
        ("tcp://ambiguous:1", "good"),
        ("tcp://two-families:1", "good"),
        ("tcp://good:1", "good"),
    ] {
        backwards.allow_endpoint(endpoint, id).unwrap();
    }
    for endpoint in ["tcp://two-families:1", "tcp://ambiguous:1", "tcp://good:1"] {
        let snapshot = hint(&[("kv.fetch", "1.0", &at(endpoint))]);
        let plan = |table| {
            decide(Some(&snapshot), &capabilities(), table, &profile(Context)).unwrap().plan
        };
        assert_eq!(plan(&forwards), plan(&backwards), "{endpoint}");
    }
}

/// A plan is a value: what happens to the configuration afterwards does not reach it, and a new
/// decision sees the new configuration.
#[test]
fn a_plan_does_not_change_with_the_table() {
    let snapshot = hint(&[("kv.fetch", "1.0", GOOD)]);
    type Change = (fn(&mut BindingTable), Plan);
    let changes: &[Change] = &[
        (|table| table.allow_endpoint("tcp://good:1", "good-2").unwrap(), {
            Plan::Local(BindingAmbiguous)
        }),
        (|table| table.set_hash_dialect(HashDialect::HexDigits), Plan::Local(BadPayload)),
        (|table| *table = BindingTable::new(), Plan::Local(EndpointUnlisted)),
    ];
    for (change, expected) in changes {
        let (mut table, capabilities) = (table(), capabilities());
        let plan = decide(Some(&snapshot), &capabilities, &table, &profile(Context)).unwrap().plan;
        let (copy, bytes) = (plan.clone(), plan.to_bytes());
        change(&mut table);
        assert_eq!(plan, copy);
        assert_eq!(plan.to_bytes(), bytes);
        let new = decide(Some(&snapshot), &capabilities, &table, &profile(Context)).unwrap().plan;
        assert_eq!(&new, expected);
        drop(table);
        assert_eq!(plan, copy);
        assert!(matches!(plan, Plan::NamedFetch(_)));
    }
}

/// Rank 0 tells the others what it decided, not the hint: however long the envelope is.
#[test]
fn a_plan_is_small_whatever_the_envelope_is() {
    const ENVELOPE_MAX_BYTES: usize = 65_536;
    let short = hint(&[("kv.fetch", "1.0", GOOD)]);
    let plan_bytes = |snapshot: &Snapshot| {
        let decision = decided(Some(snapshot), &profile(GenerationOnly));
        assert!(matches!(decision.plan, Plan::NamedFetch(_)));
        decision.plan.to_bytes().unwrap()
    };
    let expected = plan_bytes(&short);
    assert!(expected.len() < 100, "{} bytes", expected.len());
    let room = ENVELOPE_MAX_BYTES - short.json().len();
    let padding = |len: usize| {
        let pad = format!(r#","pad":"{}"}}"#, "x".repeat(len - r#","pad":"""#.len()));
        hint(&[("kv.fetch", "1.0", &GOOD.replacen('}', &pad, 1))])
    };
    for len in [1_000, 10_000, room] {
        let snapshot = padding(len);
        assert_eq!(snapshot.json().len(), short.json().len() + len);
        assert_eq!(plan_bytes(&snapshot), expected, "{len} bytes more");
    }
    // Many hashes and many actions instead of one long text.
    let hashes = vec!["18446744073709551615"; 3_000].join(",");
    let list = format!(r#"{{"source_control_endpoint":"tcp://good:1","block_hashes":[{hashes}]}}"#);
    assert_eq!(plan_bytes(&hint(&[("kv.fetch", "1.0", &list)])).len(), expected.len());
    let mut actions = vec![("kv.fetch", "1.0", GOOD)];
    actions.resize(400, ("kv.evict", "1.0", "{}"));
    assert_eq!(plan_bytes(&hint(&actions)), expected);
}

/// The blocks of a long prompt fit a hint in the prefix form; listed one by one they do not.
#[test]
fn a_prefix_of_131072_tokens_fits_a_hint() {
    const BLOCKS: u64 = 131_072 / 32;
    // Hashes as they are in the field: 64 bits that look random.
    let hash = |block: u64| (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63;
    type Writer = fn(u64) -> String;
    let dialects: &[(HashDialect, Writer)] = &[
        (HashDialect::UnsignedNumber, |hash| hash.to_string()),
        (HashDialect::DecimalString, |hash| format!("\"{hash}\"")),
        (HashDialect::HexDigits, |hash| format!("\"{hash:016x}\"")),
    ];
    let envelope = |version: &str, payload: &str| {
        format!(
            r#"{{"protocol_version":"0.1","message_id":"m","actions":[{{"action_id":"a","action_type":"kv.fetch","action_version":"{version}","payload":{payload}}}]}}"#
        )
    };
    let admitted = |envelope: &str| {
        admit(envelope.as_bytes(), Ingress::InProcess, &mut Scratch::new(7)).expect("memory")
    };
    for (dialect, written) in dialects {
        let list: Vec<String> = (0..BLOCKS).map(|block| written(hash(block))).collect();
        let one_by_one = format!(
            r#"{{"source_control_endpoint":"tcp://good:1","block_hashes":[{}]}}"#,
            list.join(",")
        );
        let verdict = admitted(&envelope("1.0", &one_by_one));
        assert!(matches!(verdict, Verdict::Oversized), "{dialect:?}");
        for every in [2, 64, BLOCKS, BLOCKS + 1] {
            let hashes: Vec<&str> =
                (1..=BLOCKS / every).map(|j| list[(j * every - 1) as usize].as_str()).collect();
            let prefix = format!(
                r#"{{"source_control_endpoint":"tcp://good:1","prefix":{{"blocks":{BLOCKS},"last":{},"every":{every},"hashes":[{}]}}}}"#,
                list.last().expect("blocks"),
                hashes.join(",")
            );
            let snapshot = admitted(&envelope("1.1", &prefix)).into_snapshot().expect("it fits");
            let mut table = table();
            table.set_hash_dialect(*dialect);
            let decision = decide(Some(&snapshot), &capabilities(), &table, &profile(Context));
            let fetch = fetch(decision.expect("memory"));
            assert_eq!(u64::from(fetch.block_count), BLOCKS, "{dialect:?} {every}");
            assert_eq!(fetch.last_block_hash, hash(BLOCKS - 1), "{dialect:?} {every}");
        }
    }
}

#[test]
fn debug_text_keeps_quiet_about_the_hint() {
    let payload = r#"{"source_control_endpoint":"tcp://good:1","block_hashes":[42424242]}"#;
    let snapshot = hint(&[("kv.fetch", "1.0", payload)]);
    let text = format!("{:?}", decided(Some(&snapshot), &profile(Context)));
    assert!(!text.contains("42424242") && !text.contains("tcp://good"), "{text}");
}
