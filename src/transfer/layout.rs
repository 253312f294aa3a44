//! How a worker's cache is laid out, and whether blocks of one worker mean the same in another.
//!
//! Guards: bytes of a block are only ever read as what they are. Workers whose layouts differ are
//! refused with the first field that differs; nothing is converted.

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

/// What one rank's block is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLayout {
    /// KV heads of each of the rank's layers, in order.
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
    /// Bytes of one block, padding and scales included.
    pub block_bytes: u64,
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
    /// Layers of each pipeline rank; empty when they are spread evenly.
    pub layers_per_pipeline_rank: Vec<u32>,
}

/// Why blocks of two workers do not mean the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layouts differ in {field}: this worker has {ours}, the other {theirs}; only workers of one layout exchange blocks")]
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
            ("block_bytes", self.block_bytes),
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
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
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
            block_bytes: reader.u64()?,
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

/// Whether rank i of one worker can take blocks from rank i of the other.
pub fn check_compatible(
    ours: (&CacheLayout, &ParallelLayout),
    theirs: (&CacheLayout, &ParallelLayout),
) -> Result<(), LayoutMismatch> {
    macro_rules! same {
        ($index:tt: $($field:ident as $name:literal),+ $(,)?) => {$(
            if ours.$index.$field != theirs.$index.$field {
                return Err(LayoutMismatch {
                    field: $name,
                    ours: brief(&ours.$index.$field),
                    theirs: brief(&theirs.$index.$field),
                });
            }
        )+};
    }
    same!(0:
        data_type as "data type",
        attention as "attention type",
        head_size as "head size",
        tokens_per_block as "tokens per block",
        kv_factor as "KV factor",
    );
    same!(1:
        tensor as "tensor parallel size",
        pipeline as "pipeline parallel size",
        context as "context parallel size",
        attention_data as "attention data parallel size",
        layers_per_pipeline_rank as "layers per pipeline rank",
    );
    if ours.0.kv_heads_per_layer.len() != theirs.0.kv_heads_per_layer.len() {
        return Err(LayoutMismatch {
            field: "layer count",
            ours: ours.0.kv_heads_per_layer.len().to_string(),
            theirs: theirs.0.kv_heads_per_layer.len().to_string(),
        });
    }
    same!(0:
        kv_heads_per_layer as "KV heads per layer",
        windows as "windows",
        block_bytes as "bytes per block",
    );
    Ok(())
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

/// A digest of both layouts: two ranks with equal digests hold blocks of one layout.
pub fn digest(cache: &CacheLayout, parallel: &ParallelLayout) -> u64 {
    let mut encoded = Vec::new();
    cache.encode(&mut encoded);
    parallel.encode(&mut encoded);
    xxhash_rust::xxh3::xxh3_64(&encoded)
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
            block_bytes: 4096,
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
        let (cache, parallel) = (cache(), parallel());
        assert_eq!(check_compatible((&cache, &parallel), (&cache, &parallel)), Ok(()));
        type Change = fn(&mut CacheLayout, &mut ParallelLayout);
        let changes: [(&str, Change); 13] = [
            ("data type", |c, _| c.data_type = DataType::Float16),
            ("attention type", |c, _| c.attention = Attention::Latent),
            ("head size", |c, _| c.head_size = 64),
            ("tokens per block", |c, _| c.tokens_per_block = 64),
            ("KV factor", |c, _| c.kv_factor = 1),
            ("tensor parallel size", |_, p| p.tensor = 4),
            ("pipeline parallel size", |_, p| p.pipeline = 2),
            ("context parallel size", |_, p| p.context = 2),
            ("attention data parallel size", |_, p| p.attention_data = 2),
            ("layers per pipeline rank", |_, p| p.layers_per_pipeline_rank = vec![5]),
            ("layer count", |c, _| c.kv_heads_per_layer.push(8)),
            ("KV heads per layer", |c, _| c.kv_heads_per_layer[0] = 4),
            ("bytes per block", |c, _| c.block_bytes = 8192),
        ];
        for (field, change) in changes {
            let (mut other_cache, mut other_parallel) = (cache.clone(), parallel.clone());
            change(&mut other_cache, &mut other_parallel);
            let mismatch =
                check_compatible((&cache, &parallel), (&other_cache, &other_parallel)).unwrap_err();
            assert_eq!(mismatch.field, field);
            assert_ne!(digest(&cache, &parallel), digest(&other_cache, &other_parallel), "{field}");
        }
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
        let (mut long, parallel) = (cache(), parallel());
        long.kv_heads_per_layer = vec![8; MAX_LAYOUT_ENTRIES];
        let mut other = long.clone();
        other.kv_heads_per_layer[17] = 1;
        let mismatch = check_compatible((&long, &parallel), (&other, &parallel)).unwrap_err();
        assert!(mismatch.to_string().len() < 400, "{mismatch}");
    }
}
