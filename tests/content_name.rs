//! Content names against an independent reading of `docs/protocol.md`, and what they tell apart.

mod content_name_support;

use content_name_support::{blake3_keyed, initial_state, sha256_compress};
use kvhints::reuse::{MmItem, Name, Sequence, SequenceParams};
use sha2::{Digest, Sha256};

/// One sequence, in the words of the document.
#[derive(Clone, Default)]
struct Case {
    namespace: Vec<u8>,
    tokens_per_block: u32,
    tokens: Vec<i32>,
    extra_ids: Option<Vec<u64>>,
    lora_id: Option<u64>,
    adapter_digest: Vec<u8>,
    salt: Option<u64>,
    salt_bytes: Vec<u8>,
    /// Item hash, first token, tokens, offset inside the item.
    runs: Vec<([u8; 32], u32, u32, u32)>,
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

/// The state of SHA-256 after whole steps, as bytes.
fn state_after(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len().is_multiple_of(64));
    let state = bytes.chunks(64).fold(initial_state(), sha256_compress);
    state.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn the_reading_of_sha_256_is_right() {
    for length in [0, 1, 55] {
        let message = vec![7; length];
        let mut padded = message.clone();
        padded.push(0x80);
        padded.resize(56, 0);
        padded.extend((8 * length as u64).to_be_bytes());
        assert_eq!(state_after(&padded), sha256(&message));
    }
}

#[test]
fn the_reading_of_blake3_is_right() {
    let key: [u8; 32] = std::array::from_fn(|byte| 7 * byte as u8);
    for length in [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3073, 7168, 9000] {
        let bytes: Vec<u8> = (0..length).map(|byte| (byte % 251) as u8).collect();
        let expected = blake3::keyed_hash(&key, &bytes);
        assert_eq!(blake3_keyed(&key, &bytes), expected.as_bytes(), "{length}");
    }
}

/// Writes everything into buffers and hashes those: slow and plain.
fn names_by_the_document(case: &Case) -> Vec<Vec<u8>> {
    let mut root = b"kvhints root v1\0".to_vec();
    root.extend(case.tokens_per_block.to_le_bytes());
    root.extend((case.namespace.len() as u64).to_le_bytes());
    root.extend(&case.namespace);
    let mut parent = sha256(&root);

    let hash_key = |kind: u8| {
        let mut shared = vec![0; 96];
        shared[..16].copy_from_slice(b"kvhints block v1");
        shared[16..20].copy_from_slice(&case.tokens_per_block.to_le_bytes());
        shared[20] = kind;
        shared[21] = u8::from(case.extra_ids.is_some());
        if !case.adapter_digest.is_empty() {
            shared[22] = 2;
            shared[32..64].copy_from_slice(&sha256(&case.adapter_digest));
        } else if let Some(lora_id) = case.lora_id {
            shared[22] = 1;
            shared[32..40].copy_from_slice(&lora_id.to_le_bytes());
        }
        if !case.salt_bytes.is_empty() {
            shared[23] = 2;
            shared[64..96].copy_from_slice(&sha256(&case.salt_bytes));
        } else if let Some(salt) = case.salt {
            shared[23] = 1;
            shared[64..72].copy_from_slice(&salt.to_le_bytes());
        }
        sha256(&shared)
    };
    let (plain_key, other_key) = (hash_key(0), hash_key(1));

    let block = case.tokens_per_block as usize;
    let mut names = Vec::new();
    for start in (0..case.tokens.len()).step_by(block) {
        let end = (start + block).min(case.tokens.len());
        let runs: Vec<_> = case
            .runs
            .iter()
            .filter(|(_, from, length, _)| {
                (*from as usize) < end && (from + length) as usize > start
            })
            .collect();
        let tokens: Vec<u8> =
            case.tokens[start..end].iter().flat_map(|token| token.to_le_bytes()).collect();
        let is_plain = end - start == block && runs.is_empty() && case.extra_ids.is_none();
        let key_digest = if is_plain {
            blake3_keyed(&plain_key, &tokens)
        } else {
            let mut content = ((end - start) as u32).to_le_bytes().to_vec();
            content.extend((runs.len() as u32).to_le_bytes());
            content.extend(tokens);
            for extra_id in case.extra_ids.iter().flat_map(|ids| &ids[start..end]) {
                content.extend(extra_id.to_le_bytes());
            }
            for (hash, from, _, item_offset) in &runs {
                let skipped = (start as u64).saturating_sub(u64::from(*from));
                content.extend(hash);
                content.extend((u64::from(*item_offset) + skipped).to_le_bytes());
            }
            blake3_keyed(&other_key, &content)
        };
        let mut message = b"kvhints name v1".to_vec();
        message.resize(64, 0);
        message.extend(&parent);
        message.extend(key_digest);
        parent = state_after(&message);
        names.push(parent.clone());
    }
    names
}

fn names(case: &Case) -> Vec<Name> {
    let items: Vec<MmItem> = case
        .runs
        .iter()
        .map(|(hash, start, length, item_offset)| MmItem {
            hash: *hash,
            start: *start,
            length: *length,
            item_offset: *item_offset,
        })
        .collect();
    let sequence = Sequence::new(&SequenceParams {
        tokens_per_block: case.tokens_per_block as usize,
        namespace: &case.namespace,
        tokens: &case.tokens,
        extra_ids: case.extra_ids.as_deref(),
        lora_id: case.lora_id,
        adapter_digest: &case.adapter_digest,
        salt: case.salt,
        salt_bytes: &case.salt_bytes,
        mm_items: &items,
    })
    .expect("a good sequence");
    (0..).map_while(|block| sequence.name(block)).collect()
}

fn cases() -> Vec<Case> {
    let plain = Case {
        namespace: b"model-a".to_vec(),
        tokens_per_block: 4,
        tokens: (0..10).collect(),
        ..Case::default()
    };
    let everything = Case {
        extra_ids: Some((100..110).collect()),
        lora_id: Some(3),
        adapter_digest: b"adapter".to_vec(),
        salt: Some(12345),
        salt_bytes: b"tenant".to_vec(),
        runs: vec![(std::array::from_fn(|byte| byte as u8), 2, 4, 5)],
        ..plain.clone()
    };
    let numbers_only =
        Case { lora_id: Some(3), salt: Some(12345), tokens: vec![-1, 7], ..plain.clone() };
    let long = |tokens_per_block, runs| Case {
        tokens_per_block,
        tokens: (0..1317).map(|token| token * 1_000_003).collect(),
        salt_bytes: b"tenant".to_vec(),
        lora_id: Some(3),
        runs,
        ..plain.clone()
    };
    let mut cases = vec![plain.clone(), everything, numbers_only];
    for tokens_per_block in [1, 7, 16, 20, 32, 64, 128, 256, 257, 512, 600] {
        cases.push(long(tokens_per_block, vec![]));
        // One item over many blocks, another one in two pieces with the later piece listed first.
        let over_many = ([5; 32], 200, 99, 7);
        let pieces = [([6; 32], 330, 3, 9), ([6; 32], 320, 9, 0)];
        cases.push(long(tokens_per_block, vec![over_many, pieces[0], pieces[1]]));
    }
    cases
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn names_are_those_of_the_document() {
    let document = include_str!("../docs/protocol.md");
    for (index, case) in cases().iter().enumerate() {
        let found: Vec<String> = names(case).iter().map(|name| hex(&name.0)).collect();
        let expected: Vec<String> =
            names_by_the_document(case).iter().map(|name| hex(name)).collect();
        assert_eq!(found, expected, "case {index}");
        // Cases after the first three are too long to print.
        for name in expected.iter().filter(|_| index < 3) {
            assert!(document.contains(name), "case {index} is not written down: {name}");
        }
    }
}

#[test]
fn every_part_of_a_key_changes_the_name() {
    let [plain, everything, numbers_only, ..] = &cases()[..] else { panic!("three cases") };
    let mut different = vec![plain.clone(), everything.clone(), numbers_only.clone()];
    let mut vary = |case: &Case, change: fn(&mut Case)| {
        let mut changed = case.clone();
        change(&mut changed);
        different.push(changed);
    };
    vary(plain, |case| case.namespace = b"model-b".to_vec());
    vary(plain, |case| case.namespace.clear());
    vary(plain, |case| case.tokens_per_block = 16);
    vary(plain, |case| case.tokens[0] = 1);
    vary(plain, |case| case.tokens.truncate(9));
    vary(plain, |case| case.tokens.truncate(8));
    // Zeros fill up a short block and a short step: they count all the same.
    vary(plain, |case| case.tokens[9] = 0);
    vary(plain, |case| {
        case.tokens[9] = 0;
        case.tokens.push(0);
    });
    vary(plain, |case| {
        case.tokens[9] = 0;
        case.tokens.extend([0, 0]);
    });
    vary(plain, |case| case.extra_ids = Some(vec![0; 10]));
    vary(plain, |case| case.lora_id = Some(0));
    vary(plain, |case| case.salt = Some(0));
    vary(plain, |case| case.runs = vec![([0; 32], 9, 1, 0)]);
    vary(plain, |case| case.salt_bytes = b"tenant".to_vec());
    vary(numbers_only, |case| case.lora_id = Some(4));
    vary(numbers_only, |case| case.salt = Some(12346));
    vary(everything, |case| case.adapter_digest = b"other".to_vec());
    vary(everything, |case| case.salt_bytes = b"other".to_vec());
    vary(everything, |case| case.extra_ids.as_mut().expect("extra ids")[9] = 0);
    vary(everything, |case| case.runs[0].0[31] = 0);
    vary(everything, |case| case.runs[0].3 = 6);
    let last_names: std::collections::BTreeSet<Name> =
        different.iter().map(|case| *names(case).last().expect("a block")).collect();
    assert_eq!(last_names.len(), different.len());
}

#[test]
fn what_is_known_everywhere_replaces_what_only_this_host_knows() {
    let [_, everything, ..] = &cases()[..] else { panic!("three cases") };
    let elsewhere = Case { lora_id: Some(9), salt: Some(1), ..everything.clone() };
    assert_eq!(names(everything), names(&elsewhere));
}
