//! Content names: what decides whether two blocks are the same, on this worker and on others.
//!
//! The encoding is part of the wire protocol and written down, with vectors, in
//! `docs/protocol.md`, section *Content names*. A change of it is a new version of the two tags.

use sha2::{Digest, Sha256};

use super::key::{Adapter, KeyTraits, KeyView, Salt};

/// The identity of a block together with everything before it: a SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub [u8; 32]);

impl std::fmt::Debug for Name {
    /// The first bytes, enough to tell names apart in a report.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(formatter, "Name({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

const ROOT_TAG: &[u8; 16] = b"kvhints root v1\0";
const BLOCK_TAG: &[u8; 16] = b"kvhints block v1";
const HEADER_BYTES: usize = 128;

pub(super) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The name that first blocks have as their parent's.
pub(super) fn root(namespace: &[u8], tokens_per_block: u32) -> Name {
    let mut hasher = Sha256::new();
    hasher.update(ROOT_TAG);
    hasher.update(tokens_per_block.to_le_bytes());
    hasher.update((namespace.len() as u64).to_le_bytes());
    hasher.update(namespace);
    Name(hasher.finalize().into())
}

/// Names the blocks of one sequence: what all its keys begin with is hashed once.
#[derive(Clone)]
pub(super) struct Namer {
    after_header: Sha256,
}

impl Namer {
    pub(super) fn new(traits: &KeyTraits) -> Self {
        let mut header = [0; HEADER_BYTES];
        header[..16].copy_from_slice(BLOCK_TAG);
        header[16] = u8::from(traits.uses_extra_ids);
        match &traits.adapter {
            Adapter::None => {}
            Adapter::Local(lora_id) => {
                header[17] = 1;
                header[32..40].copy_from_slice(&lora_id.to_le_bytes());
            }
            Adapter::Global(digest) => {
                header[17] = 2;
                header[32..64].copy_from_slice(digest);
            }
        }
        match &traits.salt {
            Salt::None => {}
            Salt::Number(salt) => {
                header[18] = 1;
                header[64..72].copy_from_slice(&salt.to_le_bytes());
            }
            Salt::Bytes(digest) => {
                header[18] = 2;
                header[64..96].copy_from_slice(digest);
            }
        }
        Self { after_header: Sha256::new_with_prefix(header) }
    }

    /// The name of the block with this key below `parent`.
    pub(super) fn name(&self, parent: Name, key: &KeyView<'_>) -> Name {
        let mut hasher = self.after_header.clone();
        // Both fit: a block has at most 65536 tokens, and no more multimodal keys than tokens.
        hasher.update((key.tokens.len() as u32).to_le_bytes());
        hasher.update((key.mm_keys.count() as u32).to_le_bytes());
        update_with_words(&mut hasher, key.tokens, |token| token.to_le_bytes());
        if let Some(extra_ids) = key.extra_ids {
            update_with_words(&mut hasher, extra_ids, |extra_id| extra_id.to_le_bytes());
        }
        for mm_key in key.mm_keys.iter() {
            hasher.update(mm_key.item_hash);
            hasher.update(mm_key.offset.to_le_bytes());
        }
        let key_digest = hasher.finalize();
        let mut hasher = Sha256::new_with_prefix(parent.0);
        hasher.update(key_digest);
        Name(hasher.finalize().into())
    }
}

/// Feeds numbers in little-endian order, some at a time: one by one the hasher's own buffering
/// would cost more than the hash.
fn update_with_words<T: Copy, const N: usize>(
    hasher: &mut Sha256,
    words: &[T],
    to_bytes: impl Fn(T) -> [u8; N],
) {
    const WORDS: usize = 64;
    let mut bytes = [[0; N]; WORDS];
    for some in words.chunks(WORDS) {
        for (slot, word) in bytes.iter_mut().zip(some) {
            *slot = to_bytes(*word);
        }
        hasher.update(bytes[..some.len()].as_flattened());
    }
}
