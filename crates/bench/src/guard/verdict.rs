//! What a verdict costs, by the kernel's test-run facility.
//!
//! Measured by `make bench-verdict`, which loads the program into this process
//! instead of running the command; here its document is read.

use std::fmt::Write as _;
use std::fs;

use plimsoll_report::{Goal, Side, median};
use serde::{Deserialize, Serialize};

use super::{Bench, Measured};
use crate::Error;

/// What the bench calls the frames that promises are made for.
const LOOKED_UP: &str = "UDP, connected socket: looked up";
const KNOWN_FULL: &str = "UDP, full socket: discarded";
const SHARED_FULL: &str = "UDP, full socket that shares its port";
const GROUP_FULL: &str = "UDP, full group of four";

/// What a verdict costs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// By kind of frame.
    pub frames: Vec<VerdictFrame>,
}

/// One kind of frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerdictFrame {
    /// What it is.
    pub frame: String,
    /// Nanoseconds per packet of each run, the facility's own cost included.
    pub ns: Vec<f64>,
    /// The same of a program that does nothing, on the same frame by turns.
    pub empty_ns: Vec<f64>,
}

/// As it was read.
#[derive(Debug, Default)]
pub(super) struct Outcome(Verdict);

/// The part of the other bench's document that is read.
#[derive(Deserialize)]
struct Document {
    results: Verdict,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let file = &bench.plan.verdict;
    let problem = |problem: String| Error::Document {
        file: file.display().to_string(),
        problem,
    };
    let text = fs::read_to_string(file)
        .map_err(|error| problem(format!("{error}: `make bench-verdict` writes it")))?;
    let document: Document =
        serde_json::from_str(&text).map_err(|error| problem(error.to_string()))?;
    Ok(Outcome(document.results))
}

impl Measured for Outcome {
    type Section = Verdict;

    fn section(&self) -> Verdict {
        self.0.clone()
    }

    fn goals(&self) -> Vec<Goal> {
        let goal = |id: &str, what: &str, frame: &str, nanos: f64| {
            let frames = &self.0.frames;
            let found = frames.iter().find(|measured| measured.frame == frame);
            let runs = found.map_or_else(Vec::new, VerdictFrame::net);
            Goal::new(id, what, Side::AtMost, nanos, "ns", runs)
        };
        vec![
            goal(
                "verdict/lookup",
                "a verdict with socket look-up, net",
                LOOKED_UP,
                100.0,
            ),
            goal(
                "verdict/known-full",
                "a verdict for a channel known to be full, net",
                KNOWN_FULL,
                12.0,
            ),
            goal(
                "verdict/known-full-shared",
                "the same for a socket that shares its port (SO_REUSEADDR), net",
                SHARED_FULL,
                12.0,
            ),
            goal(
                "verdict/known-full-group",
                "the same for a group of sockets (SO_REUSEPORT), net",
                GROUP_FULL,
                12.0,
            ),
        ]
    }
}

impl VerdictFrame {
    /// Nanoseconds of each run without what the facility itself takes.
    fn net(&self) -> Vec<f64> {
        let facility = median(&self.empty_ns).unwrap_or(0.0);
        self.ns.iter().map(|ns| ns - facility).collect()
    }
}

impl Verdict {
    pub(super) fn table(&self) -> String {
        let mut text =
            "ns per verdict, by the kernel's test-run facility, whose own cost is taken off\n"
                .to_owned();
        for measured in &self.frames {
            let net = median(&measured.net()).unwrap_or(f64::NAN);
            let _ = writeln!(text, "{:<44}{net:>6.0}", measured.frame);
        }
        text
    }
}
