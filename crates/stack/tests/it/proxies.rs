//! What belongs to no socket is done by threads with channels and priorities of their own
//! (LRP-45).

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use plimsoll_kernel::scheduling::{Level, Scheduling};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Error, ForwardConfig, ProxyConfig, Stack, StackConfig};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(10);

/// One test starts threads at a time, so that it knows its own.
static STARTING: Mutex<()> = Mutex::new(());

fn threads() -> BTreeMap<i32, String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    tids.filter_map(|tid: i32| {
        let name = fs::read_to_string(format!("/proc/self/task/{tid}/comm")).ok()?;
        Some((tid, name.trim().to_owned()))
    })
    .collect()
}

/// The nice levels of a new stack's threads, by their names.
fn levels(config: &StackConfig, names: &[&str]) -> BTreeMap<String, i32> {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = threads();
    let (device, _other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
    let _stack = Stack::start(device, config).unwrap();
    let end = Instant::now() + SOON;
    loop {
        let new = threads().into_iter();
        let new =
            new.filter(|(tid, name)| !before.contains_key(tid) && names.contains(&name.as_str()));
        let new: Vec<_> = new.collect();
        if new.len() == names.len() {
            let level = |(tid, name)| (name, Scheduling::of(tid).unwrap().nice());
            return new.into_iter().map(level).collect();
        }
        assert!(Instant::now() < end, "{new:?} of {names:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn config(proxies: ProxyConfig) -> StackConfig {
    StackConfig {
        proxies,
        ..StackConfig::at("10.0.0.1/24".parse().unwrap())
    }
}

const NAMES: [&str; 4] = [
    "plimsoll-neigh",
    "plimsoll-icmp",
    "plimsoll-closed",
    "plimsoll-route",
];

#[test]
fn each_has_the_priority_that_it_is_given() {
    let usual = Scheduling::of(0).unwrap().nice();
    let found = levels(&config(ProxyConfig::default()), &NAMES[..3]);
    assert!(found.values().all(|nice| *nice == usual), "{found:?}");
    let own = ProxyConfig {
        neighbour_nice: Some(-3),
        icmp_nice: Some(19),
        closed_port_nice: Some(7),
        forward: Some(ForwardConfig { nice: Some(12) }),
    };
    let found = levels(&config(own), &NAMES);
    assert_eq!(NAMES.map(|name| found[name]), [-3, 19, 7, 12]);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let nice = |nice| {
        let (device, _other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let proxies = ProxyConfig {
            icmp_nice: Some(nice),
            ..ProxyConfig::default()
        };
        Stack::start(device, &config(proxies)).map(drop)
    };
    let impossible = nice(20).unwrap_err();
    assert!(impossible.is_usage(), "{impossible}");
    thread::spawn(move || {
        Level::nice(5).give_to(0).unwrap();
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_NICE).unwrap();
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        nice(9).unwrap();
        let refused = nice(1).unwrap_err();
        let named = matches!(refused, Error::NotPermitted { capability, .. } if capability == "CAP_SYS_NICE");
        assert!(named, "{refused}");
    })
    .join()
    .unwrap();
}
