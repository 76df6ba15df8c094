//! A UDP prober: what a bystander sees of a host under load.
//!
//! The schedule is open loop: probe *n* is due at a time fixed in advance, and
//! its latency counts from that time, not from when it was really sent. A
//! prober that waits for its own answers, or forgives itself for being late,
//! omits exactly the requests that would have suffered (coordinated omission).
//! Here a late sender makes the figures worse, and by how much it was late is
//! reported as well ([`Report::slip`]).
//!
//! Each probe carries a number of its own and the run's nonce, so an answer is
//! counted once, a second one as duplicate, and a stray of an earlier run not
//! at all.
//!
//! # Limits
//!
//! Latency includes the prober's own delay in seeing the answer. On a CPU
//! shared with a load generator that is the larger part, unless the prober is
//! given real-time priority ([`Config::realtime`]).

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use serde::Serialize;

use plimsoll_kernel::scheduling::set_fifo;

use crate::error::{check, check_times};
use crate::{Error, interrupt};

/// What to probe, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The server, which must send back what it gets.
    pub target: SocketAddr,
    /// Probes per second, 100 to 50,000.
    pub rate_pps: u32,
    /// How long to send, up to ten minutes.
    pub duration: Duration,
    /// How long an answer may take, 1 ms to 10 s.
    pub timeout: Duration,
    /// UDP payload in bytes, 16 to 1400.
    pub payload_bytes: usize,
    /// Whether to ask for real-time scheduling (`SCHED_FIFO`), without which the
    /// prober measures its own waiting for a CPU it shares.
    pub realtime: bool,
}

impl Config {
    /// Probes `target` 1000 times a second for two seconds; answers may take one.
    #[must_use]
    pub fn new(target: SocketAddr) -> Self {
        Self {
            target,
            rate_pps: 1000,
            duration: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            payload_bytes: 64,
            realtime: false,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let valid = (100..=50_000).contains(&self.rate_pps);
        check(valid, "rate", &self.rate_pps, "100 to 50000 per second")?;
        check_times(self.duration, self.timeout)?;
        let valid = (HEADER_BYTES..=1400).contains(&self.payload_bytes);
        check(valid, "payload", &self.payload_bytes, "16 to 1400 bytes")
    }

    fn probes(&self) -> u64 {
        let probes = self.duration.as_secs_f64() * f64::from(self.rate_pps);
        (probes.round() as u64).max(1)
    }
}

/// Recorded latencies. The memory is there from the start, so that recording
/// never allocates.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("three digits are allowed"))
    }

    pub(crate) fn record(&mut self, span: Duration) {
        // Beyond the longest run nothing can come.
        self.0
            .saturating_record(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles::of(&self.0)
    }
}

/// The longest time a run can take, ten minutes and a timeout.
const LONGEST_NS: u64 = 610_000_000_000;

/// Nonce and number of a probe, eight bytes each.
const HEADER_BYTES: usize = 16;

/// What the prober counted. `sent` = `answered` + `late` + `lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Probes sent.
    pub sent: u64,
    /// Probes answered in time.
    pub answered: u64,
    /// Probes answered after the timeout but before the run ended.
    pub late: u64,
    /// Probes never answered.
    pub lost: u64,
    /// Answers beyond a probe's first.
    pub duplicates: u64,
    /// Probes that the local kernel refused to send; not part of `sent`.
    pub send_errors: u64,
    /// Time from when a probe was due to when its answer was seen, of those
    /// answered in time.
    pub latency: Percentiles,
    /// How late probes were really sent.
    pub slip: Percentiles,
    /// Whether real-time scheduling was in force.
    pub realtime: bool,
}

/// Percentiles in nanoseconds, to three digits; zero if there was nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50_ns: u64,
    /// 90 of 100 are at or below.
    pub p90_ns: u64,
    /// 99 of 100 are at or below.
    pub p99_ns: u64,
    /// 999 of 1000 are at or below.
    pub p999_ns: u64,
    /// The largest.
    pub max_ns: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// Probes from the calling thread, in its namespace, until the last answer can
/// no longer come in time. Real-time scheduling stays with the thread.
///
/// # Errors
///
/// [`Error::Config`], [`Error::Io`] if there is no way to the target,
/// [`Error::Interrupted`].
pub fn run(config: &Config) -> Result<Report, Error> {
    config.validate()?;
    let socket = connect(config)?;
    let realtime = config.realtime && become_realtime();
    // Timers of ordinary threads may fire 50 µs late, to save power.
    nix::sys::prctl::set_timerslack(1).map_err(Error::io("ask for exact timers"))?;
    let mut run = Run::new(config, socket);
    run.probe_all()?;
    Ok(run.state.report(realtime))
}

/// A priority above other real-time users' defaults, below the kernel's own.
const FIFO_PRIORITY: i32 = 60;

pub(crate) fn become_realtime() -> bool {
    let outcome = set_fifo(FIFO_PRIORITY);
    if let Err(error) = &outcome {
        // Unlike `eprintln!`, it does not panic when nobody reads.
        let _ = writeln!(
            io::stderr(),
            "plimsoll: probing without real-time scheduling: {error}"
        );
    }
    outcome.is_ok()
}

fn connect(config: &Config) -> Result<UdpSocket, Error> {
    let any: SocketAddr = match config.target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(config.target)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let socket = open().map_err(Error::io(format!("reach {}", config.target)))?;
    // Answers must not be lost here. Without root the usual buffer has to do.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20));
    Ok(socket)
}

/// The books of a run: pure counting, fed with times.
struct State {
    interval: Duration,
    timeout: Duration,
    /// Per probe, whether it was sent and whether it was answered.
    sent: Vec<bool>,
    answered: Vec<bool>,
    late: u64,
    duplicates: u64,
    send_errors: u64,
    latency: Latencies,
    slip: Latencies,
}

impl State {
    fn new(config: &Config) -> Self {
        let probes = usize::try_from(config.probes()).expect("at most 30 million");
        Self {
            interval: Duration::from_secs(1) / config.rate_pps,
            timeout: config.timeout,
            sent: vec![false; probes],
            answered: vec![false; probes],
            late: 0,
            duplicates: 0,
            send_errors: 0,
            latency: Latencies::new(),
            slip: Latencies::new(),
        }
    }

    /// When probe `number` is due, from the start of the run.
    fn due(&self, number: usize) -> Duration {
        let nanos = self.interval.as_nanos() as u64 * number as u64;
        Duration::from_nanos(nanos)
    }

    fn on_sent(&mut self, number: usize, now: Duration) {
        self.sent[number] = true;
        let slip = now.saturating_sub(self.due(number));
        self.slip.record(slip);
    }

    fn on_answer(&mut self, number: u64, now: Duration) {
        let Some(number) = usize::try_from(number)
            .ok()
            .filter(|&n| n < self.sent.len())
        else {
            return;
        };
        if !self.sent[number] {
            return;
        }
        if self.answered[number] {
            self.duplicates += 1;
            return;
        }
        self.answered[number] = true;
        let latency = now.saturating_sub(self.due(number));
        if latency > self.timeout {
            self.late += 1;
        } else {
            self.latency.record(latency);
        }
    }

    fn report(&self, realtime: bool) -> Report {
        let count = |flags: &[bool]| flags.iter().filter(|&&flag| flag).count() as u64;
        let (sent, seen) = (count(&self.sent), count(&self.answered));
        Report {
            sent,
            answered: seen - self.late,
            late: self.late,
            lost: sent - seen,
            duplicates: self.duplicates,
            send_errors: self.send_errors,
            latency: self.latency.percentiles(),
            slip: self.slip.percentiles(),
            realtime,
        }
    }
}

/// A run: the books, the socket, and the clock.
struct Run {
    state: State,
    socket: UdpSocket,
    nonce: u64,
    payload: Vec<u8>,
    begun: Instant,
}

impl Run {
    fn new(config: &Config, socket: UdpSocket) -> Self {
        Self {
            state: State::new(config),
            socket,
            // The standard library seeds its hashers at random.
            nonce: RandomState::new().hash_one(config.target),
            payload: vec![0; config.payload_bytes],
            begun: Instant::now(),
        }
    }

    fn probe_all(&mut self) -> Result<(), Error> {
        let probes = self.state.sent.len();
        self.begun = Instant::now();
        for number in 0..probes {
            self.receive_until(self.state.due(number))?;
            self.send(number)?;
        }
        let last = self.state.due(probes - 1);
        self.receive_until(last + self.state.timeout)
    }

    fn send(&mut self, number: usize) -> Result<(), Error> {
        self.payload[..8].copy_from_slice(&self.nonce.to_be_bytes());
        self.payload[8..HEADER_BYTES].copy_from_slice(&(number as u64).to_be_bytes());
        match self.socket.send(&self.payload) {
            Ok(_) => self.state.on_sent(number, self.begun.elapsed()),
            Err(error) if is_network_down(&error) => {
                return Err(Error::io("send a probe")(error));
            }
            // An earlier probe was refused, or a queue is full.
            Err(_) => self.state.send_errors += 1,
        }
        Ok(())
    }

    /// Takes answers until `end`, a time from the start of the run.
    fn receive_until(&mut self, end: Duration) -> Result<(), Error> {
        let (state, nonce) = (&mut self.state, self.nonce);
        receive_until(&self.socket, self.begun, end, |answer, _, now| {
            if let Some(number) = number_of(answer, nonce) {
                state.on_answer(number, now);
            }
        })
    }
}

/// The number of the probe that this answers, if it is one of the run's.
fn number_of(answer: &[u8], of_run: u64) -> Option<u64> {
    let header = answer.first_chunk::<HEADER_BYTES>()?;
    let (nonce, number) = header.split_first_chunk::<8>()?;
    (u64::from_be_bytes(*nonce) == of_run)
        .then(|| Some(u64::from_be_bytes(*number.first_chunk()?)))?
}

fn is_network_down(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, PermissionDenied};
    matches!(
        error.kind(),
        HostUnreachable | NetworkDown | NetworkUnreachable | PermissionDenied
    )
}

/// Takes answers until `end`, a time since `begun`: hands each on, with its sender and the time
/// since `begun` when it was seen.
pub(crate) fn receive_until(
    socket: &UdpSocket,
    begun: Instant,
    end: Duration,
    mut on_answer: impl FnMut(&[u8], SocketAddr, Duration),
) -> Result<(), Error> {
    let mut buffer = [0; 2048];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => on_answer(&buffer[..length], from, begun.elapsed()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_for_answer(socket, begun, end)? {
                    return Ok(());
                }
            }
            // "Port unreachable" about an earlier question: that one is lost.
            Err(_) => {}
        }
    }
}

/// Waits for an answer until `end`, a time since `begun`; returns whether there is time left
/// for more.
fn wait_for_answer(socket: &UdpSocket, begun: Instant, end: Duration) -> Result<bool, Error> {
    interrupt::check()?;
    let left = end.saturating_sub(begun.elapsed());
    if left.is_zero() {
        return Ok(false);
    }
    let mut socket = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut socket, Some(TimeSpec::from_duration(left)), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(true),
        Err(errno) => Err(Error::io("wait for answers")(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn state() -> State {
        let mut config = Config::new("198.18.0.2:7".parse().unwrap());
        config.duration = 10 * MILLI;
        config.timeout = 5 * MILLI;
        State::new(&config)
    }

    #[test]
    fn latency_counts_from_the_intended_time() {
        let mut state = state();
        // Due at 2 ms, sent at 4, answered at 5.
        state.on_sent(2, 4 * MILLI);
        state.on_answer(2, 5 * MILLI);
        let report = state.report(false);
        assert_eq!(report.latency.max_ns / 100_000, 30);
        assert_eq!(report.slip.max_ns / 100_000, 20);
    }

    #[test]
    fn every_probe_is_answered_late_or_lost() {
        let mut state = state();
        for number in 0..4 {
            state.on_sent(number, state.due(number));
        }
        state.on_answer(0, MILLI);
        state.on_answer(0, MILLI);
        state.on_answer(1, 20 * MILLI);
        // Never sent, and out of range: strays.
        state.on_answer(9, MILLI);
        state.on_answer(u64::MAX, MILLI);
        let report = state.report(false);
        assert_eq!((report.sent, report.answered), (4, 1));
        assert_eq!((report.late, report.lost), (1, 2));
        assert_eq!(report.duplicates, 1);
    }

    #[test]
    fn each_percentile_is_told_by_its_name() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|micros| latencies.record(MILLI / 1000 * micros));
        let found = latencies.percentiles();
        let nanos = [
            found.p50_ns,
            found.p90_ns,
            found.p99_ns,
            found.p999_ns,
            found.max_ns,
        ];
        let micros = nanos.map(|nanos| (nanos + 500) / 1000);
        assert_eq!(micros, [500, 900, 990, 999, 1000]);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let mut config = Config::new("198.18.0.2:7".parse().unwrap());
        assert_eq!(config.probes(), 2000);
        config.rate_pps = 99;
        let error = config.validate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "rate = 99: must be 100 to 50000 per second"
        );
    }
}
