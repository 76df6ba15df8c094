//! A recorded span of virtual time, for a viewer and for a reader.
//!
//! [`perfetto`] writes the trace-event JSON that ui.perfetto.dev and Chromium's
//! tracing page read: one process per CPU, one row per interrupt level or thread
//! on it, and one row per packet from its arrival to its end. [`text`] lists the
//! same in order of time, as the papers' timeline figures do.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_sim::scenario::TraceConfig;
use plimsoll_sim::trace::{Event, Trace, What};
use serde_json::{Value, json};

use crate::error::Error;
use crate::experiment::Experiment;
use crate::host::Point;
use crate::modelled::Modelled;

/// What is recorded.
#[derive(Clone, Debug)]
pub struct TracePlan {
    /// The curve; the first without this.
    pub curve: Option<String>,
    /// Value of the swept parameter; the middle one without this.
    pub x: Option<f64>,
    /// Recording begins this long after the start of the run.
    pub start_ms: f64,
    /// How long it lasts.
    pub duration_ms: f64,
    /// From the next packet's arrival to that packet's end instead.
    pub one_packet: bool,
    /// Repeats the run.
    pub seed: u64,
}

/// The most events of a recording.
const EVENTS_MAX: u32 = 1_000_000;
/// How long a recording waits for the one packet and its end.
const PACKET_MS: f64 = 1000.0;

/// Runs one point of `experiment` on the modelled host and records it.
///
/// # Errors
///
/// There is no such curve, the settings make no sense, the experiment is not about a
/// host that receives packets, or nothing happened in that time.
pub fn record(experiment: &Experiment, plan: &TracePlan) -> Result<Trace, Error> {
    let curve = match &plan.curve {
        None => experiment.curves.first(),
        Some(id) => experiment.curve(id),
    };
    let curve = curve.ok_or_else(|| Error::Unknown {
        what: "curve",
        given: plan.curve.clone().unwrap_or_default(),
        remedy: format!("use one of {}", experiment.curve_ids()),
    })?;
    let values = &experiment.sweep.values;
    let x = plan.x.unwrap_or(values[values.len() / 2]);
    let settings = experiment.settings(curve, x)?;
    if let Some(model) = settings.get("model") {
        let problem = format!("{model} receives no packets that could be followed");
        let remedy = "trace an experiment whose [scenario] has no `model`";
        return Err(Error::file(
            &experiment.file,
            "scenario.model",
            problem,
            remedy,
        ));
    }
    let point = Point {
        experiment,
        curve,
        x,
        settings,
        seed: plan.seed,
    };
    let config = TraceConfig {
        start_ms: plan.start_ms,
        duration_ms: if plan.one_packet {
            PACKET_MS
        } else {
            plan.duration_ms
        },
        events_max: EVENTS_MAX,
    };
    let trace = Modelled.trace(&point, config)?;
    if trace.events.is_empty() {
        return Err(nothing_happened(&point, plan));
    }
    Ok(if plan.one_packet {
        one_packet(trace)
    } else {
        trace
    })
}

fn nothing_happened(point: &Point<'_>, plan: &TracePlan) -> Error {
    let of = |key: &str| {
        let value = point.settings.get(key)?;
        value
            .as_float()
            .or_else(|| value.as_integer().map(|whole| whole as f64))
    };
    let end = of("duration_ms").unwrap_or_default() + of("warmup_ms").unwrap_or(100.0);
    Error::Unknown {
        what: "what happens at",
        given: format!("{} ms", plan.start_ms),
        remedy: format!("the run ends after {end} ms: choose --start-ms before, and --ms above 0"),
    }
}

/// The part from the first arrival to the end of that packet.
fn one_packet(mut trace: Trace) -> Trace {
    let mut events = trace.events.iter();
    let Some(first) = events.position(|event| event.what == What::Arrived) else {
        return trace;
    };
    let packet = packet_id(&trace.events[first]);
    let is_end = |event: &Event| {
        matches!(event.what, What::Lost(_) | What::Delivered | What::Left)
            && packet_id(event) == packet
    };
    let end = trace.events[first..].iter().position(is_end);
    let end = end.map_or(trace.events.len(), |length| first + length + 1);
    trace.events.truncate(end);
    trace.events.drain(..first);
    trace.missed = 0;
    trace
}

/// The trace-event document of a trace. Times are µs of virtual time.
#[must_use]
pub fn perfetto(trace: &Trace) -> Value {
    let mut events = names(trace);
    let mut open = BTreeMap::new();
    let end = trace.events.last().map_or(0, |event| event.at_ns);
    for event in &trace.events {
        match event.what {
            What::Begin { cpu, actor } => {
                open.insert((cpu, actor), event.at_ns);
            }
            What::End { cpu, actor } => {
                // What ran when recording began has no beginning.
                let begin = open.remove(&(cpu, actor));
                events.extend(begin.map(|begin| span(trace, cpu, actor, begin, event.at_ns)));
            }
            _ => events.push(packet(event)),
        }
    }
    let rest = open.into_iter();
    events.extend(rest.map(|((cpu, actor), begin)| span(trace, cpu, actor, begin, end)));
    json!({
        "displayTimeUnit": "ns",
        "otherData": { "missed": trace.missed },
        "traceEvents": events,
    })
}

/// Names of the CPUs and of the rows on each.
fn names(trace: &Trace) -> Vec<Value> {
    let mut rows = BTreeMap::new();
    for event in &trace.events {
        if let What::Begin { cpu, actor } | What::End { cpu, actor } = event.what {
            rows.insert((cpu, actor), ());
        }
    }
    let mut names = Vec::new();
    for (cpu, actor) in rows.into_keys() {
        names.push(json!({
            "ph": "M", "name": "process_name", "pid": pid(cpu),
            "args": { "name": format!("CPU {cpu}") },
        }));
        names.push(json!({
            "ph": "M", "name": "thread_name", "pid": pid(cpu), "tid": tid(actor),
            "args": { "name": name(trace, actor) },
        }));
    }
    names.push(json!({
        "ph": "M", "name": "process_name", "pid": PACKETS, "args": { "name": "packets" },
    }));
    names
}

fn span(trace: &Trace, cpu: u8, actor: u16, begin: u64, end: u64) -> Value {
    json!({
        "ph": "X", "name": name(trace, actor), "cat": "cpu",
        "pid": pid(cpu), "tid": tid(actor), "ts": micros(begin), "dur": micros(end - begin),
    })
}

/// The process of all packets; CPUs come after it.
const PACKETS: u32 = 1;

fn pid(cpu: u8) -> u32 {
    PACKETS + 1 + u32::from(cpu)
}

/// Viewers take thread 0 for the process.
fn tid(actor: u16) -> u32 {
    u32::from(actor) + 1
}

fn packet(event: &Event) -> Value {
    let phase = match event.what {
        What::Arrived => "b",
        What::Lost(_) | What::Delivered | What::Left => "e",
        _ => "n",
    };
    json!({
        "ph": phase, "cat": "packet", "name": "packet", "pid": PACKETS, "tid": 1,
        "id": packet_id(event), "ts": micros(event.at_ns), "args": { "what": what(event.what) },
    })
}

fn packet_id(event: &Event) -> String {
    format!("{}#{}", event.source, event.tag)
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn name(trace: &Trace, actor: u16) -> &str {
    let name = trace.actors.get(usize::from(actor));
    name.map_or("unnamed", String::as_str)
}

fn what(what: What) -> String {
    match what {
        What::Arrived => "arrives in the receive ring".to_owned(),
        What::Lost(place) => format!("is lost at {}", place.name()),
        What::Protocol => "protocol work is over".to_owned(),
        What::Transmit => "is handed to the transmitter".to_owned(),
        What::Left => "is transmitted".to_owned(),
        What::Delivered => "reaches its consumer".to_owned(),
        What::Begin { .. } => "begins".to_owned(),
        What::End { .. } => "ends".to_owned(),
    }
}

/// The trace in words, a line per event; times are µs after the first.
#[must_use]
pub fn text(trace: &Trace) -> String {
    let mut text = String::new();
    let start = trace.events.first().map_or(0, |event| event.at_ns);
    for event in &trace.events {
        let _ = write!(text, "{:>12.3} µs  ", micros(event.at_ns - start));
        let _ = match event.what {
            What::Begin { cpu, actor } | What::End { cpu, actor } => {
                let arrow = match event.what {
                    What::Begin { .. } => '▶',
                    _ => '■',
                };
                writeln!(text, "cpu {cpu} {arrow} {}", name(trace, actor))
            }
            other => writeln!(text, "      packet {} {}", packet_id(event), what(other)),
        };
    }
    if trace.missed > 0 {
        let _ = writeln!(text, "{} further events did not fit", trace.missed);
    }
    text
}
