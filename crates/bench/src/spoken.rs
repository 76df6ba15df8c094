//! A program that is measured and says on its output when it has begun: it is started,
//! listened to, and ended as Ctrl-C ends it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_testbed::{Command, Process, interrupt};

use crate::Error;

/// How long a program may take to begin, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(10);

/// A program at work. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Spoken {
    name: &'static str,
    process: Process,
    log: PathBuf,
}

impl Spoken {
    /// Starts it and waits until its output, which goes to the file `log`, has
    /// `greeting`.
    pub(crate) fn start(
        name: &'static str,
        command: &mut Command<'_>,
        log: &Path,
        greeting: &str,
    ) -> Result<Self, Error> {
        let written = |source| Error::Traffic {
            action: "write the log of a program",
            source,
        };
        let output = File::create(log).map_err(written)?;
        let errors = output.try_clone().map_err(written)?;
        let mut running = Self {
            name,
            process: command.stdout(output).stderr(errors).spawn()?,
            log: log.to_owned(),
        };
        let end = Instant::now() + PATIENCE;
        while !running.said().contains(greeting) {
            if Instant::now() > end || running.process.try_wait()?.is_some() {
                return Err(running.failed("did not begin"));
            }
            interrupt::sleep(LOOK)?;
        }
        Ok(running)
    }

    /// All it has said so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Ends it; returns how it ended and all it said.
    pub(crate) fn stop(&mut self) -> Result<(ExitStatus, String), Error> {
        self.process.signal(Signal::SIGINT)?;
        let status = self.process.wait(PATIENCE)?;
        Ok((status, self.said()))
    }

    /// The error that it did not do something, with what it said.
    pub(crate) fn failed(&self, problem: &str) -> Error {
        Error::Tool {
            tool: self.name,
            problem: format!("{problem}: {}", self.said().trim()),
        }
    }
}
