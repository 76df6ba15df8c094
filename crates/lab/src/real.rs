//! Runs the curves of real packets: round after round, and in each round one curve
//! after the other.
//!
//! A machine drifts over minutes. So all curves take turns, and what a rate is
//! measured against is measured in the same round. One thing at a time: all share
//! this machine's CPUs.

use crate::cache::Cache;
use crate::error::Error;
use crate::experiment::{Curve, Experiment, HostKind};
use crate::flood_model::OFFERED;
use crate::host::{Figures, Host, Point};
use crate::runner::{measured_alone, points};

/// How often a curve of real packets is repeated at most: each point takes a second, and
/// all published figures together half an hour.
pub(crate) const REAL_ROUNDS: u32 = 4;

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
        for (points, result) in curves.iter().zip(&mut results) {
            progress(points.len());
            let Ok(samples) = result else { continue };
            match one_round(host, points, round, cache) {
                Ok(figures) => {
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

/// One curve once: from the cache if it has all of it, since points are measured
/// against what the same round can take.
fn one_round(
    host: &dyn Host,
    points: &[Point<'_>],
    round: u32,
    cache: Option<&Cache>,
) -> Result<Vec<Figures>, Error> {
    let points: Vec<Point<'_>> = points
        .iter()
        .map(|point| Point {
            seed: point.seed.wrapping_add(u64::from(round)),
            ..point.clone()
        })
        .collect();
    let keys: Vec<String> = cache.map_or_else(Vec::new, |cache| {
        let key = |point| cache.key(host.name(), point);
        points.iter().map(key).collect()
    });
    let known = cache.and_then(|cache| {
        let known = keys.iter().map(|key| cache.find(key).cloned());
        known.collect::<Option<Vec<Figures>>>()
    });
    let mut figures = match known {
        Some(known) => known,
        None => host.run_curve(&points)?,
    };
    if let Some(cache) = cache {
        for (key, figures) in keys.into_iter().zip(&figures) {
            if cache.find(&key).is_none() {
                cache.keep(key, figures)?;
            }
        }
    }
    if round > 0 {
        for (point, figures) in points.iter().zip(&mut figures) {
            let offered = figures
                .get_key_value(OFFERED)
                .map(|(name, pps)| (name.clone(), *pps));
            measured_alone(point.experiment, figures);
            figures.extend(offered);
        }
    }
    Ok(figures)
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
