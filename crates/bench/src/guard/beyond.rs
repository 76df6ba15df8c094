//! The generator's maximum, beyond the discard capacity where the machine
//! allows: the receive ring drops blindly then, and what must survive needs a
//! share of its own.
//!
//! The sink is flooded without a schedule. Meanwhile clients keep connecting to
//! a TCP server on the ssh port, which the guard protects by default, and the
//! sink's goodput is read every 100 ms to see whether anything oscillates.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::connect;
use plimsoll_testbed::http::Nginx;
use serde::Serialize;

use super::{Base, Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::{Bystander, HostCpu, grouped, latency_us};
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::on_load_host;
use crate::udp::{Run as UdpRun, Servers};

/// Protected by default: the way in for an administrator.
const SSH_PORT: u16 = 22;
const SIDES: [Protection; 2] = [Protection::Stock, Protection::Guard];
/// Attempts to connect, per second.
const ATTEMPTS_PPS: u32 = 100;
/// Long enough for two repetitions of a lost SYN.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
/// Goodput of intervals that varies by less is steady.
const STEADY: f64 = 0.3;

/// The generator's maximum.
#[derive(Clone, Debug, Serialize)]
pub struct Beyond {
    /// Discard capacity that the load is compared with, packets/s.
    pub discard_capacity_pps: f64,
    /// Stock, then guard.
    pub cases: Vec<BeyondCase>,
}

/// One side: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct BeyondCase {
    /// What stood in between.
    pub protection: Protection,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Delivered to the sink, packets/s.
    pub goodput_pps: f64,
    /// Coefficient of variation of the goodput per 100 ms.
    pub goodput_variation: f64,
    /// Parts of the host's CPU.
    pub host_cpu: HostCpu,
    /// What another server's client saw.
    pub bystander: Bystander,
    /// Attempts to connect to the protected port.
    pub protected_attempts: u64,
    /// Those that succeeded within four seconds.
    pub protected_succeeded: u64,
    /// Median time of those, in microseconds.
    pub protected_p50_us: f64,
}

#[derive(Debug)]
struct Run {
    udp: UdpRun,
    protected: connect::Report,
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    base: Base,
    cases: Cases<(), Run>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let base = bench.base()?;
    let (stage, plan) = (bench.stage, bench.plan);
    let servers = Servers::start(&stage)?;
    let protected = Nginx::start(stage.host(), SSH_PORT)?;
    let mut cases = Cases::new(&SIDES, &[()]);
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            bench.say(Part::Beyond, round, case.protection.name());
            let protector = stage.protect(case.protection, None)?;
            let address = protected.address();
            case.runs
                .push(flood(&stage, &servers, address, protector, plan.window)?);
        }
    }
    Ok(Outcome { base, cases })
}

fn flood(
    stage: &Stage<'_>,
    servers: &Servers,
    protected: SocketAddr,
    protector: Protector<'_>,
    window: Duration,
) -> Result<Run, Error> {
    let config = connect::Config {
        target: protected,
        rate_pps: ATTEMPTS_PPS,
        duration: window,
        timeout: ATTEMPT_TIMEOUT,
        realtime: true,
    };
    // The flood goes on until the last attempt has ended: a SYN that is lost is sent again.
    let client = || on_load_host(stage, || connect::run(&config));
    let schedule = Some(Schedule::Unlimited);
    let (udp, protected) = servers.flood_beside(stage, protector, schedule, window, client)?;
    Ok(Run { udp, protected })
}

impl Measured for Outcome {
    type Section = Beyond;

    fn section(&self) -> Beyond {
        Beyond {
            discard_capacity_pps: self.base.capacity_pps,
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let guarded = |value: &dyn Fn(&Run) -> f64| self.cases.values(Protection::Guard, (), value);
        let goals = vec![
            Goal::new(
                "beyond/protected",
                "connections to the ssh port that succeed beyond the discard capacity",
                Side::AtLeast,
                95.0,
                "%",
                guarded(&|run| {
                    100.0 * run.protected.succeeded as f64 / run.protected.attempts as f64
                }),
            ),
            Goal::new(
                "beyond/goodput",
                "guarded goodput beyond the discard capacity, of MLFRR",
                Side::AtLeast,
                10.0,
                "%",
                guarded(&|run| 100.0 * run.udp.goodput_pps / self.base.mlfrr_pps),
            ),
            Goal::new(
                "beyond/steady",
                "variation of the guarded goodput per 100 ms (standard deviation / mean)",
                Side::AtMost,
                STEADY,
                "×",
                guarded(&|run| run.udp.goodput_variation),
            ),
        ];
        let offered = median(&guarded(&|run| run.udp.offered_pps));
        match offered.filter(|&offered| offered < self.base.capacity_pps) {
            Some(offered) => goals
                .into_iter()
                .map(|goal| self.short(goal, offered))
                .collect(),
            None => goals,
        }
    }
}

impl Outcome {
    /// The generator is too slow for the promise; the values stay.
    fn short(&self, goal: Goal, offered_pps: f64) -> Goal {
        let why = format!(
            "the generator's maximum here, {} packets/s, is below the discard capacity, {}",
            grouped(offered_pps),
            grouped(self.base.capacity_pps)
        );
        Goal { met: None, ..goal }.because(why)
    }
}

fn summary(case: &Case<(), Run>) -> BeyondCase {
    BeyondCase {
        protection: case.protection,
        offered_pps: case.middle(|run| run.udp.offered_pps),
        goodput_pps: case.middle(|run| run.udp.goodput_pps),
        goodput_variation: case.middle(|run| run.udp.goodput_variation),
        host_cpu: HostCpu::middle(case, |run| run.udp.host_cpu),
        bystander: Bystander::over(case, |run| run.udp.bystander),
        protected_attempts: case.total(|run| run.protected.attempts),
        protected_succeeded: case.total(|run| run.protected.succeeded),
        protected_p50_us: case
            .middle(|run| latency_us(run.protected.succeeded, run.protected.latency.p50_ns)),
    }
}

impl Beyond {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "the generator's maximum; discard capacity {} packets/s; clients connect to the ssh port; latencies of those answered\n\
             {:>10} {:>6}{:>11}{:>8}{:>6}{:>7}{:>7}{:>9}{:>11}{:>9}{:>10}\n",
            grouped(self.discard_capacity_pps),
            "offered/s",
            "",
            "goodput/s",
            "varies",
            "net%",
            "lost",
            "of",
            "p99 µs",
            "connected",
            "of",
            "p50 µs",
        );
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:>10} {:>6}{:>11}{:>8.2}{:>6.0}{:>7}{:>7}{:>9.0}{:>11}{:>9}{:>10.0}",
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.goodput_pps),
                case.goodput_variation,
                case.host_cpu.network * 100.0,
                case.bystander.lost,
                case.bystander.sent,
                case.bystander.p99_us,
                case.protected_succeeded,
                case.protected_attempts,
                case.protected_p50_us,
            );
        }
        text
    }
}
