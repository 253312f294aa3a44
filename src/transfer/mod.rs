//! Blocks from worker to worker: the source's side, the destination's side, and what they share.
//!
//! | file | what |
//! |---|---|
//! | `transceiver` | a rank's end of all transfers: composes the rest, answers the host |
//! | `driver`, `cores` | its one thread, and where it runs: transport events in, the two sides' work out |
//! | `source` | serves requests for names: pin, answer, send, unpin |
//! | `destination`, `attempt` | asks a source, receives, verifies; what host and thread share of one fetch |
//! | `prefetch` | the life cycle of one fetch, a pure state machine |
//! | `loans` | which of the host's blocks are lent, and until when |
//! | `state_source` | the port through which other workers' states come |
//! | `metadata`, `http` | states of other workers, fetched; this worker's, served |
//! | `state`, `layout` | what a worker says of itself; whether two workers store the same |
//! | `rank_map`, `share`, `block_part` | what one rank takes from which ranks, where workers are cut differently |
//! | `sources` | how far each rank that a fetch asks came |
//! | `protocol`, `wire` | messages between the two sides, and their bytes |
//! | `gate`, `session` | who is heard: proof, both ways, that a peer holds one of the host's keys |
//! | `block_owner`, `memory`, `device` | whose blocks are exchanged, and where they lie: host memory, or a device's |
//! | `copying` | how many blocks at once are copied |
//! | `staging` | memory of the library's own between blocks and wire |
//! | `reason` | closed lists of why something failed or was refused |
//! | `transport` | the port through which bytes leave the process; adapters: `loopback`, `ucx` |

pub mod attempt;
pub mod block_owner;
pub mod block_part;
mod checked_copy;
mod copying;
mod cores;
mod destination;
pub mod device;
mod driver;
pub mod gate;
pub mod http;
pub mod layout;
mod loans;
pub mod loopback;
pub mod memory;
mod metadata;
pub mod prefetch;
pub mod protocol;
pub mod rank_map;
pub mod reason;
pub mod session;
pub mod share;
mod source;
pub mod sources;
pub mod staging;
pub mod state;
pub mod state_source;
pub mod transceiver;
pub mod transport;
pub mod ucx;
mod wire;

pub use wire::WireError;
