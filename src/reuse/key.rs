//! A block's key: the five parts that make two blocks the same.

use std::collections::TryReserveError;

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

/// A copy, for which memory is asked.
pub(super) fn boxed<T: Copy>(values: &[T]) -> Result<Box<[T]>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len())?;
    copy.extend_from_slice(values);
    Ok(copy.into_boxed_slice())
}
