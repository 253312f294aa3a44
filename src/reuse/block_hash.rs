//! The 64-bit block hash of the batch manager, bit for bit, so that events and hints match.
//!
//! Guards nothing: the hash is not cryptographic, and anybody can make two blocks share one. It
//! serves routers; identity is the business of [`super::Name`].

use super::multimodal::MmKeys;

/// Hash of the root, the parent of each first block.
pub(super) const ROOT: u64 = 0;

pub(super) const GOLDEN: u32 = 0x9e37_79b9;
pub(super) const SCRAMBLE_FACTOR: u32 = 0x045d_9f3b;

/// Spreads a 32-bit value into `seed`.
fn mix32(mut value: u32, seed: u64) -> u64 {
    for _ in 0..2 {
        value = ((value >> 16) ^ value).wrapping_mul(SCRAMBLE_FACTOR);
    }
    value = ((value >> 16) ^ value).wrapping_add(GOLDEN);
    combine(u64::from(value), seed)
}

/// Spreads a 64-bit value into `seed`.
fn mix64(mut value: u64, seed: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^= value >> 31;
    combine(value.wrapping_add(u64::from(GOLDEN)), seed)
}

/// The step of the hash that waits for the one before.
#[inline]
pub(super) fn combine(value: u64, seed: u64) -> u64 {
    seed ^ value.wrapping_add(seed << 6).wrapping_add(seed >> 2)
}

/// What of a block goes into its hash.
#[derive(Debug)]
pub(super) struct HashInput<'a> {
    pub(super) tokens: &'a [i32],
    /// As many as tokens, if the sequence uses extra ids.
    pub(super) extra_ids: Option<&'a [u64]>,
    pub(super) lora_id: Option<u64>,
    pub(super) salt: Option<u64>,
    pub(super) mm_keys: MmKeys<'a>,
}

/// The seed of a block of so many tokens, before its first one.
#[inline]
pub(super) fn begin(parent: u64, token_count: usize, salt: Option<u64>) -> u64 {
    let seed = token_count as u64 ^ parent.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    match (parent, salt) {
        (ROOT, Some(salt)) => mix64(salt, seed),
        // Later blocks inherit the salt through their parent.
        _ => seed,
    }
}

/// What follows the tokens, before multimodal keys.
#[inline]
pub(super) fn end(seed: u64, lora_id: Option<u64>) -> u64 {
    match lora_id {
        Some(lora_id) => mix64(lora_id, seed),
        None => seed,
    }
}

/// The hash of a block whose parent's hash is `parent`.
pub(super) fn block_hash(parent: u64, block: &HashInput<'_>) -> u64 {
    let mut seed = begin(parent, block.tokens.len(), block.salt);
    match block.extra_ids {
        None => {
            for token in block.tokens {
                seed = mix32(*token as u32, seed);
            }
        }
        Some(extra_ids) => {
            for (token, extra_id) in block.tokens.iter().zip(extra_ids) {
                seed = mix64(*extra_id, mix32(*token as u32, seed));
            }
        }
    }
    seed = end(seed, block.lora_id);
    for key in block.mm_keys.iter() {
        for word in key.item_hash.chunks_exact(4) {
            let word = u32::from_le_bytes(word.try_into().expect("chunks of four bytes"));
            seed = mix32(word, seed);
        }
        seed = mix64(key.offset, seed);
    }
    seed
}
