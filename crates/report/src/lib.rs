//! What every measuring command writes: on which machine, what came out, and
//! which of the promised figures were met.
//!
//! A document is the command's own results beside [`Machine`] and a list of
//! [`Goal`]s. Missing a goal is a result, not an error; a goal that could not be
//! measured says why instead of passing.
//!
//! [`page`] is the form of every page, [`plot`] that of every plot; each measuring
//! crate writes its own documents with them.

pub mod criterion;
mod date;
pub mod page;
pub mod plot;

use std::fmt::Write as _;
use std::fs;

use serde::Serialize;

pub use date::date;

/// Version of the documents' common part.
pub const SCHEMA: u32 = 1;

/// The machine a document was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Release of the running kernel.
    pub kernel: String,
    /// CPUs that are online.
    pub cpus: usize,
    /// The processor's own name for itself, if it gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What packets crossed, for example `veth`; nothing if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<&'static str>,
}

impl Machine {
    /// This machine. What /proc does not tell is left out.
    #[must_use]
    pub fn read(link: Option<&'static str>) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            kernel: kernel.trim().to_owned(),
            cpus: online(&cpuinfo),
            model: model.map(|(_, name)| name.to_owned()),
            link,
        }
    }
}

/// The CPUs that `/proc/cpuinfo` lists: those that are online. (How many this thread may use, which
/// std tells, is another number: benches pin their threads.)
fn online(cpuinfo: &str) -> usize {
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor"));
    cpus.count().max(1)
}

/// The middle of the values, the mean of both middles for an even number of
/// them; nothing of nothing. Values that are no numbers sort last.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        Some(upper)
    } else {
        Some(sorted[middle - 1].midpoint(upper))
    }
}

/// On which side of its goal a figure must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The goal is the least that is good enough.
    AtLeast,
    /// The goal is the most that is still good.
    AtMost,
}

/// A promised figure and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Unique in its document.
    pub id: String,
    /// The figure in words.
    pub what: String,
    /// The promise, in `unit`.
    pub goal: f64,
    /// Median of `runs`.
    pub measured: Option<f64>,
    /// Of `goal`, `measured` and `runs`.
    pub unit: &'static str,
    /// Whether the promise was kept; nothing if it could not be measured, or if what was
    /// measured says nothing of the promise.
    pub met: Option<bool>,
    /// All values.
    pub runs: Vec<f64>,
    /// Why there is no verdict, or what else is to be known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Goal {
    /// Compares the median of `runs` with `goal`. Without runs the goal counts
    /// as not measured; so it does if a run gave no finite number, for example the
    /// ratio to something that was 0: the median of the others would hide that run.
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        what: impl Into<String>,
        side: Side,
        goal: f64,
        unit: &'static str,
        runs: Vec<f64>,
    ) -> Self {
        let strange = runs.iter().find(|run| !run.is_finite());
        let why = match strange {
            Some(run) => Some(format!("a run gave {run}, which is no measurement")),
            None => runs.is_empty().then(|| "no run gave a value".to_owned()),
        };
        let runs = if why.is_some() { Vec::new() } else { runs };
        let measured = median(&runs);
        let met = measured.map(|value| match side {
            Side::AtLeast => value >= goal,
            Side::AtMost => value <= goal,
        });
        Self {
            id: id.into(),
            what: what.into(),
            goal,
            measured,
            unit,
            met,
            runs,
            why,
        }
    }

    /// Says why there is no verdict, or what else is to be known of it.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }
}

/// The goals as lines for a person: ✓ met, ✗ missed, ? no verdict.
#[must_use]
pub fn goals_table(goals: &[Goal]) -> String {
    let mut text = String::new();
    for goal in goals {
        let mark = mark(goal.met);
        let measured = goal.measured.map_or_else(|| "-".to_owned(), figure);
        let _ = write!(
            text,
            "{mark} {}: {measured} {} (goal {})",
            goal.what,
            goal.unit,
            figure(goal.goal)
        );
        if let Some(why) = &goal.why {
            let _ = write!(text, ": {why}");
        }
        text.push('\n');
    }
    text
}

/// ✓ came out as it should, ✗ did not, ? could not be judged.
#[must_use]
pub const fn mark(met: Option<bool>) -> char {
    match met {
        Some(true) => '✓',
        Some(false) => '✗',
        None => '?',
    }
}

/// A number with as many digits as a reader wants.
#[must_use]
pub fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_goal_is_met_on_its_side_only() {
        let goal = |side, runs| Goal::new("id", "what", side, 10.0, "%", runs).met;
        assert_eq!(goal(Side::AtLeast, vec![9.0, 10.0, 30.0]), Some(true));
        assert_eq!(goal(Side::AtLeast, vec![9.9]), Some(false));
        assert_eq!(goal(Side::AtMost, vec![9.9]), Some(true));
        assert_eq!(goal(Side::AtMost, vec![10.1]), Some(false));
        assert_eq!(goal(Side::AtMost, vec![]), None);
    }

    #[test]
    fn what_is_no_number_meets_no_goal() {
        for run in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let goal = Goal::new("id", "what", Side::AtLeast, 1.0, "%", vec![2.0, run, 2.0]);
            assert_eq!((goal.measured, goal.met), (None, None), "{run}");
            assert!(goal.runs.is_empty() && goal.why.is_some(), "{goal:?}");
        }
    }

    #[test]
    fn a_goal_without_a_measurement_says_why() {
        let goal =
            Goal::new("id", "p99", Side::AtMost, 2.0, "us", vec![]).because("nobody answered");
        let json = serde_json::to_value(&goal).unwrap();
        assert!(json["met"].is_null() && json["measured"].is_null());
        assert_eq!(json["why"], "nobody answered");
        assert_eq!(
            goals_table(&[goal]),
            "? p99: - us (goal 2.0): nobody answered\n"
        );
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_cpu() {
        let machine = Machine::read(Some("veth"));
        assert!(!machine.kernel.is_empty() && machine.cpus > 0);
    }

    /// It was the CPUs that the asking thread may use, and benches pin their threads.
    #[test]
    fn all_cpus_count_also_where_one_may_not_use_them() {
        let all = Machine::read(None).cpus;
        let mut one = CpuSet::new();
        one.set(0).unwrap();
        let seen = thread::spawn(move || {
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            Machine::read(None).cpus
        });
        assert_eq!(seen.join().unwrap(), all);
        let text = "processor\t: 0\nmodel name\t: A\n\nprocessor\t: 3\n";
        assert_eq!(online(text), 2);
    }
}
