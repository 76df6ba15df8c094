//! A process that is not mistaken for a later one of the same id.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use crate::error::{CallError, os};

/// A process by id and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Clock ticks after boot (`proc_pid_stat(5)`, field 22).
    start_ticks: u64,
}

impl Process {
    /// This one.
    ///
    /// # Errors
    ///
    /// There is no `/proc`.
    pub fn current() -> Result<Self, CallError> {
        Self::of(std::process::id()).map_err(os("read this process's start"))
    }

    /// The process that has this id now.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn of(pid: u32) -> io::Result<Self> {
        let start_ticks = start_ticks(pid)?;
        Ok(Self { pid, start_ticks })
    }

    /// False once it has ended, also if another has its id.
    pub fn is_alive(self) -> bool {
        start_ticks(self.pid).is_ok_and(|start| start == self.start_ticks)
    }

    /// The inverse of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let (pid, start_ticks) = text.trim().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok()?,
            start_ticks: start_ticks.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.pid, self.start_ticks)
    }
}

fn start_ticks(pid: u32) -> io::Result<u64> {
    // A process may give itself a name of any bytes.
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let started = parse_start_ticks(&String::from_utf8_lossy(&stat));
    started.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The start of a process by its `stat` file; `None` once it is dead.
pub(crate) fn parse_start_ticks(stat: &str) -> Option<u64> {
    // The name is in brackets and may hold anything, brackets included; the
    // state follows it as field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let is_dead = fields.trim_start().starts_with(['Z', 'X']);
    let start = fields.split_whitespace().nth(19).filter(|_| !is_dead)?;
    start.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use proptest::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn a_name_of_any_characters_hides_no_start(
            name in ".{0,15}",
            state in "[RSDTtI]",
            start: u64,
        ) {
            let stat = |state: &str| {
                format!("7 ({name}) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 {start} 20 21\n")
            };
            prop_assert_eq!(parse_start_ticks(&stat(&state)), Some(start));
            prop_assert_eq!(parse_start_ticks(&stat("Z")), None, "a zombie is dead");
        }

        #[test]
        fn what_is_displayed_is_read_again(pid: u32, start_ticks: u64) {
            let process = Process { pid, start_ticks };
            prop_assert_eq!(Process::parse(&process.to_string()), Some(process));
        }
    }

    #[test]
    fn a_process_lives_until_it_ends_and_is_no_other() {
        let current = Process::current().unwrap();
        assert!(current.is_alive());
        assert_eq!(Process::parse(&current.to_string()), Some(current));
        let other = Process {
            start_ticks: current.start_ticks + 1,
            ..current
        };
        assert!(!other.is_alive());

        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id();
        let child_process = Process {
            pid,
            start_ticks: start_ticks(pid).unwrap(),
        };
        assert!(child_process.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!child_process.is_alive());
    }

    /// Its sockets were nobody's: no text, no process.
    #[test]
    fn a_process_may_have_a_name_that_is_no_text() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(OsStr::from_bytes(b"\xff) R\xfe"));
        // Not by this process: while a child that another test forks has the file open to write,
        // too, it cannot be started.
        let copied = std::process::Command::new("cp")
            .arg("/bin/sleep")
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
        let mut child = std::process::Command::new(program)
            .arg("60")
            .spawn()
            .unwrap();
        let found = Process::of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.unwrap().pid, child.id());
    }
}
