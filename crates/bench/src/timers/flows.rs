//! Ten thousand paced flows of our stack's UDP from one core.
//!
//! What deciding alone takes, and what the kernel's sockets take, measures the bench
//! `intervals` of the crate `timers` with the same flows.

use std::time::Duration;

use plimsoll_report::{Goal, Side};
use plimsoll_testbed::paced_flows::PacedFlows;
use serde::Serialize;

use super::Plan;
use crate::Error;

/// 600,000 departures a second in all.
const FLOWS: PacedFlows = PacedFlows {
    flows: 10_000,
    interval: Duration::from_nanos(16_666_667),
    payload_bytes: 1158,
    time: Duration::from_secs(2),
};
const PER_SECOND: f64 = 500_000.0;
const LATE_PERCENT: f64 = 5.0;

/// What left.
#[derive(Clone, Debug, Serialize)]
pub struct Flows {
    /// At a time.
    pub flows: u32,
    /// What their rates add up to.
    pub target_per_s: f64,
    /// Departures per second, a value for each run.
    pub per_s: Vec<f64>,
    /// Those more than one interval late, in percent, a value for each run.
    pub late_percent: Vec<f64>,
}

pub(super) fn measure(plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<Flows, Error> {
    let mut flows = Flows {
        flows: FLOWS.flows,
        target_per_s: f64::from(FLOWS.flows) / FLOWS.interval.as_secs_f64(),
        per_s: Vec::new(),
        late_percent: Vec::new(),
    };
    for run in 1..=plan.runs {
        progress(&format!("run {run}, flows"));
        let departed = FLOWS.run()?;
        flows.per_s.push(departed.per_second());
        flows.late_percent.push(departed.late_percent());
    }
    Ok(flows)
}

pub(super) fn goals(measured: &Flows) -> [Goal; 2] {
    [
        Goal::new(
            "flows_departures",
            "10,000 paced flows of the stack's UDP on one core: departures",
            Side::AtLeast,
            PER_SECOND,
            "/s",
            measured.per_s.clone(),
        ),
        Goal::new(
            "flows_late",
            "10,000 paced flows of the stack's UDP: late by an interval",
            Side::AtMost,
            LATE_PERCENT,
            "%",
            measured.late_percent.clone(),
        ),
    ]
}
