//! `plimsoll bench wan`.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use plimsoll_bench::wan::{self, Plan, Way};

use super::{given_or, millis, named, this_program};
use crate::output::{self, Target};

/// Measure TCP transfers over a wide-area path: with slow start and paced, the kernel's and ours.
///
/// A path of 50 ms each way with a bottleneck, made by netem where the kernel has it, else by
/// a program in user space. It lies between network namespaces made for it, which are removed
/// again. Each connection is idle before it is asked for a file.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// How often all ways take turns; in each three connections fetch each file
    #[arg(long, value_name = "N", default_value_t = defaults().rounds as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these ways
    #[arg(long, value_name = "WAY", value_delimiter = ',', value_parser = named(&Way::ALL, Way::name))]
    only: Vec<Way>,
    /// Rates of the bottleneck, in Mbit/s
    #[arg(long, value_name = "MBIT", value_delimiter = ',', default_value = RATES.as_str(), value_parser = clap::value_parser!(u32).range(1..=1000))]
    rates: Vec<u32>,
    /// Lengths of the files, in packets of 1448 bytes
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = PACKETS.as_str(), value_parser = clap::value_parser!(u32).range(1..=100_000))]
    packets: Vec<u32>,
    /// How long connections are idle before they are asked, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().idle), value_parser = clap::value_parser!(u64).range(0..=20_000))]
    idle_ms: u64,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const HELP: &str = "Ways: kernel, kernel-paced, kernel-kept, kernel-bbr, ours, ours-smooth, ours-paced, ours-last.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and iproute2 and ethtool (scripts/setup installs them).\n\
    Example: plimsoll bench wan --rates 100 --packets 100 --only kernel,kernel-bbr,ours-paced";

// As they are typed: clap would put spaces between several defaults.
static RATES: LazyLock<String> = LazyLock::new(|| typed(&defaults().rates_mbit));
static PACKETS: LazyLock<String> = LazyLock::new(|| typed(&defaults().packets));

fn typed(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(",")
}

fn defaults() -> Plan {
    Plan::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let plan = Plan {
        rounds: args.runs.into(),
        rates_mbit: args.rates.clone(),
        packets: args.packets.clone(),
        ways: given_or(&args.only, Way::ALL.to_vec()),
        idle: Duration::from_millis(args.idle_ms),
        ..Plan::new(this_program()?)
    };
    let document = wan::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_ways() {
        assert!(HELP.contains(&Way::ALL.map(Way::name).join(", ")));
    }
}
