//! The command line, read. Opens nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use kvhints::plan::{bytes_from_hex, RequestKind};
use lexopt::prelude::*;

pub const HELP: &str = "\
Usage: kvhints plan --table TABLE.json [OPTIONS] ENVELOPE

Explains, step by step, what the library would decide about a request with the hint in ENVELOPE (a
file with its JSON, or - for standard input), and why. Contacts nobody.

Options:
  --table FILE             the server's binding table, as kvh_binding_table_load reads it
  --namespace TEXT         the namespace of the request's blocks (default: empty)
  --namespace-hex DIGITS   the same in hexadecimal digits
  --kind KIND              context (default), generation-only or other
  --lora                   the request uses a LoRA adapter
  --family NAME:TYPE:VERSION
                           a family supports this version of this action; repeat for more
                           (default: what the table's bindings can do, each for its family)
  -h, --help               this text
  -V, --version            the version

Exit codes: 0 a fetch would be planned; 1 the request would run as if it had no hint; 2 arguments or
files are not what they should be, and nothing was decided.
";

/// What is to be done.
pub enum Command {
    Help,
    Version,
    Plan(Box<PlanArguments>),
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
        Some(Value(command)) if command == "plan" => read_plan(parser),
        Some(other) => Err(other.unexpected()),
        None => Err("expected a command: plan".into()),
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
