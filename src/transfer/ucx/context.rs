//! UCX opened and set up: the functions and one `ucp_context`, shared by a transport's workers.
//!
//! Guards: UCX's options are set through its own calls, the environment is only read (by UCX).
//! An operator's `UCX_*` variables count where this transport does not insist.

use std::ffi::CString;

use ucx_sys::{ucp_config_t, ucp_context_h, ucp_params_t, Library, Ucx};

use super::UcxOptions;
use crate::transfer::transport::TransportError;

/// See the module.
pub(super) struct Context {
    library: Library,
    handle: ucp_context_h,
}

// SAFETY: UCX allows calls on a context from any thread, one at a time; it is only used when a
// worker is created or destroyed, and by the one thread that drives the transport.
unsafe impl Send for Context {}
// SAFETY: as above; shared between the workers of one transport, which one thread drives.
unsafe impl Sync for Context {}

impl Context {
    pub fn open(options: &UcxOptions) -> Result<Self, TransportError> {
        let library = open_library()?;
        let handle = ucx_sys::with_signals_kept(|| create(&library, options))?;
        Ok(Self { library, handle })
    }

    pub fn ucx(&self) -> &Ucx {
        &self.library.ucx
    }

    #[cfg(test)]
    pub fn ucx_mut(&mut self) -> &mut Ucx {
        &mut self.library.ucx
    }

    pub fn handle(&self) -> ucp_context_h {
        self.handle
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and every worker holds a reference to this context, so none
        // is left.
        unsafe { self.ucx().ucp_cleanup(self.handle) };
    }
}

/// Opens the library. Where nobody else brought UCX into the process, its log is silenced: it
/// would write to the host's output. Where the host did, or where the operator set a level, it is
/// left as it is; so are the lines that UCX may write while it is being loaded.
pub(super) fn open_library() -> Result<Library, TransportError> {
    let library =
        Library::open().map_err(|error| TransportError::Unavailable(error.to_string()))?;
    if library.is_first && std::env::var_os("UCX_LOG_LEVEL").is_none() {
        // A UCX without the option writes what it would have written.
        let _ = library.ucx.set_process_option("LOG_LEVEL", "fatal");
    }
    Ok(library)
}

fn create(library: &Library, options: &UcxOptions) -> Result<ucp_context_h, TransportError> {
    let config = Config::read(&library.ucx)?;
    // A peer must never get a key to write here, and UCX would choose that for some wires.
    config.set("RNDV_SCHEME", "get_zcopy")?;
    config.set("KEEPALIVE_INTERVAL", &format!("{}us", options.keepalive.as_micros().max(1)))?;
    // Else UCX 1.13 greets inside of its connecting call over TCP, and ends the process with a
    // failed assertion where the other side dies in between.
    config.set_of_tcp("CONN_NB", "y")?;
    // UCX sends 8 KiB at a time and takes 64; with these, blocks move a third faster.
    for (name, bytes) in [("TX_SEG_SIZE", "256k"), ("RX_SEG_SIZE", "1m")] {
        if std::env::var_os(format!("UCX_TCP_{name}")).is_none() {
            config.set_of_tcp(name, bytes)?;
        }
    }
    // The newer way of choosing protocols, the default of 1.22, keeps sends whose connection was closed
    // by force until the peer takes them: a peer that stands still would keep blocks pinned for ever.
    // With a UCX that does not know the name there is nothing to choose.
    if std::env::var_os("UCX_PROTO_ENABLE").is_none() {
        let _ = config.set("PROTO_ENABLE", "n");
    }
    if options.port != 0 {
        // A worker that died a moment ago leaves connections behind that would keep its port from the
        // next. With a UCX that knows neither name they do.
        let _ = config.set("CM_REUSEADDR", "y").or_else(|_| config.set("TCP_CM_REUSEADDR", "y"));
    }
    if let Some(tls) = &options.tls {
        config.set("TLS", tls)?;
    }
    if let Some(devices) = &options.net_devices {
        config.set("NET_DEVICES", devices)?;
    }
    // SAFETY: all-zero bytes are a valid value; only the masked field is read.
    let mut params: ucp_params_t = unsafe { std::mem::zeroed() };
    params.field_mask = u64::from(ucx_sys::UCP_PARAM_FIELD_FEATURES);
    params.features = u64::from(ucx_sys::UCP_FEATURE_AM | ucx_sys::UCP_FEATURE_WAKEUP);
    let (major, minor) = library.version.api();
    let mut handle = std::ptr::null_mut();
    // SAFETY: the structs are those of the API version named here, and live during the call.
    let status =
        unsafe { library.ucx.ucp_init_version(major, minor, &params, config.handle, &mut handle) };
    if status != ucx_sys::UCS_OK {
        return Err(TransportError::Unavailable(format!(
            "UCX {} cannot start: {}",
            library.version,
            library.ucx.status_text(status)
        )));
    }
    Ok(handle)
}

/// UCX's options on their way into a context.
struct Config<'a> {
    ucx: &'a Ucx,
    handle: *mut ucp_config_t,
}

impl<'a> Config<'a> {
    fn read(ucx: &'a Ucx) -> Result<Self, TransportError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: NULL means UCX's own prefix and no file.
        let status =
            unsafe { ucx.ucp_config_read(std::ptr::null(), std::ptr::null(), &mut handle) };
        if status != ucx_sys::UCS_OK {
            return Err(TransportError::Unavailable(format!(
                "UCX cannot read its options (see the UCX_* variables): {}",
                ucx.status_text(status)
            )));
        }
        Ok(Self { ucx, handle })
    }

    fn set(&self, name: &str, value: &str) -> Result<(), TransportError> {
        let refused = |why: String| {
            TransportError::Unavailable(format!("UCX refuses {name}={value:?}: {why}"))
        };
        let c_name = CString::new(name).map_err(|error| refused(error.to_string()))?;
        let c_value = CString::new(value).map_err(|error| refused(error.to_string()))?;
        // SAFETY: a live configuration and two C strings, copied during the call.
        let status =
            unsafe { self.ucx.ucp_config_modify(self.handle, c_name.as_ptr(), c_value.as_ptr()) };
        if status == ucx_sys::UCS_OK {
            Ok(())
        } else {
            Err(refused(self.ucx.status_text(status)))
        }
    }
}

impl Config<'_> {
    /// Sets an option of the TCP wire. Old releases take such options without the wire's name, and
    /// believe any name; 1.22 takes the whole one only.
    fn set_of_tcp(&self, name: &str, value: &str) -> Result<(), TransportError> {
        self.set(name, value).or_else(|_| self.set(&format!("TCP_{name}"), value))
    }
}

impl Drop for Config<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, released once.
        unsafe { self.ucx.ucp_config_release(self.handle) };
    }
}
