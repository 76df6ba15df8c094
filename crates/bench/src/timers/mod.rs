//! `plimsoll bench timers`: what events of a few microseconds cost a real server.
//!
//! - `slowdown`: how much slower a saturated HTTP server gets by an event every 20 µs, with
//!   soft timers and with the kernel's (section 5.1 of the soft-timers paper).
//! - `polling`: what polling the network by soft timers gains over interrupts, in an HTTP
//!   server on our stack (table XII).
//! - `flows`: how many datagrams of 10,000 paced flows one core sends with our stack.
//! - `spacing`: how evenly one paced stream leaves a CPU that works besides, by soft timers, by
//!   sleeping and by the kernel's TCP (tables VIII and IX).
//! - `deadlines`: what it costs that soft events never come late (section 5.9).
//!
//! The benches of the crate `timers` measure what one check and one event cost, and how late they
//! are in each kind of program; `make bench-timers` runs all.
//!
//! **Limits.** A testbed on this machine: one CPU for the server and its receiving, one
//! for the client.

mod deadlines;
mod flows;
mod polling;
mod slices;
mod slowdown;
mod spacing;
mod table;

use std::path::PathBuf;

use plimsoll_report::{Goal, Machine, SCHEMA};
use serde::Serialize;

use crate::Error;
pub use flows::Flows;
pub use polling::PollingCase;
pub(crate) use polling::{ServerRun, measure_server};
pub(crate) use slices::{Kind as EventKind, begin_slices, measure as measure_events, saturated};
pub use slices::{Slowdown, SlowdownCase};
pub use spacing::SpacingCase;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A saturated server with events, and without.
    Slowdown,
    /// Polling by soft timers in the stack.
    Polling,
    /// Ten thousand paced flows of our stack.
    Flows,
    /// One paced stream beside work, by who sends it.
    Spacing,
    /// The same as `slowdown` with soft events that have deadlines.
    Deadlines,
}

impl Part {
    /// All, in the order in which they run.
    pub const ALL: [Self; 5] = [
        Self::Slowdown,
        Self::Polling,
        Self::Flows,
        Self::Spacing,
        Self::Deadlines,
    ];

    /// Its name on the command line and in its goals' ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slowdown => "slowdown",
            Self::Polling => "polling",
            Self::Flows => "flows",
            Self::Spacing => "spacing",
            Self::Deadlines => "deadlines",
        }
    }
}

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself.
    pub program: PathBuf,
    /// Which parts.
    pub parts: Vec<Part>,
    /// How often each part runs, each time on hosts made anew.
    pub runs: usize,
    /// How long the client of a run asks in the parts `slowdown` and `deadlines`. In this
    /// time all kinds of events take turns.
    pub seconds: u32,
}

impl Plan {
    /// As `plimsoll bench timers` runs without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            parts: Part::ALL.to_vec(),
            runs: 3,
            seconds: 30,
        }
    }
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How often each part ran.
    pub runs: usize,
    /// Servers with events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<Slowdown>,
    /// Servers on our stack, by how they find arrivals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub polling: Vec<PollingCase>,
    /// Paced flows of our stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<Flows>,
    /// One paced stream, by who sends it and how often.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spacing: Vec<SpacingCase>,
    /// Servers with events that have deadlines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Slowdown>,
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

/// Measures the parts one after the other.
///
/// # Errors
///
/// The testbed cannot be made, or a program is missing.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let mut goals = Vec::new();
    let mut slowdown = None;
    if plan.parts.contains(&Part::Slowdown) {
        let measured = slowdown::measure(plan, &mut progress)?;
        goals.extend(slowdown::goals(&measured));
        slowdown = Some(measured);
    }
    let mut polling = Vec::new();
    if plan.parts.contains(&Part::Polling) {
        polling = polling::measure(plan, &mut progress)?;
        goals.extend(polling::goals(&polling));
    }
    let mut flows = None;
    if plan.parts.contains(&Part::Flows) {
        let measured = flows::measure(plan, &mut progress)?;
        goals.extend(flows::goals(&measured));
        flows = Some(measured);
    }
    let mut spacing = Vec::new();
    if plan.parts.contains(&Part::Spacing) {
        spacing = spacing::measure(plan, &mut progress)?;
        goals.extend(spacing::goals(&spacing));
    }
    let mut deadlines = None;
    if plan.parts.contains(&Part::Deadlines) {
        deadlines = Some(deadlines::measure(plan, &mut progress)?);
    }
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        runs: plan.runs,
        slowdown,
        polling,
        flows,
        spacing,
        deadlines,
        goals,
    })
}
