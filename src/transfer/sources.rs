//! The ranks that one fetch asks, and how far each of them came.
//!
//! Blocks are counted as the destination wants them: 0 is the first wanted one. A block is whole
//! when every rank that has a part of it sent that part. The fetch is told of what all ranks agree
//! on: the prefix that all of them hold, and the prefix that is whole.
//!
//! Guards: what a rank sends is let in only in that rank's order and as far as it said it would.
//! Never does: contact anybody, or touch memory.

use std::ops::Range;

use super::block_part::BlockPart;
use super::share::Share;
use super::state::Incarnation;
use super::transport::PeerId;
use crate::reuse::Policy;

/// Which blocks of a sequence a destination wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Position of the first one.
    pub first: usize,
    /// From one to the next.
    pub step: usize,
    /// How many.
    pub count: usize,
}

/// One rank of the source.
#[derive(Debug)]
pub struct Source {
    /// How it is reached.
    pub peer: PeerId,
    /// Its start that is meant.
    pub incarnation: Incarnation,
    /// Which part of its blocks is asked for.
    pub part: BlockPart,
    /// Where the parts belong in this side's blocks; `None` for whole blocks.
    pub own_pieces: Option<Vec<Range<usize>>>,
    /// Bytes of each part.
    pub part_bytes: usize,
    /// The first wanted block that it gives.
    first: usize,
    /// From one to the next.
    stride: usize,
    /// How many it is asked for.
    count: usize,
    answer: Option<Given>,
    /// Parts announced.
    announced: usize,
    /// Parts in place.
    moved: usize,
}

/// What a rank said.
#[derive(Debug, Clone, Copy)]
struct Given {
    /// So many of those asked for it holds.
    present: usize,
    /// So many follow.
    follow: usize,
}

impl Source {
    /// The rank of that share; `None` when it gives none of the wanted blocks.
    pub fn new(
        share: Share,
        wanted: Wanted,
        block_bytes: usize,
        peer: PeerId,
        incarnation: Incarnation,
    ) -> Option<Self> {
        let (first, stride, count) = range_of(&share, wanted)?;
        let part_bytes = match &share.own_pieces {
            None => block_bytes,
            Some(pieces) => super::block_part::piece_bytes(pieces),
        };
        Some(Self {
            peer,
            incarnation,
            part: share.source_part,
            own_pieces: share.own_pieces,
            part_bytes,
            first,
            stride,
            count,
            answer: None,
            announced: 0,
            moved: 0,
        })
    }

    /// The positions in the sequence that it is asked for: the first, from one to the next, and
    /// the end of the last.
    pub fn positions(&self, wanted: Wanted) -> (usize, usize, usize) {
        let first = wanted.first + self.first * wanted.step;
        let step = self.stride * wanted.step;
        (first, step, first + (self.count - 1) * step + 1)
    }

    /// Which of the wanted blocks the `index`-th of this rank's is.
    pub fn wanted_index(&self, index: usize) -> usize {
        self.first + index * self.stride
    }

    /// How many of the wanted blocks are there as far as this rank goes, when `own` of its are.
    fn prefix(&self, own: usize, wanted: usize) -> usize {
        if own == self.count {
            wanted
        } else {
            self.wanted_index(own)
        }
    }

    /// Whether more may come from it.
    pub fn is_pending(&self) -> bool {
        self.answer.is_none_or(|given| self.moved < given.follow)
    }
}

/// Whether the share gives any of the wanted blocks.
pub fn gives_any(share: &Share, wanted: Wanted) -> bool {
    range_of(share, wanted).is_some()
}

/// First, stride and number of the wanted blocks that a share gives.
fn range_of(share: &Share, wanted: Wanted) -> Option<(usize, usize, usize)> {
    let (step, remainder) = (share.step.max(1) as usize, share.remainder as usize);
    // Both deal blocks out in turn, and one number divides the other.
    let stride = (step / wanted.step).max(1);
    let first =
        (0..stride).find(|index| (wanted.first + index * wanted.step) % step == remainder)?;
    let count = wanted.count.checked_sub(first)?.div_ceil(stride);
    (count > 0).then_some((first, stride, count))
}

/// What the ranks' answers mean for the fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreed {
    /// Others have yet to answer.
    NotYet,
    /// So many of the wanted blocks will come, from the first.
    Accepted {
        /// Blocks.
        present: u32,
    },
    /// So many are there, too few.
    Missing {
        /// Blocks.
        present: u32,
    },
    /// The rank contradicts itself.
    Broken,
}

/// All ranks of one fetch.
#[derive(Debug)]
pub struct Sources {
    ranks: Vec<Source>,
    wanted: Wanted,
    policy: Policy,
    /// How many blocks will come in all, once that is agreed.
    agreed: Option<usize>,
    /// Whole blocks that the fetch was told of.
    told: usize,
}

impl Sources {
    /// The ranks of a fetch; at least one.
    pub fn new(ranks: Vec<Source>, wanted: Wanted, policy: Policy) -> Self {
        Self { ranks, wanted, policy, agreed: None, told: 0 }
    }

    /// All of them.
    pub fn ranks(&self) -> &[Source] {
        &self.ranks
    }

    /// What is wanted of all together.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The rank that is reached so.
    pub fn of(&self, peer: PeerId) -> Option<&Source> {
        self.ranks.iter().find(|rank| rank.peer == peer)
    }

    /// How many blocks a rank knows by another hash than this side, whose hashes of the wanted
    /// blocks are `own`. Blocks of which several ranks have parts are the first one's to tell.
    pub fn foreign_hashes(&self, peer: PeerId, own: &[u64], theirs: &[u64]) -> usize {
        let dealt = |rank: &Source| (rank.first, rank.stride);
        let Some(of_peer) = self.of(peer) else { return 0 };
        let first = self.ranks.iter().find(|rank| dealt(rank) == dealt(of_peer));
        if first.is_some_and(|first| first.peer != peer) {
            return 0;
        }
        let own = own.iter().skip(of_peer.first).step_by(of_peer.stride);
        own.zip(theirs).filter(|(own, theirs)| own != theirs).count()
    }

    fn of_mut(&mut self, peer: PeerId) -> Option<&mut Source> {
        self.ranks.iter_mut().find(|rank| rank.peer == peer)
    }

    /// A rank will send so many blocks of those asked for, from the first.
    pub fn accepted(&mut self, peer: PeerId, follow: usize) -> Agreed {
        self.answered(peer, Given { present: follow, follow }, true)
    }

    /// A rank holds so many, too few, and sends nothing.
    pub fn missing(&mut self, peer: PeerId, present: usize) -> Agreed {
        self.answered(peer, Given { present, follow: 0 }, false)
    }

    fn answered(&mut self, peer: PeerId, given: Given, is_enough: bool) -> Agreed {
        let policy = self.policy;
        let Some(rank) = self.of_mut(peer) else { return Agreed::Broken };
        let is_possible = match (is_enough, policy) {
            (true, Policy::Strict) => given.present == rank.count,
            (true, Policy::BestEffort) => (1..=rank.count).contains(&given.present),
            (false, _) => given.present < rank.count,
        };
        if rank.answer.is_some() || !is_possible {
            return Agreed::Broken;
        }
        rank.answer = Some(given);
        let prefix = |amount: fn(Given) -> usize| {
            let prefixes = self
                .ranks
                .iter()
                .map(|rank| rank.prefix(rank.answer.map_or(rank.count, amount), self.wanted.count));
            prefixes.min().unwrap_or(0)
        };
        let (present, follow) = (prefix(|given| given.present), prefix(|given| given.follow));
        if policy == Policy::Strict && !is_enough {
            return Agreed::Missing { present: present as u32 };
        }
        if self.ranks.iter().any(|rank| rank.answer.is_none()) {
            return Agreed::NotYet;
        }
        if follow == 0 {
            return Agreed::Missing { present: present as u32 };
        }
        self.agreed = Some(follow);
        Agreed::Accepted { present: follow as u32 }
    }

    /// A run is announced; whether it is the rank's next.
    pub fn announced(&mut self, peer: PeerId, first_block: u32, blocks: u32) -> bool {
        let Some(rank) = self.of_mut(peer) else { return false };
        let end = rank.announced + blocks as usize;
        let is_next = blocks > 0
            && first_block as usize == rank.announced
            && rank.answer.is_some_and(|given| end <= given.follow);
        if is_next {
            rank.announced = end;
        }
        is_next
    }

    /// Parts of a rank are in place.
    pub fn moved(&mut self, peer: PeerId, blocks: u32) {
        if let Some(rank) = self.of_mut(peer) {
            rank.moved += blocks as usize;
        }
    }

    /// How many blocks became whole since the last question.
    pub fn take_whole(&mut self) -> u32 {
        let Some(agreed) = self.agreed else { return 0 };
        let whole = self.ranks.iter().map(|rank| rank.prefix(rank.moved, self.wanted.count)).min();
        let whole = whole.unwrap_or(0).min(agreed);
        let new = whole.saturating_sub(self.told);
        self.told += new;
        new as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted { first: 3, step: 1, count: 5 };

    fn source(peer: u64, remainder: u32, step: u32) -> Source {
        let share =
            Share { rank: 0, source_part: BlockPart::Whole, own_pieces: None, remainder, step };
        Source::new(share, WANTED, 10, PeerId(peer), Incarnation([1; 16])).unwrap()
    }

    fn two_that_deal(policy: Policy) -> Sources {
        // Positions 3, 5, 7 and 4, 6.
        Sources::new(vec![source(1, 0, 2), source(2, 1, 2)], WANTED, policy)
    }

    #[test]
    fn blocks_are_dealt_in_turn() {
        let (even, odd) = (source(1, 0, 2), source(2, 1, 2));
        assert_eq!(odd.positions(WANTED), (3, 2, 8));
        assert_eq!(even.positions(WANTED), (4, 2, 7));
        assert_eq!([0, 1, 2].map(|index| odd.wanted_index(index)), [0, 2, 4]);
        assert_eq!(source(1, 0, 1).positions(WANTED), (3, 1, 8));
        let one = Wanted { count: 1, ..WANTED };
        let share = |remainder| Share {
            rank: 0,
            source_part: BlockPart::Whole,
            own_pieces: None,
            remainder,
            step: 2,
        };
        assert!(gives_any(&share(1), one) && !gives_any(&share(0), one));
        // A destination that deals among two itself, and wants the odd ones.
        let dealt = Wanted { first: 3, step: 2, count: 3 };
        assert!(gives_any(&share(1), dealt) && !gives_any(&share(0), dealt));
        let of_four = Share { step: 4, ..share(1) };
        let source = Source::new(of_four, dealt, 10, PeerId(1), Incarnation([1; 16])).unwrap();
        assert_eq!(source.positions(dealt), (5, 4, 6));
    }

    #[test]
    fn all_must_answer_before_anything_is_agreed() {
        let mut sources = two_that_deal(Policy::Strict);
        assert_eq!(sources.accepted(PeerId(1), 2), Agreed::NotYet);
        assert!(sources.announced(PeerId(1), 0, 2));
        sources.moved(PeerId(1), 2);
        assert_eq!(sources.take_whole(), 0);
        assert_eq!(sources.accepted(PeerId(2), 3), Agreed::Accepted { present: 5 });
        assert_eq!(sources.take_whole(), 0, "the first block is the other's");
        assert!(sources.announced(PeerId(2), 0, 1));
        sources.moved(PeerId(2), 1);
        assert_eq!(sources.take_whole(), 2);
        assert!(sources.ranks()[1].is_pending() && !sources.ranks()[0].is_pending());
        assert!(sources.announced(PeerId(2), 1, 2));
        sources.moved(PeerId(2), 2);
        assert_eq!((sources.take_whole(), sources.take_whole()), (3, 0));
    }

    #[test]
    fn foreign_hashes_are_counted_once_for_each_block() {
        let alike = Sources::new(vec![source(1, 0, 1), source(2, 0, 1)], WANTED, Policy::Strict);
        assert_eq!(alike.foreign_hashes(PeerId(1), &[1, 2, 3, 4, 5], &[1, 0, 3, 0]), 2);
        assert_eq!(alike.foreign_hashes(PeerId(2), &[1, 2, 3, 4, 5], &[1, 0, 3, 0]), 0);
        assert_eq!(alike.foreign_hashes(PeerId(3), &[1, 2, 3, 4, 5], &[0]), 0);
        let dealt = two_that_deal(Policy::Strict);
        assert_eq!(dealt.foreign_hashes(PeerId(1), &[1, 2, 3, 4, 5], &[2, 0]), 1);
        assert_eq!(dealt.foreign_hashes(PeerId(2), &[1, 2, 3, 4, 5], &[0, 3, 0]), 2);
    }

    #[test]
    fn one_that_misses_decides_for_all() {
        let mut strict = two_that_deal(Policy::Strict);
        assert_eq!(strict.missing(PeerId(2), 1), Agreed::Missing { present: 2 });
        let mut best_effort = two_that_deal(Policy::BestEffort);
        assert_eq!(best_effort.accepted(PeerId(2), 2), Agreed::NotYet);
        assert!(best_effort.announced(PeerId(2), 0, 2));
        best_effort.moved(PeerId(2), 2);
        // Block 0 is there, block 1 would be the one that misses.
        assert_eq!(best_effort.missing(PeerId(1), 0), Agreed::Accepted { present: 1 });
        assert_eq!(best_effort.take_whole(), 1);
        let mut nothing = two_that_deal(Policy::BestEffort);
        assert_eq!(nothing.accepted(PeerId(1), 2), Agreed::NotYet);
        assert_eq!(nothing.missing(PeerId(2), 0), Agreed::Missing { present: 0 });
    }

    #[test]
    fn a_rank_that_contradicts_itself_is_believed_nothing() {
        let mut sources = two_that_deal(Policy::Strict);
        assert_eq!(sources.accepted(PeerId(9), 2), Agreed::Broken, "nobody asked it");
        assert_eq!(sources.accepted(PeerId(1), 1), Agreed::Broken, "strict is all or nothing");
        assert_eq!(sources.accepted(PeerId(1), 3), Agreed::Broken, "more than asked for");
        assert_eq!(sources.missing(PeerId(1), 2), Agreed::Broken, "nothing is missing");
        assert!(!sources.announced(PeerId(1), 0, 1), "before its answer");
        assert_eq!(sources.accepted(PeerId(1), 2), Agreed::NotYet);
        assert_eq!(sources.accepted(PeerId(1), 2), Agreed::Broken, "twice");
        for (first_block, blocks) in [(1, 1), (0, 0), (0, 3), (u32::MAX, 1), (0, u32::MAX)] {
            assert!(!sources.announced(PeerId(1), first_block, blocks));
        }
    }
}
