//! Builds Ethernet frames layer by layer; etherparse writes the headers.
//!
//! [`Packet`] starts with two addresses, takes what is to stand between them
//! and the payload (VLAN tags, IPv4 options, IPv6 extension headers, a
//! fragment's place), and ends in a call that gives the payload and returns
//! the frame. Lengths and checksums are right; to break them, change bytes of
//! the result.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::{
    Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpAuthHeader, IpFragOffset, IpNumber,
    Ipv4Header, Ipv4Options, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, TcpHeader,
    UdpHeader,
};

/// Length of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// The customer VLAN tag (IEEE 802.1Q).
pub const VLAN: u16 = 0x8100;
/// The service VLAN tag (IEEE 802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const FRAGMENT_HEADER: u8 = 44;

/// An IPv6 extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Hop-by-hop options (0), routing (43) or destination options (60), of
    /// `units` times 8 bytes after the first 8.
    Options {
        /// The header's protocol number.
        number: u8,
        /// The header's length field.
        units: u8,
    },
    /// An authentication header (51) with an integrity check value of `words`
    /// times 4 bytes.
    Authentication {
        /// Length of the integrity check value in words of 4 bytes.
        words: u8,
    },
    /// A fragment header (44).
    Fragment(Fragment),
}

/// A fragment's place in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram's identification; IPv4 has 16 bits for it.
    pub id: u32,
    /// Where this fragment's payload begins, in bytes: a multiple of 8.
    pub offset: u16,
    /// Whether fragments follow.
    pub more: bool,
}

/// The flags of a TCP segment that classification looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags {
    /// Synchronize: asks for a connection.
    pub syn: bool,
    /// The acknowledgement number counts.
    pub ack: bool,
    /// The sender is done.
    pub fin: bool,
    /// The connection is reset.
    pub rst: bool,
}

impl TcpFlags {
    /// A request for a connection.
    pub const SYN: Self = Self::bits(true, false, false, false);
    /// The answer to a request.
    pub const SYN_ACK: Self = Self::bits(true, true, false, false);
    /// Data or an acknowledgement.
    pub const ACK: Self = Self::bits(false, true, false, false);
    /// The end of a stream.
    pub const FIN_ACK: Self = Self::bits(false, true, true, false);
    /// A reset.
    pub const RST: Self = Self::bits(false, false, false, true);

    const fn bits(syn: bool, ack: bool, fin: bool, rst: bool) -> Self {
        Self { syn, ack, fin, rst }
    }
}

/// A packet in the making.
#[derive(Clone, Debug)]
pub struct Packet {
    source: IpAddr,
    destination: IpAddr,
    macs: [u8; 12],
    tags: Vec<u16>,
    traffic_class: u8,
    ipv4_options: Vec<u8>,
    ipv4_fragment: Option<Fragment>,
    extensions: Vec<Extension>,
    padding: usize,
    sequence: u32,
    acknowledgement: u32,
}

impl Packet {
    /// A packet from `source` to `destination`.
    ///
    /// # Panics
    ///
    /// If the two are of different families.
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "one family");
        Self {
            source,
            destination,
            macs: [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1],
            tags: Vec::new(),
            traffic_class: 0,
            ipv4_options: Vec::new(),
            ipv4_fragment: None,
            extensions: Vec::new(),
            padding: 0,
            sequence: 1,
            acknowledgement: 0,
        }
    }

    /// Sets the Ethernet addresses; without this, two locally administered ones.
    #[must_use]
    pub fn macs(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        self.macs[..6].copy_from_slice(&destination);
        self.macs[6..].copy_from_slice(&source);
        self
    }

    /// Adds a VLAN tag inside the tags so far; `ethertype` is [`VLAN`] or
    /// [`SERVICE_VLAN`]. The VLAN id is 5.
    #[must_use]
    pub fn tag(mut self, ethertype: u16) -> Self {
        self.tags.push(ethertype);
        self
    }

    /// Sets the IPv4 type of service or IPv6 traffic class.
    #[must_use]
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Adds `words` times 4 bytes of IPv4 options, at most 10 words.
    #[must_use]
    pub fn ipv4_options(mut self, words: u8) -> Self {
        // "No operation", which needs no length.
        self.ipv4_options = vec![1; usize::from(words) * 4];
        self
    }

    /// Adds an IPv6 extension header after those so far.
    #[must_use]
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// Makes it a fragment: in IPv4 by the header's fields, in IPv6 by a
    /// fragment header after the extension headers so far.
    #[must_use]
    pub fn fragment(mut self, fragment: Fragment) -> Self {
        match self.source {
            IpAddr::V4(_) => self.ipv4_fragment = Some(fragment),
            IpAddr::V6(_) => self.extensions.push(Extension::Fragment(fragment)),
        }
        self
    }

    /// Adds `bytes` of Ethernet padding after the IP packet.
    #[must_use]
    pub fn padding(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self
    }

    /// Sets the sequence and acknowledgement numbers of a TCP segment; without this, 1 and 0.
    #[must_use]
    pub fn numbers(mut self, sequence: u32, acknowledgement: u32) -> Self {
        self.sequence = sequence;
        self.acknowledgement = acknowledgement;
        self
    }

    /// The frame with a UDP datagram.
    #[must_use]
    pub fn udp(&self, source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
        self.protocol(
            UDP,
            &self.udp_datagram(source_port, destination_port, payload),
        )
    }

    /// The frame with a TCP segment.
    #[must_use]
    pub fn tcp(
        &self,
        source_port: u16,
        destination_port: u16,
        flags: TcpFlags,
        payload: &[u8],
    ) -> Vec<u8> {
        self.protocol(
            TCP,
            &self.tcp_segment(source_port, destination_port, flags, payload),
        )
    }

    /// The frame with an ICMP or ICMPv6 message of type `kind`: 4 zero bytes
    /// after code and checksum, then `payload`.
    ///
    /// # Panics
    ///
    /// If `payload` does not fit an IPv6 packet.
    #[must_use]
    pub fn icmp(&self, kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        match (self.source, self.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let kind = Icmpv6Type::Unknown {
                    type_u8: kind,
                    code_u8: 0,
                    bytes5to8: [0; 4],
                };
                let header = Icmpv6Header::with_checksum(
                    kind,
                    source.octets(),
                    destination.octets(),
                    payload,
                );
                message.extend_from_slice(&header.expect("a payload that fits").to_bytes());
            }
            _ => {
                let kind = Icmpv4Type::Unknown {
                    type_u8: kind,
                    code_u8: 0,
                    bytes5to8: [0; 4],
                };
                message.extend_from_slice(&Icmpv4Header::with_checksum(kind, payload).to_bytes());
            }
        }
        message.extend_from_slice(payload);
        let number = if self.source.is_ipv4() { ICMP } else { ICMPV6 };
        self.protocol(number, &message)
    }

    /// The frame with `payload` under protocol `number`.
    #[must_use]
    pub fn protocol(&self, number: u8, payload: &[u8]) -> Vec<u8> {
        let (ethertype, packet) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (IPV4, self.ipv4(source, destination, number, payload))
            }
            _ => (IPV6, self.ipv6(number, payload)),
        };
        ethernet(&self.macs, &self.tags, ethertype, &packet, self.padding)
    }

    /// A whole UDP datagram between the two addresses, to be sent as it is or
    /// cut into fragments.
    ///
    /// # Panics
    ///
    /// If `payload` does not fit a datagram.
    #[must_use]
    pub fn udp_datagram(&self, source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
        let header = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => UdpHeader::with_ipv4_checksum(
                source_port,
                destination_port,
                &self.ipv4_header(source, destination, UDP, 0),
                payload,
            ),
            _ => UdpHeader::with_ipv6_checksum(
                source_port,
                destination_port,
                &self.ipv6_header(UDP, 0),
                payload,
            ),
        };
        let mut datagram = header.expect("a payload that fits").to_bytes().to_vec();
        datagram.extend_from_slice(payload);
        datagram
    }

    /// A whole TCP segment between the two addresses.
    ///
    /// # Panics
    ///
    /// If `payload` does not fit an IPv4 packet.
    #[must_use]
    pub fn tcp_segment(
        &self,
        source_port: u16,
        destination_port: u16,
        flags: TcpFlags,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut header = TcpHeader::new(source_port, destination_port, self.sequence, 65_535);
        header.acknowledgment_number = self.acknowledgement;
        header.syn = flags.syn;
        header.ack = flags.ack;
        header.fin = flags.fin;
        header.rst = flags.rst;
        header.checksum = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = self.ipv4_header(source, destination, TCP, 0);
                header.calc_checksum_ipv4(&ip, payload)
            }
            _ => header.calc_checksum_ipv6(&self.ipv6_header(TCP, 0), payload),
        }
        .expect("a payload that fits");
        let mut segment = header.to_bytes().to_vec();
        segment.extend_from_slice(payload);
        segment
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr, number: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = self.ipv4_header(source, destination, number, payload.len());
        header.header_checksum = header.calc_header_checksum();
        let mut packet = header.to_bytes().to_vec();
        packet.extend_from_slice(payload);
        packet
    }

    fn ipv4_header(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        number: u8,
        payload_bytes: usize,
    ) -> Ipv4Header {
        let mut header = Ipv4Header {
            dscp: (self.traffic_class >> 2).try_into().expect("6 bits"),
            ecn: (self.traffic_class & 3).try_into().expect("2 bits"),
            identification: 7,
            time_to_live: 64,
            protocol: IpNumber(number),
            source: source.octets(),
            destination: destination.octets(),
            options: Ipv4Options::try_from(&self.ipv4_options[..]).expect("at most 10 words"),
            ..Ipv4Header::default()
        };
        if let Some(fragment) = self.ipv4_fragment {
            header.identification = fragment.id.try_into().expect("16 bits");
            header.fragment_offset = offset(fragment);
            header.more_fragments = fragment.more;
            header.dont_fragment = false;
        }
        header
            .set_payload_len(payload_bytes)
            .expect("a payload that fits");
        header
    }

    fn ipv6(&self, number: u8, payload: &[u8]) -> Vec<u8> {
        let mut extensions = Vec::new();
        for (i, extension) in self.extensions.iter().enumerate() {
            let next = self.extensions.get(i + 1).map_or(number, extension_number);
            extensions.extend(extension_bytes(*extension, next));
        }
        let first = self.extensions.first().map_or(number, extension_number);
        let header = self.ipv6_header(first, extensions.len() + payload.len());
        let mut packet = header.to_bytes().to_vec();
        packet.extend(extensions);
        packet.extend_from_slice(payload);
        packet
    }

    fn ipv6_header(&self, next_header: u8, payload_bytes: usize) -> Ipv6Header {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (self.source, self.destination) else {
            unreachable!("one family, and not IPv4");
        };
        Ipv6Header {
            traffic_class: self.traffic_class,
            payload_length: payload_bytes.try_into().expect("a payload that fits"),
            next_header: IpNumber(next_header),
            hop_limit: 64,
            source: source.octets(),
            destination: destination.octets(),
            ..Ipv6Header::default()
        }
    }
}

/// A UDP frame without tags, options or extension headers.
#[must_use]
pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    Packet::new(source.ip(), destination.ip()).udp(source.port(), destination.port(), payload)
}

/// A TCP frame without tags, options or extension headers.
#[must_use]
pub fn tcp(
    source: SocketAddr,
    destination: SocketAddr,
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    Packet::new(source.ip(), destination.ip()).tcp(
        source.port(),
        destination.port(),
        flags,
        payload,
    )
}

/// An ARP request of `source` for `wanted`, under `tags` VLAN tags.
#[must_use]
pub fn arp(source: Ipv4Addr, wanted: Ipv4Addr, tags: usize) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1];
    packet.extend(source.octets());
    packet.extend([0; 6]);
    packet.extend(wanted.octets());
    let macs = [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1];
    ethernet(&macs, &vec![VLAN; tags], ARP, &packet, 0)
}

/// A frame of any `ethertype` under the given VLAN tags.
#[must_use]
pub fn ethertype(tags: &[u16], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    ethernet(&[2; 12], tags, ethertype, payload, 0)
}

fn ethernet(
    macs: &[u8; 12],
    tags: &[u16],
    ethertype: u16,
    packet: &[u8],
    padding: usize,
) -> Vec<u8> {
    let mut frame = macs.to_vec();
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 5]);
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend_from_slice(packet);
    frame.resize(frame.len() + padding, 0);
    frame
}

fn extension_number(extension: &Extension) -> u8 {
    match extension {
        Extension::Options { number, .. } => *number,
        Extension::Authentication { .. } => 51,
        Extension::Fragment(_) => FRAGMENT_HEADER,
    }
}

fn extension_bytes(extension: Extension, next: u8) -> Vec<u8> {
    let next = IpNumber(next);
    match extension {
        Extension::Options { units, .. } => {
            let payload = vec![0; usize::from(units) * 8 + 6];
            let header = Ipv6RawExtHeader::new_raw(next, &payload);
            header.expect("a multiple of 8").to_bytes().to_vec()
        }
        Extension::Authentication { words } => {
            let value = vec![0; usize::from(words) * 4];
            let header = IpAuthHeader::new(next, 1, 1, &value);
            header.expect("at most 254 words").to_bytes().to_vec()
        }
        Extension::Fragment(fragment) => {
            Ipv6FragmentHeader::new(next, offset(fragment), fragment.more, fragment.id)
                .to_bytes()
                .to_vec()
        }
    }
}

fn offset(fragment: Fragment) -> IpFragOffset {
    assert_eq!(fragment.offset % 8, 0, "fragments begin at multiples of 8");
    (fragment.offset / 8).try_into().expect("13 bits")
}
