//! Frozen plain structs that many calls share: borrowed text and bytes.

use std::ffi::c_char;

/// Borrowed UTF-8 text, not NUL-terminated. Valid as long as the object it came from is held.
/// As an argument, data may be NULL where len is 0. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_str_t {
    /// First byte.
    pub data: *const c_char,
    /// Bytes.
    pub len: usize,
}

/// Borrowed bytes. Valid as long as the object they came from is held.
/// As an argument, data may be NULL where len is 0. Frozen.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvh_bytes_t {
    /// First byte.
    pub data: *const u8,
    /// Bytes.
    pub len: usize,
}

impl kvh_str_t {
    pub(crate) fn borrow(text: &str) -> Self {
        Self::borrow_bytes(text.as_bytes())
    }

    /// Text that is known to be UTF-8.
    pub(crate) fn borrow_bytes(text: &[u8]) -> Self {
        Self { data: text.as_ptr().cast(), len: text.len() }
    }

    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), len: 0 };
}

impl kvh_bytes_t {
    pub(crate) fn borrow(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), len: 0 };
}
