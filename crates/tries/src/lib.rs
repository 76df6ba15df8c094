//! Whether a test had the machine's time. A test that needs it is repeated where others took
//! it, and nowhere else: on a machine of its own a failure stands.
//!
//! *Others* are all processes that are neither the test's own nor started by it, and the
//! hypervisor. [`Watch`] adds up what CPU time each process of others has had, with that of
//! children that it waited for (`/proc/PID/stat`): so one that begins or ends in between
//! counts, too. The hypervisor's part is `steal` in `/proc/stat`.
//!
//! Two other measures are wrong here. What the machine did altogether, less what the test's
//! processes had, holds the test's softirqs and its kernel threads (those that poll an
//! interface end with it), and a test's own flood would excuse it. Pressure
//! (`/proc/pressure/cpu`) also grows where the test's own threads wait for each other. So what
//! the kernel does counts as nobody's.
//!
//! Limits: the kernel counts in steps of 10 ms. Without IRQ time accounting, a softirq counts
//! as time of the process that it interrupts, also where that is somebody else's. A process of
//! the test whose parent has ended passes for somebody else's, unless it was seen before.
//! Processes outside of this PID namespace are not seen. Nor is one that ended and that nobody
//! waited for.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};
use std::{fmt, fs};

/// The part of the machine from which on others have taken its time: a fiftieth. Of two CPUs
/// this is a twenty-fifth of one, and what bounds of tests leave room for is a hundredth to a
/// tenth of what a CPU does. In 40 single seconds (2026-11-26, two virtual CPUs) processes that
/// rest and the hypervisor had up to 1.5 % together; only the three busiest were recorded.
const MUCH: f64 = 0.02;
/// Less shows nothing: two processes may each have been about to fill a step.
const STEPS_LEAST: u32 = 3;
/// What the kernel tells user space times in (`USER_HZ`).
const STEP: Duration = Duration::from_millis(10);
/// In less a few steps are a large part.
const SHORT: Duration = Duration::from_millis(500);
/// Where processes end all the time, one reading must do in the end.
const READINGS_MAX: u32 = 4;
/// Of a process's flags: it is a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What others had of the CPUs in some time.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// CPU time of others.
    pub others: Duration,
    /// How long was looked.
    pub elapsed: Duration,
    /// How many CPUs there are.
    pub cpus: u32,
}

impl Taken {
    /// The part of the machine, from 0 to 1.
    #[must_use]
    pub fn part(&self) -> f64 {
        let all = self.elapsed.as_secs_f64() * f64::from(self.cpus);
        (self.others.as_secs_f64() / all).min(1.0)
    }

    /// Whether it was so much that a test may have failed for want of it.
    #[must_use]
    pub fn is_much(&self) -> bool {
        self.part() > MUCH && self.others >= STEP * STEPS_LEAST
    }

    /// The worst of some that follow each other. A short one counts with the one before.
    #[must_use]
    pub fn worst(all: &[Self]) -> Option<Self> {
        let mut long: Vec<Self> = Vec::new();
        for taken in all {
            match long.last_mut() {
                Some(last) if taken.elapsed < SHORT => {
                    last.others += taken.others;
                    last.elapsed += taken.elapsed;
                }
                _ => long.push(*taken),
            }
        }
        long.into_iter()
            .max_by(|a, b| a.part().total_cmp(&b.part()))
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, elapsed) = (self.part() * 100.0, self.elapsed);
        write!(
            f,
            "others had {percent:.1} % of the machine in {elapsed:.1?}"
        )
    }
}

/// Looks at what others have of the CPUs.
#[derive(Debug)]
pub struct Watch {
    root: u32,
    since: Reading,
}

impl Watch {
    /// Others than this process and those that it started.
    #[must_use]
    pub fn start() -> Self {
        Self::beside(std::process::id())
    }

    /// Others than process `root` and those that it started.
    #[must_use]
    pub fn beside(root: u32) -> Self {
        let since = Reading::now(root, HashSet::from([root]));
        Self { root, since }
    }

    /// What they had since the start, or since this was last asked.
    pub fn taken(&mut self) -> Taken {
        let now = Reading::now(self.root, self.since.own.clone());
        // A process that nobody waited for takes with it what it had.
        let steps = now.steps.saturating_sub(self.since.steps);
        let taken = Taken {
            others: STEP * u32::try_from(steps).unwrap_or(u32::MAX),
            elapsed: now.at - self.since.at,
            cpus: now.cpus,
        };
        self.since = now;
        taken
    }
}

/// Whether one of at most `most` tries succeeds. One that fails is followed by another only if
/// others took the machine's time meanwhile.
pub fn repeated(most: u32, mut attempt: impl FnMut() -> bool) -> bool {
    for number in 1..=most {
        let mut watch = Watch::start();
        if attempt() {
            return true;
        }
        let taken = watch.taken();
        eprintln!("try {number} of at most {most} failed: {taken}");
        if !taken.is_much() {
            return false;
        }
    }
    false
}

/// The same for a test that panics where it fails. The last panic goes on.
pub fn repeated_test(most: u32, test: impl Fn()) {
    let mut panic = None;
    let passes = repeated(most, || {
        panic = catch_unwind(AssertUnwindSafe(&test)).err();
        panic.is_none()
    });
    if let (false, Some(panic)) = (passes, panic) {
        resume_unwind(panic);
    }
}

/// What others have had so far.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// Processes of the test, also those that have lost their parent since they were seen.
    own: HashSet<u32>,
    /// CPU time of others.
    steps: u64,
    cpus: u32,
}

impl Reading {
    fn now(root: u32, mut own: HashSet<u32>) -> Self {
        let at = Instant::now();
        let stat = fs::read_to_string("/proc/stat").expect("the machine's CPU times");
        let all = processes();
        own.retain(|pid| *pid == root || all.contains_key(pid));
        let pids = all.keys().copied();
        let more: Vec<u32> = pids.filter(|pid| descends(*pid, &own, &all)).collect();
        own.extend(more);
        let others = all.iter().filter(|(pid, _)| !own.contains(pid));
        let had: u64 = others.map(|(_, process)| process.steps).sum();
        let (stolen, cpus) = machine(&stat);
        Self {
            at,
            own,
            steps: had + stolen,
            cpus,
        }
    }
}

/// Whether one of these is the process's parent, or its parent's.
fn descends(pid: u32, own: &HashSet<u32>, all: &HashMap<u32, Process>) -> bool {
    let mut one = pid;
    // Readings of two moments may make a circle.
    for _ in 0..all.len() {
        if own.contains(&one) {
            return true;
        }
        match all.get(&one) {
            Some(process) => one = process.parent,
            None => return false,
        }
    }
    false
}

/// Time that the hypervisor took, in steps, and the number of CPUs, from `/proc/stat`.
fn machine(stat: &str) -> (u64, u32) {
    let cpus = stat.lines().filter(|line| line.starts_with("cpu"));
    let together = stat.lines().next().unwrap_or_default();
    let stolen = together.split_whitespace().nth(8);
    let stolen = stolen.and_then(|steps| steps.parse().ok()).unwrap_or(0);
    // Less the line of all CPUs together.
    (stolen, cpus.count().saturating_sub(1).max(1) as u32)
}

#[derive(Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    /// CPU time, with that of children that it waited for.
    steps: u64,
}

/// All but threads of the kernel.
fn processes() -> HashMap<u32, Process> {
    // What one had that ends meanwhile is its parent's then, who may have been read before.
    let mut all = (0..READINGS_MAX).map(|_| read_processes());
    let whole = all.find_map(|(processes, is_whole)| is_whole.then_some(processes));
    whole.unwrap_or_else(|| read_processes().0)
}

/// The same, and whether none of them ended meanwhile.
fn read_processes() -> (HashMap<u32, Process>, bool) {
    let names = fs::read_dir("/proc").expect("the processes").flatten();
    let pids: Vec<u32> = names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let stats: Vec<(u32, String)> = pids
        .iter()
        .filter_map(|pid| Some((*pid, fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)))
        .collect();
    let is_whole = stats.len() == pids.len();
    let read = |(pid, stat): &(u32, String)| Some((*pid, process(stat)?));
    (stats.iter().filter_map(read).collect(), is_whole)
}

/// From `/proc/PID/stat`; `None` for a thread of the kernel. The name may hold anything.
fn process(stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    // Numbers as in proc_pid_stat(5), less the two that came before.
    let field = |number: usize| fields.get(number - 3)?.trim().parse::<u64>().ok();
    if field(9)? & KERNEL_THREAD != 0 {
        return None;
    }
    Some(Process {
        parent: u32::try_from(field(4)?).ok()?,
        steps: (14..=17).map(field).sum::<Option<u64>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(others_ms: u64, elapsed_ms: u64) -> Taken {
        Taken {
            others: Duration::from_millis(others_ms),
            elapsed: Duration::from_millis(elapsed_ms),
            cpus: 2,
        }
    }

    #[test]
    fn a_fiftieth_of_all_cpus_is_much_and_a_few_steps_are_not() {
        assert_eq!(taken(50, 1000).part(), 0.025);
        assert!(taken(50, 1000).is_much() && !taken(40, 1000).is_much());
        assert!(taken(30, 400).is_much() && !taken(20, 400).is_much());
        assert_eq!(taken(5000, 1000).part(), 1.0);
    }

    #[test]
    fn the_worst_second_counts_and_the_rest_of_one_counts_with_it() {
        let worst = |all: &[Taken]| Taken::worst(all).map(|taken| taken.others.as_millis());
        let seconds = [taken(10, 1000), taken(60, 1000), taken(20, 1000)];
        assert_eq!(worst(&seconds), Some(60));
        assert_eq!(worst(&[taken(10, 1000), taken(10, 5)]), Some(20));
        assert_eq!(worst(&[taken(10, 5)]), Some(10));
        assert_eq!(worst(&[]), None);
    }

    #[test]
    fn a_process_has_what_it_and_its_children_used() {
        let stat = "17 (a) R b) S 1 17 17 0 -1 4194560 1 2 3 4 100 20 3 4000 20 0 1 0 5 6 7";
        let (parent, steps) = (1, 4123);
        assert_eq!(process(stat), Some(Process { parent, steps }));
        let kernel_s = stat.replace("4194560", "2129984");
        assert_eq!(process(&kernel_s), None);
    }

    #[test]
    fn the_hypervisor_s_part_and_the_cpus_are_read() {
        let stat = "cpu  9 8 7 6 5 4 3 21 1 1\ncpu0 1 1\ncpu1 1 1\nintr 5\n";
        assert_eq!(machine(stat), (21, 2));
    }

    #[test]
    fn whoever_descends_from_the_root_is_its_own() {
        let one = |parent| Process { parent, steps: 0 };
        let all = HashMap::from([
            (1, one(0)),
            (5, one(1)),
            (6, one(5)),
            (7, one(6)),
            (8, one(1)),
        ]);
        let own = HashSet::from([5]);
        let found = |pid| descends(pid, &own, &all);
        assert_eq!([1, 5, 6, 7, 8].map(found), [false, true, true, true, false]);
    }

    #[test]
    fn what_succeeds_is_not_repeated() {
        let mut tries = 0;
        assert!(repeated(8, || {
            tries += 1;
            true
        }));
        assert_eq!(tries, 1);
        assert!(!repeated(1, || false));
    }
}
