//! `plimsoll bench`: measures what is promised.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::Context;
use plimsoll_bench::guard::{self, CPU_LIMITS, Part, Plan};
use plimsoll_bench::passing::{Effort, Family};
use plimsoll_bench::{Protection, capture, forward, no_harm, screen, stack};
use plimsoll_testbed::server::Threaded;

use crate::output;

mod timers;
mod wan;

/// Measure what is promised, beside the alternatives, in one run.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Capture(CaptureArgs),
    Forward(ForwardArgs),
    Guard(GuardArgs),
    NoHarm(NoHarmArgs),
    Screen(ScreenArgs),
    Stack(StackArgs),
    Timers(timers::Args),
    Wan(wan::Args),
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
    /// Measure only these cases of the part `sources`: nsd, nsd/one/5, clients and others
    #[arg(long, value_name = "CASE", value_delimiter = ',', value_parser = parse_sources)]
    sources: Vec<String>,
    /// Measure only these limits of the part `cpu-limit`, in percent: 30, 50, 70
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = parse_cpu_limit)]
    cpu_limits: Vec<u32>,
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
    /// Packets per second of the floods; a host is overloaded if stock loses by them
    #[arg(long, value_name = "PPS", default_value_t = no_harm::Plan::FLOOD_PPS_DEFAULT, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    flood_pps: u64,
}

/// Measure how much the monitor records without loss, beside tcpdump, dumpcap and netsniff-ng.
///
/// 64-byte frames over veth to a host with one CPU, to null and to disk. Everything
/// happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = CAPTURE_HELP)]
struct CaptureArgs {
    /// How often each search runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// How long each rate is offered, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 800, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
    /// Where files are written and removed again [default: the system's for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measure how much the router forwards, beside the kernel, a bare XDP program and testpmd.
///
/// The smallest UDP packets cross a host with one CPU, over veth. For each router: the
/// highest rate without loss (MLFRR), what is forwarded at multiples of it, and what a
/// flood leaves to a compute-bound process and to connections. Everything happens between
/// network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = FORWARD_HELP)]
struct ForwardArgs {
    /// Measure only these routers
    #[arg(long, value_name = "ROUTER", value_delimiter = ',', value_parser = parse_router)]
    only: Vec<forward::Router>,
    #[command(flatten)]
    passing: PassingArgs,
}

/// Measure how much passes four rules of the screen, beside NFQUEUE and nftables.
///
/// The smallest UDP packets cross a host with one CPU, over veth. For each screen: the
/// highest rate without loss (MLFRR), and what passes at multiples of it. Everything
/// happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = SCREEN_HELP)]
struct ScreenArgs {
    /// Measure only these screens
    #[arg(long, value_name = "SCREEN", value_delimiter = ',', value_parser = parse_screen)]
    only: Vec<screen::Screen>,
    #[command(flatten)]
    passing: PassingArgs,
}

/// Measure what the user-space stack receives, beside the kernel's sockets and testpmd.
///
/// 64-byte UDP packets over veth to a host with one CPU, for each receive path: the
/// highest rate without loss (MLFRR) of a sink and of an echo, what a sink that works
/// gets at multiples of its own MLFRR, and what a client of another endpoint sees
/// meanwhile. Then how calls and a worker share the CPU, HTTP beside a SYN flood, TCP
/// bulk, DNS beside NSD, round trips of single messages, and connections beside 9,900 idle
/// ones. Everything happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = STACK_HELP)]
struct StackArgs {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = parse_stack_part)]
    only: Vec<stack::Part>,
    /// Measure only these sides
    #[arg(long, value_name = "SIDE", value_delimiter = ',', value_parser = parse_side)]
    sides: Vec<stack::Side>,
    /// How long each rate is offered in a search, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(30..=60_000))]
    trial_ms: u64,
    /// How long each overload is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    window_ms: u64,
    /// MLFRR of all in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    mlfrr: Option<u64>,
    /// Where the kernel polls for our UDP servers: in a thread so many nice levels beneath them;
    /// `auto`: for ni-lrp alone, beneath while a flood is alone; `off`: in softirq context
    /// (`serve --threaded`)
    #[arg(long, value_name = "off|auto|LEVELS", default_value = "auto")]
    threaded: Threaded,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
struct PassingArgs {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// How long each multiple of the MLFRR is offered, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    window_ms: u64,
    /// Measure only this version of IP, 4 or 6
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    ip: Option<Version>,
    /// Measure only these lengths of frames: 64 (the smallest) or imix
    #[arg(long, value_name = "LENGTHS", value_parser = parse_lengths)]
    frames: Option<Lengths>,
    /// MLFRR of all in packets/s, instead of measuring it
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1000..))]
    mlfrr: Option<u64>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl PassingArgs {
    fn effort(&self) -> crate::Result<Effort> {
        let defaults = Effort::new(this_program()?);
        Ok(Effort {
            runs: self.runs.into(),
            window: Duration::from_millis(self.window_ms),
            families: families(self.ip, self.frames),
            mlfrr_pps: self.mlfrr.map(|pps| pps as f64),
            ..defaults
        })
    }
}

const FORWARD_HELP: &str = "Routers: kernel, threaded, pass-through, bare, xdp, user, testpmd.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2, ethtool and nginx \
    (scripts/setup installs them). testpmd is measured if Debian's dpdk-dev and librte-net-af-xdp* are installed.\n\
    Example: plimsoll bench forward --only kernel,xdp --ip 4";

const STACK_HELP: &str = "Parts: udp, overload, bystander, rpc, http, tcp, dns, round-trip, idle.\n\
    Sides: kernel, ni-lrp, soft-lrp, polled, early-demux, eager, testpmd.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and ethtool, nginx, wrk, curl, dnsperf and nsd (scripts/setup installs them). \
    testpmd is measured if Debian's dpdk-dev and librte-net-af-xdp* are installed.\n\
    Example: plimsoll bench stack --only udp --sides kernel,ni-lrp";

const SCREEN_HELP: &str = "Screens: screen, screen-remember, nfqueue, nftables, none.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2, ethtool, nftables and \
    iptables, which leads packets to NFQUEUE (scripts/setup installs them).";

const CAPTURE_HELP: &str = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and tcpdump, dumpcap \
    (wireshark-common), netsniff-ng and ethtool (scripts/setup installs them).";

const NO_HARM_HELP: &str = "Needs root, two CPUs, Linux 6.8 or newer with BTF, and nftables, iproute2 and ethtool \
    (scripts/setup installs them).";

const HELP: &str = "Parts: capacity, flood, beyond, cpu-limit, syn, light, verdict, rpc, chaos, dns, watching, sources.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and nginx, wrk, nftables, nsd, dnsperf \
    and ethtool (scripts/setup installs them).\n\
    Example: plimsoll bench guard --only flood,syn --guard=--threaded --guard=rt";

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    match &args.command {
        Command::Capture(args) => run_capture(args),
        Command::Forward(args) => run_forward(args),
        Command::Guard(args) => run_guard(args),
        Command::NoHarm(args) => run_no_harm(args),
        Command::Screen(args) => run_screen(args),
        Command::Stack(args) => run_stack(args),
        Command::Timers(args) => timers::run(args),
        Command::Wan(args) => wan::run(args),
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

fn run_capture(args: &CaptureArgs) -> crate::Result<()> {
    let json = args.json.as_deref().map(output::json_writer).transpose()?;
    let defaults = capture::Plan::new(this_program()?);
    let plan = capture::Plan {
        runs: args.runs.into(),
        window: Duration::from_millis(args.window_ms),
        directory: args.directory.clone().unwrap_or(defaults.directory.clone()),
        ..defaults
    };
    let document = capture::run(&plan, output::progress)?;
    deliver(json, args.json.as_deref(), &document, || document.table())
}

fn run_forward(args: &ForwardArgs) -> crate::Result<()> {
    let target = args.passing.json.as_deref();
    let json = target.map(output::json_writer).transpose()?;
    let plan = forward::Plan {
        effort: args.passing.effort()?,
        routers: given_or(&args.only, forward::Router::ALL.to_vec()),
    };
    let document = forward::run(&plan, output::progress)?;
    deliver(json, target, &document, || document.table())
}

fn run_screen(args: &ScreenArgs) -> crate::Result<()> {
    let target = args.passing.json.as_deref();
    let json = target.map(output::json_writer).transpose()?;
    let plan = screen::Plan {
        effort: args.passing.effort()?,
        screens: given_or(&args.only, screen::Screen::ALL.to_vec()),
    };
    let document = screen::run(&plan, output::progress)?;
    deliver(json, target, &document, || document.table())
}

fn run_stack(args: &StackArgs) -> crate::Result<()> {
    let json = args.json.as_deref().map(output::json_writer).transpose()?;
    let plan = stack::Plan {
        effort: stack::Effort {
            runs: args.runs.into(),
            trial: Duration::from_millis(args.trial_ms),
            window: Duration::from_millis(args.window_ms),
            mlfrr_pps: args.mlfrr.map(|pps| pps as f64),
            threaded: args.threaded,
            ..stack::Effort::new(this_program()?)
        },
        parts: given_or(&args.only, stack::Part::ALL.to_vec()),
        sides: given_or(&args.sides, stack::Side::ALL.to_vec()),
    };
    let document = stack::run(&plan, output::progress)?;
    deliver(json, args.json.as_deref(), &document, || document.table())
}

fn run_no_harm(args: &NoHarmArgs) -> crate::Result<()> {
    let json = args.json.as_deref().map(output::json_writer).transpose()?;
    let plan = no_harm::Plan {
        runs: args.runs.into(),
        only: args.only.clone(),
        window: Duration::from_millis(args.window_ms),
        flood_pps: args.flood_pps,
        ..no_harm::Plan::new(this_program()?)
    };
    let document = no_harm::run(&plan, output::progress)?;
    deliver(json, args.json.as_deref(), &document, || document.table())
}

/// The document to where it was wanted, and the table unless the document took its place.
fn deliver(
    mut json: Option<impl Write>,
    target: Option<&Path>,
    document: &impl serde::Serialize,
    table: impl FnOnce() -> String,
) -> crate::Result<()> {
    output::clear_progress();
    write_json(json.as_mut(), document)?;
    if target != Some(Path::new("-")) {
        output::print(&table())?;
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
        sources: args.sources.clone(),
        cpu_limits: given_or(&args.cpu_limits, defaults.cpu_limits),
        mlfrr_pps: args.mlfrr.map(|pps| pps as f64),
        capacity_pps: args.discard_capacity.map(|pps| pps as f64),
        ..defaults
    })
}

pub(crate) fn given_or<T: Clone>(given: &[T], default: Vec<T>) -> Vec<T> {
    if given.is_empty() {
        default
    } else {
        given.to_vec()
    }
}

fn parse_part(text: &str) -> Result<Part, String> {
    find(text, &Part::ALL, Part::name)
}

fn parse_cpu_limit(text: &str) -> Result<u32, String> {
    let given = text.parse().ok();
    let limit = CPU_LIMITS.into_iter().find(|limit| Some(*limit) == given);
    limit.ok_or_else(|| format!("must be one of {CPU_LIMITS:?}"))
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

fn parse_setup(text: &str) -> Result<String, String> {
    let names: Vec<&str> = no_harm::Plan::names().collect();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be one of {}", names.join(", ")))
}

fn parse_router(text: &str) -> Result<forward::Router, String> {
    find(text, &forward::Router::ALL, forward::Router::name)
}

fn parse_screen(text: &str) -> Result<screen::Screen, String> {
    find(text, &screen::Screen::ALL, screen::Screen::name)
}

fn parse_stack_part(text: &str) -> Result<stack::Part, String> {
    find(text, &stack::Part::ALL, stack::Part::name)
}

fn parse_side(text: &str) -> Result<stack::Side, String> {
    find(text, &stack::Side::ALL, stack::Side::name)
}

/// A version of IP to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text {
        "4" => Ok(Version::V4),
        "6" => Ok(Version::V6),
        _ => Err("must be 4 or 6".to_owned()),
    }
}

/// How long frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    Smallest,
    Imix,
}

fn parse_lengths(text: &str) -> Result<Lengths, String> {
    match text {
        "64" => Ok(Lengths::Smallest),
        "imix" => Ok(Lengths::Imix),
        _ => Err("must be 64 or imix".to_owned()),
    }
}

/// What is asked for; nothing asked is all.
fn families(version: Option<Version>, lengths: Option<Lengths>) -> Vec<Family> {
    let is_asked = |family: &Family| {
        version.is_none_or(|one| (one == Version::V4) == family.is_ipv4())
            && lengths.is_none_or(|one| (one == Lengths::Imix) == family.is_imix())
    };
    Family::ALL.into_iter().filter(is_asked).collect()
}

fn parse_protection(text: &str) -> Result<Protection, String> {
    find(text, &Protection::ALL, Protection::name)
}

/// The one of this name.
pub(crate) fn find<T: Copy>(
    text: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, String> {
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
        assert!(FORWARD_HELP.contains(&forward::Router::ALL.map(forward::Router::name).join(", ")));
        assert!(SCREEN_HELP.contains(&screen::Screen::ALL.map(screen::Screen::name).join(", ")));
        assert!(STACK_HELP.contains(&stack::Part::ALL.map(stack::Part::name).join(", ")));
        assert!(STACK_HELP.contains(&stack::Side::ALL.map(stack::Side::name).join(", ")));
        assert_eq!(parse_part("cpu-limit"), Ok(Part::CpuLimit));
        assert!(parse_part("cpu").is_err());
        assert_eq!(parse_cpu_limit("50"), Ok(50));
        assert!(parse_cpu_limit("40").unwrap_err().contains("30, 50, 70"));
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
