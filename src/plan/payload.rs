//! What a `kv.fetch` action asks for: from where, and which blocks from the root.
//!
//! Versions: `1.0` lists the hash of every block; `1.1` names a prefix by its length, its last hash
//! and every k-th hash. Hashes come in three dialects; which one is configured, never guessed, since
//! `"1234567890123456"` is a number in one and digits of a digest in another.
//!
//! Guards: reads in one pass, no deeper than three containers, and keeps nothing but hashes. Hashes
//! only bound a range; they never say what a block is. Never interprets members it does not know.

use std::borrow::Cow;
use std::collections::TryReserveError;
use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Most blocks that one payload can name.
pub const MAX_BLOCKS: u32 = 1 << 20;

/// How a block hash is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HashDialect {
    /// A JSON integer; a negative one stands for its two's complement.
    #[default]
    UnsignedNumber,
    /// A string of decimal digits.
    DecimalString,
    /// A string of at least 16 hexadecimal digits of either case, of which the first 16 count.
    HexDigits,
}

/// A validated `kv.fetch` payload.
#[derive(Clone, PartialEq, Eq)]
pub struct FetchPayload<'a> {
    /// The source's endpoint, as the sender wrote it.
    pub source_control_endpoint: Cow<'a, str>,
    /// How many blocks from the root it names; 1 to [`MAX_BLOCKS`].
    pub block_count: u32,
    /// The hash of the last of them.
    pub last_block_hash: u64,
    /// `hashes[j]` is the hash of block `(j + 1) * every - 1`; at least 1.
    pub every: u64,
    /// The hashes that were sent.
    pub hashes: Vec<u64>,
}

impl fmt::Debug for FetchPayload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FetchPayload({} blocks, {} hashes)", self.block_count, self.hashes.len())
    }
}

/// Why a payload is of no use. Never says what stood in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// No reader for this version of the action.
    #[error("expected kv.fetch 1.0 or 1.1, found another version")]
    Version,
    /// Not JSON, or a member of the wrong type.
    #[error("expected an object with the members of its version, each of its type")]
    Shape,
    /// `source_control_endpoint` is missing.
    #[error("expected a member source_control_endpoint, found none")]
    EndpointMissing,
    /// No hash could be read, or too many.
    #[error("expected 1 to {MAX_BLOCKS} block hashes in the configured dialect")]
    Hashes,
    /// A rule of the prefix form is broken.
    #[error(
        "expected a prefix with 1 to {MAX_BLOCKS} blocks, every >= 1, last, and the hash of each \
         every-th block"
    )]
    Prefix,
    /// Memory could not be had.
    #[error("memory for the block hashes could not be had")]
    NoMemory(#[from] TryReserveError),
}

impl<'a> FetchPayload<'a> {
    /// Reads the payload of an admitted action (canonical JSON) by the rules of its version.
    pub fn read(
        action_version: &str,
        payload: &'a [u8],
        dialect: HashDialect,
    ) -> Result<Self, PayloadError> {
        match action_version {
            "1.0" => read_list_form(payload, dialect),
            "1.1" => read_prefix_form(payload, dialect),
            _ => Err(PayloadError::Version),
        }
    }
}

#[derive(Deserialize)]
struct ListForm<'a> {
    #[serde(borrow)]
    source_control_endpoint: Option<Text<'a>>,
    #[serde(borrow)]
    block_hashes: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct PrefixForm<'a> {
    #[serde(borrow)]
    source_control_endpoint: Option<Text<'a>>,
    #[serde(borrow)]
    prefix: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Prefix<'a> {
    #[serde(borrow)]
    blocks: &'a RawValue,
    #[serde(borrow)]
    last: &'a RawValue,
    #[serde(borrow)]
    every: &'a RawValue,
    #[serde(borrow)]
    hashes: &'a RawValue,
}

fn read_list_form(payload: &[u8], dialect: HashDialect) -> Result<FetchPayload<'_>, PayloadError> {
    let form: ListForm = from_json(payload)?;
    let endpoint = form.source_control_endpoint.ok_or(PayloadError::EndpointMissing)?;
    let list = form.block_hashes.ok_or(PayloadError::Hashes)?;
    let (hashes, _) = read_hashes(list, dialect)?;
    let block_count = checked_block_count(hashes.len() as u64).ok_or(PayloadError::Hashes)?;
    let last_block_hash = *hashes.last().ok_or(PayloadError::Hashes)?;
    let source_control_endpoint = endpoint.0;
    Ok(FetchPayload { source_control_endpoint, block_count, last_block_hash, every: 1, hashes })
}

fn read_prefix_form(
    payload: &[u8],
    dialect: HashDialect,
) -> Result<FetchPayload<'_>, PayloadError> {
    let form: PrefixForm = from_json(payload)?;
    let endpoint = form.source_control_endpoint.ok_or(PayloadError::EndpointMissing)?;
    let prefix = form.prefix.ok_or(PayloadError::Prefix)?;
    let prefix: Prefix = from_json(prefix.get().as_bytes())?;
    let block_count = integer(prefix.blocks).and_then(checked_block_count);
    let block_count = block_count.ok_or(PayloadError::Prefix)?;
    let every = integer(prefix.every).filter(|every| *every >= 1).ok_or(PayloadError::Prefix)?;
    let last_block_hash = read_hash(prefix.last, dialect).ok_or(PayloadError::Prefix)?;
    let (hashes, is_whole) = read_hashes(prefix.hashes, dialect)?;
    let is_counted = hashes.len() as u64 == u64::from(block_count) / every;
    // Where the last block is an every-th one, its hash stands there twice.
    let ends_on_last = u64::from(block_count) % every == 0;
    let is_consistent = !ends_on_last || hashes.last() == Some(&last_block_hash);
    if !(is_whole && is_counted && is_consistent) {
        return Err(PayloadError::Prefix);
    }
    let source_control_endpoint = endpoint.0;
    Ok(FetchPayload { source_control_endpoint, block_count, last_block_hash, every, hashes })
}

fn checked_block_count(count: u64) -> Option<u32> {
    u32::try_from(count).ok().filter(|count| (1..=MAX_BLOCKS).contains(count))
}

fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, PayloadError> {
    // A Rust struct can be read from an array as well; a payload cannot.
    if json.first() != Some(&b'{') {
        return Err(PayloadError::Shape);
    }
    serde_json::from_slice(json).map_err(|_| PayloadError::Shape)
}

/// A string, borrowed where it is written without escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The hashes of an array up to the first that cannot be read, and whether there was none such.
fn read_hashes(list: &RawValue, dialect: HashDialect) -> Result<(Vec<u64>, bool), PayloadError> {
    let mut hashes = Hashes { dialect, list: Vec::new(), is_whole: true, memory: Ok(()) };
    let mut json = serde_json::Deserializer::from_str(list.get());
    (&mut hashes).deserialize(&mut json).map_err(|_| PayloadError::Shape)?;
    hashes.memory?;
    Ok((hashes.list, hashes.is_whole))
}

struct Hashes {
    dialect: HashDialect,
    list: Vec<u64>,
    is_whole: bool,
    memory: Result<(), TryReserveError>,
}

impl<'de> DeserializeSeed<'de> for &mut Hashes {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Hashes {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of block hashes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(text) = list.next_element::<&RawValue>()? {
            let Some(hash) = read_hash(text, self.dialect) else {
                self.is_whole = false;
                break;
            };
            if let Err(error) = self.list.try_reserve(1) {
                self.memory = Err(error);
                break;
            }
            self.list.push(hash);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// One hash as it is written. Canonical JSON escapes no digit, so the text can be read as it is.
fn read_hash(text: &RawValue, dialect: HashDialect) -> Option<u64> {
    const HASH_DIGITS: usize = 16;
    match dialect {
        HashDialect::UnsignedNumber => {
            let negative = || text.get().strip_prefix('-').and(text.get().parse::<i64>().ok());
            integer(text).or_else(|| negative().map(i64::cast_unsigned))
        }
        HashDialect::DecimalString => decimal(unquoted(text)?),
        HashDialect::HexDigits => {
            let digits = unquoted(text)?;
            let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let first = digits.get(..HASH_DIGITS).filter(|_| are_digits)?;
            u64::from_str_radix(first, 16).ok()
        }
    }
}

fn unquoted(text: &RawValue) -> Option<&str> {
    text.get().strip_prefix('"')?.strip_suffix('"')
}

/// A JSON integer that is not negative.
fn integer(text: &RawValue) -> Option<u64> {
    decimal(text.get())
}

/// Decimal digits and nothing else (the standard library's reader takes a plus sign too).
fn decimal(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}
