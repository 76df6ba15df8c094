//! The proxies: who does the work that belongs to no socket.
//!
//! ARP and neighbour discovery, ICMP, and answers to closed ports have channels
//! of their own and a thread that the scheduler treats as any other (Druschel &
//! Banga, section 3.5: LRP-45). A flood of pings thus fills the pings' channel
//! and takes the time of this thread, nobody else's.
//!
//! Frames for closed ports are looked at only as fast as they may be answered. Under a
//! flood their channel stays full, so the demultiplexer discards the rest and wakes nobody.

mod icmp;
mod trouble;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::channel::{InterruptRequest, PooledConsumer};
use plimsoll_core::time::Instant;
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol};

use crate::account::{Account, Owner};
use crate::clock;
use crate::device::{Batch, Frame};
use crate::host::Host;
use crate::link::membership::REPORT_EVERY;
use crate::link::resolution::{self, Message};
use crate::outcome::Outcome;
use crate::table::{Arrived, ProxyChannels};
use crate::tcp::Resetter;
use crate::wait;
use crate::wire::packet;

/// Frames of one kind that are dealt with before the next kind's turn.
const TURN_FRAMES: usize = 32;
/// How long frames for closed ports wait once the last answer was given: some may be given
/// together then.
const ANSWERS_AGAIN: Duration = Duration::from_millis(10);
/// How often old fragments are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// The proxies of a stack.
pub(crate) struct Proxies {
    host: Arc<Host>,
    channels: ProxyChannels,
    tally: Arc<Account>,
    out: Batch,
    errors: icmp::ErrorRate,
    resetter: Resetter,
    housekeeping_at: Instant,
    reports_at: Instant,
}

impl Proxies {
    pub(crate) fn new(host: &Arc<Host>, channels: ProxyChannels) -> Self {
        Self {
            tally: host.book.open(Owner::Proxies),
            resetter: Resetter::new(host.device.pool(), &host.capabilities),
            host: Arc::clone(host),
            channels,
            out: Batch::new(),
            errors: icmp::ErrorRate::default(),
            housekeeping_at: Instant::ZERO,
            // Joining reports by itself.
            reports_at: clock::now() + REPORT_EVERY,
        }
    }

    /// Works until the stack stops or its device fails.
    pub(crate) fn run(mut self) {
        if let Err(error) = self.work_until_stopped() {
            self.host.fail(&error);
        }
    }

    fn work_until_stopped(&mut self) -> io::Result<()> {
        while !self.host.is_stopping() {
            let until = self.turn(clock::now())?;
            if !self.may_sleep() {
                continue;
            }
            let limit = until.saturating_since(clock::now());
            if wait::wait_any([self.channels.waker.as_fd()], Some(limit))?[0] {
                self.channels.waker.clear();
            }
        }
        Ok(())
    }

    /// Deals with some of what waits; returns when something else is due.
    pub(crate) fn turn(&mut self, now: Instant) -> io::Result<Instant> {
        let _work = self.tally.work();
        for _ in 0..TURN_FRAMES {
            let Some(frame) = next(&mut self.channels.neighbour, now) else {
                break;
            };
            self.on_neighbour(&frame, now);
        }
        for _ in 0..TURN_FRAMES {
            let Some(frame) = next(&mut self.channels.icmp, now) else {
                break;
            };
            self.on_icmp(frame, now);
        }
        for _ in 0..TURN_FRAMES {
            if !self.errors.has_some(now) {
                break;
            }
            let Some(frame) = next(&mut self.channels.closed_port, now) else {
                break;
            };
            self.on_closed_port(frame, now);
        }
        let question = self.host.egress.push_questions(&mut self.out, now);
        if now >= self.reports_at {
            self.reports_at = self.host.egress.push_reports(&mut self.out, now);
        }
        self.host.egress.transmit_or_drop(&mut self.out)?;
        if now >= self.housekeeping_at {
            self.host.expire_fragments(now);
            self.housekeeping_at = now + HOUSEKEEPING;
        }
        let answers = (!self.errors.has_some(now)).then(|| now + ANSWERS_AGAIN);
        let times = [question, answers, Some(self.housekeeping_at)];
        Ok(times.into_iter().flatten().min().unwrap_or(now))
    }

    /// Asks to be woken; false if something came meanwhile. Not for closed ports while
    /// nothing may be answered: that has its time.
    fn may_sleep(&mut self) -> bool {
        let may_answer = self.errors.has_some(clock::now());
        let channels = &mut self.channels;
        let closed_port = may_answer.then_some(&mut channels.closed_port);
        let queues = [&mut channels.neighbour, &mut channels.icmp];
        queues
            .into_iter()
            .chain(closed_port)
            .all(|queue| queue.request_interrupt() != InterruptRequest::Ready)
    }

    fn on_neighbour(&mut self, frame: &Frame, now: Instant) {
        let is_arp = EthernetFrame::new_checked(&frame[..])
            .is_ok_and(|ethernet| ethernet.ethertype() == EthernetProtocol::Arp);
        let message = if is_arp {
            resolution::parse_arp(frame)
        } else {
            let packet = packet::parse(frame).ok();
            packet.and_then(|packet| resolution::parse_nd(frame, &packet))
        };
        let egress = &self.host.egress;
        match message {
            Some(Message::Question {
                target,
                from,
                answer_to,
            }) if egress.is_local(target) => {
                if let Some((address, mac)) = from {
                    egress.learn(address, mac, true, &mut self.out, now);
                }
                let from = from.map(|(address, _)| address);
                self.out
                    .extend(egress.builder().answer(target, from, answer_to));
                self.tally.count(Outcome::Control);
            }
            Some(Message::Answer { address, mac }) => {
                egress.learn(address, mac, false, &mut self.out, now);
                self.tally.count(Outcome::Control);
            }
            // Somebody looks for somebody else, or it is a router's.
            _ => self.tally.count(Outcome::Other),
        }
    }

    fn on_icmp(&mut self, frame: Frame, now: Instant) {
        let outcome = match icmp::input(frame, &self.host) {
            Ok(icmp::Input::Trouble(report)) => {
                trouble::settle(&self.host, &report, now);
                Outcome::Control
            }
            Ok(icmp::Input::Answer(icmp::Answer { frame, to, via })) => {
                // Without room or route the question was one asked in vain.
                let egress = &self.host.egress;
                let _ = egress.push(frame, to, Some(via), &mut self.out, now);
                Outcome::Control
            }
            Err(outcome) => outcome,
        };
        self.tally.count(outcome);
    }

    fn on_closed_port(&mut self, frame: Frame, now: Instant) {
        self.tally.count(Outcome::ClosedPort);
        if !self.errors.allows(now) {
            return;
        }
        let Ok(packet) = packet::parse(&frame) else {
            return;
        };
        if packet.protocol == IpProtocol::Tcp {
            let (to, via) = (packet.source, Some(packet.via));
            if let Some(reset) = self.resetter.reset(frame, &packet, now) {
                let _ = self.host.egress.push(reset, to, via, &mut self.out, now);
            }
        } else if let Some(answer) = icmp::port_unreachable(&frame, &self.host) {
            let icmp::Answer { frame, to, via } = answer;
            let egress = &self.host.egress;
            let _ = egress.push(frame, to, Some(via), &mut self.out, now);
        }
    }
}

/// The next frame of a channel.
fn next(channel: &mut PooledConsumer<Arrived>, now: Instant) -> Option<Frame> {
    channel.pop(now)?.item.into_frame()
}
