//! Owner mode: the library keeps the free queues of a tree and hands blocks out.
//!
//! Guards, with one lock of its own: every window's [`Pool`] and the list of copies. The lock is
//! taken before the tree's, never after it; transfer threads, which match, pin and unpin, never
//! take it. What they change is told by the tree and learned before each decision.
//! Never does: copy bytes. It says which copies to make, in which order, and the host makes them.

use std::sync::Arc;

use super::copies::{BlockCopy, Copies};
use super::error::ReuseError;
use super::free_queues::Retention;
use super::node::{BlockId, Tier};
use super::pool::Pool;
use super::sequence::Sequence;
use super::slots::Place;
use super::tree::{Evicted, Noted, Refreshed, ReuseTree, ReuseTreeConfig, TreeObserver};
use crate::sync::Mutex;

/// Most blocks of a window, in both tiers.
pub const MAX_OWNED_BLOCKS: usize = 1 << 26;

/// How many blocks each window has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnedBlocks {
    /// In primary memory: the ids from 0 on.
    pub primary: usize,
    /// In secondary memory: the ids after those.
    pub secondary: usize,
}

/// An owner's numbers, over all windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerStatistics {
    /// Free blocks in primary memory, without protected ones.
    pub free_primary: usize,
    /// Free blocks in secondary memory, without protected ones.
    pub free_secondary: usize,
    /// Copies that the host has not made.
    pub waiting_copies: usize,
    /// Blocks that left the tree because one was taken, ever.
    pub blocks_evicted: u64,
    /// Blocks that went to secondary memory, ever.
    pub blocks_offloaded: u64,
    /// Blocks that came back, ever.
    pub blocks_onboarded: u64,
}

pub(super) struct State {
    /// In the order of the tree's windows.
    pub(super) pools: Vec<Pool>,
    pub(super) copies: Copies,
    /// The time of the last refresh.
    pub(super) now_ns: u64,
}

impl State {
    pub(super) fn learn(&mut self, tree: &ReuseTree) {
        self.pools.iter_mut().for_each(|pool| pool.learn(tree));
    }

    fn statistics(&self) -> OwnerStatistics {
        let mut sum = OwnerStatistics { waiting_copies: self.copies.len(), ..Default::default() };
        for pool in &self.pools {
            sum.free_primary += pool.queues.free_count(Tier::Primary);
            sum.free_secondary += pool.queues.free_count(Tier::Secondary);
            sum.blocks_evicted += pool.counts.evicted;
            sum.blocks_offloaded += pool.counts.offloaded;
            sum.blocks_onboarded += pool.counts.onboarded;
        }
        sum
    }
}

/// What an owner, its requests and their pins share.
pub(super) struct Shared {
    pub(super) tree: ReuseTree,
    observer: Arc<dyn TreeObserver>,
    state: Mutex<State>,
}

impl Shared {
    /// Runs one operation under the lock, on pools that know how their blocks stand by now.
    pub(super) fn locked<T>(&self, operation: impl FnOnce(&mut State, &ReuseTree) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.statistics();
        state.pools.iter_mut().for_each(|pool| pool.recall(&self.tree));
        state.learn(&self.tree);
        let outcome = operation(&mut state, &self.tree);
        state.learn(&self.tree);
        let after = state.statistics();
        if before != after {
            self.observer.owner_changed(&before, &after);
        }
        outcome
    }

    pub(super) fn window_index(&self, window: i32) -> Result<usize, ReuseError> {
        let position = self.tree.windows().iter().position(|tokens| *tokens == window);
        position.ok_or(ReuseError::UnknownWindow { window })
    }
}

impl Drop for Shared {
    /// Nobody can take a block any more.
    fn drop(&mut self) {
        let before = self.state.get_mut().statistics();
        let after =
            OwnerStatistics { free_primary: 0, free_secondary: 0, waiting_copies: 0, ..before };
        if before != after {
            self.observer.owner_changed(&before, &after);
        }
    }
}

/// The owner of a tree's blocks. Operations may be called from any thread; a clone is another handle
/// on the same owner.
#[derive(Clone)]
pub struct Owner {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Owner").field("tree", &self.shared.tree).finish_non_exhaustive()
    }
}

impl Owner {
    /// An owner whose blocks are all free, and its empty tree. Each window has `blocks` of its own.
    pub fn new(
        config: ReuseTreeConfig<'_>,
        blocks: OwnedBlocks,
        event_capacity: usize,
    ) -> Result<Self, ReuseError> {
        let OwnedBlocks { primary, secondary } = blocks;
        let all = primary.checked_add(secondary).filter(|all| *all <= MAX_OWNED_BLOCKS);
        let limit = MAX_OWNED_BLOCKS;
        let all = all.ok_or(ReuseError::Limit { what: "blocks of a window", limit })?;
        let observer = Arc::clone(&config.observer);
        let tree = ReuseTree::noting(config, Noted { event_capacity, owned: blocks })?;
        let mut pools = Vec::new();
        pools.try_reserve_exact(tree.windows().len())?;
        for (index, window) in tree.windows().iter().enumerate() {
            let tokens_per_block = tree.tokens_per_block();
            if let Some(slots) = tree.slots(index) {
                pools.push(Pool::new(*window, index, tokens_per_block, blocks, slots)?);
            }
        }
        // A host that makes no copies gets no blocks in the end; never more memory.
        let copies = Copies::new(all.saturating_mul(pools.len()).saturating_mul(4).max(1024));
        let mut state = State { pools, copies, now_ns: 0 };
        state.learn(&tree);
        observer.owner_changed(&OwnerStatistics::default(), &state.statistics());
        let state = Mutex::new(state);
        Ok(Self { shared: Arc::new(Shared { tree, observer, state }) })
    }

    /// The tree: for matching, pinning, finding and events. What changes it goes through the owner.
    pub fn tree(&self) -> &ReuseTree {
        &self.shared.tree
    }

    /// The owner's numbers.
    pub fn statistics(&self) -> OwnerStatistics {
        self.shared.locked(|state, _| state.statistics())
    }

    /// Blocks of a window and tier that can be taken: free and not protected.
    pub fn free_count(&self, window: i32, tier: Tier) -> Result<usize, ReuseError> {
        let index = self.shared.window_index(window)?;
        Ok(self.shared.locked(|state, _| state.pools[index].queues.free_count(tier)))
    }

    fn on_block<T>(
        &self,
        window: i32,
        id: BlockId,
        operation: impl FnOnce(&mut Pool, &ReuseTree, &mut Copies, u64) -> Result<T, ReuseError>,
    ) -> Result<T, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.locked(|state, tree| {
            let State { pools, copies, now_ns } = state;
            pools[index].check(id)?;
            operation(&mut pools[index], tree, copies, *now_ns)
        })
    }

    /// Takes the next free primary block, for one user. It may ask for a copy: see
    /// [`Owner::copies`].
    pub fn take(&self, window: i32, retention: Retention) -> Result<BlockId, ReuseError> {
        let index = self.shared.window_index(window)?;
        retention.check()?;
        self.shared.locked(|state, tree| {
            let State { pools, copies, now_ns } = state;
            copies.reserve(1)?;
            pools[index].take(tree, retention, copies, *now_ns)
        })
    }

    /// One more user of a block. Without a priority it keeps its own; its duration is overwritten.
    pub fn claim(
        &self,
        window: i32,
        id: BlockId,
        priority: Option<u8>,
        duration_ns: Option<u64>,
    ) -> Result<(), ReuseError> {
        Retention { priority: priority.unwrap_or(0), duration_ns }.check()?;
        self.on_block(window, id, |pool, tree, _, _| pool.hold(tree, id, priority, duration_ns))
    }

    /// One user less. The last one gives the block back: to the back of its queue if it is in the
    /// tree, else to the front.
    pub fn release(&self, window: i32, id: BlockId) -> Result<(), ReuseError> {
        self.on_block(window, id, |pool, _, _, now_ns| {
            if pool.users(id) == 0 {
                return Err(pool.state_of(id, "has no users: it was released before"));
            }
            pool.let_go(id, now_ns);
            Ok(())
        })
    }

    /// How many use a block.
    pub fn users(&self, window: i32, id: BlockId) -> Result<u32, ReuseError> {
        self.on_block(window, id, |pool, _, _, _| Ok(pool.users(id)))
    }

    /// Gives a block another priority, from now on for the duration.
    pub fn set_retention(
        &self,
        window: i32,
        id: BlockId,
        retention: Retention,
    ) -> Result<(), ReuseError> {
        retention.check()?;
        self.on_block(window, id, |pool, tree, _, now_ns| {
            pool.set_retention(tree, id, retention, now_ns)
        })
    }

    /// How much a block is worth keeping.
    pub fn retention(&self, window: i32, id: BlockId) -> Result<Retention, ReuseError> {
        self.on_block(window, id, |pool, _, _, _| Ok(pool.queues.retention(id)))
    }

    /// Where a block's bytes lie, once the copies that wait are made.
    pub fn place(&self, window: i32, id: BlockId) -> Result<Place, ReuseError> {
        self.on_block(window, id, |pool, _, _, _| Ok(pool.place(id)))
    }

    /// Moves a free block that is in the tree to secondary memory; `false`: it is in use or
    /// protected.
    pub fn offload(&self, window: i32, id: BlockId) -> Result<bool, ReuseError> {
        self.on_block(window, id, |pool, tree, copies, now_ns| {
            pool.offload(tree, id, copies, now_ns)
        })
    }

    /// Moves a free block to primary memory; `false`: it is in use or protected.
    pub fn onboard(&self, window: i32, id: BlockId) -> Result<bool, ReuseError> {
        self.on_block(window, id, |pool, tree, copies, now_ns| {
            if pool.place(id).tier == Tier::Primary {
                return Ok(true);
            }
            if !pool.queues.can_be_taken(id) {
                return Ok(false);
            }
            copies.reserve(2)?;
            // Out of its queue, so that the block that makes room is another one.
            let Retention { priority, duration_ns } = pool.queues.retention(id);
            pool.hold(tree, id, Some(priority), duration_ns)?;
            let onboarded = pool.onboard(tree, id, copies, now_ns);
            pool.let_go(id, now_ns);
            onboarded.map(|()| true)
        })
    }

    /// The copies that the host has not made yet, oldest first: at most `most`. They are to be made
    /// in this order, before blocks handed out meanwhile are written; then [`Owner::copied`].
    pub fn copies(&self, most: usize, mut each: impl FnMut(&BlockCopy)) -> usize {
        self.shared.locked(|state, _| {
            state.copies.iter().take(most).for_each(&mut each);
            state.copies.len()
        })
    }

    /// The host has made the `count` oldest copies. Only now may blocks that came back to primary
    /// memory be sent.
    pub fn copied(&self, count: usize) -> Result<(), ReuseError> {
        self.shared.locked(|state, tree| {
            let limit = state.copies.len();
            if count > limit {
                return Err(ReuseError::Limit { what: "copies that were asked for", limit });
            }
            for _ in 0..count {
                if let Some(copy) = state.copies.pop() {
                    let pool = state.pools.iter_mut().find(|pool| pool.window == copy.window);
                    pool.map_or(Ok(()), |pool| pool.copied(tree, &copy))?;
                }
            }
            Ok(())
        })
    }

    /// [`ReuseTree::store`] of blocks that are in use.
    pub fn store(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        self.store_used(window, sequence, first_block, ids, None)
    }

    /// [`ReuseTree::store_with_fence`] of blocks that are in use.
    pub fn store_with_fence(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
        fence: u64,
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        self.store_used(window, sequence, first_block, ids, Some(fence))
    }

    fn store_used(
        &self,
        window: i32,
        sequence: &Sequence,
        first_block: usize,
        ids: &[BlockId],
        fence: Option<u64>,
    ) -> Result<Vec<Option<BlockId>>, ReuseError> {
        let index = self.shared.window_index(window)?;
        self.shared.locked(|state, tree| {
            let pool = &state.pools[index];
            for id in ids.iter().copied().filter(|id| *id >= 0) {
                pool.check(id)?;
                if pool.users(id) == 0 {
                    return Err(pool.state_of(id, "has no users: claim it before it is stored"));
                }
            }
            let priority = |id| pool.queues.retention(id).priority;
            tree.store_with_priorities(window, sequence, first_block, ids, &priority, fence)
        })
    }

    /// Takes a block that nobody uses out of the tree, with all stored below it.
    pub fn evict(&self, window: i32, id: BlockId) -> Result<Evicted, ReuseError> {
        self.on_block(window, id, |pool, tree, _, _| {
            if pool.users(id) > 0 {
                return Ok(Evicted::Busy);
            }
            tree.evict(window, id)
        })
    }

    /// Takes a block and everything below it out of the tree, in use or not; users keep their
    /// blocks.
    pub fn remove_subtree(&self, window: i32, id: BlockId) -> Result<usize, ReuseError> {
        self.on_block(window, id, |_, tree, _, _| tree.remove_subtree(window, id))
    }

    /// Empties the tree; users keep their blocks.
    pub fn reset(&self) {
        self.shared.locked(|_, tree| tree.reset());
    }

    /// To be called once an iteration: time passes for priorities and leases. Time never goes back.
    pub fn refresh(&self, now_ns: u64) -> Result<Refreshed, ReuseError> {
        let priorities_expired = self.shared.locked(|state, tree| {
            state.now_ns = state.now_ns.max(now_ns);
            let now_ns = state.now_ns;
            let mut expired = 0;
            for pool in &mut state.pools {
                expired += pool.expire(tree, now_ns)?;
            }
            Ok::<_, ReuseError>(expired)
        })?;
        let refreshed = self.shared.tree.refresh(now_ns)?;
        Ok(Refreshed { priorities_expired, ..refreshed })
    }

    /// Checks that the parts agree with each other; `Err` says which do not. Slow, and only while
    /// nobody pins.
    pub fn verify(&self) -> Result<(), String> {
        self.shared.tree.verify()?;
        self.shared.locked(|state, tree| state.pools.iter().try_for_each(|pool| pool.verify(tree)))
    }
}
