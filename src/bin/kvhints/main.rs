//! `kvhints`: for operators who ask what the library would do, and why.
//!
//! `kvhints explain` tells why a hint is admitted or not. `kvhints plan` admits one hint and decides
//! about it as a server would, telling each step. What they tell comes from the library's own
//! verdicts and decisions; nothing is decided here. Resolves no name and contacts nobody. Never part
//! of the shared library.

mod account;
mod arguments;
mod explain;
mod input;
mod printable;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use arguments::{Command, PlanArguments, HELP};
use kvhints::hint::{admit, Ingress, Scratch};
use kvhints::plan::{decide_observed, BindingTable, Capabilities, Plan, RequestProfile};

/// Help was given.
const HELPED: u8 = 0;
/// A fetch would be planned.
const FETCH: u8 = 0;
/// The plan would be local.
const LOCAL: u8 = 1;
/// Arguments, files or the table are not what they should be; nothing was decided.
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let outcome = arguments::read(lexopt::Parser::from_env()).and_then(run);
    let code = match outcome {
        Ok((output, code)) => match std::io::stdout().write_all(&output) {
            Ok(()) => code,
            // Whoever read it had seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => code,
            Err(error) => complain(&format!("cannot write: {error}")),
        },
        Err(problem) => complain(&problem),
    };
    ExitCode::from(code)
}

fn complain(problem: &str) -> u8 {
    // With nowhere to complain, the exit code has to do.
    let _ = writeln!(std::io::stderr(), "kvhints: {}", printable::printable(problem));
    WRONG
}

/// What is written, and the exit code.
fn run(command: Command) -> Result<(Vec<u8>, u8), String> {
    match command {
        Command::Help => Ok((HELP.into(), HELPED)),
        Command::Version => Ok((format!("kvhints {}\n", env!("CARGO_PKG_VERSION")).into(), HELPED)),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Plan(arguments) => plan(&arguments).map(|(text, code)| (text.into(), code)),
    }
}

/// A seed that whoever wrote the input cannot guess.
fn seed() -> Result<u64, String> {
    getrandom::u64().map_err(|error| format!("no random numbers: {error}"))
}

fn plan(arguments: &PlanArguments) -> Result<(String, u8), String> {
    let table = input::table(&arguments.table)?;
    let capabilities = capabilities(arguments, &table)?;
    let raw = input::hint(&arguments.envelope)?;
    let no_memory = |_| "memory could not be had".to_owned();
    let verdict = admit(&raw, Ingress::InProcess, &mut Scratch::new(seed()?)).map_err(no_memory)?;
    let profile = RequestProfile {
        has_lora: arguments.has_lora,
        kind: arguments.kind,
        // No step asks: whatever is decided, a required handoff keeps its rules.
        required_handoff: false,
        namespace: &arguments.namespace,
    };
    let mut account = account::Account::new(&verdict, &profile, &table);
    let snapshot = verdict.into_snapshot();
    let decision = decide_observed(snapshot.as_ref(), &capabilities, &table, &profile, |step| {
        account.step(&step);
    });
    let plan = decision.map_err(no_memory)?.plan;
    let code = match plan {
        Plan::NamedFetch(_) => FETCH,
        Plan::Local(_) => LOCAL,
    };
    Ok((account.end(&plan), code))
}

/// What was said with `--family`; else what the table's bindings can do, each for its family.
fn capabilities(arguments: &PlanArguments, table: &BindingTable) -> Result<Capabilities, String> {
    let mut capabilities = Capabilities::new();
    for (family, action_type, version) in &arguments.families {
        capabilities.add(family, action_type, version).map_err(|error| error.to_string())?;
    }
    if arguments.families.is_empty() {
        for (_, binding) in table.bindings() {
            for (action_type, version) in binding.actions() {
                capabilities
                    .add(binding.family(), action_type, version)
                    .map_err(|error| format!("{error}; say which count with --family"))?;
            }
        }
    }
    Ok(capabilities)
}
