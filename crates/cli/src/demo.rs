//! `plimsoll demo`: what Plimsoll is for, with real packets.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use plimsoll_bench::demo::{self, Plan};

use crate::output;

/// Flood a stock server and a guarded one, and show both (two minutes).
///
/// Everything happens between two network namespaces made for it, which are
/// removed again. A sink and nginx are flooded with up to 15 times the packets
/// they can handle; another server's client measures what that costs it.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and nginx, wrk and ethtool \
                        (scripts/setup installs them)."
)]
pub(crate) struct Args {
    /// Also write the figures as one JSON document to FILE (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Floods on the UDP sink, as multiples of its maximum loss-free rate
    #[arg(long, value_name = "MULTIPLES", value_delimiter = ',', default_values_t = [0.0, 1.0, 5.0, 15.0])]
    floods: Vec<f64>,
    /// Floods on the other TCP listener, in SYN/s
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_values_t = [0, 50_000, 150_000])]
    syns: Vec<u64>,
    /// Interrupt holdoff of the flooded interface, in microseconds
    #[arg(long, value_name = "US", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    holdoff_us: u64,
    /// Arguments for `plimsoll guard`, for example "--threaded 5 --poll-cpu 1"
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    guard: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut json = args.json.as_deref().map(output::json_writer).transpose()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let plan = Plan {
        runs: args.runs.into(),
        flood_multiples: args.floods.clone(),
        syn_rates_pps: args.syns.clone(),
        holdoff: Duration::from_micros(args.holdoff_us),
        guard_arguments: args
            .guard
            .iter()
            .flat_map(|text| text.split_whitespace())
            .map(str::to_owned)
            .collect(),
        ..Plan::new(program)
    };
    let document = demo::run(&plan, output::progress)?;
    output::clear_progress();
    if let Some(writer) = &mut json {
        serde_json::to_writer_pretty(&mut *writer, &document)?;
        writeln!(writer)?;
    }
    if args.json.as_deref() != Some(std::path::Path::new("-")) {
        print!("{}", document.table());
    }
    Ok(())
}
