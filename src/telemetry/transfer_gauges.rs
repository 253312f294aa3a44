//! What one transceiver is busy with, as its share of the context's gauges: several transceivers of
//! a context add up, and one that is gone has no share left.

use std::sync::Arc;

use super::{Family, Metrics};

/// What a transceiver is busy with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferNumbers {
    /// Sources connected to.
    pub sources: usize,
    /// Destinations that asked for something.
    pub destinations: usize,
    /// Requests of destinations that are being served.
    pub requests_served: usize,
    /// Runs of blocks that are announced and wait for memory.
    pub runs_waiting: usize,
    /// Bytes received and not yet copied into the host's blocks.
    pub staging_bytes: usize,
}

impl TransferNumbers {
    /// Each number with the gauge and series that it belongs to.
    fn series<'a>(&self, metrics: &'a Metrics) -> [(&'a Family, usize, u64); 5] {
        [
            (&metrics.transfer_peers, Metrics::PEER_SOURCE, self.sources as u64),
            (&metrics.transfer_peers, Metrics::PEER_DESTINATION, self.destinations as u64),
            (&metrics.source_requests_in_flight, 0, self.requests_served as u64),
            (&metrics.transfer_runs_waiting, 0, self.runs_waiting as u64),
            (&metrics.transfer_staging_bytes, 0, self.staging_bytes as u64),
        ]
    }
}

/// One transceiver's share.
#[derive(Debug)]
pub struct TransferGauges {
    metrics: Arc<Metrics>,
    shown: TransferNumbers,
}

impl TransferGauges {
    /// No share yet.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, shown: TransferNumbers::default() }
    }

    /// The share becomes these numbers.
    pub fn set(&mut self, numbers: TransferNumbers) {
        if numbers == self.shown {
            return;
        }
        let before = self.shown.series(&self.metrics);
        let after = numbers.series(&self.metrics);
        for ((family, series, before), (_, _, after)) in before.into_iter().zip(after) {
            // Added first: others never see less than nothing.
            family.add(series, after.saturating_sub(before));
            family.subtract(series, before.saturating_sub(after));
        }
        self.shown = numbers;
    }
}

impl Drop for TransferGauges {
    fn drop(&mut self) {
        self.set(TransferNumbers::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_end_with_their_holders() {
        let metrics = Arc::new(Metrics::new());
        let mut first = TransferGauges::new(Arc::clone(&metrics));
        let mut second = TransferGauges::new(Arc::clone(&metrics));
        let sources = |sources| TransferNumbers { sources, ..TransferNumbers::default() };
        first.set(sources(5));
        second.set(sources(2));
        first.set(sources(3));
        let shown = |metrics: &Metrics| metrics.transfer_peers.get(Metrics::PEER_SOURCE);
        assert_eq!(shown(&metrics), 5);
        drop(first);
        assert_eq!(shown(&metrics), 2);
        drop(second);
        assert_eq!(shown(&metrics), 0);
    }
}
