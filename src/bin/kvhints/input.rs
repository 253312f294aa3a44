//! Files, read up to what can be of use and no further.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use kvhints::hint::signature::{KeyRing, Rules};
use kvhints::plan::{bytes_from_hex, BindingTable, MAX_FILE_BYTES};
use serde::Deserialize;

/// Longest hint or body that is read. Beyond a hint's own limit, so that the verdict is admission's:
/// blanks make no hint at any length.
pub const HINT_MAX_BYTES: usize = 64 << 20;

/// A key ring: audience, rules and keys with their secrets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    audience: Option<String>,
    #[serde(default)]
    expiry_is_optional: bool,
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    key_id: String,
    secret_hex: String,
}

/// The key ring in a file. Errors give places, never a secret.
pub fn keys(path: &Path) -> Result<KeyRing, String> {
    let at = |problem: String| format!("{}: {problem}", path.display());
    let bytes = read(path, MAX_FILE_BYTES)?;
    let file: Keys = serde_json::from_slice(&bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        at(format!("line {line}, column {column}: expected a key ring, found something else"))
    })?;
    let rules = Rules {
        audience: file.audience,
        expiry_is_optional: file.expiry_is_optional,
        ..Rules::default()
    };
    let ring = KeyRing::new(rules).map_err(|error| at(error.to_string()))?;
    for (index, key) in file.keys.iter().enumerate() {
        let at_key = |problem: &str| at(format!("keys[{index}]: {problem}"));
        let secret = bytes_from_hex(&key.secret_hex).map_err(|_| at_key("no memory"))?;
        let secret = secret.ok_or_else(|| at_key("expected secret_hex in hexadecimal digits"))?;
        ring.add(&key.key_id, &secret).map_err(|error| at_key(&error.to_string()))?;
    }
    Ok(ring)
}

/// The binding table in a file.
pub fn table(path: &Path) -> Result<BindingTable, String> {
    let bytes = read(path, MAX_FILE_BYTES)?;
    BindingTable::from_json(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// The bytes of a hint or body in a file, or from standard input for `-`.
pub fn hint(path: &Path) -> Result<Vec<u8>, String> {
    read(path, HINT_MAX_BYTES)
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
