//! A batch manager as a child would build it, on top of `reuse_model`: every question is answered by
//! looking at all blocks. The oracle for `owner_random.rs`; knows nothing of the library.

use crate::reuse_model::{Key, Window};

const DEFAULT_PRIORITY: u8 = 35;
const OFFLOAD_MIN_PRIORITY: u8 = 30;

/// Primary memory is true, secondary false.
pub type Place = (bool, u32);
/// Window's place, block, what for, from, to, tokens.
pub type Copy = (usize, i32, &'static str, Place, Place, usize);
/// Priority, duration.
pub type Retention = (u8, Option<u64>);
/// First token, the token after the last, what these blocks get.
pub type Range = (usize, Option<usize>, Retention);

/// A prompt: the key of a block cut off after so many tokens of the prompt, and how many there are.
pub struct Prompt<'a> {
    pub key: &'a dyn Fn(usize, usize) -> Option<Key>,
    pub tokens: usize,
}

impl Prompt<'_> {
    fn path(&self, tokens: usize) -> Vec<Key> {
        (0..).map_while(|block| (self.key)(block, tokens)).collect()
    }
}

#[derive(Debug, Clone)]
pub struct Block {
    pub place: Place,
    pub retention: Retention,
    pub users: usize,
    /// While nobody uses it: less is earlier.
    turn: Option<i64>,
    expiry: Option<u64>,
    /// Copies to it that are not made.
    waiting: usize,
}

pub struct Pool {
    pub tree: Window,
    pub blocks: Vec<Block>,
    front: i64,
    back: i64,
    pub offloaded: usize,
    pub onboarded: usize,
}

/// A request's blocks in each window: the place of the first, and ids.
#[derive(Debug, Clone)]
pub struct Request {
    pub held: Vec<(usize, Vec<i32>)>,
    pub tokens: usize,
    pub matched: usize,
}

/// There were not enough blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct NoFreeBlock;

pub struct Manager {
    pub pools: Vec<Pool>,
    pub copies: Vec<Copy>,
    pub now: u64,
    /// Tokens in a block.
    block: usize,
}

impl Pool {
    fn new(tokens: usize, primary: usize, secondary: usize) -> Self {
        let block = |index: usize| Block {
            place: match index.checked_sub(primary) {
                None => (true, index as u32),
                Some(slot) => (false, slot as u32),
            },
            retention: (DEFAULT_PRIORITY, None),
            users: 0,
            turn: Some(index as i64),
            expiry: None,
            waiting: 0,
        };
        let blocks: Vec<Block> = (0..primary + secondary).map(block).collect();
        let back = blocks.len() as i64;
        let tree = Window::new(tokens);
        Self { tree, blocks, front: -1, back, offloaded: 0, onboarded: 0 }
    }

    fn at(&mut self, id: i32) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    pub fn can_be_taken(&self, id: i32) -> bool {
        self.blocks[id as usize].users == 0 && !self.tree.is_protected(id)
    }

    fn is_primary(&self, id: i32) -> bool {
        self.blocks[id as usize].place.0
    }

    fn has_below(&self, id: i32) -> bool {
        self.tree.find_id(id).is_some_and(|stored| {
            let path = &stored.path;
            let is_below = |other: &[Key]| other.len() > path.len() && other.starts_with(path);
            self.tree.stored.iter().any(|other| is_below(&other.path))
        })
    }

    pub fn free(&self, primary: bool) -> usize {
        let ids = 0..self.blocks.len() as i32;
        ids.filter(|id| self.can_be_taken(*id) && self.is_primary(*id) == primary).count()
    }

    fn next(&self, primary: bool) -> Option<i32> {
        let free: Vec<i32> = (0..self.blocks.len() as i32)
            .filter(|id| self.can_be_taken(*id) && self.is_primary(*id) == primary)
            .collect();
        let rank = |id: &i32| {
            let block = &self.blocks[*id as usize];
            (block.retention.0, block.turn)
        };
        let leaves = free.iter().copied().filter(|id| !self.has_below(*id));
        leaves.min_by_key(rank).or_else(|| free.iter().copied().min_by_key(rank))
    }

    fn claim(&mut self, id: i32, priority: Option<u8>, duration: Option<u64>) {
        let block = self.at(id);
        block.turn = None;
        block.expiry = None;
        block.retention = (priority.unwrap_or(block.retention.0), duration);
    }

    pub fn hold(&mut self, id: i32, priority: Option<u8>, duration: Option<u64>) {
        self.at(id).users += 1;
        self.claim(id, priority, duration);
    }

    fn arm(&mut self, id: i32, now: u64) {
        let block = self.at(id);
        block.expiry = match block.retention {
            (DEFAULT_PRIORITY, _) | (_, None) => None,
            (_, Some(duration)) => Some(now + duration),
        };
    }

    fn queue(&mut self, id: i32, now: u64) {
        let is_stored = self.tree.find_id(id).is_some();
        let turn = if is_stored { self.back } else { self.front };
        self.back += i64::from(is_stored);
        self.front -= i64::from(!is_stored);
        self.at(id).turn = Some(turn);
        self.arm(id, now);
    }

    pub fn let_go(&mut self, id: i32, now: u64) {
        self.at(id).users -= 1;
        if self.at(id).users == 0 {
            self.queue(id, now);
        }
    }

    pub fn set_retention(&mut self, id: i32, retention: Retention, now: u64) {
        self.at(id).retention = retention;
        self.at(id).expiry = None;
        if self.at(id).users == 0 {
            self.arm(id, now);
        }
    }

    fn refresh(&mut self, now: u64) -> usize {
        let mut expired: Vec<(u64, Option<i64>, i32)> = Vec::new();
        for (id, block) in self.blocks.iter().enumerate() {
            if let Some(expiry) = block.expiry.filter(|expiry| *expiry <= now) {
                expired.push((expiry, block.turn, id as i32));
            }
        }
        expired.sort();
        for (_, _, id) in &expired {
            let turn = self.back;
            self.back += 1;
            let block = self.at(*id);
            (block.retention, block.expiry) = ((DEFAULT_PRIORITY, None), None);
            block.turn = Some(turn);
        }
        expired.len()
    }

    fn leave(&mut self, id: i32) {
        if let Some(path) = self.tree.find_id(id).map(|stored| stored.path.clone()) {
            self.tree.remove_below(&path);
        }
    }

    fn exchange(&mut self, id: i32, other: i32, what: &'static str, block: usize) -> Copy {
        let (from, to) = (self.at(id).place, self.at(other).place);
        (self.at(id).place, self.at(other).place) = (to, from);
        self.at(id).waiting += 1;
        (0, id, what, from, to, block)
    }

    fn stored_mut(&mut self, id: i32) -> Option<&mut crate::reuse_model::Stored> {
        self.tree.stored.iter_mut().find(|stored| stored.id == id)
    }

    /// To secondary memory; the block that has its slot instead.
    fn offload(&mut self, id: i32, now: u64, block: usize) -> Option<(i32, Copy)> {
        let other = self.next(false)?;
        self.leave(other);
        self.claim(other, None, None);
        if self.tree.find_id(id).is_none() {
            self.queue(other, now);
            return None;
        }
        let copy = self.exchange(id, other, "offload", block);
        self.stored_mut(id).expect("it is stored").is_primary = false;
        self.offloaded += 1;
        self.queue(id, now);
        Some((other, copy))
    }
}

impl Manager {
    pub fn new(windows: &[i32], primary: usize, secondary: usize, block: usize) -> Self {
        let pool = |tokens: &i32| Pool::new(*tokens as usize, primary, secondary);
        Self { pools: windows.iter().map(pool).collect(), copies: Vec::new(), now: 0, block }
    }

    fn vacate(&mut self, window: usize) -> Option<i32> {
        let (now, block) = (self.now, self.block);
        let pool = &mut self.pools[window];
        let id = pool.next(true)?;
        let is_stored = pool.tree.find_id(id).is_some();
        if is_stored && pool.at(id).retention.0 >= OFFLOAD_MIN_PRIORITY {
            if let Some((other, copy)) = pool.offload(id, now, block) {
                self.copies.push((window, copy.1, copy.2, copy.3, copy.4, copy.5));
                return Some(other);
            }
        }
        pool.leave(id);
        pool.claim(id, None, None);
        Some(id)
    }

    pub fn take(&mut self, window: usize, retention: Retention) -> Result<i32, NoFreeBlock> {
        let id = self.vacate(window).ok_or(NoFreeBlock)?;
        self.pools[window].hold(id, Some(retention.0), retention.1);
        Ok(id)
    }

    /// As the host asks for it. `Ok(false)`: busy; `Err`: there is nothing to move or no room.
    pub fn offload(&mut self, window: usize, id: i32) -> Result<bool, NoFreeBlock> {
        let (now, block) = (self.now, self.block);
        let pool = &mut self.pools[window];
        if !pool.is_primary(id) {
            return Ok(true);
        }
        if !pool.can_be_taken(id) {
            return Ok(false);
        }
        if pool.tree.find_id(id).is_none() {
            return Err(NoFreeBlock);
        }
        let (other, copy) = pool.offload(id, now, block).ok_or(NoFreeBlock)?;
        self.copies.push((window, copy.1, copy.2, copy.3, copy.4, copy.5));
        self.pools[window].queue(other, now);
        Ok(true)
    }

    pub fn onboard(&mut self, window: usize, id: i32) -> Result<bool, NoFreeBlock> {
        let now = self.now;
        let pool = &mut self.pools[window];
        if pool.is_primary(id) {
            return Ok(true);
        }
        if !pool.can_be_taken(id) {
            return Ok(false);
        }
        let (priority, duration) = pool.at(id).retention;
        pool.hold(id, Some(priority), duration);
        let onboarded = self.bring_back(window, id);
        self.pools[window].let_go(id, now);
        onboarded.map(|()| true)
    }

    fn bring_back(&mut self, window: usize, id: i32) -> Result<(), NoFreeBlock> {
        let (now, block) = (self.now, self.block);
        let other = self.vacate(window).ok_or(NoFreeBlock)?;
        let pool = &mut self.pools[window];
        let copy = pool.exchange(id, other, "onboard", block);
        pool.onboarded += 1;
        pool.queue(other, now);
        self.copies.push((window, copy.1, copy.2, copy.3, copy.4, copy.5));
        Ok(())
    }

    fn copy(&mut self, window: usize, from: i32, to: i32, tokens: usize) {
        let pool = &mut self.pools[window];
        let places = (pool.at(from).place, pool.at(to).place);
        pool.at(to).waiting += 1;
        self.copies.push((window, to, "reuse", places.0, places.1, tokens));
    }

    pub fn copied(&mut self, count: usize) {
        for (window, id, ..) in self.copies.drain(..count) {
            let pool = &mut self.pools[window];
            pool.at(id).waiting -= 1;
            let is_there = pool.at(id).waiting == 0 && pool.is_primary(id);
            if let Some(stored) = pool.stored_mut(id).filter(|_| is_there) {
                stored.is_primary = true;
            }
        }
    }

    pub fn refresh(&mut self, now: u64) -> usize {
        self.now = self.now.max(now);
        let now = self.now;
        self.pools.iter_mut().map(|pool| pool.refresh(now)).sum()
    }

    /// Matched tokens, first block, ids, leading tokens of a last partial one.
    fn matched(
        &self,
        window: usize,
        prompt: &Prompt<'_>,
        limit: usize,
    ) -> (usize, usize, Vec<i32>, usize) {
        let whole = limit.min(prompt.tokens) / self.block;
        let full: Vec<Key> =
            (0..whole).map(|block| (prompt.key)(block, usize::MAX).expect("whole")).collect();
        let cut: Vec<_> = (0..=whole).map(|block| (prompt.key)(block, limit)).collect();
        self.pools[window].tree.match_prefix(&full, &cut, self.block)
    }

    /// A prefix that every window matches: the shortest match of any is what the others are asked
    /// for, until they agree.
    fn common(&self, prompt: &Prompt<'_>, most: usize) -> usize {
        let windows = 0..self.pools.len();
        let shorter = windows.fold(most, |most, window| self.matched(window, prompt, most).0);
        if shorter == most {
            return most;
        }
        self.common(prompt, shorter)
    }

    pub fn add(
        &mut self,
        prompt: &Prompt<'_>,
        most: usize,
        ranges: &[Range],
    ) -> Result<Request, NoFreeBlock> {
        let longest = self.common(prompt, most.min(prompt.tokens - 1));
        let whole = self.common(prompt, longest / self.block * self.block);
        for matched in [longest, whole] {
            let windows = 0..self.pools.len();
            if windows.clone().all(|window| self.has_enough(window, prompt, matched)) {
                return Ok(self.admit(prompt, matched, ranges));
            }
        }
        Err(NoFreeBlock)
    }

    /// Whether the partly matching block is the request's alone.
    fn is_taken_over(&self, window: usize, id: i32) -> bool {
        let pool = &self.pools[window];
        pool.can_be_taken(id) && pool.is_primary(id) && !pool.has_below(id)
    }

    fn has_enough(&self, window: usize, prompt: &Prompt<'_>, matched: usize) -> bool {
        let pool = &self.pools[window];
        let (_, first, ids, head) = self.matched(window, prompt, matched);
        let (full, partial) = ids.split_at(ids.len() - usize::from(head > 0));
        let is_free_primary = |id: &&i32| pool.can_be_taken(**id) && pool.is_primary(**id);
        let back = full.iter().filter(|id| !pool.is_primary(**id)).count();
        let over = partial.iter().filter(|id| self.is_taken_over(window, **id)).count();
        let fresh = prompt.tokens.div_ceil(self.block) - first - full.len() - over;
        let free = pool.free(true) - ids.iter().filter(is_free_primary).count();
        let is_copied = !partial.is_empty() && over == 0;
        let returned = partial.iter().filter(is_free_primary).count() * usize::from(is_copied);
        back + usize::from(is_copied) <= free && back + fresh <= free + returned
    }

    fn admit(&mut self, prompt: &Prompt<'_>, matched: usize, ranges: &[Range]) -> Request {
        let block = self.block;
        let said = |place: usize| {
            let token = place * block;
            let covers = |range: &&Range| range.0 <= token && range.1.is_none_or(|end| token < end);
            ranges.iter().find(covers).map(|range| range.2)
        };
        let windows = 0..self.pools.len();
        let mut held: Vec<(usize, Vec<i32>)> = Vec::new();
        let mut sources: Vec<Option<(i32, usize)>> = Vec::new();
        let found: Vec<_> = windows.map(|window| self.matched(window, prompt, matched)).collect();
        for (window, (_, first, ids, head)) in found.into_iter().enumerate() {
            let (full, partial) = ids.split_at(ids.len() - usize::from(head > 0));
            let is_taken_over = partial.iter().any(|id| self.is_taken_over(window, *id));
            let pool = &mut self.pools[window];
            let mut mine = full.to_vec();
            mine.extend(partial.iter().filter(|_| is_taken_over));
            for (place, id) in mine.iter().enumerate() {
                if place == full.len() {
                    pool.leave(*id);
                }
                let said = said(first + place);
                pool.hold(*id, said.map(|said| said.0), said.and_then(|said| said.1));
            }
            let source = partial.first().filter(|_| !is_taken_over);
            if let Some(id) = source {
                let (priority, duration) = pool.at(*id).retention;
                pool.hold(*id, Some(priority), duration);
            }
            sources.push(source.map(|id| (*id, head)));
            held.push((first, mine));
        }
        for (window, (first, ids)) in held.iter_mut().enumerate() {
            for id in ids.iter_mut() {
                let pool = &mut self.pools[window];
                if pool.is_primary(*id) {
                    continue;
                }
                if pool.tree.is_protected(*id) || pool.at(*id).users > 1 {
                    let retention = pool.at(*id).retention;
                    let fresh = self.take(window, retention).expect("enough");
                    self.copy(window, *id, fresh, block);
                    let now = self.now;
                    self.pools[window].let_go(std::mem::replace(id, fresh), now);
                } else {
                    self.bring_back(window, *id).expect("enough");
                }
            }
            if let Some((source, head)) = sources[window] {
                let retention = self.pools[window].at(source).retention;
                let fresh = self.take(window, retention).expect("enough");
                self.copy(window, source, fresh, head);
                let now = self.now;
                self.pools[window].let_go(source, now);
                ids.push(fresh);
            }
            for place in *first + ids.len()..prompt.tokens.div_ceil(block) {
                let retention = said(place).unwrap_or((DEFAULT_PRIORITY, None));
                ids.push(self.take(window, retention).expect("enough"));
            }
        }
        Request { held, tokens: prompt.tokens, matched }
    }

    pub fn grow(
        &mut self,
        request: &mut Request,
        tokens: usize,
        retention: Retention,
    ) -> Result<(), NoFreeBlock> {
        let count = request.tokens + tokens;
        let blocks = count.div_ceil(self.block);
        let lacks = |pool: &Pool, held: &(usize, Vec<i32>)| {
            blocks.saturating_sub(held.0 + held.1.len()) > pool.free(true)
        };
        if self.pools.iter().zip(&request.held).any(|(pool, held)| lacks(pool, held)) {
            return Err(NoFreeBlock);
        }
        for (window, (first, ids)) in request.held.iter_mut().enumerate() {
            while *first + ids.len() < blocks {
                ids.push(self.take(window, retention).expect("enough"));
            }
            let attention = self.pools[window].tree.tokens;
            if attention > 0 {
                while !ids.is_empty() && *first < count.saturating_sub(attention) / self.block {
                    self.pools[window].let_go(ids.remove(0), self.now);
                    *first += 1;
                }
            }
        }
        request.tokens = count;
        Ok(())
    }

    /// Stores the blocks before `blocks` of the prompt's first `tokens` tokens.
    pub fn store(&mut self, request: &Request, prompt: &Prompt<'_>, tokens: usize, blocks: usize) {
        let path = prompt.path(tokens);
        for (pool, (first, ids)) in self.pools.iter_mut().zip(&request.held) {
            let end = blocks.min(first + ids.len());
            let mut storable = Vec::new();
            for (place, id) in (*first..end).zip(ids) {
                let stored = pool.tree.find_id(*id);
                let is_elsewhere = stored.is_some_and(|stored| stored.path != path[..=place]);
                if is_elsewhere && pool.blocks[*id as usize].users > 1 {
                    break;
                }
                storable.push(*id);
            }
            pool.tree.store(&path, *first, &storable);
        }
    }

    pub fn give_back(&mut self, held: &[(usize, Vec<i32>)]) {
        for (pool, (_, ids)) in self.pools.iter_mut().zip(held) {
            ids.iter().rev().for_each(|id| pool.let_go(*id, self.now));
        }
    }
}
