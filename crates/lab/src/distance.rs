//! How far real packets are from the model: each curve that ran on both, point by point.
//!
//! The distance is the ratio real / model. On `host = "testbed"` loads are those of the
//! model; where the generator could not offer one, the point is marked, since its two sides did
//! not meet the same load. On `host = "real"` the model gets what the generator offered.

use std::fmt::Write as _;

use maud::{Markup, html};
use serde::Serialize;

use crate::document::MODELLED;
use crate::experiment::Measure;
use crate::flood_model;
use crate::runner::{Measured, Run};

/// Less of a load was not that load.
const KEPT: f64 = 0.97;

/// One measure of one curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// The modelled curve.
    pub curve: String,
    /// The measure's id.
    pub measure: String,
    /// By value of the swept parameter.
    pub points: Vec<Compared>,
    /// The ratio that is furthest from 1; none if a point has no ratio, which is further.
    pub furthest: Option<f64>,
}

/// One point on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Value of the swept parameter.
    pub x: f64,
    /// With the model, the mean over the seeds.
    pub model: f64,
    /// With real packets, the mean over the rounds.
    pub real: f64,
    /// Real over model; none if the model says 0 and real packets do not.
    pub ratio: Option<f64>,
    /// The generator could not offer this load.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub less_offered: bool,
}

/// All distances of a run; none if nothing ran on both.
#[must_use]
pub fn distances(run: &Run) -> Vec<Distance> {
    let mut all = Vec::new();
    for measure in &run.experiment.measures {
        for (model, real) in pairs(run) {
            let points = compared(run, measure, model, real);
            if points.is_empty() {
                continue;
            }
            let ratios = points.iter().map(|point| point.ratio);
            let far = |ratio: &Option<f64>| ratio.map_or(f64::INFINITY, |ratio| ratio.ln().abs());
            all.push(Distance {
                curve: model.id.clone(),
                measure: measure.id.clone(),
                furthest: ratios.max_by(|a, b| far(a).total_cmp(&far(b))).flatten(),
                points,
            });
        }
    }
    all
}

/// Modelled curves with their twins of real packets.
fn pairs(run: &Run) -> impl Iterator<Item = (&Measured, &Measured)> {
    let modelled = run.curves.iter().filter(|curve| curve.host == MODELLED);
    modelled.filter_map(|model| {
        let mut floods = flood_model::pairs(&run.experiment);
        let of = floods.find(|(id, _)| *id == model.id);
        let id = of.map_or_else(|| format!("{}_testbed", model.id), |(_, of)| of.to_owned());
        let real = run.curves.iter().find(|curve| curve.id == id)?;
        Some((model, real))
    })
}

fn compared(run: &Run, measure: &Measure, model: &Measured, real: &Measured) -> Vec<Compared> {
    let is_rate = run.experiment.sweep.parameter.ends_with("rate_pps");
    let point = |(index, (x, figures)): (usize, &(f64, crate::Figures))| {
        let beside = model.points.iter().position(|(at, _)| at == x)?;
        let modelled = model.estimate(beside, &measure.of)?.value;
        let measured = real.estimate(index, &measure.of)?.value;
        let offered = figures.get("offered_pps").copied().unwrap_or(*x);
        Some(Compared {
            x: *x,
            model: modelled,
            real: measured,
            ratio: ratio(measured, modelled),
            less_offered: is_rate && offered < KEPT * x,
        })
    };
    real.points.iter().enumerate().filter_map(point).collect()
}

fn ratio(real: f64, model: f64) -> Option<f64> {
    match (real, model) {
        (0.0, 0.0) => Some(1.0),
        (_, 0.0) => None,
        _ => Some(real / model),
    }
}

/// Measure by measure: the curves' distances.
fn by_measure(run: &Run) -> Vec<(&Measure, Vec<Distance>)> {
    let all = distances(run);
    let of = |measure: &Measure| -> Vec<Distance> {
        let same = all.iter().filter(|one| one.measure == measure.id);
        same.cloned().collect()
    };
    let measures = run.experiment.measures.iter();
    let measures = measures.map(|measure| (measure, of(measure)));
    measures.filter(|(_, list)| !list.is_empty()).collect()
}

/// A ratio with its mark.
fn cell(distance: &Distance, x: f64) -> String {
    let point = distance.points.iter().find(|point| point.x == x);
    let Some(point) = point else {
        return "-".to_owned();
    };
    let mark = if point.less_offered { "*" } else { "" };
    format!("{}{mark}", shown(point.ratio))
}

fn shown(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio >= 100.0 => format!("{ratio:.0}"),
        Some(ratio) if ratio > 0.0 && ratio < 0.01 => format!("{ratio:.0e}"),
        Some(ratio) => format!("{ratio:.2}"),
        None => "above 0".to_owned(),
    }
}

const MARKED: &str = "*: the generator offered less than 97 percent of this load";

fn is_marked(lists: &[(&Measure, Vec<Distance>)]) -> bool {
    let all = lists.iter().flat_map(|(_, list)| list);
    all.flat_map(|one| &one.points)
        .any(|point| point.less_offered)
}

/// For a person; empty if nothing ran on both.
pub(crate) fn text(run: &Run) -> String {
    let lists = by_measure(run);
    let mut text = String::new();
    if lists.is_empty() {
        return text;
    }
    text.push_str("  Real packets beside the model, real / model:\n");
    for (measure, list) in &lists {
        let _ = writeln!(text, "    {} ({})", measure.label, measure.unit);
        let _ = write!(text, "    {:>12}", run.experiment.sweep.unit);
        for one in list {
            let _ = write!(text, "{:>14}", one.curve);
        }
        text.push('\n');
        for x in &run.experiment.sweep.values {
            let _ = write!(text, "    {:>12}", run.experiment.sweep.name(*x));
            for one in list {
                let _ = write!(text, "{:>14}", cell(one, *x));
            }
            text.push('\n');
        }
        let _ = write!(text, "    {:>12}", "furthest");
        for one in list {
            let _ = write!(text, "{:>14}", shown(one.furthest));
        }
        text.push('\n');
    }
    if is_marked(&lists) {
        let _ = writeln!(text, "    {MARKED}");
    }
    text
}

/// The same for the report.
pub(crate) fn markup(run: &Run) -> Markup {
    let lists = by_measure(run);
    let sweep = &run.experiment.sweep;
    html! {
        @if !lists.is_empty() {
            h3 { "Real packets beside the model" }
            p.note { "Real / model at each point; 1 is no distance." }
            @for (measure, list) in &lists {
                div.scroll {
                    table {
                        caption { (measure.label) }
                        thead {
                            tr { th { (sweep.label) } @for one in list { th { (one.curve) } } }
                        }
                        tbody {
                            @for x in &sweep.values {
                                tr { th { (sweep.name(*x)) } @for one in list { td { (cell(one, *x)) } } }
                            }
                            tr { th { "furthest" } @for one in list { td { (shown(one.furthest)) } } }
                        }
                    }
                }
            }
            @if is_marked(&lists) { p.note { (MARKED) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;
    use crate::experiment::HostKind;
    use crate::host::{Figures, Host, Point};
    use crate::runner::{Options, run};

    /// Delivers a part of the flood, and offers at most half a million packets/s.
    struct Part(f64, &'static str);

    /// Delivers nothing.
    const NOTHING: Part = Part(0.0, MODELLED);

    impl Host for Part {
        fn name(&self) -> &'static str {
            self.1
        }

        fn run(&self, point: &Point<'_>) -> Result<Figures, crate::Error> {
            let delivered = ("consumer.sink.delivered_pps".to_owned(), self.0 * point.x);
            let offered = ("offered_pps".to_owned(), point.x.min(500_000.0));
            Ok([delivered, offered].into())
        }
    }

    fn compared_run(host: HostKind) -> Run {
        compared_with(host, &Part(0.25, MODELLED))
    }

    fn compared_with(host: HostKind, model: &Part) -> Run {
        let catalogue = Catalogue::built_in().unwrap();
        let mut experiment = catalogue.get("demo-udp").unwrap().clone();
        experiment.host = host;
        let real = Part(0.5, "testbed");
        let options = Options {
            seeds: 1,
            testbed: Some(&real),
            ..Options::default()
        };
        let runs = run(&[experiment], model, &options, &|_, _| {});
        runs.unwrap().remove(0)
    }

    #[test]
    fn each_point_of_both_sides_has_a_ratio() {
        let all = distances(&compared_run(HostKind::Testbed));
        let curves: Vec<&str> = all.iter().map(|one| one.curve.as_str()).collect();
        assert_eq!(curves, ["stock", "threaded", "guard"]);
        let stock = &all[0];
        assert_eq!(
            (stock.measure.as_str(), stock.furthest),
            ("goodput", Some(2.0))
        );
        let ratios: Vec<_> = stock.points.iter().map(|point| point.ratio).collect();
        assert_eq!(ratios, [Some(1.0), Some(2.0), Some(2.0), Some(2.0)]);
        let less: Vec<_> = stock
            .points
            .iter()
            .map(|point| point.less_offered)
            .collect();
        assert_eq!(less, [false, false, true, true]);
    }

    #[test]
    fn the_table_states_the_distance_and_what_was_not_offered() {
        let text = text(&compared_run(HostKind::Testbed));
        assert!(text.contains("real / model"), "{text}");
        assert!(text.contains("2.00*"), "{text}");
        assert!(text.contains("furthest") && text.contains(MARKED), "{text}");
        let page = markup(&compared_run(HostKind::Testbed)).into_string();
        assert!(page.contains("2.00*") && page.contains(MARKED), "{page}");
    }

    #[test]
    fn a_model_alone_has_no_distance() {
        let run = compared_run(HostKind::Modelled);
        assert!(distances(&run).is_empty() && text(&run).is_empty());
        assert!(markup(&run).into_string().is_empty());
    }

    #[test]
    fn nothing_and_something_have_no_ratio_and_are_furthest() {
        let all = distances(&compared_with(HostKind::Testbed, &NOTHING));
        let ratios: Vec<_> = all[0].points.iter().map(|point| point.ratio).collect();
        assert_eq!(ratios, [Some(1.0), None, None, None]);
        assert_eq!(all[0].furthest, None);
        assert_eq!(ratio(0.0, 0.0), Some(1.0));
        assert_eq!(ratio(3.0, 0.0), None);
        assert_eq!(ratio(0.0, 3.0), Some(0.0));
        assert_eq!(shown(Some(0.0004)), "4e-4", "not nothing");
        assert_eq!(shown(Some(0.0)), "0.00");
    }
}
