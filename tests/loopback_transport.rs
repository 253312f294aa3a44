//! The loopback adapter under the suite that every adapter of the transport port has to pass.

mod transport_conformance;

use kvhints::transfer::loopback::LoopbackHub;

#[test]
fn conforms() {
    transport_conformance::run(&mut || {
        let hub = LoopbackHub::new(1);
        (Box::new(hub.transport()), Box::new(hub.transport()))
    });
}
