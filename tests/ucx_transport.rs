//! The UCX adapter against the real library, on loopback and shared memory.
//!
//! Skipped, with a reason printed, where there is no UCX.

mod transport_conformance;

use std::time::Duration;

use kvhints::transfer::transport::{Transport, TransportError};
use kvhints::transfer::ucx::{availability, UcxOptions, UcxTransport};
use transport_conformance::{connected, run, until, Side};

/// False, and says so, where UCX is not installed.
fn ucx_is_here() -> bool {
    match availability() {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

fn options(tls: &str) -> UcxOptions {
    UcxOptions {
        tls: Some(tls.to_owned()),
        net_devices: Some("lo".to_owned()),
        keepalive: Duration::from_millis(200),
        ..UcxOptions::default()
    }
}

fn open(tls: &str) -> UcxTransport {
    UcxTransport::open(options(tls)).expect("UCX starts")
}

fn conforms(tls: &str) {
    if ucx_is_here() {
        run(&mut || (Box::new(open(tls)), Box::new(open(tls))));
    }
}

#[test]
fn conforms_over_tcp() {
    conforms("tcp");
}

#[test]
fn conforms_over_shared_memory() {
    conforms("all");
}

#[test]
fn conforms_over_both() {
    conforms("tcp,shm");
}
