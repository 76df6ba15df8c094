//! The document of a run, and its tables for a person.

use plimsoll_report::plot::PlotError;
use plimsoll_report::{Goal, Machine, page};
use serde::Serialize;

use super::{
    Beyond, Capacity, Chaos, CpuLimit, Dns, Flood, FloodCase, Light, Rpc, Sources, Syns, Verdict,
    Watching,
};
use crate::figures::conclusion;
use crate::page::{loss_percent, over_flood};

/// Everything a run measured; what it did not is absent.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// Further arguments that the guard was given.
    pub guard_arguments: Vec<String>,
    /// Interrupt holdoff of the host's interface, in microseconds.
    pub holdoff_us: f64,
    /// How often each case ran.
    pub runs: usize,
    /// MLFRR and discard capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// UDP floods below the discard capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flood: Option<Flood>,
    /// The generator's maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beyond: Option<Beyond>,
    /// Network CPU time held at a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<CpuLimit>,
    /// SYN floods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syn: Option<Syns>,
    /// Light load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub light: Option<Light>,
    /// What a verdict costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The RPC mix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<Rpc>,
    /// Floods that come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chaos: Option<Chaos>,
    /// A DNS server during floods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// What it takes to run a guard and to watch it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watching: Option<Watching>,
    /// Floods of servers' own ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<Sources>,
    /// The promised figures.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as a page.
    ///
    /// # Errors
    ///
    /// A plot could not be drawn: our own mistake.
    pub fn page(&self) -> Result<String, PlotError> {
        let cases = self.flood.as_ref().map_or(&[][..], |flood| &flood.cases);
        let flood = |label, unit, of: fn(&FloodCase) -> f64| {
            over_flood(label, unit, cases, |case| {
                (case.protection, case.offered_pps, of(case))
            })
        };
        let figures = [
            flood("Delivered to the flooded server", "packets/s", |case| {
                case.goodput_pps
            }),
            flood("Probes that a bystander loses", "%", |case| {
                loss_percent(case.bystander)
            }),
            flood("A bystander's 99th percentile", "µs", |case| {
                case.bystander.p99_us
            }),
        ];
        let (title, tables) = ("Plimsoll guard bench", self.table());
        page::measured(title, &self.machine, &figures, &self.goals, &tables)
    }

    /// The document as tables.
    #[must_use]
    pub fn table(&self) -> String {
        let parts = [
            self.capacity.as_ref().map(Capacity::table),
            self.flood.as_ref().map(Flood::table),
            self.beyond.as_ref().map(Beyond::table),
            self.cpu_limit.as_ref().map(CpuLimit::table),
            self.syn.as_ref().map(Syns::table),
            self.light.as_ref().map(Light::table),
            self.verdict.as_ref().map(Verdict::table),
            self.rpc.as_ref().map(Rpc::table),
            self.chaos.as_ref().map(Chaos::table),
            self.dns.as_ref().map(Dns::table),
            self.watching.as_ref().map(Watching::table),
            self.sources.as_ref().map(Sources::table),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        parts.join("\n") + conclusion(&self.machine, &self.goals).as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_without_floods_has_no_curve() {
        let document = Document {
            schema: plimsoll_report::SCHEMA,
            machine: Machine::read(None),
            guard_arguments: Vec::new(),
            holdoff_us: 30.0,
            runs: 1,
            capacity: None,
            flood: None,
            beyond: None,
            cpu_limit: None,
            syn: None,
            light: None,
            verdict: None,
            rpc: None,
            chaos: None,
            dns: None,
            watching: None,
            sources: None,
            goals: Vec::new(),
        };
        assert!(!document.page().unwrap().contains("<svg"));
    }
}
