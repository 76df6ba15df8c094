//! `plimsoll bench capture`: how much monitors record without loss, ours beside those
//! that operators take today, and whether rates are right beyond that.
//!
//! UDP frames, the smallest or of mixed lengths, over veth to a host with one CPU, which receives
//! in softirq context, as with an adapter's interrupts. The lossless rate is searched as a router's
//! is (`crate::mlfrr`): a rate has three tries, and counts as lossless when at most
//! 0.1 % of the frames are missing, wherever they were lost: the ring of veth included.
//! With one try a single pause of the machine barred all rates above, and the same
//! monitor's lossless rate differed fivefold between runs.
//!
//! Limits: veth, and a generator on the same machine. Monitors say themselves how much
//! they have recorded. Files go to the directory for temporary files.

mod tool;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Machine, SCHEMA, Side, median};
use plimsoll_testbed::blast::{Blast, Bound, Report, Schedule, Spec, Stop};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::{Config as TestbedConfig, Error as TestbedError, Testbed};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::figures::conclusion;
use crate::mlfrr;
use crate::passing::{Family, KEPT};
use tool::Running;
pub use tool::Tool;

const PORT: u16 = 9;
const HOLDOFF: Duration = Duration::from_micros(50);
/// Another host's addresses: a monitor sees what is for others, and the stack forgets it at once.
const OTHER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 7);
const OTHER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0x77, 7);
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 7];
/// Between which rates a lossless one is searched: within 4 %.
const BOUNDS: mlfrr::Bounds = mlfrr::Bounds {
    lowest_pps: 100_000,
    highest_pps: 6_600_000,
    steps: 7,
};
/// What waits in queues when the generator ends.
const SETTLE: Duration = Duration::from_millis(150);
/// Beyond its lossless rate a monitor of ours is asked for so much more.
const BEYOND: f64 = 2.0;

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sink {
    /// `/dev/null`.
    Null,
    /// A file.
    Disk,
}

impl Sink {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Null, Self::Disk];

    /// As it stands in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Disk => "disk",
        }
    }
}

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `plimsoll` command itself.
    pub program: PathBuf,
    /// How often each search runs.
    pub runs: usize,
    /// How long each rate is offered.
    pub window: Duration,
    /// Versions of IP, and lengths.
    pub families: Vec<Family>,
    /// Where files are written and removed again.
    pub directory: PathBuf,
}

impl Plan {
    /// As `plimsoll bench capture` runs without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            runs: 3,
            window: Duration::from_millis(800),
            families: Family::ALL.to_vec(),
            directory: std::env::temp_dir(),
        }
    }
}

/// A monitor with a sink.
#[derive(Clone, Debug, Serialize)]
pub struct CaptureCase {
    /// The packets.
    pub family: Family,
    /// The monitor.
    pub tool: Tool,
    /// Where its packets went.
    pub sink: Sink,
    /// The highest lossless rate of each run, in packets per second; 0: none.
    pub lossless_pps: Vec<f64>,
    /// Of ours beyond that: by how much the rate in the file was wrong, in percent.
    pub rate_error_percent: Vec<f64>,
    /// Why there is nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl CaptureCase {
    const fn new(family: Family, tool: Tool, sink: Sink) -> Self {
        Self {
            family,
            tool,
            sink,
            lossless_pps: Vec::new(),
            rate_error_percent: Vec::new(),
            why: None,
        }
    }

    /// Searches once more.
    fn measure(&mut self, plan: &Plan, place: &Path) -> Result<(), Error> {
        let site = Site::new(plan, (self.family, self.tool, self.sink), place)?;
        let lossless = site.search()?;
        self.lossless_pps.push(lossless);
        if self.tool.is_ours() {
            let wrong = site.rate_error(lossless.max(BOUNDS.lowest_pps as f64) * BEYOND)?;
            self.rate_error_percent.push(wrong * 100.0);
        }
        Ok(())
    }
}

/// Everything a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of this form.
    pub schema: u32,
    /// Where it was measured.
    pub machine: Machine,
    /// How often each search ran.
    pub runs: usize,
    /// All cases.
    pub cases: Vec<CaptureCase>,
    /// What is promised.
    pub goals: Vec<Goal>,
}

impl Document {
    /// The document as a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = String::from(
            "packets    monitor        sink   lossless packets/s   rate in the file wrong by\n",
        );
        for case in &self.cases {
            let (tool, sink) = (case.tool.name(), case.sink.name());
            let _ = write!(table, "{:<10} ", case.family.name());
            if let Some(why) = &case.why {
                let _ = writeln!(table, "{tool:<14} {sink:<6} {why}");
                continue;
            }
            let lossless = median(&case.lossless_pps).unwrap_or(0.0);
            let error = median(&case.rate_error_percent);
            let error = error.map_or_else(String::new, |error| format!("{error:.2} %"));
            let _ = writeln!(table, "{tool:<14} {sink:<6} {lossless:>18.0}   {error:>25}");
        }
        table + conclusion(&self.machine, &self.goals).as_str()
    }
}

/// Measures all monitors with both sinks, in turns.
///
/// # Errors
///
/// The testbed cannot be made, or a monitor is missing or does not work.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Document, Error> {
    let mut cases = Vec::new();
    for &family in &plan.families {
        for tool in Tool::ALL {
            cases.extend(Sink::ALL.map(|sink| CaptureCase::new(family, tool, sink)));
        }
    }
    let place = tempfile::tempdir_in(&plan.directory).map_err(|source| Error::Traffic {
        action: "make a directory for files",
        source,
    })?;
    for run in 1..=plan.runs {
        for case in cases.iter_mut().filter(|case| case.why.is_none()) {
            let (tool, sink) = (case.tool.name(), case.sink.name());
            let family = case.family.name();
            progress(&format!("run {run}, {family}, {tool} to {sink}"));
            match case.measure(plan, place.path()) {
                Err(error) if is_missing(case.tool, &error) => case.why = Some(with_causes(&error)),
                measured => measured?,
            }
        }
    }
    Ok(Document {
        schema: SCHEMA,
        machine: Machine::read(Some("veth")),
        runs: plan.runs,
        goals: goals(&plan.families, &cases),
        cases,
    })
}

/// Whether the others are measured without this one.
fn is_missing(tool: Tool, error: &Error) -> bool {
    let is_not_there = matches!(error, Error::Testbed(TestbedError::MissingProgram { .. }));
    tool.may_be_missing() && is_not_there
}

fn goals(families: &[Family], cases: &[CaptureCase]) -> Vec<Goal> {
    let mut goals: Vec<Goal> = families
        .iter()
        .flat_map(|family| goals_beside_others(*family, cases))
        .collect();
    let wrong = cases.iter().flat_map(|case| case.rate_error_percent.iter());
    let worst = wrong.copied().reduce(f64::max);
    goals.push(Goal::new(
        "capture.rates",
        "worst error of a rate from the file at twice the lossless rate",
        Side::AtMost,
        1.0,
        "%",
        worst.into_iter().collect(),
    ));
    goals
}

fn goals_beside_others(family: Family, cases: &[CaptureCase]) -> Vec<Goal> {
    let of = |tool: Tool, sink: Sink| {
        cases
            .iter()
            .find(move |case| (case.family, case.tool, case.sink) == (family, tool, sink))
    };
    let family = family.name();
    let mut goals = Vec::new();
    for (tool, mode) in [(Tool::Take, "take"), (Tool::Copy, "copy")] {
        for sink in Sink::ALL {
            let others = Tool::ALL.into_iter().filter(|tool| !tool.is_ours());
            let best = others
                .filter_map(|other| median(&of(other, sink)?.lossless_pps))
                .fold(0.0, f64::max);
            let ours = of(tool, sink).map_or(&[][..], |case| &case.lossless_pps);
            let ratios = ours.iter().filter(|_| best > 0.0).map(|pps| pps / best);
            let sink = sink.name();
            goals.push(Goal::new(
                format!("capture.{mode}.{sink}.{family}"),
                format!("lossless rate of mode {mode} to {sink}, {family}, beside the best other monitor"),
                Side::AtLeast,
                3.0,
                "times",
                ratios.collect(),
            ));
        }
    }
    goals
}

/// Two hosts made anew for one search.
pub(crate) struct Site<'a> {
    plan: &'a Plan,
    family: Family,
    tool: Tool,
    sink: Sink,
    place: &'a Path,
    testbed: Testbed,
}

impl<'a> Site<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        (family, tool, sink): (Family, Tool, Sink),
        place: &'a Path,
    ) -> Result<Self, Error> {
        let testbed = Testbed::create(TestbedConfig::default())?;
        for host in [testbed.load(), testbed.test()] {
            // Its announcements would count as packets.
            let name = format!("net.ipv6.conf.{}.disable_ipv6", host.device());
            host.sysctl(&name, "1")?;
        }
        Placement::Softirq { holdoff: HOLDOFF }.apply(&testbed)?;
        Ok(Self {
            plan,
            family,
            tool,
            sink,
            place,
            testbed,
        })
    }

    /// The highest lossless rate; 0 if there is none.
    fn search(&self) -> Result<f64, Error> {
        let found = mlfrr::search(BOUNDS, |rate_pps| {
            let (report, recorded, _) = self.trial(rate_pps as f64)?;
            // A generator that is late has offered less than this rate.
            let is_kept = report.offered_pps >= rate_pps as f64 * KEPT;
            Ok(is_kept && mlfrr::is_loss_free(report.offered, recorded))
        })?;
        Ok(found.unwrap_or(0.0))
    }

    /// How far what the monitor has counted is from what came to its interface.
    fn rate_error(&self, rate_pps: f64) -> Result<f64, Error> {
        let (report, _, said) = self.trial(rate_pps)?;
        let arrived = report.sent.max(1) as f64;
        let line = said.lines().find(|line| line.ends_with(" received"));
        let received = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        let received = received.ok_or_else(|| Error::Tool {
            tool: self.tool.name(),
            problem: "did not tell what it had received".to_owned(),
        })?;
        Ok((received / arrived - 1.0).abs())
    }

    /// Offers a rate for the window; returns what was sent, what was recorded, and what
    /// the monitor said.
    pub(crate) fn trial(&self, rate_pps: f64) -> Result<(Report, u64, String), Error> {
        let file = match self.sink {
            Sink::Null => PathBuf::from("/dev/null"),
            Sink::Disk => self.place.join("packets"),
        };
        let host = self.testbed.test();
        let log = self.place.join("log");
        let running = Running::start(self.tool, &self.plan.program, host, &file, &log)?;
        let report = self.blast(rate_pps as u64)?;
        thread::sleep(SETTLE);
        let (recorded, said) = running.stop()?;
        if self.sink == Sink::Disk {
            // The next trial writes it anew.
            let _ = std::fs::remove_file(&file);
        }
        Ok((report, recorded, said))
    }

    fn blast(&self, rate_pps: u64) -> Result<Report, Error> {
        let (load, test) = (self.testbed.load(), self.testbed.test());
        let flow = self.family.flow(OTHER_V4, OTHER_V6, PORT);
        let schedule = Schedule::Fixed { rate_pps };
        let mut spec = Spec::new(load.device(), test.mac(), flow, schedule);
        spec.imix = self.family.is_imix();
        spec.destination_mac = OTHER_MAC;
        spec.bound = Bound {
            time: self.plan.window,
            ..Bound::default()
        };
        Ok(load.run_on_cpu(|| Blast::load(&spec)?.run(&Stop::new()))??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_that_is_not_installed_is_said_in_a_line() {
        let missing = || {
            Error::Testbed(TestbedError::MissingProgram {
                program: "xdpdump".to_owned(),
                package: "xdp-tools",
            })
        };
        assert!(is_missing(Tool::Xdpdump, &missing()));
        assert!(!is_missing(Tool::Tcpdump, &missing()));
        let mut case = CaptureCase::new(Family::Ipv4, Tool::Xdpdump, Sink::Null);
        case.why = Some(missing().to_string());
        let document = Document {
            schema: SCHEMA,
            machine: Machine::read(Some("veth")),
            runs: 1,
            goals: Vec::new(),
            cases: vec![case],
        };
        let table = document.table();
        let line = table.lines().find(|line| line.contains("xdpdump"));
        assert!(
            line.is_some_and(|line| line.contains("xdp-tools")),
            "{table}"
        );
    }
}
