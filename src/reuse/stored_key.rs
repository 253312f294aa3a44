//! The keys of the blocks in a window, by slot, comparable in place while the writer works.
//!
//! Of a key the tree keeps the tokens, their extra ids, and a digest of all else (its *kind*: what
//! adapter, salt and multimodal items it has). A reader that compares against a slot which is given
//! to another block meanwhile gets an answer without meaning, and finds out when it validates what
//! led it there. Guards: such an answer is wrong, never out of bounds.

use std::cmp::Ordering;

use sha2::{Digest, Sha256};

use super::chunks::{chunk_bits_within, Chunks};
use super::error::ReuseError;
use super::key::{Adapter, KeyTraits, KeyView, Salt};
use super::node::Slot;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of one chunk of a table.
const CHUNK_BYTES: usize = 1 << 16;

/// Everything of a key but tokens and extra ids, as a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind([u64; 4]);

impl Kind {
    fn of_bytes(bytes: Sha256) -> Self {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.finalize().chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
        }
        Self(words)
    }

    /// The kind of blocks without multimodal keys.
    pub(super) fn of_traits(traits: &KeyTraits) -> Self {
        let mut bytes = [0; 80];
        bytes[0] = u8::from(traits.uses_extra_ids);
        match &traits.adapter {
            Adapter::None => {}
            Adapter::Local(lora_id) => {
                bytes[1] = 1;
                bytes[16..24].copy_from_slice(&lora_id.to_le_bytes());
            }
            Adapter::Global(digest) => {
                bytes[1] = 2;
                bytes[16..48].copy_from_slice(digest);
            }
        }
        match &traits.salt {
            Salt::None => {}
            Salt::Number(salt) => {
                bytes[2] = 1;
                bytes[48..56].copy_from_slice(&salt.to_le_bytes());
            }
            Salt::Bytes(digest) => {
                bytes[2] = 2;
                bytes[48..80].copy_from_slice(digest);
            }
        }
        Self::of_bytes(Sha256::new_with_prefix(bytes))
    }

    /// The kind of a block whose traits alone have the kind `self`.
    pub(super) fn with_items(self, key: &KeyView<'_>) -> Self {
        let mut items = key.mm_keys.iter().peekable();
        if items.peek().is_none() {
            return self;
        }
        let mut hasher = Sha256::new();
        for word in self.0 {
            hasher.update(word.to_le_bytes());
        }
        for item in items {
            hasher.update(item.item_hash);
            hasher.update(item.offset.to_le_bytes());
        }
        Self::of_bytes(hasher)
    }
}

/// A key to look for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) kind: Kind,
    pub(super) tokens: &'a [i32],
    pub(super) extra_ids: Option<&'a [u64]>,
}

/// How a stored key lies to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compared {
    /// Of the stored key, as seen from the probe.
    pub(super) order: Ordering,
    /// Leading tokens in common, with their extra ids; 0 unless the kinds are equal.
    pub(super) head: usize,
}

#[derive(Debug)]
pub(super) struct StoredKeys {
    kinds: Chunks<AtomicU64>,
    tokens: Chunks<AtomicU32>,
    /// Made where a sequence uses them.
    extra_ids: Chunks<AtomicU64>,
}

impl StoredKeys {
    pub(super) fn new(tokens_per_block: usize) -> Result<Self, ReuseError> {
        let bits = |bytes: usize| chunk_bits_within(CHUNK_BYTES, bytes);
        Ok(Self {
            kinds: Chunks::new(bits(32), 4)?,
            tokens: Chunks::new(bits(4 * tokens_per_block), tokens_per_block)?,
            extra_ids: Chunks::new(bits(8 * tokens_per_block), tokens_per_block)?,
        })
    }

    /// Makes room for a key.
    pub(super) fn ensure(&self, slot: Slot, uses_extra_ids: bool) -> Result<(), ReuseError> {
        let row = slot as usize;
        self.kinds.ensure(row, "blocks of a window")?;
        self.tokens.ensure(row, "blocks of a window of this size")?;
        if uses_extra_ids {
            self.extra_ids.ensure(row, "blocks of a window of this size with extra ids")?;
        }
        Ok(())
    }

    /// Writes a key; `ensure` has made room.
    pub(super) fn write(&self, slot: Slot, key: &Probe<'_>) {
        let row = slot as usize;
        for (place, word) in self.kinds.row(row).iter().zip(key.kind.0) {
            place.store(word, Relaxed);
        }
        for (place, token) in self.tokens.row(row).iter().zip(key.tokens) {
            place.store(*token as u32, Relaxed);
        }
        if let Some(extra_ids) = key.extra_ids {
            for (place, extra_id) in self.extra_ids.row(row).iter().zip(extra_ids) {
                place.store(*extra_id, Relaxed);
            }
        }
    }

    /// How the key in `slot`, of `token_count` tokens, lies to `probe`: by kind, then token by token
    /// with its extra id, then by length.
    pub(super) fn compare(&self, slot: Slot, token_count: usize, probe: &Probe<'_>) -> Compared {
        let row = slot as usize;
        for (ours, theirs) in self.kinds.row(row).iter().zip(probe.kind.0) {
            let order = ours.load(Relaxed).cmp(&theirs);
            if order.is_ne() {
                return Compared { order, head: 0 };
            }
        }
        let tokens = self.tokens.row(row).iter().take(token_count);
        let extra_ids = probe.extra_ids.and_then(|ids| Some((self.extra_ids.try_row(row)?, ids)));
        let mut head = 0;
        for (ours, theirs) in tokens.zip(probe.tokens) {
            let mut order = ours.load(Relaxed).cmp(&(*theirs as u32));
            if let Some((ours, theirs)) = extra_ids {
                order = order.then_with(|| ours[head].load(Relaxed).cmp(&theirs[head]));
            }
            if order.is_ne() {
                return Compared { order, head };
            }
            head += 1;
        }
        Compared { order: token_count.cmp(&probe.tokens.len()), head }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind([1, 2, 3, 4]);

    fn probe<'a>(tokens: &'a [i32], extra_ids: Option<&'a [u64]>) -> Probe<'a> {
        Probe { kind: KIND, tokens, extra_ids }
    }

    #[test]
    fn keys_are_ordered_by_kind_then_tokens_with_extra_ids_then_length() {
        let keys = StoredKeys::new(4).expect("memory");
        keys.ensure(1, true).expect("memory");
        keys.write(1, &probe(&[5, -1, 7], Some(&[0, 9, 0])));
        let compare = |probe: Probe<'_>| {
            let compared = keys.compare(1, 3, &probe);
            (compared.order, compared.head)
        };
        use Ordering::{Equal, Greater, Less};
        assert_eq!(compare(probe(&[5, -1, 7], Some(&[0, 9, 0]))), (Equal, 3));
        assert_eq!(compare(probe(&[5, -1], Some(&[0, 9]))), (Greater, 2));
        assert_eq!(compare(probe(&[5, -1, 7, 0], Some(&[0, 9, 0, 0]))), (Less, 3));
        assert_eq!(compare(probe(&[5, -1, 7], Some(&[0, 10, 0]))), (Less, 1));
        assert_eq!(compare(probe(&[4, -1, 7], Some(&[0, 9, 0]))), (Greater, 0));
        let other = Probe { kind: Kind([1, 2, 3, 5]), ..probe(&[5, -1, 7], Some(&[0, 9, 0])) };
        assert_eq!(compare(other), (Less, 0));
    }

    #[test]
    fn kinds_differ_where_traits_do() {
        let base = KeyTraits { uses_extra_ids: false, adapter: Adapter::None, salt: Salt::None };
        let all = [
            base,
            KeyTraits { uses_extra_ids: true, ..base },
            KeyTraits { adapter: Adapter::Local(0), ..base },
            KeyTraits { adapter: Adapter::Local(1), ..base },
            KeyTraits { adapter: Adapter::Global([0; 32]), ..base },
            KeyTraits { salt: Salt::Number(0), ..base },
            KeyTraits { salt: Salt::Number(1), ..base },
            KeyTraits { salt: Salt::Bytes([0; 32]), ..base },
        ];
        let mut kinds: Vec<Kind> = all.iter().map(Kind::of_traits).collect();
        kinds.sort();
        kinds.dedup();
        assert_eq!(kinds.len(), all.len());
    }
}
