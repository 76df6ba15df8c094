//! `plimsoll bench guard`: every figure that is promised of the guard, measured
//! on real packets, beside what an operator would otherwise use.
//!
//! A run is made of parts ([`Part`]). Each stands alone and is bounded in time;
//! within a part the protections take turns, so that a noisy machine treats all
//! alike. Floods are sized by two figures of this very machine, which are
//! measured first where a part needs them: the maximum loss-free receive rate
//! (MLFRR) of the stock sink, and the *discard capacity*, the rate at which
//! early discard alone fills the host's CPU.
//!
//! A part that fails (a guard that lacks an option, a server that does not
//! start) leaves its goals unmeasured and says why; the others go on. A goal that is met
//! beside a smaller flood than it says has no verdict.
//!
//! Limits: two cores, so probers and clients share the load's CPU, and a veth
//! link, whose figures compare protections but predict no adapter.

mod beyond;
mod capacity;
mod chaos;
mod cpu_limit;
mod dns;
mod document;
mod flood;
mod light;
pub(crate) mod rpc;
mod sources;
mod syn;
mod verdict;
mod watching;

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Machine, SCHEMA};
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

pub use beyond::{Beyond, BeyondCase};
pub use capacity::{Capacity, Method, Point};
pub use chaos::Chaos;
pub use cpu_limit::{CPU_LIMITS, CpuLimit, CpuLimitCase, LimitTarget};
pub use dns::{Dns, DnsCase, DnsTarget};
pub use document::Document;
pub use flood::{Flood, FloodCase, PauseLoss};
pub use light::Light;
pub use rpc::{RPC_WORKS_US, Rpc, RpcCase, RpcSide};
pub use sources::{AloneCase, ClientsCase, CrowdCase, Sources, SourcesCapacity, SourcesCase};
pub use syn::{SynTarget, Syns, SynsCase};
pub use verdict::{Verdict, VerdictFrame};
pub use watching::Watching;

use crate::Error;
pub use crate::own_port::{SourcesFlood, SourcesServer};
use crate::protection::{Protection, Stage};
use crate::traffic::RAMP_UP;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// MLFRR and discard capacity.
    Capacity,
    /// UDP floods of one socket below the discard capacity.
    Flood,
    /// The generator's maximum.
    Beyond,
    /// Network CPU time held at a limit.
    CpuLimit,
    /// SYN floods of another port and of the server's own.
    Syn,
    /// What the guard costs when nothing is wrong.
    Light,
    /// What a verdict costs, by the kernel's test-run facility.
    Verdict,
    /// Two RPC servers and a worker that share the CPU.
    Rpc,
    /// Floods of every kind that come and go.
    Chaos,
    /// A DNS server during UDP floods.
    Dns,
    /// What it takes to run a guard and to watch it.
    Watching,
    /// Floods of servers' own ports: whether honest clients keep being served.
    Sources,
}

impl Part {
    /// All, in the order in which they run.
    pub const ALL: [Self; 12] = [
        Self::Capacity,
        Self::Flood,
        Self::Beyond,
        Self::CpuLimit,
        Self::Syn,
        Self::Light,
        Self::Verdict,
        Self::Rpc,
        Self::Chaos,
        Self::Dns,
        Self::Watching,
        Self::Sources,
    ];

    /// Its name on the command line and at the start of its goals.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Flood => "flood",
            Self::Beyond => "beyond",
            Self::CpuLimit => "cpu-limit",
            Self::Syn => "syn",
            Self::Light => "light",
            Self::Verdict => "verdict",
            Self::Rpc => "rpc",
            Self::Chaos => "chaos",
            Self::Dns => "dns",
            Self::Watching => "watching",
            Self::Sources => "sources",
        }
    }
}

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself, which is started as server and guard.
    pub program: PathBuf,
    /// What to measure.
    pub parts: Vec<Part>,
    /// What is compared in [`Part::Flood`] and [`Part::Syn`], and in [`Part::Sources`] besides
    /// the guard with fairness and without.
    pub protections: Vec<Protection>,
    /// How often each case runs; odd, so that a median is a run's own value.
    pub runs: usize,
    /// Pairs of runs, stock and guarded, at light load: more than elsewhere,
    /// because what is looked for is small.
    pub light_pairs: usize,
    /// Measured part of each run.
    pub window: Duration,
    /// Whole seconds of each run with a client that counts in seconds.
    pub seconds: u32,
    /// Interrupt holdoff of the test host's interface.
    pub holdoff: Duration,
    /// Further arguments for `plimsoll guard`.
    pub guard_arguments: Vec<String>,
    /// How long floods come and go in [`Part::Chaos`].
    pub chaos: Duration,
    /// Seed of what comes when in [`Part::Chaos`].
    pub seed: u64,
    /// The document that `make bench-verdict` wrote, for [`Part::Verdict`].
    pub verdict: PathBuf,
    /// Channels of the guard in [`Part::Watching`], at most 16,384.
    pub channels: u16,
    /// Paths, or their first words, of the cases of [`Part::Sources`] to measure; all if
    /// empty.
    pub sources: Vec<String>,
    /// Limits of [`Part::CpuLimit`] to measure, in percent: some of
    /// [`CPU_LIMITS`].
    pub cpu_limits: Vec<u32>,
    /// Work per request in [`Part::Rpc`], in microseconds: some of [`RPC_WORKS_US`].
    pub rpc_works_us: Vec<u64>,
    /// MLFRR in packets/s, instead of measuring it.
    pub mlfrr_pps: Option<f64>,
    /// Discard capacity in packets/s, instead of measuring it; not for
    /// [`Part::Capacity`].
    pub capacity_pps: Option<f64>,
}

impl Plan {
    /// The paths of the cases of [`Part::Sources`].
    #[must_use]
    pub fn sources_paths() -> Vec<String> {
        sources::paths()
    }

    /// Everything, as `plimsoll bench guard` runs it without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            parts: Part::ALL.to_vec(),
            protections: Protection::ALL.to_vec(),
            runs: 3,
            light_pairs: 9,
            window: Duration::from_millis(1200),
            seconds: 2,
            holdoff: Duration::from_micros(30),
            guard_arguments: Vec::new(),
            chaos: Duration::from_secs(60),
            seed: 1,
            verdict: "target/bench/verdict.json".into(),
            channels: 10_000,
            sources: Vec::new(),
            cpu_limits: CPU_LIMITS.to_vec(),
            rpc_works_us: RPC_WORKS_US.to_vec(),
            mlfrr_pps: None,
            capacity_pps: None,
        }
    }
}

/// What a part measured.
trait Measured: Default {
    /// Its part of the document.
    type Section;

    fn section(&self) -> Self::Section;

    /// Its promises; without runs if nothing was measured.
    fn goals(&self) -> Vec<Goal>;
}

/// The figures of this machine by which floods are sized.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Base {
    mlfrr_pps: f64,
    capacity_pps: f64,
}

impl Base {
    /// The most that can be delivered at this offered load, in packets/s:
    /// what is left of the CPU when every packet has been looked at.
    fn limit_pps(&self, offered_pps: f64) -> f64 {
        self.mlfrr_pps * (1.0 - offered_pps / self.capacity_pps).max(0.0)
    }
}

/// A run under way.
struct Bench<'a> {
    plan: &'a Plan,
    stage: Stage<'a>,
    progress: &'a mut dyn FnMut(&str),
    base: Option<Base>,
    goals: Vec<Goal>,
}

/// Runs the bench. `progress` is told what happens, a line at a time.
///
/// # Errors
///
/// This host lacks something ([`Error::is_missing`]), the run was interrupted,
/// or MLFRR and discard capacity could not be measured. Missed goals are in the
/// document, and so are parts that failed.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let mut bench = Bench {
        plan,
        stage: Stage {
            testbed: &testbed,
            program: &plan.program,
            holdoff: plan.holdoff,
            ramp_up: plan.window.min(RAMP_UP),
            guard_arguments: &plan.guard_arguments,
        },
        progress: &mut progress,
        base: None,
        goals: Vec::new(),
    };
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        guard_arguments: plan.guard_arguments.clone(),
        holdoff_us: plan.holdoff.as_secs_f64() * 1e6,
        runs: plan.runs,
        capacity: bench.part(Part::Capacity, capacity::run)?,
        flood: bench.part(Part::Flood, flood::run)?,
        beyond: bench.part(Part::Beyond, beyond::run)?,
        cpu_limit: bench.part(Part::CpuLimit, cpu_limit::run)?,
        syn: bench.part(Part::Syn, syn::run)?,
        light: bench.part(Part::Light, light::run)?,
        verdict: bench.part(Part::Verdict, verdict::run)?,
        rpc: bench.part(Part::Rpc, rpc::run)?,
        chaos: bench.part(Part::Chaos, chaos::run)?,
        dns: bench.part(Part::Dns, dns::run)?,
        watching: bench.part(Part::Watching, watching::run)?,
        sources: bench.part(Part::Sources, sources::run)?,
        goals: bench.goals,
    })
}

impl Bench<'_> {
    /// Measures a part, if it is wanted, and keeps its goals.
    fn part<M: Measured>(
        &mut self,
        part: Part,
        run: impl FnOnce(&mut Self) -> Result<M, Error>,
    ) -> Result<Option<M::Section>, Error> {
        if !self.plan.parts.contains(&part) {
            return Ok(None);
        }
        match run(self) {
            Ok(measured) => {
                self.goals.extend(measured.goals());
                Ok(Some(measured.section()))
            }
            Err(error) if error.is_fatal() => Err(error),
            Err(error) => {
                let why = format!("the part failed: {}", with_causes(&error));
                let goals = M::default().goals().into_iter();
                self.goals.extend(goals.map(|goal| goal.because(&why)));
                Ok(None)
            }
        }
    }

    /// Tells what is being done.
    fn say(&mut self, part: Part, round: usize, what: &str) {
        let runs = self.plan.runs;
        (self.progress)(&format!("{}, round {round} of {runs}: {what}", part.name()));
    }

    /// MLFRR and discard capacity, measured at the first call.
    fn base(&mut self) -> Result<Base, Error> {
        match self.base {
            Some(base) => Ok(base),
            None => capacity::base(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_looking_at_packets_leaves() {
        let base = Base {
            mlfrr_pps: 200_000.0,
            capacity_pps: 6_000_000.0,
        };
        assert_eq!(base.limit_pps(0.0), 200_000.0);
        assert_eq!(base.limit_pps(3_000_000.0), 100_000.0);
        assert_eq!(base.limit_pps(7_000_000.0), 0.0);
    }
}
