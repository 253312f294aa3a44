//! Opening `libucp.so.0` and finding all functions in it.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use libloading::os::unix::{Library as DynamicLibrary, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::{Ucx, UCP_API_MAJOR, UCP_API_MINOR};
use crate::signals::with_signals_kept;

/// What is opened: the SONAME, so that the loader's own search and an already loaded copy count.
pub const LIBRARY: &str = "libucp.so.0";

/// The oldest release that has the functions and structs of the bindings.
pub const OLDEST: Version = Version { major: UCP_API_MAJOR, minor: 12, release: 0 };

/// A release of UCX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number; the bindings' and the library's are the same.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub release: u32,
}

impl Version {
    /// The API numbers to name to `ucp_init_version`: UCX warns of a caller newer than itself, and
    /// a caller that asks for no more than both know is none.
    pub fn api(&self) -> (u32, u32) {
        (UCP_API_MAJOR, self.minor.min(UCP_API_MINOR))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}

/// Why UCX cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// The library, or one that it needs, is not installed.
    Missing(String),
    /// The library lacks a function.
    Symbol(String),
    /// The library is of another age.
    Version(Version),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(cause) => {
                write!(f, "{LIBRARY} cannot be opened, install UCX {OLDEST} or newer: {cause}")
            }
            Self::Symbol(cause) => {
                write!(f, "{LIBRARY} lacks a function, install UCX {OLDEST} or newer: {cause}")
            }
            Self::Version(found) => write!(
                f,
                "{LIBRARY} is release {found}, expected {OLDEST} or newer of the same first number"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

/// UCX, opened. Dropping it closes this handle; the library itself stays loaded.
pub struct Library {
    /// Its functions.
    pub ucx: Ucx,
    /// Its release.
    pub version: Version,
    /// Whether this call loaded UCX into the process: then nobody else set it up before.
    pub is_first: bool,
}

impl Library {
    /// Opens [`LIBRARY`]: the copy that is loaded already, whatever its file is called, else the one that
    /// the loader finds.
    pub fn open() -> Result<Self, OpenError> {
        Self::open_named(LIBRARY)
    }

    fn open_named(name: &str) -> Result<Self, OpenError> {
        with_signals_kept(|| {
            let (library, is_first) = load(name)?;
            // SAFETY: the functions have the types that the headers of this SONAME declare.
            let ucx = unsafe { Ucx::from_library(library) }
                .map_err(|error| OpenError::Symbol(error.to_string()))?;
            let version = version_of(&ucx);
            if version < OLDEST || version.major != OLDEST.major {
                return Err(OpenError::Version(version));
            }
            Ok(Self { ucx, version, is_first })
        })
    }
}

fn load(name: &str) -> Result<(DynamicLibrary, bool), OpenError> {
    // Never unloaded: UCX leaves threads and patched functions behind that need its code.
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: RTLD_NOLOAD runs no code of a library.
    if let Ok(loaded) = unsafe { DynamicLibrary::open(Some(name), flags | libc::RTLD_NOLOAD) } {
        return Ok((loaded, false));
    }
    if let Some(path) = renamed_copy_of(name) {
        // SAFETY: RTLD_NOLOAD runs no code of a library.
        if let Ok(loaded) = unsafe { DynamicLibrary::open(Some(path), flags | libc::RTLD_NOLOAD) } {
            return Ok((loaded, false));
        }
    }
    // SAFETY: UCX's constructors may run in any thread at any time; what they do to signals is
    // undone by the caller.
    match unsafe { DynamicLibrary::open(Some(name), flags) } {
        Ok(library) => Ok((library, true)),
        Err(error) => Err(OpenError::Missing(error.to_string())),
    }
}

/// The file of a loaded library whose name begins as that one does: packages that bring a UCX of their own
/// call it `libucp-2c6f1a9b.so.0.0.0` or the like, and in it too. A second copy beside such a one would
/// find the first one's functions for its own where those are visible to all, and both would patch the
/// process's memory functions.
fn renamed_copy_of(name: &str) -> Option<OsString> {
    struct Search<'a> {
        stem: &'a [u8],
        found: Option<OsString>,
    }

    unsafe extern "C" fn look_at(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut libc::c_void,
    ) -> i32 {
        // SAFETY: what was handed over below, for the time of the call.
        let search = unsafe { &mut *search.cast::<Search<'_>>() };
        // SAFETY: the loader describes a loaded library, whose name lasts until this returns.
        let name = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: a C string, as above.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let is_one = file.strip_prefix(search.stem).is_some_and(|rest| {
            matches!(rest.first(), Some(b'-' | b'_' | b'.'))
                && rest.windows(3).any(|at| at == b".so")
        });
        if is_one {
            search.found = Some(OsStr::from_bytes(path).to_owned());
        }
        i32::from(is_one)
    }

    let stem = name.split(".so").next().unwrap_or(name).as_bytes();
    let mut search = Search { stem, found: None };
    // SAFETY: the callback gets what it expects, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(look_at), std::ptr::from_mut(&mut search).cast()) };
    search.found
}

fn version_of(ucx: &Ucx) -> Version {
    let mut version = Version { major: 0, minor: 0, release: 0 };
    // SAFETY: three writable numbers.
    unsafe {
        ucx.ucp_get_version(&mut version.major, &mut version.minor, &mut version.release);
    }
    version
}

impl Ucx {
    /// Sets one of the options that UCX keeps for the whole process; false if it has no such one.
    pub fn set_process_option(&self, name: &str, value: &str) -> bool {
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else {
            return false;
        };
        // SAFETY: two C strings, copied during the call.
        let status = unsafe { self.ucs_global_opts_set_value(name.as_ptr(), value.as_ptr()) };
        status == crate::bindings::UCS_OK
    }

    /// UCX's own words for a status.
    pub fn status_text(&self, status: crate::bindings::ucs_status_t) -> String {
        // SAFETY: any number is allowed; the text is static, or a buffer of the calling thread.
        let text = unsafe { std::ffi::CStr::from_ptr(self.ucs_status_string(status)) };
        text.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_says_what_to_install() {
        let error = Library::open_named("libucp-of-nobody.so.0").err().expect("no such library");
        assert!(matches!(error, OpenError::Missing(_)));
        assert!(error.to_string().contains("install UCX 1.12"), "{error}");
    }

    #[test]
    fn loaded_libraries_are_found_by_how_their_names_begin() {
        // SAFETY: a function of the library looked for, so that it is loaded.
        assert_ne!(unsafe { libc::getpid() }, 0);
        let found = renamed_copy_of("libc.so.6").expect("the C library is loaded");
        assert!(found.to_string_lossy().contains("/libc"), "{found:?}");
        assert_eq!(renamed_copy_of("lib.so.6"), None, "no part of a word");
        assert_eq!(renamed_copy_of("libc-of-nobody.so.6"), None);
    }

    #[test]
    fn a_library_without_the_functions_is_an_error() {
        let error = Library::open_named("libc.so.6").err().expect("no UCX");
        assert!(matches!(error, OpenError::Symbol(_)), "{error}");
    }

    #[test]
    fn the_api_asked_for_is_never_newer_than_the_library() {
        let of = |minor| Version { major: 1, minor, release: 0 }.api();
        assert_eq!(of(12), (1, 12));
        assert_eq!(of(22), (1, UCP_API_MINOR));
    }
}
