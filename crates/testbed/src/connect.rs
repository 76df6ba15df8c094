//! A client that keeps opening connections: what a listener's new clients see
//! of a host under load.
//!
//! Each attempt connects, asks for a page, and reads to the end of the answer.
//! Attempts begin on a schedule that was fixed in advance, whatever became of
//! earlier ones, and latency counts from that schedule: as with
//! [`crate::probe`], a stalled server or a late client is never hidden. All
//! sockets are non-blocking, so attempts that hang (a lost SYN is repeated
//! after a second) do not hold up others.
//!
//! # Limits
//!
//! One thread: some ten thousand attempts per second. The server must end the
//! connection after its answer, as HTTP/1.0 servers do.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, socket,
};
use nix::sys::time::TimeSpec;
use serde::Serialize;

use crate::error::{check, check_times};
use crate::probe::{Latencies, Percentiles, become_realtime};
use crate::{Error, allow_descriptors, interrupt};

/// What is asked of the server on each connection.
const REQUEST: &[u8] = b"GET /index.html HTTP/1.0\r\n\r\n";
/// How the answer must begin.
const ANSWER: &[u8] = b"HTTP/1.1 200";
/// Most attempts that can be under way at once: rate times timeout.
const OPEN_MAX: u64 = 60_000;

/// Whom to connect to, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The HTTP server.
    pub target: SocketAddr,
    /// Attempts per second, 1 to 20,000.
    pub rate_pps: u32,
    /// How long to begin attempts, 10 ms to ten minutes.
    pub duration: Duration,
    /// How long an attempt may take, 1 ms to 10 s.
    pub timeout: Duration,
    /// Whether to ask for real-time scheduling (`SCHED_FIFO`).
    pub realtime: bool,
}

impl Config {
    fn validate(&self) -> Result<(), Error> {
        let open = u64::from(self.rate_pps) * self.timeout.as_millis() as u64 / 1000;
        let valid = (1..=20_000).contains(&self.rate_pps) && open <= OPEN_MAX;
        let allowed = "1 to 20000 per second, and at most 60000 within the timeout";
        check(valid, "rate", &self.rate_pps, allowed)?;
        check_times(self.duration, self.timeout)
    }

    fn attempts(&self) -> u64 {
        let attempts = self.duration.as_secs_f64() * f64::from(self.rate_pps);
        (attempts.round() as u64).max(1)
    }
}

/// What became of the attempts: `attempts` = `succeeded` + `failed` + `timed_out`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Connections begun.
    pub attempts: u64,
    /// Answered completely in time.
    pub succeeded: u64,
    /// Refused, reset, or answered with something else.
    pub failed: u64,
    /// Not answered in time.
    pub timed_out: u64,
    /// From when an attempt was due to the end of its answer, of those that
    /// succeeded.
    pub latency: Percentiles,
}

/// Begins attempts from the calling thread, in its namespace, until the last
/// has ended or timed out.
///
/// # Errors
///
/// [`Error::Config`], [`Error::Io`] if sockets cannot be made or watched,
/// [`Error::Interrupted`].
pub fn run(config: &Config) -> Result<Report, Error> {
    config.validate()?;
    allow_descriptors()?;
    if config.realtime {
        become_realtime();
    }
    // Timers of ordinary threads may fire 50 µs late, to save power.
    nix::sys::prctl::set_timerslack(1).map_err(Error::io("ask for exact timers"))?;
    let mut client = Client::new(config)?;
    client.attempt_all()?;
    Ok(client.report)
}

/// A connection under way.
struct Attempt {
    stream: TcpStream,
    due: Duration,
    asked: bool,
    answer: Vec<u8>,
}

/// How a step of an attempt came out.
enum Step {
    Waiting,
    Succeeded,
    Failed,
}

impl Attempt {
    fn start(target: &SocketAddr, due: Duration) -> io::Result<Self> {
        let family = match target {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket: OwnedFd = socket(family, SockType::Stream, flags, SockProtocol::Tcp)?;
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(*target)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self {
            stream: socket.into(),
            due,
            asked: false,
            answer: Vec::new(),
        })
    }

    /// Does what can be done without waiting.
    fn advance(&mut self) -> Step {
        match self.try_advance() {
            Ok(step) => step,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Step::Waiting,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Waiting,
            // Not connected yet: the other direction became ready.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Step::Waiting,
            Err(_) => Step::Failed,
        }
    }

    fn try_advance(&mut self) -> io::Result<Step> {
        if !self.asked {
            // Fails with the connection's own error if it was refused. A fresh
            // connection has room for so few bytes.
            self.stream.write_all(REQUEST)?;
            self.asked = true;
        }
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer)? {
                0 if self.answer.starts_with(ANSWER) => return Ok(Step::Succeeded),
                0 => return Ok(Step::Failed),
                length => {
                    let missing = ANSWER.len().saturating_sub(self.answer.len()).min(length);
                    self.answer.extend_from_slice(&buffer[..missing]);
                }
            }
        }
    }
}

struct Client<'a> {
    config: &'a Config,
    epoll: Epoll,
    begun: Instant,
    open: HashMap<u64, Attempt>,
    /// In the order in which they time out, ended ones included.
    deadlines: VecDeque<(Duration, u64)>,
    latency: Latencies,
    report: Report,
}

impl<'a> Client<'a> {
    fn new(config: &'a Config) -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let latency = Latencies::new();
        Ok(Self {
            config,
            epoll: epoll.map_err(Error::io("watch connections"))?,
            begun: Instant::now(),
            open: HashMap::new(),
            deadlines: VecDeque::new(),
            report: Report {
                attempts: 0,
                succeeded: 0,
                failed: 0,
                timed_out: 0,
                latency: latency.percentiles(),
            },
            latency,
        })
    }

    fn attempt_all(&mut self) -> Result<(), Error> {
        let gap = Duration::from_secs(1) / self.config.rate_pps;
        self.begun = Instant::now();
        for number in 0..self.config.attempts() {
            let due = Duration::from_nanos(gap.as_nanos() as u64 * number);
            self.serve_until(due)?;
            self.start(number, due)?;
        }
        while !self.open.is_empty() {
            let next = self.deadlines.front().map_or(Duration::ZERO, |&(at, _)| at);
            self.serve_until(next.min(self.begun.elapsed() + Duration::from_millis(10)))?;
        }
        self.report.latency = self.latency.percentiles();
        Ok(())
    }

    fn start(&mut self, number: u64, due: Duration) -> Result<(), Error> {
        self.report.attempts += 1;
        let Ok(attempt) = Attempt::start(&self.config.target, due) else {
            self.report.failed += 1;
            return Ok(());
        };
        // Edge-triggered: told once when connected and once per piece of answer.
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        self.epoll
            .add(&attempt.stream, EpollEvent::new(events, number))
            .map_err(Error::io("watch a connection"))?;
        self.deadlines
            .push_back((due + self.config.timeout, number));
        self.open.insert(number, attempt);
        Ok(())
    }

    /// Serves connections until `end`, a time from the start of the run.
    fn serve_until(&mut self, end: Duration) -> Result<(), Error> {
        loop {
            self.serve_ready()?;
            self.give_up_late();
            interrupt::check()?;
            let left = end.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            // Unlike epoll's own wait, this one counts in nanoseconds.
            let mut epoll = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut epoll, Some(TimeSpec::from_duration(left)), None) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::io("wait for connections")(errno)),
            }
        }
    }

    fn serve_ready(&mut self) -> Result<(), Error> {
        let mut events = [EpollEvent::empty(); 64];
        let ready = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(Error::io("look at connections")(errno)),
        };
        for event in &events[..ready] {
            let number = event.data();
            let Some(attempt) = self.open.get_mut(&number) else {
                continue;
            };
            match attempt.advance() {
                Step::Waiting => continue,
                Step::Failed => self.report.failed += 1,
                Step::Succeeded => {
                    let latency = self.begun.elapsed().saturating_sub(attempt.due);
                    // It is looked for before those that are late are given up.
                    if latency > self.config.timeout {
                        self.report.timed_out += 1;
                    } else {
                        self.report.succeeded += 1;
                        self.latency.record(latency);
                    }
                }
            }
            // Closing it ends its watch, too.
            self.open.remove(&number);
        }
        Ok(())
    }

    fn give_up_late(&mut self) {
        let now = self.begun.elapsed();
        while let Some(&(deadline, number)) = self.deadlines.front() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_front();
            self.report.timed_out += u64::from(self.open.remove(&number).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// It had succeeded, and its latency was above the limit that it had.
    #[test]
    fn an_answer_that_comes_late_is_not_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = Config {
            target: listener.local_addr().unwrap(),
            rate_pps: 1,
            duration: Duration::from_millis(10),
            timeout: Duration::from_millis(1),
            realtime: false,
        };
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
            stream.write_all(ANSWER).unwrap();
        });
        let mut client = Client::new(&config).unwrap();
        client.start(0, Duration::ZERO).unwrap();
        while !client.open.is_empty() {
            // As a client that gets no CPU.
            thread::sleep(Duration::from_millis(10));
            client.serve_ready().unwrap();
        }
        server.join().unwrap();
        let report = &client.report;
        assert_eq!((report.succeeded, report.timed_out), (0, 1));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let config = Config {
            target: ([127, 0, 0, 1], 80).into(),
            rate_pps: 20_000,
            duration: Duration::from_secs(1),
            timeout: Duration::from_secs(4),
            realtime: false,
        };
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "rate = 20000: must be 1 to 20000 per second, and at most 60000 within the timeout"
        );
        let config = Config {
            timeout: Duration::from_secs(3),
            ..config
        };
        config.validate().unwrap();
        assert_eq!(config.attempts(), 20_000);
    }
}
