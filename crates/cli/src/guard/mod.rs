//! `plimsoll guard IFACE`, and what else there is to do around a guard.

mod check;
mod config_file;
#[doc(hidden)]
pub mod driven;
#[cfg(test)]
mod golden;
mod ledger;
mod restore;
mod run;
mod status;
mod top;
mod words;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use plimsoll_guard::session::{ServiceManager, SessionError, SettingsError};

use crate::failure::{Failure, Usage};
#[cfg(test)]
pub(crate) use config_file::settings_of;
pub(crate) use config_file::{commented_settings, expand};
use words::doing;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Commands {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
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
pub(crate) fn arguments() -> crate::Result<Vec<OsString>> {
    expand(&crate::Cli::command(), std::env::args_os().collect())
}

pub(crate) fn run(args: &Commands, manager: ServiceManager) -> crate::Result<()> {
    match (&args.command, &args.run) {
        (Some(Command::Check(args)), _) => check::run(args),
        (Some(Command::Restore(args)), _) => restore::run(args),
        (Some(Command::Status(args)), _) => status::run(args),
        (Some(Command::Top(args)), _) => top::run(args),
        (None, Some(args)) => {
            run::run(args, manager, || reload().map_err(name_own_place)).map_err(name_own_place)
        }
        (None, None) => Err(Usage("name an interface, as in `plimsoll guard eth0`").into()),
    }
}

/// Reads the settings again, from the same file and command line.
fn reload() -> crate::Result<run::Args> {
    let cli = crate::Cli::try_parse_from(arguments()?)?;
    match cli.command {
        Some(crate::Command::Guard(Commands {
            run: Some(args), ..
        })) => {
            args.settings().validate()?;
            Ok(args)
        }
        _ => Err(Usage("the arguments are the guard's no more").into()),
    }
}

/// Adds the place in the configuration file, which `arguments` name, to a
/// setting that is out of range in company of the others.
pub(crate) fn name_place(error: Failure, arguments: &[OsString]) -> Failure {
    let settings = error.downcast_ref().map(SettingsError::settings);
    let session = error.downcast_ref().and_then(|error| match error {
        SessionError::Settings(error) => Some(error.settings()),
        _ => None,
    });
    let settings = settings.or(session).unwrap_or_default();
    let mut places = settings.iter();
    match places.find_map(|setting| config_file::place(arguments, setting)) {
        Some(place) => error.context(place),
        None => error,
    }
}

fn name_own_place(error: Failure) -> Failure {
    name_place(error, &std::env::args_os().collect::<Vec<_>>())
}
