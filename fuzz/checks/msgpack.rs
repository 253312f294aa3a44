//! Draws MessagePack: envelopes and other values, in every form that a value can have, with pieces
//! that are wrong on purpose.

use super::draw::Draw;

/// The head of a string, array or map of `len`, in the shortest form or a longer one.
fn head(draw: &mut Draw<'_>, len: usize, short: Option<u8>, long: [Option<u8>; 3]) -> Vec<u8> {
    let widths = [1, 2, 4];
    let choice = if draw.once_in(6) { draw.below(3) } else { 3 };
    match (short, long.get(choice)) {
        (_, Some(Some(marker))) => {
            let bytes = (len as u32).to_be_bytes();
            [&[*marker][..], &bytes[4 - widths[choice]..]].concat()
        }
        (Some(short), _) => vec![short + len as u8],
        (None, _) => {
            [&[long[2].expect("four bytes always fit")][..], &(len as u32).to_be_bytes()].concat()
        }
    }
}

/// A string.
pub fn text(draw: &mut Draw<'_>, text: &[u8]) -> Vec<u8> {
    let short = (text.len() < 32).then_some(0xa0);
    let mut bytes = head(draw, text.len(), short, [Some(0xd9), Some(0xda), Some(0xdb)]);
    bytes.extend_from_slice(text);
    bytes
}

/// The head of an array.
pub fn array_head(draw: &mut Draw<'_>, len: usize) -> Vec<u8> {
    head(draw, len, (len < 16).then_some(0x90), [None, Some(0xdc), Some(0xdd)])
}

/// The head of a map.
pub fn map_head(draw: &mut Draw<'_>, len: usize) -> Vec<u8> {
    head(draw, len, (len < 16).then_some(0x80), [None, Some(0xde), Some(0xdf)])
}

/// Any string.
fn any_text(draw: &mut Draw<'_>) -> Vec<u8> {
    let texts: [&[u8]; 10] = [
        b"",
        b"a",
        b"\"\\/\x08\x0c\n\r\t",
        b"\0\x1f\x7f",
        "\u{e9}\u{20ac}\u{1f600}".as_bytes(),
        b"a string of more than thirty-one bytes",
        b"kv_hints",
        b"payload",
        b"\xff",
        b"\xed\xa0\x80",
    ];
    let known = if draw.once_in(8) { texts.len() } else { 8 };
    let chosen = draw.one_of(&texts[..known]);
    text(draw, chosen)
}

/// Any value, of at most so many levels.
pub fn value(draw: &mut Draw<'_>, levels: usize) -> Vec<u8> {
    match draw.below(12) {
        0 | 1 => any_text(draw),
        2 => vec![draw.one_of(&[0x00, 0x7f, 0xe0, 0xff, 0xc0, 0xc2, 0xc3])],
        3 | 4 => {
            let forms: [(u8, usize); 10] = [
                (0xcc, 1),
                (0xcd, 2),
                (0xce, 4),
                (0xcf, 8),
                (0xd0, 1),
                (0xd1, 2),
                (0xd2, 4),
                (0xd3, 8),
                (0xca, 4),
                (0xcb, 8),
            ];
            let (marker, len) = draw.one_of(&forms);
            let mut bytes = vec![marker];
            let patterns: [&[u8]; 8] = [
                &[0; 8],
                &[0xff; 8],
                &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &[0x80, 0, 0, 0, 0, 0, 0, 0],
                &[0x3f, 0xf0, 0, 0, 0, 0, 0, 0],
                &[0x7f, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &[0x7f, 0x80, 0, 0, 0, 0, 0, 0],
                &[0x40, 0x09, 0x21, 0xfb, 0x54, 0x44, 0x2d, 0x18],
            ];
            let pattern = draw.one_of(&patterns);
            bytes.extend_from_slice(&pattern[..len]);
            bytes
        }
        5 | 6 if levels > 0 => {
            let count = draw.below(5);
            let mut bytes = array_head(draw, count);
            (0..count).for_each(|_| bytes.extend(value(draw, levels - 1)));
            bytes
        }
        7 | 8 if levels > 0 => map(draw, levels),
        9 if draw.once_in(3) => {
            let odd: [&[u8]; 9] = [
                b"\xc1",
                b"\xc4\x01\xff",
                b"\xc5\0\x01\xff",
                b"\xd4\x01\xff",
                b"\xd6\xff\0\0\0\0",
                b"\xc7\x02\x01\xff\xff",
                b"\xdd\xff\xff\xff\xff",
                b"\xa2\xff\xff",
                b"\xca\x7f\xc0\0\0",
            ];
            draw.one_of(&odd).to_vec()
        }
        10 if levels > 0 && draw.once_in(2) => {
            // Below a body, an envelope or an action.
            let depth = 195 + draw.below(8);
            let mut bytes = vec![0x91; depth];
            bytes.push(0x90);
            bytes
        }
        _ => vec![0x80],
    }
}

/// Any map.
pub fn map(draw: &mut Draw<'_>, levels: usize) -> Vec<u8> {
    let count = draw.below(4);
    let mut bytes = map_head(draw, count);
    for _ in 0..count {
        let key = if draw.once_in(24) { vec![0x01] } else { any_text(draw) };
        bytes.extend(key);
        bytes.extend(value(draw, levels - 1));
    }
    bytes
}

/// An envelope, perhaps a wrong one.
pub fn envelope(draw: &mut Draw<'_>) -> Vec<u8> {
    map_of(draw, &["protocol_version", "message_id", "actions"])
}

/// A map of these members, perhaps in another order, one of them missing or twice.
fn map_of(draw: &mut Draw<'_>, usual: &[&str]) -> Vec<u8> {
    let mut members = usual.to_vec();
    match draw.below(24) {
        0..=15 => {}
        16 => members.push("x"),
        17 => members.insert(0, "auth"),
        18 => members.push("protocol_version"),
        19 => members.push("payload"),
        20 => members.swap(0, 1),
        21 => drop(members.pop()),
        22 => drop(members.remove(0)),
        _ => members.reverse(),
    }
    let mut bytes = map_head(draw, members.len());
    for member in members {
        bytes.extend(text(draw, member.as_bytes()));
        if draw.once_in(24) {
            bytes.extend(value(draw, 2));
            continue;
        }
        bytes.extend(match member {
            "protocol_version" if draw.once_in(16) => text(draw, b"0.2"),
            "protocol_version" => text(draw, b"0.1"),
            "actions" => {
                let count = draw.below(3);
                let mut list = array_head(draw, count);
                let action = ["action_id", "action_type", "action_version", "payload"];
                (0..count).for_each(|_| list.extend(map_of(draw, &action)));
                list
            }
            "payload" => map(draw, 2),
            "x" | "auth" => value(draw, 2),
            _ => any_text(draw),
        });
    }
    bytes
}
