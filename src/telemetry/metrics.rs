//! All metric families of one context, in one place.

use super::Family;

/// The numbers of one context. Every method of a [`Family`] may be called from any thread.
#[derive(Debug)]
pub struct Metrics {
    /// Hints discarded at admission, by [`Metrics::IGNORED_REASONS`].
    pub hints_ignored: Family,
    /// Hints admitted.
    pub hints_admitted: Family,
}

impl Metrics {
    /// Label values of [`Metrics::hints_ignored`], in index order.
    pub const IGNORED_REASONS: &'static [&'static str] =
        &["untrusted", "unknown_version", "oversized", "malformed"];

    /// All families, at zero.
    pub fn new() -> Self {
        Self {
            hints_ignored: Family::counters(
                "trtllm_kv_hints_ignored_total",
                "KV hints discarded at admission, by reason.",
                "reason",
                Self::IGNORED_REASONS,
            ),
            hints_admitted: Family::counter(
                "kvhints_hints_admitted_total",
                "KV hints admitted as snapshots.",
            ),
        }
    }

    /// Prometheus text exposition of all families.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(4096);
        for family in [&self.hints_ignored, &self.hints_admitted] {
            family.render(&mut text);
        }
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
