//! Golden tests: what the guard's commands print, whole, from fixed values.
//!
//! The expected texts are the files of `golden/`, to be read and reviewed like
//! code. `make golden` writes them anew: look at the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use plimsoll_guard::check::{Check, Finding, Verdict};
use plimsoll_guard::ledger::{Fate, Ledger, Place, Stage};
use plimsoll_guard::status::{
    ChannelStatus, ClassStatus, GovernorStatus, KindStatus, SourcesStatus, Status,
};
use plimsoll_guard::{Heaviest, Kind, Level, Outcome, Owner, OwnerProcess};

use super::top::{self, State};
use super::{check, status, words};

/// Set to write the files instead of comparing with them.
const RENEW: &str = "PLIMSOLL_RENEW_GOLDEN";

/// The text is the file's.
fn assert_golden(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(file);
    if std::env::var_os(RENEW).is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "differs from golden/{file}; if it should, `make golden` and review the difference.\n\
         now:\n{text}\nthen:\n{expected}"
    );
}

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
    let answered = [Outcome::Admitted, Outcome::SynCookie];
    let discarded = more.iter().filter(|(o, _)| !answered.contains(o));
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

pub(super) fn channel(
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
            (344_755, 24),
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

/// A guard in the middle of a flood.
fn overloaded() -> Status {
    let channels = channels();
    Status {
        schema: 1,
        interface: "eth0".to_owned(),
        pid: 2981,
        uptime_s: 3725.5,
        observe: false,
        shedding: true,
        governor: GovernorStatus {
            mode: "overload".to_owned(),
            reason: "ring".to_owned(),
            holdoff_us: 29.6,
            network_share: 0.804,
            switches: 3,
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
fn observing() -> Status {
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
        observe: true,
        shedding: false,
        governor: GovernorStatus {
            mode: "interrupts".to_owned(),
            reason: "calm".to_owned(),
            holdoff_us: 0.0,
            network_share: 1.0,
            switches: 0,
        },
        channels_total: channels().len(),
        ledger,
        ..overloaded()
    }
}

/// A guard nobody sends to.
fn idle() -> Status {
    Status {
        kinds: Vec::new(),
        channels: Vec::new(),
        channels_total: 0,
        most_offered: None,
        ledger: Ledger::default(),
        known_sources: 0,
        observe: false,
        ..observing()
    }
}

#[test]
fn the_samples_hold_all_there_is() {
    let status = overloaded();
    let kinds: Vec<_> = status.kinds.iter().map(|kind| kind.kind.as_str()).collect();
    assert_eq!(kinds, Kind::ALL.map(Kind::name));
    for outcome in Outcome::ALL {
        let some = status
            .kinds
            .iter()
            .any(|kind| kind.packets[outcome.name()] > 0);
        assert!(some, "{}", outcome.name());
    }
    let places = status.ledger.stages.iter().flat_map(|stage| &stage.places);
    let fates: BTreeSet<&str> = places.map(|place| place.fate.name()).collect();
    assert_eq!(fates.len(), 7, "every fate: {fates:?}");
    let ledgers = [status.ledger, observing().ledger];
    for stage in ledgers.iter().flat_map(|ledger| &ledger.stages) {
        let ended: u64 = stage.places.iter().map(|place| place.packets).sum();
        let rest = stage.in_motion + stage.unaccounted;
        let came = (stage.entered + stage.joined).cast_signed();
        assert_eq!(
            came,
            (ended + stage.went_on).cast_signed() + rest,
            "{}",
            stage.name
        );
    }
}

#[test]
fn status_as_a_table() {
    assert_golden("status-overload.txt", &status::table(&overloaded()));
    assert_golden("status-observe.txt", &status::table(&observing()));
    assert_golden("status-idle.txt", &status::table(&idle()));
}

#[test]
fn status_for_programs() {
    let mut line = Vec::new();
    status::write_document(&mut line, &overloaded()).unwrap();
    let line = String::from_utf8(line).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "one line per interface");
    // Told to programs in one line, reviewed in many.
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    assert_golden("status-overload.json", &text);
    let read: Status = serde_json::from_str(&line).unwrap();
    assert_eq!(read, overloaded());
}

#[test]
fn every_mode_and_reason_in_words() {
    let mut text = String::new();
    for (mode, reason) in [
        ("interrupts", "calm"),
        ("overload", "discards"),
        ("overload", "network_share"),
        ("overload", "ring"),
    ] {
        for (observe, shedding) in [(false, false), (false, true), (true, false), (true, true)] {
            if observe && mode == "overload" {
                continue;
            }
            let governor = GovernorStatus {
                mode: mode.to_owned(),
                reason: reason.to_owned(),
                holdoff_us: if mode == "overload" { 120.0 } else { 0.0 },
                network_share: 0.05,
                switches: 0,
            };
            text += &words::doing(&governor, observe, shedding);
            text.push('\n');
        }
    }
    assert_golden("modes.txt", &text);
}

/// Between them 0.5 s and packets lost at two places.
fn watched() -> State {
    let mut before = overloaded();
    before.uptime_s -= 0.5;
    before.ledger.stages[0].places[0].packets -= 6_100;
    before.ledger.stages[4].places[0].packets -= 5;
    let mut state = State::default();
    state.on_answer(Ok(before));
    state.on_answer(Ok(overloaded()));
    state
}

#[test]
fn top_on_two_sizes_of_screen() {
    for (width, height) in [(80, 24), (140, 40)] {
        let screen = top::screen(&watched(), width, height);
        assert_golden(&format!("top-overload-{width}.txt"), &screen);
        let mut state = State::default();
        state.on_answer(Ok(observing()));
        let screen = top::screen(&state, width, height);
        assert_golden(&format!("top-observe-{width}.txt"), &screen);
    }
    let mut state = State::default();
    state.on_answer(Ok(idle()));
    state.on_answer(Err("no guard runs on `eth0`".to_owned()));
    assert_golden("top-gone-80.txt", &top::screen(&state, 80, 24));
}

#[test]
fn check_as_a_table() {
    let finding = |id, verdict, found: &str, guard: &str| Finding {
        id,
        verdict,
        found: found.to_owned(),
        guard: guard.to_owned(),
    };
    let mut check = Check {
        interface: "eth0".to_owned(),
        findings: vec![
            finding("owner", Verdict::Ok, "no guard is running here", "starts"),
            finding("xdp", Verdict::Ok, "native XDP", "runs in the driver"),
            finding(
                "mtu",
                Verdict::Limited,
                "9000 bytes, more than most drivers take for XDP",
                "tries, and says if the driver refuses",
            ),
            finding(
                "attached",
                Verdict::Missing,
                "XDP program `other` (id 7, native)",
                "refuses to replace it (`ip link set eth0 xdp off` detaches it)",
            ),
        ],
        napi: Vec::new(),
    };
    let mut text = check::table(&check);
    check.findings.pop();
    text += &format!(
        "\n--- without what is missing ---\n{}",
        check::table(&check)
    );
    check.findings.pop();
    text += &format!("\n--- without limits ---\n{}", check::table(&check));
    assert_golden("check.txt", &text);
}
