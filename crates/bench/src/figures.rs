//! Figures that several comparisons report, and how they are printed.

use plimsoll_kernel::meter::CpuTime;
use plimsoll_report::{Goal, Machine, Side, goals_table, median};
use plimsoll_testbed::ledger::Ledger;
use plimsoll_testbed::probe;
use serde::Serialize;

use crate::cases::Case;

/// Parts of the host's CPU time, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct HostCpu {
    /// Processes.
    pub app: f64,
    /// Network softirqs and polling threads.
    pub network: f64,
    /// Nothing to do.
    pub idle: f64,
}

impl HostCpu {
    pub(crate) fn of(cpu: &CpuTime) -> Self {
        Self {
            // The kernel's other threads are nobody's network work.
            app: cpu.share(cpu.app + cpu.other),
            network: cpu.share(cpu.network),
            idle: cpu.share(cpu.idle),
        }
    }

    /// Medians over the runs of a case.
    pub(crate) fn middle<L, R>(case: &Case<L, R>, of: impl Fn(&R) -> Self) -> Self {
        Self {
            app: case.middle(|run| of(run).app),
            network: case.middle(|run| of(run).network),
            idle: case.middle(|run| of(run).idle),
        }
    }
}

/// What a prober of the echo server saw.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Bystander {
    /// Probes sent in all runs.
    pub sent: u64,
    /// Probes without an answer in time.
    pub lost: u64,
    /// Median latency of those that were answered, in microseconds; not a number if none was.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
}

impl Bystander {
    pub(crate) fn of(probed: &probe::Report) -> Self {
        Self {
            sent: probed.sent,
            lost: probed.lost + probed.late,
            p50_us: latency_us(probed.answered, probed.latency.p50_ns),
            p99_us: latency_us(probed.answered, probed.latency.p99_ns),
        }
    }

    /// Sums of the counts and medians of the latencies over the runs of a case.
    pub(crate) fn over<L, R>(case: &Case<L, R>, of: impl Fn(&R) -> Self) -> Self {
        Self {
            sent: case.total(|run| of(run).sent),
            lost: case.total(|run| of(run).lost),
            p50_us: case.middle(|run| of(run).p50_us),
            p99_us: case.middle(|run| of(run).p99_us),
        }
    }

    /// Lost probes of those sent, from 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }

    /// The 99th percentile of all probes, in microseconds; infinite where more than one in a
    /// hundred had no answer. Below, it is that of those answered, which is at most a little less.
    pub(crate) fn p99_of_all_us(&self) -> f64 {
        match self.loss() > 0.01 {
            true => f64::INFINITY,
            false => self.p99_us,
        }
    }
}

/// A goal for a 99th percentile of all probes, or what it is divided by. A probe without an
/// answer is worse than the slowest one, so runs without a percentile are the worst.
pub(crate) fn p99_at_most(
    id: impl Into<String>,
    what: impl Into<String>,
    most: f64,
    unit: &'static str,
    runs: Vec<f64>,
) -> Goal {
    let (all, middle) = (runs.len(), median(&runs));
    let answered: Vec<f64> = runs.into_iter().filter(|run| !run.is_infinite()).collect();
    let without = all - answered.len();
    let goal = Goal::new(id, what, Side::AtMost, most, unit, answered);
    if without == 0 {
        return goal;
    }
    let why = format!("in {without} of {all} runs more than 1 % of the probes had no answer");
    Goal {
        measured: middle.filter(|middle| middle.is_finite()),
        met: middle.map(|middle| middle <= most),
        ..goal
    }
    .because(why)
}

/// A percentile of the latency of so many answers. Of none there is none: 0 would be the best.
pub(crate) fn latency_us(answers: u64, percentile_ns: u64) -> f64 {
    match answers {
        0 => f64::NAN,
        _ => percentile_ns as f64 / 1e3,
    }
}

/// Where the packets went, flood and probes together.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Losses {
    /// Handed to the link.
    pub offered: u64,
    /// Got by sink and echo.
    pub delivered: u64,
    /// Discarded by the guard or the packet filter.
    pub early_discard: u64,
    /// Dropped at a full socket.
    pub socket_queue: u64,
    /// Dropped at the full receive ring.
    pub receive_ring: u64,
    /// Dropped elsewhere, at places that are named when they occur.
    pub other: u64,
    /// What nobody counted.
    pub unaccounted: i64,
}

impl Losses {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        Self {
            offered: ledger.offered,
            delivered: ledger.delivered,
            early_discard: ledger.early_discard,
            socket_queue: ledger.socket_queue,
            receive_ring: ledger.receive_ring,
            other: ledger.interface
                + ledger.backlog
                + ledger.ip
                + ledger.no_port
                + ledger.udp
                + ledger.listen_queue,
            unaccounted: ledger.unaccounted,
        }
    }

    /// Sums over the runs of a case.
    pub(crate) fn over<L, R>(case: &Case<L, R>, of: impl Fn(&R) -> Self) -> Self {
        Self {
            offered: case.total(|run| of(run).offered),
            delivered: case.total(|run| of(run).delivered),
            early_discard: case.total(|run| of(run).early_discard),
            socket_queue: case.total(|run| of(run).socket_queue),
            receive_ring: case.total(|run| of(run).receive_ring),
            other: case.total(|run| of(run).other),
            unaccounted: case.runs.iter().map(|run| of(run).unaccounted).sum(),
        }
    }
}

/// Each value as percentage of the others' median.
pub(crate) fn percents_of(values: &[f64], others: &[f64]) -> Vec<f64> {
    let base = median(others).filter(|base| *base > 0.0);
    base.map_or_else(Vec::new, |base| {
        values.iter().map(|value| value / base * 100.0).collect()
    })
}

/// Each value as percentage of the better of two others' medians.
pub(crate) fn percents_of_better(values: &[f64], one: &[f64], other: &[f64]) -> Vec<f64> {
    let better = if median(one) > median(other) {
        one
    } else {
        other
    };
    percents_of(values, better)
}

/// The last lines of every table: where it was measured, and the goals.
pub(crate) fn conclusion(machine: &Machine, goals: &[Goal]) -> String {
    format!(
        "\nLinux {}, {} CPUs, {}; goals:\n{}",
        machine.kernel,
        machine.cpus,
        machine.link.unwrap_or("no link"),
        goals_table(goals)
    )
}

/// A whole number in groups of three digits.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && text != "-" {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had a latency of 0, and met each goal that has a highest one.
    #[test]
    fn a_client_that_nobody_answers_has_no_latency() {
        let none = probe::Percentiles {
            p50_ns: 0,
            p90_ns: 0,
            p99_ns: 0,
            p999_ns: 0,
            max_ns: 0,
        };
        let mut probed = probe::Report {
            sent: 10,
            answered: 0,
            late: 4,
            lost: 6,
            duplicates: 0,
            send_errors: 0,
            latency: none,
            slip: none,
            realtime: true,
        };
        let bystander = Bystander::of(&probed);
        assert_eq!(bystander.loss(), 1.0);
        let met = |p99_us| Goal::new("id", "p99", Side::AtMost, 2.0, "x", vec![p99_us]).met;
        assert_eq!(met(bystander.p99_us), None);
        let json = serde_json::to_value(bystander).unwrap();
        assert!(json["p50_us"].is_null(), "{json}");
        probed.answered = 4;
        assert_eq!(met(Bystander::of(&probed).p99_us), Some(true));
    }

    /// One that answered few of them at once had met a goal that those who answer all do not.
    #[test]
    fn a_probe_without_an_answer_is_worse_than_the_slowest_one() {
        let of = |lost| Bystander {
            sent: 1000,
            lost,
            p50_us: 50.0,
            p99_us: 100.0,
        };
        let goal = |losses: &[u64]| {
            let runs = losses.iter().map(|lost| of(*lost).p99_of_all_us());
            let goal = p99_at_most("id", "what", 150.0, "µs", runs.collect());
            (goal.measured, goal.met, goal.why.is_some())
        };
        assert_eq!(goal(&[0, 10, 0]), (Some(100.0), Some(true), false));
        assert_eq!(goal(&[0, 900, 0]), (Some(100.0), Some(true), true));
        assert_eq!(goal(&[11, 900, 0]), (None, Some(false), true));
        assert_eq!(goal(&[]), (None, None, true));
    }

    #[test]
    fn the_better_of_two_is_what_values_are_compared_with() {
        for (one, other) in [([80.0], [100.0]), ([100.0], [80.0])] {
            assert_eq!(
                percents_of_better(&[50.0, 90.0], &one, &other),
                [50.0, 90.0]
            );
        }
        assert_eq!(percents_of_better(&[50.0], &[], &[100.0]), [50.0]);
        assert!(percents_of_better(&[50.0], &[], &[]).is_empty());
    }

    #[test]
    fn numbers_are_grouped_in_thousands() {
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(-123_456.0), "-123,456");
    }
}
