//! The UDP flood: MLFRR first, then floods, stock and guarded in turns.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_testbed::blast::{
    Blast, Bound, Flow, Report as BlastReport, Schedule, Spec, Stop, Transport,
};
use plimsoll_testbed::cpu_meter::{CpuMeter, Snapshot};
use plimsoll_testbed::ledger::{Counters, Ledger, Traffic};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};
use plimsoll_testbed::{interrupt, probe};

use super::Stage;
use super::cases::{Case, Cases};
use super::document::{Bystander, HostCpu, Losses, Protection, Udp, UdpCase};
use crate::Error;

const SINK_PORT: u16 = 9;
const ECHO_PORT: u16 = 7;
/// The sink's work per packet: what a small real server does.
const SINK_WORK: Duration = Duration::from_micros(2);
/// What an operator of a busy UDP server sets; the kernel's default holds only
/// about 50 frames of this link (see `plimsoll serve --help`).
const SINK_RCVBUF_BYTES: usize = 4 << 20;
const ECHO_RCVBUF_BYTES: usize = 1 << 20;
const PROBE_RATE_PPS: u32 = 2000;
/// An answer later than this is as good as lost to an interactive client.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// The flood goes on this long before and after the measured window.
const RAMP_UP: Duration = Duration::from_millis(300);
const PAYLOAD_BYTES: usize = 18;
const CATCH_UP_FRAMES: u32 = 16;

const MLFRR_LOWEST_PPS: u64 = 20_000;
const MLFRR_HIGHEST_PPS: u64 = 1_000_000;
const MLFRR_STEPS: usize = 8;
const MLFRR_TRIES: usize = 3;
const MLFRR_TRIAL: Duration = Duration::from_millis(500);
/// Loss below this is the machine's noise, not overload.
const MLFRR_LOSS: f64 = 0.001;

/// What one run measured.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) offered_pps: f64,
    pub(super) goodput_pps: f64,
    pub(super) host_cpu: HostCpu,
    pub(super) bystander: Bystander,
    losses: Losses,
}

/// Everything the UDP part measured; loads are multiples of the MLFRR.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) mlfrr_pps: f64,
    pub(super) cases: Cases<f64, Run>,
}

pub(super) fn run(stage: &Stage<'_>, progress: &mut impl FnMut(&str)) -> Result<Outcome, Error> {
    let servers = Servers::start(stage)?;
    progress("UDP: looking for the maximum loss-free receive rate (MLFRR)");
    let mlfrr_pps = servers.mlfrr(stage)?;
    let mut cases = Cases::new(&stage.plan.flood_multiples);
    for round in 1..=stage.plan.runs {
        for case in &mut cases.0 {
            let rate_pps = (mlfrr_pps * case.load) as u64;
            progress(&format!(
                "UDP, round {round} of {}: {} packets/s, {}",
                stage.plan.runs,
                rate_pps,
                case.protection.name()
            ));
            case.runs
                .push(servers.flood(stage, case.protection, rate_pps)?);
        }
    }
    Ok(Outcome { mlfrr_pps, cases })
}

/// The flooded sink and the bystander.
struct Servers {
    sink: Server,
    echo: Server,
    meter: CpuMeter,
}

impl Servers {
    fn start(stage: &Stage<'_>) -> Result<Self, Error> {
        let host = stage.testbed.test();
        let mut sink = ServerConfig::new(Kind::Sink, SINK_PORT);
        sink.work = SINK_WORK;
        sink.rcvbuf_bytes = Some(SINK_RCVBUF_BYTES);
        let mut echo = ServerConfig::new(Kind::Echo, ECHO_PORT);
        echo.rcvbuf_bytes = Some(ECHO_RCVBUF_BYTES);
        Ok(Self {
            sink: Server::start(host, &stage.plan.program, &sink)?,
            echo: Server::start(host, &stage.plan.program, &echo)?,
            meter: CpuMeter::start(host.cpu())?,
        })
    }

    /// The highest rate without loss, by bisection on a logarithmic scale.
    fn mlfrr(&self, stage: &Stage<'_>) -> Result<f64, Error> {
        stage.protect(Protection::Stock)?;
        let mut low = MLFRR_LOWEST_PPS as f64;
        let mut high = MLFRR_HIGHEST_PPS as f64;
        if !self.is_loss_free(stage, low as u64)? {
            return Err(Error::NoLossFreeRate {
                rate_pps: MLFRR_LOWEST_PPS,
            });
        }
        for _ in 0..MLFRR_STEPS {
            let middle = (low * high).sqrt();
            if self.is_loss_free(stage, middle as u64)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Whether the sink keeps up, at the best of some tries: a machine that was
    /// busy with something else for a moment loses packets at any rate.
    fn is_loss_free(&self, stage: &Stage<'_>, rate_pps: u64) -> Result<bool, Error> {
        for _ in 0..MLFRR_TRIES {
            if self.loses_nothing(stage, rate_pps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn loses_nothing(&self, stage: &Stage<'_>, rate_pps: u64) -> Result<bool, Error> {
        let before = self.sink.counts().received;
        let blast = load(stage, rate_pps, MLFRR_TRIAL)?;
        let report = on_load_host(stage, || blast_away(blast))?;
        let received = self.wait_until_quiet()? - before;
        Ok(report.offered.saturating_sub(received) as f64 <= report.offered as f64 * MLFRR_LOSS)
    }

    /// All queued packets are worked off; returns what the sink received.
    fn wait_until_quiet(&self) -> Result<u64, Error> {
        let counts = self
            .sink
            .wait_until_quiet(Duration::from_millis(100), Duration::from_secs(20))?;
        Ok(counts.received)
    }

    fn flood(
        &self,
        stage: &Stage<'_>,
        protection: Protection,
        rate_pps: u64,
    ) -> Result<Run, Error> {
        let guard = stage.protect(protection)?;
        self.wait_until_quiet()?;
        let before = (Counters::read(stage.testbed)?, self.received());
        let time = RAMP_UP + stage.plan.window + PROBE_TIMEOUT + RAMP_UP;
        let blast = (rate_pps > 0)
            .then(|| load(stage, rate_pps, time))
            .transpose()?;
        let (flood, window) = thread::scope(|scope| {
            let flood = scope.spawn(|| {
                blast
                    .map(|blast| on_load_host(stage, || blast_away(blast)))
                    .transpose()
            });
            let window = self.measure(stage);
            (flood.join(), window)
        });
        let flood = flood.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let window = window?;
        self.wait_until_quiet()?;
        let after = (Counters::read(stage.testbed)?, self.received());
        let traffic = Traffic {
            offered: flood.as_ref().map_or(0, |report| report.offered) + window.bystander.sent,
            delivered: after.1 - before.1,
            early_discard: guard.map_or(Ok(0), super::GuardProcess::stop)?,
        };
        Ok(Run {
            offered_pps: flood.map_or(0.0, |report| report.offered_pps),
            goodput_pps: window.goodput_pps,
            host_cpu: window.host_cpu,
            bystander: window.bystander,
            losses: losses(&Ledger::between(&before.0, &after.0, traffic)),
        })
    }

    fn received(&self) -> u64 {
        self.sink.counts().received + self.echo.counts().received
    }

    /// The measured window: probes go out, goodput and CPU time are read at
    /// both ends.
    fn measure(&self, stage: &Stage<'_>) -> Result<Window, Error> {
        interrupt::sleep(RAMP_UP)?;
        thread::scope(|scope| {
            let prober = scope.spawn(|| on_load_host(stage, || probe::run(&probe_config(stage))));
            let start = self.reading();
            let slept = interrupt::sleep(stage.plan.window);
            let end = self.reading();
            let probed = prober
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            slept?;
            Ok(Window::between(&start, &end, &probed))
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

/// What is read at both ends of the window.
struct Reading {
    at: Instant,
    received: u64,
    cpu: Snapshot,
}

struct Window {
    goodput_pps: f64,
    host_cpu: HostCpu,
    bystander: Bystander,
}

impl Window {
    fn between(start: &Reading, end: &Reading, probed: &probe::Report) -> Self {
        let seconds = (end.at - start.at).as_secs_f64();
        let cpu = end.cpu.since(&start.cpu);
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Self {
            goodput_pps: (end.received - start.received) as f64 / seconds,
            host_cpu: HostCpu {
                // The kernel's other threads are nobody's network work.
                app: cpu.share(cpu.app + cpu.other),
                network: cpu.share(cpu.network),
                idle: cpu.share(cpu.idle),
            },
            bystander: Bystander {
                sent: probed.sent,
                lost: probed.lost + probed.late,
                p50_us: micros(probed.latency.p50_ns),
                p99_us: micros(probed.latency.p99_ns),
            },
        }
    }
}

fn losses(ledger: &Ledger) -> Losses {
    Losses {
        offered: ledger.offered,
        delivered: ledger.delivered,
        early_discard: ledger.early_discard,
        socket_queue: ledger.socket_queue,
        receive_ring: ledger.receive_ring,
        other: ledger.interface
            + ledger.backlog
            + ledger.ip
            + ledger.no_port
            + ledger.udp
            + ledger.listen_queue,
        unaccounted: ledger.unaccounted,
    }
}

fn probe_config(stage: &Stage<'_>) -> probe::Config {
    probe::Config {
        rate_pps: PROBE_RATE_PPS,
        duration: stage.plan.window,
        timeout: PROBE_TIMEOUT,
        realtime: true,
        ..probe::Config::new(SocketAddr::new(
            stage.testbed.test().ipv4().into(),
            ECHO_PORT,
        ))
    }
}

/// Loads a flood of the sink's socket.
fn load(stage: &Stage<'_>, rate_pps: u64, time: Duration) -> Result<Blast, Error> {
    let (load, test) = (stage.testbed.load(), stage.testbed.test());
    let flow = Flow {
        source: IpAddr::from(load.ipv4()).into(),
        source_ports: 1024..=65535,
        destination: test.ipv4().into(),
        destination_ports: SINK_PORT..=SINK_PORT,
        transport: Transport::Udp {
            payload: vec![0; PAYLOAD_BYTES],
        },
    };
    let mut spec = Spec::new(
        load.device(),
        test.mac(),
        flow,
        Schedule::Fixed { rate_pps },
    );
    spec.bound = Bound {
        time,
        ..Bound::default()
    };
    spec.cpu = Some(load.cpu());
    // The prober takes the CPU now and then. What is made up for at once
    // afterwards must not fill the receive ring.
    spec.catch_up.burst_frames = CATCH_UP_FRAMES;
    on_load_host(stage, || Blast::load(&spec))
}

fn blast_away(mut blast: Blast) -> Result<BlastReport, plimsoll_testbed::Error> {
    blast.run(&Stop::new())
}

/// Does something inside the load host, on its CPU.
fn on_load_host<T: Send>(
    stage: &Stage<'_>,
    work: impl FnOnce() -> Result<T, plimsoll_testbed::Error> + Send,
) -> Result<T, Error> {
    Ok(stage.testbed.load().run_on_cpu(work)??)
}

impl Outcome {
    pub(super) fn summary(&self) -> Udp {
        Udp {
            mlfrr_pps: self.mlfrr_pps,
            cases: self.cases.0.iter().map(summary).collect(),
        }
    }
}

fn summary(case: &Case<f64, Run>) -> UdpCase {
    UdpCase {
        protection: case.protection,
        offered_pps: case.middle(|run| run.offered_pps),
        goodput_pps: case.middle(|run| run.goodput_pps),
        host_cpu: HostCpu {
            app: case.middle(|run| run.host_cpu.app),
            network: case.middle(|run| run.host_cpu.network),
            idle: case.middle(|run| run.host_cpu.idle),
        },
        bystander: Bystander {
            sent: case.total(|run| run.bystander.sent),
            lost: case.total(|run| run.bystander.lost),
            p50_us: case.middle(|run| run.bystander.p50_us),
            p99_us: case.middle(|run| run.bystander.p99_us),
        },
        losses: Losses {
            offered: case.total(|run| run.losses.offered),
            delivered: case.total(|run| run.losses.delivered),
            early_discard: case.total(|run| run.losses.early_discard),
            socket_queue: case.total(|run| run.losses.socket_queue),
            receive_ring: case.total(|run| run.losses.receive_ring),
            other: case.total(|run| run.losses.other),
            unaccounted: case.runs.iter().map(|run| run.losses.unaccounted).sum(),
        },
    }
}
