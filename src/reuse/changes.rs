//! What one window tells of its blocks while it changes: events for routers, and to the owner of the
//! free queues which blocks stand otherwise than before.
//!
//! Called by `window` with the tree's lock held, so it only notes. Never does: call anybody.

use std::sync::Arc;

use super::changed_blocks::ChangedBlocks;
use super::events::{EventKind, Events, StoredBlock};
use super::node::BlockId;

#[derive(Debug)]
pub(super) struct Changes {
    pub(super) events: Arc<Events>,
    /// In owner mode.
    pub(super) changed: Option<Arc<ChangedBlocks>>,
}

impl Changes {
    pub(super) fn stored(&self, block: impl FnOnce() -> StoredBlock) {
        self.event(|| EventKind::Stored(block()));
    }

    pub(super) fn removed(&self, block: impl FnOnce() -> StoredBlock) {
        self.event(|| EventKind::Removed(block()));
    }

    pub(super) fn updated(&self, block: impl FnOnce() -> StoredBlock) {
        self.event(|| EventKind::Updated(block()));
    }

    /// A block is stored or not any more, has something below it or not any more, is protected or
    /// not any more.
    pub(super) fn standing(&self, id: BlockId) {
        if let Some(changed) = &self.changed {
            changed.tell(id);
        }
    }

    fn event(&self, kind: impl FnOnce() -> EventKind) {
        if self.events.is_on() {
            self.events.push(kind());
        }
    }
}
