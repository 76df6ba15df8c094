//! `plimsoll screen` between the load host and two more hosts of a testbed: a middle with
//! both interfaces, and a host behind it. Needs root.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_programs::screen::{Firewall, Screen, ScreenConfig, Side, Verdict};
use plimsoll_testbed::{Config, Host, Process, Testbed};
use serde_json::Value;

use common::{LIMIT, PROGRAM};

const ACCEPT: &str = "default = 'discard'
[[rule]]
filter = 'arp'
verdict = 'accept'
[[rule]]
filter = 'udp dst port 7001'
verdict = 'accept'
";
/// The address of the host behind, in the load host's network.
const BEHIND: &str = "198.18.0.77";

const MAC: &str = "02:00:00:00:00:77";

/// The test host becomes the firewall: its second interface leads to a namespace of its
/// own, which has an address in the load host's network.
struct Line {
    testbed: Testbed,
    behind: String,
}

impl Line {
    fn new() -> Self {
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

    fn start(&self, rules: &Path, arguments: &[&str]) -> (Process, BufReader<impl Read + use<>>) {
        let test = self.testbed.test();
        let mut command = test.command(PROGRAM);
        command
            .args(["screen", test.device(), "out0", "--rules"])
            .arg(rules)
            .args(["--json", "-"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut says = BufReader::new(process.take_stderr().unwrap());
        let mut line = String::new();
        says.read_line(&mut line).unwrap();
        assert!(line.starts_with("screening between"), "{line}");
        (process, says)
    }

    /// A socket in the host behind.
    fn listen(&self, port: u16) -> UdpSocket {
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
    fn send(&self, port: u16, count: u32) {
        let send = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
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

impl Drop for Line {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip")
            .args(["netns", "delete", &self.behind])
            .status();
    }
}

fn shell(host: &Host, script: &str) {
    host.command("sh")
        .args(["-c", script])
        .output(LIMIT)
        .unwrap();
}

fn received(socket: &UdpSocket) -> u32 {
    let mut buffer = [0; 16];
    let mut count = 0;
    while socket.recv(&mut buffer).is_ok() {
        count += 1;
    }
    count
}

fn end(mut process: Process) -> Value {
    process.signal(Signal::SIGINT).unwrap();
    let mut text = String::new();
    let mut output = process.take_stdout().unwrap();
    output.read_to_string(&mut text).unwrap();
    assert!(process.wait(LIMIT).unwrap().success());
    let document: Value = serde_json::from_str(&text).unwrap();
    document["results"].clone()
}

/// MR-99: the firewall.
#[test]
fn rules_decide_and_are_read_anew_without_loss() {
    let line = Line::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, ACCEPT).unwrap();
    let (process, mut says) = line.start(&rules, &[]);
    let [open, closed] = [7001, 7002].map(|port| line.listen(port));
    line.send(7001, 500);
    line.send(7002, 100);
    assert_eq!((received(&open), received(&closed)), (500, 0));

    // Wrong rules change nothing.
    let mut told = String::new();
    fs::write(&rules, "default = 'perhaps'").unwrap();
    process.signal(Signal::SIGHUP).unwrap();
    says.read_line(&mut told).unwrap();
    assert!(told.contains("the rules stay as they are"), "{told}");
    // Right ones take over between two frames.
    fs::write(&rules, ACCEPT.replace("port 7001", "portrange 7001-7002")).unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(|| line.send(7001, 2000));
        thread::sleep(Duration::from_millis(100));
        process.signal(Signal::SIGHUP).unwrap();
        sending.join().unwrap();
    });
    line.send(7002, 100);
    assert_eq!((received(&open), received(&closed)), (2000, 100));
    let counts = end(process);
    assert_eq!(counts["reloads"], 1, "{counts}");
    assert_eq!(counts["inside"]["discarded"], 100, "{counts}");
    assert_eq!(counts["screen_died"], false);
}

#[test]
fn protected_traffic_needs_no_rule() {
    let line = Line::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, "default = 'discard'").unwrap();
    let arguments = ["--protect", "arp or udp dst port 7003"];
    let (process, _says) = line.start(&rules, &arguments);
    let socket = line.listen(7003);
    line.send(7003, 200);
    assert_eq!(received(&socket), 200);
    let counts = end(process);
    assert!(
        counts["inside"]["protected"].as_u64().unwrap() >= 200,
        "{counts}"
    );
}

/// The datagram at which screens of this test fail.
fn is_last(frame: &[u8]) -> bool {
    frame.ends_with(&50_u32.to_be_bytes())
}

fn dying() -> Box<dyn Screen> {
    Box::new(|frame: &[u8], _: Side| {
        assert!(!is_last(frame), "a fault of the screen's");
        Verdict::Accept
    })
}

fn hanging() -> Box<dyn Screen> {
    Box::new(|frame: &[u8], _: Side| {
        if is_last(frame) {
            thread::sleep(Duration::from_millis(1500));
        }
        Verdict::Accept
    })
}

/// MR-17: the screen's host must not end because its screen does.
#[test]
fn a_screen_that_dies_or_hangs_fails_as_asked() {
    let line = Line::new();
    let test = line.testbed.test();
    let socket = line.listen(7004);
    for (dies, screen) in [(true, dying as fn() -> Box<dyn Screen>), (false, hanging)] {
        for on_failure in [Verdict::Discard, Verdict::Accept] {
            let config = ScreenConfig {
                on_failure,
                hang: Duration::from_millis(100),
                ..ScreenConfig::between(test.device(), "out0")
            };
            let firewall = test.run(|| Firewall::open(&config)).unwrap().unwrap();
            let stop = AtomicBool::new(false);
            let counts = thread::scope(|scope| {
                let running = scope.spawn(|| firewall.run(screen(), &stop));
                line.send(7004, 2000);
                thread::sleep(Duration::from_millis(1500));
                stop.store(true, Ordering::Relaxed);
                running.join().unwrap().unwrap()
            });
            let arrived = received(&socket);
            let (open, inside) = (on_failure == Verdict::Accept, counts.inside);
            assert_eq!(counts.screen_died, dies);
            assert_eq!(inside.passed > 0, open, "{counts:?}");
            assert_eq!(inside.failed > 0, !open, "{counts:?}");
            if dies {
                assert_eq!(arrived > 1500, open, "{arrived} arrived: {counts:?}");
            }
        }
    }
}
