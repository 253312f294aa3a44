//! The decision as a table: every rule, its place in the order, and its reason.

mod plan_support;

use kvhints::hint::Snapshot;
use kvhints::plan::{
    decide, Addressing, BindingTable, Capabilities, Counts, Decision, HashDialect, NamedFetch,
    Plan, Refusal, Refusal::*, RequestKind, RequestKind::*, RequestProfile,
};
use kvhints::telemetry::Metrics;
use plan_support::hint;

const NAMESPACE: &[u8] = b"llama/rev3";

/// Listed for one good binding.
const GOOD: &str = r#"{"source_control_endpoint":"tcp://good:1","block_hashes":[11,22]}"#;

fn at(endpoint: &str) -> String {
    format!(r#"{{"source_control_endpoint":"{endpoint}","block_hashes":[11,22]}}"#)
}

/// The server's configuration; each endpoint shows one rule.
fn table() -> BindingTable {
    let mut table = BindingTable::new();
    let named = Addressing::ContentNamed;
    let paired = Addressing::RequestPaired;
    type Row<'a> = (&'a str, &'a str, Addressing, bool, bool, &'a [&'a str]);
    // id, family, addressing, can do kv.fetch, is authorised, endpoints
    let bindings: &[Row] = &[
        (
            "good",
            "F",
            named,
            true,
            true,
            &[
                "tcp://good:1",
                "http://web",
                "tcp://two-families:1",
                "tcp://one-supported:1",
                "tcp://ambiguous:1",
            ],
        ),
        ("good-2", "F", named, true, true, &["tcp://ambiguous:1"]),
        ("other-family", "G", named, true, true, &["tcp://two-families:1"]),
        ("unsupported", "X", named, true, true, &["tcp://unsupported:1", "tcp://one-supported:1"]),
        ("stranger", "F", named, true, false, &["tcp://stranger:1"]),
        ("unable", "F", named, false, true, &["tcp://unable:1"]),
        ("stranger-unable", "F", named, false, false, &["tcp://stranger-unable:1"]),
        ("paired", "F", paired, true, true, &["tcp://paired:1"]),
        ("paired-unable", "F", paired, false, true, &["tcp://paired-unable:1"]),
        ("paired-stranger", "F", paired, true, false, &["tcp://paired-stranger:1"]),
    ];
    for (id, family, addressing, capable, authorised, endpoints) in bindings {
        table.add_binding(id, family, *addressing, false).unwrap();
        if *capable {
            table.add_action(id, "kv.fetch", "1.0").unwrap();
            table.add_action(id, "kv.fetch", "1.1").unwrap();
            table.add_action(id, "kv.fetch", "9.9").unwrap();
        }
        if *authorised {
            table.authorise_namespace(id, NAMESPACE).unwrap();
        }
        for endpoint in *endpoints {
            table.allow_endpoint(endpoint, id).unwrap();
        }
    }
    table
}

fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::new();
    for family in ["G", "F"] {
        for version in ["1.0", "1.1", "9.9"] {
            capabilities.add(family, "kv.fetch", version).unwrap();
        }
    }
    capabilities
}

fn profile(kind: RequestKind) -> RequestProfile<'static> {
    RequestProfile { has_lora: false, kind, required_handoff: false, namespace: NAMESPACE }
}

fn decided(snapshot: Option<&Snapshot>, profile: &RequestProfile<'_>) -> Decision {
    let decision = decide(snapshot, &capabilities(), &table(), profile).expect("memory");
    // The required handoff is nobody's business here.
    let handoff = RequestProfile { required_handoff: !profile.required_handoff, ..*profile };
    let again = decide(snapshot, &capabilities(), &table(), &handoff).expect("memory");
    assert_eq!(again, decision, "a required handoff changes nothing");
    decision
}

fn fetch(decision: Decision) -> NamedFetch {
    match decision.plan {
        Plan::NamedFetch(fetch) => fetch,
        Plan::Local(refusal) => panic!("refused: {}", refusal.name()),
    }
}

fn fetch_at(endpoint: &str) -> Vec<(&'static str, &'static str, String)> {
    vec![("kv.fetch", "1.0", at(endpoint))]
}

#[test]
fn every_refusal_has_its_reason_and_its_place_in_the_order() {
    let fetch_10 = |payload: &str| vec![("kv.fetch", "1.0", payload.to_owned())];
    let two = |first: &str, second: &str| {
        vec![("kv.fetch", "1.0", first.to_owned()), ("kv.fetch", "1.0", second.to_owned())]
    };
    let lora = RequestProfile { has_lora: true, ..profile(Context) };
    let lora_other = RequestProfile { has_lora: true, ..profile(Other) };
    let elsewhere = RequestProfile { namespace: b"llama/rev4", ..profile(Context) };
    let no_namespace = RequestProfile { namespace: b"", ..profile(Context) };
    let context = profile(Context);
    type Row<'a> = (
        &'a str,
        RequestProfile<'a>,
        Vec<(&'static str, &'static str, String)>,
        Refusal,
        [usize; 3],
    );
    let rows: Vec<Row> = vec![
        // 1. Eligibility, before anything is collected.
        ("lora", lora, fetch_10(GOOD), Lora, [0, 0, 0]),
        ("lora with unknown actions", lora, vec![("kv.x", "1.0", "{}".into())], Lora, [0, 0, 0]),
        ("lora before kind", lora_other, fetch_10(GOOD), Lora, [0, 0, 0]),
        ("kind other", profile(Other), fetch_10(GOOD), NotEligible, [0, 0, 0]),
        ("kind other, bad payload", profile(Other), fetch_10("{}"), NotEligible, [0, 0, 0]),
        // 2. Candidates.
        ("no actions", context, vec![], NoCandidate, [0, 0, 0]),
        ("unknown type", context, vec![("kv.retain", "1.0", GOOD.into())], NoCandidate, [0, 1, 0]),
        (
            "case of the type",
            context,
            vec![("KV.FETCH", "1.0", GOOD.into())],
            NoCandidate,
            [0, 1, 0],
        ),
        (
            "unmatched version",
            context,
            vec![("kv.fetch", "2.0", GOOD.into())],
            NoCandidate,
            [0, 0, 1],
        ),
        (
            "both sorts",
            profile(GenerationOnly),
            vec![("kv.fetch", "1", GOOD.into()), ("kv.evict", "1.0", "{}".into())],
            NoCandidate,
            [0, 1, 1],
        ),
        // 3. Payload, of the first candidate and no other.
        ("empty payload", context, fetch_10("{}"), BadPayload, [1, 0, 0]),
        (
            "no hashes",
            context,
            fetch_10(r#"{"source_control_endpoint":"tcp://good:1"}"#),
            BadPayload,
            [1, 0, 0],
        ),
        (
            "empty hashes",
            context,
            fetch_10(r#"{"source_control_endpoint":"tcp://good:1","block_hashes":[]}"#),
            BadPayload,
            [1, 0, 0],
        ),
        (
            "other dialect",
            context,
            fetch_10(r#"{"source_control_endpoint":"tcp://good:1","block_hashes":["11"]}"#),
            BadPayload,
            [1, 0, 0],
        ),
        ("no endpoint", context, fetch_10(r#"{"block_hashes":[1]}"#), BadPayload, [1, 0, 0]),
        (
            "endpoint null",
            context,
            fetch_10(r#"{"source_control_endpoint":null,"block_hashes":[1]}"#),
            BadPayload,
            [1, 0, 0],
        ),
        ("no reader", context, vec![("kv.fetch", "9.9", GOOD.into())], BadPayload, [1, 0, 0]),
        (
            "1.1 without prefix",
            context,
            vec![("kv.fetch", "1.1", GOOD.into())],
            BadPayload,
            [1, 0, 0],
        ),
        ("second never tried", context, two("{}", GOOD), BadPayload, [2, 0, 0]),
        (
            "payload before endpoint",
            context,
            fetch_10(r#"{"source_control_endpoint":"tcp://unlisted:1","block_hashes":[]}"#),
            BadPayload,
            [1, 0, 0],
        ),
        (
            "unreadable version first, good second",
            context,
            vec![("kv.fetch", "9.9", GOOD.into()), ("kv.fetch", "1.0", GOOD.into())],
            BadPayload,
            [2, 0, 0],
        ),
        // 4. Registry.
        ("unlisted", context, fetch_at("tcp://unlisted:1"), EndpointUnlisted, [1, 0, 0]),
        ("other port", context, fetch_at("tcp://good:2"), EndpointUnlisted, [1, 0, 0]),
        ("other scheme", context, fetch_at("http://good:1"), EndpointUnlisted, [1, 0, 0]),
        ("other path", context, fetch_at("http://web/"), EndpointUnlisted, [1, 0, 0]),
        ("subdomain", context, fetch_at("tcp://x.good:1"), EndpointUnlisted, [1, 0, 0]),
        ("no endpoint text", context, fetch_at("http://[::bad"), EndpointUnlisted, [1, 0, 0]),
        ("user-info", context, fetch_at("tcp://good:1@unlisted:1"), EndpointUnlisted, [1, 0, 0]),
        ("blank", context, fetch_at("tcp://good:1 "), EndpointUnlisted, [1, 0, 0]),
        ("empty endpoint", context, fetch_at(""), EndpointUnlisted, [1, 0, 0]),
        ("second listed", context, two(&at("tcp://unlisted:1"), GOOD), EndpointUnlisted, [2, 0, 0]),
        // 5. Exactly one binding.
        ("family unsupported", context, fetch_at("tcp://unsupported:1"), BindingMissing, [1, 0, 0]),
        ("two of a family", context, fetch_at("tcp://ambiguous:1"), BindingAmbiguous, [1, 0, 0]),
        (
            "two of two families",
            context,
            fetch_at("tcp://two-families:1"),
            BindingAmbiguous,
            [1, 0, 0],
        ),
        (
            "ambiguous, second good",
            context,
            two(&at("tcp://ambiguous:1"), GOOD),
            BindingAmbiguous,
            [2, 0, 0],
        ),
        (
            "missing before namespace",
            elsewhere,
            fetch_at("tcp://unsupported:1"),
            BindingMissing,
            [1, 0, 0],
        ),
        (
            "ambiguous before namespace",
            elsewhere,
            fetch_at("tcp://ambiguous:1"),
            BindingAmbiguous,
            [1, 0, 0],
        ),
        // 6. Authorised, then capable.
        (
            "no namespace authorised",
            context,
            fetch_at("tcp://stranger:1"),
            BindingUnauthorised,
            [1, 0, 0],
        ),
        ("other namespace", elsewhere, fetch_at("tcp://good:1"), BindingUnauthorised, [1, 0, 0]),
        ("empty namespace", no_namespace, fetch_at("tcp://good:1"), BindingUnauthorised, [1, 0, 0]),
        (
            "authorised before capable",
            context,
            fetch_at("tcp://stranger-unable:1"),
            BindingUnauthorised,
            [1, 0, 0],
        ),
        ("incapable", context, fetch_at("tcp://unable:1"), BindingIncapable, [1, 0, 0]),
        (
            "incapable, second good",
            context,
            two(&at("tcp://unable:1"), GOOD),
            BindingIncapable,
            [2, 0, 0],
        ),
        // 7. Addressing, last.
        ("request paired", context, fetch_at("tcp://paired:1"), RequestPaired, [1, 0, 0]),
        (
            "paired, generation only",
            profile(GenerationOnly),
            fetch_at("tcp://paired:1"),
            RequestPaired,
            [1, 0, 0],
        ),
        (
            "capable before addressing",
            context,
            fetch_at("tcp://paired-unable:1"),
            BindingIncapable,
            [1, 0, 0],
        ),
        (
            "authorised before addressing",
            context,
            fetch_at("tcp://paired-stranger:1"),
            BindingUnauthorised,
            [1, 0, 0],
        ),
    ];
    assert!(rows.len() >= 40);
    for refusal in Refusal::ALL {
        assert!(rows.iter().any(|row| row.3 == refusal), "no row for {}", refusal.name());
    }
    for (name, profile, actions, refusal, [candidates, unknown_type, version_unmatched]) in rows {
        let actions: Vec<_> = actions.iter().map(|(t, v, p)| (*t, *v, p.as_str())).collect();
        let decision = decided(Some(&hint(&actions)), &profile);
        assert_eq!(decision.plan, Plan::Local(refusal), "{name}");
        let counts = Counts { candidates, unknown_type, version_unmatched };
        assert_eq!(decision.counts, counts, "{name}");
    }
}

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
    assert_eq!(&*envelope, snapshot.one_action(1).expect("memory").expect("the action").json());
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

#[test]
fn debug_text_keeps_quiet_about_the_hint() {
    let payload = r#"{"source_control_endpoint":"tcp://good:1","block_hashes":[42424242]}"#;
    let snapshot = hint(&[("kv.fetch", "1.0", payload)]);
    let text = format!("{:?}", decided(Some(&snapshot), &profile(Context)));
    assert!(!text.contains("42424242") && !text.contains("tcp://good"), "{text}");
}

#[test]
fn refusals_have_stable_names_and_numbers() {
    let names: Vec<&str> = Refusal::ALL.iter().map(|refusal| refusal.name()).collect();
    assert_eq!(
        names,
        [
            "lora",
            "not_eligible",
            "no_candidate",
            "bad_payload",
            "endpoint_unlisted",
            "binding_missing",
            "binding_ambiguous",
            "binding_unauthorised",
            "binding_incapable",
            "request_paired",
        ]
    );
    assert_eq!(names, Metrics::REFUSED_REASONS, "the labels that count them");
    for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(refusal as usize, index + 1);
        assert_eq!(Refusal::from_number(index as u8 + 1), Some(refusal));
    }
    assert_eq!(Refusal::from_number(0), None);
    assert_eq!(Refusal::from_number(11), None);
}
