//! One owner per interface: a file lock that the kernel gives up for a process
//! that ends, however it ends.
//!
//! The file names its owner for the message to the second one. It is removed
//! while still locked; whoever opened it before finds, once it has the lock,
//! that the name leads elsewhere, and starts over.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::{Guarding, OpenError, RecordError};
use crate::process::Process;

/// A process that is about to start another program holds copies of the
/// descriptors of its parent for a moment, a dead owner's among them. The threads of a dead owner
/// give them back one after the other, and some drivers set up their rings anew in between.
const TRIES: u32 = 500;
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock of `interface`, which has this number in the network namespace of an inode (0:
    /// none is guarded by it). A status socket
    /// beside it is a killed owner's, and goes: without lock and record nobody could tell
    /// later whether its namespace lives.
    pub(crate) fn take(
        path: PathBuf,
        interface: &str,
        owner: Process,
        ifindex: u32,
        netns_inode: u64,
    ) -> Result<Self, OpenError> {
        for _ in 0..TRIES {
            match try_lock(&path) {
                Ok(Some(file)) => {
                    write!(&file, "{owner} {ifindex} {netns_inode}")
                        .map_err(|source| not_locked(&path, source))?;
                    let _ = fs::remove_file(path.with_extension("sock"));
                    return Ok(Self { path, _file: file });
                }
                Ok(None) => {}
                Err(source) => return Err(not_locked(&path, source).into()),
            }
            if let Some(other) = owner_of(&path).filter(|other| other.is_alive()) {
                return Err(OpenError::InUse {
                    interface: interface.to_owned(),
                    guarding: Guarding {
                        pid: other.pid,
                        name: interface.to_owned(),
                    },
                });
            }
            sleep(TRY_AGAIN);
        }
        let kept = io::Error::other("it stays locked, though its owner has ended");
        Err(not_locked(&path, kept).into())
    }

    /// Takes a lock that nobody has, in nobody's name: whoever wants it meanwhile tries again.
    pub(crate) fn take_briefly(path: PathBuf) -> Option<Self> {
        let file = try_lock(&path).ok()??;
        Some(Self { path, _file: file })
    }

    /// The living owner of a lock, if there is one.
    pub(crate) fn owner(path: &Path) -> Result<Option<u32>, RecordError> {
        let locked = Self::is_held(path)?;
        let owner = owner_of(path).filter(|owner| owner.is_alive());
        Ok(owner.filter(|_| locked).map(|owner| owner.pid))
    }

    /// Whether it has a living owner, or may have one: who may not look cannot know.
    pub(crate) fn may_be_owned(path: &Path) -> bool {
        !matches!(Self::owner(path), Ok(None))
    }

    /// Whether somebody has it, also in the name of a dead owner.
    pub(crate) fn is_held(path: &Path) -> Result<bool, RecordError> {
        match File::open(path) {
            Ok(file) => Ok(matches!(
                file.try_lock_shared(),
                Err(TryLockError::WouldBlock)
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(RecordError::Unreadable {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The inode of the network namespace that a lock is for.
    pub(crate) fn netns_inode(path: &Path) -> Option<u64> {
        let text = fs::read_to_string(path).ok()?;
        text.rsplit_once(' ')?.1.trim().parse().ok()
    }

    /// The number of the interface that a lock is for.
    pub(crate) fn ifindex(path: &Path) -> Option<u32> {
        let text = fs::read_to_string(path).ok()?;
        text.split(' ').nth(2)?.parse().ok()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If it stays it is no harm: it is not locked.
        let _ = fs::remove_file(&self.path);
    }
}

/// `None` if another has it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let is_named = fs::metadata(path).is_ok_and(|named| {
        file.metadata()
            .is_ok_and(|held| (held.dev(), held.ino()) == (named.dev(), named.ino()))
    });
    if is_named {
        file.set_len(0)?;
        Ok(Some(file))
    } else {
        Ok(None)
    }
}

fn owner_of(path: &Path) -> Option<Process> {
    let mut text = String::new();
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    // The interface's number and the namespace follow.
    let (pid, rest) = text.split_once(' ')?;
    let start = rest.split(' ').next()?;
    Process::parse(&format!("{pid} {start}"))
}

fn not_locked(path: &Path, source: io::Error) -> RecordError {
    RecordError::NotWritten {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_by_name_until_the_first_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eth0.lock");
        let owner = Process::current().unwrap();
        let take = || Lock::take(path.clone(), "eth0", owner, 2, 1);
        let first = take().unwrap();
        assert_eq!(Lock::owner(&path).unwrap(), Some(owner.pid));
        let refused = take().unwrap_err();
        assert!(
            refused
                .to_string()
                .contains(&format!("process {}", owner.pid)),
            "{refused}"
        );
        drop(first);
        assert!(!path.exists());
        assert_eq!(Lock::owner(&path).unwrap(), None);
        take().unwrap();
    }

    #[test]
    fn a_killed_guard_s_socket_goes_with_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eth0.1.lock");
        fs::write(directory.path().join("eth0.1.sock"), "").unwrap();
        drop(Lock::take(path, "eth0", Process::current().unwrap(), 2, 1).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_dead_owner_left_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eth0.lock");
        fs::write(&path, "1 1 1").unwrap();
        assert_eq!(Lock::owner(&path).unwrap(), None);
        Lock::take(path, "eth0", Process::current().unwrap(), 2, 1).unwrap();
    }

    /// Who may not look was told that there is no guard.
    #[test]
    fn a_lock_that_cannot_be_looked_at_may_be_owned() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("no directory");
        fs::write(&file, "").unwrap();
        let path = file.join("eth0.lock");
        let error = Lock::owner(&path).unwrap_err();
        assert!(matches!(error, RecordError::Unreadable { .. }), "{error}");
        assert!(Lock::may_be_owned(&path));
        assert!(!Lock::may_be_owned(&directory.path().join("eth0.lock")));
    }
}
