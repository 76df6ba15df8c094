//! Runs experiments: every point once, on all cores, with the same result in
//! whatever order the points happen to run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::cache::Cache;
use crate::claim::{self, Curves, Verdict};
use crate::error::Error;
use crate::experiment::{Curve, Experiment, HostKind};
use crate::host::{Figures, Host, Point};
use crate::series::Series;

/// How to run.
#[derive(Clone, Default)]
#[allow(missing_debug_implementations, reason = "a host is no data")]
pub struct Options<'a> {
    /// Repeats the runs.
    pub seed: u64,
    /// Real packets, for experiments that want them.
    pub testbed: Option<&'a dyn Host>,
    /// Why there is no testbed, if an experiment wants one.
    pub why_no_testbed: Option<String>,
    /// Results of earlier runs.
    pub cache: Option<&'a Cache>,
}

/// What became of one experiment.
#[derive(Clone, Debug)]
pub struct Run {
    /// The experiment.
    pub experiment: Experiment,
    /// Repeats it.
    pub seed: u64,
    /// In the experiment's order, each followed by its testbed twin.
    pub curves: Vec<Measured>,
    /// In the experiment's order.
    pub verdicts: Vec<Verdict>,
}

/// What became of one curve.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The curve's id; that of a testbed twin ends with `_testbed`.
    pub id: String,
    /// For a reader.
    pub label: String,
    /// What it ran on.
    pub host: &'static str,
    /// By value of the swept parameter; empty if it could not be run.
    pub points: Vec<(f64, Figures)>,
    /// Why it could not be run.
    pub why: Option<String>,
}

/// Runs `experiments` on the host `modelled`, and on the testbed those that want
/// it. `progress` is told how many points are done, of how many.
///
/// # Errors
///
/// A point's settings make no sense to its host, or the cache cannot be written.
/// Of several errors the first in the order of the experiments is reported.
pub fn run(
    experiments: &[Experiment],
    modelled: &(dyn Host + Sync),
    options: &Options<'_>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Run>, Error> {
    let mut points = Vec::new();
    for experiment in experiments {
        for curve in &experiment.curves {
            points.extend(self::points(experiment, curve, options.seed)?);
        }
    }
    let twins = testbed_points(experiments, options)?;
    let (total, done) = (points.len() + twins.len(), AtomicUsize::new(0));
    let cache = options.cache;
    let one = |host: &dyn Host, point: &Point<'_>| {
        let figures = cached(host, point, cache);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        figures
    };
    let results: Vec<_> = points
        .par_iter()
        .with_max_len(1)
        .map(|point| one(modelled, point))
        .collect();
    // One after the other: they share this machine's CPUs.
    let real: Vec<_> = twins
        .iter()
        .map(|(host, point)| one(*host, point))
        .collect();
    let mut results = results.into_iter();
    let mut real = real.into_iter();
    experiments
        .iter()
        .map(|experiment| {
            assemble(
                experiment,
                modelled.name(),
                options,
                &mut results,
                &mut real,
            )
        })
        .collect()
}

/// The points of one curve.
pub(crate) fn points<'a>(
    experiment: &'a Experiment,
    curve: &'a Curve,
    seed: u64,
) -> Result<Vec<Point<'a>>, Error> {
    let point = |x: &f64| {
        Ok(Point {
            experiment,
            curve,
            x: *x,
            settings: experiment.settings(curve, *x)?,
            seed,
        })
    };
    experiment.sweep.values.iter().map(point).collect()
}

fn testbed_points<'a>(
    experiments: &'a [Experiment],
    options: &Options<'a>,
) -> Result<Vec<(&'a dyn Host, Point<'a>)>, Error> {
    let mut twins = Vec::new();
    let Some(testbed) = options.testbed else {
        return Ok(twins);
    };
    let wanting = experiments
        .iter()
        .filter(|experiment| experiment.host == HostKind::Testbed);
    for experiment in wanting {
        for curve in experiment
            .curves
            .iter()
            .filter(|curve| curve.testbed.is_some())
        {
            let points = points(experiment, curve, options.seed)?;
            twins.extend(points.into_iter().map(|point| (testbed, point)));
        }
    }
    Ok(twins)
}

fn cached(host: &dyn Host, point: &Point<'_>, cache: Option<&Cache>) -> Result<Figures, Error> {
    let Some(cache) = cache else {
        return host.run(point);
    };
    let key = cache.key(host.name(), point);
    if let Some(figures) = cache.find(&key) {
        return Ok(figures.clone());
    }
    let figures = host.run(point)?;
    cache.keep(key, &figures)?;
    Ok(figures)
}

type Results = std::vec::IntoIter<Result<Figures, Error>>;

fn assemble(
    experiment: &Experiment,
    modelled: &'static str,
    options: &Options<'_>,
    results: &mut Results,
    real: &mut Results,
) -> Result<Run, Error> {
    let mut curves = Vec::new();
    let take = |results: &mut Results| -> Result<Vec<(f64, Figures)>, Error> {
        let values = experiment.sweep.values.iter();
        values
            .zip(results)
            .map(|(x, figures)| Ok((*x, figures?)))
            .collect()
    };
    for curve in &experiment.curves {
        curves.push(Measured {
            id: curve.id.clone(),
            label: curve.label.clone(),
            host: modelled,
            points: take(results)?,
            why: None,
        });
    }
    if experiment.host == HostKind::Testbed {
        for curve in experiment
            .curves
            .iter()
            .filter(|curve| curve.testbed.is_some())
        {
            // All of this curve's points are taken, also after one that failed.
            let values = experiment.sweep.values.iter();
            let taken: Vec<_> = values.zip(&mut *real).collect();
            let points = taken.into_iter().map(|(x, figures)| Ok((*x, figures?)));
            let (points, why) = match points.collect::<Result<Vec<_>, Error>>() {
                _ if options.testbed.is_none() => (Vec::new(), options.why_no_testbed.clone()),
                Err(error @ Error::Testbed { .. }) => (Vec::new(), Some(error.to_string())),
                points => (points?, None),
            };
            curves.push(Measured {
                id: curve.testbed_id(),
                label: format!("{} (real packets)", curve.label),
                host: options.testbed.map_or("testbed", Host::name),
                points,
                why,
            });
        }
    }
    let verdicts = claim::judge(experiment, &series(experiment, &curves));
    Ok(Run {
        experiment: experiment.clone(),
        seed: options.seed,
        curves,
        verdicts,
    })
}

fn series(experiment: &Experiment, curves: &[Measured]) -> Curves {
    let of = |curve: &Measured| {
        let measures = experiment.measures.iter();
        let series =
            measures.filter_map(|measure| Some((measure.id.clone(), curve.series(&measure.of)?)));
        (curve.id.clone(), series.collect::<BTreeMap<_, _>>())
    };
    curves.iter().map(of).collect()
}

impl Measured {
    /// One figure over the swept parameter, at the points that have it; nothing
    /// if none has.
    #[must_use]
    pub fn series(&self, figure: &str) -> Option<Series> {
        let points = self.points.iter();
        let points = points.filter_map(|(x, figures)| Some((*x, *figures.get(figure)?)));
        Series::new(points.filter(|(_, y)| y.is_finite()).collect())
    }
}

impl Run {
    /// How many claims hold, fail, and could not be judged.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for verdict in &self.verdicts {
            match verdict.holds {
                Some(true) => tally.hold += 1,
                Some(false) => tally.fail += 1,
                None => tally.unmeasured += 1,
            }
        }
        tally
    }
}

/// Numbers of claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hold.
    pub hold: usize,
    /// Do not.
    pub fail: usize,
    /// Could not be judged.
    pub unmeasured: usize,
}

impl Tally {
    /// Over several experiments.
    #[must_use]
    pub fn of(runs: &[Run]) -> Self {
        runs.iter()
            .map(Run::tally)
            .fold(Self::default(), |sum, one| Self {
                hold: sum.hold + one.hold,
                fail: sum.fail + one.fail,
                unmeasured: sum.unmeasured + one.unmeasured,
            })
    }

    /// All claims.
    #[must_use]
    pub fn total(self) -> usize {
        self.hold + self.fail + self.unmeasured
    }
}
