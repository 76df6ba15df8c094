//! What others have of the CPUs, beside a process of another session that is known to compute,
//! and beside work of this test's own. What other work the machine has takes no part: two looks
//! at the same time are compared, of which the longer one can only have more. But a process that
//! ends just then, and that nobody waited for, takes its time along: so no other tests run beside.

use std::fs;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_tries::Watch;

/// CPU time of what is to be seen.
const COMPUTED: Duration = Duration::from_millis(300);
/// The kernel counts in steps of 10 ms, in each of the times that are compared.
const STEPS: Duration = Duration::from_millis(60);
/// Nobody has this PID, so all are others beside it.
const NOBODY: u32 = u32::MAX;

/// Each test's own work is other work to the other's longer look.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

/// A process that computes in a session of its own. For the kernel this process did not start
/// it: who did has ended.
struct Stranger(u32);

impl Stranger {
    fn start() -> Self {
        let start = "setsid sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!";
        let output = Command::new("sh").args(["-c", start]).output().unwrap();
        let pid = String::from_utf8(output.stdout).unwrap();
        Self(pid.trim().parse().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.to_string()).status();
    }
}

/// A process that was started here. Dropping it kills it.
struct Own(Child);

impl Own {
    fn start(script: &str) -> Self {
        Self(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time that a process has had, with that of children that it waited for.
fn time_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let times = fields.split(' ').skip(11).take(4);
    let steps: u32 = times.map(|steps| steps.parse::<u32>().unwrap()).sum();
    Duration::from_millis(10) * steps
}

/// Waits until a process has computed as long as is to be seen, and says how long.
fn compute_more(pid: u32) -> Duration {
    let (begun, before) = (Instant::now(), time_of(pid));
    loop {
        let had = time_of(pid) - before;
        if had >= COMPUTED {
            return had;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "only {had:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn who_computes_in_another_session_is_seen() {
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stranger = Stranger::start();
    let mut watch = Watch::start();
    let mut beside_it = Watch::beside(stranger.0);
    let had = compute_more(stranger.0);
    let (without_it, taken) = (beside_it.taken(), watch.taken());
    let more = taken.others.saturating_sub(without_it.others);
    assert!(more + STEPS >= had, "{had:?}: {taken:?}, {without_it:?}");
    assert!(taken.is_much(), "{had:?}: {taken:?}");
}

/// A thread that computes, a child that does, and one that has ended.
#[test]
fn own_work_is_nobody_else_s() {
    let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let own = std::process::id();
    let mut all = Watch::beside(NOBODY);
    let mut watch = Watch::start();
    let before = time_of(own);
    let mut ends = Own::start("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
    let running = Own::start("while :; do :; done");
    thread::scope(|scope| {
        let thread = scope.spawn(|| while time_of(own) - before < COMPUTED {});
        thread.join().unwrap();
    });
    assert!(ends.0.wait().unwrap().success());
    compute_more(running.0.id());
    let had = time_of(own) - before + time_of(running.0.id());
    let (taken, with_own) = (watch.taken(), all.taken());
    assert!(had >= COMPUTED * 2, "{had:?}");
    let more = with_own.others.saturating_sub(taken.others);
    assert!(more + STEPS >= had, "{had:?}: {taken:?}, {with_own:?}");
}
