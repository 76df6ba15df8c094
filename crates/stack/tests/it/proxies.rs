//! What belongs to no socket is done by threads with channels and priorities of their own
//! (LRP-45).

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use caps::{CapSet, Capability};
use plimsoll_kernel::scheduling::{Level, Scheduling};
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{Error, ForwardConfig, ProxyConfig, Stack, StackConfig};

use crate::lan::{SOON, in_namespace, threads};

/// The nice levels of a new stack's threads, by their names. The stack is alone in its namespace.
fn levels(config: &StackConfig, names: &[&'static str]) -> BTreeMap<&'static str, i32> {
    let mut levels = BTreeMap::new();
    in_namespace(|| {
        let (device, _other) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
        let _stack = Stack::start(device, config).unwrap();
        let end = Instant::now() + SOON;
        while levels.len() < names.len() {
            for &name in names {
                // It has its name once it runs.
                if let [tid] = threads(name)[..] {
                    levels.insert(name, Scheduling::of(tid).unwrap().nice());
                }
            }
            assert!(Instant::now() < end, "{levels:?} of {names:?}");
        }
    });
    levels
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
        ..ProxyConfig::default()
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
        nice(9).unwrap();
        let refused = nice(1).unwrap_err();
        let named = matches!(refused, Error::NotPermitted { capability, .. } if capability == "CAP_SYS_NICE");
        assert!(named, "{refused}");
    })
    .join()
    .unwrap();
}
