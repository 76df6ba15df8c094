//! `plimsoll bench stack`.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_bench::stack::{self, Effort, Part, Plan, Side};
use plimsoll_testbed::server::Threaded;

use super::{given_or, millis, named, this_program};
use crate::output::{self, Target};

/// Measure what the user-space stack receives, beside the kernel's sockets and testpmd.
///
/// 64-byte UDP packets over veth to a host with one CPU, for each receive path: the
/// highest rate without loss (MLFRR) of a sink and of an echo, and what a sink that works
/// gets at multiples of its own MLFRR. Meanwhile a client of another endpoint is measured,
/// a client of the kernel's sockets, and a process that computes. Then how calls and a
/// worker share the CPU, HTTP beside a SYN flood, TCP bulk, DNS beside NSD, round trips of
/// single messages, and connections beside 9,900 idle ones. Everything happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = defaults().runs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = named(&Part::ALL, Part::name))]
    only: Vec<Part>,
    /// Measure only these sides
    #[arg(long, value_name = "SIDE", value_delimiter = ',', value_parser = named(&Side::ALL, Side::name))]
    sides: Vec<Side>,
    /// How long each rate is offered in a search, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().trial), value_parser = clap::value_parser!(u64).range(30..=60_000))]
    trial_ms: u64,
    /// How long each overload is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().window), value_parser = clap::value_parser!(u64).range(50..=60_000))]
    window_ms: u64,
    /// MLFRR of all in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    mlfrr: Option<u64>,
    /// Where the kernel polls for our UDP servers: in a thread so many nice levels beneath them;
    /// `auto`: for all but eager, beneath while a flood is alone; `off`: in softirq context
    /// (`serve --threaded`)
    #[arg(long, value_name = "off|auto|LEVELS", default_value = "auto")]
    threaded: Threaded,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const HELP: &str = "Parts: udp, overload, bystander, rpc, http, tcp, dns, round-trip, idle.\n\
    Sides: kernel, ni-lrp, soft-lrp, polled, early-demux, eager, testpmd.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2, ethtool, nginx, wrk, curl, dnsperf and nsd (scripts/setup installs them). \
    testpmd is measured if Debian's dpdk-dev and librte-net-af-xdp* are installed.\n\
    Example: plimsoll bench stack --only udp --sides kernel,ni-lrp";

fn defaults() -> Effort {
    Effort::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let plan = Plan {
        effort: Effort {
            runs: args.runs.into(),
            trial: Duration::from_millis(args.trial_ms),
            window: Duration::from_millis(args.window_ms),
            mlfrr_pps: args.mlfrr.map(|pps| pps as f64),
            threaded: args.threaded,
            ..Effort::new(this_program()?)
        },
        parts: given_or(&args.only, Part::ALL.to_vec()),
        sides: given_or(&args.sides, Side::ALL.to_vec()),
    };
    let document = stack::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_parts_and_the_sides() {
        assert!(HELP.contains(&Part::ALL.map(Part::name).join(", ")));
        assert!(HELP.contains(&Side::ALL.map(Side::name).join(", ")));
    }
}
