//! ARP and neighbour discovery, and what a host says of itself unasked.

use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use super::{Desk, Task};
use crate::clock;
use crate::device::Frame;
use crate::link::membership::REPORT_EVERY;
use crate::link::resolution::{self, Message};
use crate::outcome::Outcome;
use crate::wire::packet;

/// How often old fragments are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

pub(super) struct Neighbours {
    housekeeping_at: Instant,
    reports_at: Instant,
}

impl Neighbours {
    pub(super) fn new() -> Self {
        Self {
            housekeeping_at: Instant::ZERO,
            // Joining reports by itself.
            reports_at: clock::now() + REPORT_EVERY,
        }
    }
}

impl Task for Neighbours {
    fn on_frame(&mut self, frame: Frame, desk: &mut Desk, now: Instant) {
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
                    egress.learn(address, mac, true, &mut desk.out, now);
                }
                let from = from.map(|(address, _)| address);
                desk.out
                    .extend(egress.builder().answer(target, from, answer_to));
                desk.tally.count(Outcome::Control);
            }
            Some(Message::Answer { address, mac }) => {
                egress.learn(address, mac, false, &mut desk.out, now);
                desk.tally.count(Outcome::Control);
            }
            // Somebody looks for somebody else, or it is a router's.
            _ => desk.tally.count(Outcome::Other),
        }
    }

    fn on_time(&mut self, desk: &mut Desk, now: Instant) -> Option<Instant> {
        let egress = &desk.host.egress;
        let question = egress.push_questions(&mut desk.out, now);
        if now >= self.reports_at {
            self.reports_at = egress.push_reports(&mut desk.out, now);
        }
        if now >= self.housekeeping_at {
            desk.host.expire_fragments(now);
            self.housekeeping_at = now + HOUSEKEEPING;
        }
        question.into_iter().chain([self.housekeeping_at]).min()
    }
}
