//! Servers under test: a UDP sink that consumes, an echo that answers, calls, HTTP, and DNS,
//! with a known amount of work per packet or request, on the kernel's sockets or
//! on Plimsoll's own stack.
//!
//! On the kernel they are ordinary servers on purpose: unless asked otherwise one
//! blocking receive per packet, one dual-stack socket, the receive buffer an
//! operator would set. They run as
//! processes of their own in the test host ([`Server`] starts `plimsoll
//! serve`), so that they compete for its CPU as real ones do.
//!
//! A livelocked server cannot answer when asked for its counts. It keeps them
//! in memory shared with its parent, which reads them whenever it likes.

mod counters;
mod dns;
mod events;
mod http;
mod network;
mod option;
mod pace;
mod status;
mod tcp;
mod udp;

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ipnet::IpNet;
use nix::sys::memfd::{MFdFlags, memfd_create};
use plimsoll_kernel::knobs::{Keeper, OpenError};
use plimsoll_stack::{ReceivePath, TcpConfig};
use serde::Serialize;

use self::counters::SharedCounters;
use self::network::Network;
use self::udp::Reply;

use crate::spin::Work;
use crate::{Error, Host, Process, allow_descriptors, interrupt, rpc};

pub use self::http::{PageServer, Passing};
pub use self::network::On;
pub use self::pace::Pace;
pub use self::status::{Channel, Packets, StackStatus, Status, Watch};
pub use plimsoll_stack::device::xdp::Threaded;

/// What a server does with a packet, after working on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Nothing.
    Sink,
    /// Sends it back.
    Echo,
    /// Does the work that each call asks for, and answers it.
    Rpc,
    /// Files over HTTP/1.1.
    Http,
    /// A zone over DNS, as its authoritative server.
    Dns,
}

/// A server's settings, also the arguments of `plimsoll serve`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Config {
    /// What to do with a packet
    #[arg(value_enum)]
    pub kind: Kind,
    /// Port to listen on, on every address
    #[arg(long)]
    pub port: u16,
    /// Whose sockets: the `kernel`'s, or Plimsoll's own stack on `af_xdp:IFACE`,
    /// `packet:IFACE`, `tap:NAME` or `tun:NAME`
    #[arg(long, value_name = "DEVICE", default_value = "kernel")]
    pub on: On,
    /// Address of Plimsoll's own stack, as 198.18.0.2/24; may be repeated. The
    /// kernel must not have it. Without one, `af_xdp` shares the interface's
    /// addresses: it takes this port, the kernel keeps everything else.
    #[arg(long, value_name = "NET")]
    pub address: Vec<IpNet>,
    /// VLAN that Plimsoll's own stack is in (1 to 4094): it takes frames with that tag alone
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Under load the kernel waits so long for more frames before it polls the interface of
    /// `af_xdp` again, in microseconds: fewer interrupts, more latency. Put back at the end, also
    /// if this is killed.
    #[arg(long = "holdoff-us", value_name = "US", value_parser = parse_micros)]
    pub holdoff: Option<Duration>,
    /// With `af_xdp`: the kernel polls in a thread so many nice levels (0 to 19) beneath the
    /// server instead of in softirq context, before every process. A flooded server keeps its
    /// goodput (at 10), but while it is busy other traffic of the queue is lost. `auto`, with
    /// `--path ni-lrp`: beneath while the flood of one port is alone, and above every process as
    /// soon as anything else comes. `off`: as the interface has it. Put back at the end, also if
    /// this is killed. Default: `auto` for UDP with `--path ni-lrp` and without `--busy-poll-us`,
    /// else `off`.
    #[arg(long, value_name = "off|auto|LEVELS")]
    pub threaded: Option<Threaded>,
    /// `--threaded` also with a driver that this was not tried with: some hang then.
    #[arg(long)]
    pub any_driver: bool,
    /// Router of Plimsoll's own stack for other networks
    #[arg(long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,
    /// Receive path of Plimsoll's own stack: eager, early-demux, soft-lrp, ni-lrp,
    /// polled or soft-timer-polling, which may have a quota: soft-timer-polling:10
    #[arg(long, value_name = "PATH", default_value = "soft-lrp")]
    pub path: ReceivePath,
    /// A thread of idle priority does IP and UDP for up to 64 waiting datagrams of each socket while a CPU
    /// idles and the server is busy. Gives nothing on one CPU, and costs a waking and two system
    /// calls for 16 packets elsewhere. Own stack with `--path soft-lrp` or `soft-timer-polling`.
    #[arg(long)]
    pub work_ahead: bool,
    /// Datagrams to receive, and to send, at a time (1 to 1024)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: u16,
    /// Directory of the files that `http` serves
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub root: PathBuf,
    /// Send on each TCP connection at this rate, in Mbit/s, by the clock: without slow
    /// start on Plimsoll's own stack, as an upper bound on the kernel's
    /// (`SO_MAX_PACING_RATE`). `last`: at half of what the connection's last busy period
    /// showed (own stack only). `acks`: slow start stays, but what a burst of
    /// acknowledgements releases leaves at their average rate (own stack only).
    #[arg(long, value_name = "MBIT")]
    pub pace: Option<Pace>,
    /// Send and receive buffer of a TCP connection of Plimsoll's own stack: the path's rate
    /// times its round trip, or more
    #[arg(long, value_name = "BYTES", default_value_t = TcpConfig::default().buffer_bytes)]
    pub tcp_buffer_bytes: usize,
    /// Connections at a time, of `http` and of `dns` over TCP (1 to 65535); more wait to be accepted
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// CPU time spent on each packet or HTTP request, in microseconds
    #[arg(long = "work-us", value_name = "US", value_parser = parse_micros, default_value = "0")]
    pub work: Duration,
    /// Receive buffer in bytes, beyond `net.core.rmem_max` if root (the kernel
    /// doubles it for its own overhead). Default: `net.core.rmem_default`.
    ///
    /// A frame that an XDP program redirected is accounted at the size of a
    /// page: the usual default of 208 KiB holds about 50 of them.
    #[arg(long, value_name = "BYTES")]
    pub rcvbuf_bytes: Option<usize>,
    /// Zone file that `dns` answers from (RFC 1035; with $ORIGIN)
    #[arg(long, value_name = "FILE", required_if_eq("kind", "dns"))]
    pub zone: Option<PathBuf>,
    /// Also echo UDP on this port, or serve `rpc` if that is what is served, on a thread of
    /// its own: whom a flood of the first port must not disturb. It is not counted.
    #[arg(long, value_name = "PORT")]
    pub bystander: Option<u16>,
    /// Look for datagrams for so long before sleeping, in microseconds (`SO_BUSY_POLL` on the
    /// kernel's sockets)
    #[arg(long = "busy-poll-us", value_name = "US", value_parser = parse_micros, default_value = "0")]
    pub busy_poll: Duration,
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
            on: On::Kernel,
            address: Vec::new(),
            vlan: None,
            holdoff: None,
            threaded: None,
            any_driver: false,
            gateway: Vec::new(),
            path: ReceivePath::SoftLrp,
            work_ahead: false,
            batch: 1,
            root: ".".into(),
            pace: None,
            tcp_buffer_bytes: TcpConfig::default().buffer_bytes,
            connections: 512,
            work: Duration::ZERO,
            rcvbuf_bytes: None,
            zone: None,
            bystander: None,
            busy_poll: Duration::ZERO,
            counters: None,
        }
    }

    /// Where the kernel polls: as was said, or as is best for such a server. A server that polls
    /// by itself would wait for the thread, and TCP has no ring of its own by which a flood is
    /// seen.
    fn polled(&self) -> Threaded {
        let flooded_alone = matches!(self.on, On::AfXdp(_))
            && self.path == ReceivePath::NiLrp
            && self.kind != Kind::Http
            && self.busy_poll.is_zero();
        let default = match flooded_alone {
            true => Threaded::Auto,
            false => Threaded::Off,
        };
        self.threaded.unwrap_or(default)
    }

    fn validate(&self) -> Result<(), Error> {
        let refuse = |field, given: &On, allowed| {
            Err(Error::Config {
                field,
                given: given.to_string(),
                allowed,
            })
        };
        match &self.on {
            On::Kernel if !self.address.is_empty() => refuse(
                "on",
                &self.on,
                "af_xdp:IFACE, packet:IFACE, tap:NAME or tun:NAME with --address",
            ),
            On::Kernel if self.work_ahead => refuse(
                "on",
                &self.on,
                "Plimsoll's own stack with --work-ahead: the kernel's does not",
            ),
            On::Kernel | On::Tun(_) if self.vlan.is_some() => refuse(
                "on",
                &self.on,
                "af_xdp:IFACE, packet:IFACE or tap:NAME with --vlan",
            ),
            On::Kernel | On::Packet(_) | On::Tap(_) | On::Tun(_) if self.holdoff.is_some() => {
                refuse("on", &self.on, "af_xdp:IFACE with --holdoff-us")
            }
            On::Kernel | On::Packet(_) | On::Tap(_) | On::Tun(_)
                if self.polled() != Threaded::Off || self.any_driver =>
            {
                refuse("on", &self.on, "af_xdp:IFACE with --threaded")
            }
            On::AfXdp(_) if self.polled() == Threaded::Auto && self.path != ReceivePath::NiLrp => {
                Err(Error::Config {
                    field: "path",
                    given: self.path.to_string(),
                    allowed: "ni-lrp with --threaded auto: other paths have no ring for each port",
                })
            }
            On::Packet(_) | On::Tap(_) | On::Tun(_) if self.address.is_empty() => refuse(
                "on",
                &self.on,
                "used with --address: the stack needs one of its own",
            ),
            On::Kernel if matches!(self.pace, Some(Pace::Last | Pace::Acks)) => refuse(
                "on",
                &self.on,
                "Plimsoll's own stack with --pace last or acks: the kernel's sockets have neither",
            ),
            On::Kernel | On::AfXdp(_) | On::Packet(_) | On::Tap(_) | On::Tun(_) => Ok(()),
        }
    }

    /// The arguments that make `plimsoll serve` run this configuration.
    fn to_args(&self) -> Vec<String> {
        let kind = self.kind.to_possible_value();
        let kind = kind.expect("no kind is skipped").get_name().to_owned();
        let micros = |span: Duration| span.as_nanos() as f64 / 1e3;
        let mut args = vec![kind, format!("--port={}", self.port)];
        args.push(format!("--work-us={}", micros(self.work)));
        args.push(format!("--busy-poll-us={}", micros(self.busy_poll)));
        args.push(format!("--on={}", self.on));
        args.extend(self.address.iter().map(|net| format!("--address={net}")));
        args.extend(self.vlan.map(|id| format!("--vlan={id}")));
        let holdoff = self.holdoff.map(micros);
        args.extend(holdoff.map(|time| format!("--holdoff-us={time}")));
        args.extend(self.threaded.map(|place| format!("--threaded={place}")));
        args.extend(self.any_driver.then(|| "--any-driver".to_owned()));
        args.extend(self.gateway.iter().map(|ip| format!("--gateway={ip}")));
        args.push(format!("--path={}", self.path));
        args.extend(self.work_ahead.then(|| "--work-ahead".to_owned()));
        args.push(format!("--batch={}", self.batch));
        args.push(format!("--root={}", self.root.display()));
        args.extend(self.pace.map(|pace| format!("--pace={pace}")));
        args.push(format!("--tcp-buffer-bytes={}", self.tcp_buffer_bytes));
        args.push(format!("--connections={}", self.connections));
        args.extend(
            self.rcvbuf_bytes
                .map(|bytes| format!("--rcvbuf-bytes={bytes}")),
        );
        let zone = self.zone.as_ref();
        args.extend(zone.map(|file| format!("--zone={}", file.display())));
        let bystander = self.bystander;
        args.extend(bystander.map(|port| format!("--bystander={port}")));
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
    /// Packets, or HTTP requests, received and worked on.
    pub received: u64,
    /// Their payload, or content, in bytes.
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

/// The keeper of the interface's settings, if the server turns any. Start it before any
/// thread, and drop it when the server has ended.
///
/// # Errors
///
/// This process has other threads already, or there can be no other process.
pub fn keeper(config: &Config) -> Result<Option<Keeper>, Error> {
    let On::AfXdp(interface) = &config.on else {
        return Ok(None);
    };
    if config.polled() == Threaded::Off && config.holdoff.is_none() {
        return Ok(None);
    }
    let started = match Keeper::start(interface) {
        // Opening it says so.
        Err(OpenError::Interface(_)) => return Ok(None),
        started => started.map_err(io::Error::other),
    };
    Ok(Some(
        started.map_err(Error::io("start the keeper of settings"))?,
    ))
}

/// Serves until SIGINT or SIGTERM, and returns what was counted.
///
/// # Errors
///
/// [`Error::Io`] if the port cannot be bound or receiving fails,
/// [`Error::Config`] for settings that contradict each other,
/// [`Error::Stack`] if the user-space stack cannot be started.
pub fn serve(config: &Config) -> Result<Counts, Error> {
    Ok(serve_watched(config, |_| ())?.served)
}

/// As [`serve`]; `begun` is told how to look at the server meanwhile.
///
/// # Errors
///
/// As there.
pub fn serve_watched(config: &Config, begun: impl FnOnce(&Watch)) -> Result<Status, Error> {
    config.validate()?;
    interrupt::install()?;
    allow_descriptors()?;
    let network = Network::open(config)?;
    let counters = match &config.counters {
        Some(path) => SharedCounters::open(path)?,
        None => SharedCounters::anonymous()?,
    };
    let counters = Arc::new(counters);
    let watch = Watch {
        counters: Arc::clone(&counters),
        stack: network.stack().cloned(),
        began: Instant::now(),
    };
    begun(&watch);
    let work = Work::calibrate(config.work);
    beside_bystander(config, &network, || match config.kind {
        Kind::Sink => serve_udp(config, &network, work, &counters, Reply::Nothing),
        Kind::Echo => serve_udp(config, &network, work, &counters, Reply::Same),
        Kind::Rpc => serve_rpc(config, &network, work, &counters),
        Kind::Http => http::serve(config, &network, work, &counters),
        Kind::Dns => dns::serve(config, &network, work, &counters),
    })?;
    Ok(watch.status())
}

fn serve_udp(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
    reply: Reply,
) -> Result<(), Error> {
    udp::serve(config, network, counters, |_, _| {
        work.run();
        reply
    })
}

/// As each call asks, on top of the work that every call is.
fn serve_rpc(
    config: &Config,
    network: &Network,
    work: Work,
    counters: &SharedCounters,
) -> Result<(), Error> {
    let microsecond = Work::calibrate(Duration::from_micros(1));
    udp::serve(config, network, counters, |call, _| {
        match rpc::asked(call) {
            Some(micros) => {
                work.run();
                microsecond.times(micros).run();
                Reply::Same
            }
            None => Reply::Nothing,
        }
    })
}

/// Serves while the bystander echoes on a thread of its own, if there is to be one.
fn beside_bystander(
    config: &Config,
    network: &Network,
    serve: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(port) = config.bystander else {
        return serve();
    };
    let calls = config.kind == Kind::Rpc;
    let config = Config {
        port,
        batch: if calls { config.batch } else { 1 },
        ..config.clone()
    };
    let uncounted = SharedCounters::anonymous()?;
    let no_work = Work::calibrate(Duration::ZERO);
    thread::scope(|scope| {
        let bystander = scope.spawn(|| match calls {
            true => serve_rpc(&config, network, no_work, &uncounted),
            false => serve_udp(&config, network, no_work, &uncounted, Reply::Same),
        });
        while !uncounted.is_listening() && !bystander.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        // One that has ended could not bind.
        let served = match bystander.is_finished() {
            true => Ok(()),
            false => serve(),
        };
        // Ends the bystander if the server failed.
        interrupt::request();
        let echoed = bystander.join();
        served.and(echoed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// How long a server waits before it looks at the interrupt flag.
const LOOK: Duration = Duration::from_millis(100);

fn is_retry(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use plimsoll_core::pacing::Rate;

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
            on: On::AfXdp("eth0".to_owned()),
            address: vec!["198.18.0.2/24".parse().unwrap()],
            vlan: Some(100),
            holdoff: Some(Duration::from_nanos(40_500)),
            threaded: Some(Threaded::Auto),
            any_driver: true,
            gateway: vec!["198.18.0.1".parse().unwrap()],
            path: ReceivePath::NiLrp,
            work_ahead: true,
            batch: 64,
            root: "/srv".into(),
            pace: Some(Pace::At(Rate::clamped(12_500_000))),
            tcp_buffer_bytes: 1 << 20,
            connections: 10_000,
            rcvbuf_bytes: Some(1 << 20),
            zone: Some("/etc/zone".into()),
            bystander: Some(7),
            busy_poll: Duration::from_micros(50),
            counters: Some("/proc/1/fd/3".into()),
        };
        for config in [config, Config::new(Kind::Sink, 1)] {
            let words = std::iter::once("serve".to_owned()).chain(config.to_args());
            assert_eq!(Line::try_parse_from(words).unwrap().config, config);
        }
    }

    /// What `bench stack` measures by default is what a server does by default.
    #[test]
    fn the_kernel_polls_by_the_governor_where_that_can_pay() {
        let own = Config {
            on: On::AfXdp("eth0".to_owned()),
            path: ReceivePath::NiLrp,
            ..Config::new(Kind::Sink, 1)
        };
        assert_eq!(own.polled(), Threaded::Auto);
        let others = [
            Config {
                kind: Kind::Http,
                ..own.clone()
            },
            Config {
                busy_poll: Duration::from_micros(50),
                ..own.clone()
            },
            Config {
                path: ReceivePath::SoftLrp,
                ..own.clone()
            },
            Config {
                on: On::Kernel,
                ..own.clone()
            },
            Config {
                threaded: Some(Threaded::Off),
                ..own
            },
        ];
        for config in others {
            assert_eq!(config.polled(), Threaded::Off, "{config:?}");
        }
    }

    #[test]
    fn an_estimated_pace_needs_our_own_stack() {
        for pace in [Pace::Last, Pace::Acks] {
            let config = Config {
                pace: Some(pace),
                ..Config::new(Kind::Http, 80)
            };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains("--pace last or acks"), "{error}");
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
