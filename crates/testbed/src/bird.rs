//! A real routing session: BIRD in two hosts, which speak BGP to each other.
//!
//! BFD watches the session, as where operators want to lose little: whoever hears
//! nothing of the other for 0.3 s ends it. BIRD begins anew after a second.
//!
//! # Limits
//!
//! IPv4, and one neighbour each.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use ipnet::Ipv4Net;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{Error, Host, Process, interrupt};

/// How often each end sends a sign of life. The session ends after three that are missing.
pub const BFD_INTERVAL: Duration = Duration::from_millis(100);
/// For the start, and for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The protocol's name in the configuration.
const SESSION: &str = "neighbour";

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Its address on the link that both share.
    pub own: Ipv4Addr,
    /// Its autonomous system.
    pub own_as: u32,
    /// The neighbour's address.
    pub neighbour: Ipv4Addr,
    /// The neighbour's autonomous system.
    pub neighbour_as: u32,
    /// Networks that it announces as its own.
    pub announces: Vec<Ipv4Net>,
}

/// BIRD, running in a host. What it learns goes into the host's routes. Dropping it ends
/// it, takes them back and removes its files.
#[derive(Debug)]
pub struct Bird {
    // First, so that the process has ended when its directory goes.
    process: Process,
    directory: TempDir,
}

impl Bird {
    /// Starts BIRD in `host` and waits until it can be asked.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], [`Error::Failed`] with what BIRD said,
    /// [`Error::Timeout`], [`Error::Io`].
    pub fn start(host: &Host, speaker: &Speaker) -> Result<Self, Error> {
        let directory = host.directory("bird")?;
        let path = directory.path();
        let write = || {
            fs::write(path.join("bird.conf"), configuration(speaker))?;
            File::create(path.join("log"))
        };
        let log = write().map_err(Error::io("write the configuration of BIRD"))?;
        let mut command = host.command("bird");
        command
            .arg("-f")
            .args(["-c".as_ref(), path.join("bird.conf").as_os_str()])
            .args(["-s".as_ref(), path.join("control").as_os_str()])
            .args(["-P".as_ref(), path.join("pid").as_os_str()])
            .package("bird2")
            .stdout(Stdio::null())
            .stderr(log);
        let mut bird = Self {
            process: command.spawn()?,
            directory,
        };
        interrupt::wait_for("the first answer of BIRD", PATIENCE, || {
            if let Some(status) = bird.process.try_wait()? {
                return Err(bird.failed(&status.to_string()));
            }
            Ok(bird.ask("show status").is_ok().then_some(()))
        })?;
        Ok(bird)
    }

    fn failed(&self, status: &str) -> Error {
        let said = fs::read(self.directory.path().join("log")).unwrap_or_default();
        Error::Failed {
            program: "bird".to_owned(),
            status: status.to_owned(),
            output: crate::process::tail(&said),
        }
    }

    /// Whether the session is up.
    ///
    /// # Errors
    ///
    /// BIRD does not answer.
    pub fn is_established(&self) -> Result<bool, Error> {
        let said = self.ask(&format!("show protocols {SESSION}"));
        let said = said.map_err(Error::io("ask BIRD about its session"))?;
        Ok(said.contains(" Established"))
    }

    /// Waits until the session is up.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if it does not come up within `limit`; as
    /// [`Bird::is_established`].
    pub fn wait_until_established(&self, limit: Duration) -> Result<(), Error> {
        interrupt::wait_for("a session of BIRD", limit, || {
            Ok(self.is_established()?.then_some(()))
        })
    }

    /// Asks by the protocol of `birdc`: lines that begin with a code of four digits, and
    /// 0, 8 or 9 first in the code of the last one.
    fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(self.directory.path().join("control"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        let (mut answer, mut line) = (String::new(), String::new());
        let mut lines = BufReader::new(stream);
        // The first line is a greeting.
        lines.read_line(&mut line)?;
        loop {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer += &line;
            let is_last = line.as_bytes().get(4) == Some(&b' ');
            if is_last && line.starts_with(['0', '8', '9']) {
                return Ok(answer);
            }
        }
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        // Asked to, it takes its routes back; the field's own drop kills it should it not.
        if self.process.signal(Signal::SIGTERM).is_ok() {
            let _ = self.process.wait(Duration::from_secs(2));
        }
    }
}

/// Timers are the shortest that BGP allows, so that a lost session is soon tried again.
fn configuration(speaker: &Speaker) -> String {
    let mut announced = String::new();
    for network in &speaker.announces {
        // Writing to a string cannot fail. The kernel is not told: the host has it.
        let _ = write!(announced, " route {network} unreachable;");
    }
    format!(
        "log stderr all;
router id {own};
protocol device {{ }}
protocol bfd {{ interface \"*\" {{ interval {bfd} ms; multiplier 3; }}; }}
protocol static {{ ipv4;{announced} }}
protocol kernel {{ ipv4 {{ import none; export where source = RTS_BGP; }}; }}
protocol bgp {SESSION} {{
    local {own} as {own_as};
    neighbor {neighbour} as {neighbour_as};
    hold time 3; keepalive time 1;
    connect delay time 1; connect retry time 1; error wait time 1, 1;
    bfd on;
    ipv4 {{ import all; export where source = RTS_STATIC; next hop self; }};
}}
",
        own = speaker.own,
        own_as = speaker.own_as,
        neighbour = speaker.neighbour,
        neighbour_as = speaker.neighbour_as,
        bfd = BFD_INTERVAL.as_millis(),
    )
}
