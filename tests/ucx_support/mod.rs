//! What tests over the real UCX share.

use std::io::Write;
use std::time::Duration;

use kvhints::transfer::ucx::{availability, UcxOptions, UcxTransport};

/// False, and says so, where UCX is not installed.
pub fn ucx_is_here() -> bool {
    match availability() {
        Ok(_) => true,
        Err(error) => {
            // Past the harness, which keeps what a passing test prints to itself: skips are counted.
            writeln!(std::io::stdout().lock(), "\nSKIPPED: {error}").expect("somebody reads it");
            false
        }
    }
}

/// A transport on the loopback device that may use these wires, and soon notices a dead peer.
pub fn open(tls: &str) -> UcxTransport {
    let options = UcxOptions {
        tls: Some(tls.to_owned()),
        net_devices: Some("lo".to_owned()),
        keepalive: Duration::from_millis(200),
        ..UcxOptions::default()
    };
    UcxTransport::open(options).expect("UCX starts")
}
