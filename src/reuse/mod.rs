//! tokens -> names; the tree of blocks, pins.
