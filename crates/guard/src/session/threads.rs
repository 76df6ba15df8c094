//! Threads that poll from the start to the end, if that is asked for.

use std::mem::take;
use std::task::{Poll, ready};

use plimsoll_kernel::errand::Errand;
use plimsoll_kernel::knobs::{Knobs, PollingThread, Queues, Regrouping, TurnError};
use plimsoll_kernel::scheduling::Priority;
use plimsoll_kernel::threaded::{are_renewed, check_control_group, check_threads, poll_in_threads};

use super::settings::Settings;
use crate::error::Error;

/// The threads that poll, as the settings say.
#[derive(Debug, Default)]
pub(super) struct Threads {
    threads: Vec<PollingThread>,
    /// New ones are on their way to their control group. Another thread has them moved, which
    /// takes up to half a second for each: this one is real-time.
    moving: Option<(Vec<PollingThread>, Moving)>,
}

/// Nothing is put back before it has ended, or a thread might come too late.
#[derive(Debug)]
struct Moving(Option<Errand<Result<(), TurnError>>>);

/// Refuses what would be refused when threads are to poll, from the start or in overload: before the
/// program is attached.
pub(super) fn check(settings: &Settings) -> Result<(), TurnError> {
    if settings.polls_in_threads() {
        check_threads(settings.poll_cpu.as_ref().map(std::slice::from_ref))?;
    }
    let group = settings.poll_control_group.as_deref();
    group.map_or(Ok(()), check_control_group)
}

impl Threads {
    /// Has threads poll from now on. May take long.
    pub(super) fn start(knobs: &mut Knobs, settings: &Settings) -> Result<Self, TurnError> {
        let mut started = Self::default();
        if let Some(priority) = settings.threaded {
            let (threads, moves) = poll(knobs, settings, priority)?;
            carry_out(moves)?;
            started.threads = threads;
        }
        Ok(started)
    }

    /// Has threads poll as before, where the driver made its instances anew. How many, if so.
    pub(super) fn renew(
        &mut self,
        knobs: &mut Knobs,
        settings: &Settings,
    ) -> Poll<Result<Option<usize>, Error>> {
        let Some(priority) = settings.threaded else {
            return Poll::Ready(Ok(None));
        };
        if let Some((threads, moving)) = &mut self.moving {
            let moved = ready!(moving.poll());
            let threads = take(threads);
            self.moving = None;
            moved?;
            self.threads = threads;
            return Poll::Ready(Ok(Some(self.threads.len())));
        }
        if !are_renewed(knobs, Queues::All, &self.threads)? {
            return Poll::Ready(Ok(None));
        }
        let (threads, moves) = poll(knobs, settings, priority)?;
        if !moves.is_empty() {
            let errand = Errand::start(move || carry_out(moves))?;
            self.moving = Some((threads, Moving(Some(errand))));
            return Poll::Pending;
        }
        self.threads = threads;
        Poll::Ready(Ok(Some(self.threads.len())))
    }
}

impl Moving {
    fn poll(&mut self) -> Poll<Result<(), Error>> {
        let Some(errand) = &self.0 else {
            return Poll::Ready(Ok(()));
        };
        let moved = ready!(errand.poll());
        self.0 = None;
        Poll::Ready(moved?.map_err(Error::from))
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        if let Some(errand) = self.0.take() {
            let _ = errand.wait();
        }
    }
}

/// Has threads poll from now on, as the settings say, but for the control groups that they
/// are to be moved to.
fn poll(
    knobs: &mut Knobs,
    settings: &Settings,
    priority: Priority,
) -> Result<(Vec<PollingThread>, Vec<Regrouping>), TurnError> {
    // The group may be another one since the start.
    check(settings)?;
    let cpus = settings.poll_cpu.as_ref().map(std::slice::from_ref);
    let threads = poll_in_threads(knobs, Queues::All, priority, cpus)?;
    let mut moves = Vec::new();
    if let Some(directory) = settings.poll_control_group.as_deref() {
        for thread in &threads {
            moves.push(knobs.regroup_thread(thread.tid, directory)?);
        }
    }
    Ok((threads, moves))
}

fn carry_out(moves: Vec<Regrouping>) -> Result<(), TurnError> {
    moves.into_iter().try_for_each(Regrouping::carry_out)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::thread::sleep;
    use std::time::Duration;

    use plimsoll_kernel::namespace;

    use super::*;

    fn run(line: &str) {
        let mut words = line.split(' ');
        let status = Command::new(words.next().unwrap()).args(words).status();
        assert!(status.expect("it is installed").success(), "{line}");
    }

    fn read(pipe: &Path) -> Child {
        let cat = Command::new("cat").arg(pipe).stdout(Stdio::null()).spawn();
        cat.unwrap()
    }

    /// A pipe stands for a control group: it takes a thread once somebody reads. The session
    /// waited meanwhile, and neither shed nor governed. Needs root.
    #[test]
    fn a_control_group_that_takes_its_time_is_not_waited_for() {
        namespace::in_new(|| {
            run("ip link add v0 type veth peer name v1");
            run("ip link set v0 up");
            run("ethtool -K v0 gro on");
            let directory = tempfile::tempdir().unwrap();
            let group = directory.path().join("top/group");
            let inode = namespace::inode().unwrap();
            let made = group.join(format!("plimsoll-v0-{inode}"));
            fs::create_dir_all(&made).unwrap();
            for group in [&directory.path().join("top"), &group] {
                fs::write(group.join("cgroup.procs"), "").unwrap();
                fs::write(group.join("cpu.weight"), "100").unwrap();
            }
            let pipe = made.join("cgroup.procs");
            run(&format!("mkfifo {}", pipe.display()));
            let settings = Settings {
                threaded: Some(Priority::Nice(3)),
                poll_control_group: Some(group),
                ..Settings::new("v0")
            };
            let mut knobs = Knobs::open_in(&directory.path().join("records"), "v0").unwrap();
            let mut reader = read(&pipe);
            let mut threads = Threads::start(&mut knobs, &settings).unwrap();
            reader.wait().unwrap();
            run("ip link set v0 down");
            run("ip link set v0 up");
            for _ in 0..3 {
                assert!(threads.renew(&mut knobs, &settings).is_pending());
            }
            let mut reader = read(&pipe);
            let renewed = loop {
                match threads.renew(&mut knobs, &settings) {
                    Poll::Ready(renewed) => break renewed,
                    Poll::Pending => sleep(Duration::from_millis(1)),
                }
            };
            reader.wait().unwrap();
            assert_eq!(renewed.unwrap(), Some(1));
        })
        .unwrap();
    }
}
