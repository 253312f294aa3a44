//! What goes wrong with peers, one after the other, in a process that has nothing printed.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};

use kvhints::transfer::transport::Transport;
use kvhints::transfer::ucx::{UcxOptions, UcxTransport};

use crate::process::{play as play_part, Peer};
use crate::transport_conformance::{
    alone, connected, data, gone, message, pattern, received, sent, until, whole, Side,
};
use crate::ucx_support::{open, ucx_is_here};

/// Wires that a transport may be told to use.
const WIRES: [&str; 2] = ["tcp", "all"];

#[test]
fn nothing_is_printed_whatever_happens_to_peers() {
    if !ucx_is_here() {
        return;
    }
    let unknown = ("UCX_NO_SUCH_OPTION", "1");
    let nowhere = ("UCX_NET_DEVICES", "no-such-device");
    let wireless = ("UCX_TLS", "no-such-wire");
    play_part("faults", &[]).is_silent();
    for variable in [unknown, nowhere, wireless] {
        play_part("start", &[variable]).is_silent();
    }
}

/// Where the host has UCX itself, its log is the host's to set: at the level that UCX has by itself,
/// what peers do is not worth a line to it.
#[test]
fn what_happens_to_peers_is_not_printed_where_the_log_is_the_hosts() {
    if ucx_is_here() {
        play_part("faults_beside_the_host", &[]).is_silent();
    }
}

/// Without this the test above could look at the wrong place.
#[test]
fn what_an_operator_wants_to_see_is_seen() {
    if ucx_is_here() {
        for level in ["info", "warn"] {
            let seen = play_part("start", &[("UCX_LOG_LEVEL", level)]);
            seen.did_well();
            assert!(seen.written.contains("no-such-device"), "{}", seen.written);
        }
    }
}

/// Everything that can go wrong, once.
pub fn play() {
    play_start();
    play_peers();
}

/// The same with peers, where the host has loaded UCX.
pub fn play_beside_the_host() {
    // SAFETY: what a host does that uses UCX itself.
    let handle = unsafe { libc::dlopen(c"libucp.so.0".as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    play_peers();
}

fn play_peers() {
    for tls in WIRES {
        bytes_that_arrive(tls);
        nobody_there(tls);
        turned_away(tls);
        strangers(tls);
        cut_off_while_sending(tls);
        for sign in [libc::SIGKILL, libc::SIGSTOP] {
            peer_that_answers_no_more(tls, sign);
        }
    }
}

/// Options and variables that make no sense.
pub fn play_start() {
    for (tls, device) in [("no-such-wire", "lo"), ("tcp", "no-such-device")] {
        let options = UcxOptions {
            tls: Some(tls.to_owned()),
            net_devices: Some(device.to_owned()),
            ..UcxOptions::default()
        };
        assert!(UcxTransport::open(options).is_err(), "{tls} over {device}");
    }
    // Where the host says nothing the environment counts. With wires or devices that are none there may be
    // nothing to open, or nobody to connect to.
    let open = || UcxTransport::open(UcxOptions::default());
    let (Ok(mut first), Ok(mut second)) = (open(), open()) else { return };
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let address = b.transport.address().to_vec();
    let Ok(peer) = a.transport.connect(&address) else { return };
    // It may be over by now.
    let _ = a.transport.send_message(peer, b"hello".to_vec());
    until(&mut a, &mut b, "the message, or its end", |a, b| {
        b.take(message).map(drop).or_else(|| a.take(gone(peer)).map(drop))
    });
}

/// Blocks of all sizes go from one transport to another.
pub fn bytes_that_arrive(tls: &str) {
    let (mut first, mut second) = (open(tls), open(tls));
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let (_, a_at_b) = connected(&mut a, &mut b);
    for len in [1, 5_000, 100_000, 3 << 20] {
        let mut source = pattern(len, len as u64);
        let ticket =
            b.transport.send_data(a_at_b, Vec::new(), vec![whole(&mut source)]).expect("open");
        let (.., id) = until(&mut a, &mut b, "the data", |a, _| a.take(data));
        let mut target = vec![0; len];
        let receiving = a.transport.receive_data(id, whole(&mut target)).expect("announced");
        let end = until(&mut a, &mut b, "its end", |a, _| a.take(received(receiving)));
        assert_eq!(end, Ok(()));
        assert_eq!(until(&mut a, &mut b, "its end", |_, b| b.take(sent(ticket))), Ok(()));
        assert!(target == source, "{len} bytes differ");
    }
}

fn nobody_there(tls: &str) {
    let address = open(tls).address().to_vec();
    let mut transport = open(tls);
    let mut side = Side::new(&mut transport);
    // Refused at once, or told later: both are right.
    if let Ok(peer) = side.transport.connect(&address) {
        // It may be over by now.
        let _ = side.transport.send_message(peer, b"anybody?".to_vec());
        alone(&mut side, "the news", |side| side.take(gone(peer)));
    }
}

fn turned_away(tls: &str) {
    let options = UcxOptions {
        tls: Some(tls.to_owned()),
        net_devices: Some("lo".to_owned()),
        max_connections: 1,
        ..UcxOptions::default()
    };
    let (mut first, mut second) = (open(tls), open(tls));
    let mut full = UcxTransport::open(options).expect("UCX starts");
    let mut full = Side::new(&mut full);
    connected(&mut Side::new(&mut first), &mut full);
    let mut refused = Side::new(&mut second);
    let address = full.transport.address().to_vec();
    let peer = refused.transport.connect(&address).expect("a good address");
    refused.transport.send_message(peer, b"me too".to_vec()).expect("open");
    until(&mut refused, &mut full, "the refusal", |refused, _| refused.take(gone(peer)));
}

/// Who is no worker looks whether somebody listens, and goes.
fn strangers(tls: &str) {
    let mut transport = open(tls);
    // As documented: the port is at bytes 10 and 11.
    let port: [u8; 2] = transport.address()[10..12].try_into().expect("an address");
    let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, u16::from_le_bytes(port));
    for _ in 0..3 {
        drop(TcpStream::connect(at).expect("somebody listens"));
        while transport.progress().is_some() {}
    }
    let mut other = open(tls);
    connected(&mut Side::new(&mut other), &mut Side::new(&mut transport));
}

/// A connection is closed by force, with everything under way.
fn cut_off_while_sending(tls: &str) {
    let (mut first, mut second) = (open(tls), open(tls));
    let (mut a, mut b) = (Side::new(&mut first), Side::new(&mut second));
    let (b_at_a, a_at_b) = connected(&mut a, &mut b);
    let mut source = pattern(4 << 20, 1);
    let tickets: Vec<_> = (0..4)
        .map(|_| b.transport.send_data(a_at_b, Vec::new(), vec![whole(&mut source)]).expect("open"))
        .collect();
    let (.., id) = until(&mut a, &mut b, "the data", |a, _| a.take(data));
    let mut target = vec![0; source.len()];
    let receiving = a.transport.receive_data(id, whole(&mut target)).expect("announced");
    a.transport.disconnect(b_at_a);
    until(&mut a, &mut b, "the receive's end", |a, _| a.take(received(receiving))).ok();
    for ticket in tickets {
        until(&mut a, &mut b, "a send's end", |_, b| b.take(sent(ticket))).ok();
    }
    drop(first);
    drop(second);
}

/// A peer is killed, or stands still until it is cut off, in the middle of everything.
fn peer_that_answers_no_more(tls: &str, signal: i32) {
    let mut other = Peer::start(&format!("stuck {tls}"));
    let address = from_digits(&other.line("ADDRESS "));
    let mut transport = open(tls);
    let mut side = Side::new(&mut transport);
    let peer = side.transport.connect(&address).expect("a good address");
    side.transport.send_message(peer, b"go".to_vec()).expect("open");
    let (_, _, len, id) = alone(&mut side, "the data", |side| side.take(data));
    let mut blocks: Vec<Vec<u8>> = (0..4).map(|at| pattern(4 << 20, at)).collect();
    let tickets: Vec<_> = blocks
        .iter_mut()
        .map(|block| side.transport.send_data(peer, Vec::new(), vec![whole(block)]).expect("open"))
        .collect();
    // SAFETY: a signal to a child of ours that was not waited for.
    assert_eq!(unsafe { libc::kill(other.child.id() as i32, signal) }, 0);
    let mut memory = vec![0; len];
    let receiving = side.transport.receive_data(id, whole(&mut memory)).expect("announced");
    if signal == libc::SIGKILL {
        alone(&mut side, "the news", |side| side.take(gone(peer)));
    } else {
        side.transport.disconnect(peer);
    }
    alone(&mut side, "the receive's end", |side| side.take(received(receiving))).ok();
    for ticket in tickets {
        alone(&mut side, "a send's end", |side| side.take(sent(ticket))).ok();
    }
}

/// The peer's part: announces a lot, answers nothing.
pub fn play_stuck(mut line: File, tls: &str) {
    let mut transport = open(tls);
    let digits: String = transport.address().iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(line, "\nADDRESS {digits}").expect("somebody reads it");
    let mut side = Side::new(&mut transport);
    let (peer, _) = alone(&mut side, "a message", |side| side.take(message));
    let mut block = vec![7; 8 << 20];
    for _ in 0..4 {
        side.transport.send_data(peer, Vec::new(), vec![whole(&mut block)]).expect("open");
    }
    alone(&mut side, "the end by force", |_| None::<()>);
}

fn from_digits(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex"))
        .collect()
}
