//! Runs experiments: every point with every seed, on all cores, with the same
//! result in whatever order the points happen to run.
//!
//! All curves have the same seeds (common random numbers). A point that gives the
//! same figures with the first two seeds has nothing random in it, and is not run
//! with the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::cache::{Cache, Part};
use crate::claim::{self, Curves, Verdict};
use crate::declared::Kind;
use crate::error::Error;
use crate::experiment::{Curve, Experiment, HostKind};
use crate::flood_model;
use crate::host::{Figures, Host, Point};
use crate::order::longest_first;
use crate::real::{self, RealFigures, Repeats};
use crate::series::Series;
use crate::statistics::Estimate;

/// How to run.
#[derive(Clone, Default)]
#[allow(missing_debug_implementations, reason = "a host is no data")]
pub struct Options<'a> {
    /// The first seed; repeats the runs.
    pub seed: u64,
    /// How many seeds, counted from the first; 0 counts as 1.
    pub seeds: u32,
    /// How often curves of real packets are repeated; 0: as many times as there are seeds, at most
    /// four times, since each point takes a second.
    pub rounds: u32,
    /// Of the modelled curves only those that a claim names: no verdict depends on the
    /// others.
    pub claims_alone: bool,
    /// Of all points only a part, for a run that is spread over machines.
    pub shard: Option<Shard>,
    /// Real packets, for experiments that want them.
    pub testbed: Option<&'a dyn Host>,
    /// Why there is no testbed, if an experiment wants one.
    pub why_no_testbed: Option<String>,
    /// Results of earlier runs.
    pub cache: Option<&'a Cache>,
}

impl Options<'_> {
    fn repeats(&self) -> Repeats {
        Repeats {
            seeds: self.seeds.max(1),
            rounds: self.rounds,
        }
    }
}

/// One part of a run that is spread over machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

impl Shard {
    /// Whether the point with this number, counted over all experiments, is its.
    fn has(self, point: usize) -> bool {
        point % self.of == self.index - 1
    }
}

/// What became of one experiment.
#[derive(Clone, Debug)]
pub struct Run {
    /// The experiment.
    pub experiment: Experiment,
    /// The first seed.
    pub seed: u64,
    /// How many seeds it was judged on.
    pub seeds: u32,
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
    /// By value of the swept parameter, with the first seed and every figure; empty if
    /// it could not be run.
    pub points: Vec<(f64, Figures)>,
    /// The measured figures of the further seeds, point by point.
    pub others: Vec<Vec<Figures>>,
    /// Why it could not be run.
    pub why: Option<String>,
}

/// Runs `experiments` on the host `modelled`, and on real packets those that want
/// them. `progress` is told how many points are done, of how many.
///
/// With a shard only its points are run, for the cache; nothing is judged then.
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
    let places = places(experiments, options)?;
    let part = part(experiments, modelled, options)?;
    let twins = match options.testbed {
        Some(_) => real::curves(experiments, options.seed)?,
        None => Vec::new(),
    };
    let (repeats, cache, seed) = (options.repeats(), options.cache, options.seed);
    let rounds = repeats.rounds();
    let real_points: usize = twins.iter().map(Vec::len).sum::<usize>() * rounds as usize;
    let (total, done) = (places.len() + real_points, AtomicUsize::new(0));
    let advance = |by| progress(done.fetch_add(by, Ordering::Relaxed) + by, total);
    let results = longest_first(&places, |(experiment, curve, x)| {
        let point = point(experiment, curve, *x, seed)?;
        let samples = samples(modelled, &point, repeats.of(experiment), cache);
        advance(1);
        samples
    });
    let mut real = Vec::new();
    if let Some(host) = options.testbed {
        real = real::run(host, &twins, rounds, cache, &advance)?;
    }
    if options.shard.is_some() {
        results.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some((cache, part)) = part {
            cache.keep_part(&part)?;
        }
        return Ok(Vec::new());
    }
    let mut results = results.into_iter();
    let mut real = real.into_iter();
    experiments
        .iter()
        .map(|experiment| assemble(experiment, modelled, options, &mut results, &mut real))
        .collect()
}

/// The part of a run that this is, and the file for its results. One that has another part
/// is refused before anything runs.
fn part<'a>(
    experiments: &[Experiment],
    modelled: &dyn Host,
    options: &Options<'a>,
) -> Result<Option<(&'a Cache, Part)>, Error> {
    let (Some(shard), Some(cache)) = (options.shard, options.cache) else {
        return Ok(None);
    };
    let seeds = (options.seed, options.repeats().seeds);
    let part = cache.part(modelled.name(), experiments, seeds, shard)?;
    Ok(Some((cache, part)))
}

/// Where there is something to run: experiment, curve and value of the swept
/// parameter. Settings are made when a point runs, so that a million places are small.
pub(crate) type Place<'a> = (&'a Experiment, &'a Curve, f64);

fn places<'a>(
    experiments: &'a [Experiment],
    options: &Options<'_>,
) -> Result<Vec<Place<'a>>, Error> {
    let mut places = Vec::new();
    let mut number = 0;
    for experiment in experiments {
        let real = !is_modelled(experiment) || experiment.host == HostKind::Testbed;
        if real && options.shard.is_some() {
            let problem = "real packets cannot be divided over machines";
            let remedy = "run it without --shard";
            return Err(Error::file(&experiment.file, "host", problem, remedy));
        }
        for curve in modelled_curves(experiment, options) {
            // Settings that cannot be are said before anything runs.
            if let Some(x) = experiment.sweep.values.first() {
                point(experiment, curve, *x, options.seed)?;
            }
            for x in &experiment.sweep.values {
                if options.shard.is_none_or(|shard| shard.has(number)) {
                    places.push((experiment, curve, *x));
                }
                number += 1;
            }
        }
    }
    Ok(places)
}

pub(crate) fn point<'a>(
    experiment: &'a Experiment,
    curve: &'a Curve,
    x: f64,
    seed: u64,
) -> Result<Point<'a>, Error> {
    Ok(Point {
        experiment,
        curve,
        x,
        settings: experiment.settings(curve, x)?,
        seed,
    })
}

/// The points of one curve.
pub(crate) fn points<'a>(
    experiment: &'a Experiment,
    curve: &'a Curve,
    seed: u64,
) -> Result<Vec<Point<'a>>, Error> {
    let values = experiment.sweep.values.iter();
    values.map(|x| point(experiment, curve, *x, seed)).collect()
}

/// The figures of a point with each seed: all of them with the first, those that
/// the experiment measures with the others.
fn samples(
    host: &dyn Host,
    point: &Point<'_>,
    seeds: u32,
    cache: Option<&Cache>,
) -> Result<Vec<Figures>, Error> {
    let first = cached(host, point, cache)?;
    let mut all = vec![first];
    for offset in 1..seeds {
        let point = Point {
            seed: point.seed.wrapping_add(u64::from(offset)),
            ..point.clone()
        };
        let mut figures = cached(host, &point, cache)?;
        let same = offset == 1 && figures == all[0];
        measured_alone(point.experiment, &mut figures);
        all.push(figures);
        if same {
            break;
        }
    }
    Ok(all)
}

/// Leaves those figures that the experiment measures.
pub(crate) fn measured_alone(experiment: &Experiment, figures: &mut Figures) {
    let measures = &experiment.measures;
    figures.retain(|name, _| measures.iter().any(|measure| measure.of == *name));
}

pub(crate) fn cached(
    host: &dyn Host,
    point: &Point<'_>,
    cache: Option<&Cache>,
) -> Result<Figures, Error> {
    let Some(cache) = cache else {
        return host.run(point);
    };
    let key = cache.key(host, point);
    if let Some(figures) = cache.find(&key) {
        return Ok(figures.clone());
    }
    let figures = host.run(point)?;
    cache.keep(key, &figures)?;
    Ok(figures)
}

type Results = std::vec::IntoIter<Result<Vec<Figures>, Error>>;
type RealResults = std::vec::IntoIter<Result<RealFigures, Error>>;

fn is_modelled(experiment: &Experiment) -> bool {
    experiment.host != HostKind::Real
}

/// The curves of `experiment` that are to run on the model.
fn modelled_curves<'a>(
    experiment: &'a Experiment,
    options: &Options<'_>,
) -> impl Iterator<Item = &'a Curve> + use<'a> {
    // Beside real packets each curve is there to be compared.
    let all = !options.claims_alone || experiment.host == HostKind::Testbed;
    let claims = &experiment.claims;
    let claimed = move |curve: &Curve| claims.iter().any(|claim| claim.names(&curve.id));
    let curves = experiment.curves.iter();
    curves.filter(move |curve| is_modelled(experiment) && (all || claimed(curve)))
}

fn assemble(
    experiment: &Experiment,
    modelled: &dyn Host,
    options: &Options<'_>,
    results: &mut Results,
    real: &mut RealResults,
) -> Result<Run, Error> {
    let mut curves = Vec::new();
    for curve in modelled_curves(experiment, options) {
        let points = experiment.sweep.values.len();
        let taken = results.take(points).collect::<Result<_, _>>()?;
        let (id, label) = (curve.id.clone(), curve.label.clone());
        curves.push(Measured::new(experiment, id, label, modelled.name(), taken));
    }
    let wanted = experiment.curves.iter();
    for curve in wanted.filter(|curve| real::is_real(experiment, curve)) {
        curves.push(on_real_packets(experiment, curve, options, real.next())?);
    }
    let floods = flood_model::run(experiment, &curves, modelled, options.seed, options.cache)?;
    curves.extend(floods);
    let seeds = options.repeats().of(experiment);
    let by_seed: Vec<Curves> = (0..seeds as usize)
        .map(|seed| series(experiment, &curves, seed))
        .collect();
    let verdicts = claim::judge(experiment, &by_seed, options.repeats().rounds());
    Ok(Run {
        experiment: experiment.clone(),
        seed: options.seed,
        seeds,
        curves,
        verdicts,
    })
}

/// A curve of real packets, or why there is none.
fn on_real_packets(
    experiment: &Experiment,
    curve: &Curve,
    options: &Options<'_>,
    taken: Option<Result<RealFigures, Error>>,
) -> Result<Measured, Error> {
    let (id, label) = match experiment.host {
        HostKind::Real => (curve.id.clone(), curve.label.clone()),
        HostKind::Modelled | HostKind::Testbed => (
            curve.testbed_id(),
            format!("{} (real packets)", curve.label),
        ),
    };
    let host = options.testbed.map_or("testbed", Host::name);
    let (taken, why) = match taken {
        Some(Ok(taken)) => (taken, None),
        Some(Err(error @ Error::Testbed { .. })) => (Vec::new(), Some(error.with_causes())),
        Some(Err(error)) => return Err(error),
        None => (Vec::new(), options.why_no_testbed.clone()),
    };
    let measured = Measured::new(experiment, id, label, host, taken);
    Ok(Measured { why, ..measured })
}

fn series(experiment: &Experiment, curves: &[Measured], seed: usize) -> Curves {
    let sweep = experiment.sweep.values.iter();
    let greatest = sweep.copied().fold(f64::NEG_INFINITY, f64::max);
    let of = |curve: &Measured| {
        let measures = experiment.measures.iter();
        let series = measures.filter_map(|measure| {
            let series = curve.series_of(&measure.of, seed, greatest)?;
            Some((measure.id.clone(), series))
        });
        (curve.id.clone(), series.collect::<BTreeMap<_, _>>())
    };
    curves.iter().map(of).collect()
}

impl Measured {
    /// `taken`: by point and seed.
    pub(crate) fn new(
        experiment: &Experiment,
        id: String,
        label: String,
        host: &'static str,
        taken: Vec<Vec<Figures>>,
    ) -> Self {
        let (mut points, mut others) = (Vec::new(), Vec::new());
        for (x, samples) in experiment.sweep.values.iter().zip(taken) {
            let mut samples = samples.into_iter();
            let Some(first) = samples.next() else {
                continue;
            };
            points.push((*x, first));
            others.push(samples.collect());
        }
        Self {
            id,
            label,
            host,
            points,
            others,
            why: None,
        }
    }

    /// One figure at one point, seed by seed; those without it are left out.
    fn at(&self, index: usize, figure: &str) -> Vec<f64> {
        let first = self.points.get(index).map(|(_, figures)| figures);
        let others = self.others.get(index).into_iter().flatten();
        let all = first.into_iter().chain(others);
        let values = all.filter_map(|figures| figures.get(figure).copied());
        values.filter(|value| value.is_finite()).collect()
    }

    /// The mean of one figure at the point of this number, and its interval.
    #[must_use]
    pub fn estimate(&self, index: usize, figure: &str) -> Option<Estimate> {
        Estimate::of(&self.at(index, figure))
    }

    /// The mean of one figure over the swept parameter, at the points that have it;
    /// nothing if none has.
    #[must_use]
    pub fn series(&self, figure: &str) -> Option<Series> {
        let points = self.points.iter().enumerate();
        let points = points.filter_map(|(index, (x, _))| {
            let estimate = self.estimate(index, figure)?;
            Some((*x, estimate.value))
        });
        Series::new(points.collect())
    }

    /// The same with one seed, counted from 0, of a sweep that goes up to `greatest`. A point
    /// with nothing random in it, or with fewer repeats, has the same values again.
    fn series_of(&self, figure: &str, seed: usize, greatest: f64) -> Option<Series> {
        let points = self.points.iter().enumerate();
        let points = points.filter_map(|(index, (x, first))| {
            let others = self.others.get(index)?;
            let figures = match seed % (others.len() + 1) {
                0 => first,
                other => others.get(other - 1)?,
            };
            Some((*x, *figures.get(figure)?))
        });
        let points = points.filter(|(_, y)| y.is_finite());
        Series::of_sweep(points.collect(), greatest)
    }
}

impl Run {
    /// How many claims of these kinds hold, fail, are undecided, and could not be
    /// judged.
    #[must_use]
    pub fn tally(&self, kinds: &[Kind]) -> Tally {
        Tally::of(self.verdicts.iter().filter(|one| kinds.contains(&one.kind)))
    }
}

/// Numbers of claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Hold.
    pub hold: usize,
    /// Do not.
    pub fail: usize,
    /// Measured, but chance could decide either way.
    pub undecided: usize,
    /// Could not be judged.
    pub unmeasured: usize,
}

impl Tally {
    /// Of these claims.
    pub fn of<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> Self {
        let mut tally = Self::default();
        for verdict in verdicts {
            match verdict.holds {
                Some(true) => tally.hold += 1,
                Some(false) => tally.fail += 1,
                None if verdict.is_undecided() => tally.undecided += 1,
                None => tally.unmeasured += 1,
            }
        }
        tally
    }

    /// All claims.
    #[must_use]
    pub fn total(self) -> usize {
        self.hold + self.fail + self.undecided + self.unmeasured
    }
}
