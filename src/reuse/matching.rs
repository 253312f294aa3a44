//! The longest stored prefix of a sequence; any thread, without a lock.
//!
//! In the full window the last candidate vouches for all before it, and presence ends once, so a few
//! probes find the end. In a sliding window nodes (not blocks) have that property: the search goes
//! back from the last node there is, over no more blocks than attention needs.
//! Guards: what comes out was so at some moment between call and return, or the caller's pin on it
//! fails and it asks again. Cost: two cache misses a probe, one for the bucket, one for the node.

use super::children::{Changed, Head};
use super::content_name::Name;
use super::sequence::Sequence;
use super::store::probe;
use super::stored_key::Kind;
use super::window::{Found, Window};

/// The longest stored prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefix {
    /// First block that attention still needs: 0 in the full window.
    pub(super) first_block: usize,
    /// Blocks that are full and present, counted from the root.
    pub(super) full_blocks: usize,
    /// The last of them, in the full window.
    pub(super) last: Option<Found>,
    /// The head of one more block.
    pub(super) partial: Option<Head>,
}

/// The end of the run of leading names that `find` finds, given that presence ends once; and the
/// last one found.
pub(super) fn last_present(
    names: &[Name],
    find: impl Fn(&Name) -> Option<Found>,
) -> (usize, Option<Found>) {
    let Some((last, others)) = names.split_last() else {
        return (0, None);
    };
    // Prompts that are reused are mostly there as a whole.
    if let Some(found) = find(last) {
        return (names.len(), Some(found));
    }
    let mut found = None;
    let present = others.partition_point(|name| {
        let probed = find(name);
        found = probed.or(found);
        probed.is_some()
    });
    (present, found)
}

impl Window {
    /// The node under which the block at `position` hangs.
    pub(super) fn find_parent(&self, sequence: &Sequence, position: usize) -> Option<Found> {
        match position.checked_sub(1) {
            None => self.find_attached(&sequence.root()),
            Some(before) => self.find_attached(&sequence.name(before)?),
        }
    }

    /// The head of one more block after `full_blocks` ones, within the first `max_tokens` tokens.
    fn partial(
        &self,
        sequence: &Sequence,
        full_blocks: usize,
        parent: Option<Found>,
        max_tokens: usize,
    ) -> Result<Option<Head>, Changed> {
        let before = full_blocks * sequence.tokens_per_block();
        let Some(left) = max_tokens.checked_sub(before) else {
            return Ok(None);
        };
        let key = sequence.key(full_blocks, left);
        if key.tokens.is_empty() {
            return Ok(None);
        }
        let Some(parent) = parent.or_else(|| self.find_parent(sequence, full_blocks)) else {
            return Ok(None);
        };
        let probe = probe(Kind::of_traits(key.traits), &key);
        self.arena.longest_head(parent.slot, parent.word, &probe)
    }

    /// The longest stored prefix within the first `max_tokens` tokens.
    pub(super) fn match_prefix(
        &self,
        sequence: &Sequence,
        max_tokens: usize,
    ) -> Result<Prefix, Changed> {
        let candidates = sequence.full_block_count().min(max_tokens / sequence.tokens_per_block());
        let names = &sequence.names()[..candidates];
        if !self.is_full_window() {
            return self.match_sliding(sequence, names, max_tokens);
        }
        let (full_blocks, last) = last_present(names, |name| self.find_alive(name));
        let partial = self.partial(sequence, full_blocks, last, max_tokens)?;
        Ok(Prefix { first_block: 0, full_blocks, last, partial })
    }

    /// A prefix of a sliding window is usable if its last `self.tokens` tokens are present. The
    /// longest is looked for from the end: of two that end at one place, the one with a head of one
    /// more block.
    fn match_sliding(
        &self,
        sequence: &Sequence,
        names: &[Name],
        max_tokens: usize,
    ) -> Result<Prefix, Changed> {
        let tokens_per_block = sequence.tokens_per_block();
        let is_present = |position: usize| {
            names.get(position).is_some_and(|name| self.find_alive(name).is_some())
        };
        // A node that is there has all nodes above it; beyond the last one nothing hangs.
        let (nodes, _) = last_present(names, |name| self.find_attached(name));
        // Where the prefix may end, and from where on blocks are known to be present up to there.
        let (mut end, mut present_from) = (nodes, nodes);
        let prefix = loop {
            // Beyond what attention needs of a prefix that ends here, nothing is looked at.
            let is_usable = |present_from: usize, tokens: usize| {
                present_from == 0 || present_from * tokens_per_block + self.tokens <= tokens
            };
            let before = end * tokens_per_block;
            while !is_usable(present_from, before) && is_present(present_from - 1) {
                present_from -= 1;
            }
            let is_whole_usable = is_usable(present_from, before);
            // Looked for only where it can be of use.
            if is_usable(present_from, before + tokens_per_block) && !is_present(end) {
                let partial = self.partial(sequence, end, None, max_tokens)?;
                let usable = partial.filter(|head| is_usable(present_from, before + head.tokens));
                if usable.is_some() {
                    break (end, usable);
                }
            }
            if is_whole_usable {
                break (end, None);
            }
            // The hole before `present_from` rules out all ends up to itself.
            end = present_from - 1;
            present_from = end;
        };
        let (full_blocks, partial) = prefix;
        let tokens = full_blocks * tokens_per_block + partial.map_or(0, |head| head.tokens);
        let first_block = tokens.saturating_sub(self.tokens) / tokens_per_block;
        Ok(Prefix { first_block, full_blocks, last: None, partial })
    }
}
