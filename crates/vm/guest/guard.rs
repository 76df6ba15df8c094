//! `plimsoll guard` as an operator runs it, read through its `--json` lines.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_kernel::link;
use serde_json::Value;

use super::Outcome;
use super::manager::{AS_UNIT, PASS_LINK};
use super::site::Site;

pub(crate) const PROGRAM: &str = "/bin/plimsoll";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const LINE_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Guard {
    child: Child,
    lines: Receiver<Value>,
    said: Said,
}

/// What a guard has written to standard error, and its keeper after it.
#[derive(Clone, Default)]
pub(crate) struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join(" | "))
    }
}

impl Guard {
    /// Starts it, and waits until it protects.
    pub(crate) fn start(site: &Site) -> Outcome<Self> {
        Self::start_with(site, &[])
    }

    /// The same with more words. It has the capabilities that the package's unit gives it.
    pub(crate) fn start_with(site: &Site, words: &[&str]) -> Outcome<Self> {
        let mut command = Command::new("/init");
        command.args([
            AS_UNIT,
            PROGRAM,
            "guard",
            &site.device,
            "--json",
            "-",
            "--standby=false",
        ]);
        command.args(words);
        Self::spawn(command)
    }

    /// The same under a service manager that has `link` in its store.
    pub(crate) fn start_under(site: &Site, socket: &str, link: Option<OwnedFd>) -> Outcome<Self> {
        let mut command = match link {
            None => Command::new(PROGRAM),
            Some(link) => {
                let mut command = Command::new("/init");
                command.args([PASS_LINK, PROGRAM]).stdin(link);
                command
            }
        };
        command
            .args(["guard", &site.device, "--json", "-", "--standby=false"])
            .env("NOTIFY_SOCKET", socket);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Outcome<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let said = Said::default();
        let listener = said.clone();
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || listen(stderr, &listener));
        }
        let lines = child.stdout.take().map(read).ok_or("no output")?;
        let guard = Self { child, lines, said };
        match guard.lines.recv_timeout(START_LIMIT) {
            Ok(_) => Ok(guard),
            Err(_) => Err(guard.problem("did not start").into()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Packets of this kind and outcome since the start, as of now.
    pub(crate) fn packets(&self, kind: &str, outcome: &str) -> Outcome<u64> {
        let line = self.line()?;
        Ok(line["totals"][kind][outcome].as_u64().unwrap_or(0))
    }

    /// Packets of every kind that it kept from the stack, as of now.
    pub(crate) fn not_admitted(&self) -> Outcome<u64> {
        let line = self.line()?;
        let kinds = line["totals"].as_object().ok_or("no totals")?;
        let outcomes = kinds.values().filter_map(Value::as_object).flatten();
        let kept = outcomes.filter(|(outcome, _)| *outcome != "admitted");
        Ok(kept.filter_map(|(_, packets)| packets.as_u64()).sum())
    }

    /// Of which protocols it guards no socket, and why, as of now.
    pub(crate) fn unguarded(&self) -> Outcome<String> {
        Ok(self.line()?["unguarded"].to_string())
    }

    /// The governor's mode, as of now.
    pub(crate) fn mode(&self) -> Outcome<String> {
        let line = self.line()?;
        let mode = line["governor"]["mode"].as_str();
        Ok(mode.unwrap_or_default().to_owned())
    }

    /// The report of now.
    fn line(&self) -> Outcome<Value> {
        while self.lines.try_recv().is_ok() {}
        // The first line may have been read before this call.
        let mut line = Value::Null;
        for _ in 0..2 {
            line = self
                .lines
                .recv_timeout(LINE_LIMIT)
                .map_err(|_| self.problem("fell silent"))?;
        }
        Ok(line)
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) -> Outcome<()> {
        self.signal(Signal::SIGTERM)?;
        let end = Instant::now() + STOP_LIMIT;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                return Err(self.problem(&format!("ended with {status}")).into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err(self.problem("did not end").into())
    }

    /// Kills it.
    pub(crate) fn kill(mut self) -> Outcome<Said> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.said.clone())
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = i32::try_from(self.pid())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    fn problem(&self, text: &str) -> String {
        // What it said last may be on its way still.
        thread::sleep(Duration::from_millis(200));
        format!("the guard {text}: {}", self.said())
    }

    /// What it has told on standard error.
    pub(crate) fn said(&self) -> String {
        self.said.to_string()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stdout: ChildStdout) -> Receiver<Value> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if serde_json::from_str(&line).is_ok_and(|line| sender.send(line).is_err()) {
                break;
            }
        }
    });
    lines
}

fn listen(stderr: impl Read, said: &Said) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        said.lines().push(line);
    }
}

/// Runs `plimsoll guard` with these words to its end.
pub(crate) fn run(words: &[&str]) -> Outcome<Output> {
    Ok(Command::new(PROGRAM).arg("guard").args(words).output()?)
}

/// The id of the native program on the guarded interface.
pub(crate) fn attached(site: &Site) -> Outcome<u32> {
    let program = link::link(site.ifindex)?.xdp;
    let program = program.ok_or("no program is attached")?;
    if program.mode != "native" {
        return Err(format!("attached in {} mode", program.mode).into());
    }
    Ok(program.id)
}
