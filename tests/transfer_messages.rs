//! The messages between workers: they read back, and hostile bytes are refused, never worse.

use kvhints::reuse::{Name, Policy, TextTail, MAX_TOKENS_PER_BLOCK, TAIL_TRAITS_BYTES};
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
        tail: None,
    }
}

fn tail(adapter_kind: u8, salt_kind: u8, tokens: usize) -> TextTail {
    let mut traits = [0; TAIL_TRAITS_BYTES];
    (traits[0], traits[1]) = (adapter_kind, salt_kind);
    traits[2..34].fill(7 * adapter_kind);
    traits[34..42].fill(9 * salt_kind.min(1));
    traits[42..].fill(9 * (salt_kind / 2));
    let tokens = (0..tokens as i32).map(|token| token - 2).collect();
    TextTail::new(Name([8; 32]), &traits, tokens).expect("traits that can be")
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
        Message::Fetch(FetchRequest { tail: Some(tail(0, 1, 3)), ..request(1) }),
        Message::Fetch(FetchRequest { tail: Some(tail(1, 2, 1)), ..request(2) }),
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
    longest.tail = Some(tail(1, 2, MAX_TOKENS_PER_BLOCK));
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
    // Before the byte that says that there is no tail.
    let count_at = encoded.len() - 5;
    encoded.truncate(count_at + 4);
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

#[test]
fn tails_that_cannot_be_are_refused() {
    let message = |tail| Message::Fetch(FetchRequest { tail: Some(tail), ..request(1) }).encode();
    let good = message(tail(1, 1, 2));
    let kind_at = good.len() - 2 * 4 - 4 - TAIL_TRAITS_BYTES - 32 - 1;
    let traits_at = kind_at + 1 + 32;
    let impossible = Err(WireError::BadValue { what: "tail" });
    // Another kind of tail; kinds of adapter and salt that there are not; values of those without.
    for (at, value) in [
        (kind_at, 2),
        (traits_at, 0),
        (traits_at, 2),
        (traits_at + 1, 0),
        (traits_at + 1, 3),
        (traits_at + TAIL_TRAITS_BYTES - 1, 1),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let read = Message::decode(&bytes).map_err(|unreadable| unreadable.error);
        assert_eq!(read, impossible, "{value} at {at}");
    }
    let mut without_tokens = good[..good.len() - 2 * 4].to_vec();
    let count_at = without_tokens.len() - 4;
    without_tokens[count_at..].fill(0);
    assert_eq!(Message::decode(&without_tokens).map_err(|unreadable| unreadable.error), impossible);
    without_tokens[count_at..].copy_from_slice(&(MAX_TOKENS_PER_BLOCK as u32 + 1).to_le_bytes());
    let too_much = WireError::TooMuch { what: "tail tokens", limit: MAX_TOKENS_PER_BLOCK };
    assert_eq!(Message::decode(&without_tokens).unwrap_err().error, too_much);
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
