//! How blocks come into the tree.
//!
//! Guards: a position holds one block, an id is at one position, and what protects an id keeps it
//! where it is. A block becomes visible to readers when all of it is written. All memory is asked for
//! before the first change.

use super::core::{Core, Writer};
use super::error::ReuseError;
use super::free_queues::DEFAULT_PRIORITY;
use super::key::KeyView;
use super::leave::Protection;
use super::node::{BlockFacts, BlockId, Info, NodeFacts, Slot, FENCED, ORIGIN, SERVABLE};
use super::sequence::Sequence;
use super::stored_key::{Kind, Probe};
use super::window::Room;
use crate::sync::atomic::Ordering;

/// What came of storing one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// The tree took the block.
    Taken(Slot),
    /// The position holds another block already, or this one.
    Occupied(Slot, BlockId),
    /// Not stored: a placeholder, an empty parent, or a block protected elsewhere.
    Returned,
}

/// A key, as it is looked for.
pub(super) fn probe<'a>(kind: Kind, key: &KeyView<'a>) -> Probe<'a> {
    Probe { kind: kind.with_items(key), tokens: key.tokens, extra_ids: key.extra_ids }
}

/// How blocks are stored.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    /// Their bytes are complete when this has passed.
    pub(super) fence: Option<u64>,
    /// How much each is worth keeping.
    pub(super) priority: &'a dyn Fn(BlockId) -> u8,
}

impl Terms<'_> {
    /// Complete blocks that nobody said anything of.
    pub(super) const USUAL: Self = Self { fence: None, priority: &|_| DEFAULT_PRIORITY };
}

/// One call of `store`.
struct Storing<'a> {
    window: usize,
    sequence: &'a Sequence,
    kind: Kind,
    terms: Terms<'a>,
}

impl Core {
    /// Stores `ids` from block `first` of the sequence on; what the tree holds there afterwards.
    pub(super) fn store(
        &self,
        writer: &mut Writer,
        window: usize,
        sequence: &Sequence,
        first: usize,
        ids: &[BlockId],
        terms: Terms<'_>,
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        let mut holds = Vec::new();
        holds.try_reserve_exact(ids.len())?;
        let kind = Kind::of_traits(sequence.traits());
        let storing = Storing { window, sequence, kind, terms };
        self.forget_released(writer, window);
        self.make_room(writer, &storing, first, ids)?;
        if let Some(fence) = terms.fence {
            // Before any block: a reader that finds none to wait for looks at no block.
            self.last_fence.fetch_max(fence, Ordering::SeqCst);
        }
        let counts = &self.counts;
        let mut above = None;
        for (offset, id) in ids.iter().enumerate() {
            let stored = self.store_one(writer, &storing, first + offset, *id, above);
            // A block that moved away may have taken a part of the way along; if memory for that runs
            // out, the block is handed back as any other that is not stored.
            let stored = stored.unwrap_or(Stored::Returned);
            let (slot, held) = match stored {
                Stored::Taken(slot) => {
                    counts.blocks_taken.fetch_add(1, Ordering::Relaxed);
                    (Some(slot), Some(*id))
                }
                Stored::Occupied(slot, holder) => {
                    let is_duplicate = holder != *id && *id >= 0;
                    counts.blocks_duplicate.fetch_add(u64::from(is_duplicate), Ordering::Relaxed);
                    (Some(slot), Some(holder))
                }
                Stored::Returned => {
                    counts.blocks_returned.fetch_add(u64::from(*id >= 0), Ordering::Relaxed);
                    (None, None)
                }
            };
            above = slot;
            holds.push(held);
        }
        Ok(holds)
    }

    /// Asks for all the memory that storing these blocks can need.
    fn make_room(
        &self,
        writer: &mut Writer,
        storing: &Storing<'_>,
        first: usize,
        ids: &[BlockId],
    ) -> Result<(), ReuseError> {
        let (window, sequence) = (&self.windows[storing.window], storing.sequence);
        let mut room = Room::default();
        room.add_name(&sequence.root())?;
        // The full window stores nothing below an empty position; sliding ones make the way there.
        if !window.is_full_window() {
            let way = sequence.names()[..first.min(sequence.full_block_count())].iter().rev();
            // A node that is there has all nodes above it.
            for name in way.take_while(|name| window.find_attached(name).is_none()) {
                room.add_name(name)?;
            }
        }
        for (position, id) in (first..).zip(ids) {
            let (name, hash) = (sequence.name(position), sequence.block_hash(position));
            if let (Some(name), Some(hash)) = (name, hash) {
                room.add_name(&name)?;
                room.add_block(*id, hash)?;
            }
        }
        let uses_extra_ids = sequence.traits().uses_extra_ids;
        let is_fenced = storing.terms.fence.is_some();
        let writer = &mut writer.windows[storing.window];
        window.reserve_all(writer, room, uses_extra_ids, is_fenced)
    }

    fn store_one(
        &self,
        writer: &mut Writer,
        storing: &Storing<'_>,
        position: usize,
        id: BlockId,
        above: Option<Slot>,
    ) -> Result<Stored, ReuseError> {
        let (window, sequence) = (&self.windows[storing.window], storing.sequence);
        let (Some(name), Some(hash)) = (sequence.name(position), sequence.block_hash(position))
        else {
            return Ok(Stored::Returned);
        };
        let found = window.find_attached(&name);
        if let Some(found) = found.filter(|found| found.word.has_block()) {
            return Ok(Stored::Occupied(found.slot, window.node(found.slot).id()));
        }
        let hole = found.map(|found| found.slot);
        let find_parent = || {
            let name = sequence.name(position.checked_sub(1)?)?;
            window.find_alive(&name).map(|parent| parent.slot)
        };
        let parent = above.or_else(find_parent);
        if id < 0 || (window.is_full_window() && position > 0 && parent.is_none()) {
            return Ok(Stored::Returned);
        }
        let has_moved = match window.find_id(id) {
            None => false,
            Some(old) => {
                let node = window.node(old);
                let old_position = node.position() as usize;
                let is_above =
                    old_position < position && sequence.name(old_position) == Some(node.name());
                let stays = node.word().is_detached() || is_above;
                let protection = Protection::Respected;
                if stays || self.leave(writer, storing.window, old, protection).is_none() {
                    return Ok(Stored::Returned);
                }
                true
            }
        };
        // A hole without other children went with what moved away from below it.
        let hole =
            if has_moved { window.find_attached(&name).map(|found| found.slot) } else { hole };
        let stored = self.put(writer, storing, position, &name, hash, id, hole, parent);
        match stored {
            Err(_) if has_moved => Ok(Stored::Returned),
            stored => stored.map(Stored::Taken),
        }
    }

    /// Puts a block where there is none, making the way there.
    #[allow(clippy::too_many_arguments)]
    fn put(
        &self,
        writer: &mut Writer,
        storing: &Storing<'_>,
        position: usize,
        name: &super::Name,
        hash: u64,
        id: BlockId,
        hole: Option<Slot>,
        parent: Option<Slot>,
    ) -> Result<Slot, ReuseError> {
        let (window, sequence) = (&self.windows[storing.window], storing.sequence);
        let parent = match (hole, parent) {
            (Some(hole), _) => window.node(hole).parent(),
            (None, Some(parent)) => parent,
            (None, None) => self.make_way(writer, storing, position)?,
        };
        let key = sequence.key(position, sequence.tokens_per_block());
        let mut flags = 0;
        if sequence.is_servable_to_peers() {
            flags |= SERVABLE;
        }
        if storing.terms.fence.is_some() {
            flags |= FENCED;
        }
        let facts = NodeFacts { name: *name, parent, position: position as u32 };
        let info = Info::new(key.tokens.len(), flags).with_priority((storing.terms.priority)(id));
        let block = BlockFacts { id, hash, info };
        let stored = window.add_block(
            &mut writer.windows[storing.window],
            hole,
            &facts,
            &block,
            &probe(storing.kind, &key),
            storing.terms.fence,
        );
        if stored.is_err() {
            self.prune(writer, storing.window, parent);
        }
        stored
    }

    /// The node above `position`, made together with those above it that are missing.
    fn make_way(
        &self,
        writer: &mut Writer,
        storing: &Storing<'_>,
        position: usize,
    ) -> Result<Slot, ReuseError> {
        let (window, sequence) = (&self.windows[storing.window], storing.sequence);
        let uses_extra_ids = sequence.traits().uses_extra_ids;
        // Upwards to what is there: names know their place, so nothing is walked twice.
        let mut missing_from = position;
        let mut parent = None;
        while missing_from > 0 && parent.is_none() {
            parent = window.find_attached(&sequence.names()[missing_from - 1]);
            missing_from -= usize::from(parent.is_none());
        }
        let parent = parent.or_else(|| window.find_attached(&sequence.root()));
        let mut at = match parent {
            Some(found) => found.slot,
            None => {
                let root = NodeFacts { name: sequence.root(), parent: ORIGIN, position: 0 };
                window.add_hole(&mut writer.windows[storing.window], &root, uses_extra_ids)?
            }
        };
        for place in missing_from..position {
            let between =
                NodeFacts { name: sequence.names()[place], parent: at, position: place as u32 };
            let added =
                window.add_hole(&mut writer.windows[storing.window], &between, uses_extra_ids);
            match added {
                Ok(slot) => {
                    at = slot;
                    // What events say of the blocks below.
                    let hash = sequence.block_hash(place).unwrap_or_default();
                    window.node(slot).hash.store(hash, Ordering::Relaxed);
                }
                Err(error) => {
                    self.prune(writer, storing.window, at);
                    return Err(error);
                }
            }
        }
        Ok(at)
    }
}
