//! How often each signed hint was admitted, as long as it has not expired.
//!
//! A hint is known by its code alone: the code covers key id and message id, so equal codes mean
//! equal hints. Entries lie in the order in which they expire; expired ones make room.
//!
//! Guards: memory (a fixed number of entries); a clock that goes back (what was forgotten as
//! expired is not admitted again).
//! Never does: forget a hint that is still valid.

use std::collections::BTreeMap;

use super::SignatureFault;

/// An HMAC-SHA-256.
pub type Code = [u8; 32];

/// The admissions of hints that have not expired.
#[derive(Debug)]
pub struct ReplayTable {
    entries_max: usize,
    admissions_max: u32,
    admissions: BTreeMap<(u64, Code), u32>,
    /// Latest time that was seen.
    latest_unix_seconds: u64,
}

impl ReplayTable {
    /// Remembers at most `entries_max` hints and admits each `admissions_max` times.
    pub fn new(entries_max: usize, admissions_max: u32) -> Self {
        Self { entries_max, admissions_max, admissions: BTreeMap::new(), latest_unix_seconds: 0 }
    }

    /// What [`ReplayTable::admit`] would say; nothing is counted or forgotten.
    pub fn would_admit(
        &self,
        code: Code,
        expiry_unix_seconds: u64,
        now_unix_seconds: u64,
    ) -> Result<(), SignatureFault> {
        let latest_unix_seconds = self.latest_unix_seconds.max(now_unix_seconds);
        if expiry_unix_seconds <= latest_unix_seconds {
            return Err(SignatureFault::Expired);
        }
        match self.admissions.get(&(expiry_unix_seconds, code)) {
            Some(count) if *count >= self.admissions_max => Err(SignatureFault::Replayed),
            Some(_) => Ok(()),
            None if self.admissions.len() < self.entries_max => Ok(()),
            // A full table has room if its first entry has expired.
            None => match self.admissions.first_key_value() {
                Some(((expiry, _), _)) if *expiry <= latest_unix_seconds => Ok(()),
                _ => Err(SignatureFault::ReplayTableFull),
            },
        }
    }

    /// Counts one admission of the hint with this code and expiry.
    pub fn admit(
        &mut self,
        code: Code,
        expiry_unix_seconds: u64,
        now_unix_seconds: u64,
    ) -> Result<(), SignatureFault> {
        self.latest_unix_seconds = self.latest_unix_seconds.max(now_unix_seconds);
        if expiry_unix_seconds <= self.latest_unix_seconds {
            return Err(SignatureFault::Expired);
        }
        while let Some(first) = self.admissions.first_entry() {
            if first.key().0 > self.latest_unix_seconds {
                break;
            }
            first.remove();
        }
        let key = (expiry_unix_seconds, code);
        if let Some(count) = self.admissions.get_mut(&key) {
            if *count >= self.admissions_max {
                return Err(SignatureFault::Replayed);
            }
            *count += 1;
            return Ok(());
        }
        if self.admissions.len() >= self.entries_max {
            return Err(SignatureFault::ReplayTableFull);
        }
        self.admissions.insert(key, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SignatureFault::{Expired, ReplayTableFull, Replayed};

    #[test]
    fn each_hint_is_admitted_so_often_and_room_comes_with_expiry() {
        let mut table = ReplayTable::new(2, 2);
        for (code, expiry, now, expected) in [
            (1, 100, 10, Ok(())),
            (1, 100, 10, Ok(())),
            (1, 100, 10, Err(Replayed)),
            (2, 200, 11, Ok(())),
            (3, 300, 12, Err(ReplayTableFull)),
            (1, 100, 99, Err(Replayed)),
            (1, 100, 100, Err(Expired)),
            (3, 300, 100, Ok(())),
            (4, 400, 100, Err(ReplayTableFull)),
            // The clock goes back: the first hint was forgotten, and stays expired.
            (1, 100, 10, Err(Expired)),
            (2, 200, 10, Ok(())),
            (2, 200, 10, Err(Replayed)),
        ] {
            for _ in 0..2 {
                assert_eq!(table.would_admit([code; 32], expiry, now), expected, "{code} at {now}");
            }
            assert_eq!(table.admit([code; 32], expiry, now), expected, "{code} at {now}");
            assert!(table.admissions.len() <= 2);
        }
    }
}
