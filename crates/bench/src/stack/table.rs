//! The document as text.

use std::fmt::Write as _;

use plimsoll_report::median;

use super::http::{HttpRun, OWN_SYNS_PPS};
use super::idle::IdleRun;
use super::loaded::{BystanderRun, LoadedCase, MULTIPLES};
use super::rpc::RpcRun;
use super::{Document, RoundTrip, RpcWork, SideCase, TcpCase, Udp};
use crate::figures::{Bystander, conclusion, grouped};
use crate::passing::{Mlfrr, PassingCase, PassingRun};

pub(super) fn tables(document: &Document) -> String {
    let polled = match document.threaded.as_str() {
        "off" => String::new(),
        "auto" => {
            "; UDP servers but those on eager are polled for in a thread, beneath them while a flood is alone"
                .to_owned()
        }
        levels => {
            format!("; UDP servers are polled for in a thread {levels} nice levels beneath them")
        }
    };
    let mut text = format!("{}{polled}\n", document.device);
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
    for work in &document.figures.rpc {
        of_rpc(&mut text, work);
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
        let _ = writeln!(text, "\nDNS: answers/s that dnsperf got");
        rows(&mut text, &dns.dnsperf, |case| spread(&case.runs));
    }
    if !document.figures.round_trip.is_empty() {
        of_round_trip(&mut text, &document.figures.round_trip);
    }
    if !document.figures.idle.is_empty() {
        of_idle(&mut text, &document.figures.idle);
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
        "\nClients of another endpoint, and of another program on the kernel's sockets, beside that sink ({work} µs of work); p50 and p99 of answered probes\n{:<13}{:>9}{:>22}{:>22}{:>10}",
        "", "flood", "calm p50 / p99 µs", "flooded p50 / p99 µs", "lost"
    );
    for case in cases.iter().filter(|case| !case.bystander.is_empty()) {
        let runs = &case.bystander;
        let flood: Vec<f64> = runs.iter().map(|run| run.multiple).collect();
        let flood = format!("{:.1} x", median(&flood).unwrap_or(0.0));
        bystander_row(text, case.sink.way, &flood, runs, |run| {
            (run.calm, run.flooded)
        });
        bystander_row(text, "", "kernel's", runs, |run| {
            (run.kernel_calm, run.kernel_flooded)
        });
        let newcomers = runs.iter().filter_map(|run| run.newcomer);
        let lost: Vec<f64> = newcomers.map(|seen| seen.lost as f64).collect();
        if !lost.is_empty() {
            let _ = writeln!(
                text,
                "{:<13}a client that begins when the flood was alone loses {} packets",
                "",
                spread(&lost)
            );
        }
        let computing =
            |value: fn(&BystanderRun) -> f64| -> Vec<f64> { runs.iter().map(value).collect() };
        let _ = writeln!(
            text,
            "{:<13}a compute-bound process gets {} % of the CPU, the sink beside it {} packets/s",
            "",
            fine_spread(&computing(|run| run.computing.process_percent)),
            spread(&computing(|run| run.computing.passed_pps)),
        );
    }
}

/// What a client saw without the flood and during it.
fn bystander_row(
    text: &mut String,
    way: &str,
    flood: &str,
    runs: &[BystanderRun],
    seen: impl Fn(&BystanderRun) -> (Bystander, Bystander),
) {
    let over = |value: &dyn Fn((Bystander, Bystander)) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| value(seen(run))).collect();
        median(&values).unwrap_or(0.0)
    };
    let calm = (
        over(&|(calm, _)| calm.p50_us),
        over(&|(calm, _)| calm.p99_us),
    );
    let flooded = (over(&|(_, f)| f.p50_us), over(&|(_, f)| f.p99_us));
    let _ = writeln!(
        text,
        "{way:<13}{flood:>9}{:>22}{:>22}{:>8.2} %",
        format!("{:.0} / {:.0}", calm.0, calm.1),
        format!("{:.0} / {:.0}", flooded.0, flooded.1),
        over(&|(_, flooded)| 100.0 * flooded.loss()),
    );
}

/// A row for each case, or why it has none.
fn rows<R>(text: &mut String, cases: &[SideCase<R>], row: impl Fn(&SideCase<R>) -> String) {
    for case in cases {
        let figures = match case.runs.is_empty() {
            true => case.why.clone().unwrap_or_default(),
            false => row(case),
        };
        let _ = writeln!(text, "{:<22}{figures}", case.way);
    }
}

/// A median with the lowest and the highest value, with two decimals.
fn fine_spread(values: &[f64]) -> String {
    let middle = median(values).unwrap_or(0.0);
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(0.0, f64::max);
    format!("{middle:.2} ({lowest:.2} to {highest:.2})")
}

fn of_rpc(text: &mut String, work: &RpcWork) {
    let _ = writeln!(
        text,
        "\nTwo servers of calls of {} µs and a worker on one CPU\n{:<22}{:<28}{:<28}calls/s of each",
        work.work_us, "", "worker, % of the CPU", "farthest from a third, points"
    );
    rows(text, &work.cases, |case| {
        format!(
            "{:<28}{:<28}  {} {}",
            fine_spread(&case.values(|run| run.worker_percent)),
            fine_spread(&case.values(RpcRun::error_points)),
            grouped(median(&case.values(|run| run.calls_per_s[0])).unwrap_or(0.0)),
            grouped(median(&case.values(|run| run.calls_per_s[1])).unwrap_or(0.0)),
        )
    });
}

fn of_round_trip(text: &mut String, cases: &[SideCase<RoundTrip>]) {
    let _ = writeln!(
        text,
        "\nRound trip of 60 bytes, µs: mean of the fastest 4,000 of 5,120\n{:<22}{:<28}median of all",
        "", "mean"
    );
    rows(text, cases, |case| {
        let mean = fine_spread(&case.values(|run| run.mean_us));
        let middle = fine_spread(&case.values(|run| run.median_us));
        format!("{mean:<28}{middle}")
    });
}

fn of_idle(text: &mut String, cases: &[SideCase<IdleRun>]) {
    let _ = writeln!(
        text,
        "\n100 busy connections, requests/s\n{:<22}{:<34}{:<34}KiB of each idle one; MiB before all",
        "", "alone", "beside 9,900 idle ones"
    );
    rows(text, cases, |case| {
        format!(
            "{:<34}{:<34}{}; {}",
            spread(&case.values(|run| run.alone_rps)),
            spread(&case.values(|run| run.beside_rps)),
            fine_spread(&case.values(|run| run.bytes_each / 1024.0)),
            fine_spread(&case.values(|run| run.bytes_before / 1024.0 / 1024.0)),
        )
    });
}

fn of_http(text: &mut String, cases: &[SideCase<HttpRun>]) {
    let values = |case: &SideCase<HttpRun>, value: fn(&HttpRun) -> f64| spread(&case.values(value));
    let _ = writeln!(
        text,
        "\nHTTP requests/s beside SYNs for another port (kernel: nginx)\n{:<22}{:<34}{:<34}{:>10}",
        "", "no flood", "flooded", "SYN/s"
    );
    rows(text, cases, |case| {
        let offered = median(&case.values(|run| run.offered_pps)).unwrap_or(0.0);
        format!(
            "{:<34}{:<34}{:>10}",
            values(case, |run| run.calm_rps),
            values(case, |run| run.flooded_rps),
            grouped(offered)
        )
    });
    let [few, many] = OWN_SYNS_PPS.map(|rate| format!("{} SYN/s", grouped(rate as f64)));
    let _ = writeln!(
        text,
        "\nNew connections/s beside SYNs for their port (kernel: nginx)\n{:<22}{:<34}{few:<34}{many}",
        "", "no flood"
    );
    rows(text, cases, |case| {
        format!(
            "{:<34}{:<34}{}",
            values(case, |run| run.connected_cps),
            values(case, |run| run.connected_flooded_cps[0]),
            values(case, |run| run.connected_flooded_cps[1])
        )
    });
}

fn of_tcp(text: &mut String, cases: &[TcpCase]) {
    let _ = writeln!(text, "\nTCP bulk over one connection, Gbit/s");
    for case in cases {
        let figures = match case.gbit_per_s.is_empty() {
            false => fine_spread(&case.gbit_per_s),
            true => case.why.clone().unwrap_or_default(),
        };
        let _ = writeln!(text, "{:<13}{figures}", case.way);
    }
}
