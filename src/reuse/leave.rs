//! How blocks leave the tree: evicted, removed, or forgotten after their last unpin.
//!
//! A block leaves with everything below it. First all of these nodes are *closed*, one by one: a
//! closed node takes no pin. In the full window an eviction that meets a pinned node reopens what it
//! closed and answers busy; readers may miss a block of such a chain for that moment, which is as if
//! they had asked after an eviction and before the block came back. Only when all are closed do they
//! go, children before parents: from there on nothing can fail.
//!
//! Why that makes evicting an inner block safe: a pin is a change of the last node's word and so is
//! closing, so one of the two comes first and the other sees it. A pin that came first makes the
//! eviction busy; one that comes second is refused. Blocks before a pinned one hence cannot leave,
//! although no pin is on them.
//!
//! Guards: what is protected stays known by id, busy to evict and refused by store. Never does:
//! recurse, or need memory.

use super::core::{Core, Writer};
use super::node::{get, set, BlockId, Slot, ORIGIN};
use super::tree::Evicted;
use super::window::Window;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Whether blocks under protection hold their ground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    /// They do: nothing leaves.
    Respected,
    /// They leave the tree and stay under protection.
    Overruled,
}

/// A list of nodes, by `next`.
struct List(Slot);

impl List {
    fn push(&mut self, window: &Window, slot: Slot) {
        set(&window.arena.links(slot).next, self.0);
        self.0 = slot;
    }
    fn pop(&mut self, window: &Window) -> Option<Slot> {
        let slot = self.0;
        if slot == ORIGIN {
            return None;
        }
        self.0 = get(&window.arena.links(slot).next);
        Some(slot)
    }
}

impl Core {
    /// Takes a block out of the tree, with everything below it, unless it is protected.
    pub(super) fn evict(&self, writer: &mut Writer, window: usize, id: BlockId) -> Evicted {
        self.forget_released(writer, window);
        let Some(slot) = self.windows[window].find_id(id) else {
            return Evicted::NotFound;
        };
        if self.windows[window].node(slot).word().is_detached() {
            return Evicted::Busy;
        }
        let blocks = self.leave(writer, window, slot, Protection::Respected);
        blocks.map_or(Evicted::Busy, |blocks| Evicted::Left { blocks })
    }

    /// Takes a node that is in the tree out of it, with everything below it. How many blocks left;
    /// `None`, and nothing changed, if protection forbids it.
    pub(super) fn leave(
        &self,
        writer: &mut Writer,
        index: usize,
        top: Slot,
        protection: Protection,
    ) -> Option<usize> {
        let window = &self.windows[index];
        let is_respected = protection == Protection::Respected;
        if is_respected && !self.may_leave(writer, index, top) {
            return None;
        }
        let above = window.node(top).parent();
        let is_below_respected = is_respected && window.is_full_window();
        let closed = close_all(window, top, is_respected, is_below_respected);
        let Some(closed) = closed else {
            // So that asking again costs little.
            self.account(writer);
            return None;
        };
        let blocks = self.take_out_all(writer, index, top, closed);
        self.prune(writer, index, above);
        self.counts.blocks_removed.fetch_add(blocks as u64, Ordering::Relaxed);
        Some(blocks)
    }

    /// Whether nothing that is known already forbids the node to leave.
    fn may_leave(&self, writer: &mut Writer, index: usize, slot: Slot) -> bool {
        let window = &self.windows[index];
        let links = window.arena.links(slot);
        if window.node(slot).word().pins() > 0 || get(&links.detached_children) > 0 {
            return false;
        }
        if window.is_full_window() && (window.is_accounted(slot) || get(&links.children) != ORIGIN)
        {
            self.account(writer);
            return !window.is_accounted(slot);
        }
        true
    }

    /// Takes closed nodes out, which are listed children first.
    fn take_out_all(
        &self,
        writer: &mut Writer,
        index: usize,
        top: Slot,
        mut closed: List,
    ) -> usize {
        let window = &self.windows[index];
        let mut blocks = 0;
        while let Some(slot) = closed.pop(window) {
            let has_block = window.node(slot).word().has_block();
            let pins = window.take_out(&mut writer.windows[index], slot, slot == top);
            if !has_block {
                continue;
            }
            blocks += 1;
            if pins > 0 || get(&window.arena.links(slot).detached_children) > 0 {
                window.keep(&mut writer.windows[index], slot);
                continue;
            }
            // Without a pin on it, all that was accounted on it is known to have ended.
            if window.is_accounted(slot) {
                self.account(writer);
            }
            window.forget(&mut writer.windows[index], slot);
        }
        blocks
    }

    /// Removes nodes that hold nothing and lead to nothing, upwards.
    pub(super) fn prune(&self, writer: &mut Writer, index: usize, from: Slot) {
        let window = &self.windows[index];
        let mut at = from;
        while at != ORIGIN {
            let node = window.node(at);
            if node.word().has_block() || get(&window.arena.links(at).children) != ORIGIN {
                return;
            }
            let parent = node.parent();
            window.take_out(&mut writer.windows[index], at, true);
            at = parent;
        }
    }

    /// Takes everything out of a window; protected blocks stay under protection.
    pub(super) fn empty(&self, writer: &mut Writer, index: usize) {
        let window = &self.windows[index];
        loop {
            let root = get(&window.arena.links(ORIGIN).children);
            if root == ORIGIN {
                return;
            }
            self.leave(writer, index, root, Protection::Overruled);
        }
    }

    /// Forgets blocks that left the tree and lost their last pin since.
    pub(super) fn forget_released(&self, writer: &mut Writer, index: usize) {
        let window = &self.windows[index];
        if window.has_released.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        let mut next = writer.windows[index].detached_leaves;
        while next != ORIGIN {
            let mut leaf = Some(next);
            next = get(&window.arena.links(next).right);
            while let Some(slot) = leaf {
                leaf = self.forget_if_released(writer, index, slot);
            }
        }
    }

    /// Forgets a leaf of what left the tree if it has no pin; its parent, if that is such a leaf
    /// now.
    fn forget_if_released(&self, writer: &mut Writer, index: usize, slot: Slot) -> Option<Slot> {
        let window = &self.windows[index];
        if window.node(slot).word().pins() > 0 {
            return None;
        }
        if window.is_accounted(slot) {
            self.account(writer);
        }
        let parent = window.parent_to_protect(slot);
        let writer = &mut writer.windows[index];
        window.remove_detached_leaf(writer, slot);
        window.forget(writer, slot);
        let parent = parent?;
        let count: &AtomicU32 = &window.arena.links(parent).detached_children;
        set(count, get(count) - 1);
        window.tell_standing(parent);
        let is_leaf = get(count) == 0 && window.node(parent).word().is_detached();
        if is_leaf {
            window.add_detached_leaf(writer, parent);
        }
        is_leaf.then_some(parent)
    }
}

/// Closes a node and everything below it. The closed nodes, children before parents; `None`, and all
/// open again, if one is protected whose protection is respected.
fn close_all(
    window: &Window,
    top: Slot,
    is_top_respected: bool,
    is_below_respected: bool,
) -> Option<List> {
    let close = |slot: Slot, is_respected: bool| {
        let node = window.node(slot);
        if is_respected {
            let keeps_none = get(&window.arena.links(slot).detached_children) == 0;
            keeps_none && node.close_unpinned()
        } else {
            node.close()
        }
    };
    if !close(top, is_top_respected) {
        return None;
    }
    // All nodes on the way are closed before they are listed, so that each is in one list only.
    let (mut ahead, mut closed) = (List(ORIGIN), List(ORIGIN));
    ahead.push(window, top);
    while let Some(slot) = ahead.pop(window) {
        closed.push(window, slot);
        let links = window.arena.links(slot);
        let siblings = if slot == top { [ORIGIN; 2] } else { [&links.left, &links.right].map(get) };
        for next in [get(&links.children), siblings[0], siblings[1]] {
            if next == ORIGIN {
                continue;
            }
            if !close(next, is_below_respected) {
                for mut list in [ahead, closed] {
                    while let Some(slot) = list.pop(window) {
                        window.node(slot).reopen();
                    }
                }
                return None;
            }
            ahead.push(window, next);
        }
    }
    Some(closed)
}
