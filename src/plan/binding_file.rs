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
//!   "endpoints": [{"endpoint": "http://10.0.0.7:8000", "bindings": ["pool-a"]}]
//! }
//! ```
//! `hash_dialect` is `unsigned_number` (when left out), `decimal_string` or `hex_digits`;
//! `addressing` is `content_named` or `request_paired`. Unknown members are errors: a misspelt
//! restriction must not vanish. An error names the place in the file; nothing is half loaded.

use std::borrow::Cow;
use std::collections::TryReserveError;
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::binding::{Addressing, BindingTable, BindingTableError};
use super::{Endpoint, HashDialect, MAX_FILE_BYTES, MAX_FILE_STRING_BYTES};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    version: u32,
    #[serde(default)]
    hash_dialect: DialectName,
    #[serde(borrow)]
    bindings: List<BindingEntry<'a>>,
    #[serde(borrow)]
    endpoints: List<EndpointEntry<'a>>,
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
struct BindingEntry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    family: Cow<'a, str>,
    addressing: AddressingName,
    #[serde(borrow)]
    actions: List<ActionEntry<'a>>,
    #[serde(borrow, default)]
    namespaces: List<Text<'a>>,
    #[serde(borrow, default)]
    namespaces_hex: List<Text<'a>>,
    #[serde(default)]
    one_action_envelope: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionEntry<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointEntry<'a> {
    #[serde(borrow)]
    endpoint: Cow<'a, str>,
    #[serde(borrow)]
    bindings: List<Text<'a>>,
}

/// A text of a list: lent by the file where it is written without escapes.
#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A list, for which memory is asked.
pub(super) struct List<T>(pub(super) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<List<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            list.try_reserve(1).map_err(|_| A::Error::custom(NO_MEMORY))?;
            list.push(entry);
        }
        Ok(List(list))
    }
}

/// How an error of serde begins that says no more; no other one begins like this.
pub(super) const NO_MEMORY: &str = "kvhints is out of memory";

/// The only version of the file's form.
const FILE_VERSION: u32 = 1;
/// Most that is said about one problem of the file's grammar.
const PROBLEM_MAX_CHARS: usize = 256;

impl BindingTable {
    /// Reads a table from a file's bytes; see the module for the form.
    pub fn from_json(file: &[u8]) -> Result<Self, BindingTableError> {
        let file: File<'_> =
            read_file(file, |place, problem| match problem.starts_with(NO_MEMORY) {
                true => BindingTableError::NoMemory,
                false => BindingTableError::File { place, problem },
            })?;
        if file.version != FILE_VERSION {
            return Err(at("version", format!("expected {FILE_VERSION}, found {}", file.version)));
        }
        let mut table = Self::new();
        table.set_hash_dialect(match file.hash_dialect {
            DialectName::UnsignedNumber => HashDialect::UnsignedNumber,
            DialectName::DecimalString => HashDialect::DecimalString,
            DialectName::HexDigits => HashDialect::HexDigits,
        });
        for (index, entry) in file.bindings.0.iter().enumerate() {
            add_binding(&mut table, index, entry)?;
        }
        for (index, entry) in file.endpoints.0.iter().enumerate() {
            add_endpoint(&mut table, index, entry)?;
        }
        Ok(table)
    }
}

/// Reads one JSON object with the given members; `error` gets the place and the problem.
pub(super) fn read_file<'f, T: Deserialize<'f>, E>(
    file: &'f [u8],
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
    if has_longer_string(file, MAX_FILE_STRING_BYTES) {
        let problem = format!("expected no string longer than {MAX_FILE_STRING_BYTES} bytes");
        return Err(error("the file".to_owned(), problem));
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

/// Whether a string, escapes included, is longer than that. Before anything is parsed: parsers copy
/// strings, into messages too, without asking.
fn has_longer_string(file: &[u8], limit: usize) -> bool {
    let mut rest = file;
    while let Some(opening) = memchr::memchr(b'"', rest) {
        let inside = &rest[opening + 1..];
        let mut len = 0;
        loop {
            match inside.get(len) {
                Some(b'\\') => len += 2,
                Some(b'"') | None => break,
                Some(_) => len += 1,
            }
            if len > limit {
                return true;
            }
        }
        rest = inside.get(len + 1..).unwrap_or(&[]);
    }
    false
}

fn at_place(place: impl Into<String>, error: BindingTableError) -> BindingTableError {
    match error {
        BindingTableError::NoMemory => error,
        error => at(place, error),
    }
}

fn at(place: impl Into<String>, problem: impl ToString) -> BindingTableError {
    BindingTableError::File { place: place.into(), problem: problem.to_string() }
}

fn add_binding(
    table: &mut BindingTable,
    index: usize,
    entry: &BindingEntry<'_>,
) -> Result<(), BindingTableError> {
    let addressing = match entry.addressing {
        AddressingName::ContentNamed => Addressing::ContentNamed,
        AddressingName::RequestPaired => Addressing::RequestPaired,
    };
    table
        .add_binding(&entry.id, &entry.family, addressing, entry.one_action_envelope)
        .map_err(|error| at_place(format!("bindings[{index}]"), error))?;
    for (i, action) in entry.actions.0.iter().enumerate() {
        table
            .add_action(&entry.id, &action.r#type, &action.version)
            .map_err(|error| at_place(format!("bindings[{index}].actions[{i}]"), error))?;
    }
    for (i, Text(namespace)) in entry.namespaces.0.iter().enumerate() {
        table
            .authorise_namespace(&entry.id, namespace.as_bytes())
            .map_err(|error| at_place(format!("bindings[{index}].namespaces[{i}]"), error))?;
    }
    for (i, Text(hex)) in entry.namespaces_hex.0.iter().enumerate() {
        let place = || format!("bindings[{index}].namespaces_hex[{i}]");
        let namespace = bytes_from_hex(hex)?
            .ok_or_else(|| at(place(), "expected an even number of hexadecimal digits"))?;
        table
            .authorise_namespace(&entry.id, &namespace)
            .map_err(|error| at_place(place(), error))?;
    }
    Ok(())
}

fn add_endpoint(
    table: &mut BindingTable,
    index: usize,
    entry: &EndpointEntry<'_>,
) -> Result<(), BindingTableError> {
    let place = || format!("endpoints[{index}]");
    let endpoint = Endpoint::parse(&entry.endpoint)
        .map_err(|error| at(format!("{}.endpoint", place()), error))?;
    if table.lists(&endpoint) {
        let problem = format!("expected each endpoint once, found {} again", endpoint.canonical());
        return Err(at(place(), problem));
    }
    if entry.bindings.0.is_empty() {
        return Err(at(format!("{}.bindings", place()), "expected at least one binding id"));
    }
    for (i, Text(id)) in entry.bindings.0.iter().enumerate() {
        table
            .allow_endpoint(&entry.endpoint, id)
            .map_err(|error| at_place(format!("{}.bindings[{i}]", place()), error))?;
    }
    Ok(())
}

/// Bytes as configuration writes them: two hexadecimal digits each, of either case.
pub fn bytes_from_hex(hex: &str) -> Result<Option<Vec<u8>>, TryReserveError> {
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) || !hex.len().is_multiple_of(2) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(hex.len() / 2)?;
    let pairs = (0..hex.len()).step_by(2);
    bytes.extend(pairs.filter_map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()));
    Ok(Some(bytes))
}
