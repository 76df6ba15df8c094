//! Segments of TCP that are cut into several, as an adapter does with segmentation offload, and
//! checksums of theirs that were left to one.

use smoltcp::wire::{IpAddress, IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket};

use super::ETHERNET_BYTES;
use super::packet::{self, Part};

/// A segment that is longer than packets may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Long {
    /// Bytes in front of the payload, which each piece has.
    headers: usize,
    /// Bytes of the payload in each piece but the last.
    step: usize,
    /// Bytes of the whole payload.
    whole: usize,
}

impl Long {
    /// Of a frame that is to be cut into packets of at most `mtu` bytes. Nothing if it is no
    /// segment, or there is no room for any payload.
    pub(crate) fn of(frame: &[u8], mtu: usize) -> Option<Self> {
        let headers = headers_bytes(frame)?;
        let step = (ETHERNET_BYTES + mtu).checked_sub(headers)?;
        let whole = frame.len() - headers;
        (step > 0 && whole > 0).then_some(Self {
            headers,
            step,
            whole,
        })
    }

    /// How many it becomes.
    pub(crate) fn pieces(&self) -> usize {
        self.whole.div_ceil(self.step)
    }

    /// Bytes of the frame with this piece.
    pub(crate) fn bytes_of(&self, piece: usize) -> usize {
        self.headers + self.step.min(self.whole - piece * self.step)
    }

    /// Makes `to`, as long as [`bytes_of`](Self::bytes_of) says, a piece of `frame`.
    pub(crate) fn write(&self, frame: &[u8], piece: usize, to: &mut [u8]) -> Option<()> {
        let from = self.headers + piece * self.step;
        let payload = to.len() - self.headers;
        to[..self.headers].copy_from_slice(&frame[..self.headers]);
        to[self.headers..].copy_from_slice(&frame[from..from + payload]);
        self.finish(piece, to)
    }

    /// Makes the headers those of this piece.
    pub(crate) fn finish(&self, piece: usize, frame: &mut [u8]) -> Option<()> {
        let last = piece + 1 == self.pieces();
        let packet = frame.get_mut(ETHERNET_BYTES..)?;
        let length = u16::try_from(packet.len()).ok()?;
        let (from, to): (IpAddress, IpAddress);
        let segment = match IpVersion::of_packet(packet).ok()? {
            IpVersion::Ipv4 => {
                let mut ip = Ipv4Packet::new_unchecked(&mut *packet);
                ip.set_total_len(length);
                ip.fill_checksum();
                (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
                let header = usize::from(ip.header_len());
                packet.get_mut(header..)?
            }
            IpVersion::Ipv6 => {
                let mut ip = Ipv6Packet::new_unchecked(&mut *packet);
                ip.set_payload_len(length - smoltcp::wire::IPV6_HEADER_LEN as u16);
                (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
                packet.get_mut(smoltcp::wire::IPV6_HEADER_LEN..)?
            }
        };
        let mut segment = TcpPacket::new_unchecked(segment);
        segment.set_seq_number(segment.seq_number() + piece * self.step);
        segment.set_psh(segment.psh() && last);
        segment.set_fin(segment.fin() && last);
        segment.fill_checksum(&from, &to);
        Some(())
    }
}

/// Bytes in front of a segment's payload, if the frame is one.
fn headers_bytes(frame: &[u8]) -> Option<usize> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let (network, protocol, length) = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let ip = Ipv4Packet::new_checked(packet).ok()?;
            let is_fragment = ip.more_frags() || ip.frag_offset() != 0;
            let protocol = (!is_fragment).then(|| ip.next_header())?;
            (ip.header_len().into(), protocol, ip.total_len().into())
        }
        IpVersion::Ipv6 => {
            let ip = Ipv6Packet::new_checked(packet).ok()?;
            let header = smoltcp::wire::IPV6_HEADER_LEN;
            (
                header,
                ip.next_header(),
                header + usize::from(ip.payload_len()),
            )
        }
    };
    if protocol != IpProtocol::Tcp || length != packet.len() {
        return None;
    }
    let segment = TcpPacket::new_checked(packet.get(network..)?).ok()?;
    Some(ETHERNET_BYTES + network + usize::from(segment.header_len()))
}

/// Writes the checksum of a whole segment, which its sender or who merged it left to an adapter.
/// Nothing else is changed: several datagrams of UDP that were merged would become one.
pub(crate) fn write_checksum(frame: &mut [u8]) {
    let Ok(packet) = packet::parse(frame) else {
        return;
    };
    if packet.protocol != IpProtocol::Tcp || packet.part != Part::Whole {
        return;
    }
    let (from, to) = (packet.source.into(), packet.destination.into());
    if let Ok(mut segment) = TcpPacket::new_checked(&mut frame[packet.payload]) {
        segment.fill_checksum(&from, &to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 segment of 10 bytes with PSH and FIN, whose checksums are right.
    fn segment() -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES - 2];
        frame.extend([8, 0]);
        frame.extend([0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 80, 0, 81, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x19]);
        frame.extend([0; 6]);
        frame.extend(0..10);
        Ipv4Packet::new_unchecked(&mut frame[ETHERNET_BYTES..]).fill_checksum();
        write_checksum(&mut frame);
        frame
    }

    #[test]
    fn pieces_are_packets_of_their_own_that_make_up_the_whole() {
        let frame = segment();
        let long = Long::of(&frame, 44).unwrap();
        assert_eq!(long.pieces(), 3);
        let mut payload: Vec<u8> = Vec::new();
        for piece in 0..3 {
            let mut bytes = vec![0; long.bytes_of(piece)];
            long.write(&frame, piece, &mut bytes).unwrap();
            let packet = packet::parse(&bytes).unwrap();
            let segment = TcpPacket::new_checked(&bytes[packet.payload]).unwrap();
            let (from, to) = (packet.source.into(), packet.destination.into());
            assert!(segment.verify_checksum(&from, &to), "{piece}");
            assert_eq!(segment.seq_number().0, 100 + 4 * piece as i32);
            assert_eq!((segment.psh(), segment.fin()), (piece == 2, piece == 2));
            payload.extend(segment.payload());
        }
        assert_eq!(payload, (0..10).collect::<Vec<u8>>());
    }

    #[test]
    fn only_whole_segments_are_cut() {
        assert_eq!(Long::of(&segment(), 40), None, "no room");
        let changed = |at: usize, to: u8| {
            let mut frame = segment();
            frame[ETHERNET_BYTES + at] = to;
            Long::of(&frame, 44)
        };
        assert_eq!(changed(9, 17), None, "UDP");
        assert_eq!(changed(6, 0x20), None, "a fragment");
        assert_eq!(changed(3, 49), None, "padding");
        assert_eq!(changed(2, 1), None, "cut off");
        assert_eq!(changed(32, 0xf0), None, "options that are not there");
    }
}
