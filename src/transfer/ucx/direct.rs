//! The shortest way between two processes of one host: the receiver reads the sender's memory.
//!
//! UCX gives up shared memory on connections that must notice a dead peer (seen from 1.13 to
//! 1.22), and would take TCP. So data between processes of one kernel is not sent: its places are
//! announced, and the receiver copies with `process_vm_readv`, which is one copy at memory speed.
//! UCX still carries every message.
//!
//! Guards: each side has a *beacon*, sixteen bytes at a fixed place that hold the connection's
//! token. A side offers this way only after the other has found the beacon at the place told, which
//! proves same kernel, right process, and permission. Each read ends with the beacon once more,
//! and a beacon is wiped before the sender's tickets end: data read too late, or from a process
//! that took over a number, is never taken for good.
//! Never does: write into another process.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_void, iovec, pid_t};
use ucx_sys::ucp_dt_iov_t;

use crate::transfer::transport::Segment;

/// Smaller data goes along with its announcement.
pub(super) const MIN_BYTES: usize = 16 << 10;
/// Larger data goes through UCX: one read must not take long.
pub(super) const MAX_BYTES: usize = 256 << 20;
/// Data in more pieces goes through UCX.
pub(super) const MAX_RUNS: usize = 256;

/// Bytes of an encoded [`Place`].
pub(super) const PLACE_BYTES: usize = 12;
/// Bytes of an encoded run.
const RUN_BYTES: usize = 16;
/// Longest list of runs.
pub(super) const MAX_RUNS_BYTES: usize = MAX_RUNS * RUN_BYTES;

/// See the module.
pub(super) struct Beacon(Box<[AtomicU64; 2]>);

impl Beacon {
    pub fn new(token: [u8; 16]) -> Self {
        let (low, high) = halves(token);
        Self(Box::new([AtomicU64::new(low), AtomicU64::new(high)]))
    }

    /// Where it is, for the other side.
    pub fn place(&self) -> Place {
        Place { process: std::process::id(), address: self.0.as_ptr().addr() as u64 }
    }

    /// From now on nothing that the other side reads is good.
    pub fn wipe(&self) {
        self.0.iter().for_each(|half| half.store(0, Ordering::SeqCst));
    }
}

fn halves(token: [u8; 16]) -> (u64, u64) {
    let number = u128::from_ne_bytes(token);
    let bytes = number.to_ne_bytes();
    let half = |from: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[from..from + 8]);
        u64::from_ne_bytes(half)
    };
    (half(0), half(8))
}

/// A process, and its beacon's address there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub process: u32,
    pub address: u64,
}

impl Place {
    /// The place of a side that does not take part.
    pub const NOWHERE: Self = Self { process: 0, address: 0 };

    pub fn encode(self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        bytes[..4].copy_from_slice(&self.process.to_le_bytes());
        bytes[4..].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; PLACE_BYTES]) -> Self {
        let (process, address) = bytes.split_at(4);
        let mut place = Self::NOWHERE;
        place.process = process.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        place.address = address.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        place
    }

    /// Whether the beacon with that token can be read there.
    pub fn has(self, token: [u8; 16]) -> bool {
        self.read(&[], Segment { data: std::ptr::dangling_mut(), len: 0 }, token)
    }

    /// Copies `runs` of that process into `memory`, which has just their length. False if anything
    /// of it cannot be read, or the beacon is not there afterwards; then `memory` holds anything.
    pub fn read(self, runs: &[Run], memory: Segment, token: [u8; 16]) -> bool {
        let Ok(process) = pid_t::try_from(self.process) else { return false };
        if process == 0 {
            return false;
        }
        let mut beacon = [0u8; 16];
        let local = [
            iovec { iov_base: memory.data.cast(), iov_len: memory.len },
            iovec { iov_base: beacon.as_mut_ptr().cast(), iov_len: beacon.len() },
        ];
        let beacon_run = Run { address: self.address, len: beacon.len() as u64 };
        let remote: Vec<iovec> = runs.iter().chain([&beacon_run]).map(Run::as_iovec).collect();
        let expected = memory.len + beacon.len();
        // SAFETY: the kernel writes only into `memory`, which the caller names for that, and
        // `beacon`; addresses of the other process are judged by the kernel. The beacon is last,
        // so it is read after the data.
        let count = unsafe {
            libc::process_vm_readv(
                process,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        usize::try_from(count) == Ok(expected) && beacon == token
    }
}

/// A run of bytes in the sender's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub address: u64,
    pub len: u64,
}

impl Run {
    fn as_iovec(&self) -> iovec {
        // The other process's address, which is only the kernel's to use; both processes are of
        // this kernel, so the numbers fit.
        let base: *mut c_void = std::ptr::without_provenance_mut(self.address as usize);
        iovec { iov_base: base, iov_len: self.len as usize }
    }
}

/// The announcement of these runs of our memory.
pub(super) fn encode_runs(runs: &[ucp_dt_iov_t]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(runs.len() * RUN_BYTES);
    for run in runs {
        bytes.extend_from_slice(&(run.buffer.addr() as u64).to_le_bytes());
        bytes.extend_from_slice(&(run.length as u64).to_le_bytes());
    }
    bytes
}

/// The runs of an announcement and their length together; `None` if it is not within the bounds.
pub(super) fn decode_runs(bytes: &[u8]) -> Option<(Vec<Run>, usize)> {
    let (pairs, rest) = bytes.as_chunks::<RUN_BYTES>();
    if !rest.is_empty() || pairs.len() > MAX_RUNS {
        return None;
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let runs: Vec<Run> = pairs
        .iter()
        .map(|pair| Run { address: number(&pair[..8]), len: number(&pair[8..]) })
        .collect();
    let total = runs.iter().try_fold(0u64, |sum, run| sum.checked_add(run.len))?;
    let total = usize::try_from(total).ok()?;
    (total <= MAX_BYTES).then_some((runs, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: [u8; 16] = *b"an unusual token";

    fn run_of(bytes: &[u8]) -> Run {
        Run { address: bytes.as_ptr().addr() as u64, len: bytes.len() as u64 }
    }

    fn read(place: Place, runs: &[Run], len: usize, token: [u8; 16]) -> Option<Vec<u8>> {
        let mut memory = vec![0; len];
        let target = Segment { data: memory.as_mut_ptr(), len };
        place.read(runs, target, token).then_some(memory)
    }

    #[test]
    fn runs_are_read_while_the_beacon_is_there() {
        let beacon = Beacon::new(TOKEN);
        let place = Place::decode(&beacon.place().encode());
        assert!(place.has(TOKEN));
        let runs = [run_of(b"from here"), run_of(b" and there")];
        let seen = read(place, &runs, 19, TOKEN);
        assert_eq!(seen.as_deref(), Some(&b"from here and there"[..]));
        beacon.wipe();
        assert!(!place.has(TOKEN));
        assert_eq!(read(place, &runs, 19, TOKEN), None, "read too late");
    }

    #[test]
    fn wrong_places_are_no_success() {
        let beacon = Beacon::new(TOKEN);
        let place = beacon.place();
        assert!(!place.has(*b"another's token!"));
        assert!(!Place::NOWHERE.has(TOKEN));
        assert!(!Place { process: u32::MAX, ..place }.has(TOKEN));
        assert!(!Place { address: 8, ..place }.has(TOKEN));
        let unmapped = Run { address: 4096, len: 5 };
        assert_eq!(read(place, &[run_of(b"good"), unmapped], 9, TOKEN), None);
    }

    #[test]
    fn announcements_are_bounded() {
        let run = |len| [7u64.to_le_bytes(), u64::to_le_bytes(len)].concat();
        let good = decode_runs(&[run(1), run(2)].concat()).expect("two runs");
        assert_eq!(good.1, 3);
        assert_eq!(good.0[1], Run { address: 7, len: 2 });
        assert_eq!(decode_runs(&run(1)[..15]), None);
        assert_eq!(decode_runs(&run(MAX_BYTES as u64 + 1)), None);
        assert_eq!(decode_runs(&[run(u64::MAX), run(2)].concat()), None);
        assert_eq!(decode_runs(&run(0).repeat(MAX_RUNS + 1)), None);
    }
}
