//! The way back of frames that were lent to send, and who notices that they do not come.
//!
//! A driver may take frames and do nothing with them, or an interface may be down for long. Nobody
//! is told, and the memory of these frames is gone. So a lazy watchdog
//! ([`plimsoll_core::driver::LazyWatchdog`]) hears of each frame that is lent and each that comes
//! back. [`Device::tend`](crate::device::Device::tend) is its timer. When it expires the driver is
//! woken once more, since some give frames back no sooner. What is not back a second later
//! counts as not sent.
//!
//! Its limits: what a driver gives back without sending it is taken for sent. Frames that leave after
//! all, as when the link comes up again, have been counted.

pub(crate) mod measured;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::driver::{Expiry, LazyWatchdog, TimerCommand, WatchdogConfig};
use plimsoll_core::time::Instant;

use super::ring::Incoming;
use crate::device::Pool;
use crate::device::pool::Lent;

/// The kernel gives its adapters 5 s as well (`watchdog_timeo`).
const WATCHDOG: WatchdogConfig = WatchdogConfig {
    earliest: Duration::from_secs(5),
    nominal: Duration::from_secs(6),
    latest: Duration::from_secs(10),
    stop_below: Duration::from_secs(1),
};

/// What a woken driver is given.
const WOKEN: Duration = Duration::from_secs(1);

/// A queue's completion ring and its watchdog.
#[derive(Debug)]
pub(super) struct Completions {
    ring: Mutex<Incoming<u64>>,
    watch: Mutex<Watch>,
    given_up: AtomicU64,
}

/// What is to be done now, and when to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) wake_driver: bool,
    pub(super) next: Option<Duration>,
}

#[derive(Debug)]
struct Watch {
    watchdog: LazyWatchdog,
    /// When it wants to be asked.
    timer: Option<Instant>,
    /// The driver was woken, and has given nothing back since.
    woken: bool,
}

impl Completions {
    pub(super) fn new(ring: Incoming<u64>) -> Self {
        let watchdog = LazyWatchdog::new(&WATCHDOG).expect("the spans are in order");
        Self {
            ring: Mutex::new(ring),
            watch: Mutex::new(Watch {
                watchdog,
                timer: None,
                woken: false,
            }),
            given_up: AtomicU64::new(0),
        }
    }

    /// So many frames are about to be lent. To be told before the kernel sees them, or they
    /// might come back sooner.
    pub(super) fn on_lent(&self, frames: usize, now: Instant) {
        let mut watch = self.watch.lock();
        for _ in 0..frames {
            let command = watch.watchdog.on_transmit(now);
            watch.obey(command);
        }
    }

    /// Takes back the chunks of frames that were sent.
    pub(super) fn reclaim(&self, pool: &Arc<Pool>, now: Instant) {
        // Whoever holds the lock takes all.
        if let Some(mut ring) = self.ring.try_lock() {
            self.take_back(&mut ring, pool, now);
        }
    }

    /// Asks the watchdog, if that is due.
    pub(super) fn look(&self, pool: &Arc<Pool>, now: Instant) -> Look {
        if self.watch.lock().is_due(now) {
            // Nobody took them while nothing was sent. Whoever just takes some has told of them
            // once there is the lock.
            self.take_back(&mut self.ring.lock(), pool, now);
        }
        let mut watch = self.watch.lock();
        let (wake_driver, given_up) = match watch.is_due(now) {
            true => watch.expire(now),
            false => (false, 0),
        };
        self.given_up.fetch_add(given_up, Ordering::Relaxed);
        let next = watch.timer.map(|timer| timer.saturating_since(now));
        Look { wake_driver, next }
    }

    /// Frames that were lent and not given back in time.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    fn take_back(&self, ring: &mut Incoming<u64>, pool: &Arc<Pool>, now: Instant) {
        let frames = drain(ring, pool);
        if frames > 0 {
            let mut watch = self.watch.lock();
            watch.woken = false;
            let command = watch.watchdog.on_completion(frames, now);
            watch.obey(command);
        }
    }
}

/// Takes back what is in the ring; how many frames that were.
fn drain(ring: &mut Incoming<u64>, pool: &Arc<Pool>) -> u64 {
    let mut frames = 0;
    while let Some(offset) = ring.take() {
        frames += u64::from(pool.take_back(Lent::Transmit, offset, 0).is_some());
    }
    if frames > 0 {
        ring.release();
    }
    frames
}

impl Watch {
    fn obey(&mut self, command: TimerCommand) {
        match command {
            TimerCommand::Leave => {}
            TimerCommand::Start(at) => self.timer = Some(at),
            TimerCommand::Stop => self.timer = None,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.timer.is_some_and(|timer| timer <= now)
    }

    /// Whether to wake the driver, and how many frames are given up.
    fn expire(&mut self, now: Instant) -> (bool, u64) {
        self.timer = None;
        match self.watchdog.on_expiry(now) {
            Expiry::Ignored => {}
            Expiry::TooEarly(again) => self.timer = Some(again),
            Expiry::AdapterFailed if self.woken => {
                self.woken = false;
                let lost = self.watchdog.outstanding();
                self.watchdog.on_reset();
                return (false, lost);
            }
            Expiry::AdapterFailed => {
                self.woken = true;
                self.timer = Some(now + WOKEN);
                return (true, 0);
            }
        }
        (false, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{Outgoing, tests::memory, tests::shared};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Instant = Instant::from_nanos(1);

    /// What was lent, with both ends of the ring by which it comes back.
    struct Trial {
        pool: Arc<Pool>,
        kernel: Outgoing<u64>,
        completions: Completions,
    }

    impl Trial {
        fn new() -> Self {
            let memory = memory();
            Self {
                pool: Pool::new(8, 2048).unwrap(),
                kernel: Outgoing::new(shared(&memory)),
                completions: Completions::new(Incoming::new(shared(&memory))),
            }
        }

        fn lend(&self, frames: usize, now: Instant) -> Vec<u64> {
            self.completions.on_lent(frames, now);
            let lend = |_| self.pool.take().unwrap().lend().0;
            (0..frames).map(lend).collect()
        }

        fn give_back(&mut self, offsets: &[u64]) {
            offsets.iter().for_each(|offset| self.kernel.put(*offset));
            self.kernel.publish();
        }

        /// Looks when it is said to, until there is nothing to look for: when the driver was
        /// woken.
        fn look_on(&self, mut now: Instant) -> Vec<Duration> {
            let mut woken = Vec::new();
            loop {
                let look = self.completions.look(&self.pool, now);
                woken.extend(look.wake_driver.then(|| now.saturating_since(START)));
                let Some(next) = look.next else { return woken };
                now += next;
            }
        }
    }

    /// TB-07: the frames of a driver that sent nothing were missing, and nobody was told.
    #[test]
    fn frames_that_never_come_back_are_counted_after_one_more_call() {
        let trial = Trial::new();
        for round in 1..=3 {
            let now = START + SECOND * 20 * round;
            trial.lend(2, now);
            assert_eq!(trial.look_on(now).len(), 1);
            assert_eq!(trial.completions.given_up(), 2 * u64::from(round));
        }
        assert_eq!(trial.pool.available(), 2);
    }

    /// TB-11: nobody takes them from the ring while nothing more is sent.
    #[test]
    fn frames_that_wait_in_the_ring_are_no_failure() {
        let mut trial = Trial::new();
        let lent = trial.lend(3, START);
        trial.give_back(&lent);
        assert_eq!(trial.look_on(START), []);
        assert_eq!(trial.completions.given_up(), 0);
        assert_eq!(trial.pool.available(), 8, "all are free again");
    }

    #[test]
    fn a_driver_that_the_call_woke_has_not_failed() {
        let mut trial = Trial::new();
        let lent = trial.lend(3, START);
        let due = START + WATCHDOG.nominal;
        let Look { wake_driver, next } = trial.completions.look(&trial.pool, due);
        assert_eq!((wake_driver, next), (true, Some(WOKEN)));
        trial.give_back(&lent[..1]);
        // The two others get the whole time again, and then a call of their own.
        let after = due + WOKEN;
        let again = after + WATCHDOG.nominal;
        assert_eq!(trial.look_on(after), [again.saturating_since(START)]);
        assert_eq!(trial.completions.given_up(), 2);
    }

    #[test]
    fn nothing_is_due_before_a_frame_is_late() {
        let mut trial = Trial::new();
        let mut now = START;
        for _ in 0..20 {
            let lent = trial.lend(4, now);
            now += SECOND * 4;
            let look = trial.completions.look(&trial.pool, now);
            assert!(!look.wake_driver, "{look:?}");
            trial.give_back(&lent);
            trial.completions.reclaim(&trial.pool, now);
        }
        assert_eq!(trial.completions.given_up(), 0);
    }
}
