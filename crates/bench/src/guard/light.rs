//! Light load, a tenth of the MLFRR: what the guard costs when nothing is wrong.
//!
//! A stock run, one with a program that passes everything, and a guarded one take turns.
//! What counts is the difference within each turn: the machine's own drift is slower. veth
//! has a price of its own for any XDP program, which the second side shows.

use std::fmt::Write as _;

use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::blast::Schedule;
use serde::Serialize;

use super::{Bench, Measured};
use crate::Error;
use crate::cases::Cases;
use crate::figures::{grouped, p99_at_most};
use crate::protection::Protection;
use crate::udp::{Run, Servers, UdpCase};

/// Of the MLFRR.
const LOAD: f64 = 0.1;
const SIDES: [Protection; 3] = [Protection::Stock, Protection::PassAll, Protection::Guard];

/// Light load, with and without the guard.
#[derive(Clone, Debug, Serialize)]
pub struct Light {
    /// Runs of each side.
    pub pairs: usize,
    /// Stock, a program that passes everything, and the guard.
    pub sides: Vec<UdpCase>,
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    cases: Cases<(), Run>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let base = bench.base()?;
    let (stage, plan) = (bench.stage, bench.plan);
    let servers = Servers::start(&stage)?;
    let rate_pps = (base.mlfrr_pps * LOAD) as u64;
    let mut cases = Cases::new(&SIDES, &[()]);
    for pair in 1..=plan.light_pairs {
        for case in cases.in_round(pair) {
            let name = case.protection.name();
            (bench.progress)(&format!(
                "light, pair {pair} of {}: {name}",
                plan.light_pairs
            ));
            let protector = stage.protect(case.protection, None)?;
            let flood = Some(Schedule::Fixed { rate_pps });
            case.runs
                .push(servers.flood(&stage, protector, flood, plan.window)?);
        }
    }
    Ok(Outcome { cases })
}

impl Outcome {
    fn values(&self, protection: Protection, value: &dyn Fn(&Run) -> f64) -> Vec<f64> {
        self.cases.values(protection, (), value)
    }

    /// The guarded run's value and that of the run beside it, of each turn.
    fn pairs(
        &self,
        beside: Protection,
        value: &dyn Fn(&Run) -> f64,
    ) -> impl Iterator<Item = (f64, f64)> {
        let guarded = self.values(Protection::Guard, value);
        guarded.into_iter().zip(self.values(beside, value))
    }

    /// What the guard adds to it.
    fn added(&self, beside: Protection, value: &dyn Fn(&Run) -> f64) -> Vec<f64> {
        let pairs = self.pairs(beside, value);
        pairs.map(|(guarded, other)| guarded - other).collect()
    }

    /// Latency and CPU time that the guard adds to `beside`.
    fn price(&self, id: &str, beside: Protection, what: &str) -> [Goal; 2] {
        let busy = |run: &Run| 100.0 * (1.0 - run.host_cpu.idle);
        [
            Goal::new(
                format!("light/latency{id}"),
                format!("median latency that the guard adds to {what}"),
                Side::AtMost,
                1.0,
                "µs",
                self.added(beside, &|run| run.bystander.p50_us),
            ),
            Goal::new(
                format!("light/cpu{id}"),
                format!("CPU of the host that the guard adds to {what}, in points"),
                Side::AtMost,
                1.0,
                "points",
                self.added(beside, &busy),
            ),
        ]
    }
}

impl Measured for Outcome {
    type Section = Light;

    fn section(&self) -> Light {
        Light {
            pairs: self.cases.0.first().map_or(0, |case| case.runs.len()),
            sides: self.cases.0.iter().map(UdpCase::over).collect(),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let stock_p99 = self.values(Protection::Stock, &|run| run.bystander.p99_us);
        let goodput = self.pairs(Protection::Stock, &|run| run.goodput_pps);
        let mut goals = vec![
            Goal::new(
                "light/throughput",
                "guarded goodput at 10 % of MLFRR, of the stock run beside it",
                Side::AtLeast,
                99.0,
                "%",
                goodput
                    .map(|(guarded, stock)| 100.0 * guarded / stock)
                    .collect(),
            ),
            p99_at_most(
                "light/p99",
                "guarded p99; the goal is the upper quartile of the stock runs'",
                upper_quartile(&stock_p99),
                "µs",
                self.values(Protection::Guard, &|run| run.bystander.p99_of_all_us()),
            ),
        ];
        let pass_all = "a program that passes everything";
        goals.extend(self.price("", Protection::PassAll, pass_all));
        // The goals as they were: they hold the guard to veth's own price as well.
        let stock = "stock (the former definition)";
        goals.extend(self.price("/former", Protection::Stock, stock));
        goals
    }
}

/// The median of the upper half; 0 of nothing.
fn upper_quartile(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median(&sorted[sorted.len() / 2..]).unwrap_or(0.0)
}

impl Light {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "light load, {} turns; p50 and p99 of answered probes\n{:>10} {:>9}{:>11}{:>7}{:>7}{:>7}{:>9}{:>9}{:>9}\n",
            self.pairs,
            "offered/s",
            "",
            "goodput/s",
            "app%",
            "net%",
            "idle%",
            "lost",
            "p50 µs",
            "p99 µs"
        );
        for side in &self.sides {
            let _ = writeln!(
                text,
                "{:>10} {:>9}{:>11}{:>7.1}{:>7.1}{:>7.1}{:>9}{:>9.1}{:>9.1}",
                grouped(side.offered_pps),
                side.protection.name(),
                grouped(side.goodput_pps),
                side.host_cpu.app * 100.0,
                side.host_cpu.network * 100.0,
                side.host_cpu.idle * 100.0,
                side.bystander.lost,
                side.bystander.p50_us,
                side.bystander.p99_us,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_quartile_is_the_median_of_the_upper_half() {
        assert_eq!(upper_quartile(&[4.0, 1.0, 3.0, 2.0]), 3.5);
        assert_eq!(upper_quartile(&[5.0]), 5.0);
        assert_eq!(upper_quartile(&[]), 0.0);
    }
}
