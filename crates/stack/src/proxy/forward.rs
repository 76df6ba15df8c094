//! The forwarding proxy: packets for others that come to this host are sent on (LRP-45).
//!
//! What is forwarded, and what is changed of it, is decided as by `plimsoll forward`
//! ([`forwarding`]). Routes are the stack's own: its networks, and gateways. A packet leaves by
//! the device that it came by, so this is a router on a stick.
//!
//! **Limits.** One device has one MTU, so no packet is too long for where it goes. No redirects
//! are sent (RFC 792), and nobody is told that a neighbour does not answer. Packets with options
//! are not forwarded.

use std::net::IpAddr;

use plimsoll_core::time::Instant;

use super::icmp::{self, Complaint, ErrorRate};
use super::{Desk, Task};
use crate::device::Frame;
use crate::forwarding::{self, ETHERNET_BYTES, NotPlain, Plain};
use crate::outcome::Outcome;
use crate::wire::packet;

pub(super) struct Forward {
    /// Of its own: what is sent to closed ports takes nothing of it.
    errors: ErrorRate,
}

impl Forward {
    pub(super) fn new() -> Self {
        Self {
            errors: ErrorRate::default(),
        }
    }

    /// Says why a packet goes no further, if that may be said.
    fn complain(&mut self, frame: &Frame, about: Complaint, desk: &mut Desk, now: Instant) {
        if !self.errors.allows(now) {
            return;
        }
        let Ok(packet) = packet::parse(frame) else {
            return;
        };
        let Some(from) = desk.host.egress.source_for(packet.source) else {
            return;
        };
        if let Some(answer) = icmp::complain(frame, &packet, about, from, &desk.host) {
            desk.answer(answer, now);
        }
    }
}

impl Task for Forward {
    fn on_frame(&mut self, mut frame: Frame, desk: &mut Desk, now: Instant) {
        let egress = &desk.host.egress;
        let plain = match forwarding::examine(&frame, egress.mac) {
            Ok(plain) if egress.is_anothers(plain.source) => plain,
            Err(NotPlain::Malformed) => return desk.tally.count(Outcome::Malformed),
            Ok(_) | Err(_) => return desk.tally.count(Outcome::Forward),
        };
        let complaint = match plain.ttl {
            0 | 1 => Some(Complaint::TimeExceeded),
            _ if !egress.has_route(plain.destination) => Some(Complaint::NetworkUnreachable),
            _ => None,
        };
        if let Some(about) = complaint {
            desk.tally.count(Outcome::Forward);
            return self.complain(&frame, about, desk, now);
        }
        send_on(&mut frame, &plain, egress.mac);
        // Where no neighbour answers it is counted as unsent later.
        let _ = egress.push(frame, plain.destination, None, &mut desk.out, now);
        desk.tally.count(Outcome::Forwarded);
    }
}

/// Leaves only the packet, as it is for the next hop. Its Ethernet address is written later.
fn send_on(frame: &mut Frame, plain: &Plain, mac: crate::device::Mac) {
    let start = frame.range().start;
    // Without Ethernet padding.
    frame.set_range(start..start + ETHERNET_BYTES + plain.bytes);
    forwarding::rewrite(frame, matches!(plain.source, IpAddr::V4(_)), mac, [0; 6]);
}
