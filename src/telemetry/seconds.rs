//! Durations as Prometheus wants them: seconds, here written exactly from nanoseconds.

use std::fmt;

/// A duration in nanoseconds that is written in seconds, without trailing zeros.
pub(super) struct Seconds(pub u64);

/// Digits of the longest one, u64::MAX nanoseconds, and its point.
pub(super) const LONGEST_SECONDS: usize = 21;

impl fmt::Display for Seconds {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut fraction, mut digits) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000, 9);
        if fraction == 0 {
            return write!(text, "{whole}");
        }
        while fraction % 10 == 0 {
            fraction /= 10;
            digits -= 1;
        }
        write!(text, "{whole}.{fraction:0digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        let written = [0, 1, 10_000, 300_000_000, 1_000_000_001, 30_000_000_000].map(Seconds);
        let written = written.map(|seconds| seconds.to_string());
        assert_eq!(written, ["0", "0.000000001", "0.00001", "0.3", "1.000000001", "30"]);
        let longest = Seconds(u64::MAX).to_string();
        assert_eq!((longest.as_str(), longest.len()), ("18446744073.709551615", LONGEST_SECONDS));
    }
}
