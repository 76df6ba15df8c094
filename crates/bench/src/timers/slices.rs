//! A saturated HTTP server with one kind of event after the other (ST-59).
//!
//! One server, one client that never stops asking, and slices of some 50 ms. In every
//! other slice the server has what the kinds are compared with. In those between, one
//! kind after the other has its turn. A slice is compared with the two around it, so a
//! machine that gets slower for a second does so for both. A slice is a number of
//! requests, so the clock is read at its ends only. (Where signals interrupt the server
//! it ends after a second at the latest.)
//!
//! The server is a loop of ours around epoll ([`PageServer`]), since the events must be
//! checked for inside of it: nginx cannot call us.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use plimsoll_report::median;
use plimsoll_testbed::http::{FILE_BYTES, HttpLoad, run_wrk};
use plimsoll_testbed::periodic::{By, Periodic, Work};
use plimsoll_testbed::placement::Placement;
use plimsoll_testbed::server::PageServer;
use plimsoll_testbed::{Config as TestbedConfig, Error as TestbedError, Testbed, interrupt};
use serde::Serialize;

use super::Plan;
use crate::Error;
use crate::passing::HOLDOFF;

const PORT: u16 = 80;
const CONNECTIONS: u32 = 32;
/// wrk's own time-out of the last requests, and more.
const PATIENCE: Duration = Duration::from_secs(8);
const SLICE: Duration = Duration::from_millis(50);
const WARM_UP_REQUESTS: u64 = 5000;
/// How long the client may take to begin.
const START_LIMIT: Duration = Duration::from_secs(10);
/// What must be left of the client's time when a round begins, in rounds.
const SPARE: u32 = 2;
/// A slice without an answer that lasted so long: its events left no time for any.
const LIVELOCKED: Duration = Duration::from_millis(900);
/// A server that sleeps for more than this part of its requests is not saturated: events
/// could cost it time that it did not need.
const SATURATED: f64 = 0.02;

/// A kind of event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(super) name: &'static str,
    pub(super) by: By,
    pub(super) every_us: u64,
    pub(super) work: Work,
}

impl Kind {
    pub(crate) const fn new(name: &'static str, by: By, every_us: u64, work: Work) -> Self {
        Self {
            name,
            by,
            every_us,
            work,
        }
    }

    fn start(&self) -> Result<Periodic, TestbedError> {
        Periodic::start(self.by, Duration::from_micros(self.every_us), self.work)
    }
}

/// No event, and nobody asks.
pub(super) const NOTHING: Kind = Kind::new("nothing", By::Nothing, 0, Work::Empty);

/// All kinds, and what they were compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Slowdown {
    /// What happened in the slices that the others are compared with.
    pub beside: &'static str,
    /// Requests per second in those, a value for each run.
    pub requests_per_s: Vec<f64>,
    /// The part of its requests for which the server slept, a value for each run.
    pub slept: Vec<f64>,
    /// By kind of event.
    pub cases: Vec<SlowdownCase>,
}

/// One kind of event.
#[derive(Clone, Debug, Serialize)]
pub struct SlowdownCase {
    /// What fires, how often (µs), and what its handler does.
    pub name: &'static str,
    /// The part of the requests per second that was lost, in percent: the median of all
    /// slices, for each run.
    pub slowdown_percent: Vec<f64>,
    /// The middle half of all slices of all runs, in percent.
    pub quartiles_percent: [f64; 2],
    /// Events per second, a value for each run.
    pub events_per_s: Vec<f64>,
    /// Those of them that a timer of the kernel fired, in percent, a value for each run.
    pub by_kernel_percent: Vec<f64>,
    /// What requests took longer, in nanoseconds by event; a value for each run.
    pub event_ns: Vec<f64>,
}

/// So many requests, or fewer where events left no time for them.
#[derive(Clone, Copy, Debug)]
struct Slice {
    requests: u64,
    took: Duration,
    events: u64,
    by_kernel: u64,
    slept: u64,
}

/// A run's slices.
#[derive(Debug, Default)]
struct Run {
    /// What the others are compared with: one before each of them, and one at the end.
    between: Vec<Slice>,
    /// Which kind, in turns.
    events: Vec<(usize, Slice)>,
}

/// Measures all kinds in each run, compared with `beside`.
pub(crate) fn measure(
    plan: &Plan,
    beside: &Kind,
    kinds: &[Kind],
    mut progress: impl FnMut(usize),
) -> Result<Slowdown, Error> {
    let mut runs = Vec::new();
    for run in 1..=plan.runs {
        progress(run);
        runs.push(saturated(plan.seconds, |_, server, span| {
            take_turns(server, span, beside, kinds)
        })?);
    }
    let cases = kinds.iter().enumerate();
    Ok(Slowdown {
        beside: beside.name,
        requests_per_s: runs.iter().map(Run::requests_per_s).collect(),
        slept: runs.iter().map(Run::slept).collect(),
        cases: cases
            .map(|(place, kind)| SlowdownCase::of(kind.name, place, &runs))
            .collect(),
    })
}

/// Calls `measure` on the CPU of a server that a client asks all the time, for so long.
pub(crate) fn saturated<T: Send>(
    seconds: u32,
    measure: impl FnOnce(&Testbed, &mut PageServer, Duration) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let testbed = Testbed::create(TestbedConfig::default())?;
    Placement::Softirq { holdoff: HOLDOFF }.apply(&testbed)?;
    let page = "x".repeat(FILE_BYTES).into_bytes();
    let listen = || PageServer::listen(PORT, page);
    let mut server = testbed.test().run(listen)?.map_err(of_server)?;
    let at = (testbed.test().ipv4(), PORT).into();
    let load = HttpLoad {
        connections: CONNECTIONS,
        seconds,
        keep_alive: true,
        patience: PATIENCE,
    };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let asked = run_wrk(testbed.load(), at, load);
            ended.store(true, Ordering::Relaxed);
            asked
        });
        let span = Duration::from_secs(seconds.into());
        let run = testbed.test().run_on_cpu(|| {
            let run = measure(&testbed, &mut server, span);
            // wrk waits for its last answers.
            while !ended.load(Ordering::Relaxed) {
                server
                    .serve(100, &mut NOTHING.start()?)
                    .map_err(of_server)?;
            }
            run
        });
        let asked = client.join();
        asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        run?
    })
}

fn of_server(source: std::io::Error) -> Error {
    Error::Traffic {
        action: "serve a page",
        source,
    }
}

/// Slices with each kind of event in turns, until the client's time is nearly over.
fn take_turns(
    server: &mut PageServer,
    span: Duration,
    beside: &Kind,
    kinds: &[Kind],
) -> Result<Run, Error> {
    let (begun, requests) = begin_slices(server)?;
    let mut run = Run::default();
    let mut longest = Duration::ZERO;
    while begun.elapsed() + longest * SPARE < span {
        interrupt::check()?;
        let round = Instant::now();
        for (place, kind) in kinds.iter().enumerate() {
            run.between.push(slice(server, requests, beside)?);
            run.events.push((place, slice(server, requests, kind)?));
        }
        longest = longest.max(round.elapsed());
    }
    run.between.push(slice(server, requests, beside)?);
    Ok(run)
}

/// Waits for the client: when it began, and how many requests fill a slice.
pub(crate) fn begin_slices(server: &mut PageServer) -> Result<(Instant, u64), Error> {
    let begun = wait_for_client(server)?;
    Ok((begun, requests_of_a_slice(server)?))
}

fn wait_for_client(server: &mut PageServer) -> Result<Instant, Error> {
    let waiting = Instant::now();
    while server.serve(1, &mut NOTHING.start()?).map_err(of_server)? == 0 {
        interrupt::check()?;
        if waiting.elapsed() > START_LIMIT {
            return Err(Error::Tool {
                tool: "wrk",
                problem: format!("asked for nothing in {START_LIMIT:?}"),
            });
        }
    }
    Ok(Instant::now())
}

/// Warms the server up, and tells how many requests fill a slice.
fn requests_of_a_slice(server: &mut PageServer) -> Result<u64, Error> {
    slice(server, WARM_UP_REQUESTS, &NOTHING)?;
    let rate = slice(server, WARM_UP_REQUESTS, &NOTHING)?.rate();
    Ok((SLICE.as_secs_f64() * rate).max(1.0) as u64)
}

/// After a slice whose signals left no time for anything the client's connections wait for
/// their time-outs, so silence is waited out once.
fn slice(server: &mut PageServer, requests: u64, kind: &Kind) -> Result<Slice, Error> {
    let first = try_slice(server, requests, kind)?;
    if !first.is_silent() {
        return Ok(first);
    }
    wait_for_client(server)?;
    let second = try_slice(server, requests, kind)?;
    match second.is_silent() {
        true => Err(Error::Tool {
            tool: "wrk",
            problem: "stopped asking".to_owned(),
        }),
        false => Ok(second),
    }
}

fn try_slice(server: &mut PageServer, requests: u64, kind: &Kind) -> Result<Slice, Error> {
    let mut event = kind.start()?;
    let slept = sleeps();
    let begun = Instant::now();
    let answered = server.serve(requests, &mut event).map_err(of_server)?;
    let took = begun.elapsed();
    Ok(Slice {
        requests: answered,
        took,
        events: event.fired(),
        by_kernel: event.fired_by_kernel(),
        slept: sleeps() - slept,
    })
}

/// How often this thread had nothing to do.
fn sleeps() -> u64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| {
        usage.voluntary_context_switches().cast_unsigned()
    })
}

impl Run {
    fn requests_per_s(&self) -> f64 {
        let rates: Vec<f64> = self.between.iter().map(Slice::rate).collect();
        median(&rates).unwrap_or(f64::NAN)
    }

    fn slept(&self) -> f64 {
        let of = |count: fn(&Slice) -> u64| self.between.iter().map(count).sum::<u64>() as f64;
        of(|slice| slice.slept) / of(|slice| slice.requests)
    }

    /// Of one kind: each slice, and the requests per second of the two around it.
    fn of_kind(&self, kind: usize) -> impl Iterator<Item = (&Slice, f64)> {
        let all = self.events.iter().zip(self.between.windows(2));
        all.filter(move |((place, _), _)| *place == kind)
            .map(|((_, slice), around)| {
                let beside = around.iter().map(Slice::rate).sum::<f64>() / 2.0;
                (slice, beside)
            })
    }

    /// In percent, slice by slice.
    fn slowdowns(&self, kind: usize) -> Vec<f64> {
        self.of_kind(kind)
            .map(|(slice, beside)| 100.0 * (1.0 - slice.rate() / beside))
            .collect()
    }

    fn events_per_s(&self, kind: usize) -> f64 {
        let seconds: f64 = self
            .of_kind(kind)
            .map(|(slice, _)| slice.took.as_secs_f64())
            .sum();
        self.total(kind, |slice| slice.events) as f64 / seconds
    }

    fn by_kernel_percent(&self, kind: usize) -> Option<f64> {
        let events = self.total(kind, |slice| slice.events);
        let by_kernel = self.total(kind, |slice| slice.by_kernel);
        (events > 0).then(|| 100.0 * by_kernel as f64 / events as f64)
    }

    fn total(&self, kind: usize, of: impl Fn(&Slice) -> u64) -> u64 {
        self.of_kind(kind).map(|(slice, _)| of(slice)).sum()
    }

    /// What requests took longer, by the events that came meanwhile.
    fn event_ns(&self, kind: usize) -> Option<f64> {
        let costs: Vec<f64> = self
            .of_kind(kind)
            .filter(|(slice, _)| slice.events > 0)
            .map(|(slice, beside)| {
                let longer = slice.took.as_secs_f64() - slice.requests as f64 / beside;
                1e9 * longer / slice.events as f64
            })
            .collect();
        median(&costs)
    }
}

impl Slice {
    /// Nobody asked; nor did events take all the time.
    fn is_silent(&self) -> bool {
        self.requests == 0 && self.took < LIVELOCKED
    }

    /// Requests per second.
    fn rate(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }
}

impl SlowdownCase {
    fn of(name: &'static str, kind: usize, runs: &[Run]) -> Self {
        let mut all: Vec<f64> = runs.iter().flat_map(|run| run.slowdowns(kind)).collect();
        all.sort_by(f64::total_cmp);
        let at = |part: usize| all.get(all.len() * part / 4).copied().unwrap_or(f64::NAN);
        let slowdowns = runs.iter().map(|run| median(&run.slowdowns(kind)));
        let by_kernel = runs.iter().map(|run| run.by_kernel_percent(kind));
        Self {
            name,
            slowdown_percent: slowdowns.flatten().collect(),
            quartiles_percent: [at(1), at(3)],
            events_per_s: runs.iter().map(|run| run.events_per_s(kind)).collect(),
            by_kernel_percent: by_kernel.flatten().collect(),
            event_ns: runs.iter().filter_map(|run| run.event_ns(kind)).collect(),
        }
    }
}

impl Slowdown {
    /// The slowdowns of one kind by run, in percent; or why they say nothing about a bound
    /// of so many percent. `nothing` is the kind that equals what the others are compared
    /// with.
    pub(super) fn judged(&self, name: &str, nothing: &str, bound: f64) -> Result<Vec<f64>, String> {
        let slept = median(&self.slept).unwrap_or(1.0);
        if slept > SATURATED {
            return Err(format!(
                "the server was not saturated: it slept for {slept:.2} of its requests"
            ));
        }
        let of = |name: &str| {
            let case = self.cases.iter().find(|case| case.name == name);
            case.map_or_else(Vec::new, |case| case.slowdown_percent.clone())
        };
        let noise = median(&of(nothing)).unwrap_or(0.0);
        let measured = median(&of(name)).unwrap_or(0.0);
        // A loss beyond both is one, however noisy the machine.
        if noise.abs() > bound && measured < bound + noise.abs() {
            return Err(format!("equal slices differ by {noise:.1} %"));
        }
        Ok(of(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(millis: u64, events: u64) -> Slice {
        Slice {
            requests: 1000,
            took: Duration::from_millis(millis),
            events,
            by_kernel: events / 4,
            slept: 0,
        }
    }

    /// A machine that gets slower all the time, and events that cost a tenth.
    #[test]
    fn a_slice_is_compared_with_those_around_it() {
        let livelocked = Slice {
            requests: 0,
            ..slice(1000, 500)
        };
        let run = Run {
            between: [80, 100, 125, 125].map(|millis| slice(millis, 0)).into(),
            events: vec![(0, slice(100, 1000)), (1, slice(111, 0)), (2, livelocked)],
        };
        // 1000 requests in 100 ms, where 11,250 a second came around it.
        let expected = 100.0 * (1.0 - 10_000.0 / 11_250.0);
        assert!((run.slowdowns(0)[0] - expected).abs() < 1e-9);
        assert!(run.slowdowns(1)[0].abs() < 0.2);
        assert!((run.slowdowns(2)[0] - 100.0).abs() < 1e-9);
        // A thousand events took what 1000 requests took longer.
        let longer = 0.1 - 1000.0 / 11_250.0;
        assert!((run.event_ns(0).unwrap() - longer * 1e6).abs() < 1e-3);
        assert_eq!(run.event_ns(1), None);
        assert!((run.event_ns(2).unwrap() - 2e6).abs() < 1e-3);
        let case = SlowdownCase::of("one", 0, &[run]);
        assert_eq!(case.slowdown_percent.len(), 1);
        assert_eq!(case.by_kernel_percent, [25.0]);
        assert!((case.events_per_s[0] - 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn neither_a_server_that_sleeps_nor_a_noisy_machine_is_judged() {
        let case = |name, percent| SlowdownCase {
            slowdown_percent: vec![percent],
            ..SlowdownCase::of(name, 0, &[])
        };
        let with = |slept: f64, noise: f64| Slowdown {
            beside: "nothing",
            requests_per_s: vec![1.0],
            slept: vec![slept],
            cases: vec![case("nothing", noise), case("one", 0.5), case("dear", 5.0)],
        };
        assert_eq!(with(0.0, 0.4).judged("one", "nothing", 1.0), Ok(vec![0.5]));
        let slept = with(0.5, 0.0).judged("one", "nothing", 1.0);
        assert!(slept.unwrap_err().contains("slept for 0.50"));
        let noisy = with(0.0, -3.0).judged("one", "nothing", 1.0);
        assert_eq!(noisy, Err("equal slices differ by -3.0 %".to_owned()));
        assert_eq!(
            with(0.0, -3.0).judged("dear", "nothing", 1.0),
            Ok(vec![5.0])
        );
    }
}
