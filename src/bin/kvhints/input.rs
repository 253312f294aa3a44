//! Files, read up to what can be of use and no further.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use kvhints::plan::{BindingTable, MAX_FILE_BYTES};

/// Longest envelope that is read. Beyond a hint's own limit, so that the verdict is admission's:
/// blanks make no hint at any length.
const ENVELOPE_MAX_BYTES: usize = 64 << 20;

/// The binding table in a file.
pub fn table(path: &Path) -> Result<BindingTable, String> {
    let bytes = read(path, MAX_FILE_BYTES)?;
    BindingTable::from_json(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// The bytes of a hint in a file, or from standard input for `-`.
pub fn envelope(path: &Path) -> Result<Vec<u8>, String> {
    read(path, ENVELOPE_MAX_BYTES)
}

fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, String> {
    let at = |problem: String| format!("{}: {problem}", path.display());
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(path).map_err(|error| at(error.to_string()))?),
    };
    let mut bytes = Vec::new();
    let read = source.take(max_bytes as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| at(error.to_string()))?;
    if bytes.len() > max_bytes {
        return Err(at(format!("expected at most {max_bytes} bytes, found more")));
    }
    Ok(bytes)
}
