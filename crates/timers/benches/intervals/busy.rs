//! One event every 40 µs in each kind of program, which always has work of its own: how late
//! the events are, and how much of the work they cost.
//!
//! The work is in units of some 2 µs. Between two units the program passes what is a trigger
//! state there: a turn of its loop, a look at epoll, a poll of a task. Each is compared with
//! the same program without events, before and after it.

use std::fmt::Write as _;
use std::time::{Duration, Instant as StdInstant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use plimsoll_report::median;
use plimsoll_timers::tokio::{SoftTime, SoftTimeConfig};
use plimsoll_timers::{Clock, CycleClock, SoftTimerConfig, Timers};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::task;

use crate::{Outcome, bind_to};

const CPU: usize = 1;
const INTERVAL: Duration = Duration::from_micros(40);

#[derive(Serialize)]
pub(crate) struct Busy {
    what: &'static str,
    late_p50_us: f64,
    late_p99_us: f64,
    /// Of the program's own work, per event: the median of the rounds.
    work_lost_ns_per_event: f64,
    rounds_work_lost_ns: Vec<f64>,
}

/// What a run with events did.
struct Run {
    late: Vec<Duration>,
    units: u64,
    took: Duration,
}

pub(crate) fn measure(rounds: u32, events: u64) -> Outcome<Vec<Busy>> {
    bind_to(CPU)?;
    let by_runtime = if cfg!(tokio_unstable) {
        "tokio, hooks at each poll"
    } else {
        "tokio, nobody checks"
    };
    let tokio = |asked| move |events| in_tokio(events, asked);
    Ok(vec![
        beside("plain loop", rounds, events, plain)?,
        beside("epoll loop", rounds, events, epoll)?,
        beside(
            "tokio, its task checks",
            rounds,
            events,
            tokio(Asked::ByTheTask),
        )?,
        beside(by_runtime, rounds, events, tokio(Asked::ByTheRuntime))?,
        beside("tokio::time::sleep", rounds, events, tokio(Asked::OfTokio))?,
    ])
}

/// In each round without events, with them, and without.
fn beside(
    what: &'static str,
    rounds: u32,
    events: u64,
    run: impl Fn(u64) -> Outcome<Run>,
) -> Outcome<Busy> {
    let per_unit = |run: &Run| run.took.as_secs_f64() / run.units.max(1) as f64;
    let (mut late, mut lost) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = per_unit(&run(0)?);
        let with = run(events)?;
        let alone = before.midpoint(per_unit(&run(0)?));
        lost.push((with.took.as_secs_f64() - alone * with.units as f64) * 1e9 / events as f64);
        late.extend(with.late);
    }
    late.sort();
    let at = |share: f64| {
        let place = (share * (late.len() - 1) as f64).round() as usize;
        late[place].as_secs_f64() * 1e6
    };
    Ok(Busy {
        what,
        late_p50_us: at(0.5),
        late_p99_us: at(0.99),
        work_lost_ns_per_event: median(&lost).unwrap_or(f64::NAN),
        rounds_work_lost_ns: lost,
    })
}

/// About 2 µs of work that needs nobody.
fn unit(state: &mut u64) {
    for _ in 0..1500 {
        *state = std::hint::black_box(state.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1);
    }
}

/// Units of a run without events.
const UNITS_ALONE: u64 = 20_000;

/// Works, with `look` between two units, until all events were late by something.
fn work(events: u64, mut look: impl FnMut() -> Outcome<()>) -> Outcome<Run> {
    let mut timers = Timers::new(SoftTimerConfig::default())?;
    let (mut late, mut units, mut state) = (Vec::new(), 0, 1);
    let begun = StdInstant::now();
    if events > 0 {
        timers.schedule_at(timers.now() + INTERVAL, ())?;
    }
    while if events > 0 {
        (late.len() as u64) < events
    } else {
        units < UNITS_ALONE
    } {
        unit(&mut state);
        units += 1;
        look()?;
        if let Some(now) = timers.check() {
            while let Some(event) = timers.poll_event(now) {
                late.push(now.saturating_since(event.scheduled));
                timers.schedule_at(now + INTERVAL, ())?;
            }
        }
    }
    Ok(Run {
        late,
        units,
        took: begun.elapsed(),
    })
}

fn plain(events: u64) -> Outcome<Run> {
    work(events, || Ok(()))
}

/// A loop that is never idle looks for input without waiting.
fn epoll(events: u64) -> Outcome<Run> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut ready = [EpollEvent::empty(); 16];
    work(events, || {
        epoll.wait(&mut ready, EpollTimeout::ZERO)?;
        Ok(())
    })
}

/// Who asks whether a sleep is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    ByTheRuntime,
    ByTheTask,
    OfTokio,
}

/// One task works and yields after each unit; another sleeps, again and again.
fn in_tokio(events: u64, asked: Asked) -> Outcome<Run> {
    let time = SoftTime::new(SoftTimeConfig::default())?;
    let mut builder = Builder::new_current_thread();
    time.install(&mut builder);
    let runtime = builder.enable_time().build()?;
    runtime.block_on(async {
        let begun = StdInstant::now();
        let sleeper = (events > 0).then(|| tokio::spawn(series(time.clone(), events, asked)));
        let (mut units, mut state) = (0, 1);
        while sleeper
            .as_ref()
            .map_or(units < UNITS_ALONE, |sleeper| !sleeper.is_finished())
        {
            unit(&mut state);
            units += 1;
            if asked == Asked::ByTheTask {
                time.check();
            }
            task::yield_now().await;
        }
        let took = begun.elapsed();
        let late = match sleeper {
            Some(sleeper) => sleeper.await??,
            None => Vec::new(),
        };
        Ok(Run { late, units, took })
    })
}

/// How late each sleep of a series was.
async fn series(time: SoftTime, events: u64, asked: Asked) -> std::io::Result<Vec<Duration>> {
    let clock = CycleClock::new();
    let mut late = Vec::new();
    for _ in 0..events {
        let due = clock.now() + INTERVAL;
        match asked {
            Asked::OfTokio => tokio::time::sleep(INTERVAL).await,
            _ => time.sleep(INTERVAL).await?,
        }
        late.push(clock.now().saturating_since(due));
    }
    Ok(late)
}

pub(crate) fn table(all: &[Busy]) -> String {
    let mut text = String::from(
        "an event every 40 us in a busy program  late p50 us   p99 us  work lost ns\n",
    );
    for one in all {
        let _ = writeln!(
            text,
            "{:<26} {:>25.2} {:>8.1} {:>13.0}",
            one.what, one.late_p50_us, one.late_p99_us, one.work_lost_ns_per_event
        );
    }
    text
}
