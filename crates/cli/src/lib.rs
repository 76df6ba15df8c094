//! The `plimsoll` command: parses, calls, prints.
//!
//! Each subcommand is a file (`guard` a folder, `bench` and `lab` both) with its arguments (`Args`)
//! and a `run` that calls the library. `failure` turns their errors into messages and exit codes: 0
//! done, 1 failed, 2 used wrongly, 3 this host lacks something.
//!
//! It is a library for the sake of the fuzz targets, which read settings as it does.

mod bench;
mod blast;
mod capture;
mod demo;
mod failure;
mod forward;
mod generate;
mod guard;
mod lab;
mod metrics;
mod output;
mod polling;
mod prefix;
mod probe;
mod screen;
mod serve;
mod triggers;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};

use failure::{Context, Result};
#[doc(hidden)]
pub use guard::driven;
use plimsoll_guard::session::ServiceManager;

/// Keeps a Linux host useful under network overload.
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, long_version = VERSION, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

/// Version and commit.
const VERSION: &str = env!("PLIMSOLL_VERSION");

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 used wrongly, 3 this host lacks something.";

#[derive(Subcommand, Debug)]
enum Command {
    Bench(bench::Args),
    Blast(blast::Args),
    Capture(capture::Args),
    Demo(demo::Args),
    Forward(forward::Args),
    Generate(generate::Args),
    Guard(guard::Commands),
    Lab(lab::Args),
    Probe(probe::Args),
    Screen(screen::Args),
    Serve(serve::Args),
    Triggers(triggers::Args),
}

/// The command: its arguments are the process's.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // As `head` does when it has enough.
        Err(failure) if failure.reader_is_gone() => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(format_args!("plimsoll: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run() -> Result<()> {
    // Whatever fails from here on, no link of an earlier guard stays with the service manager.
    let manager = ServiceManager::of_this_process();
    // At a limit of a file's size (`ulimit -f`) the kernel would end this process. Now its write fails, as on a full disk.
    let handled = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    handled.context("cannot handle signals")?;
    let parsed = Cli::try_parse_from(guard::arguments()?);
    let command = match parsed {
        Ok(cli) => cli.command,
        Err(error) => {
            drop(manager);
            error.exit()
        }
    };
    match command {
        None => output::print(FIRST_CONTACT),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Blast(args)) => blast::run(&args),
        Some(Command::Capture(args)) => capture::run(&args),
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Forward(args)) => forward::run(&args),
        Some(Command::Generate(args)) => generate::run(&args),
        Some(Command::Guard(args)) => guard::run(&args, manager),
        Some(Command::Lab(args)) => lab::run(&args),
        Some(Command::Probe(args)) => probe::run(&args),
        Some(Command::Screen(args)) => screen::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Triggers(args)) => triggers::run(&args),
    }
}

/// What `plimsoll` alone says.
const FIRST_CONTACT: &str = "\
Plimsoll keeps a Linux host useful when the network offers it more packets
than it can take. A stock host then does little but receive them.
An XDP program discards early what a full socket could not take; servers
need no change. Only a restart by systemd lets it outlive its process.

  sudo plimsoll guard check eth0   what guard can do here; changes nothing
  sudo plimsoll guard eth0         guard an interface until Ctrl-C
  sudo plimsoll demo               see a flood with and without it, in namespaces

`plimsoll --help` lists all commands, `plimsoll guard --help` all settings.
";

#[cfg(test)]
mod tests {
    use super::*;

    /// A time that no clock reaches had ended it with a panic.
    #[test]
    fn a_time_that_no_clock_reaches_is_refused() {
        for command in [
            "forward a b --seconds",
            "guard a --duration",
            "guard a --standby-quiet-s",
        ] {
            let most = u64::MAX.to_string();
            let words = ["plimsoll"].into_iter().chain(command.split(' '));
            let refused = Cli::try_parse_from(words.chain([most.as_str()])).unwrap_err();
            let is_value = refused.kind() == clap::error::ErrorKind::ValueValidation;
            assert!(is_value, "{refused}");
        }
    }
}
