//! What changes while a router works: neighbours that nobody knows yet, packets that turn
//! round, routes and links during a flood. Needs root.

use std::thread;
use std::time::Duration;

use plimsoll_programs::forward::{DataPath, Router};
use plimsoll_testbed::INNER_DEVICE;
use plimsoll_testbed::blast::Stop;
use plimsoll_testbed::routed::{Routed, SINK_IPV4, Sink};

use crate::common::{
    ANSWERING, Books, config, eventually, eventually_answered, is_answered, of, packets,
    packets_until, ping, said, with_router, with_router_of,
};

/// Nobody has this address of the sink's network.
const NOBODY: &str = "10.77.0.99";

fn the_unusual_is_forwarded(path: DataPath) {
    with_router(path, Sink::Answers, |hosts, router| {
        neighbours_are_asked_for(hosts, router);
        packets_turn_round(hosts, router);
    });
}

/// A neighbour that is not known is asked for by the kernel, which keeps the packet. Floods
/// of packets for nobody reach the kernel up to a limit.
fn neighbours_are_asked_for(hosts: &Routed, router: &Router) {
    let load = hosts.load();
    eventually_answered(load, ANSWERING);
    let before = of(&router.status().unwrap(), "no_neighbour");
    let forget = format!("neighbour del {ANSWERING} dev {INNER_DEVICE}");
    hosts.router().ip(&forget).unwrap();
    // Not before the mirror knows it, or the packet goes to the old address.
    eventually("a packet that waits for a neighbour", || {
        is_answered(load, &format!("-c 1 {ANSWERING}"));
        hosts.router().ip(&forget).ok();
        of(&router.status().unwrap(), "no_neighbour") > before
    });
    // It gives up after three questions.
    let retry = format!("net/ipv4/neigh/{INNER_DEVICE}/retrans_time_ms");
    hosts.router().sysctl(&retry, "50").unwrap();
    let unreachable = ping(load, &format!("-c 1 -W 5 {NOBODY}"));
    assert!(unreachable.contains("Unreachable"), "{unreachable}");
    let before = router.status().unwrap();
    let report = packets(hosts, NOBODY, 20_000, 200_000);
    let after = router.status().unwrap();
    let [asked, limited] =
        ["no_neighbour", "limited"].map(|outcome| of(&after, outcome) - of(&before, outcome));
    assert!(asked > 0 && limited > 0, "{after}");
    assert!(asked + limited <= report.sent, "{after}");
    eventually_answered(load, ANSWERING);
}

/// A packet whose next hop is where it came from is sent back there, as the kernel does.
/// Nobody is told of a shorter way.
fn packets_turn_round(hosts: &Routed, router: &Router) {
    let (load, middle) = (hosts.load(), hosts.router());
    middle
        .ip(&format!("route add 192.0.2.0/24 via {}", load.ipv4()))
        .unwrap();
    // Their addresses have to be known.
    eventually_answered(middle, &load.ipv4().to_string());
    let returned = || hosts.counter(load, load.device(), "rx_packets").unwrap();
    // Until the mirror has the route, the kernel answers.
    eventually("a packet that is sent back", || {
        let before = of(&router.status().unwrap(), "forwarded");
        packets(hosts, "192.0.2.1", 1, 1000);
        of(&router.status().unwrap(), "forwarded") > before
    });
    let (before, came_back) = (of(&router.status().unwrap(), "forwarded"), returned());
    let report = packets(hosts, "192.0.2.1", 1000, 5000);
    let status = router.status().unwrap();
    let forwarded = of(&status, "forwarded") - before;
    assert!(forwarded >= report.sent * 9 / 10, "{status}");
    eventually("frames that come back", || {
        returned() - came_back >= report.sent * 9 / 10
    });
}

/// Each of these lasts for a moment of the flood.
fn change(hosts: &Routed, round: u32) {
    let middle = hosts.router();
    let moment = || thread::sleep(Duration::from_millis(20));
    let ip = |words: &str| middle.ip(words).unwrap();
    match round % 4 {
        0 => {
            ip("route add unreachable 10.77.0.8/29");
            moment();
            ip("route del unreachable 10.77.0.8/29");
        }
        1 => {
            ip(&format!("link set {INNER_DEVICE} down"));
            moment();
            ip(&format!("link set {INNER_DEVICE} up"));
        }
        2 => {
            let routes = "for i in $(seq 1 200); do echo route replace 192.0.2.$i/32 via 10.77.0.2; done | ip -batch -";
            said(middle, routes);
            said(middle, "ip route flush 192.0.2.0/24");
        }
        _ => {
            ip(&format!("link set {INNER_DEVICE} mtu 1300"));
            moment();
            ip(&format!("link set {INNER_DEVICE} mtu 1500"));
        }
    }
    // A link that was down has forgotten who nobody is.
    let mac = hosts
        .sink()
        .mac()
        .map(|byte| format!("{byte:02x}"))
        .join(":");
    ip(&format!(
        "neighbour replace {SINK_IPV4} lladdr {mac} dev {INNER_DEVICE} nud permanent"
    ));
}

/// Routes, neighbours and links change during a flood. Each packet has one outcome all the
/// same, and afterwards all are forwarded.
fn changes_during_a_flood(path: DataPath) {
    with_router(path, Sink::Drops, |hosts, router| {
        let start = Books::of(hosts, router);
        thread::scope(|scope| {
            let stop = Stop::new();
            let flooding = stop.clone();
            let sink = SINK_IPV4.to_string();
            let flood = scope.spawn(move || packets_until(hosts, &sink, 150_000, &flooding));
            for round in 0..8 {
                change(hosts, round);
                assert!(!flood.is_finished(), "change {round} is during the flood");
            }
            stop.stop();
            flood.join().unwrap();
        });
        afterwards_all_pass(hosts, router);
        let end = Books::of(hosts, router);
        assert_eq!(end.status.mirror.divergences, 0, "{}", end.status);
        start.arrivals_match(&end);
        // What user space still had to send when the link went down is counted by the link.
        if path == DataPath::Xdp {
            let forwarded = of(&end.status, "forwarded");
            assert_eq!(end.done(), forwarded, "{}", end.status);
        }
    });
}

fn afterwards_all_pass(hosts: &Routed, router: &Router) {
    eventually("all packets pass again", || {
        let before = of(&router.status().unwrap(), "forwarded");
        let report = packets(hosts, &SINK_IPV4.to_string(), 1000, 5000);
        of(&router.status().unwrap(), "forwarded") - before == report.sent
    });
}

/// It sent packets to an interface that takes none from a driver, as a veth whose other end has no
/// GRO, and all of them were lost.
#[test]
fn the_kernel_forwards_to_an_interface_that_takes_no_redirected_frames() {
    let gro =
        |hosts: &Routed, to: &str| said(hosts.router(), &format!("ethtool -K extra1 gro {to}"));
    let prepare = |hosts: &Routed| {
        add_extra(hosts);
        gro(hosts, "off");
    };
    let mut config = config(DataPath::Xdp);
    config.interfaces.push("extra0".to_owned());
    with_router_of(&config, Sink::Drops, prepare, |hosts, router| {
        // Packets by each outcome, and those that came to the other end.
        let told = || {
            let status = router.status().unwrap();
            let [forwarded, left] = ["forwarded", "kernel_route"].map(|name| of(&status, name));
            let came = hosts
                .counter(hosts.router(), "extra1", "rx_packets")
                .unwrap();
            [forwarded, left, came]
        };
        let become_of = |frames: u64| {
            let before = told();
            packets(hosts, BEHIND_EXTRA, frames, 5000);
            hosts.settled().unwrap();
            let after = told();
            [0, 1, 2].map(|place| after[place] - before[place])
        };
        let [forwarded, left, came] = become_of(1000);
        assert_eq!((forwarded, left), (0, 1000), "{came} came");
        assert!(came >= 1000, "{came} came");
        gro(hosts, "on");
        eventually("the driver sends", || become_of(100)[0] == 100);
        gro(hosts, "off");
        eventually("the kernel sends", || become_of(100)[1] == 100);
        assert!(become_of(100)[2] >= 100);
    });
}

fn add_extra(hosts: &Routed) {
    let add = "ip link add extra0 type veth peer name extra1";
    let words = format!(
        "{add} && ip link set extra0 up && ip link set extra1 up
         ip addr add 10.99.0.1/24 dev extra0
         ip neigh replace {BEHIND_EXTRA} lladdr 02:00:00:00:00:99 dev extra0 nud permanent"
    );
    said(hosts.router(), &words);
}

/// Behind an interface that goes.
const BEHIND_EXTRA: &str = "10.99.0.2";

/// A socket on a device that is gone gets nothing more, also while there are frames for it. The
/// other interfaces go on.
#[test]
fn when_an_interface_goes_packets_pass_between_the_others() {
    let mut config = config(DataPath::User);
    config.interfaces.push("extra0".to_owned());
    with_router_of(&config, Sink::Answers, add_extra, |hosts, router| {
        eventually_answered(hosts.load(), ANSWERING);
        thread::scope(|scope| {
            let stop = Stop::new();
            let flooding = stop.clone();
            let flood = scope.spawn(move || packets_until(hosts, BEHIND_EXTRA, 20_000, &flooding));
            let transmitted = || router.status().unwrap().interfaces[2].transmitted.sent;
            eventually("packets leave by it", || transmitted() > 1_000);
            said(hosts.router(), "ip link del extra0");
            assert!(!flood.is_finished(), "it goes during the flood");
            // Frames for it still come.
            thread::sleep(Duration::from_millis(200));
            stop.stop();
            flood.join().unwrap();
        });
        assert_eq!(router.failure(), None);
        is_answered(hosts.load(), &format!("-c 20 {ANSWERING}"));
    });
}

#[test]
fn xdp_asks_for_neighbours_and_sends_packets_back() {
    the_unusual_is_forwarded(DataPath::Xdp);
}

#[test]
fn user_space_asks_for_neighbours_and_sends_packets_back() {
    the_unusual_is_forwarded(DataPath::User);
}

#[test]
fn xdp_counts_every_packet_of_a_flood_while_routes_and_links_change() {
    changes_during_a_flood(DataPath::Xdp);
}

#[test]
fn user_space_counts_every_packet_of_a_flood_while_routes_and_links_change() {
    changes_during_a_flood(DataPath::User);
}
