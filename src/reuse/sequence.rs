//! What a request's tokens mean for reuse: cut into blocks, hashed and named once, grown as tokens
//! and images are appended.
//!
//! A full block is hashed and named when its last token arrives. The partial tail changes with each
//! token, so its identity is computed when somebody asks for it.
//! Guards: sizes, and that an append that is refused changes nothing.

use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::block_hash::{self, HashInput};
use super::content_name::{self, Name};
use super::error::ReuseError;
use super::key::{self, Adapter, KeyTraits, KeyView, Salt};
use super::key_digest::{self, KeyDigest, KeyDigester, BATCH_BLOCKS};
use super::multimodal::{MmItem, MmRuns};
use super::sha_ni::{self, PlainRun};
use super::text_tail::TextTail;

/// Most tokens in one block.
pub const MAX_TOKENS_PER_BLOCK: usize = 65_536;
/// Most tokens in one sequence.
pub const MAX_TOKENS: usize = 1 << 28;
/// Longest namespace, salt and adapter digest.
pub const MAX_IDENTITY_BYTES: usize = 65_536;

/// What a sequence is made from. The default has no tokens and no blocks size: set that at least.
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceParams<'a> {
    /// Tokens in a full block, 1 to [`MAX_TOKENS_PER_BLOCK`].
    pub tokens_per_block: usize,
    /// Model and weight revision, KV dtype, position encoding; never the parallel layout.
    pub namespace: &'a [u8],
    /// The first tokens; more can be appended.
    pub tokens: &'a [i32],
    /// One for each token, for sequences that use them (an empty list where there are no tokens
    /// yet).
    pub extra_ids: Option<&'a [u64]>,
    /// The adapter, as this host numbers it.
    pub lora_id: Option<u64>,
    /// The adapter, as everybody knows it; empty: not known.
    pub adapter_digest: &'a [u8],
    /// Feeds the block hash. By itself it does not isolate tenants: it can be guessed.
    pub salt: Option<u64>,
    /// Feeds the names, for isolation; empty: names are told apart by `salt` only.
    pub salt_bytes: &'a [u8],
    /// Runs of multimodal items within `tokens`.
    pub mm_items: &'a [MmItem],
}

/// The two identities of a block.
#[derive(Debug, Clone, Copy)]
struct Identity {
    hash: u64,
    name: Name,
}

/// The blocks of a request. See the module.
pub struct Sequence {
    tokens_per_block: usize,
    namespace: Box<[u8]>,
    root: Name,
    traits: KeyTraits,
    key_digester: KeyDigester,
    lora_id: Option<u64>,
    salt: Option<u64>,
    tokens: Vec<i32>,
    extra_ids: Option<Vec<u64>>,
    mm_runs: MmRuns,
    /// Of full blocks.
    hashes: Vec<u64>,
    /// Shared with the ranges that were pinned for this sequence; copied when it grows meanwhile.
    names: Arc<Vec<Name>>,
    /// Of the partial tail, once asked for.
    tail: OnceLock<Identity>,
}

impl std::fmt::Debug for Sequence {
    /// Sizes only: prompts are nobody's business.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Sequence")
            .field("tokens_per_block", &self.tokens_per_block)
            .field("token_count", &self.token_count())
            .finish_non_exhaustive()
    }
}

impl Sequence {
    /// A sequence of the given tokens.
    pub fn new(params: &SequenceParams<'_>) -> Result<Self, ReuseError> {
        let tokens_per_block = params.tokens_per_block;
        if !(1..=MAX_TOKENS_PER_BLOCK).contains(&tokens_per_block) {
            return Err(ReuseError::TokensPerBlock { found: tokens_per_block });
        }
        for bytes in [params.namespace, params.adapter_digest, params.salt_bytes] {
            if bytes.len() > MAX_IDENTITY_BYTES {
                return Err(ReuseError::Limit {
                    what: "bytes of a namespace, salt or adapter digest",
                    limit: MAX_IDENTITY_BYTES,
                });
            }
        }
        let traits = KeyTraits {
            uses_extra_ids: params.extra_ids.is_some(),
            adapter: match (params.lora_id, params.adapter_digest) {
                (None, []) => Adapter::None,
                (None, _) => return Err(ReuseError::DigestWithoutLora),
                (Some(lora_id), []) => Adapter::Local(lora_id),
                (Some(_), digest) => Adapter::Global(key_digest::digest(digest)),
            },
            salt: match (params.salt, params.salt_bytes) {
                (None, []) => Salt::None,
                (Some(salt), []) => Salt::Number(salt),
                (_, bytes) => Salt::Bytes(key_digest::digest(bytes)),
            },
        };
        let mut sequence = Self {
            tokens_per_block,
            namespace: key::boxed(params.namespace)?,
            root: content_name::root(params.namespace, tokens_per_block as u32),
            key_digester: KeyDigester::new(&traits, tokens_per_block),
            traits,
            lora_id: params.lora_id,
            salt: params.salt,
            tokens: Vec::new(),
            extra_ids: params.extra_ids.map(|_| Vec::new()),
            mm_runs: MmRuns::new(tokens_per_block),
            hashes: Vec::new(),
            names: Arc::default(),
            tail: OnceLock::new(),
        };
        sequence.append(params.tokens, params.extra_ids.unwrap_or(&[]), params.mm_items)?;
        Ok(sequence)
    }

    /// Adds tokens, with one extra id each if the sequence uses them, and the runs of multimodal
    /// items within them. Full blocks that were there keep their identity and are not hashed again.
    pub fn append(
        &mut self,
        tokens: &[i32],
        extra_ids: &[u64],
        mm_items: &[MmItem],
    ) -> Result<(), ReuseError> {
        let old_count = self.tokens.len();
        if tokens.len() > MAX_TOKENS - old_count {
            return Err(ReuseError::Limit { what: "tokens of a sequence", limit: MAX_TOKENS });
        }
        let expected = if self.extra_ids.is_some() { tokens.len() } else { 0 };
        if extra_ids.len() != expected {
            return Err(ReuseError::ExtraIds { expected, found: extra_ids.len() });
        }
        let new_count = old_count + tokens.len();
        let by_start = MmRuns::check(mm_items, old_count..new_count)?;

        // All memory first: from here on nothing fails.
        let new_blocks = new_count / self.tokens_per_block - self.names.len();
        self.tokens.try_reserve(tokens.len())?;
        if let Some(all) = &mut self.extra_ids {
            all.try_reserve(extra_ids.len())?;
        }
        self.mm_runs.try_reserve(mm_items.len())?;
        self.hashes.try_reserve(new_blocks)?;
        self.own_names(new_blocks)?;

        if let Some(all) = &mut self.extra_ids {
            all.extend_from_slice(extra_ids);
        }
        self.mm_runs.extend(mm_items, &by_start);
        self.tail = OnceLock::new();
        // A few blocks at a time, which are hashed while the copy is near.
        for tokens in tokens.chunks(BATCH_BLOCKS * self.tokens_per_block) {
            self.tokens.extend_from_slice(tokens);
            self.identify_full_blocks();
        }
        Ok(())
    }

    /// Makes the names this sequence's alone, with room for more.
    fn own_names(&mut self, additional: usize) -> Result<(), ReuseError> {
        if additional == 0 {
            return Ok(());
        }
        if let Some(names) = Arc::get_mut(&mut self.names) {
            return Ok(names.try_reserve(additional)?);
        }
        let mut names = Vec::new();
        names.try_reserve(self.names.len() + additional)?;
        names.extend_from_slice(&self.names);
        self.names = Arc::new(names);
        Ok(())
    }

    /// The sequence of the first `token_count` tokens, at most all; its last block may be one's head.
    pub(super) fn prefix(&self, token_count: usize) -> Result<Self, ReuseError> {
        let token_count = token_count.min(self.tokens.len());
        let full_blocks = token_count / self.tokens_per_block;
        Ok(Self {
            tokens_per_block: self.tokens_per_block,
            namespace: key::boxed(&self.namespace)?,
            root: self.root,
            key_digester: self.key_digester.clone(),
            traits: self.traits,
            lora_id: self.lora_id,
            salt: self.salt,
            tokens: key::boxed(&self.tokens[..token_count])?.into_vec(),
            extra_ids: match &self.extra_ids {
                Some(ids) => Some(key::boxed(&ids[..token_count])?.into_vec()),
                None => None,
            },
            // Runs beyond the last token cover none of the blocks.
            mm_runs: self.mm_runs.copied()?,
            hashes: key::boxed(&self.hashes[..full_blocks])?.into_vec(),
            names: Arc::new(key::boxed(&self.names[..full_blocks])?.into_vec()),
            tail: OnceLock::new(),
        })
    }

    /// Tokens in a full block.
    pub fn tokens_per_block(&self) -> usize {
        self.tokens_per_block
    }

    /// Tokens in all.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Blocks in all; a partial tail counts.
    pub fn block_count(&self) -> usize {
        self.tokens.len().div_ceil(self.tokens_per_block)
    }

    /// Blocks that have all their tokens.
    pub fn full_block_count(&self) -> usize {
        self.names.len()
    }

    /// The hashes of the full blocks; [`Sequence::block_hash`] knows the partial tail's too.
    pub fn block_hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The names of the full blocks; [`Sequence::name`] knows the partial tail's too.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// The hash of a block, full or the partial tail.
    pub fn block_hash(&self, block: usize) -> Option<u64> {
        self.hashes.get(block).copied().or_else(|| self.tail(block).map(|tail| tail.hash))
    }

    /// The name of a block, full or the partial tail.
    pub fn name(&self, block: usize) -> Option<Name> {
        self.names.get(block).copied().or_else(|| self.tail(block).map(|tail| tail.name))
    }

    /// The tokens of a block; none beyond the last.
    pub fn block_tokens(&self, block: usize) -> &[i32] {
        &self.tokens[self.token_range(block)]
    }

    /// What the host gave as namespace.
    pub fn namespace(&self) -> &[u8] {
        &self.namespace
    }

    /// Whether another worker would mean the same by these names: not with an adapter that only
    /// this host knows.
    pub fn is_servable_to_peers(&self) -> bool {
        !matches!(self.traits.adapter, Adapter::Local(_))
    }

    /// The short last block, for peers that hold a longer one which begins with it. `None` where there
    /// is none, where it is not of text alone, and where its name means nothing to others.
    pub fn text_tail(&self) -> Result<Option<TextTail>, TryReserveError> {
        let full_blocks = self.full_block_count();
        let key = self.key(full_blocks, self.tokens_per_block);
        let is_text = key.extra_ids.is_none() && key.mm_keys.count() == 0;
        if key.tokens.is_empty() || !is_text || !self.is_servable_to_peers() {
            return Ok(None);
        }
        let parent = full_blocks.checked_sub(1).map_or(self.root, |last| self.names[last]);
        let mut tokens = Vec::new();
        tokens.try_reserve_exact(key.tokens.len())?;
        tokens.extend_from_slice(key.tokens);
        Ok(Some(TextTail::of(parent, &self.traits, tokens)))
    }

    /// The names of the full blocks, to keep while the sequence grows or goes.
    pub(super) fn shared_names(&self) -> Arc<Vec<Name>> {
        Arc::clone(&self.names)
    }

    /// What all keys of the sequence have in common.
    pub(super) fn traits(&self) -> &KeyTraits {
        &self.traits
    }

    /// The name that the first block has as its parent's.
    pub(super) fn root(&self) -> Name {
        self.root
    }

    /// The key of a block, cut off after `max_tokens` of its tokens.
    pub(super) fn key(&self, block: usize, max_tokens: usize) -> KeyView<'_> {
        let range = self.token_range(block);
        self.key_of(range.start..range.end.min(range.start.saturating_add(max_tokens)))
    }

    fn token_range(&self, block: usize) -> Range<usize> {
        let count = self.tokens.len();
        let start = block.saturating_mul(self.tokens_per_block).min(count);
        start..(start + self.tokens_per_block).min(count)
    }

    fn key_of(&self, range: Range<usize>) -> KeyView<'_> {
        KeyView {
            traits: &self.traits,
            tokens: &self.tokens[range.clone()],
            extra_ids: self.extra_ids.as_deref().map(|ids| &ids[range.clone()]),
            mm_keys: self.mm_runs.keys(range),
        }
    }

    /// Computes the identities of full blocks that have none.
    fn identify_full_blocks(&mut self) {
        let full_blocks = self.tokens.len() / self.tokens_per_block;
        while self.names.len() < full_blocks {
            let block = self.names.len();
            let covered = self.mm_runs.next_covered(block * self.tokens_per_block);
            let plain_end = match (&self.extra_ids, covered) {
                (Some(_), _) => block,
                (None, Some(token)) => full_blocks.min(token / self.tokens_per_block),
                (None, None) => full_blocks,
            };
            if plain_end > block {
                self.identify_plain(block..plain_end.min(block + BATCH_BLOCKS));
            } else {
                let identity = self.identify(block);
                self.add(identity);
            }
        }
    }

    /// Computes the identities of a few full blocks that are tokens and nothing else.
    fn identify_plain(&mut self, blocks: Range<usize>) {
        let size = self.tokens_per_block;
        let tokens = &self.tokens[blocks.start * size..blocks.end * size];
        let mut key_digests = [[0; 32]; BATCH_BLOCKS];
        let key_digests = &mut key_digests[..blocks.len()];
        self.key_digester.digest_batch(tokens, key_digests);
        let (parent_hash, parent_name) = self.parent(blocks.start);
        let run = PlainRun {
            parent_name,
            parent_hash,
            tokens,
            tokens_per_block: size,
            key_digests,
            lora_id: self.lora_id,
            salt: self.salt,
        };
        // `own_names` saw to it that nobody shares them.
        let names = Arc::make_mut(&mut self.names);
        let is_done = sha_ni::identify(&run, |name, hash| {
            self.hashes.push(hash);
            names.push(name);
        });
        if !is_done {
            for (block, key_digest) in blocks.zip(key_digests) {
                let identity = self.identify_with(block, key_digest);
                self.add(identity);
            }
        }
    }

    fn add(&mut self, Identity { hash, name }: Identity) {
        self.hashes.push(hash);
        // `own_names` saw to it that nobody shares them.
        Arc::make_mut(&mut self.names).push(name);
    }

    /// The identity of what a block hangs on.
    fn parent(&self, block: usize) -> (u64, Name) {
        match block.checked_sub(1) {
            None => (block_hash::ROOT, self.root),
            Some(parent) => (self.hashes[parent], self.names[parent]),
        }
    }

    /// Computes the identity of a block whose predecessors are known.
    fn identify(&self, block: usize) -> Identity {
        let key_digest = self.key_digester.digest(&self.key(block, self.tokens_per_block));
        self.identify_with(block, &key_digest)
    }

    /// The same where the digest of the block's key is known.
    fn identify_with(&self, block: usize, key_digest: &KeyDigest) -> Identity {
        let key = self.key(block, self.tokens_per_block);
        let (parent_hash, parent_name) = self.parent(block);
        let input = HashInput {
            tokens: key.tokens,
            extra_ids: key.extra_ids,
            lora_id: self.lora_id,
            salt: self.salt,
            mm_keys: key.mm_keys,
        };
        Identity {
            hash: block_hash::block_hash(parent_hash, &input),
            name: content_name::name(parent_name, key_digest),
        }
    }

    fn tail(&self, block: usize) -> Option<Identity> {
        (block == self.names.len() && block < self.block_count())
            .then(|| *self.tail.get_or_init(|| self.identify(block)))
    }
}

#[cfg(test)]
impl Sequence {
    /// The identity of a full block, computed once more and without the fast way.
    pub(super) fn identified_again(&self, block: usize) -> (Name, u64) {
        let Identity { hash, name } = self.identify(block);
        (name, hash)
    }
}

#[cfg(test)]
mod tests {
    use super::super::work_count::{self, Work};
    use super::*;

    fn empty(tokens_per_block: usize, with_extra_ids: bool) -> Sequence {
        let extra_ids = with_extra_ids.then_some(&[][..]);
        let params = SequenceParams { tokens_per_block, extra_ids, ..Default::default() };
        Sequence::new(&params).expect("an empty sequence")
    }

    fn item(start: usize) -> MmItem {
        MmItem { hash: [3; 32], start: start as u32, length: 1, item_offset: start as u32 }
    }

    /// Grows a sequence by `piece` tokens at a time; every 100th token is an image's.
    fn grow(sequence: &mut Sequence, count: usize, piece: usize) {
        let mut from = sequence.token_count();
        while from < count {
            let range = from..count.min(from + piece);
            let tokens: Vec<i32> = range.clone().map(|token| token as i32).collect();
            let extra_ids: Vec<u64> = range.clone().map(|token| token as u64 * 3).collect();
            let extra_ids = if sequence.extra_ids.is_some() { &extra_ids[..] } else { &[] };
            let items: Vec<MmItem> =
                range.clone().filter(|token| token % 100 == 0).map(item).collect();
            sequence.append(&tokens, extra_ids, &items).expect("a good piece");
            from = range.end;
        }
    }

    #[test]
    fn nothing_is_hashed_twice_however_a_sequence_grows() {
        for tokens_per_block in [1, 4, 16, 20, 32] {
            for with_extra_ids in [false, true] {
                let work = |piece| {
                    let mut sequence = empty(tokens_per_block, with_extra_ids);
                    let (work, ()) = work_count::during(|| grow(&mut sequence, 1_003, piece));
                    (work, sequence.names)
                };
                let at_once = work(1_003);
                let blocks = 1_003 / tokens_per_block;
                assert_eq!(at_once.0.names, blocks);
                assert!(at_once.0.key_bytes >= blocks * tokens_per_block * 4);
                for piece in [1, 2, 7, 16, 100] {
                    assert!(work(piece) == at_once, "{piece} at a time, {tokens_per_block}");
                }
            }
        }
    }

    #[test]
    fn a_plain_prompt_costs_its_bytes_and_a_step_for_each_block() {
        for tokens_per_block in [16, 20, 32, 64] {
            let mut sequence = empty(tokens_per_block, false);
            let tokens = vec![5; 320 * 50 + 1];
            let (work, result) = work_count::during(|| sequence.append(&tokens, &[], &[]));
            let expected = Work { key_bytes: 320 * 50 * 4, names: 320 * 50 / tokens_per_block };
            assert_eq!((work, result), (expected, Ok(())));
        }
    }

    #[test]
    fn a_tail_is_hashed_when_somebody_asks_and_once() {
        let mut sequence = empty(32, false);
        grow(&mut sequence, 40, 40);
        let ask = |sequence: &Sequence| (sequence.name(1), sequence.block_hash(1));
        let (work, first) = work_count::during(|| ask(&sequence));
        assert_eq!(work, Work { key_bytes: 8 + 8 * 4, names: 1 }, "two counts and eight tokens");
        assert_eq!(work_count::during(|| ask(&sequence)), (work_count::NONE, first));
        grow(&mut sequence, 41, 1);
        let (work, second) = work_count::during(|| ask(&sequence));
        assert_eq!(work, Work { key_bytes: 8 + 9 * 4, names: 1 });
        assert_ne!(first, second);
    }
}
