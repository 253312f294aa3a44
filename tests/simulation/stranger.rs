//! Somebody who is no worker and reaches the network: sends nonsense, frames that it overheard, and
//! requests that no worker would send, and does not receive what it is sent.

use kvhints::reuse::Policy;
use kvhints::transfer::block_part::BlockPart;
use kvhints::transfer::protocol::{FetchRequest, Message, RequestKey};
use kvhints::transfer::state::{Incarnation, State};
use kvhints::transfer::transport::{Event, PeerId, Segment, Transport};

use crate::network::{Net, Network, SimulatedTransport};
use crate::prompts::{Prompts, NAMESPACE};
use crate::random::SplitMix;
use crate::worker::{layout_digest, BLOCK_BYTES};

/// The host that strangers are on; no worker is.
pub const HOST: usize = 99;

pub struct Stranger {
    transport: SimulatedTransport,
    peers: Vec<PeerId>,
    // After the transport, which sends from it.
    memory: Vec<u8>,
}

impl Stranger {
    pub fn new(network: &Network) -> Self {
        let transport = Net::transport(network, HOST);
        Self { transport, peers: Vec::new(), memory: vec![7; 4 * BLOCK_BYTES] }
    }

    /// One frame of some kind to that worker.
    pub fn act(
        &mut self,
        network: &Network,
        target: &State,
        rng: &mut SplitMix,
        prompts: &Prompts,
    ) {
        self.listen(rng);
        if self.peers.is_empty() || rng.below(3) == 0 {
            let Ok(peer) = self.transport.connect(&target.ranks[0].address) else { return };
            self.peers.push(peer);
        }
        let nth = rng.below(self.peers.len());
        let peer = self.peers[nth];
        let overheard: Vec<Vec<u8>> = network.lock().overheard.iter().cloned().collect();
        let replayed = overheard.get(rng.below(overheard.len())).cloned().unwrap_or_default();
        let is_gone = match rng.below(8) {
            0 => {
                let nonsense = (0..rng.below(60)).map(|_| rng.below(256) as u8).collect();
                self.transport.send_message(peer, nonsense).is_err()
            }
            1 => self.transport.send_message(peer, replayed).is_err(),
            2 if !overheard.is_empty() => {
                self.transport.send_message(peer, rng.made(&overheard)).is_err()
            }
            3 => {
                let len = BLOCK_BYTES * (1 + rng.below(4));
                let segment = Segment { data: self.memory.as_mut_ptr(), len };
                self.transport.send_data(peer, replayed, vec![segment]).is_err()
            }
            4 => {
                self.transport.disconnect(peer);
                true
            }
            _ => {
                let request = request(target, rng, prompts);
                self.transport.send_message(peer, request).is_err()
            }
        };
        if is_gone {
            self.peers.swap_remove(nth);
        }
    }

    /// Takes note of what comes, and leaves half of the data where it is.
    fn listen(&mut self, rng: &mut SplitMix) {
        while let Some(event) = self.transport.progress() {
            match event {
                Event::Data { id, .. } if rng.below(2) == 0 => self.transport.discard_data(id),
                Event::PeerGone { peer, .. } => self.peers.retain(|other| *other != peer),
                _ => {}
            }
        }
    }
}

/// A request with one thing wrong, or nothing.
fn request(target: &State, rng: &mut SplitMix, prompts: &Prompts) -> Vec<u8> {
    let sequence = prompts.sequence(prompts.any_common(rng));
    let mut request = FetchRequest {
        key: RequestKey {
            destination: Incarnation([rng.below(256) as u8; 16]),
            sequence: rng.below(4) as u64,
        },
        source: target.ranks[0].incarnation,
        namespace: NAMESPACE.to_vec(),
        layout_digest: layout_digest(),
        part: BlockPart::Whole,
        policy: Policy::BestEffort,
        hold_time_ns: u64::MAX,
        skipped_blocks: 0,
        step: 1,
        names: sequence.names().to_vec(),
        tail: sequence.text_tail().expect("memory"),
    };
    let kind = rng.below(6);
    match kind {
        0 => request.namespace.push(b'x'),
        1 => request.layout_digest ^= 1,
        2 => request.source.0[0] ^= 1,
        3 => request.skipped_blocks = u32::MAX,
        _ => {}
    }
    let mut bytes = Message::Fetch(request).encode();
    if kind == 4 {
        // The major version.
        bytes[2] += 1;
    }
    bytes
}
