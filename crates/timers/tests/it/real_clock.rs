//! The facility on the machine's clock, in each kind of program. Nothing here
//! assumes how fast the machine is: what is asserted holds however long the
//! scheduler runs somebody else.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use plimsoll_timers::{
    AlarmThread, Backup, Clock, CycleClock, IdleAction, IdleRule, Instant, SoftTimerConfig,
    TimerFd, Timers, Until,
};
use plimsoll_tries::repeated;

/// A real clock that remembers its last two readings.
struct Recorded {
    clock: CycleClock,
    readings: Cell<[Instant; 2]>,
}

impl Clock for Recorded {
    fn now(&self) -> Instant {
        let now = self.clock.now();
        self.readings.set([self.readings.get()[1], now]);
        now
    }
}

/// Reproducible spans between 0 and 500 µs.
fn wanted(event: u64) -> u64 {
    event.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40 & 511
}

/// Runs a polling loop through 500 events: the share of them that fired within the paper's
/// bounds. What holds however long others have the CPU is asserted of each event: it fires later
/// than T ticks after it was scheduled, and in the first check that finds it due.
fn share_within_bounds(clock: CycleClock) -> f64 {
    const EVENTS: u64 = 500;
    let clock = Recorded {
        clock,
        readings: Cell::default(),
    };
    let mut timers = Timers::with_clock(SoftTimerConfig::default(), &clock).unwrap();
    let x = Duration::from_micros(timers.backup_ticks().into());
    let tick = Duration::from_micros(1);
    let mut within = 0;
    for event in 0..EVENTS {
        let span = Duration::from_micros(wanted(event));
        timers.schedule_soft_event(wanted(event), event).unwrap();
        let [_, asked] = clock.readings.get();
        let fired = loop {
            if let Some(now) = timers.check() {
                break now;
            }
        };
        let [check_before, _] = clock.readings.get();
        let due = timers.poll_event(fired).expect("the check said so");
        assert_eq!(due.payload, event);
        let actual = fired.saturating_since(asked);
        assert!(actual > span, "after {actual:?} instead of {span:?}");
        assert!(due.scheduled <= asked + span + tick);
        assert!(check_before < due.scheduled, "an earlier check missed it");
        within += u64::from(actual < span + x + tick);
    }
    within as f64 / EVENTS as f64
}

/// T < actual < T + X + 1. The upper bound holds unless two checks are X apart, that is unless
/// the scheduler runs somebody else: of 500 events for 80 of 100, with some tries on a busy
/// machine. (95 at first: beside a compute-bound process on each CPU it were 91 to 94.)
#[test]
fn a_polling_loop_fires_each_event_in_the_first_check_after_it_is_due() {
    for clock in [CycleClock::new(), CycleClock::from_kernel()] {
        let mut shares = Vec::new();
        let kept = repeated(8, || {
            shares.push(share_within_bounds(clock.clone()));
            shares.last().is_some_and(|share| *share >= 0.8)
        });
        assert!(kept, "{shares:?}");
    }
}

/// Runs a thread without work of its own through `events` events and counts how
/// often it blocked. `woken` says whether the backup ended the wait.
fn idle_thread<B: Backup>(
    mut idle: IdleRule<B>,
    events: u64,
    mut block: impl FnMut(&mut B) -> bool,
) -> u64 {
    let mut timers = Timers::new(SoftTimerConfig::default()).unwrap();
    let mut blocked = 0;
    for event in 0..events {
        let asked = timers.now();
        timers.schedule_soft_event(wanted(event), event).unwrap();
        let fired = loop {
            if let Some(now) = timers.check() {
                break now;
            }
            if idle.enter(&mut timers).unwrap() == IdleAction::Halt {
                blocked += 1;
                let by_backup = block(idle.backup());
                idle.leave(&mut timers, by_backup).unwrap();
            }
        };
        let due = timers.poll_event(fired).expect("the check said so");
        assert_eq!(due.payload, event);
        assert!(fired.saturating_since(asked) > Duration::from_micros(wanted(event)));
    }
    blocked
}

fn wait_readable(timer: &TimerFd) -> bool {
    let mut ready = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
    poll(&mut ready, PollTimeout::NONE).unwrap() == 1
}

/// Hangs if the backup is not armed, or not armed again after an expiry.
#[test]
fn an_event_loop_is_woken_by_its_descriptor() {
    for until in [Until::NextEvent, Until::Deadline] {
        let idle = IdleRule::new(TimerFd::new().unwrap(), until, Duration::ZERO);
        let blocked = idle_thread(idle, 100, |backup| wait_readable(backup));
        assert!(blocked >= 90, "{until:?}: blocked {blocked} times only");
    }
}

#[test]
fn a_thread_that_parks_is_woken_by_the_alarm_thread() {
    let alarms = AlarmThread::start(1).unwrap();
    let alarm = alarms.alarm().unwrap();
    let idle = IdleRule::new(alarm, Until::NextEvent, Duration::ZERO);
    let blocked = idle_thread(idle, 100, |alarm| {
        alarm.wait().unwrap();
        true
    });
    assert!(blocked >= 90, "blocked {blocked} times only");
}

/// With a wake-up time above all spans, an idle thread only checks.
#[test]
fn an_idle_thread_does_not_block_for_an_event_that_is_near() {
    let near = Duration::from_millis(100);
    let idle = IdleRule::new(TimerFd::new().unwrap(), Until::NextEvent, near);
    let blocked = idle_thread(idle, 100, |backup| wait_readable(backup));
    assert_eq!(blocked, 0);
}

/// A thread that the scheduler moves from CPU to CPU while events are pending: the counter goes
/// on, and no event comes before its time or in a later check than the first.
#[test]
fn a_thread_that_changes_its_cpu_keeps_time() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
        .collect();
    let move_to = |cpu: usize| {
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        // Before it returns the thread runs there.
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut timers = Timers::new(SoftTimerConfig::default()).unwrap();
            let mut before = timers.now();
            for event in 0..300 {
                let asked = timers.now();
                assert!(asked >= before, "the clock went back");
                let ticks = wanted(event);
                timers.schedule_soft_event(ticks, event).unwrap();
                assert_eq!(timers.poll_event(asked), None);
                move_to(cpus[event as usize % cpus.len()]);
                before = asked;
                let fired = loop {
                    let now = timers.now();
                    assert!(now >= before, "the clock went back");
                    before = now;
                    if let Some(now) = timers.check() {
                        break now;
                    }
                };
                assert!(fired >= before, "the clock went back");
                let due = timers.poll_event(fired).expect("the check said so");
                assert_eq!(due.payload, event);
                assert!(fired.saturating_since(asked) > Duration::from_micros(ticks));
                before = fired;
            }
        });
    });
}

/// Each thread has its own; a set of timers moves to another thread whole.
#[test]
fn threads_have_timers_of_their_own() {
    thread::scope(|scope| {
        for first in 0..4_u64 {
            let mut timers = Timers::new(SoftTimerConfig::default()).unwrap();
            timers.schedule_soft_event(50, first).unwrap();
            scope.spawn(move || {
                for round in 0..200 {
                    let now = loop {
                        if let Some(now) = timers.check() {
                            break now;
                        }
                    };
                    let event = timers.poll_event(now).unwrap();
                    assert_eq!(event.payload, first + 4 * round);
                    assert_eq!(timers.pending(), 0);
                    let next = first + 4 * (round + 1);
                    timers.schedule_soft_event(20, next).unwrap();
                }
            });
        }
    });
}
