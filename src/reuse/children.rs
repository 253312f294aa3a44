//! The children of a node, ordered by key, so that the longest head in common is found in as many
//! steps as their number has bits, however many siblings there are.
//!
//! A treap: a search tree by (kind, tokens with extra ids, length), a heap by a seeded hash of the
//! slot, so that nobody can make it lopsided. Nodes without a block come last, by slot. Each node
//! knows which block at or below it was stored first, of all and of those in primary memory.
//!
//! The writer makes the parent's `children_version` odd while it changes anything; readers search
//! without a lock, and again if the version was odd or changed. Guards: a search ends after a bounded
//! number of steps, whatever it reads. Invariant: keys that begin with the same tokens are
//! neighbours, so the longest head in common with a key is next to where the key would be.

use std::cmp::Ordering as Order;

use super::arena::Arena;
use super::node::{get, set, Node, Slot, Tier, Word, ORIGIN};
use super::stored_key::Probe;
use crate::sync::atomic::{fence, AtomicU32, Ordering};
use crate::sync::spin_loop;

/// Steps after which a search must have met a change: no treap gets this deep.
const MAX_STEPS: usize = 1 << 10;
/// Tries after which a search leaves it to its caller to begin anew.
const MAX_TRIES: usize = 1 << 16;

/// A block found by its key, and how many of its leading tokens count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) slot: Slot,
    pub(super) word: Word,
    pub(super) tokens: usize,
}

/// What the search began from is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changed;

/// Which blocks a search is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    All,
    Primary,
}

/// How a node lies to the keys that begin with a probe.
enum Side {
    Before,
    Among,
    After,
}

impl Arena {
    fn priority(&self, slot: Slot) -> u64 {
        // The finaliser of splitmix64.
        let mut value = self.seed ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    // ---- the writer ----

    fn begin(&self, parent: Slot) {
        let version = &self.links(parent).children_version;
        version.store(get(version).wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
    }

    fn end(&self, parent: Slot) {
        let version = &self.links(parent).children_version;
        version.store(get(version).wrapping_add(1), Ordering::Release);
    }

    /// Makes searches below `parent` begin anew, though its links stay.
    pub(super) fn disturb_children(&self, parent: Slot) {
        self.begin(parent);
        self.end(parent);
    }

    /// Whether the one of these two that is there was stored first.
    fn older(&self, one: Slot, other: Slot) -> Slot {
        let order = |slot| self.links(slot).stored_order.load(Ordering::Relaxed);
        if other == ORIGIN || (one != ORIGIN && order(one) <= order(other)) {
            one
        } else {
            other
        }
    }

    fn is_among(&self, node: &Node, among: Among) -> bool {
        among == Among::All || node.info().tier() == Tier::Primary
    }

    /// What `oldest` and `oldest_primary` of a node should be.
    pub(super) fn oldest_below(&self, slot: Slot, among: Among) -> Slot {
        let (node, links) = (self.node(slot), self.links(slot));
        // Roots hold no block, but are told apart by age too.
        let counts = node.word().has_block() || node.parent() == ORIGIN;
        let own = if counts && self.is_among(node, among) { slot } else { ORIGIN };
        [&links.left, &links.right]
            .into_iter()
            .map(get)
            .filter(|child| *child != ORIGIN)
            .fold(own, |oldest, child| self.older(oldest, get(self.oldest_link(child, among))))
    }

    fn oldest_link(&self, slot: Slot, among: Among) -> &AtomicU32 {
        let links = self.links(slot);
        match among {
            Among::All => &links.oldest,
            Among::Primary => &links.oldest_primary,
        }
    }

    fn update(&self, slot: Slot) {
        for among in [Among::All, Among::Primary] {
            set(self.oldest_link(slot, among), self.oldest_below(slot, among));
        }
    }

    fn update_upwards(&self, from: Slot) {
        let mut at = from;
        while at != ORIGIN {
            self.update(at);
            at = get(&self.links(at).up);
        }
    }

    /// The link that leads to `slot`.
    fn link_to(&self, parent: Slot, slot: Slot) -> &AtomicU32 {
        let up = get(&self.links(slot).up);
        if up == ORIGIN {
            return &self.links(parent).children;
        }
        let links = self.links(up);
        if get(&links.left) == slot {
            &links.left
        } else {
            &links.right
        }
    }

    /// Puts `slot` above the sibling it hangs from.
    fn rotate_up(&self, parent: Slot, slot: Slot) {
        let links = self.links(slot);
        let above = get(&links.up);
        let above_links = self.links(above);
        let (inner, outer) = if get(&above_links.left) == slot {
            (&links.right, &above_links.left)
        } else {
            (&links.left, &above_links.right)
        };
        let handed_over = get(inner);
        set(self.link_to(parent, above), slot);
        set(&links.up, get(&above_links.up));
        set(outer, handed_over);
        if handed_over != ORIGIN {
            set(&self.links(handed_over).up, above);
        }
        set(inner, above);
        set(&above_links.up, slot);
        self.update(above);
        self.update(slot);
    }

    /// Adds a child, whose key is `probe` if it holds a block.
    pub(super) fn insert_child(&self, parent: Slot, slot: Slot, probe: Option<&Probe<'_>>) {
        self.begin(parent);
        let mut link = &self.links(parent).children;
        let mut up = ORIGIN;
        while get(link) != ORIGIN {
            up = get(link);
            let node = self.node(up);
            let is_before = match (node.word().has_block(), probe) {
                (true, None) => true,
                (false, Some(_)) => false,
                (false, None) => up < slot,
                (true, Some(probe)) => {
                    self.keys.compare(up, node.info().token_count(), probe).order == Order::Less
                }
            };
            link = if is_before { &self.links(up).right } else { &self.links(up).left };
        }
        set(link, slot);
        let links = self.links(slot);
        set(&links.up, up);
        self.update_upwards(slot);
        while get(&links.up) != ORIGIN && self.priority(get(&links.up)) < self.priority(slot) {
            self.rotate_up(parent, slot);
        }
        self.end(parent);
    }

    /// Takes a child out.
    pub(super) fn remove_child(&self, parent: Slot, slot: Slot) {
        self.begin(parent);
        let links = self.links(slot);
        loop {
            let children = (get(&links.left), get(&links.right));
            let next = match children {
                (ORIGIN, ORIGIN) => break,
                (only, ORIGIN) | (ORIGIN, only) => only,
                (left, right) if self.priority(left) > self.priority(right) => left,
                (_, right) => right,
            };
            self.rotate_up(parent, next);
        }
        set(self.link_to(parent, slot), ORIGIN);
        self.update_upwards(get(&links.up));
        set(&links.up, ORIGIN);
        self.end(parent);
    }

    /// Notes that a child changed its tier.
    pub(super) fn refresh_child(&self, parent: Slot, slot: Slot) {
        self.begin(parent);
        self.update_upwards(slot);
        self.end(parent);
    }

    // ---- readers ----

    /// Of the children of `parent` with the longest head in common with `probe`, the one stored
    /// first.
    pub(super) fn longest_head(
        &self,
        parent: Slot,
        parent_word: Word,
        probe: &Probe<'_>,
    ) -> Result<Option<Head>, Changed> {
        self.search(parent, parent_word, |top| {
            let tokens = self.longest_head_length(top, probe)?;
            if tokens == 0 {
                return Some(None);
            }
            let head = Probe {
                tokens: &probe.tokens[..tokens],
                extra_ids: probe.extra_ids.map(|ids| &ids[..tokens]),
                ..*probe
            };
            self.first_stored(top, &head, Among::All)
        })
    }

    /// Of the children of `parent` in primary memory that begin with `probe`, the one stored first.
    pub(super) fn primary_beginning_with(
        &self,
        parent: Slot,
        parent_word: Word,
        probe: &Probe<'_>,
    ) -> Result<Option<Head>, Changed> {
        self.search(parent, parent_word, |top| self.first_stored(top, probe, Among::Primary))
    }

    /// Runs `search`, which gives `None` when it lost its way, until nothing changed meanwhile.
    fn search<T>(
        &self,
        parent: Slot,
        parent_word: Word,
        search: impl Fn(Slot) -> Option<T>,
    ) -> Result<T, Changed> {
        let links = self.links(parent);
        for _ in 0..MAX_TRIES {
            let version = links.children_version.load(Ordering::Acquire);
            if version % 2 == 1 {
                spin_loop();
                continue;
            }
            let found = search(get(&links.children));
            if !self.node(parent).is_still(parent_word) {
                return Err(Changed);
            }
            if links.children_version.load(Ordering::Relaxed) != version {
                continue;
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(Changed)
    }

    fn longest_head_length(&self, top: Slot, probe: &Probe<'_>) -> Option<usize> {
        let (mut at, mut longest) = (top, 0);
        for _ in 0..MAX_STEPS {
            if at == ORIGIN {
                return Some(longest);
            }
            let (node, links) = (self.node(at), self.links(at));
            if !node.word().has_block() {
                at = get(&links.left);
                continue;
            }
            let compared = self.keys.compare(at, node.info().token_count(), probe);
            longest = longest.max(compared.head);
            at = match compared.order {
                Order::Less => get(&links.right),
                Order::Greater => get(&links.left),
                Order::Equal => return Some(longest),
            };
        }
        None
    }

    fn side(&self, slot: Slot, probe: &Probe<'_>) -> Side {
        let node = self.node(slot);
        if !node.word().has_block() {
            return Side::After;
        }
        let compared = self.keys.compare(slot, node.info().token_count(), probe);
        match compared.order {
            // A probe without tokens would find other kinds: no caller has one.
            _ if compared.head == probe.tokens.len() => Side::Among,
            Order::Less => Side::Before,
            _ => Side::After,
        }
    }

    /// Of the nodes from `top` on that begin with all of `probe`, the block stored first.
    fn first_stored(&self, top: Slot, probe: &Probe<'_>, among: Among) -> Option<Option<Head>> {
        debug_assert!(!probe.tokens.is_empty());
        let mut steps = 0..MAX_STEPS;
        let mut at = top;
        while at != ORIGIN {
            steps.next()?;
            at = match self.side(at, probe) {
                Side::Before => get(&self.links(at).right),
                Side::After => get(&self.links(at).left),
                Side::Among => break,
            };
        }
        if at == ORIGIN {
            return Some(None);
        }
        let own = |slot| if self.is_among(self.node(slot), among) { slot } else { ORIGIN };
        let below = |slot| if slot == ORIGIN { ORIGIN } else { get(self.oldest_link(slot, among)) };
        let mut oldest = own(at);
        // Along both edges of the run: what lies between an edge and the middle belongs to it.
        let mut edge = get(&self.links(at).left);
        while edge != ORIGIN {
            steps.next()?;
            let links = self.links(edge);
            edge = match self.side(edge, probe) {
                Side::Among => {
                    oldest = self.older(oldest, own(edge));
                    oldest = self.older(oldest, below(get(&links.right)));
                    get(&links.left)
                }
                _ => get(&links.right),
            };
        }
        let mut edge = get(&self.links(at).right);
        while edge != ORIGIN {
            steps.next()?;
            let links = self.links(edge);
            edge = match self.side(edge, probe) {
                Side::Among => {
                    oldest = self.older(oldest, own(edge));
                    oldest = self.older(oldest, below(get(&links.left)));
                    get(&links.right)
                }
                _ => get(&links.left),
            };
        }
        if oldest == ORIGIN {
            return Some(None);
        }
        let word = self.node(oldest).word();
        Some(Some(Head { slot: oldest, word, tokens: probe.tokens.len() }))
    }
}
