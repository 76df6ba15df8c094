//! `plimsoll demo`: a stock server collapses under a flood, a guarded one does
//! not. Real packets through the real kernel, in four minutes.
//!
//! *UDP flood.* A sink with some work per packet is flooded on its own socket,
//! while a bystander, an echo on another port, is probed. First its maximum
//! loss-free receive rate (MLFRR) is found, then floods are multiples of it.
//!
//! *SYN flood.* nginx serves an HTTP client while another listener gets SYNs.
//!
//! *DNS flood.* NSD is flooded on its own port by a thousand sources, while its honest
//! client asks it.
//!
//! *Flooded router.* Packets cross a router on which a process computes and BIRD speaks
//! to a neighbour: the kernel forwards, then `plimsoll forward`.
//!
//! Every case runs several times, stock and ours taking turns; figures are
//! medians of the runs, packet counts their sums. Stock and ours share
//! everything else: the receive work is on the test host's CPU as an adapter's
//! interrupts would put it, with the same holdoff.
//!
//! Limits: two cores, so prober and HTTP client share the load's CPU, and a
//! veth link, whose figures compare protections but predict no adapter.

mod bars;
mod dns;
mod document;
mod goals;
mod router;
mod syn;
mod udp;

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_report::{Machine, SCHEMA};
use plimsoll_testbed::{Config as TestbedConfig, Testbed, require_program};

pub use bars::{Bar, chart};
pub use document::{Dns, DnsCase, Document, Syn, SynCase, Udp};
pub use router::{RouterCase, RouterScene};

use crate::Error;
use crate::cases::Cases;
use crate::guard_process::GuardProcess;
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::RAMP_UP;

/// In the order in which they take turns.
const PROTECTIONS: [Protection; 2] = [Protection::Stock, Protection::Guard];

/// Runs each case once a round, behind its protection, and tells which is on. `words` are the
/// scene's name and the load's.
fn in_rounds<'a, L: Copy + PartialEq, R>(
    cases: &mut Cases<L, R>,
    rounds: usize,
    stage: &Stage<'a>,
    progress: &mut impl FnMut(&str),
    words: impl Fn(L) -> (&'static str, String),
    mut run: impl FnMut(Protector<'a>, L) -> Result<R, Error>,
) -> Result<(), Error> {
    for round in 1..=rounds {
        for case in cases.in_round(round) {
            let (scene, load) = words(case.load);
            let by = case.protection.name();
            progress(&format!("{scene}, round {round} of {rounds}: {load}, {by}"));
            let protector = stage.protect(case.protection, None)?;
            case.runs.push(run(protector, case.load)?);
        }
    }
    Ok(())
}

/// One comparison of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// A UDP server is flooded.
    Udp,
    /// nginx serves beside a SYN flood.
    Syn,
    /// NSD is flooded on its own port.
    Dns,
    /// A router is flooded.
    Router,
}

impl Scene {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Udp, Self::Syn, Self::Dns, Self::Router];

    /// Its name on the command line and at the start of its goals.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Syn => "syn",
            Self::Dns => "dns",
            Self::Router => "router",
        }
    }

    /// The programs that it runs, with the packages that bring them.
    const fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Udp => &[],
            Self::Syn => &[("nginx", "nginx"), ("wrk", "wrk")],
            Self::Dns => &[("nsd", "nsd"), ("dnsperf", "dnsperf")],
            Self::Router => &[("bird", "bird2")],
        }
    }
}

/// What the demo does, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself, which the demo starts as server and guard.
    pub program: PathBuf,
    /// Which scenes.
    pub scenes: Vec<Scene>,
    /// How often each case runs; odd, so that a median is a run's own value.
    pub runs: usize,
    /// Measured part of each UDP run.
    pub window: Duration,
    /// Whole seconds of each SYN and DNS run (their clients count in seconds).
    pub http_seconds: u32,
    /// Interrupt holdoff of the test host's interface, stock and guarded.
    pub holdoff: Duration,
    /// Floods on the UDP sink, as multiples of its MLFRR. All floods are listed from light to
    /// heavy.
    pub flood_multiples: Vec<f64>,
    /// Floods on the other listener, in SYN/s.
    pub syn_rates_pps: Vec<u64>,
    /// Floods on the DNS server's own port, in queries/s.
    pub dns_rates_pps: Vec<u64>,
    /// Floods across the router, as multiples of what the kernel forwards without loss.
    pub router_multiples: Vec<f64>,
    /// Measured part of each flood of the router: some times what a lost session takes to
    /// be noticed.
    pub router_window: Duration,
    /// Further arguments for `plimsoll guard`.
    pub guard_arguments: Vec<String>,
}

impl Plan {
    /// The demo as `make demo` runs it.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            scenes: Scene::ALL.to_vec(),
            runs: 3,
            window: Duration::from_millis(1200),
            http_seconds: 2,
            holdoff: Duration::from_micros(30),
            flood_multiples: vec![0.0, 1.0, 5.0, 15.0],
            syn_rates_pps: vec![0, 50_000, 150_000],
            dns_rates_pps: vec![0, 200_000, 800_000],
            router_multiples: vec![0.0, 1.0, 2.0],
            router_window: Duration::from_secs(2),
            guard_arguments: Vec::new(),
        }
    }
}

/// Runs the demo. `progress` is told what happens, a line at a time.
///
/// # Errors
///
/// This host lacks something ([`Error::is_missing`]), or a part failed. Missed
/// goals are in the document, not an error.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let mut outcomes = with_servers(plan, &mut progress)?;
    if plan.scenes.contains(&Scene::Router) {
        require_programs(plan)?;
        outcomes.router = Some(router::run(plan, &mut progress)?);
    }
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        goals: goals::goals(&outcomes),
        udp: outcomes.udp.as_ref().map(udp::Outcome::summary),
        syn: outcomes.syn.as_ref().map(syn::Outcome::summary),
        dns: outcomes.dns.as_ref().map(dns::Outcome::summary),
        router: outcomes.router.as_ref().map(router::Outcome::summary),
    })
}

/// What the last scene lacks would cost all that those before it measured.
fn require_programs(plan: &Plan) -> Result<(), Error> {
    let programs = plan.scenes.iter().flat_map(|scene| scene.programs());
    for (program, package) in programs {
        require_program(program, package)?;
    }
    Ok(())
}

/// What all scenes measured that were asked for.
#[derive(Debug, Default)]
struct Outcomes {
    udp: Option<udp::Outcome>,
    syn: Option<syn::Outcome>,
    dns: Option<dns::Outcome>,
    router: Option<router::Outcome>,
}

/// The scenes with servers, which share two hosts.
fn with_servers(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Outcomes, Error> {
    let mut outcomes = Outcomes::default();
    let is_wanted = |scene| plan.scenes.contains(&scene);
    if ![Scene::Udp, Scene::Syn, Scene::Dns]
        .map(is_wanted)
        .contains(&true)
    {
        return Ok(outcomes);
    }
    let testbed = Testbed::create(TestbedConfig::default())?;
    GuardProcess::require(testbed.test(), &plan.program)?;
    require_programs(plan)?;
    let stage = Stage {
        testbed: &testbed,
        program: &plan.program,
        holdoff: plan.holdoff,
        ramp_up: RAMP_UP,
        guard_arguments: &plan.guard_arguments,
    };
    if is_wanted(Scene::Udp) {
        outcomes.udp = Some(udp::run(plan, &stage, progress)?);
    }
    if is_wanted(Scene::Syn) {
        outcomes.syn = Some(syn::run(plan, &stage, progress)?);
    }
    if is_wanted(Scene::Dns) {
        outcomes.dns = Some(dns::run(plan, &stage, progress)?);
    }
    Ok(outcomes)
}
