//! Interfaces of which some are refused, or go, in a namespace. Needs root.

use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::gettid;
use plimsoll_kernel::knobs::{Netdev, Queues, path_of};
use plimsoll_kernel::link;
use plimsoll_kernel::threaded::poll_in_threads;
use plimsoll_testbed::{Config, Host, Testbed};

use super::*;

const FIFO: u32 = nix::libc::SCHED_FIFO.cast_unsigned();

/// How a thread runs: its class and its priority (`proc_pid_stat(5)`: fields 41 and 40).
fn class_of(tid: i32) -> (u32, u32) {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let after_name = text.rsplit_once(") ").unwrap().1;
    let field = |number: usize| {
        after_name
            .split(' ')
            .nth(number - 3)
            .unwrap()
            .parse()
            .unwrap()
    };
    (field(41), field(40))
}

/// The thread that polls this interface.
fn poller_of(host: &Host, interface: &str) -> Option<i32> {
    let find = || {
        let instances = Netdev::new().instances(link::index(interface).ok()?).ok()?;
        instances.iter().find_map(|napi| napi.thread)
    };
    host.run(find).unwrap()
}

/// Has the interface poll also without an XDP program.
fn gro(host: &Host, interface: &str) {
    host.configure("ethtool", ["-K", interface, "gro", "on"])
        .unwrap();
}

/// Polls these interfaces for the calling thread, does `work`, and ends it.
fn polling(host: &Host, interfaces: &[&str], work: impl FnOnce(&Polling, i32) + Send) {
    let taking = || {
        let taker = gettid().as_raw();
        let polling = Polling::start(&Wanted {
            interfaces: &interfaces
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            takers: &[taker],
            deciders: &[],
            cpu_limit: None,
            cpu: None,
            any_driver: false,
        });
        work(&polling.unwrap(), taker);
    };
    host.run(taking).unwrap();
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// An interface whose driver was not tried kept the threads of the one before it, which were
/// real-time ones already, from their limit.
#[test]
fn what_one_interface_refuses_leaves_the_others_their_limit() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    gro(host, host.device());
    host.ip("tuntap add tap0 mode tap").unwrap();
    host.ip("link set tap0 up").unwrap();
    polling(host, &[host.device(), "tap0"], |polling, taker| {
        let problem = polling.problem().unwrap_or_default();
        assert!(problem.contains("tap0"), "{problem}");
        let poller = poller_of(host, host.device()).unwrap();
        eventually("beneath the taker", || {
            [poller, taker].map(class_of) == [(FIFO, 1), (FIFO, 2)]
        });
    });
}

/// One that was deleted kept those after it from being looked at.
#[test]
fn an_interface_that_goes_leaves_the_others_their_limit() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    host.ip("link add extra0 type veth peer name extra1")
        .unwrap();
    gro(host, "extra0");
    gro(host, host.device());
    host.ip("link set extra0 up").unwrap();
    host.ip("link set extra1 up").unwrap();
    polling(host, &["extra0", host.device()], |_, taker| {
        let before = poller_of(host, host.device()).unwrap();
        host.ip("link del extra0").unwrap();
        // Its driver makes the thread anew.
        host.ip(&format!("link set {} down", host.device()))
            .unwrap();
        host.ip(&format!("link set {} up", host.device())).unwrap();
        eventually("another thread, beneath the taker", || {
            poller_of(host, host.device()).is_some_and(|poller| {
                poller != before && [poller, taker].map(class_of) == [(FIFO, 1), (FIFO, 2)]
            })
        });
    });
}

/// The limit of a thread that was the host's own again made it real-time as it ended. A queue
/// is new, and no record of it can be written.
#[test]
fn a_thread_that_is_put_back_is_kept_to_no_limit() {
    let testbed = Testbed::create(Config::default()).unwrap();
    let host = testbed.test();
    let queues = "numrxqueues 2 numtxqueues 1";
    host.ip(&format!(
        "link add extra0 {queues} type veth peer name extra1 {queues}"
    ))
    .unwrap();
    let channels = |rx| host.configure("ethtool", ["-L", "extra0", "rx", rx]);
    channels("1").unwrap();
    gro(host, "extra0");
    host.ip("link set extra0 up").unwrap();
    host.ip("link set extra1 up").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let own = || {
        let mut own = Knobs::open_in(directory.path(), "extra0").unwrap();
        poll_in_threads(&mut own, Queues::All, Priority::Nice(0), None).unwrap();
        let record = path_of("extra0", "json").unwrap();
        (own, record.with_extension("json.new"))
    };
    let (_own, in_the_way) = host.run(own).unwrap();
    let poller = poller_of(host, "extra0").unwrap();
    let before = class_of(poller);
    polling(host, &["extra0"], |_, taker| {
        eventually("beneath the taker", || {
            [poller, taker].map(class_of) == [(FIFO, 1), (FIFO, 2)]
        });
        host.run(|| fs::create_dir(&in_the_way)).unwrap().unwrap();
        channels("2").unwrap();
        eventually("the host's own again", || class_of(poller) == before);
    });
    host.run(|| fs::remove_dir(&in_the_way)).unwrap().unwrap();
    assert_eq!(class_of(poller), before);
}
