//! Who gets a message from whom: tensor x pipeline x context ranks in the executor's order.
//!
//! ```text
//! rank = pp * (TP * CP) + tp * CP + cp
//!
//! stage 0     0 ==broadcast==> 1 .. n-1        n = TP * CP
//!             |                |
//! stage 1     n               n+1 ..           a send to the same place in the next stage
//!             |                |
//! stage 2    2n               2n+1 ..
//! ```

use super::limits::MAX_RANKS;

/// The sizes of the parallel dimensions. All at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    tensor_size: u32,
    pipeline_size: u32,
    context_size: u32,
}

/// Where a rank's messages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: this is rank 0.
    Root,
    /// The broadcast of the first stage.
    Broadcast,
    /// A send of this rank of the previous stage.
    Previous(u32),
}

impl Topology {
    /// `None` if a size is 0 or there would be more than [`MAX_RANKS`] ranks.
    pub fn new(tensor_size: u32, pipeline_size: u32, context_size: u32) -> Option<Self> {
        let ranks = tensor_size.checked_mul(pipeline_size)?.checked_mul(context_size)?;
        (1..=MAX_RANKS).contains(&ranks).then_some(Self {
            tensor_size,
            pipeline_size,
            context_size,
        })
    }

    /// Tensor, pipeline and context size.
    pub fn sizes(&self) -> [u32; 3] {
        [self.tensor_size, self.pipeline_size, self.context_size]
    }

    /// All ranks.
    pub fn rank_count(&self) -> u32 {
        self.stage_size() * self.pipeline_size
    }

    /// Ranks of one pipeline stage.
    pub fn stage_size(&self) -> u32 {
        self.tensor_size * self.context_size
    }

    /// Whether nobody sends on what the broadcast brings.
    pub fn is_one_stage(&self) -> bool {
        self.pipeline_size == 1
    }

    /// Where `rank` gets messages from.
    pub fn source(&self, rank: u32) -> Source {
        match rank {
            0 => Source::Root,
            rank if rank < self.stage_size() => Source::Broadcast,
            rank => Source::Previous(rank - self.stage_size()),
        }
    }

    /// Whether rank 0 has somebody to broadcast to.
    pub fn has_broadcast(&self) -> bool {
        self.stage_size() > 1
    }

    /// The rank of the next stage that `rank` sends on to.
    pub fn next(&self, rank: u32) -> Option<u32> {
        let next = rank + self.stage_size();
        (next < self.rank_count()).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_every_rank_exactly_once() {
        for tensor in 1..=4 {
            for pipeline in 1..=4 {
                for context in 1..=3 {
                    let topology = Topology::new(tensor, pipeline, context).expect("small sizes");
                    let mut reached = vec![0; topology.rank_count() as usize];
                    for rank in 0..topology.rank_count() {
                        match topology.source(rank) {
                            Source::Root | Source::Broadcast => reached[rank as usize] += 1,
                            Source::Previous(from) => assert_eq!(topology.next(from), Some(rank)),
                        }
                        if let Some(next) = topology.next(rank) {
                            reached[next as usize] += 1;
                        }
                    }
                    assert!(reached.iter().all(|times| *times == 1), "{topology:?}: {reached:?}");
                }
            }
        }
    }

    #[test]
    fn a_next_rank_has_the_same_tensor_and_context_place() {
        let topology = Topology::new(2, 3, 2).expect("small sizes");
        let place = |pp: u32, tp: u32, cp: u32| pp * 4 + tp * 2 + cp;
        assert_eq!(topology.next(place(0, 1, 0)), Some(place(1, 1, 0)));
        assert_eq!(topology.next(place(2, 1, 1)), None);
        assert_eq!(topology.source(place(2, 0, 1)), Source::Previous(place(1, 0, 1)));
    }

    #[test]
    fn sizes_that_make_no_topology_are_refused() {
        for sizes in [[0, 1, 1], [1, 0, 1], [1, 1, 0], [65_536, 2, 1], [u32::MAX, u32::MAX, 2]] {
            assert_eq!(Topology::new(sizes[0], sizes[1], sizes[2]), None, "{sizes:?}");
        }
    }
}
