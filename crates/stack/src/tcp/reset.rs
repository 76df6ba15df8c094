//! Answers to segments that belong to no connection: a reset (RFC 9293, 3.10.7.1),
//! or, for a connection in `TIME_WAIT`, another acknowledgement (3.10.7.4).

use std::net::IpAddr;
use std::sync::Arc;

use plimsoll_core::time::Instant;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    HardwareAddress, IPV6_HEADER_LEN, IpCidr, IpProtocol, Ipv6Packet, TcpControl, TcpPacket,
    TcpRepr, TcpSeqNumber,
};

use super::wire::Wire;
use crate::device::{Capabilities, Frame, HEADROOM_BYTES, Mac, Pool};
use crate::outcome::Outcome;
use crate::wire::packet::{self, Packet, Part};
use crate::wire::{ETHERNET_BYTES, emit};

/// An interface without sockets: whatever it is given, it resets.
pub(crate) struct Resetter {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
}

impl Resetter {
    pub(crate) fn new(pool: &Arc<Pool>, capabilities: &Capabilities) -> Self {
        let mut wire = Wire::new(pool, capabilities);
        let config = Config::new(HardwareAddress::Ip);
        Self {
            interface: Interface::new(config, &mut wire, smoltcp::time::Instant::ZERO),
            sockets: SocketSet::new(Vec::new()),
            wire,
        }
    }

    /// The reset that answers this segment, if it must be answered. Damaged ones must not come here.
    pub(crate) fn reset(
        &mut self,
        mut frame: Frame,
        packet: &Packet,
        now: Instant,
    ) -> Option<Frame> {
        let answerable = crate::wire::datagram::is_answerable(packet);
        if !answerable || packet.part != Part::Whole || packet.protocol != IpProtocol::Tcp {
            return None;
        }
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            // There is room for one.
            let _ = addresses.push(host_cidr(packet.destination));
        });
        keep_network_layer(&mut frame, packet);
        self.wire.inbound = Some(frame);
        let (wire, sockets) = (&mut self.wire, &mut self.sockets);
        self.interface
            .poll_ingress_single(instant(now), wire, sockets);
        self.wire.inbound = None;
        self.wire.outbound.pop_front()
    }
}

/// An address as a network of its own.
pub(super) fn host_cidr(address: IpAddr) -> IpCidr {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    IpCidr::new(address.into(), bits)
}

/// Makes the frame's range its IP packet. IPv6's extension headers are left out: smoltcp takes no segment behind
/// most of them, and answers with an error. Returns where in the packet the segment begins.
pub(super) fn keep_network_layer(frame: &mut Frame, packet: &Packet) -> usize {
    let mut network = packet.network;
    if packet.source.is_ipv6() && packet.payload.start > network + IPV6_HEADER_LEN {
        network = packet.payload.start - IPV6_HEADER_LEN;
        frame.copy_within(packet.network..packet.network + IPV6_HEADER_LEN, network);
        let mut header = Ipv6Packet::new_unchecked(&mut frame[network..]);
        header.set_next_header(packet.protocol);
        header.set_payload_len(packet.payload.len() as u16);
    }
    let start = frame.range().start;
    frame.set_range(start + network..start + packet.payload.end);
    packet.payload.start - network
}

/// Our time as smoltcp's, which counts microseconds.
pub(super) fn instant(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000).cast_signed())
}

/// Acknowledges once more what the peer of a connection in `TIME_WAIT` sent,
/// from that segment alone: the peer acknowledged all that we ever sent, so its
/// acknowledgement is our sequence number.
pub(super) fn acknowledge_again(
    frame: &Frame,
    packet: &Packet,
    mac: Mac,
    pool: &Arc<Pool>,
) -> Option<Frame> {
    let segment = TcpPacket::new_checked(&frame[packet.payload.clone()]).ok()?;
    // A bare acknowledgement is not acknowledged, or two would do so for ever.
    let occupies = segment.segment_len() > 0;
    if segment.rst() || segment.syn() || !occupies {
        return None;
    }
    let answer = TcpRepr {
        control: TcpControl::None,
        seq_number: segment.ack_number(),
        ack_number: Some(segment.seq_number() + segment.segment_len()),
        window_len: 0,
        ..plain(segment.dst_port(), segment.src_port())
    };
    framed(&answer, (packet.destination, packet.source), mac, pool)
}

/// A segment without options and data, of which the rest is to be said.
pub(super) const fn plain(from: u16, to: u16) -> TcpRepr<'static> {
    TcpRepr {
        src_port: from,
        dst_port: to,
        control: TcpControl::None,
        seq_number: TcpSeqNumber(0),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None, None, None],
        timestamp: None,
        payload: &[],
    }
}

/// A segment without data from one address to another, on the link from `mac`; nothing if there
/// is no free frame.
pub(super) fn framed(
    segment: &TcpRepr<'_>,
    ends: (IpAddr, IpAddr),
    mac: Mac,
    pool: &Arc<Pool>,
) -> Option<Frame> {
    let headers = ETHERNET_BYTES + emit::network_bytes(ends.0);
    let mut frame = pool.take()?;
    frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + headers + segment.header_len());
    let mut bytes = TcpPacket::new_unchecked(&mut frame[headers..]);
    let (from, to) = (ends.0.into(), ends.1.into());
    segment.emit(&mut bytes, &from, &to, &ChecksumCapabilities::default());
    emit::write_headers(&mut frame, mac, ends, IpProtocol::Tcp, None);
    Some(frame)
}

/// What a segment for nobody is: a request for a connection, or not.
pub(super) fn is_syn(frame: &Frame, packet: &Packet) -> bool {
    TcpPacket::new_checked(&frame[packet.payload.clone()])
        .is_ok_and(|tcp| tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin())
}

/// Whether a segment brings data, and more may follow. The last one is no such: if only its
/// acknowledgement was lost, a reset would spoil what has ended well. (What is sent again before it,
/// after both sides have closed, is answered by a reset nevertheless: nothing tells it apart.)
pub(super) fn is_data(frame: &Frame, packet: &Packet) -> bool {
    TcpPacket::new_checked(&frame[packet.payload.clone()])
        .is_ok_and(|tcp| !tcp.payload().is_empty() && !tcp.fin() && !tcp.rst())
}

/// Whether a segment is as its sender made it. `verified`: whoever received it knows that it is.
pub(crate) fn is_whole(frame: &Frame, packet: &Packet, verified: bool) -> bool {
    let (from, to) = (packet.source.into(), packet.destination.into());
    TcpPacket::new_checked(&frame[packet.payload.clone()])
        .is_ok_and(|segment| verified || segment.verify_checksum(&from, &to))
}

/// The segment's packet and ports. This is where its checksum is looked at, once.
pub(super) fn parse(frame: &Frame, verified: bool) -> Result<(Packet, u16, u16), Outcome> {
    let packet = packet::parse(frame)?;
    if packet.protocol != IpProtocol::Tcp || packet.part != Part::Whole {
        return Err(Outcome::Other);
    }
    let segment = TcpPacket::new_checked(&frame[packet.payload.clone()]);
    let segment = segment.map_err(|_| Outcome::Malformed)?;
    let (source, destination) = (segment.src_port(), segment.dst_port());
    // smoltcp takes a port of 0 for "any".
    if source == 0 || destination == 0 {
        return Err(Outcome::Malformed);
    }
    if !is_whole(frame, &packet, verified) {
        return Err(Outcome::Checksum);
    }
    Ok((packet, source, destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends that acknowledge bare acknowledgements do so for ever, and a reset that is
    /// acknowledged tells whoever forged it that the connection was there.
    #[test]
    fn only_what_has_data_or_an_end_is_acknowledged_again() {
        let pool = Pool::new(4, 2048).unwrap();
        let (peer, us) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mac = [2, 0, 0, 0, 0, 1];
        let again = |control, payload: &'static [u8]| {
            let segment = TcpRepr {
                control,
                seq_number: TcpSeqNumber(-2),
                ack_number: Some(TcpSeqNumber(77)),
                payload,
                ..plain(5000, 80)
            };
            let headers = ETHERNET_BYTES + emit::network_bytes(us);
            let mut frame = pool.take().unwrap();
            frame.set_range(HEADROOM_BYTES..HEADROOM_BYTES + headers + segment.buffer_len());
            let mut bytes = TcpPacket::new_unchecked(&mut frame[headers..]);
            let checksums = ChecksumCapabilities::default();
            segment.emit(&mut bytes, &peer.into(), &us.into(), &checksums);
            emit::write_headers(&mut frame, mac, (peer, us), IpProtocol::Tcp, None);
            let packet = packet::parse(&frame).unwrap();
            let answer = acknowledge_again(&frame, &packet, mac, &pool)?;
            let (packet, source, destination) = parse(&answer, false).unwrap();
            assert_eq!((packet.source, packet.destination), (us, peer));
            assert_eq!((source, destination), (80, 5000));
            let answer = TcpPacket::new_checked(&answer[packet.payload]).unwrap();
            assert!(answer.ack() && !answer.syn() && !answer.fin() && !answer.rst());
            Some((answer.seq_number().0, answer.ack_number().0))
        };
        assert_eq!(again(TcpControl::Fin, b""), Some((77, -1)));
        assert_eq!(again(TcpControl::Psh, b"abc"), Some((77, 1)));
        assert_eq!(again(TcpControl::Fin, b"abc"), Some((77, 2)));
        for control in [TcpControl::None, TcpControl::Rst, TcpControl::Syn] {
            assert_eq!(again(control, b""), None, "{control:?}");
        }
        assert_eq!(again(TcpControl::Rst, b"abc"), None);
        assert_eq!(again(TcpControl::Syn, b"abc"), None);
    }
}
