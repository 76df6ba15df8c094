//! One transfer over a wide-area path: TCP's slow start against rate-based
//! clocking (Aron & Druschel, section 5.7).
//!
//! A server sends full-size packets through a bottleneck to a client that
//! acknowledges every second one, or one alone when its delayed-acknowledgement
//! timer ticks. In slow start each acknowledgement opens the window by a packet.
//! Paced packets leave as the core's pacer says, at the bottleneck's rate.
//!
//! **Limits.** No loss and no limit of the window: the paper's transfers have
//! neither. The timer's phase against the transfer is unknown, so that a transfer
//! is run at several phases; the mean, the least and the greatest are given.

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

/// Runs it; the figures are `response_ms`, from the client's request to its last
/// packet, with `response_least_ms` and `response_most_ms` among the phases, and
/// `throughput_mbps` of data.
///
/// # Errors
///
/// A value makes no sense.
pub fn run(transfer: &Transfer) -> Result<Vec<(String, f64)>, Error> {
    transfer.validate()?;
    let responses_ns = match transfer.start {
        Start::Paced => vec![paced(transfer)?],
        Start::SlowStart => {
            let period = transfer.delayed_ack_ns();
            let phases = u64::from(transfer.phases);
            let response = |phase: u64| slow_start(transfer, period * phase / phases);
            (0..phases).map(response).collect()
        }
    };
    let response_ns = responses_ns.iter().sum::<u64>() / responses_ns.len() as u64;
    let extreme = |found: Option<&u64>| *found.unwrap_or(&response_ns) as f64 / 1e6;
    let least_ms = extreme(responses_ns.iter().min());
    let most_ms = extreme(responses_ns.iter().max());
    let bits = transfer.packets as f64 * f64::from(transfer.payload_bytes) * 8.0;
    Ok(vec![
        ("response_ms".to_owned(), response_ns as f64 / 1e6),
        ("response_least_ms".to_owned(), least_ms),
        ("response_most_ms".to_owned(), most_ms),
        (
            "throughput_mbps".to_owned(),
            bits * 1e3 / response_ns as f64,
        ),
    ])
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
        within("phases", f64::from(self.phases), 1.0, 1000.0)
    }

    /// Transmission time of a packet at the bottleneck.
    fn packet_ns(&self) -> u64 {
        (f64::from(self.packet_bytes) * 8e3 / self.rate_mbps) as u64
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

/// The response time with the client's timer ticking `phase` after the request.
fn slow_start(transfer: &Transfer, phase: u64) -> u64 {
    let one_way = transfer.one_way_ns();
    let period = transfer.delayed_ack_ns();
    let mut link = Link::new(transfer);
    let mut arrivals = VecDeque::from([link.send(one_way)]);
    let mut acks = VecDeque::new();
    let (mut sent, mut arrived, mut waiting) = (1, 0, 0);
    // The window's room not yet used, in packets.
    let mut room: u64 = 0;
    // When the timer acknowledges what waits, if anything does.
    let mut tick = u64::MAX;
    loop {
        let arrival = arrivals.front().copied().unwrap_or(u64::MAX);
        let ack: u64 = acks.front().map_or(u64::MAX, |(at, _)| *at);
        if arrival <= ack && arrival <= tick {
            arrivals.pop_front();
            arrived += 1;
            if arrived == transfer.packets {
                return arrival;
            }
            waiting += 1;
            if waiting == 2 {
                acks.push_back((arrival + one_way, waiting));
                (waiting, tick) = (0, u64::MAX);
            } else {
                tick = next_tick(arrival, phase, period);
            }
        } else if tick <= ack {
            acks.push_back((tick + one_way, waiting));
            (waiting, tick) = (0, u64::MAX);
        } else if let Some((now, acknowledged)) = acks.pop_front() {
            // What was acknowledged left the network, and the window grows by one.
            room += acknowledged + 1;
            while room > 0 && sent < transfer.packets {
                arrivals.push_back(link.send(now));
                sent += 1;
                room -= 1;
            }
        }
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
        }
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
