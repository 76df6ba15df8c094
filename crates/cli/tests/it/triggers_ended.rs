//! `plimsoll triggers`, ended before its time: nothing is left behind. Needs root, gcc, nginx and wrk.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than any machine is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A workload that would run for long.
struct Running(Child);

impl Running {
    fn start(workload: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(["triggers", workload, "--seconds", "60"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn wait_for(&mut self, what: &str, is_there: impl Fn(u32) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_there(self.0.id()) {
            assert!(Instant::now() < end, "{what} (it needs root)");
            assert_eq!(self.0.try_wait().unwrap(), None, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) -> nix::Result<()> {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal)
    }

    /// Its exit code, and what it said.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal).unwrap();
        let mut said = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

/// One that was not ended would keep other tests' CPUs for a minute.
impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.signal(Signal::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

/// Names in a directory that begin so.
fn names(directory: &str, begin: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(begin)).collect()
}

/// Files of a process in `/var/tmp`, as its descriptors name them.
fn files_on_disk(id: u32) -> Vec<String> {
    let descriptors = fs::read_dir(format!("/proc/{id}/fd"));
    let descriptors = descriptors.into_iter().flatten().flatten();
    let targets = descriptors.filter_map(|one| fs::read_link(one.path()).ok());
    let on_disk = targets.filter(|path| path.starts_with("/var/tmp"));
    on_disk
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

/// It had been killed by the signal, with its directory there.
#[test]
fn an_interrupted_build_leaves_no_directory() {
    let mut build = Running::start("build");
    let begin = format!("plimsoll-triggers-{}-", build.0.id());
    build.wait_for("its directory", |_| !names("/var/tmp", &begin).is_empty());
    let (code, said) = build.end(Signal::SIGTERM);
    assert_eq!(names("/var/tmp", &begin), [""; 0]);
    assert_eq!((code, said.as_str()), (Some(1), "plimsoll: interrupted\n"));
}

/// It stayed for good.
#[test]
fn what_a_killed_build_left_is_gone_with_the_next() {
    let mut killed = Running::start("build");
    let left = format!("plimsoll-triggers-{}-", killed.0.id());
    killed.wait_for("its directory", |_| !names("/var/tmp", &left).is_empty());
    killed.end(Signal::SIGKILL);
    assert_eq!(
        names("/var/tmp", &left).len(),
        1,
        "nobody was there to remove it"
    );
    let mut next = Running::start("build");
    next.wait_for("its directory", |id| {
        let own = format!("plimsoll-triggers-{id}-");
        !names("/var/tmp", &own).is_empty()
    });
    assert_eq!(names("/var/tmp", &left), [""; 0]);
    next.end(Signal::SIGTERM);
}

/// 64 MB, for ever.
#[test]
fn a_killed_reader_of_files_leaves_none() {
    let mut files = Running::start("files");
    files.wait_for("its file", |id| !files_on_disk(id).is_empty());
    for name in files_on_disk(files.0.id()) {
        assert!(name.ends_with(" (deleted)"), "{name}");
    }
    files.end(Signal::SIGKILL);
}

/// They had been the thread's that waited for wrk, which ended with the command.
#[test]
fn an_interrupted_web_server_leaves_no_namespace() {
    let mut nginx = Running::start("nginx");
    let id = nginx.0.id();
    let begin = format!("plimsoll-{id}-");
    let is_asked = |_| !names("/tmp", &format!("{begin}0-wrk-")).is_empty();
    nginx.wait_for("its client", is_asked);
    assert_eq!(names("/run/netns", &begin).len(), 2);
    let (code, said) = nginx.end(Signal::SIGTERM);
    for directory in ["/run/netns", "/tmp"] {
        assert_eq!(names(directory, &begin), [""; 0], "{directory}");
    }
    assert!(!Path::new(&format!("/run/plimsoll/{id}-0.testbed")).exists());
    assert_eq!((code, said.as_str()), (Some(1), "plimsoll: interrupted\n"));
}
