//! A block's key: the five parts that make two blocks the same, and how far two keys agree.

use std::collections::TryReserveError;
use std::sync::Arc;

use super::multimodal::MmKeys;

/// Which adapter a block's KV was computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adapter {
    /// None: the base model.
    None,
    /// A LoRA id that means something on this host only.
    Local(u64),
    /// An adapter known everywhere, by the digest of the digest that the host gave.
    Global([u8; 32]),
}

/// What keeps the blocks of one tenant from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Salt {
    /// Nothing.
    None,
    /// A bare number: tells names apart, but anybody can guess it.
    Number(u64),
    /// The digest of the salt's bytes.
    Bytes([u8; 32]),
}

/// The parts of a key that all blocks of one sequence share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyTraits {
    pub(super) uses_extra_ids: bool,
    pub(super) adapter: Adapter,
    pub(super) salt: Salt,
}

/// A multimodal item, or a run of it, as one block sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MmKey {
    pub(super) item_hash: [u8; 32],
    /// Place inside the item of the first token that this block covers.
    pub(super) offset: u64,
}

/// A key that a sequence lends for a comparison.
#[derive(Debug)]
pub(super) struct KeyView<'a> {
    pub(super) traits: &'a KeyTraits,
    pub(super) tokens: &'a [i32],
    pub(super) extra_ids: Option<&'a [u64]>,
    pub(super) mm_keys: MmKeys<'a>,
}

/// A key that the tree keeps with a block.
#[derive(Debug)]
pub(super) struct BlockKey {
    traits: Arc<KeyTraits>,
    tokens: Box<[i32]>,
    extra_ids: Option<Box<[u64]>>,
    mm_keys: Box<[MmKey]>,
}

impl BlockKey {
    /// A copy of what a sequence lends; its traits are shared with the sequence.
    pub(super) fn copy(
        view: &KeyView<'_>,
        traits: Arc<KeyTraits>,
    ) -> Result<Self, TryReserveError> {
        let mut mm_keys = Vec::new();
        mm_keys.try_reserve_exact(view.mm_keys.count())?;
        mm_keys.extend(view.mm_keys.iter());
        Ok(Self {
            traits,
            tokens: boxed(view.tokens)?,
            extra_ids: view.extra_ids.map(boxed).transpose()?,
            mm_keys: mm_keys.into_boxed_slice(),
        })
    }

    pub(super) fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// How many leading tokens the two keys share; 0 unless all other parts are equal.
    pub(super) fn common_head(&self, other: &KeyView<'_>) -> usize {
        let has_same_keys = || self.mm_keys.iter().copied().eq(other.mm_keys.iter());
        if *self.traits != *other.traits || !has_same_keys() {
            return 0;
        }
        let tokens = equal_head(&self.tokens, other.tokens);
        match (&self.extra_ids, other.extra_ids) {
            (Some(ours), Some(theirs)) => equal_head(&ours[..tokens], &theirs[..tokens]),
            // Traits are equal: neither uses extra ids.
            _ => tokens,
        }
    }
}

fn equal_head<T: PartialEq>(left: &[T], right: &[T]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// A copy, for which memory is asked.
pub(super) fn boxed<T: Copy>(values: &[T]) -> Result<Box<[T]>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len())?;
    copy.extend_from_slice(values);
    Ok(copy.into_boxed_slice())
}
