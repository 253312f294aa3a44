//! A request of a batch manager in owner mode: the blocks it uses in every window, from admission to
//! its end.
//!
//! Guards: a request gives back each block it holds exactly once, finished or dropped; what cannot
//! be admitted changes nothing (but that a pin made at that very moment can cost cached blocks). A
//! block that others use too is stored nowhere else.
//! Never does: know tokens. The host keeps the sequence and hands it in.

use std::sync::Arc;

use super::admission::{self, Admitted};
use super::error::ReuseError;
use super::free_queues::Retention;
use super::node::BlockId;
use super::owner::{Owner, Shared, State};
use super::pool::Pool;
use super::range::BlockRange;
use super::retention::RetentionRange;
use super::sequence::Sequence;
use super::tree::{Policy, RangeRequest, ReuseTree, WINDOW_FULL};

/// A request to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct RequestParams<'a> {
    /// Its prompt; not empty.
    pub sequence: &'a Sequence,
    /// How many leading tokens may be reused; at most all but the last, whose KV is never taken from
    /// the tree.
    pub max_matched_tokens: usize,
    /// What its blocks are worth; blocks that no range covers are worth what they were, or the
    /// default.
    pub retention: &'a [RetentionRange],
}

/// A request's blocks of one window.
#[derive(Debug, Default)]
pub(super) struct HeldBlocks {
    /// The place in the sequence of the first one; the window is past those before it.
    pub(super) first_block: usize,
    pub(super) ids: Vec<BlockId>,
}

impl HeldBlocks {
    /// The place after the last one.
    pub(super) fn end(&self) -> usize {
        self.first_block + self.ids.len()
    }
}

/// The blocks of one request. Dropping it gives them back without storing any.
pub struct Request {
    shared: Arc<Shared>,
    /// In the order of the tree's windows.
    held: Vec<HeldBlocks>,
    token_count: usize,
    matched_tokens: usize,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Request")
            .field("token_count", &self.token_count)
            .field("matched_tokens", &self.matched_tokens)
            .finish_non_exhaustive()
    }
}

impl Owner {
    /// Admits a request: matches what is stored in every window, and claims a block for each of its
    /// blocks. Full blocks are shared; a partly matching one is taken over where nobody else has use
    /// for it, else its bytes are copied.
    pub fn add(&self, params: &RequestParams<'_>) -> Result<Request, ReuseError> {
        let Admitted { held, matched_tokens } = admission::admit(&self.shared, params)?;
        Ok(Request {
            shared: Arc::clone(&self.shared),
            held,
            token_count: params.sequence.token_count(),
            matched_tokens,
        })
    }
}

impl Request {
    /// Leading tokens whose KV was there.
    pub fn matched_tokens(&self) -> usize {
        self.matched_tokens
    }

    /// Tokens that the request has room for, block by block.
    pub fn token_count(&self) -> usize {
        self.token_count
    }

    /// A window's blocks, in the order of the sequence, and the place of the first of them.
    pub fn blocks(&self, window: i32) -> Result<(usize, &[BlockId]), ReuseError> {
        let index = self.shared.window_index(window)?;
        let held = self.held.get(index).ok_or(ReuseError::Finished)?;
        Ok((held.first_block, &held.ids))
    }

    /// Makes room for more tokens; each block this takes gets the retention. In a sliding window
    /// blocks that it has passed are given back.
    pub fn grow(&mut self, tokens: usize, retention: Retention) -> Result<(), ReuseError> {
        retention.check()?;
        self.check_unfinished()?;
        let limit = super::MAX_TOKENS;
        let token_count = self.token_count.saturating_add(tokens);
        if token_count > limit {
            return Err(ReuseError::Limit { what: "tokens of a sequence", limit });
        }
        let Self { shared, held, .. } = self;
        shared.locked(|state, tree| {
            let tokens_per_block = tree.tokens_per_block();
            let blocks = token_count.div_ceil(tokens_per_block);
            let mut needed_sum = 0;
            for (pool, held) in state.pools.iter().zip(held.iter_mut()) {
                let needed = blocks.saturating_sub(held.end());
                pool.check_free(needed, pool.free_primary())?;
                held.ids.try_reserve(needed)?;
                needed_sum += needed;
            }
            state.copies.reserve(needed_sum)?;
            let before: Vec<usize> = held.iter().map(|held| held.ids.len()).collect();
            if let Err(error) = take_up_to(state, tree, held, blocks, retention) {
                for ((pool, held), before) in state.pools.iter_mut().zip(held).zip(before) {
                    let fresh = held.ids.drain(before..).rev();
                    fresh.for_each(|id| pool.let_go(id, state.now_ns));
                }
                return Err(error);
            }
            for (pool, held) in state.pools.iter_mut().zip(held) {
                slide(pool, held, token_count, tokens_per_block, state.now_ns);
            }
            Ok(())
        })?;
        self.token_count = token_count;
        Ok(())
    }

    /// Stores the full blocks of the sequence's first `token_count` tokens, whose KV is complete, so
    /// that other requests find them while this one goes on.
    pub fn store_context(&self, sequence: &Sequence, token_count: usize) -> Result<(), ReuseError> {
        self.check_tokens(sequence, token_count)?;
        let blocks = token_count / sequence.tokens_per_block();
        self.shared.locked(|state, tree| store(state, tree, &self.held, sequence, blocks))
    }

    /// [`Request::store_context`], and a pin on what the tree then holds of these tokens in one
    /// window: the full blocks, and a block that begins with what is left of them. No range if that
    /// is nothing.
    pub fn store_and_pin(
        &self,
        sequence: &Sequence,
        token_count: usize,
        window: i32,
        lease_deadline_ns: Option<u64>,
    ) -> Result<Option<BlockRange>, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.check_tokens(sequence, token_count)?;
        let blocks = token_count / sequence.tokens_per_block();
        let prefix = sequence.prefix(token_count)?;
        self.shared.locked(|state, tree| {
            store(state, tree, &self.held, &prefix, blocks)?;
            let first_block = self.held[index].first_block;
            let request = RangeRequest {
                first_block,
                block_count: prefix.block_count().saturating_sub(first_block),
                policy: Policy::BestEffort,
                lease_deadline_ns,
            };
            if request.block_count == 0 {
                return Ok(None);
            }
            // Under the owner's lock nothing that was stored leaves in between.
            Ok(tree.pin_range(window, &prefix, &request)?.range)
        })
    }

    /// Keeps every block that the request holds, stored or not, from being taken until the pin goes.
    pub fn pin(&self) -> Result<RequestPin, ReuseError> {
        self.check_unfinished()?;
        let mut pinned = Vec::new();
        pinned.try_reserve_exact(self.held.len())?;
        for held in &self.held {
            let mut ids = Vec::new();
            ids.try_reserve_exact(held.ids.len())?;
            ids.extend_from_slice(&held.ids);
            pinned.push(HeldBlocks { first_block: held.first_block, ids });
        }
        self.shared.locked(|state, tree| {
            for (pool, held) in state.pools.iter_mut().zip(&pinned) {
                for id in &held.ids {
                    let Retention { priority, duration_ns } = pool.queues.retention(*id);
                    pool.hold(tree, *id, Some(priority), duration_ns)?;
                }
            }
            Ok::<_, ReuseError>(())
        })?;
        Ok(RequestPin { shared: Arc::clone(&self.shared), pinned })
    }

    /// Ends the request: stores the blocks of the sequence's first `token_count` tokens, whose KV is
    /// complete, a partial tail too, and gives all blocks back, the last one first. On an error it has
    /// not ended.
    pub fn finish(&mut self, sequence: &Sequence, token_count: usize) -> Result<(), ReuseError> {
        self.check_tokens(sequence, token_count)?;
        let prefix = if token_count.is_multiple_of(sequence.tokens_per_block()) {
            None
        } else {
            Some(sequence.prefix(token_count)?)
        };
        let sequence = prefix.as_ref().unwrap_or(sequence);
        let blocks = token_count.div_ceil(sequence.tokens_per_block());
        let Self { shared, held, .. } = self;
        shared.locked(|state, tree| {
            store(state, tree, held, sequence, blocks)?;
            give_back(state, tree, std::mem::take(held));
            Ok(())
        })
    }

    /// Gives the memory back but leaves the blocks in use, for where the owner must not be touched: it
    /// is known to be damaged, or this is a forked child.
    pub fn abandon(mut self) {
        self.held.clear();
    }

    fn check_unfinished(&self) -> Result<(), ReuseError> {
        if self.held.is_empty() {
            return Err(ReuseError::Finished);
        }
        Ok(())
    }

    fn check_tokens(&self, sequence: &Sequence, token_count: usize) -> Result<(), ReuseError> {
        self.check_unfinished()?;
        let (tree, block) = (self.shared.tree.tokens_per_block(), sequence.tokens_per_block());
        if tree != block {
            return Err(ReuseError::OtherBlockSize { tree, sequence: block });
        }
        let expected = sequence.token_count();
        if token_count > expected {
            let bound = "fewer, as the sequence has";
            return Err(ReuseError::TokenCount { expected, bound, found: token_count });
        }
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            self.shared.locked(|state, tree| give_back(state, tree, held));
        }
    }
}

/// Blocks that a request held when it was pinned. Dropping it ends the pin.
pub struct RequestPin {
    shared: Arc<Shared>,
    pinned: Vec<HeldBlocks>,
}

impl RequestPin {
    /// A window's pinned blocks, in the order of the sequence.
    pub fn ids(&self, window: i32) -> Result<&[BlockId], ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.pinned.get(index).map_or(&[], |pinned| &pinned.ids))
    }

    /// As [`Request::abandon`].
    pub fn abandon(mut self) {
        self.pinned.clear();
    }
}

impl std::fmt::Debug for RequestPin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RequestPin").finish_non_exhaustive()
    }
}

impl Drop for RequestPin {
    fn drop(&mut self) {
        let pinned = std::mem::take(&mut self.pinned);
        if !pinned.is_empty() {
            self.shared.locked(|state, tree| give_back(state, tree, pinned));
        }
    }
}

/// Takes blocks in each window until the request has `blocks` of the sequence's.
fn take_up_to(
    state: &mut State,
    tree: &ReuseTree,
    held: &mut [HeldBlocks],
    blocks: usize,
    retention: Retention,
) -> Result<(), ReuseError> {
    let State { pools, copies, now_ns } = state;
    for (pool, held) in pools.iter_mut().zip(held) {
        while held.end() < blocks {
            held.ids.push(pool.take(tree, retention, copies, *now_ns)?);
        }
    }
    Ok(())
}

/// Gives back the blocks that no later token looks at.
fn slide(
    pool: &mut Pool,
    held: &mut HeldBlocks,
    token_count: usize,
    tokens_per_block: usize,
    now_ns: u64,
) {
    if pool.window == WINDOW_FULL {
        return;
    }
    let needed_from = token_count.saturating_sub(pool.window as usize) / tokens_per_block;
    let passed = needed_from.saturating_sub(held.first_block).min(held.ids.len());
    held.ids.drain(..passed).for_each(|id| pool.let_go(id, now_ns));
    held.first_block += passed;
}

/// Stores a request's blocks at the sequence's places before `blocks`.
fn store(
    state: &mut State,
    tree: &ReuseTree,
    held: &[HeldBlocks],
    sequence: &Sequence,
    blocks: usize,
) -> Result<(), ReuseError> {
    for (pool, held) in state.pools.iter_mut().zip(held) {
        let count = blocks.min(held.end()).saturating_sub(held.first_block);
        let ids = &held.ids[..count];
        let mut storable = 0;
        for (offset, id) in ids.iter().enumerate() {
            if pool.users(*id) > 1
                && is_stored_elsewhere(tree, pool.window, *id, sequence, held.first_block + offset)?
            {
                break;
            }
            storable += 1;
        }
        let priority = |id| pool.queues.retention(id).priority;
        let ids = &ids[..storable];
        if ids.is_empty() {
            continue;
        }
        tree.store_with_priorities(pool.window, sequence, held.first_block, ids, &priority, None)?;
        pool.learn(tree);
    }
    Ok(())
}

fn is_stored_elsewhere(
    tree: &ReuseTree,
    window: i32,
    id: BlockId,
    sequence: &Sequence,
    position: usize,
) -> Result<bool, ReuseError> {
    let is_stored = tree.find_id(window, id)?.is_some();
    Ok(is_stored && tree.held_at(window, sequence, position)? != Some(id))
}

/// Gives back blocks, the last of each window first.
fn give_back(state: &mut State, tree: &ReuseTree, held: Vec<HeldBlocks>) {
    let State { pools, now_ns, .. } = state;
    for (pool, held) in pools.iter_mut().zip(held) {
        pool.learn(tree);
        held.ids.iter().rev().for_each(|id| pool.let_go(*id, *now_ns));
    }
}
