//! Checks that a tree's parts agree with each other. For tests and for hunting faults, never on the
//! way of a request, and only while nobody pins: a few looks at everything that the tree holds.

use std::collections::HashMap;

use super::arena::Arena;
use super::children::Among;
use super::core::{Core, Writer};
use super::node::{get, name_words, Slot, Tier, ORIGIN};
use super::window::{Window, WindowWriter};
use crate::sync::atomic::Ordering;

/// Fails with what is wrong unless `condition` holds.
fn expect(condition: bool, what: &str) -> Result<(), String> {
    if condition {
        return Ok(());
    }
    Err(what.to_owned())
}

pub(super) fn verify(core: &Core, writer: &mut Writer) -> Result<(), String> {
    for index in 0..core.windows.len() {
        core.forget_released(writer, index);
    }
    core.account(writer);
    let mut pins: Vec<HashMap<Slot, usize>> = core.windows.iter().map(|_| HashMap::new()).collect();
    for target in core.pins.targets() {
        *pins[target.window].entry(target.slot).or_default() += 1;
    }
    for ((window, writer), pins) in core.windows.iter().zip(&writer.windows).zip(&pins) {
        let mut checked = Checked { window, writer, pins, below: HashMap::new() };
        checked.below = checked.count_below();
        checked.verify()?;
    }
    Ok(())
}

/// The nodes that name one node as their parent, counted.
#[derive(Clone, Copy, Default)]
struct Below {
    attached: usize,
    /// Of those that protect it further on: the protected ones, and those left behind.
    protected: usize,
    detached: usize,
}

struct Checked<'a> {
    window: &'a Window,
    writer: &'a WindowWriter,
    pins: &'a HashMap<Slot, usize>,
    below: HashMap<Slot, Below>,
}

impl Checked<'_> {
    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let all = self.window.arena.slots(&self.writer.arena);
        all.filter(|slot| !self.window.node(*slot).word().is_free())
    }

    fn arena(&self) -> &Arena {
        &self.window.arena
    }

    fn count_below(&self) -> HashMap<Slot, Below> {
        let mut below: HashMap<Slot, Below> = HashMap::new();
        for slot in self.slots() {
            let (node, word) = (self.window.node(slot), self.window.node(slot).word());
            if word.is_attached() {
                below.entry(node.parent()).or_default().attached += 1;
            }
            if let Some(parent) = self.window.parent_to_protect(slot) {
                let below = below.entry(parent).or_default();
                below.protected += usize::from(self.window.is_accounted(slot));
                below.detached += usize::from(word.is_detached());
            }
        }
        below
    }

    fn below(&self, slot: Slot) -> Below {
        self.below.get(&slot).copied().unwrap_or_default()
    }

    fn verify(&self) -> Result<(), String> {
        let window = self.window;
        let (mut attached, mut secondary, mut protected) = (0, 0, 0);
        let (mut by_name, mut by_id, mut chains) = (0, 0, 0);
        self.verify_children(ORIGIN)?;
        for slot in self.slots() {
            let (node, links) = (window.node(slot), self.arena().links(slot));
            let word = node.word();
            let pins = self.pins.get(&slot).copied().unwrap_or_default();
            expect(word.pins() as usize == pins, "a node's pins are not those of the pin table")?;
            expect(!word.is_closing(), "a node was left closed")?;
            self.verify_protection(slot, pins)?;
            self.verify_children(slot)?;
            if word.is_attached() {
                by_name += 1;
                let found = window.find_attached(&node.name());
                expect(found.is_some_and(|found| found.slot == slot), "a name is not found")?;
            }
            if !word.has_block() {
                expect(pins == 0, "a node without a block is pinned")?;
                expect(get(&links.children) != ORIGIN, "a node holds nothing and leads nowhere")?;
                let is_root = node.parent() == ORIGIN;
                expect(is_root || !window.is_full_window(), "the full window has a hole")?;
                continue;
            }
            by_id += 1;
            expect(window.find_id(node.id()) == Some(slot), "a block is not found by id")?;
            protected += usize::from(window.is_accounted(slot));
            if word.is_attached() {
                attached += 1;
                secondary += usize::from(node.info().tier() == Tier::Secondary);
                expect(node.parent() != ORIGIN, "an attached block has no parent")?;
                chains += usize::from(get(&links.previous_same_hash) == ORIGIN);
                self.verify_hash_chain(slot)?;
            } else {
                let is_kept = get(&links.detached_children) > 0 || pins > 0;
                expect(is_kept, "a block left behind is not protected")?;
            }
        }
        self.verify_detached_leaves()?;
        expect(attached == window.attached_blocks(), "attached blocks are counted wrongly")?;
        expect(secondary == window.secondary_blocks(), "secondary blocks are counted wrongly")?;
        expect(protected == window.protected_blocks(), "protected blocks are counted wrongly")?;
        let writer = self.writer;
        let sizes = [writer.by_name.len(), writer.by_id.len(), writer.by_hash.len()];
        expect(sizes == [by_name, by_id, chains], "a table has entries too many or too few")?;
        let node = |slot| window.node(slot);
        window.by_name.verify(&writer.by_name, |slot| name_words(&node(slot).name())[0])?;
        window.by_id.verify(&writer.by_id, |slot| u64::from(node(slot).id() as u32))?;
        window.by_hash.verify(&writer.by_hash, |slot| node(slot).hash())
    }

    fn verify_protection(&self, slot: Slot, pins: usize) -> Result<(), String> {
        let (links, below) = (self.arena().links(slot), self.below(slot));
        let is_right = get(&links.protectors) as usize == pins + below.protected;
        expect(is_right, "what protects a node is counted wrongly")?;
        let is_right = get(&links.detached_children) as usize == below.detached;
        expect(is_right, "children left behind are counted wrongly")
    }

    /// The list of the blocks left behind that none hangs below.
    fn verify_detached_leaves(&self) -> Result<(), String> {
        let is_leaf = |slot: &Slot| {
            let is_detached = self.window.node(*slot).word().is_detached();
            is_detached && get(&self.arena().links(*slot).detached_children) == 0
        };
        let expected = self.slots().filter(is_leaf).count();
        let (mut at, mut previous, mut listed) = (self.writer.detached_leaves, ORIGIN, 0);
        while at != ORIGIN {
            let links = self.arena().links(at);
            expect(is_leaf(&at), "the list of blocks left behind holds another")?;
            expect(get(&links.left) == previous, "the list of blocks left behind is broken")?;
            (previous, at, listed) = (at, get(&links.right), listed + 1);
        }
        expect(listed == expected, "a block left behind is not listed")
    }

    /// The treap of a node's children: links, order of priorities, aggregates, and that it holds
    /// exactly the attached nodes whose parent this is.
    fn verify_children(&self, parent: Slot) -> Result<(), String> {
        let arena = self.arena();
        let version = arena.links(parent).children_version.load(Ordering::Relaxed);
        expect(version.is_multiple_of(2), "children were left half changed")?;
        let mut ahead = vec![(get(&arena.links(parent).children), ORIGIN)];
        let mut count = 0;
        while let Some((slot, up)) = ahead.pop() {
            if slot == ORIGIN {
                continue;
            }
            count += 1;
            let (node, links) = (self.window.node(slot), arena.links(slot));
            expect(node.parent() == parent, "a child has another parent")?;
            expect(node.word().is_attached(), "children hold what left the tree")?;
            expect(get(&links.up) == up, "siblings disagree")?;
            for (among, link) in
                [(Among::All, &links.oldest), (Among::Primary, &links.oldest_primary)]
            {
                let is_right = get(link) == arena.oldest_below(slot, among);
                expect(is_right, "the block stored first is another")?;
            }
            ahead.push((get(&links.left), slot));
            ahead.push((get(&links.right), slot));
        }
        expect(self.below(parent).attached == count, "a child is not among the children")
    }

    fn verify_hash_chain(&self, slot: Slot) -> Result<(), String> {
        let (window, links) = (self.window, self.arena().links(slot));
        let hash = window.node(slot).hash();
        let next = get(&links.next_same_hash);
        if next != ORIGIN {
            expect(window.node(next).hash() == hash, "a chain holds another hash")?;
            let back = get(&self.arena().links(next).previous_same_hash);
            expect(back == slot, "a chain's links disagree")?;
        }
        match get(&links.previous_same_hash) {
            ORIGIN => expect(window.find_hash(hash) == Some(slot), "a chain's head is not found"),
            previous => {
                let forward = get(&self.arena().links(previous).next_same_hash);
                expect(forward == slot, "a chain's links disagree")
            }
        }
    }
}
