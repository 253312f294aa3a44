//! The project's own build steps: `cargo xtask <step>`.

mod header;

use anyhow::{bail, Result};

const USAGE: &str = "usage: cargo xtask <step>
  header            write include/kvhints.h from src/capi
  header --check    fail if include/kvhints.h is not what src/capi says";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["header"] => header::write(),
        ["header", "--check"] => header::check(),
        _ => bail!("{USAGE}"),
    }
}
