//! The threads that poll an interface: which, and the CPU time that they get.

use std::io;

use super::napi::Napi;
use super::record::Setting;
use super::{Knobs, PollingThread, TurnError};
use crate::error::{CallError, os};
use crate::scheduling::{Priority, Scheduling};

impl Knobs {
    /// The threads that poll the interface now, but for those that do so all the time, with work or
    /// without. A driver may start them a
    /// moment after the switch, and anew when XDP is attached or the interface
    /// goes up.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn polling_threads(&mut self) -> Result<Vec<PollingThread>, CallError> {
        let threads = self.instances()?;
        Ok(threads.iter().filter_map(thread_of).collect())
    }

    /// Sets how a polling thread competes with processes.
    ///
    /// # Errors
    ///
    /// `tid` does not poll this interface, the kernel refuses, or the record
    /// cannot be written.
    pub fn set_thread_priority(&mut self, tid: i32, priority: Priority) -> Result<(), TurnError> {
        self.turn_thread(tid, "set a polling thread's priority", |old| {
            old.with_priority(priority)
        })
    }

    /// Sets the CPUs a polling thread may run on.
    ///
    /// # Errors
    ///
    /// As [`Knobs::set_thread_priority`]; no such CPU.
    pub fn set_thread_cpus(&mut self, tid: i32, cpus: &[usize]) -> Result<(), TurnError> {
        self.turn_thread(tid, "set a polling thread's CPUs", |old| {
            old.with_cpus(cpus)
        })
    }

    fn turn_thread(
        &mut self,
        tid: i32,
        action: &'static str,
        change: impl FnOnce(&Scheduling) -> Scheduling,
    ) -> Result<(), TurnError> {
        let napi = self.polled_by(tid, action)?;
        let scheduling = Scheduling::of(tid).map_err(os(action))?;
        let changed = change(&scheduling);
        self.write_down(vec![Setting::Thread { napi, scheduling }])?;
        changed.give_to(tid).map_err(os(action))?;
        Ok(())
    }

    /// The instance that a thread polls.
    pub(super) fn polled_by(&mut self, tid: i32, action: &'static str) -> Result<u32, TurnError> {
        let threads = self.polling_threads()?;
        let Some(thread) = threads.iter().find(|thread| thread.tid == tid) else {
            let gone = io::Error::other(format!("thread {tid} does not poll this interface"));
            return Err(os(action)(gone).into());
        };
        self.follow()?;
        Ok(thread.napi)
    }
}

/// The thread that polls an instance, and sleeps where nothing comes.
fn thread_of(napi: &Napi) -> Option<PollingThread> {
    Some(PollingThread {
        queue: napi.queue,
        napi: napi.id,
        tid: napi.thread.filter(|_| !napi.is_polled_busily())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would have been made real-time, and is never idle.
    #[test]
    fn a_thread_that_polls_all_the_time_is_nobody_s_to_set() {
        let polled = |threaded| {
            thread_of(&Napi {
                id: 8193,
                queue: Some(0),
                irq: None,
                thread: Some(7),
                defer_hard_irqs: Some(0),
                gro_flush_timeout: Some(0),
                irq_suspend_timeout: Some(0),
                threaded,
            })
        };
        for threaded in [None, Some(1)] {
            assert_eq!(polled(threaded).map(|thread| thread.tid), Some(7));
        }
        assert_eq!(polled(Some(2)), None);
    }
}
