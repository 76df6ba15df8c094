//! Keeps polling threads to a part of each period: a thread that has used it up
//! becomes `SCHED_IDLE` until the next period, so that it still runs where nobody
//! wants the CPU (Mogul & Ramakrishnan 1997, section 7: inhibit, and allow when
//! the CPU goes idle). What is used then is not counted.
//!
//! A period is short, since the receive ring overflows while its thread waits. The
//! thread's own clock is exact; what else receiving costs its CPU (softirqs,
//! interrupts) is taken off the limit as the meter sees it.
//!
//! Since polling then leaves some of every period, the guard's own thread need not
//! be above it: what it does may take longer than the ring lasts, so meanwhile it
//! runs beneath.
//!
//! Limits: one thread watches all polling threads, above them and every process.
//! It wakes up once or twice in each period; on the CPU of a polling thread each
//! time costs some microseconds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::{CpuLimit, CpuLimitConfig};
use plimsoll_core::time::Instant as CoreInstant;

use crate::error::Error;
use crate::knobs::{Class, Scheduling, set_class, thread_time};

const PERIOD: Duration = Duration::from_millis(2);
/// Less than this is not worth another look before the limit is reached.
const NEARLY: Duration = Duration::from_micros(30);
/// Part of the newest difference that corrects the limit.
const NEWEST: f64 = 0.2;

/// The watching thread; dropping it ends it and leaves all threads promoted.
/// Made and dropped by the thread that governs.
#[derive(Debug)]
pub(super) struct Limiter {
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
    stop: AtomicBool,
}

impl Limiter {
    pub(super) fn start(limit: Fraction, threads: Vec<i32>) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            limit_ppm: AtomicU64::new(limit.as_ppm().into()),
            inhibited: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("cpu-limit".to_owned())
            .spawn(move || {
                // Without the class it watches late, which the meter corrects.
                let _ = set_class(0, Class::Watcher);
                watch(&watched, &threads);
            })
            .map_err(|source| Error::Os {
                action: "start the thread that keeps the CPU limit",
                source,
            })?;
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

    /// Whether input was inhibited since the last call.
    pub(super) fn inhibited(&mut self) -> bool {
        self.shared.inhibited.swap(false, Ordering::Relaxed)
    }

    /// Corrects the threads' limit by what all receiving took.
    pub(super) fn on_observation(&self, network: Duration, elapsed: Duration) {
        if elapsed.is_zero() {
            return;
        }
        let limit = f64::from(self.limit.as_ppm());
        let taken = network.as_secs_f64() / elapsed.as_secs_f64() * 1e6;
        let now = self.shared.limit_ppm.load(Ordering::Relaxed) as f64;
        // Only down: less than the limit may be all there is to do.
        let corrected = now + (limit - taken) * NEWEST;
        let corrected = corrected.clamp(limit / 2.0, limit);
        self.shared
            .limit_ppm
            .store(corrected as u64, Ordering::Relaxed);
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        let _ = self.own.as_ref().map(|own| own.give_to(0));
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the threads are promoted below.
            let _ = thread.join();
        }
    }
}

/// One polling thread's account.
struct Account {
    thread: i32,
    limit: CpuLimit,
    limit_ppm: u64,
    seen: Duration,
    at: CoreInstant,
}

fn watch(shared: &Shared, threads: &[i32]) {
    let start = Instant::now();
    let now = || {
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        CoreInstant::from_nanos(nanos)
    };
    let mut accounts: Vec<Account> = threads
        .iter()
        .filter_map(|thread| Account::open(*thread, shared, now()))
        .collect();
    while !shared.stop.load(Ordering::Relaxed) && !accounts.is_empty() {
        let time = now();
        accounts.retain_mut(|account| account.check(shared, time).is_ok());
        let next = accounts.iter().map(|account| account.due(time)).min();
        thread::sleep(next.unwrap_or(PERIOD));
    }
    for account in &accounts {
        // The thread may be gone.
        let _ = set_class(account.thread, Class::Polling);
    }
}

fn limit_of(ppm: u64, now: CoreInstant) -> Option<CpuLimit> {
    let config = CpuLimitConfig {
        limit: Fraction::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)),
        period: PERIOD,
        ..CpuLimitConfig::default()
    };
    CpuLimit::new(config, now).ok()
}

impl Account {
    fn open(thread: i32, shared: &Shared, now: CoreInstant) -> Option<Self> {
        let limit_ppm = shared.limit_ppm.load(Ordering::Relaxed);
        Some(Self {
            thread,
            limit: limit_of(limit_ppm, now)?,
            limit_ppm,
            seen: thread_time(thread).ok()?,
            at: now,
        })
    }

    /// Counts what the thread used; demotes and promotes it.
    fn check(&mut self, shared: &Shared, now: CoreInstant) -> io::Result<()> {
        let time = thread_time(self.thread)?;
        let used = time.saturating_sub(self.seen);
        self.seen = time;
        let was_inhibited = self.limit.inhibited();
        if was_inhibited {
            // It ran because nobody else wanted the CPU.
            let _ = self.limit.poll_timeout(now);
        } else {
            let span = Duration::from_nanos(now.as_nanos() - self.at.as_nanos());
            let began = CoreInstant::from_nanos(
                now.as_nanos() - u64::try_from(used.min(span).as_nanos()).unwrap_or(0),
            );
            self.limit.on_enter(0, began);
            let _ = self.limit.on_exit(0, now);
        }
        self.at = now;
        match (was_inhibited, self.limit.inhibited()) {
            (false, true) => {
                shared.inhibited.store(true, Ordering::Relaxed);
                set_class(self.thread, Class::Idle)?;
            }
            (true, false) => set_class(self.thread, Class::Polling)?,
            _ => {}
        }
        self.adopt_limit(shared, now);
        Ok(())
    }

    /// Takes over a limit that was corrected; debt is forgotten with the old one.
    fn adopt_limit(&mut self, shared: &Shared, now: CoreInstant) {
        let ppm = shared.limit_ppm.load(Ordering::Relaxed);
        let is_noticeable = ppm.abs_diff(self.limit_ppm) > 5000;
        if is_noticeable
            && !self.limit.inhibited()
            && let Some(limit) = limit_of(ppm, now)
        {
            self.limit = limit;
            self.limit_ppm = ppm;
        }
    }

    /// When to look again: the limit cannot be reached sooner.
    fn due(&self, now: CoreInstant) -> Duration {
        let at = match self.limit.next_timeout() {
            Some(timeout) => timeout,
            None if self.limit.left() > NEARLY => now + self.limit.left(),
            None => now + NEARLY,
        };
        Duration::from_nanos(at.as_nanos().saturating_sub(now.as_nanos())).max(NEARLY)
    }
}
