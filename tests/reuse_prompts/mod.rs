//! Random prompts, small enough that they often share their beginnings, for tests that compare trees
//! with models.

use kvhints::reuse::{MmItem, Sequence, SequenceParams};
use proptest::prelude::*;

use crate::reuse_model::Key;

/// Tokens in a full block.
pub const BLOCK: usize = 2;

/// A prompt, small enough that prompts often share their beginnings.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub namespace: u8,
    pub lora: Option<u64>,
    pub salt: Option<u64>,
    pub tokens: Vec<i32>,
    pub extra_ids: Option<Vec<u64>>,
    /// (item, start, length).
    pub item: Option<(u8, usize, usize)>,
}

impl Prompt {
    pub fn sequence(&self) -> Sequence {
        let items: Vec<MmItem> = self
            .item
            .iter()
            .map(|(item, start, length)| MmItem {
                hash: [*item; 32],
                start: *start as u32,
                length: *length as u32,
                item_offset: 0,
            })
            .collect();
        Sequence::new(&SequenceParams {
            tokens_per_block: BLOCK,
            namespace: &[self.namespace],
            tokens: &self.tokens,
            extra_ids: self.extra_ids.as_deref(),
            lora_id: self.lora,
            salt: self.salt,
            mm_items: &items,
            ..Default::default()
        })
        .expect("a good prompt")
    }

    /// The key of a block, cut off after `max_tokens` of the prompt; none if nothing is left.
    pub fn key(&self, block: usize, max_tokens: usize) -> Option<Key> {
        let end = ((block + 1) * BLOCK).min(self.tokens.len()).min(max_tokens);
        let start = block * BLOCK;
        if start >= end {
            return None;
        }
        let covers = |(_, from, length): &(u8, usize, usize)| *from < end && from + length > start;
        let items = self.item.iter().filter(|item| covers(item));
        Some(Key {
            namespace: self.namespace,
            lora: self.lora,
            salt: self.salt,
            extra_ids: self.extra_ids.as_ref().map(|ids| ids[start..end].to_vec()),
            tokens: self.tokens[start..end].to_vec(),
            items: items
                .map(|(item, from, _)| (*item, start.saturating_sub(*from) as u64))
                .collect(),
        })
    }

    pub fn path(&self) -> Vec<Key> {
        (0..).map_while(|block| self.key(block, usize::MAX)).collect()
    }
}

pub fn prompts() -> impl Strategy<Value = Prompt> {
    let rarely = |value: u64| prop_oneof![14 => Just(None), 1 => Just(Some(value))];
    let token = prop_oneof![7 => Just(0), 1 => Just(1)];
    let tokens = (prop::collection::vec(token, 9), prop_oneof![1 => 0..4_usize, 3 => 4..10_usize])
        .prop_map(|(mut tokens, length)| {
            tokens.truncate(length);
            tokens
        });
    let item = prop::option::weighted(0.1, (0..2_u8, 0..9_usize, 1..4_usize));
    (prop_oneof![12 => Just(0_u8), 1 => Just(1)], rarely(7), rarely(9), tokens, rarely(0), item)
        .prop_map(|(namespace, lora, salt, tokens, extra_ids, item)| {
            let extra_ids =
                extra_ids.map(|_| tokens.iter().map(|token| *token as u64 / 2).collect());
            let item = item.filter(|(_, start, length)| start + length <= tokens.len());
            Prompt { namespace, lora, salt, tokens, extra_ids, item }
        })
}
