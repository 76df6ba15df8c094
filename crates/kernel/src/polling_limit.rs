//! Keeps polling threads to a part of each period: a thread that has used it up
//! becomes `SCHED_IDLE` until the next period, so that it still runs where nobody
//! wants the CPU (Mogul & Ramakrishnan 1997, section 7: inhibit, and allow when
//! the CPU goes idle). What is used then counts only while others want the CPU.
//!
//! A period is short, since the receive ring overflows while its thread waits. The
//! thread's own clock is exact. The watching itself is part of what the limit is for, and
//! is counted as the threads' use. What else receiving costs their CPU (softirqs,
//! interrupts) is taken off the limit as the meter sees it, where there is one.
//!
//! Threads that provide others with work ([`Class::Ahead`]) could keep them from doing any.
//! So those of a group come first for half of its limit, and beneath the others beyond it.
//! That half is theirs for certain: the others' use of the limit demotes only the others. What
//! they use then is taken off the next period.
//!
//! Threads of one class and CPU run one after the other, as long as each has work. So those that used little
//! lately come first in each period: in the order of their interfaces a flood of the first one would have
//! kept the others from being polled at all.
//!
//! Since polling then leaves some of every period, the thread that made the limit need
//! not be above it: what it does may take longer than the ring lasts, so meanwhile it
//! runs beneath.
//!
//! Limits: one thread watches all polling threads, above them and every process.
//! It looks at each group two or three times in each period. On the CPU of a polling thread each
//! time costs some microseconds: 4 to 6 % of that CPU in a debug build on a virtual machine.
//! So a look may come up to 0.1 ms late, and what was used too much is taken off the next
//! period.
//!
//! `SCHED_IDLE` is a weight of 3 beside 1024, not a promise to run last. After each run of a
//! thread of a higher class the kernel may choose the demoted one, and looks again at its next
//! tick. At 250 Hz a demoted thread had a quarter of the time beside a process that computes. So
//! while the meter says that others want the CPU, such time is taken off the next periods.
//!
//! A group of processes (a control group with the `cpu` controller, a session with
//! `sched_autogroup_enabled`) has one weight, which its CPUs divide by the work on each. Where
//! little of it is left on the CPU of a polling thread, the demoted thread has a good part of that
//! CPU. Without a meter that is beyond the limit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::sched_getcpu;
use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{Change, CpuLimit, CpuLimitConfig, POLLING_PERIOD};
use plimsoll_core::time::Instant as CoreInstant;

use crate::error::{CallError, os};
use crate::scheduling::{Class, Scheduling, ThreadClock, set_class};

/// The next look comes no sooner: a look costs what it would save.
const NEARLY: Duration = Duration::from_micros(100);
/// Whoever has [told](PollingLimit::beat) that he gets on, and then does not for so long, hangs. A
/// keeper puts his settings back half a second later (`knobs::heartbeat`), and threads may be the
/// host's own then: until he goes on they are left as they are.
const SILENCE: Duration = Duration::from_millis(1500);
/// Of what a group may use, its threads that are [`Class::Ahead`] are so for one part in …
const AHEAD: u64 = 2;
/// Part of the newest difference that corrects the limit.
const NEWEST: f64 = 0.2;

/// The most that real-time threads should be let use of a CPU: before Linux 6.12 the kernel stops
/// all of them for 50 ms where they took 95 % of a second together (`sched_rt_runtime_us`).
pub const REAL_TIME_MOST: Fraction = Fraction::from_percent(90);

/// The watching thread; dropping it ends it and leaves all threads promoted. To be made
/// and dropped by the same thread.
#[derive(Debug)]
pub struct PollingLimit {
    shared: Arc<Shared>,
    limit: Fraction,
    thread: Option<JoinHandle<()>>,
    /// How the governing thread ran before.
    own: Option<Scheduling>,
}

#[derive(Debug)]
struct Shared {
    /// Of the period, in parts per million, for the polling threads alone.
    limit_ppm: AtomicU64,
    /// Some thread was demoted since somebody asked.
    inhibited: AtomicBool,
    /// Others want the CPU, as the meter saw it last.
    wanted: AtomicBool,
    stop: AtomicBool,
    began: Instant,
    /// When the governing thread was last heard of, since then; 0: it does not tell.
    heard_ns: AtomicU64,
}

impl Shared {
    fn new(limit: Fraction) -> Self {
        Self {
            limit_ppm: AtomicU64::new(limit.as_ppm().into()),
            inhibited: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            heard_ns: AtomicU64::new(0),
        }
    }

    fn is_forsaken(&self) -> bool {
        let heard = self.heard_ns.load(Ordering::Relaxed);
        let silence = self
            .began
            .elapsed()
            .saturating_sub(Duration::from_nanos(heard));
        heard != 0 && silence > SILENCE
    }
}

/// A thread that is kept to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// What the kernel calls it.
    pub tid: i32,
    /// How it runs within the limit.
    pub class: Class,
}

/// What the meter saw of the threads' CPU.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// The time observed.
    pub elapsed: Duration,
    /// What all receiving took of it.
    pub network: Duration,
    /// Others want the CPU.
    pub is_wanted: bool,
}

impl PollingLimit {
    /// Keeps each group of threads to `limit` of each period. Threads of a group share one
    /// CPU, and so one limit.
    ///
    /// # Errors
    ///
    /// There are no more threads.
    pub fn start(limit: Fraction, groups: Vec<Vec<Limited>>) -> Result<Self, CallError> {
        let shared = Arc::new(Shared::new(limit));
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("cpu-limit".to_owned())
            .spawn(move || {
                // Without the class it watches late, which the meter corrects.
                let _ = set_class(0, Class::Watcher);
                watch(&watched, &groups);
            })
            .map_err(os("start the thread that keeps the CPU limit"))?;
        let own = Scheduling::of(0).ok();
        // Where it may not be real-time it is in nobody's way.
        let _ = set_class(0, Class::Beneath);
        Ok(Self {
            shared,
            limit,
            thread: Some(thread),
            own,
        })
    }

    /// The limit that was given.
    #[must_use]
    pub const fn limit(&self) -> Fraction {
        self.limit
    }

    /// To be called several times a second by whoever has a keeper: tells that he gets on.
    pub fn beat(&self) {
        let now = u64::try_from(self.shared.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared.heard_ns.store(now.max(1), Ordering::Relaxed);
    }

    /// Whether input was inhibited since the last call.
    pub fn inhibited(&mut self) -> bool {
        self.shared.inhibited.swap(false, Ordering::Relaxed)
    }

    /// Corrects the threads' limit by what all receiving took, where others want the CPU: what
    /// is used of one that nobody else wants says nothing about the limit.
    pub fn on_observation(&self, seen: &Observation) {
        self.shared.wanted.store(seen.is_wanted, Ordering::Relaxed);
        if !seen.is_wanted {
            let whole = self.limit.as_ppm().into();
            self.shared.limit_ppm.store(whole, Ordering::Relaxed);
            return;
        }
        if seen.elapsed.is_zero() {
            return;
        }
        let limit = f64::from(self.limit.as_ppm());
        let taken = seen.network.as_secs_f64() / seen.elapsed.as_secs_f64() * 1e6;
        let now = self.shared.limit_ppm.load(Ordering::Relaxed) as f64;
        // Only down: less than the limit may be all there is to do.
        let corrected = now + (limit - taken) * NEWEST;
        let corrected = corrected.clamp(limit / 2.0, limit);
        self.shared
            .limit_ppm
            .store(corrected as u64, Ordering::Relaxed);
    }
}

impl Drop for PollingLimit {
    fn drop(&mut self) {
        let _ = self.own.as_ref().map(|own| own.give_to(0));
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and its accounts promoted their threads.
            let _ = thread.join();
        }
    }
}

/// Polling threads of one CPU. Dropping it promotes them: nobody counts any more.
struct Account {
    threads: Vec<Member>,
    /// When to look again.
    due: CoreInstant,
    /// Where they may run.
    cpus: Vec<usize>,
    budget: Budget,
    /// Of those that are [`Class::Ahead`], if there are any.
    ahead: Option<Budget>,
}

/// A thread that is there, and its clock.
#[derive(Clone, Copy, Debug)]
struct Member {
    thread: Limited,
    clock: ThreadClock,
    /// What the clock showed when it was last looked at.
    seen: Duration,
    /// What was used lately: each look counts half as much as the next.
    recent: Duration,
}

impl Member {
    fn of(thread: &Limited) -> Option<Self> {
        let clock = ThreadClock::of(thread.tid).ok()?;
        Some(Self {
            thread: *thread,
            clock,
            seen: clock.time().ok()?,
            recent: Duration::ZERO,
        })
    }

    fn on_time(&mut self, time: Duration) {
        let used = time.saturating_sub(self.seen);
        (self.seen, self.recent) = (time, self.recent / 2 + used);
    }

    fn is_ahead(&self) -> bool {
        self.thread.class == Class::Ahead
    }
}

fn watch(shared: &Shared, groups: &[Vec<Limited>]) {
    let start = Instant::now();
    let now = || {
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        CoreInstant::from_nanos(nanos)
    };
    let mut accounts: Vec<Account> = groups
        .iter()
        .filter_map(|threads| Account::open(threads, shared, now()))
        .collect();
    let Ok(clock) = ThreadClock::of(0) else {
        return;
    };
    let mut own = clock.time().unwrap_or_default();
    while !shared.stop.load(Ordering::Relaxed) && !accounts.is_empty() {
        if shared.is_forsaken() {
            thread::sleep(POLLING_PERIOD);
            continue;
        }
        charge(&mut accounts, clock, &mut own);
        thread::sleep(turn(&mut accounts, shared, now()));
    }
}

/// Looks at the accounts that are due, or would be before the next look. How long none will be.
fn turn(accounts: &mut Vec<Account>, shared: &Shared, now: CoreInstant) -> Duration {
    let soon = now + NEARLY;
    accounts.retain_mut(|account| account.due > soon || account.check(shared, now).is_ok());
    let next = accounts.iter().map(|account| account.due).min();
    let next = next.map_or(POLLING_PERIOD, |due| until(due, now));
    next.max(NEARLY)
}

fn until(due: CoreInstant, now: CoreInstant) -> Duration {
    Duration::from_nanos(due.as_nanos().saturating_sub(now.as_nanos()))
}

/// Charges what watching took since `own` to those on whose CPU it was, in equal parts.
fn charge(accounts: &mut [Account], clock: ThreadClock, own: &mut Duration) {
    let (Ok(now), Ok(cpu)) = (clock.time(), sched_getcpu()) else {
        return;
    };
    let took = now.saturating_sub(*own);
    *own = now;
    let is_there = |account: &&mut Account| account.cpus.contains(&cpu);
    let sharers = accounts.iter_mut().filter(is_there).count();
    for account in accounts.iter_mut().filter(is_there) {
        account.budget.on_others(took / sharers as u32);
    }
}

impl Account {
    /// Of those threads that are there; `None` if none is, or may not be limited.
    fn open(threads: &[Limited], shared: &Shared, now: CoreInstant) -> Option<Self> {
        let limit_ppm = shared.limit_ppm.load(Ordering::Relaxed);
        let threads: Vec<Member> = threads.iter().filter_map(Member::of).collect();
        let cpus = threads.iter().map(|one| Scheduling::of(one.thread.tid));
        let cpus = cpus.filter_map(|scheduling| Some(scheduling.ok()?.cpus().to_vec()));
        let mut account = Self {
            cpus: cpus.flatten().collect(),
            budget: Budget::new(limit_ppm, Duration::ZERO, now)?,
            ahead: None,
            due: now,
            threads,
        };
        let (ahead, all) = account.times();
        account.threads.first()?;
        account.budget.seen = all;
        if account.threads.iter().any(Member::is_ahead) {
            account.ahead = Some(Budget::new(limit_ppm / AHEAD, ahead, now)?);
        }
        account.place().ok()?;
        account.due = now + account.due_in(now);
        Some(account)
    }

    /// What the clocks show of those that are ahead, and of all; forgets threads that have
    /// ended. A driver makes its polling threads anew now and then.
    fn times(&mut self) -> (Duration, Duration) {
        let (mut ahead, mut all) = (Duration::ZERO, Duration::ZERO);
        self.threads.retain_mut(|member| {
            let Ok(time) = member.clock.time() else {
                return false;
            };
            member.on_time(time);
            all += time;
            if member.is_ahead() {
                ahead += time;
            }
            true
        });
        (ahead, all)
    }

    /// How a thread is to run now.
    fn class_of(&self, thread: &Limited) -> Class {
        let has_left = |one: &Budget| !one.limit.inhibited();
        match (thread.class, self.budget.limit.inhibited()) {
            (Class::Ahead, _) if self.ahead.as_ref().is_some_and(has_left) => Class::Ahead,
            (_, true) => Class::Idle,
            (Class::Ahead, false) => Class::Beneath,
            (class, false) => class,
        }
    }

    /// A class runs those first that come first to it.
    fn place(&mut self) -> io::Result<()> {
        self.threads.sort_by_key(|member| member.recent);
        let mut threads = self.threads.iter();
        threads.try_for_each(|member| put(member, self.class_of(&member.thread)))
    }

    /// Counts what the threads used; demotes and promotes them.
    fn check(&mut self, shared: &Shared, now: CoreInstant) -> io::Result<()> {
        self.set_limit(shared.limit_ppm.load(Ordering::Relaxed));
        let times = self.times();
        if self.threads.is_empty() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let is_wanted = shared.wanted.load(Ordering::Relaxed);
        let [ahead, all] = self.on_times(times, is_wanted, now);
        if all == Change::Inhibit {
            shared.inhibited.store(true, Ordering::Relaxed);
        }
        self.due = now + self.due_in(now);
        match (ahead, all) {
            (Change::None, Change::None) => Ok(()),
            _ => self.place(),
        }
    }

    fn set_limit(&mut self, limit_ppm: u64) {
        self.budget.set_limit(limit_ppm);
        if let Some(ahead) = &mut self.ahead {
            ahead.set_limit(limit_ppm / AHEAD);
        }
    }

    /// Counts up to these times of those that are ahead, and of all.
    fn on_times(
        &mut self,
        (of_ahead, of_all): (Duration, Duration),
        is_wanted: bool,
        now: CoreInstant,
    ) -> [Change; 2] {
        let ahead = self.ahead.as_mut();
        // Those that are ahead may not have been demoted with the others.
        let not_demoted = ahead.as_ref().filter(|ahead| !ahead.limit.inhibited());
        if self.budget.limit.inhibited() {
            let owed = match not_demoted {
                _ if is_wanted => of_all.saturating_sub(self.budget.seen),
                Some(ahead) => of_ahead.saturating_sub(ahead.seen),
                None => Duration::ZERO,
            };
            self.budget.on_others(owed);
        }
        let ahead = ahead.map_or(Change::None, |ahead| ahead.on_time(of_ahead, now));
        [ahead, self.budget.on_time(of_all, now)]
    }

    fn due_in(&self, now: CoreInstant) -> Duration {
        let own = self.budget.due(now);
        let ahead = self.ahead.as_ref().map(|budget| budget.due(now));
        ahead.map_or(own, |ahead| ahead.min(own))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for member in &self.threads {
            // It may be gone.
            let _ = put(member, member.thread.class);
        }
    }
}

/// Has a thread run like this, unless it has ended meanwhile.
fn put(member: &Member, class: Class) -> io::Result<()> {
    set_class(member.thread.tid, class).or_else(|error| match member.clock.time() {
        Ok(_) => Err(error),
        Err(_) => Ok(()),
    })
}

/// What threads may use yet, from their clocks.
struct Budget {
    limit: CpuLimit,
    limit_ppm: u64,
    /// The threads' clocks when last looked at …
    seen: Duration,
    /// … and when that was.
    at: CoreInstant,
    /// Time that is not on the threads' clocks, or was used while it did not count.
    owed: Duration,
}

impl Budget {
    fn new(limit_ppm: u64, seen: Duration, now: CoreInstant) -> Option<Self> {
        let config = CpuLimitConfig {
            limit: fraction(limit_ppm),
            period: POLLING_PERIOD,
            ..CpuLimitConfig::default()
        };
        Some(Self {
            limit: CpuLimit::new(config, now).ok()?,
            limit_ppm,
            seen,
            at: now,
            owed: Duration::ZERO,
        })
    }

    /// Takes over a limit that was corrected.
    fn set_limit(&mut self, limit_ppm: u64) {
        if limit_ppm != self.limit_ppm && self.limit.set_limit(fraction(limit_ppm)).is_ok() {
            self.limit_ppm = limit_ppm;
        }
    }

    /// The threads owe so much more: watching took it on their CPU, some of them were not
    /// demoted, or a demoted one ran although others wanted the CPU.
    fn on_others(&mut self, took: Duration) {
        self.owed += took;
    }

    /// Counts up to `time` on the threads' clocks, which they show at `now`.
    fn on_time(&mut self, time: Duration, now: CoreInstant) -> Change {
        if self.limit.inhibited() {
            // It ran because nobody else wanted the CPU, or owes what it used.
            return self.on_uncounted(time, now);
        }
        let used = time.saturating_sub(self.seen);
        let span = Duration::from_nanos(now.as_nanos() - self.at.as_nanos());
        (self.seen, self.at) = (time, now);
        let used = used.min(span) + std::mem::take(&mut self.owed);
        let used_ns = u64::try_from(used.as_nanos()).unwrap_or(0);
        let began = CoreInstant::from_nanos(now.as_nanos().saturating_sub(used_ns));
        self.limit.on_enter(0, began);
        self.limit.on_exit(0, now)
    }

    /// What was used since the last look is not counted.
    fn on_uncounted(&mut self, time: Duration, now: CoreInstant) -> Change {
        (self.seen, self.at) = (time, now);
        self.limit.poll_timeout(now)
    }

    /// When to look again: the limit cannot be reached sooner.
    fn due(&self, now: CoreInstant) -> Duration {
        let at = match self.limit.next_timeout() {
            Some(timeout) => timeout,
            None if self.limit.left() > NEARLY => now + self.limit.left(),
            None => now + NEARLY,
        };
        until(at, now).max(NEARLY)
    }
}

fn fraction(ppm: u64) -> Fraction {
    Fraction::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
