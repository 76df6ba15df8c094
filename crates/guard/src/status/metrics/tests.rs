//! Names, formats and bounds of what is exported.

use super::*;
use crate::hidden::{Taker, Unguarded};
use crate::ledger::Ledger;
use crate::owner::diag::Protocol;
use crate::sources::{Class, Heaviest, Judged, Level, Sources};
use crate::status::reader::Snapshot;

fn counters(ports: impl IntoIterator<Item = u16>) -> Arc<Latest> {
    let channel = |port: u16| Channel::sample(port, u64::from(port), 1);
    Arc::new(Latest {
        at: Instant::now(),
        snapshot: Snapshot::sample(ports.into_iter().map(channel).collect()),
        ledger: Ledger::sample(),
    })
}

fn exporter(channels_max: usize) -> Exporter {
    Exporter {
        interface: "eth0".to_owned(),
        started: Instant::now(),
        channels_max,
        known: ByChannel::default(),
        last: None,
    }
}

#[test]
fn names_and_labels_follow_the_conventions() {
    let mut latest = counters([53]);
    let snapshot = &mut Arc::make_mut(&mut latest).snapshot;
    let unguarded = &mut snapshot.condition.unguarded;
    unguarded.insert(Unguarded {
        protocol: Protocol::Udp,
        taker: Taker::PacketFilter,
    });
    let text = exporter(9).text(&latest, Format::OpenMetrics);
    for line in [
        "# TYPE plimsoll_guard_packets counter",
        "plimsoll_guard_packets_total{interface=\"eth0\",kind=\"udp_socket\",outcome=\"admitted\"} 53",
        "plimsoll_guard_channel_packets_total{interface=\"eth0\",kind=\"udp_socket\",address=\"198.18.0.2\",port=\"53\",outcome=\"admitted\"} 53",
        "plimsoll_guard_channel_source_packets_total{interface=\"eth0\",kind=\"udp_socket\",address=\"198.18.0.2\",port=\"53\",class=\"unknown\",fate=\"discarded\"} 0",
        "plimsoll_guard_known_sources{interface=\"eth0\"} 0.0",
        "plimsoll_guard_channel_occupancy_ratio{interface=\"eth0\",kind=\"udp_socket\",address=\"198.18.0.2\",port=\"53\"} 0.53",
        "plimsoll_guard_charged_cpu_seconds_total{interface=\"eth0\",kind=\"icmp\"} 0.0",
        "plimsoll_guard_syn_cookies_by_driver{interface=\"eth0\"} 1.0",
        "plimsoll_guard_unguarded{interface=\"eth0\",protocol=\"udp\"} 1.0",
        "plimsoll_guard_unguarded{interface=\"eth0\",protocol=\"tcp\"} 0.0",
        "plimsoll_guard_overload{interface=\"eth0\"} 0.0",
        "plimsoll_guard_network_share_ratio{interface=\"eth0\"} 0.25",
        "plimsoll_guard_mode_changes_total{interface=\"eth0\"} 2",
        "plimsoll_guard_observing{interface=\"eth0\"} 1.0",
        "plimsoll_guard_standing_by{interface=\"eth0\"} 0.0",
        "plimsoll_guard_attachments_total{interface=\"eth0\"} 1",
        "plimsoll_guard_channels{interface=\"eth0\"} 1.0",
        "# UNIT plimsoll_guard_uptime_seconds seconds",
        "plimsoll_guard_ledger_packets{interface=\"eth0\",stage=\"adapter\",place=\"receive_ring\",fate=\"lost\"} 7.0",
        "plimsoll_guard_ledger_entered_packets{interface=\"eth0\",stage=\"adapter\"} 107.0",
        "plimsoll_guard_ledger_unaccounted_packets{interface=\"eth0\",stage=\"adapter\"} -3.0",
        "plimsoll_guard_ledger_in_motion_packets{interface=\"eth0\",stage=\"adapter\"} 1.0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    assert!(text.is_ascii());
}

#[test]
fn an_interface_has_the_name_that_it_has_now() {
    let mut latest = counters([53]);
    Arc::make_mut(&mut latest).snapshot.renamed = Some("new0".to_owned());
    let text = exporter(9).text(&latest, Format::OpenMetrics);
    assert!(text.contains("plimsoll_guard_overload{interface=\"new0\"} 0.0"));
    assert!(!text.contains("eth0"), "{text}");
}

#[test]
fn one_reading_is_encoded_once_per_format() {
    let mut exporter = exporter(9);
    let mut latest = counters([53]);
    let first = exporter.text(&latest, Format::Text);
    Arc::make_mut(&mut latest).snapshot.condition.shedding = true;
    assert_eq!(
        exporter.text(&latest, Format::Text),
        first,
        "the same reading"
    );
    assert_ne!(exporter.text(&latest, Format::OpenMetrics), first);
    Arc::make_mut(&mut latest).at += Duration::from_millis(1);
    assert_ne!(exporter.text(&latest, Format::Text), first, "another one");
}

/// Ports of the channels that are exported of these, each with so many packets.
fn exported(exporter: &mut Exporter, channels: &[(u16, u64)], now: Instant) -> Vec<u16> {
    let channel = |(port, packets): &(u16, u64)| Channel::sample(*port, *packets, 0);
    let channels: Vec<_> = channels.iter().map(channel).collect();
    let chosen = exporter.choose(&channels, now);
    chosen.iter().map(|chosen| chosen.channel.port).collect()
}

#[test]
fn series_are_bounded_and_stay_as_long_as_their_channel_has_packets() {
    let mut exporter = exporter(2);
    let start = Instant::now();
    let mut ports = |channels: &[_]| exported(&mut exporter, channels, start);
    assert_eq!(ports(&[(1, 1), (2, 2), (3, 3)]), [2, 3], "the busiest");
    assert_eq!(
        ports(&[(1, 1), (2, 2), (3, 3), (9, 9)]),
        [2, 3],
        "they stay"
    );
    assert_eq!(
        ports(&[(1, 1), (3, 3), (9, 9)]),
        [3, 9],
        "room for the next"
    );
    assert!(ports(&[]).is_empty());
}

/// Sockets that were closed kept all places, and a server that was flooded had none.
#[test]
fn places_of_quiet_channels_are_for_those_with_packets() {
    let mut exporter = exporter(2);
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut ports = |channels: &[_], now| exported(&mut exporter, channels, now);
    assert_eq!(ports(&[(1, 8), (2, 9)], start), [1, 2]);
    assert_eq!(ports(&[(1, 8), (2, 10), (3, 1)], after(59)), [1, 2]);
    assert_eq!(ports(&[(1, 8), (2, 10), (3, 2)], after(61)), [2, 3]);
    assert_eq!(
        ports(&[(1, 8), (2, 10), (3, 2)], after(300)),
        [2, 3],
        "nobody wants it"
    );
    assert_eq!(ports(&[(1, 9), (2, 10), (3, 2)], after(301)), [1, 2]);
}

#[test]
fn a_channel_that_is_quiet_says_nothing_of_its_queue() {
    let mut exporter = exporter(9);
    let mut latest = counters([53]);
    let ratio = "plimsoll_guard_channel_occupancy_ratio{";
    assert!(exporter.text(&latest, Format::Text).contains(ratio));
    Arc::make_mut(&mut latest).at += QUIET;
    let text = exporter.text(&latest, Format::Text);
    assert!(!text.contains(ratio), "{text}");
    assert!(text.contains("plimsoll_guard_channel_packets_total{"));
}

/// Whoever keeps metrics must not learn who sent what.
#[test]
fn sources_are_told_without_their_addresses() {
    let mut latest = counters([53]);
    let snapshot = &mut Arc::make_mut(&mut latest).snapshot;
    let channel = &mut snapshot.counters.channels[0];
    let class = |seen, admitted, discarded| Class {
        seen,
        judged: Judged {
            admitted,
            discarded,
        },
    };
    channel.sources = Some(Sources {
        known: class(3, 40, 1),
        unknown: class(70_000, 5, 900),
        at_least: true,
        heaviest: vec![Heaviest {
            level: Level::Subnet,
            prefix: "203.0.113.0/24".parse().unwrap(),
            part: 0.75,
        }],
    });
    let text = exporter(9).text(&latest, Format::OpenMetrics);
    let channel = "interface=\"eth0\",kind=\"udp_socket\",address=\"198.18.0.2\",port=\"53\"";
    for (name, labels, value) in [
        (
            "source_packets_total",
            "class=\"known\",fate=\"admitted\"",
            "40",
        ),
        (
            "source_packets_total",
            "class=\"unknown\",fate=\"discarded\"",
            "900",
        ),
        ("sources", "class=\"known\"", "3.0"),
        ("sources", "class=\"unknown\"", "70000.0"),
        ("heaviest_source_ratio", "level=\"host\"", "0.0"),
        ("heaviest_source_ratio", "level=\"subnet\"", "0.75"),
    ] {
        let line = format!("plimsoll_guard_channel_{name}{{{channel},{labels}}} {value}");
        assert!(text.lines().any(|l| l == line), "{line} in:\n{text}");
    }
    assert!(!text.contains("203.0.113"), "{text}");
}
