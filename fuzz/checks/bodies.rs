//! Whole bodies, JSON and MessagePack, against a slow splitter: the same verdict, the other bytes in
//! order, and a body exactly where there is one strict object within the cap. What was handed back
//! is then read as a lenient server would: no hint may be in it.

use kvhints::hint::{
    admit_body, admit_body_msgpack, admit_msgpack, BodyError, Ingress, Scratch, SplitBody,
};

use super::admission::{both_ways, outcome, word};
use super::draw::Draw;
use super::json::{damage, Json};
use super::tally::Tally;
use super::{envelopes, msgpack, Check};
use crate::reference::body::Split;
use crate::reference::{self, Outcome};

pub const CHECK: Check = Check { name: "bodies", run, kinds };

fn kinds() -> Vec<String> {
    let seen = [
        "absent",
        "admitted",
        "malformed",
        "untrusted",
        "unknown_version",
        "no object",
        "over the cap",
        "several hints",
        "one hint, first of several members",
        "one hint, last of several members",
        "one hint, no other member",
    ];
    let formats = ["JSON", "MessagePack"];
    let of_bodies =
        formats.iter().flat_map(|format| seen.iter().map(move |kind| format!("{format}: {kind}")));
    // MessagePack hints that are too long are no short inputs.
    let long = ["JSON: oversized".to_owned()];
    let alone = ["absent", "admitted", "malformed", "untrusted", "unknown_version"];
    of_bodies
        .chain(long)
        .chain(alone.iter().map(|kind| format!("MessagePack hint: {kind}")))
        .collect()
}

fn run(data: &[u8], tally: &mut Tally) {
    let mut draw = Draw::new(data);
    let trusted = !draw.once_in(16);
    match draw.below(4) {
        0 | 1 => {
            let body = json_body(&mut draw);
            check(JSON, &body, trusted, &mut draw, tally);
        }
        2 => {
            let body = msgpack_body(&mut draw);
            check(MESSAGE_PACK, &body, trusted, &mut draw, tally);
        }
        _ => {
            let mut hint = msgpack::envelope(&mut draw);
            match draw.below(16) {
                15 => hint = vec![0xc0],
                14 => damage(&mut draw, &mut hint),
                _ => {}
            }
            check_msgpack_hint(&hint, trusted, tally);
        }
    }
}

fn json_body(draw: &mut Draw<'_>) -> Vec<u8> {
    let mut json = Json::new(draw);
    json.blank();
    json.push("{");
    json.blank();
    for index in 0..json.draw.below(5) {
        json.comma(index);
        if json.draw.once_in(2) {
            let names = ["a", "", "KV_HINTS", "kv_hint", "kv_hints ", "model", "kv_hints\u{0}"];
            let name = json.draw.one_of(&names);
            // Only as an escape may a control character stand in a name.
            json.name(name.trim_end_matches('\0'));
            json.value(2);
            continue;
        }
        json.name("kv_hints");
        match json.draw.below(4) {
            3 => json.value(2),
            2 => json.push("null"),
            _ => {
                let hint = envelopes::envelope(json.draw);
                json.push(hint);
            }
        }
    }
    json.blank();
    json.push("}");
    json.blank();
    let mut body = json.out;
    match draw.below(64) {
        0..=5 => damage(draw, &mut body),
        6 => body.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
        7 => body = draw.one_of(&["", "[]", "null", "\"a\"", "{} {}", "{}x"]).as_bytes().to_vec(),
        _ => {}
    }
    body
}

fn msgpack_body(draw: &mut Draw<'_>) -> Vec<u8> {
    let count = if draw.once_in(16) { 14 + draw.below(4) } else { draw.below(5) };
    let mut body = msgpack::map_head(draw, count);
    for index in 0..count {
        if index < 4 && draw.once_in(2) {
            let names: [&[u8]; 6] = [b"a", b"", b"KV_HINTS", b"kv_hints\0", b"model", b"\xff"];
            let known = if draw.once_in(16) { 6 } else { 5 };
            let name = draw.one_of(&names[..known]);
            body.extend(msgpack::text(draw, name));
            body.extend(msgpack::value(draw, 2));
        } else if index >= 4 {
            body.extend(b"\xa1b\x01");
        } else {
            let key = match draw.below(24) {
                23 => b"\xc4\x08kv_hints".to_vec(),
                _ => msgpack::text(draw, b"kv_hints"),
            };
            body.extend(key);
            body.extend(match draw.below(4) {
                3 => msgpack::value(draw, 2),
                2 => vec![0xc0],
                _ => msgpack::envelope(draw),
            });
        }
    }
    match draw.below(64) {
        0..=5 => damage(draw, &mut body),
        6 => body.push(0xc0),
        7 => body = vec![draw.one_of(&[0x90, 0xc0, 0x01, 0xa0])],
        _ => {}
    }
    body
}

/// One kind of body: what the library makes of it, and what the slow way does.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    admit: fn(&[u8], usize, Ingress<'_>, &mut Scratch) -> Result<SplitBody, BodyError>,
    split: fn(&[u8]) -> Option<Split>,
    judge: fn(&[u8], bool) -> Outcome,
    read_leniently: fn(&[u8]),
}

const JSON: Format = Format {
    name: "JSON",
    admit: admit_body,
    split: reference::body::split,
    judge: reference::admit,
    read_leniently: |body| {
        // The last of several members of one name wins there, and any depth is fine.
        let mut reader = serde_json::Deserializer::from_slice(body);
        reader.disable_recursion_limit();
        let read: Result<serde_json::Value, _> = serde::Deserialize::deserialize(&mut reader);
        // It also has an opinion on numbers that are out of range, where there is nothing to see.
        if let Ok(value) = read {
            let members = value.as_object().expect("an object as before");
            assert!(!members.contains_key("kv_hints"), "a hint is left");
        }
    },
};

const MESSAGE_PACK: Format = Format {
    name: "MessagePack",
    admit: admit_body_msgpack,
    split: reference::msgpack::split,
    judge: reference::msgpack::admit,
    read_leniently: |body| {
        // A reader to whom text and bytes are the same.
        let value = rmpv::decode::read_value(&mut &*body).expect("MessagePack as before");
        for (key, _) in value.as_map().expect("a map as before") {
            assert!(key.as_slice() != Some(b"kv_hints"), "a hint is left");
        }
    },
};

fn check(format: Format, body: &[u8], trusted: bool, draw: &mut Draw<'_>, tally: &mut Tally) {
    let mut count = |kind: &str| tally.count(&format!("{}: {kind}", format.name));
    let max_bytes = if draw.once_in(16) { body.len().saturating_sub(1) } else { body.len() };
    let ingress = Ingress::Http { trusted };
    let splits = both_ways(|scratch| (format.admit)(body, max_bytes, ingress, scratch));
    let expected = (format.split)(body);
    for split in splits {
        let split = match split {
            Err(BodyError::NoMemory(_)) => panic!("memory"),
            Err(BodyError::TooLong { .. }) => {
                assert!(body.len() > max_bytes);
                count("over the cap");
                continue;
            }
            Err(_) => {
                assert!(body.len() <= max_bytes && expected.is_none(), "a body was refused");
                count("no object");
                continue;
            }
            Ok(split) => split,
        };
        assert!(body.len() <= max_bytes);
        let Some(Split { hints, rest }) = &expected else { panic!("a body was not refused") };
        assert!(split.body == *rest, "the rest of a body");
        (format.read_leniently)(&split.body);
        let verdict = match &hints[..] {
            [] => Outcome::Absent,
            [hint] => (format.judge)(hint, trusted),
            _ if trusted => Outcome::Malformed,
            _ => Outcome::Untrusted,
        };
        assert!(outcome(&split.verdict) == verdict, "{:?}, not {verdict:?}", split.verdict);
        count(word(&verdict));
        count_places(body, hints, rest, &mut count);
    }
}

fn count_places(body: &[u8], hints: &[Vec<u8>], rest: &[u8], count: &mut impl FnMut(&str)) {
    match hints.len() {
        0 => {}
        1 => {
            let same_beginning = body.iter().zip(rest).take_while(|(one, other)| one == other);
            let is_alone = matches!(rest, b"{}" | b"\x80");
            // Up to the hint a body is as it was, but for the count in a MessagePack header.
            let is_last = body.ends_with(&hints[0])
                || body.strip_suffix(b"}").is_some_and(|body| body.ends_with(&hints[0]));
            if is_alone {
                count("one hint, no other member");
            } else if is_last {
                count("one hint, last of several members");
            } else if same_beginning.count() < 3 {
                count("one hint, first of several members");
            }
        }
        _ => count("several hints"),
    }
}

fn check_msgpack_hint(hint: &[u8], trusted: bool, tally: &mut Tally) {
    let ingress = Ingress::Http { trusted };
    let verdicts = both_ways(|scratch| admit_msgpack(hint, ingress, scratch).expect("memory"));
    let expected = reference::msgpack::admit(hint, trusted);
    for verdict in &verdicts {
        assert!(outcome(verdict) == expected, "{verdict:?}, not {}", word(&expected));
    }
    tally.count(&format!("MessagePack hint: {}", word(&expected)));
}
