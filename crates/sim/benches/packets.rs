//! How fast the model is: packets per second of one CPU of this machine, on the
//! plain sink experiment far beyond its MLFRR.
//!
//! Beside it runs the naive way to write the same host: one event per stage and
//! packet, with packets on the heap and events in a `BinaryHeap`. It knows neither
//! preemption nor accounts nor threads: what it leaves out makes it faster.
//!
//! `--json FILE` writes a document with the goal. Run as a test it makes one short
//! run of each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use plimsoll_report::{Goal, Machine, SCHEMA, Side, goals_table, median};
use plimsoll_sim::{Profile, Scenario, run};

/// Promised without footprints, and with them.
const GOAL_PPS: f64 = 5e6;
const GOAL_FOOTPRINTS_PPS: f64 = 3e6;
const RUNS: usize = 9;
/// The host, and what it is offered: more than twice what it takes.
const PLAIN: (&str, u64) = ("sparcstation-20", 20_000);
/// A host whose caches forget packet input (`input_refill`).
const FOOTPRINTS: (&str, u64) = ("pentium2-333", 111_000);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let measures = arguments.iter().any(|argument| argument == "--bench");
    let (runs, seconds) = if measures { (RUNS, 50) } else { (1, 1) };
    let model = repeat(runs, || modelled(PLAIN, seconds));
    let footprints = repeat(runs, || modelled(FOOTPRINTS, seconds));
    let naive = repeat(runs, || naive(seconds));
    for (name, values) in [
        ("plimsoll-sim", &model),
        ("with footprints", &footprints),
        ("naive heap of events", &naive),
    ] {
        let middle = median(values).unwrap_or(f64::NAN);
        println!("{name:<24}{:>8.2} million packets/s", middle / 1e6);
    }
    let goal = |id: &str, what: &str, least: f64, values: &[f64]| {
        let measured = if measures {
            values.to_vec()
        } else {
            Vec::new()
        };
        Goal::new(id, what, Side::AtLeast, least, "packets/s", measured)
    };
    let goals = [
        goal(
            "sim/plain_sink",
            "simulated packets per second and core on the plain sink",
            GOAL_PPS,
            &model,
        ),
        goal(
            "sim/plain_sink_footprints",
            "the same with footprints in the caches",
            GOAL_FOOTPRINTS_PPS,
            &footprints,
        ),
    ];
    print!("{}", goals_table(&goals));
    let mut rest = arguments
        .iter()
        .skip_while(|argument| *argument != "--json");
    if let Some(file) = rest.nth(1) {
        let document = serde_json::json!({
            "schema": SCHEMA, "machine": Machine::read(None),
            "results": { "model_pps": model, "footprints_pps": footprints, "naive_pps": naive },
            "goals": goals,
        });
        std::fs::write(file, format!("{document:#}\n")).expect("the file can be written");
    }
}

/// Packets per second of each run.
fn repeat(runs: usize, packets: impl Fn() -> u64) -> Vec<f64> {
    let timed = |_| {
        let start = Instant::now();
        packets() as f64 / start.elapsed().as_secs_f64()
    };
    (0..runs).map(timed).collect()
}

fn modelled((host, offered_pps): (&str, u64), seconds: u64) -> u64 {
    let profile = Profile::named(host).expect("a built-in profile");
    let text = format!(
        r#"
        duration_ms = {}
        path = {{ kind = "batched-interrupts" }}
        [[source]]
        name = "flood"
        to = "sink"
        traffic = {{ kind = "constant", rate_pps = {offered_pps} }}
        [[consumer]]
        name = "sink"
        role = {{ kind = "sink" }}
        "#,
        seconds * 1000
    );
    let scenario = Scenario::from_toml(&text).expect("a scenario");
    let outcome = run(&profile, &scenario, 1).expect("a run");
    outcome.simulated_packets
}

/// What happens on the naive host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Arrival,
    DriverDone,
    ProtocolDone,
    Received,
}

/// A packet, on the heap as in a naive model.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    arrived: u64,
}

/// The earliest event is the greatest: time, order of scheduling, what, packet.
type Event = Reverse<(u64, u64, Kind, Option<Box<Packet>>)>;

/// The same stages with the same costs and queues; when the CPU becomes free it
/// serves the highest stage that has work.
#[derive(Default)]
struct Naive {
    events: BinaryHeap<Event>,
    order: u64,
    ring: VecDeque<Box<Packet>>,
    ip_queue: VecDeque<Box<Packet>>,
    socket: VecDeque<Box<Packet>>,
    busy: bool,
    packets: u64,
    latency_ns: u64,
}

const QUEUE: usize = 50;

impl Naive {
    fn schedule(&mut self, at: u64, kind: Kind, packet: Option<Box<Packet>>) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, kind, packet)));
    }

    fn happen(&mut self, now: u64, kind: Kind, packet: Option<Box<Packet>>) {
        let queue = match kind {
            Kind::Arrival => {
                self.packets += 1;
                self.schedule(now + 1_000_000_000 / PLAIN.1, Kind::Arrival, None);
                let packet = Box::new(Packet { arrived: now });
                if self.ring.len() < QUEUE {
                    self.ring.push_back(packet);
                }
                return;
            }
            Kind::DriverDone => &mut self.ip_queue,
            Kind::ProtocolDone => &mut self.socket,
            Kind::Received => {
                self.busy = false;
                self.latency_ns += packet.map_or(0, |packet| now - packet.arrived);
                return;
            }
        };
        self.busy = false;
        queue.extend(packet.filter(|_| queue.len() < QUEUE));
    }

    fn dispatch(&mut self, now: u64) {
        let next = if let Some(packet) = self.ring.pop_front() {
            (15_500, Kind::DriverDone, packet)
        } else if let Some(packet) = self.ip_queue.pop_front() {
            (31_000, Kind::ProtocolDone, packet)
        } else if let Some(packet) = self.socket.pop_front() {
            (74_800, Kind::Received, packet)
        } else {
            return;
        };
        self.busy = true;
        self.schedule(now + next.0, next.1, Some(next.2));
    }
}

fn naive(seconds: u64) -> u64 {
    let mut host = Naive::default();
    host.schedule(0, Kind::Arrival, None);
    while let Some(Reverse((now, _, kind, packet))) = host.events.pop() {
        if now > seconds * 1_000_000_000 {
            break;
        }
        host.happen(now, kind, packet);
        if !host.busy {
            host.dispatch(now);
        }
    }
    // What was computed is looked at, so that it has to be computed.
    assert!(std::hint::black_box(host.latency_ns) < u64::MAX);
    host.packets
}
