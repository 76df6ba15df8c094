//! `plimsoll bench wan`: transfers over a wide-area path, with slow start and paced, beside
//! the kernel's TCP (Aron & Druschel, tables X and XI: ST-50, ST-51, ST-64).
//!
//! A path of 50 ms each way with a bottleneck ([`plimsoll_testbed::wide_area`]). A client
//! asks for files over persistent connections that were idle, as the paper's did, and
//! measures the response time. Before that each connection fetches a file of 300 packets, so that
//! the client's receive window is open and whoever estimates has something to estimate.
//! Then it is idle for 2.5 s: the kernel halves its window for each timeout of idleness,
//! and ours begins anew after a second.
//!
//! All ways take turns, each on hosts made anew; every other round in reverse order. The
//! server is `plimsoll serve http`, the client's kernel is the same for all.
//!
//! **Limits.** One transfer at a time, no cross traffic and no loss but that of a full
//! queue. Who is paced is told the path's rate: that is what the paper compares. The path
//! is a program, which shares a CPU with the client; its lateness is in the document.

mod goals;
mod round;
mod spacing;
mod table;
mod way;

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Machine, SCHEMA};
use plimsoll_testbed::wide_area::{By, Direction, Report};
use serde::Serialize;

pub(crate) use self::round::measure as measure_round;
pub use self::spacing::Spacing;
pub use self::way::Way;
use crate::Error;
use crate::cases::in_round;
use crate::passing::is_of_all;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself.
    pub program: PathBuf,
    /// How often all ways take turns. In each turn three connections fetch each file.
    pub rounds: usize,
    /// Rates of the bottleneck in Mbit/s.
    pub rates_mbit: Vec<u32>,
    /// Lengths of the files, in packets of 1448 bytes.
    pub packets: Vec<u32>,
    /// Who sends.
    pub ways: Vec<Way>,
    /// How long connections are idle before they are asked.
    pub idle: Duration,
    /// Who carries frames.
    pub path: By,
}

impl Plan {
    /// As `plimsoll bench wan` runs without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            rounds: 2,
            rates_mbit: vec![50, 100],
            packets: vec![5, 100, 1000, 10_000],
            ways: Way::ALL.to_vec(),
            idle: Duration::from_millis(2500),
            path: By::NetemIfThere,
        }
    }
}

/// A way over a path.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Who sends.
    pub way: &'static str,
    /// The bottleneck.
    pub rate_mbit: u32,
    /// Files of each length.
    pub transfers: Vec<Transfer>,
    /// Intervals between full frames of long transfers, as they reached the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spacing: Option<Spacing>,
    /// Frames that found the bottleneck's queue full.
    pub queue_full: u64,
    /// Why there are fewer values than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Files of one length.
#[derive(Clone, Debug, Serialize)]
pub struct Transfer {
    /// In packets of 1448 bytes.
    pub packets: u32,
    /// From the request to the last byte, in milliseconds, a value for each fetch.
    pub response_ms: Vec<f64>,
    /// Median throughput in Mbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_mbit: Option<f64>,
}

/// How exact the path was, over all runs of a rate.
#[derive(Clone, Debug, Serialize)]
pub struct PathFigures {
    /// The bottleneck.
    pub rate_mbit: u32,
    /// Frames delivered, both ways.
    pub frames: u64,
    /// Share of them, in percent, that left within 20 µs of their time.
    pub within_20us_percent: f64,
    /// Half of them were no later, in microseconds.
    pub late_p50_us: f64,
    /// 99 of 100 were no later, in microseconds.
    pub late_p99_us: f64,
    /// Frames that the path itself lost: there should be none.
    pub lost_by_path: u64,
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How often all ways took turns.
    pub rounds: usize,
    /// Who carried the frames: `netem` where the kernel has it, else `relay`, a program.
    pub carried_by: &'static str,
    /// What each way took.
    pub cases: Vec<Case>,
    /// What the path added.
    pub path: Vec<PathFigures>,
    /// What is promised.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as tables.
    #[must_use]
    pub fn table(&self) -> String {
        table::tables(self)
    }
}

/// Measures all ways over all paths, in turns.
///
/// # Errors
///
/// The testbed cannot be made. What one way alone lacks, its case says.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let (mut cases, mut path) = (Vec::new(), Vec::new());
    let mut carried_by = "relay";
    for &rate_mbit in &plan.rates_mbit {
        let (measured, over) = measure(plan, rate_mbit, &mut carried_by, &mut progress)?;
        path.extend(over.map(|over| PathFigures::of(rate_mbit, &over)));
        cases.extend(measured);
    }
    let goals = goals::goals(&cases, &path);
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth, a wide-area path")),
        rounds: plan.rounds,
        carried_by,
        cases,
        path,
        goals,
    })
}

fn measure(
    plan: &Plan,
    rate_mbit: u32,
    carried_by: &mut &'static str,
    progress: &mut impl FnMut(&str),
) -> Result<(Vec<Case>, Option<Direction>), Error> {
    let mut cases: Vec<(Way, Case)> = plan
        .ways
        .iter()
        .map(|way| (*way, Case::new(*way, rate_mbit, &plan.packets)))
        .collect();
    let mut over: Option<Direction> = None;
    for round in 1..=plan.rounds {
        let left = cases.iter_mut().filter(|(_, case)| case.why.is_none());
        for (way, case) in in_round(round, left) {
            let name = way.name();
            progress(&format!("{rate_mbit} Mbit/s, round {round}: {name}"));
            match round::measure(plan, *way, rate_mbit, &mut case.transfers) {
                Ok((report, by)) => {
                    *carried_by = by;
                    case.take(&report);
                    // netem stamps nothing.
                    if by == "relay" {
                        add_path(&mut over, report);
                    }
                }
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    let mut cases: Vec<Case> = cases.into_iter().map(|(_, case)| case).collect();
    for case in &mut cases {
        for transfer in &mut case.transfers {
            transfer.throughput_mbit = transfer.throughput();
        }
    }
    Ok((cases, over))
}

fn add_path(over: &mut Option<Direction>, report: Report) {
    for mut direction in [report.there, report.back] {
        direction.passages.clear();
        match over {
            Some(over) => over.add(&direction),
            None => *over = Some(direction),
        }
    }
}

impl Case {
    fn new(way: Way, rate_mbit: u32, packets: &[u32]) -> Self {
        let transfers = packets.iter().map(|packets| Transfer::of(*packets));
        Self {
            way: way.name(),
            rate_mbit,
            transfers: transfers.collect(),
            spacing: None,
            queue_full: 0,
            why: None,
        }
    }

    /// What the path saw of a round.
    fn take(&mut self, report: &Report) {
        self.queue_full += report.back.queue_full + report.there.queue_full;
        let spacing = Spacing::of(&report.back.passages);
        self.spacing = match (self.spacing, spacing) {
            (Some(before), Some(now)) => Some(before.with(now)),
            (before, now) => before.or(now),
        };
    }
}

impl Transfer {
    /// None was fetched yet.
    pub(crate) fn of(packets: u32) -> Self {
        Self {
            packets,
            response_ms: Vec::new(),
            throughput_mbit: None,
        }
    }

    /// Of the median response time, in Mbit/s.
    pub(crate) fn throughput(&self) -> Option<f64> {
        let millis = plimsoll_report::median(&self.response_ms)?;
        Some(round::bytes(self.packets) as f64 * 8.0 / millis / 1e3)
    }
}

impl PathFigures {
    fn of(rate_mbit: u32, over: &Direction) -> Self {
        let micros = |late: Duration| late.as_nanos() as f64 / 1e3;
        Self {
            rate_mbit,
            frames: over.delivered,
            within_20us_percent: 100.0 * over.share_within(Duration::from_micros(20)),
            late_p50_us: micros(over.lateness(0.5)),
            late_p99_us: micros(over.lateness(0.99)),
            lost_by_path: over.unreceived + over.refused,
        }
    }
}
