//! The figures of the document's page: distributions of intervals, and medians over time.

use plimsoll_report::page::Figure;
use plimsoll_report::plot::{Axis, Line, Scale};
use plimsoll_timers_bpf::Distribution;

use super::document::{Measured, OfCpu, PAPER};

const INTERVAL: Axis<'static> = Axis {
    label: "Interval between trigger states",
    unit: "us",
    scale: Scale::Log,
};

/// Figure 2, with the paper's own workloads.
pub(super) fn distributions(workloads: &[Measured]) -> Figure<'_> {
    let curve = |(index, measured): (usize, &'_ Measured)| {
        let all = measured.analysis.all.as_ref()?;
        Some((measured.workload.name(), line(index, all)))
    };
    let measured = workloads.iter().enumerate().filter_map(curve);
    let first = workloads.len();
    let published = PAPER.iter().enumerate();
    let published = published.map(|(place, row)| of_2000(first + place, row));
    Figure {
        x: INTERVAL,
        y: percent("Intervals no longer than this (figure 2)"),
        curves: measured.chain(published).collect(),
    }
}

/// A row of the paper's table IV as a curve through the three points that it has: the median
/// and the shares above 100 and 150 µs.
fn of_2000(index: usize, (name, row): &(&'static str, [f64; 5])) -> (&'static str, Line) {
    let [_, median, _, above_100, above_150] = *row;
    let points = vec![
        (median, 50.0),
        (100.0, 100.0 - above_100),
        (150.0, 100.0 - above_150),
    ];
    (*name, Line::new(index, points))
}

fn percent(label: &str) -> Axis<'_> {
    Axis {
        label,
        unit: "%",
        scale: Scale::Linear,
    }
}

fn line(index: usize, distribution: &Distribution) -> Line {
    let points = distribution.curve.iter();
    let percent = points.map(|&(us, share)| (us, 100.0 * share));
    Line::new(index, percent.collect())
}

/// Figure 4: the four greatest sources.
pub(super) fn left_out<'a>(measured: &'a Measured, caption: &'a str) -> Figure<'a> {
    let mut curves = Vec::new();
    if let Some(all) = &measured.analysis.all {
        curves.push(("with all", line(0, all)));
    }
    for (index, contribution) in measured.analysis.sources.iter().take(4).enumerate() {
        if let Some(without) = &contribution.without {
            curves.push((contribution.source.name(), line(index + 1, without)));
        }
    }
    Figure {
        x: INTERVAL,
        y: percent(caption),
        curves,
    }
}

/// Figure 3.
pub(super) fn over_time<'a>(measured: &'a Measured, caption: &'a str) -> Figure<'a> {
    let windows = measured.analysis.windows.iter().enumerate();
    Figure {
        x: Axis {
            label: "Time",
            unit: "s",
            scale: Scale::Linear,
        },
        y: Axis {
            label: caption,
            unit: "us",
            scale: Scale::Log,
        },
        curves: windows
            .map(|(index, windows)| {
                let name = if windows.window_ms == 1 {
                    "1 ms"
                } else {
                    "10 ms"
                };
                let points = windows.medians.clone();
                (name, Line::new(index, points))
            })
            .collect(),
    }
}

/// The busiest CPUs' distributions.
pub(super) fn per_cpu<'a>(measured: &'a Measured, caption: &'a str) -> Figure<'a> {
    /// More curves cannot be told from each other.
    const CURVES: usize = 8;
    let mut busiest: Vec<&OfCpu> = measured.cpus.iter().collect();
    busiest.sort_by(|a, b| b.analysis.states_per_s.total_cmp(&a.analysis.states_per_s));
    let curve = |(index, of_cpu): (usize, &'a OfCpu)| {
        let all = of_cpu.analysis.all.as_ref()?;
        Some((of_cpu.name.as_str(), line(index, all)))
    };
    Figure {
        x: INTERVAL,
        y: percent(caption),
        curves: busiest
            .into_iter()
            .take(CURVES)
            .enumerate()
            .filter_map(curve)
            .collect(),
    }
}
