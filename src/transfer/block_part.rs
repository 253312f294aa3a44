//! A part of a block: some heads of some layers, and where their bytes lie.
//!
//! A block that can be cut lies in memory as layers, in each of them keys then values, in each of
//! these heads, in each of these tokens, in each of these numbers, with nothing in between. So a
//! head's tokens are one run of bytes, and neighbouring heads are one longer run. A part travels in
//! that same order, whoever cuts it and whoever joins it.
//!
//! Guards: a part outside of the block has no bytes. Nothing here touches memory.

use std::ops::Range;

use super::layout::CacheLayout;

/// Heads of one layer, by their position within a rank's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadRange {
    /// The first.
    pub first: u32,
    /// How many; 0 for a layer that gives nothing.
    pub count: u32,
}

/// Which part of each block is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockPart {
    /// All of its bytes, whatever they are.
    Whole,
    /// Heads of some layers.
    Heads {
        /// The first layer, by its position within the rank's block.
        first_layer: u32,
        /// For each layer from there on, its heads.
        heads: Vec<HeadRange>,
    },
}

/// How a rank's block lies in memory, where it can be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockShape {
    heads_per_layer: Vec<u32>,
    kv_factor: usize,
    /// One head's keys, or values, of all the block's tokens.
    head_bytes: usize,
    block_bytes: usize,
}

impl BlockShape {
    /// The shape of a block that has these of the worker's layers; `None` when it cannot be cut:
    /// its numbers share scales, or it would be larger than memory.
    pub fn new(cache: &CacheLayout, layers: Range<usize>) -> Option<Self> {
        let heads_per_layer = cache.kv_heads_per_layer.get(layers)?.to_vec();
        let kv_factor = cache.kv_factor as usize;
        let head_bytes = (cache.data_type.element_bytes()?)
            .checked_mul(cache.tokens_per_block as usize)?
            .checked_mul(cache.head_size as usize)?;
        let heads = heads_per_layer.iter().map(|heads| *heads as usize).sum::<usize>();
        let block_bytes = heads.checked_mul(kv_factor)?.checked_mul(head_bytes)?;
        (block_bytes <= isize::MAX as usize).then_some(Self {
            heads_per_layer,
            kv_factor,
            head_bytes,
            block_bytes,
        })
    }

    /// Bytes of one block, without padding.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Where the part's bytes lie, in the order in which they travel; `None` when the block has no
    /// such layers or heads, or the part is empty.
    pub fn pieces(&self, first_layer: u32, heads: &[HeadRange]) -> Option<Vec<Range<usize>>> {
        let first_layer = first_layer as usize;
        let end_layer = first_layer.checked_add(heads.len())?;
        let layers = self.heads_per_layer.get(first_layer..end_layer)?;
        let before = &self.heads_per_layer[..first_layer];
        let rows = before.iter().map(|count| *count as usize).sum::<usize>() * self.kv_factor;
        let mut at = rows * self.head_bytes;
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for (range, count) in heads.iter().zip(layers) {
            if range.first.checked_add(range.count)? > *count {
                return None;
            }
            for _ in 0..self.kv_factor {
                let start = at + range.first as usize * self.head_bytes;
                let end = start + range.count as usize * self.head_bytes;
                at += *count as usize * self.head_bytes;
                match pieces.last_mut() {
                    _ if start == end => {}
                    Some(last) if last.end == start => last.end = end,
                    _ => pieces.push(start..end),
                }
            }
        }
        (!pieces.is_empty()).then_some(pieces)
    }
}

/// Bytes of all pieces.
pub fn piece_bytes(pieces: &[Range<usize>]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::layout::{tests::cache, DataType};

    fn shape() -> BlockShape {
        let mut cache = cache();
        cache.kv_heads_per_layer = vec![9, 2, 3, 1];
        (cache.head_size, cache.tokens_per_block) = (5, 2);
        BlockShape::new(&cache, 1..4).unwrap()
    }

    fn heads(list: &[(u32, u32)]) -> Vec<HeadRange> {
        list.iter().map(|(first, count)| HeadRange { first: *first, count: *count }).collect()
    }

    #[test]
    fn bytes_lie_where_the_order_says() {
        let shape = shape();
        // Two tokens of five two-byte numbers: 20 bytes a head; 6 heads, keys and values.
        assert_eq!(shape.block_bytes(), 240);
        let whole = shape.pieces(0, &heads(&[(0, 2), (0, 3), (0, 1)])).unwrap();
        assert_eq!((whole.len(), &whole[0]), (1, &(0..240)));
        assert_eq!(shape.pieces(0, &heads(&[(1, 1)])), Some(vec![20..40, 60..80]));
        assert_eq!(shape.pieces(0, &heads(&[(1, 1), (0, 3)])), Some(vec![20..40, 60..200]));
        assert_eq!(shape.pieces(1, &heads(&[(2, 1), (0, 0)])), Some(vec![120..140, 180..200]));
        let pieces = shape.pieces(1, &heads(&[(0, 2), (0, 1)])).unwrap();
        assert_eq!(pieces, [80..120, 140..180, 200..240]);
        assert_eq!(piece_bytes(&pieces), 120);
    }

    #[test]
    fn parts_outside_of_the_block_have_no_bytes() {
        let shape = shape();
        let outside: [(u32, &[(u32, u32)]); 8] = [
            (0, &[]),
            (0, &[(0, 0)]),
            (0, &[(0, 3)]),
            (0, &[(2, 1)]),
            (0, &[(u32::MAX, 2)]),
            (3, &[(0, 1)]),
            (u32::MAX, &[(0, 1)]),
            (1, &[(0, 1), (0, 1), (0, 1)]),
        ];
        for (first_layer, list) in outside {
            assert_eq!(shape.pieces(first_layer, &heads(list)), None, "{first_layer} {list:?}");
        }
    }

    #[test]
    fn what_cannot_be_cut_has_no_shape() {
        let mut cache = cache();
        assert_eq!(BlockShape::new(&cache, 0..5), None, "there are four layers");
        cache.data_type = DataType::Nvfp4;
        assert_eq!(BlockShape::new(&cache, 0..4), None, "scales lie in between");
        cache.data_type = DataType::Float32;
        (cache.head_size, cache.tokens_per_block) = (u32::MAX, u32::MAX);
        assert_eq!(BlockShape::new(&cache, 0..4), None, "larger than memory");
    }
}
