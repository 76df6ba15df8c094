//! What a CPU's books say at one time, and between two times.

use std::time::Duration;

use super::{WATCHED_MAX, types};

/// The program's accounts.
#[derive(Clone, Copy)]
enum Account {
    App = types::account::ACCOUNT_APP.0 as isize,
    Network = types::account::ACCOUNT_NETWORK.0 as isize,
    Other = types::account::ACCOUNT_OTHER.0 as isize,
    Idle = types::account::ACCOUNT_IDLE.0 as isize,
}

/// One CPU's books since the meter's start, in nanoseconds. The four accounts sum
/// to the time of all windows of metering in which the CPU had a task switch or a softirq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuReading {
    /// The CPU's number.
    pub cpu: u32,
    /// User processes.
    pub app_ns: u64,
    /// Network softirqs, their interrupts, and polling threads.
    pub network_ns: u64,
    /// Of these, those during which another task ran below or waited for the CPU, as far as is
    /// booked. All of them where the kernel does not tell.
    pub contended_ns: u64,
    /// Other softirqs and kernel threads.
    pub other_ns: u64,
    /// Nothing to run.
    pub idle_ns: u64,
    /// Frames the interface was polled for here.
    pub frames: u64,
    /// Polling runs, each until a receive ring was empty.
    pub runs: u64,
    /// Most frames in one run since the reading before: those found waiting
    /// and those that came meanwhile.
    pub run_frames_max: u32,
    watched: [Watched; WATCHED_MAX],
}

/// What one NAPI instance has brought since the meter's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceReading {
    /// The kernel's number of it.
    pub napi: u32,
    /// The CPU that polled it last.
    pub cpu: u32,
    /// Frames polled.
    pub frames: u64,
}

/// The account of one watched process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watched {
    pid: u32,
    time_ns: u64,
}

impl CpuReading {
    /// From books that are settled up to `now_ns` but for what runs since the last
    /// event.
    pub(super) fn new(
        cpu: usize,
        books: &types::cpu,
        now_ns: u64,
        settings: &types::meter_settings,
    ) -> Self {
        let is_running = books.window_ns != 0 && books.window_ns == settings.window_ns;
        let running_ns = if is_running {
            now_ns.saturating_sub(books.since_ns)
        } else {
            0
        };
        let account = |account: Account| {
            let runs_now = books.account == account as u32;
            books.account_ns[account as usize] + if runs_now { running_ns } else { 0 }
        };
        let is_current = books.generation == settings.generation;
        let mut watched = [Watched::default(); WATCHED_MAX];
        for (slot, (watched, pid)) in watched.iter_mut().zip(settings.watched_pids).enumerate() {
            let runs_now = books.watched as usize == slot;
            watched.pid = pid;
            watched.time_ns = books.watched_ns[slot] + if runs_now { running_ns } else { 0 };
        }
        Self {
            cpu: cpu as u32,
            app_ns: account(Account::App),
            network_ns: account(Account::Network),
            contended_ns: books.contended_ns,
            other_ns: account(Account::Other),
            idle_ns: account(Account::Idle),
            frames: books.frames,
            runs: books.finished_runs,
            run_frames_max: if is_current { books.run_frames_max } else { 0 },
            watched,
        }
    }

    /// All time that is booked.
    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        self.app_ns + self.network_ns + self.other_ns + self.idle_ns
    }

    /// What was booked between `earlier` and this reading of the same CPU.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> CpuTime {
        let time = |value: fn(&Self) -> u64| {
            Duration::from_nanos(value(self).saturating_sub(value(earlier)))
        };
        let watched = self.watched.iter().zip(&earlier.watched);
        let processes = watched.filter(|(later, _)| later.pid != 0);
        CpuTime {
            elapsed: time(Self::total_ns),
            app: time(|reading| reading.app_ns),
            network: time(|reading| reading.network_ns),
            contended: time(|reading| reading.contended_ns),
            other: time(|reading| reading.other_ns),
            idle: time(|reading| reading.idle_ns),
            processes: processes
                .map(|(later, earlier)| ProcessTime {
                    pid: later.pid,
                    cpu: Duration::from_nanos(later.time_ns.saturating_sub(earlier.time_ns)),
                })
                .collect(),
        }
    }
}

/// How a CPU spent some time. The four kinds sum to `elapsed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// The time between the two readings.
    pub elapsed: Duration,
    /// User processes.
    pub app: Duration,
    /// Network softirqs, their interrupts, and polling threads.
    pub network: Duration,
    /// Of `network`, the time during which another task ran below or waited for the CPU.
    pub contended: Duration,
    /// Other softirqs and kernel threads.
    pub other: Duration,
    /// Nothing to run.
    pub idle: Duration,
    /// The watched processes' parts of `app`.
    pub processes: Vec<ProcessTime>,
}

/// The CPU time of one watched process on the metered CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTime {
    /// Its process id.
    pub pid: u32,
    /// Its time, without the softirqs and interrupts that ran on top of it.
    pub cpu: Duration,
}

impl CpuTime {
    /// `part` as a fraction of the elapsed time.
    #[must_use]
    pub fn share(&self, part: Duration) -> f64 {
        part.as_secs_f64() / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
