//! What one rank takes from each rank of a source: which blocks, and which part of them.
//!
//! ```text
//! source, 2 tensor ranks        destination, 1 tensor rank
//! rank 0  heads 0 1   ----->    heads 0 1 . .   rank 0
//! rank 1  heads 2 3   ----->    heads . . 2 3
//! ```
//!
//! Heads that several ranks of the source hold alike (a worker with more tensor ranks than heads, or
//! latent attention) are taken from the first of them.
//!
//! Guards: each head of each layer is taken exactly once, or there are no shares. What cannot be
//! cut is only ever taken whole. Never does: guess an order of bytes.

use std::ops::Range;

use super::block_part::{BlockPart, BlockShape, HeadRange};
use super::layout::{check_same_numbers, Attention, CacheLayout, LayoutMismatch, ParallelLayout};
use super::rank_map::{Place, RankMap};

/// Most ranks of a source that one rank asks for one request.
pub const MAX_SOURCE_RANKS: usize = 256;

/// One rank, as far as its blocks go.
#[derive(Debug, Clone, Copy)]
pub struct RankOf<'a> {
    /// What the worker's blocks are made of.
    pub cache: &'a CacheLayout,
    /// How its ranks share them.
    pub parallel: &'a ParallelLayout,
    /// The rank's number.
    pub rank: u32,
    /// Bytes of one of its blocks, padding included.
    pub block_bytes: u64,
}

/// A source's worker.
#[derive(Debug, Clone, Copy)]
pub struct SourceWorker<'a> {
    /// What its blocks are made of.
    pub cache: &'a CacheLayout,
    /// How its ranks share them.
    pub parallel: &'a ParallelLayout,
    /// The attention data parallel part that holds the request.
    pub attention_data_rank: u32,
}

/// What is taken from one rank of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The source's rank.
    pub rank: u32,
    /// Which part of the source's blocks.
    pub source_part: BlockPart,
    /// Where that part belongs in this rank's blocks, in the order in which it travels; `None`
    /// when blocks are taken whole.
    pub own_pieces: Option<Vec<Range<usize>>>,
    /// Blocks taken are those whose position in the sequence leaves this remainder...
    pub remainder: u32,
    /// ...when divided by this.
    pub step: u32,
}

/// What `own` takes from each rank of `source`, whose blocks have so many bytes each.
pub fn shares(
    own: RankOf<'_>,
    source: SourceWorker<'_>,
    source_block_bytes: impl Fn(u32) -> Option<u64>,
) -> Result<Vec<Share>, LayoutMismatch> {
    check_same_numbers(own.cache, source.cache)?;
    let layer_count = own.cache.kv_heads_per_layer.len();
    let part = source.attention_data_rank;
    let map = RankMap::new(own.parallel, own.rank, source.parallel, part, layer_count)?;
    let ranks = map.contexts.len() * map.tensors.len() * map.pipelines.len();
    if ranks > MAX_SOURCE_RANKS {
        return Err(LayoutMismatch::new("ranks to ask", &MAX_SOURCE_RANKS, &ranks));
    }
    let place = Place::of(own.rank, own.parallel);
    let step = own.parallel.context.max(source.parallel.context);
    let mut found = Vec::new();
    for context in &map.contexts {
        // By layer of the worker: the first head that nobody gives yet.
        let mut cursors = vec![0; layer_count];
        for tensor in &map.tensors {
            for (pipeline, layers) in &map.pipelines {
                let their_place = Place { pipeline: *pipeline, tensor: *tensor, context: *context };
                let cut = Cut { own, place, source, their_place, map: &map };
                let Some((source_part, own_part)) = cut.parts(layers.clone(), &mut cursors)? else {
                    continue;
                };
                let rank = their_place.rank(source.parallel);
                let their_bytes = source_block_bytes(rank).unwrap_or(0);
                let own_pieces = cut.pieces(&source_part, &own_part, their_bytes)?;
                let remainder = if own.parallel.context == step { place.context } else { *context };
                found.push(Share { rank, source_part, own_pieces, remainder, step });
            }
        }
        let own_layers = map.pipelines.iter().flat_map(|(_, layers)| layers.clone());
        for layer in own_layers {
            let heads = Cut::heads(&map, own, source, place, layer)?;
            if cursors[layer] < heads.0.end {
                return Err(heads_differ(own, source, layer));
            }
        }
    }
    if found.is_empty() {
        return Err(LayoutMismatch::new("layers of this rank", &0, &layer_count));
    }
    Ok(found)
}

/// One rank of each side.
#[derive(Clone, Copy)]
struct Cut<'a> {
    own: RankOf<'a>,
    place: Place,
    source: SourceWorker<'a>,
    their_place: Place,
    map: &'a RankMap,
}

impl Cut<'_> {
    /// The heads of a layer, numbered over all ranks, that a rank of this worker has, and how many
    /// of this worker's and of the other's ranks have one head each.
    fn heads(
        map: &RankMap,
        own: RankOf<'_>,
        source: SourceWorker<'_>,
        place: Place,
        layer: usize,
    ) -> Result<(Range<u32>, (u32, u32)), LayoutMismatch> {
        let each = (own.cache.kv_heads_per_layer[layer], source.cache.kv_heads_per_layer[layer]);
        if own.cache.attention == Attention::Latent {
            // Every tensor rank has all of it.
            let copies = map.part_sizes;
            let is_same = each.0 == each.1;
            return is_same.then_some((0..each.0, copies)).ok_or(heads_differ(own, source, layer));
        }
        let totals = (each.0.checked_mul(map.part_sizes.0), each.1.checked_mul(map.part_sizes.1));
        let (Some(ours), Some(theirs)) = totals else {
            return Err(heads_differ(own, source, layer));
        };
        // Who has more in all has some of them several times.
        let heads = ours.min(theirs);
        let is_possible = |total: u32, each: u32| {
            heads == 0 && total == 0
                || heads > 0 && total.is_multiple_of(heads) && (total == heads || each == 1)
        };
        if !is_possible(ours, each.0) || !is_possible(theirs, each.1) {
            return Err(heads_differ(own, source, layer));
        }
        let copies = (ours.checked_div(heads).unwrap_or(1), theirs.checked_div(heads).unwrap_or(1));
        let tensor = place.tensor % map.part_sizes.0;
        let first = tensor / copies.0 * each.0;
        Ok((first..first + each.0, copies))
    }

    /// Which of these layers' heads the source's rank gives, as a part of its blocks and of ours;
    /// `None` when others give them all.
    fn parts(
        &self,
        layers: Range<usize>,
        cursors: &mut [u32],
    ) -> Result<Option<(BlockPart, BlockPart)>, LayoutMismatch> {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for layer in layers.clone() {
            let (own_heads, copies) =
                Self::heads(self.map, self.own, self.source, self.place, layer)?;
            let each = self.source.cache.kv_heads_per_layer[layer];
            let tensor = self.their_place.tensor % self.map.part_sizes.1;
            let first = match self.own.cache.attention {
                Attention::Latent => 0,
                Attention::KeysAndValues => tensor / copies.1 * each,
            };
            let cursor = &mut cursors[layer];
            let next = own_heads.start.max(*cursor);
            let start = next.max(first);
            let end = own_heads.end.min(first + each).max(start);
            let count = end - start;
            if count > 0 && start != next {
                return Err(heads_differ(self.own, self.source, layer));
            }
            if count > 0 {
                *cursor = end;
            }
            theirs.push(HeadRange { first: if count == 0 { 0 } else { start - first }, count });
            let own_first = if count == 0 { 0 } else { start - own_heads.start };
            ours.push(HeadRange { first: own_first, count });
        }
        if theirs.iter().all(|range| range.count == 0) {
            return Ok(None);
        }
        let starts = (self.layers_of(true).start, self.layers_of(false).start);
        let part = |heads, start: usize| BlockPart::Heads {
            first_layer: (layers.start - start) as u32,
            heads,
        };
        let is_whole = self.layers_of(true) == layers
            && self.layers_of(false) == layers
            && layers.clone().zip(theirs.iter().zip(&ours)).all(|(layer, (given, taken))| {
                given.count == self.source.cache.kv_heads_per_layer[layer]
                    && taken.count == self.own.cache.kv_heads_per_layer[layer]
            });
        if is_whole {
            return Ok(Some((BlockPart::Whole, BlockPart::Whole)));
        }
        Ok(Some((part(theirs, starts.1), part(ours, starts.0))))
    }

    /// Where the part lies in this rank's blocks; checks that both sides' blocks can be cut so.
    fn pieces(
        &self,
        source_part: &BlockPart,
        own_part: &BlockPart,
        source_block_bytes: u64,
    ) -> Result<Option<Vec<Range<usize>>>, LayoutMismatch> {
        let bytes = (self.own.block_bytes, source_block_bytes);
        let padded = || LayoutMismatch::new("bytes per block", &bytes.0, &bytes.1);
        let (BlockPart::Heads { first_layer, heads }, BlockPart::Heads { .. }) =
            (own_part, source_part)
        else {
            return if bytes.0 == bytes.1 { Ok(None) } else { Err(padded()) };
        };
        let shape = |is_own: bool, cache| BlockShape::new(cache, self.layers_of(is_own));
        let shapes = (shape(true, self.own.cache), shape(false, self.source.cache));
        let (Some(own), Some(source)) = shapes else {
            let types = (self.own.cache.data_type, self.source.cache.data_type);
            return Err(LayoutMismatch::new("data type that cannot be cut", &types.0, &types.1));
        };
        if (own.block_bytes() as u64, source.block_bytes() as u64) != bytes {
            return Err(padded());
        }
        own.pieces(*first_layer, heads).map(Some).ok_or_else(padded)
    }

    /// The worker's layers that the rank has: this worker's, or the source's.
    fn layers_of(&self, is_own: bool) -> Range<usize> {
        let (parallel, place) = match is_own {
            true => (self.own.parallel, self.place),
            false => (self.source.parallel, self.their_place),
        };
        let layers = parallel.layers(self.own.cache.kv_heads_per_layer.len());
        let layers = layers.and_then(|mut layers| {
            let index = place.pipeline as usize;
            (index < layers.len()).then(|| layers.swap_remove(index))
        });
        // The map was made of the same lists.
        layers.unwrap_or(0..0)
    }
}

fn heads_differ(own: RankOf<'_>, source: SourceWorker<'_>, layer: usize) -> LayoutMismatch {
    let heads = |cache: &CacheLayout| cache.kv_heads_per_layer.get(layer).copied();
    LayoutMismatch::new("KV heads per layer", &heads(own.cache), &heads(source.cache))
}
