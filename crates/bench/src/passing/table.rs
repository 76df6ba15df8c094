//! The curves of all ways as text.

use std::fmt::Write as _;

use plimsoll_report::median;

use super::{MULTIPLES, Mlfrr, PassingCase, PassingRun, Point};
use crate::figures::grouped;

/// A row per way: its MLFRR, and what passed at each multiple of it.
pub(crate) fn curves(title: &str, cases: &[PassingCase]) -> String {
    let mut text = format!("{title}: passed, in packets/s, at multiples of the way's MLFRR\n");
    let _ = write!(text, "{:<11}{:<24}{:>11}", "", "way", "MLFRR");
    for multiple in MULTIPLES {
        let _ = write!(text, "{:>11}", format!("{multiple} x"));
    }
    let _ = writeln!(text, "{:>13}{:>11}", "offered most", "sink full");
    for case in cases {
        row(&mut text, case);
    }
    text
}

fn row(text: &mut String, case: &PassingCase) {
    let _ = write!(text, "{:<11}{:<24}", case.family.name(), case.way);
    if case.runs.is_empty() {
        let why = case.why.as_deref().unwrap_or("not measured");
        let _ = writeln!(text, " {why}");
        return;
    }
    let over = |value: &dyn Fn(&PassingRun) -> Option<f64>| {
        let values: Vec<f64> = case.runs.iter().filter_map(value).collect();
        median(&values).unwrap_or(0.0)
    };
    let mlfrr = grouped(over(&|run| Some(run.mlfrr_pps)));
    let at_least = |run: &PassingRun| run.mlfrr_is == Mlfrr::AtLeast;
    let bound = if case.runs.iter().any(at_least) {
        ">"
    } else {
        ""
    };
    let _ = write!(text, "{:>11}", format!("{bound}{mlfrr}"));
    for place in 0..MULTIPLES.len() {
        let passed = over(&|run| run.curve.get(place).map(|point| point.passed_pps));
        let _ = write!(text, "{:>11}", grouped(passed));
    }
    let offered = over(&|run| run.curve.iter().map(|p| p.offered_pps).reduce(f64::max));
    let sink_full = over(&|run| run.curve.iter().map(sink_full_percent).reduce(f64::max));
    let _ = writeln!(text, "{:>13}{:>10.1}%", grouped(offered), sink_full);
}

/// Of what was sent, the part that the sink's ring did not take.
fn sink_full_percent(point: &Point) -> f64 {
    let counts = point.counts;
    let sent = counts.passed + counts.sink_full;
    counts.sink_full as f64 / sent.max(1) as f64 * 100.0
}
