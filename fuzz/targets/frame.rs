//! A received frame: whatever the bytes, decoding ends, refuses them or gives a batch whose parts can
//! all be read.
//!
//! Checksums are made to fit, so that everything behind them is tried. The first bytes of an input say
//! how many requests and large parts its header claims; the rest is the payload.

#![no_main]

use kvhints::broadcast::frame;
use kvhints::broadcast::header::{Header, Kind, Lengths, HEADER_BYTES};
use kvhints::broadcast::pool::BufferPool;
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

fn claimed(input: &[u8]) -> Option<(Lengths, &[u8])> {
    let (claims, payload) = input.split_first_chunk::<6>()?;
    let number = |at: usize| usize::from(u16::from_le_bytes([claims[at], claims[at + 1]]));
    let mut lengths = Lengths {
        request_count: number(0),
        large_count: number(2) % 8,
        front_len: number(4).min(payload.len()),
        payload_len: payload.len(),
        payload_checksum: 0,
        lengths_checksum: 0,
    };
    let (front, mut rest) = payload.split_at(lengths.front_len);
    let list = front.get(..frame::list_len(&lengths))?;
    lengths.lengths_checksum = XxHash3_64::oneshot(list);
    lengths.payload_checksum = XxHash3_64::oneshot(front);
    for len in frame::large_lengths(list) {
        let (part, behind) = rest.split_at_checked(len)?;
        let before = lengths.payload_checksum;
        lengths.payload_checksum =
            before.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ XxHash3_64::oneshot(part);
        rest = behind;
    }
    Some((lengths, payload))
}

fuzz_target!(|data: &[u8]| {
    if let Some(header) = data.first_chunk::<HEADER_BYTES>() {
        if let Ok(header) = Header::decode(header) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
    let Some((lengths, payload)) = claimed(data) else { return };
    let header = Header { kind: Kind::Batch(lengths), round: 0 };
    if Header::decode(&header.encode()).is_err() {
        return;
    }
    let list = &payload[..frame::list_len(&lengths)];
    if frame::check_list(list, &lengths).is_err() {
        return;
    }
    let payload = payload.to_vec().into();
    let Ok(batch) = frame::decode(&lengths, payload, &BufferPool::default()) else { return };
    assert_eq!(batch.len(), lengths.request_count);
    for index in 0..batch.len() {
        let request = batch.get(index).expect("below the count");
        assert!(request.parent.is_none_or(|parent| (parent as usize) < index));
        assert!(request.body.len() <= data.len());
        let Some(snapshot) = request.snapshot else { continue };
        assert!(snapshot.message_id().len() <= snapshot.json().len());
        for action in 0..snapshot.action_count() {
            let one = snapshot.one_action(action).expect("memory").expect("below the count");
            assert_eq!(one.action(0).map(|one| one.json), snapshot.action(action).map(|it| it.json));
        }
    }
});
