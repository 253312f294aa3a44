//! Bindings to UCX, loaded at run time.
