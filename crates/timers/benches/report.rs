//! Turns criterion's measurements of this crate into the figures it promises:
//! a table and one JSON document (`schema`, `machine`, `results`, `goals`).
//!
//! `cargo bench --bench report -- CRITERION_DIR OUTPUT_JSON`. Under
//! `cargo test` it only checks the arithmetic.

use std::collections::BTreeMap;
use std::error;

use plimsoll_report::criterion::{Asked, Measurement, results};
use plimsoll_report::{Goal, Machine, SCHEMA, Side, figure, goals_table};
use serde_json::json;

const CHECK: &str = "check/nothing_due";
const CLOCK: &str = "check/clock_alone";
const EVENT: &str = "event/schedule_and_fire";
const TIMERFD: &str = "event/schedule_and_fire/timerfd";

type Measured = BTreeMap<String, Measurement>;

fn main() -> Result<(), Box<dyn error::Error>> {
    let Some(asked) = Asked::by_arguments()? else {
        arithmetic();
        return Ok(());
    };
    let measured = &asked.measured;
    let goals = goals(measured);
    let document = json!({
        "schema": SCHEMA,
        "machine": Machine::read(None),
        "results": results(measured),
        "goals": goals,
    });
    let output = asked.write(&document)?;
    for (id, measurement) in measured {
        println!("{id:<60} {:>10} ns", figure(measurement.median));
    }
    print!("{}", goals_table(&goals));
    println!("\nwritten to {}", output.display());
    Ok(())
}

/// The runs of `id`, each compared with the median of `beside`.
fn compared(measured: &Measured, id: &str, beside: &str, by: fn(f64, f64) -> f64) -> Vec<f64> {
    let (Some(ours), Some(beside)) = (measured.get(id), measured.get(beside)) else {
        return Vec::new();
    };
    ours.runs
        .iter()
        .map(|run| by(*run, beside.median))
        .collect()
}

fn goals(measured: &Measured) -> Vec<Goal> {
    let event_runs = measured
        .get(EVENT)
        .map_or_else(Vec::new, |m| m.runs.clone());
    let mut goals = vec![
        Goal::new(
            "check_above_clock",
            "a check with nothing due, above a reading of its clock alone",
            Side::AtMost,
            3.0,
            "ns",
            compared(measured, CHECK, CLOCK, |ours, clock| ours - clock),
        ),
        Goal::new(
            "event",
            "one event fires and is scheduled again, 10,000 pending",
            Side::AtMost,
            60.0,
            "ns",
            event_runs,
        ),
        Goal::new(
            "event_beside_timerfd",
            "an expiry of a timerfd costs as much as this many events",
            Side::AtLeast,
            10.0,
            "x",
            compared(measured, EVENT, TIMERFD, |ours, theirs| theirs / ours),
        ),
    ];
    for (id, peer) in measured {
        let Some(name) = id
            .strip_prefix(EVENT)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            continue;
        };
        goals.push(Goal::new(
            format!("event_beats_{}", name.replace(' ', "_")),
            format!("one event is cheaper than with {name}"),
            Side::AtMost,
            peer.median,
            "ns",
            measured
                .get(EVENT)
                .map_or_else(Vec::new, |m| m.runs.clone()),
        ));
    }
    goals
}

fn arithmetic() {
    let measurement = |median| Measurement {
        median,
        runs: vec![median],
    };
    let measured: Measured = [
        (CHECK, 13.0),
        (CLOCK, 11.0),
        (EVENT, 50.0),
        (TIMERFD, 400.0),
    ]
    .map(|(id, median)| (id.to_owned(), measurement(median)))
    .into();
    let of = |id: &str| {
        let goals = goals(&measured);
        let goal = goals.iter().find(|goal| goal.id == id).expect("it exists");
        (goal.measured, goal.met)
    };
    assert_eq!(of("check_above_clock"), (Some(2.0), Some(true)));
    assert_eq!(of("event_beside_timerfd"), (Some(8.0), Some(false)));
    assert_eq!(of("event_beats_timerfd"), (Some(50.0), Some(true)));
    assert!(
        goals(&Measured::new())
            .iter()
            .all(|goal| goal.met.is_none())
    );
    println!("the goals are sound");
}
