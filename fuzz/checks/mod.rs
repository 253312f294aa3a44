//! What the fuzzers check. Each check is a function of bytes, so that the fuzzers and the tests that
//! replay their corpora run the same code.
//!
//! | file | subject |
//! |---|---|
//! | [`admission`] | bytes as a hint, against the slow reference of the tests |
//! | [`envelopes`] | envelopes drawn by bytes, damaged on purpose; then as above |
//! | [`bodies`] | request bodies drawn by bytes, against a slow splitter |
//! | [`frame`] | what ranks receive: refused, or a batch of which all can be read |
//! | [`bytes`], [`json`], [`msgpack`], [`draw`] | how bytes become inputs |
//! | [`tally`] | what was seen; a zero fails a run |
//!
//! Never does: have an opinion on a hint that is the library's own.

// Each user takes a part of it.
#![allow(dead_code)]

pub mod admission;
pub mod bodies;
mod bytes;
mod draw;
pub mod envelopes;
pub mod frame;
mod json;
mod msgpack;
pub mod tally;

use tally::Tally;

/// One fuzzer: what it checks, and what it has to see.
pub struct Check {
    /// Also the name of its corpus.
    pub name: &'static str,
    /// Checks one input and counts what it was; panics where the library is wrong.
    pub run: fn(&[u8], &mut Tally),
    /// What there must be some of in the end.
    pub kinds: fn() -> Vec<String>,
}
