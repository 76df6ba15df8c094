//! The mirror of the kernel's routing state beside `ip`, in network namespaces of
//! their own. Needs root.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use plimsoll_kernel::namespace;
use plimsoll_kernel::routing::{Change, Mirror, Neighbour, Target};

use crate::common::ip;

/// Runs `work` with a mirror in a namespace with two dummy-like interfaces: one veth
/// pair, both ends up.
fn with_mirror(work: impl FnOnce(&mut Mirror) + Send) {
    let inside = || {
        for words in [
            "link set lo up",
            "link add one type veth peer name two",
            // Link-local addresses come when the kernel likes, with routes of their own.
            "link set one addrgenmode none",
            "link set two addrgenmode none",
            "link set one up",
            "link set two up",
            "address add 192.0.2.1/24 dev one",
            "address add 2001:db8::1/64 dev one nodad",
        ] {
            ip(words);
        }
        let mut mirror = Mirror::open().expect("rtnetlink answers");
        settle(&mut mirror, Duration::from_millis(300));
        work(&mut mirror);
    };
    namespace::in_new(inside).expect("root, to make a network namespace");
}

/// Takes in what the kernel tells within this time.
fn settle(mirror: &mut Mirror, span: Duration) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        mirror.poll().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn eventually(mirror: &mut Mirror, what: &str, is_so: impl Fn(&Mirror) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so(mirror) {
        assert!(Instant::now() < end, "{what}: {:?}", mirror.state());
        mirror.poll().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn gateways(mirror: &Mirror, prefix: &str) -> Vec<String> {
    match mirror.state().target(&net(prefix)) {
        Some(Target::Forward(hops)) => {
            let gateway = |hop: &plimsoll_kernel::routing::Hop| {
                hop.gateway
                    .map_or("link".to_owned(), |gateway| gateway.to_string())
            };
            hops.iter().map(gateway).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn what_is_there_is_read_and_what_changes_is_followed() {
    with_mirror(|mirror| {
        assert_eq!(
            mirror.state().target(&net("192.0.2.1/32")),
            Some(&Target::Local)
        );
        assert_eq!(
            mirror.state().target(&net("2001:db8::1/128")),
            Some(&Target::Local)
        );
        assert_eq!(gateways(mirror, "192.0.2.0/24"), ["link"]);
        ip("route add 198.51.100.0/24 via 192.0.2.2");
        ip("-6 route add 2001:db8:1::/48 via 2001:db8::2");
        ip("neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev one");
        eventually(mirror, "routes and neighbour", |mirror| {
            gateways(mirror, "198.51.100.0/24") == ["192.0.2.2"]
                && gateways(mirror, "2001:db8:1::/48") == ["2001:db8::2"]
                && mirror
                    .state()
                    .neighbours
                    .values()
                    .any(|mac| *mac == [2, 0, 0, 0, 0, 2])
        });
        ip("route replace 198.51.100.0/24 via 192.0.2.3");
        ip("neighbour del 192.0.2.2 dev one");
        eventually(mirror, "replaced and deleted", |mirror| {
            let interface = nix::net::if_::if_nametoindex("one").unwrap();
            let address = "192.0.2.2".parse().unwrap();
            let neighbour = Neighbour { interface, address };
            gateways(mirror, "198.51.100.0/24") == ["192.0.2.3"]
                && !mirror.state().neighbours.contains_key(&neighbour)
        });
        ip("route add blackhole 203.0.113.0/24");
        ip("route del 198.51.100.0/24");
        eventually(mirror, "refused and gone", |mirror| {
            mirror.state().target(&net("203.0.113.0/24")) == Some(&Target::Refused)
                && mirror.state().target(&net("198.51.100.0/24")).is_none()
        });
        assert_eq!(mirror.counters().overruns, 0);
    });
}

#[test]
fn several_next_hops_and_metrics_are_the_kernels() {
    with_mirror(|mirror| {
        ip(
            "route add 198.51.100.0/24 nexthop via 192.0.2.2 weight 1 nexthop via 192.0.2.3 weight 3",
        );
        ip("route add 198.51.100.0/24 via 192.0.2.9 metric 5");
        ip("-6 route add 2001:db8:1::/48 via 2001:db8::2 metric 7");
        ip("-6 route append 2001:db8:1::/48 via 2001:db8::3 metric 7");
        eventually(mirror, "all next hops", |mirror| {
            gateways(mirror, "198.51.100.0/24") == ["192.0.2.2", "192.0.2.3"]
                && gateways(mirror, "2001:db8:1::/48").len() == 2
        });
        ip("route del 198.51.100.0/24 metric 0");
        eventually(mirror, "the worse one", |mirror| {
            gateways(mirror, "198.51.100.0/24") == ["192.0.2.9"]
        });
    });
}

/// A link that goes down takes its IPv4 routes with it, and the kernel does not say so.
#[test]
fn routes_that_are_flushed_silently_go() {
    with_mirror(|mirror| {
        ip("route add 198.51.100.0/24 via 192.0.2.2");
        eventually(mirror, "the route", |mirror| {
            gateways(mirror, "198.51.100.0/24").len() == 1
        });
        ip("link set one down");
        eventually(mirror, "flushed", |mirror| {
            mirror.state().target(&net("198.51.100.0/24")).is_none()
                && mirror.state().target(&net("192.0.2.0/24")).is_none()
        });
        ip("link set one up");
        eventually(mirror, "the link's own route", |mirror| {
            gateways(mirror, "192.0.2.0/24") == ["link"]
        });
        ip("address del 192.0.2.1/24 dev one");
        eventually(mirror, "without the address", |mirror| {
            mirror.state().target(&net("192.0.2.1/32")).is_none()
        });
        settle(mirror, Duration::from_millis(200));
        mirror.compare().unwrap();
        assert_eq!(mirror.counters().divergences, 0, "{:?}", mirror.counters());
    });
}

/// So do next hops that are deleted, or change.
#[test]
fn next_hops_of_their_own_are_followed() {
    with_mirror(|mirror| {
        let is = |mirror: &mut Mirror, what: &str, expected: &[&str]| {
            eventually(mirror, what, |mirror| {
                gateways(mirror, "198.51.100.0/24") == expected
            });
        };
        ip("nexthop add id 1 via 192.0.2.2 dev one");
        ip("nexthop add id 2 via 192.0.2.3 dev one");
        ip("nexthop add id 3 group 1/2");
        ip("route add 198.51.100.0/24 nhid 3");
        is(mirror, "both", &["192.0.2.2", "192.0.2.3"]);
        ip("nexthop del id 1");
        is(mirror, "a group without one that is gone", &["192.0.2.3"]);
        ip("nexthop add id 1 via 192.0.2.2 dev one");
        ip("nexthop replace id 3 group 1");
        is(mirror, "a group that changed", &["192.0.2.2"]);
        ip("nexthop replace id 3 group 2");
        is(mirror, "once more", &["192.0.2.3"]);
        ip("nexthop replace id 2 via 192.0.2.4 dev one");
        is(mirror, "a next hop that changed", &["192.0.2.4"]);
        ip("nexthop del id 3");
        is(mirror, "a group that is gone", &[]);
        ip("route add 198.51.100.0/24 nhid 1");
        is(mirror, "one", &["192.0.2.2"]);
        ip("nexthop del id 1");
        is(mirror, "one that is gone", &[]);
        settle(mirror, Duration::from_millis(200));
        mirror.compare().unwrap();
        assert_eq!(mirror.counters().divergences, 0, "{:?}", mirror.counters());
    });
}

/// The kernel takes the first of those that are equal, and a prepended one was behind.
#[test]
fn a_route_that_is_prepended_comes_first() {
    with_mirror(|mirror| {
        ip("route add 198.51.100.0/24 via 192.0.2.2");
        ip("route append 198.51.100.0/24 via 192.0.2.3");
        ip("route prepend 198.51.100.0/24 via 192.0.2.4");
        ip("route append 198.51.100.0/24 via 192.0.2.5");
        // The last.
        ip("route add 203.0.113.0/24 via 192.0.2.2");
        eventually(mirror, "all", |mirror| {
            gateways(mirror, "203.0.113.0/24") == ["192.0.2.2"]
        });
        assert_eq!(gateways(mirror, "198.51.100.0/24"), ["192.0.2.4"]);
        let read_anew = Mirror::open().unwrap();
        assert_eq!(gateways(&read_anew, "198.51.100.0/24"), ["192.0.2.4"]);
    });
}

#[test]
fn rules_beyond_the_default_ones_are_told() {
    with_mirror(|mirror| {
        assert!(!mirror.state().has_policy);
        ip("rule add from 192.0.2.77 table 100");
        eventually(mirror, "a rule", |mirror| mirror.state().has_policy);
        ip("rule del from 192.0.2.77 table 100");
        eventually(mirror, "no rule", |mirror| !mirror.state().has_policy);
    });
}

/// More changes than the subscription's buffer holds: they are lost, and the state is
/// right all the same.
#[test]
fn an_overrun_is_made_up_for() {
    let inside = || {
        ip("link add one type veth peer name two");
        ip("link set one up");
        ip("address add 192.0.2.1/24 dev one");
        let mut mirror = Mirror::open_with_buffer(4096).unwrap();
        let batch = tempfile::NamedTempFile::new().unwrap();
        let routes: String = (0..2000)
            .map(|n| format!("route add 10.{}.{}.0/24 dev one\n", n / 250, n % 250))
            .collect();
        std::fs::write(batch.path(), routes).unwrap();
        ip(&format!("-batch {}", batch.path().display()));
        eventually(&mut mirror, "all routes", |mirror| {
            let ours = |prefix: &&IpNet| prefix.to_string().starts_with("10.");
            mirror.state().routes.keys().filter(ours).count() == 2000
        });
        assert!(mirror.counters().overruns > 0, "{:?}", mirror.counters());
        mirror.compare().unwrap();
        assert_eq!(mirror.counters().divergences, 0);
    };
    namespace::in_new(inside).expect("root, to make a network namespace");
}

/// Whoever forwards beside the kernel read them once, and never again.
#[test]
fn a_switch_that_is_turned_is_told() {
    with_mirror(|mirror| {
        for switch in [
            "ipv4/ip_forward",
            "ipv4/conf/one/forwarding",
            "ipv4/conf/one/rp_filter",
            "ipv4/conf/all/rp_filter",
            "ipv6/conf/all/forwarding",
            "ipv6/conf/one/forwarding",
        ] {
            // What is told of the one before.
            settle(mirror, Duration::from_millis(200));
            let path = format!("/proc/sys/net/{switch}");
            let is_off = std::fs::read_to_string(&path).unwrap().trim() == "0";
            std::fs::write(path, if is_off { "1" } else { "0" }).unwrap();
            let end = Instant::now() + Duration::from_secs(20);
            while !mirror.poll().unwrap().contains(&Change::Everything) {
                assert!(Instant::now() < end, "{switch} is told");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
}
