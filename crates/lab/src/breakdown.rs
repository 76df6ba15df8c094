//! Where the CPU's time and the lost packets of each curve went, to be unfolded in the report.

use std::collections::BTreeSet;

use maud::{Markup, html};

use crate::host::Figures;
use crate::runner::{Measured, Run};

/// A modelled host's CPU accounts, in percent; what is left are threads.
const MODELLED: [(&str, &str); 6] = [
    ("cpu.interrupt_pct", "interrupts"),
    ("cpu.soft_interrupt_pct", "soft"),
    ("cpu.timer_pct", "timers"),
    ("cpu.clock_pct", "clock"),
    ("cpu.switch_pct", "switches"),
    ("cpu.idle_pct", "idle"),
];
/// A real host's, in percent.
const REAL: [(&str, &str); 3] = [
    ("cpu.network_pct", "network"),
    ("cpu.app_pct", "processes"),
    ("cpu.idle_pct", "idle"),
];

/// Less is what rounding leaves of nothing.
const NOTHING: f64 = 1e-6;

/// The tables of all curves of which a host told its CPU time; nothing if none did.
pub(crate) fn breakdown(run: &Run) -> Markup {
    let measured = run.curves.iter();
    let tables: Vec<_> = measured
        .filter_map(|curve| Some((curve, Table::of(curve)?)))
        .collect();
    let some_are = |real: bool| tables.iter().any(|(_, table)| table.is_real == real);
    html! {
        @if !tables.is_empty() {
            details.breakdown {
                summary { "CPU time and lost packets of each curve" }
                p.note {
                    "CPU time in percent, lost packets by place; what is 0 at every load is left out."
                    @if some_are(false) {
                        " Of the model, the first seed's: threads are processes and threads of the kernel, "
                        "losses are packets per second."
                    }
                    @if some_are(true) {
                        " Of real packets, the first round's: network is software interrupts and polling "
                        "threads, processes are all other threads, losses are percent of what was offered."
                    }
                }
                @for (curve, table) in &tables {
                    details { summary { (curve.label) } div.scroll { pre { (table.text(run)) } } }
                }
            }
        }
    }
}

/// What a curve's host told of its CPUs and queues.
struct Table<'a> {
    points: &'a [(f64, Figures)],
    is_real: bool,
}

/// One value per point; nothing where it was not measured.
struct Column {
    heading: String,
    values: Vec<Option<f64>>,
    decimals: usize,
}

impl<'a> Table<'a> {
    fn of(curve: &'a Measured) -> Option<Self> {
        let points = &curve.points;
        let has = |name: &str| points.iter().any(|(_, figures)| figures.contains_key(name));
        let is_real = has("cpu.network_pct");
        has("cpu.idle_pct").then_some(Self { points, is_real })
    }

    /// One row per point.
    fn text(&self, run: &Run) -> String {
        let names = self.points.iter();
        let names = names.map(|(x, _)| run.experiment.sweep.name(*x));
        let mut columns = vec![aligned(
            std::iter::once(String::new()).chain(names).collect(),
        )];
        let told = self.cpu().into_iter().chain(self.losses());
        let told =
            told.filter(|column| column.values.iter().flatten().any(|value| *value > NOTHING));
        columns.extend(told.map(|column| aligned(column.cells())));
        let rows = 0..=self.points.len();
        let rows = rows.map(|row| columns.iter().map(move |cells| cells[row].as_str()));
        let rows = rows.map(|cells| cells.collect::<Vec<_>>().join(" "));
        rows.collect::<Vec<_>>().join("\n")
    }

    fn column(&self, figure: &str, heading: String, decimals: usize) -> Column {
        let values = self.points.iter();
        let values = values.map(|(_, figures)| figures.get(figure).copied());
        Column {
            heading,
            values: values.collect(),
            decimals,
        }
    }

    fn cpu(&self) -> Vec<Column> {
        let accounts = if self.is_real { &REAL[..] } else { &MODELLED };
        let accounts = accounts.iter();
        let mut columns: Vec<Column> = accounts
            .map(|(figure, name)| self.column(figure, (*name).to_owned(), 1))
            .collect();
        if !self.is_real {
            let left = |row| {
                let told = columns.iter().filter_map(|column| column.values[row]);
                Some((100.0 - told.sum::<f64>()).max(0.0))
            };
            columns.push(Column {
                heading: "threads".to_owned(),
                values: (0..self.points.len()).map(left).collect(),
                decimals: 1,
            });
        }
        columns
    }

    /// Lost packets by place.
    fn losses(&self) -> Vec<Column> {
        let (ending, unit, decimals) = match self.is_real {
            true => ("_part_pct", " %", 1),
            false => ("_pps", "/s", 0),
        };
        let figures = self.points.iter().flat_map(|(_, figures)| figures.keys());
        let places = figures.filter_map(|name| name.strip_prefix("loss.")?.strip_suffix(ending));
        let places: BTreeSet<&str> = places.collect();
        let places = places.into_iter();
        let column = |place| {
            let figure = format!("loss.{place}{ending}");
            self.column(&figure, format!("{place}{unit}"), decimals)
        };
        places.map(column).collect()
    }
}

impl Column {
    /// The heading, then the values.
    fn cells(self) -> Vec<String> {
        let decimals = self.decimals;
        let cell = |value: Option<f64>| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
        };
        let values = self.values.into_iter().map(cell);
        std::iter::once(self.heading).chain(values).collect()
    }
}

/// As wide as the widest, on the right.
fn aligned(cells: Vec<String>) -> Vec<String> {
    let width = cells.iter().map(|cell| cell.chars().count()).max();
    let width = width.unwrap_or_default();
    cells
        .into_iter()
        .map(|cell| format!("{cell:>width$}"))
        .collect()
}
