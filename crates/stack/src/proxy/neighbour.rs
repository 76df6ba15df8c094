//! ARP and neighbour discovery, and what a host says of its multicast groups.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use super::{Desk, TURN_FRAMES, Task, trouble};
use crate::device::Frame;
use crate::host::Host;
use crate::link::membership;
use crate::link::neighbours::Word;
use crate::link::resolution::{self, Message};
use crate::outcome::Outcome;
use crate::wire::packet;

/// How often old fragments are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// How often addresses are announced, if at all, and in which intervals (RFC 5227, 1.1: `ANNOUNCE_NUM`,
/// `ANNOUNCE_INTERVAL`).
const ANNOUNCEMENTS: u32 = 2;
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);

/// The longest query that is understood: one of IGMPv3 or MLDv2 may list many sources.
const QUERY_BYTES: usize = 2048;

pub(super) struct Neighbours {
    housekeeping_at: Instant,
    /// Announcements that are left, and when the next one is due.
    announcements: (u32, Instant),
    /// Where one is read that came beside the others.
    query: [u8; QUERY_BYTES],
}

impl Neighbours {
    pub(super) fn new(announces: bool) -> Self {
        let announcements = if announces { ANNOUNCEMENTS } else { 0 };
        Self {
            housekeeping_at: Instant::ZERO,
            announcements: (announcements, Instant::ZERO),
            query: [0; QUERY_BYTES],
        }
    }

    /// Announces what is due; when it is due again.
    fn announce(&mut self, desk: &mut Desk, now: Instant) -> Option<Instant> {
        let (left, due) = &mut self.announcements;
        if *left > 0 && now >= *due {
            desk.host.egress.push_announcements(&mut desk.out);
            (*left, *due) = (*left - 1, now + ANNOUNCE_AGAIN);
        }
        (*left > 0).then_some(*due)
    }
}

/// Takes a query about groups; how its frame ends.
fn take_query(frame: &[u8], host: &Host, now: Instant) -> Outcome {
    match membership::parse_query(frame) {
        Ok(query) => {
            host.egress.on_query(&query, now);
            Outcome::Control
        }
        Err(outcome) => outcome,
    }
}

impl Task for Neighbours {
    fn on_frame(&mut self, frame: Frame, desk: &mut Desk, now: Instant) {
        if membership::is_query(&frame) {
            desk.tally.count(take_query(&frame, &desk.host, now));
            return;
        }
        let is_arp = EthernetFrame::new_checked(&frame[..])
            .is_ok_and(|ethernet| ethernet.ethertype() == EthernetProtocol::Arp);
        let message = if is_arp {
            resolution::parse_arp(&frame)
        } else {
            let packet = packet::parse(&frame).ok();
            packet.and_then(|packet| resolution::parse_nd(&frame, &packet))
        };
        let egress = &desk.host.egress;
        match message {
            Some(Message::Question {
                target,
                from,
                answer_to,
            }) if egress.is_local(target) => {
                if let Some((address, mac)) = from {
                    egress.learn(address, Some(mac), Word::Question, &mut desk.out, now);
                }
                let from = from.map(|(address, _)| address);
                desk.out
                    .extend(egress.builder().answer(target, from, answer_to));
                desk.tally.count(Outcome::Control);
            }
            Some(Message::Answer { address, mac, word }) => {
                egress.learn(address, mac, word, &mut desk.out, now);
                desk.tally.count(Outcome::Control);
            }
            // Somebody looks for somebody else, or for itself, to say where it is now. By ARP who is
            // known is believed (RFC 826); in neighbour discovery it says nothing (RFC 4861, 7.2.3).
            Some(Message::Question {
                from: Some((address @ IpAddr::V4(_), mac)),
                ..
            }) => {
                egress.learn(address, Some(mac), Word::Aside, &mut desk.out, now);
                desk.tally.count(Outcome::Other);
            }
            // Others' neighbour discovery, or a router's.
            _ => desk.tally.count(Outcome::Other),
        }
    }

    fn on_time(&mut self, desk: &mut Desk, now: Instant) -> Option<Instant> {
        for _ in 0..TURN_FRAMES {
            let Some(bytes) = desk.host.device.receive_query(&mut self.query) else {
                break;
            };
            // The kernel's as well, and counted there.
            take_query(&self.query[..bytes.min(QUERY_BYTES)], &desk.host, now);
        }
        let egress = &desk.host.egress;
        let (given_up, question) = egress.push_questions(&mut desk.out, now);
        for frame in given_up {
            trouble::on_unanswered(&desk.host, &frame, now);
        }
        let membership = egress.push_memberships(&mut desk.out, now);
        if now >= self.housekeeping_at {
            desk.host.expire_fragments(now);
            self.housekeeping_at = now + HOUSEKEEPING;
        }
        let announcement = self.announce(desk, now);
        let others = question.into_iter().chain(membership).chain(announcement);
        others.chain([self.housekeeping_at]).min()
    }

    fn also_waits_for<'a>(&self, host: &'a Host) -> Option<BorrowedFd<'a>> {
        host.device.queries()
    }
}
