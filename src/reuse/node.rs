//! The nodes of one window's tree, in one array; a node's place in it is its *slot*.
//!
//! Guards: a slot is given out again only after it was freed. What links nodes, and what a link
//! means, is the business of `window`.

use super::content_name::Name;
use super::key::BlockKey;

/// The host's name for a block of KV memory: not a pool slot, which changes when a block is
/// offloaded. Negative ids are placeholders.
pub type BlockId = i32;

/// Which memory a block lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Where it is computed with; can be sent to peers.
    Primary,
    /// Where it is kept.
    Secondary,
}

/// A node's place.
pub(super) type Slot = u32;

/// A block that a node holds.
#[derive(Debug)]
pub(super) struct HeldBlock {
    pub(super) id: BlockId,
    pub(super) hash: u64,
    pub(super) key: BlockKey,
    /// Grows with each block stored in the window; decides between equally long heads.
    pub(super) stored_order: u64,
    pub(super) tier: Tier,
    /// All tokens of a block, not a partial tail.
    pub(super) is_full: bool,
    /// Its name means the same on other workers.
    pub(super) is_servable: bool,
}

/// One position of one path. The root of each namespace is a node without a block and parent.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: Name,
    /// Place in the sequence: 0 for a first block (and, without meaning, for a root).
    pub(super) position: u32,
    pub(super) parent: Option<Slot>,
    pub(super) first_child: Option<Slot>,
    pub(super) last_child: Option<Slot>,
    pub(super) previous_sibling: Option<Slot>,
    pub(super) next_sibling: Option<Slot>,
    /// Neighbours among the blocks of equal hash.
    pub(super) previous_same_hash: Option<Slot>,
    pub(super) next_same_hash: Option<Slot>,
    /// Pins on this very node.
    pub(super) pins: u32,
    /// Children that are protected; counted in the full window only.
    pub(super) protected_children: u32,
    /// Whether the node is reachable. A node that left the tree stays while it is protected.
    pub(super) is_attached: bool,
    pub(super) block: Option<HeldBlock>,
}

impl Node {
    pub(super) fn new(name: Name, position: u32, parent: Option<Slot>) -> Self {
        Self {
            name,
            position,
            parent,
            first_child: None,
            last_child: None,
            previous_sibling: None,
            next_sibling: None,
            previous_same_hash: None,
            next_same_hash: None,
            pins: 0,
            protected_children: 0,
            is_attached: true,
            block: None,
        }
    }

    pub(super) fn is_protected(&self) -> bool {
        self.pins > 0 || self.protected_children > 0
    }
}

/// All nodes of a window.
#[derive(Debug, Default)]
pub(super) struct Arena {
    nodes: Vec<Option<Node>>,
    free: Vec<Slot>,
}

impl Arena {
    /// Makes room for `additional` nodes, so that as many `insert`s need no memory.
    pub(super) fn try_reserve(&mut self, additional: usize) -> Result<(), super::ReuseError> {
        let fresh = additional.saturating_sub(self.free.len());
        let limit = Slot::MAX as usize;
        if fresh > limit - self.nodes.len() {
            return Err(super::ReuseError::Limit { what: "nodes of a window", limit });
        }
        self.nodes.try_reserve(fresh)?;
        // Room to free every node: leaving the tree must never need memory.
        let all = self.nodes.len() + fresh;
        Ok(self.free.try_reserve(all - self.free.len())?)
    }

    pub(super) fn insert(&mut self, node: Node) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = Some(node);
                slot
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as Slot
            }
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        let node = self.nodes[slot as usize].take();
        debug_assert!(node.is_some(), "a node is freed once");
        self.free.push(slot);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Node)> {
        let slots = self.nodes.iter().enumerate();
        slots.filter_map(|(slot, node)| Some((slot as Slot, node.as_ref()?)))
    }
}

impl std::ops::Index<Slot> for Arena {
    type Output = Node;
    fn index(&self, slot: Slot) -> &Node {
        self.nodes[slot as usize].as_ref().expect("links lead to live nodes")
    }
}

impl std::ops::IndexMut<Slot> for Arena {
    fn index_mut(&mut self, slot: Slot) -> &mut Node {
        self.nodes[slot as usize].as_mut().expect("links lead to live nodes")
    }
}
