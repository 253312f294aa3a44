//! The memory that one scan needs, kept for the next one.

use super::judge::ActionSpans;
use super::limits::SCRATCH_MAX_BYTES;
use super::msgpack::Slots;
use super::names::Names;
use super::scan::{ContainerStack, Width};

/// Scratch memory for one scan at a time. Empty at first; grows to what was needed, within
/// [`SCRATCH_MAX_BYTES`] between two hints.
#[derive(Debug)]
pub struct Scratch {
    pub(super) width: Width,
    pub(super) stack: ContainerStack,
    pub(super) canonical: Vec<u8>,
    pub(super) names: Names,
    pub(super) actions: Vec<ActionSpans>,
    pub(super) slots: Slots,
}

impl Scratch {
    /// Scratch whose table of names is keyed by `seed`, which senders must not be able to guess.
    pub fn new(seed: u64) -> Self {
        Self::of_width(Width::widest(), seed)
    }

    /// The same for scans that use no wide registers, even where the CPU has them: what other CPUs
    /// run, and whoever compares the two ways.
    pub fn portable(seed: u64) -> Self {
        Self::of_width(Width::PORTABLE, seed)
    }

    fn of_width(width: Width, seed: u64) -> Self {
        Self {
            width,
            stack: ContainerStack::default(),
            canonical: Vec::new(),
            names: Names::new(seed),
            actions: Vec::new(),
            slots: Slots::default(),
        }
    }

    /// Memory held, in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.stack.capacity_bytes()
            + self.canonical.capacity()
            + self.names.capacity_bytes()
            + self.actions.capacity() * size_of::<ActionSpans>()
            + self.slots.capacity_bytes()
    }

    /// Gives back what only an unusual input needed, such as a body that is very deep.
    pub fn trim(&mut self) {
        if self.capacity_bytes() > SCRATCH_MAX_BYTES {
            self.stack = ContainerStack::default();
            self.slots = Slots::default();
        }
    }
}
