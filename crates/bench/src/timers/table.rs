//! The document as text.

use std::fmt::Write as _;

use plimsoll_report::{figure, median};

use super::{Document, PollingCase, Slowdown, SpacingCase};
use crate::figures::{conclusion, grouped};

pub(super) fn tables(document: &Document) -> String {
    let mut text = String::new();
    if let Some(slowdown) = &document.slowdown {
        text += "An event every 20 µs in an HTTP server\n";
        of_slowdown(&mut text, slowdown);
    }
    if !document.polling.is_empty() {
        of_polling(&mut text, &document.polling);
    }
    if let Some(flows) = &document.flows {
        let _ = writeln!(
            text,
            "\n{} paced flows of the stack's UDP, {} datagrams/s wanted: {} left a second, {} % of them late by an interval",
            grouped(f64::from(flows.flows)),
            grouped(flows.target_per_s),
            grouped(middle(&flows.per_s)),
            figure(middle(&flows.late_percent)),
        );
    }
    if !document.spacing.is_empty() {
        of_spacing(&mut text, &document.spacing);
    }
    if let Some(deadlines) = &document.deadlines {
        text += "\nDeadlines so many µs after a soft event is due\n";
        of_slowdown(&mut text, deadlines);
    }
    text + conclusion(&document.machine, &document.goals).as_str()
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

fn of_slowdown(text: &mut String, slowdown: &Slowdown) {
    let _ = writeln!(
        text,
        "With {}: {} requests/s; the server slept for {:.3} of them",
        slowdown.beside,
        grouped(middle(&slowdown.requests_per_s)),
        middle(&slowdown.slept)
    );
    let _ = writeln!(
        text,
        "{:<18} {:>9} {:>16} {:>10} {:>11} {:>9}",
        "event", "lost %", "middle half %", "events/s", "by kernel %", "ns each"
    );
    for case in &slowdown.cases {
        let [low, high] = case.quartiles_percent;
        let by_kernel = median(&case.by_kernel_percent).map_or_else(|| "-".to_owned(), figure);
        let each = median(&case.event_ns).map_or_else(|| "-".to_owned(), figure);
        let _ = writeln!(
            text,
            "{:<18} {:>9.2} {:>7.2} to {:>5.2} {:>10} {by_kernel:>11} {each:>9}",
            case.name,
            middle(&case.slowdown_percent),
            low,
            high,
            grouped(middle(&case.events_per_s)),
        );
    }
}

fn of_polling(text: &mut String, cases: &[PollingCase]) {
    let _ = writeln!(
        text,
        "\nHTTP by how arrivals are found: requests/s, and one connection's latency\n{:<22} {:>16} {:>16} {:>10} {:>10}",
        "", "one per connection", "persistent", "p50 µs", "p99 µs"
    );
    for case in cases {
        if let Some(why) = &case.why {
            let _ = writeln!(text, "{:<22} {why}", case.way);
            continue;
        }
        let _ = writeln!(
            text,
            "{:<22} {:>18} {:>16} {:>10} {:>10}",
            case.way,
            grouped(middle(&case.single_per_s)),
            grouped(middle(&case.persistent_per_s)),
            figure(middle(&case.light_p50_us)),
            figure(middle(&case.light_p99_us)),
        );
    }
}

fn of_spacing(text: &mut String, cases: &[SpacingCase]) {
    let _ = writeln!(
        text,
        "\nOne paced stream of full frames beside work: intervals in µs\n{:<10} {:>9} {:>9} {:>9} {:>11}",
        "sender", "wanted", "mean", "stddev", "own work %"
    );
    for case in cases {
        if let Some(why) = &case.why {
            let _ = writeln!(text, "{:<10} {:>8} {why}", case.sender, case.target_us);
            continue;
        }
        let _ = writeln!(
            text,
            "{:<10} {:>8} {:>9.3} {:>9.2} {:>11.1}",
            case.sender,
            case.target_us,
            middle(&case.mean_us),
            middle(&case.stddev_us),
            middle(&case.work_percent),
        );
    }
}
