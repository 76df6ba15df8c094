//! One event at a time in each kind of program, which has nothing else to do:
//! how late it is, and how much CPU time it takes.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use plimsoll_timers::tokio::{SoftTime, SoftTimeConfig};
use plimsoll_timers::{
    AlarmThread, Backup, Clock, CycleClock, IdleAction, IdleRule, SoftTimerConfig, TimerFd, Timers,
    Until,
};
use serde::Serialize;
use tokio::runtime::Builder;

use crate::{Outcome, bind_to};

const CPU: usize = 1;

#[derive(Serialize)]
pub(crate) struct Integration {
    what: &'static str,
    late_p50_us: f64,
    late_p99_us: f64,
    cpu_us_per_event: f64,
}

/// 20 to 531 µs, so that no two in a row are alike.
fn span(event: u64) -> Duration {
    Duration::from_micros(20 + (event.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55))
}

pub(crate) fn measure(events: u64) -> Outcome<Vec<Integration>> {
    bind_to(CPU)?;
    let spin = Duration::from_micros(50);
    let mut all = vec![timed("polling loop", events, |late| {
        waiting(
            events,
            late,
            IdleRule::new(TimerFd::new()?, Until::NextEvent, Duration::MAX),
        )
    })?];
    for (what, wake_up) in [("timerfd", Duration::ZERO), ("timerfd, spins 50 us", spin)] {
        all.push(timed(what, events, |late| {
            waiting(
                events,
                late,
                IdleRule::new(TimerFd::new()?, Until::NextEvent, wake_up),
            )
        })?);
    }
    all.push(timed("alarm thread", events, |late| {
        let alarms = AlarmThread::start(1)?;
        let alarm = alarms.alarm().ok_or("one alarm was asked for")?;
        waiting(
            events,
            late,
            IdleRule::new(alarm, Until::NextEvent, Duration::ZERO),
        )
    })?);
    for (what, wake_up) in [("tokio", Duration::ZERO), ("tokio, spins 50 us", spin)] {
        all.push(timed(what, events, |late| {
            soft_time(events, late, wake_up)
        })?);
    }
    all.push(timed("tokio::time::sleep", events, |late| {
        Builder::new_current_thread()
            .enable_time()
            .build()?
            .block_on(async {
                let clock = CycleClock::new();
                for event in 0..events {
                    let due = clock.now() + span(event);
                    tokio::time::sleep(span(event)).await;
                    late.push(clock.now().saturating_since(due));
                }
            });
        Ok(())
    })?);
    all.push(timed("thread::sleep", events, |late| {
        let clock = CycleClock::new();
        for event in 0..events {
            let due = clock.now() + span(event);
            thread::sleep(span(event));
            late.push(clock.now().saturating_since(due));
        }
        Ok(())
    })?);
    Ok(all)
}

fn timed(
    what: &'static str,
    events: u64,
    run: impl FnOnce(&mut Vec<Duration>) -> Outcome<()>,
) -> Outcome<Integration> {
    let cpu_time = || clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
    let mut late = Vec::with_capacity(events as usize);
    let before = cpu_time()?;
    run(&mut late)?;
    let spent = cpu_time()?.saturating_sub(before);
    late.sort();
    let at = |share: f64| {
        let place = (share * (late.len() - 1) as f64).round() as usize;
        late[place].as_secs_f64() * 1e6
    };
    Ok(Integration {
        what,
        late_p50_us: at(0.5),
        late_p99_us: at(0.99),
        cpu_us_per_event: spent.as_secs_f64() * 1e6 / events as f64,
    })
}

fn waiting<B: Backup>(events: u64, late: &mut Vec<Duration>, mut idle: IdleRule<B>) -> Outcome<()> {
    let mut timers = Timers::new(SoftTimerConfig::default())?;
    for event in 0..events {
        timers.schedule_at(timers.now() + span(event), event)?;
        let now = loop {
            if let Some(now) = timers.check() {
                break now;
            }
            if idle.enter(&mut timers)? == IdleAction::Halt {
                idle.backup().wait()?;
                idle.leave(&mut timers, true)?;
            }
        };
        let due = timers.poll_event(now).ok_or("the check said so")?;
        late.push(now.saturating_since(due.scheduled));
    }
    Ok(())
}

fn soft_time(events: u64, late: &mut Vec<Duration>, wake_up: Duration) -> Outcome<()> {
    let time = SoftTime::new(SoftTimeConfig {
        wake_up,
        ..SoftTimeConfig::default()
    })?;
    let mut builder = Builder::new_current_thread();
    time.install(&mut builder);
    builder.build()?.block_on(async {
        for event in 0..events {
            let sleep = time.sleep(span(event));
            let due = sleep.at();
            sleep.await?;
            late.push(time.now().saturating_since(due));
        }
        Ok(())
    })
}

pub(crate) fn table(all: &[Integration]) -> String {
    let mut text = String::from("an event in an idle program  late p50 us   p99 us   CPU us\n");
    for one in all {
        let _ = writeln!(
            text,
            "{:<26} {:>13.2} {:>8.1} {:>8.2}",
            one.what, one.late_p50_us, one.late_p99_us, one.cpu_us_per_event
        );
    }
    text
}
