//! Hints as fewer bytes: arrays of block hashes travel as eight bytes a hash.
//!
//! The text is cut at each `"block_hashes":[`; an array of numbers that follows, each written as a
//! u64 is written (no sign, no leading zero, no fraction), becomes binary, the rest stays as it is.
//! Rebuilding writes the same numbers in the same way between the same pieces of text, so it gives
//! the same bytes whatever the text means: this file knows no JSON and needs none.
//!
//! ```text
//! packed  = text_len u32, segment*
//! segment = raw_len u32, hash_count u32, raw bytes, hash_count * u64     (little-endian)
//! ```
//!
//! Guards: rebuilding is total. It never writes more than `text_len`, and that is bounded.
//! Where it pays and where not: docs/broadcast.md.

use std::collections::TryReserveError;

use super::limits::MAX_SNAPSHOT_BYTES;
use crate::wire::Reader;

/// What stands in canonical text before an array of block hashes.
const ARRAY_START: &[u8] = b"\"block_hashes\":[";

/// Bytes of a segment besides raw bytes and hashes.
const SEGMENT_OVERHEAD: usize = 8;

/// Most bytes that `text_len` bytes of text are packed into.
pub const fn max_packed_len(text_len: usize) -> usize {
    // An array is packed only where that saves at least a segment's overhead, so what remains are
    // the text itself, its length and the overhead of the first segment.
    4 + SEGMENT_OVERHEAD + text_len
}

/// The packed bytes are not what [`pack`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// Cut off, inconsistent, or longer than a snapshot may be.
    #[error("packed text is damaged")]
    Damaged,
    /// Memory for the text could not be had.
    #[error("memory for the text of a snapshot could not be had")]
    NoMemory,
}

/// Appends `text`, at most [`MAX_SNAPSHOT_BYTES`] of it, to `packed`.
pub fn pack(text: &[u8], packed: &mut Vec<u8>) -> Result<(), TryReserveError> {
    packed.try_reserve(max_packed_len(text.len()))?;
    packed.extend_from_slice(&(text.len() as u32).to_le_bytes());
    let mut segment = open_segment(packed);
    let mut packed_to = 0;
    for found in memchr::memmem::find_iter(text, ARRAY_START) {
        let array_start = found + ARRAY_START.len();
        packed.extend_from_slice(&text[packed_to..array_start]);
        packed_to = array_start;
        let raw_end = packed.len();
        match pack_hashes(text, array_start, packed) {
            Some(array_end)
                if packed.len() - raw_end + SEGMENT_OVERHEAD <= array_end - array_start =>
            {
                close_segment(packed, segment, raw_end);
                segment = open_segment(packed);
                packed_to = array_end;
            }
            // Not only hashes, or too short to pay: the text is kept, by the next piece.
            _ => packed.truncate(raw_end),
        }
    }
    packed.extend_from_slice(&text[packed_to..]);
    let raw_end = packed.len();
    close_segment(packed, segment, raw_end);
    Ok(())
}

/// Packs into memory of its own.
pub fn pack_to_vec(text: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut packed = Vec::new();
    pack(text, &mut packed)?;
    Ok(packed)
}

/// Makes room for a segment's lengths and tells where it begins.
fn open_segment(packed: &mut Vec<u8>) -> usize {
    packed.extend_from_slice(&[0; SEGMENT_OVERHEAD]);
    packed.len() - SEGMENT_OVERHEAD
}

/// Fills in the lengths of the segment that begins at `segment`, whose text ends at `raw_end`.
fn close_segment(packed: &mut [u8], segment: usize, raw_end: usize) {
    let raw_len = raw_end - segment - SEGMENT_OVERHEAD;
    let hash_count = (packed.len() - raw_end) / 8;
    packed[segment..segment + 4].copy_from_slice(&(raw_len as u32).to_le_bytes());
    packed[segment + 4..segment + 8].copy_from_slice(&(hash_count as u32).to_le_bytes());
}

/// Appends the hashes of the array that begins at `at` and tells where their text ends (at the
/// `]`). `None`, and then some hashes may stand there, unless all of it is written as u64 are.
fn pack_hashes(text: &[u8], mut at: usize, packed: &mut Vec<u8>) -> Option<usize> {
    loop {
        let (hash, end) = canonical_u64(text, at)?;
        // Hashes of one digit would outgrow the room reserved for the text.
        if packed.capacity() - packed.len() < 8 {
            return None;
        }
        packed.extend_from_slice(&hash.to_le_bytes());
        match text.get(end)? {
            b',' => at = end + 1,
            b']' => return Some(end),
            _ => return None,
        }
    }
}

/// The number that begins at `at` and where it ends, if it is written as a u64 is written.
fn canonical_u64(text: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut end = at;
    let mut value: u64 = 0;
    while let Some(digit) = text.get(end).filter(|byte| byte.is_ascii_digit()) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        end += 1;
    }
    let leading_zero = end - at > 1 && text[at] == b'0';
    (end > at && !leading_zero).then_some((value, end))
}

/// The text that was packed.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let text_len = Reader::new(packed).u32().ok_or(UnpackError::Damaged)? as usize;
    if text_len > MAX_SNAPSHOT_BYTES {
        return Err(UnpackError::Damaged);
    }
    let mut text = Vec::new();
    text.try_reserve_exact(text_len).map_err(|_| UnpackError::NoMemory)?;
    text.resize(text_len, 0);
    unpack_into(packed, &mut text)?;
    Ok(text)
}

/// Fills `text` with the text that was packed, which has to have just that length.
pub fn unpack_into(packed: &[u8], text: &mut [u8]) -> Result<(), UnpackError> {
    let mut reader = Reader::new(packed);
    if reader.u32().map(|len| len as usize) != Some(text.len()) {
        return Err(UnpackError::Damaged);
    }
    let mut at = 0;
    while reader.remaining() > 0 {
        at = write_segment(&mut reader, text, at).ok_or(UnpackError::Damaged)?;
    }
    if at != text.len() {
        return Err(UnpackError::Damaged);
    }
    Ok(())
}

/// Writes a segment's text at `at` and tells where it ends.
fn write_segment(reader: &mut Reader<'_>, text: &mut [u8], mut at: usize) -> Option<usize> {
    let raw_len = reader.u32()? as usize;
    let hash_count = reader.u32()? as usize;
    at = write(text, at, reader.take(raw_len)?)?;
    let hashes = reader.take(hash_count.checked_mul(8)?)?;
    let mut digits = itoa::Buffer::new();
    for (index, hash) in hashes.chunks_exact(8).enumerate() {
        if index > 0 {
            at = write(text, at, b",")?;
        }
        let hash = u64::from_le_bytes(hash.try_into().ok()?);
        at = write(text, at, digits.format(hash).as_bytes())?;
    }
    Some(at)
}

fn write(text: &mut [u8], at: usize, bytes: &[u8]) -> Option<usize> {
    let end = at + bytes.len();
    text.get_mut(at..end)?.copy_from_slice(bytes);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        let mut packed = Vec::new();
        pack(text.as_bytes(), &mut packed).expect("memory");
        assert!(packed.len() <= max_packed_len(text.len()), "{text}");
        assert_eq!(unpack(&packed).expect("own bytes"), text.as_bytes(), "{text}");
        packed
    }

    #[test]
    fn hashes_written_as_u64_shrink_to_eight_bytes() {
        let hashes = vec!["18446744073709551615"; 3_000].join(",");
        let text = format!("{{\"block_hashes\":[{hashes}],\"x\":1}}");
        assert_eq!(packed(&text).len(), text.len() - hashes.len() + 3_000 * 8 + 4 + 16);
    }

    #[test]
    fn every_other_number_stays_text() {
        let good = "12345678901234567890,1234567890123456789";
        for odd in [
            "-0",
            "-1",
            "0.5",
            "1e3",
            "01",
            "00",
            "18446744073709551616",
            "1 ",
            "",
            "\"1\"",
            "[1]",
            "123456789012345678901",
        ] {
            for array in [format!("{good},{odd}]"), format!("{odd},{good}]"), odd.to_owned()] {
                let text = format!("{{\"block_hashes\":[{array}}}");
                assert_eq!(packed(&text).len(), text.len() + 12, "{text}");
            }
        }
        // No end of the array.
        packed(&format!("\"block_hashes\":[{good},"));
        packed(&format!("\"block_hashes\":[{good}"));
    }

    #[test]
    fn arrays_that_would_grow_stay_text() {
        let text = format!("\"block_hashes\":[{}]", vec!["1"; 100].join(","));
        assert_eq!(packed(&text).len(), text.len() + 12);
        packed("\"block_hashes\":[1]");
        packed("\"block_hashes\":[]");
        packed("");
    }

    #[test]
    fn what_stands_in_strings_or_nested_comes_back_too() {
        packed(r#"{"a":"\"block_hashes\":[1,2]","b":["block_hashes":[1234567890123,1]]}"#);
        packed(r#"["block_hashes":["block_hashes":[12345678901234567,12345678901234567]]]"#);
        packed(
            r#"{"block_hashes":[123456789012345678],"p":{"block_hashes":[123456789012345678,1]}}"#,
        );
    }

    #[test]
    fn claims_of_long_texts_are_refused_before_memory_is_taken() {
        assert_eq!(unpack(&[0xff; 4]), Err(UnpackError::Damaged));
        // Eight bytes can ask for twenty digits, but never for more than the text's length.
        let mut short = 21u32.to_le_bytes().to_vec();
        short.extend_from_slice(&0u32.to_le_bytes());
        short.extend_from_slice(&2u32.to_le_bytes());
        short.extend_from_slice(&[0xff; 16]);
        assert_eq!(unpack(&short), Err(UnpackError::Damaged));
    }
}
