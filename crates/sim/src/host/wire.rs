//! A wire's one direction: a rate, a delay, and a queue in front of it.

use std::collections::VecDeque;

use crate::packet::Packet;
use crate::scenario::Link;

/// Packets under way, in order.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    /// Transmission time per byte, in 1/65536 ns; 0 if packets take no time.
    fine_per_byte: u64,
    overhead_bytes: u64,
    delay_ns: u64,
    queue: u64,
    /// When the last packet accepted has been transmitted.
    free_at: u64,
    /// With their time of arrival; what is not yet transmitted included.
    flying: VecDeque<(u64, Packet)>,
}

impl Wire {
    pub(crate) fn new(link: &Link) -> Self {
        let fine = |rate: f64| libm::round(8_000.0 * 65_536.0 / rate) as u64;
        Self {
            fine_per_byte: link.rate_mbps.map_or(0, fine),
            overhead_bytes: u64::from(link.overhead_bytes),
            delay_ns: (link.delay_us * 1e3) as u64,
            queue: u64::from(link.queue.unwrap_or(1000)),
            free_at: 0,
            flying: VecDeque::new(),
        }
    }

    /// Time to transmit `bytes`, in ns.
    pub(crate) fn transmission_ns(&self, bytes: u16) -> u64 {
        ((u64::from(bytes) + self.overhead_bytes) * self.fine_per_byte) >> 16
    }

    /// Time for a packet that waits for no other, in ns.
    pub(crate) fn alone_ns(&self, bytes: u16) -> u64 {
        self.transmission_ns(bytes) + self.delay_ns
    }

    /// Sends `packet` at `now`. `None`: the queue was full. Otherwise the time
    /// the first packet under way arrives.
    pub(crate) fn send(&mut self, packet: Packet, now: u64) -> Option<u64> {
        let takes = self.transmission_ns(packet.bytes);
        let begins = self.free_at.max(now);
        if begins - now > takes * self.queue {
            return None;
        }
        self.free_at = begins + takes;
        self.fly(packet, self.free_at)
    }

    /// Puts a packet that has been transmitted at `sent` under way.
    pub(crate) fn fly(&mut self, packet: Packet, sent: u64) -> Option<u64> {
        self.flying.push_back((sent + self.delay_ns, packet));
        self.flying.front().map(|(at, _)| *at)
    }

    /// Takes the packet that arrives, and says when the next one does.
    pub(crate) fn arrive(&mut self) -> (Option<Packet>, Option<u64>) {
        let packet = self.flying.pop_front().map(|(_, packet)| packet);
        (packet, self.flying.front().map(|(at, _)| *at))
    }

    pub(crate) fn held(&self) -> usize {
        self.flying.len()
    }
}
