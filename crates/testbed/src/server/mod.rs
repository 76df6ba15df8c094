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

mod config;
mod counters;
mod dns;
mod events;
mod http;
mod network;
mod option;
mod pace;
mod source;
mod status;
mod tcp;
mod udp;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use plimsoll_kernel::knobs::{Keeper, OpenError};
use serde::Serialize;

use self::counters::SharedCounters;
use self::network::Network;
use self::udp::Reply;

use crate::spin::Work;
use crate::{Command, Error, Host, Process, allow_descriptors, interrupt, rpc};

pub use self::config::{BATCH, Config, Kind};
pub use self::http::{PageServer, Passing};
pub use self::network::On;
pub use self::pace::Pace;
pub use self::status::{Channel, Packets, StackStatus, Status, Watch};
pub use plimsoll_stack::device::xdp::Threaded;

/// How long a server may take to end: its stack waits up to 5 s until peers have taken what TCP
/// wrote.
const STOP: Duration = Duration::from_secs(7);

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
        Self::start_by(&mut host.command(program), config)
    }

    /// As [`Server::start`], in a session of its own, as a service manager starts it: see
    /// [`Command::own_session`].
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_as_service(host: &Host, program: &Path, config: &Config) -> Result<Self, Error> {
        Self::start_by(host.command(program).own_session(), config)
    }

    fn start_by(command: &mut Command<'_>, config: &Config) -> Result<Self, Error> {
        let file = memfd_create(c"plimsoll-counters", MFdFlags::MFD_CLOEXEC)
            .map_err(Error::io("make memory for a server's counters"))?;
        let file = File::from(file);
        let counters = SharedCounters::create(&file)?;
        let config = Config {
            // The child opens it before we listen to it, so it stays open here.
            counters: Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()),
            ..config.clone()
        };
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
        let status = self.process.stop(STOP)?;
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
    let started = match Keeper::start(interface, &[]) {
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

/// As [`serve`]; `begun` is told how to look at the server meanwhile. What the stack still does
/// while it ends, when nobody knows it any more, is not counted.
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
        batch: if calls { config.batch } else { Some(1) },
        kind: if calls { Kind::Rpc } else { Kind::Echo },
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

/// Descriptors or memory have run out, which passes.
fn is_lack(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    use Errno::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(number, Some(EMFILE | ENFILE | ENOBUFS | ENOMEM))
}
