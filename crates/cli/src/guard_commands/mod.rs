//! `plimsoll guard IFACE`, and what else there is to do around a guard.

mod check;
mod config_file;
#[cfg(test)]
mod golden;
mod ledger;
mod restore;
mod status;
mod top;
mod words;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

pub(crate) use config_file::{ConfigFileError, commented_settings};
pub(crate) use words::doing;

use crate::guard;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Commands {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<guard::Args>,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Check(check::Args),
    Restore(restore::Args),
    Status(status::Args),
    Top(top::Args),
}

/// The process's arguments with the settings of the file that `--config`
/// names, as if they had been given first.
pub(crate) fn arguments() -> anyhow::Result<Vec<OsString>> {
    config_file::expand(&crate::Cli::command(), std::env::args_os().collect())
}

pub(crate) fn run(args: &Commands) -> anyhow::Result<()> {
    match (&args.command, &args.run) {
        (Some(Command::Check(args)), _) => check::run(args),
        (Some(Command::Restore(args)), _) => restore::run(args),
        (Some(Command::Status(args)), _) => status::run(args),
        (Some(Command::Top(args)), _) => top::run(args),
        (None, Some(args)) => guard::run(args, reload).map_err(name_place),
        (None, None) => Err(crate::Usage("name an interface, as in `plimsoll guard eth0`").into()),
    }
}

/// Reads the settings again, from the same file and command line.
fn reload() -> anyhow::Result<guard::Args> {
    let cli = crate::Cli::try_parse_from(arguments()?)?;
    match cli.command {
        Some(crate::Command::Guard(Commands {
            run: Some(args), ..
        })) => Ok(args),
        _ => Err(crate::Usage("the arguments are the guard's no more").into()),
    }
}

/// Adds the place in the configuration file to a setting that is out of range
/// in company of the others.
fn name_place(error: anyhow::Error) -> anyhow::Error {
    let place = match error.downcast_ref() {
        Some(plimsoll_guard::Error::Config(config)) => config_file::place(config.field),
        _ => None,
    };
    match place {
        Some(place) => error.context(place),
        None => error,
    }
}
