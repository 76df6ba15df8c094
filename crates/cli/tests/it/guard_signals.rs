//! Signals at every step of the guard's life: at each of its system calls that
//! changes something, from the start over a reload to the stop. Whatever is
//! interrupted, the interface receives as before, and the next start finds its
//! way back to the host's own settings. Needs root.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::iter::successors;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_testbed::{Config, Host, Testbed};

use crate::common::{LIMIT, PROGRAM, output, start};

/// The calls that change something: locks and records, BPF programs, links and
/// maps, settings by netlink, scheduling, capabilities, signal handlers.
const STEPS: [&str; 9] = [
    "flock",
    "rename",
    "unlink",
    "bpf",
    "sendto",
    "sched_setattr",
    "capset",
    "rt_sigaction",
    "mlockall",
];
/// Interrupted calls of each kind, spread over all there are.
const TIMES: usize = 4;

/// A whole life under strace: start, a reload, stop. Returns how it ended.
fn live(host: &Host, directory: &Path, strace: &[&str]) -> ExitStatus {
    let settings = directory.join("guard.toml");
    fs::write(&settings, "interval-ms = 100\n").unwrap();
    let mut tracer = host
        .command("strace")
        .args(["-f", "-qq"])
        .args(strace)
        .args([PROGRAM, "guard", host.device(), "--json=-", "--threaded=3"])
        .args(["--duration=60", "--config"])
        .arg(&settings)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace is installed: scripts/setup");
    let mut lines = BufReader::new(tracer.take_stdout().unwrap()).lines();
    if let Some(Ok(_)) = lines.next() {
        fs::write(&settings, "interval-ms = 100\nhigh-watermark = 60\n").unwrap();
        tell(tracer.pid(), Signal::SIGHUP);
        // In a report's time the settings are read.
        lines.nth(2);
        tell(tracer.pid(), Signal::SIGTERM);
    }
    lines.for_each(drop);
    // strace ends as the traced process does.
    tracer.wait(LIMIT).unwrap()
}

/// Sends a signal to the traced process, which may have ended by its own already.
fn tell(tracer: u32, signal: Signal) {
    let children = format!("/proc/{tracer}/task/{tracer}/children");
    for child in fs::read_to_string(children).unwrap().split_whitespace() {
        let _ = kill(Pid::from_raw(child.parse().unwrap()), signal);
    }
}

/// How often the guard's own thread makes each call in any life. Some lives make
/// more: who starts sweeps what guards of dead namespaces left.
fn calls(host: &Host, directory: &Path) -> BTreeMap<&'static str, usize> {
    let lives: Vec<_> = (0..3).map(|_| calls_of_a_life(host, directory)).collect();
    let least = |step| lives.iter().map(|calls| calls[step]).min().unwrap();
    STEPS.map(|step| (step, least(step))).into()
}

fn calls_of_a_life(host: &Host, directory: &Path) -> BTreeMap<&'static str, usize> {
    let trace = directory.join("trace");
    let steps = format!("trace={}", STEPS.join(","));
    live(
        host,
        directory,
        &["-e", &steps, "-o", trace.to_str().unwrap()],
    );
    let trace = fs::read_to_string(trace).unwrap();
    // strace counts each thread's calls by themselves, and those of the keeper.
    let (guard, _) = trace.split_once(' ').expect("a traced call");
    let own = trace
        .lines()
        .filter(|line| line.split(' ').next() == Some(guard));
    let own: Vec<&str> = own.collect();
    let is_call = |line: &str, step: &str| line.contains(&format!(" {step}("));
    let count = |step: &str| own.iter().filter(|line| is_call(line, step)).count();
    STEPS.map(|step| (step, count(step))).into()
}

/// The settings that the guard turns, as the kernel has them.
fn settings(host: &Host) -> Vec<String> {
    let read = |name: &str| {
        let path = format!("/sys/class/net/{}/{name}", host.device());
        fs::read_to_string(path).unwrap()
    };
    let names = ["threaded", "napi_defer_hard_irqs", "gro_flush_timeout"];
    host.run(|| names.map(read).to_vec()).unwrap()
}

fn has_xdp(host: &Host) -> bool {
    let mut ip = host.command("ip");
    let link = ip.args(["link", "show", host.device()]).output(LIMIT);
    String::from_utf8(link.unwrap().stdout)
        .unwrap()
        .contains("xdp")
}

/// The kernel detaches a dead process's program when its descriptors are gone.
fn wait_until_free(host: &Host, after: &str) {
    let deadline = Instant::now() + LIMIT;
    while has_xdp(host) {
        assert!(Instant::now() < deadline, "{after}: XDP stays");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A life interrupted at the `nth` call, or at an earlier one, which is returned:
/// a life on a busy machine may make fewer calls than those that were counted.
fn interrupt(host: &Host, directory: &Path, signal: &str, step: &str, nth: usize) -> usize {
    let earlier = |nth: &usize| Some(nth - nth.div_ceil(50)).filter(|nth| *nth > 0);
    for nth in successors(Some(nth), earlier).take(10) {
        let inject = format!("inject={step}:signal={signal}:when={nth}");
        let ended = live(host, directory, &["-e", &inject, "-o", "/dev/null"]);
        let killed = ended.signal() == Some(Signal::SIGKILL as i32);
        if killed == (signal == "SIGKILL") {
            return nth;
        }
        assert!(ended.success(), "{inject}: {ended}");
    }
    panic!("{signal} at {step} {nth}: no life comes that far");
}

/// Interrupts a life at `nth`, and looks at what it leaves.
fn interrupt_and_look(host: &Host, directory: &Path, signal: &str, (step, nth): (&str, usize)) {
    let before = settings(host);
    let nth = interrupt(host, directory, signal, step, nth);
    let after = format!("{signal} at {step} {nth}");
    wait_until_free(host, &after);
    let (guard, _output) = start(host);
    assert!(guard.stop(LIMIT).unwrap().success(), "{after}");
    assert_eq!(settings(host), before, "{after}");
    let left = output(host, &["restore"]);
    assert_eq!(left, "nothing to restore\n", "{after}");
}

/// Steps take turns between hosts that live at the same time: a life mostly waits.
fn interrupt_every_step(signal: &str) {
    let testbeds = [(); 2].map(|()| Testbed::create(Config::default()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let host = testbeds[0].test();
    let before = settings(host);
    let calls = calls(host, directory.path());
    assert_eq!(settings(host), before, "a life of its own");
    let interrupted = calls.into_iter().flat_map(|(step, count)| {
        assert!(count > 0, "{step} is no step any more");
        let times = TIMES.min(count);
        let nth = move |i| 1 + i * (count - 1) / (times - 1).max(1);
        (0..times).map(move |i| (step, nth(i)))
    });
    let interrupted: Vec<_> = interrupted.collect();
    thread::scope(|scope| {
        for (place, testbed) in testbeds.iter().enumerate() {
            let own = interrupted.iter().skip(place).step_by(testbeds.len());
            scope.spawn(move || {
                let directory = tempfile::tempdir().unwrap();
                for step in own {
                    interrupt_and_look(testbed.test(), directory.path(), signal, *step);
                }
            });
        }
    });
}

#[test]
fn killed_at_any_step_the_host_is_as_before() {
    interrupt_every_step("SIGKILL");
}

#[test]
fn asked_to_stop_at_any_step_the_host_is_as_before() {
    interrupt_every_step("SIGTERM");
}
