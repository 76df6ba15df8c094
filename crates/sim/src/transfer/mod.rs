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
//! Packets are lost where a transfer says so: the paper's have no loss. A lost packet is sent
//! again by TCP's rules (`tcp`).
//!
//! **Limits.** Acknowledgements are never lost, and a paced transfer loses nothing. The timer's phase against the
//! transfer is unknown, so that a transfer is run at several phases; the mean, the least
//! and the greatest are given.

mod tcp;

use std::time::Duration;

use plimsoll_core::pacing::{FlowRates, Pacer, PacerConfig, Rate};
use plimsoll_core::time::Instant;
use serde::{Deserialize, Serialize};

use crate::Error;
use tcp::{Link, Tcp};

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
    /// Packets on the way that are lost, by number from 1; one that is sent again has
    /// another number. With slow start only. Default: none.
    #[serde(default)]
    pub lost: Vec<u64>,
    /// Packets that wait in front of the bottleneck: what comes beyond is lost. With slow
    /// start only. Default: no limit.
    #[serde(default)]
    pub queue_packets: Option<u64>,
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
/// `burst_packets` the most that were sent at once. Where packets can be lost, also the mean
/// `lost_packets`, `sent_again` and `timeouts` of a transfer.
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
            let one = |phase: u64| Tcp::new(transfer, period * phase / phases).run();
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
    let mean = |of: fn(&Ran) -> u64| sum(of) as f64 / runs.len() as f64;
    let of_loss = [
        ("lost_packets", mean(|run| run.lost)),
        ("sent_again", mean(|run| run.sent_again)),
        ("timeouts", mean(|run| run.timeouts)),
    ];
    let of_loss = of_loss.into_iter().filter(|_| transfer.can_lose());
    let named = figures.into_iter().chain(of_loss);
    let named = named.map(|(name, value)| (name.to_owned(), value));
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
    lost: u64,
    sent_again: u64,
    timeouts: u64,
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
        within("window_packets", window as f64, 2.0, f64::INFINITY)?;
        if self.can_lose() && self.start == Start::Paced {
            let problem = "paced";
            return Err(Error::scenario("start", problem, "slow-start, with loss"));
        }
        Ok(())
    }

    fn can_lose(&self) -> bool {
        !self.lost.is_empty() || self.queue_packets.is_some()
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
            last = link.send(now.as_nanos()).unwrap_or(last);
            pacer
                .on_sent(now, flow, transfer.packet_bytes, sent < transfer.packets)
                .map_err(|error| refused(error.to_string()))?;
        }
    }
    Ok(last)
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
            lost: Vec::new(),
            queue_packets: None,
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

    /// A packet takes 1 ms, the way 50 ms; the timer ticks at 200, 400, … ms.
    fn losing(packets: u64, lost: &[u64]) -> Transfer {
        Transfer {
            rate_mbps: 12.0,
            phases: 1,
            lost: lost.to_vec(),
            ..transfer(packets, Start::SlowStart)
        }
    }

    fn figures(transfer: &Transfer) -> [f64; 4] {
        ["response_ms", "lost_packets", "sent_again", "timeouts"].map(|name| figure(transfer, name))
    }

    /// Packet 0 arrives at 101 and is acknowledged by the tick at 200; 1 and 2 leave at 250.
    /// 1 is lost, and 2 has it acknowledged once more, which is too little. The round trip of
    /// 200 ms gives a timeout of 600, which is raised to 1000: at 1250 packet 1 leaves again.
    #[test]
    fn what_too_few_follow_is_sent_again_by_the_timeout() {
        assert_eq!(figures(&losing(3, &[2])), [1301.0, 1.0, 1.0, 1.0]);
    }

    /// The first of all is lost twice: 1 s, then 2 s.
    #[test]
    fn timeouts_double() {
        assert_eq!(figures(&losing(1, &[1, 2])), [3101.0, 2.0, 2.0, 2.0]);
    }

    /// Packet 9 is lost of the six that leave from 555 to 561. The third duplicate comes at
    /// 659; 9 leaves again and 15 and 16 follow, one for each further duplicate. 9 arrives at
    /// 710, so that the acknowledgement at 760 is of all 15. The window is 3 from there on: 17
    /// leaves at 760, 18 and 19 at 762, behind it, and 19 arrives at 814.
    #[test]
    fn what_enough_follow_is_sent_again_at_the_third_duplicate() {
        assert_eq!(figures(&losing(20, &[10])), [814.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn a_short_queue_loses_what_a_window_brings_and_the_transfer_ends() {
        let mut transfer = losing(2000, &[]);
        transfer.queue_packets = Some(20);
        let [response_ms, lost, again, _] = figures(&transfer);
        assert!(lost > 10.0 && again >= lost, "{lost} {again}");
        // Two packets per millisecond would be more than the bottleneck passes.
        assert!(response_ms > 2100.0, "{response_ms}");
        transfer.queue_packets = Some(100_000);
        assert_eq!(figures(&transfer)[1..], [0.0, 0.0, 0.0]);
        transfer.start = Start::Paced;
        assert!(run(&transfer).is_err());
    }

    /// Nothing is lost: the rules for loss change nothing.
    #[test]
    fn without_loss_all_is_as_if_there_could_be_none() {
        for packets in [1, 3, 50, 700] {
            let plain = losing(packets, &[]);
            let mut could = losing(packets, &[1_000_000]);
            could.window_packets = Some(64);
            let plain = Transfer {
                window_packets: Some(64),
                ..plain
            };
            assert_eq!(run(&plain).unwrap(), run(&could).unwrap()[..7]);
        }
    }

    #[test]
    fn any_loss_is_repaired() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let packets = rng.u64(1..300);
            let lost: Vec<u64> = (1..400).filter(|_| rng.u32(..20) == 0).collect();
            let one = Transfer {
                phases: 3,
                ..losing(packets, &lost)
            };
            let [response_ms, lost, again, _] = figures(&one);
            assert!(again >= lost, "{one:?}");
            assert!(response_ms >= packets as f64 + 100.0 - 1e-6, "{one:?}");
        }
    }
}
