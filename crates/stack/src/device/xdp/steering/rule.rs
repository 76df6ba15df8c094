//! Where a frame belongs, as plainly as can be: the rule of steer.bpf.c, written apart from it.
//!
//! It looks into lists and slices. With the program it shares the meaning alone, no code and no
//! layout.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plimsoll_core::demux::Protocol;

/// What a stack has told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Its addresses, and which it does not share with the kernel.
    pub addresses: Vec<(IpAddr, bool)>,
    /// Bound ports, at one address or at any.
    pub endpoints: Vec<(Protocol, SocketAddr, Bound)>,
    /// TCP connections with channels: here and there. The place is the channel's number.
    pub connections: Vec<(SocketAddr, SocketAddr)>,
    /// Each TCP connection has a channel.
    pub all_channels: bool,
    /// 0: none.
    pub vlan: u16,
}

/// Who is at an endpoint.
#[derive(Clone, Debug)]
pub enum Bound {
    /// A socket with this number; 0 is the main one.
    Socket(u32),
    /// One of these, by a hash of the flow.
    Group(Vec<u32>),
    /// A listener. The stack judges what is for it, unless all connections have channels.
    Listener {
        /// It takes no connections now.
        is_full: bool,
    },
}

/// Where a frame belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// To the kernel.
    Kernel,
    /// To the main socket.
    Main,
    /// To one of these sockets.
    Endpoint(Vec<u32>),
    /// To this connection's channel, and by the main socket.
    Channel(u32),
    /// It is for nobody: to the main socket, as many as may be answered.
    Nobody,
    /// Away: its listener's backlog is full.
    BeyondBacklog,
}

/// Of a packet.
struct Packet<'a> {
    to: IpAddr,
    from: IpAddr,
    protocol: u8,
    /// What follows the network header; nothing of a fragment.
    content: Option<&'a [u8]>,
}

impl Told {
    /// Where `frame` belongs.
    #[must_use]
    pub fn decide(&self, frame: &[u8]) -> To {
        self.network(frame).unwrap_or(To::Kernel)
    }

    /// `None`: it is too short to tell, or nothing that a stack knows.
    fn network(&self, frame: &[u8]) -> Option<To> {
        let ethertype = |at: usize| number(frame, at);
        let (ethertype, content) = match self.vlan {
            0 => (ethertype(12)?, &frame[14..]),
            vlan if ethertype(12)? == 0x8100 && number(frame, 14)? & 0xfff == vlan => {
                (ethertype(16)?, &frame[18..])
            }
            _ => return None,
        };
        match ethertype {
            0x0806 if content.len() >= 28 => Some(self.owner(ipv4(content, 24)?.into())),
            0x0800 => self.packet(&ipv4_packet(content)?),
            0x86dd => self.packet(&ipv6_packet(content)?),
            _ => None,
        }
    }

    fn packet(&self, packet: &Packet<'_>) -> Option<To> {
        if matches!(packet.to, IpAddr::V6(to) if to.to_ipv4_mapped().is_some()) {
            return None;
        }
        let owner = self.owner(packet.to);
        let Some(content) = packet.content else {
            return Some(owner);
        };
        let to = match (packet.protocol, packet.to) {
            (1, IpAddr::V4(_)) => self.icmp(packet.to, content),
            (58, IpAddr::V6(_)) => self.icmpv6(packet.to, content),
            (protocol, _) => {
                transport(protocol).and_then(|protocol| self.ports(packet, protocol, content))
            }
        };
        Some(to.unwrap_or(owner))
    }

    /// `None`: without ports in the frame.
    fn ports(&self, packet: &Packet<'_>, protocol: Protocol, content: &[u8]) -> Option<To> {
        let from = SocketAddr::new(packet.from, number(content, 0)?);
        let to = SocketAddr::new(packet.to, number(content, 2)?);
        if protocol == Protocol::Tcp {
            let same = |ends: &(SocketAddr, SocketAddr)| *ends == (to, from);
            if let Some(channel) = self.connections.iter().position(same) {
                return Some(To::Channel(channel as u32));
            }
        }
        let flags = content.get(13).filter(|_| content.len() >= 20);
        let begins = flags.is_some_and(|flags| flags & 0x12 == 0x02);
        Some(match self.bound(protocol, to) {
            Some(Bound::Socket(0)) => To::Main,
            Some(Bound::Socket(number)) => To::Endpoint(vec![*number]),
            Some(Bound::Group(numbers)) => To::Endpoint(numbers.clone()),
            Some(Bound::Listener { .. }) if !self.all_channels => To::Main,
            Some(Bound::Listener { .. }) if !begins => To::Nobody,
            Some(Bound::Listener { is_full: true }) => To::BeyondBacklog,
            Some(Bound::Listener { is_full: false }) => To::Main,
            None if !self.owns(to.ip()) => To::Kernel,
            None if protocol == Protocol::Udp || self.all_channels || begins => To::Nobody,
            None => To::Main,
        })
    }

    fn icmp(&self, to: IpAddr, content: &[u8]) -> Option<To> {
        let quoted = content.get(8..)?;
        let header_bytes = usize::from(quoted.first()? & 0xf) * 4;
        if content[0] != 3 || header_bytes < 20 || quoted.len() < 20 {
            return None;
        }
        self.trouble(to, quoted[9], quoted.get(header_bytes..)?)
    }

    fn icmpv6(&self, to: IpAddr, content: &[u8]) -> Option<To> {
        let quoted = content.get(8..)?;
        match content[0] {
            1 | 2 if quoted.len() >= 40 => self.trouble(to, quoted[6], &quoted[40..]),
            135 => Some(self.owner(ipv6(quoted, 0)?)),
            _ => None,
        }
    }

    /// An error about what `address` sent.
    fn trouble(&self, address: IpAddr, protocol: u8, quoted: &[u8]) -> Option<To> {
        let protocol = transport(protocol).filter(|_| quoted.len() >= 4)?;
        let sender = SocketAddr::new(address, number(quoted, 0)?);
        let is_ours = self.bound(protocol, sender).is_some() || self.owns(address);
        Some(if is_ours { To::Main } else { To::Kernel })
    }

    fn owner(&self, address: IpAddr) -> To {
        if self.owns(address) {
            To::Main
        } else {
            To::Kernel
        }
    }

    fn owns(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.addresses.contains(&(address, true))
    }

    fn bound(&self, protocol: Protocol, to: SocketAddr) -> Option<&Bound> {
        let of = |at: IpAddr| {
            let at = SocketAddr::new(at, to.port());
            let mut all = self.endpoints.iter();
            all.find(|endpoint| (endpoint.0, endpoint.1) == (protocol, at))
                .map(|endpoint| &endpoint.2)
        };
        let is_ours = self.addresses.iter().any(|known| known.0 == to.ip());
        let any_v4 = || of(Ipv4Addr::UNSPECIFIED.into()).filter(|_| to.is_ipv4());
        let any = || any_v4().or_else(|| of(Ipv6Addr::UNSPECIFIED.into()));
        of(to.ip()).or_else(|| is_ours.then(any).flatten())
    }
}

fn transport(protocol: u8) -> Option<Protocol> {
    match protocol {
        6 => Some(Protocol::Tcp),
        17 => Some(Protocol::Udp),
        _ => None,
    }
}

fn ipv4_packet(header: &[u8]) -> Option<Packet<'_>> {
    let header_bytes = usize::from(header.first()? & 0xf) * 4;
    let (to, from) = (ipv4(header, 16)?, ipv4(header, 12)?);
    let is_fragment = number(header, 6)? & 0x3fff != 0;
    (header_bytes >= 20).then(|| Packet {
        to: to.into(),
        from: from.into(),
        protocol: header[9],
        content: header.get(header_bytes..).filter(|_| !is_fragment),
    })
}

fn ipv6_packet(header: &[u8]) -> Option<Packet<'_>> {
    Some(Packet {
        to: ipv6(header, 24)?,
        from: ipv6(header, 8)?,
        protocol: header[6],
        content: header.get(40..),
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn ipv4(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(bytes.into())
}

fn ipv6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let bytes: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(IpAddr::from(bytes))
}
