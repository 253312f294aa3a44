//! One histogram family: how long something took, in a fixed set of buckets for each value of its
//! only label.
//!
//! Observed in nanoseconds, shown in seconds, as Prometheus wants them. The buckets are the same in
//! every family, so that dashboards can lay them over each other: 10 µs to 30 s, two a decade.
//!
//! Guards: what is shown is always a histogram: buckets never fall, and the last one is the count.
//! Never does: allocate, lock or wait when something is observed.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use super::seconds::{Seconds, LONGEST_SECONDS};

/// Upper bounds of the buckets, each inclusive; one more takes what is longer.
const BOUNDS_NS: [u64; 14] = [
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// What was observed under one label value.
#[derive(Debug, Default)]
struct Series {
    /// How many fell into each bucket and into no smaller one; last, what is longer than all bounds.
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// A histogram family of durations with at most one label, whose values are a closed list.
#[derive(Debug)]
pub struct Histogram {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    label_values: &'static [&'static str],
    series: Box<[Series]>,
}

impl Histogram {
    /// A histogram with one series for each of `label_values`, in that order; one `""` for none. Its
    /// name ends in `_seconds`.
    pub fn new(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        label_values: &'static [&'static str],
    ) -> Self {
        let series = label_values.iter().map(|_| Series::default()).collect();
        Self { name, help, label, label_values, series }
    }

    /// Counts a duration under the `index`-th label value (0 for a family without label).
    pub fn observe_ns(&self, index: usize, duration_ns: u64) {
        let series = &self.series[index];
        let bucket = BOUNDS_NS.partition_point(|bound_ns| *bound_ns < duration_ns);
        series.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        series.sum_ns.fetch_add(duration_ns, Ordering::Relaxed);
    }

    /// How many were observed under the `index`-th label value.
    pub fn count(&self, index: usize) -> u64 {
        let counts = self.series[index].buckets.iter().map(|count| count.load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// The most that `render` appends, whatever the numbers are.
    pub(super) fn rendered_max_bytes(&self) -> usize {
        let head = "# HELP  \n# TYPE  histogram\n".len() + 2 * self.name.len() + self.help.len();
        let line = self.name.len() + "_bucket{=\"\",le=\"\"} \n".len() + 2 * LONGEST_SECONDS;
        let lines = BOUNDS_NS.len() + "+Inf, sum, count".split(", ").count();
        let series = |value: &&str| lines * (line + self.label.len() + value.len());
        head + self.label_values.iter().map(series).sum::<usize>()
    }

    /// Appends the family in Prometheus text exposition format.
    pub fn render(&self, text: &mut String) {
        let name = self.name;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} histogram", self.help);
        for (label_value, series) in self.label_values.iter().zip(&self.series) {
            let _ = self.render_series(text, label_value, series);
        }
    }

    fn render_series(&self, text: &mut String, label_value: &str, series: &Series) -> fmt::Result {
        let (name, label) = (self.name, self.label);
        let (quoted, comma) = match label {
            "" => (String::new(), ""),
            _ => (format!("{label}=\"{label_value}\""), ","),
        };
        let mut count = 0u64;
        for (index, bucket) in series.buckets.iter().enumerate() {
            // Each bucket is read once and the count is their sum: they fit together although
            // others observe meanwhile.
            count = count.wrapping_add(bucket.load(Ordering::Relaxed));
            write!(text, "{name}_bucket{{{quoted}{comma}le=\"")?;
            match BOUNDS_NS.get(index) {
                Some(bound_ns) => write!(text, "{}", Seconds(*bound_ns))?,
                None => text.push_str("+Inf"),
            }
            writeln!(text, "\"}} {count}")?;
        }
        let braced = if label.is_empty() { quoted } else { format!("{{{quoted}}}") };
        let sum = Seconds(series.sum_ns.load(Ordering::Relaxed));
        writeln!(text, "{name}_sum{braced} {sum}\n{name}_count{braced} {count}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(histogram: &Histogram) -> String {
        let mut text = String::new();
        histogram.render(&mut text);
        text
    }

    #[test]
    fn a_duration_counts_in_every_bucket_that_reaches_it() {
        let histogram = Histogram::new("f_seconds", "How long.", "", &[""]);
        for duration_ns in [0, 10_000, 10_001, 30_000_000_000, 30_000_000_001] {
            histogram.observe_ns(0, duration_ns);
        }
        let text = rendered(&histogram);
        assert!(text.starts_with("# HELP f_seconds How long.\n# TYPE f_seconds histogram\n"));
        for line in [
            "f_seconds_bucket{le=\"0.00001\"} 2\n",
            "f_seconds_bucket{le=\"0.00003\"} 3\n",
            "f_seconds_bucket{le=\"10\"} 3\n",
            "f_seconds_bucket{le=\"30\"} 4\n",
            "f_seconds_bucket{le=\"+Inf\"} 5\n",
            "f_seconds_sum 60.000020002\n",
            "f_seconds_count 5\n",
        ] {
            assert!(text.contains(line), "{line:?} is missing in\n{text}");
        }
    }

    #[test]
    fn every_label_value_has_its_series_from_the_start() {
        let histogram = Histogram::new("f_seconds", "How long.", "state", &["a", "b"]);
        histogram.observe_ns(1, 2_000_000);
        let text = rendered(&histogram);
        assert!(text.contains("f_seconds_bucket{state=\"a\",le=\"+Inf\"} 0\n"), "{text}");
        assert!(text.contains("f_seconds_bucket{state=\"b\",le=\"0.003\"} 1\n"), "{text}");
        assert!(text.contains("f_seconds_sum{state=\"b\"} 0.002\n"), "{text}");
        assert_eq!([histogram.count(0), histogram.count(1)], [0, 1]);
    }

    #[test]
    fn bounds_rise_and_are_written_as_they_are() {
        assert!(BOUNDS_NS.windows(2).all(|pair| pair[0] < pair[1]));
        let written: Vec<String> = BOUNDS_NS.map(|bound| Seconds(bound).to_string()).into();
        assert_eq!(
            written.join(" "),
            "0.00001 0.00003 0.0001 0.0003 0.001 0.003 0.01 0.03 0.1 0.3 1 3 10 30"
        );
    }

    #[test]
    fn no_number_is_longer_than_the_room_reserved() {
        for histogram in [
            Histogram::new("f_seconds", "How long.", "", &[""]),
            Histogram::new("f_seconds", "How long.", "state", &["a", "longer"]),
        ] {
            for series in &histogram.series {
                series.buckets[0].store(u64::MAX, Ordering::Relaxed);
                series.sum_ns.store(u64::MAX, Ordering::Relaxed);
            }
            let text = rendered(&histogram);
            assert!(text.len() <= histogram.rendered_max_bytes(), "{text}");
        }
    }
}
