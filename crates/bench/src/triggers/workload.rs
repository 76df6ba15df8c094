//! Workloads whose trigger states are worth knowing: today's kin of the paper's
//! six.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use plimsoll_testbed::http::{self, HttpLoad, Nginx};
use plimsoll_testbed::{Error as TestbedError, Placement, Process, Testbed};
use serde::Serialize;

use super::directory::Directory;
use crate::Error;

/// What keeps the machine busy while its trigger states are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Nothing of ours: whatever runs on this machine anyway.
    Idle,
    /// nginx saturated by wrk, between two namespaces (the paper's ST-Flash).
    Nginx,
    /// The same beside a process that computes without system calls on the same
    /// CPU (ST-Apache-compute).
    NginxCompute,
    /// A C file compiled again and again (ST-kernel-build).
    Build,
    /// A file read from the disk again and again: its cached pages are dropped each time
    /// (ST-nfs).
    Files,
    /// A stream of 1,000 datagrams/s, each decoded for 300 µs by a thread that
    /// plays it (ST-real-audio).
    Media,
}

impl Workload {
    /// Every workload, in the order of the tables.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::Nginx,
        Self::NginxCompute,
        Self::Build,
        Self::Files,
        Self::Media,
    ];

    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Nginx => "nginx",
            Self::NginxCompute => "nginx-compute",
            Self::Build => "build",
            Self::Files => "files",
            Self::Media => "media",
        }
    }

    /// What its work is counted in; nothing where it has a rate of its own.
    #[must_use]
    pub const fn unit(self) -> Option<&'static str> {
        match self {
            Self::Nginx | Self::NginxCompute => Some("requests/s"),
            Self::Build => Some("compilations/s"),
            Self::Files => Some("MB/s"),
            Self::Idle | Self::Media => None,
        }
    }
}

/// A running workload. Dropping it ends it.
pub(super) enum Load {
    /// Nothing runs.
    Nothing,
    /// nginx and wrk.
    Web(Web),
    /// Threads that work until told to stop.
    Threads(Workers),
}

/// A web server and its client.
pub(super) struct Web {
    /// Taken when it is waited for.
    wrk: Option<JoinHandle<Result<f64, TestbedError>>>,
    /// With wrk, which runs in them, until that has ended.
    hosts: Arc<Hosts>,
}

/// What nginx runs in; ended in this order.
struct Hosts {
    _compute: Option<Process>,
    nginx: Nginx,
    testbed: Testbed,
}

impl Load {
    pub(super) fn start(workload: Workload, seconds: u32) -> Result<Self, Error> {
        Ok(match workload {
            Workload::Idle => Self::Nothing,
            Workload::Nginx => Self::Web(Web::start(seconds, false)?),
            Workload::NginxCompute => Self::Web(Web::start(seconds, true)?),
            Workload::Build => Self::Threads(build()?),
            Workload::Files => Self::Threads(files()?),
            Workload::Media => Self::Threads(media()?),
        })
    }

    /// The CPU that the workload is bound to.
    pub(super) fn cpu(&self) -> Option<usize> {
        match self {
            Self::Web(web) => Some(web.hosts.testbed.test().cpu()),
            _ => None,
        }
    }

    /// Ends it: the work per second that it did.
    pub(super) fn stop(self) -> Result<Option<f64>, Error> {
        match self {
            Self::Nothing => Ok(None),
            Self::Web(mut web) => Ok(web.end().transpose()?),
            Self::Threads(workers) => Ok(workers.stop()),
        }
    }
}

impl Web {
    fn start(seconds: u32, compute: bool) -> Result<Self, Error> {
        let testbed = Testbed::create(plimsoll_testbed::Config::default())?;
        Placement::Softirq {
            holdoff: Duration::from_micros(30),
        }
        .apply(&testbed)?;
        let nginx = Nginx::start(testbed.test(), 80)?;
        let compute = compute
            .then(|| testbed.test().computing().spawn())
            .transpose()?;
        let hosts = Arc::new(Hosts {
            _compute: compute,
            nginx,
            testbed,
        });
        let load = HttpLoad {
            connections: 32,
            // The warm-up and a margin for starting.
            seconds: seconds + 1,
            keep_alive: true,
            patience: Duration::from_secs(4),
        };
        let wrk = thread::spawn({
            let hosts = Arc::clone(&hosts);
            move || {
                let served = http::run_wrk(hosts.testbed.load(), hosts.nginx.address(), load)?;
                Ok(served.requests_per_second)
            }
        });
        Ok(Self {
            wrk: Some(wrk),
            hosts,
        })
    }

    /// Waits for wrk, if that was not done: the requests per second that it got.
    fn end(&mut self) -> Option<Result<f64, TestbedError>> {
        let wrk = self.wrk.take()?;
        Some(wrk.join().expect("wrk's thread does not panic"))
    }
}

/// Hosts that its thread still had would be there after the command.
impl Drop for Web {
    fn drop(&mut self) {
        // One that panicked has said so.
        let _ = self.wrk.take().map(JoinHandle::join);
    }
}

/// Threads of a workload and what they did.
pub(super) struct Workers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    start: Instant,
    /// What one count of `done` is worth; nothing if it is no rate.
    worth: Option<f64>,
    _directory: Option<Directory>,
}

impl Workers {
    fn new(worth: Option<f64>, directory: Option<Directory>) -> Self {
        Self {
            stop: Arc::default(),
            done: Arc::default(),
            threads: Vec::new(),
            start: Instant::now(),
            worth,
            _directory: directory,
        }
    }

    /// A thread that calls `work` until the workload ends.
    fn add(&mut self, mut work: impl FnMut() + Send + 'static) {
        let (stop, done) = (Arc::clone(&self.stop), Arc::clone(&self.done));
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work();
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }

    fn stop(mut self) -> Option<f64> {
        self.end();
        let done = self.done.load(Ordering::Relaxed) as f64;
        Some(self.worth? * done / self.start.elapsed().as_secs_f64())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so, and did no work.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}

fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| {
        let action = action.to_owned();
        Error::Testbed(TestbedError::Io { action, source })
    }
}

/// Not /tmp, which may be in memory.
const ON_DISK: &str = "/var/tmp";

const C_FILE: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
    static int by_length(const void *a, const void *b) {\n\
    return (int)strlen(*(char **)a) - (int)strlen(*(char **)b); }\n\
    int main(int count, char **words) { qsort(words, count, sizeof(*words), by_length);\n\
    for (int i = 0; i < count; i++) printf(\"%s\\n\", words[i]); return 0; }\n";

fn build() -> Result<Workers, Error> {
    let directory = Directory::create(Path::new(ON_DISK)).map_err(io("make a directory"))?;
    let source = directory.path().join("sort.c");
    fs::write(&source, C_FILE).map_err(io("write a C file"))?;
    let object = directory.path().join("sort.o");
    let compile = move || {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-c", "-o"]).arg(&object).arg(&source);
        gcc.stderr(Stdio::null()).status()
    };
    match compile() {
        Ok(status) if status.success() => {}
        _ => {
            return Err(Error::Testbed(TestbedError::MissingProgram {
                program: "gcc".to_owned(),
                package: "gcc",
            }));
        }
    }
    let mut workers = Workers::new(Some(1.0), Some(directory));
    workers.add(move || {
        let _ = compile();
    });
    Ok(workers)
}

fn files() -> Result<Workers, Error> {
    const FILE_MB: usize = 64;
    const BLOCK: usize = 64 * 1024;
    // It has no name, and so ends with this process, however that ends.
    let mut file = tempfile::tempfile_in(ON_DISK).map_err(io("make a file to read"))?;
    for _ in 0..FILE_MB {
        file.write_all(&vec![7; 1 << 20])
            .map_err(io("fill a file to read"))?;
    }
    file.sync_all().map_err(io("fill a file to read"))?;
    file.rewind().map_err(io("begin to read"))?;
    let mut block = vec![0; BLOCK];
    let mut workers = Workers::new(Some(BLOCK as f64 / 1e6), None);
    workers.add(move || {
        // At its end: from the start, and from the disk.
        if matches!(file.read(&mut block), Ok(0) | Err(_)) {
            let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            let _ = file.rewind();
        }
    });
    Ok(workers)
}

fn media() -> Result<Workers, Error> {
    const INTERVAL: Duration = Duration::from_millis(1);
    const DECODING: Duration = Duration::from_micros(300);
    let socket = |action| UdpSocket::bind("127.0.0.1:0").map_err(io(action));
    let (sender, player) = (socket("bind a sender")?, socket("bind a player")?);
    let address = player.local_addr().map_err(io("find the player"))?;
    sender
        .connect(address)
        .map_err(io("connect to the player"))?;
    // So that the player sees the workload's end.
    player
        .set_read_timeout(Some(Duration::from_millis(100)))
        .map_err(io("set up the player"))?;
    let mut output = OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .map_err(io("open the output"))?;
    let mut workers = Workers::new(None, None);
    workers.add(move || {
        thread::sleep(INTERVAL);
        let _ = sender.send(&[0; 1200]);
    });
    workers.add(move || {
        let mut frame = [0; 1500];
        if player.recv(&mut frame).is_ok() {
            let start = Instant::now();
            while start.elapsed() < DECODING {
                std::hint::black_box(&mut frame).reverse();
            }
            let _ = output.write_all(&frame);
        }
    });
    Ok(workers)
}
