//! Which rank takes what from which ranks, and that joined parts are the right bytes: beside the
//! batch manager's rank map, and beside a whole tensor that is cut by naive loops.

use std::collections::BTreeMap;
use std::ops::Range;

use kvhints::transfer::block_part::{BlockPart, BlockShape};
use kvhints::transfer::layout::{Attention, CacheLayout, DataType, ParallelLayout};
use kvhints::transfer::memory::{BlockMemory, BlockPool};
use kvhints::transfer::rank_map::RankMap;
use kvhints::transfer::share::{shares, RankOf, Share, SourceWorker};
use kvhints::transfer::sources::{gives_any, Wanted};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(rename = "self")]
    own: Worker,
    peer: Worker,
    targets_by_self_rank: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Worker {
    tp: u32,
    pp: u32,
    cp: u32,
    attention_dp: bool,
    dp_rank: u32,
    dp_size: u32,
    layers_per_pp: Vec<u32>,
}

impl Worker {
    fn layout(&self) -> ParallelLayout {
        ParallelLayout {
            tensor: self.tp,
            pipeline: self.pp,
            context: self.cp,
            attention_data: if self.attention_dp { self.dp_size } else { 1 },
            layers_per_pipeline_rank: self.layers_per_pp.clone(),
        }
    }
}

#[test]
fn ranks_meet_as_in_the_batch_manager() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("vectors/rank_map.json")).unwrap();
    assert!(cases.len() >= 67);
    for case in cases {
        let (own, peer) = (case.own.layout(), case.peer.layout());
        let layers = case.own.layers_per_pp.iter().sum::<u32>() as usize;
        assert_eq!(case.targets_by_self_rank.len() as u32, own.rank_count().unwrap());
        for (rank, targets) in case.targets_by_self_rank.iter().enumerate() {
            let map = RankMap::new(&own, rank as u32, &peer, case.peer.dp_rank, layers).unwrap();
            assert_eq!(&map.ranks(&peer), targets, "{}, rank {rank}", case.name);
        }
    }
}

const TOKENS: usize = 2;
const HEAD_SIZE: usize = 3;
/// What no byte of a tensor is.
const UNTOUCHED: u8 = 0xee;

/// A model's whole cache, of which every rank has a part.
#[derive(Clone)]
struct Tensor {
    /// KV heads of each layer, of the whole model.
    heads: Vec<usize>,
    kv_factor: usize,
    element_bytes: usize,
    is_latent: bool,
}

/// How a worker shares it out. The ranks of one attention data parallel part are `tensor` many.
#[derive(Debug, Clone)]
struct Split {
    tensor: usize,
    context: usize,
    layers: Vec<usize>,
    parts: usize,
}

impl Split {
    fn new(tensor: usize, layers: Vec<usize>) -> Self {
        Self { tensor, context: 1, layers, parts: 1 }
    }

    fn even(tensor: usize, pipeline: usize, layers: usize) -> Self {
        Self::new(tensor, vec![layers / pipeline; pipeline])
    }

    fn ranks(&self) -> u32 {
        (self.tensor * self.parts * self.context * self.layers.len()) as u32
    }

    fn parallel(&self) -> ParallelLayout {
        ParallelLayout {
            tensor: (self.tensor * self.parts) as u32,
            pipeline: self.layers.len() as u32,
            context: self.context as u32,
            attention_data: self.parts as u32,
            layers_per_pipeline_rank: self.layers.iter().map(|count| *count as u32).collect(),
        }
    }

    /// Pipeline, tensor and context rank by the definition of a rank's number.
    fn place(&self, rank: u32) -> (usize, usize, usize) {
        let rank = rank as usize;
        let tensors = self.tensor * self.parts;
        (rank / (tensors * self.context), rank / self.context % tensors, rank % self.context)
    }

    fn layers_of(&self, rank: u32) -> Range<usize> {
        let (pipeline, ..) = self.place(rank);
        let start = self.layers[..pipeline].iter().sum();
        start..start + self.layers[pipeline]
    }
}

impl Tensor {
    fn cache(&self, split: &Split) -> CacheLayout {
        CacheLayout {
            kv_heads_per_layer: (0..self.heads.len())
                .map(|layer| self.heads_on(split, 0, layer).len() as u32)
                .collect(),
            head_size: HEAD_SIZE as u32,
            tokens_per_block: TOKENS as u32,
            data_type: match self.element_bytes {
                1 => DataType::Float8E4m3,
                _ => DataType::Bfloat16,
            },
            attention: match self.is_latent {
                true => Attention::Latent,
                false => Attention::KeysAndValues,
            },
            kv_factor: self.kv_factor as u32,
            windows: vec![0],
        }
    }

    /// The model's heads of a layer that a tensor rank holds: as many for each, and the same one
    /// on neighbours where there are more ranks than heads.
    fn heads_on(&self, split: &Split, tensor: usize, layer: usize) -> Range<usize> {
        let (heads, in_part) = (self.heads[layer], tensor % split.tensor);
        if self.is_latent {
            0..heads
        } else if heads >= split.tensor {
            let each = heads / split.tensor;
            in_part * each..(in_part + 1) * each
        } else {
            let one = in_part * heads / split.tensor;
            one..one + 1
        }
    }

    /// The bytes of one rank's block at that place of the sequence, one number after the other.
    fn block(&self, split: &Split, rank: u32, position: usize) -> Vec<u8> {
        let (_, tensor, _) = split.place(rank);
        let mut bytes = Vec::new();
        for layer in split.layers_of(rank) {
            for kv in 0..self.kv_factor {
                for head in self.heads_on(split, tensor, layer) {
                    for token in 0..TOKENS {
                        for number in 0..HEAD_SIZE * self.element_bytes {
                            let part = tensor / split.tensor;
                            let at = [layer, kv, head, token, number, position, part];
                            bytes.push(byte_at(at));
                        }
                    }
                }
            }
        }
        bytes
    }
}

/// A byte that says where it belongs, as well as one byte can.
fn byte_at(coordinates: [usize; 7]) -> u8 {
    let mixed = coordinates.iter().fold(17u64, |mixed, coordinate| {
        (mixed ^ *coordinate as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    match (mixed >> 32) as u8 {
        UNTOUCHED => 1,
        byte => byte,
    }
}

fn shares_of(
    tensor: &Tensor,
    own: &Split,
    rank: u32,
    source: &Split,
    part: u32,
) -> Result<Vec<Share>, String> {
    let (own_cache, source_cache) = (tensor.cache(own), tensor.cache(source));
    let own_bytes = tensor.block(own, rank, 0).len() as u64;
    let own_parallel = own.parallel();
    let of = RankOf { cache: &own_cache, parallel: &own_parallel, rank, block_bytes: own_bytes };
    let parallel = source.parallel();
    let worker =
        SourceWorker { cache: &source_cache, parallel: &parallel, attention_data_rank: part };
    let source_bytes = |rank| Some(tensor.block(source, rank, 0).len() as u64);
    shares(of, worker, source_bytes).map_err(|mismatch| mismatch.to_string())
}

/// A pool of one block.
fn pool(bytes: &mut [u8]) -> BlockPool {
    // SAFETY: callers keep the bytes as long as the pool, and touch them only in between.
    unsafe { BlockPool::new(bytes.as_mut_ptr(), bytes.len(), 1) }.unwrap()
}

/// Moves one share of a block, as source and destination do.
fn move_part(tensor: &Tensor, source: &Split, share: &Share, position: usize, own: &mut [u8]) {
    let mut theirs = tensor.block(source, share.rank, position);
    let mut sent = Vec::new();
    match &share.source_part {
        BlockPart::Whole => sent.extend_from_slice(&theirs),
        BlockPart::Heads { first_layer, heads } => {
            let shape =
                BlockShape::new(&tensor.cache(source), source.layers_of(share.rank)).unwrap();
            let pieces = shape.pieces(*first_layer, heads).unwrap();
            assert!(pool(&mut theirs).gather(0, &pieces, &mut sent));
        }
    }
    match &share.own_pieces {
        None => assert!(pool(own).fill(0, &sent, false)),
        Some(pieces) => assert!(pool(own).scatter(0, pieces, &sent)),
    }
}

/// Destination ranks that were compared, and blocks that were not the tensor's.
#[derive(Default)]
struct Compared {
    ranks: usize,
    fails: usize,
}

fn check(tensor: &Tensor, own: &Split, source: &Split, part: usize, own_part: usize) -> Compared {
    check_spoilt(tensor, own, source, part, own_part, |_| {})
}

/// Fetches blocks for every rank of `own` and compares them with the tensor's; `spoil` is what a
/// fault would do to the shares.
fn check_spoilt(
    tensor: &Tensor,
    own: &Split,
    source: &Split,
    part: usize,
    own_part: usize,
    spoil: impl Fn(&mut Share),
) -> Compared {
    const BLOCKS: usize = 7;
    let mut compared = Compared::default();
    for rank in 0..own.ranks() {
        let (_, tensor_rank, context) = own.place(rank);
        if own.layers_of(rank).is_empty() || tensor_rank / own.tensor != own_part {
            continue;
        }
        let mut found = shares_of(tensor, own, rank, source, part as u32).unwrap();
        let mut asked: Vec<u32> = found.iter().map(|share| share.rank).collect();
        let map = RankMap::new(
            &own.parallel(),
            rank,
            &source.parallel(),
            part as u32,
            tensor.heads.len(),
        );
        let targets = map.unwrap().ranks(&source.parallel());
        assert!(asked.iter().all(|rank| targets.contains(rank)), "{asked:?} of {targets:?}");
        asked.dedup();
        assert_eq!(asked.len(), found.len(), "each rank is asked once");
        found.iter_mut().for_each(&spoil);
        for position in (0..BLOCKS).filter(|position| position % own.context == context) {
            let mut expected = tensor.block(own, rank, position);
            // The parts of a worker differ: what arrives is the source's.
            if part != own_part {
                let alike = Split { parts: source.parts.max(own.parts), ..own.clone() };
                let (pipeline, _, _) = own.place(rank);
                let in_part = tensor_rank % own.tensor + part * own.tensor;
                let tensors = alike.tensor * alike.parts;
                let twin = ((pipeline * tensors + in_part) * own.context + context) as u32;
                expected = tensor.block(&alike, twin, position);
            }
            let mut block = vec![UNTOUCHED; expected.len()];
            for share in &found {
                if position as u32 % share.step == share.remainder {
                    let (_, _, their_context) = source.place(share.rank);
                    assert_eq!(position % source.context, their_context, "who has it is asked");
                    move_part(tensor, source, share, position, &mut block);
                }
            }
            if block != expected {
                compared.fails += 1;
                println!("differs: {own:?} from {source:?}, rank {rank}, block {position}");
            }
        }
        compared.ranks += 1;
    }
    compared
}

/// Counts of what was compared, by class.
#[derive(Default)]
struct Matrix(BTreeMap<&'static str, (usize, Compared)>);

impl Matrix {
    fn add(&mut self, class: &'static str, found: Compared) {
        assert!(found.ranks > 0, "{class}: nothing was compared");
        let (combinations, compared) = self.0.entry(class).or_default();
        *combinations += 1;
        compared.ranks += found.ranks;
        compared.fails += found.fails;
    }

    /// Prints the counts, and fails when a block was not the tensor's.
    fn report(&self, title: &str) {
        println!("{title}: combinations, destination ranks compared, fails");
        for (class, (combinations, Compared { ranks, fails })) in &self.0 {
            println!("  {class:<44} {combinations:>5} {ranks:>6} {fails}");
        }
        assert_eq!(self.0.values().map(|(_, compared)| compared.fails).sum::<usize>(), 0);
    }
}

#[test]
fn joined_parts_are_the_tensor_for_all_tensor_and_pipeline_sizes() {
    const SIZES: [usize; 3] = [1, 2, 4];
    let mut matrix = Matrix::default();
    let mut count = 0;
    for heads in [1, 2, 4, 8] {
        for (kv_factor, element_bytes) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let tensor =
                Tensor { heads: vec![heads; 4], kv_factor, element_bytes, is_latent: false };
            for own_tensor in SIZES {
                for own_pipeline in SIZES {
                    for source_tensor in SIZES {
                        for source_pipeline in SIZES {
                            let own = Split::even(own_tensor, own_pipeline, 4);
                            let source = Split::even(source_tensor, source_pipeline, 4);
                            let is_doubled = own_tensor.max(source_tensor) > heads;
                            let tensors = (own_tensor == source_tensor, is_doubled);
                            let pipelines = own_pipeline == source_pipeline;
                            let class = match (tensors, pipelines) {
                                ((true, _), true) => "equal",
                                ((true, _), false) => "other pipeline size",
                                ((false, false), true) => "other tensor size",
                                ((false, true), true) => "other tensor size, duplicated heads",
                                ((false, false), false) => "other tensor and pipeline size",
                                ((false, true), false) => "both other, duplicated heads",
                            };
                            matrix.add(class, check(&tensor, &own, &source, 0, 0));
                            count += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(count, 3 * 3 * 3 * 3 * 4 * 2 * 2, "all combinations");
    matrix
        .report("tensor and pipeline sizes 1, 2, 4; heads 1, 2, 4, 8; KV factor 1, 2; 1, 2 bytes");
}

#[test]
fn joined_parts_are_the_tensor_for_other_kinds_of_workers() {
    let mut matrix = Matrix::default();
    let plain =
        |heads: Vec<usize>| Tensor { heads, kv_factor: 2, element_bytes: 2, is_latent: false };
    // Latent attention: every tensor rank has all of it.
    let latent = Tensor { heads: vec![1; 4], kv_factor: 1, element_bytes: 2, is_latent: true };
    for own in [1, 2, 4] {
        for source in [1, 2, 4] {
            for pipeline in [1, 2, 4] {
                let (own, source) = (Split::even(own, pipeline, 4), Split::even(source, 2, 4));
                matrix.add("latent attention", check(&latent, &own, &source, 0, 0));
            }
        }
    }
    // Layers shared out unequally, a rank without layers among them.
    let lists =
        [vec![16], vec![10, 6], vec![4, 4, 4, 4], vec![1, 7, 8], vec![15, 1], vec![9, 0, 7]];
    for own_layers in &lists {
        for source_layers in &lists {
            for (own, source) in [(1, 1), (2, 4), (4, 1)] {
                let own = Split::new(own, own_layers.clone());
                let source = Split::new(source, source_layers.clone());
                let compared = check(&plain(vec![4; 16]), &own, &source, 0, 0);
                matrix.add("unequal layers", compared);
            }
        }
    }
    // Heads that differ from layer to layer, some of them fewer than ranks.
    for (own, source) in [(1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 2)] {
        for pipeline in [1, 2] {
            let tensor = plain(vec![8, 1, 2, 4, 1, 8]);
            let (own, source) = (Split::even(own, pipeline, 6), Split::even(source, 3, 6));
            matrix.add("heads differ by layer", check(&tensor, &own, &source, 0, 0));
        }
    }
    // Attention data parallel parts, each with KV of its own.
    for own_parts in [1, 2, 4] {
        for source_parts in [1, 2, 4] {
            for (own, source) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
                for part in 0..source_parts {
                    for own_part in 0..own_parts {
                        let own = Split { parts: own_parts, ..Split::even(own, 2, 4) };
                        let source = Split { parts: source_parts, ..Split::even(source, 1, 4) };
                        let compared = check(&plain(vec![4; 4]), &own, &source, part, own_part);
                        matrix.add("attention data parallel", compared);
                    }
                }
            }
        }
    }
    // Context ranks deal blocks out in turn.
    for own_context in [1, 2, 4] {
        for source_context in [1, 2, 4] {
            for (own, source) in [(1, 1), (2, 1), (1, 2)] {
                let own = Split { context: own_context, ..Split::even(own, 1, 4) };
                let source = Split { context: source_context, ..Split::even(source, 2, 4) };
                let compared = check(&plain(vec![4; 4]), &own, &source, 0, 0);
                matrix.add("context parallel", compared);
            }
        }
    }
    matrix.report("other kinds");
}

#[test]
fn bytes_of_another_part_or_rank_would_be_noticed() {
    let tensor = Tensor { heads: vec![4; 4], kv_factor: 2, element_bytes: 1, is_latent: false };
    let source = Split { parts: 2, ..Split::even(2, 1, 4) };
    let blocks: Vec<Vec<u8>> = (0..4).map(|rank| tensor.block(&source, rank, 0)).collect();
    for (rank, block) in blocks.iter().enumerate() {
        assert!(blocks[..rank].iter().all(|other| other != block), "rank {rank}");
        assert_ne!(*block, tensor.block(&source, rank as u32, 1), "another place");
    }
}

#[test]
fn shares_that_are_wrong_would_be_found() {
    let tensor = Tensor { heads: vec![4; 4], kv_factor: 2, element_bytes: 1, is_latent: false };
    let (own, source) = (Split::even(1, 1, 4), Split::even(2, 2, 4));
    type Spoil = fn(&mut Share);
    let spoils: [Spoil; 4] = [
        |share| share.rank ^= 1,
        |share| share.rank ^= 2,
        |share| share.own_pieces.as_mut().unwrap().reverse(),
        |share| {
            let BlockPart::Heads { heads, .. } = &mut share.source_part else { return };
            let halved = heads.iter_mut().map(|range| range.count = 1);
            halved.for_each(drop);
            let pieces = share.own_pieces.as_mut().unwrap();
            pieces.iter_mut().for_each(|piece| piece.end = piece.start + piece.len() / 2);
        },
    ];
    assert_eq!(check(&tensor, &own, &source, 0, 0).fails, 0);
    for (index, spoil) in spoils.into_iter().enumerate() {
        let compared = check_spoilt(&tensor, &own, &source, 0, 0, spoil);
        assert_eq!(compared.fails, 7, "every block, fault {index}");
    }
}

#[test]
fn each_refusal_says_what_differs() {
    let tensor = Tensor { heads: vec![4; 4], kv_factor: 2, element_bytes: 2, is_latent: false };
    let (one, two) = (Split::even(1, 1, 4), Split::even(2, 1, 4));
    type Change = fn(&mut CacheLayout, &mut ParallelLayout, &mut u64, &mut u32);
    let changes: [(&str, Change); 17] = [
        ("data type", |c, _, _, _| c.data_type = DataType::Float16),
        ("attention type", |c, _, _, _| c.attention = Attention::Latent),
        ("head size", |c, _, _, _| c.head_size = 64),
        ("tokens per block", |c, _, _, _| c.tokens_per_block = 64),
        ("KV factor", |c, _, _, _| c.kv_factor = 1),
        ("windows", |c, _, _, _| c.windows = vec![128]),
        ("layer count", |c, _, _, _| c.kv_heads_per_layer.push(2)),
        ("layers per pipeline rank", |_, p, _, _| p.layers_per_pipeline_rank = vec![5]),
        ("KV heads per layer", |c, _, _, _| c.kv_heads_per_layer[2] = 3),
        ("KV heads per layer", |c, _, _, _| c.kv_heads_per_layer[2] = 0),
        ("KV heads per layer", |c, _, _, _| c.kv_heads_per_layer[2] = 8),
        ("KV heads per layer", |c, _, _, _| c.kv_heads_per_layer[2] = u32::MAX),
        ("attention data parallel size", |_, p, _, _| (p.tensor, p.attention_data) = (3, 2)),
        ("attention data rank", |_, _, _, part| *part = 1),
        ("bytes per block", |_, _, bytes, _| *bytes += 8),
        ("bytes per block", |_, _, bytes, _| *bytes = 0),
        ("ranks to ask", |c, p, _, _| {
            p.tensor = 512;
            c.kv_heads_per_layer = vec![1; 4];
        }),
    ];
    for (field, change) in changes {
        let (mut cache, mut parallel) = (tensor.cache(&two), two.parallel());
        let (mut bytes, mut part) = (tensor.block(&two, 0, 0).len() as u64, 0);
        change(&mut cache, &mut parallel, &mut bytes, &mut part);
        let (own_cache, own_parallel) = (tensor.cache(&one), one.parallel());
        let own_bytes = tensor.block(&one, 0, 0).len() as u64;
        let own =
            RankOf { cache: &own_cache, parallel: &own_parallel, rank: 0, block_bytes: own_bytes };
        let source = SourceWorker { cache: &cache, parallel: &parallel, attention_data_rank: part };
        let mismatch = shares(own, source, |_| Some(bytes)).unwrap_err();
        assert_eq!(mismatch.field, field, "{mismatch}");
        assert!(mismatch.to_string().contains(field));
    }
    for (field, own, source) in [
        ("tensor parallel size", Split::even(2, 1, 6), Split::even(3, 1, 6)),
        (
            "context parallel size",
            Split { context: 2, ..Split::even(1, 1, 6) },
            Split { context: 3, ..Split::even(1, 1, 6) },
        ),
        ("layers of this rank", Split::new(1, vec![0, 6]), Split::even(1, 1, 6)),
    ] {
        let tensor = Tensor { heads: vec![6; 6], ..tensor.clone() };
        let refusal = shares_of(&tensor, &own, 0, &source, 0).unwrap_err();
        assert!(refusal.contains(field), "{refusal}");
    }
}

#[test]
fn what_cannot_be_cut_is_taken_whole_or_not_at_all() {
    let tensor = Tensor { heads: vec![4; 4], kv_factor: 2, element_bytes: 2, is_latent: false };
    let with = |own_split: &Split, source_split: &Split, bytes: (u64, u64), data_type| {
        let mut own_cache = tensor.cache(own_split);
        let mut cache = tensor.cache(source_split);
        (own_cache.data_type, cache.data_type) = (data_type, data_type);
        let (own_parallel, parallel) = (own_split.parallel(), source_split.parallel());
        let own =
            RankOf { cache: &own_cache, parallel: &own_parallel, rank: 0, block_bytes: bytes.0 };
        let source = SourceWorker { cache: &cache, parallel: &parallel, attention_data_rank: 0 };
        shares(own, source, |_| Some(bytes.1)).map_err(|mismatch| mismatch.field)
    };
    let (one, two) = (Split::even(1, 1, 4), Split::even(2, 1, 4));
    // Padding and scales are nobody's matter where blocks are alike.
    for data_type in [DataType::Nvfp4, DataType::Bfloat16] {
        let found = with(&one, &one, (9_999, 9_999), data_type).unwrap();
        assert_eq!((found[0].rank, found[0].own_pieces.clone()), (0, None));
        assert_eq!(found[0].source_part, BlockPart::Whole);
        assert_eq!(with(&one, &one, (9_999, 9_998), data_type), Err("bytes per block"));
    }
    let cut = with(&one, &two, (4_608, 2_304), DataType::Nvfp4);
    assert_eq!(cut, Err("data type that cannot be cut"));
}

#[test]
fn a_source_that_deals_blocks_out_is_asked_for_its_own() {
    let tensor = Tensor { heads: vec![1; 2], kv_factor: 1, element_bytes: 1, is_latent: false };
    let (own, source) = (Split::even(1, 1, 2), Split { context: 4, ..Split::even(1, 1, 2) });
    let found = shares_of(&tensor, &own, 0, &source, 0).unwrap();
    assert_eq!(found.len(), 4);
    let wanted = Wanted { first: 6, step: 1, count: 2 };
    let asked: Vec<u32> =
        found.iter().filter(|share| gives_any(share, wanted)).map(|share| share.rank).collect();
    assert_eq!(asked, [2, 3], "blocks 6 and 7 are theirs");
}
