//! What `plimsoll triggers` writes: tables, one JSON document, a page.

use plimsoll_report::page;
use plimsoll_report::plot::PlotError;
use plimsoll_report::{Machine, SCHEMA};
use plimsoll_timers_bpf::{Analysis, ProbeCost, Record};
use serde::Serialize;

use super::{Workload, curves, table};

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
    pub(super) name: String,
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
    pub(super) fn slowdown_percent(&self) -> Option<f64> {
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
    pub(super) machine: Machine,
    /// What the probes cost.
    pub probes: Probes,
    /// In the order asked for.
    pub workloads: Vec<Measured>,
    /// Nothing is promised here: a measurement of the machine, not of us.
    goals: [(); 0],
}

/// A workload of the paper's figure 2 and table IV (300 MHz Pentium II): mean,
/// median, standard deviation in µs, share above 100 µs and 150 µs in percent.
pub(super) const PAPER: [(&str, [f64; 5]); 6] = [
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
        table::tables(self)
    }

    /// The tables with curves, as one page.
    ///
    /// # Errors
    ///
    /// A plot could not be drawn: our own mistake.
    pub fn html(&self) -> Result<String, PlotError> {
        let mut figures = vec![curves::distributions(&self.workloads)];
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
            figures.push(curves::left_out(measured, without));
            figures.push(curves::over_time(measured, over));
            if measured.cpus.len() > 1 {
                figures.push(curves::per_cpu(measured, each));
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
