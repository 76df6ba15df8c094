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
    let axis = |label, unit| Axis {
        label,
        unit,
        scale: Scale::Linear,
    };
    Figure {
        x: axis("Flood", "packets/s"),
        y: axis(label, unit),
        curves: by_protection(cases, point),
    }
}

pub(crate) fn loss_percent(bystander: Bystander) -> f64 {
    100.0 * bystander.loss()
}

/// A curve for each protection that was there.
fn by_protection<C>(
    cases: &[C],
    point: impl Fn(&C) -> (Protection, f64, f64),
) -> Vec<(&'static str, Line)> {
    let curve = |(index, protection): (usize, Protection)| {
        let of = cases
            .iter()
            .map(&point)
            .filter(|(one, ..)| *one == protection);
        let points: Vec<(f64, f64)> = of.map(|(_, x, y)| (x, y)).collect();
        (!points.is_empty()).then(|| (protection.name(), Line::new(index, points)))
    };
    let all = Protection::ALL.into_iter().enumerate();
    all.filter_map(curve).collect()
}
