//! The fuzzer of [`checks::bodies`].

#![no_main]

#[path = "../checks/mod.rs"]
mod checks;
#[path = "../../tests/reference/mod.rs"]
mod reference;
mod report;

libfuzzer_sys::fuzz_target!(
    init: report::at_exit(&checks::bodies::CHECK),
    |data: &[u8]| report::with_tally(|tally| (checks::bodies::CHECK.run)(data, tally))
);
