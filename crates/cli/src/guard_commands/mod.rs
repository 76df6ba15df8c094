//! `plimsoll guard IFACE`, and what else there is to do around a guard.

mod check;
mod restore;

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
}

pub(crate) fn run(args: &Commands) -> anyhow::Result<()> {
    match (&args.command, &args.run) {
        (Some(Command::Check(args)), _) => check::run(args),
        (Some(Command::Restore(args)), _) => restore::run(args),
        (None, Some(args)) => guard::run(args),
        (None, None) => Err(crate::Usage("name an interface, as in `plimsoll guard eth0`").into()),
    }
}
