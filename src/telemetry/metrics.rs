//! All metric families of one context, in one place.

use super::Family;

/// The numbers of one context. Every method of a [`Family`] may be called from any thread.
#[derive(Debug)]
pub struct Metrics {
    /// Hints discarded at admission, by [`Metrics::IGNORED_REASONS`].
    pub hints_ignored: Family,
    /// Hints admitted.
    pub hints_admitted: Family,
    /// Actions that a configured family could serve, once per decided request.
    pub plan_candidates: Family,
    /// Actions of a type that no family lists, once per decided request.
    pub plan_unknown_types: Family,
    /// Fetch actions of a version that no family lists, once per decided request.
    pub plan_versions_unmatched: Family,
    /// Hints that led to no fetch, by [`Metrics::REFUSED_REASONS`].
    pub plan_refused: Family,
    /// Hints that led to a fetch.
    pub plan_named_fetches: Family,
    /// Blocks in reuse trees now.
    pub reuse_stored_blocks: Family,
    /// Blocks under protection now.
    pub reuse_protected_blocks: Family,
    /// Live pins now.
    pub reuse_pins: Family,
    /// Blocks offered to reuse trees, by [`Metrics::STORE_RESULTS`].
    pub reuse_store_results: Family,
    /// Blocks that left reuse trees.
    pub reuse_removed_blocks: Family,
    /// Evictions refused because the block was protected.
    pub reuse_evictions_busy: Family,
    /// Broadcast rounds this rank took part in, by [`Metrics::ROUND_OUTCOMES`].
    pub broadcast_rounds: Family,
    /// Requests in delivered rounds.
    pub broadcast_requests: Family,
    /// Payload bytes of delivered rounds.
    pub broadcast_bytes: Family,
}

impl Metrics {
    /// Label values of [`Metrics::hints_ignored`], in index order.
    pub const IGNORED_REASONS: &'static [&'static str] =
        &["untrusted", "unknown_version", "oversized", "malformed"];

    /// Label values of [`Metrics::plan_refused`], in index order: the names of the refusals.
    pub const REFUSED_REASONS: &'static [&'static str] = &[
        "lora",
        "not_eligible",
        "no_candidate",
        "bad_payload",
        "endpoint_unlisted",
        "binding_missing",
        "binding_ambiguous",
        "binding_unauthorised",
        "binding_incapable",
        "request_paired",
    ];

    /// Label values of [`Metrics::reuse_store_results`], in index order.
    pub const STORE_RESULTS: &'static [&'static str] = &["taken", "duplicate", "returned"];

    /// Label values of [`Metrics::broadcast_rounds`], in index order.
    pub const ROUND_OUTCOMES: &'static [&'static str] = &["delivered", "aborted", "failed"];
    /// Index of a round whose batch this rank gave or got.
    pub const ROUND_DELIVERED: usize = 0;
    /// Index of a round for which rank 0 had no batch.
    pub const ROUND_ABORTED: usize = 1;
    /// Index of a round that this rank left with an error.
    pub const ROUND_FAILED: usize = 2;

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
            plan_candidates: Family::counter(
                "kvhints_plan_candidates_total",
                "Actions of hints that a configured family could serve.",
            ),
            plan_unknown_types: Family::counter(
                "kvhints_plan_unknown_types_total",
                "Actions of hints with a type that no configured family lists.",
            ),
            plan_versions_unmatched: Family::counter(
                "kvhints_plan_versions_unmatched_total",
                "kv.fetch actions of hints with a version that no configured family lists.",
            ),
            plan_refused: Family::counters(
                "kvhints_plan_refused_total",
                "Hints that led to no fetch, by reason.",
                "reason",
                Self::REFUSED_REASONS,
            ),
            plan_named_fetches: Family::counter(
                "kvhints_plan_named_fetches_total",
                "Hints that led to a planned fetch.",
            ),
            reuse_stored_blocks: Family::gauge(
                "kvhints_reuse_stored_blocks",
                "Blocks in reuse trees.",
            ),
            reuse_protected_blocks: Family::gauge(
                "kvhints_reuse_protected_blocks",
                "Blocks protected by pins, in a reuse tree or not any more.",
            ),
            reuse_pins: Family::gauge("kvhints_reuse_pins", "Live pins."),
            reuse_store_results: Family::counters(
                "kvhints_reuse_store_blocks_total",
                "Blocks offered to reuse trees, by what came of it.",
                "result",
                Self::STORE_RESULTS,
            ),
            reuse_removed_blocks: Family::counter(
                "kvhints_reuse_removed_blocks_total",
                "Blocks that left reuse trees.",
            ),
            reuse_evictions_busy: Family::counter(
                "kvhints_reuse_evictions_busy_total",
                "Evictions refused because the block was protected.",
            ),
            broadcast_rounds: Family::counters(
                "kvhints_broadcast_rounds_total",
                "Broadcast rounds this rank took part in, by outcome.",
                "outcome",
                Self::ROUND_OUTCOMES,
            ),
            broadcast_requests: Family::counter(
                "kvhints_broadcast_requests_total",
                "Requests in delivered broadcast rounds.",
            ),
            broadcast_bytes: Family::counter(
                "kvhints_broadcast_payload_bytes_total",
                "Payload bytes of delivered broadcast rounds.",
            ),
        }
    }

    /// Prometheus text exposition of all families.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(4096);
        for family in [
            &self.hints_ignored,
            &self.hints_admitted,
            &self.plan_candidates,
            &self.plan_unknown_types,
            &self.plan_versions_unmatched,
            &self.plan_refused,
            &self.plan_named_fetches,
            &self.reuse_stored_blocks,
            &self.reuse_protected_blocks,
            &self.reuse_pins,
            &self.reuse_store_results,
            &self.reuse_removed_blocks,
            &self.reuse_evictions_busy,
            &self.broadcast_rounds,
            &self.broadcast_requests,
            &self.broadcast_bytes,
        ] {
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
