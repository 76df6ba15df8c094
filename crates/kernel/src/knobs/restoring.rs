//! Putting settings back, whatever the kernel calls an instance by now.
//!
//! What is gone (interface, instance, thread) took its setting along; but an instance
//! that has only another id did not, nor one of an interface that is down, nor an interface
//! that was moved to another network namespace. Its directory in sysfs, if it was opened
//! before, still is the device's own. Each device-wide value overwrites those of all instances,
//! so they go back by these.
//!
//! Limits: of an interface that was moved, instances whose settings differed get the device's
//! own value. Threads that polled before the guard, and go on to, keep their scheduling; that
//! is told.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::device::{Attribute, Device};
use super::napi::{Change, Napi, Netdev};
use super::record::{Record, RecordError, RecordFile, Setting};
use super::{DEFER_MARK, Knobs};
use crate::control_group;
use crate::error::{CallError, FAILED, os};
use crate::host::check_pid_namespace;
use crate::link;

/// A driver may number its instances anew while they are set: so often it is looked
/// again.
const ROUNDS: usize = 4;
/// In between there may be none at all for a moment.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);
/// Of an interface that is up, an instance that was away for so long is none any more. A driver
/// that sets up its rings anew may take tens of milliseconds, more on a busy CPU.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why a setting is not put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The kernel refuses.
    #[error(
        "a setting of `{interface}` cannot be put back; `plimsoll guard restore {interface}` tries again"
    )]
    Refused {
        /// As given.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It cannot be done for now.
    #[error(
        "`{interface}` has no NAPI instances now to put a setting back to (it is down, or its driver makes them only for XDP): the setting stays recorded, and the next guard or `plimsoll guard restore` puts it back"
    )]
    Deferred {
        /// As given.
        interface: String,
    },
    /// It was moved, and what its directory in sysfs takes is not enough.
    #[error(
        "`{interface}` is in another network namespace now, and not every setting can be put back from here: compare them there with what they should be (`plimsoll guard check` shows them)"
    )]
    Moved {
        /// Its name in the namespace where it was.
        interface: String,
        /// What is refused.
        source: io::Error,
    },
    /// The record cannot be changed accordingly.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The kernel does not tell what there is.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl RestoreError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Refused { .. }
            | Self::Deferred { .. }
            | Self::Moved { .. }
            | Self::Record(_)
            | Self::Call(_) => FAILED,
        }
    }
}

/// The interface's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    /// Some drivers keep their instances meanwhile, and show none.
    Down,
    /// With all its settings, unless it was moved to another namespace.
    Gone,
    /// The kernel does not answer.
    Unknown,
}

impl Knobs {
    /// Puts every setting back. What cannot be put back stays recorded: call
    /// it before the XDP program is detached, since a virtual device may lose
    /// its NAPI instances with it, and the switch of threaded polling takes
    /// nothing without them; and after attaching, if not
    /// [`Knobs::is_untouched`].
    ///
    /// # Errors
    ///
    /// The first refusal, after trying all; [`RestoreError::Deferred`] if the
    /// device has no NAPI instance now.
    pub fn restore(&mut self) -> Result<(), RestoreError> {
        let restored = match self.is_gone() {
            true => self.restore_absent(),
            false => match self.restore_present() {
                // Gone meanwhile.
                Err(_) if self.is_gone() => self.restore_absent(),
                restored => restored,
            },
        };
        self.tell_keeper();
        restored
    }

    /// As [`Knobs::restore`], for good: what cannot be put back is told, and not tried once
    /// more as these knobs go.
    ///
    /// # Errors
    ///
    /// As [`Knobs::restore`].
    pub fn end(mut self) -> Result<(), RestoreError> {
        self.is_over = true;
        self.restore()
    }

    /// Of polling threads alone: they are as before, and a holdoff stays.
    ///
    /// # Errors
    ///
    /// The first refusal, after trying all; it stays recorded.
    pub(crate) fn restore_threads(&mut self) -> Result<(), RestoreError> {
        match self.is_gone() {
            true => Ok(()),
            false => self.put_back_present(Setting::is_of_threads),
        }
    }

    /// Puts back what `record` says, for an owner that does not. What is recorded stays so: it is
    /// its owner's.
    ///
    /// # Errors
    ///
    /// As [`Knobs::restore`].
    pub(super) fn relieve(
        interface: &str,
        device: Device,
        record: Record,
        file: RecordFile,
    ) -> Result<(), RestoreError> {
        let mut knobs = Self {
            interface: interface.to_owned(),
            device,
            netdev: Box::new(Netdev::new()),
            record,
            file,
            any_driver: false,
            is_over: true,
            heartbeat: None,
            lock: None,
        };
        knobs.restore()
    }

    /// What is to be restored yet is on disk.
    fn write_rest(&self) -> Result<(), RecordError> {
        match (&self.lock, self.record.is_empty()) {
            (None, _) => Ok(()),
            (Some(_), true) => self.file.remove(),
            (Some(_), false) => self.file.write(&self.record),
        }
    }

    /// Of an interface that this namespace has no more.
    fn restore_absent(&mut self) -> Result<(), RestoreError> {
        match self.put_back_by_device() {
            // Whatever this namespace's tools say of it meanwhile.
            Err(source) if self.device.is_there() => Err(RestoreError::Moved {
                interface: self.interface.clone(),
                source,
            }),
            // It is gone, if an error came.
            _ => {
                self.record.keep(Vec::new());
                Ok(self.write_rest()?)
            }
        }
    }

    /// By the device-wide settings, wherever the device is. The first refusal, after trying
    /// all.
    fn put_back_by_device(&self) -> io::Result<()> {
        let mut restored = Ok(());
        let (defer, timeout) = self.device_holdoff();
        for (attribute, own) in [
            (Attribute::NapiDeferHardIrqs, u64::from(defer)),
            (Attribute::GroFlushTimeout, u64::from(timeout)),
        ] {
            if let Some(value) = self.record.device_wide(attribute, own) {
                restored = restored.and(self.device.set_attribute(attribute, value).map(drop));
            }
        }
        let own = self.device.attribute(Attribute::Threaded);
        let own = own.ok().flatten().unwrap_or(0);
        let threaded = self.record.device_wide(Attribute::Threaded, own);
        if let Some(value) = threaded {
            let set = self.device.set_attribute(Attribute::Threaded, value);
            restored = restored.and(set.map(drop));
        }
        for setting in self.record.to_restore() {
            match setting {
                Setting::Thread { .. } | Setting::ControlGroup { .. } if threaded != Some(0) => {
                    let poll_on = io::Error::other("threads poll on that did before");
                    restored = restored.and(Err(poll_on));
                }
                Setting::ControlGroup { made, before, .. } => {
                    restored = restored.and(control_group::put_back(None, &made, &before));
                }
                _ => {}
            }
        }
        restored
    }

    /// Of an interface that there is.
    fn restore_present(&mut self) -> Result<(), RestoreError> {
        self.put_back_present(|_| true)?;
        self.clear_marks()
    }

    /// Those that are meant, of an interface that there is.
    fn put_back_present(&mut self, is_meant: fn(&Setting) -> bool) -> Result<(), RestoreError> {
        self.let_threads_run();
        let (mut followed, mut restored, mut gone);
        let end = Instant::now() + PATIENCE;
        if let Ok(present) = self.follow() {
            self.give_up_others(&present);
        }
        loop {
            // If the kernel does not answer, ids are as they were.
            followed = self.follow().map(drop);
            (restored, gone) = self.put_all_back(is_meant);
            if gone.is_empty() || Instant::now() >= end {
                break;
            }
            sleep(BETWEEN_ROUNDS);
            // The answer waits while the interface is opened or closed.
            if self.state() == State::Down {
                break;
            }
        }
        if !gone.is_empty() {
            match (followed, self.state()) {
                // Nobody knows whether they have other ids by now.
                (Err(error), _) => restored = restored.and(Err(error.into())),
                (Ok(()), State::Down | State::Unknown) => {
                    let interface = self.interface.clone();
                    restored = restored.and(Err(RestoreError::Deferred { interface }));
                }
                (Ok(()), State::Up | State::Gone) => self.record.forget(&gone),
            }
        }
        let written = self.write_rest();
        restored?;
        Ok(written?)
    }

    /// A thread that a CPU limit has demoted may hardly get to run, and the kernel
    /// waits for it when it is switched off.
    fn let_threads_run(&mut self) {
        for setting in self.record.to_restore() {
            if matches!(setting, Setting::Thread { .. }) {
                // It is tried again, and told, in its turn.
                let _ = self.put_back(&setting);
            }
        }
    }

    /// Tries each that is recorded and meant, keeps those that are not back, and returns the
    /// first refusal and those whose instance has no such id.
    fn put_all_back(
        &mut self,
        is_meant: fn(&Setting) -> bool,
    ) -> (Result<(), RestoreError>, Vec<Setting>) {
        let mut first = Ok(());
        let (mut left, mut gone) = (Vec::new(), Vec::new());
        for setting in self.record.to_restore() {
            if is_meant(&setting) {
                match self.put_back(&setting) {
                    Ok(true) => continue,
                    Ok(false) => gone.push(setting.clone()),
                    Err(source) => first = first.and(Err(self.not_restored(source))),
                }
            }
            left.push(setting);
        }
        self.record.keep(left);
        (first, gone)
    }

    fn not_restored(&mut self, source: io::Error) -> RestoreError {
        let interface = self.interface.clone();
        let unsupported = source.raw_os_error() == Some(libc::EOPNOTSUPP);
        if unsupported && self.instances().is_ok_and(|instances| instances.is_empty()) {
            RestoreError::Deferred { interface }
        } else {
            RestoreError::Refused { interface, source }
        }
    }

    /// False if the instance that it is of has no such id now.
    fn put_back(&mut self, setting: &Setting) -> io::Result<bool> {
        let change = match *setting {
            Setting::Device { attribute, value } => {
                self.device.set_attribute(attribute, value)?;
                return Ok(true);
            }
            Setting::Thread {
                napi,
                ref scheduling,
            } => {
                let (found, thread) = self.thread_of(napi)?;
                thread.map_or(Ok(None), |thread| scheduling.give_back_to(thread))?;
                return Ok(found);
            }
            Setting::ControlGroup {
                napi,
                ref made,
                ref before,
            } => {
                let (found, thread) = self.thread_of(napi)?;
                control_group::put_back(thread, made, before)?;
                return Ok(found);
            }
            Setting::Holdoff {
                defer_hard_irqs,
                gro_flush_timeout,
                ..
            } => Change {
                defer_hard_irqs: Some(defer_hard_irqs),
                gro_flush_timeout: Some(gro_flush_timeout),
                ..Change::default()
            },
            Setting::Threaded { value, .. } => Change {
                threaded: Some(value),
                ..Change::default()
            },
        };
        match setting.instance() {
            Some(napi) => Ok(self.netdev.set(napi, change)?.is_some()),
            None => Ok(true),
        }
    }

    /// Whether there is such an instance now, and the thread that polls it, if one does.
    fn thread_of(&mut self, napi: u32) -> io::Result<(bool, Option<i32>)> {
        check_pid_namespace()?;
        let instances = self.netdev.instances(self.record.identity.ifindex)?;
        let instance = instances.iter().find(|instance| instance.id == napi);
        let thread = instance.and_then(|instance| instance.thread);
        Ok((instance.is_some(), thread))
    }

    /// Whether this namespace has the interface no more: it was deleted, or moved to another one.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_deleted() || self.state() == State::Gone
    }

    /// Whether it was deleted. Another one may have its name and its number since.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        !self.device.is_there()
    }

    /// Whether it was moved to another namespace, and took its settings along.
    pub(super) fn is_elsewhere(&self) -> bool {
        !self.is_deleted() && self.state() == State::Gone
    }

    /// Whether the interface is up, as its operator wants it.
    ///
    /// # Errors
    ///
    /// The kernel does not answer, or the interface is gone.
    pub(crate) fn is_up(&self) -> Result<bool, CallError> {
        let link = link::link(self.record.identity.ifindex);
        Ok(link.map_err(os("ask about an interface"))?.up)
    }

    fn state(&self) -> State {
        match link::link(self.record.identity.ifindex) {
            Ok(link) if link.up => State::Up,
            Ok(_) => State::Down,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => State::Gone,
            Err(_) => State::Unknown,
        }
    }

    /// Gives what a guard turned, and no record knows, the value that the device has for
    /// new instances, and the device that of the kernel.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub(super) fn clear_marks(&mut self) -> Result<(), RestoreError> {
        for _ in 0..ROUNDS {
            match self.clear_marks_once() {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(_) if self.is_gone() => return Ok(()),
                Err(source) => {
                    let interface = self.interface.clone();
                    return Err(RestoreError::Refused { interface, source });
                }
            }
        }
        Err(RestoreError::Refused {
            interface: self.interface.clone(),
            source: io::Error::other("its instances are made anew all the time"),
        })
    }

    fn clear_marks_once(&mut self) -> io::Result<usize> {
        let mut marks = 0;
        let of_device = |setting: &Setting| matches!(setting, Setting::Device { .. });
        if self.is_device_marked() && !self.record.to_restore().iter().any(of_device) {
            for attribute in [Attribute::NapiDeferHardIrqs, Attribute::GroFlushTimeout] {
                self.device.set_attribute(attribute, 0)?;
            }
            marks += 1;
        }
        let (defer_hard_irqs, gro_flush_timeout) = self.device_holdoff();
        let recorded = self.record.to_restore();
        for napi in self.netdev.instances(self.record.identity.ifindex)? {
            let is_recorded = |setting: &Setting| setting.instance() == Some(napi.id);
            if !is_marked(&napi) || recorded.iter().any(is_recorded) {
                continue;
            }
            let change = Change {
                defer_hard_irqs: Some(defer_hard_irqs),
                gro_flush_timeout: Some(gro_flush_timeout),
                ..Change::default()
            };
            self.netdev.set(napi.id, change)?;
            marks += 1;
        }
        Ok(marks)
    }
}

/// Whether a guard has set the instance's holdoff.
pub(super) fn is_marked(napi: &Napi) -> bool {
    napi.defer_hard_irqs == Some(DEFER_MARK)
}
