//! Threaded polling: the interface's receive work as a thread the scheduler
//! sees, with a nice level (Mogul & Ramakrishnan's polling thread at level 0,
//! section 5.3, option B), or with real-time priority.
//!
//! Softirq work outranks every process. As a thread it competes with them, so
//! a flood leaves CPU to the server it is meant for. The nice level is the
//! share: at 19 the flooded server keeps most of its goodput but bystanders
//! starve; at 0 bystanders are safe and goodput is lower.
//!
//! Limits: before Linux 6.17 the switch is the whole interface's
//! (`/sys/class/net/*/threaded`). Instances that the driver makes anew are not
//! polled by threads until this is done again, for which [`are_renewed`] is asked now and then.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::control_group;
use crate::error::{CallError, Error, TurnError, os};
use crate::host::{self, check_pid_namespace};
use crate::knobs::{Knobs, PollingThread, Queues};
use crate::scheduling::Priority;

/// Drivers with which threads were turned on and off under a flood, and while the link went
/// down and up, on some kernels each: `make vm-test`, and this workspace's tests for veth.
/// Of others it is not known, and some hang.
pub const TRIED: [&str; 4] = ["igb", "veth", "virtio_net", "vmxnet3"];

/// A driver may start its threads a moment after the switch.
const THREAD_WAIT: Duration = Duration::from_millis(10);
const THREAD_TRIES: u32 = 50;

/// An interface that is polled in threads, also in those that its driver makes anew when
/// its link goes down and up.
#[derive(Debug)]
pub struct PolledInterface {
    knobs: Knobs,
    /// The only queue that is meant.
    queue: Option<u32>,
    threads: Vec<PollingThread>,
}

impl PolledInterface {
    /// Of the interface that is the knobs'; with a queue given, of that one alone.
    #[must_use]
    pub const fn new(knobs: Knobs, queue: Option<u32>) -> Self {
        Self {
            knobs,
            queue,
            threads: Vec::new(),
        }
    }

    /// Looks for instances that are not polled by the threads of the last look, and has
    /// threads of this priority poll them. Whether there are other threads than before; an
    /// interface that is down may have none. Before that, `end_limit` ends what keeps the
    /// threads of the last look to a limit: if it fails, these are the host's own again.
    ///
    /// # Errors
    ///
    /// As [`poll_in_threads`].
    pub fn look(
        &mut self,
        priority: Priority,
        cpus: &[usize],
        end_limit: impl FnOnce(),
    ) -> Result<bool, Error> {
        let queue = self.queue;
        let queues = queue.as_ref().map_or(Queues::All, |queue| {
            Queues::Only(std::slice::from_ref(queue))
        });
        if !are_renewed(&mut self.knobs, queues, &self.threads)? {
            return Ok(false);
        }
        if !self.threads.is_empty() {
            end_limit();
        }
        // If it fails there are none: others may have their numbers by and by.
        self.threads.clear();
        self.threads = poll_in_threads(&mut self.knobs, queues, priority, Some(cpus))?;
        Ok(true)
    }

    /// The threads of the last look.
    #[must_use]
    pub fn threads(&self) -> &[PollingThread] {
        &self.threads
    }

    /// Leaves all as it is now, until the knobs are dropped.
    #[must_use]
    pub fn into_knobs(self) -> Knobs {
        self.knobs
    }
}

/// Refuses what [`poll_in_threads`] would, whatever the interface: before anything is turned, or a
/// program attached.
///
/// # Errors
///
/// The kernel does not tell which threads poll, or not here; none of `cpus` is online.
pub fn check_threads(cpus: Option<&[usize]>) -> Result<(), TurnError> {
    check_pid_namespace().map_err(os("have threads poll"))?;
    host::check_thread_numbers().map_err(os("have threads poll"))?;
    let cpus = cpus.unwrap_or_default();
    match cpus.first() {
        Some(&cpu) if !cpus.iter().any(|cpu| host::is_online(*cpu)) => {
            Err(TurnError::NoSuchCpu { cpu })
        }
        _ => Ok(()),
    }
}

/// Switches `queues` to threaded polling and sets their threads' priority
/// and, if given, the only CPUs they may run on. Returns the threads.
///
/// # Errors
///
/// As [`check_threads`]; the interface has no such switch, its driver starts no thread, or the kernel
/// refuses a change. Then it is polled as before `knobs` had
/// threads poll it: some real-time threads, which their caller does not know, would be kept to no
/// limit.
pub fn poll_in_threads(
    knobs: &mut Knobs,
    queues: Queues<'_>,
    priority: Priority,
    cpus: Option<&[usize]>,
) -> Result<Vec<PollingThread>, TurnError> {
    check_threads(cpus)?;
    let polled = turn_all(knobs, queues, priority, cpus);
    if polled.is_err() {
        // What is not put back now stays recorded.
        let _ = knobs.restore_threads();
    }
    polled
}

/// Refuses a control group that cannot pay for polling.
///
/// # Errors
///
/// [`TurnError::NoShare`]: it has no share of the CPU, or is none; [`TurnError::Quota`]: it, or one
/// above it, may use the CPU for a part of the time only.
pub fn check_control_group(directory: &Path) -> Result<(), TurnError> {
    if !control_group::shares_cpu(directory) {
        let directory = directory.to_owned();
        return Err(TurnError::NoShare { directory });
    }
    match control_group::limited(directory) {
        Some(group) => Err(TurnError::Quota {
            group: group.to_owned(),
        }),
        None => Ok(()),
    }
}

/// [`poll_in_threads`] in a control group below `directory`, whose share of the CPU pays for it.
/// May take half a second for each thread.
///
/// # Errors
///
/// As both, and as [`Knobs::regroup_thread`]. Then it is polled as before `knobs` had threads poll it.
pub fn poll_in_control_group(
    knobs: &mut Knobs,
    queues: Queues<'_>,
    priority: Priority,
    cpus: Option<&[usize]>,
    directory: &Path,
) -> Result<Vec<PollingThread>, TurnError> {
    check_control_group(directory)?;
    let threads = poll_in_threads(knobs, queues, priority, cpus)?;
    let mut moves = threads
        .iter()
        .map(|thread| knobs.regroup_thread(thread.tid, directory)?.carry_out());
    if let Err(error) = moves.try_for_each(|moved| moved) {
        // What is not put back now stays recorded.
        let _ = knobs.restore_threads();
        return Err(error);
    }
    Ok(threads)
}

fn turn_all(
    knobs: &mut Knobs,
    queues: Queues<'_>,
    priority: Priority,
    cpus: Option<&[usize]>,
) -> Result<Vec<PollingThread>, TurnError> {
    knobs.set_threaded(queues, true)?;
    let threads = wait_for_threads(knobs, queues)?;
    for thread in &threads {
        knobs.set_thread_priority(thread.tid, priority)?;
        if let Some(cpus) = cpus {
            knobs.set_thread_cpus(thread.tid, cpus)?;
        }
    }
    Ok(threads)
}

/// Whether other threads poll `queues` than `before`, or somebody else polls one of them. Not
/// of an interface that is down: it may have none.
///
/// # Errors
///
/// The kernel does not answer, or the interface is gone.
pub fn are_renewed(
    knobs: &mut Knobs,
    queues: Queues<'_>,
    before: &[PollingThread],
) -> Result<bool, CallError> {
    let now = threads_of(knobs, queues)?;
    let others_poll = now.is_empty() || now != before || knobs.has_softirq_polled(queues)?;
    Ok(knobs.is_up()? && others_poll)
}

/// Those that are there now.
fn threads_of(knobs: &mut Knobs, queues: Queues<'_>) -> Result<Vec<PollingThread>, CallError> {
    let mut threads = knobs.polling_threads()?;
    threads.retain(|thread| match queues {
        Queues::All => true,
        Queues::Only(wanted) => thread.queue.is_some_and(|queue| wanted.contains(&queue)),
    });
    Ok(threads)
}

fn wait_for_threads(
    knobs: &mut Knobs,
    queues: Queues<'_>,
) -> Result<Vec<PollingThread>, TurnError> {
    for _ in 0..THREAD_TRIES {
        let threads = threads_of(knobs, queues)?;
        if !threads.is_empty() {
            return Ok(threads);
        }
        sleep(THREAD_WAIT);
    }
    let source = io::Error::new(
        io::ErrorKind::NotFound,
        "none is reported that sleeps where nothing comes: the interface must be up, and Linux 6.8 or newer",
    );
    Err(os("find the interface's polling threads")(source).into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::iproute::ip;
    use crate::namespace;
    use crate::pass_all::PassAll;

    /// A limit that went on would demote threads that are the host's own again. Needs root.
    #[test]
    fn a_limit_ends_before_other_threads_are_set() {
        namespace::in_new(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            let pass_all = PassAll::attach("v0").unwrap();
            let directory = tempfile::tempdir().unwrap();
            let knobs = Knobs::open_in(directory.path(), "v0").unwrap();
            let mut interface = PolledInterface::new(knobs, None);
            let ended = Cell::new(0);
            let mut look = || {
                let end = || ended.set(ended.get() + 1);
                let are_others = interface.look(Priority::Nice(0), &[0], end).unwrap();
                (are_others, ended.get())
            };
            assert_eq!(look(), (true, 0), "there is none yet");
            assert_eq!(look(), (false, 0));
            // Its instance is another one.
            drop(pass_all);
            let _pass_all = PassAll::attach("v0").unwrap();
            assert_eq!(look(), (true, 1));
            assert_eq!(look(), (false, 1));
        })
        .expect("this test makes a namespace: run `sudo make test`");
    }
}
