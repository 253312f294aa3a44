//! A [`BindingTable`] from one JSON file.
//!
//! ```json
//! {
//!   "version": 1,
//!   "hash_dialect": "unsigned_number",
//!   "bindings": [
//!     {
//!       "id": "pool-a", "family": "native", "addressing": "content_named",
//!       "actions": [{"type": "kv.fetch", "version": "1.0"}],
//!       "namespaces": ["llama-70b/rev3"],
//!       "namespaces_hex": ["00ff"],
//!       "one_action_envelope": false
//!     }
//!   ],
//!   "endpoints": [{"endpoint": "tcp://10.0.0.7:23280", "bindings": ["pool-a"]}]
//! }
//! ```
//! `hash_dialect` is `unsigned_number` (when left out), `decimal_string` or `hex_digits`;
//! `addressing` is `content_named` or `request_paired`. Unknown members are errors: a misspelt
//! restriction must not vanish. An error names the place in the file; nothing is half loaded.

use serde::Deserialize;

use super::binding::{Addressing, BindingTable, BindingTableError};
use super::{Endpoint, HashDialect, MAX_FILE_BYTES};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    #[serde(default)]
    hash_dialect: DialectName,
    bindings: Vec<BindingEntry>,
    endpoints: Vec<EndpointEntry>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum DialectName {
    #[default]
    UnsignedNumber,
    DecimalString,
    HexDigits,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum AddressingName {
    ContentNamed,
    RequestPaired,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingEntry {
    id: String,
    family: String,
    addressing: AddressingName,
    actions: Vec<ActionEntry>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default)]
    namespaces_hex: Vec<String>,
    #[serde(default)]
    one_action_envelope: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionEntry {
    r#type: String,
    version: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointEntry {
    endpoint: String,
    bindings: Vec<String>,
}

/// The only version of the file's form.
const FILE_VERSION: u32 = 1;
/// Most that is said about one problem of the file's grammar.
const PROBLEM_MAX_CHARS: usize = 256;

impl BindingTable {
    /// Reads a table from a file's bytes; see the module for the form.
    pub fn from_json(file: &[u8]) -> Result<Self, BindingTableError> {
        let file: File =
            read_file(file, |place, problem| BindingTableError::File { place, problem })?;
        if file.version != FILE_VERSION {
            return Err(at("version", format!("expected {FILE_VERSION}, found {}", file.version)));
        }
        let mut table = Self::new();
        table.set_hash_dialect(match file.hash_dialect {
            DialectName::UnsignedNumber => HashDialect::UnsignedNumber,
            DialectName::DecimalString => HashDialect::DecimalString,
            DialectName::HexDigits => HashDialect::HexDigits,
        });
        for (index, entry) in file.bindings.iter().enumerate() {
            add_binding(&mut table, index, entry)?;
        }
        for (index, entry) in file.endpoints.iter().enumerate() {
            add_endpoint(&mut table, index, entry)?;
        }
        Ok(table)
    }
}

/// Reads one JSON object with the given members; `error` gets the place and the problem.
pub(super) fn read_file<T: serde::de::DeserializeOwned, E>(
    file: &[u8],
    error: impl Fn(String, String) -> E,
) -> Result<T, E> {
    if file.len() > MAX_FILE_BYTES {
        let problem = format!("expected at most {MAX_FILE_BYTES} bytes, found {}", file.len());
        return Err(error("the file".to_owned(), problem));
    }
    // A Rust struct could be read from an array of its members as well.
    if file.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(error("the file".to_owned(), "expected one JSON object".to_owned()));
    }
    serde_json::from_slice(file).map_err(|found| {
        let (line, column) = (found.line(), found.column());
        let problem = found.to_string();
        // Said once is enough.
        let problem = problem.trim_end_matches(&format!(" at line {line} column {column}"));
        // It may repeat what stands in the file, which may be long.
        let problem = problem.chars().take(PROBLEM_MAX_CHARS).collect();
        error(format!("line {line}, column {column}"), problem)
    })
}

fn at(place: impl Into<String>, problem: impl ToString) -> BindingTableError {
    BindingTableError::File { place: place.into(), problem: problem.to_string() }
}

fn add_binding(
    table: &mut BindingTable,
    index: usize,
    entry: &BindingEntry,
) -> Result<(), BindingTableError> {
    let addressing = match entry.addressing {
        AddressingName::ContentNamed => Addressing::ContentNamed,
        AddressingName::RequestPaired => Addressing::RequestPaired,
    };
    table
        .add_binding(&entry.id, &entry.family, addressing, entry.one_action_envelope)
        .map_err(|error| at(format!("bindings[{index}]"), error))?;
    for (i, action) in entry.actions.iter().enumerate() {
        table
            .add_action(&entry.id, &action.r#type, &action.version)
            .map_err(|error| at(format!("bindings[{index}].actions[{i}]"), error))?;
    }
    for (i, namespace) in entry.namespaces.iter().enumerate() {
        table
            .authorise_namespace(&entry.id, namespace.as_bytes())
            .map_err(|error| at(format!("bindings[{index}].namespaces[{i}]"), error))?;
    }
    for (i, hex) in entry.namespaces_hex.iter().enumerate() {
        let place = || format!("bindings[{index}].namespaces_hex[{i}]");
        let namespace = bytes_from_hex(hex)
            .ok_or_else(|| at(place(), "expected an even number of hexadecimal digits"))?;
        table.authorise_namespace(&entry.id, &namespace).map_err(|error| at(place(), error))?;
    }
    Ok(())
}

fn add_endpoint(
    table: &mut BindingTable,
    index: usize,
    entry: &EndpointEntry,
) -> Result<(), BindingTableError> {
    let place = || format!("endpoints[{index}]");
    let endpoint = Endpoint::parse(&entry.endpoint)
        .map_err(|error| at(format!("{}.endpoint", place()), error))?;
    if table.lists(&endpoint) {
        let problem = format!("expected each endpoint once, found {} again", endpoint.canonical());
        return Err(at(place(), problem));
    }
    if entry.bindings.is_empty() {
        return Err(at(format!("{}.bindings", place()), "expected at least one binding id"));
    }
    for (i, id) in entry.bindings.iter().enumerate() {
        table
            .allow_endpoint(&entry.endpoint, id)
            .map_err(|error| at(format!("{}.bindings[{i}]", place()), error))?;
    }
    Ok(())
}

/// Bytes as configuration writes them: two hexadecimal digits each, of either case.
pub fn bytes_from_hex(hex: &str) -> Option<Vec<u8>> {
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) || !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}
