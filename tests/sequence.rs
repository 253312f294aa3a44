//! Sequences: block hashes as the batch manager computes them, growth, and what is refused.

use kvhints::reuse::{MmItem, ReuseError, Sequence, SequenceParams};
use proptest::prelude::*;
use serde_json::Value;

fn numbers<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    let list = value.as_array().expect("a list");
    list.iter().map(|number| read(number).expect("a number")).collect()
}

fn hex32(text: &str) -> [u8; 32] {
    std::array::from_fn(|byte| {
        u8::from_str_radix(&text[2 * byte..2 * byte + 2], 16).expect("64 hex digits")
    })
}

fn mm_items(case: &Value) -> Vec<MmItem> {
    let items = case["mm"].as_array().map_or(&[][..], Vec::as_slice);
    let number = |item: &Value, name: &str| item[name].as_u64().expect("a number") as u32;
    let item = |item: &Value| MmItem {
        hash: hex32(item["hash_hex"].as_str().expect("hex digits")),
        start: number(item, "start"),
        length: number(item, "length"),
        item_offset: 0,
    };
    items.iter().map(item).collect()
}

#[test]
fn block_hashes_are_those_of_the_vectors() {
    let text = include_str!("vectors/block_hash.json");
    let cases: Vec<Value> = serde_json::from_str(text).expect("vectors are JSON");
    assert!(cases.len() >= 19);
    for case in &cases {
        let tokens = numbers(&case["tokens"], |token| Some(token.as_i64()? as i32));
        let extra_ids = case.get("extra").map(|extra_ids| numbers(extra_ids, Value::as_u64));
        let sequence = Sequence::new(&SequenceParams {
            tokens_per_block: case["tokens_per_block"].as_u64().expect("a number") as usize,
            tokens: &tokens,
            extra_ids: extra_ids.as_deref(),
            lora_id: case.get("lora").map(|lora| lora.as_u64().expect("a number")),
            salt: case.get("salt").map(|salt| salt.as_u64().expect("a number")),
            mm_items: &mm_items(case),
            ..Default::default()
        })
        .expect("a good sequence");
        let expected = numbers(&case["block_hashes"], |hash| hash.as_str()?.parse::<u64>().ok());
        let found: Vec<u64> = (0..).map_while(|block| sequence.block_hash(block)).collect();
        assert_eq!(found, expected, "{}", case["name"]);
        assert_eq!(sequence.block_count(), expected.len(), "{}", case["name"]);
    }
}

fn params(tokens: &[i32]) -> SequenceParams<'_> {
    SequenceParams { tokens_per_block: 4, tokens, ..Default::default() }
}

fn identities(sequence: &Sequence) -> Vec<(u64, kvhints::reuse::Name)> {
    (0..).map_while(|block| Some((sequence.block_hash(block)?, sequence.name(block)?))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn growing_in_pieces_is_the_same_as_growing_at_once(
        tokens in prop::collection::vec(any::<i32>(), 0..40),
        with_extra_ids: bool,
        cuts in prop::collection::vec(1..9_usize, 0..20),
        look_between: bool,
    ) {
        let extra_ids: Vec<u64> = tokens.iter().map(|token| (*token as u64).wrapping_mul(3)).collect();
        let extra = |range: std::ops::Range<usize>| {
            if with_extra_ids { &extra_ids[range] } else { &[] }
        };
        // A run of an item wherever three tokens come together.
        let item = |start: usize, length: usize| {
            let hash = [start as u8; 32];
            (length >= 3).then_some(MmItem { hash, start: start as u32, length: 3, item_offset: 2 })
        };
        let mut pieces = params(&[]);
        pieces.extra_ids = with_extra_ids.then_some(&[]);
        let mut grown = Sequence::new(&pieces).expect("an empty sequence");
        let mut all_items = Vec::new();
        let mut at = 0_usize;
        for piece in cuts.into_iter().chain([usize::MAX]) {
            let end = tokens.len().min(at.saturating_add(piece));
            let items: Vec<MmItem> = item(at, end - at).into_iter().collect();
            grown.append(&tokens[at..end], extra(at..end), &items).expect("a good piece");
            all_items.extend(items);
            at = end;
            if look_between {
                prop_assert_eq!(identities(&grown).len(), at.div_ceil(4));
            }
        }
        let mut whole = params(&tokens);
        whole.extra_ids = with_extra_ids.then_some(&extra_ids);
        whole.mm_items = &all_items;
        let whole = Sequence::new(&whole).expect("a good sequence");
        prop_assert_eq!(identities(&grown), identities(&whole));
    }
}

#[test]
fn a_refused_append_changes_nothing() {
    let run = |start, length| MmItem { hash: [1; 32], start, length, item_offset: 0 };
    let mut sequence = Sequence::new(&params(&[1, 2, 3, 4, 5])).expect("a good sequence");
    let before = identities(&sequence);
    for (index, bad) in [
        vec![run(5, 0)],
        vec![run(4, 2)],
        vec![run(5, 4)],
        vec![run(8, u32::MAX)],
        vec![run(u32::MAX, u32::MAX)],
        vec![run(6, 2), run(5, 2)],
        vec![run(5, 1), run(5, 1)],
    ]
    .into_iter()
    .enumerate()
    {
        let refused = sequence.append(&[6, 7, 8], &[], &bad);
        assert!(matches!(refused, Err(ReuseError::MultimodalRun { .. })), "case {index}");
        assert_eq!((sequence.token_count(), identities(&sequence)), (5, before.clone()));
    }
    let refused = sequence.append(&[6], &[1], &[]);
    assert_eq!(refused, Err(ReuseError::ExtraIds { expected: 0, found: 1 }));
    assert_eq!((sequence.token_count(), identities(&sequence)), (5, before));
}

#[test]
fn sizes_are_bounded() {
    for found in [0, kvhints::reuse::MAX_TOKENS_PER_BLOCK + 1] {
        let mut bad = params(&[]);
        bad.tokens_per_block = found;
        assert_eq!(Sequence::new(&bad).err(), Some(ReuseError::TokensPerBlock { found }));
    }
    let long = vec![0; kvhints::reuse::MAX_IDENTITY_BYTES + 1];
    for bad in [
        SequenceParams { namespace: &long, ..params(&[]) },
        SequenceParams { salt_bytes: &long, ..params(&[]) },
        SequenceParams { adapter_digest: &long, lora_id: Some(1), ..params(&[]) },
    ] {
        assert!(matches!(Sequence::new(&bad), Err(ReuseError::Limit { .. })));
    }
    let without_lora = SequenceParams { adapter_digest: b"digest", ..params(&[]) };
    assert_eq!(Sequence::new(&without_lora).err(), Some(ReuseError::DigestWithoutLora));
}

#[test]
fn only_an_adapter_that_all_know_is_servable_to_peers() {
    let servable = |lora_id, adapter_digest| {
        let params = SequenceParams { lora_id, adapter_digest, ..params(&[1]) };
        Sequence::new(&params).expect("a good sequence").is_servable_to_peers()
    };
    assert!(servable(None, b""));
    assert!(!servable(Some(3), b""));
    assert!(servable(Some(3), b"digest"));
}

#[test]
fn each_block_has_the_multimodal_keys_of_its_own_tokens() {
    // The image covers tokens 2..6 of blocks 0 and 1; block 2 has none.
    let item = |start| MmItem { hash: [7; 32], start, length: 4, item_offset: 0 };
    let tokens: Vec<i32> = (0..12).collect();
    let hashes = |items: &[MmItem]| {
        let params = SequenceParams { mm_items: items, ..params(&tokens) };
        Sequence::new(&params).expect("a good sequence").block_hashes().to_vec()
    };
    let (plain, with_late_item) = (hashes(&[]), hashes(&[item(6)]));
    assert_eq!(plain[0], with_late_item[0], "a later block's image is not in the first one's key");
    assert_ne!(plain[1], with_late_item[1]);
    assert_ne!(hashes(&[item(2)])[0], plain[0]);
}

#[test]
fn an_image_in_one_block_leaves_the_keys_of_all_others_alone() {
    // Each block's identity follows from its parent's: with the parent's given, only its own keys
    // count. Two prompts that differ in one block's image have the same blocks before it, and others
    // from there on; and so it is for each block, wherever the images of the others lie.
    let tokens: Vec<i32> = (0..64).collect();
    let run = |block: u32, hash: u8| MmItem {
        hash: [hash; 32],
        start: 4 * block + 1,
        length: 2,
        item_offset: 0,
    };
    let identities = |items: &[MmItem]| {
        let params = SequenceParams { mm_items: items, ..params(&tokens) };
        identities(&Sequence::new(&params).expect("a good sequence"))
    };
    let everywhere: Vec<MmItem> = (0..16).map(|block| run(block, 1)).collect();
    let before = identities(&everywhere);
    for block in 0..16 {
        let mut changed = everywhere.clone();
        changed[block] = run(block as u32, 2);
        let after = identities(&changed);
        assert_eq!(before[..block], after[..block], "block {block}");
        let differ = |at: usize| before[at].0 != after[at].0 && before[at].1 != after[at].1;
        assert!((block..16).all(differ), "block {block}");
    }
}

#[test]
fn images_that_come_later_leave_the_blocks_that_were_there_alone() {
    let image = |start, length| MmItem { hash: [8; 32], start, length, item_offset: 0 };
    for tokens_per_block in [4, 16] {
        let tokens: Vec<i32> = (0..200).collect();
        let empty = SequenceParams { tokens_per_block, ..Default::default() };
        let mut grown = Sequence::new(&empty).expect("an empty sequence");
        let mut before = Vec::new();
        let mut items = Vec::new();
        for (from, to) in [(0, 50), (50, 51), (51, 130), (130, 131), (131, 200)] {
            // Over all but the first of the tokens that come, in two runs of one item.
            let mut new = Vec::new();
            if to - from > 2 {
                new = vec![image(from + 1, 1), image(from + 2, to - from - 2)];
            }
            let piece = &tokens[from as usize..to as usize];
            grown.append(piece, &[], &new).expect("a good piece");
            items.extend(new);
            let full = grown.full_block_count();
            let now = identities(&grown);
            assert_eq!(now[..before.len()], before, "{from}..{to}");
            before = now[..full].to_vec();
        }
        let whole = SequenceParams { tokens: &tokens, mm_items: &items, ..empty };
        let whole = Sequence::new(&whole).expect("a good sequence");
        assert_eq!(identities(&grown), identities(&whole));
    }
}

#[test]
fn debug_text_shows_no_tokens() {
    let sequence = Sequence::new(&params(&[424_242, 434_343])).expect("a good sequence");
    let text = format!("{sequence:?}");
    assert!(!text.contains("424242") && !text.contains("434343"), "{text}");
}
