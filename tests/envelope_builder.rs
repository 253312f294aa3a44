//! Envelopes made by the host: what is built is admitted as it is, what breaks a rule is refused
//! with its place, and a refused part leaves no trace.

mod reference;

use kvhints::hint::builder::{ActionParts, BuildError, EnvelopeBuilder, FetchParts, Place, Rule};
use kvhints::hint::limits::CANONICAL_MAX_BYTES;
use proptest::prelude::*;
use reference::Outcome;

fn builder() -> EnvelopeBuilder {
    EnvelopeBuilder::new(b"m", 1).expect("a builder")
}

fn action(payload: &[u8]) -> ActionParts<'_> {
    ActionParts { id: b"a", action_type: b"t", version: b"1", payload }
}

fn json(builder: &mut EnvelopeBuilder) -> String {
    let snapshot = builder.finish().expect("an envelope");
    let json = String::from_utf8(snapshot.json().to_vec()).expect("UTF-8");
    assert_eq!(reference::admit(json.as_bytes(), true), Outcome::Admitted(json.clone()));
    json
}

#[test]
fn an_envelope_is_built_part_by_part() {
    let mut builder = EnvelopeBuilder::new("m\n\u{e9}\"".as_bytes(), 1).expect("a builder");
    let empty = r#"{"protocol_version":"0.1","message_id":"m\né\"","actions":[]}"#;
    assert_eq!(json(&mut builder), empty);
    builder.add_extra(b"trace", b" [ 1 , 2.50 ] ").expect("metadata");
    let hashes = &[0, 11, u64::MAX];
    builder
        .add_fetch(FetchParts { id: b"a1", version: b"1.0", endpoint: b"tcp://h:1", hashes })
        .expect("a fetch");
    builder.add_action_extra(b"x", br#""\u00e9\/""#).expect("metadata");
    builder.add_action(action(br#"{ "a" : {} }"#)).expect("an action");
    builder.add_action_extra(b"x", b"null").expect("the same name in another action");
    builder.add_extra(b"x", b"null").expect("the same name in the envelope");
    assert_eq!(
        json(&mut builder),
        concat!(
            r#"{"protocol_version":"0.1","message_id":"m\né\"","actions":["#,
            r#"{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":"#,
            r#"{"source_control_endpoint":"tcp://h:1","block_hashes":[0,11,18446744073709551615]},"#,
            r#""x":"é/"},"#,
            r#"{"action_id":"a","action_type":"t","action_version":"1","payload":{"a":{}},"x":null}],"#,
            r#""trace":[1,2.50],"x":null}"#
        )
    );
    assert!(!format!("{builder:?}").contains("tcp"));
}

#[test]
fn what_breaks_a_rule_is_named_and_leaves_no_trace() {
    let mut built = builder();
    let none = built.add_action_extra(b"x", b"1").expect_err("no action");
    assert_eq!(
        none,
        BuildError::Refused { place: Place::Action(0, "extra metadata"), rule: Rule::NoAction }
    );
    built.add_action(action(b"{}")).expect("an action");
    built.add_extra(b"x", b"1").expect("metadata");
    built.add_action_extra(b"x", b"1").expect("metadata");
    let before = json(&mut built);
    let deep = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count));
    let long = format!("\"{}\"", "x".repeat(CANONICAL_MAX_BYTES));
    let huge = " ".repeat(1 << 20) + "{}";
    for (value, rule) in [
        ("", Rule::Json),
        ("1,\"y\":2", Rule::Json),
        ("1}", Rule::Json),
        ("1}],\"z\":[{", Rule::Json),
        ("{\"a\":1,}", Rule::Json),
        ("NaN", Rule::Json),
        ("1e999", Rule::Number),
        ("[18446744073709551616,1]", Rule::Number),
        ("{\"a\":1,\"\\u0061\":2}", Rule::RepeatedName),
        ("{\"a\":[{\"b\":1,\"b\":1}]}", Rule::RepeatedName),
        (&deep(201), Rule::Depth),
        (&long, Rule::TooLong),
        (&huge, Rule::TooLong),
    ] {
        let value = value.as_bytes();
        let extra = built.add_extra(b"y", value).expect_err("refused");
        assert_eq!(extra, BuildError::Refused { place: Place::Extra, rule });
        let place = Place::Action(0, "extra metadata");
        let extra = built.add_action_extra(b"y", value).expect_err("refused");
        assert_eq!(extra, BuildError::Refused { place, rule });
        let payload = built.add_action(action(value)).expect_err("refused");
        let BuildError::Refused { place, rule: found } = payload.clone() else {
            panic!("{payload}")
        };
        assert_eq!(place, Place::Action(1, "payload"));
        assert!(found == rule || found == Rule::Object, "{found}");
        let text = payload.to_string();
        assert!(
            text.starts_with("actions[1].payload: expected ") && text.contains("found"),
            "{text}"
        );
    }
    for payload in [&b"1"[..], b"[]", b"null", b"[{}]", b"\"{}\""] {
        let error = built.add_action(action(payload)).expect_err("refused");
        assert_eq!(
            error,
            BuildError::Refused { place: Place::Action(1, "payload"), rule: Rule::Object }
        );
    }
    for name in ["protocol_version", "message_id", "actions"] {
        let error = built.add_extra(name.as_bytes(), b"1").expect_err("reserved");
        assert_eq!(error, BuildError::Refused { place: Place::Extra, rule: Rule::ReservedName });
        built.add_action_extra(name.as_bytes(), b"1").expect("means nothing in an action");
    }
    let before = before
        .replace("\"x\":1}],", "\"x\":1,\"protocol_version\":1,\"message_id\":1,\"actions\":1}],");
    for name in ["action_id", "action_type", "action_version", "payload"] {
        let error = built.add_action_extra(name.as_bytes(), b"1").expect_err("reserved");
        assert!(matches!(error, BuildError::Refused { rule: Rule::ReservedName, .. }));
    }
    let again = BuildError::Refused { place: Place::Extra, rule: Rule::RepeatedName };
    assert_eq!(built.add_extra(b"x", b"1"), Err(again));
    let text = BuildError::Refused { place: Place::Action(1, "action_type"), rule: Rule::Utf8 };
    assert_eq!(built.add_action(ActionParts { action_type: b"\xff", ..action(b"{}") }), Err(text));
    assert!(matches!(EnvelopeBuilder::new(b"\xff", 1), Err(BuildError::Refused { .. })));
    assert_eq!(json(&mut built), before, "what was refused left no trace");
}

#[test]
fn the_limits_are_those_of_admission() {
    // Depth: what stands in an action has four containers around it, in the envelope one.
    let deep = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count)).into_bytes();
    let mut built = builder();
    built.add_action(action(b"{}")).expect("an action");
    for (count, fits) in [(199, true), (200, false)] {
        assert_eq!(built.add_extra(format!("d{count}").as_bytes(), &deep(count)).is_ok(), fits);
    }
    for (count, fits) in [(197, true), (198, false)] {
        let name = format!("d{count}");
        assert_eq!(built.add_action_extra(name.as_bytes(), &deep(count)).is_ok(), fits, "{count}");
        let payload = [b"{\"a\":", &deep(count - 1)[..], b"}"].concat();
        assert_eq!(built.add_action(action(&payload)).is_ok(), fits, "{count}");
    }
    json(&mut built);
    // Length: to the byte, whatever part reaches it.
    let room = |built: &mut EnvelopeBuilder| CANONICAL_MAX_BYTES - json(built).len();
    let text = |len: usize| format!("\"{}\"", "x".repeat(len - 2)).into_bytes();
    for over in [0, 1] {
        let mut built = builder();
        let free = room(&mut built);
        let member = |len: usize| text(len - ",\"e\":".len());
        assert_eq!(built.add_extra(b"e", &member(free + over)).is_ok(), over == 0);

        let mut built = builder();
        built.add_action(action(b"{}")).expect("an action");
        let free = room(&mut built);
        assert_eq!(built.add_action_extra(b"e", &member(free + over)).is_ok(), over == 0);

        for first in [true, false] {
            let mut built = EnvelopeBuilder::new(b"", 1).expect("a builder");
            if !first {
                built.add_action(action(b"{}")).expect("an action");
            }
            let nothing = ActionParts { id: b"", action_type: b"", version: b"", payload: b"{}" };
            let mut least = EnvelopeBuilder::new(b"", 1).expect("a builder");
            if !first {
                least.add_action(action(b"{}")).expect("an action");
            }
            least.add_action(nothing).expect("an action");
            let free = room(&mut least);
            let payload = [&b"{\"\":"[..], &text(free - 3 + over), b"}"].concat();
            let parts = ActionParts { payload: &payload, ..nothing };
            assert_eq!(built.add_action(parts).is_ok(), over == 0, "{first}");
            if over == 0 {
                assert_eq!(json(&mut built).len(), CANONICAL_MAX_BYTES);
            }
        }
        let id = vec![b'm'; CANONICAL_MAX_BYTES - 56 + 1 + over];
        assert_eq!(EnvelopeBuilder::new(&id, 1).is_ok(), over == 0);
    }
    let hashes = vec![1; 70_000];
    let fetch = FetchParts { id: b"", version: b"", endpoint: b"", hashes: &hashes };
    assert!(matches!(
        builder().add_fetch(fetch),
        Err(BuildError::Refused { rule: Rule::TooLong, .. })
    ));
}

proptest! {
    #[test]
    fn whatever_the_parts_are_the_builder_and_the_table_agree(
        texts in prop::collection::vec(any::<String>(), 4),
        hashes in prop::collection::vec(any::<u64>(), 0..20),
        value in "[\\[\\]{}\", :0-9a-b.eE-]{0,12}",
    ) {
        let mut built = EnvelopeBuilder::new(texts[0].as_bytes(), 7).expect("short");
        let parts = FetchParts {
            id: texts[1].as_bytes(),
            version: texts[2].as_bytes(),
            endpoint: texts[3].as_bytes(),
            hashes: &hashes,
        };
        built.add_fetch(parts).expect("short");
        let by_hand = format!(
            r#"{{"protocol_version":"0.1","message_id":"m","actions":[],"v":{value}}}"#
        );
        let alone = reference::read(value.as_bytes()).is_some();
        let fits = alone && matches!(reference::admit(by_hand.as_bytes(), true), Outcome::Admitted(_));
        prop_assert_eq!(built.add_extra(b"v", value.as_bytes()).is_ok(), fits, "{}", value);
        json(&mut built);
    }
}
