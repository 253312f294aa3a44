//! Content names against an independent reading of `docs/protocol.md`, and what they tell apart.

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
    /// One run: item hash, first token, tokens, offset inside the item.
    run: Option<([u8; 32], u32, u32, u32)>,
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

/// Writes everything into one buffer and hashes that: slow and plain.
fn names_by_the_document(case: &Case) -> Vec<Vec<u8>> {
    let mut root = b"kvhints root v1\0".to_vec();
    root.extend(case.tokens_per_block.to_le_bytes());
    root.extend((case.namespace.len() as u64).to_le_bytes());
    root.extend(&case.namespace);
    let mut parent = sha256(&root);

    let block = case.tokens_per_block as usize;
    let mut names = Vec::new();
    for start in (0..case.tokens.len()).step_by(block) {
        let end = (start + block).min(case.tokens.len());
        let mut key = vec![0; 128];
        key[..16].copy_from_slice(b"kvhints block v1");
        key[16] = u8::from(case.extra_ids.is_some());
        if !case.adapter_digest.is_empty() {
            key[17] = 2;
            key[32..64].copy_from_slice(&sha256(&case.adapter_digest));
        } else if let Some(lora_id) = case.lora_id {
            key[17] = 1;
            key[32..40].copy_from_slice(&lora_id.to_le_bytes());
        }
        if !case.salt_bytes.is_empty() {
            key[18] = 2;
            key[64..96].copy_from_slice(&sha256(&case.salt_bytes));
        } else if let Some(salt) = case.salt {
            key[18] = 1;
            key[64..72].copy_from_slice(&salt.to_le_bytes());
        }
        let run = case.run.filter(|(_, from, length, _)| {
            (*from as usize) < end && (from + length) as usize > start
        });
        key.extend(((end - start) as u32).to_le_bytes());
        key.extend(u32::from(run.is_some()).to_le_bytes());
        for token in &case.tokens[start..end] {
            key.extend(token.to_le_bytes());
        }
        for extra_id in case.extra_ids.iter().flat_map(|ids| &ids[start..end]) {
            key.extend(extra_id.to_le_bytes());
        }
        if let Some((hash, from, _, item_offset)) = run {
            let skipped = (start as u64).saturating_sub(u64::from(from));
            key.extend(hash);
            key.extend((u64::from(item_offset) + skipped).to_le_bytes());
        }
        let mut link = parent;
        link.extend(sha256(&key));
        parent = sha256(&link);
        names.push(parent.clone());
    }
    names
}

fn names(case: &Case) -> Vec<Name> {
    let items: Vec<MmItem> = case
        .run
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
        run: Some((std::array::from_fn(|byte| byte as u8), 2, 4, 5)),
        ..plain.clone()
    };
    let numbers_only =
        Case { lora_id: Some(3), salt: Some(12345), tokens: vec![-1, 7], ..plain.clone() };
    vec![plain, everything, numbers_only]
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
        let last = expected.last().expect("a block");
        assert!(document.contains(last), "the vector of case {index} is not written down: {last}");
    }
}

#[test]
fn every_part_of_a_key_changes_the_name() {
    let [plain, everything, numbers_only] = &cases()[..] else { panic!("three cases") };
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
    vary(plain, |case| case.extra_ids = Some(vec![0; 10]));
    vary(plain, |case| case.lora_id = Some(0));
    vary(plain, |case| case.salt = Some(0));
    vary(plain, |case| case.run = Some(([0; 32], 9, 1, 0)));
    vary(plain, |case| case.salt_bytes = b"tenant".to_vec());
    vary(numbers_only, |case| case.lora_id = Some(4));
    vary(numbers_only, |case| case.salt = Some(12346));
    vary(everything, |case| case.adapter_digest = b"other".to_vec());
    vary(everything, |case| case.salt_bytes = b"other".to_vec());
    vary(everything, |case| case.extra_ids.as_mut().expect("extra ids")[9] = 0);
    vary(everything, |case| case.run.as_mut().expect("a run").0[31] = 0);
    vary(everything, |case| case.run.as_mut().expect("a run").3 = 6);
    let last_names: std::collections::BTreeSet<Name> =
        different.iter().map(|case| *names(case).last().expect("a block")).collect();
    assert_eq!(last_names.len(), different.len());
}

#[test]
fn what_is_known_everywhere_replaces_what_only_this_host_knows() {
    let [_, everything, _] = &cases()[..] else { panic!("three cases") };
    let elsewhere = Case { lora_id: Some(9), salt: Some(1), ..everything.clone() };
    assert_eq!(names(everything), names(&elsewhere));
}
