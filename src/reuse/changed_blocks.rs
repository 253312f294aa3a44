//! Which blocks of a window stand otherwise in the tree than before: told by any thread, read by
//! the owner of the free queues before it decides anything.
//!
//! A stack of ids whose links lie in one array, so telling needs no lock and no memory, and an id
//! that is told twice is listed once. Guards: a change that was told before the list is taken is
//! in it, or the standing read for an earlier telling shows it already.
//! Never does: say what changed. The reader asks the tree.

use super::error::ReuseError;
use super::node::BlockId;
use crate::sync::atomic::{fence, AtomicU32, Ordering};

/// The link of an id that is not listed.
const UNLISTED: u32 = u32::MAX;
/// The link of the last id, and the head of an empty list.
const END: u32 = u32::MAX - 1;

/// A list of ids `0..capacity`; other ids are not of this owner and ignored.
#[derive(Debug)]
pub(super) struct ChangedBlocks {
    head: AtomicU32,
    /// By id: the one told before it.
    links: Vec<AtomicU32>,
}

impl ChangedBlocks {
    pub(super) fn new(capacity: usize) -> Result<Self, ReuseError> {
        let mut links = Vec::new();
        links.try_reserve_exact(capacity)?;
        links.extend((0..capacity).map(|_| AtomicU32::new(UNLISTED)));
        Ok(Self { head: AtomicU32::new(END), links })
    }

    /// Lists an id whose standing was changed before this call.
    pub(super) fn tell(&self, id: BlockId) {
        let Some(link) = usize::try_from(id).ok().and_then(|index| self.links.get(index)) else {
            return;
        };
        // With the fence in `take`: either the id is seen unlisted here, or the change is seen there.
        fence(Ordering::SeqCst);
        if link.compare_exchange(UNLISTED, END, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.store(head, Ordering::Relaxed);
            let pushed = self.head.compare_exchange_weak(
                head,
                id as u32,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }

    /// Takes all ids that are listed. To be called by one thread at a time.
    pub(super) fn take(&self, mut each: impl FnMut(BlockId)) {
        let mut next = self.head.swap(END, Ordering::Acquire);
        while next != END {
            let id = next;
            // From here on the id may be told again; what is asked about it now is later still.
            next = self.links[id as usize].swap(UNLISTED, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            each(id as BlockId);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn taken(list: &ChangedBlocks) -> Vec<BlockId> {
        let mut ids = Vec::new();
        list.take(|id| ids.push(id));
        ids.sort_unstable();
        ids
    }

    #[test]
    fn an_id_told_often_is_listed_once_and_again_after_it_was_taken() {
        let list = ChangedBlocks::new(4).expect("memory");
        for id in [2, 0, 2, 2, -1, 4, 3] {
            list.tell(id);
        }
        assert_eq!(taken(&list), [0, 2, 3]);
        assert!(taken(&list).is_empty());
        list.tell(2);
        assert_eq!(taken(&list), [2]);
    }

    #[test]
    fn the_last_change_of_each_block_is_seen() {
        const IDS: usize = 8;
        const CHANGES: u32 = 20_000;
        let list = ChangedBlocks::new(IDS).expect("memory");
        let values: Vec<AtomicU32> = (0..IDS).map(|_| AtomicU32::new(0)).collect();
        let is_over = AtomicBool::new(false);
        let mut seen = [0; IDS];
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for change in 0..CHANGES {
                            let id = change as usize % IDS;
                            values[id].fetch_add(1, Ordering::Relaxed);
                            list.tell(id as BlockId);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
                is_over.store(true, Ordering::Release);
            });
            loop {
                let was_over = is_over.load(Ordering::Acquire);
                list.take(|id| seen[id as usize] = values[id as usize].load(Ordering::Relaxed));
                if was_over {
                    break;
                }
            }
        });
        assert_eq!(seen, [2 * CHANGES / IDS as u32; IDS]);
    }
}
