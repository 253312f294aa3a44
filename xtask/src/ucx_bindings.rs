//! `ucx-sys/src/bindings.rs`, generated from the UCX headers of this machine.
//!
//! Only what `src/transfer/ucx` uses is listed, so that the committed file stays readable and a
//! change of it can be judged. Enumerations become plain constants: a newer UCX may return values
//! that the header did not know.

use std::path::Path;

use anyhow::{Context, Result};

const HEADER: &str = "#include <ucp/api/ucp.h>\n#include <ucs/config/global_opts.h>\n";

/// Functions that are resolved at run time, all of them, when the library is opened.
const FUNCTIONS: &[&str] = &[
    "ucp_get_version",
    "ucp_config_read",
    "ucp_config_modify",
    "ucp_config_release",
    "ucp_init_version",
    "ucp_cleanup",
    "ucp_mem_map",
    "ucp_mem_unmap",
    "ucp_worker_create",
    "ucp_worker_destroy",
    "ucp_worker_query",
    "ucp_worker_get_efd",
    "ucp_worker_arm",
    "ucp_worker_progress",
    "ucp_worker_set_am_recv_handler",
    "ucp_listener_create",
    "ucp_listener_destroy",
    "ucp_listener_query",
    "ucp_listener_reject",
    "ucp_ep_create",
    "ucp_ep_close_nbx",
    "ucp_ep_print_info",
    "ucp_am_send_nbx",
    "ucp_am_recv_data_nbx",
    "ucp_am_data_release",
    "ucp_request_free",
    "ucs_status_string",
    "ucs_global_opts_set_value",
];

const TYPES: &[&str] = &[
    "ucp_dt_iov_t",
    "ucp_ep_close_flags_t",
    "ucp_ep_params_field",
    "ucp_ep_params_flags_field",
    "ucp_err_handling_mode_t",
    "ucp_feature",
    "ucp_listener_attr_field",
    "ucp_listener_params_field",
    "ucp_mem_map_params_field",
    "ucp_op_attr_t",
    "ucp_params_field",
    "ucp_send_am_flags",
    "ucp_am_cb_flags",
    "ucp_am_recv_attr_t",
    "ucp_am_handler_param_field",
    "ucp_worker_params_field",
    "ucp_worker_attr_field",
    "ucp_dt_type",
];

/// Writes the bindings.
pub fn write() -> Result<()> {
    let mut builder = bindgen::Builder::default()
        .header_contents("ucx.h", HEADER)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(true)
        .blocklist_type("FILE")
        .blocklist_type("_IO_.*|__off.*")
        .blocklist_type("sockaddr.*|sa_family_t|socklen_t|__socklen_t")
        .raw_line(
            "//! Written by `cargo xtask ucx-bindings` from the headers of UCX 1.13; not by hand.",
        )
        .raw_line("")
        .raw_line("use libc::{sockaddr, sockaddr_storage, socklen_t, FILE};")
        // A struct of function pointers, all found or none: no accessor that panics later.
        .dynamic_library_name("Ucx")
        .dynamic_link_require_all(true)
        .allowlist_var("UCP_API_MAJOR|UCP_API_MINOR");
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    let bindings = builder
        .generate()
        .context("reading the UCX headers (libucx-dev and libclang are needed)")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent")?;
    let path = root.join("ucx-sys/src/bindings.rs");
    bindings.write_to_file(&path).with_context(|| format!("writing {}", path.display()))
}
