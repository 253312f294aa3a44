//! Which ranks of another worker hold something that a rank of this one has too.
//!
//! The rules are those of TensorRT-LLM's batch manager: pipeline ranks meet where their layers
//! overlap; tensor ranks by the quotient of the sizes, within the one attention data parallel part
//! that holds the request; context ranks by the blocks that they are dealt in turn. A rank's number
//! is `pipeline * (tensor size * context size) + tensor * context size + context`.
//!
//! Guards: sizes that do not divide each other have no map. Never does: look at heads or bytes.

use std::ops::Range;

use super::layout::{LayoutMismatch, ParallelLayout};

/// Where a rank stands in its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Pipeline rank.
    pub pipeline: u32,
    /// Tensor rank.
    pub tensor: u32,
    /// Context rank.
    pub context: u32,
}

impl Place {
    /// The place of a rank of that number.
    pub fn of(rank: u32, layout: &ParallelLayout) -> Self {
        let (tensor, context) = (layout.tensor.max(1), layout.context.max(1));
        Self {
            pipeline: rank / (tensor * context),
            tensor: rank / context % tensor,
            context: rank % context,
        }
    }

    /// The number of the rank that stands here.
    pub fn rank(self, layout: &ParallelLayout) -> u32 {
        (self.pipeline * layout.tensor + self.tensor) * layout.context + self.context
    }
}

/// The ranks of another worker that a rank has to do with, for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankMap {
    /// Their context ranks.
    pub contexts: Vec<u32>,
    /// Their tensor ranks, with their positions in the part that holds the request.
    pub tensors: Vec<u32>,
    /// Their pipeline ranks, and the worker's layers that both have.
    pub pipelines: Vec<(u32, Range<usize>)>,
    /// Tensor ranks of one attention data parallel part: this worker's, the other's.
    pub part_sizes: (u32, u32),
}

impl RankMap {
    /// What rank `rank` of `ours` has to do with `theirs`, where the other worker's attention data
    /// parallel part `their_part` holds the request.
    pub fn new(
        ours: &ParallelLayout,
        rank: u32,
        theirs: &ParallelLayout,
        their_part: u32,
        layer_count: usize,
    ) -> Result<Self, LayoutMismatch> {
        let place = Place::of(rank, ours);
        let (our_layers, their_layers) = (ours.layers(layer_count), theirs.layers(layer_count));
        let (Some(our_layers), Some(their_layers)) = (our_layers, their_layers) else {
            let lists = (&ours.layers_per_pipeline_rank, &theirs.layers_per_pipeline_rank);
            return Err(LayoutMismatch::new("layers per pipeline rank", lists.0, lists.1));
        };
        let own = our_layers.get(place.pipeline as usize).cloned().unwrap_or(0..0);
        let overlaps = their_layers.into_iter().zip(0u32..).filter_map(|(layers, pipeline)| {
            let both = own.start.max(layers.start)..own.end.min(layers.end);
            (!both.is_empty()).then_some((pipeline, both))
        });
        let part_sizes = (part_size(ours), part_size(theirs));
        let (Some(our_part_size), Some(their_part_size)) = part_sizes else {
            let sizes = (&ours.attention_data, &theirs.attention_data);
            return Err(LayoutMismatch::new("attention data parallel size", sizes.0, sizes.1));
        };
        if their_part >= theirs.attention_data {
            let highest = theirs.attention_data - 1;
            return Err(LayoutMismatch::new("attention data rank", &their_part, &highest));
        }
        let tensors = counterparts(place.tensor % our_part_size, our_part_size, their_part_size);
        let Some(tensors) = tensors else {
            return Err(LayoutMismatch::new("tensor parallel size", &ours.tensor, &theirs.tensor));
        };
        let Some(contexts) = dealt(place.context, ours.context, theirs.context) else {
            return Err(LayoutMismatch::new(
                "context parallel size",
                &ours.context,
                &theirs.context,
            ));
        };
        Ok(Self {
            contexts,
            tensors: tensors.map(|tensor| tensor + their_part * their_part_size).collect(),
            pipelines: overlaps.collect(),
            part_sizes: (our_part_size, their_part_size),
        })
    }

    /// The ranks' numbers, in the order in which they are asked.
    pub fn ranks(&self, theirs: &ParallelLayout) -> Vec<u32> {
        let mut ranks = Vec::new();
        for context in &self.contexts {
            for tensor in &self.tensors {
                for (pipeline, _) in &self.pipelines {
                    let place = Place { pipeline: *pipeline, tensor: *tensor, context: *context };
                    ranks.push(place.rank(theirs));
                }
            }
        }
        ranks
    }
}

/// Tensor ranks of one attention data parallel part.
fn part_size(layout: &ParallelLayout) -> Option<u32> {
    layout
        .tensor
        .is_multiple_of(layout.attention_data)
        .then(|| layout.tensor / layout.attention_data)
}

/// Those of `theirs` that have a share of what `index` of `ours` has.
fn counterparts(index: u32, ours: u32, theirs: u32) -> Option<Range<u32>> {
    if theirs.is_multiple_of(ours) {
        let each = theirs / ours;
        Some(index * each..(index + 1) * each)
    } else if ours.is_multiple_of(theirs) {
        let one = index / (ours / theirs);
        Some(one..one + 1)
    } else {
        None
    }
}

/// Context ranks deal blocks out in turn: those that get a block which `index` gets too.
fn dealt(index: u32, ours: u32, theirs: u32) -> Option<Vec<u32>> {
    if theirs.is_multiple_of(ours) {
        Some((index..theirs).step_by(ours as usize).collect())
    } else if ours.is_multiple_of(theirs) {
        Some(vec![index % theirs])
    } else {
        None
    }
}
