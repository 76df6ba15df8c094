//! Every setting of the host that the guard turns, and the way back.
//!
//! A host must be as it was when the guard is gone, however it went. So an old
//! value is on disk before its setting is turned ([`Knobs`] is the only way to
//! turn one), [`Knobs::restore`] or dropping puts all of them back, and what a
//! killed guard left behind is put back by the next [`Knobs::open`] or by
//! `plimsoll guard restore`. What is left behind belongs to one interface of
//! one network namespace of one boot, and is applied to no other; once that
//! namespace is gone, so are its files at the next start of any guard.
//!
//! Limits: a setting that somebody else changes meanwhile gets the value from
//! before the guard nevertheless.

mod device;
mod keeper;
mod lock;
mod napi;
mod record;
mod sweep;
#[cfg(test)]
mod switch_tests;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::Process;
use crate::scheduling::{Priority, Scheduling};
use device::Identity;
pub use device::{Attribute, Device, Statistic};
pub use keeper::Keeper;
use lock::Lock;
use napi::Change;
pub use napi::{Napi, Netdev};
use record::{Record, RecordFile, Setting};

use crate::error::{Error, os};

/// Where records are: gone with the boot, as the settings are.
pub const DIRECTORY: &str = "/run/plimsoll/guard";

/// The receive queues a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues<'a> {
    /// All of the interface, whatever the driver says about them.
    All,
    /// These, by number.
    Only(&'a [u32]),
}

/// A thread that polls an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingThread {
    /// The first receive queue it polls, if the driver says so.
    pub queue: Option<u32>,
    /// The kernel's number of its NAPI instance.
    pub napi: u32,
    /// The thread's id.
    pub tid: i32,
}

/// The settings of one interface, to turn and to restore. Dropping restores.
#[derive(Debug)]
pub struct Knobs {
    interface: String,
    device: Device,
    netdev: Netdev,
    record: Record,
    file: RecordFile,
    // Given up last, when all is restored.
    _lock: Lock,
}

impl Knobs {
    /// Takes possession of the settings of `interface` in the current network
    /// namespace, after restoring what a killed owner left turned.
    ///
    /// # Errors
    ///
    /// No such interface; another living process has them
    /// ([`Error::InUse`]); what is left on disk cannot be read
    /// ([`Error::RecordUnusable`]) or the kernel refuses to restore it.
    pub fn open(interface: &str) -> Result<Self, Error> {
        Self::open_in(Path::new(DIRECTORY), interface)
    }

    /// As [`Knobs::open`], with records in another directory.
    ///
    /// # Errors
    ///
    /// As [`Knobs::open`].
    pub fn open_in(directory: &Path, interface: &str) -> Result<Self, Error> {
        let identity = Identity::of(interface)?;
        let device = Device::open(interface, identity.ifindex)?;
        Self::take(directory, interface, identity, device, Process::current()?)
    }

    /// Takes possession in the name of `owner`, restoring what is left turned.
    fn take(
        directory: &Path,
        interface: &str,
        identity: Identity,
        device: Device,
        owner: Process,
    ) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(|source| Error::RecordNotWritten {
            path: directory.to_owned(),
            source,
        })?;
        let lock = lock_path(directory, interface, &identity);
        let lock = Lock::take(lock, interface, owner, identity.netns_inode)?;
        sweep::sweep(directory);
        let file = RecordFile::new(directory, interface, &identity);
        let left = file.read()?;
        let mut knobs = Self {
            interface: interface.to_owned(),
            device,
            netdev: Netdev::new(),
            record: Record::new(interface, identity, owner),
            file,
            _lock: lock,
        };
        if let Some(left) = left {
            knobs.take_over(&left)?;
        }
        Ok(knobs)
    }

    /// Restores what `left` says if it is of this very interface, and forgets
    /// it in any case.
    fn take_over(&mut self, left: &Record) -> Result<(), Error> {
        if left.identity == self.record.identity {
            self.record.keep(left.to_restore());
            match self.restore() {
                Err(Error::RestoreDeferred { .. }) => Ok(()),
                restored => restored,
            }
        } else {
            self.file.remove()
        }
    }

    /// Sets the holdoff of `queues`: the timer polls again `timeout` after a
    /// poll, up to `defer` times in a row without a packet, until interrupts
    /// come back on (`Documentation/networking/napi.rst`). Zeros: interrupts
    /// only. Kernels before 6.13 know no holdoff per queue: there, and where
    /// the driver shows no instances, [`Queues::All`] sets the device's.
    ///
    /// # Errors
    ///
    /// `timeout` is above 4.29 s or `defer` above 2³¹-1; single queues where
    /// the kernel or driver has none; the kernel refuses; the record cannot be
    /// written.
    pub fn set_holdoff(
        &mut self,
        queues: Queues<'_>,
        defer: u32,
        timeout: Duration,
    ) -> Result<(), Error> {
        let gro_flush_timeout =
            u32::try_from(timeout.as_nanos()).map_err(|_| invalid("set a holdoff above 4.29 s"))?;
        if i32::try_from(defer).is_err() {
            return Err(invalid("defer interrupts for more than 2^31-1 polls"));
        }
        let instances = self.instances_of(queues)?;
        if instances.is_empty() {
            self.turn_device(Attribute::NapiDeferHardIrqs, u64::from(defer))?;
            return self.turn_device(Attribute::GroFlushTimeout, u64::from(gro_flush_timeout));
        }
        let old = instances.iter().filter_map(old_holdoff).collect();
        self.write_down(old)?;
        for napi in instances {
            let change = Change {
                defer_hard_irqs: Some(defer),
                gro_flush_timeout: Some(gro_flush_timeout),
                threaded: None,
            };
            self.netdev
                .set(napi.id, change)
                .map_err(os("set a queue's holdoff"))?;
        }
        Ok(())
    }

    /// The instances that `queues` means and whose holdoff can be set one by
    /// one. None for all queues where none can.
    fn instances_of(&mut self, queues: Queues<'_>) -> Result<Vec<Napi>, Error> {
        let mut instances = self.instances()?;
        instances.retain(|napi| old_holdoff(napi).is_some());
        let Queues::Only(wanted) = queues else {
            return Ok(instances);
        };
        let found = |queue: &u32| instances.iter().any(|napi| napi.queue == Some(*queue));
        if let Some(missing) = wanted.iter().find(|queue| !found(queue)) {
            return Err(Error::NoSuchQueue {
                interface: self.interface.clone(),
                queue: *missing,
            });
        }
        instances.retain(|napi| napi.queue.is_some_and(|queue| wanted.contains(&queue)));
        Ok(instances)
    }

    /// Moves the polling of all queues into threads, or back into softirq: one
    /// instance after the other, where the kernel lets (6.17) and the driver shows
    /// any; else by the device's switch.
    ///
    /// # Errors
    ///
    /// The device has no such switch ([`Error::NoThreadedPolling`]), the
    /// kernel refuses, or the record cannot be written.
    pub fn set_threaded(&mut self, threaded: bool) -> Result<(), Error> {
        let instances = self.instances()?;
        let old: Vec<_> = instances.iter().filter_map(old_threaded).collect();
        if old.is_empty() || old.len() < instances.len() {
            return self.turn_device(Attribute::Threaded, u64::from(threaded));
        }
        self.write_down(old)?;
        for napi in instances {
            let change = Change {
                threaded: Some(threaded.into()),
                ..Change::default()
            };
            self.netdev
                .set(napi.id, change)
                .map_err(os("switch a queue's polling thread"))?;
        }
        Ok(())
    }

    /// The threads that poll the interface now. A driver may start them a
    /// moment after the switch, and anew when XDP is attached or the interface
    /// goes up.
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn polling_threads(&mut self) -> Result<Vec<PollingThread>, Error> {
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
    pub fn set_thread_priority(&mut self, tid: i32, priority: Priority) -> Result<(), Error> {
        self.turn_thread(tid, "set a polling thread's priority", |old| {
            old.with_priority(priority)
        })
    }

    /// Sets the CPUs a polling thread may run on.
    ///
    /// # Errors
    ///
    /// As [`Knobs::set_thread_priority`]; no such CPU.
    pub fn set_thread_cpus(&mut self, tid: i32, cpus: &[usize]) -> Result<(), Error> {
        self.turn_thread(tid, "set a polling thread's CPUs", |old| {
            old.with_cpus(cpus)
        })
    }

    fn turn_thread(
        &mut self,
        tid: i32,
        action: &'static str,
        change: impl FnOnce(&Scheduling) -> Scheduling,
    ) -> Result<(), Error> {
        let threads = self.polling_threads()?;
        let Some(thread) = threads.iter().find(|thread| thread.tid == tid) else {
            let gone = io::Error::other(format!("thread {tid} does not poll this interface"));
            return Err(os(action)(gone));
        };
        let scheduling = Scheduling::of(tid).map_err(os(action))?;
        let changed = change(&scheduling);
        self.write_down(vec![Setting::Thread {
            napi: thread.napi,
            scheduling,
        }])?;
        changed.give_to(tid).map_err(os(action))?;
        Ok(())
    }

    /// The interface's NAPI instances; none if it has none or the kernel does
    /// not tell (before 6.8).
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn instances(&mut self) -> Result<Vec<Napi>, Error> {
        self.netdev
            .instances(self.record.identity.ifindex)
            .map_err(os("ask for the interface's NAPI instances"))
    }

    /// True if nothing is turned.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.record.is_empty()
    }

    /// Puts every setting back. What cannot be put back stays recorded: call
    /// it before the XDP program is detached, since a virtual device may lose
    /// its NAPI instances with it, and the switch of threaded polling takes
    /// nothing without them; and after attaching, if not
    /// [`Knobs::is_untouched`].
    ///
    /// # Errors
    ///
    /// The first refusal, after trying all; [`Error::RestoreDeferred`] if the
    /// device has no NAPI instance now.
    pub fn restore(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        let mut left = Vec::new();
        let settings = self.record.to_restore();
        // A thread that a CPU limit has demoted may hardly get to run, and the
        // kernel waits for it when it is switched off.
        for setting in &settings {
            if matches!(setting, Setting::Thread { .. }) {
                // It is tried again, and told, in its turn.
                let _ = self.put_back(setting);
            }
        }
        for setting in settings {
            if let Err(source) = self.put_back(&setting) {
                left.push(setting);
                first = first.and(Err(self.not_restored(source)));
            }
        }
        self.record.keep(left);
        let written = if self.record.is_empty() {
            self.file.remove()
        } else {
            self.file.write(&self.record)
        };
        first.and(written)
    }

    fn not_restored(&mut self, source: io::Error) -> Error {
        let interface = self.interface.clone();
        let unsupported = source.raw_os_error() == Some(libc::EOPNOTSUPP);
        if unsupported && self.instances().is_ok_and(|instances| instances.is_empty()) {
            Error::RestoreDeferred { interface }
        } else {
            Error::NotRestored { interface, source }
        }
    }

    /// What is gone meanwhile (interface, instance, thread) took its setting
    /// along.
    fn put_back(&mut self, setting: &Setting) -> io::Result<()> {
        match *setting {
            Setting::Device { attribute, value } => {
                self.device.set_attribute(attribute, value)?;
            }
            Setting::Holdoff {
                napi,
                defer_hard_irqs,
                gro_flush_timeout,
            } => {
                let change = Change {
                    defer_hard_irqs: Some(defer_hard_irqs),
                    gro_flush_timeout: Some(gro_flush_timeout),
                    threaded: None,
                };
                self.netdev.set(napi, change)?;
            }
            Setting::Threaded { napi, value } => {
                let change = Change {
                    threaded: Some(value),
                    ..Change::default()
                };
                self.netdev.set(napi, change)?;
            }
            Setting::Thread {
                napi,
                ref scheduling,
            } => {
                let instances = self.netdev.instances(self.record.identity.ifindex)?;
                let instance = instances.iter().find(|instance| instance.id == napi);
                if let Some(tid) = instance.and_then(|instance| instance.thread) {
                    scheduling.give_to(tid)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the device's own value, which overwrites that of every instance.
    fn turn_device(&mut self, attribute: Attribute, value: u64) -> Result<(), Error> {
        let action = match attribute {
            Attribute::Threaded => "switch threaded polling",
            Attribute::NapiDeferHardIrqs | Attribute::GroFlushTimeout => "set the device's holdoff",
        };
        let old = self.device.attribute(attribute).map_err(os(action))?;
        let Some(old) = old else {
            return Err(self.no_attribute(attribute));
        };
        self.write_down(vec![Setting::Device {
            attribute,
            value: old,
        }])?;
        match self.device.set_attribute(attribute, value) {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(self.no_attribute(attribute)),
            Err(source) => Err(os(action)(source)),
        }
    }

    fn no_attribute(&self, attribute: Attribute) -> Error {
        Error::NoThreadedPolling {
            interface: self.interface.clone(),
            path: PathBuf::from(format!(
                "/sys/class/net/{}/{}",
                self.interface,
                attribute.name()
            )),
        }
    }

    /// Old values are on disk when this returns.
    fn write_down(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        let before = self.record.clone();
        let mut new = false;
        for setting in settings {
            new |= self.record.add(setting);
        }
        if new && let Err(error) = self.file.write(&self.record) {
            self.record = before;
            return Err(error);
        }
        Ok(())
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        // What cannot be restored stays recorded for the next start.
        let _ = self.restore();
    }
}

/// Restores what killed guards left turned on interfaces of the current
/// network namespace: on `interface`, or on all; removes their locks and status
/// sockets, too. Returns the interfaces that were restored.
///
/// # Errors
///
/// As [`Knobs::open`]: in particular, the guard lives ([`Error::InUse`]).
pub fn restore(interface: Option<&str>) -> Result<Vec<String>, Error> {
    restore_in(Path::new(DIRECTORY), interface)
}

/// As [`restore`], with records in another directory.
///
/// # Errors
///
/// As [`restore`].
pub fn restore_in(directory: &Path, interface: Option<&str>) -> Result<Vec<String>, Error> {
    let cookie = device::netns_cookie().map_err(os("ask for the namespace's cookie"))?;
    let boot_id = device::boot_id()?;
    let mut restored = Vec::new();
    for path in files(directory, cookie, "json")? {
        let file = RecordFile::at(path);
        let Some(record) = file.read()? else { continue };
        if interface.is_some_and(|name| name != record.interface) {
            continue;
        }
        let here =
            Identity::of(&record.interface).is_ok_and(|identity| identity == record.identity);
        if here {
            Knobs::open_in(directory, &record.interface)?.restore()?;
            restored.push(record.interface);
        } else if record.identity.boot_id != boot_id || !record.owner.is_alive() {
            // Its interface is gone, and the settings with it.
            file.remove()?;
        }
    }
    remove_remains(directory, interface, cookie)?;
    sweep::sweep(directory);
    Ok(restored)
}

/// Removes the locks and status sockets of dead guards, where nobody answers.
fn remove_remains(directory: &Path, interface: Option<&str>, cookie: u64) -> Result<(), Error> {
    let inode = device::netns_inode()?;
    let mut remains = files(directory, cookie, "sock")?;
    remains.extend(files(directory, cookie, "lock")?);
    for path in remains {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let name = name
            .split_once(&format!(".{cookie}."))
            .unwrap_or_default()
            .0;
        let lock = path.with_extension("lock");
        if interface.is_some_and(|wanted| wanted != name) || Lock::owner(&lock).is_some() {
            continue;
        }
        // Who starts meanwhile waits for the lock; it goes when dropped.
        if let Ok(_held) = Lock::take(lock, name, Process::current()?, inode) {
            let _ = fs::remove_file(path.with_extension("sock"));
        }
    }
    Ok(())
}

/// The process that guards `interface` of the current network namespace now.
///
/// # Errors
///
/// No such interface.
pub fn owner(interface: &str) -> Result<Option<u32>, Error> {
    Ok(Lock::owner(&path_of(interface, "lock")?))
}

/// The file of a running guard of `interface` in the current network
/// namespace.
pub fn path_of(interface: &str, extension: &str) -> Result<PathBuf, Error> {
    let identity = Identity::of(interface)?;
    let name = format!("{interface}.{}.{extension}", identity.netns_cookie);
    Ok(Path::new(DIRECTORY).join(name))
}

/// The settings that a killed guard left turned on `interface`, as many as
/// there are.
///
/// # Errors
///
/// No such interface, or what is left on disk cannot be read.
pub fn left_turned(interface: &str) -> Result<usize, Error> {
    let identity = Identity::of(interface)?;
    let file = RecordFile::new(Path::new(DIRECTORY), interface, &identity);
    let left = file.read()?.filter(|record| record.identity == identity);
    Ok(left.map_or(0, |record| record.to_restore().len()))
}

/// Files of one network namespace, by what they are (`json`: records).
fn files(directory: &Path, netns_cookie: u64, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(os("list the records")(source)),
    };
    let ending = format!(".{netns_cookie}.{extension}");
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.ends_with(&ending))
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(is_wanted);
    paths.sort();
    Ok(paths)
}

fn lock_path(directory: &Path, interface: &str, identity: &Identity) -> PathBuf {
    directory.join(format!("{interface}.{}.lock", identity.netns_cookie))
}

fn old_holdoff(napi: &Napi) -> Option<Setting> {
    Some(Setting::Holdoff {
        napi: napi.id,
        defer_hard_irqs: napi.defer_hard_irqs?,
        gro_flush_timeout: napi.gro_flush_timeout?,
    })
}

fn old_threaded(napi: &Napi) -> Option<Setting> {
    Some(Setting::Threaded {
        napi: napi.id,
        value: napi.threaded?,
    })
}

fn invalid(action: &'static str) -> Error {
    os(action)(io::Error::from(io::ErrorKind::InvalidInput))
}
