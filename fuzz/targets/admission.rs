//! The fuzzer of [`checks::admission`].

#![no_main]

#[path = "../checks/mod.rs"]
mod checks;
#[path = "../../tests/reference/mod.rs"]
mod reference;
mod report;

libfuzzer_sys::fuzz_target!(
    init: report::at_exit(&checks::admission::CHECK),
    |data: &[u8]| report::with_tally(|tally| (checks::admission::CHECK.run)(data, tally))
);
