//! Admission against the slow reference, on envelopes that are nearly right: generated, spelled
//! with odd blanks and escapes, then damaged a little. Counts verdicts: a property that never saw
//! one of them proves nothing about it.

mod reference;

use std::collections::BTreeMap;

use kvhints::hint::{admit, admit_body, admit_msgpack, Ingress, Scratch, Snapshot, Verdict};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use reference::{Outcome, Tree};

const TRUSTED: Ingress = Ingress::InProcess;

/// Names that mean something, in several spellings, and some that do not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "protocol_version",
            "message_id",
            "actions",
            "action_id",
            "action_type",
            "action_version",
            "payload",
            "kv_hints",
            "a",
            "b",
            "",
            "\u{e9}",
            "\"",
            "\n",
        ])
        .prop_map(str::to_owned),
        "[a-c]{0,2}",
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec!["0.1", "0.2", "kv.fetch", "1.0", "", "\0", "\u{1f600}", "\\", "/"])
            .prop_map(str::to_owned),
        "\\PC{0,6}",
    ]
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u64>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>()
            .prop_filter("JSON has no others", |value| value.is_finite())
            .prop_map(|value| format!("{value:?}")),
        select(vec![
            "0",
            "-0",
            "-0.0",
            "1e400",
            "1.7976931348623157e308",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "-9223372036854775809",
            "1E+2",
        ])
        .prop_map(str::to_owned),
    ]
}

fn scalar() -> impl Strategy<Value = Tree> {
    prop_oneof![
        select(vec!["true", "false", "null"]).prop_map(Tree::Word),
        number().prop_map(Tree::Number),
        text().prop_map(Tree::String),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    scalar().prop_recursive(4, 24, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Tree::Array),
            prop::collection::vec((name(), inner), 0..5).prop_map(Tree::Object),
        ]
    })
}

fn member(name: &str, value: Tree) -> (String, Tree) {
    (name.to_owned(), value)
}

fn extras() -> impl Strategy<Value = Vec<(String, Tree)>> {
    prop::collection::vec(("x[0-9]{1,6}", tree()), 0..3)
}

fn action() -> impl Strategy<Value = Tree> {
    let payload = prop::collection::btree_map(name(), tree(), 0..5);
    (text(), text(), text(), payload, extras())
        .prop_flat_map(|(id, kind, version, payload, extras)| {
            let mut members = vec![
                member("action_id", Tree::String(id)),
                member("action_type", Tree::String(kind)),
                member("action_version", Tree::String(version)),
                member("payload", Tree::Object(payload.into_iter().collect())),
            ];
            members.extend(extras);
            Just(members).prop_shuffle()
        })
        .prop_map(Tree::Object)
}

fn envelope() -> impl Strategy<Value = Tree> {
    let version = prop_oneof![8 => Just("0.1".to_owned()), 1 => text()];
    (version, text(), prop::collection::vec(action(), 0..4), extras())
        .prop_flat_map(|(version, id, actions, extras)| {
            let mut members = vec![
                member("protocol_version", Tree::String(version)),
                member("message_id", Tree::String(id)),
                member("actions", Tree::Array(actions)),
            ];
            members.extend(extras);
            Just(members).prop_shuffle()
        })
        .prop_map(Tree::Object)
}

/// How a text is spelled: each choice is taken from a row of small numbers, over and over.
struct Spelling<'c> {
    choices: std::iter::Cycle<std::slice::Iter<'c, u8>>,
}

impl Spelling<'_> {
    fn choose(&mut self) -> u8 {
        *self.choices.next().expect("a cycle of some choices has no end")
    }

    fn blanks(&mut self) -> &'static str {
        ["", "", "", " ", "\n  ", "\t \r\n", "", "                     "]
            [self.choose() as usize % 8]
    }

    fn string(&mut self, text: &str) -> String {
        let mut out = String::from("\"");
        for character in text.chars() {
            let must_escape = character < ' ' || character == '"' || character == '\\';
            match self.choose() % 8 {
                0 => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out += &format!("\\u{unit:04x}");
                    }
                }
                1 if character == '/' => out += "\\/",
                _ if must_escape => {
                    let escaped = reference::write(&Tree::String(character.to_string()));
                    out += &escaped[1..escaped.len() - 1];
                }
                _ => out.push(character),
            }
        }
        out + "\""
    }

    fn spell(&mut self, tree: &Tree) -> String {
        let before = self.blanks();
        let body = match tree {
            Tree::Word(word) => (*word).to_owned(),
            Tree::Number(text) => text.clone(),
            Tree::String(text) => self.string(text),
            Tree::Array(elements) => {
                let elements: Vec<String> = elements.iter().map(|one| self.spell(one)).collect();
                let inside = if elements.is_empty() { self.blanks() } else { "" };
                format!("[{inside}{}]", elements.join(","))
            }
            Tree::Object(members) => {
                let spelled: Vec<String> = members
                    .iter()
                    .map(|(name, value)| {
                        let (before, name, after) =
                            (self.blanks(), self.string(name), self.blanks());
                        format!("{before}{name}{after}:{}", self.spell(value))
                    })
                    .collect();
                format!("{{{}}}", spelled.join(","))
            }
        };
        format!("{before}{body}{}", self.blanks())
    }
}

fn spell(tree: &Tree, choices: &[u8]) -> Vec<u8> {
    Spelling { choices: choices.iter().cycle() }.spell(tree).into_bytes()
}

fn spelled_envelope() -> impl Strategy<Value = Vec<u8>> {
    (envelope(), prop::collection::vec(any::<u8>(), 1..32))
        .prop_map(|(envelope, choices)| spell(&envelope, &choices))
}

/// One small change to some bytes.
#[derive(Debug, Clone)]
enum Damage {
    Remove(usize, usize),
    Insert(usize, &'static [u8]),
    Repeat(usize, usize),
    Replace(usize, u8),
}

const PIECES: &[&[u8]] = &[
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"\\udc00",
    b"0",
    b"-",
    b".",
    b"e9",
    b"null",
    b"\xff",
    b"\xc3",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"\0",
    b"\n",
    b"0.1",
    b"0.2",
    b"\"protocol_version\":\"9\",",
    b"\"message_id\":1,",
    b"\"a\":{},\"a\":[],",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"1e999",
    b"99999999999999999999",
];

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<usize>;
    prop_oneof![
        (at(), 1..9usize).prop_map(|(at, len)| Damage::Remove(at, len)),
        (at(), select(PIECES)).prop_map(|(at, piece)| Damage::Insert(at, piece)),
        (at(), 1..40usize).prop_map(|(at, len)| Damage::Repeat(at, len)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
    ]
}

fn damaged(mut raw: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let place = |at: usize, raw: &Vec<u8>| at % (raw.len() + 1);
        match *damage {
            Damage::Remove(at, len) => {
                let at = place(at, &raw);
                let end = raw.len().min(at + len);
                raw.drain(at..end);
            }
            Damage::Insert(at, piece) => {
                let at = place(at, &raw);
                raw.splice(at..at, piece.iter().copied());
            }
            Damage::Repeat(at, len) => {
                let at = place(at, &raw);
                let piece = raw[at..raw.len().min(at + len)].to_vec();
                raw.splice(at..at, piece);
            }
            Damage::Replace(at, byte) => {
                let at = place(at, &raw);
                if let Some(old) = raw.get_mut(at) {
                    *old = byte;
                }
            }
        }
    }
    raw
}

fn outcome(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Admitted(snapshot) => {
            Outcome::Admitted(String::from_utf8(snapshot.json().to_vec()).expect("UTF-8"))
        }
        Verdict::Absent => Outcome::Absent,
        Verdict::Untrusted | Verdict::BadlySigned(_) => Outcome::Untrusted,
        Verdict::UnknownVersion => Outcome::UnknownVersion,
        Verdict::Oversized => Outcome::Oversized,
        Verdict::Malformed => Outcome::Malformed,
    }
}

/// What the snapshot answers must be what the reference reads in its bytes.
fn check_accessors(snapshot: &Snapshot) {
    let Some(Tree::Object(members)) = reference::read(snapshot.json()) else {
        panic!("a snapshot is an object")
    };
    let find = |members: &[(String, Tree)], name: &str| {
        members.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    assert_eq!(snapshot.protocol_version(), "0.1");
    let id = Tree::String(snapshot.message_id().to_owned());
    assert_eq!(find(&members, "message_id"), Some(id));
    let Some(Tree::Array(actions)) = find(&members, "actions") else { panic!("an array") };
    assert_eq!(snapshot.action_count(), actions.len());
    assert!(snapshot.action(actions.len()).is_none());
    assert!(snapshot.one_action(actions.len()).expect("memory").is_none());
    for (index, (expected, action)) in actions.iter().zip(snapshot.actions()).enumerate() {
        let Tree::Object(parts) = expected else { panic!("an object") };
        assert_eq!(reference::read(action.json).as_ref(), Some(expected));
        assert_eq!(reference::read(action.payload), find(parts, "payload"));
        for (text, name) in [
            (action.id, "action_id"),
            (action.action_type, "action_type"),
            (action.version, "action_version"),
        ] {
            assert_eq!(find(parts, name), Some(Tree::String(text.to_owned())));
        }
        let alone = snapshot.one_action(index).expect("memory").expect("there is one");
        let one: Vec<(String, Tree)> = members
            .iter()
            .map(|(name, value)| match name.as_str() {
                "actions" => member("actions", Tree::Array(vec![expected.clone()])),
                name => member(name, value.clone()),
            })
            .collect();
        assert_eq!(alone.json(), reference::write(&Tree::Object(one)).as_bytes());
        assert_eq!(alone.message_id(), snapshot.message_id());
        assert_eq!(alone.action(0), Some(action));
        assert_eq!(alone, Snapshot::from_canonical(alone.json()).expect("its own bytes"));
    }
}

/// Through MessagePack and back nothing changes but the spelling of numbers.
fn check_msgpack(snapshot: &Snapshot, scratch: &mut Scratch) {
    let bytes = snapshot.to_msgpack().expect("memory");
    let plain: serde_json::Value = rmp_serde::from_slice(&bytes).expect("MessagePack");
    let json: serde_json::Value = serde_json::from_slice(snapshot.json()).expect("JSON");
    assert_eq!(numbers_as_they_count(plain), numbers_as_they_count(json));

    let back = admit_msgpack(&bytes, TRUSTED, scratch).expect("memory");
    let back = match back {
        Verdict::Admitted(back) => back,
        // A float may take more text in its standard form.
        Verdict::Oversized => return,
        other => panic!("{other:?}"),
    };
    assert_eq!(standard_numbers(back.json()), standard_numbers(snapshot.json()));
    assert_eq!(back.to_msgpack().expect("memory"), bytes);
}

/// JSON's `-0` is an integer here, a float for serde_json.
fn numbers_as_they_count(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => Value::from(0),
        Value::Array(elements) => elements.into_iter().map(numbers_as_they_count).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, one)| (name, numbers_as_they_count(one))).collect()
        }
        other => other,
    }
}

fn standard_numbers(json: &[u8]) -> Tree {
    fn standard(tree: Tree) -> Tree {
        match tree {
            Tree::Number(text) if text == "-0" => Tree::Number("0".to_owned()),
            Tree::Number(text) if text.contains(['.', 'e', 'E']) => {
                Tree::Number(format!("{:?}", text.parse::<f64>().expect("a number")))
            }
            Tree::Array(elements) => Tree::Array(elements.into_iter().map(standard).collect()),
            Tree::Object(members) => Tree::Object(
                members.into_iter().map(|(name, value)| (name, standard(value))).collect(),
            ),
            other => other,
        }
    }
    standard(reference::read(json).expect("JSON"))
}

#[test]
fn verdict_and_canonical_form_are_those_of_the_reference() {
    let strategy = (spelled_envelope(), prop::collection::vec(damage(), 0..4))
        .prop_map(|(raw, damages)| damaged(raw, &damages));
    let mut runner =
        TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let seen = std::cell::RefCell::new(BTreeMap::new());
    let scratch = std::cell::RefCell::new(Scratch::new(11));
    runner
        .run(&strategy, |raw| {
            let scratch = &mut *scratch.borrow_mut();
            let verdict = admit(&raw, TRUSTED, scratch).expect("memory");
            let word = format!("{verdict:?}").split('(').next().unwrap_or_default().to_owned();
            *seen.borrow_mut().entry(word).or_insert(0) += 1;
            prop_assert_eq!(outcome(&verdict), reference::admit(&raw, true));
            if let Some(snapshot) = verdict.into_snapshot() {
                check_accessors(&snapshot);
                check_msgpack(&snapshot, scratch);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    for word in ["Admitted", "UnknownVersion", "Malformed"] {
        assert!(seen.borrow().get(word).is_some_and(|count| *count > 20), "{seen:?}");
    }
}

#[test]
fn around_the_limit_of_length_the_reference_agrees() {
    let mut scratch = Scratch::new(3);
    let mut seen = BTreeMap::new();
    for unit in ["x", "\\u00e9", "\\/", "\\\"", "\\u0001", "\u{20ac}", "\\ud83d\\ude00"] {
        for (before, after) in [("", ""), (" ", " \n"), ("\n\n", "")] {
            let said = reference::read(format!("\"{unit}\"").as_bytes()).expect("a string");
            let unit_bytes = reference::write(&said).len() - 2;
            for over in [-2i64, -1, 0, 1, 2] {
                // An extra member of just the length that reaches the limit, give or take a unit.
                let fixed =
                    r#"{"protocol_version":"0.1","message_id":"m","actions":[],"s":""}"#.len();
                let count = ((65_536 - fixed) / unit_bytes) as i64 + over;
                let long = unit.repeat(count as usize);
                let raw = format!(
                    r#"{before}{{"protocol_version":"0.1",{before}"message_id":"m","actions":[],"s":"{long}"}}{after}"#
                );
                let verdict = admit(raw.as_bytes(), TRUSTED, &mut scratch).expect("memory");
                let found = outcome(&verdict);
                assert_eq!(found, reference::admit(raw.as_bytes(), true), "{unit} {over}");
                *seen.entry(matches!(found, Outcome::Oversized)).or_insert(0) += 1;
            }
        }
    }
    assert!(seen.len() == 2 && seen.values().all(|count| *count > 20), "{seen:?}");
}

#[test]
fn bodies_lose_their_hints_and_nothing_else() {
    let hint = prop_oneof![envelope(), tree()];
    let body =
        (prop::collection::vec(("k[0-9]{1,6}", tree()), 0..4), prop::collection::vec(hint, 0..3))
            .prop_flat_map(|(mut members, hints)| {
                members.extend(hints.into_iter().map(|hint| member("kv_hints", hint)));
                Just(members).prop_shuffle()
            });
    let strategy = (body, prop::collection::vec(any::<u8>(), 1..32));
    let mut runner =
        TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let scratch = std::cell::RefCell::new(Scratch::new(5));
    runner
        .run(&strategy, |(members, choices)| {
            let scratch = &mut *scratch.borrow_mut();
            let raw = spell(&Tree::Object(members.clone()), &choices);
            let split = admit_body(&raw, 1 << 20, TRUSTED, scratch).expect("an object");
            let (hints, rest): (Vec<_>, Vec<_>) =
                members.into_iter().partition(|(name, _)| name == "kv_hints");
            prop_assert_eq!(reference::read(&split.body), Some(Tree::Object(rest)));
            let expected = match &hints[..] {
                [] => Outcome::Absent,
                [(_, one)] => reference::admit(reference::write(one).as_bytes(), true),
                _ => Outcome::Malformed,
            };
            prop_assert_eq!(outcome(&split.verdict), expected);
            // What is left is what was there, in order: nothing was written anew.
            let mut all = raw.iter();
            prop_assert!(split.body.iter().all(|byte| all.any(|one| one == byte)));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn any_bytes_as_messagepack_get_a_verdict() {
    let strategy = (envelope(), prop::collection::vec(damage(), 0..4));
    let mut runner =
        TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() });
    let scratch = std::cell::RefCell::new(Scratch::new(5));
    let admitted = std::cell::Cell::new(0);
    runner
        .run(&strategy, |(envelope, damages)| {
            let scratch = &mut *scratch.borrow_mut();
            let json = reference::write(&envelope);
            let verdict = admit(json.as_bytes(), TRUSTED, scratch).expect("memory");
            let Some(snapshot) = verdict.into_snapshot() else { return Ok(()) };
            let raw = damaged(snapshot.to_msgpack().expect("memory"), &damages);
            let verdict = admit_msgpack(&raw, TRUSTED, scratch).expect("memory");
            if let Some(snapshot) = verdict.into_snapshot() {
                admitted.set(admitted.get() + 1);
                let json = snapshot.json();
                prop_assert!(matches!(reference::admit(json, true), Outcome::Admitted(_)));
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(admitted.get() > 100, "{}", admitted.get());
}
