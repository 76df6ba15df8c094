//! How a polling thread competes with processes: its class, nice level and
//! CPUs.

use std::fmt;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// How polling threads compete with processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A share like a process of this nice level (-20..=19). The scheduler may
    /// let a process finish its slice first: at high rates the ring overflows
    /// meanwhile.
    Nice(i8),
    /// The same share, in short slices: it runs soon after it woke, so that the ring
    /// overflows later. Before Linux 6.12 it is as [`Priority::Nice`].
    Short(i8),
    /// Real-time (`SCHED_FIFO`, priority 2): before every process, at once. Beyond the
    /// discard capacity processes keep only what the kernel reserves for them
    /// (`sched_rt_runtime_us`, 5 % by default).
    RealTime,
}

/// Of a real-time polling thread; [`Class::Beneath`] has the one below.
const POLLING_PRIORITY: u32 = 2;
/// The shortest slice that the kernel gives.
const SHORT: Duration = Duration::from_micros(100);

/// Everything that decides when and where a thread runs (sched(7)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
    cpus: Vec<usize>,
}

impl Scheduling {
    /// A thread's present scheduling.
    pub fn of(thread: i32) -> io::Result<Self> {
        let attributes = sched_getattr(thread)?;
        let allowed = sched_getaffinity(Pid::from_raw(thread))?;
        Ok(Self {
            policy: attributes.sched_policy,
            flags: attributes.sched_flags,
            nice: attributes.sched_nice,
            priority: attributes.sched_priority,
            runtime_ns: attributes.sched_runtime,
            deadline_ns: attributes.sched_deadline,
            period_ns: attributes.sched_period,
            cpus: (0..CpuSet::count())
                .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
                .collect(),
        })
    }

    /// The same with another priority, in the usual class for it.
    pub fn with_priority(&self, priority: Priority) -> Self {
        let (policy, nice, priority) = match priority {
            Priority::Nice(nice) => (libc::SCHED_OTHER, i32::from(nice), 0),
            Priority::Short(nice) => {
                let usual = self.with_priority(Priority::Nice(nice));
                return usual.with_slice(SHORT);
            }
            Priority::RealTime => (libc::SCHED_FIFO, 0, POLLING_PRIORITY),
        };
        Self {
            policy: policy.cast_unsigned(),
            nice,
            priority,
            // For `SCHED_OTHER` the runtime is the slice, and stays.
            deadline_ns: 0,
            period_ns: 0,
            ..self.clone()
        }
    }

    /// The same with a slice of this length, for a class that shares the CPU. A short
    /// one has the thread run soon after it woke, and takes nothing from others: shares
    /// stay as they are. Before Linux 6.12 it means nothing.
    pub fn with_slice(&self, slice: Duration) -> Self {
        Self {
            runtime_ns: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
            ..self.clone()
        }
    }

    /// The same on other CPUs.
    pub fn with_cpus(&self, cpus: &[usize]) -> Self {
        Self {
            cpus: cpus.to_vec(),
            ..self.clone()
        }
    }

    /// Its nice level (-20..=19), 0 for a real-time thread.
    pub const fn nice(&self) -> i32 {
        self.nice
    }

    /// The CPUs.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Gives it to a thread. `None` if the thread is gone.
    pub fn give_to(&self, thread: i32) -> io::Result<Option<()>> {
        self.give(thread, |given| given)
    }

    /// Gives back what it had. If none of its CPUs is online any more, it has those that the kernel
    /// has given it since.
    pub fn give_back_to(&self, thread: i32) -> io::Result<Option<()>> {
        self.give(thread, |given| match given {
            Err(Errno::EINVAL) => Ok(()),
            given => given,
        })
    }

    fn give(
        &self,
        thread: i32,
        judge: impl FnOnce(nix::Result<()>) -> nix::Result<()>,
    ) -> io::Result<Option<()>> {
        let mut allowed = CpuSet::new();
        for cpu in &self.cpus {
            allowed.set(*cpu)?;
        }
        let give = || -> io::Result<()> {
            sched_setattr(thread, self)?;
            Ok(judge(sched_setaffinity(Pid::from_raw(thread), &allowed))?)
        };
        match give() {
            Ok(()) => Ok(Some(())),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// How soon a thread gets the CPU, as far as that is one number: the nice levels, and above
/// them the real-time priorities. More is sooner.
///
/// `SCHED_IDLE` counts as nice 19 and `SCHED_DEADLINE` as nice -20: neither can be lent to
/// another thread without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u8);

impl Level {
    /// Of `SCHED_OTHER`, from nice 19 (0) to nice -20.
    const NICE_LEVELS: i32 = 40;

    /// That of a nice level, or the nearest that there is (-20..=19).
    pub fn nice(nice: i8) -> Self {
        Self(Self::of_nice(nice.into()))
    }

    fn of_nice(nice: i32) -> u8 {
        u8::try_from(19 - nice.clamp(-20, 19)).unwrap_or(0)
    }

    /// From what [`number`](Self::number) told.
    pub const fn from_number(number: u8) -> Self {
        Self(number)
    }

    /// For an atomic.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// A thread's present level (0: this thread's).
    ///
    /// # Errors
    ///
    /// The thread is gone (`ESRCH`).
    pub fn of(thread: i32) -> io::Result<Self> {
        let found = sched_getattr(thread)?;
        Ok(Self(match found.sched_policy.cast_signed() {
            libc::SCHED_FIFO | libc::SCHED_RR => {
                let above = i64::from(found.sched_priority) + i64::from(Self::NICE_LEVELS) - 1;
                u8::try_from(above).unwrap_or(u8::MAX)
            }
            libc::SCHED_DEADLINE => Self::of_nice(-20),
            libc::SCHED_IDLE => Self::of_nice(19),
            _ => Self::of_nice(found.sched_nice),
        }))
    }

    /// Gives it to a thread, with the usual slice; its CPUs stay. `None` if the thread is gone.
    ///
    /// # Errors
    ///
    /// `EPERM`: a better level takes `CAP_SYS_NICE`.
    pub fn give_to(self, thread: i32) -> io::Result<Option<()>> {
        let above = i32::from(self.0) - Self::NICE_LEVELS;
        let (policy, nice, priority) = match u32::try_from(above) {
            Ok(above) => (libc::SCHED_FIFO, 0, above + 1),
            Err(_) => (libc::SCHED_OTHER, 19 - i32::from(self.0), 0),
        };
        let scheduling = Scheduling {
            policy: policy.cast_unsigned(),
            flags: 0,
            nice,
            priority,
            runtime_ns: 0,
            deadline_ns: 0,
            period_ns: 0,
            cpus: Vec::new(),
        };
        match sched_setattr(thread, &scheduling) {
            Ok(()) => Ok(Some(())),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            nice,
            priority,
            cpus,
            ..
        } = self;
        write!(
            f,
            "policy {policy}, nice level {nice}, priority {priority}, CPUs {cpus:?}"
        )
    }
}

/// Classes that threads change between while overload lasts. What a polling
/// thread had before is on record by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Before every process: [`Priority::RealTime`].
    Polling,
    /// Only where nobody else wants the CPU.
    Idle,
    /// Before every process, but never in the way of polling.
    Beneath,
    /// Before [`Class::Polling`]: whoever provides it with work.
    /// [`PollingLimit`](crate::polling_limit::PollingLimit) bounds it.
    Ahead,
    /// Above polling threads: whoever watches them.
    Watcher,
}

/// Puts a thread (0: this one) into a class.
pub fn set_class(thread: i32, class: Class) -> io::Result<()> {
    match class {
        Class::Polling => set_scheduler(thread, libc::SCHED_FIFO, POLLING_PRIORITY.cast_signed()),
        Class::Idle => set_scheduler(thread, libc::SCHED_IDLE, 0),
        Class::Beneath => {
            set_scheduler(thread, libc::SCHED_FIFO, POLLING_PRIORITY.cast_signed() - 1)
        }
        Class::Ahead => set_scheduler(thread, libc::SCHED_FIFO, POLLING_PRIORITY.cast_signed() + 1),
        Class::Watcher => set_scheduler(thread, libc::SCHED_FIFO, 10),
    }
}

/// Makes the calling thread a real-time one (`SCHED_FIFO`) of `priority` (1..=99).
///
/// # Errors
///
/// The kernel refuses: it takes `CAP_SYS_NICE`.
pub fn set_fifo(priority: i32) -> io::Result<()> {
    set_scheduler(0, libc::SCHED_FIFO, priority)
}

#[allow(
    unsafe_code,
    reason = "neither nix nor rustix sets a thread's scheduling class"
)]
fn set_scheduler(thread: i32, policy: i32, sched_priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: `parameters` is initialised and outlives the call.
    let result = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The clock of CPU time of a thread, since its start and to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadClock(i32);

impl ThreadClock {
    /// Of a kernel thread or of one of this process (0: this one).
    ///
    /// # Errors
    ///
    /// There is no such thread.
    pub fn of(thread: i32) -> io::Result<Self> {
        // Clocks of CPU time: include/linux/posix-timers.h. That of a thread is told to its own
        // process only, and a kernel thread is a process.
        const SCHED_CLOCK: i32 = 2;
        const PER_THREAD: i32 = 4;
        let process = (!thread << 3) | SCHED_CLOCK;
        let of_thread = process | PER_THREAD;
        let clock = clock_time(of_thread).map(|_| of_thread);
        let clock = clock.or_else(|_| clock_time(process).map(|_| process));
        clock.map(Self)
    }

    /// What it shows.
    ///
    /// # Errors
    ///
    /// The thread has ended.
    pub fn time(self) -> io::Result<Duration> {
        clock_time(self.0)
    }
}

/// What a thread's [clock](ThreadClock::of) shows.
pub fn thread_time(thread: i32) -> io::Result<Duration> {
    ThreadClock::of(thread)?.time()
}

#[allow(unsafe_code, reason = "nix knows no clock of another process")]
fn clock_time(clock: i32) -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable and outlives the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Ok(Duration::new(seconds, nanos))
}

#[allow(unsafe_code, reason = "neither nix nor rustix has sched_getattr")]
fn sched_getattr(thread: i32) -> io::Result<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: SIZE,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `SIZE` bytes, the structure's own.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            thread,
            &raw mut attributes,
            SIZE,
            0u32,
        )
    };
    if result == 0 {
        Ok(attributes)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[allow(unsafe_code, reason = "neither nix nor rustix has sched_setattr")]
fn sched_setattr(thread: i32, scheduling: &Scheduling) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: SIZE,
        sched_policy: scheduling.policy,
        // The bits for utilisation clamps would ask for values that this
        // version of the structure has no place for.
        sched_flags: scheduling.flags & KNOWN_FLAGS,
        sched_nice: scheduling.nice,
        sched_priority: scheduling.priority,
        sched_runtime: scheduling.runtime_ns,
        sched_deadline: scheduling.deadline_ns,
        sched_period: scheduling.period_ns,
    };
    // SAFETY: `attributes` is initialised, states its size, and outlives the
    // call, which only reads it.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0u32) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The first published size of the structure, which every kernel takes.
const SIZE: u32 = size_of::<libc::sched_attr>() as u32;
/// Reset on fork, reclaim, overrun: `SCHED_FLAG_*` of `sched_setattr(2)`.
const KNOWN_FLAGS: u64 = 0x7;

#[cfg(test)]
mod tests {
    use super::*;

    /// Its class was not put back either, and no guard started any more.
    #[test]
    fn a_thread_whose_cpus_are_gone_gets_the_rest_back() {
        std::thread::spawn(|| {
            let thread = nix::unistd::gettid().as_raw();
            let before = Scheduling::of(thread).unwrap();
            let gone = before.with_priority(Priority::Nice(7)).with_cpus(&[1023]);
            assert!(gone.give_to(thread).is_err(), "a CPU that was asked for");
            gone.give_back_to(thread).unwrap().unwrap();
            let after = Scheduling::of(thread).unwrap();
            assert_eq!((after.nice, after.cpus()), (7, before.cpus()));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_gets_its_old_scheduling_back() {
        std::thread::spawn(|| {
            let thread = nix::unistd::gettid().as_raw();
            let before = Scheduling::of(thread).unwrap();
            let changed = before.with_priority(Priority::Nice(7)).with_cpus(&[0]);
            changed.give_to(thread).unwrap();
            assert_eq!(Scheduling::of(thread).unwrap(), changed);
            before
                .with_priority(Priority::RealTime)
                .give_to(thread)
                .unwrap();
            assert_eq!(Scheduling::of(thread).unwrap().policy, 1, "SCHED_FIFO");
            before.give_to(thread).unwrap();
            assert_eq!(Scheduling::of(thread).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    /// The watcher of polling threads took the time of all of its process for its own.
    #[test]
    fn a_thread_s_time_is_its_own() {
        let (told, tids) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let burner = std::thread::spawn(move || {
            let before = thread_time(0).unwrap();
            while thread_time(0).unwrap() - before < Duration::from_millis(30) {}
            told.send(nix::unistd::gettid().as_raw()).unwrap();
            // Until the other thread has looked.
            let _ = ended.recv();
        });
        let idle = thread_time(0).unwrap();
        let burnt = thread_time(tids.recv().unwrap()).unwrap();
        assert!(burnt >= Duration::from_millis(30), "{burnt:?}");
        let waited = thread_time(0).unwrap() - idle;
        assert!(waited < Duration::from_millis(15), "{waited:?}");
        drop(end);
        burner.join().unwrap();
    }

    #[test]
    fn levels_are_ordered_and_can_be_lent() {
        std::thread::spawn(|| {
            let thread = nix::unistd::gettid().as_raw();
            let cpus = Scheduling::of(thread).unwrap().cpus;
            for nice in [19, 5, 0, -20] {
                let level = Level::nice(nice);
                level.give_to(thread).unwrap();
                assert_eq!(Level::of(thread).unwrap(), level);
                assert_eq!(Scheduling::of(thread).unwrap().nice(), i32::from(nice));
            }
            set_fifo(3).unwrap();
            let real_time = Level::of(thread).unwrap();
            assert!(real_time > Level::nice(-20) && Level::nice(0) > Level::nice(5));
            Level::nice(0).give_to(thread).unwrap();
            real_time.give_to(thread).unwrap();
            let found = Scheduling::of(thread).unwrap();
            assert_eq!((found.policy, found.priority), (1, 3), "SCHED_FIFO");
            assert_eq!(found.cpus, cpus);
            set_class(thread, Class::Idle).unwrap();
            assert_eq!(Level::of(thread).unwrap(), Level::nice(19));
        })
        .join()
        .unwrap();
        assert!(Level::nice(0).give_to(i32::MAX).unwrap().is_none());
    }

    #[test]
    fn a_thread_that_is_gone_is_no_error() {
        let scheduling = Scheduling::of(0).unwrap();
        assert!(scheduling.give_to(i32::MAX).unwrap().is_none());
    }
}
