//! What happened over all seeds, counted; and what must have happened at least once.

use std::collections::BTreeMap;
use std::fmt::Write;

use kvhints::transfer::reason::{FailReason, RefuseReason};

#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub struct Report {
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

/// What a report that proves anything has to contain, by section.
const MUST_OCCUR: &[(&str, &[&str])] = &[
    ("steps", &["host actions", "driver rounds", "frames arrived", "faults", "promises checked"]),
    (
        "faults",
        &[
            "frame lost",
            "frame repeated",
            "frame overtook another",
            "frame damaged",
            "frame held up",
            "data damaged",
            "transfer broke off",
            "connection refused",
            "connection reset",
            "partition",
            "frame lost in a partition",
            "partition healed",
            "crash",
            "crash without a word",
            "shutdown",
            "restart",
            "worker stalled",
            "thread panicked",
            "stranger's frame",
            "source's pool removed under a pin",
            "state stale",
            "state late",
            "state lost",
            "state refused",
            "state of another namespace",
            "state of another layout",
            "state of another transport",
            "state damaged",
            "state elsewhere",
        ],
    ),
    ("ways", &["sent out of a room", "read where it lies"]),
    ("states", &["context_init", "init", "in_progress", "complete"]),
    ("outcomes", &["delivered", "content_miss", "failed", "cancelled"]),
    ("lease ends", &["claimed", "abandoned", "released"]),
    (
        "ends forced by the host",
        &[
            "cancelled in init",
            "cancelled in in_progress",
            "cancelled in complete",
            "cancelled before quiesced",
            "dropped in init",
            "dropped in in_progress",
            "dropped in complete",
            "dropped before quiesced",
            "dropped when over",
        ],
    ),
    (
        "begins refused",
        &["nothing_to_fetch", "bad_destination", "destination_in_use", "destination_held", "limit"],
    ),
    ("hint checks", &["unknown", "matches", "stale", "shifted", "unrelated"]),
    (
        "transfers",
        &[
            "strict",
            "best effort",
            "best effort in part",
            "short last block delivered",
            "short last block in a longer one",
            "local prefix skipped",
            "from state bytes",
            "probe delivered",
            "evictions refused: busy",
            "blocks fenced",
        ],
    ),
];

impl Report {
    pub fn add(&mut self, section: &'static str, what: &'static str, amount: u64) {
        *self.counts.entry((section, what)).or_default() += amount;
    }

    pub fn one(&mut self, section: &'static str, what: &'static str) {
        self.add(section, what, 1);
    }

    pub fn get(&self, section: &'static str, what: &'static str) -> u64 {
        self.counts.get(&(section, what)).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Self) {
        for ((section, what), amount) in &other.counts {
            self.add(section, what, *amount);
        }
    }

    /// What must have happened and did not.
    pub fn missing(&self) -> Vec<String> {
        let listed = MUST_OCCUR
            .iter()
            .flat_map(|(section, whats)| whats.iter().map(move |what| (*section, *what)));
        let reasons = FailReason::NAMES.iter().map(|name| ("reasons", *name));
        let refusals = RefuseReason::NAMES.iter().map(|name| ("refusals", *name));
        // Sessions and devices have tests of their own: nobody has keys here, or blocks in a device.
        let is_simulated =
            |(_, what): &(&str, &str)| !["unauthenticated", "device_failed"].contains(what);
        listed
            .chain(reasons)
            .chain(refusals)
            .filter(is_simulated)
            .filter(|(section, what)| self.get(section, what) == 0)
            .map(|(section, what)| format!("{section}: {what}"))
            .collect()
    }

    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut last = "";
        for ((section, what), amount) in &self.counts {
            if *section != last {
                let _ = writeln!(text, "{section}");
                last = section;
            }
            let _ = writeln!(text, "  {amount:>12}  {what}");
        }
        text
    }
}
