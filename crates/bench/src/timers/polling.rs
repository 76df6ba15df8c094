//! Network polling by soft timers in our stack's HTTP server (table XII): arrivals that
//! wake the receiving thread, and polls that find 1 to 15 packets on average.
//!
//! One CPU for the server. One thread around epoll serves all connections; its calls are
//! trigger states. The kernel's sockets stand beside them, with the same server.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use plimsoll_kernel::error::with_causes;
use plimsoll_report::{Goal, Side, median};
use plimsoll_testbed::http::{FILE_BYTES, HttpLoad, HttpResult, run_wrk};
use plimsoll_testbed::server::{Config as ServerConfig, Kind, On};
use serde::Serialize;

use super::Plan;
use crate::Error;
use crate::cases::in_round;
use crate::passing::is_of_all;
use crate::stack::Effort;
use crate::stack::http::serve_configured;
use crate::stack::site::{Answers, Site};

const PORT: u16 = 80;
const CONNECTIONS: u32 = 32;
/// Whole seconds, as wrk counts.
const SECONDS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(4);
/// The receiving thread is woken, and does what a poll does.
const INTERRUPTS: &str = "soft-lrp";
/// Percent above the throughput with interrupts that are promised.
const GAIN_GOAL: f64 = 10.0;

/// A server's sockets.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    /// None: the kernel's.
    path: Option<&'static str>,
}

const fn polled(name: &'static str) -> Way {
    Way {
        name,
        path: Some(name),
    }
}

const WAYS: [Way; 7] = [
    Way {
        name: "kernel",
        path: None,
    },
    Way {
        name: "interrupts",
        path: Some(INTERRUPTS),
    },
    polled("soft-timer-polling:1"),
    polled("soft-timer-polling:2"),
    polled("soft-timer-polling:5"),
    polled("soft-timer-polling:10"),
    polled("soft-timer-polling:15"),
];

/// What one way gave.
#[derive(Clone, Debug, Serialize)]
pub struct PollingCase {
    /// How arrivals are found.
    pub way: &'static str,
    /// Requests per second, one per connection; a value for each run.
    pub single_per_s: Vec<f64>,
    /// Requests per second over persistent connections; a value for each run.
    pub persistent_per_s: Vec<f64>,
    /// Median latency of one connection that waits for each answer, in µs; a value for
    /// each run.
    pub light_p50_us: Vec<f64>,
    /// Its 99th percentile.
    pub light_p99_us: Vec<f64>,
    /// Why there are fewer runs than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl PollingCase {
    fn new(way: Way) -> Self {
        Self {
            way: way.name,
            single_per_s: Vec::new(),
            persistent_per_s: Vec::new(),
            light_p50_us: Vec::new(),
            light_p99_us: Vec::new(),
            why: None,
        }
    }

    fn push(&mut self, run: &ServerRun) {
        self.single_per_s.push(run.single.requests_per_second);
        self.persistent_per_s
            .push(run.persistent.requests_per_second);
        self.light_p50_us.push(run.light.latency_p50_us);
        self.light_p99_us.push(run.light.latency_p99_us);
    }
}

/// What a client measured of one server.
pub(crate) struct ServerRun {
    /// A request per connection.
    pub(crate) single: HttpResult,
    /// Persistent connections.
    pub(crate) persistent: HttpResult,
    /// One connection that waits for each answer.
    pub(crate) light: HttpResult,
}

pub(super) fn measure(
    plan: &Plan,
    progress: &mut impl FnMut(&str),
) -> Result<Vec<PollingCase>, Error> {
    let mut cases = WAYS.map(|way| (way, PollingCase::new(way)));
    for run in 1..=plan.runs {
        for (way, case) in in_round(run, &mut cases) {
            if case.why.is_some() {
                continue;
            }
            progress(&format!("run {run}, polling: {}", way.name));
            match measure_server(&plan.program, way.path) {
                Ok(run) => case.push(&run),
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => case.why = Some(with_causes(&error)),
            }
        }
    }
    Ok(cases.into_iter().map(|(_, case)| case).collect())
}

/// Makes hosts and a server with this path of the stack, or the kernel's sockets, and asks it.
pub(crate) fn measure_server(program: &Path, path: Option<&str>) -> Result<ServerRun, Error> {
    let effort = Effort::new(program.to_owned());
    let site = Site::new(&effort, Answers::Received)?;
    let mut config = ServerConfig::new(Kind::Http, PORT);
    if let Some(path) = path {
        config.on = On::AfXdp(site.testbed.test().device().to_owned());
        let parsed = path.parse();
        config.path = Some(parsed.map_err(|error| Error::Tool {
            tool: "a receive path",
            problem: format!("{error}"),
        })?);
    }
    let page = "x".repeat(FILE_BYTES);
    let (server, at) = serve_configured(&site, config, "index.html", page.as_bytes())?;
    let run = ServerRun {
        single: ask(&site, at, CONNECTIONS, false)?,
        persistent: ask(&site, at, CONNECTIONS, true)?,
        light: ask(&site, at, 1, true)?,
    };
    server.stop()?;
    Ok(run)
}

fn ask(
    site: &Site<'_>,
    at: SocketAddr,
    connections: u32,
    keep_alive: bool,
) -> Result<HttpResult, Error> {
    let load = HttpLoad {
        connections,
        seconds: SECONDS,
        keep_alive,
        patience: PATIENCE,
    };
    Ok(run_wrk(site.testbed.load(), at, load)?)
}

/// Against interrupts: the quota with the best median is judged, by run.
pub(super) fn goals(cases: &[PollingCase]) -> Vec<Goal> {
    let gain = |id: &str, what: &str, of: fn(&PollingCase) -> &Vec<f64>| {
        let runs = best(cases, of).map_or_else(Vec::new, |best| ratios(cases, best, of));
        Goal::new(
            format!("polling_{id}"),
            format!("polled HTTP, {what}: throughput at the best quota above interrupts"),
            Side::AtLeast,
            GAIN_GOAL,
            "%",
            runs.iter().map(|ratio| 100.0 * (ratio - 1.0)).collect(),
        )
    };
    let judged = best(cases, |case| &case.persistent_per_s);
    let light = judged.map_or_else(Vec::new, |best| {
        ratios(cases, best, |case| &case.light_p50_us)
    });
    vec![
        gain("single", "a request per connection", |case| {
            &case.single_per_s
        }),
        gain("persistent", "persistent connections", |case| {
            &case.persistent_per_s
        }),
        Goal::new(
            "polling_light",
            "polled HTTP, one connection: median latency at that quota against interrupts",
            Side::AtMost,
            1.0,
            "x",
            light,
        ),
    ]
}

/// The polled case with the highest median.
fn best(cases: &[PollingCase], of: fn(&PollingCase) -> &Vec<f64>) -> Option<&PollingCase> {
    let polled = cases
        .iter()
        .filter(|case| case.way.starts_with("soft-timer-polling"));
    polled.max_by(|one, other| {
        let middle = |case| median(of(case)).unwrap_or(0.0);
        middle(one).total_cmp(&middle(other))
    })
}

/// Each run of a case, against the median with interrupts.
fn ratios(
    cases: &[PollingCase],
    case: &PollingCase,
    of: fn(&PollingCase) -> &Vec<f64>,
) -> Vec<f64> {
    let interrupts = cases.iter().find(|case| case.way == "interrupts");
    let beside = interrupts.and_then(|case| median(of(case)));
    beside.map_or_else(Vec::new, |beside| {
        of(case).iter().map(|value| value / beside).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(way: Way, persistent: [f64; 3], light: f64) -> PollingCase {
        PollingCase {
            single_per_s: vec![100.0; 3],
            persistent_per_s: persistent.to_vec(),
            light_p50_us: vec![light; 3],
            ..PollingCase::new(way)
        }
    }

    #[test]
    fn the_quota_with_the_best_median_is_judged() {
        let cases = [
            case(WAYS[0], [900.0; 3], 1.0),
            case(WAYS[1], [100.0, 90.0, 110.0], 50.0),
            case(WAYS[2], [105.0, 500.0, 100.0], 10.0),
            case(WAYS[3], [120.0, 115.0, 125.0], 60.0),
        ];
        let goals = goals(&cases);
        let of = |id: &str| {
            let goal = goals.iter().find(|goal| goal.id == id).unwrap();
            (goal.measured.unwrap().round(), goal.met)
        };
        assert_eq!(of("polling_single"), (0.0, Some(false)));
        assert_eq!(of("polling_persistent"), (20.0, Some(true)));
        assert_eq!(of("polling_light"), (1.0, Some(false)));
    }
}
