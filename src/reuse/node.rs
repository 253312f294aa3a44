//! One position of one path, as atomics that readers look at without a lock.
//!
//! A node's place in its window's table is its *slot*. Slots are used again, so each carries a
//! *generation* that changes when its node is freed: what a reader read belongs together if the
//! generation was the same before and after. [`Node`] is what readers touch on every way, one cache
//! line; [`Links`] is what concerns neighbours and accounting.
//!
//! Guards: a pin is taken only on a block that is in the tree and not about to leave, of the
//! generation that was looked at. Never does: decide when a node leaves.

use super::content_name::Name;
use crate::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64, Ordering};

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

/// No node, in links; and the origin, which has the roots of all namespaces as children.
pub(super) const ORIGIN: Slot = 0;

const PIN_BITS: u32 = 28;
const PIN_MASK: u64 = (1 << PIN_BITS) - 1;
const ATTACHED: u64 = 1 << PIN_BITS;
const BLOCK: u64 = 2 << PIN_BITS;
const CLOSING: u64 = 4 << PIN_BITS;
const FLAGS: u64 = ATTACHED | BLOCK | CLOSING;
const GENERATION_SHIFT: u32 = 32;

/// A node's state in one word: generation, what it is, pins on it.
///
/// | attached | block | closing | |
/// |---|---|---|---|
/// | - | - | - | free |
/// | x | - | - | a root, or a hole of a sliding window |
/// | x | x | - | a block in the tree: *alive* |
/// | x | | x | in the tree, about to leave: takes no more pins and children |
/// | - | x | - | left the tree under protection; known by id only |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    pub(super) fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }
    pub(super) fn pins(self) -> u64 {
        self.0 & PIN_MASK
    }
    pub(super) fn is_free(self) -> bool {
        self.0 & FLAGS == 0
    }
    pub(super) fn is_attached(self) -> bool {
        self.0 & ATTACHED != 0
    }
    pub(super) fn is_closing(self) -> bool {
        self.0 & CLOSING != 0
    }
    /// Holds a block, in the tree or not any more.
    pub(super) fn has_block(self) -> bool {
        self.0 & BLOCK != 0
    }
    /// Holds a block that readers may match and pin.
    pub(super) fn is_alive(self) -> bool {
        self.0 & FLAGS == ATTACHED | BLOCK
    }
    /// Left the tree under protection.
    pub(super) fn is_detached(self) -> bool {
        self.0 & FLAGS == BLOCK
    }
}

const TOKENS_MASK: u32 = (1 << 20) - 1;
const SECONDARY: u32 = 1 << 20;
/// Its name means the same on other workers.
pub(super) const SERVABLE: u32 = 1 << 21;
/// Stored with a fence: complete once that has passed.
pub(super) const FENCED: u32 = 1 << 22;

const PRIORITY_SHIFT: u32 = 24;
const PRIORITY_MASK: u32 = 0xff << PRIORITY_SHIFT;

/// Facts of a block that fit into a word: tokens, flags, priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Info(u32);

impl Info {
    pub(super) fn new(token_count: usize, flags: u32) -> Self {
        Self(token_count as u32 & TOKENS_MASK | flags)
    }
    pub(super) fn with_priority(self, priority: u8) -> Self {
        Self(self.0 & !PRIORITY_MASK | u32::from(priority) << PRIORITY_SHIFT)
    }
    pub(super) fn token_count(self) -> usize {
        (self.0 & TOKENS_MASK) as usize
    }
    /// How much the block is worth keeping.
    pub(super) fn priority(self) -> u8 {
        (self.0 >> PRIORITY_SHIFT) as u8
    }
    pub(super) fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
    pub(super) fn tier(self) -> Tier {
        if self.has(SECONDARY) {
            Tier::Secondary
        } else {
            Tier::Primary
        }
    }
}

/// What every lookup, match and pin touches.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Node {
    name: [AtomicU64; 4],
    word: AtomicU64,
    pub(super) hash: AtomicU64,
    id: AtomicI32,
    /// The node it hangs below: the origin for a root.
    pub(super) parent: AtomicU32,
    /// Place in the sequence: 0 for a first block (and, without meaning, for a root).
    position: AtomicU32,
    info: AtomicU32,
}

/// What a node says of itself when it is made.
pub(super) struct NodeFacts {
    pub(super) name: Name,
    pub(super) parent: Slot,
    pub(super) position: u32,
}

/// What of a node is known when a block is put into it.
pub(super) struct BlockFacts {
    pub(super) id: BlockId,
    pub(super) hash: u64,
    pub(super) info: Info,
}

pub(super) fn name_words(name: &Name) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(name.0.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
    }
    words
}

impl Node {
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Whether all that was read since `word` was loaded belongs to that generation.
    pub(super) fn is_still(&self, word: Word) -> bool {
        fence(Ordering::Acquire);
        Word(self.word.load(Ordering::Relaxed)).generation() == word.generation()
    }

    pub(super) fn has_name(&self, words: &[u64; 4]) -> bool {
        self.name.iter().zip(words).all(|(ours, word)| ours.load(Ordering::Relaxed) == *word)
    }

    pub(super) fn first_name_word(&self) -> u64 {
        self.name[0].load(Ordering::Relaxed)
    }

    pub(super) fn name(&self) -> Name {
        let mut name = [0; 32];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&self.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Name(name)
    }

    pub(super) fn id(&self) -> BlockId {
        self.id.load(Ordering::Relaxed)
    }
    pub(super) fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }
    pub(super) fn parent(&self) -> Slot {
        self.parent.load(Ordering::Relaxed)
    }
    pub(super) fn position(&self) -> u32 {
        self.position.load(Ordering::Relaxed)
    }
    pub(super) fn info(&self) -> Info {
        Info(self.info.load(Ordering::Relaxed))
    }

    // ---- readers ----

    /// Takes a pin on a living block of the generation in `seen`. `false`: it is not that any more.
    pub(super) fn try_pin(&self, seen: Word) -> bool {
        self.pin_if(|now| now.is_alive() && now.generation() == seen.generation())
    }

    fn pin_if(&self, may_pin: impl Fn(Word) -> bool) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        while may_pin(Word(now)) && Word(now).pins() < PIN_MASK {
            // Sequentially consistent: whoever takes protection away looks for pins afterwards.
            let next = now + 1;
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            match self.word.compare_exchange_weak(now, next, success, failure) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }

    /// Gives one pin back; what the node was with it.
    pub(super) fn unpin(&self) -> Word {
        let before = Word(self.word.fetch_sub(1, Ordering::AcqRel));
        debug_assert!(before.pins() > 0, "a pin is given back once");
        before
    }

    // ---- the writer ----

    /// Pins a block that left the tree, for one who holds the writer's lock.
    pub(super) fn try_pin_detached(&self) -> bool {
        self.pin_if(Word::is_detached)
    }

    /// Fills in a free node; nobody finds it before `attach`.
    pub(super) fn fill(&self, facts: &NodeFacts) {
        // After the generation's change: who reads what follows sees that it changed.
        fence(Ordering::Release);
        for (ours, word) in self.name.iter().zip(name_words(&facts.name)) {
            ours.store(word, Ordering::Relaxed);
        }
        self.parent.store(facts.parent, Ordering::Relaxed);
        self.position.store(facts.position, Ordering::Relaxed);
        self.info.store(0, Ordering::Relaxed);
    }

    /// Puts a block into a node that has none.
    pub(super) fn fill_block(&self, facts: &BlockFacts) {
        self.id.store(facts.id, Ordering::Relaxed);
        self.hash.store(facts.hash, Ordering::Relaxed);
        self.info.store(facts.info.0, Ordering::Relaxed);
    }

    /// Into the tree, without a block.
    pub(super) fn attach(&self) {
        self.set_flags(ATTACHED);
    }

    /// Into the tree, with the block that was filled in.
    pub(super) fn attach_block(&self) {
        self.set_flags(ATTACHED | BLOCK);
    }

    fn set_flags(&self, flags: u64) {
        self.word.fetch_or(flags, Ordering::AcqRel);
    }

    /// Out of the tree from the start, pinned once: a block that is held and was never stored.
    pub(super) fn hold(&self) {
        self.word.fetch_add(BLOCK + 1, Ordering::AcqRel);
    }

    /// Closes a node that is attached and has no pin: no reader can take one from here on.
    pub(super) fn close_unpinned(&self) -> bool {
        let now = self.word.load(Ordering::Relaxed);
        let word = Word(now);
        let may_close = word.is_attached() && !word.is_closing() && word.pins() == 0;
        // Strong: nothing but a pin, or the end of one, changes the word meanwhile.
        may_close
            && self
                .word
                .compare_exchange(now, now | CLOSING, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// Closes a node whether or not it is pinned. `false`: it is closed already.
    pub(super) fn close(&self) -> bool {
        Word(self.word.fetch_or(CLOSING, Ordering::SeqCst)).0 & CLOSING == 0
    }

    /// Takes `close` back.
    pub(super) fn reopen(&self) {
        self.word.fetch_and(!CLOSING, Ordering::AcqRel);
    }

    /// Out of the tree, pins and block kept. The word as it was at that moment.
    pub(super) fn detach(&self) -> Word {
        Word(self.word.fetch_and(!(ATTACHED | CLOSING), Ordering::AcqRel))
    }

    /// The slot's next generation, without pins.
    pub(super) fn free(&self) {
        let generation = self.word().generation().wrapping_add(1);
        self.word.store(u64::from(generation) << GENERATION_SHIFT, Ordering::Release);
    }

    pub(super) fn set_priority(&self, priority: u8) {
        self.info.store(self.info().with_priority(priority).0, Ordering::Relaxed);
    }

    pub(super) fn set_tier(&self, tier: Tier) {
        match tier {
            Tier::Primary => self.info.fetch_and(!SECONDARY, Ordering::SeqCst),
            Tier::Secondary => self.info.fetch_or(SECONDARY, Ordering::SeqCst),
        };
    }
}

/// Neighbours and accounting. Only the writer changes them; readers follow the children, and check
/// by `children_version` that nothing moved under them.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The children, a balanced tree of its own: see `children`.
    pub(super) children: AtomicU32,
    /// Odd while the children change.
    pub(super) children_version: AtomicU32,
    /// Among the siblings.
    pub(super) left: AtomicU32,
    pub(super) right: AtomicU32,
    pub(super) up: AtomicU32,
    /// Of this node and the siblings below it, the block stored first.
    pub(super) oldest: AtomicU32,
    /// The same, of blocks in primary memory.
    pub(super) oldest_primary: AtomicU32,
    /// Neighbours among the blocks of equal hash.
    pub(super) previous_same_hash: AtomicU32,
    pub(super) next_same_hash: AtomicU32,
    /// What protects this node, as far as it is accounted for: pins on it and, in the full window,
    /// children that are protected.
    pub(super) protectors: AtomicU32,
    /// Children that left the tree under protection and still exist; in the full window only.
    pub(super) detached_children: AtomicU32,
    /// The next in whatever list of the writer the node is in.
    pub(super) next: AtomicU32,
    /// Grows with each block stored in the window; decides between equally long heads.
    pub(super) stored_order: AtomicU64,
}

/// The writer's view of a link: nobody else changes it.
pub(super) fn get(link: &AtomicU32) -> u32 {
    link.load(Ordering::Relaxed)
}

pub(super) fn set(link: &AtomicU32, value: u32) {
    link.store(value, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive() -> Node {
        let node = Node::default();
        node.fill(&NodeFacts { name: Name([7; 32]), parent: ORIGIN, position: 0 });
        node.fill_block(&BlockFacts { id: 3, hash: 9, info: Info::new(4, FENCED) });
        node.attach_block();
        node
    }

    #[test]
    fn a_node_is_one_cache_line() {
        assert_eq!(size_of::<Node>(), 64);
        assert_eq!(size_of::<Links>(), 56);
    }

    #[test]
    fn closed_nodes_and_other_generations_take_no_pin() {
        let node = alive();
        let seen = node.word();
        assert!(node.try_pin(seen) && node.try_pin(seen));
        assert!(!node.close_unpinned(), "pinned");
        assert_eq!((node.unpin().pins(), node.unpin().pins()), (2, 1));
        assert!(node.close_unpinned() && !node.try_pin(seen) && !node.close_unpinned());
        node.reopen();
        assert!(node.try_pin(seen), "given back");
        assert!(node.close() && !node.close() && !node.try_pin(seen));
        assert_eq!(node.detach().pins(), 1);
        assert!(node.word().is_detached() && !node.try_pin(seen) && node.try_pin_detached());
        node.free();
        node.attach_block();
        assert!(!node.try_pin(seen), "another generation");
        assert!(!node.is_still(seen));
    }

    #[test]
    fn facts_do_not_run_into_each_other() {
        let node = alive();
        for tier in [Tier::Secondary, Tier::Primary] {
            node.set_tier(tier);
            assert_eq!((node.info().tier(), node.info().token_count()), (tier, 4));
            assert!(node.info().has(FENCED) && !node.info().has(SERVABLE));
        }
        node.set_priority(100);
        assert_eq!((node.info().priority(), node.info().token_count()), (100, 4));
        node.set_tier(Tier::Secondary);
        node.set_priority(0);
        assert_eq!((node.info().priority(), node.info().tier()), (0, Tier::Secondary));
        assert_eq!(Info::new(65_536, SERVABLE).with_priority(255).token_count(), 65_536);
        assert_eq!(node.name(), Name([7; 32]));
        assert!(node.has_name(&name_words(&Name([7; 32]))));
    }
}
