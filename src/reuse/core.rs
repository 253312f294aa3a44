//! What a tree and its ranges share: windows, pins, the writer's lock; and how pins are taken.
//!
//! Guards: a pin of several nodes is taken as a whole or not at all; what a pin refused or lost is
//! given back. Readers come here without a lock.

use super::changes::Changes;
use super::error::ReuseError;
use super::expiries::Expiries;
use super::node::{BlockId, Slot};
use super::pin::{PinId, PinTable, Place, Target, MAX_PINS};
use super::range::RangeBlock;
use super::window::{Found, Window, WindowWriter};
use crate::sync::atomic::{fence, AtomicU64, Ordering};
use crate::sync::Mutex;

/// What only the one who holds the lock may change.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) windows: Vec<WindowWriter>,
    /// Entries of the pin table that were taken to be accounted for: see `protection`.
    pub(super) changed: u32,
    pub(super) expiries: Expiries,
}

/// What operations came to, ever.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) blocks_taken: AtomicU64,
    pub(super) blocks_duplicate: AtomicU64,
    pub(super) blocks_returned: AtomicU64,
    pub(super) blocks_removed: AtomicU64,
    pub(super) evictions_busy: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) tokens_per_block: usize,
    pub(super) windows: Vec<Window>,
    pub(super) pins: PinTable,
    pub(super) counts: Counts,
    pub(super) writer: Mutex<Writer>,
    /// The last fence that has passed, and the last that a block was stored with.
    pub(super) passed_fence: AtomicU64,
    pub(super) last_fence: AtomicU64,
    /// What the host last said the time is.
    pub(super) now_ns: AtomicU64,
}

impl Core {
    pub(super) fn new(
        tokens_per_block: usize,
        window_tokens: &[i32],
        seed: u64,
        changes: impl Fn(usize) -> Changes,
    ) -> Result<Self, ReuseError> {
        let (mut windows, mut writers) = (Vec::new(), Vec::new());
        windows.try_reserve_exact(window_tokens.len())?;
        writers.try_reserve_exact(window_tokens.len())?;
        for (index, tokens) in window_tokens.iter().enumerate() {
            let changes = changes(index);
            let (window, writer) = Window::new(*tokens as usize, tokens_per_block, seed, changes)?;
            windows.push(window);
            writers.push(writer);
        }
        Ok(Self {
            tokens_per_block,
            windows,
            pins: PinTable::new(seed)?,
            counts: Counts::default(),
            writer: Mutex::new(Writer {
                windows: writers,
                changed: 0,
                expiries: Expiries::default(),
            }),
            passed_fence: AtomicU64::new(0),
            last_fence: AtomicU64::new(0),
            now_ns: AtomicU64::new(0),
        })
    }

    pub(super) fn passed_fence(&self) -> u64 {
        self.passed_fence.load(Ordering::Acquire)
    }

    /// Whether any block of the window may be one that cannot be sent.
    pub(super) fn may_be_unsendable(&self, window: &Window) -> bool {
        window.secondary_blocks() > 0
            || self.last_fence.load(Ordering::SeqCst) > self.passed_fence()
    }

    /// Pins nodes as one pin, not none. `None`, and nothing changed, if one of them is not what it
    /// was when it was found.
    pub(super) fn pin(
        &self,
        window: usize,
        nodes: &[Found],
        lease_deadline_ns: Option<u64>,
    ) -> Result<Option<PinId>, ReuseError> {
        let Some((last, others)) = nodes.split_last() else {
            return Ok(None);
        };
        let target = |found: &Found| Target { window, slot: found.slot };
        let mut further = None;
        for found in others {
            let Some(place) = self.pin_node(window, found, further)? else {
                return Ok(None);
            };
            self.pins.publish_further(place, target(found), further);
            further = Some(place);
        }
        let Some(place) = self.pin_node(window, last, further)? else {
            return Ok(None);
        };
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let id = self.pins.publish_first(place, target(last), further, lease_deadline_ns, now_ns);
        // From here on whoever takes protection away sees the pin, or this thread what they did.
        fence(Ordering::SeqCst);
        Ok(Some(id))
    }

    /// Pins one node, with an entry to publish. Gives the chain so far back if that fails.
    fn pin_node(
        &self,
        window: usize,
        found: &Found,
        further: Option<Place>,
    ) -> Result<Option<Place>, ReuseError> {
        let place = match self.pins.take() {
            Ok(place) => place,
            Err(error) => {
                self.unpin_chain(further);
                return Err(error);
            }
        };
        if self.windows[window].node(found.slot).try_pin(found.word) {
            return Ok(Some(place));
        }
        self.pins.give_back(place);
        self.unpin_chain(further);
        Ok(None)
    }

    /// Pins blocks by id, in the tree or not, not none, for one who holds the writer's lock.
    pub(super) fn pin_ids(
        &self,
        writer: &mut Writer,
        index: usize,
        ids: impl Iterator<Item = BlockId>,
        lease_deadline_ns: Option<u64>,
    ) -> Result<Option<(PinId, Vec<RangeBlock>)>, ReuseError> {
        self.forget_released(writer, index);
        let window = &self.windows[index];
        let mut blocks = Vec::new();
        let mut ids = ids.peekable();
        let mut further = None;
        while let Some(id) = ids.next() {
            let pinned = self.pin_id(writer, index, id).and_then(|pinned| {
                blocks.try_reserve(1)?;
                Ok(pinned)
            });
            let (place, slot) = match pinned {
                Ok(pinned) => pinned,
                Err(error) => {
                    self.unpin_chain(further);
                    return Err(error);
                }
            };
            blocks.push(window.range_block(slot));
            let target = Target { window: index, slot };
            if ids.peek().is_none() {
                let now_ns = self.now_ns.load(Ordering::Relaxed);
                let pins = &self.pins;
                let pin = pins.publish_first(place, target, further, lease_deadline_ns, now_ns);
                return Ok(Some((pin, blocks)));
            }
            self.pins.publish_further(place, target, further);
            further = Some(place);
        }
        Ok(None)
    }

    /// Pins one block by id; a block that is not known becomes known by that.
    fn pin_id(
        &self,
        writer: &mut Writer,
        index: usize,
        id: BlockId,
    ) -> Result<(Place, Slot), ReuseError> {
        let window = &self.windows[index];
        let place = self.pins.take()?;
        let slot = match window.find_id(id) {
            None => window.add_held(&mut writer.windows[index], id),
            Some(slot) => {
                let node = window.node(slot);
                // Nothing is closing while the lock is held: only too many pins can refuse.
                let is_pinned = node.try_pin(node.word()) || node.try_pin_detached();
                let refused = ReuseError::Limit { what: "live pins of a block", limit: MAX_PINS };
                is_pinned.then_some(slot).ok_or(refused)
            }
        };
        if slot.is_err() {
            self.pins.give_back(place);
        }
        Ok((place, slot?))
    }

    /// Releases a pin. An error that changes nothing if it is not live.
    pub(super) fn unpin(&self, id: PinId) -> Result<(), ReuseError> {
        let first = self.pins.release(id)?;
        self.unpin_chain(Some(first));
        Ok(())
    }

    fn unpin_chain(&self, first: Option<Place>) {
        let mut next = first;
        while let Some(place) = next {
            let (target, further) = self.pins.next_released(place);
            if let Some(target) = target {
                self.unpin_node(target.window, target.slot);
            }
            next = further;
        }
    }

    /// Gives one pin of a node back.
    pub(super) fn unpin_node(&self, window: usize, slot: Slot) {
        let before = self.windows[window].node(slot).unpin();
        if before.is_detached() && before.pins() == 1 {
            // The next writer forgets it: a reader changes nothing but words.
            self.windows[window].has_released.store(1, Ordering::Release);
        }
    }
}
