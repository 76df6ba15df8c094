//! `plimsoll bench guard`.

use std::fmt::Debug;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_bench::Protection;
use plimsoll_bench::guard::{self, CPU_LIMITS, Part, Plan, RPC_WORKS_US};

use super::{given_or, millis, named, this_program};
use crate::output::{self, Target};

/// Measure the guard beside the stock kernel, a tuned nftables limit and threaded polling.
///
/// Everything happens between two network namespaces made for it, which are
/// removed again, as are control groups; the next run removes the leftovers of a killed
/// one. Every part stands alone; one that this guard or machine cannot
/// do leaves its goals unmeasured and says why.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = defaults().runs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = named(&Part::ALL, Part::name))]
    only: Vec<Part>,
    /// Compare only these (stock, nftables, threaded, guard) in the parts `flood` and `syn`, and in
    /// `sources` besides the guard
    #[arg(long, value_name = "PROTECTION", value_delimiter = ',', value_parser = named(&Protection::ALL, Protection::name))]
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
    #[arg(long, value_name = "US", default_value_t = defaults().holdoff.as_micros() as u64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    holdoff_us: u64,
    /// Measured part of each run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().window), value_parser = clap::value_parser!(u64).range(30..=60_000))]
    window_ms: u64,
    /// Measured part of each run with a client that counts in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = defaults().seconds, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Pairs of runs at light load
    #[arg(long, value_name = "N", default_value_t = defaults().light_pairs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    light_pairs: u8,
    /// How long floods come and go in the part `chaos`
    #[arg(long, value_name = "SECONDS", default_value_t = defaults().chaos.as_secs())]
    chaos: u64,
    /// Seed of what comes when in the part `chaos`
    #[arg(long, default_value_t = defaults().seed)]
    seed: u64,
    /// Document of `make bench-verdict`, for the part `verdict`
    #[arg(long, value_name = "FILE", default_value_os_t = defaults().verdict)]
    verdict: PathBuf,
    /// Channels of the guard in the part `watching`
    #[arg(long, value_name = "N", default_value_t = defaults().channels, value_parser = clap::value_parser!(u16).range(1..=16_000))]
    channels: u16,
    /// Measure only these cases of the part `sources`: nsd, nsd/one/5, clients and others
    #[arg(long, value_name = "CASE", value_delimiter = ',', value_parser = parse_sources)]
    sources: Vec<String>,
    /// Measure only these limits of the part `cpu-limit`, in percent: 30, 50, 70
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = parse_cpu_limit)]
    cpu_limits: Vec<u32>,
    /// Measure only these amounts of work per request of the part `rpc`, in microseconds: 2, 4, 8
    #[arg(long, value_name = "US", value_delimiter = ',', value_parser = parse_rpc_work)]
    rpc_works: Vec<u64>,
    /// Maximum loss-free receive rate in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    mlfrr: Option<u64>,
    /// Discard capacity in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    discard_capacity: Option<u64>,
}

const HELP: &str = "Parts: capacity, flood, beyond, cpu-limit, syn, light, verdict, rpc, chaos, dns, watching, sources.\n\
    Protections: stock, nftables, threaded, guard.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and nginx, wrk, nftables, nsd, dnsperf \
    and ethtool (scripts/setup installs them).\n\
    Example: plimsoll bench guard --only flood,syn --guard=--threaded --guard=rt";

fn defaults() -> Plan {
    Plan::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let html = args.html.as_deref().map(Target::open_page).transpose()?;
    let document = guard::run(&plan(args)?, output::progress)?;
    let delivered = output::deliver(json, &document, || document.table());
    if let Some(html) = html {
        html.put(&document.page()?)?;
    }
    delivered
}

fn plan(args: &Args) -> crate::Result<Plan> {
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
        sources: args.sources.clone(),
        cpu_limits: given_or(&args.cpu_limits, defaults.cpu_limits),
        rpc_works_us: given_or(&args.rpc_works, defaults.rpc_works_us),
        mlfrr_pps: args.mlfrr.map(|pps| pps as f64),
        capacity_pps: args.discard_capacity.map(|pps| pps as f64),
        ..defaults
    })
}

fn parse_cpu_limit(text: &str) -> Result<u32, String> {
    parse_one_of(CPU_LIMITS, text)
}

fn parse_rpc_work(text: &str) -> Result<u64, String> {
    parse_one_of(RPC_WORKS_US, text)
}

fn parse_one_of<T, const N: usize>(all: [T; N], text: &str) -> Result<T, String>
where
    T: Copy + Debug + FromStr + PartialEq,
{
    let given = text.parse().ok();
    let found = all.into_iter().find(|one| Some(*one) == given);
    found.ok_or_else(|| format!("must be one of {all:?}"))
}

fn parse_sources(text: &str) -> Result<String, String> {
    let paths = Plan::sources_paths();
    let begins = |path: &String| {
        path.split('/')
            .zip(text.split('/'))
            .all(|(one, given)| one == given)
    };
    if !text.is_empty()
        && paths
            .iter()
            .any(|path| begins(path) && path.len() >= text.len())
    {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must be one of {}, or the first words of one",
        paths.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_parts_and_the_protections() {
        assert!(HELP.contains(&Part::ALL.map(Part::name).join(", ")));
        let protections = Protection::ALL.map(Protection::name).join(", ");
        assert!(HELP.contains(&format!("Protections: {protections}.")));
        let parse_part = named(&Part::ALL, Part::name);
        assert_eq!(parse_part("cpu-limit"), Ok(Part::CpuLimit));
        assert!(parse_part("cpu").is_err());
        assert_eq!(parse_cpu_limit("50"), Ok(50));
        assert!(parse_cpu_limit("40").unwrap_err().contains("30, 50, 70"));
        assert_eq!(parse_rpc_work("8"), Ok(8));
        assert!(parse_rpc_work("3").unwrap_err().contains("2, 4, 8"));
    }

    #[test]
    fn a_case_of_sources_is_named_by_its_path_or_the_first_words_of_it() {
        for given in ["nsd", "nsd/one", "echo/many/25", "crowd"] {
            assert_eq!(parse_sources(given).as_deref(), Ok(given));
        }
        for wrong in ["", "ns", "nsd/", "nsd/two", "nsd/one/5/5", "crowd/5"] {
            assert!(parse_sources(wrong).is_err(), "{wrong}");
        }
    }
}
