//! The testbed appears, works, and is gone afterwards, however its owner ended.
//!
//! Needs root, as everything here does: namespaces and links are real.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_testbed::{Error, Host, Testbed};

use crate::common::{bound, create, plimsoll};

fn namespace_exists(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

#[test]
fn datagrams_pass_both_ways_over_ipv4_and_ipv6() {
    let testbed = create();
    for (load, test) in [
        (
            IpAddr::from(testbed.load().ipv4()),
            IpAddr::from(testbed.test().ipv4()),
        ),
        (
            IpAddr::from(testbed.load().ipv6()),
            IpAddr::from(testbed.test().ipv6()),
        ),
    ] {
        let client = bound(testbed.load(), load);
        let server = bound(testbed.test(), test);
        client
            .send_to(b"question", server.local_addr().unwrap())
            .unwrap();
        let mut buffer = [0; 64];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"question");
        assert_eq!(from, client.local_addr().unwrap());
        server.send_to(b"answer", from).unwrap();
        let (length, _) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"answer");
    }
}

/// Shows MR-97.
#[test]
fn answers_to_invented_sources_end_at_the_load_host() {
    let testbed = create();
    let server = bound(testbed.test(), testbed.test().ipv4());
    let hosts = [testbed.load(), testbed.test()];
    let before = hosts.map(received_frames);
    server.send_to(b"answer", "198.19.7.7:9").unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while received_frames(testbed.load()) == before[0] {
        assert!(Instant::now() < deadline, "the answer never left");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Time enough for an ICMP error.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(hosts.map(received_frames), [before[0] + 1, before[1]]);
}

fn received_frames(host: &Host) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/rx_packets", host.device());
    let text = host.run(|| fs::read_to_string(path)).unwrap().unwrap();
    text.trim().parse().unwrap()
}

/// Multicast listener reports of the hosts themselves used to get into the
/// ledger of a flood, when a full ring dropped one.
#[test]
fn nothing_crosses_the_link_that_nobody_sent() {
    let testbed = create();
    // Reports are repeated within a second or two of an address's arrival.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(received_frames(testbed.load()), 0);
    assert_eq!(received_frames(testbed.test()), 0);
    datagram_reaches(&testbed);
    assert_eq!(received_frames(testbed.test()), 1);
}

#[test]
fn each_host_sees_its_own_devices_and_settings() {
    let testbed = create();
    for host in [testbed.load(), testbed.test()] {
        let path = format!("/sys/class/net/{}/ifindex", host.device());
        let index = host.run(|| fs::read_to_string(&path)).unwrap().unwrap();
        assert_eq!(index.trim(), host.ifindex().to_string());
        assert!(!Path::new(&path).exists(), "the caller sees {path}");

        let listing = host
            .command("ls")
            .arg("/sys/class/net")
            .output(Duration::from_secs(10))
            .unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        assert!(listing.lines().any(|name| name == host.device()));
    }
    testbed
        .test()
        .sysctl("net.ipv4.ip_default_ttl", "33")
        .unwrap();
    let ttl = fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap();
    assert_ne!(ttl.trim(), "33", "the setting leaked out");
}

/// What a kernel found out by itself would be packets that nobody sent.
#[test]
fn neighbours_and_routes_are_all_given() {
    let testbed = create();
    testbed.route_all().unwrap();
    testbed.own(&["70.0.0.0/8".parse().unwrap()]).unwrap();
    let is = |host: &Host, words: &str, expected: &[&str]| {
        let mut ip = host.command("ip");
        let output = ip.args(words.split(' ')).output(Duration::from_secs(10));
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines, expected, "ip {words} in {}", host.name());
    };
    let (load, test) = (testbed.load(), testbed.test());
    is(
        load,
        "neighbour",
        &[
            "198.18.0.2 dev load0 lladdr 02:00:00:00:00:02 PERMANENT",
            "2001:2::2 dev load0 lladdr 02:00:00:00:00:02 PERMANENT",
        ],
    );
    is(
        test,
        "neighbour",
        &[
            "198.18.0.1 dev test0 lladdr 02:00:00:00:00:01 PERMANENT",
            "2001:2::1 dev test0 lladdr 02:00:00:00:00:01 PERMANENT",
        ],
    );
    is(
        load,
        "-4 route show table all proto static",
        &[
            "blackhole default",
            "blackhole 198.18.0.0/15",
            "local 70.0.0.0/8 dev lo table local scope host",
        ],
    );
    is(
        test,
        "-4 route show table all proto static",
        &[
            "default via 198.18.0.1 dev test0",
            "198.18.0.0/15 via 198.18.0.1 dev test0",
        ],
    );
    let blackhole = "blackhole 2001:2::/48 dev lo metric 1024 pref medium";
    is(load, "-6 route show proto static", &[blackhole]);
    let route = "2001:2::/48 via 2001:2::1 dev test0 metric 1024 pref medium";
    is(test, "-6 route show proto static", &[route]);
}

#[test]
fn what_the_kernel_refuses_is_told_with_its_answer() {
    let testbed = create();
    testbed.route_all().unwrap();
    let Err(Error::Io { action, source }) = testbed.route_all() else {
        panic!("the route was there");
    };
    let load = testbed.load().name();
    assert_eq!(action, format!("discard what is nobody's in {load}"));
    assert_eq!(source.raw_os_error(), Some(Errno::EEXIST as i32));
}

#[test]
fn commands_run_on_the_hosts_cpu_at_the_nice_level_asked_for() {
    let testbed = create();
    let output = testbed
        .test()
        .command("sh")
        .args(["-c", "grep Cpus_allowed_list /proc/self/status; nice"])
        .nice(7)
        .output(Duration::from_secs(10))
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words, ["Cpus_allowed_list:", "1", "7"]);
}

#[test]
fn a_missing_program_is_told_from_a_failing_one() {
    let testbed = create();
    let limit = Duration::from_secs(10);
    let missing = testbed
        .load()
        .command("plimsoll-no-such-program")
        .package("nothing")
        .output(limit)
        .unwrap_err();
    assert!(missing.is_missing(), "{missing}");
    let failing = testbed
        .load()
        .command("sh")
        .args(["-c", "echo no luck >&2; exit 3"])
        .output(limit)
        .unwrap_err();
    assert!(!failing.is_missing());
    assert!(failing.to_string().contains("no luck"), "{failing}");
}

#[test]
fn dropping_removes_namespaces_and_ends_processes() {
    let testbed = create();
    let names = [testbed.load().name(), testbed.test().name()].map(str::to_owned);
    assert!(names.iter().all(|name| namespace_exists(name)));
    let mut process = testbed.test().command("sleep").arg("1000").spawn().unwrap();
    assert!(process.try_wait().unwrap().is_none());
    drop(testbed);
    assert!(!names.iter().any(|name| namespace_exists(name)));
    assert!(process.try_wait().unwrap().is_some());
}

#[test]
fn several_testbeds_live_side_by_side() {
    let first = create();
    let second = create();
    drop(first);
    assert!(namespace_exists(second.test().name()));
    datagram_reaches(&second);
}

fn datagram_reaches(testbed: &Testbed) {
    let client = bound(testbed.load(), testbed.load().ipv4());
    let server = bound(testbed.test(), testbed.test().ipv4());
    client.send_to(b"x", server.local_addr().unwrap()).unwrap();
    server.recv_from(&mut [0; 8]).unwrap();
}

#[test]
fn a_panic_cleans_up() {
    let (names, outcome) = {
        let names = std::sync::Mutex::new(Vec::new());
        let outcome = std::panic::catch_unwind(|| {
            let testbed = create();
            names.lock().unwrap().push(testbed.test().name().to_owned());
            let inner = testbed.test().run(|| panic!("inside the host"));
            inner.unwrap();
        });
        (names.into_inner().unwrap(), outcome)
    };
    assert!(outcome.is_err());
    assert_eq!(names.len(), 1);
    assert!(!namespace_exists(&names[0]));
}

/// Another process that holds a testbed with a `sleep` in it, which is in a control group.
struct Holder {
    child: Child,
    namespaces: Vec<String>,
    sleeper: i32,
    group: PathBuf,
}

impl Holder {
    fn start() -> Self {
        let mut child = Command::new(plimsoll())
            .arg("hold")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 4, "the helper said {line:?}");
        Self {
            namespaces: vec![words[0].to_owned(), words[1].to_owned()],
            sleeper: words[2].parse().unwrap(),
            group: words[3].into(),
            child,
        }
    }

    fn end_by(&mut self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, signal).unwrap();
        self.child.wait().unwrap();
    }

    fn namespaces_left(&self) -> usize {
        let exists = |name: &&String| namespace_exists(name);
        self.namespaces.iter().filter(exists).count()
    }

    /// Directories of temporary files, which are named by the testbed as its namespaces.
    fn directories_left(&self) -> usize {
        let prefix = self.namespaces[1].strip_suffix("test").unwrap();
        let all = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        let names = all.map(|entry| entry.file_name().into_string().unwrap_or_default());
        names.filter(|name| name.starts_with(prefix)).count()
    }

    fn sleeper_ended(&self) -> bool {
        soon(|| kill(Pid::from_raw(self.sleeper), None).is_err())
    }

    /// A test beside this one may have begun to sweep it.
    fn is_swept(&self) -> bool {
        soon(|| self.namespaces_left() == 0 && self.directories_left() == 0 && !self.group.exists())
    }
}

fn soon(is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sigterm_and_sigint_clean_up() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut holder = Holder::start();
        assert_eq!(
            (holder.namespaces_left(), holder.directories_left()),
            (2, 1)
        );
        assert!(holder.group.exists());
        holder.end_by(signal);
        assert_eq!(holder.namespaces_left(), 0, "after {signal}");
        assert_eq!(holder.directories_left(), 0, "after {signal}");
        assert!(!holder.group.exists(), "after {signal}");
        assert!(holder.sleeper_ended());
    }
}

#[test]
fn the_next_start_sweeps_after_sigkill_and_touches_nothing_else() {
    let alive = create();
    let foreign = format!("other-{}", std::process::id());
    let ip = |action: &str| {
        let status = Command::new("ip")
            .args(["netns", action, &foreign])
            .status();
        assert!(status.unwrap().success(), "ip netns {action} {foreign}");
    };
    ip("add");
    let mut holder = Holder::start();
    let foreign_group = holder.group.with_file_name(&foreign);
    fs::create_dir(&foreign_group).unwrap();
    holder.end_by(Signal::SIGKILL);
    assert!(holder.sleeper_ended());

    let _next = create();
    let foreign_kept = namespace_exists(&foreign);
    ip("del");
    let foreign_group_kept = fs::remove_dir(&foreign_group).is_ok();
    assert!(holder.is_swept(), "left {}", holder.group.display());
    assert!(foreign_kept, "swept a namespace of somebody else");
    assert!(foreign_group_kept, "swept a control group of somebody else");
    assert!(namespace_exists(alive.test().name()));
    datagram_reaches(&alive);
}
