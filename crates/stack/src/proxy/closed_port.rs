//! Answers to packets for ports that nobody bound.
//!
//! They are looked at only as fast as they may be answered. Under a
//! flood their channel stays full, so the demultiplexer discards the rest and wakes nobody.

use std::time::Duration;

use plimsoll_core::time::Instant;
use smoltcp::wire::IpProtocol;

use super::icmp::{self, ErrorRate};
use super::{Answer, Desk, Task};
use crate::device::Frame;
use crate::host::Host;
use crate::outcome::Outcome;
use crate::tcp::{self, Resetter};
use crate::wire::packet;

/// How long frames wait once the last answer was given: some may be given together then.
const ANSWERS_AGAIN: Duration = Duration::from_millis(10);

pub(super) struct ClosedPorts {
    errors: ErrorRate,
    resetter: Resetter,
}

impl ClosedPorts {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            errors: ErrorRate::default(),
            resetter: Resetter::new(host.device.pool(), &host.capabilities),
        }
    }
}

impl Task for ClosedPorts {
    fn on_frame(&mut self, frame: Frame, desk: &mut Desk, now: Instant) {
        desk.tally.count(Outcome::ClosedPort);
        if !self.errors.allows(now) {
            return;
        }
        let Ok(packet) = packet::parse(&frame) else {
            return;
        };
        if !desk.host.egress.is_anothers(packet.source) {
            return;
        }
        let verified = desk.host.capabilities.checksums_verified;
        let answer = if packet.protocol == IpProtocol::Tcp {
            if !tcp::is_whole(&frame, &packet, verified) {
                return;
            }
            let reset = self.resetter.reset(frame, &packet, now);
            reset.map(|frame| Answer {
                frame,
                to: packet.source,
                via: packet.via,
            })
        } else {
            icmp::port_unreachable(&frame, &packet, &desk.host)
        };
        if let Some(answer) = answer {
            desk.answer(answer, now);
        }
    }

    fn is_open(&mut self, now: Instant) -> bool {
        self.errors.has_some(now)
    }

    fn on_time(&mut self, _: &mut Desk, now: Instant) -> Option<Instant> {
        (!self.errors.has_some(now)).then(|| now + ANSWERS_AGAIN)
    }
}
