//! A transfer by TCP: slow start, delayed and big acknowledgements, and what becomes of a
//! lost packet.
//!
//! **Rules.** A packet that does not come next is acknowledged at once, by what was expected
//! (a duplicate), and so is one that fills a gap. At the third duplicate the first
//! unacknowledged packet is sent again, half of what was under way becomes the threshold, and
//! the window is that and three more, and one more for each further duplicate; the next
//! acknowledgement of something new sets it to the threshold (RFC 5681). From there on it
//! grows by one per window acknowledged. If nothing new is acknowledged for the time of RFC
//! 6298, all that is unacknowledged is sent again, beginning with a window of one, and that
//! time doubles.
//!
//! **Limits.** No selective acknowledgements and no partial ones (RFC 6582), but what was sent
//! before a loss was seen brings no second one, as there. The timeout runs only where
//! packets can be lost.

use std::collections::{BTreeSet, VecDeque};

use super::{BIG_ACK, Ran, Transfer};

/// Duplicates that mean a loss.
const DUPLICATES: u32 = 3;
const NEVER: u64 = u64::MAX;

/// The bottleneck and the way to the client.
pub(super) struct Link {
    packet_ns: u64,
    one_way_ns: u64,
    free: u64,
    /// Packets that wait, at most.
    queue: u64,
}

impl Link {
    pub(super) fn new(transfer: &Transfer) -> Self {
        Self {
            packet_ns: transfer.packet_ns(),
            one_way_ns: transfer.one_way_ns(),
            free: 0,
            queue: transfer.queue_packets.unwrap_or(NEVER),
        }
    }

    /// When a packet sent at `now` reaches the client; nothing if the queue was full.
    pub(super) fn send(&mut self, now: u64) -> Option<u64> {
        let begins = self.free.max(now);
        if (begins - now).div_ceil(self.packet_ns.max(1)) > self.queue {
            return None;
        }
        self.free = begins + self.packet_ns;
        Some(self.free + self.one_way_ns)
    }
}

/// The retransmission timeout (RFC 6298), in ns.
#[derive(Clone, Copy, Debug)]
struct Timeout {
    /// Smoothed round trip and its variation.
    smooth: Option<(u64, u64)>,
    value: u64,
}

impl Timeout {
    const LEAST: u64 = 1_000_000_000;
    const MOST: u64 = 60_000_000_000;

    fn new() -> Self {
        Self {
            smooth: None,
            value: Self::LEAST,
        }
    }

    fn on_round_trip(&mut self, took: u64) {
        let (smooth, variation) = match self.smooth {
            None => (took, took / 2),
            Some((smooth, variation)) => (
                (7 * smooth + took) / 8,
                (3 * variation + smooth.abs_diff(took)) / 4,
            ),
        };
        self.smooth = Some((smooth, variation));
        self.value = (smooth + 4 * variation).clamp(Self::LEAST, Self::MOST);
    }

    fn on_timeout(&mut self) {
        self.value = (2 * self.value).min(Self::MOST);
    }
}

/// A transfer that begins with one packet, while it runs.
pub(super) struct Tcp<'a> {
    transfer: &'a Transfer,
    /// Of the client's timer, after the request.
    phase: u64,
    link: Link,
    /// When packets reach the client, and acknowledgements the server: which packet, and
    /// the first that is not acknowledged.
    arrivals: VecDeque<(u64, u64)>,
    acks: VecDeque<(u64, u64)>,
    server: Server,
    /// The first packet the client has not worked on, and those behind it that it has.
    expected: u64,
    early: BTreeSet<u64>,
    /// Packets it has worked on and not acknowledged.
    waiting: u64,
    /// When the client's kernel is done with what it has.
    client_free: u64,
    /// When the timer acknowledges what waits, if anything does.
    tick: u64,
    ran: Ran,
}

/// What the sender knows.
struct Server {
    /// The packet to send next; all before have been sent.
    next: u64,
    acknowledged: u64,
    window: u64,
    /// Where slow start ends.
    threshold: u64,
    /// Packets acknowledged since the window grew last, beyond the threshold.
    credit: u64,
    duplicates: u32,
    /// Since the third duplicate nothing new has been acknowledged.
    recovers: bool,
    /// The end of what had been sent when a loss was seen last.
    before_loss: u64,
    /// Packets sent, all in all, and the end of those that were sent once.
    transmissions: u64,
    newest: u64,
    /// A packet whose round trip is being measured, and when it was sent.
    timed: Option<(u64, u64)>,
    timeout: Timeout,
    expires: u64,
}

impl<'a> Tcp<'a> {
    pub(super) fn new(transfer: &'a Transfer, phase: u64) -> Self {
        let mut begun = Self {
            transfer,
            phase,
            link: Link::new(transfer),
            arrivals: VecDeque::new(),
            acks: VecDeque::new(),
            server: Server {
                next: 0,
                acknowledged: 0,
                window: 1,
                threshold: NEVER,
                credit: 0,
                duplicates: 0,
                recovers: false,
                before_loss: 0,
                transmissions: 0,
                newest: 0,
                timed: None,
                timeout: Timeout::new(),
                expires: NEVER,
            },
            expected: 0,
            early: BTreeSet::new(),
            waiting: 0,
            client_free: 0,
            tick: NEVER,
            ran: Ran::default(),
        };
        begun.send(transfer.one_way_ns());
        begun.ran.burst = 0;
        begun
    }

    pub(super) fn run(mut self) -> Ran {
        loop {
            let arrival = self.arrivals.front().map_or(NEVER, |(at, _)| *at);
            let done = arrival.max(self.client_free);
            let done = done.saturating_add(self.transfer.client_ns());
            let ack = self.acks.front().map_or(NEVER, |(at, _)| *at);
            if self.server.expires < done.min(ack).min(self.tick) {
                self.expire();
            } else if done <= ack && done <= self.tick {
                self.work(done);
                if self.expected == self.transfer.packets {
                    self.ran.response_ns = done;
                    return self.ran;
                }
            } else if self.tick <= ack {
                self.acknowledge(self.tick);
            } else if let Some((now, upto)) = self.acks.pop_front() {
                if upto > self.server.acknowledged {
                    self.on_new(now, upto);
                } else {
                    self.on_duplicate(now);
                }
                self.send(now);
            }
        }
    }

    fn limit(&self) -> u64 {
        self.transfer.window_packets.unwrap_or(NEVER)
    }

    /// The server sends what the window allows.
    fn send(&mut self, now: u64) {
        let under_way = self.server.next - self.server.acknowledged;
        let left = self.transfer.packets - self.server.next;
        let window = self.server.window.min(self.limit());
        let burst = window.saturating_sub(under_way).min(left);
        for _ in 0..burst {
            self.transmit(now, self.server.next);
            self.server.next += 1;
        }
        self.ran.burst = self.ran.burst.max(burst);
    }

    fn transmit(&mut self, now: u64, packet: u64) {
        let server = &mut self.server;
        server.transmissions += 1;
        if packet < server.newest {
            self.ran.sent_again += 1;
            // It could be either one that is acknowledged.
            server.timed = None;
        } else {
            server.newest = packet + 1;
            server.timed = server.timed.or(Some((packet, now)));
        }
        if server.expires == NEVER {
            self.arm(now);
        }
        let number = self.server.transmissions;
        let lost = self.transfer.lost.contains(&number);
        // What is lost on the way has passed the bottleneck.
        match self.link.send(now).filter(|_| !lost) {
            Some(arrives) => self.arrivals.push_back((arrives, packet)),
            None => self.ran.lost += 1,
        }
    }

    fn arm(&mut self, now: u64) {
        if self.transfer.can_lose() {
            self.server.expires = now + self.server.timeout.value;
        }
    }

    /// Something new is acknowledged.
    fn on_new(&mut self, now: u64, upto: u64) {
        let server = &mut self.server;
        let packets = upto - server.acknowledged;
        if let Some((packet, sent)) = server.timed
            && packet < upto
        {
            server.timeout.on_round_trip(now - sent);
            server.timed = None;
        }
        server.acknowledged = upto;
        server.next = server.next.max(upto);
        server.duplicates = 0;
        if std::mem::take(&mut server.recovers) {
            server.window = server.threshold;
        } else if server.window < server.threshold {
            server.window += 1;
        } else {
            server.credit += packets;
            if server.credit >= server.window {
                server.credit -= server.window;
                server.window += 1;
            }
        }
        server.window = server
            .window
            .min(self.transfer.window_packets.unwrap_or(NEVER));
        server.expires = NEVER;
        if server.next > upto {
            self.arm(now);
        }
    }

    /// What was expected before is expected still.
    fn on_duplicate(&mut self, now: u64) {
        let server = &mut self.server;
        if server.recovers {
            server.window += 1;
            return;
        }
        server.duplicates += 1;
        let first = server.acknowledged >= server.before_loss;
        if server.duplicates == DUPLICATES && first {
            server.lose();
            server.recovers = true;
            server.window = server.threshold + u64::from(DUPLICATES);
            let packet = server.acknowledged;
            self.transmit(now, packet);
            self.arm(now);
        }
    }

    /// Nothing new was acknowledged for too long.
    fn expire(&mut self) {
        let now = self.server.expires;
        self.ran.timeouts += 1;
        let server = &mut self.server;
        server.lose();
        server.timeout.on_timeout();
        server.recovers = false;
        server.duplicates = 0;
        server.window = 1;
        server.next = server.acknowledged;
        server.expires = NEVER;
        self.send(now);
    }

    /// The client's kernel is done with a packet. If no other has come meanwhile, the
    /// application reads what waits; from two packets on that is acknowledged.
    fn work(&mut self, now: u64) {
        let Some((_, packet)) = self.arrivals.pop_front() else {
            return;
        };
        self.client_free = now;
        let gap = !self.early.is_empty();
        if packet != self.expected {
            if packet > self.expected {
                self.early.insert(packet);
            }
            self.acknowledge(now);
            return;
        }
        let before = self.expected;
        self.expected += 1;
        while self.early.remove(&self.expected) {
            self.expected += 1;
        }
        self.waiting += self.expected - before;
        if gap {
            self.acknowledge(now);
            return;
        }
        let busy = self.transfer.client_us > 0.0;
        if busy && self.arrivals.front().is_some_and(|(next, _)| *next <= now) {
            return;
        }
        if self.waiting >= 2 {
            self.acknowledge(now);
        } else {
            self.tick = next_tick(now, self.phase, self.transfer.delayed_ack_ns());
        }
    }

    fn acknowledge(&mut self, now: u64) {
        let arrives = now + self.transfer.one_way_ns();
        self.acks.push_back((arrives, self.expected));
        self.ran.acks += 1;
        self.ran.acknowledged += self.waiting;
        self.ran.big_acks += u64::from(self.waiting > BIG_ACK);
        (self.waiting, self.tick) = (0, NEVER);
    }
}

impl Server {
    /// Half of what was under way is what the path takes.
    fn lose(&mut self) {
        let under_way = self.next - self.acknowledged;
        self.threshold = (under_way / 2).max(2);
        self.credit = 0;
        self.before_loss = self.newest;
    }
}

/// The first tick after `now` of a timer with this phase and period.
fn next_tick(now: u64, phase: u64, period: u64) -> u64 {
    let elapsed = now.saturating_sub(phase);
    if now < phase {
        phase
    } else {
        phase + (elapsed / period + 1) * period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_after_now() {
        assert_eq!(next_tick(0, 50, 200), 50);
        assert_eq!(next_tick(50, 50, 200), 250);
        assert_eq!(next_tick(249, 50, 200), 250);
    }

    /// By hand, in seconds: 2 gives 2 + 4 × 1; then 4 gives 2.25 + 4 × 1.25.
    #[test]
    fn the_timeout_is_that_of_rfc_6298() {
        let second = 1_000_000_000;
        let mut timeout = Timeout::new();
        assert_eq!(timeout.value, second);
        timeout.on_round_trip(2 * second);
        assert_eq!(timeout.value, 6 * second);
        timeout.on_round_trip(4 * second);
        assert_eq!(timeout.value, 7 * second + second / 4);
        timeout.on_timeout();
        assert_eq!(timeout.value, 14 * second + second / 2);
        // Doubled until a round trip is measured again; never below a second.
        for _ in 0..100 {
            timeout.on_round_trip(second / 10);
        }
        assert_eq!(timeout.value, second);
        (0..10).for_each(|_| timeout.on_timeout());
        assert_eq!(timeout.value, 60 * second);
    }
}
