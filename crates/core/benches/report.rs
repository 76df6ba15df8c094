//! Turns criterion's measurements of this crate into the figures it promises.
//!
//! Runs after the benches: reads what criterion stored, compares the medians
//! with `goals.toml`, prints a table with the peers beside ours and writes one
//! JSON document (`schema`, `machine`, `results`, `goals`). It exits with 0
//! also when goals are missed; a goal whose bench did not run is `met: null`.
//!
//! `cargo bench --bench report -- CRITERION_DIR OUTPUT_JSON`. Under
//! `cargo test` it only checks that `goals.toml` is sound.

use std::collections::{BTreeMap, BTreeSet};
use std::error;

use plimsoll_report::criterion::{Asked, Measurement};
use plimsoll_report::{self as report, SCHEMA, Side};
use serde::Deserialize;
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn error::Error>>;

const GOALS: &str = include_str!("goals.toml");

fn main() -> Outcome<()> {
    let goals = parse_goals(GOALS)?;
    let Some(asked) = Asked::by_arguments()? else {
        println!("{} goals are sound", goals.len());
        return Ok(());
    };
    let output = asked.write(&document(&goals, &asked.measured)?)?;
    print_table(&goals, &asked.measured);
    println!("\nwritten to {}", output.display());
    Ok(())
}

/// One line of `goals.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goal {
    /// Criterion's id of the decision: `module/decision`.
    id: String,
    /// The decision in words.
    what: String,
    /// Allowed median of one operation in ns.
    at_most_ns: f64,
    /// Whether every peer measured beside it must be slower.
    #[serde(default)]
    beats_peers: bool,
}

fn parse_goals(text: &str) -> Outcome<Vec<Goal>> {
    #[derive(Deserialize)]
    struct File {
        goal: Vec<Goal>,
    }
    let goals = toml::from_str::<File>(text)?.goal;
    let mut seen = BTreeSet::new();
    for goal in &goals {
        if goal.id.split('/').count() != 2 {
            return Err(format!("goals.toml: {}: an id is module/decision", goal.id).into());
        }
        if !seen.insert(&goal.id) {
            return Err(format!("goals.toml: {} appears twice", goal.id).into());
        }
        if !goal.at_most_ns.is_finite() || goal.at_most_ns <= 0.0 {
            return Err(format!("goals.toml: {}: at_most_ns must be above 0", goal.id).into());
        }
    }
    Ok(goals)
}

/// The peers measured beside `id`: their names and measurements.
fn peers<'a>(
    id: &'a str,
    results: &'a BTreeMap<String, Measurement>,
) -> impl Iterator<Item = (&'a str, &'a Measurement)> {
    results.iter().filter_map(move |(other, measurement)| {
        let peer = other.strip_prefix(id)?.strip_prefix('/')?;
        Some((peer, measurement))
    })
}

fn document(goals: &[Goal], results: &BTreeMap<String, Measurement>) -> Outcome<Value> {
    let mut checked = Vec::new();
    for goal in goals {
        let measured = results.get(&goal.id);
        checked.push(check(&goal.id, &goal.what, goal.at_most_ns, measured));
        for (peer, theirs) in peers(&goal.id, results).filter(|_| goal.beats_peers) {
            let id = format!("{}/beats/{peer}", goal.id);
            let what = format!("{}: faster than {peer}", goal.what);
            checked.push(check(&id, &what, theirs.median, measured));
        }
    }
    Ok(json!({
        "schema": SCHEMA,
        "machine": report::Machine::read(None),
        "results": report::criterion::results(results),
        "goals": checked,
    }))
}

/// One entry of `goals`: at most `limit` ns per operation.
fn check(id: &str, what: &str, limit: f64, measured: Option<&Measurement>) -> report::Goal {
    let runs = measured.map_or_else(Vec::new, |measurement| measurement.runs.clone());
    let goal = report::Goal::new(id, what, Side::AtMost, limit, "ns", runs);
    if measured.is_some() {
        goal
    } else {
        goal.because("its bench did not run")
    }
}

fn print_table(goals: &[Goal], results: &BTreeMap<String, Measurement>) {
    println!(
        "{:<58} {:>10} {:>10}  met",
        "decision", "median ns", "goal ns"
    );
    for goal in goals {
        let Some(ours) = results.get(&goal.id) else {
            println!(
                "{:<58} {:>10} {:>10.1}  not measured",
                goal.id, "-", goal.at_most_ns
            );
            continue;
        };
        let verdict = |met| if met { "yes" } else { "NO" };
        let met = verdict(ours.median <= goal.at_most_ns);
        println!(
            "{:<58} {:>10.2} {:>10.1}  {met}",
            goal.id, ours.median, goal.at_most_ns
        );
        for (peer, theirs) in peers(&goal.id, results) {
            let slower = theirs.median / ours.median;
            println!(
                "    {peer:<54} {:>10.2}  {slower:>8.1} x ours",
                theirs.median
            );
        }
    }
    let has_goal = |id: &str| goals.iter().any(|goal| id.starts_with(&goal.id));
    for (id, measurement) in results.iter().filter(|(id, _)| !has_goal(id)) {
        println!("{id:<58} {:>10.2} {:>10}", measurement.median, "-");
    }
}
