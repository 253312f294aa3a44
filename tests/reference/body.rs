//! Whole bodies once more, slow and obvious: where the members of the outermost object lie, and
//! what is left without some of them. Declarative where the library streams.

use std::ops::Range;

use super::{read, Tree};

/// What a body comes to once its hints are out.
#[derive(Debug, PartialEq, Eq)]
pub struct Split {
    /// The bytes of the values of all top-level members `kv_hints`, in order.
    pub hints: Vec<Vec<u8>>,
    /// The body without those members.
    pub rest: Vec<u8>,
}

/// A member of the outermost object, by offsets.
struct Member {
    whole: Range<usize>,
    value: Range<usize>,
    is_hint: bool,
}

/// Takes a body apart; nothing if it is not one strict JSON object.
pub fn split(body: &[u8]) -> Option<Split> {
    let Tree::Object(names) = read(body)? else { return None };
    let names: Vec<&String> = names.iter().map(|(name, _)| name).collect();
    let (members, commas) = members(body, &names);
    assert_eq!(members.len(), names.len(), "each member was found");
    let kept = |member: &Member| !member.is_hint;
    let mut is_gone = vec![false; body.len()];
    for member in members.iter().filter(|member| member.is_hint) {
        is_gone[member.whole.clone()].fill(true);
    }
    // A comma stays if it stands behind a member that stays, and another one follows.
    for (index, comma) in commas.iter().enumerate() {
        let stays = kept(&members[index]) && members[index + 1..].iter().any(kept);
        is_gone[*comma] = !stays;
    }
    let rest = body.iter().zip(&is_gone).filter(|(_, gone)| !**gone).map(|(byte, _)| *byte);
    let hints = members.iter().filter(|member| member.is_hint);
    Some(Split {
        hints: hints.map(|member| body[member.value.clone()].to_vec()).collect(),
        rest: rest.collect(),
    })
}

/// The members of the outermost object of a text known to be one, and the commas between them.
fn members(body: &[u8], names: &[&String]) -> (Vec<Member>, Vec<usize>) {
    let blank = |byte: &u8| b" \t\n\r".contains(byte);
    let (mut depth, mut in_string, mut escaped) = (0, false, false);
    let (mut colons, mut commas, mut first, mut last) = (Vec::new(), Vec::new(), 0, 0);
    for (at, byte) in body.iter().enumerate() {
        if in_string {
            in_string = *byte != b'"' || escaped;
            escaped = *byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth == 1 {
                    first = at + 1;
                }
            }
            b'}' | b']' => {
                if depth == 1 {
                    last = at;
                }
                depth -= 1;
            }
            // Of nested objects nothing is of interest; the first colon of a member is its own.
            b':' if depth == 1 => colons.push(at),
            b',' if depth == 1 => commas.push(at),
            _ => {}
        }
    }
    let trimmed = |range: Range<usize>| {
        let start = range.start + body[range.clone()].iter().take_while(|b| blank(b)).count();
        let end = range.end - body[range.clone()].iter().rev().take_while(|b| blank(b)).count();
        start..end.max(start)
    };
    let starts = std::iter::once(first).chain(commas.iter().map(|comma| comma + 1));
    let ends = commas.iter().copied().chain([last]);
    let found =
        starts.zip(ends).zip(colons).zip(names).map(|(((start, end), colon), name)| Member {
            whole: trimmed(start..end),
            value: trimmed(colon + 1..end),
            is_hint: *name == "kv_hints",
        });
    (found.collect(), commas)
}
