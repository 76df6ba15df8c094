//! `plimsoll bench screen`.

use plimsoll_bench::screen::{self, Plan, Screen};

use super::passing::PassingArgs;
use super::{given_or, named};
use crate::output::{self, Target};

/// Measure how much passes four rules of the screen, beside NFQUEUE and nftables.
///
/// The smallest UDP packets, and then mixed ones, cross a host with one CPU, over veth. For
/// each screen: the highest rate without loss (MLFRR), and what passes at multiples of it.
/// Everything happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Measure only these screens
    #[arg(long, value_name = "SCREEN", value_delimiter = ',', value_parser = named(&Screen::ALL, Screen::name))]
    only: Vec<Screen>,
    #[command(flatten)]
    passing: PassingArgs,
}

const HELP: &str = "Screens: screen, screen-remember, screen-protect, nfqueue, nftables, none.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2, ethtool, nftables and \
    iptables, which leads packets to NFQUEUE (scripts/setup installs them).";

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.passing.json.as_ref())?;
    let plan = Plan {
        effort: args.passing.effort()?,
        screens: given_or(&args.only, Screen::ALL.to_vec()),
    };
    let document = screen::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_screens() {
        assert!(HELP.contains(&Screen::ALL.map(Screen::name).join(", ")));
    }
}
