//! Polling threads that were asked for from start to exit: when the driver makes them anew,
//! and when the interface is moved away.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, id};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use plimsoll_guard::governor::Strategy;
use plimsoll_guard::session::Settings;
use plimsoll_kernel::knobs::{Knobs, Queues};
use plimsoll_kernel::link;
use plimsoll_kernel::namespace::Named;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_kernel::scheduling::Priority;

use crate::common::ip;
use crate::common::notes::{Notes, Seen};
use crate::control_groups::group_with_a_share;
use crate::{run, settings};

pub(crate) const TESTS: [(&str, fn()); 3] = [
    (
        "what_no_thread_can_be_given_is_refused_before_it_attaches",
        what_no_thread_can_be_given_is_refused_before_it_attaches,
    ),
    (
        "threads_that_the_driver_makes_anew_are_as_those_before",
        threads_that_the_driver_makes_anew_are_as_those_before,
    ),
    (
        "killed_after_its_interface_was_moved_it_is_undone_there",
        killed_after_its_interface_was_moved_it_is_undone_there,
    ),
];

/// With it, a veth has NAPI instances also without a program.
pub(crate) fn switch_gro_on() {
    let ethtool = Command::new("ethtool")
        .args(["-K", "v0", "gro", "on"])
        .status();
    assert!(ethtool.expect("ethtool is installed").success());
}

/// The threads that poll `interface` of this namespace.
pub(crate) fn polling_threads(interface: &str) -> Vec<i32> {
    let ifindex = link::index(interface).unwrap();
    let instances = plimsoll_kernel::knobs::Netdev::new().instances(ifindex);
    let instances = instances.unwrap().into_iter();
    instances.filter_map(|napi| napi.thread).collect()
}

/// The nice level and the CPUs of a thread.
fn nice_and_cpus(thread: i32) -> (String, String) {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    let nice = stat.split(' ').nth(18).unwrap_or_default().to_owned();
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let cpus = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    (nice, cpus.unwrap_or_default().to_owned())
}

fn threaded() -> Settings {
    Settings {
        threaded: Some(Priority::Nice(3)),
        poll_cpu: Some(0),
        ..settings()
    }
}

/// The control group of a thread.
fn groups(thread: i32) -> String {
    fs::read_to_string(format!("/proc/{thread}/cgroup")).unwrap_or_default()
}

/// A service manager starts a guard again a second after it has failed. Some adapters set up their
/// rings anew when a program comes or goes: with a mistake in these settings they did so each
/// second. Here another program is there, so that it is seen what is looked at first.
fn what_no_thread_can_be_given_is_refused_before_it_attaches() {
    let _other = PassAll::attach("v0").unwrap();
    let group = "/sys/fs/cgroup/plimsoll-none";
    let no_group = Settings {
        poll_control_group: Some(group.into()),
        ..threaded()
    };
    let no_cpu = Settings {
        poll_cpu: Some(1023),
        ..threaded()
    };
    let none_in_overload = Settings {
        threaded: None,
        strategy: Strategy::Thread,
        ..no_cpu.clone()
    };
    let no_share = format!("{group} is no control group with a share");
    for (settings, said) in [
        (no_group, no_share.as_str()),
        (no_cpu, "CPU 1023 is not online"),
        (none_in_overload, "CPU 1023 is not online"),
    ] {
        let error = run(settings, &mut Notes::new(|_| Ok(()))).unwrap_err();
        assert!(error.to_string().starts_with(said), "{error}");
        assert_eq!(error.exit_code(), 3);
    }
}

const TOLD: &str = "interface=v0 event=threads_set_anew threads=1";

/// A veth has other instances when it was down, and they began in softirq. By then the
/// session has few capabilities.
fn threads_that_the_driver_makes_anew_are_as_those_before() {
    let wanted = ("3".to_owned(), "0".to_owned());
    let settings = Settings {
        poll_control_group: Some(group_with_a_share()),
        ..threaded()
    };
    let is_grouped = |thread| groups(thread).contains("/plimsoll-v0-");
    let mut before = Vec::new();
    let mut until = Instant::now();
    let mut are_anew = false;
    let mut notes = Notes::new(|seen: Seen<'_>| {
        if seen.reports == 1 {
            before = polling_threads("v0");
            assert_eq!(before.len(), 1);
            assert_eq!(nice_and_cpus(before[0]), wanted);
            assert!(is_grouped(before[0]));
            ip("link set v0 down");
            ip("link set v0 up");
            until = Instant::now() + Duration::from_secs(20);
            return Ok(());
        }
        let now = polling_threads("v0");
        are_anew = now.len() == 1
            && now != before
            && nice_and_cpus(now[0]) == wanted
            && is_grouped(now[0]);
        let is_told = seen.lines.iter().any(|line| line == TOLD);
        if are_anew && is_told || until < Instant::now() {
            seen.requests.stop();
        }
        Ok(())
    });
    run(settings, &mut notes).unwrap();
    assert!(
        notes.lines.iter().any(|line| line == TOLD),
        "{:?}",
        notes.lines
    );
    assert!(are_anew);
    assert!(polling_threads("v0").is_empty());
}

/// A veth loses its instances on the way. Those of other drivers keep their settings, so the
/// test gives them to the new ones.
fn killed_after_its_interface_was_moved_it_is_undone_there() {
    switch_gro_on();
    let elsewhere = Named::create(&format!("plimsoll-elsewhere-{}", id())).unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: this process has no other thread that could hold a lock.
    let ForkResult::Parent { child } = unsafe { fork() }.unwrap() else {
        let mut notes = Notes::new(|seen: Seen<'_>| {
            if seen.reports == 1 {
                writer.write_all(b"!").unwrap();
            }
            Ok(())
        });
        let _ = run(threaded(), &mut notes);
        std::process::exit(0);
    };
    drop(writer);
    reader.read_exact(&mut [0]).expect("the guard protects");
    // By itself it would end, and put all back.
    kill(child, Signal::SIGSTOP).unwrap();
    ip(&format!("link set v0 netns {}", elsewhere.name()));
    let directory = tempfile::tempdir().unwrap();
    let turned = elsewhere.run(|| {
        ip("link set v0 up");
        let mut knobs = Knobs::open_in(directory.path(), "v0").unwrap();
        knobs.set_threaded(Queues::All, true).unwrap();
        std::mem::forget(knobs);
        assert!(!polling_threads("v0").is_empty());
    });
    turned.unwrap();
    kill(child, Signal::SIGKILL).unwrap();
    waitpid(child, None).unwrap();
    let killed = Instant::now();
    let is_polled = || !polling_threads("v0").is_empty();
    while elsewhere.run(is_polled).unwrap() {
        assert!(
            killed.elapsed() < Duration::from_secs(20),
            "turned for good"
        );
        sleep(Duration::from_millis(20));
    }
}
