//! Early demultiplexing: whose a packet is, as the core decides it (LRP-11).
//!
//! Packets of the model have no headers, and those of one consumer and kind would
//! all have the same ones as far as the decision goes. So one frame of each is
//! built and classified by [`Demux`] when the machine is made; per packet that
//! answer is looked up, for the price that the profile gives for demultiplexing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use plimsoll_core::demux::{ChannelId, Channels, Demand, Demux, DemuxConfig, Protocol, Seed};
use plimsoll_core::time::Instant;

use crate::Error;
use crate::host::{EndpointRole, Host};
use crate::packet::{Kind, Packet};

/// The host, a peer of it, and somebody whom it forwards to.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const BEYOND: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// Port of the first consumer; the next one has the next port.
const FIRST_PORT: u16 = 1024;
const PEER_PORT: u16 = 40_000;
/// What no consumer is for.
const NOBODY: ChannelId = ChannelId(u32::MAX);
/// Paths to other hosts are told apart by code points, of which there are 64.
const CODE_POINTS: usize = 64;
/// Protocol numbers and flags of TCP.
const UDP: u8 = 17;
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// Ethernet, IPv4 and the longer of the two transport headers.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const TRANSPORT: usize = 20;

/// What the core says of packets of one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    /// The consumer whose channel they go on.
    channel: usize,
    /// They ask a listener for a connection.
    request: bool,
}

/// The answers: by consumer, for connection requests and for everything else.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    requests: Vec<Class>,
    data: Vec<Class>,
}

impl Classes {
    /// Registers the endpoints of `host` and asks for each kind of packet.
    pub(super) fn new(host: &Host) -> Result<Self, Error> {
        let forwarding = |role| !matches!(role, EndpointRole::Datagram | EndpointRole::Tcp);
        let proxies = host.endpoints.iter().filter(|end| forwarding(end.role));
        let proxies = proxies.count();
        if proxies > CODE_POINTS {
            let allowed = "at most 64 consumers without a socket on this path";
            return Err(Error::scenario("consumer", proxies, allowed));
        }
        let mut demux = demux(host)?;
        let mut made = Self {
            requests: Vec::new(),
            data: Vec::new(),
        };
        let mut code_point = 0;
        for (index, endpoint) in host.endpoints.iter().enumerate() {
            let to = SocketAddr::from((HERE, FIRST_PORT + index as u16));
            let channel = ChannelId(index as u32);
            let frames = match endpoint.role {
                EndpointRole::Datagram => {
                    register(demux.bind(Protocol::Udp, to, false, channel));
                    [frame(UDP, to.port(), 0, 0); 2]
                }
                EndpointRole::Tcp => {
                    let peer = SocketAddr::from((PEER, PEER_PORT));
                    register(demux.bind(Protocol::Tcp, to, false, channel));
                    register(demux.connect(Protocol::Tcp, to, peer, channel));
                    let request = frame(TCP, to.port(), SYN, 1);
                    [request, frame(TCP, to.port(), ACK, 0)]
                }
                _ => {
                    demux.set_forward_channel(code_point, channel);
                    code_point += 1;
                    [forwarded(code_point - 1); 2]
                }
            };
            let [request, data] = frames.map(|frame| {
                let found = demux.classify(&frame, Instant::ZERO);
                Class {
                    channel: found.channel.0 as usize,
                    request: found.demand != Demand::Known,
                }
            });
            let asks = endpoint.role == EndpointRole::Tcp;
            assert_eq!((request.channel, request.request), (index, asks));
            assert_eq!((data.channel, data.request), (index, false));
            made.requests.push(request);
            made.data.push(data);
        }
        Ok(made)
    }

    /// The consumer whose channel `packet` goes on, and whether it asks a listener
    /// for a connection.
    #[inline]
    pub(super) fn of(&self, packet: &Packet) -> (usize, bool) {
        let classes = if packet.kind == Kind::Syn {
            &self.requests
        } else {
            &self.data
        };
        let Class { channel, request } = classes[usize::from(packet.to)];
        (channel, request)
    }
}

/// Room for the endpoints of `host`, and its address.
fn demux(host: &Host) -> Result<Demux, Error> {
    let channels = Channels {
        fragment: NOBODY,
        multicast: NOBODY,
        time_wait: NOBODY,
        icmp: NOBODY,
        neighbour: NOBODY,
        forward: NOBODY,
        closed_port: NOBODY,
        other: NOBODY,
        malformed: NOBODY,
    };
    let endpoints = host.endpoints.len().max(1);
    let config = DemuxConfig {
        addresses_max: 1,
        sockets_max: endpoints,
        udp_connections_max: 1,
        tcp_connections_max: endpoints,
        groups_max: 1,
        fragments_max: 1,
        time_wait_max: 1,
        ..DemuxConfig::new(channels)
    };
    let mut made = Demux::new(&config, Seed([1, 2])).map_err(Error::core("the demultiplexer"))?;
    register(made.add_local_address(IpAddr::V4(HERE)));
    Ok(made)
}

/// There is room for all, and no two are alike.
fn register<E: std::fmt::Debug>(result: Result<(), E>) {
    result.expect("addresses and ports are chosen here");
}

type Frame = [u8; ETHERNET + IPV4 + TRANSPORT];

/// An Ethernet frame of IPv4 for `port` of the host, from the peer's port, or with
/// `stranger` from the port after it.
fn frame(protocol: u8, port: u16, flags: u8, stranger: u16) -> Frame {
    let mut frame = ipv4(protocol, HERE);
    let (_, transport) = frame.split_at_mut(ETHERNET + IPV4);
    transport[..2].copy_from_slice(&(PEER_PORT + stranger).to_be_bytes());
    transport[2..4].copy_from_slice(&port.to_be_bytes());
    if protocol == UDP {
        transport[4..6].copy_from_slice(&(TRANSPORT as u16).to_be_bytes());
    } else {
        transport[12] = (TRANSPORT as u8 / 4) << 4;
        transport[13] = flags;
    }
    frame
}

/// A datagram for another host.
fn forwarded(code_point: u8) -> Frame {
    let mut frame = ipv4(UDP, BEYOND);
    frame[ETHERNET + 1] = code_point << 2;
    frame
}

fn ipv4(protocol: u8, destination: Ipv4Addr) -> Frame {
    let mut frame = [0; ETHERNET + IPV4 + TRANSPORT];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let header = &mut frame[ETHERNET..];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((IPV4 + TRANSPORT) as u16).to_be_bytes());
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&PEER.octets());
    header[16..20].copy_from_slice(&destination.octets());
    frame
}
