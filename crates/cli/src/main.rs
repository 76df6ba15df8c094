//! The `plimsoll` command: parses, calls, prints.
//!
//! Each subcommand is one file with its arguments (`Args`) and a `run` that
//! calls the library. This file turns their errors into messages and exit
//! codes: 0 done, 1 failed, 2 used wrongly, 3 this host lacks something.

mod bench;
mod blast;
mod demo;
mod generate;
mod guard;
mod lab;
mod output;
mod probe;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps a Linux host at its full useful throughput under network overload.
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 used wrongly, 3 this host lacks something.";

#[derive(Subcommand, Debug)]
enum Command {
    Bench(bench::Args),
    Blast(blast::Args),
    Demo(demo::Args),
    Generate(generate::Args),
    Guard(guard::Commands),
    Lab(lab::Args),
    Probe(probe::Args),
    Serve(serve::Args),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // As `head` does when it has enough.
        Err(error) if output::reader_is_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plimsoll: {error:#}");
            exit_code(&error)
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Cli::parse_from(guard::arguments()?).command {
        None => output::print(FIRST_CONTACT),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Blast(args)) => blast::run(&args),
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Generate(args)) => generate::run(&args),
        Some(Command::Guard(args)) => guard::run(&args),
        Some(Command::Lab(args)) => lab::run(&args),
        Some(Command::Probe(args)) => probe::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
    }
}

/// What `plimsoll` alone says.
const FIRST_CONTACT: &str = "\
Plimsoll keeps a Linux host at its full useful throughput when the network
offers more than it can take: no receive livelock, no starved bystanders.
An XDP program discards early what a full socket could not take; servers
need no change, and it vanishes with its process.

  sudo plimsoll guard check eth0   what guard can do here; changes nothing
  sudo plimsoll guard eth0         guard an interface until Ctrl-C
  sudo plimsoll demo               see a flood with and without it, in namespaces

`plimsoll --help` lists all commands, `plimsoll guard --help` all settings.
";

/// A command line that makes no sense beyond what clap tells.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(&'static str);

/// This host lacks something, and what that is has been said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lacks(String);

/// 2 for bad settings (clap itself exits with 2), 3 if this host lacks
/// something, else 1.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    use plimsoll_testbed::Error as Testbed;
    let usage = error.is::<Usage>()
        || error.is::<guard::ConfigFileError>()
        || error.is::<plimsoll_guard::session::SettingsError>();
    if usage {
        return ExitCode::from(2);
    }
    if error.is::<Lacks>() {
        return ExitCode::from(3);
    }
    ExitCode::from(match error.downcast_ref::<plimsoll_guard::Error>() {
        Some(plimsoll_guard::Error::Config(_)) => 2,
        Some(error) if error.is_missing() => 3,
        Some(_) => 1,
        None if error
            .downcast_ref()
            .is_some_and(plimsoll_kernel::Error::is_missing) =>
        {
            3
        }
        None => match error.downcast_ref::<Testbed>() {
            Some(Testbed::Config { .. }) => 2,
            Some(error) if error.is_missing() => 3,
            Some(_) => 1,
            None => match error.downcast_ref::<plimsoll_bench::Error>() {
                Some(error) if error.is_missing() => 3,
                Some(_) => 1,
                None => match error.downcast_ref::<plimsoll_lab::Error>() {
                    Some(error) if error.is_usage() => 2,
                    _ => 1,
                },
            },
        },
    })
}
