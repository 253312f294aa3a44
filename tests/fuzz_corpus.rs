//! The fuzzers' corpora once more, and inputs made from them with a fixed seed: the short run of
//! each fuzzer that every test run has. What was never seen fails.

#[path = "../fuzz/checks/mod.rs"]
mod checks;
mod reference;

use std::path::Path;

use checks::tally::Tally;
use checks::{admission, bodies, envelopes, frame, Check};

/// How many inputs are made from a corpus.
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

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus lies in the project")
        .map(|entry| entry.expect("the corpus is readable").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("the corpus is readable")).collect()
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

fn replay(check: &Check) {
    let inputs = corpus(check.name);
    assert!(inputs.len() > 100, "{} inputs", inputs.len());
    let mut tally = Tally::new((check.kinds)());
    inputs.iter().for_each(|input| (check.run)(input, &mut tally));
    let mut random = SplitMix(1);
    (0..MADE).for_each(|_| (check.run)(&made(&inputs, &mut random), &mut tally));
    assert!(tally.zeros().is_empty(), "never seen: {:?}", tally.zeros());
}

#[test]
fn bytes_as_hints_agree_with_the_reference() {
    replay(&admission::CHECK);
}

#[test]
fn drawn_envelopes_agree_with_the_reference() {
    replay(&envelopes::CHECK);
}

#[test]
fn drawn_bodies_agree_with_the_slow_splitter() {
    replay(&bodies::CHECK);
}

#[test]
fn frames_are_refused_or_give_a_batch_that_can_be_read() {
    replay(&frame::CHECK);
}
