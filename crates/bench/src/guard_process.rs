//! `plimsoll guard` as an operator runs it: a process in the test host, on its
//! CPU, read through its `--json` lines.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use plimsoll_testbed::{Host, Process};
use serde::Deserialize;

use crate::Error;

const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The part of a `--json` line that comparisons use.
#[derive(Debug, Deserialize)]
struct Line {
    totals: std::collections::BTreeMap<String, std::collections::BTreeMap<String, u64>>,
}

impl Line {
    fn discarded(&self) -> u64 {
        let outcomes = self.totals.values().flatten();
        outcomes
            .filter(|(outcome, _)| *outcome != "admitted")
            .map(|(_, packets)| packets)
            .sum()
    }
}

/// A running guard. Dropping it kills it, which detaches it.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    process: Process,
    lines: Receiver<String>,
}

impl GuardProcess {
    /// Starts `program guard DEVICE` with `arguments` in `host` and waits until
    /// it protects.
    pub(crate) fn start(host: &Host, program: &Path, arguments: &[String]) -> Result<Self, Error> {
        let mut command = host.command(program);
        command
            .args(["guard", host.device(), "--json", "-"])
            .args(arguments)
            .stdout(Stdio::piped());
        let mut process = command.spawn()?;
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
        let guard = Self { process, lines };
        // It speaks once it is attached.
        guard
            .lines
            .recv_timeout(START_LIMIT)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => problem("did not start in time"),
                RecvTimeoutError::Disconnected => {
                    problem("ended at its start; its message is above")
                }
            })?;
        Ok(guard)
    }

    /// Ends it and returns how many packets it discarded early.
    pub(crate) fn stop(self) -> Result<u64, Error> {
        let Self { mut process, lines } = self;
        process.signal(Signal::SIGTERM)?;
        let status = process.wait(STOP_LIMIT)?;
        if !status.success() {
            return Err(problem(&format!("ended with {status}")));
        }
        let last = lines
            .iter()
            .last()
            .ok_or_else(|| problem("ended without a last line"))?;
        let line: Line = serde_json::from_str(&last)
            .map_err(|error| problem(&format!("said {last:?}: {error}")))?;
        Ok(line.discarded())
    }
}

fn problem(text: &str) -> Error {
    Error::Guard {
        problem: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_admitted_is_discarded() {
        let line = r#"{"schema":1,"totals":{"icmp":{"admitted":5,"socket_queue":0},
            "udp_socket":{"admitted":7,"socket_queue":20},"tcp_listener":{"admitted":1,"syn_queue":3}}}"#;
        assert_eq!(serde_json::from_str::<Line>(line).unwrap().discarded(), 23);
    }
}
