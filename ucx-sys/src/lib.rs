//! Bindings to UCX, whose `libucp.so.0` is opened at run time.
//!
//! What it is for: calling UCX without linking it, so that a machine without UCX runs everything
//! else. [`Library::open`] finds every function of [`Ucx`] or fails; nothing is looked up later.
//!
//! Guards: a second copy of UCX (a loaded one is taken first, whatever it is called), a release that is too
//! old, and the host's signal handlers (see [`with_signals_kept`]).
//! Never does: change the environment, or unload UCX, whose threads and memory hooks stay.

// Generated; its names are UCX's own.
#[allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    dead_code,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
mod bindings;
mod library;
mod signals;

pub use bindings::*;
pub use library::{Library, OpenError, Version, LIBRARY, OLDEST};
pub use signals::with_signals_kept;
