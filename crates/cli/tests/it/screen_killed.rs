//! `plimsoll screen` killed on a host whose kernel would forward: closed or open, as asked.
//! Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_testbed::{Command, Process};

use crate::common::{LIMIT, PROGRAM};
use crate::screening::{Line, end, received_soon, shell};

const ACCEPT: &str = "default = 'discard'
[[rule]]
filter = 'arp or udp dst port 7001'
verdict = 'accept'
";
/// Datagrams of one trial.
const COUNT: u32 = 200;
/// Of the flow whose verdict the driver knows.
const KNOWN_FROM: u16 = 4000;

/// A firewall whose kernel bridges between its interfaces when it may.
struct Bridge {
    line: Line,
    open: UdpSocket,
    protected: UdpSocket,
}

impl Bridge {
    fn new() -> Self {
        let line = Line::new();
        let script = format!(
            "set -e
             ip link add br0 type bridge mcast_snooping 0
             ip link set {} master br0
             ip link set out0 master br0
             ip link set br0 up",
            line.testbed.test().device()
        );
        shell(line.testbed.test(), &script);
        let [open, protected] = [7001, 7003].map(|port| line.listen(port));
        Self {
            line,
            open,
            protected,
        }
    }

    /// How many arrive, of an accepted flow and of a protected one.
    fn passed(&self) -> (u32, u32) {
        self.line.send_from(KNOWN_FROM, 7001, COUNT);
        self.line.send(7003, COUNT);
        let [open, protected] =
            [&self.open, &self.protected].map(|socket| received_soon(socket, COUNT));
        (open, protected)
    }

    /// Waits until all that is sent arrives: a bridge's port learns for a moment.
    fn all_pass(&self, why: &str) {
        let end_at = Instant::now() + LIMIT;
        while self.passed() != (COUNT, COUNT) {
            assert!(Instant::now() < end_at, "{why}");
        }
    }

    fn start(&self, rules: &Path, fails: &str) -> (Process, impl BufRead + use<>) {
        let protect = ["--protect", "udp dst port 7003"];
        let arguments = ["--on-failure", fails, "--remember", "64"];
        self.line.start(rules, &[&protect[..], &arguments].concat())
    }

    /// A screen without more arguments; these words come before.
    fn command(&self, before: &[&str], rules: &Path) -> Command<'_> {
        let test = self.line.testbed.test();
        let words = [
            before,
            &[PROGRAM, "screen", test.device(), "out0", "--rules"],
        ]
        .concat();
        let mut command = test.command(words[0]);
        command.args(&words[1..]).arg(rules);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A start that is refused; what it says first. Then nobody reads what keepers say.
    fn refused(&self, before: &[&str], rules: &Path) -> String {
        let mut process = self.command(before, rules).spawn().unwrap();
        let mut said = String::new();
        let mut says = BufReader::new(process.take_stderr().unwrap());
        says.read_line(&mut said).unwrap();
        assert!(!process.wait(LIMIT).unwrap().success(), "{said}");
        said
    }

    /// Of all interfaces, or of one.
    fn restore(&self, interface: Option<&str>) -> String {
        let test = self.line.testbed.test();
        let mut restore = test.command(PROGRAM);
        let output = restore.args(["guard", "restore"]).args(interface);
        let output = output.output(LIMIT).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn kill(mut process: Process) {
    process.signal(Signal::SIGKILL).unwrap();
    let _ = process.wait(LIMIT);
}

/// The kernel had bridged from the moment of the kill on, whatever `--on-failure` said.
#[test]
fn a_killed_screen_that_fails_closed_lets_nothing_pass() {
    let bridge = Bridge::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, ACCEPT).unwrap();
    bridge.all_pass("the kernel forwards");

    let (process, mut says) = bridge.start(&rules, "closed");
    bridge.all_pass("rules accept one, and the other is protected");
    kill(process);
    assert_eq!(bridge.passed(), (0, 0), "at once, remembered or protected");
    let mut told = String::new();
    while told.matches("event=closed_after_kill").count() < 2 {
        assert!(says.read_line(&mut told).unwrap() > 0, "{told}");
    }
    assert_eq!(bridge.passed(), (0, 0), "when the settings are back");

    // The next one takes over, and gives back what it took.
    let (process, _says) = bridge.start(&rules, "closed");
    bridge.all_pass("the next screen decides");
    end(process);
    bridge.all_pass("a screen that ends by itself leaves all as it was");

    let (process, says) = bridge.start(&rules, "closed");
    bridge.all_pass("rules accept");
    kill(process);
    assert_eq!(bridge.passed(), (0, 0));
    let restored = bridge.restore(None);
    assert_eq!(restored.matches("restored").count(), 2, "{restored}");
    bridge.all_pass("it is the kernel's again");
    assert_eq!(bridge.restore(None), "nothing to restore\n");
    ends(says);
}

/// The kernel had the interfaces that the start had taken before another one was refused.
#[test]
fn a_start_that_fails_leaves_closed_what_was() {
    let bridge = Bridge::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, ACCEPT).unwrap();
    let (process, _says) = bridge.start(&rules, "closed");
    kill(process);
    let restored = bridge.restore(Some("out0"));
    assert_eq!(restored.matches("restored").count(), 1, "{restored}");
    let test = bridge.line.testbed.test();
    let other = test.run(|| PassAll::attach("out0")).unwrap().unwrap();
    let said = bridge.refused(&[], &rules);
    assert!(said.contains("in use by another program"), "{said}");
    // Longer than the killed one's keeper holds what another has taken.
    for _ in 0..2 {
        assert_eq!(bridge.passed(), (0, 0));
    }
    drop(other);
    let (process, _says) = bridge.start(&rules, "closed");
    bridge.all_pass("the next screen takes over");
    end(process);
    bridge.all_pass("a screen that ends by itself leaves all to the kernel");
}

/// It said nothing, and the kernel forwarded after a kill.
#[test]
fn a_screen_that_could_not_fail_closed_is_refused() {
    let bridge = Bridge::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, ACCEPT).unwrap();
    let sandboxed = ["setpriv", "--inh-caps=-all", "--bounding-set", "-sys_admin"];
    let said = bridge.refused(&sandboxed, &rules);
    assert!(said.contains("CAP_SYS_ADMIN"), "{said}");
    bridge.all_pass("the interfaces are the kernel's again");
    let mut open = bridge.command(&sandboxed, &rules);
    let (process, says) = bridge.line.started(open.args(["--on-failure", "open"]));
    kill(process);
    bridge.all_pass("the kernel forwards");
    ends(says);
}

/// Keepers hold the output as long as they live: they end when there is nothing to hold.
fn ends(mut says: impl Read + Send + 'static) {
    let reading = thread::spawn(move || says.read_to_string(&mut String::new()));
    let end_at = Instant::now() + LIMIT;
    while !reading.is_finished() {
        assert!(Instant::now() < end_at, "keepers end");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_screen_that_fails_open_leaves_all_to_the_kernel() {
    let bridge = Bridge::new();
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.toml");
    fs::write(&rules, ACCEPT).unwrap();
    let (process, says) = bridge.start(&rules, "open");
    bridge.all_pass("rules accept one, and the other is protected");
    kill(process);
    bridge.all_pass("the kernel forwards");
    ends(says);
}
