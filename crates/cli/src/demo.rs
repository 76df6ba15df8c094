//! `plimsoll demo`: what Plimsoll is for, with real packets.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use plimsoll_bench::demo::{self, Plan};

use plimsoll_lab::{Catalogue, Document, Options, table, values};

use crate::{lab, output};

/// Flood a stock server and a guarded one, and show both (two minutes).
///
/// Everything happens between two network namespaces made for it, which are
/// removed again. A sink and nginx are flooded with up to 15 times the packets
/// they can handle; another server's client measures what that costs it.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and nginx, wrk and ethtool \
                        (scripts/setup installs them). Where root or a suitable kernel is missing, the same \
                        cases run on a modelled host, and the output says so."
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
    /// Use the modelled host even if this one could do it with real packets
    #[arg(long)]
    modelled: bool,
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
    if args.modelled {
        return modelled(args, json, "as asked for");
    }
    let document = match demo::run(&plan, output::progress) {
        Err(error) if error.is_missing() => return modelled(args, json, &error.to_string()),
        document => document?,
    };
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

/// The experiments that model the demo's two floods.
const MODELLED: [&str; 2] = ["demo-udp", "demo-syn"];

/// The same cases on the modelled host, for whoever cannot send real packets.
fn modelled(args: &Args, json: Option<Box<dyn Write>>, why: &str) -> anyhow::Result<()> {
    output::clear_progress();
    eprintln!("No real packets ({why}): the demo runs on a modelled host instead.");
    let experiments = Catalogue::built_in()?.select(&MODELLED.map(str::to_owned))?;
    let runs = lab::run_modelled(&experiments, &Options::default())?;
    if let Some(mut writer) = json {
        serde_json::to_writer_pretty(&mut *writer, &Document::new(&runs))?;
        writeln!(writer)?;
    }
    if args.json.as_deref() != Some(std::path::Path::new("-")) {
        println!("Modelled host, virtual time: these are not measurements of this machine.\n");
        print!("{}{}", values(&runs), table(&runs));
    }
    Ok(())
}
