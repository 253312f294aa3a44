//! The UCX adapter between transports of one machine: data goes past the wire where UCX's list of
//! wires and the system allow it, over the wire where not, and every ticket ends either way.
//!
//! Skipped, with a reason printed, where there is no UCX.

// Of this it uses what drives two sides.
#[allow(dead_code)]
mod transport_conformance;
mod ucx_support;

use kvhints::transfer::transport::{PeerId, Segment};
use transport_conformance::{connected, data, pattern, received, sent, until, whole, Side};
use ucx_support::{open, ucx_is_here};

const MIB: usize = 1 << 20;

/// UCX's words for shared memory, and what of it the adapter then uses.
const WAYS: [(&str, &[&str]); 3] = [
    ("tcp,sm", &["memory/segment", "memory/process"]),
    ("tcp,posix", &["memory/segment"]),
    ("tcp,cma", &["memory/process"]),
];

/// Two transports whose connection knows its ways: the destination `a`, and the source `b`.
fn with_neighbours(
    tls: &str,
    ways: &[&str],
    test: impl FnOnce(&mut Side, &mut Side, PeerId, PeerId),
) {
    let (mut first, mut second) = (open(tls), open(tls));
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let (b_at_a, a_at_b) = connected(&mut a, &mut b);
    until(&mut a, &mut b, "both knowing how data goes", |a, b| {
        let told = [a.transport.describe(b_at_a), b.transport.describe(a_at_b)];
        let is_known = |told: &String| ways.iter().all(|way| told.contains(way));
        told.iter().all(is_known).then_some(())
    });
    let told = a.transport.describe(b_at_a);
    assert_eq!(told.matches("memory/").count(), ways.len(), "{told}");
    test(&mut a, &mut b, b_at_a, a_at_b);
}

fn run(tls: &str, ways: &[&str], test: impl FnOnce(&mut Side, &mut Side, PeerId, PeerId)) {
    if ucx_is_here() {
        with_neighbours(tls, ways, test);
    }
}

/// Sends `source` from `b` in pieces, last one first, and receives it at `a`.
fn moves(a: &mut Side, b: &mut Side, a_at_b: PeerId, source: &mut [u8], pieces: usize) {
    let piece_bytes = source.len().div_ceil(pieces);
    let mut segments: Vec<Segment> = source.chunks_mut(piece_bytes).map(whole).collect();
    segments.reverse();
    let sending = b.transport.send_data(a_at_b, b"what it is".to_vec(), segments).expect("open");
    let (_, header, len, id) = until(a, b, "the data", |a, _| a.take(data));
    assert_eq!((&header[..], len), (&b"what it is"[..], source.len()));
    let mut target = vec![0; len];
    let receiving = a.transport.receive_data(id, whole(&mut target)).expect("announced");
    assert_eq!(until(a, b, "its end", |a, _| a.take(received(receiving))), Ok(()));
    assert_eq!(until(a, b, "the send's end", |_, b| b.take(sent(sending))), Ok(()));
    let expected: Vec<&[u8]> = source.chunks(piece_bytes).rev().collect();
    assert!(target == expected.concat(), "{len} bytes in {pieces} pieces differ");
}

#[test]
fn data_of_all_sizes_and_pieces_arrives_by_every_way() {
    for (tls, ways) in WAYS {
        run(tls, ways, |a, b, _, a_at_b| {
            let sizes = [(1, 1), (64 << 10, 1), (128 << 10, 4), ((128 << 10) + 1, 3), (MIB, 32)];
            // The last ones are more than a segment has room for, or than is read in place.
            for (len, pieces) in sizes.into_iter().chain([(8 * MIB, 8), (9 * MIB, 9), (MIB, 2000)])
            {
                let mut source = pattern(len, len as u64);
                moves(a, b, a_at_b, &mut source, pieces);
            }
        });
    }
}

#[test]
fn nothing_goes_past_the_wire_where_only_tcp_is_allowed() {
    if !ucx_is_here() {
        return;
    }
    for (ours, theirs) in [("tcp", "tcp"), ("tcp", "tcp,sm"), ("tcp,sm", "tcp")] {
        let (mut first, mut second) = (open(ours), open(theirs));
        let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
        let (b_at_a, a_at_b) = connected(&mut a, &mut b);
        let mut source = pattern(2 * MIB, 1);
        for _ in 0..3 {
            moves(&mut a, &mut b, a_at_b, &mut source, 2);
        }
        for told in [a.transport.describe(b_at_a), b.transport.describe(a_at_b)] {
            assert!(!told.contains("memory/"), "{ours} and {theirs}: {told}");
        }
    }
}

#[test]
fn more_than_a_segment_holds_arrives_in_order_and_whole() {
    for (tls, ways) in WAYS {
        run(tls, ways, |a, b, _, a_at_b| {
            let mut sources: Vec<Vec<u8>> = (0..20).map(|seed| pattern(MIB, seed)).collect();
            let tickets: Vec<_> = sources
                .iter_mut()
                .zip(0u8..)
                .map(|(source, at)| b.transport.send_data(a_at_b, vec![at], vec![whole(source)]))
                .collect();
            let mut targets = vec![vec![0u8; MIB]; sources.len()];
            for (at, target) in targets.iter_mut().enumerate() {
                let (_, header, _, id) = until(a, b, "the data", |a, _| a.take(data));
                assert_eq!(header, [at as u8]);
                let receiving = a.transport.receive_data(id, whole(target)).expect("announced");
                assert_eq!(until(a, b, "its end", |a, _| a.take(received(receiving))), Ok(()));
            }
            for ticket in tickets {
                let ticket = ticket.expect("open");
                assert_eq!(until(a, b, "a send's end", |_, b| b.take(sent(ticket))), Ok(()));
            }
            assert!(targets == sources);
        });
    }
}

#[test]
fn what_is_discarded_leaves_room_for_what_follows() {
    for (tls, ways) in WAYS {
        run(tls, ways, |a, b, _, a_at_b| {
            let mut source = pattern(MIB, 3);
            for _ in 0..40 {
                let segments = vec![whole(&mut source)];
                let sending = b.transport.send_data(a_at_b, Vec::new(), segments).expect("open");
                let (_, _, _, id) = until(a, b, "the data", |a, _| a.take(data));
                a.transport.discard_data(id);
                until(a, b, "the send's end", |_, b| b.take(sent(sending))).expect("it was taken");
            }
            moves(a, b, a_at_b, &mut source, 1);
        });
    }
}

#[test]
fn tickets_end_with_their_connection_and_others_go_on() {
    for (tls, ways) in WAYS {
        for source_leaves in [true, false] {
            run(tls, ways, |a, b, b_at_a, a_at_b| {
                let mut source = pattern(MIB, 5);
                // As many as the segment has room for: what goes over the wire may be there already.
                let tickets: Vec<_> = (0..6)
                    .map(|_| b.transport.send_data(a_at_b, Vec::new(), vec![whole(&mut source)]))
                    .collect();
                let (_, _, len, id) = until(a, b, "the data", |a, _| a.take(data));
                match source_leaves {
                    true => b.transport.disconnect(a_at_b),
                    false => a.transport.disconnect(b_at_a),
                }
                for ticket in tickets {
                    let ticket = ticket.expect("open");
                    let end = until(a, b, "a send's end", |_, b| b.take(sent(ticket)));
                    assert!(end.is_err(), "nobody took it");
                }
                if !source_leaves {
                    let mut target = vec![0u8; len];
                    let late = a.transport.receive_data(id, whole(&mut target));
                    assert!(late.is_err(), "its connection is over");
                }
                a.events.clear();
                b.events.clear();
                // All of the segment is free again.
                let (_, a_at_b) = connected(a, b);
                moves(a, b, a_at_b, &mut source, 4);
            });
        }
    }
}
