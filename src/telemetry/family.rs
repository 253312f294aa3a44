//! One metric family: a name, a help line, and one number for each value of its only label.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::seconds::{Seconds, LONGEST_SECONDS};

/// Whether a family only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// A gauge of durations: set in nanoseconds, shown in seconds.
    GaugeOfSeconds,
}

/// A counter or gauge family with at most one label, whose values are a closed list.
#[derive(Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    label: &'static str,
    label_values: &'static [&'static str],
    values: Box<[AtomicU64]>,
}

impl Family {
    /// A counter without a label.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Counter, "", &[""])
    }

    /// A counter with one series for each of `label_values`, in that order.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        label_values: &'static [&'static str],
    ) -> Self {
        Self::new(name, help, Kind::Counter, label, label_values)
    }

    /// A gauge without a label.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Gauge, "", &[""])
    }

    /// A gauge of one duration, which is given in nanoseconds and shown in seconds.
    pub fn gauge_of_seconds(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::GaugeOfSeconds, "", &[""])
    }

    /// A gauge with one series for each of `label_values`, in that order.
    pub fn gauges(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        label_values: &'static [&'static str],
    ) -> Self {
        Self::new(name, help, Kind::Gauge, label, label_values)
    }

    fn new(
        name: &'static str,
        help: &'static str,
        kind: Kind,
        label: &'static str,
        label_values: &'static [&'static str],
    ) -> Self {
        let values = label_values.iter().map(|_| AtomicU64::new(0)).collect();
        Self { name, help, kind, label, label_values, values }
    }

    /// Adds `amount` to the series of the `index`-th label value (0 for a family without label).
    pub fn add(&self, index: usize, amount: u64) {
        self.values[index].fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes `amount` from a gauge.
    pub fn subtract(&self, index: usize, amount: u64) {
        debug_assert_ne!(self.kind, Kind::Counter, "a counter only grows");
        self.values[index].fetch_sub(amount, Ordering::Relaxed);
    }

    /// Gives a gauge a number.
    pub fn set(&self, index: usize, value: u64) {
        debug_assert_ne!(self.kind, Kind::Counter, "a counter only grows");
        self.values[index].store(value, Ordering::Relaxed);
    }

    /// The present number of the `index`-th series.
    pub fn get(&self, index: usize) -> u64 {
        self.values[index].load(Ordering::Relaxed)
    }

    /// The most that `render` appends, whatever the numbers are.
    pub(super) fn rendered_max_bytes(&self) -> usize {
        let head = "# HELP  \n# TYPE  counter\n".len() + 2 * self.name.len() + self.help.len();
        let series = "{=\"\"} \n".len() + self.name.len() + self.label.len() + LONGEST_SECONDS;
        self.label_values.iter().fold(head, |sum, value| sum + series + value.len())
    }

    /// Appends the family in Prometheus text exposition format.
    pub fn render(&self, text: &mut String) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge | Kind::GaugeOfSeconds => "gauge",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {} {kind}", self.name, self.help, self.name);
        for (label_value, value) in self.label_values.iter().zip(&self.values) {
            let value = value.load(Ordering::Relaxed);
            let _ = if self.kind == Kind::GaugeOfSeconds {
                writeln!(text, "{} {}", self.name, Seconds(value))
            } else if self.label.is_empty() {
                writeln!(text, "{} {value}", self.name)
            } else {
                writeln!(text, "{}{{{}=\"{label_value}\"}} {value}", self.name, self.label)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_there_from_the_start() {
        let family = Family::counters("f_total", "What it counts.", "reason", &["a", "b"]);
        family.add(1, 3);
        let mut text = String::new();
        family.render(&mut text);
        assert_eq!(
            text,
            "# HELP f_total What it counts.\n# TYPE f_total counter\n\
             f_total{reason=\"a\"} 0\nf_total{reason=\"b\"} 3\n"
        );
    }

    #[test]
    fn no_number_is_longer_than_the_room_reserved() {
        for family in [
            Family::counters("f_total", "What it counts.", "reason", &["a", "b"]),
            Family::counter("c_total", "Help."),
            Family::gauge("g", "How many now."),
            Family::gauge_of_seconds("g_seconds", "How long."),
        ] {
            for index in 0..family.values.len() {
                family.add(index, u64::MAX);
            }
            let mut text = String::new();
            family.render(&mut text);
            assert!(text.len() <= family.rendered_max_bytes(), "{text}");
        }
    }

    #[test]
    fn a_gauge_goes_both_ways() {
        let family = Family::gauge("g", "How many now.");
        family.add(0, 2);
        family.subtract(0, 1);
        assert_eq!(family.get(0), 1);
    }

    #[test]
    fn a_gauge_of_a_duration_is_shown_in_seconds() {
        let family = Family::gauge_of_seconds("g_seconds", "How long.");
        family.set(0, 1_500_000_000);
        let mut text = String::new();
        family.render(&mut text);
        assert!(text.ends_with("# TYPE g_seconds gauge\ng_seconds 1.5\n"), "{text}");
    }
}
