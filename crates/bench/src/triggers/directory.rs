//! A directory on disk that does not stay. Its process holds a lock on it, which the kernel
//! drops with the process, however that ends. So the next one finds what a killed one has left,
//! and removes it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;
use tempfile::TempDir;

/// How the names of all of them begin.
const PREFIX: &str = "plimsoll-triggers-";

/// Dropping it removes it.
#[derive(Debug)]
pub(super) struct Directory {
    place: TempDir,
    _lock: File,
}

impl Directory {
    /// In `parent`, named by this process.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        sweep(parent);
        loop {
            let prefix = format!("{PREFIX}{}-", std::process::id());
            let place = TempDir::with_prefix_in(prefix, parent)?;
            let lock = File::open(place.path())?;
            lock.lock()?;
            // A sweep may have come between making and locking.
            if place.path().exists() {
                return Ok(Self { place, _lock: lock });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.place.path()
    }
}

/// Removes what killed processes have left. What cannot be removed stays.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let lock = is_ours.then(|| lock_of_remains(&entry.path())).flatten();
        if lock.is_some() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locked, unless it is in use or somebody else's: others may write to `/var/tmp`.
fn lock_of_remains(path: &Path) -> Option<File> {
    let found = fs::symlink_metadata(path).ok()?;
    let is_own = found.is_dir() && found.uid() == geteuid().as_raw();
    let directory = is_own.then(|| File::open(path).ok()).flatten()?;
    directory.try_lock().is_ok().then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_is_used_stays() {
        let parent = tempfile::tempdir().unwrap();
        let used = Directory::create(parent.path()).unwrap();
        let left = {
            let killed = Directory::create(parent.path()).unwrap();
            fs::write(killed.path().join("sort.c"), "").unwrap();
            killed.place.keep()
        };
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        let next = Directory::create(parent.path()).unwrap();
        assert!(!left.exists());
        assert!(used.path().exists() && next.path().exists() && other.exists());
        let own = next.path().to_owned();
        drop(next);
        assert!(!own.exists());
    }
}
