//! The fuzzer of [`checks::frame`].

#![no_main]

#[path = "../checks/mod.rs"]
mod checks;
#[path = "../../tests/reference/mod.rs"]
mod reference;
mod report;

libfuzzer_sys::fuzz_target!(
    init: report::at_exit(&checks::frame::CHECK),
    |data: &[u8]| report::with_tally(|tally| (checks::frame::CHECK.run)(data, tally))
);
