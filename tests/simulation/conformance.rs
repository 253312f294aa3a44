//! The simulated adapter under the suite that every adapter of the transport port has to pass: in fair
//! weather it keeps the whole contract, so what goes wrong otherwise is the weather's doing.

use std::sync::Arc;
use std::time::Duration;

use kvhints::transfer::transport::{Event, Transport};
use parking_lot::Mutex;

use crate::clock::{WorldClock, MS};
use crate::forwarding::{Around, Forwarding};
use crate::network::{Net, Network, SimulatedTransport, Weather};
use crate::transport_conformance;

/// A station whose network goes on whenever it is looked at.
struct Driven {
    inner: SimulatedTransport,
    network: Network,
    clock: Arc<WorldClock>,
}

impl Around for Driven {
    fn inner(&self) -> &dyn Transport {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Transport {
        &mut self.inner
    }

    fn progress(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.inner.progress() {
                return Some(event);
            }
            let mut net = self.network.lock();
            let next_ns = net.next_ns()?;
            self.clock.advance_to(next_ns.max(self.clock.now_ns()));
            net.arrive();
        }
    }

    fn wait(&mut self, _: Duration) {
        // Time passes when somebody looks.
    }
}

#[test]
fn conforms() {
    let mut seed = 0;
    transport_conformance::run(&mut || {
        seed += 1;
        let clock = Arc::new(WorldClock::default());
        let weather = Weather { delay_ns: MS, ..Weather::default() };
        let net = Net::new(Arc::clone(&clock), seed, weather);
        let network: Network = Arc::new(Mutex::new(net));
        let station = |host| -> Box<dyn Transport> {
            let inner = Net::transport(&network, host);
            let (network, clock) = (Arc::clone(&network), Arc::clone(&clock));
            Box::new(Forwarding(Driven { inner, network, clock }))
        };
        (station(0), station(1))
    });
}
