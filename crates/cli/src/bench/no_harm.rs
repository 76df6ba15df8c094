//! `plimsoll bench no-harm`.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_bench::no_harm::{self, Plan};

use super::{deliver, millis, this_program};
use crate::output;

/// Measure whether a host is worse off with the guard, in set-ups that operators have.
///
/// Gateways, published ports, bridges, containers, tunnels, packet readers and others,
/// stock and guarded in turns, calm and beside a flood of another socket. Everything
/// happens between network namespaces made for it, which are removed again.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// How often each case runs
    #[arg(long, value_name = "N", default_value_t = defaults().runs as u8, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Measure only these set-ups
    #[arg(long, value_name = "SETUP", value_delimiter = ',', value_parser = parse_setup)]
    only: Vec<String>,
    /// Write the figures as one JSON document to FILE (`-`: standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measured part of each run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().window), value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
    /// Packets per second of the floods; a host is overloaded if stock loses by them
    #[arg(long, value_name = "PPS", default_value_t = defaults().flood_pps, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    flood_pps: u64,
}

const HELP: &str = "Set-ups: socket, socket-ipv6, fragments, masquerade, dnat, load-balancer, ipvs, bridge, macvlan, vlan, \
    vxlan, router, router-full, router-ipv6, tunnel, packet-reader, multicast, bound-device, ephemeral, \
    connected, conntrack, tcp-in, tcp-in-frames, connections, tcp-out.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and nftables, iproute2 and ethtool \
    (scripts/setup installs them).";

fn defaults() -> Plan {
    Plan::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = args.json.as_deref().map(output::json_writer).transpose()?;
    let plan = Plan {
        runs: args.runs.into(),
        only: args.only.clone(),
        window: Duration::from_millis(args.window_ms),
        flood_pps: args.flood_pps,
        ..Plan::new(this_program()?)
    };
    let document = no_harm::run(&plan, output::progress)?;
    deliver(json, args.json.as_deref(), &document, || document.table())
}

fn parse_setup(text: &str) -> Result<String, String> {
    let names: Vec<&str> = Plan::names().collect();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("must be one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_set_ups() {
        let names: Vec<&str> = Plan::names().collect();
        assert!(HELP.contains(&format!("Set-ups: {}.", names.join(", "))));
    }
}
