//! The prompts of a simulated fleet: a few, with common prefixes, and some that must not be fetched.

use kvhints::reuse::{Name, Sequence, SequenceParams};

use crate::random::SplitMix;

pub const TOKENS_PER_BLOCK: usize = 4;
pub const NAMESPACE: &[u8] = b"model@7";

/// Prompts that can be fetched come first.
const COMMON: usize = 6;

pub struct Prompts {
    sequences: Vec<Sequence>,
}

fn sequence(tokens: &[i32], namespace: &[u8], lora_id: Option<u64>) -> Sequence {
    Sequence::new(&SequenceParams {
        tokens_per_block: TOKENS_PER_BLOCK,
        namespace,
        tokens,
        extra_ids: None,
        lora_id,
        adapter_digest: &[],
        salt: None,
        salt_bytes: &[],
        mm_items: &[],
    })
    .unwrap()
}

impl Prompts {
    pub fn new() -> Self {
        let prefix: Vec<i32> = (0..12).collect();
        let mut sequences = Vec::new();
        for number in 0..COMMON as i32 {
            let own = (0..8 + 3 * number).map(|token| 1000 * (1 + number / 2) + token);
            let start = if number == 5 { 0 } else { prefix.len() };
            let tokens: Vec<i32> = prefix[..start].iter().copied().chain(own).collect();
            sequences.push(sequence(&tokens, NAMESPACE, None));
        }
        sequences.push(sequence(&prefix, NAMESPACE, Some(3)));
        sequences.push(sequence(&prefix, b"model@8", None));
        Self { sequences }
    }

    pub fn sequence(&self, prompt: usize) -> &Sequence {
        &self.sequences[prompt]
    }

    /// The names of the blocks that hold what a block of a prompt stands for: its own and, of a short
    /// one, those of all that begin with it.
    pub fn holding(&self, prompt: usize, block: usize) -> impl Iterator<Item = Name> + '_ {
        let wanted = &self.sequences[prompt];
        let is_short = block >= wanted.full_block_count();
        let above =
            move |sequence: &Sequence| block.checked_sub(1).map(|above| sequence.name(above));
        let begins = move |sequence: &Sequence| {
            let starts = sequence.block_tokens(block).starts_with(wanted.block_tokens(block));
            is_short && starts && above(sequence) == above(wanted)
        };
        let fitting = self.sequences[..COMMON].iter().filter(move |sequence| begins(sequence));
        let of_wanted = wanted.name(block);
        fitting.filter_map(move |sequence| sequence.name(block)).chain(of_wanted)
    }

    /// One that any worker may store.
    pub fn any_common(&self, rng: &mut SplitMix) -> usize {
        rng.below(COMMON)
    }

    /// One that somebody may want to fetch; seldom one that cannot be.
    pub fn any(&self, rng: &mut SplitMix) -> usize {
        match rng.below(40) {
            0 => COMMON,
            1 => COMMON + 1,
            _ => self.any_common(rng),
        }
    }
}
