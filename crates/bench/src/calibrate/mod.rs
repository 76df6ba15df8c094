//! What today's host costs, measured on this machine: the trials of
//! `plimsoll lab calibrate`, by their names in [`plimsoll_lab::calibrate::TRIALS`].
//!
//! All trials take turns, round after round, since a machine drifts. In each round the
//! test host is put into four states: polled by a timer in softirq context ([`stock`]),
//! the same with an XDP program in the driver ([`driver`]) or with the guard ([`guarded`]),
//! and polled by a thread ([`threaded`]). CPU time is that of the kernel crate's meter,
//! which books each nanosecond of the test host's CPU. From every network time of a host
//! that a timer polls, but the timer's own, the round's cost of so many empty timer runs is
//! taken off.
//!
//! **Limits.** A veth link is no adapter: its poll touches no device memory. What a
//! hypervisor takes between an interrupt and its handler is booked on whoever ran, and so
//! in no trial. Other work of the machine cools caches and stretches intervals: the spread
//! over the repeats shows it, and no trial corrects for it.

mod driver;
mod guarded;
mod site;
mod stock;
mod threaded;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use plimsoll_lab::calibrate::{Calibration, Place, Round};
use plimsoll_report::{Machine, date};
use plimsoll_testbed::{Config as TestbedConfig, Testbed};

use crate::Error;
use crate::protection::Stage;
use crate::traffic::RAMP_UP;
use site::Site;

/// How long the test host's timer waits between two polls: long enough that its own cost,
/// which is taken off, is small, and short enough for the ring at every rate of a trial.
const HOLDOFF: Duration = Duration::from_micros(100);

/// What is done to measure a machine's costs.
#[derive(Clone, Debug)]
pub struct CalibrationPlan {
    /// The `plimsoll` command itself, which is started as servers and guard.
    pub program: PathBuf,
    /// How often each trial is repeated.
    pub repeats: u32,
    /// How long each trial measures.
    pub window: Duration,
}

/// Measures what this machine's host costs. `progress` is told of rounds done, of how many.
///
/// # Errors
///
/// This host cannot make a testbed or lacks a program, a trial did not do what it is there
/// for, or somebody ended the run.
pub fn calibrate(
    plan: &CalibrationPlan,
    progress: &(dyn Fn(u32, u32) + Sync),
) -> Result<Calibration, Error> {
    let place = Place {
        date: date(SystemTime::now()),
        machine: Machine::read(Some("veth")),
        window_ms: plan.window.as_secs_f64() * 1e3,
    };
    let testbed = Testbed::create(TestbedConfig::default())?;
    // A setting of the machine, which a namespace does not show.
    let max_backlog = length("/proc/sys/net/core/netdev_max_backlog")?;
    // The meter looks for the interface in the namespace of its thread.
    let rounds = || rounds(&testbed, plan, max_backlog, progress);
    let rounds = testbed.test().run(rounds)??;
    Calibration::new(place, &rounds).map_err(|error| Error::Tool {
        tool: "calibration",
        problem: error.to_string(),
    })
}

fn rounds(
    testbed: &Testbed,
    plan: &CalibrationPlan,
    max_backlog: f64,
    progress: &(dyn Fn(u32, u32) + Sync),
) -> Result<Vec<Round>, Error> {
    let stage = Stage {
        testbed,
        program: Path::new(&plan.program),
        holdoff: HOLDOFF,
        ramp_up: RAMP_UP,
        guard_arguments: &[],
    };
    let device = stage.host().device();
    let tx_queue = length(&format!("/sys/class/net/{device}/tx_queue_len"))?;
    let mut site = Site::start(stage, plan.window)?;
    let mut rounds = Vec::new();
    for done in 0..plan.repeats {
        progress(done, plan.repeats);
        let mut round = Round::from([("max_backlog", max_backlog), ("tx_queue", tx_queue)]);
        stock::run(&mut site, &mut round)?;
        driver::run(&mut site, &mut round)?;
        guarded::run(&site, &mut round)?;
        threaded::run(&site, &mut round)?;
        rounds.push(round);
    }
    Ok(rounds)
}

/// A queue's length, as a setting says.
fn length(path: &str) -> Result<f64, Error> {
    let text = fs::read_to_string(path).map_err(site::traffic("read a queue's length"))?;
    text.trim().parse().map_err(|_| Error::Tool {
        tool: "calibration",
        problem: format!("{path} holds {text:?}"),
    })
}
