//! The TCP thread's priority: that of those it works for (LRP-13, LRP-36).
//!
//! Whoever called a connection or a listener last is its owner. Owners may have different
//! nice levels, and one thread works for all of them. So it has the best level among the
//! owners for whom it worked in the last [`FOLLOW_EVERY`] (footnote 8 of the 1996 paper has
//! the best of several processes count), and works for the better ones first. Owners' levels
//! are read anew as often.
//!
//! **An arrival for a better owner does not wait.** The thread may be at nice 19 then, and
//! others have the CPU. So whoever tells it of a channel gives it that owner's level first
//! ([`Urgency::raise`]); levels are kept by channel for this.
//!
//! **What it shares with all others it does at its usual level,** the one it was started
//! with: opening and ending connections takes the lock of the table, for which the receiving
//! thread would have to wait.
//!
//! **Limits.** Without `CAP_SYS_NICE` nobody can take a worse level back, so the thread keeps
//! its own. A timer of a better owner who was idle fires at the level of the moment. The
//! scheduler's account of CPU time stays that of this thread: Linux has no way to charge
//! another one. `SCHED_IDLE` counts as nice 19: a thread that may never run must hold no lock.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::time::Duration;

use plimsoll_core::demux::ChannelId;
use plimsoll_core::time::Instant;
use plimsoll_kernel::scheduling::Level;

/// How soon the thread follows a change, if it has work.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// Who called an endpoint last.
#[derive(Debug)]
pub(super) struct Caller(AtomicI32);

impl Caller {
    pub(super) fn this_thread() -> Self {
        Self(AtomicI32::new(this_thread()))
    }

    pub(super) fn same_as(other: &Self) -> Self {
        Self(AtomicI32::new(other.get()))
    }

    #[inline]
    pub(super) fn set_to_this_thread(&self) {
        let this = this_thread();
        // Not each time: others read it.
        if self.get() != this {
            self.0.store(this, Ordering::Relaxed);
        }
    }

    fn get(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }
}

#[inline]
fn this_thread() -> i32 {
    thread_local!(static TID: Cell<i32> = const { Cell::new(0) });
    TID.with(|tid| {
        if tid.get() == 0 {
            tid.set(nix::unistd::gettid().as_raw());
        }
        tid.get()
    })
}

/// The thread's level, for those who give it work.
#[derive(Debug)]
pub(crate) struct Urgency {
    /// The TCP thread; 0: its level stays as it is.
    thread: AtomicI32,
    usual: AtomicU8,
    /// What it gave itself. Only the thread writes it: somebody's raise may be undone by a
    /// change of the thread's own that was under way, and the next raise repeats it.
    given: AtomicU8,
    /// The best that others gave it since; 0: nobody did.
    raised: AtomicU8,
    /// The levels of channels' owners; 0, the worst: not known.
    owners: Box<[AtomicU8]>,
}

impl Urgency {
    pub(crate) fn new(channels: usize) -> Self {
        Self {
            thread: AtomicI32::new(0),
            usual: AtomicU8::new(0),
            given: AtomicU8::new(u8::MAX),
            raised: AtomicU8::new(0),
            owners: (0..channels).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// The thread is to work for this channel's owner soon.
    #[inline]
    pub(crate) fn raise(&self, channel: ChannelId) {
        let level = self.owner(channel).number();
        if level > self.given.load(Ordering::Relaxed) {
            self.raise_to(level);
        }
    }

    /// The thread is to end soon.
    pub(crate) fn raise_to_usual(&self) {
        self.raise_to(self.usual.load(Ordering::Relaxed));
    }

    #[cold]
    fn raise_to(&self, level: u8) {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread != 0 {
            let best = self.raised.fetch_max(level, Ordering::Relaxed).max(level);
            // It may have ended, and the kernel may refuse: then it stays as it is.
            let _ = Level::from_number(best).give_to(thread);
        }
    }

    fn place(&self, channel: ChannelId) -> Option<&AtomicU8> {
        self.owners.get(channel.0 as usize)
    }

    /// The level of a channel's owner, as far as known.
    pub(crate) fn owner(&self, channel: ChannelId) -> Level {
        let number = self.place(channel);
        Level::from_number(number.map_or(0, |number| number.load(Ordering::Relaxed)))
    }

    pub(super) fn set_owner(&self, channel: ChannelId, level: Level) {
        if let Some(place) = self.place(channel) {
            place.store(level.number(), Ordering::Relaxed);
        }
    }
}

/// The thread's own side.
#[derive(Debug)]
pub(super) struct Follower {
    thread: i32,
    usual: Level,
    given: Level,
    /// The best owner that there was work for since the last change.
    best: Option<Level>,
    /// Of owners; forgotten as often as the thread follows.
    levels: HashMap<i32, Level>,
    next_change: Instant,
}

impl Follower {
    /// For this thread. `None`: it could not take back what it gives away.
    pub(super) fn start(urgency: &Urgency, now: Instant) -> Option<Self> {
        let thread = this_thread();
        let usual = Level::of(thread).ok()?;
        let better = Level::from_number(usual.number().checked_add(1)?);
        better.give_to(thread).ok()?;
        usual.give_to(thread).ok()?;
        urgency.usual.store(usual.number(), Ordering::Relaxed);
        urgency.given.store(usual.number(), Ordering::Relaxed);
        urgency.thread.store(thread, Ordering::Relaxed);
        Some(Self {
            thread,
            usual,
            given: usual,
            best: None,
            levels: HashMap::new(),
            next_change: now + FOLLOW_EVERY,
        })
    }

    /// The thread ends, and its number may soon be another's.
    pub(super) fn stop(urgency: &Urgency) {
        urgency.thread.store(0, Ordering::Relaxed);
    }

    /// What follows is work for this channel, whose owner this is.
    pub(super) fn work_for(&mut self, urgency: &Urgency, channel: ChannelId, owner: &Caller) {
        let level = self.level_of(owner.get());
        urgency.set_owner(channel, level);
        self.best = self.best.max(Some(level));
        if level > self.given {
            self.give(urgency, level);
        }
    }

    /// Follows, if it is time to.
    pub(super) fn end_turn(&mut self, urgency: &Urgency, now: Instant) {
        if now < self.next_change {
            return;
        }
        self.next_change = now + FOLLOW_EVERY;
        self.levels.clear();
        let wanted = self.best.take().unwrap_or(self.given);
        let raised = urgency.raised.swap(0, Ordering::Relaxed) != 0;
        if raised || wanted != self.given {
            self.give(urgency, wanted);
        }
    }

    /// For what others may have to wait for. Returns whether [`back`](Self::back) is to follow.
    pub(super) fn to_usual(&self) -> bool {
        let worse = self.given < self.usual;
        worse && self.usual.give_to(self.thread).is_ok()
    }

    pub(super) fn back(&self) {
        // It was there a moment ago.
        let _ = self.given.give_to(self.thread);
    }

    fn give(&mut self, urgency: &Urgency, level: Level) {
        // Before it holds: who raises it from now on must see that there is a reason to.
        urgency.given.store(level.number(), Ordering::Relaxed);
        self.given = level;
        // If the kernel refuses, it stays as it is.
        let _ = level.give_to(self.thread);
    }

    fn level_of(&mut self, owner: i32) -> Level {
        let usual = self.usual;
        *self.levels.entry(owner).or_insert_with(|| {
            // The number of a thread that has ended may be another program's.
            let ours = Path::new(&format!("/proc/self/task/{owner}")).exists();
            let level = ours.then(|| Level::of(owner).ok());
            level.flatten().unwrap_or(usual)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own, whose level changes.
    fn on_a_thread(test: impl FnOnce(Urgency, Follower, Instant) + Send + 'static) {
        std::thread::spawn(|| {
            let (urgency, now) = (Urgency::new(4), Instant::from_nanos(1));
            let follower = Follower::start(&urgency, now).expect("CAP_SYS_NICE");
            test(urgency, follower, now);
        })
        .join()
        .unwrap();
    }

    fn here() -> Level {
        Level::of(0).unwrap()
    }

    /// A thread of that level, which stays until the sender is dropped.
    fn owner(nice: i8) -> (Caller, std::sync::mpsc::Sender<()>) {
        let (told, caller) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            Level::nice(nice).give_to(this_thread()).unwrap();
            told.send(Caller::this_thread()).unwrap();
            let _ = ended.recv();
        });
        (caller.recv().unwrap(), end)
    }

    #[test]
    fn a_better_owner_counts_at_once_and_a_worse_one_later() {
        on_a_thread(|urgency, mut follower, now| {
            let ((better, _one), (worse, _other)) = (owner(-5), owner(9));
            follower.work_for(&urgency, ChannelId(0), &worse);
            assert_eq!(here(), Level::nice(0));
            follower.end_turn(&urgency, now + FOLLOW_EVERY / 2);
            assert_eq!(here(), Level::nice(0));
            follower.end_turn(&urgency, now + FOLLOW_EVERY);
            assert_eq!(here(), Level::nice(9));
            follower.work_for(&urgency, ChannelId(1), &better);
            assert_eq!(here(), Level::nice(-5));
            follower.work_for(&urgency, ChannelId(0), &worse);
            follower.end_turn(&urgency, now + 2 * FOLLOW_EVERY);
            assert_eq!(here(), Level::nice(-5));
            follower.work_for(&urgency, ChannelId(0), &worse);
            follower.end_turn(&urgency, now + 3 * FOLLOW_EVERY);
            assert_eq!(here(), Level::nice(9));
        });
    }

    /// Without this an arrival would wait until a thread at nice 19 gets the CPU.
    #[test]
    fn an_arrival_raises_the_thread_for_a_better_owner_only() {
        on_a_thread(|urgency, mut follower, now| {
            let ((better, _one), (worse, _other)) = (owner(2), owner(19));
            follower.work_for(&urgency, ChannelId(0), &better);
            follower.end_turn(&urgency, now + FOLLOW_EVERY);
            follower.work_for(&urgency, ChannelId(1), &worse);
            follower.end_turn(&urgency, now + 2 * FOLLOW_EVERY);
            assert_eq!(here(), Level::nice(19));
            urgency.raise(ChannelId(1));
            urgency.raise(ChannelId(3));
            assert_eq!(here(), Level::nice(19));
            urgency.raise(ChannelId(0));
            assert_eq!(here(), Level::nice(2));
            urgency.raise(ChannelId(0));
            follower.end_turn(&urgency, now + 3 * FOLLOW_EVERY);
            assert_eq!(here(), Level::nice(19));
        });
    }

    #[test]
    fn what_others_wait_for_is_done_at_the_usual_level() {
        on_a_thread(|urgency, mut follower, now| {
            assert!(!follower.to_usual());
            let (worse, _end) = owner(19);
            follower.work_for(&urgency, ChannelId(1), &worse);
            follower.end_turn(&urgency, now + FOLLOW_EVERY);
            assert!(follower.to_usual());
            assert_eq!(here(), Level::nice(0));
            follower.back();
            assert_eq!(here(), Level::nice(19));
        });
    }

    #[test]
    fn an_owner_that_has_ended_counts_as_the_usual_level() {
        on_a_thread(|urgency, mut follower, now| {
            let gone = std::thread::spawn(Caller::this_thread).join().unwrap();
            follower.work_for(&urgency, ChannelId(0), &gone);
            follower.end_turn(&urgency, now + FOLLOW_EVERY);
            assert_eq!(here(), Level::nice(0));
        });
    }
}
