//! This machine's kernel with real packets, as a host of the lab's experiments.
//!
//! What can be real is what the testbed has: one socket whose server works 2 µs
//! per packet is flooded at the swept rate, and an echo is probed 2000 times a
//! second. An experiment that asks for real packets has to model exactly that: a
//! consumer `sink` with this work and a consumer `echo`.
//!
//! **Limits.** The bystander's latency is the round trip its client sees, not the
//! time inside the host, and a veth link is no adapter.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_lab::{Error, Figures, Host, Point, TestbedPath};

use crate::flooded::{FloodFigures, Flooded};
use crate::protection::Protection;

/// The testbed.
#[derive(Debug)]
pub struct RealPackets(Flooded);

/// Measured part of each point.
const WINDOW: Duration = Duration::from_millis(1000);
/// As in the demo.
const HOLDOFF: Duration = Duration::from_micros(30);

impl RealPackets {
    /// Makes the testbed. `program` is the `plimsoll` command itself, which is
    /// started as servers and guard.
    ///
    /// # Errors
    ///
    /// This host cannot make a testbed.
    pub fn start(program: PathBuf) -> Result<Self, crate::Error> {
        Flooded::start(program, HOLDOFF).map(Self)
    }
}

impl Host for RealPackets {
    fn name(&self) -> &'static str {
        "testbed"
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        let protection = match point.curve.testbed {
            Some(TestbedPath::Stock) => Protection::Stock,
            Some(TestbedPath::Threaded) => Protection::Threaded,
            Some(TestbedPath::Guard) => Protection::Guard,
            None => {
                let remedy = "add testbed = \"stock\", \"threaded\" or \"guard\" to the curve";
                return Err(point.error("has no receive path on the testbed", remedy));
            }
        };
        check(point)?;
        let flood = self.0.flood(protection, point.x as u64, WINDOW);
        let flood = flood.map_err(|error| Error::Testbed {
            what: format!("{} at {}", point.curve.id, point.x),
            source: error.into(),
        })?;
        Ok(figures(&flood))
    }
}

/// The model has to be one of what the testbed does.
fn check(point: &Point<'_>) -> Result<(), Error> {
    let wanted = Flooded::SINK_WORK.as_secs_f64() * 1e6;
    let consumers = point
        .settings
        .get("consumer")
        .and_then(toml::Value::as_array);
    let named = |name: &str| {
        let mut all = consumers?.iter();
        all.find(|consumer| consumer.get("name").and_then(toml::Value::as_str) == Some(name))
    };
    let work = named("sink").and_then(|sink| sink.get("role")?.get("work_us"));
    let work = work.and_then(|work| work.as_float().or(work.as_integer().map(|us| us as f64)));
    if work == Some(wanted) && named("echo").is_some() {
        return Ok(());
    }
    let remedy = format!("model a consumer sink with work_us = {wanted} and a consumer echo");
    Err(point.error("differs from what the testbed does", remedy))
}

/// By the names the modelled host uses.
fn figures(flood: &FloodFigures) -> Figures {
    let seconds = WINDOW.as_secs_f64();
    let bystander = &flood.bystander;
    let answered = (bystander.sent - bystander.lost) as f64 / seconds;
    let part = |count: u64| 100.0 * count as f64 / flood.losses.offered.max(1) as f64;
    Figures::from([
        ("offered_pps".to_owned(), flood.offered_pps),
        ("consumer.sink.delivered_pps".to_owned(), flood.goodput_pps),
        ("consumer.echo.delivered_pps".to_owned(), answered),
        (
            "source.probe.lost_pps".to_owned(),
            bystander.lost as f64 / seconds,
        ),
        ("consumer.echo.latency_p50_us".to_owned(), bystander.p50_us),
        ("consumer.echo.latency_p99_us".to_owned(), bystander.p99_us),
        ("cpu.idle_pct".to_owned(), 100.0 * flood.host_cpu.idle),
        (
            "cpu.busy_pct".to_owned(),
            100.0 * (1.0 - flood.host_cpu.idle),
        ),
        (
            "loss.interface_part_pct".to_owned(),
            part(flood.losses.receive_ring),
        ),
        (
            "loss.early-discard_part_pct".to_owned(),
            part(flood.losses.early_discard),
        ),
    ])
}
