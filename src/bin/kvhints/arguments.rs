//! The command line, read. Opens nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use kvhints::plan::{bytes_from_hex, HashDialect, RequestKind};
use lexopt::prelude::*;

pub const HELP: &str = "\
Usage: kvhints explain [OPTIONS] HINT
       kvhints plan --table TABLE.json [OPTIONS] ENVELOPE

kvhints explain tells whether the library would admit the hint in HINT (a file, or - for standard
input), and if not, which rule it breaks and where.

Options of explain:
  --ingress WAY            trusted (default): from code in the server's process; or http
  --trust                  with --ingress http: the server trusts hints over HTTP
  --keys FILE              with --ingress http: the server trusts signed hints; the keys and rules of
                           its ring, as docs/explain.md says
  --now SECONDS            the time to judge signatures at, since 1970-01-01 UTC (default: now)
  --msgpack                HINT is MessagePack, not JSON
  --body                   HINT is a whole request body with a member kv_hints
  --hashes DIALECT         how the server reads block hashes: unsigned_number (default),
                           decimal_string or hex_digits
  --json                   one JSON object for machines, as docs/explain.md says
  --canonical              the canonical form of an admitted hint, exactly, and nothing else

Exit codes of explain: 0 admitted; 1 absent; 2 arguments or files are not what they should be, and
nothing was judged; 3 unknown_version; 4 oversized; 5 malformed; 6 untrusted; 7 the body is refused.

kvhints plan tells, step by step, what the library would decide about a request with the hint in
ENVELOPE (a file with its JSON, or - for standard input), and why. Contacts nobody.

Options of plan:
  --table FILE             the server's binding table, as kvh_binding_table_load reads it
  --namespace TEXT         the namespace of the request's blocks (default: empty)
  --namespace-hex DIGITS   the same in hexadecimal digits
  --kind KIND              context (default), generation-only or other
  --lora                   the request uses a LoRA adapter
  --family NAME:TYPE:VERSION
                           a family supports this version of this action; repeat for more
                           (default: what the table's bindings can do, each for its family)

Exit codes of plan: 0 a fetch would be planned; 1 the request would run as if it had no hint; 2 arguments or
files are not what they should be, and nothing was decided.

  -h, --help               this text
  -V, --version            the version
";

/// What is to be done.
pub enum Command {
    Help,
    Version,
    Explain(Box<ExplainArguments>),
    Plan(Box<PlanArguments>),
}

/// How an explanation is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    Words,
    Json,
    Canonical,
}

pub struct ExplainArguments {
    pub hint: PathBuf,
    pub is_http: bool,
    pub is_http_trusted: bool,
    pub keys: Option<PathBuf>,
    pub now_unix_seconds: Option<u64>,
    pub is_msgpack: bool,
    pub is_body: bool,
    pub dialect: HashDialect,
    pub telling: Telling,
}

pub struct PlanArguments {
    pub table: PathBuf,
    pub envelope: PathBuf,
    /// Family, action type, action version.
    pub families: Vec<(String, String, String)>,
    pub kind: RequestKind,
    pub has_lora: bool,
    pub namespace: Vec<u8>,
}

pub fn read(mut parser: lexopt::Parser) -> Result<Command, String> {
    read_command(&mut parser).map_err(|error| format!("{error}; try kvhints --help"))
}

fn read_command(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    match parser.next()? {
        Some(Short('h') | Long("help")) => Ok(Command::Help),
        Some(Short('V') | Long("version")) => Ok(Command::Version),
        Some(Value(command)) if command == "explain" => read_explain(parser),
        Some(Value(command)) if command == "plan" => read_plan(parser),
        Some(other) => Err(other.unexpected()),
        None => Err("expected a command: explain or plan".into()),
    }
}

fn read_explain(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let (mut hint, mut ingress, mut keys, mut now, mut dialect, mut telling) =
        (None, None, None, None, None, None);
    let (mut is_http_trusted, mut is_msgpack, mut is_body) = (false, false, false);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("ingress") => {
                once(&mut ingress, "--ingress", parser.value()?.parse_with(read_ingress)?)?;
            }
            Long("trust") => is_http_trusted = true,
            Long("keys") => once(&mut keys, "--keys", PathBuf::from(parser.value()?))?,
            Long("now") => once(&mut now, "--now", parser.value()?.parse::<u64>()?)?,
            Long("msgpack") => is_msgpack = true,
            Long("body") => is_body = true,
            Long("hashes") => {
                once(&mut dialect, "--hashes", parser.value()?.parse_with(read_dialect)?)?;
            }
            Long("json") => once(&mut telling, "--json or --canonical", Telling::Json)?,
            Long("canonical") => once(&mut telling, "--json or --canonical", Telling::Canonical)?,
            Value(path) => once(&mut hint, "HINT", PathBuf::from(path))?,
            _ => return Err(argument.unexpected()),
        }
    }
    let hint = hint.ok_or("expected HINT or -")?;
    let is_http = ingress.unwrap_or(false);
    if !is_http && (is_http_trusted || keys.is_some()) {
        return Err("expected --ingress http with --trust or --keys".into());
    }
    if is_http_trusted && keys.is_some() {
        return Err(
            "expected only one of --trust and --keys: a key ring replaces the switch".into()
        );
    }
    if now.is_some() && keys.is_none() {
        return Err("expected --keys with --now".into());
    }
    if keys.as_ref().is_some_and(|keys| keys.as_os_str() == "-") && hint.as_os_str() == "-" {
        return Err("expected only one of hint and keys from standard input".into());
    }
    Ok(Command::Explain(Box::new(ExplainArguments {
        hint,
        is_http,
        is_http_trusted,
        keys,
        now_unix_seconds: now,
        is_msgpack,
        is_body,
        dialect: dialect.unwrap_or_default(),
        telling: telling.unwrap_or(Telling::Words),
    })))
}

/// Whether hints come over HTTP.
fn read_ingress(text: &str) -> Result<bool, &'static str> {
    match text {
        "http" => Ok(true),
        "trusted" => Ok(false),
        _ => Err("expected http or trusted"),
    }
}

fn read_dialect(text: &str) -> Result<HashDialect, &'static str> {
    match text {
        "unsigned_number" => Ok(HashDialect::UnsignedNumber),
        "decimal_string" => Ok(HashDialect::DecimalString),
        "hex_digits" => Ok(HashDialect::HexDigits),
        _ => Err("expected unsigned_number, decimal_string or hex_digits"),
    }
}

fn read_plan(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut table = None;
    let mut envelope: Option<OsString> = None;
    let mut namespace = None;
    let mut families = Vec::new();
    let mut kind = RequestKind::Context;
    let mut has_lora = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("table") => once(&mut table, "--table", parser.value()?.into())?,
            Long("namespace") => {
                once(&mut namespace, "the namespace", parser.value()?.into_vec())?;
            }
            Long("namespace-hex") => {
                let bytes = parser.value()?.parse_with(|digits| {
                    let bytes =
                        bytes_from_hex(digits).map_err(|_| "no memory for the namespace")?;
                    bytes.ok_or("expected an even number of hexadecimal digits")
                })?;
                once(&mut namespace, "the namespace", bytes)?;
            }
            Long("kind") => kind = parser.value()?.parse_with(read_kind)?,
            Long("family") => families.push(parser.value()?.parse_with(read_family)?),
            Long("lora") => has_lora = true,
            Value(path) => once(&mut envelope, "ENVELOPE", path)?,
            _ => return Err(argument.unexpected()),
        }
    }
    let table: PathBuf = table.ok_or("expected --table FILE")?;
    let envelope = PathBuf::from(envelope.ok_or("expected ENVELOPE or -")?);
    if table.as_os_str() == "-" && envelope.as_os_str() == "-" {
        return Err("expected only one of table and envelope from standard input".into());
    }
    Ok(Command::Plan(Box::new(PlanArguments {
        table,
        envelope,
        families,
        kind,
        has_lora,
        namespace: namespace.unwrap_or_default(),
    })))
}

/// Sets what may be said once.
fn once<T>(slot: &mut Option<T>, what: &str, value: T) -> Result<(), lexopt::Error> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("expected {what} once, found it again").into()),
    }
}

fn read_kind(text: &str) -> Result<RequestKind, &'static str> {
    match text {
        "context" => Ok(RequestKind::Context),
        "generation-only" | "generation_only" => Ok(RequestKind::GenerationOnly),
        "other" => Ok(RequestKind::Other),
        _ => Err("expected context, generation-only or other"),
    }
}

/// From the right: a family's name may hold colons, types and versions do not.
fn read_family(text: &str) -> Result<(String, String, String), &'static str> {
    let mut parts = text.rsplitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(version), Some(action_type), Some(family)) => {
            Ok((family.to_owned(), action_type.to_owned(), version.to_owned()))
        }
        _ => Err("expected NAME:TYPE:VERSION, such as native:kv.fetch:1.0"),
    }
}
