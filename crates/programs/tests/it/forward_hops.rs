//! The router where a route has several next hops. Needs root.

use plimsoll_programs::forward::{Config, DataPath};
use plimsoll_testbed::routed::{Routed, Sink};
use plimsoll_testbed::{Host, INNER_DEVICE};

use crate::common::{config, of, packets, said, with_router_of};

/// Beyond two next hops, of both families.
const BEYOND: [&str; 2] = ["10.98.0.1", "fd00:98::1"];
/// By the other interface for a port alone.
const BY_RULE: &str = "10.97.0.1";
const PACKETS: u64 = 2000;

/// Another interface of the router, and a route by either that is chosen by ports.
fn prepare(hosts: &Routed) {
    let words = format!(
        "ip link add extra0 type veth peer name extra1
         ip link set extra0 up; ip link set extra1 up; ethtool -K extra1 gro on
         ip addr add 10.99.0.1/24 dev extra0; ip addr add fd00:99::1/64 dev extra0 nodad
         for one in '{INNER_DEVICE} 10.77.0.9' '{INNER_DEVICE} fd00:77::9' \
                    'extra0 10.99.0.9' 'extra0 fd00:99::9'; do
             set -- $one
             ip neigh replace $2 lladdr 02:00:00:00:00:99 dev $1 nud permanent
         done
         ip route add 10.98.0.0/16 nexthop via 10.77.0.9 nexthop via 10.99.0.9
         ip -6 route add fd00:98::/32 nexthop via fd00:77::9 nexthop via fd00:99::9
         ip route add 10.97.0.0/16 via 10.77.0.9
         ip route add 10.97.0.0/16 via 10.99.0.9 table 100
         ip rule add ipproto udp dport 9 lookup 100
         sysctl -w net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1"
    );
    said(hosts.router(), &words);
    let routes = said(hosts.router(), "ip route; ip -6 route");
    assert_eq!(routes.matches("nexthop via").count(), 4, "{routes}");
}

/// Packets that left by either interface.
fn left(host: &Host) -> [u64; 2] {
    [INNER_DEVICE, "extra0"].map(|device| {
        let path = format!("cat /sys/class/net/{device}/statistics/tx_packets");
        said(host, &path).trim().parse().unwrap()
    })
}

/// The look-up was told no ports: no rule by them counted, and all packets between two hosts took one next hop, whatever the
/// kernel had been told to choose by.
#[test]
fn ports_count_in_rules_and_choose_a_next_hop_as_in_the_kernel() {
    let mut config: Config = config(DataPath::Xdp);
    config.interfaces.push("extra0".to_owned());
    with_router_of(&config, Sink::Drops, prepare, |hosts, router| {
        let sent_to = |beyond: &str| {
            let before = left(hosts.router());
            packets(hosts, beyond, PACKETS, 10_000);
            hosts.settled().unwrap();
            let after = left(hosts.router());
            [after[0] - before[0], after[1] - before[1]]
        };
        for beyond in BEYOND {
            let by = sent_to(beyond);
            let status = router.status().unwrap();
            assert!(
                by.iter().all(|packets| *packets > PACKETS / 4),
                "{by:?} to {beyond}: {status}"
            );
        }
        let by = sent_to(BY_RULE);
        assert!(by[1] >= PACKETS, "{by:?}: {}", router.status().unwrap());
        assert_eq!(of(&router.status().unwrap(), "forwarded"), 3 * PACKETS);
    });
}
