//! How much of a flood passes a host with one CPU: the method that `bench forward` and
//! `bench screen` share.
//!
//! The testbed's three hosts: load, the host under test, sink. Packets are counted by
//! the interfaces' own counters, before and after. Whoever passes packets is a `Way`.
//! All ways take turns, each on hosts made anew, so that a noisy machine treats all
//! alike. For each way and IP version the bench searches the MLFRR, and then offers
//! multiples of it.
//!
//! **Limits.** veth. Generator and sink share a CPU, so what can be offered ends at some
//! 4 to 6 million packets a second. A goal about a load that could not be offered stays
//! unmeasured.

mod goals;
mod site;
mod table;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_testbed::Error as TestbedError;
use plimsoll_testbed::blast::{Flow, Transport, imix_payload};
use plimsoll_testbed::placement::Placement;
use serde::Serialize;

use crate::Error;
use crate::cases::in_round;
use crate::mlfrr;
use crate::spoken::Spoken;
pub(crate) use goals::{at_overload, mlfrr_ratio, with_runs};
#[cfg(test)]
pub(crate) use site::PORT;
pub(crate) use site::Site;
pub(crate) use table::curves;

/// Interrupt holdoff of the flooded interface.
pub(crate) const HOLDOFF: Duration = Duration::from_micros(50);
/// The rates of a curve, as multiples of the MLFRR.
const MULTIPLES: [f64; 6] = [0.5, 1.0, 1.5, 2.0, 4.0, OVERLOAD];
/// The overload that is promised about, as a multiple of the MLFRR.
pub(crate) const OVERLOAD: f64 = 10.0;
/// A generator that offered less than this part of a rate has not offered it.
pub(crate) const KEPT: f64 = 0.97;
/// Between which rates an MLFRR is searched.
pub(crate) const BOUNDS: mlfrr::Bounds = mlfrr::Bounds {
    lowest_pps: 20_000,
    highest_pps: 6_000_000,
    steps: 9,
};

/// The version of IP, and how long frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// IPv4, frames of 64 bytes.
    Ipv4,
    /// IPv6, frames of 66 bytes: with UDP it has none of 64.
    Ipv6,
    /// IPv4, frames of 64, 594 and 1518 bytes, seven to four to one.
    Ipv4Imix,
    /// IPv6, the same with 66 instead of 64.
    Ipv6Imix,
}

impl Family {
    /// All.
    pub const ALL: [Self; 4] = [Self::Ipv4, Self::Ipv6, Self::Ipv4Imix, Self::Ipv6Imix];

    /// As it stands in tables and ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Ipv4Imix => "ipv4-imix",
            Self::Ipv6Imix => "ipv6-imix",
        }
    }

    /// Whether it is IPv4.
    #[must_use]
    pub const fn is_ipv4(self) -> bool {
        matches!(self, Self::Ipv4 | Self::Ipv4Imix)
    }

    /// Whether frames have several lengths.
    #[must_use]
    pub const fn is_imix(self) -> bool {
        matches!(self, Self::Ipv4Imix | Self::Ipv6Imix)
    }

    /// UDP packets from some hundred hosts to the one of these that is of this version. With
    /// mixed lengths they are the longest, as [`plimsoll_testbed::blast::Spec::imix`] wants it.
    pub(crate) fn flow(self, v4: Ipv4Addr, v6: Ipv6Addr, port: u16) -> Flow {
        let (source, destination, payload_bytes) = match self.is_ipv4() {
            true => ("198.18.7.0/24", IpAddr::from(v4), 18),
            false => ("2001:2::7:0/120", IpAddr::from(v6), 0),
        };
        let mut flow = Flow {
            source: source.parse().expect("a prefix"),
            source_ports: 1024..=2047,
            destination,
            destination_ports: port..=port,
            transport: Transport::Udp {
                payload: vec![0; payload_bytes],
            },
        };
        if self.is_imix() {
            let payload = imix_payload(&flow);
            flow.transport = Transport::Udp { payload };
        }
        flow
    }
}

/// How long, how often and with what is measured.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The `plimsoll` command itself.
    pub program: PathBuf,
    /// How often all ways take their turns.
    pub runs: usize,
    /// How long each rate of a curve is offered.
    pub window: Duration,
    /// Versions of IP, and lengths.
    pub families: Vec<Family>,
    /// The MLFRR of all ways in packets per second, instead of measuring it.
    pub mlfrr_pps: Option<f64>,
}

impl Effort {
    /// As the commands run without arguments.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            runs: 3,
            window: Duration::from_secs(1),
            families: Family::ALL.to_vec(),
            mlfrr_pps: None,
        }
    }
}

/// Something that passes packets from one interface to the other.
pub(crate) trait Way: Copy {
    /// As it stands in tables.
    fn name(self) -> &'static str;

    /// How the host receives.
    fn placement(self) -> Placement {
        Placement::Softirq { holdoff: HOLDOFF }
    }

    /// Puts it to work.
    fn start(self, site: &Site<'_>) -> Result<Running, Error>;
}

/// A way at work. Dropping it ends it.
pub(crate) enum Running {
    /// The kernel, until its namespace ends.
    Kernel,
    /// A part of this process.
    Held {
        /// What ends it when it is dropped.
        _part: Box<dyn std::any::Any>,
    },
    /// A process.
    Program(Spoken),
}

impl Running {
    /// A part of this process that ends with its value.
    pub(crate) fn held(part: impl std::any::Any) -> Self {
        Self::Held {
            _part: Box::new(part),
        }
    }

    pub(crate) fn stop(self) -> Result<(), Error> {
        let Self::Program(mut spoken) = self else {
            return Ok(());
        };
        let (status, _) = spoken.stop()?;
        if status.success() {
            return Ok(());
        }
        Err(spoken.failed(&format!("ended with {status}")))
    }
}

/// One way with one version of IP.
#[derive(Clone, Debug, Serialize)]
pub struct PassingCase {
    /// The way.
    pub way: &'static str,
    /// The version of IP.
    pub family: Family,
    /// What each run measured.
    pub runs: Vec<PassingRun>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One run of a way.
#[derive(Clone, Debug, Serialize)]
pub struct PassingRun {
    /// The highest rate without loss, in packets per second; 0: none.
    pub mlfrr_pps: f64,
    /// How it came about.
    pub mlfrr_is: Mlfrr,
    /// Offered and passed, from light to heavy.
    pub curve: Vec<Point>,
}

/// How an MLFRR came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mlfrr {
    /// The search ended at a loss.
    Measured,
    /// The search ended at what the generator can offer: it may be higher.
    AtLeast,
    /// Somebody gave it, and nothing is promised about such a rate.
    Given,
}

/// One rate of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// What was to be offered, as a multiple of the MLFRR.
    pub multiple: f64,
    /// What was offered, in packets per second.
    pub offered_pps: f64,
    /// What left by the output interface while the flood lasted, in packets per second.
    pub passed_pps: f64,
    /// Where the packets went.
    pub counts: PassingCounts,
}

/// Where packets went. `offered` = `ring_full` + `failed` + `received`, and `received`
/// is `passed` + `sink_full` and what the host lost or refused.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PassingCounts {
    /// Sent by the generator.
    pub offered: u64,
    /// Lost at the host's full receive ring.
    pub ring_full: u64,
    /// Refused by the link.
    pub failed: u64,
    /// Taken by the host's input interface.
    pub received: u64,
    /// Left by the output interface, also after the flood.
    pub passed: u64,
    /// Sent, but the sink's ring was full.
    pub sink_full: u64,
}

impl PassingCounts {
    /// Whether no packet can be on its way: the rings took the others.
    fn is_all_passed(&self) -> bool {
        let taken = self.received + self.ring_full + self.failed;
        taken >= self.offered && self.passed + self.sink_full >= self.received
    }
}

impl PassingRun {
    /// The most that passed, in packets per second.
    pub(crate) fn peak_pps(&self) -> f64 {
        let passed = self.curve.iter().map(|point| point.passed_pps);
        passed.fold(0.0, f64::max)
    }
}

/// What came of a rate.
pub(crate) struct Tried {
    pub(crate) offered: u64,
    pub(crate) offered_pps: f64,
    pub(crate) passed: u64,
}

/// The highest rate that `trial` shows to be loss-free, 0 if there is none, and where
/// the search ended.
pub(crate) fn search_mlfrr(
    bounds: mlfrr::Bounds,
    mut trial: impl FnMut(f64) -> Result<Tried, Error>,
) -> Result<(f64, Mlfrr), Error> {
    // The lowest rates that were not offered, and that had losses.
    let (mut missed, mut lost) = (f64::INFINITY, f64::INFINITY);
    let found = mlfrr::search(bounds, |rate_pps| {
        let rate = rate_pps as f64;
        let tried = trial(rate)?;
        let is_free = mlfrr::is_loss_free(tried.offered, tried.passed);
        let is_kept = tried.offered_pps >= rate * KEPT;
        if !is_free {
            lost = lost.min(rate);
        } else if !is_kept {
            missed = missed.min(rate);
        }
        Ok(is_free && is_kept)
    })?;
    let ended = match missed < lost {
        true => Mlfrr::AtLeast,
        false => Mlfrr::Measured,
    };
    Ok((found.unwrap_or(0.0), ended))
}

/// Measures all ways, in turns.
pub(crate) fn measure<W: Way>(
    effort: &Effort,
    ways: &[W],
    mut progress: impl FnMut(&str),
) -> Result<Vec<PassingCase>, Error> {
    let mut cases: Vec<(W, PassingCase)> = Vec::new();
    for &family in &effort.families {
        cases.extend(
            ways.iter()
                .map(|&way| (way, PassingCase::new(way.name(), family))),
        );
    }
    for run in 1..=effort.runs {
        let left = cases.iter_mut().filter(|(_, case)| case.why.is_none());
        for (way, case) in in_round(run, left) {
            let (name, family) = (case.way, case.family);
            progress(&format!("run {run}, {}: {name}", family.name()));
            match one_run(effort, *way, family) {
                Ok(run) => case.runs.push(run),
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(cases.into_iter().map(|(_, case)| case).collect())
}

/// Whether no other way can be measured either.
pub(crate) fn is_of_all(error: &Error) -> bool {
    let of_one = matches!(error, Error::Testbed(TestbedError::MissingProgram { .. }));
    error.is_fatal() && !of_one
}

impl PassingCase {
    pub(crate) fn new(way: &'static str, family: Family) -> Self {
        Self {
            way,
            family,
            runs: Vec::new(),
            why: None,
        }
    }
}

fn one_run(effort: &Effort, way: impl Way, family: Family) -> Result<PassingRun, Error> {
    let site = Site::new(effort, family)?;
    let running = site.start(way)?;
    let (mlfrr_pps, mlfrr_is) = match effort.mlfrr_pps {
        Some(given) => (given, Mlfrr::Given),
        None => site.mlfrr()?,
    };
    let mut curve = Vec::new();
    for multiple in MULTIPLES {
        let rate_pps = mlfrr_pps.max(BOUNDS.lowest_pps as f64) * multiple;
        curve.push(site.trial(rate_pps, effort.window)?.into_point(multiple));
    }
    running.stop()?;
    Ok(PassingRun {
        mlfrr_pps,
        mlfrr_is,
        curve,
    })
}
