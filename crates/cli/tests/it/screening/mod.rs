//! The firewall's host between two others, and floods of it.

use std::fs;
use std::io::ErrorKind::AddrInUse;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_programs::screen::{Error, Firewall, ScreenConfig};
use plimsoll_testbed::blast::{Blast, Bound, Flow, Report, Schedule, Spec, Stop, Transport};
use plimsoll_testbed::{Command, Config, Host, Process, Testbed};
use serde_json::Value;

use crate::common::{LIMIT, PROGRAM};

/// The address of the host behind, in the load host's network.
pub(crate) const BEHIND: &str = "198.18.0.77";

pub(crate) const MAC: &str = "02:00:00:00:00:77";

/// The test host becomes the firewall: its second interface leads to a namespace of its
/// own, which has an address in the load host's network.
pub(crate) struct Line {
    pub(crate) testbed: Testbed,
    pub(crate) behind: String,
}

impl Line {
    pub(crate) fn new() -> Self {
        let testbed = Testbed::create(Config::default()).unwrap();
        let test = testbed.test();
        let behind = format!("{}-behind", test.name());
        // Before the shell: that sees the namespaces that were there when it began.
        plimsoll_kernel::namespace::create(&behind).unwrap();
        let line = Self { testbed, behind };
        let (test, name) = (line.testbed.test(), &line.behind);
        let script = format!(
            "set -e
             ip link add out0 type veth peer name far0
             ip link set far0 netns {name} address {MAC}
             ip addr flush dev {device}
             ip link set out0 up
             ip netns exec {name} ip link set lo up
             ip netns exec {name} ip addr add {BEHIND}/15 dev far0
             ip netns exec {name} ip link set far0 up
             ip netns exec {name} ethtool -K far0 tx off gro on >/dev/null",
            device = test.device(),
        );
        shell(test, &script);
        let load = line.testbed.load();
        let route = format!(
            "set -e
             ethtool -K {device} tx off gro on >/dev/null
             ip route replace {BEHIND}/32 dev {device}
             ip neigh replace {BEHIND} lladdr {MAC} dev {device} nud permanent",
            device = load.device(),
        );
        shell(load, &route);
        line
    }

    pub(crate) fn start(
        &self,
        rules: &Path,
        arguments: &[&str],
    ) -> (Process, BufReader<impl Read + use<>>) {
        let test = self.testbed.test();
        let mut command = test.command(PROGRAM);
        command
            .args(["screen", test.device(), "out0", "--rules"])
            .arg(rules)
            .args(["--json", "-"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.started(&mut command)
    }

    /// Once it screens; its standard error is piped.
    pub(crate) fn started(
        &self,
        command: &mut Command<'_>,
    ) -> (Process, BufReader<impl Read + use<>>) {
        let mut process = command.spawn().unwrap();
        let mut says = BufReader::new(process.take_stderr().unwrap());
        let mut line = String::new();
        says.read_line(&mut line).unwrap();
        assert!(line.starts_with("screening between"), "{line}");
        // It cannot see what the other ends of both links are set to.
        for _ in 0..2 {
            line.clear();
            says.read_line(&mut line).unwrap();
            assert!(line.contains("`ethtool -K PEER tx off`"), "{line}");
        }
        (process, says)
    }

    /// A socket in the host behind.
    pub(crate) fn listen(&self, port: u16) -> UdpSocket {
        let file = fs::File::open(format!("/run/netns/{}", self.behind)).unwrap();
        let bind = || {
            plimsoll_kernel::namespace::enter(&file).unwrap();
            UdpSocket::bind((BEHIND, port)).unwrap()
        };
        let socket = thread::scope(|scope| scope.spawn(bind).join().unwrap());
        let patience = Some(Duration::from_millis(500));
        socket.set_read_timeout(patience).unwrap();
        // It is read after everything was sent.
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        socket
    }

    /// Sends numbered datagrams from the load host, one every 200 µs.
    pub(crate) fn send(&self, port: u16, count: u32) {
        self.send_from(0, port, count);
    }

    /// The same from a port of the load host's: datagrams of one flow.
    pub(crate) fn send_from(&self, from: u16, port: u16, count: u32) {
        let send = || {
            let socket = bind(from);
            for number in 0..count {
                socket
                    .send_to(&number.to_be_bytes(), (BEHIND, port))
                    .unwrap();
                thread::sleep(Duration::from_micros(200));
            }
        };
        self.testbed.load().run(send).unwrap();
    }
}

/// A socket of a port that was just given back: a process that another test forks may hold
/// it for a moment.
fn bind(port: u16) -> UdpSocket {
    let end_at = Instant::now() + LIMIT;
    loop {
        match UdpSocket::bind(("0.0.0.0", port)) {
            Err(error) if error.kind() == AddrInUse && Instant::now() < end_at => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Ends a firewall that runs beside, also where a test fails: that would hang otherwise.
pub(crate) struct Ending<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens a firewall. A process that another test forks holds the link of the one before
/// for a moment.
pub(crate) fn open(test: &Host, config: &ScreenConfig) -> Firewall {
    let end_at = Instant::now() + LIMIT;
    loop {
        match test.run(|| Firewall::open(config, &mut [])).unwrap() {
            Err(Error::Interface(error)) if Instant::now() < end_at => {
                assert!(error.to_string().contains("XDP program"), "{error}");
                thread::sleep(Duration::from_millis(20));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Ends a screen that runs; returns what it came to.
pub(crate) fn end(mut process: Process) -> Value {
    process.signal(Signal::SIGINT).unwrap();
    let mut text = String::new();
    let mut output = process.take_stdout().unwrap();
    output.read_to_string(&mut text).unwrap();
    assert!(process.wait(LIMIT).unwrap().success());
    let document: Value = serde_json::from_str(&text).unwrap();
    document["results"].clone()
}

/// Frames that have arrived, by their outcomes.
pub(crate) fn received_of(counts: &Value) -> u64 {
    ["ring", "queue", "discarded", "failed", "output", "accepted"]
        .iter()
        .map(|place| counts[place].as_u64().unwrap())
        .sum()
}

impl Drop for Line {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip")
            .args(["netns", "delete", &self.behind])
            .status();
    }
}

pub(crate) fn shell(host: &Host, script: &str) {
    host.command("sh")
        .args(["-c", script])
        .output(LIMIT)
        .unwrap();
}

/// Datagrams that have come, until none comes any more.
pub(crate) fn received(socket: &UdpSocket) -> u32 {
    let mut count = 0;
    while socket.recv(&mut [0; 16]).is_ok() {
        count += 1;
    }
    count
}

/// The same, but nobody waits for more than `wanted`. More that are there are counted.
pub(crate) fn received_soon(socket: &UdpSocket, wanted: u32) -> u32 {
    let mut count = 0;
    while count < wanted && socket.recv(&mut [0; 16]).is_ok() {
        count += 1;
    }
    if count == wanted {
        socket.set_nonblocking(true).unwrap();
        count += received(socket);
        socket.set_nonblocking(false).unwrap();
    }
    count
}

/// Frames that hosts send by themselves while a test counts.
pub(crate) const NOISE: u64 = 10;

/// More than the host can screen, for a while.
pub(crate) fn flood(line: &Line) -> Report {
    offer(line, 600_000, 300_000)
}

/// Packets for nobody behind the firewall, at a rate.
pub(crate) fn offer(line: &Line, rate_pps: u64, frames: u64) -> Report {
    let bound = Bound {
        time: Duration::from_secs(3),
        frames,
    };
    blast(line, rate_pps, bound, &Stop::new())
}

/// The same while `work` is done, and for a moment before.
pub(crate) fn beside_flood(line: &Line, rate_pps: u64, work: impl FnOnce()) -> Report {
    let bound = Bound {
        time: LIMIT,
        frames: 4_000_000_000,
    };
    let stop = Stop::new();
    let before = arrived(line);
    let report = thread::scope(|scope| {
        let flooding = scope.spawn(|| blast(line, rate_pps, bound, &stop));
        thread::sleep(Duration::from_millis(300));
        work();
        assert!(!flooding.is_finished(), "it was done beside the flood");
        stop.stop();
        flooding.join().unwrap()
    });
    // While it is inhibited, the interface receives nothing of what waits, for longer than
    // `settle` looks.
    let deadline = Instant::now() + LIMIT;
    while arrived(line) - before < report.sent && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    settle(line);
    report
}

fn blast(line: &Line, rate_pps: u64, bound: Bound, stop: &Stop) -> Report {
    blast_from(line, line.testbed.load().cpu(), rate_pps, bound, stop)
}

/// The same from this CPU.
pub(crate) fn blast_from(
    line: &Line,
    cpu: usize,
    rate_pps: u64,
    bound: Bound,
    stop: &Stop,
) -> Report {
    let load = line.testbed.load();
    let flow = Flow {
        source: "198.18.7.0/24".parse().unwrap(),
        source_ports: 1024..=2047,
        destination: BEHIND.parse().unwrap(),
        destination_ports: 7001..=7001,
        transport: Transport::Udp {
            payload: vec![0; 18],
        },
    };
    let schedule = Schedule::Fixed { rate_pps };
    // For no host: what arrives there must not cost these CPUs more.
    let nobody = [2, 0, 0, 0, 0, 0x78];
    let mut spec = Spec::new(load.device(), nobody, flow, schedule);
    spec.bound = bound;
    spec.cpu = Some(cpu);
    let blast = || Blast::load(&spec)?.run(stop);
    load.run(blast).unwrap().unwrap()
}

/// Frames that the firewall's first interface has received.
pub(crate) fn arrived(line: &Line) -> u64 {
    let test = line.testbed.test();
    let path = format!("/sys/class/net/{}/statistics/rx_packets", test.device());
    let text = test.run(|| fs::read_to_string(&path)).unwrap().unwrap();
    text.trim().parse().unwrap()
}

/// Until nothing arrives and nothing waits any more.
pub(crate) fn settle(line: &Line) {
    let mut before = arrived(line);
    loop {
        thread::sleep(Duration::from_millis(200));
        let now = arrived(line);
        if now == before {
            return;
        }
        before = now;
    }
}
