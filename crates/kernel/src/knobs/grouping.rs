//! The control group of a polling thread, in two steps: its old one on disk, then the move.
//!
//! A move takes long: a thread that was just made has to run first, and the kernel waits until
//! no CPU is in the midst of looking at groups. Whoever must not wait has another thread do it.

use std::path::{Path, PathBuf};

use super::record::Setting;
use super::{Knobs, TurnError};
use crate::control_group;

/// A polling thread that is to be in a control group. Its old one is on record.
#[derive(Debug)]
#[must_use]
pub struct Regrouping {
    thread: i32,
    group: PathBuf,
    directory: PathBuf,
}

impl Knobs {
    /// Has a polling thread be in a control group that is made for this interface within
    /// `directory`, so that polling is paid for by the share of the CPU that is there: as soon
    /// as what this returns is carried out.
    ///
    /// # Errors
    ///
    /// As [`Knobs::set_thread_priority`]; [`TurnError::ControlGroup`] if `directory` is no
    /// control group.
    pub fn regroup_thread(&mut self, tid: i32, directory: &Path) -> Result<Regrouping, TurnError> {
        let napi = self.polled_by(tid, "set a polling thread's control group")?;
        let made =
            control_group::within(directory, &self.interface, self.record.identity.netns_inode);
        let before = control_group::of_thread(tid, directory);
        let before = before.map_err(|source| TurnError::ControlGroup {
            directory: directory.to_owned(),
            source,
        })?;
        self.write_down(vec![Setting::ControlGroup {
            napi,
            made: made.clone(),
            before,
        }])?;
        Ok(Regrouping {
            thread: tid,
            group: made,
            directory: directory.to_owned(),
        })
    }
}

impl Regrouping {
    /// Moves the thread. May take half a second.
    ///
    /// # Errors
    ///
    /// [`TurnError::ControlGroup`]: the thread cannot be there.
    pub fn carry_out(self) -> Result<(), TurnError> {
        let moved = control_group::make(&self.group);
        let moved = moved.and_then(|()| control_group::put(self.thread, &self.group));
        moved.map_err(|source| TurnError::ControlGroup {
            directory: self.directory,
            source,
        })
    }
}
