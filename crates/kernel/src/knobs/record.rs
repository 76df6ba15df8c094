//! What was turned, on disk: the old values of one interface's settings, with
//! all that is needed to know whether they still are anybody's.
//!
//! One JSON file per interface, replaced as a whole ([`private_file`]), so that a reader
//! finds either the old or the new one, whatever happens in between.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

use super::device::{Attribute, Identity};
use super::file_name;
use super::instances::{Instances, Renumbered};
use super::napi::Napi;
use crate::error::{FAILED, errno, remedy};
use crate::private_file;
use crate::process::Process;
use crate::scheduling::Scheduling;

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// One setting and the value it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "setting", rename_all = "snake_case")]
pub(crate) enum Setting {
    /// A setting of the whole device.
    Device { attribute: Attribute, value: u64 },
    /// The holdoff of one NAPI instance.
    Holdoff {
        napi: u32,
        defer_hard_irqs: u32,
        gro_flush_timeout: u32,
    },
    /// Whether one NAPI instance is polled by a thread.
    Threaded { napi: u32, value: u32 },
    /// The scheduling of the thread that polls a NAPI instance.
    Thread { napi: u32, scheduling: Scheduling },
    /// The control group of the thread that polls a NAPI instance: the one that was made
    /// for it, and the one it was in.
    ControlGroup {
        napi: u32,
        made: PathBuf,
        before: PathBuf,
    },
}

impl Setting {
    /// The instance it is of, if it is of one.
    pub(super) const fn instance(&self) -> Option<u32> {
        match self {
            Self::Device { .. } => None,
            Self::Holdoff { napi, .. }
            | Self::Threaded { napi, .. }
            | Self::Thread { napi, .. }
            | Self::ControlGroup { napi, .. } => Some(*napi),
        }
    }

    /// Whether it is of the holdoff of the instance of this number, or of [`DEVICE`].
    fn is_holdoff_of(&self, id: u32) -> bool {
        match *self {
            Self::Holdoff { napi, .. } => napi == id,
            Self::Device { attribute, .. } => id == DEVICE && attribute != Attribute::Threaded,
            _ => false,
        }
    }

    /// Whether it says if threads poll, or how these run.
    pub(super) const fn is_of_threads(&self) -> bool {
        match self {
            Self::Device { attribute, .. } => matches!(attribute, Attribute::Threaded),
            Self::Holdoff { .. } => false,
            Self::Threaded { .. } | Self::Thread { .. } | Self::ControlGroup { .. } => true,
        }
    }

    /// Of an instance: the value it had, of what this attribute is for the whole device.
    fn value(&self, attribute: Attribute) -> Option<u64> {
        let value = match (self, attribute) {
            (
                Self::Holdoff {
                    defer_hard_irqs, ..
                },
                Attribute::NapiDeferHardIrqs,
            ) => defer_hard_irqs,
            (
                Self::Holdoff {
                    gro_flush_timeout, ..
                },
                Attribute::GroFlushTimeout,
            ) => gro_flush_timeout,
            (Self::Threaded { value, .. }, Attribute::Threaded) => value,
            _ => return None,
        };
        Some(u64::from(*value))
    }

    fn renumber(&mut self, renumbered: &Renumbered) {
        if let Self::Holdoff { napi, .. }
        | Self::Threaded { napi, .. }
        | Self::Thread { napi, .. }
        | Self::ControlGroup { napi, .. } = self
            && let Some(new) = renumbered.get(napi)
        {
            *napi = *new;
        }
    }

    /// True if both are values of the same setting.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Device { attribute: a, .. }, Self::Device { attribute: b, .. }) => a == b,
            (Self::Holdoff { napi: a, .. }, Self::Holdoff { napi: b, .. })
            | (Self::Threaded { napi: a, .. }, Self::Threaded { napi: b, .. })
            | (Self::Thread { napi: a, .. }, Self::Thread { napi: b, .. })
            | (Self::ControlGroup { napi: a, .. }, Self::ControlGroup { napi: b, .. }) => a == b,
            _ => false,
        }
    }
}

/// The file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    schema: u32,
    pub(crate) interface: String,
    #[serde(flatten)]
    pub(crate) identity: Identity,
    pub(crate) owner: Process,
    settings: Vec<Setting>,
    #[serde(default)]
    instances: Instances,
    /// Whose holdoff got a guard's mark: the numbers that instances had then, and [`DEVICE`].
    #[serde(default)]
    marked: BTreeSet<u32>,
}

/// Stands for the device itself among instances: the kernel gives none this number.
pub(super) const DEVICE: u32 = 0;

impl Record {
    pub(crate) fn new(interface: &str, identity: Identity, owner: Process) -> Self {
        Self {
            schema: SCHEMA,
            interface: interface.to_owned(),
            identity,
            owner,
            settings: Vec::new(),
            instances: Instances::default(),
            marked: BTreeSet::new(),
        }
    }

    /// Takes over the settings that another owner left.
    pub(super) fn inherit(&mut self, left: &Self) {
        self.settings.clone_from(&left.settings);
        self.instances.clone_from(&left.instances);
        self.marked.clone_from(&left.marked);
    }

    /// Says of which instances the settings are now.
    pub(super) fn follow(&mut self, present: &[Napi]) {
        let renumbered = self.instances.follow(present);
        for setting in &mut self.settings {
            setting.renumber(&renumbered);
        }
    }

    /// Reads what [`RecordFile::write`] wrote.
    pub(crate) fn parse(text: &[u8]) -> io::Result<Self> {
        let record: Self = serde_json::from_slice(text)?;
        if record.schema == SCHEMA {
            Ok(record)
        } else {
            let problem = format!("its schema is {}, not {SCHEMA}", record.schema);
            Err(io::Error::other(problem))
        }
    }

    /// Adds an old value. False if one is there: the first is the host's own.
    pub(crate) fn add(&mut self, setting: Setting) -> bool {
        let new = !self.settings.iter().any(|known| known.is_same(&setting));
        if new {
            self.settings.push(setting);
        }
        new
    }

    /// The holdoff of an instance of this number, or of [`DEVICE`], gets a guard's mark, or another
    /// value. False if that is known.
    pub(super) fn mark(&mut self, id: u32, is_marked: bool) -> bool {
        match is_marked {
            true => self.marked.insert(id),
            false => self.marked.remove(&id),
        }
    }

    /// The holdoff of an instance, or of [`DEVICE`], is no guard's now. If it had got the mark, somebody
    /// else has set it since: then what it had before is nobody's any more.
    pub(super) fn give_up(&mut self, id: u32) {
        let is_of_mark = |setting: &Setting| match *setting {
            Setting::Device {
                attribute: Attribute::GroFlushTimeout,
                ..
            } => false,
            _ => setting.is_holdoff_of(id),
        };
        // Where that is put back already, the mark is gone for it.
        if self.marked.remove(&id) && self.settings.iter().any(is_of_mark) {
            self.settings.retain(|setting| !setting.is_holdoff_of(id));
        }
    }

    /// The settings in the order they must be restored in: the last that was turned
    /// comes first, since a device-wide setting overwrites those of instances, and
    /// instances made anew begin with it, turned or not. Threads exist only once
    /// instances have them, so what is theirs comes last.
    pub(crate) fn to_restore(&self) -> Vec<Setting> {
        let mut settings: Vec<_> = self.settings.iter().rev().cloned().collect();
        settings.sort_by_key(|setting| {
            matches!(
                setting,
                Setting::Thread { .. } | Setting::ControlGroup { .. }
            )
        });
        settings
    }

    /// The value with which the whole device is put back, if this is turned: what its
    /// instances had, or where that differs or is not known what the device had. `own` is
    /// what it has.
    pub(super) fn device_wide(&self, attribute: Attribute, own: u64) -> Option<u64> {
        let values = self
            .settings
            .iter()
            .filter_map(|setting| setting.value(attribute));
        let values: BTreeSet<u64> = values.collect();
        let of_device = self.settings.iter().find_map(|setting| match *setting {
            Setting::Device {
                attribute: turned,
                value,
            } if turned == attribute => Some(value),
            _ => None,
        });
        match values.first() {
            Some(value) if values.len() == 1 => Some(*value),
            Some(_) => of_device.or(Some(own)),
            None => of_device,
        }
    }

    /// Drops these settings.
    pub(super) fn forget(&mut self, gone: &[Setting]) {
        self.settings.retain(|setting| !gone.contains(setting));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// Keeps only these settings, given as [`Record::to_restore`] has them.
    pub(crate) fn keep(&mut self, to_restore: Vec<Setting>) {
        self.settings = to_restore;
        self.settings.reverse();
    }
}

/// Where an interface's record is.
#[derive(Clone, Debug)]
pub(crate) struct RecordFile {
    path: PathBuf,
}

/// Why the record of turned settings is not read, or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It makes no sense.
    #[error(
        "{path} is no record of turned settings: compare the interface's settings with what they should be (`plimsoll guard check` shows them), then remove the file"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// It cannot be read, so nobody knows what it says.
    #[error("cannot read {path}{}", remedy("", .source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It cannot be written, so nothing is turned.
    #[error(
        "cannot write {path}, and without it no setting of the host is changed{}",
        not_written_remedy(.source)
    )]
    NotWritten {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What to do in brackets, if anything is known. Nobody chooses where records are.
fn not_written_remedy(source: &io::Error) -> String {
    match errno(source) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => {
            " (free space or inodes of /run: `df /run` and `df -i /run` tell)".to_owned()
        }
        Some(Errno::EROFS) => {
            " (/run must be writable: `mount -o remount,rw /run`, or in a container a tmpfs there)"
                .to_owned()
        }
        _ => remedy("", source),
    }
}

impl RecordError {
    /// The exit code of a command that ends by it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Unusable { .. } | Self::Unreadable { .. } | Self::NotWritten { .. } => FAILED,
        }
    }
}

/// Whether there may be records in [`DIRECTORY`](super::DIRECTORY), as far as that is known before one
/// is written: who may not look there hears no objection.
///
/// # Errors
///
/// [`RecordError::NotWritten`], on a file system that is mounted read-only.
pub fn check_directory() -> Result<(), RecordError> {
    check(Path::new(super::DIRECTORY))
}

fn check(directory: &Path) -> Result<(), RecordError> {
    let present = directory.ancestors().find(|path| path.exists());
    match present.map(|path| access(path, AccessFlags::W_OK)) {
        Some(Err(errno @ Errno::EROFS)) => Err(RecordError::NotWritten {
            path: directory.to_owned(),
            source: errno.into(),
        }),
        _ => Ok(()),
    }
}

impl RecordFile {
    pub(crate) fn new(directory: &Path, interface: &str, identity: &Identity) -> Self {
        Self::at(directory.join(file_name(interface, identity, "json")))
    }

    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// What is recorded, if anything is.
    pub(crate) fn read(&self) -> Result<Option<Record>, RecordError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(RecordError::Unreadable {
                    path: self.path.clone(),
                    source,
                });
            }
        };
        let record = Record::parse(&text).map_err(|source| self.unusable(source))?;
        Ok(Some(record))
    }

    /// Replaces it; on disk when this returns.
    pub(crate) fn write(&self, record: &Record) -> Result<(), RecordError> {
        self.replace(record)
            .map_err(|source| RecordError::NotWritten {
                path: self.path.clone(),
                source,
            })
    }

    fn replace(&self, record: &Record) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(record)?;
        text.push(b'\n');
        private_file::replace(&self.path, &text)
    }

    /// Removes it, if it is there.
    pub(crate) fn remove(&self) -> Result<(), RecordError> {
        private_file::remove(&self.path).map_err(|source| RecordError::NotWritten {
            path: self.path.clone(),
            source,
        })
    }

    fn unusable(&self, source: io::Error) -> RecordError {
        RecordError::Unusable {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE: Setting = Setting::Device {
        attribute: Attribute::Threaded,
        value: 0,
    };
    const INSTANCE: Setting = Setting::Holdoff {
        napi: 8193,
        defer_hard_irqs: 0,
        gro_flush_timeout: 0,
    };

    fn record() -> Record {
        let identity = Identity {
            boot_id: "here and now".to_owned(),
            netns_cookie: 5,
            netns_inode: 4_026_531_840,
            ifindex: 2,
        };
        Record::new("eth0", identity, Process::current().unwrap())
    }

    fn any_setting() -> impl Strategy<Value = Setting> {
        let attribute = prop_oneof![
            Just(Attribute::Threaded),
            Just(Attribute::NapiDeferHardIrqs),
            Just(Attribute::GroFlushTimeout),
        ];
        let own = Scheduling::of(0).unwrap();
        prop_oneof![
            (attribute, any::<u64>())
                .prop_map(|(attribute, value)| Setting::Device { attribute, value }),
            any::<[u32; 3]>().prop_map(|[napi, defer_hard_irqs, gro_flush_timeout]| {
                Setting::Holdoff {
                    napi,
                    defer_hard_irqs,
                    gro_flush_timeout,
                }
            }),
            any::<[u32; 2]>().prop_map(|[napi, value]| Setting::Threaded { napi, value }),
            any::<u32>().prop_map(move |napi| Setting::Thread {
                napi,
                scheduling: own.clone(),
            }),
            any::<u32>().prop_map(|napi| Setting::ControlGroup {
                napi,
                made: PathBuf::from("/sys/fs/cgroup/a"),
                before: PathBuf::from("/sys/fs/cgroup"),
            }),
        ]
    }

    proptest! {
        /// What a crash or a hand leaves in the file is a record or none, and never
        /// harms who reads it.
        #[test]
        fn any_record_is_read_as_it_was_and_any_bytes_are_judged(
            settings in prop::collection::vec(any_setting(), 0..6),
            spoilt_at: prop::sample::Index,
            byte: u8,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut record = record();
            record.keep(settings);
            let mut text = serde_json::to_vec_pretty(&record).unwrap();
            prop_assert_eq!(&Record::parse(&text).unwrap(), &record);
            let at = spoilt_at.index(text.len());
            prop_assert!(Record::parse(&text[..at]).is_err(), "cut short");
            text[at] = byte;
            crate::driven::check_record(&text);
            crate::driven::check_record(&bytes);
        }
    }

    #[test]
    fn the_first_value_is_kept_and_the_last_turned_comes_back_first() {
        let mut record = record();
        assert!(record.add(INSTANCE));
        assert!(record.add(DEVICE));
        assert!(!record.add(Setting::Device {
            attribute: Attribute::Threaded,
            value: 1
        }));
        assert_eq!(record.to_restore(), [DEVICE, INSTANCE]);
        let anew = Setting::Threaded {
            napi: 8194,
            value: 1,
        };
        assert!(record.add(anew.clone()));
        assert_eq!(record.to_restore(), [anew.clone(), DEVICE, INSTANCE]);
        let thread = Setting::Thread {
            napi: 8193,
            scheduling: Scheduling::of(0).unwrap(),
        };
        assert!(record.add(thread.clone()));
        record.keep(vec![anew.clone(), INSTANCE, thread.clone()]);
        assert_eq!(record.to_restore(), [anew, INSTANCE, thread]);
    }

    /// Of two values of a device the one was back, and the other, which was refused, was left turned.
    #[test]
    fn what_is_not_back_beside_a_mark_that_is_stays_recorded() {
        let of_device = |attribute| Setting::Device {
            attribute,
            value: 1,
        };
        let [defer, timeout] =
            [Attribute::NapiDeferHardIrqs, Attribute::GroFlushTimeout].map(of_device);
        let mut record = record();
        for setting in [&defer, &timeout, &DEVICE] {
            record.add(setting.clone());
        }
        record.mark(super::DEVICE, true);
        let mut is_back = record.clone();
        is_back.keep(vec![timeout.clone()]);
        is_back.give_up(super::DEVICE);
        assert_eq!(is_back.to_restore(), [timeout]);
        record.give_up(super::DEVICE);
        assert_eq!(record.to_restore(), [DEVICE], "threads are another matter");
    }

    /// Where instances cannot be told apart any more, one value is for all.
    #[test]
    fn a_device_gets_what_all_its_instances_had_and_else_what_it_had_itself() {
        let instance = |napi, gro_flush_timeout| Setting::Holdoff {
            napi,
            defer_hard_irqs: 0,
            gro_flush_timeout,
        };
        let attribute = Attribute::GroFlushTimeout;
        let device = Setting::Device {
            attribute,
            value: 7,
        };
        let put_back = |settings: &[&Setting]| {
            let mut record = record();
            settings.iter().for_each(|one| {
                record.add((*one).clone());
            });
            record.device_wide(attribute, 5)
        };
        let (one, same, other) = (instance(1, 30), instance(2, 30), instance(2, 40));
        assert_eq!(put_back(&[&DEVICE]), None, "not turned");
        assert_eq!(put_back(&[&device]), Some(7));
        assert_eq!(put_back(&[&one, &same]), Some(30));
        assert_eq!(put_back(&[&one, &same, &device]), Some(30));
        assert_eq!(put_back(&[&one, &other]), Some(5));
        assert_eq!(put_back(&[&one, &other, &device]), Some(7));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut record = record();
        record.add(INSTANCE);
        let file = RecordFile::new(directory.path(), "eth0", &record.identity);
        assert_eq!(file.read().unwrap(), None);
        file.write(&record).unwrap();
        assert_eq!(file.read().unwrap(), Some(record));
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_no_record_is_named_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let record = record();
        let file = RecordFile::new(directory.path(), "eth0", &record.identity);
        let other_schema = serde_json::to_string(&record)
            .unwrap()
            .replace("\"schema\":1", "\"schema\":9");
        for text in ["", "{", "{\"schema\":1}", &other_schema] {
            fs::write(&file.path, text).unwrap();
            let error = file.read().unwrap_err().to_string();
            assert!(error.contains("eth0.5.json"), "{error}");
            assert!(error.contains("remove the file"), "{error}");
        }
    }

    /// Who may not look at it was told to remove it, also where there is none.
    #[test]
    fn a_file_that_cannot_be_read_is_no_damaged_one() {
        let directory = tempfile::tempdir().unwrap();
        let record = record();
        let file = RecordFile::new(directory.path(), "eth0", &record.identity);
        fs::create_dir(&file.path).unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
        let refused = RecordError::Unreadable {
            path: file.path,
            source: io::Error::from_raw_os_error(libc::EACCES),
        };
        let refused = refused.to_string();
        assert!(refused.contains("(run as root, "), "{refused}");
    }
}
