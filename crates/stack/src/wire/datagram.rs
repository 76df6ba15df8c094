//! UDP: from the bytes of a packet to a datagram in the application's hands.

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{IpProtocol, UdpPacket};

use super::UDP_BYTES;
use super::packet::{self, Packet, Part};
use super::reassembly::{Added, Reassembled, Reassembler};
use crate::device::{Frame, Mac};
use crate::outcome::Outcome;
use plimsoll_core::time::Instant;

/// A received datagram. Its payload still lies where it arrived; dropping it
/// gives that memory back.
#[derive(Debug)]
pub struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// The Ethernet address that sent it, which is where an answer goes.
    pub(crate) via: Mac,
    pub(crate) payload: Payload,
}

#[derive(Debug)]
pub(crate) enum Payload {
    /// The frame's range is the payload's.
    Frame(Frame),
    Reassembled(Reassembled),
}

impl Datagram {
    /// Who sent it.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// The address of this host that it was sent to.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// What was sent.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Frame(frame) => frame,
            Payload::Reassembled(bytes) => &bytes.bytes()[UDP_BYTES..],
        }
    }

    /// The payload, to be changed in place, as before it is sent back.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        match &mut self.payload {
            Payload::Frame(frame) => frame,
            Payload::Reassembled(bytes) => &mut bytes.bytes_mut()[UDP_BYTES..],
        }
    }

    /// Replaces the payload, as before an answer is sent back in the memory that the
    /// question came in. False: that has no room for so much, and nothing was changed.
    #[must_use = "without room there is nothing to be sent"]
    pub fn set_payload(&mut self, bytes: &[u8]) -> bool {
        match &mut self.payload {
            Payload::Frame(frame) => frame.copy_from(bytes),
            Payload::Reassembled(whole) => {
                let fits = UDP_BYTES + bytes.len() <= whole.bytes().len();
                if fits {
                    whole.truncate(UDP_BYTES + bytes.len());
                    whole.bytes_mut()[UDP_BYTES..].copy_from_slice(bytes);
                }
                fits
            }
        }
    }
}

/// What protocol processing made of a frame.
#[derive(Debug)]
pub(crate) enum Input {
    Datagram(Datagram),
    /// A fragment that waits for others; the reassembler counts it.
    Kept,
    /// To be counted as this.
    Ended(Outcome),
}

/// IP and UDP input for one frame. `reassembler` is asked for fragments only.
///
/// `verified`: the device vouches for transport checksums.
#[inline]
pub(crate) fn input(
    mut frame: Frame,
    verified: bool,
    reassembler: impl FnOnce(&Packet, &[u8], Instant) -> Added,
    now: Instant,
) -> Input {
    let packet = match packet::parse(&frame) {
        Ok(packet) => packet,
        Err(outcome) => return Input::Ended(outcome),
    };
    if packet.protocol != IpProtocol::Udp {
        return Input::Ended(Outcome::Other);
    }
    let bytes = &frame[packet.payload.clone()];
    if packet.part != Part::Whole {
        return match reassembler(&packet, bytes, now) {
            Added::Complete(whole) => complete(&packet, whole, verified),
            Added::Kept => Input::Kept,
            Added::Ended(outcome) => Input::Ended(outcome),
        };
    }
    let (source, destination, payload) = match check(&packet, bytes, verified) {
        Ok(checked) => checked,
        Err(outcome) => return Input::Ended(outcome),
    };
    let start = frame.range().start + packet.payload.start + UDP_BYTES;
    frame.set_range(start..start + payload);
    Input::Datagram(Datagram {
        source,
        destination,
        via: packet.via,
        payload: Payload::Frame(frame),
    })
}

fn complete(packet: &Packet, mut whole: Reassembled, verified: bool) -> Input {
    match check(packet, whole.bytes(), verified) {
        Ok((source, destination, payload)) => {
            whole.truncate(UDP_BYTES + payload);
            Input::Datagram(Datagram {
                source,
                destination,
                via: packet.via,
                payload: Payload::Reassembled(whole),
            })
        }
        Err(outcome) => Input::Ended(outcome),
    }
}

/// Checks a whole UDP datagram; returns its ends and its payload's length.
#[inline]
fn check(
    packet: &Packet,
    bytes: &[u8],
    verified: bool,
) -> Result<(SocketAddr, SocketAddr, usize), Outcome> {
    let udp = UdpPacket::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
    // Over IPv6 a checksum is a must (RFC 8200, 8.1).
    let missing = udp.checksum() == 0 && packet.source.is_ipv6();
    let (from, to) = (packet.source.into(), packet.destination.into());
    if !verified && (missing || !udp.verify_checksum(&from, &to)) {
        return Err(Outcome::Checksum);
    }
    Ok((
        SocketAddr::new(packet.source, udp.src_port()),
        SocketAddr::new(packet.destination, udp.dst_port()),
        usize::from(udp.len()) - UDP_BYTES,
    ))
}

/// The addresses of a UDP frame, for answers to closed ports: who would have
/// got it.
pub(crate) fn is_answerable(packet: &Packet) -> bool {
    let unicast = |address: IpAddr| !address.is_multicast() && !address.is_unspecified();
    unicast(packet.source)
        && unicast(packet.destination)
        && packet.source != IpAddr::V4(std::net::Ipv4Addr::BROADCAST)
}

/// A reassembler for callers that have none: fragments are lost.
#[cfg(test)]
pub(crate) fn no_reassembler(_: &Packet, _: &[u8], _: Instant) -> Added {
    Added::Ended(Outcome::FragmentLost)
}

/// Reassembles in `reassembler`.
pub(crate) fn in_reassembler(
    reassembler: &mut Reassembler,
) -> impl FnOnce(&Packet, &[u8], Instant) -> Added {
    move |packet, bytes, now| reassembler.add(packet, bytes, now)
}
