//! `plimsoll guard` as an operator runs it: a process in the test host, on its
//! CPU, read through its `--json` lines.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use plimsoll_kernel::error::LACKS;
use plimsoll_testbed::{Host, Process};
use serde::Deserialize;

use crate::Error;

const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(5);
const LOOKS: u32 = 10;
const LOOK_GAP: Duration = Duration::from_millis(7);
/// It speaks once a second or more often.
const LINE_LIMIT: Duration = Duration::from_secs(5);
/// An error of the guard has fewer.
const KEPT_LINES: usize = 8;

/// Packets by outcome.
pub(crate) type Packets = BTreeMap<String, u64>;

/// The part of a `--json` line that comparisons use.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) totals: BTreeMap<String, Packets>,
    #[serde(default)]
    pub(crate) channels: Vec<ChannelLine>,
    /// What the governor does.
    #[serde(default)]
    pub(crate) governor: GovernorLine,
    /// Sources that it knows from before an overload.
    #[serde(default)]
    pub(crate) known_sources: u64,
}

/// The governor's part of a line.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct GovernorLine {
    /// Its mode; empty if it has none.
    pub(crate) mode: String,
    /// Changes of the mode since the start.
    pub(crate) switches: u64,
}

/// One channel of a line.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChannelLine {
    pub(crate) kind: String,
    pub(crate) packets: Packets,
}

impl Line {
    /// Packets that went no further.
    pub(crate) fn discarded(&self) -> u64 {
        let outcomes = self.totals.values().flatten();
        outcomes
            .filter(|(outcome, _)| *outcome != "admitted")
            .map(|(_, packets)| packets)
            .sum()
    }

    /// All packets.
    pub(crate) fn offered(&self) -> u64 {
        self.totals.values().flat_map(BTreeMap::values).sum()
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Resident memory in KiB.
    pub(crate) memory_kib: u64,
    /// Open descriptors, maps included.
    pub(crate) descriptors: u64,
    /// BPF maps among them.
    pub(crate) maps: u64,
}

/// A running guard. Dropping it kills it, which detaches it.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    process: Process,
    lines: Receiver<String>,
    said: Said,
}

/// The last lines of its standard error, for when it fails. Its events would drown
/// the progress that is shown on the terminal.
#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<VecDeque<String>>>);

impl Said {
    fn read(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    }

    /// `text`, and below it what the guard said last.
    fn problem(&self, text: &str) -> Error {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = kept.iter().flat_map(|line| ["\n  ", line]);
        problem(&format!("{text}{}", lines.collect::<String>()))
    }
}

impl GuardProcess {
    /// Whether `program guard` has the option, by its own help.
    pub(crate) fn has_option(host: &Host, program: &Path, option: &str) -> Result<bool, Error> {
        let mut command = host.command(program);
        let help = command.args(["guard", "--help"]).output(START_LIMIT)?;
        Ok(String::from_utf8_lossy(&help.stdout)
            .split(|c: char| c.is_whitespace() || c == '=')
            .any(|word| word == option))
    }

    /// Asks `program guard check` whether it can run in `host`.
    pub(crate) fn require(host: &Host, program: &Path) -> Result<(), Error> {
        let mut command = host.command(program);
        command.args(["guard", "check", host.device()]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let mut said = String::new();
        if let Some(mut stdout) = process.take_stdout() {
            let read = stdout.read_to_string(&mut said);
            read.map_err(|error| problem(&format!("check cannot be read: {error}")))?;
        }
        if process.wait(START_LIMIT)?.code() != Some(LACKS.into()) {
            return Ok(());
        }
        let missing = said.lines().filter(|line| line.starts_with("MISSING"));
        Err(Error::GuardLacks {
            missing: missing.collect::<Vec<_>>().join("; "),
        })
    }

    /// Starts `program guard DEVICE` with `arguments` in `host` and waits until
    /// it protects.
    pub(crate) fn start(host: &Host, program: &Path, arguments: &[String]) -> Result<Self, Error> {
        let mut command = host.command(program);
        command
            .args(["guard", host.device(), "--json", "-"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let stderr = process
            .take_stderr()
            .ok_or_else(|| problem("has no standard error"))?;
        let said = Said::default();
        let listener = said.clone();
        let listening = thread::spawn(move || listener.read(stderr));
        let stdout = process
            .take_stdout()
            .ok_or_else(|| problem("has no standard output"))?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        // It speaks once it is attached.
        match lines.recv_timeout(START_LIMIT) {
            Ok(_) => Ok(Self {
                process,
                lines,
                said,
            }),
            Err(RecvTimeoutError::Timeout) => Err(said.problem("did not start in time")),
            Err(RecvTimeoutError::Disconnected) => {
                // It has ended, and so has its standard error.
                let _ = listening.join();
                Err(said.problem("ended at its start"))
            }
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits for its next line.
    pub(crate) fn next_line(&self) -> Result<Line, Error> {
        let line = self.lines.recv_timeout(LINE_LIMIT);
        parse(&line.map_err(|_| self.said.problem("fell silent"))?)
    }

    /// Lines that came since the last look.
    pub(crate) fn new_lines(&self) -> Result<Vec<Line>, Error> {
        self.lines.try_iter().map(|line| parse(&line)).collect()
    }

    /// What it holds all the time: the least of some looks, because a file it
    /// reads is open for a moment.
    pub(crate) fn holdings(&self) -> Result<Holdings, Error> {
        let mut least = self.look()?;
        for _ in 1..LOOKS {
            thread::sleep(LOOK_GAP);
            let now = self.look()?;
            least = Holdings {
                memory_kib: least.memory_kib.min(now.memory_kib),
                descriptors: least.descriptors.min(now.descriptors),
                maps: least.maps.min(now.maps),
            };
        }
        Ok(least)
    }

    fn look(&self) -> Result<Holdings, Error> {
        let directory = format!("/proc/{}", self.process.pid());
        let read = || -> std::io::Result<Holdings> {
            let status = fs::read_to_string(format!("{directory}/status"))?;
            let mut holdings = Holdings {
                memory_kib: resident_kib(&status).unwrap_or(0),
                ..Holdings::default()
            };
            for descriptor in fs::read_dir(format!("{directory}/fd"))? {
                holdings.descriptors += 1;
                let target = fs::read_link(descriptor?.path());
                let is_map = target.is_ok_and(|path| path == Path::new("anon_inode:bpf-map"));
                holdings.maps += u64::from(is_map);
            }
            Ok(holdings)
        };
        read().map_err(|error| problem(&format!("cannot be looked at: {error}")))
    }

    /// Ends it and returns its last line.
    pub(crate) fn stop(self) -> Result<Line, Error> {
        let Self {
            mut process,
            lines,
            said,
        } = self;
        process.signal(Signal::SIGTERM)?;
        let status = process.wait(STOP_LIMIT)?;
        if !status.success() {
            return Err(said.problem(&format!("ended with {status}")));
        }
        let last = lines
            .iter()
            .last()
            .ok_or_else(|| said.problem("ended without a last line"))?;
        parse(&last)
    }
}

fn parse(line: &str) -> Result<Line, Error> {
    serde_json::from_str(line).map_err(|error| problem(&format!("said {line:?}: {error}")))
}

/// `VmRSS` of `/proc/PID/status` (proc(5)).
fn resident_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn problem(text: &str) -> Error {
    Error::Guard {
        problem: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use plimsoll_testbed::{Config, Testbed};

    use super::*;

    #[test]
    fn an_error_ends_with_the_last_lines_that_the_guard_said() {
        let said = Said::default();
        let lines: String = (1..=20).map(|line| format!("line {line}\n")).collect();
        said.read(lines.as_bytes());
        let shown = said.problem("fell silent").to_string();
        assert!(shown.contains("fell silent\n  line 13\n"), "{shown}");
        assert!(shown.ends_with("line 20"), "{shown}");
    }

    /// The demo shows the modelled host then. Needs root.
    #[test]
    fn a_host_that_the_guard_refuses_lacks_something() {
        let testbed = Testbed::create(Config::default()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("guard");
        let write = |text: &str| {
            fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        };
        write("echo ok; echo 'MISSING kernel too old'; exit 3");
        let error = GuardProcess::require(testbed.test(), &program).unwrap_err();
        assert!(error.is_missing());
        let told = error.to_string();
        assert!(told.ends_with("host: MISSING kernel too old"), "{told}");
        write("echo limited; exit 0");
        GuardProcess::require(testbed.test(), &program).unwrap();
    }

    #[test]
    fn everything_but_admitted_is_discarded() {
        let line = r#"{"schema":1,"totals":{"icmp":{"admitted":5,"socket_queue":0},
            "udp_socket":{"admitted":7,"socket_queue":20},"tcp_listener":{"admitted":1,"syn_queue":3}}}"#;
        let line = parse(line).unwrap();
        assert_eq!(line.discarded(), 23);
        assert_eq!(line.offered(), 36);
        assert_eq!(line.governor.mode, "");
    }

    #[test]
    fn resident_memory_is_read_by_name() {
        let status = "Name:\tplimsoll\nVmSize:\t  9 kB\nVmRSS:\t    1234 kB\n";
        assert_eq!(resident_kib(status), Some(1234));
        assert_eq!(resident_kib(""), None);
    }
}
