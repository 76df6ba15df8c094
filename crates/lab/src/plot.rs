//! One measure of one experiment as a plot.

use plimsoll_report::plot::{Axis, Drawing, Line};

use crate::error::Error;
use crate::experiment::Measure;
use crate::runner::{Measured, Run};

/// All curves of `run` that have the measure, with the published points; nothing
/// if none has.
pub(crate) fn svg(run: &Run, measure: &Measure) -> Result<Option<String>, Error> {
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
        lines: lines.iter().collect(),
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
