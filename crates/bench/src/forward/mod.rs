//! `plimsoll bench forward`: how much routers forward, ours beside the kernel's and the
//! least that XDP can do, and what a flood leaves to others on the router's CPU.
//!
//! How it is measured is told by [`crate::passing`].

mod beside;
mod first;
mod way;

use std::fmt::Write as _;

use plimsoll_report::{Goal, Machine, SCHEMA, Side, median};
use serde::Serialize;

use crate::Error;
use crate::figures::{conclusion, grouped};
use crate::passing::{self, Effort, Family, KEPT, OVERLOAD, PassingCase};
pub(crate) use beside::LIMIT_PERCENT;
pub use beside::{BesideCase, BesideRun};
pub use first::FirstCase;
pub use way::Router;
pub(crate) use way::{start_limited, start_with};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long and how often.
    pub effort: Effort,
    /// Which routers.
    pub routers: Vec<Router>,
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How often all routers took their turns.
    pub runs: usize,
    /// How long each rate of a curve was offered, in milliseconds.
    pub window_ms: u128,
    /// All routers with both versions of IP.
    pub cases: Vec<PassingCase>,
    /// What floods left to others.
    pub beside: Vec<BesideCase>,
    /// How long the first packet of a burst takes.
    pub first: Vec<FirstCase>,
    /// What is promised.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as tables.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = passing::curves("Forwarding, UDP packets", &self.cases);
        let _ = write!(
            table,
            "\nBeside a flood of {OVERLOAD} x MLFRR\n{:<11}{:<14}{:>9}{:>11}{:>11}{:>10}{:>10}{:>10}\n",
            "", "router", "offered", "forwarded", "compute", "asked", "port 22", "answered"
        );
        for case in &self.beside {
            table += &row(case);
        }
        table += "\nThe first packet of a burst of 64, one way\n";
        let _ = writeln!(
            table,
            "{:<11}{:<14}{:>12}{:>12}",
            "", "router", "p50", "p99"
        );
        for case in &self.first {
            table += &first_row(case);
        }
        table + conclusion(&self.machine, &self.goals).as_str()
    }
}

fn first_row(case: &FirstCase) -> String {
    let name = format!("{:<11}{:<14}", case.family.name(), case.way);
    match case.middle() {
        Some([p50, p99]) => format!("{name}{p50:>9.1} µs{p99:>9.1} µs\n"),
        None => format!("{name} {}\n", case.why.as_deref().unwrap_or("not measured")),
    }
}

fn row(case: &BesideCase) -> String {
    let over = |value: fn(&BesideRun) -> f64| {
        let values: Vec<f64> = case.runs.iter().map(value).collect();
        median(&values).unwrap_or(0.0)
    };
    let name = format!("{:<11}{:<14}", case.family.name(), case.way);
    if case.runs.is_empty() {
        let why = case.why.as_deref().unwrap_or("not measured");
        return format!("{name} {why}\n");
    }
    let asked = case
        .left_percent
        .map_or_else(String::new, |percent| format!("{percent} %"));
    format!(
        "{name}{:>7.1} x{:>11}{:>9.1} %{asked:>10}{:>10}{:>8.1} %\n",
        over(|run| run.multiple),
        grouped(over(|run| run.passed_pps)),
        over(|run| run.compute_percent),
        over(|run| run.ssh_attempts as f64),
        over(BesideRun::ssh_percent),
    )
}

/// Measures all routers, in turns.
///
/// # Errors
///
/// The testbed cannot be made. What one router alone lacks, its case says.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let effort = &plan.effort;
    let cases = passing::measure(effort, &plan.routers, &mut progress)?;
    let beside = beside::measure(effort, &plan.routers, &cases, &mut progress)?;
    let first = first::measure(effort, &plan.routers, &mut progress)?;
    let goals = Family::ALL.map(|family| goals(family, &cases, &beside, &first));
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        runs: effort.runs,
        window_ms: effort.window.as_millis(),
        goals: goals.into_iter().flatten().collect(),
        cases,
        beside,
        first,
    })
}

/// What is promised of one version of IP with one kind of lengths.
fn goals(
    family: Family,
    cases: &[PassingCase],
    beside: &[BesideCase],
    first: &[FirstCase],
) -> Vec<Goal> {
    let of = |router: Router| {
        let mut cases = cases.iter();
        cases.find(|case| (case.way, case.family) == (router.name(), family))
    };
    let name = family.name();
    let mut goals = Vec::new();
    for (ours, other, least) in [
        (Router::Xdp, Router::Kernel, 2.2),
        (Router::Xdp, Router::Bare, 0.95),
        (Router::User, Router::Testpmd, 1.0),
    ] {
        let (way, other_way) = (ours.name(), other.name());
        goals.push(passing::mlfrr_ratio(
            format!("forward.{name}.{way}.mlfrr.{other_way}"),
            format!("{name}: MLFRR of --path {way}, beside {other_way}"),
            least,
            of(ours),
            of(other),
        ));
    }
    for (router, least) in [(Router::Xdp, 95.0), (Router::User, 85.0)] {
        let way = router.name();
        goals.push(passing::at_overload(
            format!("forward.{name}.{way}.overload"),
            format!("{name}: forwarded by --path {way} at {OVERLOAD} x MLFRR, of its peak"),
            (Side::AtLeast, least),
            of(router),
        ));
    }
    for router in [Router::Xdp, Router::User] {
        let mut beside = beside.iter();
        let case = beside.find(|case| (case.way, case.family) == (router.name(), family));
        let runs = passing::with_runs(of(router)).and_then(|_| runs_of(case));
        goals.extend(beside_goals(family, router, runs));
    }
    // Bursts are of one length.
    if !family.is_imix() {
        goals.push(first_goal(family, first));
    }
    goals
}

/// The runs, or why there are none that say something about a goal.
fn runs_of(case: Option<&BesideCase>) -> Result<&[BesideRun], String> {
    let case = case.ok_or("not asked for")?;
    if case.runs.is_empty() {
        let why = case.why.as_deref();
        return Err(why.unwrap_or("there is no MLFRR").to_owned());
    }
    let multiple = case.runs.iter().map(|run| run.multiple);
    let least = multiple.fold(f64::INFINITY, f64::min);
    if least >= OVERLOAD * KEPT {
        return Ok(&case.runs);
    }
    let middle = |value: fn(&BesideRun) -> f64| {
        let values: Vec<f64> = case.runs.iter().map(value).collect();
        median(&values).unwrap_or(f64::NAN)
    };
    Err(format!(
        "the generator offered {least:.1} times the MLFRR; there the process got {:.1} %, and {:.1} % of the connections were answered",
        middle(|run| run.compute_percent),
        middle(BesideRun::ssh_percent),
    ))
}

/// What a flood leaves to others.
fn beside_goals(family: Family, router: Router, runs: Result<&[BesideRun], String>) -> [Goal; 2] {
    let (name, way) = (family.name(), router.name());
    let left = f64::from(100 - LIMIT_PERCENT);
    let measured = runs.as_deref().unwrap_or_default().iter();
    let missed = measured.clone().map(|run| left - run.compute_percent);
    let goals = [
        Goal::new(
            format!("forward.{name}.{way}.share"),
            format!(
                "{name}: what a compute-bound process misses of its {left} % beside --path {way}"
            ),
            Side::AtMost,
            3.0,
            "points",
            missed.collect(),
        ),
        Goal::new(
            format!("forward.{name}.{way}.ssh"),
            format!("{name}: answered connections to port 22 beside --path {way}"),
            Side::AtLeast,
            100.0,
            "%",
            measured.map(BesideRun::ssh_percent).collect(),
        ),
    ];
    match runs {
        Ok(_) => goals,
        Err(why) => goals.map(|goal| goal.because(why.clone())),
    }
}

/// Ours beside the kernel, run by run.
fn first_goal(family: Family, first: &[FirstCase]) -> Goal {
    let of = |router: Router| {
        let mut cases = first.iter();
        cases.find(|case| (case.way, case.family) == (router.name(), family))
    };
    let name = family.name();
    let goal = |ratios| {
        Goal::new(
            format!("forward.{name}.first-packet"),
            format!(
                "{name}: median latency of a burst's first packet by --path xdp, beside kernel forwarding"
            ),
            Side::AtMost,
            1.0,
            "times",
            ratios,
        )
    };
    let kernel = of(Router::Kernel).and_then(|case| median(&case.p50_us));
    let ours = of(Router::Xdp).filter(|case| !case.p50_us.is_empty());
    match (ours, kernel.filter(|kernel| *kernel > 0.0)) {
        (Some(ours), Some(kernel)) => goal(ours.p50_us.iter().map(|p50| p50 / kernel).collect()),
        _ => goal(Vec::new()).because("kernel or xdp was not measured"),
    }
}
