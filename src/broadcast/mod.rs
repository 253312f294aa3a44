//! A batch on rank 0 -> the same batch on every rank.
//!
//! | file | subject |
//! |---|---|
//! | [`batch`] | what travels: requests with bodies, snapshots, parents, plans |
//! | [`packed`] | hints as fewer bytes: decimal block hashes as eight bytes each |
//! | [`header`], [`frame`] | the wire: a fixed header, a table, the data; checksummed, bounded |
//! | [`pool`] | buffers used again |
//! | [`communicator`] | the port to the other ranks; adapters [`local`] and `mpi` (and callbacks, in `capi`) |
//! | [`settings`] | what all ranks must have alike |
//! | [`topology`] | who gets a message from whom: one broadcast, then chains of sends |
//! | [`round`] | one batch to all ranks, whatever is wrong with it |
//! | [`agreement`] | the smallest of all ranks' values, and whether all ranks are well |
//!
//! Guards: every rank takes part in every collective call, also with bad input or after a fault of
//! the library, because a rank that stays away leaves the others waiting. What comes over the wire
//! is checked like any foreign bytes. Never does: start MPI, end it, or call it from a destructor.

pub mod agreement;
pub mod batch;
pub mod communicator;
pub mod frame;
pub mod header;
pub mod limits;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod packed;
pub mod pool;
pub mod round;
pub mod settings;
pub mod topology;
