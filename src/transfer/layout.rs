//! How a worker's cache is laid out, and whether blocks of one worker mean the same in another.
//!
//! Guards: bytes of a block are only ever read as what they are. Workers may share their layers and
//! heads out differently ([`super::share`]); where what is stored differs, they are refused with the
//! first field that does. Numbers are never converted.

use std::ops::Range;

use super::state::MAX_RANKS;
use super::wire::{self, Reader, WireError};

/// Most layers, pipeline ranks or windows that a layout can name.
pub const MAX_LAYOUT_ENTRIES: usize = 4096;

/// How one number of a cache is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DataType {
    /// IEEE half precision.
    Float16 = 1,
    /// bfloat16.
    Bfloat16 = 2,
    /// IEEE single precision.
    Float32 = 3,
    /// 8-bit float, 4 exponent bits.
    Float8E4m3 = 4,
    /// 8-bit float, 5 exponent bits.
    Float8E5m2 = 5,
    /// 8-bit integer with scales of its own.
    Int8 = 6,
    /// 4-bit float with block scales.
    Nvfp4 = 7,
}

impl DataType {
    /// The data type of that code, the one used in C and on the wire.
    pub fn from_code(code: u32) -> Option<Self> {
        use DataType::*;
        [Float16, Bfloat16, Float32, Float8E4m3, Float8E5m2, Int8, Nvfp4]
            .into_iter()
            .find(|known| *known as u32 == code)
    }

    /// Bytes of one number, where it lies alone; `None` where numbers share scales inside a block.
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            Self::Float16 | Self::Bfloat16 => Some(2),
            Self::Float32 => Some(4),
            Self::Float8E4m3 | Self::Float8E5m2 | Self::Int8 => Some(1),
            Self::Nvfp4 => None,
        }
    }
}

/// What a block holds for each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Attention {
    /// Keys and values for each KV head (multi-head, grouped or multi-query attention).
    KeysAndValues = 1,
    /// One latent vector (multi-head latent attention).
    Latent = 2,
}

impl Attention {
    /// The attention type of that code, the one used in C and on the wire.
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::KeysAndValues, Self::Latent].into_iter().find(|known| *known as u32 == code)
    }
}

/// What a worker's blocks are made of. The same on all its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLayout {
    /// For each of the worker's layers, in order, the KV heads that one rank has of it.
    pub kv_heads_per_layer: Vec<u32>,
    /// Numbers for each head and token.
    pub head_size: u32,
    /// Tokens that one block holds.
    pub tokens_per_block: u32,
    /// How a number is stored.
    pub data_type: DataType,
    /// What is stored for each head.
    pub attention: Attention,
    /// 2 where keys and values are both stored, 1 where one vector serves as both.
    pub kv_factor: u32,
    /// Attention windows in tokens; 0 is the full window.
    pub windows: Vec<u32>,
}

/// How the worker's ranks share the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParallelLayout {
    /// Tensor parallel size.
    pub tensor: u32,
    /// Pipeline parallel size.
    pub pipeline: u32,
    /// Context parallel size.
    pub context: u32,
    /// Attention data parallel size; 1 when off.
    pub attention_data: u32,
    /// Layers of each pipeline rank; empty when they are shared out evenly.
    pub layers_per_pipeline_rank: Vec<u32>,
}

/// Why blocks of two workers do not mean the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layouts differ in {field}: this worker has {ours}, the other {theirs}; such workers exchange no blocks")]
pub struct LayoutMismatch {
    /// The first field that differs.
    pub field: &'static str,
    /// This worker's value.
    pub ours: String,
    /// The other worker's value.
    pub theirs: String,
}

impl CacheLayout {
    /// Whether the values can be those of a cache; names the first that cannot.
    pub fn validate(&self) -> Result<(), &'static str> {
        let positive = [
            ("head_size", u64::from(self.head_size)),
            ("tokens_per_block", u64::from(self.tokens_per_block)),
            ("kv_heads_per_layer", self.kv_heads_per_layer.len() as u64),
            ("windows", self.windows.len() as u64),
        ];
        if let Some((field, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(field);
        }
        if self.kv_heads_per_layer.len() > MAX_LAYOUT_ENTRIES {
            return Err("kv_heads_per_layer");
        }
        if self.windows.len() > MAX_LAYOUT_ENTRIES {
            return Err("windows");
        }
        if !(1..=2).contains(&self.kv_factor) {
            return Err("kv_factor");
        }
        Ok(())
    }

    /// Appends the layout's encoding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        wire::put_u32s(out, &self.kv_heads_per_layer);
        for value in [self.head_size, self.tokens_per_block, self.kv_factor] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&[self.data_type as u8, self.attention as u8]);
        wire::put_u32s(out, &self.windows);
    }

    /// Reads an encoding; fields that a later release appended are skipped.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let kv_heads_per_layer = reader.list("layers", MAX_LAYOUT_ENTRIES, u32::from_le_bytes)?;
        let (head_size, tokens_per_block) = (reader.u32()?, reader.u32()?);
        let kv_factor = reader.u32()?;
        let data_type = DataType::from_code(reader.u8()?.into())
            .ok_or(WireError::BadValue { what: "data type" })?;
        let attention = Attention::from_code(reader.u8()?.into())
            .ok_or(WireError::BadValue { what: "attention type" })?;
        let windows = reader.list("windows", MAX_LAYOUT_ENTRIES, u32::from_le_bytes)?;
        let layout = Self {
            kv_heads_per_layer,
            head_size,
            tokens_per_block,
            data_type,
            attention,
            kv_factor,
            windows,
        };
        layout.validate().map_err(|what| WireError::BadValue { what })?;
        Ok(layout)
    }
}

impl ParallelLayout {
    /// Ranks of the worker; `None` when the sizes cannot be those of a worker.
    pub fn rank_count(&self) -> Option<u32> {
        self.validate().ok()
    }

    /// Ranks of the worker, when the values can be those of one and a state can name all its ranks;
    /// else the first that cannot.
    pub fn validate(&self) -> Result<u32, &'static str> {
        let sizes = [self.tensor, self.pipeline, self.context];
        let ranks = sizes
            .iter()
            .try_fold(1u32, |ranks, size| ranks.checked_mul(*size))
            .filter(|ranks| (1..=MAX_RANKS as u32).contains(ranks))
            .ok_or("parallel sizes (tensor, pipeline and context: 1 to 4096 ranks in all)")?;
        // Attention is split over ranks of the worker: no more parts than these.
        if !(1..=ranks).contains(&self.attention_data) {
            return Err("attention data parallel size (1 to the number of ranks)");
        }
        let entries = self.layers_per_pipeline_rank.len();
        if entries != 0 && entries != self.pipeline as usize {
            return Err("layers_per_pipeline_rank (none, or one entry for each pipeline rank)");
        }
        Ok(ranks)
    }

    /// Which of the worker's layers each pipeline rank has; `None` when so many layers cannot be
    /// shared out like that.
    pub fn layers(&self, layer_count: usize) -> Option<Vec<Range<usize>>> {
        let pipeline = self.pipeline as usize;
        let counts: Vec<usize> = match self.layers_per_pipeline_rank.as_slice() {
            [] if pipeline == 0 || !layer_count.is_multiple_of(pipeline) => return None,
            [] => vec![layer_count / pipeline; pipeline],
            counts => counts.iter().map(|count| *count as usize).collect(),
        };
        let mut end = 0;
        let ranges: Vec<Range<usize>> = counts
            .into_iter()
            .map(|count| {
                let start = end;
                end += count;
                start..end
            })
            .collect();
        (end == layer_count).then_some(ranges)
    }

    /// Appends the layout's encoding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.tensor, self.pipeline, self.context, self.attention_data] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        wire::put_u32s(out, &self.layers_per_pipeline_rank);
    }

    /// Reads an encoding; fields that a later release appended are skipped.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let layout = Self {
            tensor: reader.u32()?,
            pipeline: reader.u32()?,
            context: reader.u32()?,
            attention_data: reader.u32()?,
            layers_per_pipeline_rank: reader.list(
                "pipeline ranks",
                MAX_LAYOUT_ENTRIES,
                u32::from_le_bytes,
            )?,
        };
        layout.validate().map_err(|what| WireError::BadValue { what })?;
        Ok(layout)
    }
}

/// Whether the numbers of one worker's blocks mean the same in another's, wherever they lie.
pub fn check_same_numbers(ours: &CacheLayout, theirs: &CacheLayout) -> Result<(), LayoutMismatch> {
    macro_rules! same {
        ($($field:ident as $name:literal),+ $(,)?) => {$(
            if ours.$field != theirs.$field {
                return Err(LayoutMismatch::new($name, &ours.$field, &theirs.$field));
            }
        )+};
    }
    same!(
        data_type as "data type",
        attention as "attention type",
        head_size as "head size",
        tokens_per_block as "tokens per block",
        kv_factor as "KV factor",
        windows as "windows",
    );
    let layer_counts = (ours.kv_heads_per_layer.len(), theirs.kv_heads_per_layer.len());
    if layer_counts.0 != layer_counts.1 {
        return Err(LayoutMismatch::new("layer count", &layer_counts.0, &layer_counts.1));
    }
    Ok(())
}

impl LayoutMismatch {
    /// A difference, with both values.
    pub(super) fn new(
        field: &'static str,
        ours: &dyn std::fmt::Debug,
        theirs: &dyn std::fmt::Debug,
    ) -> Self {
        Self { field, ours: brief(ours), theirs: brief(theirs) }
    }
}

/// A value for a message, however long its list is.
fn brief(value: &dyn std::fmt::Debug) -> String {
    let mut text = format!("{value:?}");
    if text.len() > 80 {
        text.truncate(80);
        text.push('…');
    }
    text
}

/// A digest of both layouts: who names it knows how the worker shares its blocks out.
pub fn digest(cache: &CacheLayout, parallel: &ParallelLayout) -> u64 {
    let mut encoded = Vec::new();
    cache.encode(&mut encoded);
    parallel.encode(&mut encoded);
    twox_hash::XxHash3_64::oneshot(&encoded)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cache() -> CacheLayout {
        CacheLayout {
            kv_heads_per_layer: vec![8; 4],
            head_size: 128,
            tokens_per_block: 32,
            data_type: DataType::Bfloat16,
            attention: Attention::KeysAndValues,
            kv_factor: 2,
            windows: vec![0],
        }
    }

    pub(crate) fn parallel() -> ParallelLayout {
        ParallelLayout {
            tensor: 2,
            pipeline: 1,
            context: 1,
            attention_data: 1,
            layers_per_pipeline_rank: vec![4],
        }
    }

    #[test]
    fn each_difference_is_named() {
        let cache = cache();
        assert_eq!(check_same_numbers(&cache, &cache), Ok(()));
        type Change = fn(&mut CacheLayout);
        let changes: [(&str, Change); 7] = [
            ("data type", |c| c.data_type = DataType::Float16),
            ("attention type", |c| c.attention = Attention::Latent),
            ("head size", |c| c.head_size = 64),
            ("tokens per block", |c| c.tokens_per_block = 64),
            ("KV factor", |c| c.kv_factor = 1),
            ("windows", |c| c.windows = vec![128]),
            ("layer count", |c| c.kv_heads_per_layer.push(8)),
        ];
        for (field, change) in changes {
            let mut other = cache.clone();
            change(&mut other);
            assert_eq!(check_same_numbers(&cache, &other).unwrap_err().field, field);
            assert_ne!(digest(&cache, &parallel()), digest(&other, &parallel()), "{field}");
        }
    }

    #[test]
    fn layers_are_shared_out_evenly_or_as_said() {
        let mut layout = parallel();
        let all = layout.layers(4).unwrap();
        assert_eq!((all.len(), &all[0]), (1, &(0..4)));
        assert_eq!(layout.layers(5), None, "the list says four");
        (layout.pipeline, layout.layers_per_pipeline_rank) = (2, Vec::new());
        assert_eq!(layout.layers(6), Some(vec![0..3, 3..6]));
        assert_eq!(layout.layers(5), None);
        layout.layers_per_pipeline_rank = vec![4, 1];
        assert_eq!(layout.layers(5), Some(vec![0..4, 4..5]));
        layout.layers_per_pipeline_rank = vec![5, 0];
        assert_eq!(layout.layers(5), Some(vec![0..5, 5..5]));
    }

    #[test]
    fn sizes_that_no_state_can_express_are_named() {
        type Change = fn(&mut ParallelLayout);
        let refused: [(&str, Change); 10] = [
            ("parallel", |p| p.tensor = 0),
            ("parallel", |p| p.context = 0),
            ("parallel", |p| p.tensor = 4097),
            ("parallel", |p| (p.tensor, p.context) = (2048, 3)),
            ("parallel", |p| (p.tensor, p.context) = (1 << 16, 1 << 16)),
            ("attention", |p| p.attention_data = 0),
            ("attention", |p| p.attention_data = 3),
            ("attention", |p| p.attention_data = u32::MAX),
            ("layers_per", |p| p.pipeline = 2),
            ("layers_per", |p| p.layers_per_pipeline_rank = vec![2, 2]),
        ];
        for (what, change) in refused {
            let mut changed = parallel();
            change(&mut changed);
            let found = changed.validate().unwrap_err();
            assert!(found.starts_with(what), "{found}");
            let mut bytes = Vec::new();
            changed.encode(&mut bytes);
            let refusal = Err(WireError::BadValue { what: found });
            assert_eq!(ParallelLayout::decode(&bytes), refusal, "nor is it read");
        }
        let accepted: [(u32, Change); 4] = [
            (2, |_| {}),
            (4096, |p| p.tensor = 4096),
            (4, |p| (p.context, p.attention_data) = (2, 4)),
            (6, |p| (p.pipeline, p.layers_per_pipeline_rank) = (3, Vec::new())),
        ];
        for (ranks, change) in accepted {
            let mut changed = parallel();
            change(&mut changed);
            assert_eq!(changed.validate(), Ok(ranks));
        }
    }

    #[test]
    fn a_long_list_makes_no_long_message() {
        let mut long = cache();
        long.windows = vec![8; MAX_LAYOUT_ENTRIES];
        let mut other = long.clone();
        other.windows[17] = 1;
        let mismatch = check_same_numbers(&long, &other).unwrap_err();
        assert!(mismatch.to_string().len() < 400, "{mismatch}");
    }
}
