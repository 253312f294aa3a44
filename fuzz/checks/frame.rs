//! Frames as a rank receives them: whatever the bytes, decoding ends, and refuses them or gives a
//! batch whose parts can all be read.
//!
//! Checksums are made to fit, so that everything behind them is tried. An input is a header where its
//! first byte is odd. Otherwise it says how many requests and large parts a header claims, and how
//! long the front is; the rest is the payload.

use kvhints::broadcast::batch::ReceivedView;
use kvhints::broadcast::frame;
use kvhints::broadcast::header::{Header, Kind, Lengths, HEADER_BYTES};
use kvhints::broadcast::pool::BufferPool;
use twox_hash::XxHash3_64;

use super::tally::Tally;
use super::Check;

pub const CHECK: Check = Check { name: "frame", run, kinds };

const HEADER_REFUSED: &str = "header refused";
const HEADER_READ: &str = "header read";
const CLAIMS_REFUSED: &str = "claims that no header makes";
const LIST_REFUSED: &str = "list of large parts refused";
const PAYLOAD_REFUSED: &str = "payload refused";
const BATCH: &str = "batch";
const LARGE: &str = "batch with large parts";
const SNAPSHOT: &str = "request with a snapshot";
const PARENT: &str = "request with a parent";
const PLAN: &str = "request with a plan";

/// Where a header's checksum stands: at its end.
const CHECKED_BYTES: usize = HEADER_BYTES - 8;
/// Magic number and wire version: a header with others is refused before anything is read.
const FIXED_BYTES: usize = 6;

fn kinds() -> Vec<String> {
    let kinds = [
        HEADER_REFUSED,
        HEADER_READ,
        CLAIMS_REFUSED,
        LIST_REFUSED,
        PAYLOAD_REFUSED,
        BATCH,
        LARGE,
        SNAPSHOT,
        PARENT,
        PLAN,
    ];
    kinds.map(str::to_owned).to_vec()
}

fn run(data: &[u8], tally: &mut Tally) {
    match data.split_first() {
        Some((first, rest)) if first % 2 == 1 => check_header(rest, tally),
        Some((_, rest)) => check_payload(rest, tally),
        None => {}
    }
}

fn check_header(data: &[u8], tally: &mut Tally) {
    // Some header that is right, so that the beginning is.
    let mut bytes = Header { kind: Kind::Batch(Lengths::default()), round: 0 }.encode();
    let len = data.len().min(CHECKED_BYTES - FIXED_BYTES);
    bytes[FIXED_BYTES..FIXED_BYTES + len].copy_from_slice(&data[..len]);
    let checksum = XxHash3_64::oneshot(&bytes[..CHECKED_BYTES]);
    bytes[CHECKED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    match Header::decode(&bytes) {
        Ok(header) => {
            // Not the same bytes: an abort has lengths that nobody reads.
            assert_eq!(Header::decode(&header.encode()), Ok(header));
            tally.count(HEADER_READ);
        }
        Err(_) => tally.count(HEADER_REFUSED),
    }
}

/// What a header claims of the payload that follows, and the payload.
fn claimed(data: &[u8]) -> Option<(Lengths, &[u8])> {
    let (claims, payload) = data.split_first_chunk::<6>()?;
    let number = |at: usize| usize::from(u16::from_le_bytes([claims[at], claims[at + 1]]));
    let mut lengths = Lengths {
        request_count: number(0),
        large_count: number(2) % 8,
        front_len: number(4).min(payload.len()),
        payload_len: payload.len(),
        front_checksum: 0,
        lengths_checksum: 0,
    };
    let front = &payload[..lengths.front_len];
    let list = front.get(..frame::list_len(&lengths))?;
    lengths.lengths_checksum = XxHash3_64::oneshot(list);
    lengths.front_checksum = XxHash3_64::oneshot(front);
    Some((lengths, payload))
}

fn check_payload(data: &[u8], tally: &mut Tally) {
    let Some((lengths, payload)) = claimed(data) else { return tally.count(CLAIMS_REFUSED) };
    let header = Header { kind: Kind::Batch(lengths), round: 0 };
    if Header::decode(&header.encode()).is_err() {
        return tally.count(CLAIMS_REFUSED);
    }
    let list = &payload[..frame::list_len(&lengths)];
    if frame::check_list(list, &lengths).is_err() {
        return tally.count(LIST_REFUSED);
    }
    let payload = payload.to_vec().into();
    let Ok(batch) = frame::decode(&lengths, payload, &BufferPool::default()) else {
        return tally.count(PAYLOAD_REFUSED);
    };
    assert_eq!(batch.len(), lengths.request_count);
    tally.count(if lengths.large_count > 0 { LARGE } else { BATCH });
    for index in 0..batch.len() {
        let request = batch.get(index).expect("below the count");
        check_request(&request, index, lengths.payload_len, tally);
    }
}

fn check_request(
    request: &ReceivedView<'_>,
    index: usize,
    payload_bytes: usize,
    tally: &mut Tally,
) {
    assert!(request.body.len() <= payload_bytes);
    if let Some(parent) = request.parent {
        assert!((parent as usize) < index, "a parent comes before its child");
        tally.count(PARENT);
    }
    if request.plan.is_some() {
        tally.count(PLAN);
    }
    let Some(snapshot) = request.snapshot else { return };
    tally.count(SNAPSHOT);
    assert!(snapshot.message_id().len() <= snapshot.json().len());
    for action in 0..snapshot.action_count() {
        let alone = snapshot.one_action(action).expect("memory").expect("below the count");
        assert_eq!(alone.action(0).map(|it| it.json), snapshot.action(action).map(|it| it.json));
    }
}
