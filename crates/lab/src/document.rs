//! What the lab writes: one JSON document, CSV, and a table for a person.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_report::{Goal, Machine, SCHEMA, Side, mark};
use serde::Serialize;

use crate::claim::Verdict;
use crate::distance::{self, Distance, distances};
use crate::experiment::HostKind;
use crate::runner::{Measured, Run, Tally};
use crate::score::Score;

/// Everything that came out.
///
/// A modelled run names the modelled machine, not this one: the same seed gives
/// the same bytes everywhere.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// Version of this program.
    pub version: &'static str,
    /// Of test claims alone.
    pub score: Score,
    /// In the catalogue's order.
    pub experiments: Vec<Entry>,
    /// The promised figures.
    pub goals: Vec<Goal>,
}

/// One experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its id.
    pub id: String,
    /// In one line.
    pub title: String,
    /// The published figures it reproduces.
    pub paper: Vec<String>,
    /// Machine profile.
    pub profile: String,
    /// The first seed.
    pub seed: u64,
    /// How many seeds it was judged on.
    pub seeds: u32,
    /// What must come out, and whether it did.
    pub claims: Vec<Verdict>,
    /// The swept parameter.
    pub parameter: String,
    /// What was measured.
    pub curves: Vec<CurveEntry>,
    /// How far real packets are from the model, where both ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<Distance>,
}

/// One curve.
#[derive(Clone, Debug, Serialize)]
pub struct CurveEntry {
    /// Its id.
    pub id: String,
    /// What it ran on.
    pub host: &'static str,
    /// By value of the swept parameter.
    pub points: Vec<PointEntry>,
    /// Why it could not be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One point.
#[derive(Clone, Debug, Serialize)]
pub struct PointEntry {
    /// Value of the swept parameter.
    pub x: f64,
    /// Measured values by measure: means over the seeds.
    pub values: BTreeMap<String, f64>,
    /// Their 95 percent intervals; empty for a single seed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, (f64, f64)>,
}

impl Document {
    /// The document of these runs.
    #[must_use]
    pub fn new(runs: &[Run]) -> Self {
        Self {
            schema: SCHEMA,
            machine: real_machine(runs).unwrap_or_else(modelled_machine),
            version: env!("CARGO_PKG_VERSION"),
            score: Score::of(runs),
            experiments: runs.iter().map(entry).collect(),
            goals: claims_goals(&Score::of(runs)),
        }
    }
}

/// Name of the modelled host.
pub(crate) const MODELLED: &str = "modelled";

/// This machine, if these runs have real packets.
pub(crate) fn real_machine(runs: &[Run]) -> Option<Machine> {
    measured_on(runs, |host| host != MODELLED).then(|| Machine::read(Some("veth")))
}

/// Whether a curve was measured on such a host.
pub(crate) fn measured_on(runs: &[Run], is_such: impl Fn(&str) -> bool) -> bool {
    let mut curves = runs.iter().flat_map(|run| &run.curves);
    curves.any(|curve| is_such(curve.host) && !curve.points.is_empty())
}

fn modelled_machine() -> Machine {
    Machine {
        kernel: MODELLED.to_owned(),
        cpus: 0,
        model: None,
        link: Some(MODELLED),
    }
}

fn claims_goals(score: &Score) -> Vec<Goal> {
    let mut goals = Vec::new();
    if score.test.total() > 0 || score.real.total() == 0 {
        let what = "test claims that hold, of those decided";
        goals.push(claims_goal("lab/test-claims", what, score.test));
    }
    if score.real.total() > 0 {
        let what = "test claims that hold on real packets, of those decided";
        goals.push(claims_goal("lab/real-claims", what, score.real));
    }
    goals
}

fn claims_goal(id: &str, what: &str, tally: Tally) -> Goal {
    let judged = tally.hold + tally.fail;
    let percent = 100.0 * tally.hold as f64 / judged as f64;
    let runs = if judged > 0 {
        vec![percent]
    } else {
        Vec::new()
    };
    Goal::new(id, what, Side::AtLeast, 100.0, "%", runs)
}

fn entry(run: &Run) -> Entry {
    let experiment = &run.experiment;
    Entry {
        id: experiment.id.clone(),
        title: experiment.title.clone(),
        paper: experiment.paper.clone(),
        profile: experiment.profile.clone(),
        seed: run.seed,
        seeds: run.seeds,
        claims: run.verdicts.clone(),
        parameter: experiment.sweep.parameter.clone(),
        curves: run
            .curves
            .iter()
            .map(|curve| curve_entry(run, curve))
            .collect(),
        distances: distances(run),
    }
}

fn curve_entry(run: &Run, curve: &Measured) -> CurveEntry {
    let point = |(index, (x, _)): (usize, &(f64, BTreeMap<String, f64>))| {
        let (mut values, mut intervals) = (BTreeMap::new(), BTreeMap::new());
        for measure in &run.experiment.measures {
            let Some(estimate) = curve.estimate(index, &measure.of) else {
                continue;
            };
            values.insert(measure.id.clone(), estimate.value);
            let interval = estimate.interval.map(|one| (measure.id.clone(), one));
            intervals.extend(interval);
        }
        PointEntry {
            x: *x,
            values,
            intervals,
        }
    };
    CurveEntry {
        id: curve.id.clone(),
        host: curve.host,
        points: curve.points.iter().enumerate().map(point).collect(),
        why: curve.why.clone(),
    }
}

/// All points as CSV, one value per line: the mean over the seeds and its interval.
#[must_use]
pub fn csv(runs: &[Run]) -> String {
    let mut text = "experiment,curve,host,parameter,x,measure,value,low,high,unit\n".to_owned();
    for run in runs {
        let parameter = &run.experiment.sweep.parameter;
        for curve in &run.curves {
            for (index, (x, _)) in curve.points.iter().enumerate() {
                for measure in &run.experiment.measures {
                    let Some(estimate) = curve.estimate(index, &measure.of) else {
                        continue;
                    };
                    let interval = estimate.interval.map(|(low, high)| format!("{low},{high}"));
                    let _ = writeln!(
                        text,
                        "{},{},{},{parameter},{x},{},{},{},{}",
                        run.experiment.id,
                        curve.id,
                        curve.host,
                        measure.id,
                        estimate.value,
                        interval.as_deref().unwrap_or(","),
                        measure.unit
                    );
                }
            }
        }
    }
    text
}

/// The score, then every claim, for a person.
#[must_use]
pub fn table(runs: &[Run]) -> String {
    let mut text = Score::of(runs).text();
    if let Some(run) = runs.iter().find(|run| run.seeds == 1) {
        let what = match run.experiment.host {
            HostKind::Real => "round",
            HostKind::Modelled | HostKind::Testbed => "seed",
        };
        let _ = writeln!(text, "One {what}: nothing is known of chance.");
    }
    for run in runs {
        let experiment = &run.experiment;
        let seeds = seeds_of(run);
        let _ = writeln!(
            text,
            "{}  {} ({}, {seeds})",
            experiment.id,
            experiment.title,
            experiment.runs_on()
        );
        for verdict in &run.verdicts {
            let _ = writeln!(text, "  {}", verdict_line(verdict));
            if let Some(cause) = &verdict.cause {
                let _ = writeln!(text, "      {}: {}", cause.name, cause.traced);
            }
        }
        text.push_str(&distance::text(run));
        for curve in run.curves.iter().filter(|curve| curve.points.is_empty()) {
            let why = curve.why.as_deref().unwrap_or("no point was run");
            let _ = writeln!(text, "  - {} was not measured: {why}", curve.label);
        }
    }
    text
}

/// How often it was run.
pub(crate) fn seeds_of(run: &Run) -> String {
    match (run.experiment.host, run.seeds) {
        (HostKind::Real, 1) => "one round".to_owned(),
        (HostKind::Real, rounds) => format!("{rounds} rounds"),
        (_, 1) => format!("seed {}", run.seed),
        (_, seeds) => format!("{seeds} seeds from {}", run.seed),
    }
}

/// Every measured value, for a person: a table per measure.
#[must_use]
pub fn values(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        for measure in &run.experiment.measures {
            let _ = writeln!(
                text,
                "{}: {} ({})",
                run.experiment.title, measure.label, measure.unit
            );
            values_table(&mut text, run, &measure.of);
            text.push('\n');
        }
    }
    text
}

fn values_table(text: &mut String, run: &Run, figure_name: &str) {
    let sweep = &run.experiment.sweep;
    let measured = run.curves.iter().filter(|curve| !curve.points.is_empty());
    let curves: Vec<&Measured> = measured.collect();
    let _ = write!(text, "{:>12}", "");
    for curve in &curves {
        let _ = write!(text, "{:>18}", curve.id);
    }
    text.push('\n');
    for (index, x) in sweep.values.iter().enumerate() {
        let _ = write!(text, "{:>12}", sweep.name(*x));
        for curve in &curves {
            let estimate = curve.estimate(index, figure_name);
            let value = estimate.map_or_else(|| "-".to_owned(), |one| figure(one.value));
            let _ = write!(text, "{value:>18}");
        }
        text.push('\n');
    }
}

/// ✓, ✗ or ?, the claim's kind, the claim, its number and its bound.
#[must_use]
pub fn verdict_line(verdict: &Verdict) -> String {
    let mut line = format!(
        "{} {} {}: {}: {}",
        mark(verdict.holds),
        verdict.kind.name(),
        verdict.id,
        verdict.text,
        value(verdict)
    );
    if !verdict.bound.is_empty() {
        let _ = write!(line, " ({})", verdict.bound);
    }
    line
}

/// A number with the digits that a comparison with a bound needs.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 1000.0 => 0,
        large if large >= 100.0 => 1,
        middle if middle >= 10.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The measured number with its unit and interval, or why there is none.
pub(crate) fn value(verdict: &Verdict) -> String {
    let mut text = match (verdict.measured, &verdict.why) {
        (Some(measured), _) => figure(measured),
        (None, Some(why)) => return why.clone(),
        (None, None) => return "not measured".to_owned(),
    };
    let interval = verdict.interval.filter(|(low, high)| low < high);
    if let Some((low, high)) = interval {
        let _ = write!(text, " [{}, {}]", figure(low), figure(high));
    }
    if !verdict.unit.is_empty() {
        let _ = write!(text, " {}", verdict.unit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits_and_no_idle_zeros() {
        for (value, text) in [
            (0.0, "0"),
            (0.999, "0.999"),
            (1.0, "1"),
            (13.7, "13.7"),
            (99.96, "99.96"),
            (370.04, "370"),
            (4700.4, "4700"),
            (100.0, "100"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
