//! The flooded sink and its bystander: the maximum loss-free receive rate
//! (MLFRR), and one flood at a time with everything that is measured meanwhile.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_kernel::meter::{CpuMeter, CpuReading};
use plimsoll_testbed::blast::{Report as BlastReport, Schedule};
use plimsoll_testbed::ledger::{Counters, Ledger, Traffic};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};
use plimsoll_testbed::{interrupt, probe};

use serde::Serialize;

use crate::Error;
use crate::cases::Case;
use crate::figures::{Bystander, HostCpu, Losses};
use crate::mlfrr;
use crate::passing::KEPT;
use crate::protection::{Protection, Protector, Stage};
use crate::traffic::{during, join, on_load_host, send, udp_flood};

pub(crate) const SINK_PORT: u16 = 9;
pub(crate) const ECHO_PORT: u16 = 7;
/// The sink's work per packet: what a small real server does.
pub(crate) const SINK_WORK: Duration = Duration::from_micros(2);
/// What an operator of a busy UDP server sets; the kernel's default holds only
/// about 50 frames of this link (see `plimsoll serve --help`).
pub(crate) const SINK_RCVBUF_BYTES: usize = 4 << 20;
const ECHO_RCVBUF_BYTES: usize = 1 << 20;
pub(crate) const PROBE_RATE_PPS: u32 = 2000;
/// An answer later than this is as good as lost to an interactive client.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// Frames may wait this long in the ring of a polling thread that gets no CPU.
const SETTLING: Duration = Duration::from_secs(2);
/// Goodput is also read this often, to see whether it is steady.
const SAMPLE: Duration = Duration::from_millis(100);

pub(crate) const MLFRR_BOUNDS: mlfrr::Bounds = mlfrr::Bounds {
    lowest_pps: 20_000,
    highest_pps: 1_000_000,
    steps: 8,
};

/// What one run measured.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) offered_pps: f64,
    pub(crate) goodput_pps: f64,
    /// Coefficient of variation of the goodput per 100 ms.
    pub(crate) goodput_variation: f64,
    pub(crate) host_cpu: HostCpu,
    pub(crate) bystander: Bystander,
    pub(crate) losses: Losses,
}

/// One load of the sink: medians over the runs; counts are their sums.
#[derive(Clone, Debug, Serialize)]
pub struct UdpCase {
    /// What stood in between.
    pub protection: Protection,
    /// Sent to the sink, packets/s.
    pub offered_pps: f64,
    /// Delivered to the sink, packets/s.
    pub goodput_pps: f64,
    /// Parts of the host's CPU.
    pub host_cpu: HostCpu,
    /// What another server's client saw.
    pub bystander: Bystander,
    /// Where the packets of all runs went.
    pub losses: Losses,
}

impl UdpCase {
    pub(crate) fn over<L>(case: &Case<L, Run>) -> Self {
        Self {
            protection: case.protection,
            offered_pps: case.middle(|run| run.offered_pps),
            goodput_pps: case.middle(|run| run.goodput_pps),
            host_cpu: HostCpu::middle(case, |run| run.host_cpu),
            bystander: Bystander::over(case, |run| run.bystander),
            losses: Losses::over(case, |run| run.losses),
        }
    }
}

/// The server that is flooded.
pub(crate) fn start_sink(stage: &Stage<'_>) -> Result<Server, Error> {
    start_working_sink(stage, SINK_WORK)
}

/// The same with another amount of work per packet.
pub(crate) fn start_working_sink(stage: &Stage<'_>, work: Duration) -> Result<Server, Error> {
    let mut sink = ServerConfig::new(Kind::Sink, SINK_PORT);
    sink.work = work;
    sink.rcvbuf_bytes = Some(SINK_RCVBUF_BYTES);
    Ok(Server::start(stage.host(), stage.program, &sink)?)
}

/// The flooded sink and the bystander.
pub(crate) struct Servers {
    sink: Server,
    echo: Server,
    meter: CpuMeter,
}

impl Servers {
    pub(crate) fn start(stage: &Stage<'_>) -> Result<Self, Error> {
        Self::with_work(stage, SINK_WORK)
    }

    /// The sink works this long per packet.
    pub(crate) fn with_work(stage: &Stage<'_>, work: Duration) -> Result<Self, Error> {
        let host = stage.host();
        let mut echo = ServerConfig::new(Kind::Echo, ECHO_PORT);
        echo.rcvbuf_bytes = Some(ECHO_RCVBUF_BYTES);
        Ok(Self {
            sink: start_working_sink(stage, work)?,
            echo: Server::start(host, stage.program, &echo)?,
            meter: host.cpu_meter()?,
        })
    }

    /// The highest rate without loss on the stock host.
    pub(crate) fn mlfrr(&self, stage: &Stage<'_>) -> Result<f64, Error> {
        let found = self.mlfrr_within(stage, MLFRR_BOUNDS)?;
        found.ok_or(Error::NoLossFreeRate {
            rate_pps: MLFRR_BOUNDS.lowest_pps,
        })
    }

    /// The same within these bounds, if the lowest rate has no loss.
    pub(crate) fn mlfrr_within(
        &self,
        stage: &Stage<'_>,
        bounds: mlfrr::Bounds,
    ) -> Result<Option<f64>, Error> {
        stage.stock()?;
        mlfrr::search(bounds, |rate_pps| self.loses_nothing(stage, rate_pps))
    }

    fn loses_nothing(&self, stage: &Stage<'_>, rate_pps: u64) -> Result<bool, Error> {
        let before = self.sink.counts().received;
        let mut spec = udp_flood(stage, SINK_PORT, Schedule::Fixed { rate_pps });
        spec.bound.time = mlfrr::TRIAL;
        let report = send(stage, &spec)?;
        let received = self.wait_until_quiet()? - before;
        let counts = (report.offered, received);
        Ok(is_shown(rate_pps, report.offered_pps, counts))
    }

    /// All queued packets are worked off; returns what the sink received.
    fn wait_until_quiet(&self) -> Result<u64, Error> {
        let counts = self
            .sink
            .wait_until_quiet(Duration::from_millis(100), Duration::from_secs(20))?;
        Ok(counts.received)
    }

    /// Delivered to the sink from now on for `window`, in packets/s.
    pub(crate) fn goodput(&self, window: Duration) -> Result<f64, Error> {
        let before = self.reading();
        interrupt::sleep(window)?;
        Ok(self.reading().rate_since(&before))
    }

    /// Floods the sink (or does not) for `window` while the bystander is
    /// probed, and accounts for every packet. Ends the protection.
    pub(crate) fn flood(
        &self,
        stage: &Stage<'_>,
        protector: Protector<'_>,
        schedule: Option<Schedule>,
        window: Duration,
    ) -> Result<Run, Error> {
        let nothing = || Ok(());
        let flooded = self.flood_beside(stage, protector, schedule, window, nothing);
        flooded.map(|(run, ())| run)
    }

    /// As [`Servers::flood`], and does `beside` at the same time. The flood goes on until that
    /// has ended as well.
    pub(crate) fn flood_beside<T: Send>(
        &self,
        stage: &Stage<'_>,
        protector: Protector<'_>,
        schedule: Option<Schedule>,
        window: Duration,
        beside: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<(Run, T), Error> {
        self.wait_until_quiet()?;
        let before = (Counters::read(stage.testbed)?, self.received());
        let spec = schedule.map(|schedule| udp_flood(stage, SINK_PORT, schedule));
        let (flood, (window, done)) = during(stage, spec.as_ref(), || {
            thread::scope(|scope| {
                let beside = scope.spawn(beside);
                let measured = self.measure(stage, window);
                let done = join(beside);
                Ok((measured?, done?))
            })
        })?;
        self.wait_until_quiet()?;
        let offered = flood.as_ref().map_or(0, |report| report.offered) + window.bystander.sent;
        let early_discard = protector.stop()?;
        let end = Instant::now() + SETTLING;
        let ledger = loop {
            let traffic = Traffic {
                offered,
                delivered: self.received() - before.1,
                early_discard,
            };
            let ledger = Ledger::between(&before.0, &Counters::read(stage.testbed)?, traffic);
            if ledger.unaccounted == 0 || Instant::now() >= end {
                break ledger;
            }
            interrupt::sleep(SAMPLE)?;
        };
        Ok((window.into_run(flood.as_ref(), Losses::of(&ledger)), done))
    }

    fn received(&self) -> u64 {
        self.sink.counts().received + self.echo.counts().received
    }

    /// The measured window: probes go out, goodput and CPU time are read at
    /// both ends and in between.
    fn measure(&self, stage: &Stage<'_>, window: Duration) -> Result<Window, Error> {
        thread::scope(|scope| {
            let config = probe_config(stage, window);
            let prober = scope.spawn(move || on_load_host(stage, || probe::run(&config)));
            let mut readings = vec![self.reading()];
            let end = readings[0].at + window;
            let slept = loop {
                let left = end.saturating_duration_since(Instant::now());
                let slept = interrupt::sleep(left.min(SAMPLE));
                readings.push(self.reading());
                if slept.is_err() || left <= SAMPLE {
                    break slept;
                }
            };
            let probed = join(prober)?;
            slept?;
            Ok(Window::of(&readings, &probed))
        })
    }

    fn reading(&self) -> Reading {
        Reading {
            at: Instant::now(),
            received: self.sink.counts().received,
            cpu: self.meter.snapshot(),
        }
    }
}

/// What is read at both ends of the window, and now and then inside.
struct Reading {
    at: Instant,
    received: u64,
    cpu: CpuReading,
}

impl Reading {
    fn rate_since(&self, earlier: &Self) -> f64 {
        (self.received - earlier.received) as f64 / (self.at - earlier.at).as_secs_f64()
    }
}

struct Window {
    goodput_pps: f64,
    goodput_variation: f64,
    host_cpu: HostCpu,
    bystander: Bystander,
}

impl Window {
    fn of(readings: &[Reading], probed: &probe::Report) -> Self {
        let [start, .., end] = readings else {
            unreachable!("read at both ends")
        };
        let rates: Vec<f64> = readings
            .windows(2)
            .map(|pair| pair[1].rate_since(&pair[0]))
            .collect();
        Self {
            goodput_pps: end.rate_since(start),
            goodput_variation: variation(&rates),
            host_cpu: HostCpu::of(&end.cpu.since(&start.cpu)),
            bystander: Bystander::of(probed),
        }
    }

    fn into_run(self, flood: Option<&BlastReport>, losses: Losses) -> Run {
        Run {
            offered_pps: flood.map_or(0.0, |report| report.offered_pps),
            goodput_pps: self.goodput_pps,
            goodput_variation: self.goodput_variation,
            host_cpu: self.host_cpu,
            bystander: self.bystander,
            losses,
        }
    }
}

/// Whether a trial that offered so many packets, and of which so many were received, shows that
/// its rate has no loss. A generator that was held up shows it of a lower one.
fn is_shown(rate_pps: u64, offered_pps: f64, (offered, received): (u64, u64)) -> bool {
    let is_kept = offered_pps >= rate_pps as f64 * KEPT;
    is_kept && mlfrr::is_loss_free(offered, received)
}

/// Standard deviation over mean; 0 of nothing.
fn variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.is_empty() || mean <= 0.0 {
        return 0.0;
    }
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / count;
    variance.sqrt() / mean
}

fn probe_config(stage: &Stage<'_>, window: Duration) -> probe::Config {
    probe::Config {
        rate_pps: PROBE_RATE_PPS,
        duration: window,
        timeout: PROBE_TIMEOUT,
        realtime: true,
        ..probe::Config::new(SocketAddr::new(stage.host().ipv4().into(), ECHO_PORT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had passed at any rate: nothing is lost where little is sent.
    #[test]
    fn a_rate_that_was_not_offered_is_not_loss_free() {
        assert!(is_shown(100_000, 99_900.0, (50_000, 49_990)));
        assert!(!is_shown(100_000, 99_900.0, (50_000, 49_000)));
        assert!(!is_shown(100_000, 60_000.0, (30_000, 30_000)));
    }

    #[test]
    fn variation_is_relative_to_the_mean() {
        assert_eq!(variation(&[5.0, 5.0, 5.0]), 0.0);
        assert_eq!(variation(&[0.0, 20.0]), 1.0);
        assert_eq!(variation(&[]), 0.0);
        assert_eq!(variation(&[0.0, 0.0]), 0.0);
    }
}
