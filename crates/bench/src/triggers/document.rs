//! What `plimsoll triggers` writes: tables, one JSON document, a page.

use std::fmt::Write as _;

use plimsoll_report::page::{self, Figure};
use plimsoll_report::plot::{Axis, Line, PlotError, Scale};
use plimsoll_report::{Machine, SCHEMA, figure};
use plimsoll_timers_bpf::{Analysis, Distribution, ProbeCost, Record};
use serde::Serialize;

use super::Workload;

/// One workload's trigger states.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Which.
    pub workload: Workload,
    /// The CPU looked at; nothing for all.
    pub cpu: Option<usize>,
    /// The figures.
    pub analysis: Analysis,
    /// Those of each CPU alone.
    pub cpus: Vec<OfCpu>,
    /// States that found no room in the record: its end is missing then.
    pub lost: u64,
    /// The workload's own rate, without the probes.
    pub work_per_s: Option<f64>,
    /// The same with them.
    pub work_per_s_probed: Option<f64>,
}

/// One CPU's trigger states.
#[derive(Clone, Debug, Serialize)]
pub struct OfCpu {
    /// Which.
    pub cpu: usize,
    /// For curves.
    #[serde(skip)]
    name: String,
    /// Its figures.
    pub analysis: Analysis,
}

impl OfCpu {
    /// Of all CPUs that passed trigger states.
    pub(super) fn each(record: &Record) -> Vec<Self> {
        let cpus = record.cpus.iter().enumerate();
        let passed = cpus.filter(|(_, states)| !states.is_empty());
        passed
            .map(|(cpu, states)| Self {
                cpu,
                name: format!("CPU {cpu}"),
                analysis: Analysis::of(&[states]),
            })
            .collect()
    }
}

impl Measured {
    /// How much slower the workload was while it was probed.
    fn slowdown_percent(&self) -> Option<f64> {
        let (without, with) = (self.work_per_s?, self.work_per_s_probed?);
        (without > 0.0).then(|| 100.0 * (1.0 - with / without))
    }
}

/// What the probes cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Probes {
    /// A system call that does nothing, unprobed.
    pub system_call_ns: f64,
    /// What a probe adds to it.
    pub state_ns: f64,
}

/// The document of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    schema: u32,
    machine: Machine,
    /// What the probes cost.
    pub probes: Probes,
    /// In the order asked for.
    pub workloads: Vec<Measured>,
    /// Nothing is promised here: a measurement of the machine, not of us.
    goals: [(); 0],
}

/// A workload of the paper's figure 2 and table IV (300 MHz Pentium II): mean,
/// median, standard deviation in µs, share above 100 µs and 150 µs in percent.
const PAPER: [(&str, [f64; 5]); 6] = [
    ("ST-Apache", [31.52, 18.0, 32.0, 5.3, 0.39]),
    ("ST-Apache-compute", [31.59, 18.0, 32.1, 5.3, 0.43]),
    ("ST-Flash", [22.53, 17.0, 20.8, 1.09, 0.013]),
    ("ST-real-audio", [8.47, 6.0, 13.2, 0.025, 0.013]),
    ("ST-nfs", [2.13, 2.0, 3.3, 0.021, 0.011]),
    ("ST-kernel-build", [5.63, 2.0, 47.9, 0.038, 0.033]),
];

impl Document {
    pub(super) fn new(cost: ProbeCost, workloads: Vec<Measured>) -> Self {
        Self {
            schema: SCHEMA,
            machine: Machine::read(Some("veth")),
            probes: Probes {
                system_call_ns: cost.without_ns,
                state_ns: cost.per_state_ns(),
            },
            workloads,
            goals: [],
        }
    }

    /// The tables, as a terminal shows them.
    #[must_use]
    pub fn tables(&self) -> String {
        let mut text = format!(
            "Intervals between trigger states, in us (Linux {}, {} CPUs)\n\n",
            self.machine.kernel, self.machine.cpus
        );
        self.intervals(&mut text);
        self.probing(&mut text);
        for measured in &self.workloads {
            of_each_cpu(&mut text, measured);
            sources(&mut text, measured);
            windows(&mut text, measured);
        }
        text
    }

    fn intervals(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{:<18} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>6} {:>8}",
            "workload",
            "states/s",
            "mean",
            "median",
            "stddev",
            "p99",
            "max",
            ">100us%",
            ">150us%",
            "idle%",
            "delay"
        );
        for measured in &self.workloads {
            let name = measured.workload.name();
            let Some(all) = &measured.analysis.all else {
                let _ = writeln!(text, "{name:<18} no trigger state");
                continue;
            };
            let _ = writeln!(
                text,
                "{name:<18} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.1} {:>9.0} {:>8.3} {:>8.3} {:>6.1} {:>8.2}",
                measured.analysis.states_per_s,
                all.mean_us,
                all.median_us,
                all.stddev_us,
                all.p99_us,
                all.max_us,
                all.above_100us_percent,
                all.above_150us_percent,
                all.idle_percent,
                all.delay_us
            );
        }
        for (name, [mean, median, deviation, above_100, above_150]) in PAPER {
            let _ = writeln!(
                text,
                "{name:<18} {:>9.0} {mean:>8.2} {median:>8.2} {deviation:>8.1} {:>8} {:>9} {above_100:>8.3} {above_150:>8.3}",
                1e6 / mean,
                "-",
                "-"
            );
        }
        text.push_str(
            "\nstates/s: per CPU. idle: the CPU could have checked at any moment; that time is in no\n\
             interval. delay: mean delay of an event due at a random moment. ST-...: the paper's table IV,\n\
             a 300 MHz Pentium II in 2000, idle loop included.\n",
        );
    }

    fn probing(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nA probe adds {} ns to a state (a system call that does nothing takes {} ns).",
            figure(self.probes.state_ns),
            figure(self.probes.system_call_ns)
        );
        for measured in &self.workloads {
            let share = measured.analysis.states_per_s * self.probes.state_ns / 1e7;
            let _ = write!(
                text,
                "{}: {} % of a CPU",
                measured.workload.name(),
                figure(share)
            );
            if let (Some(without), Some(with), Some(slower), Some(unit)) = (
                measured.work_per_s,
                measured.work_per_s_probed,
                measured.slowdown_percent(),
                measured.workload.unit(),
            ) {
                let _ = write!(
                    text,
                    "; {} {unit} without probes, {} with ({slower:.1} % fewer)",
                    figure(without),
                    figure(with)
                );
            }
            if measured.lost > 0 {
                let _ = write!(text, "; the record was full, {} states lost", measured.lost);
            }
            text.push('\n');
        }
    }

    /// The tables with curves, as one page.
    ///
    /// # Errors
    ///
    /// A plot could not be drawn: our own mistake.
    pub fn html(&self) -> Result<String, PlotError> {
        let mut figures = vec![self.distributions()];
        let captions = self.workloads.iter().map(|measured| {
            let name = measured.workload.name();
            [
                format!("{name}: the same without one source (figure 4)"),
                format!("{name}: median interval in each window of time (figure 3)"),
                format!("{name}: each CPU alone"),
            ]
        });
        let captions: Vec<[String; 3]> = captions.collect();
        for (measured, [without, over, each]) in self.workloads.iter().zip(&captions) {
            figures.push(left_out(measured, without));
            figures.push(over_time(measured, over));
            if measured.cpus.len() > 1 {
                figures.push(per_cpu(measured, each));
            }
        }
        page::measured(
            "Trigger states of this machine",
            &self.machine,
            &figures,
            &[],
            &self.tables(),
        )
    }

    fn distributions(&self) -> Figure<'_> {
        let curve = |(index, measured): (usize, &'_ Measured)| {
            let all = measured.analysis.all.as_ref()?;
            Some((measured.workload.name(), line(index, all)))
        };
        let measured = self.workloads.iter().enumerate().filter_map(curve);
        let first = self.workloads.len();
        let published = PAPER.iter().enumerate();
        let published = published.map(|(place, row)| of_2000(first + place, row));
        Figure {
            x: INTERVAL,
            y: percent("Intervals no longer than this (figure 2)"),
            curves: measured.chain(published).collect(),
        }
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

const INTERVAL: Axis<'static> = Axis {
    label: "Interval between trigger states",
    unit: "us",
    scale: Scale::Log,
};

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
fn left_out<'a>(measured: &'a Measured, caption: &'a str) -> Figure<'a> {
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
fn over_time<'a>(measured: &'a Measured, caption: &'a str) -> Figure<'a> {
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
fn per_cpu<'a>(measured: &'a Measured, caption: &'a str) -> Figure<'a> {
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

/// What each CPU passed by itself: the figures above are of the workload's CPU, or of all
/// together.
fn of_each_cpu(text: &mut String, measured: &Measured) {
    let _ = writeln!(
        text,
        "\n{}: each CPU\n{:<8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>6}  most by",
        measured.workload.name(),
        "CPU",
        "states/s",
        "mean",
        "median",
        "p99",
        ">100us%",
        "idle%"
    );
    for of_cpu in &measured.cpus {
        let Some(all) = &of_cpu.analysis.all else {
            continue;
        };
        let most = of_cpu.analysis.sources.first();
        let _ = writeln!(
            text,
            "{:<8} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.3} {:>6.1}  {}",
            of_cpu.cpu,
            of_cpu.analysis.states_per_s,
            all.mean_us,
            all.median_us,
            all.p99_us,
            all.above_100us_percent,
            all.idle_percent,
            most.map_or("-", |most| most.source.name())
        );
    }
}

fn sources(text: &mut String, measured: &Measured) {
    let _ = writeln!(
        text,
        "\n{}: sources\n{:<26} {:>8} {:>14} {:>14} {:>14}",
        measured.workload.name(),
        "source",
        "share %",
        "without: mean",
        "median",
        ">100us %"
    );
    for contribution in &measured.analysis.sources {
        let _ = write!(
            text,
            "{:<26} {:>8.2}",
            contribution.source.name(),
            contribution.share_percent
        );
        if let Some(without) = &contribution.without {
            let _ = write!(
                text,
                " {:>14.2} {:>14.2} {:>14.3}",
                without.mean_us, without.median_us, without.above_100us_percent
            );
        }
        text.push('\n');
    }
}

fn windows(text: &mut String, measured: &Measured) {
    for windows in &measured.analysis.windows {
        let _ = writeln!(
            text,
            "medians in {} ms: {} to {} us in nine of ten windows, middle {}; above 40 us in {} %",
            windows.window_ms,
            figure(windows.p5_us),
            figure(windows.p95_us),
            figure(windows.median_us),
            figure(windows.above_40us_percent)
        );
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_timers_bpf::{Source, State};

    use super::*;

    /// A system call every 10 µs on the workload's CPU, and interrupts on another.
    fn document() -> Document {
        let every = |nanos: u64, source| -> Vec<State> {
            let at_ns = (0..1000).map(|state| state * nanos);
            at_ns.map(|at_ns| State { at_ns, source }).collect()
        };
        let states = every(10_000, Source::SystemCall);
        let rare = every(200_000, Source::TimerInterrupt);
        let cost = ProbeCost {
            without_ns: 100.0,
            with_ns: 180.0,
        };
        let measured = Measured {
            workload: Workload::Nginx,
            cpu: Some(1),
            analysis: Analysis::of(&[&states]),
            cpus: OfCpu::each(&Record {
                cpus: vec![rare, Vec::new(), states],
                lost: 7,
            }),
            lost: 7,
            work_per_s: Some(1000.0),
            work_per_s_probed: Some(900.0),
        };
        Document::new(cost, vec![measured])
    }

    #[test]
    fn the_tables_show_intervals_cost_and_loss() {
        let tables = document().tables();
        let row = tables
            .lines()
            .find(|line| line.starts_with("nginx "))
            .unwrap();
        let fields: Vec<&str> = row.split_whitespace().collect();
        // 1000 states in 9.99 ms.
        assert_eq!(fields[1..4], ["100100", "10.00", "10.00"]);
        assert!(tables.contains("A probe adds 80.0 ns to a state"));
        // 100,100 times 80 ns.
        assert!(tables.contains("nginx: 0.801 % of a CPU"));
        assert!(tables.contains("(10.0 % fewer)") && tables.contains("7 states lost"));
        assert!(tables.contains("ST-kernel-build"));
    }

    #[test]
    fn each_cpu_has_its_own_figures() {
        let document = document();
        let tables = document.tables();
        let (_, tables) = tables.split_once("nginx: each CPU\n").unwrap();
        let rows: Vec<Vec<&str>> = tables
            .lines()
            .skip(1)
            .take(2)
            .map(|row| row.split_whitespace().collect())
            .collect();
        // The second CPU passed no state.
        assert_eq!(rows[0][..3], ["0", "5005", "200.00"]);
        assert_eq!(rows[0][5..], ["100.000", "0.0", "timer", "interrupts"]);
        assert_eq!(rows[1][..3], ["2", "100100", "10.00"]);
        assert_eq!(rows[1][7..], ["system", "calls"]);
        let document = serde_json::to_value(&document).unwrap();
        let cpus = document["workloads"][0]["cpus"].as_array().unwrap();
        assert_eq!(cpus[1]["cpu"], 2);
        let analysis = &cpus[0]["analysis"];
        assert_eq!(analysis["all"]["mean_us"], 200.0);
        assert_eq!(analysis["sources"][0]["source"], "timer_interrupt");
        assert_eq!(analysis["windows"][1]["window_ms"], 10);
    }

    /// The guide's picture has this Linux beside 2000, and tells which curve is whose.
    #[test]
    fn the_picture_in_the_guide_names_the_workloads_of_both() {
        let picture = include_str!("../../../../docs/triggers.svg");
        let today = Workload::ALL.map(Workload::name);
        for name in today.into_iter().chain(PAPER.map(|(name, _)| name)) {
            assert!(picture.contains(&format!(">{name}</text>")), "{name}");
        }
    }

    #[test]
    fn the_page_has_a_plot_per_figure_of_the_paper() {
        let page = document().html().unwrap();
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("nginx: each CPU alone") && page.contains("CPU 2"));
        // The curves of 2000 stand beside them: the first plot has their names.
        let (first, _) = page.split_once("(figure 4)").unwrap();
        assert!(first.contains("ST-Apache-compute") && first.contains("ST-kernel-build"));
        assert!(page.contains("nginx: median interval in each window of time (figure 3)"));
    }
}
