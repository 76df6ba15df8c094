//! UDP floods of one socket at parts of the discard capacity: what the flooded
//! server still gets, and what a bystander notices.
//!
//! The limit of goodput is MLFRR × (1 − offered / discard capacity): the CPU
//! that is left when every packet has been looked at. The bystander's reference
//! is itself beside a compute-bound process instead of the flood: waiting for a
//! busy CPU is the scheduler's, not the flood's.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::Pauses;
use plimsoll_testbed::blast::Schedule;
use serde::Serialize;

use super::{Base, Bench, Measured, Part};
use crate::Error;
use crate::cases::{Case, Cases};
use crate::figures::{Bystander, HostCpu, Losses, grouped, p99_at_most};
use crate::nftables::{Limit, tune};
use crate::offered::{HELD_UP, Offered, Smaller};
use crate::protection::{Protection, Stage};
use crate::traffic::compute_bound;
use crate::udp::{Run, SINK_PORT, Servers};

/// Parts of the discard capacity, in percent.
const LOADS: [u32; 3] = [25, 50, 75];
/// Percent of the capacity above which the machine's pauses alone lose more than a bystander may.
const PAUSES_MATTER_ABOVE: u32 = 50;
/// Limits that are tried for the packet filter, in percent of MLFRR.
const FILTER_PERCENT: [u32; 4] = [120, 90, 60, 30];

/// Frames that veth's receive ring holds.
const RING_FRAMES: f64 = 256.0;

const TRIES: usize = 3;

/// UDP floods of one socket.
#[derive(Clone, Debug, Serialize)]
pub struct Flood {
    /// MLFRR that the limit is computed with, packets/s.
    pub mlfrr_pps: f64,
    /// Discard capacity that the limit is computed with, packets/s.
    pub discard_capacity_pps: f64,
    /// The bystander beside a compute-bound process, on the stock host.
    pub reference: Bystander,
    /// What a ring of veth's size would lose to this CPU's own pauses, were it
    /// always polled at once, by load.
    pub pauses: Vec<PauseLoss>,
    /// By load and protection.
    pub cases: Vec<FloodCase>,
}

/// What no protection can save: the CPU stands still of itself, the ring overflows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PauseLoss {
    /// Part of the discard capacity, in percent.
    pub load_percent: u32,
    /// Part of the frames, from 0 to 1.
    pub loss: f64,
}

/// One flood with one protection: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct FloodCase {
    /// What stood in between.
    pub protection: Protection,
    /// Part of the discard capacity that was asked for, in percent.
    pub load_percent: u32,
    /// The packet filter's limit, packets/s, as tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_pps: Option<u64>,
    /// Flood, packets/s.
    pub offered_pps: f64,
    /// Delivered to the sink, packets/s.
    pub goodput_pps: f64,
    /// The same, of the limit, from 0 to 1.
    pub goodput_of_limit: f64,
    /// Parts of the host's CPU.
    pub host_cpu: HostCpu,
    /// What another server's client saw.
    pub bystander: Bystander,
    /// Where the packets of all runs went.
    pub losses: Losses,
}

/// Everything this part measured; loads are percents of the discard capacity.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    base: Base,
    /// The packet filter's, by load.
    limits: Vec<Limit>,
    reference: Vec<Bystander>,
    pauses: Vec<Pauses>,
    cases: Cases<u32, Run>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let base = bench.base()?;
    let (stage, plan) = (bench.stage, bench.plan);
    let servers = Servers::start(&stage)?;
    let schedule = |percent: u32| Schedule::Fixed {
        rate_pps: (base.capacity_pps * f64::from(percent) / 100.0) as u64,
    };
    let mut limits = Vec::new();
    if plan.protections.contains(&Protection::Nftables) {
        for percent in LOADS {
            bench.say(Part::Flood, 1, "tuning the packet filter");
            limits.push(best_limit(bench, &servers, base, schedule(percent))?);
        }
    }
    let (mut reference, mut pauses) = (Vec::new(), Vec::new());
    let mut cases = Cases::new(&plan.protections, &LOADS);
    for round in 1..=plan.runs {
        bench.say(Part::Flood, round, "a compute-bound process instead");
        reference.push(beside_computation(&stage, &servers, plan.window)?);
        pauses.push(Pauses::of(stage.testbed, plan.window)?);
        for case in cases.in_round(round) {
            let what = format!(
                "{} % of the capacity, {}",
                case.load,
                case.protection.name()
            );
            bench.say(Part::Flood, round, &what);
            let limit = limit_for(&limits, case.load);
            case.runs.push(as_asked(schedule(case.load), |schedule| {
                let protector = stage.protect(case.protection, limit)?;
                servers.flood(&stage, protector, Some(schedule), plan.window)
            })?);
        }
    }
    Ok(Outcome {
        base,
        limits,
        reference,
        pauses,
        cases,
    })
}

/// Repeats a run in which the generator was held up by something else on the
/// machine, at most [`TRIES`] in all.
fn as_asked(
    schedule: Schedule,
    mut run: impl FnMut(Schedule) -> Result<Run, Error>,
) -> Result<Run, Error> {
    let least = schedule
        .peak_pps()
        .map_or(0.0, |rate| rate as f64 * HELD_UP);
    let mut measured = run(schedule)?;
    for _ in 1..TRIES {
        if measured.offered_pps >= least {
            break;
        }
        measured = run(schedule)?;
    }
    Ok(measured)
}

fn limit_for(limits: &[Limit], load: u32) -> Option<&Limit> {
    let index = LOADS.iter().position(|&listed| listed == load);
    limits.get(index?)
}

/// The limit an operator would end up with who tried some under this load.
fn best_limit(
    bench: &Bench<'_>,
    servers: &Servers,
    base: Base,
    schedule: Schedule,
) -> Result<Limit, Error> {
    let stage = &bench.stage;
    let traffic = format!("udp dport {SINK_PORT}");
    let candidates = FILTER_PERCENT.map(|part| {
        let rate_pps = base.mlfrr_pps * f64::from(part) / 100.0;
        Limit::of_all(&traffic, rate_pps as u64)
    });
    tune(candidates, |limit| {
        let protector = stage.protect(Protection::Nftables, Some(limit))?;
        let window = bench.plan.window / 3;
        servers
            .flood(stage, protector, Some(schedule), window)
            .map(|run| service(&run))
    })
}

/// Goodput and bystander together: the one counts as much as the other is
/// answered.
fn service(run: &Run) -> f64 {
    run.goodput_pps * (1.0 - run.bystander.loss())
}

fn beside_computation(
    stage: &Stage<'_>,
    servers: &Servers,
    window: Duration,
) -> Result<Bystander, Error> {
    let protector = stage.stock()?;
    let _computing = compute_bound(stage.host())?;
    Ok(servers.flood(stage, protector, None, window)?.bystander)
}

impl Measured for Outcome {
    type Section = Flood;

    fn section(&self) -> Flood {
        let count = |of: fn(&Bystander) -> u64| self.reference.iter().map(of).sum();
        let middle = |of: fn(&Bystander) -> f64| {
            let values: Vec<f64> = self.reference.iter().map(of).collect();
            median(&values).unwrap_or(f64::NAN)
        };
        Flood {
            mlfrr_pps: self.base.mlfrr_pps,
            discard_capacity_pps: self.base.capacity_pps,
            reference: Bystander {
                sent: count(|run| run.sent),
                lost: count(|run| run.lost),
                p50_us: middle(|run| run.p50_us),
                p99_us: middle(|run| run.p99_us),
            },
            pauses: LOADS.iter().map(|&load| self.pause_loss(load)).collect(),
            cases: self.cases.0.iter().map(|case| self.summary(case)).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        LOADS.iter().flat_map(|&load| self.goals_at(load)).collect()
    }
}

impl Outcome {
    fn pause_loss(&self, load_percent: u32) -> PauseLoss {
        let rate = self.base.capacity_pps * f64::from(load_percent) / 100.0;
        let room = Duration::try_from_secs_f64(RING_FRAMES / rate).unwrap_or_default();
        let losses: Vec<f64> = self.pauses.iter().map(|run| run.lost_part(room)).collect();
        PauseLoss {
            load_percent,
            loss: median(&losses).unwrap_or(f64::NAN),
        }
    }

    fn goodput_of_limit(&self, run: &Run) -> f64 {
        run.goodput_pps / self.base.limit_pps(run.offered_pps)
    }

    fn summary(&self, case: &Case<u32, Run>) -> FloodCase {
        let limit = limit_for(&self.limits, case.load);
        FloodCase {
            protection: case.protection,
            load_percent: case.load,
            filter_pps: limit
                .filter(|_| case.protection == Protection::Nftables)
                .map(|limit| limit.rate_pps),
            offered_pps: case.middle(|run| run.offered_pps),
            goodput_pps: case.middle(|run| run.goodput_pps),
            goodput_of_limit: case.middle(|run| self.goodput_of_limit(run)),
            host_cpu: HostCpu::middle(case, |run| run.host_cpu),
            bystander: Bystander::over(case, |run| run.bystander),
            losses: Losses::over(case, |run| run.losses),
        }
    }

    fn goals_at(&self, load: u32) -> [Goal; 4] {
        let guarded =
            |value: &dyn Fn(&Run) -> f64| self.cases.values(Protection::Guard, load, value);
        let reference: Vec<f64> = self.reference.iter().map(|run| run.p99_us).collect();
        let reference = median(&reference).unwrap_or(f64::NAN);
        let at = format!("at {load} % of the discard capacity");
        let offered = Offered {
            asked_pps: self.base.capacity_pps * f64::from(load) / 100.0,
            runs_pps: guarded(&|run| run.offered_pps),
            least: HELD_UP,
        };
        let goals = [
            Goal::new(
                format!("flood/goodput/{load}"),
                format!("guarded goodput {at}, of the limit (formerly 90)"),
                Side::AtLeast,
                95.0,
                "%",
                guarded(&|run| 100.0 * self.goodput_of_limit(run)),
            ),
            self.bystander_loss(load, &at),
            p99_at_most(
                format!("flood/bystander/{load}/p99"),
                format!("guarded bystander's p99 {at}, of that beside a compute-bound process"),
                2.0,
                "×",
                guarded(&|run| run.bystander.p99_of_all_us() / reference),
            ),
            Goal::new(
                format!("flood/better/{load}"),
                format!("guarded goodput × answered probes {at}, of the better alternative's"),
                Side::AtLeast,
                1.0,
                "×",
                self.compared(load),
            ),
        ];
        offered.judge_all(goals, Smaller::Easier)
    }

    /// Holds for the worst run. At the highest load the machine's own pauses, of which the
    /// same part shows what they take, lose packets whatever the host does.
    fn bystander_loss(&self, load: u32, at: &str) -> Goal {
        let losses = self.cases.values(Protection::Guard, load, |run: &Run| {
            100.0 * run.bystander.loss()
        });
        let worst = losses.into_iter().fold(f64::NAN, f64::max);
        let (most, beside) = if load <= PAUSES_MATTER_ABOVE {
            (0.1, "")
        } else {
            let pauses = 100.0 * self.pause_loss(load).loss.max(0.0);
            let beside = ": what the machine's pauses lose, and 0.3 (formerly 0.1)";
            (0.3 + pauses, beside)
        };
        Goal::new(
            format!("flood/bystander/{load}/loss"),
            format!("guarded bystander's loss {at}, in the worst run{beside}"),
            Side::AtMost,
            most,
            "%",
            vec![worst],
        )
    }

    /// Each guarded run's service, of the better alternative's median.
    fn compared(&self, load: u32) -> Vec<f64> {
        let services = |protection| self.cases.values(protection, load, service);
        let alternatives = [Protection::Nftables, Protection::Threaded];
        let best = alternatives
            .into_iter()
            .filter_map(|protection| median(&services(protection)))
            .fold(f64::MIN_POSITIVE, f64::max);
        let guarded = services(Protection::Guard).into_iter();
        guarded.map(|service| service / best).collect()
    }
}

impl Flood {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "UDP flood of one socket; limit = {} × (1 − offered / {}); a bystander echo is probed, p50 and p99 of those answered\n\
             {:>10} {:>8}{:>11}{:>9}{:>5}{:>5}{:>5}  {:>7}{:>7}{:>9}{:>9}\n",
            grouped(self.mlfrr_pps),
            grouped(self.discard_capacity_pps),
            "offered/s",
            "",
            "goodput/s",
            "of limit",
            "app%",
            "net%",
            "idle",
            "lost",
            "of",
            "p50 µs",
            "p99 µs",
        );
        let bystander = |bystander: &Bystander| {
            let Bystander {
                sent,
                lost,
                p50_us,
                p99_us,
            } = bystander;
            format!("{lost:>7}{sent:>7}{p50_us:>9.0}{p99_us:>9.0}\n")
        };
        let _ = write!(
            text,
            "{:>10} {:<45}{}",
            "reference",
            "beside a compute-bound process, stock",
            bystander(&self.reference)
        );
        for PauseLoss { load_percent, loss } in &self.pauses {
            let _ = writeln!(
                text,
                "at {load_percent} % of the capacity this CPU's own pauses overflow the ring for \
                 {:.2} % of the frames",
                loss * 100.0
            );
        }
        for case in &self.cases {
            let percent = |part: f64| part * 100.0;
            let _ = write!(
                text,
                "{:>10} {:>8}{:>11}{:>8.0}%{:>5.0}{:>5.0}{:>5.0}  {}",
                grouped(case.offered_pps),
                case.protection.name(),
                grouped(case.goodput_pps),
                percent(case.goodput_of_limit),
                percent(case.host_cpu.app),
                percent(case.host_cpu.network),
                percent(case.host_cpu.idle),
                bystander(&case.bystander),
            );
        }
        text
    }
}
