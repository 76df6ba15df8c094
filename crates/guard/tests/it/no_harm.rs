//! The guard on a calm host takes nothing that the host would have handled:
//! not what is translated, bridged, bound to a device or read beside the stack.
//! What counts as sent to a closed port, and what becomes of it, is in `closed_ports`.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, recv, setsockopt, socket};
use nix::sys::socket::{MsgFlags, sockopt};
use plimsoll_guard::{Guard, Kind, Outcome};
use plimsoll_kernel::link;
use plimsoll_kernel::pass_all::PassAll;
use plimsoll_packets::frame::Packet;

use crate::common::closed_port::{CLOSED, FRAMES, flood_closed_port, frame, guarded};
use crate::common::other_namespace::Namespace;
use crate::common::patient::{large_buffer, patient, received};
use crate::common::{HOST_MAC, HOST_V4, PEER_MAC, PEER_V4, Wire, bridged, in_namespace, ip, nft};

const INSIDE_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const POD_V4: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const POD_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// A host behind this one, which forwards for it.
fn inside() -> Namespace {
    let inside = Namespace::new();
    let tid = inside.tid;
    ip(&format!("link add g0 type veth peer name h0 netns {tid}"));
    ip("address add 10.77.0.1/24 dev g0");
    ip("link set g0 up");
    inside.run(|| {
        ip("link set lo up");
        ip(&format!("address add {INSIDE_V4}/24 dev h0"));
        ip("link set h0 up");
        ip("route add default via 10.77.0.1");
        link::wait_until_sending("h0").unwrap();
    });
    link::wait_until_sending("g0").unwrap();
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    inside
}

/// More than a receive buffer of the default size holds.
const BURST: u16 = 500;
/// In which connection tracking is asked so many times.
const TICK: Duration = Duration::from_millis(4);
/// Before each burst. A queue that was full is remembered as such for 34 ms once it is empty.
const PAUSE: Duration = Duration::from_millis(50);

/// What an idle reader with a buffer of the default size gets of each burst. He reads when all of
/// it has come: where another process has the CPU, its end waits in the ring.
fn bursts() -> Vec<u64> {
    let [server, behind] = [5000, 5001].map(|port| UdpSocket::bind((HOST_V4, port)).unwrap());
    server.set_read_timeout(Some(PAUSE)).unwrap();
    let patience = Duration::from_secs(20);
    behind.set_read_timeout(Some(patience)).unwrap();
    let wire = Wire::open();
    let burst = |_| {
        for _ in 0..BURST {
            wire.send(&frame(4000, 5000));
        }
        wire.send(&frame(4000, 5001));
        behind.recv(&mut [0; 128]).expect("it comes last");
        received(&server)
    };
    (0..3).map(burst).collect()
}

/// The guard discarded from 70 percent of the buffer on, however calm the host was.
#[test]
fn bursts_into_a_buffer_lose_no_more_than_without_the_guard() {
    in_namespace(|| {
        let stock = {
            let _pass_all = PassAll::attach("v0").unwrap();
            bursts()
        };
        assert!(
            stock.iter().all(|taken| *taken < u64::from(BURST)),
            "each burst is too large: {stock:?}"
        );
        guarded(|guard, _| {
            // One run of stock differs from the next by a datagram.
            for (taken, stock) in bursts().into_iter().zip(stock) {
                assert!(taken + 2 >= stock, "{taken} of {BURST}, stock {stock}");
            }
            let discarded = guard.counters().unwrap().of(Kind::UdpSocket).discarded();
            assert!(discarded > 0, "what finds no room is discarded early");
        });
    });
}

/// A client of that host which has asked the peer from a port, for which this host stands.
fn masqueraded(inside: &Namespace, port: u16) -> UdpSocket {
    nft("add table ip n; \
         add chain ip n out { type nat hook postrouting priority 100; }; \
         add rule ip n out oifname v0 masquerade");
    inside.run(move || {
        let client = patient((INSIDE_V4, port));
        client.send_to(b"please", (PEER_V4, 9000)).unwrap();
        client
    })
}

#[test]
fn a_masquerading_gateway_loses_nothing_of_a_download() {
    in_namespace(|| {
        let inside = inside();
        let client = masqueraded(&inside, 40_000);
        guarded(|guard, wire| {
            for _ in 0..FRAMES {
                wire.send(&frame(9000, 40_000));
            }
            assert_eq!(inside.run(move || received(&client)), u64::from(FRAMES));
            assert_eq!(guard.counters().unwrap().all().discarded(), 0);
        });
    });
}

#[test]
fn a_translated_port_loses_nothing_beside_a_flood_of_a_closed_one() {
    in_namespace(|| {
        let inside = inside();
        nft("add table ip n; \
             add chain ip n in { type nat hook prerouting priority -100; }; \
             add rule ip n in udp dport 53 dnat to 10.77.0.2");
        let server = inside.run(|| patient((INSIDE_V4, 53)));
        guarded(|guard, wire| {
            flood_closed_port(guard, wire);
            for client in 10_000..10_000 + FRAMES {
                wire.send(&frame(client, 53));
                (0..5).for_each(|_| wire.send(&frame(4000, CLOSED)));
            }
            assert_eq!(inside.run(move || received(&server)), u64::from(FRAMES));
            let packets = *guard.counters().unwrap().of(Kind::ClosedPort);
            let capped = packets.count(Outcome::Share);
            assert!(capped > u64::from(FRAMES), "{packets:?}");
        });
    });
}

/// The hardest case: a stranger floods the very port that the gateway uses.
#[test]
fn a_translated_connection_loses_nothing_when_strangers_flood_its_port() {
    in_namespace(|| {
        let inside = inside();
        let client = masqueraded(&inside, 40_000);
        guarded(|guard, wire| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(200) {
                wire.send(&frame(4000, 40_000));
            }
            for _ in 0..FRAMES {
                wire.send(&frame(9000, 40_000));
                (0..10).for_each(|_| wire.send(&frame(4000, 40_000)));
            }
            assert_eq!(inside.run(move || received(&client)), u64::from(FRAMES));
            let packets = *guard.counters().unwrap().of(Kind::ClosedPort);
            assert!(
                packets.count(Outcome::Share) > u64::from(FRAMES),
                "{packets:?}"
            );
        });
    });
}

/// A server of this host whose queue is full, and stays so.
fn full_server(guard: &mut Guard<'_>, wire: &Wire, port: u16) -> UdpSocket {
    let server = UdpSocket::bind((HOST_V4, port)).unwrap();
    while guard.counters().unwrap().of(Kind::UdpSocket).discarded() < u64::from(BURST) {
        (0..BURST).for_each(|_| wire.send(&frame(4000, port)));
    }
    server
}

/// Packets of a socket that were discarded.
fn discarded(guard: &mut Guard<'_>) -> u64 {
    guard.counters().unwrap().of(Kind::UdpSocket).discarded()
}

/// A time server beside a gateway whose hosts ask others for the time, from the same port.
#[test]
fn what_is_masqueraded_at_a_full_server_s_port_is_not_judged_by_that_server() {
    in_namespace(|| {
        let inside = inside();
        let client = masqueraded(&inside, 123);
        guarded(|guard, wire| {
            let _server = full_server(guard, wire, 123);
            // The looks of a tick have gone to strangers; the next tick has more.
            thread::sleep(5 * TICK);
            let before = discarded(guard);
            for _ in 0..FRAMES {
                wire.send(&frame(9000, 123));
                wire.send(&frame(4000, 123));
            }
            assert_eq!(inside.run(move || received(&client)), u64::from(FRAMES));
            let strangers = discarded(guard) - before;
            assert!(strangers >= u64::from(FRAMES) * 9 / 10, "{strangers}");
        });
    });
}

/// A socket of this host at port 53 that nobody reads, and whose queue is full.
fn full() -> UdpSocket {
    let socket = UdpSocket::bind((HOST_V4, 53)).unwrap();
    let filler = UdpSocket::bind((HOST_V4, 0)).unwrap();
    for _ in 0..10 * BURST {
        filler.send_to(&[0; 64], (HOST_V4, 53)).unwrap();
    }
    socket
}

/// The proxy of a published port has a socket there, which somebody on this host has filled.
#[test]
fn what_goes_on_to_a_published_server_is_not_judged_by_a_full_socket_here() {
    in_namespace(|| {
        let inside = inside();
        nft("add table ip n; \
             add chain ip n in { type nat hook prerouting priority -100; }; \
             add rule ip n in iifname v0 udp dport 53 dnat to 10.77.0.2");
        let server = inside.run(|| patient((INSIDE_V4, 53)));
        guarded(|guard, wire| {
            let proxy = full();
            guard.refresh().unwrap();
            // The first packet of a tick passes. The next one shows that its flow is translated.
            for _ in 0..2 {
                wire.send(&frame(9999, 53));
                thread::sleep(5 * TICK);
            }
            // Each is the first of its flow.
            for client in 10_000..10_000 + FRAMES {
                wire.send(&frame(client, 53));
            }
            let all = 2 + u64::from(FRAMES);
            assert_eq!(inside.run(move || received(&server)), all);
            assert_eq!(discarded(guard), 0);
            drop(proxy);
        });
    });
}

/// The program asks connection tracking of its first zone alone. Gateways with several uplinks have
/// others.
#[test]
fn what_is_translated_in_a_zone_of_its_own_is_not_judged_by_a_full_socket_here() {
    in_namespace(|| {
        let inside = inside();
        nft("add table ip n; \
             add chain ip n zones { type filter hook prerouting priority -300; }; \
             add rule ip n zones iifname v0 ct zone set 7; \
             add chain ip n in { type nat hook prerouting priority -100; }; \
             add rule ip n in iifname v0 udp dport 53 dnat to 10.77.0.2");
        let server = inside.run(|| patient((INSIDE_V4, 53)));
        let _full = full();
        guarded(|guard, wire| {
            for client in 10_000..10_000 + FRAMES {
                wire.send(&frame(client, 53));
            }
            assert_eq!(inside.run(move || received(&server)), u64::from(FRAMES));
            assert_eq!(discarded(guard), 0);
        });
    });
}

/// A resolver's port is diverted to a proxy, while the resolver's own queue is full.
fn diverted_to_a_proxy_loses_nothing(program: &str, rule: &str) {
    in_namespace(|| {
        if program == "nft" {
            nft("add table ip m; \
                 add chain ip m in { type filter hook prerouting priority -150; }");
        }
        let status = Command::new(program).args(rule.split(' ')).status();
        assert!(status.expect("it is installed").success(), "{rule}");
        let proxy = patient((Ipv4Addr::UNSPECIFIED, 6000));
        setsockopt(&proxy, sockopt::IpTransparent, &true).unwrap();
        let _full = full();
        guarded(|guard, wire| {
            for client in 10_000..10_000 + FRAMES {
                wire.send(&frame(client, 53));
            }
            assert_eq!(received(&proxy), u64::from(FRAMES), "{rule}");
            assert_eq!(discarded(guard), 0, "{rule}");
        });
    });
}

#[test]
fn what_a_rule_diverts_to_a_proxy_is_not_judged_by_a_full_socket_here() {
    for rule in [
        "udp dport 53 tproxy to :6000",
        "udp dport { 53, 123 } tproxy to :6000",
        "udp dport 1-1000 tproxy to :6000",
        "udp dport 53 udp dport set 6000",
    ] {
        let rule = format!("add rule ip m in iifname v0 {rule}");
        diverted_to_a_proxy_loses_nothing("nft", &rule);
    }
}

#[test]
fn nor_is_what_a_rule_diverts_whatever_its_port() {
    let of_nft = "add rule ip m in iifname v0";
    let of_iptables = "-t mangle -A PREROUTING -i v0 -p udp -j TPROXY --on-port 6000";
    let rules = [
        ("nft", format!("{of_nft} meta l4proto udp tproxy to :6000")),
        (
            "nft",
            format!("{of_nft} ip ttl 64 udp dport != 9 tproxy to :6000"),
        ),
        ("iptables-nft", of_iptables.to_owned()),
        ("iptables-legacy", of_iptables.to_owned()),
    ];
    for (program, rule) in rules {
        diverted_to_a_proxy_loses_nothing(program, &rule);
    }
}

#[test]
fn a_socket_bound_to_a_bridge_gets_all_that_comes_in_by_its_port() {
    in_namespace(|| {
        bridged();
        let server = patient((HOST_V4, 5000));
        setsockopt(&server, sockopt::BindToDevice, &"br0".into()).unwrap();
        guarded(|guard, wire| {
            flood_closed_port(guard, wire);
            for _ in 0..FRAMES {
                wire.send(&frame(4000, 5000));
            }
            assert_eq!(received(&server), u64::from(FRAMES));
            assert_eq!(guard.counters().unwrap().of(Kind::UdpSocket).offered(), 0);
        });
    });
}

/// Containers have sockets in namespaces of their own, which are not looked up: what
/// is routed to them passes and counts as `forward`.
#[test]
fn containers_behind_a_bridge_get_all_that_is_routed_to_them() {
    in_namespace(|| {
        ip("link add br0 type bridge");
        ip("address add 10.88.0.1/24 dev br0");
        ip("link set br0 up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let pods = [2, 3].map(|last| {
            let pod = Namespace::new();
            let tid = pod.tid;
            ip(&format!(
                "link add p{last} type veth peer name h0 netns {tid}"
            ));
            ip(&format!("link set p{last} master br0 up"));
            let address = Ipv4Addr::new(10, 88, 0, last);
            let server = pod.run(move || {
                ip(&format!("address add {address}/24 dev h0"));
                ip("link set h0 up");
                ip("route add default via 10.88.0.1");
                patient((address, 53))
            });
            (pod, address, server)
        });
        guarded(|guard, wire| {
            flood_closed_port(guard, wire);
            for client in 10_000..10_000 + FRAMES {
                for (_, address, _) in &pods {
                    let packet = Packet::new(PEER_V4.into(), (*address).into());
                    wire.send(&packet.macs(PEER_MAC, HOST_MAC).udp(client, 53, &[0; 64]));
                }
            }
            for (pod, _, server) in pods {
                assert_eq!(pod.run(move || received(&server)), u64::from(FRAMES));
            }
            let forwarded = *guard.counters().unwrap().of(Kind::Forward);
            assert_eq!(forwarded.count(Outcome::Admitted), 2 * u64::from(FRAMES));
            assert_eq!(forwarded.discarded(), 0);
        });
    });
}

/// A container's server that loses nothing, at its own Ethernet address.
fn pod_server(pod: &Namespace, device: &'static str) -> UdpSocket {
    pod.run(move || {
        ip(&format!("address add {POD_V4}/24 dev {device}"));
        ip(&format!("link set {device} up"));
        patient((POD_V4, 53))
    })
}

/// Nobody asked which namespace these end in: the host has no such address, so they count as
/// `forward`, and all arrive.
fn all_arrive_and_count_as_forward(pod: &Namespace, server: UdpSocket) {
    guarded(|guard, wire| {
        flood_closed_port(guard, wire);
        for client in 10_000..10_000 + FRAMES {
            let packet = Packet::new(PEER_V4.into(), POD_V4.into());
            wire.send(&packet.macs(PEER_MAC, POD_MAC).udp(client, 53, &[0; 64]));
        }
        assert_eq!(pod.run(move || received(&server)), u64::from(FRAMES));
        let forwarded = *guard.counters().unwrap().of(Kind::Forward);
        assert_eq!(forwarded.count(Outcome::Admitted), u64::from(FRAMES));
        assert_eq!(forwarded.discarded(), 0);
    });
}

#[test]
fn containers_on_the_interface_s_bridge_get_all_that_is_bridged_to_them() {
    in_namespace(|| {
        let pod = Namespace::new();
        let tid = pod.tid;
        ip("link add br0 type bridge");
        ip("link set br0 up");
        ip("link set v0 master br0");
        ip(&format!(
            "link add p0 type veth peer name h0 address 02:00:00:00:00:77 netns {tid}"
        ));
        ip("link set p0 master br0 up");
        let server = pod_server(&pod, "h0");
        all_arrive_and_count_as_forward(&pod, server);
    });
}

#[test]
fn containers_with_a_macvlan_device_get_all_that_is_sent_to_them() {
    in_namespace(|| {
        let pod = Namespace::new();
        let tid = pod.tid;
        ip(&format!(
            "link add link v0 name m0 address 02:00:00:00:00:77 netns {tid} type macvlan mode bridge"
        ));
        let server = pod_server(&pod, "m0");
        all_arrive_and_count_as_forward(&pod, server);
    });
}

#[test]
fn a_reader_of_frames_gets_those_of_closed_ports() {
    in_namespace(|| {
        let reader = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthIp,
        )
        .unwrap();
        large_buffer(&reader);
        guarded(|guard, wire| {
            flood_closed_port(guard, wire);
            let before = guard.counters().unwrap().all().offered();
            for _ in 0..FRAMES {
                wire.send(&frame(4000, CLOSED));
            }
            let counters = guard.counters().unwrap();
            let offered = counters.all().offered() - before;
            assert!(offered >= u64::from(FRAMES));
            assert_eq!(counters.all().discarded(), 0, "{:?}", counters.all());
            let read = std::iter::from_fn(|| {
                use std::os::fd::AsRawFd;
                recv(reader.as_raw_fd(), &mut [0; 128], MsgFlags::empty()).ok()
            });
            assert!(read.count() as u64 >= u64::from(FRAMES));
        });
    });
}
