//! Fixed values that show all there is: every kind, outcome, fate and sort of owner.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use plimsoll_guard::ledger::{Fate, Ledger, Place, Stage};
use plimsoll_guard::status::{
    ChannelStatus, ClassStatus, Condition, KindStatus, SourcesStatus, Status,
};
use plimsoll_guard::{
    Heaviest, Kind, Level, Outcome, Owner, OwnerProcess, SynCookies, Unguarded, governor,
};

/// Counts that tell outcomes apart: so many admitted, and something of each of `more`.
fn outcomes(admitted: u64, more: &[(Outcome, u64)]) -> BTreeMap<String, u64> {
    let count = |outcome| match outcome {
        Outcome::Admitted => admitted,
        other => more
            .iter()
            .find(|(o, _)| *o == other)
            .map_or(0, |(_, n)| *n),
    };
    let named = |outcome: Outcome| (outcome.name().to_owned(), count(outcome));
    Outcome::ALL.into_iter().map(named).collect()
}

/// A kind of so many packets, a tenth of them in the last second.
fn kind(kind: Kind, admitted: u64, more: &[(Outcome, u64)]) -> KindStatus {
    let discarded = more.iter().filter(|(o, _)| o.is_discard());
    let discarded: u64 = discarded.map(|(_, n)| n).sum();
    let offered = admitted + more.iter().map(|(_, n)| n).sum::<u64>();
    KindStatus {
        kind: kind.name().to_owned(),
        packets: outcomes(admitted, more),
        offered_pps: offered as f64 / 10.0,
        discarded_pps: discarded as f64 / 10.0,
        charged_cpus: offered as f64 / 1e7,
    }
}

pub(in crate::guard) fn channel(
    of: Kind,
    (address, port): (IpAddr, u16),
    (admitted, more): (u64, &[(Outcome, u64)]),
    (occupancy, capacity): (u32, u32),
    owner: Option<Owner>,
) -> ChannelStatus {
    let KindStatus {
        kind,
        packets,
        offered_pps,
        discarded_pps,
        charged_cpus,
    } = kind(of, admitted, more);
    let outcome_pps = packets.iter();
    ChannelStatus {
        kind,
        address,
        port,
        outcome_pps: outcome_pps
            .map(|(o, n)| (o.clone(), *n as f64 / 10.0))
            .collect(),
        packets,
        offered_pps,
        discarded_pps,
        charged_cpus,
        discarding: discarded_pps > 0.0,
        occupancy,
        capacity,
        owner,
        sources: None,
    }
}

fn owner(process: Option<(u32, &str)>, control_group: Option<&str>, sockets: u32) -> Option<Owner> {
    Some(Owner {
        process: process.map(|(pid, name)| OwnerProcess {
            pid,
            name: name.to_owned(),
        }),
        control_group: control_group.map(str::to_owned),
        user: 0,
        sockets,
    })
}

const V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const V6: Ipv6Addr = Ipv6Addr::new(
    0x2001, 0xdb8, 0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666,
);

/// What the flooded server's clients lost.
const LOST: &[(Outcome, u64)] = &[
    (Outcome::SocketQueue, 2_500_000),
    (Outcome::SourceShare, 40_000),
    (Outcome::Share, 12_000),
];

/// More sources of the flooded server than can be told apart; a tenth of the packets in
/// the last second.
fn flooding() -> SourcesStatus {
    let class = |seen, admitted: u64, discarded: u64| ClassStatus {
        seen,
        admitted,
        discarded,
        admitted_pps: admitted as f64 / 10.0,
        discarded_pps: discarded as f64 / 10.0,
    };
    let heaviest = |level, prefix: &str, part| Heaviest {
        level,
        prefix: prefix.parse().expect("a prefix"),
        part,
    };
    SourcesStatus {
        known: class(12, 5_000, 10),
        unknown: class(131_000, 320_000, 2_540_000),
        at_least: true,
        heaviest: vec![
            heaviest(Level::Host, "203.0.113.9/32", 0.031),
            heaviest(Level::Subnet, "203.0.113.0/24", 0.74),
            heaviest(Level::Network, "203.0.0.0/16", 0.81),
        ],
    }
}

/// Overloaded once, and calm now.
fn calm_again() -> SourcesStatus {
    let class = |seen, admitted: u64| ClassStatus {
        seen,
        admitted,
        discarded: 0,
        admitted_pps: 0.0,
        discarded_pps: 0.0,
    };
    SourcesStatus {
        known: class(0, 0),
        unknown: class(0, 700),
        at_least: false,
        heaviest: Vec::new(),
    }
}

/// Channels of both kinds with every sort of owner and fullness.
fn channels() -> Vec<ChannelStatus> {
    let mut channels = unjudged_channels();
    channels[0].sources = Some(flooding());
    channels[2].sources = Some(calm_again());
    channels
}

fn unjudged_channels() -> Vec<ChannelStatus> {
    use Outcome::{AcceptQueue, NoCookie, SynCookie, SynQueue};
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let (udp, tcp) = (Kind::UdpSocket, Kind::TcpListener);
    let unit = "/system.slice/nsd.service";
    vec![
        channel(
            udp,
            (any, 5000),
            (328_000, LOST),
            (1_471_280, 2_097_152),
            owner(Some((2978, "sink")), Some("/"), 1),
        ),
        channel(
            tcp,
            (V4.into(), 80),
            (
                900,
                &[
                    (SynCookie, 80_000),
                    (NoCookie, 70),
                    (AcceptQueue, 400),
                    (SynQueue, 30),
                ],
            ),
            (511, 511),
            owner(Some((812, "nginx")), Some("/system.slice/nginx.service"), 4),
        ),
        channel(
            udp,
            (V4.into(), 53),
            (15_000, &[]),
            (130_000, 212_992),
            owner(Some((700, "nsd")), Some(unit), 2),
        ),
        channel(
            udp,
            (V6.into(), 65_535),
            (40, &[]),
            (0, 212_992),
            owner(None, Some("/user.slice"), 1),
        ),
        channel(udp, (V4.into(), 123), (3, &[]), (0, 0), None),
        channel(
            tcp,
            (V4.into(), 22),
            (2, &[]),
            (0, 128),
            owner(Some((1, "fifteen-letters")), None, 1),
        ),
    ]
}

/// Something of each kind and each outcome.
fn kinds() -> Vec<KindStatus> {
    use Outcome::{AcceptQueue, NoCookie, Share, SynCookie, SynQueue};
    let more = |of| -> &[(Outcome, u64)] {
        match of {
            Kind::UdpSocket => LOST,
            Kind::TcpListener => &[
                (SynCookie, 80_000),
                (NoCookie, 70),
                (AcceptQueue, 400),
                (SynQueue, 30),
            ],
            Kind::ClosedPort => &[(Share, 700)],
            _ => &[],
        }
    };
    let admitted = |of| match of {
        Kind::UdpSocket => 343_043,
        Kind::TcpListener => 902,
        other => 10 * (1 + other as u64),
    };
    Kind::ALL.map(|of| kind(of, admitted(of), more(of))).into()
}

fn place(name: &str, fate: Fate, packets: u64, from: &str) -> Place {
    Place {
        name: name.to_owned(),
        fate,
        packets,
        from: from.to_owned(),
    }
}

fn stage(
    name: &str,
    (entered, joined): (u64, u64),
    rest: (i64, i64, u64),
    places: Vec<Place>,
) -> Stage {
    let (in_motion, unaccounted, went_on) = rest;
    Stage {
        name: name.to_owned(),
        entered,
        joined,
        places,
        in_motion,
        unaccounted,
        went_on,
    }
}

const OWN: &str = "the guard's own";

fn before_the_stack() -> Vec<Stage> {
    vec![
        stage(
            "adapter",
            (3_038_955, 0),
            (3, 0, 2_977_955),
            vec![
                place(
                    "receive_ring",
                    Fate::Lost,
                    60_997,
                    "rx_missed_errors, rx_fifo_errors, rx_over_errors",
                ),
                place("bad_frame", Fate::Lost, 0, "rx_errors"),
            ],
        ),
        stage(
            "guard",
            (2_977_955, 0),
            (0, 0, 344_755),
            vec![
                place("socket_queue", Fate::Discarded, 2_500_000, OWN),
                place("accept_queue", Fate::Discarded, 400, OWN),
                place("syn_queue", Fate::Discarded, 30, OWN),
                place("no_cookie", Fate::Discarded, 70, OWN),
                place("share", Fate::Discarded, 12_700, OWN),
                place("source_share", Fate::Discarded, 40_000, OWN),
                place("syn_cookie", Fate::Answered, 80_000, OWN),
            ],
        ),
    ]
}

fn in_the_stack() -> Vec<Stage> {
    vec![
        stage(
            "host",
            (344_755, 74),
            (0, 21, 343_900),
            vec![
                place("other_host", Fate::Passed, 17, "rx_otherhost_dropped"),
                place("arp", Fate::Delivered, 70, OWN),
                place(
                    "merged",
                    Fate::Merged,
                    771,
                    "at most In*ECT*Pkts, InCEPkts beyond InReceives",
                ),
                place(
                    "other_interfaces",
                    Fate::Undivided,
                    50,
                    "rx_dropped and XDP programs of other interfaces",
                ),
            ],
        ),
        stage("ip", (343_900, 0), (0, 0, 343_900), vec![]),
        stage(
            "protocols",
            (343_900, 7),
            (0, -4, 0),
            vec![
                place("no_port", Fate::Lost, 90, "Udp.NoPorts, Udp6NoPorts"),
                place("tcp", Fate::Delivered, 932, "Tcp.InSegs without these"),
                place(
                    "udp_waiting",
                    Fate::Waiting,
                    900,
                    "the sockets' receive queues",
                ),
                place("udp", Fate::Delivered, 341_989, "Udp InDatagrams"),
            ],
        ),
    ]
}

/// A ledger with every fate, and with packets that nothing explains.
fn ledger() -> Ledger {
    let stages = [before_the_stack(), in_the_stack()].concat();
    Ledger {
        unaccounted: stages.iter().map(|stage| stage.unaccounted).sum(),
        stages,
        not_visible: vec!["IPv6: no /proc/net/snmp6".to_owned()],
        began_anew: vec!["rx_missed_errors".to_owned()],
    }
}

pub(super) fn syn_cookies(by: &'static str, reason: &'static str) -> Option<SynCookies> {
    Some(SynCookies {
        by: by.into(),
        reason: reason.into(),
    })
}

/// As a guard tells it.
fn unguarded(protocol: &str, taker: &str) -> Unguarded {
    let told = serde_json::json!({ "protocol": protocol, "taker": taker });
    serde_json::from_value(told).expect("both are known")
}

/// A guard in the middle of a flood.
pub(in crate::guard) fn overloaded() -> Status {
    let channels = channels();
    Status {
        schema: 1,
        interface: "eth0".to_owned(),
        pid: 2981,
        uptime_s: 3725.5,
        condition: Condition {
            observe: false,
            shedding: true,
            standing_by: false,
            attachments: 3,
            governor: governor::Status {
                mode: "overload".into(),
                reason: "ring".into(),
                holdoff_us: 29.6,
                network_share: 0.804,
                switches: 3,
            },
            syn_cookies: syn_cookies("driver", "no_objection"),
            unguarded: BTreeSet::new(),
        },
        interval_s: 0.5,
        kinds: kinds(),
        channels_total: 1200,
        most_offered: channels.first().cloned(),
        channels,
        ledger: ledger(),
        known_sources: 812,
    }
}

/// The same flood when nothing is done about it: the victims are named, and
/// packets are lost where they would be without a guard.
pub(super) fn observing() -> Status {
    let mut ledger = ledger();
    let [_, guard, host, ip, protocols] = &mut ledger.stages[..] else {
        unreachable!("a ledger has five stages");
    };
    let passed: u64 = guard.places.drain(..).map(|place| place.packets).sum();
    guard.went_on += passed;
    for stage in [host, ip] {
        stage.entered += passed;
        stage.went_on += passed;
    }
    protocols.entered += passed;
    let from = "Udp.RcvbufErrors, Udp6RcvbufErrors";
    protocols
        .places
        .push(place("socket_queue", Fate::Lost, passed, from));
    Status {
        condition: Condition {
            observe: true,
            shedding: false,
            standing_by: false,
            attachments: 1,
            governor: governor::Status {
                mode: "interrupts".into(),
                reason: "calm".into(),
                holdoff_us: 0.0,
                network_share: 1.0,
                switches: 0,
            },
            syn_cookies: syn_cookies("stack", "link_refused"),
            unguarded: [unguarded("udp", "packet_filter"), unguarded("tcp", "tc")].into(),
        },
        channels_total: channels().len(),
        ledger,
        ..overloaded()
    }
}

/// A guard nobody sends to.
pub(super) fn idle() -> Status {
    Status {
        kinds: Vec::new(),
        channels: Vec::new(),
        channels_total: 0,
        most_offered: None,
        ledger: Ledger::default(),
        known_sources: 0,
        condition: Condition {
            observe: false,
            unguarded: BTreeSet::new(),
            ..observing().condition
        },
        ..observing()
    }
}
