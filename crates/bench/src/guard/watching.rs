//! What it takes to run a guard and to watch it, with ten thousand channels: the
//! time to its start, what `guard top` and a scrape of its metrics cost, its
//! memory and the size of the program.
//!
//! A channel is a UDP socket that got one packet; nothing is sent while anything is
//! measured. Prometheus' side is this process: a scrape is timed from the connection
//! to the end of the answer.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::{Host, Process, allow_descriptors, interrupt};
use serde::Serialize;

use super::{Bench, Measured, Part};
use crate::Error;
use crate::protection::Stage;

const FIRST_PORT: u16 = 20_000;
/// Sent at once; the socket queues of others are not to be filled.
const BURST: usize = 100;
const BURST_GAP: Duration = Duration::from_millis(2);
/// All packets have been counted by then, unless they were lost.
const ARRIVAL: Duration = Duration::from_millis(100);
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
const SCRAPES: usize = 5;
/// Sooner the guard would answer with what it read for the last one.
const SCRAPE_GAP: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether something has come.
const LOOK: Duration = Duration::from_millis(2);
const TERMINAL: Winsize = Winsize {
    ws_row: 50,
    ws_col: 140,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
const MIB: f64 = 1024.0 * 1024.0;

/// What running and watching a guard takes: medians over the runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Watching {
    /// Channels that were there.
    pub channels: u16,
    /// From the command's start until a scrape is answered, in seconds.
    pub start_s: f64,
    /// A scrape of the metrics, in milliseconds: the median of each run.
    pub scrape_ms: f64,
    /// CPU time of `guard top` at two readings per second, in percent of one CPU.
    pub top_percent: f64,
    /// CPU time of the guard when nobody looks, in percent of one CPU.
    pub guard_percent: f64,
    /// The same while `guard top` runs.
    pub watched_percent: f64,
    /// Resident memory without its maps, in MiB.
    pub memory_mib: f64,
    /// Maps that are resident, in MiB.
    pub maps_mib: f64,
    /// The program, in MB.
    pub program_mb: f64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start_s: f64,
    scrape_ms: f64,
    top_percent: f64,
    guard_percent: f64,
    watched_percent: f64,
    memory_mib: f64,
    maps_mib: f64,
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    channels: u16,
    runs: Vec<Run>,
    program_mb: Vec<f64>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let (stage, plan) = (bench.stage, bench.plan);
    allow_descriptors()?;
    let _sockets = sockets(stage.host(), plan.channels)?;
    let size = fs::metadata(stage.program).map_err(failed("look at the program"))?;
    let mut outcome = Outcome {
        channels: plan.channels,
        program_mb: vec![size.len() as f64 / 1e6],
        ..Outcome::default()
    };
    let window = Duration::from_secs(plan.seconds.into());
    for round in 1..=plan.runs {
        let what = format!("a guard with {} channels", plan.channels);
        bench.say(Part::Watching, round, &what);
        outcome.runs.push(watch(&stage, plan.channels, window)?);
    }
    Ok(outcome)
}

fn sockets(host: &Host, channels: u16) -> Result<Vec<UdpSocket>, Error> {
    let bind = |port| UdpSocket::bind((host.ipv4(), port));
    let all = || (FIRST_PORT..FIRST_PORT + channels).map(bind).collect();
    let sockets: io::Result<_> = host.run(all)?;
    sockets.map_err(failed("open a socket for each channel"))
}

fn watch(stage: &Stage<'_>, channels: u16, window: Duration) -> Result<Run, Error> {
    stage.stock()?;
    let attached = stage.attached()?;
    let (host, begun) = (stage.host(), Instant::now());
    let mut guard = start(stage, &attached)?;
    wait_for("answers", || scrape(host).is_ok())?;
    let start_s = begun.elapsed().as_secs_f64();
    touch_all(stage, channels)?;

    let scrapes = (0..SCRAPES).map(|_| {
        thread::sleep(SCRAPE_GAP);
        let asked = Instant::now();
        scrape(host).map(|_| asked.elapsed().as_secs_f64() * 1e3)
    });
    let scrapes: io::Result<Vec<f64>> = scrapes.collect();
    let scrapes = scrapes.map_err(failed("scrape the metrics"))?;
    let [guard_percent] = cpu_percents([guard.pid()], window)?;
    let top = start_top(stage)?;
    let [top_percent, watched_percent] = cpu_percents([top.pid(), guard.pid()], window)?;
    top.stop(LIMIT)?;

    let maps = fs::read_to_string(format!("/proc/{}/smaps", guard.pid()));
    let (memory_mib, maps_mib) = resident(&maps.map_err(failed("read the guard's memory map"))?);
    guard.signal(Signal::SIGTERM)?;
    guard.wait(LIMIT)?;
    Ok(Run {
        start_s,
        scrape_ms: median(&scrapes).unwrap_or(f64::NAN),
        top_percent,
        guard_percent,
        watched_percent,
        memory_mib,
        maps_mib,
    })
}

/// As a service runs it.
fn start(stage: &Stage<'_>, attached: &[String]) -> Result<Process, Error> {
    let mut command = stage.host().command(stage.program);
    command
        .args(["guard", stage.host().device()])
        .args(attached)
        .args(["--quiet", "--metrics"])
        .arg(METRICS.to_string())
        .args(stage.guard_arguments);
    Ok(command.spawn()?)
}

/// `guard top` on a terminal of its own that somebody reads, after its first readings.
fn start_top(stage: &Stage<'_>) -> Result<Process, Error> {
    let pty = openpty(Some(&TERMINAL), None).map_err(failed("open a terminal"))?;
    let host = stage.host();
    let mut command = host.command(stage.program);
    let stdin = pty.slave.try_clone().map_err(failed("open a terminal"))?;
    command
        .args(["guard", "top", host.device()])
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(pty.slave))
        .env("TERM", "xterm-256color");
    let top = command.spawn()?;
    let mut screen = File::from(pty.master);
    thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(1..) = screen.read(&mut bytes) {}
    });
    interrupt::sleep(Duration::from_secs(1))?;
    Ok(top)
}

/// Sends a packet to each socket, until the guard knows them all.
fn touch_all(stage: &Stage<'_>, channels: u16) -> Result<(), Error> {
    let (host, load) = (stage.host(), stage.testbed.load());
    let client = load.run(|| UdpSocket::bind((load.ipv4(), 0)))?;
    let client = client.map_err(failed("open a socket"))?;
    let ports: Vec<u16> = (FIRST_PORT..FIRST_PORT + channels).collect();
    wait_for("has all channels", || {
        for burst in ports.chunks(BURST) {
            for port in burst {
                // What does not arrive is sent again.
                let _ = client.send_to(b"packet", (host.ipv4(), *port));
            }
            thread::sleep(BURST_GAP);
        }
        thread::sleep(ARRIVAL);
        scrape(host).is_ok_and(|text| channels_of(&text) >= f64::from(channels))
    })
}

/// `plimsoll_guard_channels` of a scrape.
fn channels_of(text: &str) -> f64 {
    let lines = text.lines();
    let values = lines.filter_map(|line| line.strip_prefix("plimsoll_guard_channels{"));
    let values = values.filter_map(|value| value.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Error> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LIMIT {
            let problem = format!("is not so far after {LIMIT:?} that it {what}");
            return Err(Error::Guard { problem });
        }
        interrupt::sleep(LOOK)?;
    }
    Ok(())
}

/// One scrape, as Prometheus makes it.
fn scrape(host: &Host) -> io::Result<String> {
    let connect = || TcpStream::connect(METRICS);
    let mut stream = host.run(connect).map_err(io::Error::other)??;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.starts_with("HTTP/1.1 200") {
        true => Ok(answer),
        false => Err(io::Error::other("the metrics are refused")),
    }
}

/// What processes use of one CPU during a window, in percent.
fn cpu_percents<const N: usize>(pids: [u32; N], window: Duration) -> Result<[f64; N], Error> {
    let read = || -> nix::Result<Vec<Duration>> {
        let of = |pid: &u32| {
            let pid = Pid::from_raw(pid.cast_signed());
            Ok(Duration::from(clock_gettime(clock_getcpuclockid(pid)?)?))
        };
        pids.iter().map(of).collect()
    };
    let before = read().map_err(failed("read a process's CPU time"))?;
    let begun = Instant::now();
    interrupt::sleep(window)?;
    let (after, passed) = (read(), begun.elapsed());
    let after = after.map_err(failed("read a process's CPU time"))?;
    let percent = |i: usize| (after[i] - before[i]).as_secs_f64() / passed.as_secs_f64() * 100.0;
    Ok(std::array::from_fn(percent))
}

/// What `/proc/PID/smaps` (proc(5)) says is resident, in MiB: all but BPF maps, and these.
fn resident(smaps: &str) -> (f64, f64) {
    let (mut memory_kib, mut maps_kib, mut is_map) = (0.0, 0.0, false);
    for line in smaps.lines() {
        match line.strip_prefix("Rss:") {
            Some(size) => {
                let size = size.trim().trim_end_matches(" kB").parse().unwrap_or(0.0);
                *if is_map {
                    &mut maps_kib
                } else {
                    &mut memory_kib
                } += size;
            }
            // A mapping begins with its addresses, a field with its name and a colon.
            None if line
                .split(' ')
                .next()
                .is_some_and(|word| !word.ends_with(':')) =>
            {
                is_map = line.ends_with("bpf-map");
            }
            None => {}
        }
    }
    (memory_kib * 1024.0 / MIB, maps_kib * 1024.0 / MIB)
}

fn failed<E: Into<io::Error>>(action: &str) -> impl FnOnce(E) -> Error {
    let action = action.to_owned();
    move |source| {
        Error::Testbed(plimsoll_testbed::Error::Io {
            action,
            source: source.into(),
        })
    }
}

impl Outcome {
    fn values(&self, of: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(of).collect()
    }
}

impl Measured for Outcome {
    type Section = Watching;

    fn section(&self) -> Watching {
        let middle = |of| median(&self.values(of)).unwrap_or(f64::NAN);
        Watching {
            channels: self.channels,
            start_s: middle(|run| run.start_s),
            scrape_ms: middle(|run| run.scrape_ms),
            top_percent: middle(|run| run.top_percent),
            guard_percent: middle(|run| run.guard_percent),
            watched_percent: middle(|run| run.watched_percent),
            memory_mib: middle(|run| run.memory_mib),
            maps_mib: middle(|run| run.maps_mib),
            program_mb: median(&self.program_mb).unwrap_or(f64::NAN),
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let goal = |id: &str, what: &str, goal, unit, runs| {
            Goal::new(
                format!("watching/{id}"),
                what,
                Side::AtMost,
                goal,
                unit,
                runs,
            )
        };
        vec![
            goal(
                "start",
                "from the command's start until the guard protects and answers",
                1.0,
                "s",
                self.values(|run| run.start_s),
            ),
            goal(
                "metrics",
                "a scrape of the metrics",
                50.0,
                "ms",
                self.values(|run| run.scrape_ms),
            ),
            goal(
                "top",
                "`guard top` at 2 Hz, of one CPU",
                2.0,
                "%",
                self.values(|run| run.top_percent),
            ),
            goal(
                "memory",
                "the guard's resident memory without its maps",
                32.0,
                "MiB",
                self.values(|run| run.memory_mib),
            ),
            goal(
                "program",
                "size of the program",
                12.0,
                "MB",
                self.program_mb.clone(),
            ),
        ]
    }
}

impl Watching {
    pub(super) fn table(&self) -> String {
        let mut text = format!("a guard with {} channels\n", self.channels);
        for (what, value, unit) in [
            ("start", self.start_s * 1e3, "ms"),
            ("scrape", self.scrape_ms, "ms"),
            ("top", self.top_percent, "% of a CPU"),
            ("guard, not watched", self.guard_percent, "% of a CPU"),
            ("guard, watched by top", self.watched_percent, "% of a CPU"),
            ("memory without maps", self.memory_mib, "MiB"),
            ("maps", self.maps_mib, "MiB"),
            ("program", self.program_mb, "MB"),
        ] {
            let _ = writeln!(text, "{what:<22}{value:>8.2} {unit}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_told_from_the_rest() {
        let smaps = "7f00-7f10 r--s 0000 00:0e 10   anon_inode:bpf-map\n\
                     Size:             64 kB\nRss:            2048 kB\nVmFlags: rd mr\n\
                     7f10-7f20 rw-p 0000 00:00 0    [heap]\n\
                     Rss:            1024 kB\nPss:            1024 kB\n";
        assert_eq!(resident(smaps), (1.0, 2.0));
        assert_eq!(resident(""), (0.0, 0.0));
    }

    #[test]
    fn channels_are_read_by_name() {
        let text = "# TYPE plimsoll_guard_channels gauge\n\
                    plimsoll_guard_channels{interface=\"a 0\"} 12.0\n\
                    plimsoll_guard_channels_exported{interface=\"a 0\"} 3.0\n";
        assert_eq!(channels_of(text), 12.0);
        assert_eq!(channels_of(""), 0.0);
    }
}
