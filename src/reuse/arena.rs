//! The nodes of one window with their links and keys, by slot.
//!
//! Guards: a slot is given out again only after it was freed, under another generation; memory is
//! asked for when a slot is taken, never when one is given back. What links nodes, and what a link
//! means, is the business of `children` and `window`.

use super::chunks::Chunks;
use super::error::ReuseError;
use super::node::{get, set, Links, Node, Slot, ORIGIN};
use super::stored_key::StoredKeys;

/// Nodes in one chunk of memory.
const CHUNK_BITS: u32 = 10;

#[derive(Debug)]
pub(super) struct Arena {
    nodes: Chunks<Node>,
    links: Chunks<Links>,
    pub(super) keys: StoredKeys,
    /// Decides priorities among siblings.
    pub(super) seed: u64,
}

/// The writer's part.
#[derive(Debug)]
pub(super) struct ArenaWriter {
    /// The first slot that was never used.
    unused_from: Slot,
    /// The first of the list of free slots.
    free: Slot,
}

impl Arena {
    pub(super) fn new(
        tokens_per_block: usize,
        seed: u64,
    ) -> Result<(Self, ArenaWriter), ReuseError> {
        let arena = Self {
            nodes: Chunks::new(CHUNK_BITS, 1)?,
            links: Chunks::new(CHUNK_BITS, 1)?,
            keys: StoredKeys::new(tokens_per_block)?,
            seed,
        };
        let mut writer = ArenaWriter { unused_from: ORIGIN, free: ORIGIN };
        arena.take(&mut writer, false)?;
        arena.node(ORIGIN).attach();
        Ok((arena, writer))
    }

    pub(super) fn node(&self, slot: Slot) -> &Node {
        self.nodes.at(slot as usize)
    }

    pub(super) fn links(&self, slot: Slot) -> &Links {
        self.links.at(slot as usize)
    }

    /// Makes room for `count` nodes with their keys, so that as many `take`s need no memory; asks
    /// `also` for whatever else each of them will need.
    pub(super) fn reserve(
        &self,
        writer: &ArenaWriter,
        count: usize,
        uses_extra_ids: bool,
        also: impl Fn(Slot) -> Result<(), ReuseError>,
    ) -> Result<(), ReuseError> {
        let (mut free, mut unused) = (writer.free, writer.unused_from);
        for _ in 0..count {
            let slot = if free == ORIGIN { unused } else { free };
            if slot == unused {
                self.nodes.ensure(slot as usize, "blocks of a window")?;
                self.links.ensure(slot as usize, "blocks of a window")?;
                unused += 1;
            } else {
                free = get(&self.links(slot).next);
            }
            self.keys.ensure(slot, uses_extra_ids)?;
            also(slot)?;
        }
        Ok(())
    }

    /// A free node with no links and room for a key.
    pub(super) fn take(
        &self,
        writer: &mut ArenaWriter,
        uses_extra_ids: bool,
    ) -> Result<Slot, ReuseError> {
        let slot = if writer.free == ORIGIN { writer.unused_from } else { writer.free };
        if slot == writer.unused_from {
            self.nodes.ensure(slot as usize, "blocks of a window")?;
            self.links.ensure(slot as usize, "blocks of a window")?;
        }
        self.keys.ensure(slot, uses_extra_ids)?;
        let links = self.links(slot);
        if slot == writer.unused_from {
            writer.unused_from += 1;
        } else {
            writer.free = get(&links.next);
        }
        for link in [
            &links.children,
            &links.left,
            &links.right,
            &links.up,
            &links.oldest,
            &links.oldest_primary,
            &links.previous_same_hash,
            &links.next_same_hash,
            &links.protectors,
            &links.detached_children,
            &links.next,
        ] {
            set(link, ORIGIN);
        }
        Ok(slot)
    }

    /// Frees a node that nothing leads to any more.
    pub(super) fn give_back(&self, writer: &mut ArenaWriter, slot: Slot) {
        self.node(slot).free();
        set(&self.links(slot).next, writer.free);
        writer.free = slot;
    }

    /// All slots that were ever used but the origin; for `verify`.
    pub(super) fn slots(&self, writer: &ArenaWriter) -> std::ops::Range<Slot> {
        1..writer.unused_from
    }
}
