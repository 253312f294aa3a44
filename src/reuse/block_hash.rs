//! The 64-bit block hash of the batch manager, bit for bit, so that events and hints match.
//!
//! Guards nothing: the hash is not cryptographic, and anybody can make two blocks share one. It
//! serves routers; identity is the business of [`super::Name`].

use super::multimodal::MmKeys;

/// Hash of the root, the parent of each first block.
pub(super) const ROOT: u64 = 0;

const GOLDEN: u32 = 0x9e37_79b9;

/// Spreads a 32-bit value into `seed`.
fn mix32(mut value: u32, seed: u64) -> u64 {
    for _ in 0..2 {
        value = ((value >> 16) ^ value).wrapping_mul(0x045d_9f3b);
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

fn combine(value: u64, seed: u64) -> u64 {
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

/// The hash of a block whose parent's hash is `parent`.
pub(super) fn block_hash(parent: u64, block: &HashInput<'_>) -> u64 {
    let mut seed = block.tokens.len() as u64 ^ parent.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    // Later blocks inherit the salt through their parent.
    if let (ROOT, Some(salt)) = (parent, block.salt) {
        seed = mix64(salt, seed);
    }
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
    if let Some(lora_id) = block.lora_id {
        seed = mix64(lora_id, seed);
    }
    for key in block.mm_keys.iter() {
        for word in key.item_hash.chunks_exact(4) {
            let word = u32::from_le_bytes(word.try_into().expect("chunks of four bytes"));
            seed = mix32(word, seed);
        }
        seed = mix64(key.offset, seed);
    }
    seed
}
