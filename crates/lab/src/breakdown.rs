//! Where the CPU's time and the lost packets of each curve went, to be unfolded in the report.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use maud::{Markup, html};

use crate::host::Figures;
use crate::runner::{Measured, Run};

/// CPU accounts, in percent; what is left are threads.
const ACCOUNTS: [(&str, &str); 6] = [
    ("cpu.interrupt_pct", "interrupts"),
    ("cpu.soft_interrupt_pct", "soft"),
    ("cpu.timer_pct", "timers"),
    ("cpu.clock_pct", "clock"),
    ("cpu.switch_pct", "switches"),
    ("cpu.idle_pct", "idle"),
];

/// The tables of all curves that a host with CPUs and queues ran; nothing if none was.
pub(crate) fn breakdown(run: &Run) -> Markup {
    let tables: Vec<_> = run
        .curves
        .iter()
        .filter_map(|curve| Some((curve, table(run, curve)?)))
        .collect();
    html! {
        @if !tables.is_empty() {
            details.breakdown {
                summary { "CPU time and lost packets of each curve" }
                p.note {
                    "The first seed's. CPU time in percent, threads are processes and threads of the "
                    "kernel; lost packets per second by place."
                }
                @for (curve, table) in &tables {
                    details { summary { (curve.label) } div.scroll { pre { (table) } } }
                }
            }
        }
    }
}

/// One row per point of a curve.
fn table(run: &Run, curve: &Measured) -> Option<String> {
    let points = &curve.points;
    if !points
        .iter()
        .any(|(_, figures)| value(figures, "cpu.idle_pct").is_some())
    {
        return None;
    }
    let places = places(points);
    let mut text = format!("{:>12}", "");
    for (_, name) in ACCOUNTS {
        let _ = write!(text, " {name:>10}");
    }
    let _ = write!(text, " {:>10}", "threads");
    for place in &places {
        let _ = write!(text, " {place:>15}");
    }
    for (x, figures) in points {
        let _ = write!(text, "\n{:>12}", run.experiment.sweep.name(*x));
        let shares = ACCOUNTS.map(|(figure, _)| value(figures, figure).unwrap_or(0.0));
        for share in shares {
            let _ = write!(text, " {share:>10.1}");
        }
        let threads = (100.0 - shares.iter().sum::<f64>()).max(0.0);
        let _ = write!(text, " {threads:>10.1}");
        for place in &places {
            let lost = value(figures, &format!("loss.{place}_pps")).unwrap_or(0.0);
            let _ = write!(text, " {lost:>15.0}");
        }
    }
    Some(text)
}

/// Where packets of a curve were lost.
fn places(points: &[(f64, Figures)]) -> BTreeSet<&str> {
    let figures = points.iter().flat_map(|(_, figures)| figures);
    let lost = figures.filter(|(_, value)| **value > 0.0);
    lost.filter_map(|(name, _)| name.strip_prefix("loss.")?.strip_suffix("_pps"))
        .collect()
}

fn value(figures: &Figures, name: &str) -> Option<f64> {
    figures.get(name).copied()
}
