//! The inside of strings: escapes, and comparing or reading text that has some.

use super::NotJson;

/// Reads one escape at `input[at]` (a backslash): the offset after it and the character it stands
/// for. Two `\u` that make a surrogate pair are one escape; a surrogate alone is an error.
pub fn escape(input: &[u8], at: usize) -> Result<(usize, char), NotJson> {
    let short = match input.get(at + 1).ok_or(NotJson)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode_escape(input, at),
        _ => return Err(NotJson),
    };
    Ok((at + 2, short))
}

/// The end of the character of two to four bytes at `input[at]`, by the table of RFC 3629.
#[inline(always)]
pub fn character_end(input: &[u8], at: usize) -> Result<usize, NotJson> {
    let is_rest = |place: usize| matches!(input.get(place), Some(0x80..=0xbf));
    let (len, second) = match (input[at], input.get(at + 1).copied().ok_or(NotJson)?) {
        (0xc2..=0xdf, second) => (2, matches!(second, 0x80..=0xbf)),
        (0xe0, second) => (3, matches!(second, 0xa0..=0xbf)),
        // U+D800..U+DFFF are no characters.
        (0xed, second) => (3, matches!(second, 0x80..=0x9f)),
        (0xe1..=0xef, second) => (3, matches!(second, 0x80..=0xbf)),
        (0xf0, second) => (4, matches!(second, 0x90..=0xbf)),
        (0xf1..=0xf3, second) => (4, matches!(second, 0x80..=0xbf)),
        (0xf4, second) => (4, matches!(second, 0x80..=0x8f)),
        _ => return Err(NotJson),
    };
    if !second || (len > 2 && !is_rest(at + 2)) || (len > 3 && !is_rest(at + 3)) {
        return Err(NotJson);
    }
    Ok(at + len)
}

fn unicode_escape(input: &[u8], at: usize) -> Result<(usize, char), NotJson> {
    let unit = four_hex_digits(input, at + 2)?;
    if let Some(character) = char::from_u32(unit) {
        return Ok((at + 6, character));
    }
    // Half of a surrogate pair: the other half must follow at once.
    if input.get(at + 6..at + 8) != Some(br"\u") {
        return Err(NotJson);
    }
    let second = four_hex_digits(input, at + 8)?;
    if !(0xd800..0xdc00).contains(&unit) || !(0xdc00..0xe000).contains(&second) {
        return Err(NotJson);
    }
    let scalar = 0x1_0000 + ((unit - 0xd800) << 10) + (second - 0xdc00);
    Ok((at + 12, char::from_u32(scalar).ok_or(NotJson)?))
}

fn four_hex_digits(input: &[u8], at: usize) -> Result<u32, NotJson> {
    let digits = input.get(at..at + 4).ok_or(NotJson)?;
    digits.iter().try_fold(0, |value, digit| {
        Ok(value << 4 | char::from(*digit).to_digit(16).ok_or(NotJson)?)
    })
}

/// The canonical text of a character inside a string, written into `buffer`.
pub fn canonical_text(character: char, buffer: &mut [u8; 6]) -> &[u8] {
    match character {
        '"' => br#"\""#,
        '\\' => br"\\",
        '\u{8}' => br"\b",
        '\u{c}' => br"\f",
        '\n' => br"\n",
        '\r' => br"\r",
        '\t' => br"\t",
        '\0'..='\u{1f}' => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            let code = character as usize;
            *buffer = [b'\\', b'u', b'0', b'0', HEX[code >> 4], HEX[code & 15]];
            buffer
        }
        _ => character.encode_utf8(buffer).as_bytes(),
    }
}

/// Gives `text` to `write` as a string with the least escaping, piece by piece.
pub fn quote(text: &str, mut write: impl FnMut(&[u8])) {
    write(b"\"");
    let mut plain = text;
    // Characters above U+001F stand for themselves, but for two.
    let is_special = |c: char| c < ' ' || c == '"' || c == '\\';
    while let Some(at) = plain.find(is_special) {
        write(&plain.as_bytes()[..at]);
        let mut after = plain[at..].chars();
        if let Some(special) = after.next() {
            write(canonical_text(special, &mut [0; 6]));
        }
        plain = after.as_str();
    }
    write(plain.as_bytes());
    write(b"\"");
}

/// Whether the inside of a string, well-formed, says `expected` once unescaped.
pub fn equals(inside: &[u8], expected: &[u8]) -> bool {
    let (mut at, mut rest) = (0, expected);
    let mut buffer = [0; 4];
    while at < inside.len() {
        let (next, said) = if inside[at] == b'\\' {
            let Ok((next, character)) = escape(inside, at) else { return false };
            (next, character.encode_utf8(&mut buffer).as_bytes())
        } else {
            (at + 1, &inside[at..=at])
        };
        let Some(tail) = rest.strip_prefix(said) else { return false };
        (at, rest) = (next, tail);
    }
    rest.is_empty()
}

/// Appends what the inside of a string, well-formed, says. `out` grows by at most `inside.len()`.
pub fn unescape(inside: &[u8], out: &mut Vec<u8>) -> Result<(), NotJson> {
    let mut at = 0;
    while at < inside.len() {
        if inside[at] == b'\\' {
            let (next, character) = escape(inside, at)?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            at = next;
        } else {
            out.push(inside[at]);
            at += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_to_their_end() {
        assert_eq!(escape(br"\n", 0), Ok((2, '\n')));
        assert_eq!(escape(br"\u00E9x", 0), Ok((6, '\u{e9}')));
        assert_eq!(escape(br"\ud83d\ude00", 0), Ok((12, '\u{1f600}')));
        let wrong =
            [r"\", r"\x", r"\u12", r"\u+123", r"\ud800", r"\udc00", r"\ud800\n", r"\ud800\ud800"];
        for text in wrong {
            assert_eq!(escape(text.as_bytes(), 0), Err(NotJson), "{text}");
        }
    }

    #[test]
    fn characters_are_those_of_the_standard_library() {
        let interesting =
            [0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xed, 0xff];
        for first in 0x80..=0xffu8 {
            for second in 0..=0xffu8 {
                for third in interesting {
                    for fourth in interesting {
                        let input = [first, second, third, fourth];
                        let expected = (2..=4).find(|len| {
                            std::str::from_utf8(&input[..*len])
                                .is_ok_and(|text| text.chars().count() == 1)
                        });
                        assert_eq!(character_end(&input, 0).ok(), expected, "{input:x?}");
                    }
                }
                assert_eq!(
                    character_end(&[first, second], 0).is_ok(),
                    std::str::from_utf8(&[first, second]).is_ok()
                );
            }
            assert_eq!(character_end(&[first], 0), Err(NotJson));
        }
    }

    #[test]
    fn text_compares_by_what_it_says() {
        assert!(equals(br"kv_\u0068ints", b"kv_hints"));
        assert!(equals("\u{e9}".as_bytes(), "\u{e9}".as_bytes()));
        assert!(equals(br"\u00e9", "\u{e9}".as_bytes()));
        assert!(!equals(br"kv_hint", b"kv_hints"));
        assert!(!equals(br"kv_hints\u0000", b"kv_hints"));
    }

    #[test]
    fn every_character_survives_its_canonical_text() {
        for character in (0..0x300).chain([0xffff, 0x1_f600]).filter_map(char::from_u32) {
            let mut buffer = [0; 6];
            let mut said = Vec::new();
            unescape(canonical_text(character, &mut buffer), &mut said).expect("well-formed");
            assert_eq!(said, character.to_string().into_bytes());
        }
    }
}
