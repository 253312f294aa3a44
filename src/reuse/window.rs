//! The blocks of one attention window: a tree of nodes, found by name, by id and by block hash.
//!
//! A node's name stands for its whole path, so names are found directly, not by walking. Nodes know
//! parent and children for what concerns neighbours: heads in common, and what leaves with a block.
//! Here is what one block's coming and going does to all parts at once; `store` and `leave` say when
//! it happens, `matching` and `sendable` are what readers ask, `protection` counts.
//!
//! Invariants, checked by `verify` in tests:
//! - The full window is closed under prefixes: an attached block's parent is a root or holds a
//!   block. Sliding windows may have nodes without a block between (holes).
//! - A node without a block has children, or is about to be pruned.
//! - A node that left the tree stays, with its id, until nothing protects it: no pin is on it and,
//!   in the full window, no child stays.
//!
//! Never does: lock, recurse.

use std::hint::black_box;

use super::arena::{Arena, ArenaWriter};
use super::changes::Changes;
use super::chunks::Chunks;
use super::content_name::Name;
use super::error::ReuseError;
use super::events::StoredBlock;
use super::free_queues::Standing;
use super::lookup::{Lookup, LookupWriter};
use super::node::{
    get, name_words, set, BlockFacts, BlockId, Node, NodeFacts, Slot, Tier, Word, FENCED, ORIGIN,
};
use super::stored_key::Probe;
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Names that are looked for at a time, so that their cache misses overlap.
pub(super) const WARMED: usize = 16;

/// A node that was found, and its state at that moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: Slot,
    pub(super) word: Word,
}

/// What room is asked for: keys in the three tables, a node for each name.
#[derive(Debug, Default)]
pub(super) struct Room {
    names: Vec<u64>,
    ids: Vec<u64>,
    hashes: Vec<u64>,
}

impl Room {
    pub(super) fn add_name(&mut self, name: &Name) -> Result<(), ReuseError> {
        self.names.try_reserve(1)?;
        self.names.push(name_words(name)[0]);
        Ok(())
    }

    pub(super) fn add_block(&mut self, id: BlockId, hash: u64) -> Result<(), ReuseError> {
        self.ids.try_reserve(1)?;
        self.hashes.try_reserve(1)?;
        self.ids.push(key_of_id(id));
        self.hashes.push(hash);
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Window {
    /// Attention window in tokens; 0 is the full window.
    pub(super) tokens: usize,
    pub(super) arena: Arena,
    pub(super) by_name: Lookup,
    pub(super) by_id: Lookup,
    /// The first of each chain of equal hashes.
    pub(super) by_hash: Lookup,
    /// The fences of blocks stored with one; made where there are any.
    fences: Chunks<AtomicU64>,
    attached_blocks: AtomicUsize,
    secondary_blocks: AtomicUsize,
    pub(super) protected_blocks: AtomicUsize,
    /// Not 0 when a block that left the tree lost its last pin.
    pub(super) has_released: AtomicU32,
    pub(super) changes: Changes,
}

/// The writer's part of a window; it comes with each change.
#[derive(Debug)]
pub(super) struct WindowWriter {
    pub(super) arena: ArenaWriter,
    pub(super) by_name: LookupWriter,
    pub(super) by_id: LookupWriter,
    pub(super) by_hash: LookupWriter,
    next_stored_order: u64,
    /// Of the blocks that left the tree, those that no other such block hangs below: a list by
    /// `left` and `right`.
    pub(super) detached_leaves: Slot,
}

fn key_of_id(id: BlockId) -> u64 {
    u64::from(id as u32)
}

impl Window {
    pub(super) fn new(
        tokens: usize,
        tokens_per_block: usize,
        seed: u64,
        changes: Changes,
    ) -> Result<(Self, WindowWriter), ReuseError> {
        let (arena, arena_writer) = Arena::new(tokens_per_block, seed.rotate_left(11))?;
        let (by_name, by_name_writer) = Lookup::new(seed)?;
        let (by_id, by_id_writer) = Lookup::new(seed.rotate_left(21))?;
        let (by_hash, by_hash_writer) = Lookup::new(seed.rotate_left(42))?;
        let window = Self {
            tokens,
            arena,
            by_name,
            by_id,
            by_hash,
            fences: Chunks::new(10, 1)?,
            attached_blocks: AtomicUsize::new(0),
            secondary_blocks: AtomicUsize::new(0),
            protected_blocks: AtomicUsize::new(0),
            has_released: AtomicU32::new(0),
            changes,
        };
        let writer = WindowWriter {
            arena: arena_writer,
            by_name: by_name_writer,
            by_id: by_id_writer,
            by_hash: by_hash_writer,
            next_stored_order: 0,
            detached_leaves: ORIGIN,
        };
        Ok((window, writer))
    }

    pub(super) fn is_full_window(&self) -> bool {
        self.tokens == 0
    }

    pub(super) fn attached_blocks(&self) -> usize {
        self.attached_blocks.load(Ordering::Relaxed)
    }

    pub(super) fn secondary_blocks(&self) -> usize {
        self.secondary_blocks.load(Ordering::SeqCst)
    }

    pub(super) fn protected_blocks(&self) -> usize {
        self.protected_blocks.load(Ordering::Relaxed)
    }

    pub(super) fn node(&self, slot: Slot) -> &Node {
        self.arena.node(slot)
    }

    // ---- finding; any thread ----

    /// The node of this name that is in the tree.
    pub(super) fn find_attached(&self, name: &Name) -> Option<Found> {
        let words = name_words(name);
        let mut found = None;
        self.by_name.find(words[0], |slot| {
            let node = self.node(slot);
            let word = node.word();
            let is_it = word.is_attached() && node.has_name(&words) && node.is_still(word);
            if is_it {
                found = Some(Found { slot, word });
            }
            is_it
        });
        found
    }

    /// The node of this name, if it holds a block that can be matched.
    pub(super) fn find_alive(&self, name: &Name) -> Option<Found> {
        self.find_attached(name).filter(|found| found.word.is_alive())
    }

    /// Looks at where the first [`WARMED`] of the names should be, so that looking again is fast:
    /// at all their buckets, then at all their nodes, so that the cache misses of each overlap.
    pub(super) fn warm<'n>(&self, names: impl Iterator<Item = &'n Name>) {
        let mut slots = [ORIGIN; WARMED];
        for (slot, name) in slots.iter_mut().zip(names) {
            *slot = self.by_name.guess(name_words(name)[0]).unwrap_or(ORIGIN);
        }
        black_box(slots.iter().fold(0, |sum, slot| sum ^ self.node(*slot).first_name_word()));
    }

    /// Whether the block's bytes are complete, given the last fence that has passed.
    pub(super) fn is_complete(&self, slot: Slot, passed_fence: u64) -> bool {
        if !self.node(slot).info().has(FENCED) {
            return true;
        }
        let fence = self.fences.try_row(slot as usize);
        fence.is_some_and(|fence| fence[0].load(Ordering::Acquire) <= passed_fence)
    }

    /// Whether the block can be sent: in primary memory, and complete.
    pub(super) fn is_sendable(&self, slot: Slot, passed_fence: u64) -> bool {
        let is_primary = self.node(slot).info().tier() == Tier::Primary;
        is_primary && self.is_complete(slot, passed_fence)
    }

    // ---- finding; the writer ----

    /// The node that holds this block, attached or left behind by a pin.
    pub(super) fn find_id(&self, id: BlockId) -> Option<Slot> {
        self.by_id.find(key_of_id(id), |slot| self.node(slot).id() == id)
    }

    /// A node whose block has this hash.
    pub(super) fn find_hash(&self, hash: u64) -> Option<Slot> {
        self.by_hash.find(hash, |slot| self.node(slot).hash() == hash)
    }

    /// The parent that the protection of a block reaches on to.
    pub(super) fn parent_to_protect(&self, slot: Slot) -> Option<Slot> {
        let parent = self.node(slot).parent();
        let holds_block = parent != ORIGIN && self.node(parent).word().has_block();
        (self.is_full_window() && holds_block).then_some(parent)
    }

    /// Protection as far as it is accounted for.
    pub(super) fn is_accounted(&self, slot: Slot) -> bool {
        get(&self.arena.links(slot).protectors) > 0
    }

    // ---- coming ----

    /// Makes room in the tables that find a block.
    fn reserve(
        &self,
        writer: &mut WindowWriter,
        name: Option<&Name>,
        block: Option<(BlockId, u64)>,
    ) -> Result<(), ReuseError> {
        if let Some(name) = name {
            let key_of = |slot| self.node(slot).first_name_word();
            self.by_name.reserve_one(&mut writer.by_name, name_words(name)[0], key_of)?;
        }
        if let Some((id, hash)) = block {
            let key_of = |slot| key_of_id(self.node(slot).id());
            self.by_id.reserve_one(&mut writer.by_id, key_of_id(id), key_of)?;
            let key_of = |slot| self.node(slot).hash();
            self.by_hash.reserve_one(&mut writer.by_hash, hash, key_of)?;
        }
        Ok(())
    }

    /// Makes room for blocks under these names, ids and hashes, and for nodes on the way to them; so
    /// that adding them needs no memory.
    pub(super) fn reserve_all(
        &self,
        writer: &mut WindowWriter,
        mut room: Room,
        uses_extra_ids: bool,
        is_fenced: bool,
    ) -> Result<(), ReuseError> {
        let fence = |slot: Slot| match is_fenced {
            true => self.fences.ensure(slot as usize, "blocks of a window"),
            false => Ok(()),
        };
        self.arena.reserve(&writer.arena, room.names.len(), uses_extra_ids, fence)?;
        // Many equal hashes are one entry, and many blocks may be made to have one.
        for keys in [&mut room.names, &mut room.ids, &mut room.hashes] {
            keys.sort_unstable();
            keys.dedup();
        }
        let node = |slot| self.node(slot);
        self.by_name
            .reserve(&mut writer.by_name, &room.names, |slot| node(slot).first_name_word())?;
        self.by_id.reserve(&mut writer.by_id, &room.ids, |slot| key_of_id(node(slot).id()))?;
        self.by_hash.reserve(&mut writer.by_hash, &room.hashes, |slot| node(slot).hash())
    }

    /// Adds a node without a block: a root below the origin, or a hole.
    pub(super) fn add_hole(
        &self,
        writer: &mut WindowWriter,
        facts: &NodeFacts,
        uses_extra_ids: bool,
    ) -> Result<Slot, ReuseError> {
        self.reserve(writer, Some(&facts.name), None)?;
        let slot = self.arena.take(&mut writer.arena, uses_extra_ids)?;
        self.next_order(writer, slot);
        let node = self.node(slot);
        node.fill(facts);
        node.attach();
        self.arena.insert_child(facts.parent, slot, None);
        self.by_name.insert(&mut writer.by_name, node.first_name_word(), slot);
        self.tell_standing(facts.parent);
        Ok(slot)
    }

    fn next_order(&self, writer: &mut WindowWriter, slot: Slot) {
        let order = &self.arena.links(slot).stored_order;
        order.store(writer.next_stored_order, Ordering::Relaxed);
        writer.next_stored_order += 1;
    }

    /// Puts a block into the tree: into the hole at its position, or as a node of its own. Fails
    /// before anything changed.
    pub(super) fn add_block(
        &self,
        writer: &mut WindowWriter,
        hole: Option<Slot>,
        facts: &NodeFacts,
        block: &BlockFacts,
        key: &Probe<'_>,
        fence: Option<u64>,
    ) -> Result<Slot, ReuseError> {
        let name = if hole.is_none() { Some(&facts.name) } else { None };
        self.reserve(writer, name, Some((block.id, block.hash)))?;
        let uses_extra_ids = key.extra_ids.is_some();
        let slot = match hole {
            Some(slot) => slot,
            None => self.arena.take(&mut writer.arena, uses_extra_ids)?,
        };
        if let Some(fence) = fence {
            if let Err(error) = self.fences.ensure(slot as usize, "blocks of a window") {
                if hole.is_none() {
                    self.arena.give_back(&mut writer.arena, slot);
                }
                return Err(error);
            }
            self.fences.at(slot as usize).store(fence, Ordering::Release);
        }
        let node = self.node(slot);
        match hole {
            Some(_) => self.arena.remove_child(facts.parent, slot),
            None => node.fill(facts),
        }
        self.next_order(writer, slot);
        self.arena.keys.write(slot, key);
        node.fill_block(block);
        node.attach_block();
        self.arena.insert_child(facts.parent, slot, Some(key));
        if hole.is_none() {
            self.by_name.insert(&mut writer.by_name, node.first_name_word(), slot);
        }
        self.by_id.insert(&mut writer.by_id, key_of_id(block.id), slot);
        self.link_hash(writer, slot, block.hash);
        self.attached_blocks.fetch_add(1, Ordering::Relaxed);
        self.changes.stored(|| self.stored_block(slot));
        self.tell_standing(slot);
        self.tell_standing(facts.parent);
        Ok(slot)
    }

    /// A block that is not in the tree, known by id and pinned once from the start.
    pub(super) fn add_held(
        &self,
        writer: &mut WindowWriter,
        id: BlockId,
    ) -> Result<Slot, ReuseError> {
        let key_of = |slot| key_of_id(self.node(slot).id());
        self.by_id.reserve_one(&mut writer.by_id, key_of_id(id), key_of)?;
        let slot = self.arena.take(&mut writer.arena, false)?;
        let node = self.node(slot);
        node.fill(&NodeFacts { name: Name([0; 32]), parent: ORIGIN, position: 0 });
        node.fill_block(&BlockFacts { id, hash: 0, info: super::node::Info::new(0, 0) });
        node.hold();
        self.by_id.insert(&mut writer.by_id, key_of_id(id), slot);
        self.add_detached_leaf(writer, slot);
        self.tell_standing(slot);
        Ok(slot)
    }

    fn link_hash(&self, writer: &mut WindowWriter, slot: Slot, hash: u64) {
        let Some(first) = self.find_hash(hash) else {
            return self.by_hash.insert(&mut writer.by_hash, hash, slot);
        };
        // Second in the chain, so that many equal hashes cost no more than one.
        let first_links = self.arena.links(first);
        let second = get(&first_links.next_same_hash);
        set(&first_links.next_same_hash, slot);
        let links = self.arena.links(slot);
        set(&links.previous_same_hash, first);
        set(&links.next_same_hash, second);
        if second != ORIGIN {
            set(&self.arena.links(second).previous_same_hash, slot);
        }
    }

    fn unlink_hash(&self, writer: &mut WindowWriter, slot: Slot) {
        let links = self.arena.links(slot);
        let (previous, next) = (get(&links.previous_same_hash), get(&links.next_same_hash));
        if next != ORIGIN {
            set(&self.arena.links(next).previous_same_hash, previous);
        }
        if previous != ORIGIN {
            set(&self.arena.links(previous).next_same_hash, next);
        } else {
            let heir = (next != ORIGIN).then_some(next);
            self.by_hash.remove(&mut writer.by_hash, self.node(slot).hash(), slot, heir);
        }
        set(&links.previous_same_hash, ORIGIN);
        set(&links.next_same_hash, ORIGIN);
    }

    // ---- going ----

    /// Takes a node out of the tree that has no child in it any more; `is_top` if its siblings stay.
    /// Its pins, as they were at that moment.
    pub(super) fn take_out(&self, writer: &mut WindowWriter, slot: Slot, is_top: bool) -> u64 {
        let (node, links) = (self.node(slot), self.arena.links(slot));
        let parent = node.parent();
        if is_top {
            self.arena.remove_child(parent, slot);
        } else {
            // All siblings go, so their order need not be kept; searches must notice.
            self.arena.disturb_children(parent);
        }
        for link in [&links.children, &links.left, &links.right, &links.up] {
            set(link, ORIGIN);
        }
        self.by_name.remove(&mut writer.by_name, node.first_name_word(), slot, None);
        self.tell_standing(parent);
        if !node.word().has_block() {
            self.arena.give_back(&mut writer.arena, slot);
            return 0;
        }
        self.attached_blocks.fetch_sub(1, Ordering::Relaxed);
        if node.info().tier() == Tier::Secondary {
            self.secondary_blocks.fetch_sub(1, Ordering::SeqCst);
        }
        self.unlink_hash(writer, slot);
        self.changes.removed(|| self.stored_block(slot));
        self.tell_standing(slot);
        node.detach().pins()
    }

    /// Forgets a block that left the tree and is not protected.
    pub(super) fn forget(&self, writer: &mut WindowWriter, slot: Slot) {
        debug_assert!(!self.is_accounted(slot), "what is accounted for is protected");
        self.by_id.remove(&mut writer.by_id, key_of_id(self.node(slot).id()), slot, None);
        self.tell_standing(slot);
        self.arena.give_back(&mut writer.arena, slot);
    }

    /// Keeps a block that left the tree for those who protect it.
    pub(super) fn keep(&self, writer: &mut WindowWriter, slot: Slot) {
        match self.parent_to_protect(slot) {
            Some(parent) => {
                let count = &self.arena.links(parent).detached_children;
                set(count, get(count) + 1);
                self.tell_standing(parent);
            }
            // Any other parent may be gone while the block is still there.
            None => set(&self.node(slot).parent, ORIGIN),
        }
        if get(&self.arena.links(slot).detached_children) == 0 {
            self.add_detached_leaf(writer, slot);
        }
    }

    pub(super) fn add_detached_leaf(&self, writer: &mut WindowWriter, slot: Slot) {
        let (links, next) = (self.arena.links(slot), writer.detached_leaves);
        set(&links.left, ORIGIN);
        set(&links.right, next);
        if next != ORIGIN {
            set(&self.arena.links(next).left, slot);
        }
        writer.detached_leaves = slot;
    }

    pub(super) fn remove_detached_leaf(&self, writer: &mut WindowWriter, slot: Slot) {
        let links = self.arena.links(slot);
        let (previous, next) = (get(&links.left), get(&links.right));
        if next != ORIGIN {
            set(&self.arena.links(next).left, previous);
        }
        if previous != ORIGIN {
            set(&self.arena.links(previous).right, next);
        } else {
            writer.detached_leaves = next;
        }
    }

    /// Moves a block that is in the tree between tiers; its id stays.
    pub(super) fn set_tier(&self, slot: Slot, tier: Tier) {
        let node = self.node(slot);
        if node.info().tier() == tier {
            return;
        }
        // The count first: a reader that sees none in secondary memory looks at no block.
        match tier {
            Tier::Secondary => {
                self.secondary_blocks.fetch_add(1, Ordering::SeqCst);
                node.set_tier(tier);
            }
            Tier::Primary => {
                node.set_tier(tier);
                self.secondary_blocks.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.arena.refresh_child(node.parent(), slot);
    }

    /// Gives a block that is in the tree another priority.
    pub(super) fn set_priority(&self, slot: Slot, priority: u8) {
        if self.node(slot).info().priority() != priority {
            self.node(slot).set_priority(priority);
            self.changes.updated(|| self.stored_block(slot));
        }
    }

    // ---- telling ----

    /// How a block in the tree looks from outside.
    pub(super) fn stored_block(&self, slot: Slot) -> StoredBlock {
        let node = self.node(slot);
        let (info, position) = (node.info(), node.position() as usize);
        StoredBlock {
            window: self.tokens as i32,
            id: node.id(),
            hash: node.hash(),
            parent_hash: if position == 0 { 0 } else { self.node(node.parent()).hash() },
            position,
            token_count: info.token_count(),
            tier: info.tier(),
            priority: info.priority(),
        }
    }

    /// Fills `blocks` with those in the tree from the place `from` on; where the next begins, if any
    /// do.
    pub(super) fn list(
        &self,
        writer: &WindowWriter,
        from: Slot,
        blocks: &mut [Option<StoredBlock>],
    ) -> Option<Slot> {
        let slots = self.arena.slots(&writer.arena);
        let mut at = from.max(slots.start);
        // As many places are looked at as there is room, free ones too: work is bounded.
        for block in blocks {
            if at >= slots.end {
                return None;
            }
            *block = self.node(at).word().is_alive().then(|| self.stored_block(at));
            at += 1;
        }
        (at < slots.end).then_some(at)
    }

    /// How the block of this id stands, as far as pins are accounted for.
    pub(super) fn standing(&self, id: BlockId) -> Standing {
        let Some(slot) = self.find_id(id) else {
            return Standing::default();
        };
        let links = self.arena.links(slot);
        let is_stored = self.node(slot).word().is_attached();
        Standing {
            is_stored,
            has_stored_below: is_stored && get(&links.children) != ORIGIN,
            // What left the tree and is still known is so because it is protected.
            is_protected: !is_stored
                || self.is_accounted(slot)
                || get(&links.detached_children) > 0,
        }
    }

    /// A block stands otherwise than before; nothing for nodes without one.
    pub(super) fn tell_standing(&self, slot: Slot) {
        if slot != ORIGIN && self.node(slot).word().has_block() {
            self.changes.standing(self.node(slot).id());
        }
    }
}
