//! What the headers of a frame say, read with etherparse.

use std::net::IpAddr;

use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpAuthHeaderSlice, IpNumber, Ipv4HeaderSlice,
    Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, Ipv6RawExtHeaderSlice, SingleVlanHeaderSlice,
};
use plimsoll_core::demux::Kind;

/// How far into a datagram a packet's payload begins.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Whole,
    First(u32),
    Later(u32),
}

impl Part {
    fn new(offset: u16, more: bool, id: u32) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First(id),
            _ => Self::Later(id),
        }
    }
}

/// An IP packet: everything that its headers say.
pub(super) struct Packet<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) dscp: u8,
    pub(super) part: Part,
    pub(super) protocol: IpNumber,
    pub(super) payload: &'a [u8],
}

pub(super) fn ethernet(frame: &[u8]) -> Result<(EtherType, &[u8]), Kind> {
    let header = Ethernet2HeaderSlice::from_slice(frame).map_err(|_| Kind::Malformed)?;
    let mut ethertype = header.ether_type();
    let mut payload = &frame[14..];
    for _ in 0..2 {
        if ![0x8100, 0x88a8].contains(&ethertype.0) {
            break;
        }
        let tag = SingleVlanHeaderSlice::from_slice(payload).map_err(|_| Kind::Malformed)?;
        ethertype = tag.ether_type();
        payload = &payload[4..];
    }
    Ok((ethertype, payload))
}

pub(super) fn ipv4(bytes: &[u8]) -> Result<Packet<'_>, Kind> {
    let header = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| Kind::Malformed)?;
    let total = usize::from(header.total_len());
    let payload = bytes
        .get(header.slice().len()..total)
        .ok_or(Kind::Malformed)?;
    let offset = header.fragments_offset().value();
    let id = u32::from(header.identification());
    Ok(Packet {
        source: header.source_addr().into(),
        destination: header.destination_addr().into(),
        dscp: header.dcp().value(),
        part: Part::new(offset, header.more_fragments(), id),
        protocol: header.protocol(),
        payload,
    })
}

pub(super) fn ipv6(bytes: &[u8]) -> Result<Packet<'_>, Kind> {
    let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| Kind::Malformed)?;
    let end = 40 + usize::from(header.payload_length());
    Ok(Packet {
        source: header.source_addr().into(),
        destination: header.destination_addr().into(),
        dscp: header.traffic_class() >> 2,
        part: Part::Whole,
        protocol: header.next_header(),
        payload: bytes.get(40..end).ok_or(Kind::Malformed)?,
    })
}

pub(super) fn extensions(mut packet: Packet<'_>) -> Result<Packet<'_>, Kind> {
    if packet.payload.is_empty() {
        return Err(Kind::Other);
    }
    let mut walked = Vec::new();
    loop {
        match packet.protocol.0 {
            50 | 59 => return Err(Kind::Other),
            0 | 43 | 44 | 51 | 60 => {}
            _ => return Ok(packet),
        }
        if walked.len() == 8 {
            return Err(Kind::Other);
        }
        let (next, bytes) = extension(&mut packet)?;
        if packet.protocol.0 == 44 && walked.contains(&44) {
            return Err(Kind::Other);
        }
        walked.push(packet.protocol.0);
        packet.protocol = next;
        packet.payload = &packet.payload[bytes..];
        if let Part::Later(_) = packet.part {
            return Ok(packet);
        }
    }
}

/// What follows the header at the front of the payload, and its length.
fn extension(packet: &mut Packet<'_>) -> Result<(IpNumber, usize), Kind> {
    let payload = packet.payload;
    match packet.protocol {
        IpNumber::AUTHENTICATION_HEADER => {
            let header = IpAuthHeaderSlice::from_slice(payload).map_err(|_| Kind::Malformed)?;
            Ok((header.next_header(), header.slice().len()))
        }
        IpNumber::IPV6_FRAGMENTATION_HEADER => {
            let header = Ipv6FragmentHeaderSlice::from_slice(payload);
            let header = header.map_err(|_| Kind::Malformed)?;
            let offset = header.fragment_offset().value();
            packet.part = Part::new(offset, header.more_fragments(), header.identification());
            Ok((header.next_header(), 8))
        }
        _ => {
            let header = Ipv6RawExtHeaderSlice::from_slice(payload);
            let header = header.map_err(|_| Kind::Malformed)?;
            let segments_left = header.payload()[1];
            if packet.protocol == IpNumber::IPV6_ROUTE_HEADER && segments_left > 0 {
                return Err(Kind::Other);
            }
            Ok((header.next_header(), header.slice().len()))
        }
    }
}
