//! The host that the tests send frames to, and their frames.

extern crate std;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::vec::Vec;

use plimsoll_packets::frame::{self, Fragment, Packet, TcpFlags};

use super::super::*;

pub(super) const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(super) const V4_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
pub(super) const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
pub(super) const V6_PEER: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));
pub(super) const V4_ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub(super) const V6_ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
pub(super) const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(233, 252, 0, 1));
pub(super) const NOW: Instant = Instant::from_nanos(1_000_000_000);

pub(super) const CHANNELS: Channels = Channels {
    fragment: ChannelId(100),
    multicast: ChannelId(101),
    time_wait: ChannelId(102),
    icmp: ChannelId(103),
    neighbour: ChannelId(104),
    forward: ChannelId(105),
    closed_port: ChannelId(106),
    other: ChannelId(107),
    malformed: ChannelId(108),
};

/// A host with one address of each family and a broadcast address.
pub(super) fn host(config: &DemuxConfig) -> Demux {
    let mut demux = Demux::new(config, Seed([7, 8])).expect("a valid config");
    for address in [V4, V6] {
        demux.add_local_address(address).expect("room");
    }
    let broadcast = Ipv4Addr::new(192, 0, 2, 255);
    demux.add_broadcast_address(broadcast).expect("room");
    demux
}

pub(super) fn demux() -> Demux {
    host(&DemuxConfig::new(CHANNELS))
}

pub(super) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

pub(super) fn peer_of(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { V4_PEER } else { V6_PEER }
}

/// Kind and channel of a UDP datagram from the peer's port 9.
pub(super) fn udp(demux: &mut Demux, to: SocketAddr) -> (Kind, u32) {
    let frame = frame::udp(at(peer_of(to.ip()), 9), to, b"payload");
    let said = demux.classify(&frame, NOW);
    (said.kind, said.channel.0)
}

/// What a TCP segment from the peer's port 9 is.
pub(super) fn tcp(demux: &mut Demux, to: SocketAddr, flags: TcpFlags, now: Instant) -> Classified {
    let frame = frame::tcp(at(peer_of(to.ip()), 9), to, flags, b"");
    demux.classify(&frame, now)
}

/// One of the four fragments of a datagram from the peer's port 9, 8 bytes each.
pub(super) fn fragment(to: SocketAddr, id: u32, number: u16) -> Vec<u8> {
    let packet = Packet::new(peer_of(to.ip()), to.ip());
    let datagram = packet.udp_datagram(9, to.port(), &[0; 24]);
    let place = Fragment {
        id,
        offset: number * 8,
        more: number < 3,
    };
    let bytes = &datagram[usize::from(place.offset)..][..8];
    packet.fragment(place).protocol(frame::UDP, bytes)
}
