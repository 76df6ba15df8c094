//! Claims: expressions over measured curves, with bounds.
//!
//! An expression names a curve and one of its measures, `bsd.goodput`, and
//! asks functions about it: `peak(bsd.goodput) / peak(lrp.goodput)`.
//! `docs/lab.md` lists the functions; [`functions`] is where they are made. The
//! language is Rhai's expressions: arithmetic, comparison, no statements.
//!
//! A claim is measured once per seed, with all curves of the same seed, and judged
//! by the interval of what came out: it holds if all of the interval is within the
//! bound, fails if none of it is, and is undecided otherwise.
//!
//! A claim whose number cannot be had (a question outside the measured range, a
//! curve that was not measured) neither holds nor fails: it says why.

mod bound;
mod functions;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rhai::{Dynamic, Engine, Scope};
use serde::Serialize;

use self::bound::Bound;
use self::functions::{Measured, engine, float, innermost};
use crate::declared::{Cause, Claim, Kind, Number};
use crate::error::Error;
use crate::experiment::{Curve, Experiment, HostKind, Measure};
use crate::series::Series;
use crate::statistics::Estimate;

/// The curves of one experiment: by curve and measure. A curve that could not be
/// measured is absent.
pub(crate) type Curves = BTreeMap<String, BTreeMap<String, Series>>;

/// Whether a claim holds, and by what number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The claim's id.
    pub id: String,
    /// What the claim can show.
    pub kind: Kind,
    /// The claim in words.
    pub text: String,
    /// The published numbers or statements behind it.
    pub entry: Option<String>,
    /// `model`, or `testbed` for real packets.
    pub host: &'static str,
    /// What came out: the mean over the seeds; nothing if it could not be had.
    pub measured: Option<f64>,
    /// Where the mean lies with 95 percent; nothing for a single seed.
    pub interval: Option<(f64, f64)>,
    /// Unit of `measured`.
    pub unit: String,
    /// The bound in words, with its values.
    pub bound: String,
    /// Whether it holds; nothing while undecided or unmeasured.
    pub holds: Option<bool>,
    /// Why there is no number, or no decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Why it does not hold, or is undecided, as far as that was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

impl Verdict {
    /// About real packets.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.host == REAL
    }

    /// Measured, but chance could decide either way.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.holds.is_none() && self.interval.is_some()
    }
}

/// What real packets are called where results are.
const REAL: &str = "testbed";

/// Judges all claims of `experiment` by what was measured, seed by seed; those about real packets by
/// the first `rounds`.
pub(crate) fn judge(experiment: &Experiment, seeds: &[Curves], rounds: u32) -> Vec<Verdict> {
    let judges: Vec<_> = seeds
        .iter()
        .map(|curves| Judge::new(experiment, curves))
        .collect();
    let claims = experiment.claims.iter();
    claims
        .map(|claim| verdict(experiment, &judges, rounds, claim))
        .collect()
}

/// With the traced cause, unless the claim holds.
fn verdict(experiment: &Experiment, judges: &[Judge<'_>], rounds: u32, claim: &Claim) -> Verdict {
    let verdict = judged(experiment, judges, rounds, claim);
    let missed = verdict.holds == Some(false) || verdict.is_undecided();
    let cause = missed.then(|| experiment.cause(&claim.id)).flatten();
    Verdict {
        cause: cause.cloned(),
        ..verdict
    }
}

fn judged(experiment: &Experiment, judges: &[Judge<'_>], rounds: u32, claim: &Claim) -> Verdict {
    let real = experiment.curves.iter().map(Curve::testbed_id);
    let is_real =
        experiment.host == HostKind::Real || { real }.any(|id| claim.measure.contains(&id));
    let unmeasured = Verdict {
        id: claim.id.clone(),
        kind: claim.kind,
        text: claim.told(),
        entry: claim.from.clone(),
        host: if is_real { REAL } else { "model" },
        measured: None,
        interval: None,
        unit: claim.unit.clone(),
        bound: String::new(),
        holds: None,
        why: None,
        cause: None,
    };
    // Real packets are repeated less often than the model, and then taken again.
    let repeats = if is_real {
        rounds as usize
    } else {
        judges.len()
    };
    let judges = judges.iter().take(repeats);
    let measured = judges.map(|judge| judge.measure(claim));
    match measured.collect::<Result<Vec<_>, _>>() {
        Ok(measured) => decided(unmeasured, &measured),
        Err(problem) => Verdict {
            why: Some(problem),
            ..unmeasured
        },
    }
}

/// The verdict by a value and a bound per seed.
fn decided(verdict: Verdict, measured: &[(f64, Bound)]) -> Verdict {
    let values: Vec<f64> = measured.iter().map(|(value, _)| *value).collect();
    let Some(estimate) = Estimate::of(&values) else {
        return verdict;
    };
    let margins: Vec<Vec<f64>> = measured
        .iter()
        .map(|(value, bound)| bound.margins(*value))
        .collect();
    let sides = margins.first().map_or(0, Vec::len);
    let side = |side: usize| {
        let margins: Vec<f64> = margins.iter().map(|margins| margins[side]).collect();
        Estimate::of(&margins)?.at_least(0.0)
    };
    let sides: Vec<Option<bool>> = (0..sides).map(side).collect();
    let holds = if sides.contains(&Some(false)) {
        Some(false)
    } else if sides.contains(&None) {
        None
    } else {
        Some(true)
    };
    let never = estimate.value.is_infinite();
    let why = match holds {
        None => Some("chance could decide either way".to_owned()),
        Some(_) if never => Some("never in the measured range".to_owned()),
        Some(_) => None,
    };
    Verdict {
        measured: (!never).then_some(estimate.value),
        interval: estimate.interval,
        bound: Bound::mean(measured).text(),
        holds,
        why,
        ..verdict
    }
}

/// Checks the claims of a file by judging them on made-up curves.
pub(crate) fn check(file: &str, experiment: &Experiment) -> Result<(), Error> {
    for (index, claim) in experiment.claims.iter().enumerate() {
        let key = format!("claim.{}", claim.id);
        let others = &experiment.claims[..index];
        if others.iter().any(|other| other.id == claim.id) {
            return Err(Error::file(file, key, "occurs twice", "rename one of them"));
        }
        check_bounds(claim)
            .map_err(|(problem, remedy)| Error::file(file, &key, problem, remedy))?;
    }
    let curves = made_up(experiment);
    let judge = Judge::new(experiment, &curves);
    for claim in &experiment.claims {
        let expressions = [
            Some(claim.measure.as_str()),
            expression(claim.at_least.as_ref()),
            expression(claim.at_most.as_ref()),
            expression(claim.near.as_ref()),
        ];
        for text in expressions.into_iter().flatten() {
            judge.number(text).map_err(|problem| {
                let key = format!("claim.{}", claim.id);
                let remedy = format!(
                    "use the curves {} with the file's measures and the functions of docs/lab.md",
                    experiment.curve_ids()
                );
                Error::file(file, key, format!("{text:?}: {problem}"), remedy)
            })?;
        }
    }
    Ok(())
}

/// Whether `id` is a variable to an expression, and not a word of the language.
pub(crate) fn is_variable(id: &str) -> bool {
    Engine::new_raw().compile_expression(id).is_ok()
}

fn check_bounds(claim: &Claim) -> Result<(), (&'static str, &'static str)> {
    if let (Some(Number::Value(least)), Some(Number::Value(most))) =
        (&claim.at_least, &claim.at_most)
        && least > most
    {
        let problem = "has a bound that nothing is within";
        return Err((problem, "give an at_least that is not above at_most"));
    }
    let sides = claim.at_least.is_some() || claim.at_most.is_some();
    match (sides, claim.near.is_some(), claim.within_percent) {
        (true, false, None) => Ok(()),
        (false, true, Some(percent)) if percent > 0.0 => Ok(()),
        (false, true, _) => Err((
            "near needs a tolerance",
            "add within_percent with a value above 0",
        )),
        _ => Err((
            "has no clear bound",
            "give at_least, at_most or both, or else near with within_percent",
        )),
    }
}

fn expression(number: Option<&Number>) -> Option<&str> {
    match number {
        Some(Number::Expression(text)) => Some(text),
        _ => None,
    }
}

/// A curve for every name, so that a question about any of them has an answer.
fn made_up(experiment: &Experiment) -> Curves {
    let testbed = experiment
        .curves
        .iter()
        .filter(|curve| curve.testbed.is_some());
    let ids = experiment.curves.iter().map(|curve| curve.id.clone());
    let ids = ids.chain(testbed.map(Curve::testbed_id));
    let curves = ids.enumerate().map(|(index, id)| {
        // Different heights, so that no difference between curves is zero.
        let height = 1.0 + index as f64;
        let points = experiment.sweep.values.iter().map(|x| (*x, height));
        let series = Series::new(points.collect());
        let measured = |measure: &Measure| Some((measure.id.clone(), series.clone()?));
        (
            id,
            experiment.measures.iter().filter_map(measured).collect(),
        )
    });
    curves.collect()
}

struct Judge<'a> {
    engine: Engine,
    scope: RefCell<Scope<'a>>,
}

impl<'a> Judge<'a> {
    fn new(experiment: &Experiment, curves: &Curves) -> Self {
        let mut scope = Scope::new();
        for curve in &experiment.curves {
            for id in [curve.id.clone(), curve.testbed_id()] {
                let measures = curves.get(&id).cloned().unwrap_or_default();
                let measured = Measured {
                    curve: id.clone(),
                    measures: Rc::new(measures),
                };
                scope.push_constant(id, measured);
            }
        }
        Self {
            engine: engine(),
            scope: RefCell::new(scope),
        }
    }

    fn number(&self, expression: &str) -> Result<f64, String> {
        let mut scope = self.scope.borrow_mut();
        let value = self
            .engine
            .eval_expression_with_scope::<Dynamic>(&mut scope, expression);
        let value = value.map_err(|error| innermost(&error))?;
        float(&value).ok_or_else(|| "it gives no number, but a curve or something else".to_owned())
    }

    fn bound(&self, number: Option<&Number>) -> Result<Option<f64>, String> {
        match number {
            None => Ok(None),
            Some(Number::Value(value)) => Ok(Some(*value)),
            Some(Number::Expression(text)) => self.number(text).map(Some),
        }
    }

    fn measure(&self, claim: &Claim) -> Result<(f64, Bound), String> {
        let bound = match (self.bound(claim.near.as_ref())?, claim.within_percent) {
            (Some(value), Some(percent)) => Bound::Near { value, percent },
            _ => Bound::Sides {
                least: self.bound(claim.at_least.as_ref())?,
                most: self.bound(claim.at_most.as_ref())?,
            },
        };
        let measured = self.number(&claim.measure)?;
        if measured.is_nan() || bound.margins(measured).iter().any(|margin| margin.is_nan()) {
            return Err("the result is not a number".to_owned());
        }
        Ok((measured, bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An experiment with two curves, x from 1 to 3, and the given claims.
    fn experiment(claims: &str) -> Result<Experiment, Error> {
        let text = format!(
            r#"
            id = "made-up"
            title = "Two made-up curves"
            profile = "none"
            measure = [{{ id = "goodput", of = "delivered_pps", label = "Goodput", unit = "packets/s" }}]
            explain = {{ setup = "-", model = "-", limits = "-" }}
            sweep = {{ parameter = "load.rate", label = "offered", values = [1, 2, 3] }}
            curve = [{{ id = "old", label = "Old" }}, {{ id = "late", label = "Late" }}]
            {claims}
            "#
        );
        Experiment::parse("made-up.toml", &text)
    }

    fn curves(old: [f64; 3], new: [f64; 3]) -> Curves {
        let one = |values: [f64; 3]| {
            let points = values.into_iter().enumerate();
            let points = points.map(|(index, y)| (index as f64 + 1.0, y)).collect();
            BTreeMap::from([("goodput".to_owned(), Series::new(points).unwrap())])
        };
        BTreeMap::from([("old".to_owned(), one(old)), ("late".to_owned(), one(new))])
    }

    fn judged(claim: &str, curves: &Curves) -> Verdict {
        let claim = format!("[[claim]]\nid = \"c\"\nkind = \"ours\"\ntext = \"t\"\n{claim}");
        judge(
            &experiment(&claim).unwrap(),
            std::slice::from_ref(curves),
            1,
        )
        .remove(0)
    }

    #[test]
    fn a_claim_holds_within_its_bound_only() {
        let near = "measure = \"peak(old.goodput)\"\nnear = 100\nwithin_percent = 5";
        for (peak, holds) in [(94.9, false), (95.0, true), (105.0, true), (105.1, false)] {
            let verdict = judged(near, &curves([1.0, peak, 2.0], [0.0; 3]));
            assert_eq!((verdict.measured, verdict.holds), (Some(peak), Some(holds)));
            assert_eq!(verdict.bound, "100 ± 5 %");
        }
    }

    #[test]
    fn what_is_not_the_papers_stands_behind_the_text() {
        for (ours, told) in [
            ("", "t"),
            ("ours = \"nothing\"\n", "t"),
            ("ours = \"at 3\"\n", "t (ours: at 3)"),
        ] {
            let claim = format!("{ours}measure = \"peak(old.goodput)\"\nat_least = 1");
            let verdict = judged(&claim, &curves([1.0, 2.0, 2.0], [0.0; 3]));
            assert_eq!(verdict.text, told);
        }
    }

    #[test]
    fn a_claim_whose_interval_crosses_its_bound_is_undecided() {
        let claim = "[[claim]]\nid = \"c\"\nkind = \"test\"\ntext = \"t\"\nfrom = \"MR-E08\"\n\
                     measure = \"peak(old.goodput)\"\nat_least = 100";
        let experiment = experiment(claim).unwrap();
        let judged = |peaks: [f64; 4]| {
            let seeds = peaks.map(|peak| curves([1.0, peak, 2.0], [0.0; 3]));
            judge(&experiment, &seeds, 4).remove(0)
        };
        let held = judged([104.0, 105.0, 106.0, 105.0]);
        assert_eq!((held.measured, held.holds), (Some(105.0), Some(true)));
        let failed = judged([94.0, 95.0, 96.0, 95.0]);
        assert_eq!(failed.holds, Some(false));
        let undecided = judged([95.0, 105.0, 96.0, 107.0]);
        assert!(
            undecided.is_undecided() && undecided.why.is_some(),
            "{undecided:?}"
        );
        assert_eq!((undecided.kind, undecided.host), (Kind::Test, "model"));
    }

    #[test]
    fn bounds_and_measures_are_expressions_over_several_curves() {
        let claim = "measure = \"lowest(late.goodput / old.goodput)\"\n\
                     at_least = \"1 + at(old.goodput, 1.5) / 10\"\nat_most = 9.5";
        let verdict = judged(claim, &curves([2.0, 4.0, 1.0], [6.0, 8.0, 9.0]));
        assert_eq!(verdict.measured, Some(2.0));
        assert_eq!(verdict.bound, "1.3 to 9.5");
        assert_eq!(verdict.holds, Some(true));
    }

    #[test]
    fn what_never_happens_is_later_than_every_load_and_no_number() {
        let claim = "measure = \"falls_to(old.goodput, 0)\"\nat_most = 3";
        let verdict = judged(claim, &curves([1.0, 3.0, 2.0], [0.0; 3]));
        assert_eq!((verdict.measured, verdict.holds), (None, Some(false)));
        assert_eq!(verdict.why.as_deref(), Some("never in the measured range"));
    }

    #[test]
    fn what_no_load_tells_that_was_offered_neither_holds_nor_fails() {
        let mut curves = curves([1.0, 3.0, 2.0], [1.0, 2.0, 3.0]);
        for measures in curves.values_mut() {
            let points = measures["goodput"].points().to_vec();
            let cut = Series::of_sweep(points, 4.0).unwrap();
            measures.insert("goodput".to_owned(), cut);
        }
        for measure in [
            "falls_to(old.goodput, 0)",
            "rises_to(old.goodput, 4)",
            "loss_free(late.goodput)",
            "loss_free_by(late.goodput - late.goodput)",
        ] {
            let claim = format!("measure = \"{measure}\"\nat_most = 3");
            let verdict = judged(&claim, &curves);
            let why = verdict.why.unwrap();
            assert_eq!((verdict.measured, verdict.holds), (None, None), "{why}");
            assert!(why.contains("up to 3, and no further load"), "{why}");
        }
        let reached = "measure = \"falls_to(old.goodput, 2)\"\nat_most = 3";
        assert_eq!(judged(reached, &curves).holds, Some(true));
        let within = "measure = \"falls_to(between(old.goodput, 1, 3), 0)\"\nat_most = 3";
        assert_eq!(judged(within, &curves).holds, Some(false));
    }

    #[test]
    fn a_claim_about_what_was_not_measured_neither_holds_nor_fails() {
        let mut curves = curves([1.0; 3], [1.0; 3]);
        curves.remove("late");
        let verdict = judged("measure = \"peak(late.goodput)\"\nat_least = 0", &curves);
        assert_eq!((verdict.measured, verdict.holds), (None, None));
        assert_eq!(
            verdict.why.as_deref(),
            Some("late.goodput was not measured")
        );
    }

    #[test]
    fn a_bad_claim_names_file_key_and_remedy() {
        for (claim, wanted) in [
            ("measure = \"peak(od.goodput)\"\nat_least = 1", "od"),
            (
                "measure = \"peak(old.godput)\"\nat_least = 1",
                "was not measured",
            ),
            ("measure = \"peek(old.goodput)\"\nat_least = 1", "peek"),
            ("measure = \"old.goodput\"\nat_least = 1", "gives no number"),
            ("measure = \"at(old.goodput, 4)\"\nat_least = 1", "outside"),
            (
                "measure = \"peak(old.latency)\"\nat_least = 1",
                "was not measured",
            ),
            ("measure = \"1\"\nat_least = \"1 +\"", "1 +"),
            ("measure = \"1\"", "no clear bound"),
            ("measure = \"1\"\nnear = 1", "within_percent"),
            (
                "measure = \"1\"\nnear = 1\nat_most = 2\nwithin_percent = 1",
                "no clear bound",
            ),
        ] {
            let text = format!("[[claim]]\nid = \"c\"\nkind = \"ours\"\ntext = \"t\"\n{claim}");
            let error = experiment(&text).unwrap_err().to_string();
            assert!(error.starts_with("made-up.toml: claim.c: "), "{error}");
            assert!(error.contains(wanted), "{claim}: {error}");
        }
    }
}
