//! The fuzzers' corpora once more, and inputs made from them with a fixed seed: the short run of
//! each fuzzer that every test run has. What was never seen fails.

#[path = "../fuzz/checks/mod.rs"]
mod checks;
mod random;
mod reference;

use std::path::Path;

use checks::tally::Tally;
use checks::{admission, bodies, envelopes, frame, Check};
use random::SplitMix;

/// How many inputs are made from a corpus.
const MADE: usize = 20_000;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus lies in the project")
        .map(|entry| entry.expect("the corpus is readable").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("the corpus is readable")).collect()
}

fn replay(check: &Check) {
    let inputs = corpus(check.name);
    assert!(inputs.len() > 100, "{} inputs", inputs.len());
    let mut tally = Tally::new((check.kinds)());
    inputs.iter().for_each(|input| (check.run)(input, &mut tally));
    let mut random = SplitMix(1);
    (0..MADE).for_each(|_| (check.run)(&random.made(&inputs), &mut tally));
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
