//! One measure of one experiment as a plot.

use plimsoll_report::plot::{Axis, Drawing, Line};

use crate::error::Error;
use crate::experiment::Measure;
use crate::flood_model::Beside;
use crate::runner::{Measured, Run};

/// Modelled curves that are drawn into the plot of `measure`, with their labels; from those
/// of `runs` that are there.
pub(crate) fn beside(run: &Run, measure: &Measure, runs: &[Run]) -> Vec<(String, Line)> {
    let wanted = run.experiment.beside.iter();
    let wanted = wanted.filter(|one| one.measure == measure.id);
    let found = wanted.flat_map(|one| modelled(run, one, runs));
    let numbered = found.enumerate();
    numbered
        .map(|(place, (label, points))| (label, Line::new(run.curves.len() + place, points)))
        .collect()
}

fn modelled(run: &Run, one: &Beside, runs: &[Run]) -> Vec<(String, Vec<(f64, f64)>)> {
    let Some(twin) = runs.iter().find(|other| other.experiment.id == one.twin) else {
        return Vec::new();
    };
    let Some(of) = twin.experiment.measure(&one.of).map(|measure| &measure.of) else {
        return Vec::new();
    };
    // No further than the real curves go.
    let most = run
        .experiment
        .sweep
        .values
        .iter()
        .copied()
        .fold(0.0, f64::max);
    let curves = twin
        .curves
        .iter()
        .filter(|curve| one.curves.contains(&curve.id));
    let scaled = |curve: &Measured| {
        let series = curve.series(of)?;
        let points = series.points().iter();
        let points = points.map(|(x, y)| (x / one.unit, y / one.measure_unit));
        let points = points.filter(|(x, _)| *x <= most).collect();
        Some((format!("{}, modelled", curve.label), points))
    };
    curves.filter_map(scaled).collect()
}

/// All curves of `run` that have the measure, with the published points and modelled curves
/// `beside`; nothing if none has.
pub(crate) fn svg(
    run: &Run,
    measure: &Measure,
    beside: &[(String, Line)],
) -> Result<Option<String>, Error> {
    let line = |(index, curve): (usize, &Measured)| {
        let points = curve.series(&measure.of)?.points().to_vec();
        let spread = spread(curve, &measure.of);
        Some(Line {
            index,
            points,
            spread,
        })
    };
    let lines: Vec<Line> = run.curves.iter().enumerate().filter_map(line).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let published = published(run, measure);
    let beside = beside.iter().map(|(_, line)| line);
    let sweep = &run.experiment.sweep;
    let name = |x: f64| {
        let named = sweep.values.contains(&x);
        if named { sweep.name(x) } else { String::new() }
    };
    let drawing = Drawing {
        x: Axis {
            label: &sweep.label,
            unit: &sweep.unit,
            scale: sweep.scale,
        },
        y: Axis {
            label: &measure.label,
            unit: &measure.unit,
            scale: measure.scale,
        },
        lines: lines.iter().chain(beside).collect(),
        published: published.iter().collect(),
        name: (!sweep.names.is_empty()).then_some(&name),
    };
    Ok(Some(drawing.svg()?))
}

/// Published points of one measure, each list with its curve's place.
fn published(run: &Run, measure: &Measure) -> Vec<Line> {
    let all = run.experiment.published.iter();
    let line = all.filter(|list| list.measure == measure.id);
    let line = line.filter_map(|list| {
        let index = run.curves.iter().position(|curve| curve.id == list.curve)?;
        let points = list.points.clone();
        Some(Line::new(index, points))
    });
    line.collect()
}

/// The intervals of the points that chance moves.
fn spread(curve: &Measured, figure: &str) -> Vec<(f64, f64, f64)> {
    let points = curve.points.iter().enumerate();
    let spread = points.filter_map(|(index, (x, _))| {
        let (low, high) = curve.estimate(index, figure)?.interval?;
        (low < high && low.is_finite() && high.is_finite()).then_some((*x, low, high))
    });
    spread.collect()
}
