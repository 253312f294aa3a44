//! `kvh_sequence_t`: what a request's tokens mean for reuse.

use super::args::{self, Params};
use super::guard;
use super::handle::{self, Handle, Owned};
use super::status::kvh_status::{self, *};
use super::status::{kvh_status_t, CallResult};
use super::types::kvh_bytes_t;
use crate::poison::{Poison, Poisonable};
use crate::reuse::{MmItem, ReuseError, Sequence, SequenceParams};

/// The blocks of a request: its tokens, cut into blocks, each with a 64-bit hash (for routers and
/// events) and a 32-byte content name (its identity here and on other workers), computed once.
/// Calls that take it as const may be made concurrently; kvh_sequence_append is the only other one.
pub struct kvh_sequence_t {
    _opaque: [u8; 0],
}

/// A sequence and what a panic inside it leaves behind.
pub struct SequenceObject {
    pub(crate) sequence: Sequence,
    poison: Poison,
}

impl Poisonable for SequenceObject {
    fn poison(&self) -> &Poison {
        &self.poison
    }
}

impl Handle for kvh_sequence_t {
    type Object = SequenceObject;
}
impl Owned for kvh_sequence_t {}

/// The sequence behind a handle that is another object's argument.
///
/// # Safety
/// `sequence` is NULL or a live sequence, and stays so for `'a`.
pub(crate) unsafe fn borrowed<'a>(
    sequence: *const kvh_sequence_t,
) -> Result<&'a Sequence, kvh_status> {
    // SAFETY: the caller's promise.
    let object = unsafe { handle::get(sequence) }?;
    if object.poison.is_set() {
        return Err(KVH_ERR_POISONED);
    }
    Ok(&object.sequence)
}

impl From<ReuseError> for kvh_status {
    fn from(error: ReuseError) -> Self {
        match error {
            ReuseError::NoFreeBlock { .. } => KVH_BUSY,
            ReuseError::Limit { .. } => KVH_ERR_LIMIT,
            ReuseError::NoMemory => KVH_ERR_NO_MEMORY,
            ReuseError::NotLive | ReuseError::Finished | ReuseError::BlockState { .. } => {
                KVH_ERR_STATE
            }
            ReuseError::TokensPerBlock { .. }
            | ReuseError::ExtraIds { .. }
            | ReuseError::MultimodalRun { .. }
            | ReuseError::DigestWithoutLora
            | ReuseError::UnknownWindow { .. }
            | ReuseError::BadWindow { .. }
            | ReuseError::OtherBlockSize { .. }
            | ReuseError::BadRange { .. }
            | ReuseError::Priority { .. }
            | ReuseError::RetentionRange { .. }
            | ReuseError::UnknownBlock { .. }
            | ReuseError::TokenCount { .. }
            | ReuseError::Placeholder => KVH_ERR_INVALID_ARGUMENT,
        }
    }
}

/// flags: lora_id is set.
pub const KVH_SEQUENCE_HAS_LORA: u32 = 1;
/// flags: salt is set.
pub const KVH_SEQUENCE_HAS_SALT: u32 = 2;
/// flags: every token has an extra id, also those appended later.
pub const KVH_SEQUENCE_HAS_EXTRA_IDS: u32 = 4;

const ALL_FLAGS: u32 = KVH_SEQUENCE_HAS_LORA | KVH_SEQUENCE_HAS_SALT | KVH_SEQUENCE_HAS_EXTRA_IDS;

/// A run of a multimodal item: the tokens start .. start + length of the sequence. An item may have
/// several runs. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_mm_item_t {
    /// What the item is.
    pub hash: [u8; 32],
    /// First token of the run, counted from the sequence's first.
    pub start: u32,
    /// Tokens of the run, not 0.
    pub length: u32,
    /// Place inside the item of the run's first token.
    pub item_offset: u32,
}

/// A block's content name. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_name_t {
    /// A state of SHA-256.
    pub bytes: [u8; 32],
}

/// What a sequence is made from. Everything is copied.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvh_sequence_params_t {
    /// sizeof(kvh_sequence_params_t).
    pub struct_size: usize,
    /// Tokens in a full block: 1 .. 65536.
    pub tokens_per_block: u32,
    /// KVH_SEQUENCE_HAS_*.
    pub flags: u32,
    /// The first tokens; more can be appended.
    pub tokens: *const i32,
    /// How many.
    pub token_count: usize,
    /// With KVH_SEQUENCE_HAS_EXTRA_IDS token_count of them, else NULL.
    pub extra_ids: *const u64,
    /// The LoRA adapter as this host numbers it; 0 without KVH_SEQUENCE_HAS_LORA.
    pub lora_id: u64,
    /// Feeds the block hash; 0 without KVH_SEQUENCE_HAS_SALT. A bare number tells blocks apart but
    /// can be guessed: it does not isolate tenants. salt_bytes do.
    pub salt: u64,
    /// Runs of multimodal items within the tokens; they must not overlap.
    pub mm_items: *const kvh_mm_item_t,
    /// How many.
    pub mm_item_count: usize,
    /// What names are unique in: model and weight revision, KV dtype, position encoding; never the
    /// parallel layout. At most 65536 bytes, as the next two.
    pub namespace_bytes: kvh_bytes_t,
    /// The salt itself: feeds the names, instead of the number.
    pub salt_bytes: kvh_bytes_t,
    /// The LoRA adapter as all workers know it: feeds the names, instead of lora_id. Blocks with an
    /// adapter but no digest are never served to peers. Needs KVH_SEQUENCE_HAS_LORA.
    pub adapter_digest: kvh_bytes_t,
}

// SAFETY: repr(C), struct_size first, only integers, raw pointers and structs of these.
unsafe impl Params for kvh_sequence_params_t {
    const MIN_SIZE: usize = size_of::<Self>();
}

/// A value that must be 0 unless its flag is set.
fn flagged(flags: u32, flag: u32, value: u64) -> Result<Option<u64>, kvh_status> {
    match (flags & flag != 0, value) {
        (true, value) => Ok(Some(value)),
        (false, 0) => Ok(None),
        (false, _) => Err(KVH_ERR_INVALID_ARGUMENT),
    }
}

/// # Safety
/// As for [`args::slice`].
unsafe fn mm_items(items: *const kvh_mm_item_t, count: usize) -> Result<Vec<MmItem>, kvh_status> {
    // SAFETY: the caller's promise.
    let items = unsafe { args::slice(items, count) }?;
    let mut copies = Vec::new();
    copies.try_reserve_exact(items.len())?;
    copies.extend(items.iter().map(|item| MmItem {
        hash: item.hash,
        start: item.start,
        length: item.length,
        item_offset: item.item_offset,
    }));
    Ok(copies)
}

/// Creates a sequence. Destroy it with kvh_sequence_destroy. KVH_ERR_INVALID_ARGUMENT: no
/// tokens_per_block, an unknown flag, a value without its flag, a multimodal run that is empty,
/// overlaps another or is not within the tokens. KVH_ERR_LIMIT: too many tokens or bytes.
///
/// # Safety
/// `params` points at a parameter struct whose arrays are as long as it says; `sequence_out` at a
/// writable pointer.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_create(
    params: *const kvh_sequence_params_t,
    sequence_out: *mut *mut kvh_sequence_t,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise, here and for the arrays below.
        let params = unsafe { args::read_params(params) }?;
        // SAFETY: as above.
        let sequence_out = unsafe { args::out(sequence_out) }?;
        let flags = params.flags;
        if flags & !ALL_FLAGS != 0 {
            return Err(KVH_ERR_INVALID_ARGUMENT);
        }
        let has_extra_ids = flags & KVH_SEQUENCE_HAS_EXTRA_IDS != 0;
        if !has_extra_ids && !params.extra_ids.is_null() {
            return Err(KVH_ERR_INVALID_ARGUMENT);
        }
        // SAFETY: as above.
        let sequence = unsafe {
            let extra_ids = if has_extra_ids {
                Some(args::slice(params.extra_ids, params.token_count)?)
            } else {
                None
            };
            Sequence::new(&SequenceParams {
                tokens_per_block: params.tokens_per_block as usize,
                namespace: args::bytes(params.namespace_bytes)?,
                tokens: args::slice(params.tokens, params.token_count)?,
                extra_ids,
                lora_id: flagged(flags, KVH_SEQUENCE_HAS_LORA, params.lora_id)?,
                adapter_digest: args::bytes(params.adapter_digest)?,
                salt: flagged(flags, KVH_SEQUENCE_HAS_SALT, params.salt)?,
                salt_bytes: args::bytes(params.salt_bytes)?,
                mm_items: &mm_items(params.mm_items, params.mm_item_count)?,
            })?
        };
        let object = SequenceObject { sequence, poison: Poison::default() };
        sequence_out.write(handle::give(object));
        Ok(())
    })
}

/// Appends tokens, with an extra id each where the sequence has them (else NULL), and the runs of
/// multimodal items within these tokens (start still counts from the sequence's first token).
/// Blocks that were full stay as they are and are not hashed again. Changes nothing on an error.
///
/// # Safety
/// `sequence` is a live sequence that nobody else uses during the call; the arrays are as long as
/// their counts say.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_append(
    sequence: *mut kvh_sequence_t,
    tokens: *const i32,
    extra_ids: *const u64,
    token_count: usize,
    mm_items: *const kvh_mm_item_t,
    mm_item_count: usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise, here and for the arrays below.
    let object = match unsafe { handle::get_mut(sequence) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    let SequenceObject { sequence, poison } = object;
    guard::with_object(poison, || {
        // SAFETY: as above.
        let (tokens, extra_ids, items) = unsafe {
            let extra_id_count = if extra_ids.is_null() { 0 } else { token_count };
            (
                args::slice(tokens, token_count)?,
                args::slice(extra_ids, extra_id_count)?,
                self::mm_items(mm_items, mm_item_count)?,
            )
        };
        Ok(sequence.append(tokens, extra_ids, &items)?)
    })
}

/// Tokens in the sequence; 0 for NULL.
///
/// # Safety
/// `sequence` is NULL or a live sequence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_token_count(sequence: *const kvh_sequence_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { borrowed(sequence) }.map_or(0, Sequence::token_count)
}

/// Blocks in the sequence, a partial tail included; 0 for NULL.
///
/// # Safety
/// `sequence` is NULL or a live sequence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_block_count(sequence: *const kvh_sequence_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { borrowed(sequence) }.map_or(0, Sequence::block_count)
}

/// 1 if blocks of the sequence may be served to peers, 0 if not: it has a LoRA adapter without a
/// digest that means the same everywhere. 0 for NULL.
///
/// # Safety
/// `sequence` is NULL or a live sequence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_is_servable(sequence: *const kvh_sequence_t) -> i32 {
    // SAFETY: the caller's promise.
    let is_servable = unsafe { borrowed(sequence) }.is_ok_and(Sequence::is_servable_to_peers);
    i32::from(is_servable)
}

/// The block hashes, the first block's first, a partial tail's last. The count is written on
/// KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it.
///
/// # Safety
/// `sequence` is a live sequence; `hashes` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_block_hashes(
    sequence: *const kvh_sequence_t,
    hashes: *mut u64,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    unsafe { copy_of_each_block(sequence, Sequence::block_hash, hashes, capacity, count_out) }
}

/// The content names, in the same order and by the same rules as kvh_sequence_block_hashes.
///
/// # Safety
/// `sequence` is a live sequence; `names` has room for `capacity` values; `count_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_block_names(
    sequence: *const kvh_sequence_t,
    names: *mut kvh_name_t,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    let name =
        |sequence: &Sequence, block| sequence.name(block).map(|name| kvh_name_t { bytes: name.0 });
    // SAFETY: the caller's promise.
    unsafe { copy_of_each_block(sequence, name, names, capacity, count_out) }
}

/// # Safety
/// `sequence` is NULL or a live sequence; for the rest as for [`args::copy_out`].
unsafe fn copy_of_each_block<T: Copy>(
    sequence: *const kvh_sequence_t,
    value: impl Fn(&Sequence, usize) -> Option<T>,
    buffer: *mut T,
    capacity: usize,
    count_out: *mut usize,
) -> kvh_status_t {
    // SAFETY: the caller's promise.
    let object = match unsafe { handle::get(sequence) } {
        Ok(object) => object,
        Err(status) => return status as kvh_status_t,
    };
    guard::with_object(object, || -> CallResult {
        let blocks = 0..object.sequence.block_count();
        let mut values = Vec::new();
        values.try_reserve_exact(blocks.len())?;
        values.extend(blocks.filter_map(|block| value(&object.sequence, block)));
        // SAFETY: the caller's promise.
        unsafe { args::copy_out(&values, buffer, capacity, count_out) }
    })
}

/// Destroys the sequence. NULL is fine. What a tree stored of it stays.
///
/// # Safety
/// `sequence` is NULL or a live sequence, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_sequence_destroy(sequence: *mut kvh_sequence_t) {
    // SAFETY: the caller's promise.
    guard::quietly(|| drop(unsafe { handle::take(sequence) }));
}
