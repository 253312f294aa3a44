//! Counts of what a fuzzer has seen. A fuzzer that never saw a verdict says nothing about it: what
//! stays at zero fails the run.

use std::collections::BTreeMap;

/// Counts, by name.
pub struct Tally {
    counts: BTreeMap<String, u64>,
}

impl Tally {
    /// Zeros for these.
    pub fn new(kinds: Vec<String>) -> Self {
        Self { counts: kinds.into_iter().map(|kind| (kind, 0)).collect() }
    }

    /// One more of this kind, which must be one of those expected.
    pub fn count(&mut self, kind: &str) {
        match self.counts.get_mut(kind) {
            Some(count) => *count += 1,
            None => panic!("`{kind}` was not expected to be counted: name it in the check's kinds"),
        }
    }

    /// Those never seen.
    pub fn zeros(&self) -> Vec<&str> {
        self.counts
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(kind, _)| kind.as_str())
            .collect()
    }

    /// One line for each.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.counts.iter().map(|(kind, count)| format!("{count:>12}  {kind}"))
    }
}
