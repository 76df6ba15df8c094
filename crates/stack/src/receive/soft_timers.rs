//! `soft-timer-polling`: while no CPU is idle, nobody waits for arrivals; a soft event
//! finds them.
//!
//! Aron and Druschel, sections 4.2 and 5.8 (ST-52, ST-53, ST-54, ST-55). A waiting receiving thread is
//! the interrupt here: each arrival wakes it, at the price of two context switches. While
//! CPUs have other work it need not be woken. The program's threads pass *trigger states*
//! anyway, the calls of its sockets, and look there whether a poll is due: one load and a
//! comparison. The poll takes all that has arrived and puts it where it belongs, as
//! `soft-lrp` does. [`Aggregation`] sets the time between two polls so that each finds
//! the wanted number of packets on average.
//!
//! **Whether a CPU is idle** is answered by a thread that the scheduler runs only where nobody
//! else wants a CPU (`SCHED_IDLE`). It is woken to find out, and running is its answer. It is
//! asked for every so many interrupts only, since an idle host has nothing to gain.
//!
//! **Limits.** The kernel still takes packets from the adapter by interrupts; what is
//! polled is the socket's ring. Threads that compute for long without a call pass no
//! trigger states: then the receiving thread polls, every millisecond (the backup). Of
//! all idle CPUs those count on which this program may run.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use plimsoll_core::aggregation::{Aggregation, AggregationConfig, NextPoll};
use plimsoll_core::time::Instant;
use plimsoll_kernel::scheduling::{Class, Priority, Scheduling, set_class};

use super::soft_lrp::{SoftLrp, demultiplex};
use super::{Next, Path, Turn};
use crate::account::Account;
use crate::device::Batch;
use crate::error::Error;
use crate::host::Host;
use crate::wait::{self, Waker};

/// In the place of a time: arrivals wake the receiving thread.
const BY_INTERRUPT: u64 = u64::MAX;
/// Interrupts from one question for an idle CPU to the next. If none answers meanwhile,
/// polling begins.
const ASK_INTERRUPTS: u32 = 8;
/// The receiving thread polls if nobody else did for so long (the paper's backup period).
const BACKUP: Duration = Duration::from_millis(1);

/// What the threads of a stack share to poll.
#[derive(Debug)]
pub(crate) struct SoftPolling {
    /// When the next poll is due, in nanoseconds.
    due: AtomicU64,
    /// An idle CPU was asked for, and none has answered.
    asked: AtomicBool,
    /// Wakes the thread that answers.
    question: Waker,
    /// That thread; 0 before it runs.
    answerer: AtomicI32,
    poll: Mutex<Poll>,
}

/// Held by whoever polls. Others who come meanwhile go on.
#[derive(Debug)]
struct Poll {
    aggregation: Aggregation,
    found_max: usize,
    batch: Batch,
    tally: Arc<Account>,
    /// Since an idle CPU was last asked for.
    interrupts: u32,
}

impl SoftPolling {
    pub(crate) fn new(config: AggregationConfig, tally: Arc<Account>) -> Result<Self, Error> {
        let found_max = config.found_max as usize;
        let poll = Poll {
            aggregation: Aggregation::new(config)?,
            found_max,
            batch: Batch::with_capacity(found_max),
            tally,
            interrupts: 0,
        };
        Ok(Self {
            due: AtomicU64::new(BY_INTERRUPT),
            asked: AtomicBool::new(false),
            question: Waker::new().map_err(Error::io("make an event descriptor"))?,
            answerer: AtomicI32::new(0),
            poll: Mutex::new(poll),
        })
    }

    /// Whether arrivals are polled for and wake nobody.
    fn is_on(&self) -> bool {
        self.due.load(Ordering::Relaxed) != BY_INTERRUPT
    }

    /// A thread of the program passes a trigger state.
    #[inline]
    pub(crate) fn trigger_state(&self, host: &Host, now: Instant) -> io::Result<()> {
        // A time that another thread has just changed costs one look at the ring, or one
        // trigger state.
        if now.as_nanos() < self.due.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.poll_if_due(host, now)
    }

    fn poll_if_due(&self, host: &Host, now: Instant) -> io::Result<()> {
        let Some(mut poll) = self.poll.try_lock() else {
            return Ok(());
        };
        if now.as_nanos() >= self.due.load(Ordering::Relaxed) && self.is_on() {
            let found = poll.take_arrivals(host, now)?;
            let next = poll.aggregation.on_poll(now, found);
            self.set(next);
        }
        Ok(())
    }

    /// An arrival woke the receiving thread.
    fn on_interrupt(&self, now: Instant) {
        let mut poll = self.poll.lock();
        poll.interrupts += 1;
        if poll.interrupts < ASK_INTERRUPTS || self.is_on() {
            return;
        }
        poll.interrupts = 0;
        if self.asked.swap(true, Ordering::AcqRel) {
            let next = poll.aggregation.on_idle_cpus(now, 0);
            self.set(next);
        } else {
            self.question.wake();
        }
    }

    /// Ends polling if a CPU was idle since it began.
    fn look_for_idleness(&self, now: Instant) {
        if self.is_on() && !self.asked.load(Ordering::Acquire) {
            let mut poll = self.poll.lock();
            let next = poll.aggregation.on_idle_cpus(now, 1);
            poll.interrupts = 0;
            self.set(next);
        }
    }

    /// Under the lock of `poll`.
    fn set(&self, next: NextPoll) {
        let due = match next {
            NextPoll::At(at) => at.as_nanos(),
            NextPoll::ByInterrupt => BY_INTERRUPT,
        };
        self.due.store(due, Ordering::Relaxed);
    }

    /// A CPU is idle. Takes no lock: who runs only on idle CPUs could hold it for ever.
    fn on_idle_cpu(&self, host: &Host) {
        self.asked.store(false, Ordering::Release);
        if self.is_on() {
            host.attention.wake();
        }
    }

    /// Runs where nobody else wants a CPU, until the stack stops.
    pub(crate) fn answer(&self, host: &Host) {
        self.answerer
            .store(nix::unistd::gettid().as_raw(), Ordering::Release);
        // If it is refused, every CPU counts as idle: then interrupts stay.
        let _ = set_class(0, Class::Idle);
        while !host.is_stopping() {
            match wait::wait_any([self.question.as_fd()], None) {
                Ok(_) => self.question.clear(),
                Err(_) => return,
            }
            self.on_idle_cpu(host);
        }
    }

    /// The stack stops: the thread that answers is not to wait for an idle CPU.
    pub(crate) fn stop(&self) {
        let answerer = self.answerer.load(Ordering::Acquire);
        if answerer != 0 {
            // If it fails, stopping takes until a CPU is idle.
            let _ = Scheduling::of(answerer)
                .and_then(|found| found.with_priority(Priority::Nice(0)).give_to(answerer));
        }
        self.question.wake();
    }
}

impl Poll {
    /// Puts all that has arrived where it belongs; how many frames, at most `found_max`.
    fn take_arrivals(&mut self, host: &Host, now: Instant) -> io::Result<u32> {
        let received = host.device.receive(&mut self.batch, self.found_max)?;
        if received > 0 {
            self.tally.received(received);
            demultiplex(host, &mut self.batch, &self.tally, now);
        }
        Ok(received as u32)
    }
}

/// The receiving thread of this path: the interrupts, and the backup.
#[derive(Debug)]
pub(super) struct SoftTimerPolling {
    pub(super) interrupts: SoftLrp,
}

impl Path for SoftTimerPolling {
    fn turn(&mut self, turn: &mut Turn<'_>) -> io::Result<Next> {
        let Some(polling) = &turn.host.polling else {
            return self.interrupts.turn(turn);
        };
        if turn.arrived {
            polling.on_interrupt(turn.now);
            self.interrupts.turn(turn)?;
            return Ok(Next::Again);
        }
        polling.look_for_idleness(turn.now);
        if !polling.is_on() {
            return self.interrupts.turn(turn);
        }
        polling.trigger_state(turn.host, turn.now)?;
        Ok(Next::Wait {
            device: false,
            until: Some(turn.now + BACKUP),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ReceivePath, StackConfig};
    use crate::device::simulated::{SimulatedConfig, SimulatedDevice};
    use crate::stack::Parts;

    /// A stack without threads, the far end of its cable, and a clock moved by hand.
    struct Moved {
        cable: SimulatedDevice,
        parts: Parts,
        now: Instant,
    }

    impl Moved {
        fn new(quota: u32) -> Self {
            let (cable, device) = SimulatedDevice::pair(&SimulatedConfig::default()).unwrap();
            let path = ReceivePath::SoftTimerPolling(AggregationConfig {
                quota,
                ..AggregationConfig::default()
            });
            let config = StackConfig {
                path,
                ..StackConfig::at("10.0.0.2/24".parse().unwrap())
            };
            Self {
                cable,
                parts: Parts::assemble(device, &config).unwrap(),
                now: Instant::from_nanos(1_000_000_000),
            }
        }

        fn host(&self) -> &Host {
            self.parts.stack.host()
        }

        fn polling(&self) -> &SoftPolling {
            self.host().polling.as_ref().unwrap()
        }

        /// As many interrupts as it takes, while no CPU is idle.
        fn busy(quota: u32) -> Self {
            let moved = Self::new(quota);
            moved.interrupts(2 * ASK_INTERRUPTS);
            assert!(moved.polling().is_on());
            moved
        }

        fn interrupts(&self, count: u32) {
            for _ in 0..count {
                self.polling().on_interrupt(self.now);
            }
        }

        fn trigger_state(&self) {
            self.polling().trigger_state(self.host(), self.now).unwrap();
        }

        fn received(&self) -> u64 {
            self.parts.stack.counts().received
        }

        /// No frame of anybody's.
        fn arrival(&self) {
            self.cable.send(&[0; 60]);
        }
    }

    #[test]
    fn polling_begins_only_if_no_cpu_was_idle_for_long() {
        let moved = Moved::new(5);
        moved.interrupts(2 * ASK_INTERRUPTS - 1);
        assert!(!moved.polling().is_on());
        // One answers, so the next question begins anew.
        moved.polling().on_idle_cpu(moved.host());
        moved.interrupts(ASK_INTERRUPTS);
        assert!(!moved.polling().is_on());
        moved.interrupts(ASK_INTERRUPTS);
        assert!(moved.polling().is_on());
    }

    #[test]
    fn a_trigger_state_polls_when_it_is_due_and_not_before() {
        let mut moved = Moved::busy(5);
        moved.arrival();
        moved.trigger_state();
        assert_eq!(moved.received(), 0);
        moved.now += AggregationConfig::default().interval_max;
        moved.trigger_state();
        assert_eq!(moved.received(), 1);
    }

    #[test]
    fn an_idle_cpu_turns_interrupts_on_and_nothing_is_left_behind() {
        let mut moved = Moved::busy(5);
        moved.polling().on_idle_cpu(moved.host());
        moved.polling().look_for_idleness(moved.now);
        assert!(!moved.polling().is_on());
        moved.arrival();
        moved.now += Duration::from_secs(1);
        moved.trigger_state();
        assert_eq!(moved.received(), 0);
        let next = moved.parts.receiver.turn(false).unwrap();
        assert_eq!(next, Next::Again);
        let next = moved.parts.receiver.turn(false).unwrap();
        assert!(matches!(next, Next::Wait { device: true, .. }));
        assert_eq!(moved.received(), 1);
    }

    #[test]
    fn while_polling_the_receiving_thread_waits_for_no_arrival() {
        let mut moved = Moved::busy(5);
        let next = moved.parts.receiver.turn(false).unwrap();
        assert!(matches!(
            next,
            Next::Wait {
                device: false,
                until: Some(_)
            }
        ));
    }

    /// An arrival every 20 µs, a trigger state every 3 µs.
    #[test]
    fn each_quota_is_found_on_average() {
        for quota in [1, 2, 5, 10, 15] {
            let mut moved = Moved::busy(quota);
            let (mut polls, mut found_before, mut due) = (0, 0, 0);
            for step in 0..60_000_u64 {
                moved.now += Duration::from_micros(1);
                if step % 20 == 0 {
                    moved.arrival();
                }
                if step % 3 == 0 {
                    moved.trigger_state();
                }
                let planned = moved.polling().due.load(Ordering::Relaxed);
                if step == 30_000 {
                    (polls, found_before) = (0, moved.received());
                } else if planned != due {
                    polls += 1;
                }
                due = planned;
            }
            let average = (moved.received() - found_before) as f64 / f64::from(polls);
            let wanted = f64::from(quota);
            assert!((average / wanted - 1.0).abs() < 0.15, "{quota}: {average}");
        }
    }

    /// Polls are nobody's duty alone: one at a time, and the others go on.
    #[test]
    fn who_comes_during_a_poll_goes_on() {
        let mut moved = Moved::busy(5);
        moved.arrival();
        moved.now += AggregationConfig::default().interval_max;
        let held = moved.polling().poll.lock();
        moved.trigger_state();
        drop(held);
        assert_eq!(moved.received(), 0);
    }
}
