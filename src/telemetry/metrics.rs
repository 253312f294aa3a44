//! All metric families of one context, in one place.

use std::collections::TryReserveError;

use super::attempts::AttemptBoard;
use super::log::Log;
use super::{Family, Histogram};

/// The numbers of one context. Every method of a [`Family`] may be called from any thread.
#[derive(Debug)]
pub struct Metrics {
    /// Hints discarded at admission, by [`Metrics::IGNORED_REASONS`].
    pub hints_ignored: Family,
    /// Hints that a key ring did not trust, by [`Metrics::SIGNATURE_FAULTS`]; each is also one of
    /// the ignored ones.
    pub signatures_refused: Family,
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
    /// Owner mode: blocks that can be taken now, by [`Metrics::TIERS`].
    pub reuse_free_blocks: Family,
    /// Owner mode: blocks that left the tree so that one could be taken.
    pub reuse_evicted_blocks: Family,
    /// Owner mode: blocks that changed their tier, by [`Metrics::MOVES`].
    pub reuse_moved_blocks: Family,
    /// Pins whose lease had ended when the tree was refreshed last.
    pub reuse_expired_leases: Family,
    /// The most that the oldest live pin can be old: pins are dated when metrics or the status are
    /// asked for.
    pub reuse_oldest_pin_age: Family,
    /// Broadcast rounds this rank took part in, by [`Metrics::ROUND_OUTCOMES`].
    pub broadcast_rounds: Family,
    /// Requests in delivered rounds.
    pub broadcast_requests: Family,
    /// Payload bytes of delivered rounds.
    pub broadcast_bytes: Family,
    /// Prefetches that were begun. Each ends in exactly one of the next four.
    pub prefetches_accepted: Family,
    /// Prefetches that delivered blocks.
    pub prefetches_delivered: Family,
    /// Prefetches whose source did not hold what was asked for.
    pub prefetches_missed: Family,
    /// Prefetches that the host cancelled.
    pub prefetches_cancelled: Family,
    /// Prefetches that failed, by [`Metrics::PREFETCH_FAILURES`].
    pub prefetches_failed: Family,
    /// Blocks that prefetches delivered.
    pub prefetch_blocks: Family,
    /// Bytes of these blocks.
    pub prefetch_bytes: Family,
    /// Leases on delivered blocks that ended, by [`Metrics::LEASE_ENDS`].
    pub prefetch_leases_ended: Family,
    /// Requests of peers that were accepted.
    pub source_requests_served: Family,
    /// Requests of peers whose blocks were not there.
    pub source_requests_missed: Family,
    /// Requests of peers that were refused, by [`Metrics::SOURCE_REFUSALS`].
    pub source_requests_refused: Family,
    /// Messages of peers that could not be read.
    pub transfer_messages_unreadable: Family,
    /// Peers connected now, by [`Metrics::PEER_SIDES`].
    pub transfer_peers: Family,
    /// Requests of destinations that are being served now.
    pub source_requests_in_flight: Family,
    /// Announced runs of blocks that wait for memory now.
    pub transfer_runs_waiting: Family,
    /// Bytes received and not yet in the host's blocks.
    pub transfer_staging_bytes: Family,
    /// Time that prefetches spent in each state, by [`Metrics::PREFETCH_STATES`].
    pub prefetch_state_seconds: Histogram,
    /// Where events are told.
    pub log: Log,
    /// The attempts that are under way, for the status.
    pub attempts: AttemptBoard,
}

impl Metrics {
    /// Label values of [`Metrics::hints_ignored`], in index order.
    pub const IGNORED_REASONS: &'static [&'static str] =
        &["untrusted", "unknown_version", "oversized", "malformed"];

    /// Label values of [`Metrics::signatures_refused`], in the order of the faults' numbers.
    pub const SIGNATURE_FAULTS: &'static [&'static str] = &[
        "too_long",
        "not_json",
        "no_auth",
        "unknown_key",
        "algorithm",
        "wrong_mac",
        "expired",
        "audience",
        "replayed",
        "replay_table_full",
    ];

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

    /// Label values of [`Metrics::reuse_free_blocks`], in index order.
    pub const TIERS: &'static [&'static str] = &["primary", "secondary"];

    /// Label values of [`Metrics::reuse_moved_blocks`], in index order.
    pub const MOVES: &'static [&'static str] = &["offloaded", "onboarded"];

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

    /// Label values of [`Metrics::prefetches_failed`], in index order: the names of the reasons.
    pub const PREFETCH_FAILURES: &'static [&'static str] = &[
        "not_shareable",
        "endpoint_denied",
        "unsupported",
        "metadata_failed",
        "metadata_timeout",
        "namespace_mismatch",
        "layout_mismatch",
        "peer_gone",
        "source_restarted",
        "source_busy",
        "source_refused",
        "unauthenticated",
        "transfer_timeout",
        "corrupted",
        "protocol",
        "limit",
        "device_failed",
        "shutdown",
        "fault",
    ];

    /// Label values of [`Metrics::prefetch_leases_ended`], in index order.
    pub const LEASE_ENDS: &'static [&'static str] = &["claimed", "abandoned", "released"];

    /// Label values of [`Metrics::source_requests_refused`], in index order: as on the wire.
    pub const SOURCE_REFUSALS: &'static [&'static str] = &[
        "version",
        "namespace",
        "layout",
        "incarnation",
        "busy",
        "bad_request",
        "unauthenticated",
    ];

    /// Label values of [`Metrics::transfer_peers`], in index order.
    pub const PEER_SIDES: &'static [&'static str] = &["source", "destination"];
    /// Index of peers that blocks are fetched from.
    pub const PEER_SOURCE: usize = 0;
    /// Index of peers that fetch blocks.
    pub const PEER_DESTINATION: usize = 1;

    /// Label values of [`Metrics::prefetch_state_seconds`], in index order.
    pub const PREFETCH_STATES: &'static [&'static str] = &["init", "in_progress", "complete"];

    /// All families, at zero.
    pub fn new() -> Self {
        Self {
            hints_ignored: Family::counters(
                "trtllm_kv_hints_ignored_total",
                "KV hints discarded at admission, by reason.",
                "reason",
                Self::IGNORED_REASONS,
            ),
            signatures_refused: Family::counters(
                "kvhints_signatures_refused_total",
                "KV hints that the key ring did not trust, by reason.",
                "reason",
                Self::SIGNATURE_FAULTS,
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
            reuse_free_blocks: Family::gauges(
                "kvhints_reuse_free_blocks",
                "Blocks that the library can hand out, by tier (owner mode).",
                "tier",
                Self::TIERS,
            ),
            reuse_evicted_blocks: Family::counter(
                "kvhints_reuse_evicted_blocks_total",
                "Blocks that left a reuse tree so that one could be handed out (owner mode).",
            ),
            reuse_moved_blocks: Family::counters(
                "kvhints_reuse_moved_blocks_total",
                "Blocks that changed between primary and secondary memory (owner mode).",
                "move",
                Self::MOVES,
            ),
            reuse_expired_leases: Family::gauge(
                "kvhints_reuse_expired_leases",
                "Live pins whose lease had ended at the last refresh.",
            ),
            reuse_oldest_pin_age: Family::gauge_of_seconds(
                "kvhints_reuse_oldest_pin_age_seconds",
                "The most that the oldest live pin can be old.",
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
            prefetches_accepted: Family::counter(
                "kvhints_prefetches_accepted_total",
                "Prefetches that were begun.",
            ),
            prefetches_delivered: Family::counter(
                "kvhints_prefetches_delivered_total",
                "Prefetches that delivered blocks.",
            ),
            prefetches_missed: Family::counter(
                "kvhints_prefetches_missed_total",
                "Prefetches whose source did not hold what was asked for.",
            ),
            prefetches_cancelled: Family::counter(
                "kvhints_prefetches_cancelled_total",
                "Prefetches cancelled by the host.",
            ),
            prefetches_failed: Family::counters(
                "kvhints_prefetches_failed_total",
                "Prefetches that failed, by reason; the request ran as if without a hint.",
                "reason",
                Self::PREFETCH_FAILURES,
            ),
            prefetch_blocks: Family::counter(
                "kvhints_prefetch_blocks_total",
                "Blocks delivered by prefetches.",
            ),
            prefetch_bytes: Family::counter(
                "kvhints_prefetch_bytes_total",
                "Bytes of blocks delivered by prefetches.",
            ),
            prefetch_leases_ended: Family::counters(
                "kvhints_prefetch_leases_ended_total",
                "Leases on delivered blocks that ended: claimed, abandoned at the deadline, or released.",
                "end",
                Self::LEASE_ENDS,
            ),
            source_requests_served: Family::counter(
                "kvhints_source_requests_served_total",
                "Requests of peers for blocks that were accepted.",
            ),
            source_requests_missed: Family::counter(
                "kvhints_source_requests_missed_total",
                "Requests of peers for blocks that were not there.",
            ),
            source_requests_refused: Family::counters(
                "kvhints_source_requests_refused_total",
                "Requests of peers for blocks that were refused, by reason.",
                "reason",
                Self::SOURCE_REFUSALS,
            ),
            transfer_messages_unreadable: Family::counter(
                "kvhints_transfer_messages_unreadable_total",
                "Messages of peers that could not be read.",
            ),
            transfer_peers: Family::gauges(
                "kvhints_transfer_peers",
                "Peers connected, by what they are to this rank.",
                "side",
                Self::PEER_SIDES,
            ),
            source_requests_in_flight: Family::gauge(
                "kvhints_source_requests_in_flight",
                "Requests of peers for blocks that are being served.",
            ),
            transfer_runs_waiting: Family::gauge(
                "kvhints_transfer_runs_waiting",
                "Announced runs of blocks that wait for memory to be received into.",
            ),
            transfer_staging_bytes: Family::gauge(
                "kvhints_transfer_staging_bytes",
                "Bytes received from peers and not yet in the host's blocks.",
            ),
            prefetch_state_seconds: Histogram::new(
                "kvhints_prefetch_state_seconds",
                "Time that prefetches spent in each state that they left.",
                "state",
                Self::PREFETCH_STATES,
            ),
            log: Log::default(),
            attempts: AttemptBoard::default(),
        }
    }

    /// Prometheus text exposition of all families.
    pub fn render(&self) -> Result<String, TryReserveError> {
        let (families, histograms) = (self.families(), [&self.prefetch_state_seconds]);
        let of_families: usize = families.iter().map(|family| family.rendered_max_bytes()).sum();
        let of_histograms: usize =
            histograms.iter().map(|family| family.rendered_max_bytes()).sum();
        let mut text = String::new();
        text.try_reserve_exact(of_families + of_histograms)?;
        families.iter().for_each(|family| family.render(&mut text));
        histograms.iter().for_each(|family| family.render(&mut text));
        Ok(text)
    }

    fn families(&self) -> [&Family; 38] {
        [
            &self.hints_ignored,
            &self.signatures_refused,
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
            &self.reuse_free_blocks,
            &self.reuse_evicted_blocks,
            &self.reuse_moved_blocks,
            &self.reuse_expired_leases,
            &self.reuse_oldest_pin_age,
            &self.broadcast_rounds,
            &self.broadcast_requests,
            &self.broadcast_bytes,
            &self.prefetches_accepted,
            &self.prefetches_delivered,
            &self.prefetches_missed,
            &self.prefetches_cancelled,
            &self.prefetches_failed,
            &self.prefetch_blocks,
            &self.prefetch_bytes,
            &self.prefetch_leases_ended,
            &self.source_requests_served,
            &self.source_requests_missed,
            &self.source_requests_refused,
            &self.transfer_messages_unreadable,
            &self.transfer_peers,
            &self.source_requests_in_flight,
            &self.transfer_runs_waiting,
            &self.transfer_staging_bytes,
        ]
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
