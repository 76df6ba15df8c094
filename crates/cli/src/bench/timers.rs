//! `plimsoll bench timers`.

use std::path::PathBuf;

use plimsoll_bench::timers::{self, Part, Plan};

use super::{given_or, named, this_program};
use crate::output::{self, Target};

/// Measure what events of a few microseconds cost a saturated HTTP server.
///
/// Soft timers beside a timer descriptor and a POSIX timer, in turns within one run of
/// server and client; and what deadlines of soft timers cost there. Then the stack's HTTP
/// server, polled by soft timers and woken by arrivals, 10,000 paced flows of the stack's
/// UDP, and one paced stream by soft timers, by sleeping and by the kernel's TCP.
/// Everything happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// How often each part runs
    #[arg(long, value_name = "N", default_value_t = defaults().runs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = named(&Part::ALL, Part::name))]
    only: Vec<Part>,
    /// How long each run's client asks in the parts `slowdown` and `deadlines`, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = defaults().seconds, value_parser = clap::value_parser!(u32).range(3..=3600))]
    seconds: u32,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const HELP: &str = "Parts: slowdown, polling, flows, spacing, deadlines.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2, ethtool and wrk (scripts/setup installs them).\n\
    `make bench-timers` also measures the cost of a check and of an event alone.";

fn defaults() -> Plan {
    Plan::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let plan = Plan {
        parts: given_or(&args.only, Part::ALL.to_vec()),
        runs: args.runs.into(),
        seconds: args.seconds,
        ..Plan::new(this_program()?)
    };
    let document = timers::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_parts() {
        assert!(HELP.contains(&Part::ALL.map(Part::name).join(", ")));
    }
}
