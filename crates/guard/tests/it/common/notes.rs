//! What a session did, step by step, with what the host showed at each of them.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use caps::{CapSet, Capability};
use plimsoll_guard::session::{Console, Report, Requests, Settings};

/// What is known at a report.
pub(crate) struct Seen<'a> {
    pub(crate) reports: u32,
    pub(crate) requests: &'a Requests,
    pub(crate) report: &'a Report<'a>,
    pub(crate) lines: &'a [String],
    /// What is read as settings at the next reload; a mistake, if nothing.
    pub(crate) new_settings: &'a mut Option<Settings>,
}

/// What a session did, with the state of the host at each step.
pub(crate) struct Notes<F> {
    pub(crate) requests: Option<Requests>,
    pub(crate) steps: Vec<String>,
    pub(crate) lines: Vec<String>,
    pub(crate) shown: u32,
    pub(crate) notes_steps: bool,
    pub(crate) has_no_console: bool,
    pub(crate) on_report: F,
    pub(crate) new_settings: Option<Settings>,
}

impl<F: FnMut(Seen<'_>) -> io::Result<()>> Notes<F> {
    pub(crate) fn new(on_report: F) -> Self {
        Self {
            requests: None,
            steps: Vec::new(),
            lines: Vec::new(),
            shown: 0,
            notes_steps: true,
            has_no_console: false,
            on_report,
            new_settings: None,
        }
    }

    fn note(&mut self, step: &str) {
        if !self.notes_steps {
            return;
        }
        let has = |capability| caps::has_cap(None, CapSet::Permitted, capability).unwrap();
        let capabilities = if has(Capability::CAP_SYS_ADMIN) {
            "all"
        } else {
            "few"
        };
        let threads = fs::read_dir("/proc/self/task").unwrap().count();
        let xdp = if has_xdp() { "attached" } else { "detached" };
        let socket = if answers() { "answers" } else { "silent" };
        self.steps.push(format!(
            "{step}: {xdp}, {}, {capabilities} capabilities, {}, {}, {socket}",
            if is_polled_by_thread() {
                "in threads"
            } else {
                "in softirq"
            },
            if threads == 1 {
                "one thread"
            } else {
                "threads"
            },
            if is_real_time() {
                "real-time"
            } else {
                "ordinary"
            },
        ));
    }
}

impl<F: FnMut(Seen<'_>) -> io::Result<()>> Console for Notes<F> {
    fn start(&mut self, requests: Requests) -> io::Result<()> {
        self.note("start");
        if self.has_no_console {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.requests = Some(requests);
        Ok(())
    }
    fn show(&mut self, report: &Report<'_>) -> io::Result<()> {
        self.note("show");
        self.shown += 1;
        (self.on_report)(Seen {
            reports: self.shown,
            requests: self.requests.as_ref().unwrap(),
            report,
            lines: &self.lines,
            new_settings: &mut self.new_settings,
        })
    }
    fn log(&mut self, line: String) {
        self.lines.push(line);
    }
    fn settings(&mut self) -> Result<Settings, Box<dyn Error>> {
        self.new_settings.take().ok_or_else(|| "a mistake".into())
    }
    fn finish(&mut self, _: &Report<'_>) -> io::Result<()> {
        self.note("finish");
        Ok(())
    }
}

pub(crate) fn attribute(name: &str) -> String {
    let text = fs::read_to_string(format!("/sys/class/net/v0/{name}")).unwrap();
    text.trim().to_owned()
}

/// Whether a kernel thread polls an interface of this name, in whatever namespace.
pub(crate) fn is_polled_by_thread() -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut names = entries.map(|entry| fs::read_to_string(entry.path().join("comm")));
    names.any(|name| name.is_ok_and(|name| name.starts_with("napi/v0-")))
}

pub(crate) fn has_xdp() -> bool {
    let output = Command::new("ip").args(["link", "show", "v0"]).output();
    String::from_utf8(output.unwrap().stdout)
        .unwrap()
        .contains("xdp")
}

/// Whether the guard's socket takes questions. There is one guard in this namespace.
pub(crate) fn answers() -> bool {
    status_socket().is_some_and(|path| UnixStream::connect(path).is_ok())
}

/// Where the guard of `v0` answers.
pub(crate) fn status_socket() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    table.lines().find_map(|line| {
        let path = line.split_whitespace().nth(7)?;
        (path.contains("/v0.") && path.ends_with(".sock")).then(|| PathBuf::from(path))
    })
}

/// Whether this thread's scheduling policy is `SCHED_FIFO` (`proc_pid_stat(5)`, field 41).
pub(crate) fn is_real_time() -> bool {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let policy = after_name.split_whitespace().nth(41 - 3).unwrap();
    policy == libc::SCHED_FIFO.to_string()
}
