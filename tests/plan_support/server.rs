//! A server's configuration in which each endpoint shows one rule, and decisions with it.

use kvhints::hint::Snapshot;
use kvhints::plan::{
    decide, decide_observed, Addressing, BindingTable, Capabilities, Decision, NamedFetch, Plan,
    Refusal::*, RequestKind, RequestProfile, Step,
};

pub const NAMESPACE: &[u8] = b"llama/rev3";

/// Listed for one good binding.
pub const GOOD: &str = r#"{"source_control_endpoint":"tcp://good:1","block_hashes":[11,22]}"#;

pub fn at(endpoint: &str) -> String {
    format!(r#"{{"source_control_endpoint":"{endpoint}","block_hashes":[11,22]}}"#)
}

pub fn prefix_at(endpoint: &str) -> String {
    let prefix = r#"{"blocks":5,"last":9,"every":2,"hashes":[5,7]}"#;
    format!(r#"{{"source_control_endpoint":"{endpoint}","prefix":{prefix}}}"#)
}

/// The server's configuration; each endpoint shows one rule.
pub fn table() -> BindingTable {
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
        ("only-10", "F", named, false, true, &["tcp://only-10:1"]),
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
    table.add_action("only-10", "kv.fetch", "1.0").unwrap();
    table
}

const SUPPORTED: [(&str, &str); 6] =
    [("G", "1.0"), ("G", "1.1"), ("G", "9.9"), ("F", "1.0"), ("F", "1.1"), ("F", "9.9")];

pub fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::new();
    for (family, version) in SUPPORTED {
        capabilities.add(family, "kv.fetch", version).unwrap();
    }
    capabilities
}

fn capabilities_backwards() -> Capabilities {
    let mut capabilities = Capabilities::new();
    for (family, version) in SUPPORTED.into_iter().rev() {
        capabilities.add(family, "kv.fetch", version).unwrap();
    }
    capabilities
}

pub fn profile(kind: RequestKind) -> RequestProfile<'static> {
    RequestProfile { has_lora: false, kind, required_handoff: false, namespace: NAMESPACE }
}

/// What the last step of a decision with this plan can be; empty where there is no step.
fn last_step(plan: &Plan) -> &'static [&'static str] {
    match plan {
        Plan::NamedFetch(_) | Plan::Local(RequestPaired) => &["Addressed"],
        Plan::Local(Lora | NotEligible) => &[],
        // Without a hint nothing is collected.
        Plan::Local(NoCandidate) => &["Eligible", "Collected"],
        Plan::Local(BadPayload) => &["Payload"],
        Plan::Local(EndpointUnlisted) => &["Endpoint", "Registry"],
        Plan::Local(BindingMissing | BindingAmbiguous) => &["Considered"],
        Plan::Local(BindingUnauthorised) => &["Authorised"],
        Plan::Local(BindingIncapable) => &["Capable"],
    }
}

/// The decision, after asking for it in every way that must not matter.
pub fn decided(snapshot: Option<&Snapshot>, profile: &RequestProfile<'_>) -> Decision {
    let decision = decide(snapshot, &capabilities(), &table(), profile).expect("memory");
    let handoff = RequestProfile { required_handoff: !profile.required_handoff, ..*profile };
    let again = decide(snapshot, &capabilities(), &table(), &handoff).expect("memory");
    assert_eq!(again, decision, "a required handoff changes nothing");
    let again = decide(snapshot, &capabilities_backwards(), &table(), profile).expect("memory");
    assert_eq!(again, decision, "the order of families changes nothing");
    let mut steps = Vec::new();
    let observe = |step: Step<'_>| {
        let text = format!("{step:?}");
        steps.push(text.split(['(', ' ']).next().expect("a name").to_owned());
    };
    let again = decide_observed(snapshot, &capabilities(), &table(), profile, observe);
    assert_eq!(again.expect("memory"), decision, "being observed changes nothing");
    let possible = last_step(&decision.plan);
    let last = steps.last().map(String::as_str);
    assert!(
        last.map_or(possible.is_empty(), |last| possible.contains(&last)),
        "{steps:?} do not show {:?}",
        decision.plan
    );
    decision
}

pub fn fetch(decision: Decision) -> NamedFetch {
    match decision.plan {
        Plan::NamedFetch(fetch) => fetch,
        Plan::Local(refusal) => panic!("refused: {}", refusal.name()),
    }
}

pub fn fetch_at(endpoint: &str) -> Vec<(&'static str, &'static str, String)> {
    vec![("kv.fetch", "1.0", at(endpoint))]
}
