//! The test host of a calibration: what is metered, who is there, and floods of it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::process;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_kernel::meter::{CpuMeter, CpuReading, Options};
use plimsoll_kernel::scheduling::{Class, set_class};
use plimsoll_testbed::blast::{Priority, Schedule, Spec};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, Server};
use plimsoll_testbed::{Error as TestbedError, Process, interrupt};

use crate::Error;
use crate::protection::Stage;
use crate::traffic::{during, send, udp_flood};
use crate::udp::{ECHO_PORT, SINK_PORT};

/// Below what every path takes, so that each packet of a trial is handled.
pub(super) const RATE_PPS: u64 = 200_000;
/// Packets that a queue is filled with: pages of as many stay allocated meanwhile.
pub(super) const FILL: u64 = 16_384;
/// One at a time: further apart than two polls of the timer.
pub(super) const SINGLE_PPS: u64 = 8000;
/// A part of the packets that may be missing or too much where all must be there.
pub(super) const LITTLE: f64 = 0.1;
/// The same where a generator that was held up only makes the batches smaller.
const MUCH: f64 = 0.75;
/// A flood is tried so often until enough of it was seen: others may have held it up.
const TRIES: usize = 10;
/// Before all that shares the load host's CPU: no prober or client does here.
pub(super) const GENERATOR: Priority = Priority::Nice(-20);
/// The last packets of a flood are handled within this.
const SETTLING: Duration = Duration::from_millis(5);

pub(super) struct Site<'a> {
    pub(super) stage: Stage<'a>,
    pub(super) window: Duration,
    meter: CpuMeter,
    /// Sleeps in its receive call.
    _sink: Server,
    _echo: Server,
    /// What an empty run of the timer takes, in ns; of this round.
    pub(super) timer_ns: f64,
}

/// What the test host's CPU did meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Booked {
    network_ns: f64,
    /// Of this process and the echo server.
    process_ns: f64,
    frames: f64,
    runs: f64,
}

impl<'a> Site<'a> {
    pub(super) fn start(stage: Stage<'a>, window: Duration) -> Result<Self, Error> {
        let host = stage.host();
        let server =
            |kind, port| Server::start(host, stage.program, &ServerConfig::new(kind, port));
        let (sink, echo) = (
            server(Kind::Sink, SINK_PORT)?,
            server(Kind::Echo, ECHO_PORT)?,
        );
        let meter = CpuMeter::start(Options {
            cpu: Some(host.cpu()),
            interface: Some(host.device()),
            watches: true,
        });
        let mut meter = meter.map_err(TestbedError::from)?;
        meter.watch(process::id());
        meter.watch(echo.pid());
        Ok(Self {
            stage,
            window,
            meter,
            _sink: sink,
            _echo: echo,
            timer_ns: 0.0,
        })
    }

    /// What the CPU did while this was done.
    pub(super) fn booked<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(T, Booked), Error> {
        let before = self.meter.snapshot();
        let done = work()?;
        Ok((done, Booked::between(&before, &self.meter.snapshot())))
    }

    /// What the CPU did in a window of a flood, or of nothing.
    pub(super) fn flooded(&self, spec: Option<&Spec>) -> Result<Booked, Error> {
        let window = || self.booked(|| Ok(interrupt::sleep(self.window)?));
        let (_, ((), booked)) = during(&self.stage, spec, window)?;
        Ok(booked)
    }

    /// Network time per packet of a flood, less the timer's. `trial` is for the message if
    /// there were not as many packets as there should be.
    pub(super) fn per_packet(&self, trial: &'static str, spec: &Spec) -> Result<f64, Error> {
        let booked = self.flooded_well(trial, spec)?;
        Ok(booked.network_beyond(self.timer_ns) / booked.frames)
    }

    /// What the CPU did in a window of a flood of which enough was seen.
    pub(super) fn flooded_well(&self, trial: &'static str, spec: &Spec) -> Result<Booked, Error> {
        let rate_pps = spec.schedule.peak_pps().unwrap_or(0);
        let wanted = rate_pps as f64 * self.window.as_secs_f64();
        for _ in 1..TRIES {
            let booked = self.flooded(Some(spec))?;
            if self.require(trial, booked.frames, wanted, MUCH).is_ok() {
                return Ok(booked);
            }
        }
        let booked = self.flooded(Some(spec))?;
        self.require(trial, booked.frames, wanted, MUCH)?;
        Ok(booked)
    }

    /// Fails unless about as many packets were seen as there should be: but for this part,
    /// and a few.
    pub(super) fn require(
        &self,
        trial: &'static str,
        seen: f64,
        wanted: f64,
        part: f64,
    ) -> Result<(), Error> {
        let slack = (part * wanted).max(16.0);
        if (seen - wanted).abs() <= slack {
            return Ok(());
        }
        Err(Error::Tool {
            tool: "calibration",
            problem: format!(
                "trial {trial} saw {seen:.0} instead of {wanted:.0} packets: is the machine busy?"
            ),
        })
    }

    /// A flood of this socket.
    pub(super) fn flood_of(&self, port: u16, rate_pps: u64) -> Spec {
        let mut spec = udp_flood(&self.stage, port, Schedule::Fixed { rate_pps });
        spec.priority = GENERATOR;
        spec
    }

    /// Sends so many packets to a port, and books them; returns how many the link took.
    pub(super) fn fill(&self, port: u16, frames: u64) -> Result<(u64, Booked), Error> {
        let mut spec = self.flood_of(port, RATE_PPS);
        spec.bound.frames = frames;
        self.booked(|| {
            let report = send(&self.stage, &spec)?;
            interrupt::sleep(SETTLING)?;
            Ok(report.sent)
        })
    }

    /// A socket of the test host that nobody waits at, with a receive buffer of so many bytes.
    pub(super) fn unread(&self, rcvbuf_bytes: usize) -> Result<(UdpSocket, u16), Error> {
        let address = SocketAddr::new(self.stage.host().ipv4().into(), 0);
        let bind = || -> io::Result<(UdpSocket, u16)> {
            let socket = UdpSocket::bind(address)?;
            setsockopt(&socket, sockopt::RcvBufForce, &rcvbuf_bytes)?;
            socket.set_nonblocking(true)?;
            let port = socket.local_addr()?.port();
            Ok((socket, port))
        };
        let bound = self.stage.host().run(bind)?;
        bound.map_err(traffic("bind a socket that nobody reads"))
    }

    /// A process that computes, beneath all others (`SCHED_IDLE`): the CPU never sleeps.
    pub(super) fn spinning(&self) -> Result<Process, Error> {
        let process = self.stage.host().computing().spawn()?;
        let thread = i32::try_from(process.pid()).unwrap_or(i32::MAX);
        set_class(thread, Class::Idle).map_err(traffic("let a process have only idle time"))?;
        Ok(process)
    }
}

impl Booked {
    fn between(before: &CpuReading, after: &CpuReading) -> Self {
        let time = after.since(before);
        let processes: Duration = time.processes.iter().map(|one| one.cpu).sum();
        Self {
            network_ns: time.network.as_nanos() as f64,
            process_ns: processes.as_nanos() as f64,
            frames: (after.frames - before.frames) as f64,
            runs: (after.runs - before.runs) as f64,
        }
    }

    /// Network time per run, where no packet came.
    pub(super) fn per_run(&self) -> f64 {
        self.network_ns / self.runs
    }

    /// Network time, in ns, less what as many empty runs take.
    pub(super) fn network_beyond(&self, timer_ns: f64) -> f64 {
        self.network_ns - self.runs * timer_ns
    }

    /// The same with the time of the processes that are watched.
    pub(super) fn all_beyond(&self, timer_ns: f64) -> f64 {
        self.process_ns + self.network_beyond(timer_ns)
    }

    pub(super) fn process_ns(&self) -> f64 {
        self.process_ns
    }

    pub(super) fn network_ns(&self) -> f64 {
        self.network_ns
    }

    pub(super) fn frames(&self) -> f64 {
        self.frames
    }
}

/// Reads all that waits at a socket, one by one, and says how many there were.
pub(super) fn drain(socket: &UdpSocket) -> io::Result<u64> {
    // As the servers do.
    let mut buffer = vec![0; 65_536];
    for count in 0.. {
        match socket.recv_from(&mut buffer) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
            Err(error) => return Err(error),
        }
    }
    Ok(0)
}

pub(super) fn traffic(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Traffic { action, source }
}
