//! `plimsoll probe`: what a bystander sees of a UDP server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::bench::millis;
use crate::failure::Context;
use plimsoll_report::{Machine, SCHEMA};
use plimsoll_testbed::interrupt;
use plimsoll_testbed::probe::{self, Config, Percentiles, Report};

use crate::output::{self, Target};

/// Probe a UDP echo server: answers, losses and latency.
///
/// Sends numbered datagrams on a schedule that was fixed in advance.
/// Latency counts from the time a probe was due, so a late sender or a stalled
/// server is never hidden.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(
        value_name = "TARGET",
        help = "The echo server, as ADDRESS:PORT ([ADDRESS]:PORT for IPv6)"
    )]
    target: SocketAddr,
    /// Probes per second, 100 to 50000
    #[arg(long, value_name = "PER_SECOND", default_value_t = defaults().rate_pps)]
    rate: u32,
    /// How long to send, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = defaults().duration.as_secs_f64())]
    duration: f64,
    /// How long an answer may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = millis(defaults().timeout))]
    timeout_ms: u64,
    /// UDP payload in bytes, 16 to 1400
    #[arg(long, value_name = "BYTES", default_value_t = defaults().payload_bytes)]
    payload: usize,
    /// Run with real-time priority, to measure the server and not the wait for a shared CPU
    #[arg(long)]
    realtime: bool,
    /// Write one JSON document to FILE (`-`: standard output) instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn defaults() -> Config {
    Config::new((Ipv4Addr::LOCALHOST, 0).into())
}

pub(crate) fn run(args: &Args) -> crate::Result<()> {
    interrupt::install()?;
    let config = Config {
        target: args.target,
        rate_pps: args.rate,
        duration: Duration::try_from_secs_f64(args.duration).context("--duration")?,
        timeout: Duration::from_millis(args.timeout_ms),
        payload_bytes: args.payload,
        realtime: args.realtime,
    };
    let json = Target::open_given(args.json.as_ref())?;
    let report = probe::run(&config)?;
    output::deliver_one(json, || document(&config, &report), || table(&report))
}

fn document(config: &Config, report: &Report) -> serde_json::Value {
    serde_json::json!({
        "schema": SCHEMA,
        "machine": Machine::read(None),
        "probe": {
            "target": config.target,
            "rate_pps": config.rate_pps,
            "duration_s": config.duration.as_secs_f64(),
            "timeout_s": config.timeout.as_secs_f64(),
            "payload_bytes": config.payload_bytes,
        },
        "results": report,
        "goals": [],
    })
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    for (name, count) in [
        ("sent", report.sent),
        ("answered", report.answered),
        ("late", report.late),
        ("lost", report.lost),
        ("duplicates", report.duplicates),
        ("send errors", report.send_errors),
    ] {
        text += &format!("{name:<12}{count:>12}\n");
    }
    text += &format!(
        "\n{:<12}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
        "us", "p50", "p90", "p99", "p99.9", "max"
    );
    text += &percentiles("latency", report.answered, &report.latency);
    text += &percentiles("slip", report.sent, &report.slip);
    text
}

/// Of so many values. Of none there is no percentile.
fn percentiles(name: &str, count: u64, percentiles: &Percentiles) -> String {
    let columns = [
        percentiles.p50_ns,
        percentiles.p90_ns,
        percentiles.p99_ns,
        percentiles.p999_ns,
        percentiles.max_ns,
    ];
    let columns = columns.map(|nanos| match count {
        0 => format!("{:>12}", "-"),
        _ => format!("{:>12.1}", nanos as f64 / 1e3),
    });
    format!("{name:<12}{}\n", columns.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nanos: u64) -> Percentiles {
        Percentiles {
            p50_ns: nanos,
            p90_ns: nanos,
            p99_ns: nanos,
            p999_ns: nanos,
            max_ns: nanos,
        }
    }

    /// The best of all latencies had stood there.
    #[test]
    fn where_nobody_answers_there_is_no_latency() {
        let report = Report {
            sent: 2,
            answered: 0,
            late: 1,
            lost: 1,
            duplicates: 0,
            send_errors: 0,
            latency: of(0),
            slip: of(1500),
            realtime: false,
        };
        let shown = table(&report);
        let row = |name: &str| {
            let row = shown.lines().find(|row| row.starts_with(name)).unwrap();
            row.split_whitespace().skip(1).collect::<Vec<_>>()
        };
        assert_eq!(row("latency"), ["-"; 5]);
        assert_eq!(row("slip"), ["1.5"; 5]);
    }
}
