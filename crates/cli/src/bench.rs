//! `plimsoll bench`: measures what is promised.

mod capture;
mod forward;
mod guard;
mod no_harm;
mod passing;
mod screen;
mod stack;
mod timers;
mod wan;

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Context;

/// Measure what is promised, beside the alternatives, in one run.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Capture(capture::Args),
    Forward(forward::Args),
    Guard(guard::Args),
    NoHarm(no_harm::Args),
    Screen(screen::Args),
    Stack(stack::Args),
    Timers(timers::Args),
    Wan(wan::Args),
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    match &args.command {
        Command::Capture(args) => capture::run(args),
        Command::Forward(args) => forward::run(args),
        Command::Guard(args) => guard::run(args),
        Command::NoHarm(args) => no_harm::run(args),
        Command::Screen(args) => screen::run(args),
        Command::Stack(args) => stack::run(args),
        Command::Timers(args) => timers::run(args),
        Command::Wan(args) => wan::run(args),
    }
}

fn this_program() -> crate::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

/// A span as it stands in a default.
pub(crate) const fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

pub(crate) fn given_or<T: Clone>(given: &[T], default: Vec<T>) -> Vec<T> {
    if given.is_empty() {
        default
    } else {
        given.to_vec()
    }
}

/// Parses an argument that is one of these names.
pub(crate) fn named<T: Copy + Sync>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let found = all.iter().copied().find(|&one| name(one) == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = all.iter().copied().map(name).collect();
            format!("must be one of {}", names.join(", "))
        })
    }
}
