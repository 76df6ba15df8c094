//! `plimsoll bench no-harm`: whether a host is worse off with the guard than without
//! it, in set-ups that operators really have.
//!
//! Each set-up is measured stock and guarded in turns, on hosts made anew for every
//! run: calm, and beside a flood, of another socket as a rule. Calm, nothing may be lost that
//! stock does not lose; flooded, no less may arrive than with stock. A flood of another socket
//! gets a rate at which stock loses (`overload.rs`). Where none is found no goal is met. A full router
//! and a full gateway are sent the flood itself.
//!
//! Limits: a veth link and two CPUs that sender and host share with whatever else this
//! machine does. What is lost on it by the machine's own pauses is lost on both sides,
//! so runs take turns and medians are compared.

mod one_run;
mod overload;
mod setup;
mod traffic;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Machine, SCHEMA, Side};
use plimsoll_testbed::{Config as TestbedConfig, Testbed};
use serde::Serialize;

use crate::Error;
use crate::cases::Cases;
use crate::figures::conclusion;
use crate::protection::Protection;
use one_run::{Run, once, own_flood_pps};
use setup::{Load, Setup, Site};

pub use overload::{Flood, is_without_overload};

/// What is compared.
const SIDES: [Protection; 2] = [Protection::Stock, Protection::Guard];
/// What is compared where throughput counts, or a gateway is full: XDP itself has its price on veth,
/// which a guard that stands by does not pay.
const THROUGHPUT_SIDES: [Protection; 4] = [
    Protection::Stock,
    Protection::PassAll,
    Protection::Guard,
    Protection::Standby,
];

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself, which is started as guard and server.
    pub program: PathBuf,
    /// Names of the set-ups to measure; empty: all.
    pub only: Vec<String>,
    /// How often each case runs; odd, so that a median is a run's own value.
    pub runs: usize,
    /// Measured part of each run.
    pub window: Duration,
    /// Packets per second from which a flood of another socket is doubled until stock loses by
    /// it. A full router is sent three times this; a full gateway's rate is doubled from an
    /// eighth of it.
    pub flood_pps: u64,
}

impl Plan {
    /// Everything, as `plimsoll bench no-harm` runs it without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            only: Vec::new(),
            runs: 3,
            window: Duration::from_secs(2),
            flood_pps: 1_000_000,
        }
    }

    /// The names that [`Plan::only`] may have.
    pub fn names() -> impl Iterator<Item = &'static str> {
        setup::ALL.iter().map(|setup| setup.name)
    }
}

/// One set-up, stock or guarded, calm or beside a flood: sums over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct NoHarmCase {
    /// The set-up.
    pub setup: &'static str,
    /// Beside a flood of another socket; a full router and a full gateway are sent the flood
    /// itself, and a web server's own port gets SYNs.
    pub flooded: bool,
    /// Stock or guard; where throughput counts, or a gateway is full, a program that passes
    /// everything as well, and in some set-ups a guard that stands by.
    pub protection: Protection,
    /// Datagrams, connections, or bytes of a connection.
    pub sent: u64,
    /// What arrived of them.
    pub received: u64,
    /// Packets per second of the flood beside it, as the median run was offered it; none
    /// if calm.
    pub flood_pps: Option<f64>,
}

/// What a machine may lack: other set-ups can be made wherever the guard runs.
pub const OPTIONAL: [&str; 2] = ["ipvs", "vlan"];

/// A set-up that this machine cannot make, so that nothing is known of it.
#[derive(Clone, Debug, Serialize)]
pub struct NotShown {
    /// The set-up.
    pub setup: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What this machine lacks, in the words of whoever refused.
    pub why: String,
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How often each case ran.
    pub runs: usize,
    /// All cases.
    pub cases: Vec<NoHarmCase>,
    /// The floods whose rates were searched, and what stock lost at them.
    pub floods: Vec<Flood>,
    /// Set-ups that this machine cannot make.
    pub not_shown: Vec<NotShown>,
    /// That no case is worse with the guard. Beside a flood that overloads nobody none is met.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table =
            String::from("set-up          flood/s  side            sent    received   lost\n");
        for case in &self.cases {
            let load = case
                .flood_pps
                .map_or_else(|| "calm".to_owned(), |pps| format!("{:.2} M", pps / 1e6));
            let lost = 100.0 * (1.0 - case.received as f64 / case.sent.max(1) as f64);
            let mut without = self.without_overload();
            let is_without = case.flooded && without.any(|flood| flood.setup == case.setup);
            let mark = if is_without { "  no overload" } else { "" };
            let _ = writeln!(
                table,
                "{:<15} {load:<8} {:<8} {:>11} {:>11} {lost:>5.2} %{mark}",
                case.setup,
                case.protection.name(),
                case.sent,
                case.received
            );
        }
        for flood in &self.floods {
            let _ = writeln!(table, "{}, flooded: {flood}", flood.setup);
        }
        let without: Vec<&str> = self.without_overload().map(|flood| flood.setup).collect();
        if !without.is_empty() {
            let (count, all, names) = (without.len(), self.floods.len(), without.join(", "));
            let _ = writeln!(table, "no overload in {count} of {all}: {names}");
        }
        for NotShown { setup, what, why } in &self.not_shown {
            let _ = writeln!(table, "not shown here: {setup} ({what}), since {why}");
        }
        table + conclusion(&self.machine, &self.goals).as_str()
    }

    fn without_overload(&self) -> impl Iterator<Item = &Flood> {
        self.floods.iter().filter(|flood| !flood.is_overload)
    }
}

/// Runs the comparison. `progress` is told what happens, a line at a time.
///
/// # Errors
///
/// This host lacks something ([`Error::is_missing`]), or the run was interrupted. A
/// set-up that this machine cannot make is named, and has goals that say so.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let mut document = Document::of(plan.runs);
    let is_wanted =
        |setup: &&Setup| plan.only.is_empty() || plan.only.iter().any(|name| name == setup.name);
    for setup in setup::ALL.iter().filter(is_wanted) {
        match why_not(setup)? {
            None => document.add(plan, setup, &mut progress)?,
            Some(why) => {
                progress(&format!("{}: not shown here, since {why}", setup.name));
                document.add_unshown(setup, why);
            }
        }
    }
    Ok(document)
}

/// Why this machine cannot make a set-up, if it cannot.
fn why_not(setup: &Setup) -> Result<Option<String>, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let behind = testbed.add_host_behind()?;
    let site = Site {
        testbed: &testbed,
        behind,
    };
    match setup.prepare(&site) {
        Ok(()) => Ok(None),
        Err(error) if error.is_fatal() && !error.is_missing() => Err(error),
        Err(error) => Ok(Some(with_causes(&error))),
    }
}

impl Document {
    /// Nothing was measured yet.
    fn of(runs: usize) -> Self {
        Self {
            schema: SCHEMA,
            machine: Machine::read(Some("veth")),
            runs,
            cases: Vec::new(),
            floods: Vec::new(),
            not_shown: Vec::new(),
            goals: Vec::new(),
        }
    }

    fn add(
        &mut self,
        plan: &Plan,
        setup: &Setup,
        progress: &mut impl FnMut(&str),
    ) -> Result<(), Error> {
        for flooded in [false, true] {
            match measure(plan, setup, flooded, progress) {
                Ok((measured, flood)) => {
                    self.cases.extend(sums(setup, flooded, &measured));
                    let goals = goals(setup, flooded, &measured).into_iter();
                    self.goals.extend(goals.map(|goal| match &flood {
                        Some(flood) => flood.judge(goal),
                        None => goal,
                    }));
                    self.floods.extend(flood);
                }
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => {
                    let none = goals(setup, flooded, &Cases::default()).into_iter();
                    self.goals
                        .extend(none.map(|goal| goal.because(with_causes(&error))));
                }
            }
        }
        Ok(())
    }

    fn add_unshown(&mut self, setup: &Setup, why: String) {
        for flooded in [false, true] {
            let none = goals(setup, flooded, &Cases::default()).into_iter();
            self.goals
                .extend(none.map(|goal| goal.because(format!("not shown here: {why}"))));
        }
        self.not_shown.push(NotShown {
            setup: setup.name,
            what: setup.what,
            why,
        });
    }
}

/// Each side's runs, taken in turns; and the flood that was searched for them.
fn measure(
    plan: &Plan,
    setup: &Setup,
    flooded: bool,
    progress: &mut impl FnMut(&str),
) -> Result<(Cases<(), Run>, Option<Flood>), Error> {
    let own_pps = own_flood_pps(plan, setup);
    let found = (flooded && own_pps.is_none()).then(|| overload::find(plan, setup, progress));
    let found = found.transpose()?;
    let flood_pps = found.map(|found| found.rate_pps).or(own_pps);
    let flood_pps = flood_pps.filter(|_| flooded);
    let mut cases = Cases::new(sides(setup), &[()]);
    let load = if flooded { "flooded" } else { "calm" };
    for round in 1..=plan.runs {
        for case in cases.in_round(round) {
            let side = case.protection.name();
            progress(&format!(
                "{} {load}, round {round} of {}: {side}",
                setup.name, plan.runs
            ));
            let run = once(plan, setup, case.protection, flood_pps)?;
            case.runs.push(run);
        }
    }
    let flood = found.and_then(|found| found.flood(plan, setup, &cases));
    Ok((cases, flood))
}

fn sides(setup: &Setup) -> &'static [Protection] {
    if setup.load.is_throughput() || matches!(setup.load, Load::Download) {
        &THROUGHPUT_SIDES
    } else {
        &SIDES
    }
}

fn sums(setup: &Setup, flooded: bool, measured: &Cases<(), Run>) -> Vec<NoHarmCase> {
    let case = |case: &crate::cases::Case<(), Run>| NoHarmCase {
        setup: setup.name,
        flooded,
        protection: case.protection,
        sent: case.total(|run| run.counted.sent),
        received: case.total(|run| run.counted.received),
        flood_pps: flooded.then(|| case.middle(|run| run.flood_pps.unwrap_or(0.0))),
    };
    measured.0.iter().map(case).collect()
}

/// One for each guard that is compared.
fn goals(setup: &Setup, flooded: bool, measured: &Cases<(), Run>) -> Vec<Goal> {
    let guards = [Protection::Guard, Protection::Standby];
    let compared = guards
        .into_iter()
        .filter(|side| sides(setup).contains(side));
    compared
        .map(|side| goal(setup, flooded, side, measured))
        .collect()
}

/// Whether a goal is that of a guard which is attached from the start where throughput counts. On a
/// veth, which all set-ups have, it stands by unless told otherwise.
#[must_use]
pub fn is_of_choice(goal: &Goal) -> bool {
    let name = goal.id.split('/').next().unwrap_or_default();
    let setup = setup::ALL.iter().find(|setup| setup.name == name);
    let is_throughput = setup.is_some_and(|setup| setup.load.is_throughput());
    is_throughput && !goal.id.ends_with("/standby")
}

/// That no less arrives with the guard: each guarded run against the stock run beside
/// it, in percent of what was sent, or of what stock moved.
fn goal(setup: &Setup, flooded: bool, guard: Protection, measured: &Cases<(), Run>) -> Goal {
    let part = |run: &Run| 100.0 * run.counted.received as f64 / run.counted.sent.max(1) as f64;
    let is_throughput = setup.load.is_throughput();
    let all = |run: &Run| run.counted.received as f64;
    let of = |side| {
        if is_throughput {
            measured.values(side, (), all)
        } else {
            measured.values(side, (), part)
        }
    };
    let pairs = of(guard).into_iter().zip(of(Protection::Stock));
    let runs = pairs.map(|(guarded, stock)| {
        if is_throughput {
            100.0 * guarded / stock.max(1.0)
        } else {
            guarded - stock
        }
    });
    let mut load = if flooded { "flooded" } else { "calm" }.to_owned();
    if guard == Protection::Standby {
        load += "/standby";
    }
    let (least, unit, what) = if is_throughput {
        (99.0, "%", "guarded throughput, of stock's")
    } else {
        (0.0, "points", "what arrives with the guard beyond stock")
    };
    let goal = Goal::new(
        format!("{}/{load}", setup.name),
        format!("{}, {load}: {what}", setup.what),
        Side::AtLeast,
        least,
        unit,
        runs.collect(),
    );
    // One is enough: the median would hide it.
    let cases = measured.0.iter().filter(|case| case.protection == guard);
    let all = cases.flat_map(|case| &case.runs);
    match all.filter_map(|run| run.broke_off.as_ref()).next() {
        Some(why) => Goal {
            met: Some(false),
            ..goal
        }
        .because(format!("a run with the guard broke off: {why}")),
        None => goal,
    }
}

#[cfg(test)]
mod tests {
    use super::one_run::is_harm;
    use super::traffic::Counted;
    use super::*;

    #[test]
    fn every_set_up_has_a_name_of_its_own() {
        let mut names: Vec<_> = Plan::names().collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn where_throughput_counts_the_guard_is_judged_as_it_runs_on_a_veth() {
        let all = setup::ALL.iter().flat_map(|setup| {
            let goals = goals(setup, false, &Cases::default()).into_iter();
            goals.map(move |goal| (setup.load.is_throughput(), goal))
        });
        let (mut chosen, mut standing) = (0, 0);
        for (is_throughput, goal) in all {
            let stands_by = goal.id.ends_with("/calm/standby");
            assert_eq!(is_of_choice(&goal), is_throughput && !stands_by, "{goal:?}");
            chosen += u32::from(is_of_choice(&goal));
            standing += u32::from(stands_by && is_throughput);
        }
        assert!(chosen > 5);
        assert_eq!(chosen, standing, "each has the other beside it");
    }

    /// Ten of sixteen floods overloaded nobody, and the table did not say so.
    #[test]
    fn the_table_marks_and_counts_floods_that_overload_nobody() {
        let mut document = Document::of(1);
        for (setup, received) in [("socket", 10_000), ("multicast", 8_000)] {
            document
                .cases
                .extend([false, true].map(|flooded| NoHarmCase {
                    setup,
                    flooded,
                    protection: Protection::Stock,
                    sent: 10_000,
                    received,
                    flood_pps: flooded.then_some(3_900_000.0),
                }));
            let lost = 1.0 - received as f64 / 10_000.0;
            document
                .floods
                .push(Flood::new(setup, 4_000_000, 3_900_000.0, lost));
        }
        let table = document.table();
        let marked: Vec<&str> = table
            .lines()
            .filter(|line| line.ends_with("no overload"))
            .collect();
        assert_eq!(marked.len(), 1, "{table}");
        assert!(marked[0].starts_with("socket") && marked[0].contains("3.90 M"));
        assert!(
            table.contains("\nno overload in 1 of 2: socket\n"),
            "{table}"
        );
        assert!(table.contains("multicast, flooded: stock lost 20.00 % at 3.90 M packets/s"));
    }

    #[test]
    fn what_is_lost_beyond_stock_is_harm() {
        let mut cases = Cases::new(&SIDES, &[()]);
        let counted = |received| Run {
            counted: Counted {
                sent: 1000,
                received,
            },
            broke_off: None,
            flood_pps: None,
        };
        cases.0[0].runs = vec![counted(990), counted(1000), counted(1000)];
        cases.0[1].runs = vec![counted(980), counted(900), counted(1000)];
        let goal = goal(&setup::ALL[0], false, Protection::Guard, &cases);
        assert_eq!(goal.runs, [-1.0, -10.0, 0.0]);
        assert_eq!(goal.met, Some(false));
    }

    /// A connection that could not be made had left its goal unmeasured.
    #[test]
    fn what_breaks_off_beside_the_guard_is_harm() {
        let source = std::io::ErrorKind::TimedOut.into();
        let error = Error::Traffic {
            action: "connect",
            source,
        };
        assert!(is_harm(Protection::Guard, &error) && !is_harm(Protection::Stock, &error));
        let whole = Run {
            counted: Counted {
                sent: 1000,
                received: 1000,
            },
            broke_off: None,
            flood_pps: None,
        };
        let broken = Run {
            counted: Counted::default(),
            broke_off: Some(with_causes(&error)),
            flood_pps: None,
        };
        let mut cases = Cases::new(&SIDES, &[()]);
        cases.0[0].runs = vec![whole.clone(); 3];
        cases.0[1].runs = vec![whole.clone(), broken, whole];
        for setup in &setup::ALL {
            let goal = goal(setup, false, Protection::Guard, &cases);
            assert_eq!(goal.met, Some(false), "{}", setup.name);
            assert!(goal.why.unwrap().contains("cannot connect"));
        }
    }
}
