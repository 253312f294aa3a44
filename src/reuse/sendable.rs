//! Pins for sending: blocks that are in primary memory, complete, and full but for a tail.
//!
//! First what is there is found, then pinned, then looked at again: protection holds against
//! offload, so what is sendable under the pin stays so. Guards: a run ends before the first block
//! that is not sendable; what a peer's names say of each other is not believed but compared with the
//! tree. Cost in the full window: a few probes and one pin, and a walk over the range only where
//! there are blocks in secondary memory or behind a fence at all.

use super::children::Changed;
use super::content_name::Name;
use super::core::Core;
use super::error::ReuseError;
use super::key::KeyView;
use super::matching::last_present;
use super::node::{Slot, ORIGIN, SERVABLE};
use super::pin::PinId;
use super::range::RangeBlock;
use super::sequence::Sequence;
use super::store::probe;
use super::stored_key::Kind;
use super::text_tail::TextTail;
use super::tree::{Policy, RangeRequest};
use super::window::{Found, Window, WARMED};

/// Tries after which a range counts as a miss: others changed it each time.
const MAX_TRIES: usize = 1 << 10;

/// A pin for sending, or a miss.
pub(super) struct Sendable {
    /// Blocks present from the first on.
    pub(super) present: usize,
    pub(super) pin: Option<(PinId, Vec<Found>)>,
}

impl Sendable {
    fn miss(present: usize) -> Self {
        Self { present, pin: None }
    }
}

/// Why a try did not come to an end.
enum Again {
    Changed,
    Refused(ReuseError),
}

impl From<Changed> for Again {
    fn from(_: Changed) -> Self {
        Self::Changed
    }
}

impl From<ReuseError> for Again {
    fn from(error: ReuseError) -> Self {
        Self::Refused(error)
    }
}

impl From<std::collections::TryReserveError> for Again {
    fn from(error: std::collections::TryReserveError) -> Self {
        Self::Refused(error.into())
    }
}

fn is_enough(policy: Policy, present: usize, wanted: usize) -> bool {
    match policy {
        Policy::Strict => present == wanted,
        Policy::BestEffort => present > 0,
    }
}

fn until_unchanged(
    mut attempt: impl FnMut() -> Result<Sendable, Again>,
) -> Result<Sendable, ReuseError> {
    for _ in 0..MAX_TRIES {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Again::Refused(error)) => return Err(error),
            Err(Again::Changed) => crate::sync::spin_loop(),
        }
    }
    Ok(Sendable::miss(0))
}

impl Core {
    /// Pins blocks of a sequence; the request lies within it.
    pub(super) fn pin_sendable(
        &self,
        index: usize,
        sequence: &Sequence,
        request: &RangeRequest,
    ) -> Result<Sendable, ReuseError> {
        until_unchanged(|| {
            let nodes = if self.windows[index].is_full_window() {
                self.find_run_full(index, sequence, request)?
            } else {
                self.find_run_sliding(index, sequence, request)?
            };
            let (present, nodes) = nodes;
            let is_enough = is_enough(request.policy, present, request.block_count);
            // Of a miss too it is told how many could be sent, which is seen under a pin.
            let is_known = present == 0 || !self.may_be_unsendable(&self.windows[index]);
            if !is_enough && is_known {
                return Ok(Sendable::miss(present));
            }
            let pin = self.pin(index, &nodes, request.lease_deadline_ns)?.ok_or(Changed)?;
            if is_enough && !self.may_be_unsendable(&self.windows[index]) {
                return Ok(Sendable { present, pin: Some((pin, nodes)) });
            }
            self.shorten(index, request, present, pin, nodes)
        })
    }

    /// The blocks of the request that are present, given that all are sendable; the last of them.
    fn find_run_full(
        &self,
        index: usize,
        sequence: &Sequence,
        request: &RangeRequest,
    ) -> Result<(usize, Vec<Found>), Again> {
        let window = &self.windows[index];
        let (first, end) = (request.first_block, request.first_block + request.block_count);
        let full_end = end.min(sequence.full_block_count());
        let (run, last) =
            last_present(&sequence.names()[..full_end], |name| window.find_alive(name));
        let tail = if run == full_end && end > full_end {
            window.find_tail(sequence, full_end)?
        } else {
            None
        };
        let present = (run + usize::from(tail.is_some())).saturating_sub(first);
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(1)?;
        nodes.extend(tail.or(last).filter(|_| present > 0));
        Ok((present, nodes))
    }

    /// As `find_run_full`, but all blocks, looked at one by one.
    fn find_run_sliding(
        &self,
        index: usize,
        sequence: &Sequence,
        request: &RangeRequest,
    ) -> Result<(usize, Vec<Found>), Again> {
        let window = &self.windows[index];
        let passed_fence = self.passed_fence();
        let mut nodes = Vec::new();
        for position in request.first_block..request.first_block + request.block_count {
            let found = match sequence.names().get(position) {
                Some(name) => window.find_alive(name),
                None => window.find_tail(sequence, position)?,
            };
            let sendable = found.filter(|found| window.is_sendable(found.slot, passed_fence));
            let Some(found) = sendable else { break };
            nodes.try_reserve(1)?;
            nodes.push(found);
        }
        Ok((nodes.len(), nodes))
    }

    /// Looks at what was pinned; gives up what comes from the first block on that cannot be sent.
    fn shorten(
        &self,
        index: usize,
        request: &RangeRequest,
        present: usize,
        pin: PinId,
        nodes: Vec<Found>,
    ) -> Result<Sendable, Again> {
        let window = &self.windows[index];
        let passed_fence = self.passed_fence();
        let is_sendable = |slot| window.is_sendable(slot, passed_fence);
        let (sendable, last) = if window.is_full_window() {
            let last = nodes.last().map_or(ORIGIN, |last| last.slot);
            window.sendable_up_to(last, present, is_sendable)
        } else {
            (nodes.iter().take_while(|found| is_sendable(found.slot)).count(), ORIGIN)
        };
        let is_enough = is_enough(request.policy, sendable, request.block_count);
        if is_enough && sendable == present {
            return Ok(Sendable { present, pin: Some((pin, nodes)) });
        }
        let shorter = if !is_enough {
            Ok(None)
        } else if window.is_full_window() {
            // Pinned before the longer one is given up, so that it stays all the time.
            let last = Found { slot: last, word: window.node(last).word() };
            let lease = request.lease_deadline_ns;
            self.pin(index, &[last], lease).map(|pin| Some((pin, vec![last])))
        } else {
            self.pin(index, &nodes[..sendable], request.lease_deadline_ns)
                .map(|pin| Some((pin, nodes[..sendable].to_vec())))
        };
        // It was pinned here and told to nobody: it is live.
        let _ = self.unpin(pin);
        match shorter? {
            None => Ok(Sendable::miss(sendable)),
            Some((None, _)) => Err(Again::Changed),
            Some((Some(pin), nodes)) => Ok(Sendable { present: sendable, pin: Some((pin, nodes)) }),
        }
    }

    /// Pins blocks for a peer that gives only content names, `names[0]` being a first block's; `tail`
    /// is what the last one is made of, where it may be found at the head of a longer block.
    pub(super) fn pin_sendable_named(
        &self,
        index: usize,
        names: &[Name],
        tail: Option<&TextTail>,
        policy: Policy,
        lease_deadline_ns: Option<u64>,
    ) -> Result<(Sendable, Vec<RangeBlock>), ReuseError> {
        let window = &self.windows[index];
        // A tail is found by its tokens: also in a longer block, which has another name.
        let named = names.len() - usize::from(tail.is_some() && !names.is_empty());
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(names.len())?;
        let outcome = until_unchanged(|| {
            blocks.clear();
            let mut nodes: Vec<Found> = Vec::new();
            nodes.try_reserve_exact(names.len())?;
            for (position, name) in names.iter().enumerate() {
                if position % WARMED == 0 {
                    window.warm(names[position..].iter());
                }
                let above = nodes.last().map(|above| above.slot);
                let found = match tail {
                    Some(tail) if position == named => window.find_head(tail)?,
                    _ => window.find_alive(name),
                };
                let passed_fence = self.passed_fence();
                let servable =
                    found.filter(|found| window.is_servable(found.slot, above, passed_fence));
                let Some(found) = servable else { break };
                nodes.push(found);
            }
            let present = nodes.len();
            if present == 0 || !is_enough(policy, present, names.len()) {
                return Ok(Sendable::miss(present));
            }
            let pinned = if window.is_full_window() { &nodes[present - 1..] } else { &nodes[..] };
            let pin = self.pin(index, pinned, lease_deadline_ns)?.ok_or(Changed)?;
            // Under the pin, so it stays: is each still what it was found as?
            let passed_fence = self.passed_fence();
            let mut above = None;
            let is_as_found = nodes.iter().zip(names).enumerate().all(|(index, (found, name))| {
                let node = window.node(found.slot);
                // Of a tail's block the pin says that it is what was found.
                let is_it = (index >= named || node.name() == *name)
                    && node.word().has_block()
                    && window.is_servable(found.slot, above, passed_fence);
                above = Some(found.slot);
                blocks.push(window.range_block(found.slot));
                is_it
            });
            if !is_as_found {
                let _ = self.unpin(pin);
                return Err(Again::Changed);
            }
            Ok(Sendable { present, pin: Some((pin, nodes)) })
        })?;
        Ok((outcome, blocks))
    }
}

impl Window {
    /// The block that a sequence's partial tail is found in: one in primary memory whose tokens
    /// start with the tail's.
    fn find_tail(&self, sequence: &Sequence, position: usize) -> Result<Option<Found>, Changed> {
        let Some(parent) = self.find_parent(sequence, position) else {
            return Ok(None);
        };
        let key = sequence.key(position, sequence.tokens_per_block());
        self.primary_beginning_with(parent, &key)
    }

    /// The block in primary memory that a peer's tail is found in.
    fn find_head(&self, tail: &TextTail) -> Result<Option<Found>, Changed> {
        let Some(parent) = self.find_attached(tail.parent()) else {
            return Ok(None);
        };
        self.primary_beginning_with(parent, &tail.key())
    }

    fn primary_beginning_with(
        &self,
        parent: Found,
        key: &KeyView<'_>,
    ) -> Result<Option<Found>, Changed> {
        let probe = probe(Kind::of_traits(key.traits), key);
        let head = self.arena.primary_beginning_with(parent.slot, parent.word, &probe)?;
        Ok(head.map(|head| Found { slot: head.slot, word: head.word }))
    }

    /// Of `count` blocks that end with `last`, all protected: how many come before the first that
    /// is not sendable, and the last of those.
    fn sendable_up_to(
        &self,
        last: Slot,
        count: usize,
        is_sendable: impl Fn(Slot) -> bool,
    ) -> (usize, Slot) {
        let (mut sendable, mut end) = (count, last);
        let mut at = last;
        for left in (0..count).rev() {
            let above = self.node(at).parent();
            if !is_sendable(at) {
                (sendable, end) = (left, above);
            }
            at = above;
        }
        (sendable, end)
    }

    /// A block that can be sent to a peer that knows only names: of a name that means the same
    /// everywhere, right below `above` (below a root if there is none). A short one too: its name says
    /// how many tokens it has, and nothing is stored below it.
    fn is_servable(&self, slot: Slot, above: Option<Slot>, passed_fence: u64) -> bool {
        let node = self.node(slot);
        let is_in_place = match above {
            None => node.position() == 0,
            Some(above) => node.parent() == above,
        };
        let info = node.info();
        is_in_place && info.has(SERVABLE) && self.is_sendable(slot, passed_fence)
    }
}
