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
//! | file | what it does |
//! | --- | --- |
//! | `turning` | old value on disk, then the turn |
//! | `threads`, `grouping` | the same for threads that poll |
//! | `restoring` | back, whatever the kernel calls an instance by now |
//! | `recovery` | back after a guard that was killed |
//! | `sweep` | files of namespaces that are gone |
//! | `keeper` | the process that restores for a killed guard |
//! | `heartbeat` | how it knows that a guard hangs |
//! | `kept` | what a driver loses as a program comes or goes |
//! | `closed` | interfaces that stay closed after a kill |
//! | `record`, `lock` | the files |
//! | `guarding` | whose they are, also if the interface was renamed |
//! | `device`, `napi`, `instances` | where settings are, and of what |
//!
//! A holdoff that somebody else has set since a guard turned it stays as it is: it shows no guard's
//! mark ([`DEFER_MARK`]) any more.
//!
//! Limits: any other setting that somebody else changes meanwhile gets the value from before the guard
//! nevertheless. So does a holdoff of which only the time was changed, or whose instance the driver
//! has numbered anew since, or whose interface was moved.

mod closed;
mod device;
#[cfg(test)]
pub(crate) mod fake_driver;
mod grouping;
mod guarding;
mod heartbeat;
mod instances;
mod keeper;
mod kept;
mod lock;
mod napi;
#[cfg(test)]
mod others_tests;
pub(crate) mod record;
mod recovery;
mod restoring;
#[cfg(test)]
mod restoring_tests;
mod sweep;
#[cfg(test)]
mod switch_tests;
mod threads;
mod turning;
#[cfg(test)]
mod turning_tests;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::process::Process;
pub use closed::take_over;
use device::Identity;
pub use device::{Attribute, Device, LinkState, Statistic, SysfsError};
pub use grouping::Regrouping;
pub use guarding::{Guarding, file_of_guard, owner};
pub use heartbeat::Heartbeat;
pub use keeper::Keeper;
pub(crate) use kept::Families;
use kept::Kept;
use lock::Lock;
use napi::Family;
pub use napi::{Napi, Netdev};
use record::{Record, RecordFile};
pub use record::{RecordError, check_directory};
pub use recovery::{left_turned, restore, restore_in};
pub use restoring::RestoreError;
pub use turning::TurnError;

use crate::error::{CallError, FAILED, os};
use crate::link::{self, NoSuchInterface};

/// Where records are: gone with the boot, as the settings are.
pub const DIRECTORY: &str = "/run/plimsoll/guard";

/// Empty polls until interrupts come back on, as guards set it: more than ever come in
/// a row, and a number that nobody else has a reason for ("PLM" in its bytes). An
/// instance that has it was turned by a guard, also if no record says so.
pub const DEFER_MARK: u32 = 0x7f50_4c4d;

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
    netdev: Box<dyn Family>,
    record: Record,
    file: RecordFile,
    any_driver: bool,
    /// Dropping restores nothing any more.
    is_over: bool,
    /// By which the keeper knows that this process gets on.
    heartbeat: Option<Heartbeat>,
    // Given up last, when all is restored. None where another is the owner.
    lock: Option<Lock>,
}

/// Why an interface's settings are not this process's to turn, or why what a killed
/// guard left cannot be looked at or put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such interface.
    #[error(transparent)]
    Interface(#[from] NoSuchInterface),
    /// Its directory in sysfs is not to be had.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// Another process guards the interface.
    #[error(
        "`{interface}` is guarded by process {} already{}: end that one first",
        .guarding.pid,
        .guarding.otherwise(.interface)
    )]
    InUse {
        /// As given.
        interface: String,
        /// The other process.
        guarding: Guarding,
    },
    /// The record of turned settings.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// What is left turned cannot be put back.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The kernel refuses something else.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl OpenError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interface(error) => error.exit_code(),
            Self::Sysfs(error) => error.exit_code(),
            Self::InUse { .. } => FAILED,
            Self::Record(error) => error.exit_code(),
            Self::Restore(error) => error.exit_code(),
            Self::Call(error) => error.exit_code(),
        }
    }

    /// Whether the files of guards are kept from this process: nothing is known of them.
    #[must_use]
    pub fn wants_root(&self) -> bool {
        matches!(self, Self::Record(RecordError::Unreadable { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl Knobs {
    /// Takes possession of the settings of `interface` in the current network
    /// namespace, after restoring what a killed owner left turned.
    ///
    /// # Errors
    ///
    /// No such interface; another living process has them
    /// ([`OpenError::InUse`]); what is left on disk cannot be read
    /// ([`RecordError::Unusable`]) or the kernel refuses to restore it.
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        Self::open_in(Path::new(DIRECTORY), interface)
    }

    /// As [`Knobs::open`], with records in another directory.
    ///
    /// # Errors
    ///
    /// As [`Knobs::open`].
    pub fn open_in(directory: &Path, interface: &str) -> Result<Self, OpenError> {
        let identity = Identity::of(interface)?;
        let device = Device::open(interface, identity.ifindex)?;
        let owner = Process::current()?;
        let netdev = Box::new(Netdev::new());
        Self::take(directory, interface, identity, device, netdev, owner)
    }

    /// Takes possession in the name of `owner`, restoring what is left turned.
    fn take(
        directory: &Path,
        interface: &str,
        identity: Identity,
        device: Device,
        netdev: Box<dyn Family>,
        owner: Process,
    ) -> Result<Self, OpenError> {
        make_private(directory).map_err(|source| RecordError::NotWritten {
            path: directory.to_owned(),
            source,
        })?;
        // Before it has the lock, which keeps records where they are.
        recovery::follow_names(directory);
        let other = guarding::of(directory, interface, &identity)?;
        if let Some(guarding) = other.filter(|other| other.name != interface) {
            let interface = interface.to_owned();
            return Err(OpenError::InUse {
                interface,
                guarding,
            });
        }
        let lock = directory.join(file_name(interface, &identity, "lock"));
        let lock = Lock::take(
            lock,
            interface,
            owner,
            identity.ifindex,
            identity.netns_inode,
        )?;
        sweep::sweep(directory);
        let file = RecordFile::new(directory, interface, &identity);
        let left = file.read()?;
        let mut knobs = Self {
            interface: interface.to_owned(),
            device,
            netdev,
            record: Record::new(interface, identity, owner),
            file,
            any_driver: false,
            is_over: false,
            heartbeat: None,
            lock: Some(lock),
        };
        if let Some(left) = left {
            knobs.take_over(&left)?;
        }
        // Without a record, or beside one.
        knobs.clear_marks()?;
        Ok(knobs)
    }

    /// Restores what `left` says if it is of this very interface, and forgets
    /// it in any case.
    fn take_over(&mut self, left: &Record) -> Result<(), RestoreError> {
        if left.identity == self.record.identity {
            self.record.inherit(left);
            match self.restore() {
                Err(RestoreError::Deferred { .. }) => Ok(()),
                restored => restored,
            }
        } else {
            Ok(self.file.remove()?)
        }
    }

    /// The interface's NAPI instances; none if it has none or the kernel does
    /// not tell (before 6.8).
    ///
    /// # Errors
    ///
    /// The kernel does not answer.
    pub fn instances(&mut self) -> Result<Vec<Napi>, CallError> {
        self.netdev
            .instances(self.record.identity.ifindex)
            .map_err(os("ask for the interface's NAPI instances"))
    }

    /// What the interface is called now; `None` if it has gone, or the kernel does not tell.
    #[must_use]
    pub fn name_now(&self) -> Option<String> {
        link::name(self.record.identity.ifindex)
    }

    /// From now on the keeper hears of what is turned, and puts it back if this process
    /// [beats](Knobs::beat) no more.
    pub fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = Some(heartbeat);
    }

    /// To be called several times a second. True if the keeper has put settings back meanwhile,
    /// since it heard nothing for two seconds: [restore](Knobs::restore) and begin anew.
    pub fn beat(&mut self) -> bool {
        let are_turned = !self.is_untouched();
        let heartbeat = self.heartbeat.as_mut();
        heartbeat.is_some_and(|heartbeat| heartbeat.beat(are_turned))
    }

    /// True if nothing is turned.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.record.is_empty()
    }

    /// As [`Knobs::instances`]; what is recorded is then of those instances, whatever
    /// ids they had when it was.
    fn follow(&mut self) -> Result<Vec<Napi>, CallError> {
        let present = self.instances()?;
        self.record.follow(&present);
        Ok(present)
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        if !self.is_over {
            // What cannot be restored stays recorded for the next start.
            let _ = self.restore();
        }
    }
}

/// The file of a running guard of `interface` in the current network
/// namespace.
pub fn path_of(interface: &str, extension: &str) -> Result<PathBuf, OpenError> {
    let identity = Identity::of(interface)?;
    Ok(Path::new(DIRECTORY).join(file_name(interface, &identity, extension)))
}

/// Also of an interface that is not there any more.
fn file_name(interface: &str, identity: &Identity, extension: &str) -> String {
    format!("{interface}.{}.{extension}", identity.netns_cookie)
}

/// Makes a directory that is its owner's alone, whatever the umask and whoever made it:
/// who can open a lock can also take it, and so keep guards from starting.
fn make_private(directory: &Path) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(directory, Permissions::from_mode(0o700))
}
