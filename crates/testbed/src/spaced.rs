//! One paced stream of full frames from a CPU that works besides, by soft timers, by sleeping and
//! by the kernel's TCP, stamped as the frames are given to the interface (section 5.6: ST-63).
//!
//! The work is in small units that need nobody. With soft timers it asks between two units
//! whether a frame is due. The other senders are threads of their own beside it, and the
//! scheduler decides. The kernel's TCP is told the rate (`SO_MAX_PACING_RATE`): it paces by
//! itself, without fq. It is kept from gathering several segments in one frame, so that it paces
//! as finely as it can.
//!
//! **Limits.** One stream at a time, between two hosts of this machine, without loss. A stamp
//! is taken where packet sockets look, just before the driver.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use plimsoll_core::pacing::Rate;
use plimsoll_stack::device::packet::{MonitorConfig, PacketMonitor};
use plimsoll_timers::pacing::{FlowRates, Pacer, PacerConfig};

use crate::placement::receive_on;
use crate::server::Pace;
use crate::spin::Work;
use crate::{Config, Error, Host, Testbed, interrupt};

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// UDP by soft timers, checked between two units of work.
    Soft,
    /// UDP by a thread that sleeps until the next departure, beside the work.
    Sleeping,
    /// The kernel's TCP, told the rate, beside the work.
    Kernel,
}

impl Sender {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Soft, Self::Sleeping, Self::Kernel];

    /// In tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Sleeping => "sleeping",
            Self::Kernel => "kernel",
        }
    }
}

/// What a stream was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spaced {
    /// Intervals between frames.
    pub intervals: usize,
    /// Their mean in microseconds.
    pub mean_us: f64,
    /// Their standard deviation in microseconds.
    pub stddev_us: f64,
    /// The work that was done meanwhile, of that without a stream (0 to 1).
    pub work_share: f64,
}

/// Without its check sequence.
const FRAME_BYTES: usize = 1514;
/// Frame without Ethernet, IPv4 and UDP headers.
const DATAGRAM_BYTES: usize = FRAME_BYTES - 42;
/// Frame without Ethernet, IPv4 and TCP headers and the time stamps. The kernel paces these.
const SEGMENT_BYTES: usize = FRAME_BYTES - 66;
/// A shorter frame is none of the stream.
const FULL_BYTES: usize = 1400;
const PORT: u16 = 4701;
/// Of the program's own work.
const UNIT: Duration = Duration::from_micros(2);
/// A sender begins before it is looked at: TCP with slow start.
const FIRST_FRAMES: usize = 200;
/// Catching up: line speed of the paper, or twice the target where that is faster.
const BURST: Duration = Duration::from_micros(12);
/// No stream takes so long beyond its time.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two hosts, and the work beside the streams.
#[derive(Debug)]
pub struct Wire {
    testbed: Testbed,
    unit: Work,
    /// Units per second without a stream.
    undisturbed: f64,
}

impl Wire {
    /// Makes the hosts and finds out how much work is done without a stream.
    ///
    /// # Errors
    ///
    /// As [`Testbed::create`]; [`Error::MissingProgram`] without `ethtool`.
    pub fn create() -> Result<Self, Error> {
        let testbed = Testbed::create(Config::default())?;
        let test = testbed.test();
        let device = test.device();
        // One segment is one frame.
        test.configure("ethtool", ["-K", device, "tso", "off", "gso", "off"])?;
        test.ip(&format!("link set dev {device} gso_max_segs 1"))?;
        test.sysctl("net/ipv4/tcp_min_tso_segs", "1")?;
        // Each host receives on its own CPU, whoever sent.
        for host in [testbed.load(), test] {
            receive_on(host, host.cpu())?;
        }
        let unit = Work::calibrate(UNIT);
        let undisturbed = test.run_on_cpu(|| work_only(unit, Duration::from_millis(200)))?;
        Ok(Self {
            testbed,
            unit,
            undisturbed,
        })
    }

    /// Sends so many frames, one in each `interval`.
    ///
    /// # Errors
    ///
    /// A socket cannot be made, or frames are missing.
    pub fn stream(
        &self,
        sender: Sender,
        interval: Duration,
        frames: usize,
    ) -> Result<Spaced, Error> {
        let (load, test) = (self.testbed.load(), self.testbed.test());
        let config = MonitorConfig {
            ring_bytes: 64 << 20,
            // Nobody reads meanwhile, and each time-out takes a block of 1 MiB.
            block_timeout_ms: 500,
            ..MonitorConfig::default()
        };
        let watch = test.run(|| PacketMonitor::open(test.device(), &config))??;
        let to = SocketAddr::from((load.ipv4(), PORT));
        let all = frames + FIRST_FRAMES;
        let begun = Instant::now();
        let units = match sender {
            Sender::Soft | Sender::Sleeping => {
                // Nobody reads it: what does not fit is dropped there.
                let _sink = load.run(|| UdpSocket::bind(to))?.map_err(streaming)?;
                test.run_on_cpu(|| self.datagrams(sender, interval, all, to))?
            }
            Sender::Kernel => self.tcp(load, interval, all, to),
        };
        let done = units.map_err(streaming)? / begun.elapsed().as_secs_f64();
        let stamps = departures(watch, all)?;
        Ok(Spaced::of(&stamps[FIRST_FRAMES..], done / self.undisturbed))
    }

    fn datagrams(
        &self,
        sender: Sender,
        interval: Duration,
        frames: usize,
        to: SocketAddr,
    ) -> io::Result<f64> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(to)?;
        match sender {
            Sender::Soft => self.soft(&socket, interval, frames),
            _ => self.beside_work(|| sleeping(&socket, interval, frames)),
        }
    }

    /// The work, which passes a trigger state after each unit.
    fn soft(&self, socket: &UdpSocket, interval: Duration, frames: usize) -> io::Result<f64> {
        let mut pacer = Pacer::new(PacerConfig::default()).map_err(io::Error::other)?;
        let rates = FlowRates {
            target: Rate::from_interval(FRAME_BYTES as u64, interval),
            burst: Rate::from_interval(FRAME_BYTES as u64, (interval / 2).min(BURST)),
        };
        let flow = pacer.add_flow(rates).map_err(io::Error::other)?;
        pacer.on_backlog(flow).map_err(io::Error::other)?;
        let (mut units, mut sent) = (0_u64, 0);
        while sent < frames {
            self.unit.run();
            units += 1;
            let Some(now) = pacer.check() else { continue };
            while let Some(flow) = pacer.poll_departure(now) {
                sent += 1;
                socket.send(&[0; DATAGRAM_BYTES])?;
                pacer
                    .on_sent(now, flow, FRAME_BYTES as u32, sent < frames)
                    .map_err(io::Error::other)?;
            }
        }
        Ok(units as f64)
    }

    fn tcp(
        &self,
        load: &Host,
        interval: Duration,
        frames: usize,
        to: SocketAddr,
    ) -> io::Result<f64> {
        let listener = load
            .run(|| TcpListener::bind(to))
            .map_err(io::Error::other)??;
        thread::scope(|scope| {
            let receive = move || -> io::Result<()> {
                let mut received = [0; 1 << 16];
                let mut stream = listener.accept()?.0;
                while stream.read(&mut received)? > 0 {}
                Ok(())
            };
            let receiver =
                scope.spawn(move || load.run_on_cpu(receive).map_err(io::Error::other)?);
            let send = || self.beside_work(|| kernel(to, interval, frames));
            let sent = self
                .testbed
                .test()
                .run_on_cpu(send)
                .map_err(io::Error::other)?;
            let received = receiver.join();
            received.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            sent
        })
    }

    /// `send` beside a thread on the same CPU that works: its units.
    fn beside_work(&self, send: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
        let (stop, units) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    self.unit.run();
                    units.fetch_add(1, Ordering::Relaxed);
                }
            });
            let sent = send();
            stop.store(true, Ordering::Relaxed);
            sent
        })?;
        Ok(units.into_inner() as f64)
    }
}

/// Units per second.
fn work_only(unit: Work, span: Duration) -> f64 {
    let (begun, mut units) = (Instant::now(), 0_u64);
    while begun.elapsed() < span {
        unit.run();
        units += 1;
    }
    units as f64 / begun.elapsed().as_secs_f64()
}

/// Absolute times, so that being late once does not lower the rate, and no timer slack: the
/// best that sleeping can do.
fn sleeping(socket: &UdpSocket, interval: Duration, frames: usize) -> io::Result<()> {
    nix::sys::prctl::set_timerslack(1)?;
    let clock = ClockId::CLOCK_MONOTONIC;
    let mut next = Duration::from(clock_gettime(clock)?);
    for _ in 0..frames {
        next += interval;
        let until = TimeSpec::from_duration(next);
        clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &until)?;
        socket.send(&[0; DATAGRAM_BYTES])?;
    }
    Ok(())
}

/// The connection always has something to send.
fn kernel(to: SocketAddr, interval: Duration, frames: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    let rate = Rate::from_interval(SEGMENT_BYTES as u64, interval);
    Pace::At(rate).limit(&stream)?;
    // A last segment may be short: one more.
    stream.write_all(&vec![0; SEGMENT_BYTES * (frames + 1)])
}

/// When the first so many full frames left, in nanoseconds.
fn departures(mut watch: PacketMonitor, frames: usize) -> Result<Vec<u64>, Error> {
    let mut stamps = Vec::with_capacity(frames);
    let seen = interrupt::wait_for("the stream's frames", PATIENCE, || {
        watch.visit(frames, |frame| {
            if frame.outgoing && frame.whole_bytes >= FULL_BYTES {
                stamps.push(frame.at_ns);
            }
        });
        Ok((stamps.len() >= frames).then_some(()))
    });
    if let Err(error) = seen {
        let counts = watch.read_counts();
        let problem = format!("{error}: {} of {frames}, {counts:?}", stamps.len());
        return Err(streaming(io::Error::other(problem)));
    }
    stamps.truncate(frames);
    Ok(stamps)
}

fn streaming(source: io::Error) -> Error {
    Error::io("send a paced stream")(source)
}

impl Spaced {
    fn of(stamps: &[u64], work_share: f64) -> Self {
        let gaps = stamps.windows(2);
        let gaps: Vec<f64> = gaps
            .map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3)
            .collect();
        let number = gaps.len().max(1) as f64;
        let mean_us = gaps.iter().sum::<f64>() / number;
        let squares = gaps.iter().map(|gap| (gap - mean_us).powi(2)).sum::<f64>();
        Self {
            intervals: gaps.len(),
            mean_us,
            stddev_us: (squares / number).sqrt(),
            work_share,
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_tries::repeated;

    use super::*;

    #[test]
    fn mean_and_deviation_by_hand() {
        let spaced = Spaced::of(&[0, 10_000, 30_000, 60_000], 0.5);
        assert_eq!((spaced.intervals, spaced.mean_us), (3, 20.0));
        assert!((spaced.stddev_us - (200.0_f64 / 3.0).sqrt()).abs() < 1e-9);
    }

    /// Frames are seen one by one, at the rate that each sender was told. Others may take the
    /// CPU, and what was late is caught up: then it is tried again.
    #[test]
    fn each_sender_keeps_its_interval_on_the_wire() {
        let wire = Wire::create().unwrap();
        for sender in Sender::ALL {
            let mut means_us = Vec::new();
            let keeps_it = repeated(10, || {
                let spaced = wire.stream(sender, Duration::from_micros(400), 500);
                let spaced = spaced.unwrap();
                assert_eq!(spaced.intervals, 499);
                assert!(spaced.work_share > 0.05, "{sender:?}: {spaced:?}");
                means_us.push(spaced.mean_us);
                (380.0..420.0).contains(&spaced.mean_us)
            });
            assert!(keeps_it, "{sender:?}: {means_us:?}");
        }
    }

    /// A ring that nobody reads while a stream lasts must hold all of it.
    #[test]
    fn a_long_stream_is_seen_whole() {
        let wire = Wire::create().unwrap();
        let interval = Duration::from_millis(2);
        let spaced = wire.stream(Sender::Soft, interval, 400).unwrap();
        assert_eq!(spaced.intervals, 399);
    }
}
