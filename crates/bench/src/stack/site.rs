//! The two hosts of one measurement, the floods between them, and what is counted.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_testbed::blast::{Blast, Bound, Flow, Report, Spec, Stop, Transport};
use plimsoll_testbed::burner::Burner;
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::server::{Config as ServerConfig, Kind};
use plimsoll_testbed::{Config as TestbedConfig, Testbed, interrupt};

use super::Effort;
use super::side::{Running, Side, TESTPMD_SAYS};
use crate::passing::{HOLDOFF, KEPT, Mlfrr, PassingCounts, Point, Tried, search_mlfrr};
use crate::traffic::{TIME_BOUND, device_counter, during_flood_of, fixed_or_unlimited};
use crate::{Error, mlfrr};

/// The flooded port.
pub(crate) const PORT: u16 = 9;
/// Ethernet, IPv4 and UDP headers and this make 60 bytes, 64 with the check sequence.
const PAYLOAD_BYTES: usize = 18;
/// Where nothing moves for so long, queues are empty.
const QUIET: Duration = Duration::from_millis(40);
/// As for a testpmd, which says what it has counted only so often.
const TESTPMD_QUIET: Duration = Duration::from_millis(1100 * TESTPMD_SAYS);
const SETTLING_LIMIT: Duration = Duration::from_secs(5);

/// Two hosts made anew, and a place for files.
pub(crate) struct Site<'a> {
    effort: &'a Effort,
    /// Detached before the hosts go.
    _dropping: Option<Burner>,
    pub(crate) testbed: Testbed,
    place: tempfile::TempDir,
    /// What each packet of a flood carries.
    payload: Vec<u8>,
}

/// What becomes of answers at the load host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// They are received, as by any host.
    Received,
    /// They are dropped in the driver: for counting.
    Dropped,
}

/// What one flood did.
struct Trial {
    report: Report,
    arrived: u64,
}

impl<'a> Site<'a> {
    /// The host receives in softirq context on its own CPU, as with an adapter.
    pub(crate) fn new(effort: &'a Effort, answers: Answers) -> Result<Self, Error> {
        let testbed = linked()?;
        Placement::Softirq { holdoff: HOLDOFF }.apply(&testbed)?;
        let dropping = match answers {
            Answers::Received => None,
            Answers::Dropped => Some(testbed.drop_answers()?),
        };
        Self::on(effort, testbed, dropping)
    }

    /// Receive work happens wherever veth puts it: on the sender's CPU.
    pub(crate) fn plain(effort: &'a Effort) -> Result<Self, Error> {
        Self::on(effort, linked()?, None)
    }

    fn on(effort: &'a Effort, testbed: Testbed, dropping: Option<Burner>) -> Result<Self, Error> {
        let place = tempfile::tempdir().map_err(|source| Error::Traffic {
            action: "make a directory for files",
            source,
        })?;
        Ok(Self {
            effort,
            _dropping: dropping,
            testbed,
            place,
            payload: vec![0; PAYLOAD_BYTES],
        })
    }

    /// Floods carry this instead of nothing.
    pub(crate) fn asking(self, payload: Vec<u8>) -> Self {
        Self { payload, ..self }
    }

    /// A path for a file that ends with the site.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The `plimsoll` command.
    pub(crate) fn program(&self) -> &Path {
        &self.effort.program
    }

    pub(crate) fn effort(&self) -> &Effort {
        self.effort
    }

    /// The MLFRR of what runs, 0 if there is none, and where the search ended.
    pub(crate) fn mlfrr(
        &self,
        running: &Running,
        kind: Kind,
        bounds: mlfrr::Bounds,
    ) -> Result<(f64, Mlfrr), Error> {
        if let Some(given) = self.effort.mlfrr_pps {
            return Ok((given, Mlfrr::Given));
        }
        search_mlfrr(bounds, |rate_pps| {
            let trial = self.trial(running, kind, rate_pps)?;
            Ok(Tried {
                offered: trial.report.offered,
                offered_pps: trial.report.offered_pps,
                passed: trial.arrived,
            })
        })
    }

    /// The highest rate of which what runs loses less than 1 percent, searched from above;
    /// 0 if there is none.
    pub(crate) fn nearly_loss_free(
        &self,
        running: &Running,
        kind: Kind,
        bounds: mlfrr::Bounds,
    ) -> Result<f64, Error> {
        let found = mlfrr::search_from_above(bounds, |rate_pps| {
            let rate_pps = rate_pps as f64;
            let Trial { report, arrived } = self.trial(running, kind, rate_pps)?;
            let is_free = mlfrr::is_nearly_loss_free(report.offered, arrived);
            Ok(is_free && report.offered_pps >= rate_pps * KEPT)
        })?;
        Ok(found.unwrap_or(0.0))
    }

    /// Offers a rate for the time of a trial, and counts until nothing moves.
    fn trial(&self, running: &Running, kind: Kind, rate_pps: f64) -> Result<Trial, Error> {
        let before = self.arrived(running, kind)?;
        let mut spec = self.flood(rate_pps);
        spec.bound.time = self.effort.trial;
        let load = self.testbed.load();
        let report = load.run_on_cpu(|| Blast::load(&spec)?.run(&Stop::new()))??;
        let arrived = self.settled(running, kind)? - before;
        Ok(Trial { report, arrived })
    }

    /// Offers a rate and reads for `window` what arrives meanwhile.
    pub(crate) fn overload(
        &self,
        running: &Running,
        kind: Kind,
        (multiple, rate_pps): (f64, f64),
        window: Duration,
    ) -> Result<Point, Error> {
        let spec = self.flood(rate_pps);
        let (report, passed) = during_flood_of(self.testbed.load(), Some(&spec), || {
            interrupt::sleep(self.effort.settling())?;
            let (before, begun) = (self.arrived(running, kind)?, Instant::now());
            interrupt::sleep(window)?;
            let arrived = self.arrived(running, kind)? - before;
            Ok((arrived, begun.elapsed().as_secs_f64()))
        })?;
        let report = report.expect("there is a flood");
        self.settled(running, kind)?;
        Ok(Point {
            multiple,
            offered_pps: report.offered_pps,
            passed_pps: passed.0 as f64 / passed.1,
            counts: PassingCounts {
                offered: report.offered,
                ring_full: report.ring_full,
                failed: report.failed,
                received: report.sent,
                passed: passed.0,
                sink_full: 0,
            },
        })
    }

    /// Packets that a server has got, or answers that have left the host.
    fn arrived(&self, running: &Running, kind: Kind) -> Result<u64, Error> {
        match kind {
            Kind::Echo | Kind::Dns => {
                let count = |name| device_counter(self.testbed.test(), name);
                // What the load host's ring did not take has left nevertheless.
                Ok(count("tx_packets")? + count("tx_dropped")?)
            }
            Kind::Sink | Kind::Rpc | Kind::Http => Ok(running.received()),
        }
    }

    fn settled(&self, running: &Running, kind: Kind) -> Result<u64, Error> {
        let quiet = match (running, kind) {
            (Running::Testpmd(_), Kind::Sink) => TESTPMD_QUIET,
            _ => QUIET,
        };
        let end = Instant::now() + SETTLING_LIMIT;
        let mut before = self.arrived(running, kind)?;
        loop {
            interrupt::sleep(quiet)?;
            let now = self.arrived(running, kind)?;
            if now == before || Instant::now() >= end {
                return Ok(now);
            }
            before = now;
        }
    }

    /// The settings of a UDP server on one side.
    pub(crate) fn udp_server(&self, side: Side, kind: Kind, port: u16) -> ServerConfig {
        let test = self.testbed.test();
        let mut config = side.server(kind, port, test.device());
        if side == Side::Kernel {
            // The kernel's best: a socket of all addresses asks of each datagram where it came to.
            config.address.push(IpAddr::from(test.ipv4()).into());
        }
        let place = self.effort.threaded;
        if side.takes(place) {
            config.threaded = Some(place);
        }
        config
    }

    /// The smallest UDP packets from some hundred hosts to the flooded port.
    pub(crate) fn flood(&self, rate_pps: f64) -> Spec {
        let (load, test) = (self.testbed.load(), self.testbed.test());
        let flow = Flow {
            source: "198.18.7.0/24".parse().expect("a prefix"),
            source_ports: 1024..=2047,
            destination: test.ipv4().into(),
            destination_ports: PORT..=PORT,
            transport: Transport::Udp {
                payload: self.payload.clone(),
            },
        };
        let schedule = fixed_or_unlimited(rate_pps);
        let mut spec = Spec::new(load.device(), test.mac(), flow, schedule);
        spec.bound = Bound {
            time: TIME_BOUND,
            ..Bound::default()
        };
        spec.cpu = Some(load.cpu());
        spec
    }
}

fn linked() -> Result<Testbed, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    let load = testbed.load();
    // Frames of ordinary sockets leave their checksums to an adapter that is none.
    load.configure("ethtool", ["-K", load.device(), "tx", "off"])?;
    Ok(testbed)
}
