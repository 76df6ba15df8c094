//! An event every so many microseconds in a running program, by soft timers or by timers
//! of the kernel: what each costs the program (Aron and Druschel, sections 5.1 and 5.9; ST-26,
//! ST-59, ST-60).
//!
//! A [`Periodic`] is told of the program's trigger states ([`Passing`]). Soft timers are
//! checked there. A timer descriptor is watched by the program's loop and read when it
//! expired. A POSIX timer sends a signal to the program's thread, which runs the handler
//! at once: the nearest that a program has to a timer interrupt.
//!
//! **Limits.** One descriptor or signal stands for all expiries since the last, so under
//! load the kernel's timers may fire less often than asked for. [`Periodic::fired`] tells.

mod deadline;
mod handler;
mod paced;
mod signal;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use plimsoll_timers::{CycleClock, Instant, SoftTimerConfig, Timers};

use crate::Error;
use crate::server::Passing;
use deadline::Within;
use handler::Handler;
pub use handler::Work;
pub use paced::{PacedStream, Sink, Spacing};
use signal::SignalTimer;

/// By which means an event comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// None comes, and nobody asks.
    Nothing,
    /// Soft timers are asked in every trigger state, and none is due.
    CheckAlone,
    /// Soft timers.
    Soft,
    /// Soft timers, due again in every trigger state (ST-60).
    SoftEach,
    /// Soft timers with deadlines (section 5.9): a POSIX timer runs the handler of an event
    /// that no trigger state fired so long after it was due.
    SoftWithin {
        /// How late an event may be.
        slack: Duration,
    },
    /// A timer descriptor in the program's own loop.
    TimerFd,
    /// A POSIX timer, whose signal interrupts the program.
    Signal,
}

/// An event that comes again and again, until it is dropped.
#[derive(Debug)]
pub struct Periodic {
    handler: Arc<Handler>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Nothing,
    Soft(Soft),
    Within(Within),
    TimerFd(TimerFd),
    /// It ends with this value.
    Signal {
        _timer: SignalTimer,
    },
}

#[derive(Debug)]
struct Soft {
    timers: Timers<()>,
    every: Duration,
    due: Instant,
}

const POSIX: &str = "make a POSIX timer for an event";
/// Later than any measurement lasts.
const FAR: Duration = Duration::from_secs(24 * 3600);

impl Periodic {
    /// Begins; signals go to the thread that calls this.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel makes no such timer.
    pub fn start(by: By, every: Duration, work: Work) -> Result<Self, Error> {
        let handler = Arc::new(Handler::new(work));
        let source = match by {
            By::Nothing => Source::Nothing,
            By::CheckAlone => Source::Soft(Soft::start(FAR)),
            By::Soft => Source::Soft(Soft::start(every)),
            By::SoftEach => Source::Soft(Soft::start(Duration::ZERO)),
            By::SoftWithin { slack } => {
                Source::Within(Within::start(every, slack, &handler).map_err(Error::io(POSIX))?)
            }
            By::TimerFd => Source::TimerFd(
                timer_fd(every).map_err(Error::io("make a timer descriptor for an event"))?,
            ),
            By::Signal => {
                let run = {
                    let handler = Arc::clone(&handler);
                    move || {
                        handler.run();
                        None
                    }
                };
                let mut timer = SignalTimer::new(run).map_err(Error::io(POSIX))?;
                timer
                    .repeat(every)
                    .map_err(Error::io("arm a POSIX timer"))?;
                Source::Signal { _timer: timer }
            }
        };
        Ok(Self { handler, source })
    }

    /// How often the handler ran.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.handler.runs()
    }

    /// How often a timer of the kernel had it run.
    #[must_use]
    pub fn fired_by_kernel(&self) -> u64 {
        match &self.source {
            Source::Nothing | Source::Soft(_) => 0,
            Source::Within(within) => within.fired_by_kernel(),
            Source::TimerFd(_) | Source::Signal { .. } => self.fired(),
        }
    }
}

fn timer_fd(every: Duration) -> nix::Result<TimerFd> {
    let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
    timer.set(
        Expiration::Interval(every.into()),
        TimerSetTimeFlags::empty(),
    )?;
    Ok(timer)
}

/// Timers with room for one event.
fn one_event(clock: CycleClock) -> Timers<()> {
    let config = SoftTimerConfig {
        capacity: 1,
        ..SoftTimerConfig::default()
    };
    Timers::with_clock(config, clock).expect("the defaults with one event are valid")
}

impl Soft {
    fn start(every: Duration) -> Self {
        let mut timers = one_event(CycleClock::new());
        let due = timers.now() + every;
        timers.schedule_at(due, ()).expect("its place is free");
        Self { timers, every, due }
    }

    #[inline]
    fn pass(&mut self, handler: &Handler) {
        let Some(now) = self.timers.check() else {
            return;
        };
        if self.timers.poll_event(now).is_none() {
            return;
        }
        handler.run();
        // From when it was due, so that being late does not lower the rate; but a long
        // gap does not end in a burst.
        self.due = (self.due + self.every).max(now);
        let again = self.timers.schedule_at(self.due, ());
        again.expect("the event that fired left its place");
    }
}

impl Passing for Periodic {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::TimerFd(timer) => Some(timer.as_fd()),
            _ => None,
        }
    }

    fn on_readable(&mut self) -> io::Result<()> {
        if let Source::TimerFd(timer) = &self.source {
            match timer.wait() {
                Ok(()) => self.handler.run(),
                // It has not expired after all.
                Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    #[inline]
    fn pass(&mut self) {
        match &mut self.source {
            Source::Soft(soft) => soft.pass(&self.handler),
            Source::Within(within) => within.pass(&self.handler),
            Source::Nothing | Source::TimerFd(_) | Source::Signal { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_micros(200);
    /// No timer takes longer to show that it works.
    const SOON: Duration = Duration::from_secs(10);

    fn start(by: By) -> Periodic {
        Periodic::start(by, EVERY, Work::Empty).unwrap()
    }

    /// Passes trigger states until so many events fired; how long it took.
    fn until(periodic: &mut Periodic, events: u64) -> Duration {
        let begun = std::time::Instant::now();
        while periodic.fired() < events {
            periodic.pass();
            if periodic.descriptor().is_some() {
                periodic.on_readable().unwrap();
            }
            assert!(begun.elapsed() < SOON, "{periodic:?}");
        }
        begun.elapsed()
    }

    #[test]
    fn events_come_by_each_means_and_never_too_often() {
        let slack = Duration::from_micros(100);
        for by in [By::Soft, By::TimerFd, By::Signal, By::SoftWithin { slack }] {
            let mut periodic = start(by);
            let took = until(&mut periodic, 100);
            // A timer of the kernel makes up for what was late.
            assert!(took >= EVERY * 90, "{by:?}: {took:?}");
        }
        let mut each = start(By::SoftEach);
        until(&mut each, 100);
    }

    #[test]
    fn an_overdue_event_fires_without_a_trigger_state() {
        let slack = Duration::from_micros(100);
        // Before it starts: this thread may have to wait between the two.
        let begun = std::time::Instant::now();
        let mut within = start(By::SoftWithin { slack });
        while within.fired() == 0 {
            assert!(begun.elapsed() < SOON, "{within:?}");
        }
        assert!(begun.elapsed() >= EVERY + slack);
        assert_eq!((within.fired(), within.fired_by_kernel()), (1, 1));
        // It is not fired again where it is found to be due.
        within.pass();
        assert_eq!(within.fired(), 1);
        until(&mut within, 2);
    }

    /// The timer stays armed for an earlier deadline: where trigger states are frequent it
    /// fires nothing, and still every event that no state fires.
    #[test]
    fn a_deadline_is_kept_also_after_many_events_in_time() {
        let slack = Duration::from_millis(20);
        let mut within = start(By::SoftWithin { slack });
        for round in 1..=3 {
            // Several deadlines long, with trigger states all the time.
            let events = within.fired() + 250;
            until(&mut within, events);
            let (fired, by_kernel) = (within.fired(), within.fired_by_kernel());
            let begun = std::time::Instant::now();
            while within.fired() == fired {
                assert!(begun.elapsed() < SOON, "round {round}: {within:?}");
            }
            assert_eq!(within.fired_by_kernel(), by_kernel + 1, "round {round}");
        }
    }

    #[test]
    fn nothing_fires_where_nothing_is_due() {
        for by in [By::Nothing, By::CheckAlone] {
            let mut periodic = start(by);
            let begun = std::time::Instant::now();
            while begun.elapsed() < EVERY * 10 {
                periodic.pass();
            }
            assert_eq!(periodic.fired(), 0, "{by:?}");
        }
    }
}
