//! Trigger states of this machine under a workload, as sections 5.2 to 5.4 of
//! the soft-timers paper measured them: `plimsoll triggers`.
//!
//! A workload runs twice: without the probes and with them, where it has a rate
//! of its own, so that the cost of probing is a measured figure.

mod curves;
mod directory;
mod document;
mod table;
mod workload;

use std::time::Duration;

use plimsoll_testbed::interrupt;
use plimsoll_timers_bpf::{Analysis, ProbeCost, Record, Recorder, State};

use crate::Error;
pub use document::{Document, Measured, OfCpu};
use workload::Load;
pub use workload::Workload;

/// How a workload is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long states are recorded.
    pub seconds: u32,
    /// The most states recorded per CPU, 8 bytes each. The paper took two
    /// million of each workload.
    pub states: u32,
}

/// Before anything is recorded, so that caches are warm and connections made.
const WARM_UP: Duration = Duration::from_millis(500);

/// Measures one workload after the other; `progress` is told which comes next.
///
/// # Errors
///
/// The recorder cannot be attached, or a workload lacks a program.
pub fn measure(
    workloads: &[Workload],
    plan: Plan,
    mut progress: impl FnMut(&str),
) -> Result<Document, Error> {
    // Before there is anything to be left behind; not every workload makes a testbed.
    interrupt::install()?;
    progress("cost of the probes");
    let cost = ProbeCost::measure()?;
    let mut measured = Vec::new();
    for &workload in workloads {
        progress(workload.name());
        measured.push(measure_one(workload, plan)?);
    }
    Ok(Document::new(cost, measured))
}

fn measure_one(workload: Workload, plan: Plan) -> Result<Measured, Error> {
    let recorded = record(workload, plan)?;
    let probed = recorded.work_per_s;
    // The same again, unprobed.
    let unprobed = match probed {
        Some(_) => {
            let load = Load::start(workload, plan.seconds)?;
            interrupt::sleep(WARM_UP + Duration::from_secs(plan.seconds.into()))?;
            load.stop()?
        }
        None => None,
    };
    Ok(Measured {
        workload,
        cpu: recorded.cpu,
        analysis: recorded.analysis,
        cpus: recorded.cpus,
        lost: recorded.lost,
        work_per_s: unprobed,
        work_per_s_probed: probed,
    })
}

/// A workload's trigger states, while it was probed.
pub(crate) struct Recorded {
    pub(crate) analysis: Analysis,
    cpus: Vec<OfCpu>,
    cpu: Option<usize>,
    lost: u64,
    work_per_s: Option<f64>,
}

/// Runs a workload once, with the probes.
pub(crate) fn record(workload: Workload, plan: Plan) -> Result<Recorded, Error> {
    let mut recorder = Recorder::attach(plan.states)?;
    // The work is counted from here on and to its end, so all of it is probed.
    recorder.start()?;
    let load = Load::start(workload, plan.seconds)?;
    interrupt::sleep(WARM_UP)?;
    // What came before is forgotten.
    recorder.start()?;
    interrupt::sleep(Duration::from_secs(plan.seconds.into()))?;
    let reached = recorder.reached()?;
    let cpu = load.cpu();
    let work_per_s = load.stop()?;
    // Reading takes a CPU, which the workload has no more need of.
    let record = recorder.read(&reached);
    drop(recorder);
    Ok(Recorded {
        work_per_s,
        analysis: analyse(&record, cpu),
        cpus: OfCpu::each(&record),
        lost: record.lost,
        cpu,
    })
}

/// Of the CPU that the workload is bound to, or of all.
fn analyse(record: &Record, cpu: Option<usize>) -> Analysis {
    let cpus: Vec<&[State]> = match cpu {
        Some(cpu) => record
            .cpus
            .get(cpu)
            .map(Vec::as_slice)
            .into_iter()
            .collect(),
        None => record.cpus.iter().map(Vec::as_slice).collect(),
    };
    Analysis::of(&cpus)
}
