//! The threads that poll an interface: which, and the CPU time that they get.

use std::io;
use std::path::Path;

use super::record::Setting;
use super::{Knobs, PollingThread, TurnError};
use crate::control_group;
use crate::error::{CallError, os};
use crate::scheduling::{Priority, Scheduling};

impl Knobs {
    /// The threads that poll the interface now. A driver may start them a
    /// moment after the switch, and anew when XDP is attached or the interface
    /// goes up.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn polling_threads(&mut self) -> Result<Vec<PollingThread>, CallError> {
        let threads = self.instances()?.into_iter().filter_map(|napi| {
            Some(PollingThread {
                queue: napi.queue,
                napi: napi.id,
                tid: napi.thread?,
            })
        });
        Ok(threads.collect())
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

    /// Puts a polling thread into a control group that is made for this interface within
    /// `directory`, so that polling is paid for by the share of the CPU that is there.
    ///
    /// # Errors
    ///
    /// As [`Knobs::set_thread_priority`]; [`TurnError::ControlGroup`] if the thread cannot
    /// be there.
    pub fn set_thread_control_group(
        &mut self,
        tid: i32,
        directory: &Path,
    ) -> Result<(), TurnError> {
        let napi = self.polled_by(tid, "set a polling thread's control group")?;
        let made =
            control_group::within(directory, &self.interface, self.record.identity.netns_inode);
        let refused = |source| TurnError::ControlGroup {
            directory: directory.to_owned(),
            source,
        };
        let before = control_group::of_thread(tid, directory).map_err(refused)?;
        self.write_down(vec![Setting::ControlGroup {
            napi,
            made: made.clone(),
            before,
        }])?;
        control_group::make(&made).map_err(refused)?;
        control_group::put(tid, &made).map_err(refused)
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
    fn polled_by(&mut self, tid: i32, action: &'static str) -> Result<u32, TurnError> {
        let threads = self.polling_threads()?;
        let Some(thread) = threads.iter().find(|thread| thread.tid == tid) else {
            let gone = io::Error::other(format!("thread {tid} does not poll this interface"));
            return Err(os(action)(gone).into());
        };
        self.follow()?;
        Ok(thread.napi)
    }
}
