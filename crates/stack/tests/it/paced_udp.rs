//! Paced UDP on a cable in memory, seen by a capture at the sender's device.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_core::pacing::{FlowId, FlowRates, Rate};
use plimsoll_stack::device::recording::Recording;
use plimsoll_stack::device::simulated::{SimulatedConfig, SimulatedDevice};
use plimsoll_stack::{
    Filled, FlowFailed, PacedSender, PacedSenderConfig, Stack, StackConfig, UdpSocket,
};

use crate::capture::{Capture, assert_spaced};

/// No test waits longer for what must come.
const SOON: Duration = Duration::from_secs(20);
const PAYLOAD: usize = 1158;
/// With Ethernet, IPv4 and UDP headers.
const FRAME_BYTES: u32 = 1200;

struct Pair {
    sender: PacedSender,
    receiver: UdpSocket,
    capture: Capture,
}

impl Pair {
    fn new(flows_max: u32) -> Self {
        let link = SimulatedConfig {
            ring_frames: 4096,
            chunks: 16384,
            ..SimulatedConfig::default()
        };
        let (one, other) = SimulatedDevice::pair(&link).unwrap();
        let config = |last: u8| StackConfig::at(format!("10.0.0.{last}/24").parse().unwrap());
        let capture = Capture::default();
        let device = Recording::new(one, capture.clone()).unwrap();
        let here = Stack::start(device, &config(1)).unwrap();
        let there = Stack::start(other, &config(2)).unwrap();
        let receiver = UdpSocket::bind(&there, "10.0.0.2:9").unwrap();
        receiver.set_read_timeout(Some(SOON)).unwrap();
        let socket = UdpSocket::bind(&here, "10.0.0.1:7").unwrap();
        // The neighbour is known before anything is timed.
        socket.send_to(b"first", "10.0.0.2:9").unwrap();
        receiver.recv_from(&mut [0; 16]).unwrap();
        let config = PacedSenderConfig {
            flows_max,
            ..PacedSenderConfig::default()
        };
        Self {
            sender: PacedSender::new(socket, config).unwrap(),
            receiver,
            capture,
        }
    }

    /// To this port of the other end.
    fn flow(&mut self, port: u16, megabits: u64) -> FlowId {
        let to = SocketAddr::from(([10, 0, 0, 2], port));
        let flow = self.sender.add_flow(to, rates(megabits)).unwrap();
        self.sender.start(flow).unwrap();
        flow
    }

    /// Asks all the time until every flow has sent so many.
    fn send(&mut self, flows: &[FlowId], each: usize) {
        let mut left = vec![each; flows.len()];
        let mut all = each * flows.len();
        let begun = Instant::now();
        while all > 0 {
            let Some(now) = self.sender.check() else {
                thread::yield_now();
                continue;
            };
            let sent = self.sender.send_due(now, |flow, place| {
                let left = &mut left[flow.place()];
                *left -= 1;
                place[..PAYLOAD].fill(*left as u8);
                Some(Filled {
                    bytes: PAYLOAD,
                    more: *left > 0,
                })
            });
            all -= sent.unwrap();
            assert!(begun.elapsed() < SOON, "{all} are left");
        }
    }
}

/// What is late is caught up at twice the rate.
fn rates(megabits: u64) -> FlowRates {
    FlowRates {
        target: Rate::clamped(megabits * 1_000_000),
        burst: Rate::clamped(megabits * 2_000_000),
    }
}

fn burst_interval(megabits: u64) -> Duration {
    rates(megabits).burst.interval(FRAME_BYTES)
}

/// ST-27, ST-30: one by one, on average at the target rate, never faster than the burst rate.
#[test]
fn datagrams_leave_one_by_one_at_their_rate() {
    let mut pair = Pair::new(1);
    let flow = pair.flow(9, 20);
    pair.send(&[flow], 200);
    let departures = pair.capture.departures_to(9, 201);
    assert_eq!(departures.len(), 201, "with the first");
    let paced = &departures[1..];
    assert_spaced(paced, burst_interval(20));
    let slack = Duration::from_millis(10);
    // From the first on: what a pause after it delays is caught up.
    let took = Duration::from_nanos(paced[199] - departures[0]);
    assert!(
        took + slack >= 200 * rates(20).target.interval(FRAME_BYTES),
        "{took:?}"
    );
    for number in (0..200).rev() {
        let mut datagram = [0; 2048];
        let (length, _) = pair.receiver.recv_from(&mut datagram).unwrap();
        assert_eq!(datagram[..length], [number as u8; PAYLOAD]);
    }
}

/// ST-33, ST-37: thousands, each at its own rate, none twice in one trigger state.
#[test]
fn thousands_of_flows_are_paced_at_once() {
    const FLOWS: u16 = 2000;
    const EACH: usize = 5;
    let mut pair = Pair::new(FLOWS.into());
    // A datagram every 96 ms and, of each second flow, every 48 ms.
    let flows: Vec<FlowId> = (0..FLOWS)
        .map(|k| {
            let to = SocketAddr::from(([10, 0, 0, 2], 10_000 + k));
            let target = Rate::clamped(100_000 * u64::from(1 + k % 2));
            let burst = Rate::clamped(200_000 * u64::from(1 + k % 2));
            let flow = pair.sender.add_flow(to, FlowRates { target, burst });
            flow.unwrap()
        })
        .collect();
    for flow in &flows {
        pair.sender.start(*flow).unwrap();
    }
    pair.send(&flows, EACH);
    let mut of_port = vec![Vec::new(); FLOWS.into()];
    for (port, at) in pair.capture.departures(usize::from(FLOWS) * EACH) {
        if port >= 10_000 {
            of_port[usize::from(port - 10_000)].push(at);
        }
    }
    for (k, departures) in of_port.iter().enumerate() {
        assert_eq!(departures.len(), EACH, "flow {k}");
        let interval = Duration::from_millis(if k % 2 == 0 { 48 } else { 24 });
        let gaps = EACH as u32 - 1;
        let took = Duration::from_nanos(departures[EACH - 1] - departures[0]);
        // As in `assert_spaced`: one gap may look shorter.
        assert!(
            took >= (gaps - 1) * interval * 99 / 100,
            "flow {k}: {took:?}"
        );
    }
}

/// ST-29: a thread that did not ask for long owes many datagrams, and sends none at once.
#[test]
fn no_burst_follows_a_gap_without_trigger_states() {
    let mut pair = Pair::new(1);
    let flow = pair.flow(9, 20);
    pair.send(&[flow], 20);
    pair.sender.start(flow).unwrap();
    thread::sleep(Duration::from_millis(100));
    pair.send(&[flow], 100);
    assert_spaced(&pair.capture.departures_to(9, 121)[1..], burst_interval(20));
}

#[test]
fn a_flow_that_was_removed_sends_no_more_and_its_place_is_free() {
    let mut pair = Pair::new(1);
    let first = pair.flow(9, 20);
    let to = "10.0.0.2:9".parse().unwrap();
    let full = pair.sender.add_flow(to, rates(1)).unwrap_err();
    assert_eq!(
        full.to_string(),
        "no place for another flow: remove one first"
    );
    pair.sender.remove_flow(first).unwrap();
    assert_eq!(pair.sender.check(), None);
    assert!(pair.sender.start(first).is_err());
    let second = pair.flow(9, 20);
    assert!(pair.sender.until_departure().is_some());
    pair.send(&[second], 2);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut pair = Pair::new(2);
    let nowhere = pair
        .sender
        .add_flow("10.0.0.2:0".parse().unwrap(), rates(1));
    assert!(nowhere.is_err());
    let backwards = FlowRates {
        target: Rate::clamped(2_000_000),
        burst: Rate::clamped(1_000_000),
    };
    let to = "10.0.0.2:9".parse().unwrap();
    assert!(pair.sender.add_flow(to, backwards).is_err());
}

/// It was told that some flow could not send, and not which.
#[test]
fn a_flow_that_cannot_send_is_named_and_the_others_go_on() {
    let mut pair = Pair::new(3);
    let flows = [9, 10, 11].map(|port| pair.flow(port, 20));
    let wrong = flows[1];
    let (mut asked, mut failed) = (Vec::new(), None);
    let begun = Instant::now();
    while asked.len() < flows.len() {
        assert!(begun.elapsed() < SOON, "{asked:?}");
        let Some(now) = pair.sender.check() else {
            continue;
        };
        let sent = pair.sender.send_due(now, |flow, place| {
            asked.push(flow);
            let bytes = if flow == wrong { place.len() + 1 } else { 5 };
            Some(Filled { bytes, more: false })
        });
        failed = failed.or(sent.err());
    }
    let failed = failed.unwrap();
    assert_eq!(failed.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        failed.to_string(),
        "a paced flow to 10.0.0.2:10: a datagram of 1473 bytes, where 1472 fit"
    );
    let named = failed.get_ref().and_then(|error| error.downcast_ref());
    assert_eq!(named.map(|named: &FlowFailed| named.flow), Some(wrong));
    let departures = |pair: &Pair, all| {
        let ports = pair.capture.departures(all).into_iter();
        ports.map(|(port, _)| port).collect::<Vec<_>>()
    };
    let mut ports = departures(&pair, 3);
    ports.sort_unstable();
    assert_eq!(ports, [9, 9, 11], "with the first");
    // It may begin again.
    pair.sender.start(wrong).unwrap();
    let fill = |_, _: &mut [u8]| {
        Some(Filled {
            bytes: 5,
            more: false,
        })
    };
    while pair.sender.until_departure().is_some() {
        let Some(now) = pair.sender.check() else {
            continue;
        };
        pair.sender.send_due(now, fill).unwrap();
    }
    assert_eq!(departures(&pair, 4).last(), Some(&10));
}
