//! Turns conversations into token ids: `two-workers-tokenise OUT_DIR TEXT_FILE...`.
//!
//! Real text through a real tokenizer (the o200k_base vocabulary, byte-pair encoding). For each
//! `name.txt` it writes `OUT_DIR/name.tokens`: little-endian int32 ids, nothing else. A line
//! `----` splits a text: the part before it is what worker A served, and goes to
//! `name.served.tokens` too.

use std::path::Path;

use anyhow::{bail, Context, Result};

const SPLIT: &str = "\n----\n";

fn write_tokens(path: &Path, tokens: &[u32]) -> Result<()> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(out_dir) = arguments.next() else {
        bail!("usage: two-workers-tokenise OUT_DIR TEXT_FILE...");
    };
    let tokenizer = tiktoken_rs::o200k_base()?;
    for file in arguments {
        let file = Path::new(&file);
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.file_stem().context("a file name")?.to_string_lossy();
        let (served, rest) = text.split_once(SPLIT).unwrap_or((&text, ""));
        // Encoded apart, as an engine does: the second turn is appended to the first's tokens.
        let mut tokens = tokenizer.encode_ordinary(served);
        let out_dir = Path::new(&out_dir);
        write_tokens(&out_dir.join(format!("{name}.served.tokens")), &tokens)?;
        tokens.extend(tokenizer.encode_ordinary(rest));
        write_tokens(&out_dir.join(format!("{name}.tokens")), &tokens)?;
    }
    Ok(())
}
