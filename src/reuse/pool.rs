//! One window's blocks in owner mode: who uses them, where they lie, and which is taken next.
//!
//! A block is used by requests (each counts once), or it is free and in a queue. A pin of the tree
//! is neither: it keeps a free block from being taken, and a used one from leaving the tree.
//!
//! Guards: a block is handed out only while nobody uses it and no pin protects it, and only after it
//! left the tree; it leaves for secondary memory rather than for nothing where it is worth keeping.
//! A pin that comes between looking and taking is seen by the tree, which answers *busy*: such a
//! block is passed over.

use std::sync::Arc;

use super::copies::{BlockCopy, Copies, CopyReason};
use super::error::ReuseError;
use super::free_queues::{FreeQueues, Retention};
use super::node::{BlockId, Tier};
use super::owner::OwnedBlocks;
use super::slots::{Place, Slots};
use super::tree::{Evicted, ReuseTree};

/// The least priority with which a block is offloaded instead of dropped.
pub const OFFLOAD_MIN_PRIORITY: u8 = 30;

/// What a pool has done, ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Blocks that left the tree so that one could be taken.
    pub(super) evicted: u64,
    pub(super) offloaded: u64,
    pub(super) onboarded: u64,
    /// Blocks passed over because a pin came first.
    pub(super) busy: u64,
}

/// What came of an offload.
enum Offload {
    /// The block lies in secondary memory; this one has its slot and is nobody's.
    Done(BlockId),
    /// There is no free block in secondary memory.
    NoRoom,
    /// The block is protected.
    Busy,
    /// It left the tree with the block that had to make room.
    Gone,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) window: i32,
    /// The window's place in the tree.
    index: usize,
    tokens_per_block: usize,
    pub(super) queues: FreeQueues,
    slots: Arc<Slots>,
    /// By id: how many use it.
    users: Vec<u32>,
    /// By id: how many copies into its slot the host has not made yet.
    waiting: Vec<u32>,
    /// Blocks that the tree would not give up, until it is asked again.
    passed_over: Vec<BlockId>,
    pub(super) counts: Counts,
}

impl Pool {
    pub(super) fn new(
        window: i32,
        index: usize,
        tokens_per_block: usize,
        OwnedBlocks { primary, secondary }: OwnedBlocks,
        slots: Arc<Slots>,
    ) -> Result<Self, ReuseError> {
        let zeros = |count: usize| -> Result<Vec<u32>, ReuseError> {
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(count)?;
            zeros.resize(count, 0);
            Ok(zeros)
        };
        Ok(Self {
            window,
            index,
            tokens_per_block,
            queues: FreeQueues::new(primary, secondary)?,
            slots,
            users: zeros(primary + secondary)?,
            waiting: zeros(primary + secondary)?,
            passed_over: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// Refuses an id that there is no block of.
    pub(super) fn check(&self, id: BlockId) -> Result<(), ReuseError> {
        if self.slots.contains(id) {
            return Ok(());
        }
        Err(ReuseError::UnknownBlock { window: self.window, id, blocks: self.slots.len() })
    }

    pub(super) fn place(&self, id: BlockId) -> Place {
        self.slots.place(id)
    }

    pub(super) fn users(&self, id: BlockId) -> u32 {
        self.users[id as usize]
    }

    pub(super) fn free_primary(&self) -> usize {
        self.queues.free_count(Tier::Primary)
    }

    /// Asks again about blocks that were passed over: their pins may have ended before anybody
    /// noted them.
    pub(super) fn recall(&mut self, tree: &ReuseTree) {
        let index = self.index;
        self.passed_over.drain(..).for_each(|id| tree.note_changed(index, id));
    }

    /// Learns how blocks stand in the tree by now.
    pub(super) fn learn(&mut self, tree: &ReuseTree) {
        let (index, queues) = (self.index, &mut self.queues);
        tree.take_changed(index, |id| queues.set_standing(id, tree.standing(index, id)));
    }

    /// One more user of a block. Without a priority it keeps its own; its duration is overwritten.
    pub(super) fn hold(
        &mut self,
        tree: &ReuseTree,
        id: BlockId,
        priority: Option<u8>,
        duration_ns: Option<u64>,
    ) -> Result<(), ReuseError> {
        let before = self.queues.retention(id).priority;
        self.users[id as usize] += 1;
        self.queues.claim(id, priority, duration_ns);
        self.tell_priority(tree, id, before)
    }

    /// One user less; the last one gives it back to its queue.
    pub(super) fn let_go(&mut self, id: BlockId, now_ns: u64) {
        let users = &mut self.users[id as usize];
        *users -= 1;
        if *users == 0 {
            self.queues.release(id, self.slots.place(id).tier, now_ns);
        }
    }

    pub(super) fn set_retention(
        &mut self,
        tree: &ReuseTree,
        id: BlockId,
        retention: Retention,
        now_ns: u64,
    ) -> Result<(), ReuseError> {
        let before = self.queues.retention(id).priority;
        self.queues.set_retention(id, retention, now_ns);
        self.tell_priority(tree, id, before)
    }

    /// Lets priorities end whose time is over; how many.
    pub(super) fn expire(&mut self, tree: &ReuseTree, now_ns: u64) -> Result<usize, ReuseError> {
        let mut expired = 0;
        while let Some(id) = self.queues.expire_one(now_ns) {
            expired += 1;
            tree.set_retention(self.window, id, self.queues.retention(id), now_ns)?;
        }
        Ok(expired)
    }

    /// The tree tells priorities to routers.
    fn tell_priority(&self, tree: &ReuseTree, id: BlockId, before: u8) -> Result<(), ReuseError> {
        let priority = self.queues.retention(id).priority;
        if priority != before {
            let retention = Retention { priority, duration_ns: None };
            tree.set_retention(self.window, id, retention, 0)?;
        }
        Ok(())
    }

    /// Takes the next free primary block, for one user.
    pub(super) fn take(
        &mut self,
        tree: &ReuseTree,
        retention: Retention,
        copies: &mut Copies,
        now_ns: u64,
    ) -> Result<BlockId, ReuseError> {
        let id = self.vacate(tree, copies, now_ns)?;
        self.users[id as usize] = 1;
        self.queues.claim(id, Some(retention.priority), retention.duration_ns);
        Ok(id)
    }

    /// A primary block that is in no queue, not in the tree and used by nobody.
    fn vacate(
        &mut self,
        tree: &ReuseTree,
        copies: &mut Copies,
        now_ns: u64,
    ) -> Result<BlockId, ReuseError> {
        // Each round takes a block or finds one more protected.
        for _ in 0..=self.slots.len() {
            self.learn(tree);
            let Some(id) = self.queues.next(Tier::Primary) else {
                break;
            };
            let is_worth_keeping = self.queues.standing(id).is_stored
                && self.queues.retention(id).priority >= OFFLOAD_MIN_PRIORITY;
            if is_worth_keeping {
                match self.offload_to_free(tree, id, copies, now_ns)? {
                    Offload::Done(other) => return Ok(other),
                    Offload::Busy => continue,
                    Offload::NoRoom | Offload::Gone => {}
                }
            }
            if self.evict(tree, id)? {
                return Ok(id);
            }
        }
        Err(self.no_free_block(Tier::Primary, 1, 0))
    }

    /// Takes a free block out of its queue and the tree; `false` if it is protected.
    pub(super) fn evict(&mut self, tree: &ReuseTree, id: BlockId) -> Result<bool, ReuseError> {
        match tree.evict(self.window, id)? {
            Evicted::Busy => {
                self.pass_over(id)?;
                return Ok(false);
            }
            Evicted::Left { blocks } => self.counts.evicted += blocks as u64,
            Evicted::NotFound => {}
        }
        self.queues.claim(id, None, None);
        self.learn(tree);
        Ok(true)
    }

    /// The tree says that a block is protected, by a pin that it may not have accounted for.
    fn pass_over(&mut self, id: BlockId) -> Result<(), ReuseError> {
        self.passed_over.try_reserve(1)?;
        self.passed_over.push(id);
        self.counts.busy += 1;
        let mut standing = self.queues.standing(id);
        standing.is_protected = true;
        self.queues.set_standing(id, standing);
        Ok(())
    }

    /// Moves a stored primary block to secondary memory, in exchange for a free block there.
    fn offload_to_free(
        &mut self,
        tree: &ReuseTree,
        id: BlockId,
        copies: &mut Copies,
        now_ns: u64,
    ) -> Result<Offload, ReuseError> {
        copies.reserve(1)?;
        let other = loop {
            let Some(other) = self.queues.next(Tier::Secondary) else {
                return Ok(Offload::NoRoom);
            };
            if self.evict(tree, other)? {
                break other;
            }
        };
        let outcome = match tree.set_tier(self.window, id, Tier::Secondary)? {
            Some(true) => {
                self.exchange(id, other, CopyReason::Offload, copies);
                self.counts.offloaded += 1;
                let Retention { priority, duration_ns } = self.queues.retention(id);
                self.queues.claim(id, Some(priority), duration_ns);
                self.queues.release(id, Tier::Secondary, now_ns);
                return Ok(Offload::Done(other));
            }
            Some(false) => {
                self.pass_over(id)?;
                Offload::Busy
            }
            None => Offload::Gone,
        };
        self.queues.release(other, Tier::Secondary, now_ns);
        Ok(outcome)
    }

    /// Exchanges the slots of two blocks, of which only the first holds anything.
    fn exchange(&mut self, id: BlockId, other: BlockId, reason: CopyReason, copies: &mut Copies) {
        let (from, to) = (self.slots.place(id), self.slots.place(other));
        self.slots.swap(id, other);
        self.waiting[id as usize] += 1;
        let token_count = self.tokens_per_block;
        copies.push(BlockCopy { window: self.window, id, reason, from, to, token_count });
    }

    /// Moves a secondary block to a free primary slot. Its tier in the tree follows when the host has
    /// made the copy: until then nobody may send it.
    pub(super) fn onboard(
        &mut self,
        tree: &ReuseTree,
        id: BlockId,
        copies: &mut Copies,
        now_ns: u64,
    ) -> Result<(), ReuseError> {
        let other = self.vacate(tree, copies, now_ns)?;
        copies.reserve(1)?;
        self.exchange(id, other, CopyReason::Onboard, copies);
        self.counts.onboarded += 1;
        self.queues.release(other, Tier::Secondary, now_ns);
        Ok(())
    }

    /// Asks for a copy of the leading tokens of one block into another.
    pub(super) fn copy(
        &mut self,
        from: BlockId,
        to: BlockId,
        token_count: usize,
        copies: &mut Copies,
    ) -> Result<(), ReuseError> {
        copies.reserve(1)?;
        self.waiting[to as usize] += 1;
        copies.push(BlockCopy {
            window: self.window,
            id: to,
            reason: CopyReason::Reuse,
            from: self.slots.place(from),
            to: self.slots.place(to),
            token_count,
        });
        Ok(())
    }

    /// The host has made a copy.
    pub(super) fn copied(&mut self, tree: &ReuseTree, copy: &BlockCopy) -> Result<(), ReuseError> {
        let waiting = &mut self.waiting[copy.id as usize];
        *waiting -= 1;
        if *waiting == 0 && self.slots.place(copy.id).tier == Tier::Primary {
            tree.set_tier(self.window, copy.id, Tier::Primary)?;
        }
        Ok(())
    }

    /// Moves a free block to secondary memory because the host wants it there.
    pub(super) fn offload(
        &mut self,
        tree: &ReuseTree,
        id: BlockId,
        copies: &mut Copies,
        now_ns: u64,
    ) -> Result<bool, ReuseError> {
        self.learn(tree);
        if self.slots.place(id).tier == Tier::Secondary {
            return Ok(true);
        }
        if !self.queues.can_be_taken(id) {
            return Ok(false);
        }
        if !self.queues.standing(id).is_stored {
            return Err(self.state_of(id, "is not in the tree: there is nothing to keep"));
        }
        match self.offload_to_free(tree, id, copies, now_ns)? {
            Offload::Done(other) => {
                self.queues.release(other, Tier::Primary, now_ns);
                Ok(true)
            }
            Offload::Busy => Ok(false),
            Offload::NoRoom => Err(self.no_free_block(Tier::Secondary, 1, 0)),
            Offload::Gone => Err(self.state_of(id, "left the tree with the block that made room")),
        }
    }

    pub(super) fn no_free_block(&self, tier: Tier, needed: usize, free: usize) -> ReuseError {
        let memory = match tier {
            Tier::Primary => "primary",
            Tier::Secondary => "secondary",
        };
        ReuseError::NoFreeBlock { window: self.window, memory, needed, free }
    }

    /// Refuses when fewer primary blocks are free than needed.
    pub(super) fn check_free(&self, needed: usize, free: usize) -> Result<(), ReuseError> {
        if needed > free {
            return Err(self.no_free_block(Tier::Primary, needed, free));
        }
        Ok(())
    }

    pub(super) fn state_of(&self, id: BlockId, found: &'static str) -> ReuseError {
        ReuseError::BlockState { window: self.window, id, found }
    }

    /// Checks that the pool's parts agree with each other and with the tree. Call it after `learn`,
    /// with nobody pinning.
    pub(super) fn verify(&self, tree: &ReuseTree) -> Result<(), String> {
        self.queues.verify()?;
        self.slots.verify()?;
        for (index, users) in self.users.iter().enumerate() {
            let id = index as BlockId;
            if self.queues.is_free(id) != (*users == 0) {
                return Err(format!("block {id} has {users} users and is_free is wrong"));
            }
            if self.queues.standing(id) != tree.standing(self.index, id) {
                return Err(format!("block {id} stands otherwise in the tree than is known"));
            }
        }
        Ok(())
    }
}
