//! `include/kvhints.h`, generated from the doc comments and signatures in `src/capi`.

use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};

fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace root").to_owned()
}

fn path() -> PathBuf {
    root().join("include/kvhints.h")
}

/// The header's text. Never touches the file (cbindgen's own `--verify` overwrites it). Only the
/// files of `src/capi` are read, so that nothing of the other rooms can leak into the header.
fn generate() -> Result<String> {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml"))
        .map_err(anyhow::Error::msg)
        .context("reading cbindgen.toml")?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in boundary_files()? {
        builder = builder.with_src(file);
    }
    let bindings = builder.generate().context("reading src/capi")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).context("cbindgen wrote no UTF-8")?;
    Ok(in_c_style(&text.replace(STATUS_TYPEDEF, "")))
}

/// A second name beside `kvh_status_t`, which is the one that calls use.
const STATUS_TYPEDEF: &str = "\
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvh_status kvh_status;
#else
typedef int32_t kvh_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus
";

/// The files of the public modules of `src/capi`, in the order in which `mod.rs` names them: that
/// is the order of the header.
fn boundary_files() -> Result<Vec<PathBuf>> {
    let folder = root().join("src/capi");
    let modules =
        std::fs::read_to_string(folder.join("mod.rs")).context("reading src/capi/mod.rs")?;
    let names = modules.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    Ok(names.map(|name| folder.join(format!("{name}.rs"))).collect())
}

/// What cbindgen cannot be told: struct tags without the `_t` of their typedef, typedef names in
/// signatures, and no section on `# Safety` (in C the contract is the prose above it).
fn in_c_style(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut in_safety = false;
    for line in text.lines() {
        let comment = line.trim();
        if comment == "// # Safety" {
            in_safety = true;
            while lines.last().is_some_and(|last| last.trim() == "//") {
                lines.pop();
            }
        }
        in_safety &= comment.starts_with("//");
        if !in_safety {
            lines.push(with_parentheses(with_c_names(line)));
        }
    }
    lines.join("\n") + "\n"
}

/// A negative constant: `#define X -1` would turn `1 - X` and the like into something else.
fn with_parentheses(line: String) -> String {
    match line.strip_prefix("#define ").and_then(|define| define.split_once(" -")) {
        Some((name, number)) => format!("#define {name} (-{number})"),
        None => line,
    }
}

/// `typedef struct kvh_x_t` names the struct `kvh_x`; elsewhere `struct kvh_x_t` is just `kvh_x_t`.
fn with_c_names(line: &str) -> String {
    let is_typedef = line.starts_with("typedef struct ");
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("struct kvh_") {
        let name_start = at + "struct ".len();
        let name_len = rest[name_start..]
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len() - name_start);
        let name = &rest[name_start..name_start + name_len];
        if is_typedef {
            out.push_str(&rest[..name_start]);
            out.push_str(name.strip_suffix("_t").unwrap_or(name));
        } else {
            out.push_str(&rest[..at]);
            out.push_str(name);
        }
        rest = &rest[name_start + name_len..];
    }
    out + rest
}

/// Writes the header.
pub fn write() -> Result<()> {
    std::fs::write(path(), generate()?).with_context(|| format!("writing {}", path().display()))
}

/// Compares the header with what the source says.
pub fn check() -> Result<()> {
    let committed = std::fs::read_to_string(path()).unwrap_or_default();
    let generated = generate()?;
    if committed == generated {
        return Ok(());
    }
    let line = committed
        .lines()
        .zip(generated.lines())
        .position(|(old, new)| old != new)
        .map_or_else(|| "its length".to_owned(), |index| format!("line {}", index + 1));
    bail!("include/kvhints.h is stale from {line} on: run `cargo xtask header` and commit it")
}
