//! What every page of a comparison shares: a curve per protection over the flood.

use plimsoll_report::page::Figure;
use plimsoll_report::plot::{Axis, Line, Scale};

use crate::figures::Bystander;
use crate::protection::Protection;

/// One figure over the flood. `point` gives a case's protection, its flood in
/// packets/s, and its value in `unit`.
pub(crate) fn over_flood<C>(
    label: &'static str,
    unit: &'static str,
    cases: &[C],
    point: impl Fn(&C) -> (Protection, f64, f64),
) -> Figure<'static> {
    let names = Protection::ALL.map(Protection::name);
    curves_over_flood(label, unit, &names, cases, |case| {
        let (protection, x, y) = point(case);
        (protection.name(), x, y)
    })
}

/// As [`over_flood`], with a curve for each of `names` that there is.
pub(crate) fn curves_over_flood<C>(
    label: &'static str,
    unit: &'static str,
    names: &[&'static str],
    cases: &[C],
    point: impl Fn(&C) -> (&'static str, f64, f64),
) -> Figure<'static> {
    let axis = |label, unit| Axis {
        label,
        unit,
        scale: Scale::Linear,
    };
    let curve = |(index, name): (usize, &&'static str)| {
        let of = cases.iter().map(&point).filter(|(one, ..)| one == name);
        let points = of.map(|(_, x, y)| (x, y));
        // Of a case without an answer there is no latency.
        let points: Vec<(f64, f64)> = points.filter(|(_, y)| y.is_finite()).collect();
        (!points.is_empty()).then(|| (*name, Line::new(index, points)))
    };
    Figure {
        x: axis("Flood", "packets/s"),
        y: axis(label, unit),
        curves: names.iter().enumerate().filter_map(curve).collect(),
    }
}

pub(crate) fn loss_percent(bystander: Bystander) -> f64 {
    100.0 * bystander.loss()
}
