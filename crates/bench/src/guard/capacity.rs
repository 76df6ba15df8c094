//! MLFRR of the stock sink, and the discard capacity of the guarded host.
//!
//! For the discard capacity a guarded socket that nobody reads is flooded: once
//! it is full, the host does nothing but discard. If the generator's maximum
//! fills the host's CPU, what got through the receive ring meanwhile is the
//! capacity (`measured`). If not, a straight line through the host's busy share
//! at several rates says where it would be full (`extrapolated`).

use std::fmt::Write as _;
use std::net::UdpSocket;
use std::time::Duration;

use plimsoll_kernel::meter::CpuMeter;
use plimsoll_report::{Goal, median};
use plimsoll_testbed::blast::Schedule;
use plimsoll_testbed::{Error as TestbedError, interrupt};
use serde::Serialize;

use super::{Base, Bench, Measured, Part};
use crate::Error;
use crate::figures::grouped;
use crate::protection::Stage;
use crate::traffic::{during, udp_flood};
use crate::udp::Servers;

/// Nobody reads here.
const MUTE_PORT: u16 = 10;
const SCHEDULES: [Schedule; 4] = [
    Schedule::Fixed {
        rate_pps: 1_000_000,
    },
    Schedule::Fixed {
        rate_pps: 2_000_000,
    },
    Schedule::Fixed {
        rate_pps: 4_000_000,
    },
    Schedule::Unlimited,
];
/// A CPU that receives this much of its time and hardly idles is full: the rest
/// is other work of the kernel.
const FULL: f64 = 0.9;
const IDLE: f64 = 0.02;
/// A full host loses more than this of what the generator sends.
const LOST: f64 = 0.01;

/// MLFRR and discard capacity.
#[derive(Clone, Debug, Serialize)]
pub struct Capacity {
    /// Maximum loss-free receive rate of the stock sink, packets/s.
    pub mlfrr_pps: f64,
    /// The rate at which early discard alone fills the CPU: the median, packets/s.
    pub discard_capacity_pps: f64,
    /// How each run got it.
    pub methods: Vec<Method>,
    /// Each run's discard capacity, packets/s.
    pub discard_capacity_runs_pps: Vec<f64>,
    /// What the generator reached at most, packets/s.
    pub generator_pps: f64,
    /// What was measured, run after run.
    pub points: Vec<Point>,
}

/// How the discard capacity was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The generator filled the CPU.
    Measured,
    /// From the CPU time per packet at lower rates.
    Extrapolated,
}

/// One flood of the socket that nobody reads.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Point {
    /// Sent at it, packets/s.
    pub offered_pps: f64,
    /// Taken by the receive ring and discarded, packets/s.
    pub discarded_pps: f64,
    /// Part of the host's CPU that network and guard took, from 0 to 1.
    pub busy: f64,
    /// Part of it that was idle.
    pub idle: f64,
}

impl Point {
    fn is_full(&self) -> bool {
        let lost = 1.0 - self.discarded_pps / self.offered_pps;
        self.busy >= FULL && self.idle <= IDLE && lost >= LOST
    }
}

/// Everything this part measured.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    mlfrr_pps: f64,
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    capacity_pps: f64,
    method: Method,
    points: Vec<Point>,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, Error> {
    let outcome = Outcome {
        mlfrr_pps: mlfrr(bench)?,
        runs: capacities(bench, bench.plan.runs)?,
    };
    bench.base = Some(Base {
        mlfrr_pps: outcome.mlfrr_pps,
        capacity_pps: outcome.capacity_pps(),
    });
    Ok(outcome)
}

/// What other parts need of this one, when it does not run itself.
pub(super) fn base(bench: &mut Bench<'_>) -> Result<Base, Error> {
    let capacity_pps = match bench.plan.capacity_pps {
        Some(given) => given,
        None => {
            let runs = capacities(bench, 1)?;
            runs[0].capacity_pps
        }
    };
    let base = Base {
        mlfrr_pps: mlfrr(bench)?,
        capacity_pps,
    };
    bench.base = Some(base);
    Ok(base)
}

fn mlfrr(bench: &mut Bench<'_>) -> Result<f64, Error> {
    if let Some(given) = bench.plan.mlfrr_pps {
        return Ok(given);
    }
    (bench.progress)("looking for the maximum loss-free receive rate (MLFRR)");
    Servers::start(&bench.stage)?.mlfrr(&bench.stage)
}

fn capacities(bench: &mut Bench<'_>, runs: usize) -> Result<Vec<Run>, Error> {
    let stage = bench.stage;
    let _mute = mute_socket(&stage)?;
    let mut all = Vec::new();
    for round in 1..=runs {
        let guard = stage.guard(&[])?;
        let mut meter = stage.host().cpu_meter()?;
        meter.watch(guard.pid());
        let mut points = Vec::new();
        for schedule in SCHEDULES {
            bench.say(Part::Capacity, round, &rate_name(schedule));
            points.push(point(&stage, &meter, schedule, bench.plan.window)?);
        }
        guard.stop()?;
        let (capacity_pps, method) = judge(&points);
        all.push(Run {
            capacity_pps,
            method,
            points,
        });
    }
    Ok(all)
}

fn mute_socket(stage: &Stage<'_>) -> Result<UdpSocket, Error> {
    let address = (stage.host().ipv4(), MUTE_PORT);
    let socket = stage.host().run(|| UdpSocket::bind(address))?;
    Ok(socket.map_err(|source| TestbedError::Io {
        action: "open a socket that nobody reads".to_owned(),
        source,
    })?)
}

fn rate_name(schedule: Schedule) -> String {
    schedule
        .peak_pps()
        .map_or("the generator's maximum".to_owned(), |rate| {
            format!("{rate} packets/s")
        })
}

fn point(
    stage: &Stage<'_>,
    meter: &CpuMeter,
    schedule: Schedule,
    window: Duration,
) -> Result<Point, Error> {
    let spec = udp_flood(stage, MUTE_PORT, schedule);
    let (flood, cpu) = during(stage, Some(&spec), || {
        let before = meter.snapshot();
        interrupt::sleep(window)?;
        Ok(meter.snapshot().since(&before))
    })?;
    let Some(flood) = flood else {
        return Ok(Point::default());
    };
    let guard = cpu.processes.iter().map(|process| process.cpu);
    Ok(Point {
        offered_pps: flood.offered_pps,
        discarded_pps: flood.sent as f64 / flood.elapsed_s,
        busy: cpu.share(cpu.network + guard.sum()),
        idle: cpu.share(cpu.idle),
    })
}

/// The capacity that the points of one run tell, the last one being the
/// generator's maximum.
fn judge(points: &[Point]) -> (f64, Method) {
    let [.., most] = points else {
        return (f64::NAN, Method::Extrapolated);
    };
    if most.is_full() {
        return (most.discarded_pps, Method::Measured);
    }
    let (base, slope) = line(points);
    // What was discarded can be; on a noisy machine the line may say less.
    let seen = points.iter().map(|point| point.discarded_pps);
    let seen = seen.fold(0.0, f64::max);
    let capacity = (1.0 - base) / slope;
    let capacity = if slope > 0.0 {
        capacity.max(seen)
    } else {
        seen
    };
    (capacity, Method::Extrapolated)
}

/// The straight line of the busy share over the rate (least squares): its value
/// at rest, and its slope.
fn line(points: &[Point]) -> (f64, f64) {
    let mean = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (rate, busy) = (mean(|point| point.discarded_pps), mean(|point| point.busy));
    let spread = mean(|point| point.discarded_pps.powi(2)) - rate * rate;
    let slope = (mean(|point| point.discarded_pps * point.busy) - rate * busy) / spread;
    (busy - slope * rate, slope)
}

impl Outcome {
    fn capacity_pps(&self) -> f64 {
        let values: Vec<f64> = self.runs.iter().map(|run| run.capacity_pps).collect();
        median(&values).unwrap_or(f64::NAN)
    }
}

impl Measured for Outcome {
    type Section = Capacity;

    fn section(&self) -> Capacity {
        let points: Vec<Point> = self
            .runs
            .iter()
            .flat_map(|run| run.points.clone())
            .collect();
        let generator = points.iter().map(|point| point.offered_pps);
        Capacity {
            mlfrr_pps: self.mlfrr_pps,
            discard_capacity_pps: self.capacity_pps(),
            methods: self.runs.iter().map(|run| run.method).collect(),
            discard_capacity_runs_pps: self.runs.iter().map(|run| run.capacity_pps).collect(),
            generator_pps: generator.fold(0.0, f64::max),
            points,
        }
    }

    /// Nothing is promised of them: they size the floods.
    fn goals(&self) -> Vec<Goal> {
        Vec::new()
    }
}

impl Capacity {
    pub(super) fn table(&self) -> String {
        let how = |method| {
            let count = self.methods.iter().filter(|&&used| used == method).count();
            format!("{count} of {} runs", self.methods.len())
        };
        let mut text = format!(
            "MLFRR {} packets/s; discard capacity {} packets/s (measured in {}, else extrapolated)\n\
             {:>12}{:>14}{:>8}\n",
            grouped(self.mlfrr_pps),
            grouped(self.discard_capacity_pps),
            how(Method::Measured),
            "offered/s",
            "discarded/s",
            "busy",
        );
        for point in &self.points {
            let _ = writeln!(
                text,
                "{:>12}{:>14}{:>7.1}%",
                grouped(point.offered_pps),
                grouped(point.discarded_pps),
                point.busy * 100.0
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 % of the CPU at rest and 0.15 µs per packet: full at 6 million.
    fn points() -> Vec<Point> {
        let point = |rate: f64| Point {
            offered_pps: rate,
            discarded_pps: rate,
            busy: 0.1 + rate * 1.5e-7,
            idle: 0.9 - rate * 1.5e-7,
        };
        [1e6, 2e6, 5e6].map(point).to_vec()
    }

    #[test]
    fn a_full_cpu_is_a_measurement() {
        let mut points = points();
        points.push(Point {
            offered_pps: 6e6,
            discarded_pps: 5.4e6,
            busy: 0.95,
            idle: 0.0,
        });
        assert_eq!(judge(&points), (5.4e6, Method::Measured));
    }

    #[test]
    fn a_cpu_with_room_is_extrapolated_from() {
        let (capacity, method) = judge(&points());
        assert_eq!(method, Method::Extrapolated);
        assert!((capacity - 6e6).abs() < 1.0, "{capacity}");
    }

    #[test]
    fn the_capacity_is_not_below_what_was_discarded() {
        let mut points = points();
        for (point, busy) in points.iter_mut().zip([1.0, 0.9, 0.8]) {
            point.busy = busy;
        }
        assert_eq!(judge(&points), (5e6, Method::Extrapolated));
    }
}
