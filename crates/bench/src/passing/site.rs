//! The three hosts of one measurement, and the floods that cross them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_testbed::blast::{Blast, Bound, Report, Spec, Stop};
use plimsoll_testbed::routed::{Routed, SINK_IPV4, SINK_IPV6, Sink};
use plimsoll_testbed::{Config as TestbedConfig, INNER_DEVICE};

use super::{
    BOUNDS, Effort, Family, Mlfrr, PassingCounts, Point, Running, Tried, Way, search_mlfrr,
};
use crate::traffic::fixed_or_unlimited;
use crate::{Error, mlfrr};

/// The port that packets are for, which the last of four rules accepts.
pub(crate) const PORT: u16 = 9;

/// Hosts made anew, and a place for files.
pub(crate) struct Site<'a> {
    pub(crate) effort: &'a Effort,
    pub(crate) hosts: Routed,
    pub(crate) family: Family,
    place: tempfile::TempDir,
}

/// What one flood did.
pub(crate) struct Trial {
    pub(crate) report: Report,
    pub(crate) crossed: Crossed,
}

/// What crossed the host of a flood.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crossed {
    /// Packets per second, while the flood lasted: what queues hold then comes later.
    pub(crate) passed_pps: f64,
    /// Where all packets went in the end.
    pub(crate) counts: PassingCounts,
}

impl<'a> Site<'a> {
    pub(crate) fn new(effort: &'a Effort, family: Family) -> Result<Self, Error> {
        Self::with(effort, family, Sink::Drops)
    }

    /// With a sink of this kind.
    pub(crate) fn with(effort: &'a Effort, family: Family, sink: Sink) -> Result<Self, Error> {
        let place = tempfile::tempdir().map_err(|source| Error::Traffic {
            action: "make a directory for files",
            source,
        })?;
        Ok(Self {
            effort,
            hosts: Routed::create(TestbedConfig::default(), sink)?,
            family,
            place,
        })
    }

    /// A path for a file that ends with the site.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The `plimsoll` command.
    pub(crate) fn program(&self) -> &Path {
        &self.effort.program
    }

    /// The input and the output interface of the host under test.
    pub(crate) fn devices(&self) -> [&'static str; 2] {
        [self.hosts.router().device(), INNER_DEVICE]
    }

    /// Places receive work and starts the way. A program in the driver leaves the
    /// placement as it is, since GRO has made the interface's NAPI instance before.
    pub(crate) fn start(&self, way: impl Way) -> Result<Running, Error> {
        self.hosts.place(way.placement())?;
        way.start(self)
    }

    /// The MLFRR, 0 if there is none, and where the search ended.
    pub(crate) fn mlfrr(&self) -> Result<(f64, Mlfrr), Error> {
        search_mlfrr(BOUNDS, |rate_pps| {
            let trial = self.trial(rate_pps, mlfrr::TRIAL)?;
            Ok(Tried {
                offered: trial.crossed.counts.offered,
                offered_pps: trial.report.offered_pps,
                passed: trial.crossed.counts.passed,
            })
        })
    }

    /// Offers a rate for a time.
    pub(crate) fn trial(&self, rate_pps: f64, window: Duration) -> Result<Trial, Error> {
        let before = self.read()?;
        let spec = self.flood(rate_pps, window);
        let load = self.hosts.load();
        let report = load.run_on_cpu(|| Blast::load(&spec)?.run(&Stop::new()))??;
        let crossed = self.crossed_since(&before, &report)?;
        Ok(Trial { report, crossed })
    }

    /// What interfaces have counted: received, passed, not taken by the sink.
    pub(crate) fn read(&self) -> Result<[u64; 3], Error> {
        let (router, [input, output]) = (self.hosts.router(), self.devices());
        Ok([
            self.hosts.counter(router, input, "rx_packets")?,
            self.hosts.sent()?,
            self.hosts.counter(router, output, "tx_dropped")?,
        ])
    }

    /// Where the packets of a flood went that has just ended, once none of them is on its way
    /// any more.
    pub(crate) fn crossed_since(
        &self,
        before: &[u64; 3],
        report: &Report,
    ) -> Result<Crossed, Error> {
        let now = || -> Result<PassingCounts, Error> {
            let after = self.read()?;
            let [received, passed, sink_full] = [0, 1, 2].map(|place| after[place] - before[place]);
            Ok(PassingCounts {
                offered: report.offered,
                ring_full: report.ring_full,
                failed: report.failed,
                received,
                passed,
                sink_full,
            })
        };
        let counts = now()?;
        let crossed = Crossed {
            passed_pps: counts.passed as f64 / report.elapsed_s.max(f64::EPSILON),
            counts,
        };
        if counts.is_all_passed() {
            return Ok(crossed);
        }
        self.hosts.settled()?;
        Ok(Crossed {
            counts: now()?,
            ..crossed
        })
    }

    /// UDP packets, the smallest or of mixed lengths, from some hundred hosts to the sink.
    pub(crate) fn flood(&self, rate_pps: f64, window: Duration) -> Spec {
        let flow = self.family.flow(SINK_IPV4, SINK_IPV6, PORT);
        let schedule = fixed_or_unlimited(rate_pps);
        let (load, router) = (self.hosts.load(), self.hosts.router());
        let mut spec = Spec::new(load.device(), router.mac(), flow, schedule);
        spec.imix = self.family.is_imix();
        spec.bound = Bound {
            time: window,
            ..Bound::default()
        };
        spec
    }
}

impl Trial {
    pub(crate) fn into_point(self, multiple: f64) -> Point {
        Point {
            multiple,
            offered_pps: self.report.offered_pps,
            passed_pps: self.crossed.passed_pps,
            counts: self.crossed.counts,
        }
    }
}
