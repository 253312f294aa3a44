//! Names and hashes of plain full blocks on processors with SHA instructions, both at once.
//!
//! Each is a chain whose steps wait for one another: SHA-256 leaves most of the processor idle, and
//! so does the block hash. In one stream of instructions the hash costs almost nothing.
//! Guards: the same results as `content_name` and `block_hash`, which know every kind of block and
//! run everywhere. Never does: decide which blocks are plain.

use super::content_name::Name;
use super::key_digest::KeyDigest;

/// A run of blocks that have all their tokens, no extra ids and no multimodal keys.
pub(super) struct PlainRun<'a> {
    pub(super) parent_name: Name,
    pub(super) parent_hash: u64,
    pub(super) tokens: &'a [i32],
    pub(super) tokens_per_block: usize,
    /// One for each block.
    pub(super) key_digests: &'a [KeyDigest],
    pub(super) lora_id: Option<u64>,
    pub(super) salt: Option<u64>,
}

/// Calls `each` with the identities of all blocks of the run, in order, and answers true; or answers
/// false and does nothing: this processor, or this block size, is not for this file.
pub(super) fn identify(run: &PlainRun<'_>, each: impl FnMut(Name, u64)) -> bool {
    #[cfg(target_arch = "x86_64")]
    if has_instructions() {
        // SAFETY: the processor has the instructions that the functions are compiled for.
        unsafe {
            match run.tokens_per_block {
                16 => x86::identify::<16>(run, each),
                32 => x86::identify::<32>(run, each),
                64 => x86::identify::<64>(run, each),
                128 => x86::identify::<128>(run, each),
                256 => x86::identify::<256>(run, each),
                _ => return false,
            }
        }
        return true;
    }
    let _ = (run, each);
    false
}

#[cfg(target_arch = "x86_64")]
fn has_instructions() -> bool {
    is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1")
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::content_name::BEFORE_NAME;
    use super::super::{block_hash, work_count};
    use super::{KeyDigest, Name, PlainRun};
    use std::arch::x86_64::*;

    /// The round constants of SHA-256 (FIPS 180-4, 4.2.2).
    const ROUND_CONSTANTS: [[u32; 4]; 16] = [
        [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
        [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
        [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
        [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
        [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
        [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
        [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
        [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
        [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
        [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
        [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
        [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
        [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
        [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
        [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
        [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
    ];

    /// SHA-256's state as the instructions want it: its words `a b e f` and `c d g h`, the first in
    /// the highest place.
    type State = [__m128i; 2];

    /// A name as eight words of a message, the first in the lowest place.
    type NameWords = [__m128i; 2];

    #[target_feature(enable = "sha,sse4.1")]
    pub(super) fn identify<const TOKENS: usize>(
        run: &PlainRun<'_>,
        mut each: impl FnMut(Name, u64),
    ) {
        let mut parent = from_bytes(&run.parent_name.0);
        let mut parent_hash = run.parent_hash;
        for (tokens, key_digest) in run.tokens.as_chunks::<TOKENS>().0.iter().zip(run.key_digests) {
            let seed = block_hash::begin(parent_hash, TOKENS, run.salt);
            let (name, seed) = step(parent, key_digest, seed, tokens);
            parent_hash = block_hash::end(seed, run.lora_id);
            parent = name;
            work_count::names(1);
            each(to_name(name), parent_hash);
        }
    }

    /// One step of the chain of names, and all tokens of the block hash.
    #[inline]
    #[target_feature(enable = "sha,sse4.1")]
    fn step<const TOKENS: usize>(
        parent: NameWords,
        key_digest: &KeyDigest,
        mut seed: u64,
        tokens: &[i32; TOKENS],
    ) -> (NameWords, u64) {
        const { assert!(TOKENS.is_power_of_two() && TOKENS >= 16) };
        let four =
            |at: usize| _mm_set_epi32(tokens[at + 3], tokens[at + 2], tokens[at + 1], tokens[at]);
        let digest_words = from_bytes(key_digest);
        let mut schedule = [parent[0], parent[1], digest_words[0], digest_words[1]];
        let before = before_name();
        let mut state = before;
        let mut scrambled = [0; 4];
        // Four rounds of SHA-256, and a sixteenth of the tokens. Macros, because the compiler must
        // see all sixteen in a row to keep everything in registers.
        macro_rules! four_rounds {
            ($($index:literal)*) => {$({
                let [a, b, c, d] = ROUND_CONSTANTS[$index].map(|constant| constant as i32);
                let words = _mm_add_epi32(schedule[$index % 4], _mm_set_epi32(d, c, b, a));
                let [abef, cdgh] = state;
                let new_abef = _mm_sha256rnds2_epu32(cdgh, abef, words);
                let upper_words = _mm_shuffle_epi32(words, 0b1110);
                state = [_mm_sha256rnds2_epu32(abef, new_abef, upper_words), new_abef];
                for token in $index * TOKENS / 16..($index + 1) * TOKENS / 16 {
                    if token % 4 == 0 {
                        scrambled = scramble(four(token));
                    }
                    seed = block_hash::combine(u64::from(scrambled[token % 4]), seed);
                }
                (state, seed) = together(state, seed);
            })*};
        }
        macro_rules! four_rounds_and_more_words {
            ($($index:literal)*) => {$(
                four_rounds!($index);
                schedule[$index % 4] = more_words(&schedule, $index);
            )*};
        }
        four_rounds_and_more_words!(0 1 2 3 4 5 6 7 8 9 10 11);
        four_rounds!(12 13 14 15);
        for (half, before) in state.iter_mut().zip(before) {
            *half = _mm_add_epi32(*half, before);
        }
        (words_of(state), seed)
    }

    /// Both chains, unchanged. The compiler sees one place that needs both of them, so it leaves them
    /// interleaved; by itself it puts all of one before all of the other, too far apart for the
    /// processor to run them side by side.
    #[inline]
    #[target_feature(enable = "sha,sse4.1")]
    fn together([mut abef, mut cdgh]: State, mut seed: u64) -> (State, u64) {
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!(
                "/* {0} {1} {2} */", inout(xmm_reg) abef, inout(xmm_reg) cdgh, inout(reg) seed,
                options(nomem, nostack, preserves_flags),
            );
        }
        ([abef, cdgh], seed)
    }

    /// The four words of the message schedule that come sixteen after those at `index`.
    #[inline]
    #[target_feature(enable = "sha,sse4.1")]
    fn more_words(schedule: &[__m128i; 4], index: usize) -> __m128i {
        let [now, next, third, last] = [0, 1, 2, 3].map(|ahead| schedule[(index + ahead) % 4]);
        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, next), _mm_alignr_epi8(last, third, 4));
        _mm_sha256msg2_epu32(sum, last)
    }

    /// What the block hash makes of each of four tokens before it combines them.
    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn scramble(mut tokens: __m128i) -> [u32; 4] {
        let folded = |words| _mm_xor_si128(_mm_srli_epi32(words, 16), words);
        let factor = _mm_set1_epi32(block_hash::SCRAMBLE_FACTOR as i32);
        for _ in 0..2 {
            tokens = _mm_mullo_epi32(folded(tokens), factor);
        }
        tokens = _mm_add_epi32(folded(tokens), _mm_set1_epi32(block_hash::GOLDEN as i32));
        let [low, high] = [_mm_cvtsi128_si64(tokens), _mm_extract_epi64(tokens, 1)];
        [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
    }

    /// Turns four words between little-endian and big-endian.
    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn swap_bytes(words: __m128i) -> __m128i {
        let order = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        _mm_shuffle_epi8(words, order)
    }

    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn before_name() -> State {
        let word = |index: usize| BEFORE_NAME[index] as i32;
        let half = |first: usize| {
            _mm_set_epi32(word(first), word(first + 1), word(first + 4), word(first + 5))
        };
        [half(0), half(2)]
    }

    /// The words of a state in their order, the first in the lowest place.
    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn words_of([abef, cdgh]: State) -> NameWords {
        let (feba, dchg) =
            (_mm_shuffle_epi32(abef, 0b00_01_10_11), _mm_shuffle_epi32(cdgh, 0b10_11_00_01));
        [_mm_blend_epi16(feba, dchg, 0b1111_0000), _mm_alignr_epi8(dchg, feba, 8)]
    }

    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn from_bytes(bytes: &[u8; 32]) -> NameWords {
        let words = bytes.as_chunks::<8>().0;
        let half = |first: usize| {
            let [low, high] = [0, 1].map(|next| i64::from_le_bytes(words[first + next]));
            swap_bytes(_mm_set_epi64x(high, low))
        };
        [half(0), half(2)]
    }

    #[inline]
    #[target_feature(enable = "sse4.1")]
    fn to_name(words: NameWords) -> Name {
        let mut name = [0; 32];
        for (bytes, half) in name.as_chunks_mut::<16>().0.iter_mut().zip(words) {
            let half = swap_bytes(half);
            bytes[..8].copy_from_slice(&_mm_cvtsi128_si64(half).to_le_bytes());
            bytes[8..].copy_from_slice(&_mm_extract_epi64(half, 1).to_le_bytes());
        }
        Name(name)
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::super::sequence::{Sequence, SequenceParams};
    use super::*;
    use crate::reuse::MmItem;

    /// The same blocks the other way: one at a time, by the parts that know every kind of block.
    fn plainly(sequence: &Sequence) -> Vec<(Name, u64)> {
        let mut one_by_one = Vec::new();
        for block in 0..sequence.full_block_count() {
            one_by_one.push(sequence.identified_again(block));
        }
        one_by_one
    }

    fn fast(sequence: &Sequence) -> Vec<(Name, u64)> {
        let names = sequence.names().iter().copied();
        names.zip(sequence.block_hashes().iter().copied()).collect()
    }

    #[test]
    fn both_ways_come_to_the_same() {
        if !has_instructions() {
            println!("SKIPPED both_ways_come_to_the_same: this processor has no SHA instructions");
            return;
        }
        // A weak generator will do: all bits of a token take part.
        let tokens: Vec<i32> = (0_i32..3000)
            .map(|index| index.wrapping_mul(0x5851_f42d).rotate_left(index as u32 % 32) ^ -7)
            .collect();
        for tokens_per_block in [16, 20, 32, 48, 64, 128, 256, 512] {
            for (lora_id, salt) in [(None, None), (Some(u64::MAX), None), (Some(0), Some(77))] {
                for mm_items in
                    [&[][..], &[MmItem { hash: [9; 32], start: 700, length: 300, item_offset: 1 }]]
                {
                    let params = SequenceParams {
                        tokens_per_block,
                        tokens: &tokens,
                        lora_id,
                        salt,
                        mm_items,
                        ..Default::default()
                    };
                    let sequence = Sequence::new(&params).expect("a good sequence");
                    assert_eq!(fast(&sequence), plainly(&sequence), "{tokens_per_block}");
                }
            }
        }
    }

    #[test]
    fn other_block_sizes_are_left_alone() {
        let run = PlainRun {
            parent_name: Name([0; 32]),
            parent_hash: 0,
            tokens: &[0; 40],
            tokens_per_block: 20,
            key_digests: &[[0; 32]; 2],
            lora_id: None,
            salt: None,
        };
        assert!(!identify(&run, |_, _| panic!("nothing was to be done")));
    }
}
