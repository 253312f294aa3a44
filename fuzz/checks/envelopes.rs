//! Admission of envelopes that bytes decide on: an envelope's skeleton, with damage of each kind
//! that the table of admission knows. What bytes alone rarely reach stands behind a grammar.

use super::admission;
use super::draw::Draw;
use super::json::{damage, Json};
use super::tally::Tally;
use super::Check;
use crate::reference;

pub const CHECK: Check = Check { name: "envelopes", run, kinds };

/// All but raw lengths beyond the limit, which cost the reference a thousand other inputs each;
/// [`admission`] sees them.
fn kinds() -> Vec<String> {
    admission::kinds().into_iter().filter(|kind| kind != "rule: raw length").collect()
}

fn run(data: &[u8], tally: &mut Tally) {
    let mut draw = Draw::new(data);
    let (raw, trusted) = hint(&mut draw);
    admission::check(&raw, trusted, tally);
}

/// The raw bytes of a hint, and whether its ingress is trusted.
pub fn hint(draw: &mut Draw<'_>) -> (Vec<u8>, bool) {
    let trusted = !draw.once_in(64);
    let mut raw = match draw.below(64) {
        63 => {
            let whole: [&[u8]; 10] =
                [b"", b" \n", b"null", b"\tnull ", b"nul", b"[]", b"1", b"\"a\"", b"{}", b"{} {}"];
            draw.one_of(&whole).to_vec()
        }
        _ => envelope(draw),
    };
    if draw.once_in(10) {
        damage(draw, &mut raw);
    }
    match draw.below(512) {
        510 => raw.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
        509 => raw.push(b'x'),
        _ => {}
    }
    (raw, trusted)
}

/// An envelope, canonical or not, whole or not.
pub fn envelope(draw: &mut Draw<'_>) -> Vec<u8> {
    let mut json = Json::new(draw);
    json.blank();
    let members = members(&mut json, &["protocol_version", "message_id", "actions"]);
    json.push("{");
    json.blank();
    for (index, member) in members.iter().enumerate() {
        json.comma(index);
        json.name(member);
        match *member {
            "protocol_version" => version(&mut json),
            "message_id" => text(&mut json),
            "actions" => actions(&mut json),
            "auth" => auth(&mut json),
            _ => json.value(3),
        }
    }
    json.blank();
    json.push("}");
    json.blank();
    if json.draw.once_in(256) {
        pad(&mut json);
    }
    json.out
}

/// These members, perhaps in another order, one of them missing or twice, others among them.
fn members(json: &mut Json<'_, '_>, usual: &[&'static str]) -> Vec<&'static str> {
    let mut members = usual.to_vec();
    if json.draw.once_in(4) {
        let (one, other) = (json.draw.below(members.len()), json.draw.below(members.len()));
        members.swap(one, other);
    }
    if json.wrong_once_in(8) {
        let gone = json.draw.below(members.len());
        members.remove(gone);
    }
    let extras = ["x", "auth", "", "Payload", "message_id ", "protocol_versions", "action"];
    for _ in 0..[0, 0, 0, 0, 1, 1, 2, 3][json.draw.below(8)] {
        let extra = json.draw.one_of(&extras);
        if !members.contains(&extra) || json.wrong_once_in(4) {
            let at = json.draw.below(members.len() + 1);
            members.insert(at, extra);
        }
    }
    if json.wrong_once_in(8) && !members.is_empty() {
        let again = json.draw.one_of(&members);
        let at = json.draw.below(members.len() + 1);
        members.insert(at, again);
    }
    members
}

fn version(json: &mut Json<'_, '_>) {
    match json.draw.below(32) {
        0..=28 => json.word_string("0.1"),
        29 => {
            let others = ["0.2", "", "0.10", "0.1 ", "1"];
            let other = json.draw.one_of(&others);
            json.word_string(other);
        }
        30 => json.push("\"0\\u002e1\""),
        _ if json.wrong_once_in(2) => json.value(2),
        _ => json.word_string("0.1"),
    }
}

fn text(json: &mut Json<'_, '_>) {
    if json.wrong_once_in(12) {
        json.value(2);
    } else {
        json.string();
    }
}

fn actions(json: &mut Json<'_, '_>) {
    if json.wrong_once_in(12) {
        json.value(3);
        return;
    }
    json.push("[");
    json.blank();
    for index in 0..[0, 1, 1, 1, 2, 3][json.draw.below(6)] {
        json.comma(index);
        if json.wrong_once_in(12) {
            json.value(2);
        } else {
            action(json);
        }
    }
    json.blank();
    json.push("]");
}

fn action(json: &mut Json<'_, '_>) {
    let members = members(json, &["action_id", "action_type", "action_version", "payload"]);
    json.push("{");
    json.blank();
    for (index, member) in members.iter().enumerate() {
        json.comma(index);
        json.name(member);
        match *member {
            "action_id" | "action_type" | "action_version" => text(json),
            "payload" if !json.wrong_once_in(12) => json.object(3),
            _ => json.value(3),
        }
    }
    json.blank();
    json.push("}");
}

/// Extra metadata like any other where there is no key ring.
fn auth(json: &mut Json<'_, '_>) {
    json.push("{");
    for (index, member) in members(json, &["key_id", "alg", "exp", "mac"]).iter().enumerate() {
        json.comma(index);
        json.name(member);
        match *member {
            "exp" => json.number(),
            "alg" => json.word_string("HS256"),
            _ => json.string(),
        }
    }
    json.push("}");
}

/// Makes a string so long that the canonical form ends around its limit.
fn pad(json: &mut Json<'_, '_>) {
    let Some(at) = json.pad_at else { return };
    let Some(tree) = reference::read(&json.out) else { return };
    let len = reference::write(&tree).len();
    let wanted = (65_534 + json.draw.below(5)).saturating_sub(len);
    let (unit, unit_len) =
        json.draw.one_of(&[("x", 1), ("\u{e9}", 2), ("\\n", 2), ("\\u00e9", 2), ("\\u001f", 6)]);
    let text = unit.repeat(wanted / unit_len) + &"y".repeat(wanted % unit_len);
    json.out.splice(at..at, text.into_bytes());
}
