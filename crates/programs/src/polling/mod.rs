//! In which threads a program's interfaces are polled, and how those compete with processes.
//!
//! Polling comes before every process, and all of it keeps to the CPU limit: beyond it, it
//! runs only where nobody else wants the CPU.
//!
//! Where frames go to a program of ours there are two halves. The kernel's threads run beneath
//! the program's, so they take frames from the adapter only as fast as it works them off.
//! Softirqs would take the CPU from it (docs/measurements-decisions.md has both). There is a limit
//! there also if none was asked for. As ordinary threads the kernel's waited for the slices of other
//! processes, some milliseconds each, and the adapter's ring overflowed meanwhile at a tenth of
//! what the program can take.
//!
//! A program that also has frames which must not be lost while it works on others names the
//! threads that do so ([`Wanted::deciders`]). The kernel polls before these, so that its
//! driver can tell one frame from the other.
//!
//! Where threads are refused, also with a driver that was not tried, the kernel polls in
//! softirqs and [`Polling::problem`] says so; if a limit was asked for, it is an error.
//!
//! A driver makes its instances anew when its link goes down and up, and has none while it is
//! down. So a thread of its own looks for new ones. What one interface refuses, or that it was
//! deleted, changes nothing for the others: threads that poll are kept to the limit.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_core::cpu_limit::CpuLimitConfig;
use plimsoll_kernel::Error;
use plimsoll_kernel::error::os;
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::knobs::Knobs;
use plimsoll_kernel::polling_limit::{Limited, PollingLimit};
use plimsoll_kernel::scheduling::{Class, Priority, Scheduling};
use plimsoll_kernel::threaded::PolledInterface;
use plimsoll_kernel::watcher::Watcher;

mod correction;

use correction::Correction;

/// How soon new instances are found.
const LOOK: Duration = Duration::from_millis(500);

/// What is to be polled, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) interfaces: &'a [String],
    /// The program's own threads that take the frames. None: the kernel does all the work.
    pub(crate) takers: &'a [i32],
    /// Threads that work off what the takers have taken, if polling and taking come before
    /// them: for up to half of the CPU limit, and beneath them beyond it.
    pub(crate) deciders: &'a [i32],
    /// The part of a CPU that all may take where others want it.
    pub(crate) cpu_limit: Option<Fraction>,
    /// The only CPU that polling threads may run on. Default: where this process may.
    pub(crate) cpu: Option<usize>,
    /// Threads may poll with any driver, not only with those that were tried.
    pub(crate) any_driver: bool,
}

/// The thread that looks after the polling threads. Dropping it puts the interfaces' settings
/// back.
#[derive(Debug)]
pub(crate) struct Polling {
    _watcher: Watcher,
    problem: Option<String>,
}

impl Polling {
    /// Moves polling into threads; keeps them and the takers to the CPU limit. With a CPU
    /// given, all run there and share one limit; else they run where this process may.
    pub(crate) fn start(wanted: &Wanted<'_>) -> Result<Self, Error> {
        let mut threads = Threads::open(wanted)?;
        let (began, beginning) = channel();
        let watcher = Watcher::start("polling", move |pauses| {
            // Whoever started this waits for it.
            let _ = began.send(threads.look());
            while pauses.wait(LOOK) {
                // What is refused now is tried again.
                let _ = threads.look();
            }
        });
        let watcher = watcher.map_err(os("start the thread that looks after polling"))?;
        let problem = match beginning.recv().unwrap_or(Ok(None)) {
            Err(error) if wanted.cpu_limit.is_none() => Some(format!(
                "a flood may take the CPU from the threads that take its frames: {}",
                with_causes(&error)
            )),
            looked => looked?.map(|why| {
                format!("others may get less of the CPU than the limit leaves them: {why}")
            }),
        };
        Ok(Self {
            _watcher: watcher,
            problem,
        })
    }

    /// What is kept less well than asked for, and why.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

/// The polling threads of all interfaces.
struct Threads {
    takers: Vec<i32>,
    deciders: Vec<i32>,
    cpus: Vec<usize>,
    part: Fraction,
    /// There are threads that are not kept to the limit.
    is_new: bool,
    // Each ends before the next.
    correction: Option<Correction>,
    limit: Option<Arc<PollingLimit>>,
    interfaces: Vec<PolledInterface>,
}

impl Threads {
    fn open(wanted: &Wanted<'_>) -> Result<Self, Error> {
        let own = Scheduling::of(0).map_err(os("ask where this process may run"))?;
        let open = |name: &String| {
            let mut knobs = Knobs::open(name)?;
            knobs.allow_any_driver(wanted.any_driver);
            Ok(PolledInterface::new(knobs, None))
        };
        let interfaces = wanted.interfaces.iter().map(open);
        let asked = wanted.cpu_limit;
        Ok(Self {
            takers: wanted.takers.to_vec(),
            deciders: wanted.deciders.to_vec(),
            cpus: wanted.cpu.map_or(own.cpus().to_vec(), |cpu| vec![cpu]),
            part: asked.unwrap_or(CpuLimitConfig::LIMIT),
            is_new: false,
            correction: None,
            limit: None,
            interfaces: interfaces.collect::<Result<_, Error>>()?,
        })
    }

    /// Looks for instances that are not polled by threads of ours. Returns why the limit is
    /// not corrected, or the first thing that was refused when all else was done.
    fn look(&mut self) -> Result<Option<String>, Error> {
        let mut refused = None;
        for interface in &mut self.interfaces {
            let end_limit = || {
                (self.correction, self.limit) = (None, None);
                self.is_new = true;
            };
            match interface.look(Priority::RealTime, &self.cpus, end_limit) {
                Ok(is_new) => self.is_new |= is_new,
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let kept = match self.is_new {
            true => self.keep_limit(),
            false => Ok(None),
        };
        refused.map_or(kept, Err)
    }

    /// Keeps the threads that are there now to the limit. What fails is done again at the next
    /// look.
    fn keep_limit(&mut self) -> Result<Option<String>, Error> {
        (self.correction, self.limit) = (None, None);
        let limit = Arc::new(PollingLimit::start(self.part, self.groups())?);
        let correction = match self.cpus[..] {
            [cpu] => Some(Correction::start(&limit, cpu)),
            _ => None,
        };
        self.limit = Some(limit);
        self.correction = correction.transpose()?;
        self.is_new = false;
        let problem = self.correction.as_ref().and_then(Correction::problem);
        Ok(problem.map(|problem| with_causes(problem)))
    }

    /// Threads of one CPU share a limit. So do both halves wherever they run, since they may
    /// meet on one.
    fn groups(&self) -> Vec<Vec<Limited>> {
        let (of_kernel, of_takers) = match (&self.takers[..], &self.deciders[..]) {
            ([], _) => (Class::Polling, Class::Polling),
            (_, []) => (Class::Beneath, Class::Polling),
            _ => (Class::Ahead, Class::Ahead),
        };
        let threads = self.interfaces.iter().flat_map(PolledInterface::threads);
        let threads = threads.map(|thread| thread.tid).filter(polls);
        let threads = threads.map(|tid| (tid, of_kernel));
        let takers = own(&self.takers).map(|tid| (tid, of_takers));
        let deciders = own(&self.deciders).map(|tid| (tid, Class::Polling));
        let all = threads.chain(takers).chain(deciders);
        let all = all.map(|(tid, class)| Limited { tid, class });
        match self.cpus.len() == 1 || !self.takers.is_empty() {
            true => vec![all.collect()],
            false => all.map(|thread| vec![thread]).collect(),
        }
    }
}

/// Whether this is still a thread by which the kernel polls. A deleted interface has none, and
/// by now any other may have the number.
fn polls(tid: &i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{tid}/comm"));
    name.is_ok_and(|name| name.starts_with("napi/"))
}

/// Those threads of this process that have not ended.
fn own(threads: &[i32]) -> impl Iterator<Item = i32> {
    let is_there = |tid: &i32| Path::new(&format!("/proc/self/task/{tid}")).exists();
    threads.iter().copied().filter(is_there)
}

#[cfg(test)]
mod tests;
