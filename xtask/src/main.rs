//! The project's own build steps: `cargo xtask <step>`.

mod header;
#[cfg(feature = "ucx-bindings")]
mod ucx_bindings;

use anyhow::{bail, Result};

const USAGE: &str = "usage: cargo xtask <step>
  header            write include/kvhints.h from src/capi
  header --check    fail if include/kvhints.h is not what src/capi says
  ucx-bindings      write ucx-sys/src/bindings.rs from the UCX headers of this machine";

/// bindgen is compiled only for the step that needs it: the step starts itself again with it.
#[cfg(not(feature = "ucx-bindings"))]
fn ucx_bindings() -> Result<()> {
    let status = std::process::Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--features", "ucx-bindings"])
        .args(["--", "ucx-bindings"])
        .status()?;
    if !status.success() {
        bail!("the step with the feature ucx-bindings failed: {status}");
    }
    Ok(())
}

#[cfg(feature = "ucx-bindings")]
fn ucx_bindings() -> Result<()> {
    ucx_bindings::write()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["header"] => header::write(),
        ["header", "--check"] => header::check(),
        ["ucx-bindings"] => ucx_bindings(),
        _ => bail!("{USAGE}"),
    }
}
