//! The `plimsoll` command: parses, calls, prints.
//!
//! Each subcommand is one file with its arguments (`Args`) and a `run` that
//! calls the library. This file turns their errors into messages and exit
//! codes: 0 done, 1 failed, 2 used wrongly, 3 this host lacks something.

mod bench;
mod blast;
mod demo;
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
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 used wrongly, 3 this host lacks something.";

#[derive(Subcommand, Debug)]
enum Command {
    Bench(bench::Args),
    Blast(blast::Args),
    Demo(demo::Args),
    Guard(guard::Args),
    Lab(lab::Args),
    Probe(probe::Args),
    Serve(serve::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Blast(args) => blast::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Guard(args) => guard::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Serve(args) => serve::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plimsoll: {error:#}");
            exit_code(&error)
        }
    }
}

/// 2 for bad settings (clap itself exits with 2), 3 if this host lacks
/// something, else 1.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    use plimsoll_testbed::Error as Testbed;
    ExitCode::from(match error.downcast_ref::<plimsoll_guard::Error>() {
        Some(plimsoll_guard::Error::Config(_)) => 2,
        Some(error) if error.is_missing() => 3,
        Some(_) => 1,
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
