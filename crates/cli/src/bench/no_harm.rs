//! `plimsoll bench no-harm`.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_bench::no_harm::{self, NotShown, OPTIONAL, Plan, is_of_choice, is_without_overload};
use plimsoll_report::Goal;

use super::{millis, this_program};
use crate::failure::Missed;
use crate::output::{self, Target};

/// Measure whether a host is worse off with the guard, in set-ups that operators have.
///
/// Gateways, published ports, bridges, containers, tunnels, packet readers and others,
/// stock and guarded in turns, calm and beside a flood. Everything happens between network
/// namespaces made for it, which are removed again.
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
    /// Packets per second of a flood, doubled until stock loses by it; thrice as many to a full router,
    /// and from an eighth of it on to a full gateway
    #[arg(long, value_name = "PPS", default_value_t = defaults().flood_pps, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    flood_pps: u64,
    /// Fail (exit code 1) if a goal is missed or not measured, but for ipvs and vlan where this
    /// machine has none, for floods that overload nobody and by which nothing was missed, and where
    /// throughput counts for a guard that is attached from the start, which has to be asked for on a
    /// veth
    #[arg(long)]
    strict: bool,
}

const HELP: &str = "Set-ups: socket, socket-ipv6, fragments, masquerade, masquerade-full, dnat, dnat-tcp, load-balancer, ipvs, bridge, macvlan, \
    vlan, vxlan, router, router-full, router-ipv6, tunnel, packet-reader, multicast, bound-device, ephemeral, \
    connected, conntrack, tcp-in, tcp-in-frames, connections, syn-plain-veth, tcp-out.\n\
    Needs root, two CPUs, Linux 6.8 or newer with BTF, and nftables, iproute2, ethtool and \
    nginx (scripts/setup installs them).";

fn defaults() -> Plan {
    Plan::new(PathBuf::new())
}

pub(super) fn run(args: &Args) -> crate::Result<()> {
    let json = Target::open_given(args.json.as_ref())?;
    let plan = Plan {
        runs: args.runs.into(),
        only: args.only.clone(),
        window: Duration::from_millis(args.window_ms),
        flood_pps: args.flood_pps,
        ..Plan::new(this_program()?)
    };
    let document = no_harm::run(&plan, output::progress)?;
    output::deliver(json, &document, || document.table())?;
    match args.strict {
        true => Ok(judge(&document.goals, &document.not_shown)?),
        false => Ok(()),
    }
}

/// That all goals are met, but for those of optional set-ups that this machine cannot make, of
/// floods that overload nobody and by which nothing was missed, and of what has to be asked for on a
/// veth.
fn judge(goals: &[Goal], not_shown: &[NotShown]) -> Result<(), Missed> {
    let is_shown = |goal: &&Goal| {
        let setup = goal.id.split('/').next().unwrap_or_default();
        !OPTIONAL.contains(&setup) || !not_shown.iter().any(|one| one.setup == setup)
    };
    let of = |met| {
        let goals = goals.iter().filter(is_shown).filter(|goal| goal.met == met);
        let goals = goals.filter(|goal| !is_without_overload(goal) && !is_of_choice(goal));
        let names: Vec<&str> = goals.map(|goal| goal.id.as_str()).collect();
        names.join(", ")
    };
    let said = match (of(Some(false)), of(None)) {
        (missed, unmeasured) if missed.is_empty() && unmeasured.is_empty() => return Ok(()),
        (missed, unmeasured) if unmeasured.is_empty() => format!("goals missed: {missed}"),
        (missed, unmeasured) if missed.is_empty() => format!("goals not measured: {unmeasured}"),
        (missed, unmeasured) => format!("goals missed: {missed}; not measured: {unmeasured}"),
    };
    Err(Missed(said))
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
    use plimsoll_report::Side;

    use super::*;

    /// `make no-harm` was green whatever the goals said.
    #[test]
    fn a_missed_goal_fails_and_is_named() {
        let goal = |id, runs| Goal::new(id, "what arrives", Side::AtLeast, 0.0, "points", runs);
        let vlan = NotShown {
            setup: "vlan",
            what: "a VLAN device",
            why: "the kernel has none".to_owned(),
        };
        let met = goal("dnat/calm", vec![0.0]);
        let unknown = goal("vlan/calm", Vec::new());
        let judged = judge(&[met.clone(), unknown.clone()], std::slice::from_ref(&vlan));
        assert!(judged.is_ok(), "{judged:?}");
        let missed = goal("ipvs/flooded", vec![-1.0]);
        let said = judge(&[met.clone(), missed.clone(), unknown.clone()], &[vlan]).unwrap_err();
        assert_eq!(said.to_string(), "goals missed: ipvs/flooded");
        assert_eq!(crate::failure::Failure::from(said).exit_code(), 1);
        let said = judge(&[met, missed, unknown.clone()], &[]).unwrap_err();
        assert_eq!(
            said.to_string(),
            "goals missed: ipvs/flooded; not measured: vlan/calm"
        );
        let said = judge(&[unknown], &[]).unwrap_err();
        assert_eq!(said.to_string(), "goals not measured: vlan/calm");
        let broken = NotShown {
            setup: "dnat",
            what: "a published port",
            why: "nft refused the rule".to_owned(),
        };
        let said = judge(&[goal("dnat/calm", Vec::new())], &[broken]).unwrap_err();
        assert_eq!(said.to_string(), "goals not measured: dnat/calm");
        let of_choice = goal("tcp-in/calm", vec![-1.0]);
        assert!(judge(&[of_choice], &[]).is_ok());
        let stands_by = goal("tcp-in/calm/standby", vec![-1.0]);
        let said = judge(&[stands_by], &[]).unwrap_err();
        assert_eq!(said.to_string(), "goals missed: tcp-in/calm/standby");
        let without_overload = Goal {
            met: None,
            ..goal("socket/flooded", vec![0.0])
        };
        assert!(judge(std::slice::from_ref(&without_overload), &[]).is_ok());
        let said = judge(&[without_overload, goal("dnat/calm", Vec::new())], &[]).unwrap_err();
        assert_eq!(said.to_string(), "goals not measured: dnat/calm");
    }

    #[test]
    fn the_help_lists_the_set_ups() {
        let names: Vec<&str> = Plan::names().collect();
        assert!(HELP.contains(&format!("Set-ups: {}.", names.join(", "))));
    }
}
