//! a batch on rank 0 -> the same batch on every rank.
