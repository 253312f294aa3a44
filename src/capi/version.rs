//! Which library this is.

/// The revision of the interface in this header. Grows by one with each addition; an incompatible
/// change gets a new SONAME instead.
pub const KVH_ABI_VERSION: u32 = 1;

/// KVH_ABI_VERSION of the loaded library. At least the header's is needed.
#[unsafe(no_mangle)]
pub extern "C" fn kvh_abi_version() -> u32 {
    KVH_ABI_VERSION
}

/// The library's release, such as "0.1.0"; static.
#[unsafe(no_mangle)]
pub extern "C" fn kvh_version_string() -> *const std::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
