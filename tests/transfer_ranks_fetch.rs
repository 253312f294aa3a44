//! Fetches between workers of several ranks that share heads, layers and blocks out differently, or
//! hold different bytes on each rank: every destination rank gets the bytes that it should have.

mod transfer_support;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use kvhints::reuse::{Policy, Sequence};
use kvhints::transfer::layout::{CacheLayout, ParallelLayout};
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::prefetch::Outcome;
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::state::State;
use kvhints::transfer::transceiver::{FetchOrder, Origin, PrefetchHandle, SourceLimits};
use transfer_support::*;

const LAYERS: usize = 4;
const HEADS: usize = 4;
const HEAD_BYTES: usize = 64 * TOKENS_PER_BLOCK * 2;

/// How a worker is cut.
#[derive(Clone, Copy)]
struct Cut {
    tensor: usize,
    pipeline: usize,
    context: usize,
    /// Attention data parallel parts.
    parts: usize,
}

const ONE: Cut = Cut { tensor: 1, pipeline: 1, context: 1, parts: 1 };

impl Cut {
    fn ranks(self) -> usize {
        self.tensor * self.parts * self.pipeline * self.context
    }

    fn place(self, rank: usize) -> (usize, usize, usize) {
        let tensors = self.tensor * self.parts;
        (rank / (tensors * self.context), rank / self.context % tensors, rank % self.context)
    }

    fn block_bytes(self) -> usize {
        LAYERS / self.pipeline * 2 * (HEADS / self.tensor) * HEAD_BYTES
    }

    fn cache(self) -> CacheLayout {
        let heads = vec![(HEADS / self.tensor) as u32; LAYERS];
        CacheLayout { kv_heads_per_layer: heads, ..cache_layout() }
    }

    fn parallel(self) -> ParallelLayout {
        ParallelLayout {
            tensor: (self.tensor * self.parts) as u32,
            pipeline: self.pipeline as u32,
            context: self.context as u32,
            attention_data: self.parts as u32,
            layers_per_pipeline_rank: Vec::new(),
        }
    }

    /// What a rank's block holds of one place of a prompt, in a worker of that `part`.
    fn bytes(self, rank: usize, position: usize, part: usize) -> Vec<u8> {
        let (pipeline, tensor, _) = self.place(rank);
        let (layers, heads) = (LAYERS / self.pipeline, HEADS / self.tensor);
        let tensor = tensor % self.tensor;
        let mut bytes = Vec::new();
        for layer in pipeline * layers..(pipeline + 1) * layers {
            for kv in 0..2 {
                for head in tensor * heads..(tensor + 1) * heads {
                    for at in 0..HEAD_BYTES {
                        let place = ((position * LAYERS + layer) * 2 + kv) * HEADS + head;
                        bytes.push((place * 37 + part * 101 + at * 3 + at / 256) as u8);
                    }
                }
            }
        }
        bytes
    }
}

/// All ranks of a worker, that know each other's entries.
fn worker(
    hub: &Arc<LoopbackHub>,
    cut: Cut,
    number: u8,
    change: impl Fn(usize, Setup) -> Setup,
) -> Vec<Worker> {
    let ranks: Vec<Worker> = (0..cut.ranks())
        .map(|rank| {
            let setup = Setup {
                block_bytes: cut.block_bytes(),
                incarnation: number * 32 + rank as u8,
                rank: rank as u32,
                cache: cut.cache(),
                parallel: cut.parallel(),
                ..Setup::default()
            };
            Worker::new(hub, change(rank, setup))
        })
        .collect();
    let entries: Vec<&[u8]> = ranks.iter().map(|rank| rank.transceiver.rank_entry()).collect();
    ranks.iter().for_each(|rank| rank.transceiver.set_state(&entries).unwrap());
    ranks
}

fn plain(_: usize, setup: Setup) -> Setup {
    setup
}

/// Puts a prompt's blocks into all ranks; block i has the id i.
fn hold(worker: &[Worker], cut: Cut, sequence: &Sequence, blocks: usize) {
    for (rank, of_rank) in worker.iter().enumerate() {
        let (_, tensor, context) = cut.place(rank);
        for position in (0..blocks).filter(|position| position % cut.context == context) {
            let bytes = cut.bytes(rank, position, tensor / cut.tensor);
            of_rank.fill(position as i32, |at| bytes[at]);
        }
        let ids: Vec<i32> = (0..blocks as i32).collect();
        of_rank.tree.store(0, sequence, 0, &ids).unwrap();
    }
}

fn begin(
    destination: &[Worker],
    cut: Cut,
    source: &[Worker],
    sequence: &Sequence,
    first_block: usize,
    part: u32,
    policy: Policy,
) -> Vec<PrefetchHandle> {
    let blocks = sequence.names().len();
    let begin = |(rank, of_rank): (usize, &Worker)| {
        let (_, _, context) = cut.place(rank);
        let own = (first_block..blocks).filter(|position| position % cut.context == context);
        let places: Vec<i32> = own.map(|position| 63 - position as i32).collect();
        let order = FetchOrder {
            first_block,
            source_attention_data_rank: part,
            ..order(source[0].origin(), sequence, &places, policy)
        };
        of_rank.begin_order(&order).unwrap()
    };
    destination.iter().enumerate().map(begin).collect()
}

/// That every rank has its bytes of these places.
fn check(destination: &[Worker], cut: Cut, places: std::ops::Range<usize>, part: usize) {
    for (rank, of_rank) in destination.iter().enumerate() {
        let (_, _, context) = cut.place(rank);
        for position in places.clone().filter(|position| position % cut.context == context) {
            let expected = cut.bytes(rank, position, part);
            let is_right = of_rank.read(63 - position as i32) == expected;
            assert!(is_right, "rank {rank}, block {position}");
        }
    }
}

#[test]
fn blocks_move_between_workers_that_are_cut_differently() {
    let cuts = [
        ONE,
        Cut { tensor: 2, ..ONE },
        Cut { tensor: 4, ..ONE },
        Cut { pipeline: 2, ..ONE },
        Cut { tensor: 2, pipeline: 2, ..ONE },
        Cut { context: 2, ..ONE },
        Cut { tensor: 2, context: 2, ..ONE },
        Cut { pipeline: 4, context: 4, ..ONE },
    ];
    let wanted = sequence(7, 0);
    for (from, source_cut) in cuts.into_iter().enumerate() {
        for (to, cut) in cuts.into_iter().enumerate() {
            let hub = LoopbackHub::new(42);
            let source = worker(&hub, source_cut, 1, plain);
            let destination = worker(&hub, cut, 2, plain);
            hold(&source, source_cut, &wanted, 7);
            for first_block in [0, 3] {
                let handles =
                    begin(&destination, cut, &source, &wanted, first_block, 0, Policy::Strict);
                for (rank, handle) in handles.iter().enumerate() {
                    let (_, _, context) = cut.place(rank);
                    let own = (first_block..7).filter(|place| place % cut.context == context);
                    let blocks = own.count() as u32;
                    let delivered = Outcome::Delivered { blocks };
                    assert_eq!(outcome(handle), delivered, "{from} to {to}, rank {rank}");
                    assert_eq!(handle.token_end(blocks, TOKENS_PER_BLOCK), 28);
                    assert_eq!(handle.report().foreign_hashes, 0);
                    let bytes = u64::from(blocks) * cut.block_bytes() as u64;
                    assert_eq!(handle.report().bytes, bytes);
                }
                check(&destination, cut, first_block..7, 0);
                for of_rank in &destination {
                    (0..7).for_each(|position| of_rank.fill(63 - position, |_| 0));
                }
            }
            source.iter().chain(&destination).for_each(Worker::settles);
        }
    }
}

#[test]
fn the_part_that_holds_the_request_is_asked_and_no_other() {
    let wanted = sequence(3, 0);
    for (source_cut, cut) in [
        (Cut { parts: 2, ..ONE }, ONE),
        (Cut { parts: 4, ..ONE }, Cut { tensor: 2, ..ONE }),
        (Cut { parts: 2, tensor: 2, ..ONE }, Cut { pipeline: 2, ..ONE }),
    ] {
        let hub = LoopbackHub::new(42);
        let source = worker(&hub, source_cut, 1, plain);
        let destination = worker(&hub, cut, 2, plain);
        // The same names, other bytes on every part.
        hold(&source, source_cut, &wanted, 3);
        for part in 0..source_cut.parts {
            let handles =
                begin(&destination, cut, &source, &wanted, 0, part as u32, Policy::Strict);
            for handle in &handles {
                assert_eq!(outcome(handle), Outcome::Delivered { blocks: 3 });
            }
            check(&destination, cut, 0..3, part);
        }
        let beyond = source_cut.parts as u32;
        for handle in begin(&destination, cut, &source, &wanted, 0, beyond, Policy::Strict) {
            assert_eq!(outcome(&handle), Outcome::Failed(FailReason::LayoutMismatch));
        }
        source.iter().chain(&destination).for_each(Worker::settles);
    }
}

#[test]
fn one_rank_that_has_less_decides_for_all() {
    let (source_cut, wanted) = (Cut { tensor: 2, ..ONE }, sequence(6, 0));
    let hub = LoopbackHub::new(42);
    let source = worker(&hub, source_cut, 1, plain);
    let destination = worker(&hub, ONE, 2, plain);
    hold(&source, source_cut, &wanted, 6);
    source[1].tree.evict(0, 4).unwrap();
    let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::Strict);
    assert_eq!(outcome(&handles[0]), Outcome::ContentMiss);
    assert_eq!(handles[0].report().progress.present, Some(4));
    source.iter().chain(&destination).for_each(Worker::settles);
    let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::BestEffort);
    assert_eq!(outcome(&handles[0]), Outcome::Delivered { blocks: 4 });
    assert_eq!(handles[0].token_end(4, TOKENS_PER_BLOCK), 16);
    check(&destination, ONE, 0..4, 0);
    source.iter().chain(&destination).for_each(Worker::settles);
}

#[test]
fn a_dealt_prefix_ends_at_the_first_hole() {
    let (source_cut, wanted) = (Cut { context: 2, ..ONE }, sequence(6, 0));
    let hub = LoopbackHub::new(42);
    let source = worker(&hub, source_cut, 1, plain);
    let destination = worker(&hub, ONE, 2, plain);
    hold(&source, source_cut, &wanted, 6);
    // Rank 1 has blocks 1 and 3 still, and misses 5; rank 0 has all of its.
    source[1].tree.evict(0, 4).unwrap();
    let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::BestEffort);
    assert_eq!(outcome(&handles[0]), Outcome::Delivered { blocks: 5 });
    check(&destination, ONE, 0..5, 0);
    assert_eq!(handles[0].claim(), Some(5));
    // Now its first one too: only block 0 is of use.
    source[1].tree.evict(0, 1).unwrap();
    let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::BestEffort);
    assert_eq!(outcome(&handles[0]), Outcome::Delivered { blocks: 1 });
    source.iter().chain(&destination).for_each(Worker::settles);
}

#[test]
fn one_rank_that_fails_ends_the_fetch_and_frees_the_others() {
    let (source_cut, wanted) = (Cut { tensor: 2, ..ONE }, sequence(4, 0));
    type Spoil = fn(&Mischief);
    let spoils: [(FailReason, Spoil); 2] = [
        (FailReason::Corrupted, |mischief| Mischief::set(&mischief.corrupts, true)),
        (FailReason::PeerGone, |mischief| mischief.breaks_at_send.store(1, Ordering::SeqCst)),
    ];
    for (reason, spoil) in spoils {
        let (hub, mischief) = (LoopbackHub::new(42), Arc::new(Mischief::default()));
        let source = worker(&hub, source_cut, 1, |rank, setup| match rank {
            1 => Setup { mischief: Arc::clone(&mischief), ..setup },
            _ => setup,
        });
        let destination = worker(&hub, ONE, 2, plain);
        hold(&source, source_cut, &wanted, 4);
        spoil(&mischief);
        let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::Strict);
        assert_eq!(outcome(&handles[0]), Outcome::Failed(reason));
        source.iter().chain(&destination).for_each(Worker::settles);
    }
    let hub = LoopbackHub::new(42);
    let source = worker(&hub, source_cut, 1, |rank, setup| match rank {
        1 => Setup {
            source_limits: SourceLimits { requests: 0, ..SourceLimits::default() },
            ..setup
        },
        _ => setup,
    });
    let destination = worker(&hub, ONE, 2, plain);
    hold(&source, source_cut, &wanted, 4);
    let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::Strict);
    assert_eq!(outcome(&handles[0]), Outcome::Failed(FailReason::SourceBusy));
    source.iter().chain(&destination).for_each(Worker::settles);
}

#[test]
fn a_cancel_reaches_every_rank() {
    let (source_cut, wanted) = (Cut { tensor: 4, ..ONE }, sequence(4, 0));
    let (hub, mischief) = (LoopbackHub::new(42), Arc::new(Mischief::default()));
    let source = worker(&hub, source_cut, 1, plain);
    let destination =
        worker(&hub, ONE, 2, |_, setup| Setup { mischief: Arc::clone(&mischief), ..setup });
    hold(&source, source_cut, &wanted, 4);
    Mischief::set(&mischief.holds_data, true);
    let handles = begin(&destination, ONE, &source, &wanted, 0, 0, Policy::Strict);
    wait_until("data of all ranks", || mischief.held.load(Ordering::SeqCst) >= 4);
    handles[0].cancel();
    assert_eq!(outcome(&handles[0]), Outcome::Cancelled);
    Mischief::set(&mischief.holds_data, false);
    source.iter().chain(&destination).for_each(Worker::settles);
}

#[test]
fn entries_of_ranks_with_other_layers_join() {
    let cut = Cut { pipeline: 2, ..ONE };
    let parallel = ParallelLayout { layers_per_pipeline_rank: vec![3, 1], ..cut.parallel() };
    let block_bytes = |rank: usize| [3, 1][rank] * 2 * HEADS * HEAD_BYTES;
    let hub = LoopbackHub::new(42);
    let unequal = worker(&hub, cut, 1, |rank, setup| Setup {
        block_bytes: block_bytes(rank),
        parallel: parallel.clone(),
        ..setup
    });
    let state = State::decode(&unequal[0].transceiver.state().unwrap()).unwrap();
    let bytes: Vec<u64> = state.ranks.iter().map(|rank| rank.block_bytes).collect();
    assert_eq!(bytes, [block_bytes(0) as u64, block_bytes(1) as u64]);
    let wanted = sequence(2, 0);
    let whole = worker(&hub, ONE, 2, plain);
    hold(&whole, ONE, &wanted, 2);
    for (rank, of_rank) in unequal.iter().enumerate() {
        let handle = of_rank.begin(&whole[0], &wanted, &[7, 8], Policy::Strict).unwrap();
        assert_eq!(outcome(&handle), Outcome::Delivered { blocks: 2 });
        let expected = ONE.bytes(0, 1, 0);
        let range = [0..block_bytes(0), block_bytes(0)..block_bytes(0) + block_bytes(1)];
        assert!(of_rank.read(8) == expected[range[rank].clone()], "rank {rank}");
    }
    let handle = whole[0].begin_order(&order(
        Origin::State(Arc::new(state)),
        &sequence(3, 9),
        &[3, 4, 5],
        Policy::Strict,
    ));
    assert_eq!(outcome(&handle.unwrap()), Outcome::ContentMiss);
    unequal.iter().chain(&whole).for_each(Worker::settles);
}
