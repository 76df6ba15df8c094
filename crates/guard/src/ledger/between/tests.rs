//! The ledger by invented counters: named, wrapped, reset, missing, random.

use super::*;

/// A host with all counters, where nothing happened yet.
fn host() -> Reading {
    let mut reading = Reading {
        waiting: Some(0),
        backlog_dropped: vec![0],
        ..Reading::default()
    };
    let causes = [
        &causes::IP_LOSSES[..],
        &causes::TCP_LOSSES,
        &causes::UDP_LOSSES,
        &causes::UDP_LITE_LOSSES,
    ];
    let names = causes.into_iter().flatten().flat_map(|(_, names)| *names);
    let others = [
        &causes::UDP_ERRORS[..],
        &causes::UDP_DELIVERED,
        &causes::UDP_LITE_DELIVERED,
        &causes::TCP_SEGMENTS,
        &causes::ICMP_MESSAGES,
        &causes::ICMP_ERRORS,
        &causes::IP_RECEIVED,
        &causes::IP_DELIVERED,
        &causes::IP_FORWARDED,
        &causes::FRAGMENTS,
        &causes::REASSEMBLED,
        &causes::IP_SEGMENTS,
        &causes::MULTICAST_V6,
    ];
    for name in names.chain(others.into_iter().flatten()) {
        reading.stack.insert((*name).to_owned(), 0);
    }
    reading
}

fn count(reading: &mut Reading, counts: &[(&str, u64)]) {
    for (name, packets) in counts {
        *reading.stack.get_mut(*name).expect("a known counter") += packets;
    }
}

/// `packets` UDP datagrams that all reach their application.
fn deliver(reading: &mut Reading, packets: u64) {
    reading.adapter.received += packets;
    reading.outcomes.add_all(&outcomes(packets, 0));
    let names = [
        "Ip.InReceives",
        "IpExt.InNoECTPkts",
        "Ip.InDelivers",
        "Udp.InDatagrams",
    ];
    count(reading, &names.map(|name| (name, packets)));
}

fn outcomes(admitted: u64, discarded: u64) -> Packets {
    crate::Channel::sample(1, admitted, discarded).packets
}

/// The ledger since `then`, whose sums are checked, and its filled places.
fn ledger(then: &Reading, now: &Reading) -> (Ledger, Vec<(String, u64)>) {
    let ledger = between(then, now);
    let mut came = 0;
    let mut ended = 0;
    let mut before = None;
    for stage in &ledger.stages {
        let places: u64 = stage.places.iter().map(|place| place.packets).sum();
        let left = stage.in_motion + stage.unaccounted;
        assert_eq!(
            i128::from(stage.entered) + i128::from(stage.joined),
            i128::from(places) + i128::from(stage.went_on) + i128::from(left),
            "{stage:?}"
        );
        if let Some(before) = before.replace(stage.went_on) {
            assert_eq!(stage.entered, before, "{stage:?}");
        } else {
            came += i128::from(stage.entered);
        }
        came += i128::from(stage.joined);
        ended += i128::from(places) + i128::from(left);
    }
    assert_eq!(came, ended, "what came is somewhere");
    let places = ledger.stages.iter().flat_map(|stage| &stage.places);
    let filled = places.filter(|place| place.packets > 0);
    let filled = filled.map(|place| (place.name.clone(), place.packets));
    let filled = filled.collect();
    (ledger, filled)
}

/// One count for a place, by its name.
fn is(places: &[(String, u64)], expected: &[(&str, u64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, packets)| ((*name).to_owned(), *packets))
        .collect();
    assert_eq!(places, expected);
}

/// It has no such packets, either, so nothing is missing.
#[test]
fn a_kernel_without_udp_lite_tells_all_the_same() {
    let mut now = every_cause();
    now.stack.retain(|name, _| !name.starts_with("UdpLite"));
    let (ledger, _) = ledger(&now, &now);
    assert_eq!(ledger.not_visible, [""; 0]);
}

#[test]
fn nothing_happened() {
    let (ledger, places) = ledger(&host(), &host());
    is(&places, &[]);
    assert_eq!(ledger.unaccounted, 0);
    assert_eq!(ledger.not_visible, [""; 0]);
    assert_eq!(ledger.began_anew, [""; 0]);
}

/// A packet or more of each outcome.
fn every_cause() -> Reading {
    let mut now = host();
    deliver(&mut now, 100);
    // Lost before the guard.
    now.adapter.missed += 3;
    now.adapter.errors += 2;
    // Discarded early.
    now.outcomes.add_all(&outcomes(0, 50));
    now.adapter.received += 50;
    // Lost by the stack.
    now.adapter.received += 60;
    now.outcomes.add_all(&outcomes(60, 0));
    now.adapter.other_host += 1;
    now.neighbour += 4;
    now.adapter.dropped += 5;
    now.backlog_dropped = vec![2];
    count(
        &mut now,
        &[
            ("Ip.InReceives", 50),
            ("Ip.InHdrErrors", 1),
            ("Ip.ReasmReqds", 6),
            ("Ip.ReasmOKs", 2),
            ("Ip.ForwDatagrams", 3),
            ("Ip.InDelivers", 40),
            ("Tcp.InSegs", 10),
            ("TcpExt.ListenDrops", 4),
            ("Icmp.InMsgs", 5),
            ("Icmp.InErrors", 1),
            ("Udp.NoPorts", 7),
            ("Udp.InErrors", 12),
            ("Udp.RcvbufErrors", 9),
            ("Udp.InCsumErrors", 2),
        ],
    );
    // UDP-Lite.
    now.adapter.received += 11;
    now.outcomes.add_all(&outcomes(11, 0));
    let lite = [
        ("Ip6InReceives", 11),
        ("Ip6InDelivers", 11),
        ("UdpLite6NoPorts", 1),
        ("UdpLite6InErrors", 2),
        ("UdpLite6InDatagrams", 8),
    ];
    count(&mut now, &lite);
    now.waiting = Some(6);
    now
}

#[test]
fn every_cause_has_its_place_and_all_adds_up() {
    let now = every_cause();
    let (ledger, places) = ledger(&host(), &now);
    is(
        &places,
        &[
            ("receive_ring", 3),
            ("bad_frame", 2),
            ("socket_queue", 50),
            ("other_host", 1),
            ("arp", 4),
            ("backlog", 2),
            ("no_protocol", 3),
            ("ip_header", 1),
            ("fragments", 4),
            ("forwarded", 3),
            ("listen_queue", 4),
            ("tcp", 6),
            ("no_port", 7),
            ("socket_queue", 9),
            ("udp_checksum", 2),
            ("udp_refused", 1),
            ("udp_waiting", 6),
            ("udp", 100),
            ("udp_lite_lost", 3),
            ("udp_lite", 8),
            ("icmp_bad", 1),
            ("icmp", 4),
        ],
    );
    assert_eq!(ledger.stages[3].unaccounted, 2, "a packet filter, say");
    assert_eq!(ledger.unaccounted, 2, "the rest adds up");
}

#[test]
fn what_does_not_add_up_is_shown_where_it_does_not() {
    for (stage, change) in [
        (0, (|now| now.adapter.received += 9) as fn(&mut Reading)),
        (2, |now| {
            now.adapter.received += 9;
            now.outcomes.add_all(&outcomes(9, 0));
        }),
        (2, |now| now.others.received += 9),
        (3, |now| {
            now.others.received += 9;
            count(now, &[("Ip.InReceives", 9)]);
        }),
        (4, |now| {
            now.others.received += 9;
            count(now, &[("Ip.InReceives", 9), ("Ip.InDelivers", 9)]);
        }),
    ] {
        let mut now = host();
        deliver(&mut now, 1000);
        change(&mut now);
        let (ledger, _) = ledger(&host(), &now);
        assert_eq!(ledger.stages[stage].unaccounted, 9, "{ledger:#?}");
        assert_eq!(ledger.unaccounted, 9);
    }
    // One packet for two sockets is counted twice.
    let mut now = host();
    deliver(&mut now, 1000);
    count(&mut now, &[("Udp.InDatagrams", 5)]);
    assert_eq!(ledger(&host(), &now).0.unaccounted, -5);
}

#[test]
fn what_moved_while_reading_is_in_motion_and_no_more() {
    let mut then = host();
    then.moved = 4;
    let mut now = host();
    deliver(&mut now, 1000);
    now.adapter.received += 9;
    now.moved = 3;
    let (ledger, _) = ledger(&then, &now);
    assert_eq!(ledger.stages[0].in_motion, 7);
    assert_eq!(ledger.unaccounted, 2);
}

#[test]
fn merging_explains_no_more_than_segments_beyond_packets() {
    let mut now = host();
    deliver(&mut now, 100);
    // 50 segments came as 10 packets; 5 more are missing.
    now.adapter.received += 55;
    now.outcomes.add_all(&outcomes(55, 0));
    count(
        &mut now,
        &[
            ("Ip.InReceives", 10),
            ("IpExt.InECT0Pkts", 50),
            ("Ip.InDelivers", 10),
            ("Tcp.InSegs", 10),
        ],
    );
    let (ledger, places) = ledger(&host(), &now);
    is(&places, &[("merged", 40), ("tcp", 10), ("udp", 100)]);
    assert_eq!(ledger.unaccounted, 5);
}

#[test]
fn ipv6_multicast_that_nobody_joined_explains_no_more_than_there_was() {
    let mut now = host();
    deliver(&mut now, 100);
    now.others.received += 9;
    count(&mut now, &[("Ip6InReceives", 9), ("Ip6InMcastPkts", 7)]);
    let (ledger, places) = ledger(&host(), &now);
    is(&places, &[("not_joined", 7), ("udp", 100)]);
    assert_eq!(ledger.unaccounted, 2);
}

#[test]
fn what_was_only_observed_is_not_discarded() {
    let mut now = host();
    deliver(&mut now, 100);
    now.adapter.received += 30;
    now.outcomes.add_all(&outcomes(0, 30));
    now.observed = outcomes(40, 20);
    let names = ["Ip.InReceives", "Ip.InDelivers", "Udp.InDatagrams"];
    count(&mut now, &names.map(|name| (name, 20)));
    let (ledger, places) = ledger(&host(), &now);
    is(&places, &[("socket_queue", 10), ("udp", 120)]);
    assert_eq!(ledger.unaccounted, 0);
}

#[test]
fn a_driver_that_leaves_out_what_xdp_consumed_adds_up() {
    let mut now = host();
    deliver(&mut now, 100);
    now.outcomes.add_all(&outcomes(0, 5000));
    let (ledger, places) = ledger(&host(), &now);
    is(&places, &[("socket_queue", 5000), ("udp", 100)]);
    assert_eq!((ledger.stages[0].entered, ledger.unaccounted), (5100, 0));
}

#[test]
fn dropped_is_put_where_packets_are_missing() {
    let mut now = host();
    deliver(&mut now, 100);
    // 3 of 10 were received and never seen by the guard.
    now.adapter.received += 3;
    now.adapter.dropped += 10;
    let (ledger, places) = ledger(&host(), &now);
    is(
        &places,
        &[("not_received", 7), ("before_guard", 3), ("udp", 100)],
    );
    assert_eq!(ledger.unaccounted, 0);
}

/// While a guard stood by all that came had seemed to be lost before it.
#[test]
fn what_came_while_it_stood_by_passed_it() {
    let mut now = host();
    deliver(&mut now, 100);
    now.outcomes = outcomes(30, 0);
    let unaccounted = |least, most| {
        let now = Reading {
            unseen: Unseen { least, most },
            ..now.clone()
        };
        let (ledger, places) = ledger(&host(), &now);
        is(&places, &[("udp", 100)]);
        let stages: Vec<i64> = ledger.stages.iter().map(|one| one.unaccounted).collect();
        stages
    };
    assert_eq!(unaccounted(70, 70), [0; 5]);
    // Nobody can count at the very moment of an attachment.
    assert_eq!(unaccounted(65, 75), [0; 5]);
    // What is missing beyond is not explained away.
    assert_eq!(unaccounted(50, 60)[0], 10);
    assert_eq!(unaccounted(0, 0)[0], 70);
}

#[test]
fn a_veth_s_ring_is_counted_at_its_other_end() {
    let mut now = host();
    deliver(&mut now, 100);
    now.is_veth = true;
    // Of 8 lost at the ring, 5 came by an XDP redirect: both ends count these.
    now.adapter.dropped += 5;
    let mut then = host();
    then.is_veth = true;
    let (without, places) = ledger(&then, &now);
    is(&places, &[("not_received", 5), ("udp", 100)]);
    assert!(
        without.not_visible[0].contains("receive ring"),
        "{without:?}"
    );
    then.peer_dropped = Some(2);
    now.peer_dropped = Some(10);
    let (with, places) = ledger(&then, &now);
    is(&places, &[("receive_ring", 8), ("udp", 100)]);
    assert_eq!(with.not_visible, [""; 0]);
}

#[test]
fn a_counter_that_wraps_goes_on_and_one_that_began_anew_is_named() {
    let mut then = host();
    then.backlog_dropped = vec![u32::MAX - 1];
    then.adapter.received = 1_000_000;
    then.adapter.missed = 50;
    count(&mut then, &[("Udp.NoPorts", 70)]);
    let mut now = host();
    deliver(&mut now, 100);
    now.backlog_dropped = vec![1];
    now.adapter.dropped = 3;
    now.adapter.received += 3;
    now.outcomes.add_all(&outcomes(3, 0));
    now.adapter.missed = 6;
    count(
        &mut now,
        &[
            ("Ip.InReceives", 4),
            ("Ip.InDelivers", 4),
            ("Udp.NoPorts", 4),
        ],
    );
    now.others.received = 4;
    let (ledger, places) = ledger(&then, &now);
    is(
        &places,
        &[
            ("receive_ring", 6),
            ("backlog", 3),
            ("no_port", 4),
            ("udp", 100),
        ],
    );
    assert_eq!(
        ledger.began_anew,
        ["Udp.NoPorts", "rx_missed_errors", "rx_packets"]
    );
    assert_eq!(ledger.unaccounted, 0, "what came since adds up");
}

#[test]
fn counters_that_are_missing_are_named_and_their_packets_unaccounted() {
    let mut now = host();
    deliver(&mut now, 100);
    now.waiting = None;
    now.stack.remove("Udp.InDatagrams");
    now.stack
        .retain(|name, _| !name.starts_with("Ip6") && !name.starts_with("Udp6"));
    let (ledger, _) = ledger(&host(), &now);
    assert_eq!(ledger.unaccounted, 100);
    assert_eq!(ledger.not_visible.len(), 3, "{:?}", ledger.not_visible);
    assert!(ledger.not_visible.contains(&"Udp.InDatagrams".to_owned()));
    assert!(
        ledger
            .not_visible
            .iter()
            .any(|name| name.starts_with("IPv6: "))
    );
}

/// A host whose counters mean nothing still has every packet somewhere.
#[test]
fn any_counters_add_up() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..200 {
        let [then, now] = [(); 2].map(|()| {
            let mut reading = host();
            for value in reading.stack.values_mut() {
                *value = random.u64(..1 << 40);
            }
            let adapter = &mut reading.adapter;
            for counter in [
                &mut adapter.received,
                &mut adapter.dropped,
                &mut adapter.errors,
                &mut adapter.missed,
                &mut adapter.other_host,
                &mut reading.others.received,
                &mut reading.others.dropped,
                &mut reading.neighbour,
                &mut reading.moved,
            ] {
                *counter = random.u64(..1 << 40);
            }
            reading.outcomes = outcomes(random.u64(..1 << 40), random.u64(..1 << 40));
            reading.observed = outcomes(random.u64(..1 << 39), random.u64(..1 << 39));
            reading
        });
        ledger(&then, &now);
    }
}

/// What had left the adapter and was not yet seen by the guard is no loss, however
/// much the adapter dropped elsewhere: in a flood it was told as lost, and next time not.
#[test]
fn packets_on_their_way_to_the_guard_are_not_lost() {
    let mut now = host();
    deliver(&mut now, 100);
    now.adapter.received += 40;
    now.adapter.dropped += 1000;
    now.is_veth = true;
    now.peer_dropped = Some(1000);
    now.moved = 40;
    let then = Reading {
        peer_dropped: Some(0),
        is_veth: true,
        ..host()
    };
    let (moving, places) = ledger(&then, &now);
    is(&places, &[("receive_ring", 1000), ("udp", 100)]);
    assert_eq!((moving.stages[0].in_motion, moving.unaccounted), (40, 0));
    // Beyond what moved they were lost.
    now.moved = 30;
    let (_, places) = ledger(&then, &now);
    is(
        &places,
        &[("receive_ring", 1000), ("before_guard", 10), ("udp", 100)],
    );
}

/// The losses of another interface's receive ring were told as this one's, and what another
/// guard discarded as unaccounted.
#[test]
fn what_ends_on_other_interfaces_is_neither_lost_here_nor_unaccounted() {
    let run = |dropped, ran_xdp, missing| {
        let mut now = host();
        deliver(&mut now, 100);
        now.others.received += missing;
        now.others.dropped += dropped;
        now.others_ran_xdp = ran_xdp;
        let (ledger, places) = ledger(&host(), &now);
        (places, ledger.unaccounted)
    };
    let others = |packets| {
        let places = [("other_interfaces", packets), ("udp", 100)];
        places
            .map(|(name, packets)| (name.to_owned(), packets))
            .to_vec()
    };
    // What others say they dropped explains no more than that; a program may take any number.
    assert_eq!(run(7, false, 9), (others(7), 2));
    assert_eq!(run(7, true, 9), (others(9), 0));
    // They lost what they had not counted as received.
    assert_eq!(run(7, true, 0).0, [("udp".to_owned(), 100)]);
    // The interface's own losses are its own.
    let mut now = host();
    deliver(&mut now, 100);
    now.adapter.received += 5;
    now.adapter.dropped += 5;
    now.outcomes.add_all(&outcomes(5, 0));
    now.others.dropped += 7;
    let (_, places) = ledger(&host(), &now);
    is(&places, &[("no_protocol", 5), ("udp", 100)]);
}
