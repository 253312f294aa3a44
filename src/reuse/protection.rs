//! How many blocks are protected, and whether one is: counted later than pinned.
//!
//! A pin touches one node. What it protects in the full window, all blocks before that node, is
//! accounted for when somebody asks: entries of the pin table that changed since are taken one by
//! one, and each walks up only over blocks whose protection changes. A pin that came and went in
//! between costs nothing.
//!
//! Invariant: `protectors` of a node counts the entries accounted on it and, in the full window, its
//! children that have protectors; `protected_blocks` counts the nodes that have any. Guards: a node
//! is freed only when it has none.

use super::core::{Core, Writer};
use super::node::{get, set};
use super::pin::Target;
use super::window::Window;
use crate::sync::atomic::Ordering;

impl Window {
    fn account_pin(&self, slot: u32) {
        let mut next = Some(slot);
        while let Some(at) = next {
            let protectors = &self.arena.links(at).protectors;
            set(protectors, get(protectors) + 1);
            if get(protectors) > 1 {
                return;
            }
            self.protected_blocks.fetch_add(1, Ordering::Relaxed);
            self.tell_standing(at);
            next = self.parent_to_protect(at);
        }
    }

    fn account_unpin(&self, slot: u32) {
        let mut next = Some(slot);
        while let Some(at) = next {
            let protectors = &self.arena.links(at).protectors;
            set(protectors, get(protectors) - 1);
            if get(protectors) > 0 {
                return;
            }
            self.protected_blocks.fetch_sub(1, Ordering::Relaxed);
            self.tell_standing(at);
            next = self.parent_to_protect(at);
        }
    }
}

impl Core {
    /// Accounts for one entry that changed; `false` if none is left of those taken.
    fn account_one(&self, writer: &mut Writer) -> bool {
        let Some([before, now]) = self.pins.next_changed(&mut writer.changed) else {
            return false;
        };
        if before != now {
            let window = |target: &Target| &self.windows[target.window];
            // First what is added, so that no block is unprotected in between.
            if let Some(target) = &now {
                window(target).account_pin(target.slot);
            }
            if let Some(target) = &before {
                window(target).account_unpin(target.slot);
            }
        }
        true
    }

    /// Accounts for all that changed before the call.
    pub(super) fn account(&self, writer: &mut Writer) {
        while self.account_one(writer) {}
        if self.pins.has_changed() {
            writer.changed = self.pins.take_changed();
            while self.account_one(writer) {}
        }
    }

    /// As `account`, for one who only wants to know a number: other writers get their turn after
    /// each entry.
    pub(super) fn account_in_turns(&self) {
        for _ in 0..2 {
            while self.account_one(&mut self.writer.lock()) {}
            let mut writer = self.writer.lock();
            if writer.changed == 0 {
                writer.changed = self.pins.take_changed();
            }
        }
        while self.account_one(&mut self.writer.lock()) {}
    }

    /// Whether a block is protected, as far as pins have come to be known.
    pub(super) fn is_protected(&self, writer: &mut Writer, window: usize, slot: u32) -> bool {
        self.account(writer);
        let window = &self.windows[window];
        window.is_accounted(slot)
            || get(&window.arena.links(slot).detached_children) > 0
            || window.node(slot).word().pins() > 0
    }
}
