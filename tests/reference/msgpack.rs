//! MessagePack once more, slow and obvious: by recursion into the tree of the reference, and the
//! members of a body by offsets. Not for deep input.

use std::ops::Range;

use super::body::Split;
use super::{judge, write, Outcome, Tree};

/// One value, and what JSON can say of it.
struct Value {
    end: usize,
    /// Nothing if JSON has no such value, or a map in it has a key that is no string.
    tree: Option<Tree>,
    is_string: bool,
}

/// What a hint comes to.
pub fn admit(raw: &[u8], trusted: bool) -> Outcome {
    if raw.is_empty() || raw == [0xc0] {
        return Outcome::Absent;
    }
    if !trusted {
        return Outcome::Untrusted;
    }
    if raw.len() > 1 << 20 {
        return Outcome::Oversized;
    }
    match value(raw, 0) {
        Some(Value { end, tree: Some(tree), .. }) if end == raw.len() => {
            judge(write(&tree).as_bytes(), true).0
        }
        _ => Outcome::Malformed,
    }
}

/// Takes a body apart; nothing if it is not exactly one map whose keys are strings.
pub fn split(body: &[u8]) -> Option<Split> {
    let (count, header_len) = match *body.first()? {
        first @ 0x80..=0x8f => (usize::from(first & 15), 1),
        0xde => (number(body, 1, 2)? as usize, 3),
        0xdf => (number(body, 1, 4)? as usize, 5),
        _ => return None,
    };
    let mut members: Vec<(bool, Range<usize>, Range<usize>)> = Vec::new();
    let mut at = header_len;
    for _ in 0..count {
        let key = value(body, at).filter(|key| key.is_string)?;
        let member = value(body, key.end)?;
        let is_hint = key.tree == Some(Tree::String("kv_hints".to_owned()));
        members.push((is_hint, at..member.end, key.end..member.end));
        at = member.end;
    }
    if at != body.len() {
        return None;
    }
    let kept: Vec<_> = members.iter().filter(|(is_hint, ..)| !is_hint).collect();
    let mut rest = match header_len {
        1 => vec![0x80 + kept.len() as u8],
        3 => [&[0xde][..], &(kept.len() as u16).to_be_bytes()].concat(),
        _ => [&[0xdf][..], &(kept.len() as u32).to_be_bytes()].concat(),
    };
    for (_, whole, _) in kept {
        rest.extend_from_slice(&body[whole.clone()]);
    }
    let hints = members.iter().filter(|(is_hint, ..)| *is_hint);
    Some(Split { hints: hints.map(|(.., value)| body[value.clone()].to_vec()).collect(), rest })
}

/// A big-endian number of `len` bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let digits = bytes.get(at..at + len)?;
    Some(digits.iter().fold(0, |number, byte| number * 256 + u64::from(*byte)))
}

fn integer(end: usize, value: impl ToString) -> Option<Value> {
    Some(Value { end, tree: Some(Tree::Number(value.to_string())), is_string: false })
}

fn float(end: usize, value: f64) -> Option<Value> {
    // Rust's debug form of a float is the shortest one, with a point or an exponent.
    let tree = value.is_finite().then(|| Tree::Number(format!("{value:?}")));
    Some(Value { end, tree, is_string: false })
}

fn text(bytes: &[u8], at: usize, len: u64) -> Option<Value> {
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    let text = String::from_utf8(bytes.get(at..end)?.to_vec()).ok()?;
    Some(Value { end, tree: Some(Tree::String(text)), is_string: true })
}

/// A value that JSON has no word for.
fn unspeakable(bytes: &[u8], at: usize, len: u64) -> Option<Value> {
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    bytes.get(at..end)?;
    Some(Value { end, tree: None, is_string: false })
}

fn array(bytes: &[u8], at: usize, len: u64) -> Option<Value> {
    let (mut end, mut elements) = (at, Some(Vec::new()));
    for _ in 0..len {
        let element = value(bytes, end)?;
        end = element.end;
        elements = elements.zip(element.tree).map(|(mut all, one)| {
            all.push(one);
            all
        });
    }
    Some(Value { end, tree: elements.map(Tree::Array), is_string: false })
}

fn map(bytes: &[u8], at: usize, len: u64) -> Option<Value> {
    let (mut end, mut members) = (at, Some(Vec::new()));
    for _ in 0..len {
        let key = value(bytes, end)?;
        let member = value(bytes, key.end)?;
        end = member.end;
        members = match (members, key.tree, member.tree) {
            (Some(mut all), Some(Tree::String(name)), Some(tree)) => {
                all.push((name, tree));
                Some(all)
            }
            _ => None,
        };
    }
    Some(Value { end, tree: members.map(Tree::Object), is_string: false })
}

/// The value at `at`, by the table of the MessagePack specification; nothing if it is none.
fn value(bytes: &[u8], at: usize) -> Option<Value> {
    let word = |word| Some(Value { end: at + 1, tree: Some(Tree::Word(word)), is_string: false });
    let number = |len| number(bytes, at + 1, len);
    match *bytes.get(at)? {
        first @ 0x00..=0x7f => integer(at + 1, first),
        first @ 0x80..=0x8f => map(bytes, at + 1, u64::from(first - 0x80)),
        first @ 0x90..=0x9f => array(bytes, at + 1, u64::from(first - 0x90)),
        first @ 0xa0..=0xbf => text(bytes, at + 1, u64::from(first - 0xa0)),
        0xc0 => word("null"),
        0xc1 => None,
        0xc2 => word("false"),
        0xc3 => word("true"),
        0xc4 => unspeakable(bytes, at + 2, number(1)?),
        0xc5 => unspeakable(bytes, at + 3, number(2)?),
        0xc6 => unspeakable(bytes, at + 5, number(4)?),
        0xc7 => unspeakable(bytes, at + 3, number(1)?),
        0xc8 => unspeakable(bytes, at + 4, number(2)?),
        0xc9 => unspeakable(bytes, at + 6, number(4)?),
        0xca => float(at + 5, f64::from(f32::from_bits(number(4)? as u32))),
        0xcb => float(at + 9, f64::from_bits(number(8)?)),
        0xcc => integer(at + 2, number(1)?),
        0xcd => integer(at + 3, number(2)?),
        0xce => integer(at + 5, number(4)?),
        0xcf => integer(at + 9, number(8)?),
        0xd0 => integer(at + 2, number(1)? as u8 as i8),
        0xd1 => integer(at + 3, number(2)? as u16 as i16),
        0xd2 => integer(at + 5, number(4)? as u32 as i32),
        0xd3 => integer(at + 9, number(8)? as i64),
        first @ 0xd4..=0xd8 => unspeakable(bytes, at + 2, 1 << (first - 0xd4)),
        0xd9 => text(bytes, at + 2, number(1)?),
        0xda => text(bytes, at + 3, number(2)?),
        0xdb => text(bytes, at + 5, number(4)?),
        0xdc => array(bytes, at + 3, number(2)?),
        0xdd => array(bytes, at + 5, number(4)?),
        0xde => map(bytes, at + 3, number(2)?),
        0xdf => map(bytes, at + 5, number(4)?),
        first @ 0xe0..=0xff => integer(at + 1, i16::from(first) - 256),
    }
}
