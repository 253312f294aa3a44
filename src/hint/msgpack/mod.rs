//! MessagePack: canonical JSON -> the same value, and one value -> canonical JSON.
//!
//! Guards: lengths that the bytes cannot hold, depth (no recursion either way), map keys that are
//! no strings, binary and extension types, floats that are no numbers.
//! Never does: judge an envelope; that is for the text it makes.

mod decode;
mod encode;
pub mod skip;
mod slots;

pub use decode::{decode, Decoded, NIL};
pub use encode::encode;
pub use slots::{Slot, Slots};
