//! bytes -> [`Snapshot`]: scan, admission, snapshot, MessagePack. Pure.
