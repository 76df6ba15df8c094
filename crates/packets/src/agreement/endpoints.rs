//! The life of a host: its endpoints come and go, with packets between.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use arbitrary::Arbitrary;
use plimsoll_core::demux::{ChannelId, Demux, DemuxConfig, Protocol};
use plimsoll_core::time::Instant;

use super::{Pair, small};
use crate::frame::{self, Fragment, Packet, TcpFlags};
use crate::model::Model;

/// One step in the life of a host: a change of its endpoints, or a packet.
/// All numbers are taken modulo what there is to choose from.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum HostStep {
    /// Another unicast address (true) or broadcast address.
    AddAddress(u8, bool),
    /// One address less.
    RemoveAddress(u8),
    /// A socket is bound.
    Bind(Proto, Place, bool),
    /// It is closed.
    Unbind(Proto, Place),
    /// A listener's backlog fills or drains.
    Backlog(Place, bool),
    /// A connection comes to be.
    Connect(Proto, Pair4),
    /// It goes.
    Disconnect(Proto, Pair4),
    /// It goes by way of TIME_WAIT.
    TimeWait(Pair4),
    /// A group is joined.
    Join(Place),
    /// A group is left.
    Leave(Place),
    /// A class of forwarded packets gets a channel.
    Forward(u8),
    /// Seconds go by.
    Wait(u8),
    /// A packet comes in; a class, and flags if it is TCP.
    Packet(Proto, Pair4, u8, Flags),
    /// A fragment of a UDP datagram comes in: identification, and which of three.
    Fragment(Pair4, u8, u8),
}

/// UDP or TCP.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Proto {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl From<Proto> for Protocol {
    fn from(proto: Proto) -> Self {
        match proto {
            Proto::Udp => Self::Udp,
            Proto::Tcp => Self::Tcp,
        }
    }
}

/// One of few addresses, and one of few ports.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Place(u8, u8);

/// Two places of one family: the host's, and the other end's.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Pair4(Place, Place);

/// TCP flags.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Flags(u8);

const V4: [Ipv4Addr; 6] = [
    Ipv4Addr::UNSPECIFIED,
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 0, 2, 2),
    Ipv4Addr::new(192, 0, 2, 255),
    Ipv4Addr::new(233, 252, 0, 1),
    Ipv4Addr::BROADCAST,
];

const V6: [Ipv6Addr; 6] = [
    Ipv6Addr::UNSPECIFIED,
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3),
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xdb8, 1),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
];

fn address(number: u8) -> IpAddr {
    let place = usize::from(number) / 2 % V4.len();
    if number.is_multiple_of(2) {
        V4[place].into()
    } else {
        V6[place].into()
    }
}

impl Place {
    fn socket(self) -> SocketAddr {
        SocketAddr::new(address(self.0), 1 + u16::from(self.1 % 2))
    }
}

impl Pair4 {
    fn ends(self) -> (SocketAddr, SocketAddr) {
        let remote = Place(self.1.0 & !1 | self.0.0 & 1, self.1.1);
        (self.0.socket(), remote.socket())
    }
}

impl Flags {
    fn tcp(self) -> TcpFlags {
        TcpFlags {
            syn: self.0 & 1 != 0,
            ack: self.0 & 2 != 0,
            fin: self.0 & 4 != 0,
            rst: self.0 & 8 != 0,
        }
    }
}

/// Every limit is soon reached.
fn tiny() -> DemuxConfig {
    DemuxConfig {
        addresses_max: 3,
        sockets_max: 3,
        udp_connections_max: 3,
        tcp_connections_max: 3,
        groups_max: 2,
        ..small()
    }
}

/// Lives through `steps`, from a host that has two addresses.
///
/// # Panics
///
/// If demultiplexer and model ever answer differently.
pub fn check_host(steps: &[HostStep]) {
    let mut pair = Pair::new(&tiny());
    let mut now = Instant::ZERO;
    pair.step(&HostStep::AddAddress(2, true), ChannelId(0), &mut now);
    pair.step(&HostStep::AddAddress(3, true), ChannelId(0), &mut now);
    for (number, step) in (0..).zip(steps) {
        pair.step(step, ChannelId(number), &mut now);
    }
}

impl Pair {
    fn step(&mut self, step: &HostStep, channel: ChannelId, now: &mut Instant) {
        match *step {
            HostStep::Wait(seconds) => *now += Duration::from_secs(u64::from(seconds)),
            HostStep::Packet(protocol, ends, class, flags) => {
                self.packet(protocol, ends, class, flags, *now);
            }
            HostStep::Fragment(ends, id, number) => self.fragment(ends, id, number, *now),
            _ => self.change(step, channel, *now),
        }
    }

    fn packet(&mut self, protocol: Proto, ends: Pair4, class: u8, flags: Flags, now: Instant) {
        let (local, remote) = ends.ends();
        let packet = Packet::new(remote.ip(), local.ip()).traffic_class(class);
        let frame = match protocol {
            Proto::Udp => packet.udp(remote.port(), local.port(), b"x"),
            Proto::Tcp => packet.tcp(remote.port(), local.port(), flags.tcp(), b"x"),
        };
        let _ = self.classify(&frame, now);
    }

    fn fragment(&mut self, ends: Pair4, id: u8, number: u8, now: Instant) {
        let (local, remote) = ends.ends();
        let packet = Packet::new(remote.ip(), local.ip());
        let datagram = packet.udp_datagram(remote.port(), local.port(), &[0; 16]);
        let place = Fragment {
            id: u32::from(id % 12),
            offset: u16::from(number % 3) * 8,
            more: number % 3 < 2,
        };
        let bytes = &datagram[usize::from(place.offset)..][..8];
        let _ = self.classify(&packet.fragment(place).protocol(frame::UDP, bytes), now);
    }

    fn change(&mut self, step: &HostStep, channel: ChannelId, now: Instant) {
        let Self { demux, model } = self;
        match *step {
            HostStep::AddAddress(number, local) => add_address(demux, model, number, local),
            HostStep::RemoveAddress(number) => {
                let removed = demux.remove_address(address(number));
                assert_eq!(removed, model.remove_address(address(number)));
            }
            HostStep::Bind(protocol, place, dual_stack) => {
                let (protocol, at) = (protocol.into(), place.socket());
                let dual_stack = dual_stack && at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                if suitable(at) || at.ip().is_unspecified() {
                    let real = demux.bind(protocol, at, dual_stack, channel);
                    assert_eq!(real, model.bind(protocol, at, dual_stack, channel));
                }
            }
            HostStep::Unbind(protocol, place) => {
                let (protocol, at) = (protocol.into(), place.socket());
                assert_eq!(demux.unbind(protocol, at), model.unbind(protocol, at));
            }
            HostStep::Backlog(place, beyond) => {
                let real = demux.set_beyond_backlog(place.socket(), beyond);
                assert_eq!(real, model.set_beyond_backlog(place.socket(), beyond));
            }
            HostStep::Connect(protocol, ends) => {
                let (local, remote) = ends.ends();
                if suitable(local) && suitable(remote) {
                    let protocol = protocol.into();
                    let real = demux.connect(protocol, local, remote, channel);
                    assert_eq!(real, model.connect(protocol, local, remote, channel));
                }
            }
            HostStep::Disconnect(protocol, ends) => {
                let (local, remote) = ends.ends();
                let real = demux.disconnect(protocol.into(), local, remote);
                assert_eq!(real, model.disconnect(protocol.into(), local, remote));
            }
            HostStep::TimeWait(ends) => {
                let (local, remote) = ends.ends();
                let real = demux.enter_time_wait(local, remote, now);
                assert_eq!(real, model.enter_time_wait(local, remote, now));
            }
            HostStep::Join(place) => {
                let real = demux.join(place.socket(), channel);
                assert_eq!(real, model.join(place.socket(), channel));
            }
            HostStep::Leave(place) => {
                assert_eq!(demux.leave(place.socket()), model.leave(place.socket()));
            }
            HostStep::Forward(dscp) => {
                demux.set_forward_channel(dscp, channel);
                model.set_forward_channel(dscp, channel);
            }
            HostStep::Wait(_) | HostStep::Packet(..) | HostStep::Fragment(..) => {
                unreachable!("not a change")
            }
        }
    }
}

fn add_address(demux: &mut Demux, model: &mut Model, number: u8, local: bool) {
    let address = address(number);
    if !suitable(SocketAddr::new(address, 1)) {
        return;
    }
    match address {
        IpAddr::V4(broadcast) if !local => {
            let real = demux.add_broadcast_address(broadcast);
            assert_eq!(real, model.add_address(address, false));
        }
        _ => {
            let real = demux.add_local_address(address);
            assert_eq!(real, model.add_address(address, true));
        }
    }
}

fn suitable(at: SocketAddr) -> bool {
    let address = at.ip();
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !address.is_unspecified() && !address.is_multicast() && !broadcast
}
