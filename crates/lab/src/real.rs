//! Runs the curves of real packets: round after round, and in each round one curve
//! after the other.
//!
//! A machine drifts over minutes. So all curves take turns, and what a rate is
//! measured against is measured in the same round. One thing at a time: all share
//! this machine's CPUs.
//!
//! **An interrupted run.** Loads are multiples of a unit that each process searches anew in
//! each round. So a round of an experiment is taken from the cache if all of it is there, and
//! else is measured again.

use std::collections::BTreeSet;

use crate::cache::Cache;
use crate::error::Error;
use crate::experiment::{Curve, Experiment, HostKind};
use crate::flood_model::OFFERED;
use crate::host::{Figures, Host, Point};
use crate::runner::{measured_alone, points};

/// How often a curve of real packets is repeated at most unless more is asked for: each point takes
/// a second, and all published figures together half an hour.
const REAL_ROUNDS: u32 = 4;

/// How often points are run.
#[derive(Clone, Copy)]
pub(crate) struct Repeats {
    pub(crate) seeds: u32,
    /// 0: as the seeds say.
    pub(crate) rounds: u32,
}

impl Repeats {
    pub(crate) fn rounds(self) -> u32 {
        match self.rounds {
            0 => self.seeds.min(REAL_ROUNDS),
            rounds => rounds,
        }
    }

    /// How many seeds or rounds an experiment is judged on: beside the model no round is left out.
    pub(crate) fn of(self, experiment: &Experiment) -> u32 {
        match experiment.host {
            HostKind::Real => self.rounds(),
            HostKind::Testbed => self.seeds.max(self.rounds),
            HostKind::Modelled => self.seeds,
        }
    }
}

/// The figures of a curve: by point, then by round.
pub(crate) type RealFigures = Vec<Vec<Figures>>;

/// The curves of these experiments that are run on real packets, each with its points
/// of the first round.
pub(crate) fn curves(experiments: &[Experiment], seed: u64) -> Result<Vec<Vec<Point<'_>>>, Error> {
    let mut all = Vec::new();
    for experiment in experiments {
        for curve in experiment
            .curves
            .iter()
            .filter(|one| is_real(experiment, one))
        {
            all.push(points(experiment, curve, seed)?);
        }
    }
    Ok(all)
}

/// Whether a curve of an experiment is run on real packets.
pub(crate) fn is_real(experiment: &Experiment, curve: &Curve) -> bool {
    match experiment.host {
        HostKind::Modelled => false,
        HostKind::Testbed => curve.testbed.is_some(),
        HostKind::Real => true,
    }
}

/// Runs all rounds. `progress` is called after each curve with the number of its points.
///
/// A curve that fails is not run again; its error stands in its place. An error after
/// which nothing can be measured ends the run.
pub(crate) fn run(
    host: &dyn Host,
    curves: &[Vec<Point<'_>>],
    rounds: u32,
    cache: Option<&Cache>,
    progress: &dyn Fn(usize),
) -> Result<Vec<Result<RealFigures, Error>>, Error> {
    let empty = |points: &Vec<Point<'_>>| Ok(vec![Vec::new(); points.len()]);
    let mut results: Vec<Result<RealFigures, Error>> = curves.iter().map(empty).collect();
    for round in 0..rounds {
        let asked: Vec<Vec<Point<'_>>> = curves.iter().map(|one| of_round(one, round)).collect();
        let partial = cache.map(|cache| partial(host, &asked, &results, cache));
        for (points, result) in asked.iter().zip(&mut results) {
            progress(points.len());
            let Ok(samples) = result else { continue };
            let is_whole = |partial: &BTreeSet<&str>| !partial.contains(experiment(points));
            let figures = match cache.filter(|_| partial.as_ref().is_some_and(is_whole)) {
                Some(cache) => Ok(kept(host, points, cache)),
                None => measured(host, points, cache),
            };
            match figures {
                Ok(figures) => {
                    let figures = figures.into_iter().zip(points);
                    let figures = figures.map(|(figures, point)| of_further(figures, point, round));
                    let figures = samples.iter_mut().zip(figures);
                    figures.for_each(|(samples, figures)| samples.push(figures));
                }
                Err(Error::Testbed {
                    fatal: false,
                    what,
                    source,
                }) => {
                    *result = Err(Error::Testbed {
                        fatal: false,
                        what,
                        source,
                    });
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(results)
}

/// The points of a curve with the seeds of a round.
fn of_round<'a>(points: &[Point<'a>], round: u32) -> Vec<Point<'a>> {
    let points = points.iter().map(|point| Point {
        seed: point.seed.wrapping_add(u64::from(round)),
        ..point.clone()
    });
    points.collect()
}

/// The experiment of a curve.
fn experiment<'a>(points: &[Point<'a>]) -> &'a str {
    points.first().map_or("", |point| &point.experiment.id)
}

/// The experiments that have a curve in this round which is not in the cache.
fn partial<'a>(
    host: &dyn Host,
    curves: &[Vec<Point<'a>>],
    results: &[Result<RealFigures, Error>],
    cache: &Cache,
) -> BTreeSet<&'a str> {
    let running = curves.iter().zip(results);
    let running = running.filter(|(_, result)| result.is_ok());
    let missing = running.filter(|(points, _)| kept(host, points, cache).len() < points.len());
    missing.map(|(points, _)| experiment(points)).collect()
}

/// What the cache has of a curve.
fn kept(host: &dyn Host, points: &[Point<'_>], cache: &Cache) -> Vec<Figures> {
    let keys = points.iter().map(|point| cache.key(host, point));
    keys.filter_map(|key| cache.find(&key).cloned()).collect()
}

/// One curve once, for the cache as well.
fn measured(
    host: &dyn Host,
    points: &[Point<'_>],
    cache: Option<&Cache>,
) -> Result<Vec<Figures>, Error> {
    let all = host.run_curve(points)?;
    for (point, figures) in points.iter().zip(&all) {
        if let Some(cache) = cache {
            cache.keep(cache.key(host, point), figures)?;
        }
    }
    Ok(all)
}

/// What is kept of a point in this round: after the first what the experiment measures, and
/// what was offered.
fn of_further(mut figures: Figures, point: &Point<'_>, round: u32) -> Figures {
    if round > 0 {
        let offered = figures.get_key_value(OFFERED);
        let offered = offered.map(|(name, pps)| (name.clone(), *pps));
        measured_alone(point.experiment, &mut figures);
        figures.extend(offered);
    }
    figures
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Fails on the curve `bad`, and counts what it runs.
    #[derive(Default)]
    struct Recorded {
        runs: RefCell<Vec<(String, u64)>>,
        fatal: bool,
    }

    impl Host for Recorded {
        fn name(&self) -> &'static str {
            "testbed"
        }

        fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
            let curve = point.curve.id.clone();
            self.runs.borrow_mut().push((curve.clone(), point.seed));
            if curve == "bad" {
                return Err(Error::Testbed {
                    what: curve,
                    fatal: self.fatal,
                    source: "no such program".into(),
                });
            }
            let figures = [("y", point.seed as f64), ("unmeasured", 1.0)];
            let named = figures.map(|(name, value)| (name.to_owned(), value));
            Ok(named.into_iter().collect())
        }
    }

    fn experiment() -> Experiment {
        let text = r#"
            id = "made-up"
            title = "Three curves"
            host = "real"
            measure = [{ id = "y", of = "y", label = "Y", unit = "" }]
            explain = { setup = "-", model = "-", limits = "-" }
            sweep = { parameter = "multiple", label = "offered", values = [1, 2] }
            curve = [{ id = "one", label = "One" }, { id = "bad", label = "Bad" }, { id = "two", label = "Two" }]
        "#;
        Experiment::parse("made-up.toml", text).unwrap()
    }

    #[test]
    fn all_curves_take_turns_and_one_that_fails_is_not_run_again() {
        let experiments = [experiment()];
        let curves = curves(&experiments, 7).unwrap();
        let (host, points) = (Recorded::default(), RefCell::new(0));
        let progress = |done| *points.borrow_mut() += done;
        let results = run(&host, &curves, 2, None, &progress).unwrap();
        let expected = [
            ("one", 7),
            ("one", 7),
            ("bad", 7),
            ("two", 7),
            ("two", 7),
            ("one", 8),
            ("one", 8),
            ("two", 8),
            ("two", 8),
        ];
        let expected = expected.map(|(curve, seed)| (curve.to_owned(), seed));
        assert_eq!(*host.runs.borrow(), expected);
        assert_eq!(*points.borrow(), 12, "a curve that failed counts as done");
        let two = results[2].as_ref().unwrap();
        let values: Vec<f64> = two[1].iter().map(|figures| figures["y"]).collect();
        assert_eq!(values, [7.0, 8.0]);
        // Further rounds keep what is measured alone.
        assert_eq!((two[1][0].len(), two[1][1].len()), (2, 1));
        assert!(results[1].is_err());
    }

    #[test]
    fn what_ends_everything_ends_the_run() {
        let experiments = [experiment()];
        let curves = curves(&experiments, 1).unwrap();
        let host = Recorded {
            fatal: true,
            ..Recorded::default()
        };
        assert!(run(&host, &curves, 5, None, &|_| ()).is_err());
        assert_eq!(host.runs.borrow().len(), 3);
    }
}
