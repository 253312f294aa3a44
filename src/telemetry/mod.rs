//! What the library did, told to operators: metrics in Prometheus text form, ranges for
//! profilers, lines for the host's log.
//!
//! Rooms report through [`Metrics`] and never format text themselves. Label values come from
//! closed lists known at compile time, so every series exists from the start, at zero, and nothing
//! that a sender wrote can become a label.

pub mod attempts;
mod family;
mod histogram;
pub mod log;
mod metrics;
pub mod nvtx;
mod seconds;
pub mod transfer_gauges;

pub use family::Family;
pub use histogram::Histogram;
pub use metrics::Metrics;
