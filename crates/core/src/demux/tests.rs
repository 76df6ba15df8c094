//! Stories of one host's endpoints, packet by packet.

extern crate std;

mod fragments;
mod host;

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use plimsoll_packets::frame::{self, Packet, TcpFlags};

use self::host::*;
use super::*;

/// Shows LRP-21, LRP-23.
#[test]
fn the_most_specific_socket_gets_the_packet() {
    let mut demux = demux();
    let here = at(V4, 53);
    assert_eq!(udp(&mut demux, here), (Kind::ClosedPort, 106));
    let udp_at = |demux: &mut Demux, address, dual_stack, channel| {
        demux.bind(
            Protocol::Udp,
            at(address, 53),
            dual_stack,
            ChannelId(channel),
        )
    };
    assert_eq!(udp_at(&mut demux, V6_ANY, true, 1), Ok(()));
    assert_eq!(udp(&mut demux, here), (Kind::UdpSocket, 1));
    assert_eq!(udp_at(&mut demux, V4_ANY, false, 2), Ok(()));
    assert_eq!(udp(&mut demux, here), (Kind::UdpSocket, 2));
    assert_eq!(udp_at(&mut demux, V4, false, 3), Ok(()));
    assert_eq!(udp(&mut demux, here), (Kind::UdpSocket, 3));
    let peer = at(V4_PEER, 9);
    let connected = demux.connect(Protocol::Udp, here, peer, ChannelId(4));
    assert_eq!(connected, Ok(()));
    assert_eq!(udp(&mut demux, here), (Kind::UdpSocket, 4));
    // The other family never left the dual-stack socket.
    assert_eq!(udp(&mut demux, at(V6, 53)), (Kind::UdpSocket, 1));
    // A stream has a channel beside its listener's.
    let listening = demux.bind(Protocol::Tcp, here, false, ChannelId(5));
    let accepted = demux.connect(Protocol::Tcp, here, peer, ChannelId(6));
    assert_eq!((listening, accepted), (Ok(()), Ok(())));
    let segment = tcp(&mut demux, here, TcpFlags::ACK, NOW);
    assert_eq!(segment.channel, ChannelId(6));

    // And back again.
    let gone = demux.disconnect(Protocol::Udp, here, peer);
    assert_eq!(gone, Some(ChannelId(4)));
    assert_eq!(udp(&mut demux, here), (Kind::UdpSocket, 3));
    for (address, left) in [(V4, 2), (V4_ANY, 1)] {
        assert!(demux.unbind(Protocol::Udp, at(address, 53)).is_some());
        assert_eq!(udp(&mut demux, here), (Kind::UdpSocket, left));
    }
    let last = demux.unbind(Protocol::Udp, at(V6_ANY, 53));
    assert_eq!(last, Some(ChannelId(1)));
    assert_eq!(udp(&mut demux, here), (Kind::ClosedPort, 106));
}

#[test]
fn udp_and_tcp_ports_are_apart_and_an_ipv6_only_wildcard_takes_no_ipv4() {
    let mut demux = demux();
    let bound = demux.bind(Protocol::Udp, at(V6_ANY, 53), false, ChannelId(1));
    assert_eq!(bound, Ok(()));
    assert_eq!(udp(&mut demux, at(V4, 53)), (Kind::ClosedPort, 106));
    assert_eq!(udp(&mut demux, at(V6, 53)), (Kind::UdpSocket, 1));
    let segment = tcp(&mut demux, at(V6, 53), TcpFlags::SYN, NOW);
    assert_eq!(segment.kind, Kind::ClosedPort);
}

#[test]
fn all_members_of_a_group_share_the_channel_of_the_first() {
    let mut demux = demux();
    let group = at(GROUP, 5353);
    assert_eq!(udp(&mut demux, group), (Kind::Multicast, 101));
    assert_eq!(demux.join(group, ChannelId(1)), Ok(ChannelId(1)));
    assert_eq!(demux.join(group, ChannelId(2)), Ok(ChannelId(1)));
    assert_eq!(udp(&mut demux, group), (Kind::Multicast, 1));
    assert_eq!(udp(&mut demux, at(GROUP, 5354)), (Kind::Multicast, 101));
    assert_eq!(demux.leave(group), None, "one member is left");
    assert_eq!(udp(&mut demux, group), (Kind::Multicast, 1));
    assert_eq!(demux.leave(group), Some(ChannelId(1)));
    assert_eq!(demux.leave(group), None);
    assert_eq!(udp(&mut demux, group), (Kind::Multicast, 101));
}

#[test]
fn broadcast_addresses_are_groups_and_unicast_ones_are_not() {
    let mut demux = demux();
    for address in [[192, 0, 2, 255], [255; 4]] {
        let group = at(address.into(), 67);
        assert_eq!(udp(&mut demux, group), (Kind::Multicast, 101));
        assert_eq!(demux.join(group, ChannelId(3)), Ok(ChannelId(3)));
        assert_eq!(udp(&mut demux, group), (Kind::Multicast, 3));
    }
    let unicast = demux.join(at(V4, 67), ChannelId(3));
    assert!(matches!(unicast, Err(EndpointError::Unsuitable(_))));
}

#[test]
fn a_listener_beyond_its_backlog_loses_new_syns_and_nothing_else() {
    let mut demux = demux();
    let listener = at(V6_ANY, 80);
    let bound = demux.bind(Protocol::Tcp, listener, true, ChannelId(1));
    assert_eq!(bound, Ok(()));
    let flags = [
        TcpFlags::SYN,
        TcpFlags::ACK,
        TcpFlags::SYN_ACK,
        TcpFlags::RST,
        TcpFlags::FIN_ACK,
    ];
    for (beyond, demand) in [
        (false, Demand::New),
        (true, Demand::Excess),
        (false, Demand::New),
    ] {
        assert!(demux.set_beyond_backlog(listener, beyond));
        for (address, flags) in [V4, V6].into_iter().zip([flags; 2]) {
            for flags in flags {
                let said = tcp(&mut demux, at(address, 80), flags, NOW);
                let demand = if flags == TcpFlags::SYN {
                    demand
                } else {
                    Demand::Known
                };
                let wanted = Classified {
                    demand,
                    ..Classified::new(Kind::TcpListener, ChannelId(1))
                };
                assert_eq!(said, wanted, "{address} {flags:?}");
            }
        }
    }
    assert!(
        !demux.set_beyond_backlog(at(V4, 80), true),
        "not bound there"
    );
}

#[test]
fn a_listener_is_found_as_its_syns_are() {
    let mut demux = demux();
    let specific = at(V4, 80);
    for (listener, dual, channel) in [
        (specific, false, 1),
        (at(V6_ANY, 80), true, 2),
        (at(V6, 81), false, 3),
    ] {
        let bound = demux.bind(Protocol::Tcp, listener, dual, ChannelId(channel));
        assert_eq!(bound, Ok(()));
    }
    let udp = demux.bind(Protocol::Udp, at(V4, 82), false, ChannelId(4));
    assert_eq!(udp, Ok(()));
    for to in [V4, V6] {
        for port in 80..=82 {
            let said = tcp(&mut demux, at(to, port), TcpFlags::SYN, NOW);
            let its = (said.kind == Kind::TcpListener).then_some(said.channel);
            assert_eq!(demux.listener(at(to, port)), its, "{to} {port}");
        }
    }
    assert_eq!(demux.listener(specific), Some(ChannelId(1)));
    assert_eq!(demux.listener(at(V4, 0)), None);
}

#[test]
fn a_connection_gives_its_channel_back_when_it_enters_time_wait() {
    let mut demux = demux();
    let (here, peer) = (at(V4, 80), at(V4_PEER, 9));
    let bound = demux.bind(Protocol::Tcp, here, false, ChannelId(1));
    assert_eq!(bound, Ok(()));
    let connected = demux.connect(Protocol::Tcp, here, peer, ChannelId(2));
    assert_eq!(connected, Ok(()));
    let at_time = |demux: &mut Demux, now| {
        let said = tcp(demux, here, TcpFlags::FIN_ACK, now);
        (said.kind, said.channel.0)
    };
    assert_eq!(at_time(&mut demux, NOW), (Kind::TcpConnection, 2));
    let released = demux.enter_time_wait(here, peer, NOW);
    assert_eq!(released, Some(ChannelId(2)));
    assert_eq!(demux.enter_time_wait(here, peer, NOW), None);
    assert_eq!(at_time(&mut demux, NOW), (Kind::TcpConnection, 102));
    let end = NOW + Duration::from_secs(60);
    let last = end - Duration::from_nanos(1);
    assert_eq!(at_time(&mut demux, last), (Kind::TcpConnection, 102));
    assert_eq!(at_time(&mut demux, end), (Kind::TcpListener, 1));
}

#[test]
fn a_connection_that_comes_back_ends_time_wait_for_good() {
    let mut demux = demux();
    let (here, peer) = (at(V6, 80), at(V6_PEER, 9));
    let connect = |demux: &mut Demux| demux.connect(Protocol::Tcp, here, peer, ChannelId(2));
    assert_eq!(connect(&mut demux), Ok(()));
    assert!(demux.enter_time_wait(here, peer, NOW).is_some());
    assert_eq!(connect(&mut demux), Ok(()));
    let kind = |demux: &mut Demux| tcp(demux, here, TcpFlags::ACK, NOW);
    assert_eq!(kind(&mut demux).channel, ChannelId(2));
    assert!(demux.disconnect(Protocol::Tcp, here, peer).is_some());
    assert_eq!(kind(&mut demux).kind, Kind::ClosedPort);
}

#[test]
fn time_wait_is_bounded_and_leaves_room_for_connections() {
    let config = DemuxConfig {
        tcp_connections_max: 4,
        time_wait_max: 8,
        ..DemuxConfig::new(CHANNELS)
    };
    let mut demux = host(&config);
    let here = at(V4, 80);
    for port in 1..=20 {
        let peer = at(V4_PEER, port);
        let connected = demux.connect(Protocol::Tcp, here, peer, ChannelId(0));
        assert_eq!(connected, Ok(()), "connection {port}");
        assert!(demux.enter_time_wait(here, peer, NOW).is_some());
    }
    assert_eq!(demux.time_wait_forgotten(), 12);
    let kind = |demux: &mut Demux, port| {
        let frame = frame::tcp(at(V4_PEER, port), here, TcpFlags::ACK, b"");
        demux.classify(&frame, NOW).kind
    };
    assert_eq!(kind(&mut demux, 12), Kind::ClosedPort);
    assert_eq!(kind(&mut demux, 13), Kind::TcpConnection);
}

#[test]
fn connections_are_limited() {
    let config = DemuxConfig {
        tcp_connections_max: 4,
        ..DemuxConfig::new(CHANNELS)
    };
    let mut demux = host(&config);
    let connect = |demux: &mut Demux, port| {
        let peer = at(V4_PEER, port);
        demux.connect(Protocol::Tcp, at(V4, 80), peer, ChannelId(0))
    };
    for port in 1..=4 {
        assert_eq!(connect(&mut demux, port), Ok(()));
    }
    assert_eq!(connect(&mut demux, 5), Err(EndpointError::Full));
    assert_eq!(connect(&mut demux, 4), Err(EndpointError::Taken));
}

#[test]
fn each_proxy_has_its_channel() {
    let mut demux = demux();
    let (V4, IpAddr::V4(here), IpAddr::V4(peer)) = (V4, V4, V4_PEER) else {
        unreachable!("they are IPv4")
    };
    let to_v6 = Packet::new(V6_PEER, V6);
    let elsewhere = at(IpAddr::from([198, 51, 100, 1]), 53);
    let cases = [
        (frame::arp(peer, here, 0), Kind::Neighbour, 104),
        (to_v6.icmp(135, &[0; 16]), Kind::Neighbour, 104),
        (to_v6.icmp(128, b"ping"), Kind::Icmp, 103),
        (Packet::new(V4_PEER, V4).icmp(8, b"ping"), Kind::Icmp, 103),
        (
            frame::udp(at(V4_PEER, 9), elsewhere, b""),
            Kind::Forward,
            105,
        ),
        (
            frame::udp(at(V4_PEER, 9), at(V4, 7), b""),
            Kind::ClosedPort,
            106,
        ),
        (fragment(at(V4, 7), 5, 3), Kind::Fragment, 100),
        (to_v6.protocol(89, &[0; 24]), Kind::Other, 107),
        (to_v6.udp(9, 0, b""), Kind::Malformed, 108),
        (vec![], Kind::Malformed, 108),
    ];
    for (frame, kind, channel) in cases {
        let said = demux.classify(&frame, NOW);
        assert_eq!(said, Classified::new(kind, ChannelId(channel)));
    }
}

/// Shows LRP-58 for quality of service.
#[test]
fn forwarded_packets_can_be_told_apart_by_class() {
    let mut demux = demux();
    demux.set_forward_channel(46, ChannelId(7));
    for (elsewhere, peer) in [("198.51.100.1", V4_PEER), ("2001:db8:1::1", V6_PEER)] {
        let elsewhere: IpAddr = elsewhere.parse().expect("an address");
        for (class, channel) in [(46 << 2 | 1, 7), (45 << 2, 105), (0, 105)] {
            let packet = Packet::new(peer, elsewhere).traffic_class(class);
            let said = demux.classify(&packet.udp(9, 9, b""), NOW);
            assert_eq!(said, Classified::new(Kind::Forward, ChannelId(channel)));
        }
    }
}

#[test]
fn a_mapped_address_is_the_ipv4_address() {
    let mut demux = demux();
    let mapped = |address: IpAddr, port| {
        let IpAddr::V4(address) = address else {
            unreachable!("IPv4 is mapped")
        };
        at(address.to_ipv6_mapped().into(), port)
    };
    let bound = demux.bind(Protocol::Udp, mapped(V4, 53), false, ChannelId(1));
    assert_eq!(bound, Ok(()));
    assert_eq!(udp(&mut demux, at(V4, 53)), (Kind::UdpSocket, 1));
    let twice = demux.bind(Protocol::Udp, at(V4, 53), false, ChannelId(2));
    assert_eq!(twice, Err(EndpointError::Taken));
    let (here, peer) = (mapped(V4, 54), mapped(V4_PEER, 9));
    let connected = demux.connect(Protocol::Udp, here, peer, ChannelId(3));
    assert_eq!(connected, Ok(()));
    assert_eq!(udp(&mut demux, at(V4, 54)), (Kind::UdpSocket, 3));
}

#[test]
fn an_address_that_the_host_lost_is_forwarded_to() {
    let mut demux = demux();
    let to = at(V6, 53);
    assert_eq!(demux.bind(Protocol::Udp, to, false, ChannelId(1)), Ok(()));
    assert!(demux.remove_address(V6));
    assert!(!demux.remove_address(V6));
    assert_eq!(udp(&mut demux, to), (Kind::Forward, 105));
    assert_eq!(demux.add_local_address(V6), Ok(()));
    assert_eq!(udp(&mut demux, to), (Kind::UdpSocket, 1));
}

#[test]
fn what_no_packet_can_be_for_is_refused() {
    let mut demux = demux();
    let unsuitable = |refused: Result<(), EndpointError>| {
        assert!(matches!(refused, Err(EndpointError::Unsuitable(_))));
    };
    let channel = ChannelId(1);
    unsuitable(demux.add_local_address(GROUP));
    unsuitable(demux.add_local_address(V6_ANY));
    unsuitable(demux.add_broadcast_address(Ipv4Addr::BROADCAST));
    unsuitable(demux.bind(Protocol::Udp, at(V4, 0), false, channel));
    unsuitable(demux.bind(Protocol::Udp, at(GROUP, 1), false, channel));
    unsuitable(demux.bind(Protocol::Udp, at(V4_ANY, 1), true, channel));
    unsuitable(demux.bind(Protocol::Udp, at(V6, 1), true, channel));
    unsuitable(demux.connect(Protocol::Tcp, at(V4, 1), at(V6_PEER, 1), channel));
    unsuitable(demux.connect(Protocol::Tcp, at(V4_ANY, 1), at(V4_PEER, 1), channel));
    unsuitable(demux.connect(Protocol::Tcp, at(V4, 1), at(V4_PEER, 0), channel));
    unsuitable(demux.join(at(GROUP, 0), channel).map(|_| ()));
    let message = EndpointError::Unsuitable("the port must not be 0").to_string();
    assert_eq!(message, "not an endpoint: the port must not be 0");
}

#[test]
fn a_config_that_cannot_work_names_the_field() {
    let fault = |change: fn(&mut DemuxConfig)| {
        let mut config = DemuxConfig::new(CHANNELS);
        change(&mut config);
        let demux = Demux::new(&config, Seed([0, 0]));
        demux.expect_err("a fault").to_string()
    };
    assert_eq!(
        fault(|config| config.sockets_max = 0),
        "sockets_max = 0: must be from 1 to 16,777,216"
    );
    assert_eq!(
        fault(|config| config.fragments_max = 1 << 24 | 1),
        "fragments_max = 16777217: must be from 1 to 16,777,216"
    );
    assert_eq!(
        fault(|config| config.time_wait_lifetime = Duration::ZERO),
        "time_wait_lifetime = 0: must be longer than nothing"
    );
}

#[test]
fn an_endpoint_costs_what_is_documented() {
    let bytes = |connections| {
        let config = DemuxConfig {
            tcp_connections_max: connections,
            ..DemuxConfig::new(CHANNELS)
        };
        host(&config).memory_bytes()
    };
    let least = bytes(1);
    // One more of each family: 17 and 41 bytes a slot, 2.3 to 4.6 slots.
    for connections in [1000, 10_000, 14_336, 14_337, 100_000] {
        let each = (bytes(connections) - least) as f64 / connections as f64;
        assert!((2.2 * 58.0..4.6 * 58.0).contains(&each), "{each} bytes");
    }
}

/// Every public operation, over and over, on tables that are full. A table for
/// 28 keys has 32 slots if it gets no more than it asks for, so that it would
/// have to move to other memory when deletions have used them up.
#[test]
fn nothing_allocates_after_construction() {
    let config = DemuxConfig {
        addresses_max: 2,
        sockets_max: 28,
        udp_connections_max: 28,
        tcp_connections_max: 28,
        groups_max: 28,
        fragments_max: 8,
        time_wait_max: 8,
        ..DemuxConfig::new(CHANNELS)
    };
    let mut demux = host(&config);
    let fragments = [0, 1, 2].map(|number| {
        let to = |id| at(if id % 2 == 0 { V4 } else { V6 }, 53);
        let all = (0..50).map(|id| fragment(to(id), id, number));
        all.collect::<Vec<_>>()
    });
    let segment = frame::tcp(at(V4_PEER, 9), at(V4, 80), TcpFlags::SYN, b"");
    let allocated = allocation_counter::measure(|| {
        for round in 0..2000u16 {
            endpoints_come_and_go(&mut demux, 1 + round % 400);
            let now = NOW + Duration::from_secs(u64::from(round));
            for number in [1, 0, 2] {
                let frames: &Vec<Vec<u8>> = &fragments[number];
                let _ = demux.classify(&frames[usize::from(round % 50)], now);
            }
            let _ = demux.classify(&segment, now);
        }
    });
    assert_eq!(allocated.count_total, 0);
}

/// Registers endpoints at `port`, and removes those of 28 ports before.
fn endpoints_come_and_go(demux: &mut Demux, port: u16) {
    let old = port.saturating_sub(28).max(1);
    let channel = ChannelId(u32::from(port));
    for (here, peer, any) in [(V4, V4_PEER, V4_ANY), (V6, V6_PEER, V6_ANY)] {
        let _ = demux.add_local_address(here);
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            for address in [here, any] {
                demux.unbind(protocol, at(address, old));
                let _ = demux.bind(protocol, at(address, port), false, channel);
            }
            demux.disconnect(protocol, at(here, 80), at(peer, old));
            let _ = demux.connect(protocol, at(here, 80), at(peer, port), channel);
        }
        demux.enter_time_wait(at(here, 80), at(peer, port), NOW);
    }
    demux.set_beyond_backlog(at(V4, port), true);
    demux.leave(at(GROUP, old));
    let _ = demux.join(at(GROUP, port), channel);
    demux.remove_address(V4_PEER);
}
