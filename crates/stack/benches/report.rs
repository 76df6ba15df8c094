//! The 1994 paper's techniques in the stack's path, with and without: a table, and one JSON document
//! (`schema`, `machine`, `results`, `techniques`), from what criterion stored of the bench
//! `techniques`.
//!
//! A verdict compares the middle halves of the samples: where they overlap nothing is decided.
//!
//! `cargo bench --bench report -- CRITERION_DIR OUTPUT_JSON`. Under `cargo test` it only checks the
//! verdicts.

use std::collections::BTreeMap;
use std::error;

use plimsoll_report::criterion::{Asked, Measurement, results};
use plimsoll_report::{Machine, SCHEMA, figure};
use serde_json::{Value, json};

/// Ids and what they are. `ID/with` has the technique, all others below `ID` have not.
const TECHNIQUES: [(&str, &str); 11] = [
    ("watchdog/call_of_1", "lazy watchdog, one frame a call"),
    ("watchdog/call_of_64", "the same, a frame of 64"),
    ("protection/one_thread", "optimistic protection"),
    ("protection/two_threads", "the same, two threads"),
    ("allocator/one_thread", "allocator of the thread"),
    ("allocator/two_threads", "the same, two threads"),
    (
        "ownership/60_bytes",
        "buffer handed on by ownership, 60 bytes",
    ),
    ("ownership/1400_bytes", "the same, 1400 bytes"),
    ("message/1400_bytes", "message written in place, one chunk"),
    ("message/4000_bytes", "the same, 3 chunks"),
    ("message/62000_bytes", "the same, 42 chunks"),
];

type Measured = BTreeMap<String, Measurement>;

fn main() -> Result<(), Box<dyn error::Error>> {
    let Some(asked) = Asked::by_arguments()? else {
        verdicts();
        return Ok(());
    };
    let measured = &asked.measured;
    let mut techniques = Vec::new();
    println!(
        "{:<42} {:>22} {:>22}  verdict",
        "technique", "with, ns", "without, ns"
    );
    for (id, what) in TECHNIQUES {
        let compared = compared(measured, id);
        if compared.is_empty() {
            println!("{what:<42} {:>22} {:>22}  not measured", "-", "-");
        }
        for (with, name, without) in compared {
            let verdict = verdict(with, without);
            println!(
                "{what:<42} {:>22} {:>22}  {verdict} beside {name}",
                spread(with),
                spread(without)
            );
            techniques.push(row(id, what, (with, without), name, verdict));
        }
    }
    let document = json!({
        "schema": SCHEMA,
        "machine": Machine::read(None),
        "results": results(measured),
        "techniques": techniques,
    });
    println!("\nwritten to {}", asked.write(&document)?.display());
    Ok(())
}

/// The technique beside each plain way, with that one's name.
fn compared<'a>(
    measured: &'a Measured,
    id: &str,
) -> Vec<(&'a Measurement, &'a str, &'a Measurement)> {
    let Some(with) = measured.get(&format!("{id}/with")) else {
        return Vec::new();
    };
    let below = measured.iter().filter_map(|(other, measurement)| {
        let name = other.strip_prefix(id)?.strip_prefix('/')?;
        (name != "with").then_some((with, name, measurement))
    });
    below.collect()
}

/// Where a quarter of the samples is below, and where a quarter is above.
fn middle_half(measurement: &Measurement) -> [f64; 2] {
    let mut sorted = measurement.runs.clone();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    [last / 4, last - last / 4].map(|place| sorted.get(place).copied().unwrap_or(f64::NAN))
}

fn verdict(with: &Measurement, without: &Measurement) -> &'static str {
    let ([low, high], [plain_low, plain_high]) = (middle_half(with), middle_half(without));
    match () {
        () if high < plain_low => "pays",
        () if low > plain_high => "costs",
        () => "undecided",
    }
}

fn spread(measurement: &Measurement) -> String {
    let [low, high] = middle_half(measurement).map(figure);
    format!("{} ({low} to {high})", figure(measurement.median))
}

fn row(
    id: &str,
    what: &str,
    (with, without): (&Measurement, &Measurement),
    name: &str,
    verdict: &str,
) -> Value {
    json!({
        "id": id,
        "technique": what,
        "with": with.median,
        "without": without.median,
        "beside": name,
        "unit": "ns",
        "verdict": verdict,
    })
}

fn verdicts() {
    let measurement = |runs: [f64; 5]| Measurement {
        median: runs[2],
        runs: runs.to_vec(),
    };
    let (fast, slow) = (
        measurement([1.0, 2.0, 3.0, 4.0, 90.0]),
        measurement([1.0, 5.0, 6.0, 7.0, 8.0]),
    );
    let between = measurement([3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(verdict(&fast, &slow), "pays");
    assert_eq!(verdict(&slow, &fast), "costs");
    assert_eq!(verdict(&fast, &between), "undecided");
    let ids = ["a/b/with", "a/b/plain way", "a/bc/other", "d/e/x"];
    let measured: Measured = ids.map(|id| (id.to_owned(), fast.clone())).into();
    let names = |id| -> Vec<&str> {
        let compared = compared(&measured, id);
        compared.into_iter().map(|(_, name, _)| name).collect()
    };
    assert_eq!(names("a/b"), ["plain way"]);
    assert!(names("a").is_empty() && names("d/e").is_empty());
    println!("the verdicts are sound");
}
