//! Prints what a fuzzer has seen when its process ends, and makes a zero its failure.

use std::sync::Mutex;

use crate::checks::tally::Tally;
use crate::checks::Check;

/// What was seen so far. One thread fuzzes; the lock is for the one that ends the process.
static TALLY: Mutex<Option<Tally>> = Mutex::new(None);

/// Begins counting for `check`; at the process's end the counts are printed.
pub fn at_exit(check: &Check) {
    *TALLY.lock().expect("nothing was counted yet") = Some(Tally::new((check.kinds)()));
    // SAFETY: the function is there as long as the process.
    unsafe { libc::atexit(report) };
}

/// Lets `count` count.
pub fn with_tally(count: impl FnOnce(&mut Tally)) {
    count(TALLY.lock().expect("a check that failed ends the process").as_mut().expect("begun"));
}

extern "C" fn report() {
    // A check that failed has said so already.
    let Ok(mut tally) = TALLY.try_lock() else { return };
    let Some(tally) = tally.take() else { return };
    tally.lines().for_each(|line| println!("{line}"));
    // A part of a corpus, as libFuzzer's processes get it that minimise one, may well lack something.
    let is_run = !std::env::args().any(|argument| argument.starts_with("-merge"));
    let zeros = tally.zeros();
    if is_run && !zeros.is_empty() {
        println!("never seen: {}: run longer, or mend the corpus", zeros.join("; "));
        // SAFETY: ends the process, which is ending anyway.
        unsafe { libc::_exit(3) };
    }
}
