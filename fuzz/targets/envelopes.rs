//! The fuzzer of [`checks::envelopes`].

#![no_main]

#[path = "../checks/mod.rs"]
mod checks;
#[path = "../../tests/reference/mod.rs"]
mod reference;
mod report;

libfuzzer_sys::fuzz_target!(
    init: report::at_exit(&checks::envelopes::CHECK),
    |data: &[u8]| report::with_tally(|tally| (checks::envelopes::CHECK.run)(data, tally))
);
