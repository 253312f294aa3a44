//! A whole MessagePack body, as a proxy forwards it: the hint taken out of it and judged.
//!
//! The twin of [`super::body`], with the same duty: whoever reads the body after us must not see a
//! hint that was not judged. So a body is refused unless it is exactly one map whose keys are all
//! strings, each string UTF-8; a hint under a binary key, say, is no matter of taste.
//! Never does: judge the values of other members, or change a byte but the hint's and the header's,
//! which keeps its length.

use super::admission::{admit_msgpack, Ingress, Verdict};
use super::body::{verdict_on_several, BodyError, Hints, SplitBody, MEMBER};
use super::msgpack::skip::{NotMsgpack, Reader};
use super::scratch::Scratch;

impl From<NotMsgpack> for BodyError {
    fn from(_: NotMsgpack) -> Self {
        BodyError::NotAMap
    }
}

/// Judges the hint of a MessagePack body and takes it out.
pub fn admit_body_msgpack(
    body: &[u8],
    max_bytes: usize,
    ingress: Ingress<'_>,
    scratch: &mut Scratch,
) -> Result<SplitBody, BodyError> {
    let (hints, rest) = split(body, max_bytes)?;
    let verdict = match hints {
        Hints::None => Verdict::Absent,
        Hints::One { start, end } => admit_msgpack(&body[start..end], ingress, scratch)?,
        Hints::Several { .. } => verdict_on_several(ingress),
    };
    Ok(SplitBody { verdict, body: rest })
}

/// Where the hints of a body lie, and the body without them.
pub(super) fn split(body: &[u8], max_bytes: usize) -> Result<(Hints, Vec<u8>), BodyError> {
    if body.len() > max_bytes {
        return Err(BodyError::TooLong { max_bytes, found_bytes: body.len() });
    }
    let mut out = Vec::new();
    out.try_reserve_exact(body.len())?;
    let mut reader = Reader::new(body);
    let count = reader.map_header()?;
    let header_end = body.len() - reader.left();
    // Everything before this is in `out`.
    let mut copied_to = 0;
    let mut removed = 0;
    let mut hints = Hints::None;
    for _ in 0..count {
        let start = body.len() - reader.left();
        let is_hint = reader.string()? == MEMBER;
        let value_start = body.len() - reader.left();
        reader.skip()?;
        if is_hint {
            let end = body.len() - reader.left();
            removed += 1;
            hints = match hints {
                Hints::None => Hints::One { start: value_start, end },
                Hints::One { .. } => Hints::Several { second: start },
                several => several,
            };
            out.extend_from_slice(&body[copied_to..start]);
            copied_to = end;
        }
    }
    if reader.left() > 0 {
        return Err(BodyError::NotAMap);
    }
    out.extend_from_slice(&body[copied_to..]);
    if removed > 0 {
        write_count(&mut out[..header_end], count - removed);
    }
    Ok((hints, out))
}

/// Writes a smaller count into a map's header, in the form that the header has.
fn write_count(header: &mut [u8], count: usize) {
    match header {
        [first] => *first = (*first & 0xf0) | count as u8,
        [_, length @ ..] => {
            let bytes = count.to_be_bytes();
            length.copy_from_slice(&bytes[bytes.len() - length.len()..]);
        }
        [] => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINT: &[u8] = b"\x83\xb0protocol_version\xa30.1\xaamessage_id\xa1m\xa7actions\x90";

    fn split(body: &[u8]) -> Result<(String, Vec<u8>), BodyError> {
        let mut scratch = Scratch::new(7);
        let split = admit_body_msgpack(body, 1 << 20, Ingress::InProcess, &mut scratch)?;
        let verdict = format!("{:?}", split.verdict);
        Ok((verdict.split('(').next().unwrap_or_default().to_owned(), split.body))
    }

    fn body(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn the_member_goes_and_the_header_keeps_its_form() {
        let key = &b"\xa8kv_hints"[..];
        let long_key = &b"\xda\0\x08kv_hints"[..];
        for (header, less) in [
            (&b"\x83"[..], &b"\x82"[..]),
            (b"\xde\0\x03", b"\xde\0\x02"),
            (b"\xdf\0\0\0\x03", b"\xdf\0\0\0\x02"),
        ] {
            let (a, b) = (&b"\xa1a\xd4\x01\xff"[..], &b"\xa1b\x81\x01\x91\xc4\x01\xff"[..]);
            for key in [key, long_key] {
                for order in [[key, HINT, a, b], [a, key, HINT, b], [a, b, key, HINT]] {
                    let sent = body(&[&[header][..], &order[..]].concat());
                    let rest = body(&[less, a, b]);
                    assert_eq!(split(&sent), Ok(("Admitted".to_owned(), rest)), "{sent:x?}");
                }
            }
            let nil = body(&[header, a, key, b"\xc0", b]);
            assert_eq!(split(&nil), Ok(("Absent".to_owned(), body(&[less, a, b]))));
        }
        let without = body(&[b"\x81\xa1a\x81\xa8kv_hints\x01"]);
        assert_eq!(split(&without), Ok(("Absent".to_owned(), without.clone())));
        let bad = body(&[b"\x81", key, b"\xc4\x01\xff"]);
        assert_eq!(split(&bad), Ok(("Malformed".to_owned(), b"\x80".to_vec())));
        let several = body(&[b"\x83", key, HINT, b"\xa1a\x01", long_key, HINT]);
        assert_eq!(split(&several), Ok(("Malformed".to_owned(), b"\x81\xa1a\x01".to_vec())));
    }

    #[test]
    fn sixteen_members_less_one_stay_in_their_header() {
        let mut sent = b"\xde\0\x10".to_vec();
        for letter in b'a'..=b'o' {
            sent.extend([0xa1, letter, 0x01]);
        }
        let mut rest = sent.clone();
        rest[2] = 15;
        sent.extend(b"\xa8kv_hints\xc0");
        assert_eq!(split(&sent), Ok(("Absent".to_owned(), rest)));
    }

    #[test]
    fn what_is_no_map_with_string_keys_is_refused() {
        let no_maps: [&[u8]; 14] = [
            b"",
            b"\xc0",
            b"\x90",
            b"\x81",
            b"\x81\xa1a",
            b"\x80\x80",
            b"\x80\xc0",
            b"\x81\xc4\x08kv_hints\xc0",
            b"\x81\x01\xc0",
            b"\x81\xa1\xff\xc0",
            b"\x81\xa1a\xa1\xff",
            b"\x81\xa1a\xc1",
            b"\xdf\xff\xff\xff\xff",
            b"{}",
        ];
        for sent in no_maps {
            assert_eq!(split(sent).err(), Some(BodyError::NotAMap), "{sent:x?}");
        }
        let long = vec![0; (1 << 20) + 1];
        assert!(matches!(split(&long), Err(BodyError::TooLong { .. })));
    }

    #[test]
    fn untrusted_hints_go_too() {
        let ingress = Ingress::Http { trusted: false };
        let mut scratch = Scratch::new(7);
        for sent in [&b"\x81\xa8kv_hints\x01"[..], b"\x82\xa8kv_hints\x01\xa8kv_hints\x02"] {
            let split = admit_body_msgpack(sent, 100, ingress, &mut scratch).expect("a map");
            assert!(matches!(split.verdict, Verdict::Untrusted));
            assert_eq!(split.body, b"\x80");
        }
    }
}
