//! The C boundary: the only place with exported symbols, one file for each C object.
//!
//! Each exported function reads its arguments (`args`), calls into a room inside a `guard`,
//! and turns the answer into a [`status`]. Nothing crosses the boundary but integers, plain
//! structs and opaque handles (`handle`); no panic crosses it. The doc comments here become
//! `include/kvhints.h` (`cargo xtask header`), so they speak C.

// The comments become those of the C header, in which brackets are brackets.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]
// C types keep their C names, so that the generated header and this source read alike.
#![allow(non_camel_case_types)]

mod args;
mod fork;
mod guarded;
mod handle;
mod scratch_pool;

pub mod guard;

// In the order of the header, which is the order in which data flows.
pub mod status;

pub mod types;

pub mod version;

pub mod error;

pub mod buffer;

pub mod key_ring;

pub mod context;

pub mod context_log;

pub mod context_status;

pub mod snapshot;

pub mod admit;

pub mod explain;

pub mod envelope_builder;

pub mod capabilities;

pub mod candidates;

pub mod binding_table;

pub mod plan;

pub mod sequence;

pub mod reuse_tree;

pub mod block_range;

pub mod held_blocks;

pub mod reuse_events;

pub mod owned_blocks;

pub mod request;

pub mod batch;

pub mod communicator;

pub mod communicator_ops;

pub mod broadcast;

pub mod loopback;

pub mod block_owner;

pub mod transceiver;

pub mod prefetch;
