//! ICMP and ICMPv6: answers to echo requests, errors of ours, and others' errors.
//!
//! ICMP in fragments is not answered: fragments that are not UDP's wait on the
//! fragment channel and are lost there.

use std::net::IpAddr;

use plimsoll_core::time::Instant;
use smoltcp::wire::{
    EthernetFrame, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv4TimeExceeded,
    Icmpv6DstUnreachable, Icmpv6Message, Icmpv6Packet, Icmpv6TimeExceeded, IpProtocol,
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
    if !host.egress.is_anothers(packet.source) {
        return Err(Outcome::Malformed);
    }
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

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug)]
pub(super) enum Complaint {
    /// Nobody has bound its port.
    PortUnreachable,
    /// There is no way to its network.
    NetworkUnreachable,
    /// It was on its way for too long.
    TimeExceeded,
}

/// "Port unreachable" for a UDP frame that nobody wanted; nothing if it must
/// not be answered, or no buffer is free.
pub(super) fn port_unreachable(frame: &Frame, packet: &Packet, host: &Host) -> Option<Answer> {
    let whole_udp = packet.protocol == IpProtocol::Udp && packet.part == Part::Whole;
    let about = Complaint::PortUnreachable;
    whole_udp
        .then(|| complain(frame, packet, about, packet.destination, host))
        .flatten()
}

/// An error about a packet, for who sent it; nothing if it must not be told (RFC 1122, 3.2.2;
/// RFC 4443, 2.4), or no buffer is free.
pub(super) fn complain(
    frame: &Frame,
    packet: &Packet,
    about: Complaint,
    from: IpAddr,
    host: &Host,
) -> Option<Answer> {
    let to_group = EthernetFrame::new_unchecked(&frame[..]).dst_addr().0[0] & 1 == 1;
    if to_group || !datagram::is_answerable(packet) || is_behind_first(packet) {
        return None;
    }
    if is_error(frame.get(packet.payload.start).copied(), packet.protocol) {
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
    let ends = (from, packet.source);
    let protocol = match packet.source {
        IpAddr::V4(_) => IpProtocol::Icmp,
        IpAddr::V6(_) => IpProtocol::Icmpv6,
    };
    emit::write_headers(&mut answer, host.egress.mac, ends, protocol, None);
    write_error(&mut answer[headers..], quoted, about, ends);
    Some(Answer {
        frame: answer,
        to: packet.source,
        via: packet.via,
    })
}

/// A later fragment: its datagram's first is answered, or none.
fn is_behind_first(packet: &Packet) -> bool {
    matches!(packet.part, Part::Fragment { offset: 1.., .. })
}

/// Whether a message of this type is an error: nobody is told of errors about errors. Types that
/// nobody knows might be.
fn is_error(first: Option<u8>, protocol: IpProtocol) -> bool {
    match protocol {
        IpProtocol::Icmp => matches!(first, None | Some(3..=5 | 11 | 12 | 19..)),
        IpProtocol::Icmpv6 => first.is_none_or(|kind| kind < 128),
        _ => false,
    }
}

/// `ends`: from whom and to whom.
fn write_error(bytes: &mut [u8], quoted: &[u8], about: Complaint, ends: (IpAddr, IpAddr)) {
    bytes[..HEADER_BYTES].fill(0);
    bytes[HEADER_BYTES..].copy_from_slice(quoted);
    if let (IpAddr::V6(from), IpAddr::V6(to)) = ends {
        let mut icmp = Icmpv6Packet::new_unchecked(bytes);
        let (kind, code) = match about {
            Complaint::PortUnreachable => (
                Icmpv6Message::DstUnreachable,
                Icmpv6DstUnreachable::PortUnreachable.into(),
            ),
            Complaint::NetworkUnreachable => (
                Icmpv6Message::DstUnreachable,
                Icmpv6DstUnreachable::NoRoute.into(),
            ),
            Complaint::TimeExceeded => (
                Icmpv6Message::TimeExceeded,
                Icmpv6TimeExceeded::HopLimitExceeded.into(),
            ),
        };
        icmp.set_msg_type(kind);
        icmp.set_msg_code(code);
        icmp.fill_checksum(&from, &to);
    } else {
        let mut icmp = Icmpv4Packet::new_unchecked(bytes);
        let (kind, code) = match about {
            Complaint::PortUnreachable => (
                Icmpv4Message::DstUnreachable,
                Icmpv4DstUnreachable::PortUnreachable.into(),
            ),
            Complaint::NetworkUnreachable => (
                Icmpv4Message::DstUnreachable,
                Icmpv4DstUnreachable::NetUnreachable.into(),
            ),
            Complaint::TimeExceeded => (
                Icmpv4Message::TimeExceeded,
                Icmpv4TimeExceeded::TtlExpired.into(),
            ),
        };
        icmp.set_msg_type(kind);
        icmp.set_msg_code(code);
        icmp.fill_checksum();
    }
}

/// How many errors may be sent: as Linux, 1,000 per second in bursts of 50
/// (`icmp_msgs_per_sec`, `icmp_msgs_burst`). On average: who counts them must not learn whether
/// others got some (CVE-2020-25705).
#[derive(Debug)]
pub(super) struct ErrorRate {
    /// Below 0 where the last error took one too many.
    tokens: i64,
    /// Up to when tokens have been given.
    since: Instant,
}

const ERRORS_BURST: i64 = 50;
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
        let tokens = self.tokens.saturating_add_unsigned(earned);
        if tokens >= ERRORS_BURST {
            (self.tokens, self.since) = (ERRORS_BURST, now);
        } else {
            self.tokens = tokens;
            let given = self.since.as_nanos() + earned * NANOS_PER_ERROR;
            self.since = Instant::from_nanos(given);
        }
        self.tokens > 0
    }

    /// Takes none, one or two, if there is one.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let some = self.has_some(now);
        if some {
            self.tokens -= fastrand::i64(0..=2);
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many of 200 errors are sent that are due now.
    fn burst(rate: &mut ErrorRate, now: Instant) -> usize {
        (0..200).filter(|_| rate.allows(now)).count()
    }

    /// Each bound is missed once in 10^8 runs.
    #[test]
    fn errors_come_in_bursts_of_some_fifty_and_a_thousand_a_second() {
        let mut rate = ErrorRate::default();
        let mut now = Instant::ZERO;
        let whole = 25..=100;
        let first = burst(&mut rate, now);
        assert!(whole.contains(&first), "{first}");
        assert_eq!(burst(&mut rate, now), 0);
        now += Duration::from_millis(10);
        let more = burst(&mut rate, now);
        assert!((5..=45).contains(&more), "{more}");
        now += Duration::from_secs(3600);
        let again = burst(&mut rate, now);
        assert!(whole.contains(&again), "{again}");
        // In a second of errors that come as fast as may be.
        let mut sent = 0;
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            sent += burst(&mut rate, now);
        }
        assert!((800..=1200).contains(&sent), "{sent}");
    }

    /// Whoever got fewer than 50 of them knew that somebody else had got one.
    #[test]
    fn nobody_can_count_errors() {
        let counts = (0..100).map(|_| burst(&mut ErrorRate::default(), Instant::ZERO));
        let exact = counts.filter(|&count| count == 50).count();
        assert!(exact < 50, "{exact}");
    }
}
