//! `plimsoll bench`: measures what is promised.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::Context;
use plimsoll_bench::guard::{self, Part, Plan};
use plimsoll_bench::{Protection, no_harm};

use crate::output;

/// Measure what is promised, beside the alternatives, in one run.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Guard(GuardArgs),
    NoHarm(NoHarmArgs),
}

/// Measure the guard beside the stock kernel, a tuned nftables limit and threaded polling.
///
/// Everything happens between two network namespaces made for it, which are
/// removed again. Every part stands alone; one that this guard or machine cannot
/// do leaves its goals unmeasured and says why.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
struct GuardArgs {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = parse_part)]
    only: Vec<Part>,
    /// Compare only these in the parts `flood` and `syn`
    #[arg(long, value_name = "PROTECTION", value_delimiter = ',', value_parser = parse_protection)]
    protections: Vec<Protection>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the figures as one self-contained HTML page to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// A further argument for `plimsoll guard`; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    guard: Vec<String>,
    /// Interrupt holdoff of the flooded interface, in microseconds
    #[arg(long, value_name = "US", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    holdoff_us: u64,
    /// Measured part of each run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(30..=60_000))]
    window_ms: u64,
    /// Measured part of each run with a client that counts in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Pairs of runs at light load
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=99))]
    light_pairs: u8,
    /// How long floods come and go in the part `chaos`
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    chaos: u64,
    /// Seed of what comes when in the part `chaos`
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Document of `make bench-verdict`, for the part `verdict`
    #[arg(long, value_name = "FILE", default_value = "target/bench/verdict.json")]
    verdict: PathBuf,
    /// Channels of the guard in the part `watching`
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..=16_000))]
    channels: u16,
    /// Maximum loss-free receive rate in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    mlfrr: Option<u64>,
    /// Discard capacity in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    discard_capacity: Option<u64>,
}

/// Measure whether a host is worse off with the guard, in set-ups that operators have.
///
/// Gateways, published ports, bridges, containers, tunnels, packet readers and others,
/// stock and guarded in turns, calm and beside a flood of another socket. Everything
/// happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = NO_HARM_HELP)]
struct NoHarmArgs {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these set-ups
    #[arg(long, value_name = "SETUP", value_delimiter = ',', value_parser = parse_setup)]
    only: Vec<String>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measured part of each run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
}

const NO_HARM_HELP: &str = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and nftables, iproute2 and ethtool \
    (scripts/setup installs them).";

const HELP: &str = "Parts: capacity, flood, beyond, cpu-limit, syn, light, verdict, rpc, chaos, dns, watching.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and nginx, wrk, nftables, nsd, dnsperf \
    and ethtool (scripts/setup installs them).\n\
    Example: plimsoll bench guard --only flood,syn --guard=--threaded --guard=rt";

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    match &args.command {
        Command::Guard(args) => run_guard(args),
        Command::NoHarm(args) => run_no_harm(args),
    }
}

fn run_guard(args: &GuardArgs) -> crate::Result<()> {
    let mut json = args.json.as_deref().map(output::json_writer).transpose()?;
    let document = guard::run(&plan(args)?, output::progress)?;
    output::clear_progress();
    write_json(json.as_mut(), &document)?;
    if let Some(target) = &args.html {
        output::write_page(target, &document.page()?)?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        output::print(&document.table())?;
    }
    Ok(())
}

fn run_no_harm(args: &NoHarmArgs) -> crate::Result<()> {
    let mut json = args.json.as_deref().map(output::json_writer).transpose()?;
    let plan = no_harm::Plan {
        runs: args.runs.into(),
        only: args.only.clone(),
        window: Duration::from_millis(args.window_ms),
        ..no_harm::Plan::new(this_program()?)
    };
    let document = no_harm::run(&plan, output::progress)?;
    output::clear_progress();
    write_json(json.as_mut(), &document)?;
    if args.json.as_deref() != Some(Path::new("-")) {
        output::print(&document.table())?;
    }
    Ok(())
}

fn write_json(
    writer: Option<&mut impl Write>,
    document: &impl serde::Serialize,
) -> crate::Result<()> {
    if let Some(writer) = writer {
        serde_json::to_writer_pretty(&mut *writer, document)?;
        writeln!(writer)?;
    }
    Ok(())
}

fn this_program() -> crate::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

fn plan(args: &GuardArgs) -> crate::Result<Plan> {
    let defaults = Plan::new(this_program()?);
    Ok(Plan {
        parts: given_or(&args.only, defaults.parts),
        protections: given_or(&args.protections, defaults.protections),
        runs: args.runs.into(),
        light_pairs: args.light_pairs.into(),
        window: Duration::from_millis(args.window_ms),
        seconds: args.seconds,
        holdoff: Duration::from_micros(args.holdoff_us),
        guard_arguments: args.guard.clone(),
        chaos: Duration::from_secs(args.chaos),
        seed: args.seed,
        verdict: args.verdict.clone(),
        channels: args.channels,
        mlfrr_pps: args.mlfrr.map(|pps| pps as f64),
        capacity_pps: args.discard_capacity.map(|pps| pps as f64),
        ..defaults
    })
}

fn given_or<T: Clone>(given: &[T], default: Vec<T>) -> Vec<T> {
    if given.is_empty() {
        default
    } else {
        given.to_vec()
    }
}

fn parse_part(text: &str) -> Result<Part, String> {
    find(text, &Part::ALL, Part::name)
}

fn parse_setup(text: &str) -> Result<String, String> {
    let names: Vec<&str> = no_harm::Plan::names().collect();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be one of {}", names.join(", ")))
}

fn parse_protection(text: &str) -> Result<Protection, String> {
    find(text, &Protection::ALL, Protection::name)
}

fn find<T: Copy>(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|&one| name(one) == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().copied().map(name).collect();
        format!("must be one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_parts() {
        assert!(HELP.contains(&Part::ALL.map(Part::name).join(", ")));
        assert_eq!(parse_part("cpu-limit"), Ok(Part::CpuLimit));
        assert!(parse_part("cpu").is_err());
    }
}
