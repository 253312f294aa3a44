//! Admission once more, slow and obvious: reads a text into a tree by recursion and walks it once
//! for each row of the table. Shares nothing with the library, not even an idea.
//!
//! Not for deep input: recursion is its point. Callers keep depth below a few thousand.

// Each test uses a part of it.
#![allow(dead_code)]

pub mod body;
pub mod msgpack;

use std::collections::HashSet;

/// A JSON value as written: numbers stay text.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    Word(&'static str),
    Number(String),
    String(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

/// What a hint comes to, with the canonical form of an admitted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Admitted(String),
    Absent,
    Untrusted,
    UnknownVersion,
    Oversized,
    Malformed,
}

/// What can be wrong with a hint, in the order of the table.
pub const RULES: [&str; 10] = [
    "raw length",
    "JSON",
    "object",
    "protocol_version",
    "version",
    "canonical length",
    "structure",
    "numbers",
    "depth",
    "repeated names",
];

/// The table, row by row.
pub fn admit(raw: &[u8], trusted: bool) -> Outcome {
    judge(raw, trusted).0
}

/// The same, with the rules that are broken: the first one found, or of the last rows all.
pub fn judge(raw: &[u8], trusted: bool) -> (Outcome, Vec<&'static str>) {
    let blank = |byte: &u8| b" \t\n\r".contains(byte);
    let words: Vec<&[u8]> = raw.split(blank).filter(|word| !word.is_empty()).collect();
    if words.is_empty() || words == [b"null"] {
        return (Outcome::Absent, vec![]);
    }
    if !trusted {
        return (Outcome::Untrusted, vec![]);
    }
    if raw.len() > 1 << 20 {
        return (Outcome::Oversized, vec!["raw length"]);
    }
    let Some(tree) = read(raw) else { return (Outcome::Malformed, vec!["JSON"]) };
    let Tree::Object(members) = &tree else { return (Outcome::Malformed, vec!["object"]) };
    let versions: Vec<&Tree> = all(members, "protocol_version");
    match versions[..] {
        [Tree::String(version)] if version == "0.1" => {}
        [Tree::String(_)] => return (Outcome::UnknownVersion, vec!["version"]),
        _ => return (Outcome::Malformed, vec!["protocol_version"]),
    }
    let canonical = write(&tree);
    if canonical.len() > 65_536 {
        return (Outcome::Oversized, vec!["canonical length"]);
    }
    let broken: Vec<&str> = [
        ("structure", !is_envelope(members)),
        ("numbers", !numbers_fit(&tree)),
        ("depth", depth(&tree) > 200),
        ("repeated names", repeats(&tree)),
    ]
    .into_iter()
    .filter_map(|(rule, is_broken)| is_broken.then_some(rule))
    .collect();
    if broken.is_empty() {
        (Outcome::Admitted(canonical), broken)
    } else {
        (Outcome::Malformed, broken)
    }
}

fn all<'t>(members: &'t [(String, Tree)], name: &str) -> Vec<&'t Tree> {
    members.iter().filter(|(known, _)| known == name).map(|(_, value)| value).collect()
}

fn is_envelope(members: &[(String, Tree)]) -> bool {
    fn is_string(members: &[(String, Tree)], name: &str) -> bool {
        matches!(all(members, name)[..], [Tree::String(_)])
    }
    let is_action = |action: &Tree| match action {
        Tree::Object(members) => {
            ["action_id", "action_type", "action_version"]
                .into_iter()
                .all(|name| is_string(members, name))
                && matches!(all(members, "payload")[..], [Tree::Object(_)])
        }
        _ => false,
    };
    is_string(members, "message_id")
        && match all(members, "actions")[..] {
            [Tree::Array(actions)] => actions.iter().all(is_action),
            _ => false,
        }
}

fn children(tree: &Tree) -> Vec<&Tree> {
    match tree {
        Tree::Array(elements) => elements.iter().collect(),
        Tree::Object(members) => members.iter().map(|(_, value)| value).collect(),
        _ => Vec::new(),
    }
}

fn numbers_fit(tree: &Tree) -> bool {
    let fits = match tree {
        Tree::Number(text) if text.contains(['.', 'e', 'E']) => {
            text.parse::<f64>().is_ok_and(f64::is_finite)
        }
        Tree::Number(text) => text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok(),
        _ => true,
    };
    fits && children(tree).into_iter().all(numbers_fit)
}

fn depth(tree: &Tree) -> usize {
    match tree {
        Tree::Array(_) | Tree::Object(_) => {
            1 + children(tree).into_iter().map(depth).max().unwrap_or(0)
        }
        _ => 0,
    }
}

fn repeats(tree: &Tree) -> bool {
    let here = match tree {
        Tree::Object(members) => {
            let names: HashSet<&String> = members.iter().map(|(name, _)| name).collect();
            names.len() < members.len()
        }
        _ => false,
    };
    here || children(tree).into_iter().any(repeats)
}

fn write_string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\u{8}' => out += "\\b",
            '\u{c}' => out += "\\f",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            control if control < ' ' => out += &format!("\\u{:04x}", control as u32),
            other => out.push(other),
        }
    }
    out + "\""
}

/// The canonical form.
pub fn write(tree: &Tree) -> String {
    match tree {
        Tree::Word(word) => (*word).to_owned(),
        Tree::Number(text) => text.clone(),
        Tree::String(text) => write_string(text),
        Tree::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(write).collect();
            format!("[{}]", elements.join(","))
        }
        Tree::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{}:{}", write_string(name), write(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

/// Exactly one RFC 8259 text in UTF-8, or nothing.
pub fn read(raw: &[u8]) -> Option<Tree> {
    let mut rest: Vec<char> = std::str::from_utf8(raw).ok()?.chars().rev().collect();
    let tree = value(&mut rest)?;
    skip(&mut rest);
    rest.is_empty().then_some(tree)
}

fn skip(rest: &mut Vec<char>) {
    while rest.last().is_some_and(|next| " \t\n\r".contains(*next)) {
        rest.pop();
    }
}

fn eat(rest: &mut Vec<char>, wanted: char) -> Option<()> {
    (rest.last() == Some(&wanted)).then(|| rest.pop()).map(|_| ())
}

fn value(rest: &mut Vec<char>) -> Option<Tree> {
    skip(rest);
    match *rest.last()? {
        '"' => string(rest).map(Tree::String),
        '[' => {
            let mut elements = Vec::new();
            list(rest, '[', ']', |rest| {
                elements.push(value(rest)?);
                Some(())
            })?;
            Some(Tree::Array(elements))
        }
        '{' => {
            let mut members = Vec::new();
            list(rest, '{', '}', |rest| {
                skip(rest);
                let name = string(rest)?;
                skip(rest);
                eat(rest, ':')?;
                members.push((name, value(rest)?));
                Some(())
            })?;
            Some(Tree::Object(members))
        }
        't' => word(rest, "true"),
        'f' => word(rest, "false"),
        'n' => word(rest, "null"),
        _ => number(rest),
    }
}

fn list(
    rest: &mut Vec<char>,
    first: char,
    last: char,
    mut item: impl FnMut(&mut Vec<char>) -> Option<()>,
) -> Option<()> {
    eat(rest, first)?;
    skip(rest);
    if eat(rest, last).is_some() {
        return Some(());
    }
    loop {
        item(rest)?;
        skip(rest);
        if eat(rest, last).is_some() {
            return Some(());
        }
        eat(rest, ',')?;
    }
}

fn word(rest: &mut Vec<char>, word: &'static str) -> Option<Tree> {
    for wanted in word.chars() {
        eat(rest, wanted)?;
    }
    Some(Tree::Word(word))
}

fn string(rest: &mut Vec<char>) -> Option<String> {
    eat(rest, '"')?;
    let mut units: Vec<u16> = Vec::new();
    loop {
        match rest.pop()? {
            '"' => break,
            '\\' => units.push(match rest.pop()? {
                'b' => 8,
                'f' => 12,
                'n' => 10,
                'r' => 13,
                't' => 9,
                'u' => {
                    let digits: String = (0..4).filter_map(|_| rest.pop()).collect();
                    let well_formed =
                        digits.len() == 4 && digits.chars().all(|digit| digit.is_ascii_hexdigit());
                    u16::from_str_radix(&digits, 16).ok().filter(|_| well_formed)?
                }
                same @ ('"' | '\\' | '/') => same as u16,
                _ => return None,
            }),
            control if control < ' ' => return None,
            // A raw character between two halves of a pair keeps them apart, as it should.
            other => units.extend(other.encode_utf16(&mut [0; 2]).iter()),
        }
    }
    String::from_utf16(&units).ok()
}

fn number(rest: &mut Vec<char>) -> Option<Tree> {
    let mut text = String::new();
    while rest.last().is_some_and(|next| "+-.eE0123456789".contains(*next)) {
        text.extend(rest.pop());
    }
    let unsigned = text.strip_prefix('-').unwrap_or(&text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let well_formed = digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent
            .is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)));
    well_formed.then_some(Tree::Number(text))
}
