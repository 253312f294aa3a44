//! The blocks of one window that nobody uses, in the order in which they are taken next.
//!
//! One queue for each tier and priority, oldest release first. Two rules take blocks out of turn:
//! one with blocks stored below it waits until no other is left, and one under protection waits
//! until its protection ends. Both keep their place: what changes is only whether they are asked.
//! So a queue is not a list but a rank (priority, then turn), and the blocks of a tier stand in one
//! of two heaps by rank, or, under protection, in none.
//!
//! Guards: a block is free once or not at all; counts never pass the number of blocks; each step
//! costs O(log n) and needs no memory.
//! Never does: look into the tree. How a block stands there is told with `set_standing`.

use super::block_heap::BlockHeap;
use super::error::ReuseError;
use super::node::{BlockId, Tier};

/// What a block gets that nobody gave a priority.
pub const DEFAULT_PRIORITY: u8 = 35;
/// The highest priority: taken last.
pub const MAX_PRIORITY: u8 = 100;

/// How a block stands in the tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// It is in the tree.
    pub(super) is_stored: bool,
    /// So are blocks right below it.
    pub(super) has_stored_below: bool,
    /// A pin protects it, in the tree or not any more.
    pub(super) is_protected: bool,
}

/// How long a block is worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// 0 to [`MAX_PRIORITY`].
    pub priority: u8,
    /// How long after its release the block keeps the priority; `None`: as long as it is free.
    pub duration_ns: Option<u64>,
}

impl Retention {
    /// Refuses a priority that there is none of.
    pub(super) fn check(self) -> Result<(), ReuseError> {
        if self.priority > MAX_PRIORITY {
            return Err(ReuseError::Priority { found: u32::from(self.priority) });
        }
        Ok(())
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { priority: DEFAULT_PRIORITY, duration_ns: None }
    }
}

/// Less is taken sooner. Turns are never the same for two blocks.
type Rank = (u8, i64);

#[derive(Debug, Clone, Copy)]
struct Free {
    tier: Tier,
    turn: i64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    retention: Retention,
    standing: Standing,
    /// While the block is free.
    free: Option<Free>,
}

#[derive(Debug)]
struct TierQueues {
    /// Unprotected blocks with nothing stored below them.
    leaves: BlockHeap<Rank>,
    /// Unprotected blocks with something stored below them.
    inner: BlockHeap<Rank>,
}

impl TierQueues {
    fn new(blocks: usize) -> Result<Self, ReuseError> {
        Ok(Self { leaves: BlockHeap::new(blocks)?, inner: BlockHeap::new(blocks)? })
    }
}

/// The free blocks among the ids `0..primary + secondary`.
#[derive(Debug)]
pub(super) struct FreeQueues {
    entries: Vec<Entry>,
    primary: TierQueues,
    secondary: TierQueues,
    /// Free blocks whose priority ends, by when; equal times by turn.
    expiries: BlockHeap<(u64, i64)>,
    next_front: i64,
    next_back: i64,
}

impl FreeQueues {
    /// All blocks free, lower ids first: the first `primary` ids in primary memory.
    pub(super) fn new(primary: usize, secondary: usize) -> Result<Self, ReuseError> {
        let blocks = primary + secondary;
        let mut entries = Vec::new();
        entries.try_reserve_exact(blocks)?;
        entries.resize(blocks, Entry::default());
        let mut queues = Self {
            entries,
            primary: TierQueues::new(blocks)?,
            secondary: TierQueues::new(blocks)?,
            expiries: BlockHeap::new(blocks)?,
            next_front: -1,
            next_back: 0,
        };
        for id in 0..blocks {
            let tier = if id < primary { Tier::Primary } else { Tier::Secondary };
            let turn = queues.back();
            queues.entries[id].free = Some(Free { tier, turn });
            queues.enqueue(id as BlockId);
        }
        Ok(queues)
    }

    /// Blocks that can be taken: free and not protected.
    pub(super) fn free_count(&self, tier: Tier) -> usize {
        let queues = self.tier(tier);
        queues.leaves.len() + queues.inner.len()
    }

    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.entries[id as usize].free.is_some()
    }

    /// Whether the block counts as free: nobody uses it and nothing protects it.
    pub(super) fn can_be_taken(&self, id: BlockId) -> bool {
        self.is_free(id) && !self.entries[id as usize].standing.is_protected
    }

    pub(super) fn retention(&self, id: BlockId) -> Retention {
        self.entries[id as usize].retention
    }

    /// The block to take next: by rank the first with nothing stored below it, else the first.
    pub(super) fn next(&self, tier: Tier) -> Option<BlockId> {
        let queues = self.tier(tier);
        queues.leaves.first().or_else(|| queues.inner.first()).map(|(_, id)| id)
    }

    /// Takes a block out of its queue, if it is in one. Without a priority it keeps its own; its
    /// duration is always overwritten.
    pub(super) fn claim(&mut self, id: BlockId, priority: Option<u8>, duration_ns: Option<u64>) {
        self.dequeue(id);
        self.expiries.remove(id);
        let entry = &mut self.entries[id as usize];
        entry.free = None;
        let priority = priority.unwrap_or(entry.retention.priority);
        entry.retention = Retention { priority, duration_ns };
    }

    /// Gives a block back: to the back of its queue if it is in the tree, else to the front.
    pub(super) fn release(&mut self, id: BlockId, tier: Tier, now_ns: u64) {
        debug_assert!(!self.is_free(id), "a block is released once");
        let is_stored = self.entries[id as usize].standing.is_stored;
        let turn = if is_stored { self.back() } else { self.front() };
        self.entries[id as usize].free = Some(Free { tier, turn });
        self.arm(id, now_ns);
        self.enqueue(id);
    }

    /// Notes how a block stands in the tree.
    pub(super) fn set_standing(&mut self, id: BlockId, standing: Standing) {
        if self.entries[id as usize].standing != standing {
            self.dequeue(id);
            self.entries[id as usize].standing = standing;
            self.enqueue(id);
        }
    }

    pub(super) fn standing(&self, id: BlockId) -> Standing {
        self.entries[id as usize].standing
    }

    /// Gives a block another priority. A free one keeps its turn; a duration counts from now.
    pub(super) fn set_retention(&mut self, id: BlockId, retention: Retention, now_ns: u64) {
        self.dequeue(id);
        self.expiries.remove(id);
        self.entries[id as usize].retention = retention;
        if self.is_free(id) {
            self.arm(id, now_ns);
            self.enqueue(id);
        }
    }

    /// Lets the priority of one block end whose time is over; `None` when there is none any more.
    pub(super) fn expire_one(&mut self, now_ns: u64) -> Option<BlockId> {
        let ((expiry_ns, _), id) = self.expiries.first()?;
        if expiry_ns > now_ns {
            return None;
        }
        self.expiries.remove(id);
        self.dequeue(id);
        let turn = self.back();
        let entry = &mut self.entries[id as usize];
        entry.retention = Retention::default();
        if let Some(free) = &mut entry.free {
            free.turn = turn;
        }
        self.enqueue(id);
        Some(id)
    }

    fn arm(&mut self, id: BlockId, now_ns: u64) {
        let entry = self.entries[id as usize];
        let Retention { priority, duration_ns } = entry.retention;
        if let (Some(duration_ns), Some(free), true) =
            (duration_ns, entry.free, priority != DEFAULT_PRIORITY)
        {
            self.expiries.insert(id, (now_ns.saturating_add(duration_ns), free.turn));
        }
    }

    fn enqueue(&mut self, id: BlockId) {
        let Entry { retention, standing, free } = self.entries[id as usize];
        let Some(Free { tier, turn }) = free.filter(|_| !standing.is_protected) else {
            return;
        };
        let rank = (retention.priority, turn);
        let queues = self.tier_mut(tier);
        if standing.has_stored_below {
            queues.inner.insert(id, rank);
        } else {
            queues.leaves.insert(id, rank);
        }
    }

    fn dequeue(&mut self, id: BlockId) {
        for queues in [&mut self.primary, &mut self.secondary] {
            queues.leaves.remove(id);
            queues.inner.remove(id);
        }
    }

    fn tier(&self, tier: Tier) -> &TierQueues {
        match tier {
            Tier::Primary => &self.primary,
            Tier::Secondary => &self.secondary,
        }
    }

    fn tier_mut(&mut self, tier: Tier) -> &mut TierQueues {
        match tier {
            Tier::Primary => &mut self.primary,
            Tier::Secondary => &mut self.secondary,
        }
    }

    fn back(&mut self) -> i64 {
        self.next_back += 1;
        self.next_back - 1
    }

    fn front(&mut self) -> i64 {
        self.next_front -= 1;
        self.next_front + 1
    }

    /// Checks that each block stands in exactly the heap where it belongs.
    pub(super) fn verify(&self) -> Result<(), String> {
        for (id, entry) in self.entries.iter().enumerate() {
            for tier in [Tier::Primary, Tier::Secondary] {
                let is_queued = entry
                    .free
                    .is_some_and(|free| free.tier == tier && !entry.standing.is_protected);
                let below = entry.standing.has_stored_below;
                let queues = self.tier(tier);
                let id = id as BlockId;
                if queues.leaves.contains(id) != (is_queued && !below)
                    || queues.inner.contains(id) != (is_queued && below)
                {
                    return Err(format!("block {id} is not in the queue where it belongs"));
                }
            }
            if self.expiries.contains(id as BlockId) && entry.free.is_none() {
                return Err(format!("block {id} is in use and expires"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: Standing =
        Standing { is_stored: true, has_stored_below: false, is_protected: false };
    const INNER: Standing = Standing { has_stored_below: true, ..STORED };

    fn queues(primary: usize, secondary: usize) -> FreeQueues {
        FreeQueues::new(primary, secondary).expect("memory")
    }

    fn taken(queues: &mut FreeQueues) -> Vec<BlockId> {
        let mut order = Vec::new();
        while let Some(id) = queues.next(Tier::Primary) {
            queues.claim(id, None, None);
            queues.verify().expect("each block is where it belongs");
            order.push(id);
        }
        order
    }

    fn released(queues: &mut FreeQueues, id: BlockId, standing: Standing) {
        queues.set_standing(id, standing);
        queues.release(id, Tier::Primary, 0);
    }

    #[test]
    fn lower_ids_come_first_and_tiers_do_not_mix() {
        let mut queues = queues(3, 2);
        assert_eq!(queues.free_count(Tier::Secondary), 2);
        assert_eq!(queues.next(Tier::Secondary), Some(3));
        assert_eq!(taken(&mut queues), [0, 1, 2]);
        assert_eq!((queues.free_count(Tier::Primary), queues.free_count(Tier::Secondary)), (0, 2));
    }

    #[test]
    fn what_is_not_in_the_tree_goes_to_the_front() {
        let mut queues = queues(4, 0);
        taken(&mut queues);
        for (id, standing) in [(2, STORED), (0, Standing::default()), (1, STORED)] {
            released(&mut queues, id, standing);
        }
        released(&mut queues, 3, Standing::default());
        assert_eq!(taken(&mut queues), [3, 0, 2, 1]);
    }

    #[test]
    fn priority_goes_before_age_and_leaves_before_both() {
        let mut queues = queues(4, 0);
        taken(&mut queues);
        for (id, priority, standing) in
            [(0, 10, INNER), (1, 90, STORED), (2, 50, STORED), (3, 50, STORED)]
        {
            queues.claim(id, Some(priority), None);
            released(&mut queues, id, standing);
        }
        assert_eq!(queues.next(Tier::Primary), Some(2));
        queues.set_standing(0, STORED);
        assert_eq!(taken(&mut queues), [0, 2, 3, 1]);
    }

    #[test]
    fn protection_takes_a_block_out_of_the_count_and_keeps_its_place() {
        let mut queues = queues(3, 0);
        for _ in 0..3 {
            queues.set_standing(0, Standing { is_protected: true, ..Standing::default() });
            queues.verify().expect("each block is where it belongs");
            assert_eq!(
                (queues.free_count(Tier::Primary), queues.next(Tier::Primary)),
                (2, Some(1))
            );
            assert!(queues.is_free(0) && !queues.can_be_taken(0));
            queues.set_standing(0, Standing::default());
            assert_eq!(queues.free_count(Tier::Primary), 3, "free once, however often pinned");
        }
        assert_eq!(taken(&mut queues), [0, 1, 2]);
    }

    #[test]
    fn a_priority_ends_at_its_time_and_the_block_goes_to_the_back() {
        let mut queues = queues(3, 0);
        taken(&mut queues);
        for (id, priority, duration_ns) in [(0, 80, Some(10)), (1, 35, None), (2, 20, Some(30))] {
            queues.claim(id, Some(priority), duration_ns);
            queues.set_standing(id, STORED);
            queues.release(id, Tier::Primary, 5);
        }
        assert_eq!(queues.expire_one(14), None);
        assert_eq!(queues.expire_one(15), Some(0));
        assert_eq!(queues.expire_one(15), None);
        assert_eq!(queues.retention(0), Retention::default());
        assert_eq!(queues.expire_one(u64::MAX), Some(2));
        assert_eq!(taken(&mut queues), [1, 0, 2]);
    }

    #[test]
    fn a_claim_clears_the_duration_and_keeps_the_priority_unless_given() {
        let mut queues = queues(1, 0);
        queues.claim(0, Some(80), Some(10));
        queues.release(0, Tier::Primary, 0);
        queues.claim(0, None, None);
        assert_eq!(queues.retention(0), Retention { priority: 80, duration_ns: None });
        queues.release(0, Tier::Primary, 0);
        assert_eq!(queues.expire_one(u64::MAX), None);
        // The default priority has no end: there is nothing to fall back to.
        queues.claim(0, Some(DEFAULT_PRIORITY), Some(1));
        queues.release(0, Tier::Primary, 0);
        assert_eq!(queues.expire_one(u64::MAX), None);
    }

    #[test]
    fn a_free_block_keeps_its_turn_when_its_priority_changes() {
        let mut queues = queues(3, 0);
        queues.set_retention(0, Retention { priority: 50, duration_ns: Some(7) }, 3);
        queues.set_retention(1, Retention { priority: 50, duration_ns: None }, 3);
        assert_eq!(queues.next(Tier::Primary), Some(2));
        assert_eq!(queues.expire_one(9), None);
        assert_eq!(taken(&mut queues), [2, 0, 1]);
        assert_eq!(queues.expire_one(u64::MAX), None, "in use");
    }
}
