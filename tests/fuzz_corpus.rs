//! The fuzzer's corpus once more, and inputs made from it with a fixed seed: the short run of the
//! fuzzer that every test run has. Counts verdicts and rules; a zero fails.

#[path = "../fuzz/targets/input.rs"]
mod input;
mod reference;

use std::collections::BTreeMap;
use std::path::Path;

use kvhints::hint::{admit, Ingress, Scratch, Verdict};
use reference::{Outcome, RULES};

/// How many inputs are made from the corpus.
const MADE: usize = 20_000;

/// Numbers that look random and are the same in each run.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % bound.max(1)
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/admission");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus lies in the project")
        .map(|entry| entry.expect("the corpus is readable").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("the corpus is readable")).collect()
}

fn outcome(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Admitted(snapshot) => {
            Outcome::Admitted(String::from_utf8(snapshot.json().to_vec()).expect("UTF-8"))
        }
        Verdict::Absent => Outcome::Absent,
        Verdict::Untrusted | Verdict::BadlySigned(_) => Outcome::Untrusted,
        Verdict::UnknownVersion => Outcome::UnknownVersion,
        Verdict::Oversized => Outcome::Oversized,
        Verdict::Malformed => Outcome::Malformed,
    }
}

/// A piece of one input put into another, or a byte changed or removed.
fn made(inputs: &[Vec<u8>], random: &mut SplitMix) -> Vec<u8> {
    let mut input = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(3) {
        let at = random.below(input.len() + 1);
        match random.below(3) {
            0 => {
                let other = &inputs[random.below(inputs.len())];
                let start = random.below(other.len());
                let end = (start + 1 + random.below(30)).min(other.len());
                input.splice(at..at, other[start..end].iter().copied());
            }
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            _ if at < input.len() => {
                input.remove(at);
            }
            _ => {}
        }
    }
    input
}

#[test]
fn the_corpus_and_what_is_made_of_it_agree_with_the_reference() {
    let inputs = corpus();
    assert!(inputs.len() > 100, "{} inputs", inputs.len());
    let mut scratch = Scratch::new(11);
    let mut random = SplitMix(1);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for turn in 0..inputs.len() + MADE {
        let data = match inputs.get(turn) {
            Some(input) => input.clone(),
            None => made(&inputs, &mut random),
        };
        let (raw, trusted) = input::prepared(&data);
        let verdict = admit(&raw, Ingress::Http { trusted }, &mut scratch).expect("memory");
        let (expected, rules) = reference::judge(&raw, trusted);
        assert!(outcome(&verdict) == expected, "{turn}: {verdict:?} for {} bytes", raw.len());
        let word = format!("{expected:?}").split('(').next().unwrap_or_default().to_owned();
        *seen.entry(word).or_default() += 1;
        for rule in rules {
            *seen.entry(rule.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(seen.len(), 6 + RULES.len(), "each verdict and each rule was seen: {seen:?}");
}
