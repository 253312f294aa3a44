//! `kvh_context_status`: what a context is doing, for people and for detectors of hangs.
//!
//! Guards: no lock is waited for and nothing is allocated, so it answers while every other thread
//! hangs, and on a poisoned context too. What it says is bounded, whatever there is to say.
//! Never does: say anything of a hint's contents.

use std::ffi::c_char;
use std::fmt::{self, Write};

use super::args;
use super::context::{kvh_context_t, Context};
use super::guard;
use super::handle;
use super::status::kvh_status::*;
use super::status::kvh_status_t;
use crate::telemetry::attempts::{AttemptSeen, AttemptState};
use crate::telemetry::Metrics;

/// Attempts that are listed one by one: those that began first.
const LISTED: usize = 16;

/// The most that a status has: what the header promises.
const STATUS_MAX_BYTES: usize = 8192;

/// Text in memory that needs no allocator.
struct Text {
    bytes: [u8; STATUS_MAX_BYTES],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let end = self.len + more.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(more.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The attempts that have not ended and began first, oldest first.
#[derive(Default)]
struct Oldest {
    attempts: [Option<AttemptSeen>; LISTED],
}

impl Oldest {
    fn consider(&mut self, seen: AttemptSeen) {
        let mut seen = Some(seen);
        for place in &mut self.attempts {
            let is_older = match (&seen, &*place) {
                (Some(seen), Some(listed)) => seen.begun_ns < listed.begun_ns,
                (seen, None) => seen.is_some(),
                (None, _) => false,
            };
            if is_older {
                std::mem::swap(place, &mut seen);
            }
        }
    }
}

/// Live pins of all trees and the most that the oldest can be old; `None` when the list of trees is
/// being changed at this moment.
fn pins(context: &Context, now_ns: u64) -> Option<(usize, u64)> {
    let trees = context.trees.try_lock()?;
    let trees = trees.iter().filter_map(|tree| tree.upgrade());
    Some(trees.fold((0, 0), |(live, oldest_ns), tree| {
        tree.set_now(now_ns);
        (live + tree.live_pins(), oldest_ns.max(tree.longest_pin_age_ns(now_ns)))
    }))
}

fn write_status(context: &Context, text: &mut Text) -> fmt::Result {
    let (metrics, now_ns) = (&context.metrics, context.clock.monotonic_ns());
    let is_poisoned = context.poison.is_set();
    write!(text, "{{\"version\":1,\"monotonic_ns\":{now_ns},\"poisoned\":{is_poisoned}")?;
    let mut counts = [0usize; AttemptState::ALL.len()];
    let mut oldest = Oldest::default();
    for seen in metrics.attempts.seen() {
        counts[seen.state as usize] += 1;
        if seen.state != AttemptState::Ended {
            oldest.consider(seen);
        }
    }
    text.write_str(",\"attempts\":{")?;
    for state in AttemptState::ALL {
        write!(text, "\"{}\":{},", state.name(), counts[state as usize])?;
    }
    write!(text, "\"without_place\":{}}}", metrics.attempts.without_place())?;
    text.write_str(",\"oldest_attempts\":[")?;
    for (index, seen) in oldest.attempts.iter().flatten().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // A clock of another thread may be read a little later than ours.
        let since = |then_ns: u64| now_ns.saturating_sub(then_ns);
        write!(
            text,
            "{comma}{{\"number\":{},\"state\":\"{}\",\"age_ns\":{},\"in_state_ns\":{},\"bytes\":{}}}",
            seen.number,
            seen.state.name(),
            since(seen.begun_ns),
            since(seen.entered_ns),
            seen.bytes
        )?;
    }
    match pins(context, now_ns) {
        Some((live, oldest_ns)) => {
            write!(text, "],\"pins\":{{\"live\":{live},\"oldest_age_at_most_ns\":{oldest_ns}}}")?
        }
        None => text.write_str("],\"pins\":null")?,
    }
    write!(
        text,
        ",\"peers\":{{\"sources\":{},\"destinations\":{}}}",
        metrics.transfer_peers.get(Metrics::PEER_SOURCE),
        metrics.transfer_peers.get(Metrics::PEER_DESTINATION)
    )?;
    write!(
        text,
        ",\"queues\":{{\"requests_served\":{},\"runs_waiting\":{},\"staging_bytes\":{}}}}}",
        metrics.source_requests_in_flight.get(0),
        metrics.transfer_runs_waiting.get(0),
        metrics.transfer_staging_bytes.get(0)
    )
}

/// What the context is doing, as one JSON object, not NUL-terminated: whether it is poisoned;
/// attempts to fetch by state (ended ones whose handle lives included), the oldest that run, with
/// ages; live pins, and the most that the oldest can be old, null in the moment in which a tree is
/// created; peers; queues. For people and for detectors of hangs: it waits for no lock and allocates
/// nothing, so it may be called from any thread while others hang inside of calls, and on a poisoned
/// context. (NULL, 0) asks for the length, which is written in every case but an error of the
/// arguments; it changes from call to call, but 8,192 bytes are always enough. docs/operations.md
/// explains each member.
///
/// # Safety
/// `context` is a live context; `buf` has room for `buf_len` bytes; `len_out` is writable.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvh_context_status(
    context: *const kvh_context_t,
    buf: *mut c_char,
    buf_len: usize,
    len_out: *mut usize,
) -> kvh_status_t {
    guard::without_object(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { handle::get(context) }?;
        if context.is_forked() {
            return Err(KVH_ERR_FORKED);
        }
        let mut text = Text { bytes: [0; STATUS_MAX_BYTES], len: 0 };
        // There is room for the longest, as a unit test shows.
        write_status(context, &mut text).map_err(|_| KVH_ERR_LIMIT)?;
        // SAFETY: the caller's promise.
        unsafe { args::copy_out(&text.bytes[..text.len], buf.cast(), buf_len, len_out) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_kept_in_their_order() {
        let mut oldest = Oldest::default();
        // A walk over 0..40 that is not in order.
        for begun_ns in (0..40).map(|step| step * 7 % 40) {
            let (number, state) = (begun_ns, AttemptState::Init);
            oldest.consider(AttemptSeen { number, state, begun_ns, entered_ns: 0, bytes: 0 });
        }
        let kept = oldest.attempts.map(|seen| seen.map(|seen| seen.number));
        assert_eq!(kept, std::array::from_fn(|index| Some(index as u64)));
    }

    #[test]
    fn the_longest_status_has_room() {
        let numbers = [u64::MAX; 40].map(|number| number.to_string().len()).iter().sum::<usize>();
        let (seen, names) =
            (r#"{"number":,"state":"in_progress","age_ns":,"in_state_ns":,"bytes":},"#, 700);
        let listed = LISTED * (seen.len() + 4 * u64::MAX.to_string().len());
        assert!(numbers + listed + names <= STATUS_MAX_BYTES);
    }
}
