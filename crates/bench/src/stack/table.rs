//! The document as text.

use std::fmt::Write as _;

use plimsoll_report::median;

use super::http::{HttpCase, HttpRun};
use super::loaded::{BystanderRun, LoadedCase, MULTIPLES};
use super::{Document, TcpCase, Udp};
use crate::figures::{conclusion, grouped};
use crate::passing::{Mlfrr, PassingCase, PassingRun};

pub(super) fn tables(document: &Document) -> String {
    let mut text = format!("{}\n", document.device);
    if let Some(udp) = &document.figures.udp {
        of_udp(&mut text, udp);
    }
    let mut works: Vec<u128> = document
        .figures
        .loaded
        .iter()
        .map(|case| case.work_us)
        .collect();
    works.dedup();
    for work in works {
        let cases = document
            .figures
            .loaded
            .iter()
            .filter(|case| case.work_us == work);
        let cases: Vec<&LoadedCase> = cases.collect();
        let title = format!("A sink with {work} µs of work: goodput, packets/s");
        let sinks: Vec<&PassingCase> = cases.iter().map(|case| &case.sink).collect();
        curves(&mut text, &title, &sinks);
        of_bystander(&mut text, work, &cases);
    }
    if !document.figures.http.is_empty() {
        of_http(&mut text, &document.figures.http);
    }
    if !document.figures.tcp.is_empty() {
        of_tcp(&mut text, &document.figures.tcp);
    }
    if let Some(dns) = &document.figures.dns {
        let responders: Vec<&PassingCase> = dns.responders.iter().collect();
        curves(&mut text, "DNS: answers/s", &responders);
    }
    text + conclusion(&document.machine, &document.goals).as_str()
}

/// A median with the lowest and the highest value.
fn spread(values: &[f64]) -> String {
    let middle = median(values).unwrap_or(0.0);
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(0.0, f64::max);
    format!(
        "{} ({} to {})",
        grouped(middle),
        grouped(lowest),
        grouped(highest)
    )
}

fn mlfrr(case: &PassingCase) -> String {
    if case.runs.is_empty() {
        return case
            .why
            .clone()
            .unwrap_or_else(|| "not measured".to_owned());
    }
    let values: Vec<f64> = case.runs.iter().map(|run| run.mlfrr_pps).collect();
    let at_least = case.runs.iter().any(|run| run.mlfrr_is == Mlfrr::AtLeast);
    let bound = if at_least { ">" } else { "" };
    format!("{bound}{}", spread(&values))
}

fn of_udp(text: &mut String, udp: &Udp) {
    let _ = writeln!(
        text,
        "\nMLFRR of UDP servers that do no work, packets/s (>: the generator ended the search)"
    );
    let _ = writeln!(text, "{:<13}{:<40}echo", "", "sink");
    for (sink, echo) in udp.sink.iter().zip(&udp.echo) {
        let _ = writeln!(text, "{:<13}{:<40}{}", sink.way, mlfrr(sink), mlfrr(echo));
    }
}

fn curves(text: &mut String, title: &str, cases: &[&PassingCase]) {
    let _ = write!(
        text,
        "\n{title}, at multiples of the MLFRR\n{:<13}{:<34}",
        "", "MLFRR"
    );
    for multiple in MULTIPLES {
        let _ = write!(text, "{:>11}", format!("{multiple} x"));
    }
    let _ = writeln!(text, "{:>14}", "offered most");
    for case in cases {
        let _ = write!(text, "{:<13}{:<34}", case.way, mlfrr(case));
        let over = |value: &dyn Fn(&PassingRun) -> Option<f64>| {
            let values: Vec<f64> = case.runs.iter().filter_map(value).collect();
            median(&values).map_or_else(|| "-".to_owned(), grouped)
        };
        for place in 0..MULTIPLES.len() {
            let passed = over(&|run| run.curve.get(place).map(|point| point.passed_pps));
            let _ = write!(text, "{passed:>11}");
        }
        let offered = over(&|run| run.curve.iter().map(|p| p.offered_pps).reduce(f64::max));
        let _ = writeln!(text, "{offered:>14}");
    }
}

fn of_bystander(text: &mut String, work: u128, cases: &[&LoadedCase]) {
    if cases.iter().all(|case| case.bystander.is_empty()) {
        return;
    }
    let _ = writeln!(
        text,
        "\nAnother endpoint's client beside that sink, flooded ({work} µs of work)\n{:<13}{:>9}{:>22}{:>22}{:>10}",
        "", "flood", "calm p50 / p99 µs", "flooded p50 / p99 µs", "lost"
    );
    for case in cases.iter().filter(|case| !case.bystander.is_empty()) {
        let over = |value: &dyn Fn(&BystanderRun) -> f64| {
            let values: Vec<f64> = case.bystander.iter().map(value).collect();
            median(&values).unwrap_or(0.0)
        };
        let calm = (over(&|run| run.calm.p50_us), over(&|run| run.calm.p99_us));
        let flooded = (
            over(&|run| run.flooded.p50_us),
            over(&|run| run.flooded.p99_us),
        );
        let _ = writeln!(
            text,
            "{:<13}{:>7.1} x{:>22}{:>22}{:>8.2} %",
            case.sink.way,
            over(&|run| run.multiple),
            format!("{:.0} / {:.0}", calm.0, calm.1),
            format!("{:.0} / {:.0}", flooded.0, flooded.1),
            over(&|run| 100.0 * run.flooded.loss()),
        );
    }
}

fn of_http(text: &mut String, cases: &[HttpCase]) {
    let _ = writeln!(
        text,
        "\nHTTP requests/s beside SYNs for another port (kernel: nginx)\n{:<13}{:<34}{:<34}{:>10}",
        "", "no flood", "flooded", "SYN/s"
    );
    for case in cases {
        let values =
            |value: fn(&HttpRun) -> f64| -> Vec<f64> { case.runs.iter().map(value).collect() };
        if case.runs.is_empty() {
            let why = case.why.as_deref().unwrap_or("not measured");
            let _ = writeln!(text, "{:<13}{why}", case.way);
            continue;
        }
        let _ = writeln!(
            text,
            "{:<13}{:<34}{:<34}{:>10}",
            case.way,
            spread(&values(|run| run.calm_rps)),
            spread(&values(|run| run.flooded_rps)),
            grouped(median(&values(|run| run.offered_pps)).unwrap_or(0.0)),
        );
    }
}

fn of_tcp(text: &mut String, cases: &[TcpCase]) {
    let _ = writeln!(text, "\nTCP bulk over one connection, Gbit/s");
    for case in cases {
        let lowest = case
            .gbit_per_s
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        let highest = case.gbit_per_s.iter().copied().fold(0.0, f64::max);
        let figures = match median(&case.gbit_per_s) {
            Some(middle) => format!("{middle:.2} ({lowest:.2} to {highest:.2})"),
            None => case.why.clone().unwrap_or_default(),
        };
        let _ = writeln!(text, "{:<13}{figures}", case.way);
    }
}
