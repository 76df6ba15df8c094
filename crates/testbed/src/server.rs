//! UDP servers under test: a sink that consumes and an echo that answers, with
//! a known amount of work per packet.
//!
//! They are ordinary servers on purpose: one blocking receive per packet, one
//! dual-stack socket, the receive buffer an operator would set. They run as
//! processes of their own in the test host ([`Server`] starts `plimsoll
//! serve`), so that they compete for its CPU as real ones do.
//!
//! A livelocked server cannot answer when asked for its counts. It keeps them
//! in memory shared with its parent, which reads them whenever it likes.
#![allow(unsafe_code)] // The shared counters are reached through a pointer.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;

use crate::spin::Work;
use crate::{Error, Host, Process, interrupt};

/// What a server does with a packet, after working on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Nothing.
    Sink,
    /// Sends it back.
    Echo,
}

/// A server's settings, also the arguments of `plimsoll serve`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Config {
    /// What to do with a packet
    #[arg(value_enum)]
    pub kind: Kind,
    /// UDP port to listen on, on every IPv4 and IPv6 address
    #[arg(long)]
    pub port: u16,
    /// CPU time spent on each packet, in microseconds
    #[arg(long = "work-us", value_name = "US", value_parser = parse_micros, default_value = "0")]
    pub work: Duration,
    /// Receive buffer in bytes, beyond `net.core.rmem_max` if root (the kernel
    /// doubles it for its own overhead). Default: `net.core.rmem_default`.
    ///
    /// A frame that an XDP program redirected is accounted at the size of a
    /// page: the usual default of 208 KiB holds about 50 of them.
    #[arg(long, value_name = "BYTES")]
    pub rcvbuf_bytes: Option<usize>,
    /// File to keep the counters in, for a parent process to map
    #[arg(long, value_name = "FILE", hide = true)]
    pub counters: Option<PathBuf>,
}

impl Config {
    /// A server without work, with the kernel's default receive buffer.
    #[must_use]
    pub fn new(kind: Kind, port: u16) -> Self {
        Self {
            kind,
            port,
            work: Duration::ZERO,
            rcvbuf_bytes: None,
            counters: None,
        }
    }

    /// The arguments that make `plimsoll serve` run this configuration.
    fn to_args(&self) -> Vec<String> {
        let kind = self.kind.to_possible_value();
        let kind = kind.expect("no kind is skipped").get_name().to_owned();
        let micros = self.work.as_nanos() as f64 / 1e3;
        let mut args = vec![kind, format!("--port={}", self.port)];
        args.push(format!("--work-us={micros}"));
        args.extend(
            self.rcvbuf_bytes
                .map(|bytes| format!("--rcvbuf-bytes={bytes}")),
        );
        let counters = self.counters.as_ref();
        args.extend(counters.map(|file| format!("--counters={}", file.display())));
        args
    }
}

/// Parses microseconds, with a fraction if need be.
fn parse_micros(text: &str) -> Result<Duration, String> {
    let micros: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e6).contains(&micros) {
        Ok(Duration::from_nanos((micros * 1e3).round() as u64))
    } else {
        Err("must be 0 to 1000000".to_owned())
    }
}

/// What a server has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets received and worked on.
    pub received: u64,
    /// Their payload, in bytes.
    pub received_bytes: u64,
    /// Answers sent.
    pub sent: u64,
    /// Answers the kernel refused to send.
    pub send_errors: u64,
}

/// A server running in a host. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    process: Process,
    counters: SharedCounters,
}

impl Server {
    /// Starts `plimsoll serve` in `host` and waits until it listens. `program`
    /// is the `plimsoll` binary: [`std::env::current_exe`] inside the command.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if it ends at once (the port is taken),
    /// [`Error::Timeout`] if it does not listen in ten seconds, else as
    /// [`crate::Command::spawn`].
    pub fn start(host: &Host, program: &Path, config: &Config) -> Result<Self, Error> {
        let file = memfd_create(c"plimsoll-counters", MFdFlags::MFD_CLOEXEC)
            .map_err(Error::io("make memory for a server's counters"))?;
        let file = File::from(file);
        let counters = SharedCounters::create(&file)?;
        let config = Config {
            // The child opens it before we listen to it, so it stays open here.
            counters: Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()),
            ..config.clone()
        };
        let mut command = host.command(program);
        command.arg("serve").args(config.to_args());
        let mut process = command.stdout(Stdio::null()).spawn()?;
        let what = format!("the start of the server on port {}", config.port);
        interrupt::wait_for(&what, Duration::from_secs(10), || {
            if let Some(status) = process.try_wait()? {
                return Err(Error::Failed {
                    program: "plimsoll serve".to_owned(),
                    status: status.to_string(),
                    output: format!("it did not listen on port {}", config.port),
                });
            }
            Ok(counters.is_listening().then_some(()))
        })?;
        Ok(Self { process, counters })
    }

    /// What it has counted so far. Needs nothing of the server, so it works
    /// while that is starved.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits until it has received nothing for `quiet`: its queues are empty,
    /// unless it is starved that long.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] after `limit`, [`Error::Interrupted`].
    pub fn wait_until_quiet(&self, quiet: Duration, limit: Duration) -> Result<Counts, Error> {
        let mut last = (self.counts(), Instant::now());
        interrupt::wait_for("a quiet server", limit, || {
            let counts = self.counts();
            if counts != last.0 {
                last = (counts, Instant::now());
            }
            Ok((last.1.elapsed() >= quiet).then_some(counts))
        })
    }

    /// Ends it and returns what it counted.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if it failed by itself, else as [`Process::stop`].
    pub fn stop(self) -> Result<Counts, Error> {
        let status = self.process.stop(Duration::from_secs(2))?;
        // A starved server is killed; that is no failure of its own.
        if status.success() || status.signal().is_some() {
            return Ok(self.counters.read());
        }
        Err(Error::Failed {
            program: "plimsoll serve".to_owned(),
            status: status.to_string(),
            output: "see its messages above".to_owned(),
        })
    }
}

/// Serves until SIGINT or SIGTERM, and returns what was counted.
///
/// # Errors
///
/// [`Error::Io`] if the port cannot be bound or receiving fails.
pub fn serve(config: &Config) -> Result<Counts, Error> {
    interrupt::install()?;
    let socket = bind(config)?;
    let work = Work::calibrate(config.work);
    let counters = match &config.counters {
        Some(path) => SharedCounters::open(path)?,
        None => SharedCounters::anonymous()?,
    };
    counters.set_listening();
    let mut buffer = vec![0; 65_536];
    while !interrupt::requested() {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                work.run();
                counters.count_received(length);
                if config.kind == Kind::Echo {
                    counters.count_sent(socket.send_to(&buffer[..length], from).is_ok());
                }
            }
            // Nothing came for a while: look at the interrupt flag.
            Err(error) if is_retry(&error) => {}
            Err(error) => return Err(Error::io("receive")(error)),
        }
    }
    Ok(counters.read())
}

fn is_retry(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn bind(config: &Config) -> Result<UdpSocket, Error> {
    // Dual-stack unless the administrator changed net.ipv6.bindv6only.
    let address = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, config.port, 0, 0));
    let socket = UdpSocket::bind(address)
        .map_err(Error::io(format!("listen on UDP port {}", config.port)))?;
    if let Some(bytes) = config.rcvbuf_bytes {
        setsockopt(&socket, sockopt::RcvBufForce, &bytes)
            .map_err(Error::io(format!("set a receive buffer of {bytes} bytes")))?;
    }
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .map_err(Error::io("set a receive timeout"))?;
    Ok(socket)
}

/// [`Counts`] and a flag in memory that two processes may share.
#[derive(Debug)]
struct SharedCounters(MmapRaw);

/// The flag and the four counts.
const WORDS: usize = 5;
const BYTES: usize = WORDS * size_of::<AtomicU64>();

impl SharedCounters {
    fn create(file: &File) -> Result<Self, Error> {
        file.set_len(BYTES as u64)
            .map_err(Error::io("size a server's counters"))?;
        let map = MmapOptions::new().len(BYTES).map_raw(file);
        map.map(Self).map_err(Error::io("map a server's counters"))
    }

    fn open(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self::create(&file.map_err(Error::io(format!("open {}", path.display())))?)
    }

    fn anonymous() -> Result<Self, Error> {
        let map = MmapOptions::new().len(BYTES).map_anon();
        map.map(|map| Self(map.into()))
            .map_err(Error::io("map a server's counters"))
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        let words = self.0.as_mut_ptr().cast::<[AtomicU64; WORDS]>();
        // SAFETY: the mapping is page-aligned, as long as the array, zeroed by
        // the kernel or written as this array, and lives as long as `self`.
        // Every access in every process is atomic.
        unsafe { &*words }
    }

    fn set_listening(&self) {
        self.words()[0].store(1, Ordering::Release);
    }

    fn is_listening(&self) -> bool {
        self.words()[0].load(Ordering::Acquire) != 0
    }

    fn count_received(&self, length: usize) {
        let words = self.words();
        words[2].fetch_add(length as u64, Ordering::Relaxed);
        words[1].fetch_add(1, Ordering::Relaxed);
    }

    fn count_sent(&self, sent: bool) {
        self.words()[if sent { 3 } else { 4 }].fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> Counts {
        let word = |index: usize| self.words()[index].load(Ordering::Relaxed);
        Counts {
            received: word(1),
            received_bytes: word(2),
            sent: word(3),
            send_errors: word(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn the_arguments_parse_back_to_the_config() {
        let config = Config {
            kind: Kind::Echo,
            port: 9000,
            work: Duration::from_nanos(2_500),
            rcvbuf_bytes: Some(1 << 20),
            counters: Some("/proc/1/fd/3".into()),
        };
        for config in [config, Config::new(Kind::Sink, 1)] {
            let words = std::iter::once("serve".to_owned()).chain(config.to_args());
            assert_eq!(Line::try_parse_from(words).unwrap().config, config);
        }
    }

    #[test]
    fn work_is_given_in_microseconds() {
        assert_eq!(parse_micros("2"), Ok(Duration::from_micros(2)));
        assert_eq!(parse_micros("0.5"), Ok(Duration::from_nanos(500)));
        for wrong in ["-1", "nan", "1e9", "two"] {
            assert!(parse_micros(wrong).is_err(), "{wrong}");
        }
    }
}
