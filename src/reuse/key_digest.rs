//! Digests of blocks' keys: BLAKE3 under a key of its own, made once for each sequence from what all
//! its blocks share.
//!
//! A digest needs nothing of other blocks, so those of a prompt are computed side by side. The
//! encoding is part of the wire protocol and written down, with vectors, in `docs/protocol.md`,
//! section *Content names*. A change of it is a new version of the tag.
//! Guards: equal digests mean equal keys, all five parts of them. Never does: look at parents.

use blake3::platform::Platform;
use blake3::{Hasher, IncrementCounter};
use sha2::{Digest, Sha256};

use super::key::{Adapter, KeyTraits, KeyView, Salt};
use super::work_count;

/// What decides one block's own bytes.
pub(super) type KeyDigest = [u8; 32];

/// Blocks that are digested side by side, enough for the widest processors.
pub(super) const BATCH_BLOCKS: usize = 16;

const TAG: &[u8; 16] = b"kvhints block v1";

/// SHA-256 of what the host gives at any length.
pub(super) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The kinds of blocks, which have keys of their own for the hash.
#[derive(Clone, Copy)]
enum Kind {
    /// Full, of tokens and nothing else.
    Plain = 0,
    Other = 1,
}

/// Digests the blocks of one sequence.
#[derive(Clone)]
pub(super) struct KeyDigester {
    tokens_per_block: usize,
    /// By kind.
    hash_keys: [[u8; 32]; 2],
}

impl KeyDigester {
    pub(super) fn new(traits: &KeyTraits, tokens_per_block: usize) -> Self {
        let mut header = [0; 96];
        header[..16].copy_from_slice(TAG);
        // Fits: a block has at most 65536 tokens.
        header[16..20].copy_from_slice(&(tokens_per_block as u32).to_le_bytes());
        header[21] = u8::from(traits.uses_extra_ids);
        match &traits.adapter {
            Adapter::None => {}
            Adapter::Local(lora_id) => {
                header[22] = 1;
                header[32..40].copy_from_slice(&lora_id.to_le_bytes());
            }
            Adapter::Global(digest) => {
                header[22] = 2;
                header[32..64].copy_from_slice(digest);
            }
        }
        match &traits.salt {
            Salt::None => {}
            Salt::Number(salt) => {
                header[23] = 1;
                header[64..72].copy_from_slice(&salt.to_le_bytes());
            }
            Salt::Bytes(digest) => {
                header[23] = 2;
                header[64..96].copy_from_slice(digest);
            }
        }
        let hash_keys = [Kind::Plain, Kind::Other].map(|kind| {
            header[20] = kind as u8;
            digest(&header)
        });
        Self { tokens_per_block, hash_keys }
    }

    fn hasher(&self, kind: Kind) -> Hasher {
        Hasher::new_keyed(&self.hash_keys[kind as usize])
    }

    /// The digest of one block's key.
    pub(super) fn digest(&self, key: &KeyView<'_>) -> KeyDigest {
        let mm_key_count = key.mm_keys.count();
        let is_full = key.tokens.len() == self.tokens_per_block;
        if is_full && mm_key_count == 0 && key.extra_ids.is_none() {
            return self.digest_plain(key.tokens);
        }
        let mut hasher = self.hasher(Kind::Other);
        // Both fit: there are no more multimodal keys than tokens.
        update(&mut hasher, &(key.tokens.len() as u32).to_le_bytes());
        update(&mut hasher, &(mm_key_count as u32).to_le_bytes());
        update_with_words(&mut hasher, key.tokens, |token| token.to_le_bytes());
        if let Some(extra_ids) = key.extra_ids {
            update_with_words(&mut hasher, extra_ids, |extra_id| extra_id.to_le_bytes());
        }
        for mm_key in key.mm_keys.iter() {
            update(&mut hasher, &mm_key.item_hash);
            update(&mut hasher, &mm_key.offset.to_le_bytes());
        }
        hasher.finalize().into()
    }

    fn digest_plain(&self, tokens: &[i32]) -> KeyDigest {
        let mut hasher = self.hasher(Kind::Plain);
        update_with_words(&mut hasher, tokens, |token| token.to_le_bytes());
        hasher.finalize().into()
    }

    /// The digests of at most [`BATCH_BLOCKS`] plain blocks, which have these tokens.
    pub(super) fn digest_batch(&self, tokens: &[i32], digests: &mut [KeyDigest]) {
        match self.tokens_per_block {
            16 => self.side_by_side::<64>(tokens, digests),
            32 => self.side_by_side::<128>(tokens, digests),
            64 => self.side_by_side::<256>(tokens, digests),
            128 => self.side_by_side::<512>(tokens, digests),
            256 => self.side_by_side::<1024>(tokens, digests),
            size => {
                for (block, digest) in tokens.chunks_exact(size).zip(digests) {
                    *digest = self.digest_plain(block);
                }
            }
        }
    }

    /// The same for blocks of `BYTES` bytes: whole steps of BLAKE3, and no more than one chunk, so
    /// that a block's last chunk is its first one.
    fn side_by_side<const BYTES: usize>(&self, tokens: &[i32], digests: &mut [KeyDigest]) {
        // Flags of BLAKE3 (its paper, 2.1).
        const CHUNK_START: u8 = 1;
        const CHUNK_END: u8 = 2;
        const ROOT: u8 = 8;
        const KEYED_HASH: u8 = 16;
        const { assert!(BYTES.is_multiple_of(64) && BYTES <= 1024) };

        work_count::key_bytes(size_of_val(tokens));
        let mut bytes = [[0; BYTES]; BATCH_BLOCKS];
        for (word, token) in bytes.as_flattened_mut().as_chunks_mut::<4>().0.iter_mut().zip(tokens)
        {
            *word = token.to_le_bytes();
        }
        let hash_key = self.hash_keys[Kind::Plain as usize].as_chunks::<4>().0;
        let hash_key = std::array::from_fn(|word| u32::from_le_bytes(hash_key[word]));
        Platform::detect().hash_many(
            &bytes.each_ref()[..digests.len()],
            &hash_key,
            0,
            IncrementCounter::No,
            KEYED_HASH,
            CHUNK_START,
            CHUNK_END | ROOT,
            digests.as_flattened_mut(),
        );
    }
}

fn update(hasher: &mut Hasher, bytes: &[u8]) {
    work_count::key_bytes(bytes.len());
    hasher.update(bytes);
}

/// Feeds numbers in little-endian order, some at a time: one by one the hasher's own buffering would
/// cost more than the hash.
fn update_with_words<T: Copy, const N: usize>(
    hasher: &mut Hasher,
    words: &[T],
    to_bytes: impl Fn(T) -> [u8; N],
) {
    const WORDS: usize = 64;
    let mut bytes = [[0; N]; WORDS];
    for some in words.chunks(WORDS) {
        for (slot, word) in bytes.iter_mut().zip(some) {
            *slot = to_bytes(*word);
        }
        update(hasher, bytes[..some.len()].as_flattened());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_by_side_is_the_keyed_hash_of_each_block() {
        let traits =
            KeyTraits { uses_extra_ids: false, adapter: Adapter::Local(1), salt: Salt::Number(2) };
        for tokens_per_block in [1, 15, 16, 17, 32, 48, 64, 128, 255, 256, 257, 512] {
            let digester = KeyDigester::new(&traits, tokens_per_block);
            for blocks in 0..=BATCH_BLOCKS {
                // A weak generator will do: all bits of a token take part.
                let tokens: Vec<i32> = (0..(blocks * tokens_per_block) as i32)
                    .map(|index| index.wrapping_mul(0x5851_f42d).rotate_left(index as u32 % 32))
                    .collect();
                let mut digests = vec![[0; 32]; blocks];
                digester.digest_batch(&tokens, &mut digests);
                let one_by_one: Vec<KeyDigest> = tokens
                    .chunks(tokens_per_block)
                    .map(|block| {
                        let bytes: Vec<u8> =
                            block.iter().flat_map(|token| token.to_le_bytes()).collect();
                        blake3::keyed_hash(&digester.hash_keys[0], &bytes).into()
                    })
                    .collect();
                assert_eq!(digests, one_by_one, "{blocks} blocks of {tokens_per_block}");
            }
        }
    }
}
