//! The blocks of one attention window: a tree of nodes, found by name, by id and by block hash.
//!
//! A node's name stands for its whole path, so names are found directly, not by walking. Nodes know
//! parent and children for what concerns neighbours: heads in common, and what leaves with a block.
//!
//! Invariants, checked by `verify` in tests:
//! - The full window is closed under prefixes: an attached block's parent is a root or holds a
//!   block. Sliding windows may have nodes without a block between (holes).
//! - A node without a block has children, or is about to be pruned.
//! - In the full window a node is protected if it is pinned or a child is protected. A node that
//!   left the tree stays, with its id, until it is no longer protected.
//!
//! Never does: lock, allocate half-way through a change (memory is reserved before), recurse.

use super::content_name::Name;
use super::error::ReuseError;
use super::key::{BlockKey, KeyView};
use super::lookup::Lookup;
use super::node::{Arena, BlockId, HeldBlock, Node, Slot, Tier};
use super::sequence::Sequence;

/// A block found, and how many of its leading tokens count (all of them unless it is the last).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) slot: Slot,
    pub(super) tokens: usize,
}

/// The longest stored prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    /// First block that attention still needs: 0 in the full window.
    pub(super) first_block: usize,
    /// Blocks that are full and present, counted from the root.
    pub(super) full_blocks: usize,
    /// The head of one more block.
    pub(super) partial: Option<Head>,
}

/// What came of storing one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// The tree took the block.
    Taken,
    /// The position holds another block already, or this one.
    Occupied(BlockId),
    /// Not stored: a placeholder, an empty parent, or a block protected elsewhere.
    Returned,
}

pub(super) struct Window {
    /// Attention window in tokens; 0 is the full window.
    tokens: usize,
    pub(super) nodes: Arena,
    pub(super) by_name: Lookup,
    pub(super) by_id: Lookup,
    /// The first of each chain of equal hashes.
    pub(super) by_hash: Lookup,
    next_stored_order: u64,
    attached_blocks: usize,
    protected_blocks: usize,
    secondary_blocks: usize,
}

fn key_of_name(name: &Name) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = name.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn key_of_id(id: BlockId) -> u64 {
    u64::from(id as u32)
}

/// The entry of a node with a block in `by_id` and `by_hash`.
fn held(nodes: &Arena, slot: Slot) -> &HeldBlock {
    nodes[slot].block.as_ref().expect("only nodes with a block are in this table")
}

impl Window {
    pub(super) fn new(tokens: usize, seed: u64) -> Self {
        Self {
            tokens,
            nodes: Arena::default(),
            by_name: Lookup::new(seed),
            by_id: Lookup::new(seed.rotate_left(21)),
            by_hash: Lookup::new(seed.rotate_left(42)),
            next_stored_order: 0,
            attached_blocks: 0,
            protected_blocks: 0,
            secondary_blocks: 0,
        }
    }

    pub(super) fn is_full_window(&self) -> bool {
        self.tokens == 0
    }

    pub(super) fn attached_blocks(&self) -> usize {
        self.attached_blocks
    }

    pub(super) fn protected_blocks(&self) -> usize {
        self.protected_blocks
    }

    pub(super) fn secondary_blocks(&self) -> usize {
        self.secondary_blocks
    }

    pub(super) fn node(&self, slot: Slot) -> &Node {
        &self.nodes[slot]
    }

    pub(super) fn block(&self, slot: Slot) -> &HeldBlock {
        held(&self.nodes, slot)
    }

    // ---- finding ----

    pub(super) fn find_node(&self, name: &Name) -> Option<Slot> {
        self.by_name.find(key_of_name(name), |slot| self.nodes[slot].name == *name)
    }

    /// The attached node of this name, if it holds a block.
    pub(super) fn find_name(&self, name: &Name) -> Option<Slot> {
        self.find_node(name).filter(|slot| self.nodes[*slot].block.is_some())
    }

    /// The node that holds this block, attached or left behind by a pin.
    pub(super) fn find_id(&self, id: BlockId) -> Option<Slot> {
        self.by_id.find(key_of_id(id), |slot| held(&self.nodes, slot).id == id)
    }

    /// A node whose block has this hash.
    pub(super) fn find_hash(&self, hash: u64) -> Option<Slot> {
        self.by_hash.find(hash, |slot| held(&self.nodes, slot).hash == hash)
    }

    /// The node under which the block at `position` hangs.
    fn find_parent(&self, sequence: &Sequence, position: usize) -> Option<Slot> {
        match position.checked_sub(1) {
            None => self.find_node(&sequence.root()),
            Some(before) => self.find_node(&sequence.name(before)?),
        }
    }

    /// The child with the longest head in common with `key`; of equally long ones, the one stored
    /// first. Only children that `is_wanted` are looked at.
    fn longest_head(
        &self,
        parent: Slot,
        key: &KeyView<'_>,
        is_wanted: impl Fn(&HeldBlock) -> bool,
    ) -> Option<Head> {
        let mut best: Option<(usize, u64, Slot)> = None;
        let mut next = self.nodes[parent].first_child;
        while let Some(slot) = next {
            let child = &self.nodes[slot];
            next = child.next_sibling;
            let Some(block) = child.block.as_ref().filter(|block| is_wanted(block)) else {
                continue;
            };
            let tokens = block.key.common_head(key);
            let is_better = best.is_none_or(|(longest, stored_order, _)| {
                tokens > longest || (tokens == longest && block.stored_order < stored_order)
            });
            if tokens > 0 && is_better {
                best = Some((tokens, block.stored_order, slot));
            }
        }
        best.map(|(tokens, _, slot)| Head { slot, tokens })
    }

    /// The head of one more block after `full_blocks` ones, within the first `max_tokens` tokens.
    fn partial(&self, sequence: &Sequence, full_blocks: usize, max_tokens: usize) -> Option<Head> {
        let left = max_tokens.checked_sub(full_blocks * sequence.tokens_per_block())?;
        let key = sequence.key(full_blocks, left);
        if key.tokens.is_empty() {
            return None;
        }
        let parent = self.find_parent(sequence, full_blocks)?;
        self.longest_head(parent, &key, |_| true)
    }

    /// The longest stored prefix within the first `max_tokens` tokens.
    pub(super) fn match_prefix(&self, sequence: &Sequence, max_tokens: usize) -> Prefix {
        let candidates = sequence.full_block_count().min(max_tokens / sequence.tokens_per_block());
        let names = &sequence.names()[..candidates];
        if self.is_full_window() {
            // Closed under prefixes: presence only ever ends once.
            let full_blocks = names.partition_point(|name| self.find_name(name).is_some());
            let partial = self.partial(sequence, full_blocks, max_tokens);
            return Prefix { first_block: 0, full_blocks, partial };
        }
        self.match_sliding(sequence, names, max_tokens)
    }

    /// A prefix of a sliding window is usable if its last `self.tokens` tokens are present, all
    /// those after the last hole.
    fn match_sliding(&self, sequence: &Sequence, names: &[Name], max_tokens: usize) -> Prefix {
        let tokens_per_block = sequence.tokens_per_block();
        let mut best = (0, None);
        let mut hole_end = None;
        let is_usable = |hole_end: Option<usize>, tokens: usize| {
            hole_end.is_none_or(|end| end * tokens_per_block + self.tokens <= tokens)
        };
        for position in 0..=names.len() {
            let before = position * tokens_per_block;
            if is_usable(hole_end, before) {
                best = (position, None);
            }
            let is_present = names.get(position).is_some_and(|name| self.find_name(name).is_some());
            if is_present {
                continue;
            }
            // Looked for only where it can be of use: children may be many.
            if is_usable(hole_end, before + tokens_per_block) {
                let partial = self
                    .partial(sequence, position, max_tokens)
                    .filter(|head| is_usable(hole_end, before + head.tokens));
                if partial.is_some() {
                    best = (position, partial);
                }
            }
            hole_end = Some(position + 1);
        }
        let (full_blocks, partial) = best;
        let tokens = full_blocks * tokens_per_block + partial.map_or(0, |head: Head| head.tokens);
        Prefix {
            first_block: tokens.saturating_sub(self.tokens) / tokens_per_block,
            full_blocks,
            partial,
        }
    }

    /// A block that can be sent: the one at `position`, primary; for the partial tail a block,
    /// full or short, whose tokens start with the tail's.
    pub(super) fn find_sendable(&self, sequence: &Sequence, position: usize) -> Option<Slot> {
        if let Some(name) = sequence.names().get(position) {
            let is_primary = |slot: &Slot| self.block(*slot).tier == Tier::Primary;
            return self.find_name(name).filter(is_primary);
        }
        let key = sequence.key(position, sequence.tokens_per_block());
        let parent = self.find_parent(sequence, position)?;
        let head = self.longest_head(parent, &key, |block| block.tier == Tier::Primary)?;
        (head.tokens == key.tokens.len()).then_some(head.slot)
    }

    /// A block that can be sent to a peer that knows only names: full, primary, of a name that
    /// means the same everywhere, right below `parent` (below a root if there is none).
    pub(super) fn find_servable(&self, name: &Name, parent: Option<Slot>) -> Option<Slot> {
        let slot = self.find_name(name)?;
        let node = &self.nodes[slot];
        let block = self.block(slot);
        let is_in_place = match parent {
            None => node.position == 0,
            Some(_) => node.parent == parent,
        };
        (is_in_place && block.is_full && block.is_servable && block.tier == Tier::Primary)
            .then_some(slot)
    }

    // ---- storing ----

    /// Makes room for `store` to put blocks at `first..first + count`.
    pub(super) fn reserve(
        &mut self,
        sequence: &Sequence,
        first: usize,
        count: usize,
    ) -> Result<(), ReuseError> {
        // The full window stores nothing below an empty position; sliding ones make the way there.
        let way = if self.is_full_window() {
            1
        } else {
            let way = sequence.names()[..first.min(sequence.full_block_count())].iter().rev();
            // A node that is there has all nodes above it.
            1 + way.take_while(|name| self.find_node(name).is_none()).count()
        };
        self.nodes.try_reserve(way + count)?;
        let nodes = &self.nodes;
        self.by_name.try_reserve(way + count, |slot| key_of_name(&nodes[slot].name))?;
        self.by_id.try_reserve(count, |slot| key_of_id(held(nodes, slot).id))?;
        self.by_hash.try_reserve(count, |slot| held(nodes, slot).hash)
    }

    /// Puts a block at one position; `reserve` has made room.
    pub(super) fn store(
        &mut self,
        sequence: &Sequence,
        position: usize,
        id: BlockId,
        key: BlockKey,
    ) -> Stored {
        let (Some(name), Some(hash)) = (sequence.name(position), sequence.block_hash(position))
        else {
            return Stored::Returned;
        };
        if let Some(slot) = self.find_name(&name) {
            return Stored::Occupied(self.block(slot).id);
        }
        let has_parent = position == 0
            || sequence.name(position - 1).is_some_and(|parent| self.find_name(&parent).is_some());
        if id < 0 || (self.is_full_window() && !has_parent) {
            return Stored::Returned;
        }
        if let Some(old) = self.find_id(id) {
            let old_node = &self.nodes[old];
            let old_position = old_node.position as usize;
            let is_above =
                old_position < position && sequence.name(old_position) == Some(old_node.name);
            if old_node.is_protected() || is_above {
                return Stored::Returned;
            }
            self.detach_below(old);
        }
        let slot = self.make_way(sequence, position, name);
        let stored_order = self.next_stored_order;
        self.next_stored_order += 1;
        let is_full = position < sequence.full_block_count();
        let is_servable = sequence.is_servable_to_peers();
        let tier = Tier::Primary;
        self.nodes[slot].block =
            Some(HeldBlock { id, hash, key, stored_order, tier, is_full, is_servable });
        let nodes = &self.nodes;
        self.by_id.insert(slot, |slot| key_of_id(held(nodes, slot).id));
        self.link_hash(slot, hash);
        self.attached_blocks += 1;
        Stored::Taken
    }

    /// The node at `position`, made together with the nodes above it that are missing.
    fn make_way(&mut self, sequence: &Sequence, position: usize, name: Name) -> Slot {
        if let Some(slot) = self.find_node(&name) {
            return slot;
        }
        // Upwards to what is there: names know their place, so nothing is walked twice.
        let mut missing_from = position;
        let mut parent = None;
        while missing_from > 0 && parent.is_none() {
            parent = self.find_node(&sequence.names()[missing_from - 1]);
            missing_from -= usize::from(parent.is_none());
        }
        let mut parent = match parent.or_else(|| self.find_node(&sequence.root())) {
            Some(slot) => slot,
            None => self.insert(Node::new(sequence.root(), 0, None)),
        };
        for place in missing_from..position {
            let between = Node::new(sequence.names()[place], place as u32, Some(parent));
            parent = self.insert(between);
        }
        self.insert(Node::new(name, position as u32, Some(parent)))
    }

    /// Adds a node, as its parent's last child.
    fn insert(&mut self, mut node: Node) -> Slot {
        let parent = node.parent;
        node.previous_sibling = parent.and_then(|parent| self.nodes[parent].last_child);
        let previous = node.previous_sibling;
        let slot = self.nodes.insert(node);
        if let Some(previous) = previous {
            self.nodes[previous].next_sibling = Some(slot);
        }
        if let Some(parent) = parent {
            let parent = &mut self.nodes[parent];
            parent.last_child = Some(slot);
            parent.first_child.get_or_insert(slot);
        }
        let nodes = &self.nodes;
        self.by_name.insert(slot, |slot| key_of_name(&nodes[slot].name));
        slot
    }

    fn link_hash(&mut self, slot: Slot, hash: u64) {
        let Some(first) = self.find_hash(hash) else {
            let nodes = &self.nodes;
            self.by_hash.insert(slot, |slot| held(nodes, slot).hash);
            return;
        };
        // Second in the chain, so that many equal hashes cost no more than one.
        let second = self.nodes[first].next_same_hash.replace(slot);
        self.nodes[slot].previous_same_hash = Some(first);
        self.nodes[slot].next_same_hash = second;
        if let Some(second) = second {
            self.nodes[second].previous_same_hash = Some(slot);
        }
    }

    fn unlink_hash(&mut self, slot: Slot) {
        let hash = self.block(slot).hash;
        let node = &mut self.nodes[slot];
        let (previous, next) = (node.previous_same_hash.take(), node.next_same_hash.take());
        if let Some(next) = next {
            self.nodes[next].previous_same_hash = previous;
        }
        match previous {
            Some(previous) => self.nodes[previous].next_same_hash = next,
            None => self.by_hash.remove(hash, slot, next),
        }
    }

    // ---- leaving ----

    /// Takes a node and everything below it out of the tree, and nodes above that lost their use.
    /// Protected blocks stay known by id until their last unpin. Returns how many blocks left.
    pub(super) fn detach_below(&mut self, top: Slot) -> usize {
        let before = self.attached_blocks;
        let above = self.nodes[top].parent;
        let mut at = top;
        // From the leaves up, without a stack: a node with no child left leaves its parent's list.
        loop {
            if let Some(child) = self.nodes[at].first_child {
                at = child;
                continue;
            }
            let parent = self.nodes[at].parent;
            self.detach_leaf(at);
            match parent {
                Some(parent) if at != top => at = parent,
                _ => break,
            }
        }
        self.prune(above);
        before - self.attached_blocks
    }

    /// Removes nodes that hold nothing and lead to nothing, upwards.
    fn prune(&mut self, from: Option<Slot>) {
        let mut next = from;
        while let Some(slot) = next {
            let node = &self.nodes[slot];
            if node.block.is_some() || node.first_child.is_some() {
                break;
            }
            next = node.parent;
            self.detach_leaf(slot);
        }
    }

    fn detach_leaf(&mut self, slot: Slot) {
        self.unlink_from_siblings(slot);
        let key = key_of_name(&self.nodes[slot].name);
        self.by_name.remove(key, slot, None);
        let Some(block) = &self.nodes[slot].block else {
            return self.nodes.remove(slot);
        };
        self.attached_blocks -= 1;
        self.secondary_blocks -= usize::from(block.tier == Tier::Secondary);
        self.unlink_hash(slot);
        self.nodes[slot].is_attached = false;
        if !self.nodes[slot].is_protected() {
            return self.free(slot);
        }
        // Protection is handed on to parents that hold blocks, in the full window; all other links
        // would dangle once the parent is gone.
        let keeps_parent = self.is_full_window()
            && self.nodes[slot].parent.is_some_and(|parent| self.nodes[parent].block.is_some());
        if !keeps_parent {
            self.nodes[slot].parent = None;
        }
    }

    fn unlink_from_siblings(&mut self, slot: Slot) {
        let node = &mut self.nodes[slot];
        let parent = node.parent;
        let (previous, next) = (node.previous_sibling.take(), node.next_sibling.take());
        match (previous, parent) {
            (Some(previous), _) => self.nodes[previous].next_sibling = next,
            (None, Some(parent)) => self.nodes[parent].first_child = next,
            (None, None) => {}
        }
        match (next, parent) {
            (Some(next), _) => self.nodes[next].previous_sibling = previous,
            (None, Some(parent)) => self.nodes[parent].last_child = previous,
            (None, None) => {}
        }
    }

    /// Forgets a node that left the tree and is not protected.
    fn free(&mut self, slot: Slot) {
        let id = self.block(slot).id;
        self.by_id.remove(key_of_id(id), slot, None);
        self.nodes.remove(slot);
    }

    /// Takes everything out of the tree.
    pub(super) fn detach_all(&mut self) {
        // Any name leads to a root; a root takes its whole tree along.
        while let Some(mut slot) = self.by_name.any() {
            while let Some(parent) = self.nodes[slot].parent {
                slot = parent;
            }
            self.detach_below(slot);
        }
    }

    /// Moves a block between tiers; its id stays.
    pub(super) fn set_tier(&mut self, slot: Slot, tier: Tier) {
        let block = self.nodes[slot].block.as_mut().expect("a slot found by id holds a block");
        self.secondary_blocks += usize::from(tier == Tier::Secondary);
        self.secondary_blocks -= usize::from(block.tier == Tier::Secondary);
        block.tier = tier;
    }

    // ---- protecting ----

    /// Protects a block; in the full window all blocks before it too.
    pub(super) fn pin(&mut self, slot: Slot) {
        let was_protected = self.nodes[slot].is_protected();
        self.nodes[slot].pins += 1;
        if was_protected {
            return;
        }
        self.protected_blocks += 1;
        let mut at = slot;
        while let Some(parent) = self.parent_to_protect(at) {
            let was_protected = self.nodes[parent].is_protected();
            self.nodes[parent].protected_children += 1;
            if was_protected {
                break;
            }
            self.protected_blocks += 1;
            at = parent;
        }
    }

    /// Takes back one `pin`.
    pub(super) fn unpin(&mut self, slot: Slot) {
        self.nodes[slot].pins -= 1;
        let mut at = slot;
        while !self.nodes[at].is_protected() {
            self.protected_blocks -= 1;
            let parent = self.parent_to_protect(at);
            if !self.nodes[at].is_attached {
                self.free(at);
            }
            let Some(parent) = parent else {
                break;
            };
            self.nodes[parent].protected_children -= 1;
            at = parent;
        }
    }

    fn parent_to_protect(&self, slot: Slot) -> Option<Slot> {
        let parent = self.nodes[slot].parent.filter(|_| self.is_full_window())?;
        self.nodes[parent].block.is_some().then_some(parent)
    }
}
