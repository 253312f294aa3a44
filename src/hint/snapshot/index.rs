//! Where the parts of a snapshot lie, as bytes: a rank of the same worker needs no scan to have the
//! snapshot again, and no copy of its own.
//!
//! ```text
//! index  = json_len u32, message_id text, actions span, unescaped_len u32, action_count u32,
//!          unescaped bytes, action*
//! action = id text, action_type text, version text, payload span, json span
//! text   = start u32, end u32; the highest bit of start: in `unescaped`            (little-endian)
//! span   = start u32, end u32
//! ```
//!
//! Guards: whatever the bytes say, every part lies inside the text, parts lie inside the action they
//! belong to, actions follow each other, and what C callers see as UTF-8 is UTF-8.
//! Never does: look at the rest of the text. Whoever sent it scanned it, and whoever received it
//! compared a checksum.

use std::collections::TryReserveError;
use std::sync::OnceLock;

use bytes::Bytes;

use super::{ActionEntry, Snapshot, SnapshotData, SnapshotError, TextSpan};
use crate::hint::judge::Span;
use crate::hint::limits::CANONICAL_MAX_BYTES;
use crate::poison::Poison;
use crate::sync::Arc;
use crate::wire::Reader;

const HEAD_BYTES: usize = 28;
const ACTION_BYTES: usize = 40;

impl Snapshot {
    /// Bytes of [`Snapshot::write_index`].
    pub fn index_len(&self) -> usize {
        HEAD_BYTES + self.0.unescaped.len() + ACTION_BYTES * self.0.action_count()
    }

    /// Appends the index, which [`Snapshot::from_index`] reads.
    pub fn write_index(&self, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
        let data = &*self.0;
        out.try_reserve(self.index_len())?;
        // No number here passes CANONICAL_MAX_BYTES.
        let head: [u32; HEAD_BYTES / 4] = [
            data.json.len() as u32,
            data.message_id.0.start(),
            data.message_id.0.end(),
            data.actions_json.start(),
            data.actions_json.end(),
            data.unescaped.len() as u32,
            data.action_count() as u32,
        ];
        write_numbers::<HEAD_BYTES>(&head, out);
        out.extend_from_slice(&data.unescaped);
        for action in data.actions() {
            let TextSpan(id) = action.id;
            let TextSpan(action_type) = action.action_type;
            let TextSpan(version) = action.version;
            let spans = [id, action_type, version, action.payload, action.json];
            let numbers: [u32; ACTION_BYTES / 4] = std::array::from_fn(|index| {
                let span = spans[index / 2];
                if index % 2 == 0 {
                    span.start()
                } else {
                    span.end()
                }
            });
            write_numbers::<ACTION_BYTES>(&numbers, out);
        }
        Ok(())
    }

    /// The snapshot that [`Snapshot::json`] and [`Snapshot::write_index`] came from. `json` is kept,
    /// not copied.
    pub fn from_index(json: Bytes, index: &[u8]) -> Result<Self, SnapshotError> {
        if json.len() > CANONICAL_MAX_BYTES {
            return Err(SnapshotError::Damaged);
        }
        let mut reader = Reader::new(index);
        if reader.u32() != Some(json.len() as u32) {
            return Err(SnapshotError::Damaged);
        }
        let (message_id, actions_json, action_count, unescaped) =
            read_head(&mut reader).ok_or(SnapshotError::Damaged)?;
        if reader.remaining() != action_count.saturating_mul(ACTION_BYTES) {
            return Err(SnapshotError::Damaged);
        }
        let first_action = read_action(&mut reader);
        let mut later_actions = Vec::new();
        later_actions.try_reserve_exact(action_count.saturating_sub(1))?;
        while let Some(action) = read_action(&mut reader) {
            later_actions.push(action);
        }
        let texts = Texts { json: &json, unescaped };
        let actions = first_action.iter().chain(&later_actions);
        if !texts.are_consistent(message_id, actions_json, actions) {
            return Err(SnapshotError::Damaged);
        }
        let unescaped = copied(unescaped)?;
        Ok(Self(Arc::new(SnapshotData {
            json,
            packed: OnceLock::new(),
            unescaped,
            message_id,
            actions_json,
            first_action,
            later_actions,
            poison: Poison::default(),
        })))
    }
}

/// Where the parts of a snapshot lie, or do not.
#[derive(Clone, Copy)]
struct Texts<'a> {
    json: &'a [u8],
    unescaped: &'a [u8],
}

impl Texts<'_> {
    /// Everything that the accessors rely on.
    fn are_consistent<'a>(
        self,
        message_id: TextSpan,
        actions_json: Span,
        actions: impl Iterator<Item = &'a ActionEntry>,
    ) -> bool {
        let text_len = self.json.len() as u32;
        let beside_actions = message_id.span().end() <= actions_json.start()
            || message_id.span().start() >= actions_json.end();
        if !is_inside(actions_json, 0, text_len)
            || !(message_id.is_unescaped() || beside_actions)
            || !self.is_text(message_id, 0, text_len)
        {
            return false;
        }
        let mut free_from = actions_json.start();
        for action in actions {
            let (start, end) = (action.json.start(), action.json.end());
            let holds = is_inside(action.json, free_from, actions_json.end())
                && is_inside(action.payload, start, end)
                && self.is_text(action.id, start, end)
                && self.is_text(action.action_type, start, end)
                && self.is_text(action.version, start, end);
            if !holds {
                return false;
            }
            free_from = end;
        }
        true
    }

    /// Whether it lies between `start` and `end`, or among the unescaped texts, and is UTF-8.
    #[inline]
    fn is_text(self, text: TextSpan, start: u32, end: u32) -> bool {
        let (from, start, end) = if text.is_unescaped() {
            (self.unescaped, 0, self.unescaped.len() as u32)
        } else {
            (self.json, start, end)
        };
        // Short and ASCII, as a rule, which takes a comparison or two.
        let is_utf8 = |bytes: &[u8]| bytes.is_ascii() || std::str::from_utf8(bytes).is_ok();
        is_inside(text.span(), start, end) && from.get(text.span().range()).is_some_and(is_utf8)
    }
}

#[inline]
fn is_inside(span: Span, start: u32, end: u32) -> bool {
    start <= span.start() && span.start() <= span.end() && span.end() <= end
}

fn copied(bytes: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Appends little-endian numbers, `BYTES` of them in all, at once.
fn write_numbers<const BYTES: usize>(numbers: &[u32], out: &mut Vec<u8>) {
    let mut bytes = [0; BYTES];
    for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&bytes);
}

type Head<'a> = (TextSpan, Span, usize, &'a [u8]);

fn read_head<'a>(reader: &mut Reader<'a>) -> Option<Head<'a>> {
    let message_id = read_text(reader)?;
    let actions_json = read_span(reader)?;
    let unescaped_len = reader.u32()? as usize;
    let action_count = reader.u32()? as usize;
    Some((message_id, actions_json, action_count, reader.take(unescaped_len)?))
}

fn read_action(reader: &mut Reader<'_>) -> Option<ActionEntry> {
    Some(ActionEntry {
        id: read_text(reader)?,
        action_type: read_text(reader)?,
        version: read_text(reader)?,
        payload: read_span(reader)?,
        json: read_span(reader)?,
    })
}

fn read_span(reader: &mut Reader<'_>) -> Option<Span> {
    Some(Span::new(reader.u32()?, reader.u32()?))
}

fn read_text(reader: &mut Reader<'_>) -> Option<TextSpan> {
    read_span(reader).map(TextSpan)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 3] = [
        r#"{"protocol_version":"0.1","message_id":"m","actions":[]}"#,
        r#"{"protocol_version":"0.1","message_id":"a\"b","actions":[{"action_id":"1","action_type":"kv.fetch","action_version":"1.0","payload":{"block_hashes":[1,2]}},{"action_id":"\\2","action_type":"x","action_version":"1","payload":{}}]}"#,
        r#"{"actions":[{"payload":{"k":"é"},"action_version":"1","action_type":"t","action_id":"é"}],"message_id":"last","protocol_version":"0.1"}"#,
    ];

    fn parts(snapshot: &Snapshot) -> Vec<(Vec<u8>, String)> {
        let texts = |action: super::super::Action<'_>| {
            let names = format!("{}|{}|{}", action.id, action.action_type, action.version);
            ([action.payload, action.json].concat(), names)
        };
        snapshot.actions().map(texts).collect()
    }

    fn indexed(text: &str) -> (Snapshot, Vec<u8>) {
        let snapshot = Snapshot::from_canonical(text.as_bytes()).expect("canonical");
        let mut index = Vec::new();
        snapshot.write_index(&mut index).expect("memory");
        assert_eq!(index.len(), snapshot.index_len());
        (snapshot, index)
    }

    #[test]
    fn a_snapshot_comes_back_with_all_its_parts() {
        for text in TEXTS {
            let (given, index) = indexed(text);
            let got = Snapshot::from_index(text.to_owned().into(), &index).expect("own bytes");
            assert_eq!(got.json(), given.json());
            assert_eq!(got.message_id(), given.message_id());
            assert_eq!(parts(&got), parts(&given));
        }
    }

    #[test]
    fn every_changed_byte_of_an_index_is_refused_or_harmless() {
        let mut refused = 0;
        for text in TEXTS {
            let (_, good) = indexed(text);
            for at in 0..good.len() {
                for flip in [1, 0x10, 0x80, 0xff] {
                    let mut index = good.clone();
                    index[at] ^= flip;
                    let Ok(got) = Snapshot::from_index(text.to_owned().into(), &index) else {
                        refused += 1;
                        continue;
                    };
                    // Whatever was accepted can be read and taken apart.
                    let _ = (got.message_id().len(), parts(&got));
                    for action in 0..got.action_count() {
                        let one = got.one_action(action).expect("memory").expect("it is there");
                        let _ = (one.message_id().len(), parts(&one));
                    }
                }
            }
            for cut in 0..good.len() {
                Snapshot::from_index(text.to_owned().into(), &good[..cut]).expect_err("cut");
            }
            Snapshot::from_index(text[..text.len() - 4].to_owned().into(), &good).expect_err("cut");
        }
        assert!(refused > 500, "{refused}");
    }
}
