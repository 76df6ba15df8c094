//! One transfer over a wide-area path: TCP's slow start against rate-based
//! clocking (Aron & Druschel, section 5.7).
//!
//! A server sends full-size packets through a bottleneck to a client that
//! acknowledges every second one, or one alone when its delayed-acknowledgement
//! timer ticks. In slow start each acknowledgement opens the window by a packet, up to
//! what the client's socket takes. Paced packets leave as the core's pacer says, at the
//! bottleneck's rate.
//!
//! The client acknowledges when its application reads, and packets come before the
//! application. So packets that come faster than they are worked on are all received
//! first, and one big acknowledgement covers them (appendix A.3).
//!
//! **Limits.** No loss: the paper's transfers have none. The timer's phase against the
//! transfer is unknown, so that a transfer is run at several phases; the mean, the least
//! and the greatest are given.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_core::pacing::{FlowRates, Pacer, PacerConfig, Rate};
use plimsoll_core::time::Instant;
use serde::{Deserialize, Serialize};

use crate::Error;

/// A transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Packets.
    pub packets: u64,
    /// Length of a packet on the link. Default 1500.
    #[serde(default = "packet_bytes")]
    pub packet_bytes: u32,
    /// Data in a packet. Default 1448.
    #[serde(default = "payload_bytes")]
    pub payload_bytes: u32,
    /// Rate of the bottleneck.
    pub rate_mbps: f64,
    /// Time there and back, without transmission.
    pub round_trip_ms: f64,
    /// How it begins.
    pub start: Start,
    /// Period of the client's delayed-acknowledgement timer. Default 200.
    #[serde(default = "delayed_ack_ms")]
    pub delayed_ack_ms: f64,
    /// Phases of that timer over which the mean is taken. Default 20.
    #[serde(default = "phases")]
    pub phases: u32,
    /// Packets the client's socket takes: the window grows no further. Default: no limit.
    #[serde(default)]
    pub window_packets: Option<u64>,
    /// What the client's kernel does per packet, before any application runs. Default 0.
    #[serde(default)]
    pub client_us: f64,
}

/// How a transfer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// With one packet, and one more for every acknowledgement.
    SlowStart,
    /// At the bottleneck's rate, which is known.
    Paced,
}

fn packet_bytes() -> u32 {
    1500
}

fn payload_bytes() -> u32 {
    1448
}

fn delayed_ack_ms() -> f64 {
    200.0
}

fn phases() -> u32 {
    20
}

/// An acknowledgement of more packets than this is a big one.
const BIG_ACK: u64 = 3;

/// Runs it; the figures are `response_ms`, from the client's request to its last
/// packet, with `response_least_ms` and `response_most_ms` among the phases, and
/// `throughput_mbps` of data. `packets_per_ack` is the mean of all acknowledgements,
/// `big_acks_pct` the part of them that cover more than three packets, and
/// `burst_packets` the most that were sent at once.
///
/// # Errors
///
/// A value makes no sense.
pub fn run(transfer: &Transfer) -> Result<Vec<(String, f64)>, Error> {
    transfer.validate()?;
    let runs = match transfer.start {
        Start::Paced => vec![Ran::taking(paced(transfer)?)],
        Start::SlowStart => {
            let period = transfer.delayed_ack_ns();
            let phases = u64::from(transfer.phases);
            let one = |phase: u64| SlowStart::new(transfer, period * phase / phases).run();
            (0..phases).map(one).collect()
        }
    };
    let sum = |of: fn(&Ran) -> u64| runs.iter().map(of).sum::<u64>();
    let response_ns = sum(|run| run.response_ns) / runs.len() as u64;
    let responses = || runs.iter().map(|run| run.response_ns);
    let extreme = |found: Option<u64>| found.unwrap_or(response_ns) as f64 / 1e6;
    let bits = transfer.packets as f64 * f64::from(transfer.payload_bytes) * 8.0;
    let acks = sum(|run| run.acks).max(1) as f64;
    let burst = runs.iter().map(|run| run.burst).max().unwrap_or(0);
    let figures = [
        ("response_ms", response_ns as f64 / 1e6),
        ("response_least_ms", extreme(responses().min())),
        ("response_most_ms", extreme(responses().max())),
        ("throughput_mbps", bits * 1e3 / response_ns as f64),
        ("packets_per_ack", sum(|run| run.acknowledged) as f64 / acks),
        (
            "big_acks_pct",
            100.0 * sum(|run| run.big_acks) as f64 / acks,
        ),
        ("burst_packets", burst as f64),
    ];
    let named = figures
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    Ok(named.collect())
}

/// What a transfer came to.
#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    response_ns: u64,
    acks: u64,
    /// Acknowledgements of more than [`BIG_ACK`] packets.
    big_acks: u64,
    /// Packets that were acknowledged.
    acknowledged: u64,
    /// The most packets sent at one acknowledgement.
    burst: u64,
}

impl Ran {
    fn taking(response_ns: u64) -> Self {
        Self {
            response_ns,
            ..Self::default()
        }
    }
}

impl Transfer {
    fn validate(&self) -> Result<(), Error> {
        let within = |field: &str, given: f64, low: f64, high: f64| {
            if given >= low && given <= high {
                return Ok(());
            }
            Err(Error::scenario(field, given, format!("{low} to {high}")))
        };
        within("packets", self.packets as f64, 1.0, 1e8)?;
        within("packet_bytes", f64::from(self.packet_bytes), 1.0, 65_535.0)?;
        within("rate_mbps", self.rate_mbps, 1e-3, 1e6)?;
        within("round_trip_ms", self.round_trip_ms, 0.0, 1e6)?;
        within("delayed_ack_ms", self.delayed_ack_ms, 1.0, 1e6)?;
        within("phases", f64::from(self.phases), 1.0, 1000.0)?;
        within("client_us", self.client_us, 0.0, 1e6)?;
        let window = self.window_packets.unwrap_or(u64::MAX);
        within("window_packets", window as f64, 2.0, f64::INFINITY)
    }

    /// Transmission time of a packet at the bottleneck.
    fn packet_ns(&self) -> u64 {
        (f64::from(self.packet_bytes) * 8e3 / self.rate_mbps) as u64
    }

    fn client_ns(&self) -> u64 {
        (self.client_us * 1e3) as u64
    }

    fn one_way_ns(&self) -> u64 {
        (self.round_trip_ms * 5e5) as u64
    }

    fn delayed_ack_ns(&self) -> u64 {
        (self.delayed_ack_ms * 1e6) as u64
    }
}

fn paced(transfer: &Transfer) -> Result<u64, Error> {
    let config = PacerConfig {
        flows: 1,
        ..PacerConfig::default()
    };
    let mut pacer = Pacer::new(config).map_err(Error::core("pacing"))?;
    let interval = Duration::from_nanos(transfer.packet_ns());
    let rate = Rate::from_interval(transfer.packet_bytes.into(), interval);
    let flow = pacer.add_flow(FlowRates {
        target: rate,
        burst: rate,
    });
    let refused = |problem: String| Error::scenario("rate_mbps", transfer.rate_mbps, problem);
    let flow = flow.map_err(|error| refused(error.to_string()))?;
    // The request arrives; the link is the server's own from then on.
    let mut link = Link::new(transfer);
    let begin = Instant::from_nanos(transfer.one_way_ns());
    pacer
        .on_backlog(begin, flow)
        .map_err(|error| refused(error.to_string()))?;
    let (mut sent, mut last) = (0, 0);
    while let Some(now) = pacer.next_departure() {
        while let Some(flow) = pacer.poll_departure(now) {
            sent += 1;
            last = link.send(now.as_nanos());
            pacer
                .on_sent(now, flow, transfer.packet_bytes, sent < transfer.packets)
                .map_err(|error| refused(error.to_string()))?;
        }
    }
    Ok(last)
}

/// The bottleneck and the way to the client.
struct Link {
    packet_ns: u64,
    one_way_ns: u64,
    free: u64,
}

impl Link {
    fn new(transfer: &Transfer) -> Self {
        Self {
            packet_ns: transfer.packet_ns(),
            one_way_ns: transfer.one_way_ns(),
            free: 0,
        }
    }

    /// When a packet sent at `now` reaches the client.
    fn send(&mut self, now: u64) -> u64 {
        self.free = self.free.max(now) + self.packet_ns;
        self.free + self.one_way_ns
    }
}

/// A transfer that begins with one packet, while it runs.
struct SlowStart<'a> {
    transfer: &'a Transfer,
    /// Of the client's timer, after the request.
    phase: u64,
    link: Link,
    /// When packets reach the client, and acknowledgements, with what they cover, the server.
    arrivals: VecDeque<u64>,
    acks: VecDeque<(u64, u64)>,
    sent: u64,
    acknowledged: u64,
    window: u64,
    /// Packets the client has worked on, and those of them it has not acknowledged.
    worked: u64,
    waiting: u64,
    /// When the client's kernel is done with what it has.
    client_free: u64,
    /// When the timer acknowledges what waits, if anything does.
    tick: u64,
    ran: Ran,
}

impl<'a> SlowStart<'a> {
    fn new(transfer: &'a Transfer, phase: u64) -> Self {
        let mut begun = Self {
            transfer,
            phase,
            link: Link::new(transfer),
            arrivals: VecDeque::new(),
            acks: VecDeque::new(),
            sent: 0,
            acknowledged: 0,
            window: 1,
            worked: 0,
            waiting: 0,
            client_free: 0,
            tick: u64::MAX,
            ran: Ran::default(),
        };
        begun.send(transfer.one_way_ns());
        begun.ran.burst = 0;
        begun
    }

    fn run(mut self) -> Ran {
        loop {
            let arrival = self.arrivals.front().copied().unwrap_or(u64::MAX);
            let done = arrival.max(self.client_free);
            let done = done.saturating_add(self.transfer.client_ns());
            let ack = self.acks.front().map_or(u64::MAX, |(at, _)| *at);
            if done <= ack && done <= self.tick {
                self.work(done);
                if self.worked == self.transfer.packets {
                    self.ran.response_ns = done;
                    return self.ran;
                }
            } else if self.tick <= ack {
                self.acknowledge(self.tick);
            } else if let Some((now, packets)) = self.acks.pop_front() {
                self.acknowledged += packets;
                self.window = (self.window + 1).min(self.limit());
                self.send(now);
            }
        }
    }

    fn limit(&self) -> u64 {
        self.transfer.window_packets.unwrap_or(u64::MAX)
    }

    /// The server sends what the window allows.
    fn send(&mut self, now: u64) {
        let under_way = self.sent - self.acknowledged;
        let left = self.transfer.packets - self.sent;
        let burst = self.window.saturating_sub(under_way).min(left);
        for _ in 0..burst {
            self.arrivals.push_back(self.link.send(now));
        }
        self.sent += burst;
        self.ran.burst = self.ran.burst.max(burst);
    }

    /// The client's kernel is done with a packet. If no other has come meanwhile, the
    /// application reads what waits; from two packets on that is acknowledged.
    fn work(&mut self, now: u64) {
        self.arrivals.pop_front();
        self.client_free = now;
        self.worked += 1;
        self.waiting += 1;
        let busy = self.transfer.client_us > 0.0;
        if busy && self.arrivals.front().is_some_and(|next| *next <= now) {
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
        self.acks.push_back((arrives, self.waiting));
        self.ran.acks += 1;
        self.ran.acknowledged += self.waiting;
        self.ran.big_acks += u64::from(self.waiting > BIG_ACK);
        (self.waiting, self.tick) = (0, u64::MAX);
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

    fn transfer(packets: u64, start: Start) -> Transfer {
        Transfer {
            packets,
            packet_bytes: 1500,
            payload_bytes: 1448,
            rate_mbps: 50.0,
            round_trip_ms: 100.0,
            start,
            delayed_ack_ms: 200.0,
            phases: 20,
            window_packets: None,
            client_us: 0.0,
        }
    }

    fn figure(transfer: &Transfer, name: &str) -> f64 {
        let figures = run(transfer).unwrap();
        figures.iter().find(|(of, _)| of == name).unwrap().1
    }

    /// A client on a local network, with a socket for 11 packets.
    fn local(rate_mbps: f64, client_us: f64) -> Transfer {
        Transfer {
            rate_mbps,
            round_trip_ms: 0.2,
            window_packets: Some(11),
            client_us,
            ..transfer(10_000, Start::SlowStart)
        }
    }

    /// Shows ST-46, ST-47.
    #[test]
    fn packets_that_come_faster_than_they_are_worked_on_share_an_acknowledgement() {
        // 12 µs apart, 100 µs each: the whole window is received first.
        let fast = local(1000.0, 100.0);
        assert!(figure(&fast, "packets_per_ack") > 10.0);
        assert_eq!(figure(&fast, "burst_packets"), 11.0);
        // 120 µs apart: the application reads between two packets.
        let slow = local(100.0, 100.0);
        assert_eq!(figure(&slow, "big_acks_pct"), 0.0);
        assert!(figure(&slow, "packets_per_ack") <= 2.0);
    }

    #[test]
    fn a_window_bounds_what_is_under_way() {
        let mut bounded = transfer(1000, Start::SlowStart);
        bounded.window_packets = Some(10);
        // Ten packets per round trip of 100 ms.
        let got = response_ms(&bounded);
        assert!((got / 10_000.0 - 1.0).abs() < 0.1, "{got}");
        bounded.window_packets = Some(1);
        assert!(
            run(&bounded).is_err(),
            "one packet alone is never acknowledged at once"
        );
    }

    fn response_ms(transfer: &Transfer) -> f64 {
        run(transfer).unwrap()[0].1
    }

    #[test]
    fn a_paced_transfer_takes_a_round_trip_and_its_packet_times() {
        for packets in [1, 5, 100, 1000] {
            let expected = 100.0 + packets as f64 * 0.24;
            let got = response_ms(&transfer(packets, Start::Paced));
            assert!(
                (got / expected - 1.0).abs() < 0.005,
                "{packets}: {got}, {expected}"
            );
        }
    }

    #[test]
    fn one_packet_needs_no_acknowledgement_and_three_wait_for_one() {
        let one = response_ms(&transfer(1, Start::SlowStart));
        assert!((one - 100.24).abs() < 0.01, "{one}");
        // The first is acknowledged by the timer, 0 to 200 ms later.
        let three = response_ms(&transfer(3, Start::SlowStart));
        assert!((three - 300.7).abs() < 6.0, "{three}");
    }

    /// Shows ST-50.
    #[test]
    fn slow_start_never_beats_pacing_and_long_transfers_converge() {
        for packets in [1, 2, 7, 50, 400, 3000] {
            let slow = response_ms(&transfer(packets, Start::SlowStart));
            let paced = response_ms(&transfer(packets, Start::Paced));
            assert!(slow >= paced * 0.999, "{packets}: {slow} {paced}");
        }
        let ratio = response_ms(&transfer(100_000, Start::SlowStart))
            / response_ms(&transfer(100_000, Start::Paced));
        assert!(ratio < 1.1, "{ratio}");
    }

    #[test]
    fn ticks_come_after_now() {
        assert_eq!(next_tick(0, 50, 200), 50);
        assert_eq!(next_tick(50, 50, 200), 250);
        assert_eq!(next_tick(249, 50, 200), 250);
    }
}
