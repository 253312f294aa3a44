//! Frames and packed hints under arbitrary input: what goes in comes out, and foreign bytes are
//! refused or harmless.

use kvhints::broadcast::batch::{Batch, BatchError, ReceivedBatch, Request};
use kvhints::broadcast::frame::{
    self, Encoded, Format, FrameError, PartsChecksum, PARTS_CHECKSUM_BYTES,
};
use kvhints::broadcast::header::{AbortReason, Header, Lengths, HEADER_BYTES};
use kvhints::broadcast::limits::MAX_REQUESTS;
use kvhints::broadcast::packed;
use kvhints::broadcast::pool::BufferPool;
use kvhints::broadcast::settings::{HintForm, Mode};
use kvhints::hint::Snapshot;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

const LARGE_BYTES: usize = 1000;

fn format(hint_form: HintForm) -> Format {
    Format { mode: Mode::Full, hint_form, large_from_bytes: LARGE_BYTES }
}

fn encode(batch: &Batch<'_>, form: HintForm) -> Encoded {
    frame::encode(batch, format(form), Encoded::default()).expect("a small batch")
}

/// What follows the header.
fn payload(encoded: &Encoded, batch: &Batch<'_>, form: HintForm) -> Vec<u8> {
    let mut payload = encoded.front.clone();
    let mut checksum = PartsChecksum::new(&encoded.lengths);
    for part in encoded.large_parts(batch, form) {
        payload.extend_from_slice(part);
        checksum.add(part);
    }
    if encoded.lengths.large_count > 0 {
        payload.extend_from_slice(&checksum.to_bytes());
    }
    payload
}

/// As a rank does it: the list of lengths is checked before the rest is looked at, then the checksum
/// behind large parts.
fn decode(lengths: &Lengths, payload: Vec<u8>) -> Result<ReceivedBatch, FrameError> {
    const CUT: FrameError = FrameError::Damaged("cut");
    let list = payload.get(..frame::list_len(lengths)).unwrap_or_default();
    frame::check_list(list, lengths)?;
    let mut payload = payload;
    if lengths.large_count > 0 {
        let sent = *payload.last_chunk().ok_or(CUT)?;
        payload.truncate(payload.len() - sent.len());
        let mut rest = payload.get(lengths.front_len..).ok_or(CUT)?;
        let mut checksum = PartsChecksum::new(lengths);
        for len in frame::large_lengths(&payload[..frame::list_len(lengths)]) {
            let (part, behind) = rest.split_at_checked(len).ok_or(CUT)?;
            checksum.add(part);
            rest = behind;
        }
        checksum.check(sent)?;
    }
    frame::decode(lengths, payload.into(), &BufferPool::default())
}

/// Checksums that say that nothing was changed.
fn fit_checksums(lengths: &mut Lengths, payload: &mut [u8]) {
    let front_len = lengths.front_len.min(payload.len());
    let (front, large) = payload.split_at_mut(front_len);
    lengths.front_checksum = xxh3_64(front);
    let Some(list) = front.get(..8 * lengths.large_count) else { return };
    lengths.lengths_checksum = xxh3_64(list);
    let (mut checksum, mut at) = (lengths.front_checksum, 0_usize);
    for len in list.chunks_exact(8) {
        let len = u64::from_le_bytes(len.try_into().expect("eight bytes")) as usize;
        let Some(part) = large.get(at..at.saturating_add(len)) else { return };
        for piece in part.chunks(16 << 10) {
            checksum =
                checksum.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ xxh3_64(piece);
        }
        at += len;
    }
    if let (false, Some(sent)) = (list.is_empty(), large.last_chunk_mut()) {
        *sent = checksum.to_le_bytes();
    }
}

const FORMS: [HintForm; 2] = [HintForm::Text, HintForm::Packed];

fn hint(payload: &str) -> Snapshot {
    let text = format!(
        r#"{{"protocol_version":"0.1","message_id":"m","actions":[{{"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{payload}}}]}}"#
    );
    Snapshot::from_canonical(text.as_bytes()).expect("an envelope in canonical form")
}

/// Number texts, from ordinary to those that only look like hashes.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => any::<u64>().prop_map(|value| value.to_string()),
        2 => (0..100u64).prop_map(|value| value.to_string()),
        1 => any::<i64>().prop_map(|value| value.to_string()),
        1 => any::<f64>().prop_map(|value| format!("{value:e}")),
        1 => "-0|0e5|1E+2|-0.0|1.50|00|007|18446744073709551616|[0-9]{19,22}|[1-9][0-9]{19}",
    ]
}

/// Pieces that texts are made of: arrays of hashes, nearly such, and what stands around them.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::collection::vec(number(), 0..30)
            .prop_map(|numbers| format!("\"block_hashes\":[{}]", numbers.join(","))),
        1 => proptest::collection::vec(any::<u64>(), 0..30).prop_map(|numbers| {
            let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
            format!("\"block_hashes\":[{}", texts.join(","))
        }),
        1 => Just("\"block_hashes\":[".to_owned()),
        1 => Just("\\\"block_hashes\\\":[1,2]".to_owned()),
        1 => "[\\PC]{0,12}",
        1 => number(),
        1 => "[\\[\\]{}:,\"0-9]{0,12}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_comes_back_byte_for_byte(pieces in proptest::collection::vec(piece(), 0..12)) {
        let text = pieces.join(",");
        let mut bytes = Vec::new();
        packed::pack(text.as_bytes(), &mut bytes).expect("memory");
        prop_assert!(bytes.len() <= packed::max_packed_len(text.len()));
        let unpacked = packed::unpack(&bytes).expect("own bytes");
        prop_assert_eq!(unpacked, text.as_bytes());
    }

    #[test]
    fn unpacking_any_bytes_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(text) = packed::unpack(&bytes) {
            // Each eight bytes become at most twenty digits and a comma.
            prop_assert!(text.len() <= bytes.len() * 3);
        }
    }

    #[test]
    fn any_header_bytes_are_refused_or_read(mut bytes: [u8; 32], keep in 0..8usize) {
        let mut header = [0; HEADER_BYTES];
        header[..6].copy_from_slice(b"KVHB\x02\0");
        bytes[..keep].fill(0);
        header[6..38].copy_from_slice(&bytes);
        let checksum = xxh3_64(&header[..56]);
        header[56..].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(read) = Header::decode(&header) {
            prop_assert_eq!(Header::decode(&read.encode()), Ok(read));
        }
    }

    #[test]
    fn any_batch_comes_back(
        requests in proptest::collection::vec(
            (any::<u64>(), 0..4usize, 0..4usize, any::<prop::sample::Index>(), any::<bool>()),
            0..20,
        ),
        form in prop::sample::select(&FORMS),
    ) {
        let bodies: [Vec<u8>; 4] =
            [vec![], vec![1; 3], vec![2; LARGE_BYTES - 1], vec![3; LARGE_BYTES + 1]];
        let hashes = vec!["18446744073709551615,1234567890123"; 100].join(",");
        let hints = [
            hint("{}"),
            hint(r#"{"block_hashes":[18446744073709551615,1234567890123]}"#),
            hint(&format!("{{\"block_hashes\":[{hashes}]}}")),
        ];
        let mut batch = Batch::new();
        for (index, (id, body, snapshot, parent, has_parent)) in requests.iter().enumerate() {
            let parent = (*has_parent && index > 0).then(|| parent.index(index) as u32);
            let snapshot = hints.get(*snapshot).cloned();
            let request = Request { id: *id, body: &bodies[*body], snapshot, parent, plan: None };
            batch.add(request).expect("a good request");
        }
        let encoded = encode(&batch, form);
        let received =
            decode(&encoded.lengths, payload(&encoded, &batch, form)).expect("own bytes");
        prop_assert_eq!(received.len(), batch.requests().len());
        for (index, given) in batch.requests().iter().enumerate() {
            let got = received.get(index).expect("a request");
            prop_assert_eq!((got.id, got.body, got.parent), (given.id, given.body, given.parent));
            let text = |snapshot: Option<&Snapshot>| snapshot.map(|hint| hint.json().to_vec());
            prop_assert_eq!(text(got.snapshot), text(given.snapshot.as_ref()));
            let actions = |snapshot: &Snapshot| {
                snapshot.actions().map(|action| action.payload.to_vec()).collect::<Vec<_>>()
            };
            prop_assert_eq!(got.snapshot.map(actions), given.snapshot.as_ref().map(actions));
        }
    }

    /// The checksum is made to fit, so that everything behind it is tried.
    #[test]
    fn a_changed_payload_with_a_fitting_checksum_is_refused_or_harmless(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        request_count in proptest::option::of(0..40usize),
        form in prop::sample::select(&FORMS),
    ) {
        let large = vec![9; LARGE_BYTES];
        let batch = sample(&large);
        let encoded = encode(&batch, form);
        let mut payload = payload(&encoded, &batch, form);
        let front_len = encoded.lengths.front_len;
        for (at, value) in changes {
            payload[at.index(front_len)] = value;
        }
        let mut lengths = encoded.lengths;
        if let Some(cut) = cut {
            payload.drain(cut.index(front_len)..front_len);
            lengths.front_len = payload.len() - large.len() - PARTS_CHECKSUM_BYTES;
        }
        lengths.payload_len = payload.len() - PARTS_CHECKSUM_BYTES;
        lengths.request_count = request_count.unwrap_or(lengths.request_count);
        fit_checksums(&mut lengths, &mut payload);
        if let Ok(received) = decode(&lengths, payload) {
            for index in 0..received.len() {
                let request = received.get(index).expect("a request");
                prop_assert!(request.parent.is_none_or(|parent| (parent as usize) < index));
                prop_assert!(request.body.len() <= lengths.payload_len);
                if let Some(snapshot) = request.snapshot {
                    prop_assert!(snapshot.message_id().len() <= snapshot.json().len());
                    prop_assert!(snapshot.actions().all(|action| action.json.len() <= 4096));
                }
            }
        }
    }
}

fn sample(large: &[u8]) -> Batch<'_> {
    let mut batch = Batch::new();
    let hashes = vec!["18446744073709551615,12345678901234567890"; 30].join(",");
    let snapshots = [
        Some(hint(r#"{"block_hashes":[18446744073709551615,12345678901234567890]}"#)),
        None,
        Some(hint(&format!("{{\"block_hashes\":[{hashes}]}}"))),
    ];
    let requests = [(1, &large[..10], None), (2, large, Some(0)), (3, &large[..0], None)];
    for ((id, body, parent), snapshot) in requests.into_iter().zip(snapshots) {
        batch.add(Request { id, body, snapshot, parent, plan: None }).expect("a good request");
    }
    batch
}

#[test]
fn every_changed_bit_of_a_payload_is_found() {
    let large = vec![9; LARGE_BYTES];
    let batch = sample(&large);
    for form in FORMS {
        let encoded = encode(&batch, form);
        let good = payload(&encoded, &batch, form);
        decode(&encoded.lengths, good.clone()).expect("own bytes");
        for bit in 0..good.len() * 8 {
            let mut changed = good.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            decode(&encoded.lengths, changed).expect_err("changed");
        }
    }
}

#[test]
fn a_list_of_lengths_that_is_not_the_headers_is_refused() {
    let large = vec![9; LARGE_BYTES];
    let mut batch = Batch::new();
    let request = Request { id: 1, body: &large, snapshot: None, parent: None, plan: None };
    batch.add(request).expect("a good request");
    let encoded = encode(&batch, HintForm::Text);
    let with = |large_len: u64, change: fn(&mut Lengths)| {
        let bytes = large_len.to_le_bytes();
        let mut lengths = encoded.lengths;
        lengths.lengths_checksum = xxh3_64(&bytes);
        change(&mut lengths);
        frame::check_list(&bytes, &lengths)
    };
    let good = LARGE_BYTES as u64;
    with(good, |_| ()).expect("the list as it was sent");
    with(good + 1, |_| ()).expect_err("another sum");
    with(good, |lengths| lengths.lengths_checksum += 1).expect_err("another checksum");
    with(good, |lengths| lengths.large_count = 2).expect_err("another count");
    with(0, |lengths| lengths.payload_len -= LARGE_BYTES).expect_err("nothing");
    with(u64::MAX, |_| ()).expect_err("longer than memory");
}

#[test]
fn packed_hashes_are_fewer_bytes_and_are_packed_once() {
    let hashes = vec!["18446744073709551615"; 3_000].join(",");
    let long = hint(&format!("{{\"block_hashes\":[{hashes}]}}"));
    let mut batch = Batch::new();
    let snapshot = Some(long.clone());
    let request = Request { id: 1, body: b"b", snapshot, parent: None, plan: None };
    batch.add(request).expect("a good request");
    let [text, packed] = FORMS.map(|form| encode(&batch, form).lengths.payload_len);
    assert!(packed * 100 < text * 42, "{packed} bytes packed, {text} as text");
    let place = |_: &[u8]| unreachable!("packed before, by another round");
    long.packed(place).expect("kept with the snapshot");
}

#[test]
fn a_snapshot_held_by_many_requests_travels_once() {
    let hashes = vec!["\"x\""; 10_000].join(",");
    let long = hint(&format!("{{\"block_hashes\":[{hashes}]}}"));
    let payload_len = |count: usize, same: bool| {
        let mut batch = Batch::new();
        for id in 0..count as u64 {
            let snapshot = if same {
                long.clone()
            } else {
                Snapshot::from_canonical(long.json()).expect("the same text")
            };
            let snapshot = Some(snapshot);
            batch
                .add(Request { id, body: b"b", snapshot, parent: None, plan: None })
                .expect("a good request");
        }
        encode(&batch, HintForm::Text).lengths.payload_len
    };
    let (once, shared, copies) =
        (payload_len(1, true), payload_len(100, true), payload_len(100, false));
    assert!(shared < once + 100 * 40, "{once} bytes for one, {shared} for a hundred");
    assert!(copies > 90 * once, "{once} bytes for one, {copies} for a hundred copies");
}

#[test]
fn a_batch_refuses_what_cannot_travel() {
    let mut batch = Batch::new();
    let request = Request { id: 1, body: b"b", snapshot: None, parent: None, plan: None };
    let orphan = Request { parent: Some(0), ..request.clone() };
    assert_eq!(batch.add(orphan), Err(BatchError::ParentUnknown { parent: 0, count: 0 }));
    for _ in 0..MAX_REQUESTS {
        batch.add(request.clone()).expect("a good request");
    }
    assert_eq!(batch.add(request), Err(BatchError::TooManyRequests));
    assert_eq!(batch.requests().len(), MAX_REQUESTS);
}

#[test]
fn a_batch_larger_than_a_round_is_refused_on_rank_0() {
    // Borrowed many times over: no memory of this size is needed.
    let body = vec![0; 1 << 26];
    let mut batch = Batch::new();
    for id in 0..65 {
        let request = Request { id, body: &body, snapshot: None, parent: None, plan: None };
        batch.add(request).expect("a good request");
    }
    let format = format(HintForm::Text);
    let refused = frame::encode(&batch, format, Encoded::default()).expect_err("too large");
    assert_eq!(refused, AbortReason::Limit);
}
