//! Admitting a request in owner mode: what it finds in the tree, what it has to take, and whether
//! there is enough.
//!
//! First everything that matches is claimed, in all windows, so that what is taken for the rest is
//! not what was found. Guards: whether there is enough is known before anything changes.

use super::error::ReuseError;
use super::free_queues::Retention;
use super::node::{BlockId, Tier};
use super::owner::{Shared, State};
use super::pool::Pool;
use super::request::{HeldBlocks, RequestParams};
use super::retention::{self, RetentionRange};
use super::sequence::Sequence;
use super::tree::{PrefixMatch, ReuseTree};

/// How often windows are asked again for a length that all of them match. Two or three are usual.
const MAX_ROUNDS: usize = 16;

/// The block that matches partly.
#[derive(Debug, Clone, Copy)]
struct Partial {
    id: BlockId,
    tokens: usize,
    /// Nobody else has use for it: it leaves the tree and is the request's.
    is_taken_over: bool,
}

/// What a request finds and needs in one window.
#[derive(Debug)]
struct Planned {
    first_block: usize,
    /// Full blocks, to be shared.
    shared: Vec<BlockId>,
    partial: Option<Partial>,
}

/// What was admitted.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) held: Vec<HeldBlocks>,
    pub(super) matched_tokens: usize,
}

pub(super) fn admit(shared: &Shared, params: &RequestParams<'_>) -> Result<Admitted, ReuseError> {
    let RequestParams { sequence, max_matched_tokens, retention } = *params;
    retention::check(retention)?;
    let token_count = sequence.token_count();
    if token_count == 0 {
        return Err(ReuseError::TokenCount { expected: 1, bound: "more", found: 0 });
    }
    shared.locked(|state, tree| {
        let limit = common_match(tree, sequence, max_matched_tokens.min(token_count - 1))?;
        let mut planned = plan(state, tree, sequence, limit)?;
        let mut matched_tokens = limit;
        if let Err(error) = check_enough(state, sequence, &planned) {
            // A block to copy from is kept while its copy is taken. It is not worth a refusal.
            let whole_blocks = limit / tree.tokens_per_block() * tree.tokens_per_block();
            matched_tokens = common_match(tree, sequence, whole_blocks)?;
            planned = plan(state, tree, sequence, matched_tokens)?;
            check_enough(state, sequence, &planned).map_err(|_| error)?;
        }
        let held = claim(state, tree, sequence, &planned, retention)?;
        Ok(Admitted { held, matched_tokens })
    })
}

/// The longest prefix within the first `limit` tokens that all windows match.
fn common_match(
    tree: &ReuseTree,
    sequence: &Sequence,
    mut limit: usize,
) -> Result<usize, ReuseError> {
    for _ in 0..MAX_ROUNDS {
        let mut least = limit;
        for window in tree.windows() {
            least = least.min(tree.matched_tokens(*window, sequence, least)?);
        }
        if least == limit {
            return Ok(limit);
        }
        limit = least;
    }
    // Windows that keep disagreeing: nothing is always right.
    Ok(0)
}

fn plan(
    state: &State,
    tree: &ReuseTree,
    sequence: &Sequence,
    limit: usize,
) -> Result<Vec<Planned>, ReuseError> {
    let mut planned = Vec::new();
    planned.try_reserve_exact(state.pools.len())?;
    for pool in &state.pools {
        let (PrefixMatch { first_block, partial_tokens, .. }, blocks) =
            tree.match_prefix(pool.window, sequence, limit)?;
        let mut shared = Vec::new();
        shared.try_reserve_exact(blocks.len())?;
        shared.extend(blocks.into_iter().map(|(id, _)| id));
        let partial = if partial_tokens > 0 { shared.pop() } else { None };
        let partial = partial.map(|id| {
            let is_taken_over = pool.queues.can_be_taken(id)
                && !pool.queues.standing(id).has_stored_below
                && pool.place(id).tier == Tier::Primary;
            Partial { id, tokens: partial_tokens, is_taken_over }
        });
        planned.push(Planned { first_block, shared, partial });
    }
    Ok(planned)
}

/// How many blocks a request needs in one window, besides those it found: first to bring back found
/// ones from secondary memory, then in all.
fn needed(pool: &Pool, sequence: &Sequence, planned: &Planned) -> (usize, usize) {
    let is_secondary = |id: &&BlockId| pool.place(**id).tier == Tier::Secondary;
    let onboarded = planned.shared.iter().filter(is_secondary).count();
    let is_taken_over = planned.partial.is_some_and(|partial| partial.is_taken_over);
    let found = planned.first_block + planned.shared.len() + usize::from(is_taken_over);
    (onboarded, onboarded + sequence.block_count().saturating_sub(found))
}

/// Refuses a request for which not enough is free in some window.
fn check_enough(state: &State, sequence: &Sequence, planned: &[Planned]) -> Result<(), ReuseError> {
    for (pool, planned) in state.pools.iter().zip(planned) {
        let (onboarded, needed) = needed(pool, sequence, planned);
        let is_counted =
            |id: BlockId| pool.queues.can_be_taken(id) && pool.place(id).tier == Tier::Primary;
        let found = planned.shared.iter().copied().chain(planned.partial.map(|partial| partial.id));
        let free = pool.free_primary() - found.filter(|id| is_counted(*id)).count();
        match planned.partial {
            Some(source) if !source.is_taken_over => {
                pool.check_free(onboarded + 1, free)?;
                // The source is given back when its copy is taken.
                pool.check_free(needed, free + usize::from(is_counted(source.id)))?;
            }
            _ => pool.check_free(needed, free)?,
        }
    }
    Ok(())
}

fn claim(
    state: &mut State,
    tree: &ReuseTree,
    sequence: &Sequence,
    planned: &[Planned],
    retention: &[RetentionRange],
) -> Result<Vec<HeldBlocks>, ReuseError> {
    // All memory first.
    let mut held = Vec::new();
    held.try_reserve_exact(planned.len())?;
    let mut copies = 0;
    for (pool, planned) in state.pools.iter().zip(planned) {
        let mut ids = Vec::new();
        ids.try_reserve_exact(sequence.block_count() - planned.first_block)?;
        held.push(HeldBlocks { first_block: planned.first_block, ids });
        // Each block taken may cost an offload and be copied to.
        copies += 2 * needed(pool, sequence, planned).1 + 2;
    }
    state.copies.reserve(copies)?;
    let mut sources = vec![None; planned.len()];
    let claimed = claim_found(state, tree, planned, retention, &mut held, &mut sources)
        .and_then(|()| claim_rest(state, tree, sequence, retention, &mut held, &mut sources));
    if let Err(error) = claimed {
        let State { pools, now_ns, .. } = state;
        for ((pool, held), source) in pools.iter_mut().zip(held).zip(sources) {
            pool.learn(tree);
            held.ids.iter().rev().for_each(|id| pool.let_go(*id, *now_ns));
            source.into_iter().for_each(|(id, _)| pool.let_go(id, *now_ns));
        }
        return Err(error);
    }
    Ok(held)
}

/// Claims what was found, in all windows.
fn claim_found(
    state: &mut State,
    tree: &ReuseTree,
    planned: &[Planned],
    ranges: &[RetentionRange],
    held: &mut [HeldBlocks],
    sources: &mut [Option<(BlockId, usize)>],
) -> Result<(), ReuseError> {
    let windows = state.pools.iter_mut().zip(planned).zip(held).zip(sources);
    for (((pool, planned), held), source) in windows {
        let said = |held: &HeldBlocks| {
            let found = retention::at(ranges, held.end() * tree.tokens_per_block());
            (found.map(|found| found.priority), found.and_then(|found| found.duration_ns))
        };
        for id in &planned.shared {
            let (priority, duration_ns) = said(held);
            pool.hold(tree, *id, priority, duration_ns)?;
            held.ids.push(*id);
        }
        let Some(partial) = planned.partial else {
            continue;
        };
        if partial.is_taken_over && pool.evict(tree, partial.id)? {
            let (priority, duration_ns) = said(held);
            pool.hold(tree, partial.id, priority, duration_ns)?;
            held.ids.push(partial.id);
        } else {
            let Retention { priority, duration_ns } = pool.queues.retention(partial.id);
            pool.hold(tree, partial.id, Some(priority), duration_ns)?;
            *source = Some((partial.id, partial.tokens));
        }
    }
    Ok(())
}

/// Takes what is missing: slots in primary memory for found blocks in secondary memory, a copy of
/// what matches partly, and blocks for the rest.
fn claim_rest(
    state: &mut State,
    tree: &ReuseTree,
    sequence: &Sequence,
    ranges: &[RetentionRange],
    held: &mut [HeldBlocks],
    sources: &mut [Option<(BlockId, usize)>],
) -> Result<(), ReuseError> {
    let State { pools, copies, now_ns } = state;
    let tokens_per_block = tree.tokens_per_block();
    for ((pool, held), source) in pools.iter_mut().zip(held).zip(sources) {
        for id in &mut held.ids {
            if pool.place(*id).tier == Tier::Primary {
                continue;
            }
            pool.learn(tree);
            if !pool.queues.standing(*id).is_protected && pool.users(*id) == 1 {
                pool.onboard(tree, *id, copies, *now_ns)?;
                continue;
            }
            // Somebody reads its slot: it stays where it is.
            let fresh = pool.take(tree, pool.queues.retention(*id), copies, *now_ns)?;
            pool.copy(*id, fresh, tokens_per_block, copies)?;
            pool.let_go(std::mem::replace(id, fresh), *now_ns);
        }
        if let Some((id, tokens)) = *source {
            let fresh = pool.take(tree, pool.queues.retention(id), copies, *now_ns)?;
            held.ids.push(fresh);
            pool.copy(id, fresh, tokens, copies)?;
            pool.let_go(id, *now_ns);
            *source = None;
        }
        while held.end() < sequence.block_count() {
            let found = retention::at(ranges, held.end() * tokens_per_block);
            held.ids.push(pool.take(tree, found.unwrap_or_default(), copies, *now_ns)?);
        }
    }
    Ok(())
}
