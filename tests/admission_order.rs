//! Which verdict wins when several things are wrong at once; hostile inputs; MessagePack by hand.

use kvhints::hint::limits::{CANONICAL_MAX_BYTES, RAW_MAX_BYTES, SCRATCH_MAX_BYTES};
use kvhints::hint::{admit, admit_msgpack, Ingress, Scratch, Snapshot, SnapshotError, Verdict};

const TRUSTED: Ingress = Ingress::InProcess;
const UNTRUSTED: Ingress = Ingress::Http { trusted: false };

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Admitted(_) => "admitted",
        Verdict::Absent => "absent",
        Verdict::Untrusted | Verdict::BadlySigned(_) => "untrusted",
        Verdict::UnknownVersion => "unknown_version",
        Verdict::Oversized => "oversized",
        Verdict::Malformed => "malformed",
    }
}

fn judged(raw: impl AsRef<[u8]>, ingress: Ingress) -> &'static str {
    word(&admit(raw.as_ref(), ingress, &mut Scratch::new(1)).expect("memory"))
}

fn admitted(json: &str) -> Snapshot {
    let verdict = admit(json.as_bytes(), TRUSTED, &mut Scratch::new(1)).expect("memory");
    verdict.into_snapshot().unwrap_or_else(|| panic!("not admitted: {json:.80}"))
}

/// An envelope of a version, with this as a further member's value.
fn envelope(version: &str, extra: &str) -> String {
    format!(r#"{{"protocol_version":"{version}","message_id":"m","actions":[],"extra":{extra}}}"#)
}

#[test]
fn each_row_beats_all_later_ones() {
    let long = format!("\"{}\"", "x".repeat(70_000));
    let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
    let number = "1e999";
    let repeated = r#"{"a":1,"a":2}"#;
    let flaws = [deep.as_str(), number, repeated, "99999999999999999999"];
    for flaw in flaws {
        assert_eq!(judged(envelope("0.1", flaw), TRUSTED), "malformed", "{flaw:.20}");
        assert_eq!(judged(envelope("0.2", flaw), TRUSTED), "unknown_version", "{flaw:.20}");
        let both = format!("[{flaw},{long}]");
        assert_eq!(judged(envelope("0.1", &both), TRUSTED), "oversized", "{flaw:.20}");
        let reversed = format!("[{long},{flaw}]");
        assert_eq!(judged(envelope("0.1", &reversed), TRUSTED), "oversized", "{flaw:.20}");
        assert_eq!(judged(envelope("0.2", &both), TRUSTED), "unknown_version", "{flaw:.20}");
        let broken = envelope("0.2", &format!("[{long},{flaw},]"));
        assert_eq!(judged(&broken, TRUSTED), "malformed", "{flaw:.20}");
        assert_eq!(judged(&broken, UNTRUSTED), "untrusted", "{flaw:.20}");
    }
    // Two versions, the second far behind the limit and spelled otherwise.
    let twice = format!(r#"{{"protocol_version":"0.2","x":{long},"protocol_\u0076ersion":"0.2"}}"#);
    assert_eq!(judged(twice, TRUSTED), "malformed");
    let late = format!(r#"{{"x":{long},"protocol_version":"0\u002e2"}}"#);
    assert_eq!(judged(late, TRUSTED), "unknown_version");
    let late = format!(r#"{{"x":{long},"protocol_version":"\u0030.1"}}"#);
    assert_eq!(judged(late, TRUSTED), "oversized");
    let raw = format!("{}{}", envelope("0.2", "1"), " ".repeat(RAW_MAX_BYTES));
    assert_eq!(judged(raw, TRUSTED), "oversized", "never parsed");
}

#[test]
fn known_members_count_only_where_they_belong() {
    let inner = r#"{"protocol_version":"9","protocol_version":"9"}"#;
    assert_eq!(judged(envelope("0.1", inner), TRUSTED), "malformed", "a repeated name");
    for extra in [
        r#"{"protocol_version":"9"}"#,
        r#"{"actions":[1],"message_id":1}"#,
        r#"[{"action_id":1},{"payload":[]}]"#,
    ] {
        assert_eq!(judged(envelope("0.1", extra), TRUSTED), "admitted", "{extra}");
    }
    let action = |payload: &str| {
        format!(
            r#"{{"protocol_version":"0.1","actions":[{{"action_id":"a","action_type":"t","action_version":"1","x":{payload},"payload":{payload},"y":{payload}}}],"message_id":"m"}}"#
        )
    };
    for payload in [r#"{"payload":1,"actions":2}"#, r#"{"x":[{"action_id":{}}]}"#, "{}"] {
        let snapshot = admitted(&action(payload));
        assert_eq!(snapshot.action(0).map(|one| one.payload.to_vec()), Some(payload.into()));
        assert_eq!(snapshot.message_id(), "m");
    }
}

/// Names of one object; `count` of them.
fn object(names: impl Iterator<Item = String>) -> String {
    let members: Vec<String> = names.map(|name| format!("\"{name}\":0")).collect();
    format!("{{{}}}", members.join(","))
}

#[test]
fn repeated_names_are_found_among_few_and_many() {
    for count in [1usize, 2, 15, 16, 17, 100, 4000] {
        let names = || (0..count).map(|index| format!("n{index}"));
        assert_eq!(judged(envelope("0.1", &object(names())), TRUSTED), "admitted", "{count}");
        for repeated in [0, count / 2, count - 1] {
            let again = names().chain([format!("\\u006e{repeated}")]);
            let text = envelope("0.1", &object(again));
            assert_eq!(judged(text, TRUSTED), "malformed", "{repeated} of {count}");
        }
        // The same names in neighbours and in nested objects are no repetition.
        let one = object(names().take(20));
        let nested = format!(r#"[{one},{one},{{"n0":{one},"n1":{{"n0":{one}}},"n2":1}}]"#);
        assert_eq!(judged(envelope("0.1", &nested), TRUSTED), "admitted", "{count}");
    }
    // A big object goes on after a big inner one was closed.
    let inner = object((0..40).map(|index| format!("n{index}")));
    let outer = |last: &str| {
        let first = object((0..20).map(|index| format!("n{index}")));
        format!("{},\"in\":{inner},\"{last}\":1}}", &first[..first.len() - 1])
    };
    assert_eq!(judged(envelope("0.1", &outer("n20")), TRUSTED), "admitted");
    assert_eq!(judged(envelope("0.1", &outer("n19")), TRUSTED), "malformed");
}

#[test]
fn one_scratch_serves_hostile_and_honest_hints_in_turn() {
    let mut scratch = Scratch::new(9);
    let shortest_names = object((0..7000u32).map(|index| {
        let letter = |value: u32| char::from_u32(0x80 + value).expect("a letter");
        format!("{}{}", letter(index / 100), letter(index % 100))
    }));
    let hostile: Vec<(Vec<u8>, &str)> = vec![
        (vec![b'['; RAW_MAX_BYTES], "malformed"),
        (envelope("0.9", &("[".repeat(500_000) + &"]".repeat(500_000))).into(), "unknown_version"),
        (envelope("0.1", &"9".repeat(RAW_MAX_BYTES - 200)).into(), "oversized"),
        (envelope("0.1", &format!("0.{}", "9".repeat(60_000))).into(), "admitted"),
        (envelope("0.1", &shortest_names).into(), "admitted"),
        (envelope("0.1", &format!("\"{}\"", "\\u0001".repeat(170_000))).into(), "oversized"),
        (vec![b' '; RAW_MAX_BYTES + 1], "absent"),
        (envelope("0.1", &format!("[{}1]", "{\"a\":1},".repeat(8_000))).into(), "admitted"),
        (envelope("0.1", &format!("[{}1]", " 1 ,".repeat(30_000))).into(), "admitted"),
        (vec![b'"'; RAW_MAX_BYTES], "malformed"),
        (envelope("0.1", &"\"\\ud800\"".repeat(2)).into(), "malformed"),
    ];
    for round in 0..2 {
        for (raw, expected) in &hostile {
            let verdict = admit(raw, TRUSTED, &mut scratch).expect("memory");
            assert_eq!(word(&verdict), *expected, "round {round}: {} bytes", raw.len());
            if let Some(snapshot) = verdict.into_snapshot() {
                assert!(snapshot.json().len() <= CANONICAL_MAX_BYTES);
            }
            scratch.trim();
            assert!(scratch.capacity_bytes() <= SCRATCH_MAX_BYTES, "{}", scratch.capacity_bytes());
            let honest = admit(envelope("0.1", "[1]").as_bytes(), TRUSTED, &mut scratch);
            assert_eq!(word(&honest.expect("memory")), "admitted");
        }
    }
}

#[test]
fn damaged_snapshot_bytes_are_an_error() {
    let json = envelope("0.1", "[1,2]");
    assert!(Snapshot::from_canonical(json.as_bytes()).is_ok());
    for damaged in [
        "",
        "null",
        "{}",
        &json[1..],
        &json[..json.len() - 1],
        &json.replace("0.1", "0.2"),
        &json.replace(',', ", "),
        &json.replace("\"m\"", "\"\\u006d\""),
        &json.replace("[1,2]", "1e999"),
        &json.replace("\"m\"", &format!("\"{}\"", "m".repeat(CANONICAL_MAX_BYTES))),
        &json.replace("\"extra\"", "\"message_id\""),
    ] {
        let error = Snapshot::from_canonical(damaged.as_bytes()).err();
        assert_eq!(error, Some(SnapshotError::Damaged), "{damaged:.80}");
    }
}

#[test]
fn debug_text_shows_no_contents() {
    let json = r#"{"protocol_version":"0.1","message_id":"secret","actions":[{"action_id":"secret","action_type":"secret","action_version":"secret","payload":{"secret":"secret"}}]}"#;
    let snapshot = admitted(json);
    let texts = [
        format!("{snapshot:?}"),
        format!("{snapshot:#?}"),
        format!("{:?}", snapshot.action(0)),
        format!("{:?}", Verdict::Admitted(snapshot.clone())),
        format!("{:?}", Snapshot::from_canonical(b"secret")),
    ];
    for text in texts {
        assert!(!text.contains("secret"), "{text}");
    }
    assert!(format!("{snapshot:?}").contains(&json.len().to_string()));
}

#[test]
fn strings_with_escapes_are_handed_out_unescaped() {
    let snapshot = admitted(
        r#"{"protocol_version":"0.1","actions":[{"action_id":"a\nb","action_type":"t\u0000","action_version":"\"","payload":{}},{"action_id":"2","action_type":"\\","action_version":"1","payload":{"z":"\n"}}],"x":1,"message_id":"\u00e9\t\ud83d\ude00"}"#,
    );
    assert_eq!(snapshot.message_id(), "\u{e9}\t\u{1f600}");
    let second = snapshot.one_action(1).expect("memory").expect("there is one");
    for (action, id, action_type, version) in [
        (snapshot.action(0), "a\nb", "t\0", "\""),
        (snapshot.action(1), "2", "\\", "1"),
        (second.action(0), "2", "\\", "1"),
    ] {
        let action = action.expect("there is one");
        assert_eq!((action.id, action.action_type, action.version), (id, action_type, version));
    }
    assert_eq!(second.message_id(), snapshot.message_id());
}

fn msgpack(raw: impl AsRef<[u8]>) -> &'static str {
    word(&admit_msgpack(raw.as_ref(), TRUSTED, &mut Scratch::new(1)).expect("memory"))
}

/// A map of an envelope's three members and `extra`, which is encoded.
fn msgpack_envelope(version: &str, extra: &[u8]) -> Vec<u8> {
    let mut raw = vec![0x84];
    for text in ["protocol_version", version, "message_id", "m", "actions"] {
        raw.push(0xa0 | text.len() as u8);
        raw.extend(text.bytes());
    }
    raw.push(0x90);
    raw.extend(b"\xa5extra");
    raw.extend(extra);
    raw
}

#[test]
fn messagepack_values_become_their_canonical_json() {
    for (extra, json) in [
        (&b"\xc0"[..], "null"),
        (b"\xc2", "false"),
        (b"\xc3", "true"),
        (b"\x7f", "127"),
        (b"\xe0", "-32"),
        (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"),
        (b"\xd3\x80\0\0\0\0\0\0\0", "-9223372036854775808"),
        (b"\xcb\x3f\xf0\0\0\0\0\0\0", "1.0"),
        (b"\xcb\x80\0\0\0\0\0\0\0", "-0.0"),
        (b"\xcb\x7f\xef\xff\xff\xff\xff\xff\xff", "1.7976931348623157e308"),
        (b"\xca\x3f\x00\0\0", "0.5"),
        (b"\xd9\x02\xc3\xa9", "\"\u{e9}\""),
        (b"\xda\0\x03\x01\"\n", r#""\u0001\"\n""#),
        (b"\xdb\0\0\0\x01/", "\"/\""),
        (b"\x92\x91\x90\x80", "[[[]],{}]"),
        (b"\xdc\0\x02\x01\x02", "[1,2]"),
        (b"\xdd\0\0\0\x01\x80", "[{}]"),
        (b"\xde\0\x02\xa1a\x01\xa1b\x81\xa0\x02", r#"{"a":1,"b":{"":2}}"#),
        (b"\xdf\0\0\0\x01\xa1a\x91\x01", r#"{"a":[1]}"#),
    ] {
        let raw = msgpack_envelope("0.1", extra);
        let verdict = admit_msgpack(&raw, TRUSTED, &mut Scratch::new(1)).expect("memory");
        let snapshot = verdict.into_snapshot().unwrap_or_else(|| panic!("{json}"));
        assert_eq!(snapshot.json(), envelope("0.1", json).as_bytes());
    }
}

#[test]
fn messagepack_that_json_cannot_say_is_malformed() {
    for extra in [
        &b""[..],
        b"\xc1",
        b"\xc4\x00",
        b"\xc7\x00\x01",
        b"\xd6\xff\0\0\0\0",
        b"\xcb\x7f\xf0\0\0\0\0\0\0",
        b"\xcb\x7f\xf8\0\0\0\0\0\0",
        b"\xca\xff\x80\0\0",
        b"\xa1\xff",
        b"\xa3\xed\xa0\x80",
        b"\x81\x01\x02",
        b"\x81\xc4\x01a\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x92\x01",
        b"\x01\x02",
        b"\xcf\0",
        b"\x82\xa1a\x01\xa1a\x02",
    ] {
        assert_eq!(msgpack(msgpack_envelope("0.1", extra)), "malformed", "{extra:02x?}");
    }
    for raw in [&b"\x01"[..], b"\xa4null", b"\x90", b"\x80", b"\xc0\xc0", b" ", b"\xff"] {
        assert_eq!(msgpack(raw), "malformed", "{raw:02x?}");
    }
}

#[test]
fn messagepack_is_judged_in_the_order_of_the_table() {
    assert_eq!(msgpack(b""), "absent");
    assert_eq!(msgpack(b"\xc0"), "absent");
    let mut scratch = Scratch::new(1);
    for (raw, expected) in [(&b"\xc0"[..], "absent"), (b"\xc1", "untrusted")] {
        assert_eq!(word(&admit_msgpack(raw, UNTRUSTED, &mut scratch).expect("memory")), expected);
    }
    assert_eq!(msgpack(vec![0xc1; RAW_MAX_BYTES + 1]), "oversized", "never parsed");

    let deep = [vec![0x91; 300], vec![0xc0]].concat();
    let very_deep = [vec![0x91; 900_000], vec![0xc0]].concat();
    let deep_maps = [b"\x81\xa0".repeat(400_000), vec![0xc0]].concat();
    let long = [b"\xda\xff\xff".to_vec(), vec![b'x'; 65_535]].concat();
    let wide = [b"\xdd\0\x0c\0\0".to_vec(), vec![1; 0xc_0000]].concat();
    for extra in [&deep, &very_deep, &deep_maps, &long, &wide] {
        let own = if extra.len() < 1000 { "malformed" } else { "oversized" };
        assert_eq!(msgpack(msgpack_envelope("0.1", extra)), own, "{} bytes", extra.len());
        assert_eq!(msgpack(msgpack_envelope("0.2", extra)), "unknown_version");
        let mut truncated = msgpack_envelope("0.2", extra);
        truncated.pop();
        assert_eq!(msgpack(&truncated), "malformed");
        truncated.extend(b"\xc0\xc0");
        assert_eq!(msgpack(&truncated), "malformed");
    }
}

#[test]
fn snapshots_are_shared_between_threads() {
    let snapshot = admitted(&envelope("0.1", "{\"a\":[1]}"));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let mine = snapshot.clone();
                    assert_eq!(mine.message_id(), "m");
                    drop(mine.clone());
                }
            });
        }
    });
    assert_eq!(snapshot.json(), envelope("0.1", "{\"a\":[1]}").as_bytes());
}
