//! `plimsoll bench capture`.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_bench::capture::{self, Plan};

use super::passing::PacketArgs;
use super::{millis, this_program};
use crate::output::{self, Target};

/// Measure how much the monitor records without loss, beside tcpdump, dumpcap, netsniff-ng
/// and xdpdump.
///
/// The smallest UDP packets and mixed ones, over veth to a host with one CPU, to null and to
/// disk. Everything happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// How often each search runs
    #[arg(long, value_name = "N", default_value_t = defaults().runs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// How long each rate is offered, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().window), value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
    #[command(flatten)]
    packets: PacketArgs,
    /// Where files are written and removed again [default: the system's for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const HELP: &str = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and tcpdump, dumpcap \
    (wireshark-common), netsniff-ng and ethtool (scripts/setup installs them). Without xdpdump \
    (xdp-tools) the others are measured, and the table says so.";

fn defaults() -> Plan {
    Plan::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let defaults = Plan::new(this_program()?);
    let plan = Plan {
        runs: args.runs.into(),
        window: Duration::from_millis(args.window_ms),
        families: args.packets.families(),
        directory: args.directory.clone().unwrap_or(defaults.directory.clone()),
        ..defaults
    };
    let document = capture::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())
}
