//! The messages between workers: they read back, and hostile bytes are refused, never worse.

use kvhints::reuse::{Name, Policy};
use kvhints::transfer::block_part::{BlockPart, HeadRange};
use kvhints::transfer::protocol::{
    Answer, DataHeader, FetchRequest, Message, RequestKey, MAX_BLOCKS_PER_REQUEST,
    MAX_BLOCKS_PER_RUN,
};
use kvhints::transfer::reason::RefuseReason;
use kvhints::transfer::state::Incarnation;
use kvhints::transfer::transport::MAX_MESSAGE_BYTES;
use kvhints::transfer::WireError;
use proptest::prelude::*;

const KEY: RequestKey = RequestKey { destination: Incarnation([3; 16]), sequence: 77 };

fn request(names: usize) -> FetchRequest {
    FetchRequest {
        key: KEY,
        source: Incarnation([4; 16]),
        namespace: b"model@7".to_vec(),
        layout_digest: 0x1234_5678_9abc_def0,
        part: BlockPart::Whole,
        policy: Policy::BestEffort,
        hold_time_ns: 5,
        skipped_blocks: 1,
        step: 1,
        names: (0..names).map(|index| Name([index as u8; 32])).collect(),
    }
}

fn part(layers: usize) -> BlockPart {
    let heads = (0..layers as u32).map(|first| HeadRange { first, count: 3 }).collect();
    BlockPart::Heads { first_layer: 7, heads }
}

fn all_messages() -> Vec<Message> {
    vec![
        Message::Fetch(request(3)),
        Message::Fetch(FetchRequest { policy: Policy::Strict, ..request(0) }),
        Message::Fetch(FetchRequest { part: part(2), step: 2, ..request(4) }),
        Message::Answer(KEY, Answer::Accepted { block_hashes: vec![1, u64::MAX] }),
        Message::Answer(KEY, Answer::Missing { present: 9 }),
        Message::Answer(KEY, Answer::Refused(RefuseReason::Busy)),
        Message::Cancel(KEY),
    ]
}

fn header() -> DataHeader {
    DataHeader { key: KEY, first_block: 5, checksums: vec![1, 2, 3] }
}

#[test]
fn messages_read_back_and_fit() {
    for message in all_messages() {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
    assert_eq!(DataHeader::decode(&header().encode()), Ok(header()));
    let mut longest = request(MAX_BLOCKS_PER_REQUEST);
    longest.namespace = vec![0; kvhints::transfer::state::MAX_NAMESPACE_BYTES];
    longest.part = part(kvhints::transfer::layout::MAX_LAYOUT_ENTRIES);
    let longest = Message::Fetch(longest);
    let encoded = longest.encode();
    assert!(encoded.len() <= MAX_MESSAGE_BYTES);
    assert_eq!(Message::decode(&encoded), Ok(longest));
}

#[test]
fn cuts_and_tails_are_refused() {
    for message in all_messages() {
        let encoded = message.encode();
        for len in 0..encoded.len() {
            let unreadable = Message::decode(&encoded[..len]).unwrap_err();
            assert_eq!(unreadable.error, WireError::Truncated, "{message:?} cut at {len}");
        }
        let mut longer = encoded;
        longer.push(0);
        assert_eq!(Message::decode(&longer).unwrap_err().error, WireError::TrailingBytes);
    }
}

#[test]
fn a_request_of_another_major_version_is_named_with_its_key() {
    let mut encoded = Message::Fetch(request(1)).encode();
    encoded[2] = 2;
    encoded.truncate(40);
    let unreadable = Message::decode(&encoded).unwrap_err();
    assert_eq!(unreadable.error, WireError::OtherMajor { found: 2, ours: 1 });
    assert_eq!(unreadable.request, Some(KEY), "so that it can be refused");
    let mut cancel = Message::Cancel(KEY).encode();
    cancel[2] = 2;
    assert_eq!(Message::decode(&cancel).unwrap_err().request, None, "nothing to answer");
}

#[test]
fn counts_above_their_bounds_are_refused_before_anything_is_allocated() {
    let mut encoded = Message::Fetch(request(0)).encode();
    let count_at = encoded.len() - 4;
    encoded[count_at..].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Message::decode(&encoded).unwrap_err().error;
    assert_eq!(error, WireError::TooMuch { what: "names", limit: MAX_BLOCKS_PER_REQUEST });
    encoded[count_at..].copy_from_slice(&(MAX_BLOCKS_PER_REQUEST as u32).to_le_bytes());
    assert_eq!(Message::decode(&encoded).unwrap_err().error, WireError::Truncated);
    let empty = DataHeader { checksums: Vec::new(), ..header() };
    let mut encoded = empty.encode();
    let count_at = encoded.len() - 4;
    encoded[count_at..].copy_from_slice(&(MAX_BLOCKS_PER_RUN as u32 + 1).to_le_bytes());
    let too_much = WireError::TooMuch { what: "checksums", limit: MAX_BLOCKS_PER_RUN };
    assert_eq!(DataHeader::decode(&encoded), Err(too_much));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn changed_bytes_decode_to_what_encodes_to_them_or_not_at_all(
        which in 0usize..7,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut encoded = all_messages()[which].encode();
        for (at, value) in changes {
            let at = at.index(encoded.len());
            encoded[at] = value;
        }
        if let Ok(message) = Message::decode(&encoded) {
            prop_assert_eq!(message.encode(), encoded);
        }
    }

    #[test]
    fn changed_headers_decode_to_what_encodes_to_them_or_not_at_all(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut encoded = header().encode();
        for (at, value) in changes {
            let at = at.index(encoded.len());
            encoded[at] = value;
        }
        if let Ok(header) = DataHeader::decode(&encoded) {
            prop_assert_eq!(header.encode(), encoded);
        }
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        kind in 0u8..6,
    ) {
        let mut marked = b"KT\x01".to_vec();
        marked.push(kind);
        marked.extend_from_slice(&bytes);
        for bytes in [&bytes, &marked] {
            if let Ok(message) = Message::decode(bytes) {
                prop_assert_eq!(&message.encode(), bytes);
            }
            if let Ok(header) = DataHeader::decode(bytes) {
                prop_assert_eq!(&header.encode(), bytes);
            }
            let _ = kvhints::transfer::state::State::decode(bytes);
        }
    }
}
