//! The kernel polls beneath the program while a flood is alone, and above it otherwise
//! ([`Threaded::Auto`](super::Threaded::Auto)).
//!
//! `core` decides ([`Placement`]). Here is the thread that asks it: it looks at what the XDP
//! program counts (`company`) and changes the priority of the kernel's polling threads. The
//! threads stay: to switch them on and off takes long, and virtual devices lose their
//! instances by it. The thread runs before every process, and before the kernel's polling
//! unless that is held back, or an overload would be over before it is seen. It reads mapped
//! memory and the threads' clocks. A change takes four system calls for each thread, two of
//! which ask how it runs.
//!
//! **Above** means real-time, as softirqs come before every process. A waking ordinary thread,
//! of any nice level, may wait for the next tick. Beyond a part of the CPU
//! ([`REAL_TIME_MOST`]) the kernel's polling is held back (`kernel::polling_limit`), or a flood
//! beyond what can be discarded would leave processes nothing.
//!
//! What was before is on record since the threads were made (`kernel::knobs`), and is put back
//! when this is dropped.

use std::io;
use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::governor::{Place, Placement};
use plimsoll_core::time::Instant;
use plimsoll_kernel::Error as KernelError;
use plimsoll_kernel::error::os;
use plimsoll_kernel::polling_limit::{Limited, PollingLimit, REAL_TIME_MOST};
use plimsoll_kernel::scheduling::{Class, Priority, Scheduling, set_class, thread_time};
use plimsoll_kernel::threaded::PolledInterface;
use plimsoll_kernel::watcher::Watcher;

use super::company::Watched;
use crate::clock;

/// With less than this part of that, nothing needs to be held back.
const LITTLE: Fraction = Fraction::from_percent(50);
/// How soon threads are found that a driver made anew.
const LOOK: Duration = Duration::from_millis(500);

/// The deciding thread. Dropping it puts the interface's settings back.
#[derive(Debug)]
pub(super) struct Polling {
    _watcher: Watcher,
}

impl Polling {
    /// Places the threads of an interface, which are above now. Beneath, they have this nice
    /// level.
    pub(super) fn start(
        interface: PolledInterface,
        watched: Watched,
        nice: i8,
        cpus: &[usize],
    ) -> io::Result<Self> {
        let mut threads = Threads {
            limit: None,
            interface,
            cpus: cpus.to_vec(),
            nice,
            place: Place::Above,
            used: Duration::ZERO,
        };
        let watcher = Watcher::start("plimsoll-place", move |pauses| {
            // Who may change the kernel's threads may do this, too.
            let _ = set_class(0, Class::Watcher);
            decide(&mut threads, watched, |interval| pauses.wait(interval));
        });
        Ok(Self { _watcher: watcher? })
    }
}

/// Decides after each interval for which `wait` says that there is one.
fn decide(threads: &mut Threads, mut watched: Watched, wait: impl Fn(Duration) -> bool) {
    let mut placement = Placement::new();
    let (mut before, mut looked) = (clock::now(), clock::now());
    while wait(placement.interval()) {
        let now = clock::now();
        let elapsed = now.saturating_since(before);
        before = now;
        let company = watched.look(placement.place());
        let place = placement.on_interval(company, elapsed, now);
        let placed = threads
            .put(place)
            .and_then(|()| threads.keep_limit(elapsed));
        if placed.is_err() || is_over(looked, now) {
            looked = now;
            // What is refused now is tried again.
            let _ = threads.look();
        }
    }
}

fn is_over(looked: Instant, now: Instant) -> bool {
    now.saturating_since(looked) >= LOOK
}

/// The kernel's threads for the queue.
struct Threads {
    /// While they are above and take much. It promotes them when it ends, so it ends before
    /// the settings are put back.
    limit: Option<PollingLimit>,
    interface: PolledInterface,
    cpus: Vec<usize>,
    /// Their level beneath.
    nice: i8,
    place: Place,
    /// Their clocks when last looked at.
    used: Duration,
}

impl Threads {
    /// Looks for instances that are not polled by threads of ours.
    fn look(&mut self) -> Result<(), KernelError> {
        let end_limit = || self.limit = None;
        let priority = Priority::RealTime;
        if self.interface.look(priority, &self.cpus, end_limit)? {
            self.used = self.time().unwrap_or_default();
            let place = std::mem::replace(&mut self.place, Place::Above);
            self.put(place).map_err(os("place polling"))?;
        }
        Ok(())
    }

    fn put(&mut self, place: Place) -> io::Result<()> {
        if place == self.place {
            return Ok(());
        }
        // Whoever watches the threads would promote them again.
        self.limit = None;
        let priority = match place {
            Place::Above => Priority::RealTime,
            Place::Beneath => Priority::Short(self.nice),
        };
        for thread in self.interface.threads() {
            let scheduling = Scheduling::of(thread.tid)?.with_priority(priority);
            // A driver makes its threads anew now and then.
            let given = scheduling.give_to(thread.tid)?;
            given.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        }
        self.place = place;
        self.used = self.time()?;
        Ok(())
    }

    /// Holds back threads that took more than their part of the time `elapsed`.
    fn keep_limit(&mut self, elapsed: Duration) -> io::Result<()> {
        let time = self.time()?;
        let used = time.saturating_sub(self.used);
        self.used = time;
        if self.place == Place::Beneath {
            return Ok(());
        }
        match is_too_much(used, elapsed, self.limit.is_some()) {
            true if self.limit.is_none() => self.limit = Some(self.hold_back()?),
            true => {}
            false => self.limit = None,
        }
        Ok(())
    }

    fn hold_back(&self) -> io::Result<PollingLimit> {
        let limited = self.interface.threads().iter().map(|thread| Limited {
            tid: thread.tid,
            class: Class::Polling,
        });
        PollingLimit::start(REAL_TIME_MOST, vec![limited.collect()]).map_err(io::Error::other)
    }

    fn time(&self) -> io::Result<Duration> {
        let threads = self.interface.threads().iter();
        threads.map(|thread| thread_time(thread.tid)).sum()
    }
}

/// Whether threads that used so much of the time `elapsed` are held back from now on; `is_held`:
/// they were until now.
fn is_too_much(used: Duration, elapsed: Duration, is_held: bool) -> bool {
    let most = of(REAL_TIME_MOST, elapsed);
    // Held back, they never use more than that.
    let enough = if is_held { of(LITTLE, most) } else { most };
    used >= enough
}

fn of(part: Fraction, span: Duration) -> Duration {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(part.of(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_is_held_back_from_much_until_little() {
        let elapsed = Duration::from_millis(10);
        let percent = |percent| elapsed * percent / 100;
        for (used, is_held, then) in [
            (80, false, false),
            (95, false, true),
            (90, true, true),
            (50, true, true),
            (40, true, false),
            (0, true, false),
        ] {
            let holds = is_too_much(percent(used), elapsed, is_held);
            assert_eq!(holds, then, "{used} %, held back before: {is_held}");
        }
    }
}
