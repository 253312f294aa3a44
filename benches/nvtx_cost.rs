//! What a range for profilers costs where there is no profiler: `cargo bench --bench nvtx_cost`.
//!
//! Prints the median of rounds, each beside a round of the same loop without the range. Expected: at
//! most 10 ns a range, aim 5 (it is one load and a branch, twice).

use std::hint::black_box;
use std::time::Instant;

use kvhints::telemetry::nvtx::{self, CrossThreadRange, Range, Step};

const CALLS: u32 = 20_000_000;
const ROUNDS: usize = 9;

fn ns_a_call(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// The median of what the call takes beyond an empty one, in nanoseconds.
fn median_ns(mut call: impl FnMut()) -> f64 {
    let mut extra: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let empty = ns_a_call(|| {
                black_box(Step::Admit);
            });
            ns_a_call(&mut call) - empty
        })
        .collect();
    extra.sort_by(f64::total_cmp);
    extra[ROUNDS / 2]
}

fn main() {
    nvtx::attach();
    let pushed = median_ns(|| drop(black_box(Range::push(black_box(Step::Admit), || 300))));
    let of_attempt =
        median_ns(|| drop(black_box(Range::push_of_attempt(black_box(Step::Verify), 7, 300))));
    let started =
        median_ns(|| drop(black_box(CrossThreadRange::start(black_box(Step::Fetch), 7, 300))));
    println!("push and pop, no profiler              {pushed:>6.2} ns a range");
    println!("push and pop with an attempt's number  {of_attempt:>6.2} ns a range");
    println!("start and end across threads           {started:>6.2} ns a range");
}
