//! ICMP and ICMPv6: answers to echo requests, "port unreachable", and others' errors.
//!
//! ICMP in fragments is not answered: fragments that are not UDP's wait on the
//! fragment channel and are lost there.

use std::net::IpAddr;

use plimsoll_core::time::Instant;
use smoltcp::wire::{
    EthernetFrame, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable,
    Icmpv6Message, Icmpv6Packet, IpProtocol,
};

use super::{Answer, Desk, Task};
use crate::device::{Frame, HEADROOM_BYTES};
use crate::host::Host;
use crate::outcome::Outcome;
use crate::wire::packet::{self, Packet, Part};
use crate::wire::trouble::{self, Report};
use crate::wire::{ETHERNET_BYTES, datagram, emit};

const HEADER_BYTES: usize = 8;
/// An error and all around it must not be longer (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
const ERROR_BYTES_MAX: [usize; 2] = [576, 1280];

/// Answers pings, and tells sockets of errors.
pub(super) struct Icmp;

impl Task for Icmp {
    fn on_frame(&mut self, frame: Frame, desk: &mut Desk, now: Instant) {
        let outcome = match input(frame, &desk.host) {
            Ok(Input::Trouble(report)) => {
                super::trouble::settle(&desk.host, &report, now);
                Outcome::Control
            }
            Ok(Input::Answer(answer)) => {
                desk.answer(answer, now);
                Outcome::Control
            }
            Err(outcome) => outcome,
        };
        desk.tally.count(outcome);
    }
}

/// What an ICMP message leads to.
#[derive(Debug)]
enum Input {
    /// To an echo request, made in the request's own frame.
    Answer(Answer),
    /// The network has something to say about a packet of ours, perhaps.
    Trouble(Report),
}

/// Reads a message. `Err`: how it ends, if it leads to nothing.
fn input(mut frame: Frame, host: &Host) -> Result<Input, Outcome> {
    let packet = packet::parse(&frame)?;
    if packet.part != Part::Whole {
        return Err(Outcome::FragmentLost);
    }
    let message = &frame[packet.payload.clone()];
    if !is_echo_request(message, &packet)? {
        let report = trouble::parse(message, &packet);
        return report.map(Input::Trouble).ok_or(Outcome::Control);
    }
    // Requests to groups and everybody are not answered: they amplify.
    let answerable = datagram::is_answerable(&packet) && host.egress.is_local(packet.destination);
    if !answerable {
        return Err(Outcome::Control);
    }
    let headers = ETHERNET_BYTES + emit::network_bytes(packet.destination);
    let payload = frame.range().start + packet.payload.start;
    let end = payload + packet.payload.len();
    frame.set_range(payload - headers..end);
    let ends = (packet.destination, packet.source);
    emit::write_headers(&mut frame, host.egress.mac, ends, packet.protocol, None);
    turn_into_reply(&mut frame[headers..], &packet);
    Ok(Input::Answer(Answer {
        frame,
        to: packet.source,
        via: packet.via,
    }))
}

fn is_echo_request(bytes: &[u8], packet: &Packet) -> Result<bool, Outcome> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(_), _) => {
            let icmp = Icmpv4Packet::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
            if !icmp.verify_checksum() {
                return Err(Outcome::Checksum);
            }
            Ok(
                packet.protocol == IpProtocol::Icmp
                    && icmp.msg_type() == Icmpv4Message::EchoRequest,
            )
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let icmp = Icmpv6Packet::new_checked(bytes).map_err(|_| Outcome::Malformed)?;
            if !icmp.verify_checksum(&source, &destination) {
                return Err(Outcome::Checksum);
            }
            Ok(packet.protocol == IpProtocol::Icmpv6
                && icmp.msg_type() == Icmpv6Message::EchoRequest)
        }
        _ => Err(Outcome::Malformed),
    }
}

fn turn_into_reply(bytes: &mut [u8], packet: &Packet) {
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) {
        let mut icmp = Icmpv6Packet::new_unchecked(bytes);
        icmp.set_msg_type(Icmpv6Message::EchoReply);
        icmp.fill_checksum(&destination, &source);
    } else {
        let mut icmp = Icmpv4Packet::new_unchecked(bytes);
        icmp.set_msg_type(Icmpv4Message::EchoReply);
        icmp.fill_checksum();
    }
}

/// "Port unreachable" for a UDP frame that nobody wanted; nothing if it must
/// not be answered, or no buffer is free.
pub(super) fn port_unreachable(frame: &Frame, packet: &Packet, host: &Host) -> Option<Answer> {
    let to_group = EthernetFrame::new_unchecked(&frame[..]).dst_addr().0[0] & 1 == 1;
    let whole_udp = packet.protocol == IpProtocol::Udp && packet.part == Part::Whole;
    if to_group || !whole_udp || !datagram::is_answerable(packet) {
        return None;
    }
    let headers = ETHERNET_BYTES + emit::network_bytes(packet.source);
    let limit = ERROR_BYTES_MAX[usize::from(packet.source.is_ipv6())];
    let room = limit - emit::network_bytes(packet.source) - HEADER_BYTES;
    let quoted = &frame[packet.network..packet.payload.end];
    let quoted = &quoted[..quoted.len().min(room)];
    let mut answer = host.device.pool().take()?;
    let bytes = headers + HEADER_BYTES + quoted.len();
    answer.set_range(HEADROOM_BYTES..HEADROOM_BYTES + bytes);
    let ends = (packet.destination, packet.source);
    let protocol = match packet.source {
        IpAddr::V4(_) => IpProtocol::Icmp,
        IpAddr::V6(_) => IpProtocol::Icmpv6,
    };
    emit::write_headers(&mut answer, host.egress.mac, ends, protocol, None);
    write_unreachable(&mut answer[headers..], quoted, packet);
    Some(Answer {
        frame: answer,
        to: packet.source,
        via: packet.via,
    })
}

fn write_unreachable(bytes: &mut [u8], quoted: &[u8], packet: &Packet) {
    bytes[..HEADER_BYTES].fill(0);
    bytes[HEADER_BYTES..].copy_from_slice(quoted);
    if let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) {
        let mut icmp = Icmpv6Packet::new_unchecked(bytes);
        icmp.set_msg_type(Icmpv6Message::DstUnreachable);
        icmp.set_msg_code(Icmpv6DstUnreachable::PortUnreachable.into());
        icmp.fill_checksum(&destination, &source);
    } else {
        let mut icmp = Icmpv4Packet::new_unchecked(bytes);
        icmp.set_msg_type(Icmpv4Message::DstUnreachable);
        icmp.set_msg_code(Icmpv4DstUnreachable::PortUnreachable.into());
        icmp.fill_checksum();
    }
}

/// How many errors may be sent: as Linux, 1,000 per second in bursts of 50
/// (`icmp_msgs_per_sec`, `icmp_msgs_burst`).
#[derive(Debug)]
pub(super) struct ErrorRate {
    tokens: u64,
    /// Up to when tokens have been given.
    since: Instant,
}

const ERRORS_BURST: u64 = 50;
const NANOS_PER_ERROR: u64 = 1_000_000;

impl Default for ErrorRate {
    fn default() -> Self {
        Self {
            tokens: ERRORS_BURST,
            since: Instant::ZERO,
        }
    }
}

impl ErrorRate {
    /// Whether one may be sent now.
    pub(super) fn has_some(&mut self, now: Instant) -> bool {
        let earned = now.as_nanos().saturating_sub(self.since.as_nanos()) / NANOS_PER_ERROR;
        if self.tokens + earned >= ERRORS_BURST {
            (self.tokens, self.since) = (ERRORS_BURST, now);
        } else {
            self.tokens += earned;
            let given = self.since.as_nanos() + earned * NANOS_PER_ERROR;
            self.since = Instant::from_nanos(given);
        }
        self.tokens > 0
    }

    /// Takes one, if there is one.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let some = self.has_some(now);
        self.tokens -= u64::from(some);
        some
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn errors_come_in_bursts_of_fifty_and_a_thousand_a_second() {
        let mut rate = ErrorRate::default();
        let mut now = Instant::ZERO;
        let mut burst = |now| (0..200).filter(|_| rate.allows(now)).count();
        assert_eq!(burst(now), 50);
        assert_eq!(burst(now), 0);
        now += Duration::from_millis(10);
        assert_eq!(burst(now), 10);
        now += Duration::from_secs(3600);
        assert_eq!(burst(now), 50);
    }
}
