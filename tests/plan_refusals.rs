//! The decision as a table: every rule, its place in the order, and its reason.

mod plan_support;

use kvhints::plan::{Counts, Plan, Refusal, Refusal::*, RequestKind::*, RequestProfile};
use kvhints::telemetry::Metrics;
use plan_support::hint;
use plan_support::server::*;

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
    let generation = profile(GenerationOnly);
    let lora_generation = RequestProfile { has_lora: true, ..generation };
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
        // 5 and 6, again, with the prefix form.
        (
            "prefix form, unlisted",
            context,
            vec![("kv.fetch", "1.1", prefix_at("tcp://unlisted:1"))],
            EndpointUnlisted,
            [1, 0, 0],
        ),
        (
            "prefix form, incapable",
            context,
            vec![("kv.fetch", "1.1", prefix_at("tcp://unable:1"))],
            BindingIncapable,
            [1, 0, 0],
        ),
        (
            "capable of another version only",
            context,
            vec![("kv.fetch", "1.1", prefix_at("tcp://only-10:1"))],
            BindingIncapable,
            [1, 0, 0],
        ),
        (
            "prefix form in place of a list",
            context,
            vec![("kv.fetch", "1.0", prefix_at("tcp://good:1"))],
            BadPayload,
            [1, 0, 0],
        ),
        // Generation-only: each cause ends only the optional fetch; the counts are the same.
        ("generation-only, no actions", generation, vec![], NoCandidate, [0, 0, 0]),
        (
            "generation-only, unsupported action",
            generation,
            vec![("kv.retain", "1.0", GOOD.into())],
            NoCandidate,
            [0, 1, 0],
        ),
        (
            "generation-only, unsupported version",
            generation,
            vec![("kv.fetch", "2.0", GOOD.into())],
            NoCandidate,
            [0, 0, 1],
        ),
        ("generation-only, lora", lora_generation, fetch_10(GOOD), Lora, [0, 0, 0]),
        ("generation-only, bad payload", generation, fetch_10("{}"), BadPayload, [1, 0, 0]),
        (
            "generation-only, no reader",
            generation,
            vec![("kv.fetch", "9.9", GOOD.into())],
            BadPayload,
            [1, 0, 0],
        ),
        (
            "generation-only, unlisted",
            generation,
            fetch_at("tcp://unlisted:1"),
            EndpointUnlisted,
            [1, 0, 0],
        ),
        (
            "generation-only, missing",
            generation,
            fetch_at("tcp://unsupported:1"),
            BindingMissing,
            [1, 0, 0],
        ),
        (
            "generation-only, ambiguous",
            generation,
            fetch_at("tcp://ambiguous:1"),
            BindingAmbiguous,
            [1, 0, 0],
        ),
        (
            "generation-only, unauthorised",
            generation,
            fetch_at("tcp://stranger:1"),
            BindingUnauthorised,
            [1, 0, 0],
        ),
        (
            "generation-only, other namespace",
            RequestProfile { namespace: b"llama/rev4", ..generation },
            fetch_at("tcp://good:1"),
            BindingUnauthorised,
            [1, 0, 0],
        ),
        (
            "generation-only, incapable",
            generation,
            fetch_at("tcp://unable:1"),
            BindingIncapable,
            [1, 0, 0],
        ),
        (
            "generation-only, second never tried",
            generation,
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
    assert!(rows.len() >= 60, "{}", rows.len());
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
