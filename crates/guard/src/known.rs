//! Known sources in a file, so that a guard's restart does not forget them.
//!
//! What is kept is what the program has: places of keyed hashes, without any address, and
//! the keys, without which the hashes say nothing. Whoever reads the file can choose
//! addresses that pass for a known one. So it is its owner's alone, and so must its
//! directory be: nobody else may put another file in its place.
//!
//! A source grows old while no guard runs, too. The clock that tells is the calendar's:
//! should it have been set back, sources are as old as when they were written.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::unistd::{AccessFlags, access};
use plimsoll_core::fairness::Keys;
use plimsoll_core::fairness::numbers::{KNOWN_AGE_PERIODS, KNOWN_PERIOD_SHIFT};
use plimsoll_kernel::error::file_remedy;
use plimsoll_kernel::private_file;
use serde::{Deserialize, Serialize};

use crate::program::types::limit;

/// Version of the file's form, and of the hash whose values it has. The first hash was not
/// mixed.
const SCHEMA: u32 = 2;
/// A file is never longer: each source takes less than 24 bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Sets of the program's table, and sources in each.
const SETS: usize = limit::KNOWN_SOURCE_SETS.0 as usize;
const WAYS: usize = limit::KNOWN_SOURCE_WAYS.0 as usize;
const PERIOD: Duration = Duration::from_secs(1 << KNOWN_PERIOD_SHIFT);
const AGE_PERIODS: u32 = KNOWN_AGE_PERIODS as u32;

/// One of them, as the program remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Periods since it was last served.
    pub(crate) age: u32,
    pub(crate) set: u32,
    pub(crate) tag: u32,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownSources {
    schema: u32,
    /// When this was written, in seconds of the calendar's clock.
    saved: u64,
    pub(crate) keys: [u64; Keys::COUNT],
    sources: Vec<(u32, u32, u32)>,
}

/// Why known sources are not read, or not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KnownError {
    /// Others could put a file of theirs there.
    #[error(
        "{path} is not its owner's alone, so it keeps no known clients: name a file in a directory of root's alone (known-sources-file); one that is missing is made"
    )]
    Open {
        /// The directory.
        path: PathBuf,
    },
    /// It is no such file.
    #[error("{path} has no known sources: {why}; it is replaced when the guard ends")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refuses to read or write it.
    #[error("cannot {what} {path}{}", file_remedy(.source))]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl KnownSources {
    pub(crate) fn new(keys: [u64; Keys::COUNT], sources: impl Iterator<Item = Known>) -> Self {
        Self {
            schema: SCHEMA,
            saved: now(),
            keys,
            sources: sources
                .map(|known| (known.age, known.set, known.tag))
                .collect(),
        }
    }

    /// Reads what [`KnownSources::text`] wrote.
    fn parse(text: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if read.schema != SCHEMA {
            return Err(format!("its schema is {}, not {SCHEMA}", read.schema));
        }
        let fits = |(_, set, tag): &(u32, u32, u32)| (*set as usize) < SETS && *tag != 0;
        if read.sources.len() > SETS * WAYS || !read.sources.iter().all(fits) {
            return Err("a source has no place in the table".to_owned());
        }
        Ok(read)
    }

    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers are written")
    }

    /// Those that are still known, by set, as old as they are `now`; the youngest first.
    fn at(&self, now: u64) -> Vec<Vec<Known>> {
        let passed = now.saturating_sub(self.saved) / PERIOD.as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        let mut sets = vec![Vec::new(); SETS];
        let mut sources = self.sources.clone();
        sources.sort_unstable();
        for (age, set, tag) in sources {
            let age = age.saturating_add(passed);
            let ways: &mut Vec<Known> = &mut sets[set as usize];
            let is_there = ways.iter().any(|known| known.tag == tag);
            if age < AGE_PERIODS && ways.len() < WAYS && !is_there {
                ways.push(Known { age, set, tag });
            }
        }
        sets
    }

    /// The same now.
    pub(crate) fn still_known(&self) -> Vec<Vec<Known>> {
        self.at(now())
    }
}

/// Reads any bytes as such a file, as old as it may be: nothing panics, and what is taken
/// has its place in the program's table. For fuzzing.
///
/// # Panics
///
/// The file was taken, and something of it has no place.
#[doc(hidden)]
pub fn check_known_sources(text: &[u8], now: u64) {
    let Ok(read) = KnownSources::parse(text) else {
        return;
    };
    for (set, ways) in read.at(now).iter().enumerate() {
        assert!(ways.len() <= WAYS);
        for known in ways {
            assert!(known.set as usize == set && known.tag != 0);
            assert!(known.age < AGE_PERIODS);
        }
    }
    let again = KnownSources::parse(&read.text());
    assert_eq!(again.as_ref(), Ok(&read), "it is written as it was read");
}

/// Where known sources are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownFile(pub(crate) PathBuf);

impl KnownFile {
    /// What was kept; `None` if nothing was. Makes its directory, if it is missing: what cannot be
    /// written at the end is to be told now.
    pub(crate) fn read(&self) -> Result<Option<KnownSources>, KnownError> {
        let directory = self.made_directory()?;
        access(directory, AccessFlags::W_OK).map_err(|errno| self.file("write", errno.into()))?;
        let text = match fs::metadata(&self.0).map(|found| found.len()) {
            Ok(bytes) if bytes > BYTES_MAX => {
                return Err(self.damaged(format!("it has {bytes} bytes")));
            }
            Ok(_) => fs::read(&self.0),
            Err(error) => Err(error),
        };
        match text {
            Ok(text) => KnownSources::parse(&text)
                .map(Some)
                .map_err(|why| self.damaged(why)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.file("read", source)),
        }
    }

    /// Its directory, which is made if it is missing, and is its owner's alone.
    fn made_directory(&self) -> Result<&Path, KnownError> {
        let directory = private_file::directory(&self.0);
        let made = DirBuilder::new().mode(0o700).create(directory);
        if let Err(error) = made
            && !directory.exists()
        {
            return Err(self.file("write", error));
        }
        must_be_private(directory)?;
        Ok(directory)
    }

    /// Replaces it; on disk when this returns.
    pub(crate) fn write(&self, known: &KnownSources) -> Result<(), KnownError> {
        self.made_directory()?;
        let written = private_file::replace(&self.0, &known.text());
        written.map_err(|source| self.file("write", source))
    }

    fn damaged(&self, why: String) -> KnownError {
        KnownError::Damaged {
            path: self.0.clone(),
            why,
        }
    }

    fn file(&self, what: &'static str, source: io::Error) -> KnownError {
        KnownError::File {
            what,
            path: self.0.clone(),
            source,
        }
    }
}

/// Nobody but this process's user may name files there.
fn must_be_private(directory: &Path) -> Result<(), KnownError> {
    let found = fs::metadata(directory).map_err(|source| KnownError::File {
        what: "look at",
        path: directory.to_owned(),
        source,
    })?;
    let own = found.uid() == nix::unistd::geteuid().as_raw();
    if own && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(KnownError::Open {
        path: directory.to_owned(),
    })
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    fn known(age: u32, set: u32, tag: u32) -> Known {
        Known { age, set, tag }
    }

    fn sources(sources: &[Known]) -> KnownSources {
        KnownSources::new([7; Keys::COUNT], sources.iter().copied())
    }

    #[test]
    fn sources_grow_old_while_nobody_guards() {
        let young = known(0, 3, 5);
        let old = known(AGE_PERIODS - 1, 3, 6);
        let kept = sources(&[old, young]);
        let all = |now| kept.at(now).concat();
        assert_eq!(all(kept.saved), [young, old]);
        assert_eq!(all(kept.saved + 4), [known(1, 3, 5)]);
        assert!(all(kept.saved + 3600).is_empty(), "after an hour");
        assert_eq!(all(kept.saved - 9999).len(), 2, "the clock was set back");
        assert!(all(u64::MAX).is_empty());
    }

    #[test]
    fn a_set_keeps_the_youngest_of_too_many_once_each() {
        let many: Vec<Known> = (0..20).map(|n| known(100 - n, 9, n + 1)).collect();
        let kept = sources(&[many.clone(), many].concat()).still_known();
        assert_eq!(kept[9].len(), WAYS);
        assert_eq!(kept[9][0], known(81, 9, 20));
    }

    #[test]
    fn the_file_and_its_directory_are_the_owner_s_alone() {
        let parent = tempfile::tempdir().unwrap();
        let file = KnownFile(parent.path().join("guard/known.json"));
        assert_eq!(file.read().unwrap(), None, "nothing was kept");
        let kept = sources(&[known(1, 2, 3)]);
        file.write(&kept).unwrap();
        assert_eq!(file.read().unwrap(), Some(kept.clone()));
        let directory = file.0.parent().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(directory), mode(&file.0)), (0o700, 0o600));
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = file.read().unwrap_err().to_string();
        // It may be /tmp, which others need.
        assert!(!refused.contains("chmod"), "{refused}");
        assert!(refused.contains("known-sources-file"), "{refused}");
        assert!(file.write(&kept).is_err());
    }

    /// That was told at the end alone, when all clients had been learnt.
    #[test]
    fn a_file_that_cannot_be_written_is_told_at_the_start() {
        let parent = tempfile::tempdir().unwrap();
        let file = KnownFile(parent.path().join("no/directory/known.json"));
        let said = file.read().unwrap_err().to_string();
        assert!(said.contains("in a directory that exists"), "{said}");
    }

    /// It was found at the end alone, and known clients were lost.
    #[test]
    fn a_name_without_a_directory_is_in_the_current_one() {
        let read = |path: &str| format!("{:?}", KnownFile(path.into()).read());
        assert_eq!(read("known.json"), read("./known.json"));
    }

    #[test]
    fn a_file_that_cannot_be_written_says_the_remedy() {
        let error = KnownError::File {
            what: "write",
            path: "known.json".into(),
            source: nix::errno::Errno::ENOSPC.into(),
        };
        assert!(error.to_string().contains("free space"), "{error}");
    }

    #[test]
    fn a_damaged_file_says_what_is_wrong() {
        let parent = tempfile::tempdir().unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700)).unwrap();
        let file = KnownFile(parent.path().join("known.json"));
        let text = String::from_utf8(sources(&[known(1, 2, 3)]).text()).unwrap();
        let elsewhere = text.replace("[1,2,3]", "[1,99999,3]");
        let other = |schema: u32| {
            let (from, to) = (SCHEMA, schema);
            text.replace(&format!("\"schema\":{from}"), &format!("\"schema\":{to}"))
        };
        let (earlier, later) = (other(1), other(3));
        for (text, why) in [
            ("", "EOF"),
            (&text[..text.len() / 2], "EOF"),
            (&elsewhere, "no place"),
            (&earlier, "schema is 1, not 2"),
            (&later, "schema is 3"),
        ] {
            fs::write(&file.0, text).unwrap();
            let said = file.read().unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        fs::write(&file.0, vec![b' '; BYTES_MAX as usize + 1]).unwrap();
        assert!(file.read().is_err());
    }

    proptest! {
        /// Whatever is in the file: nothing panics, and what is taken has its place.
        #[test]
        fn no_file_harms(
            list in prop::collection::vec((any::<u32>(), 0_u32..3000, any::<u32>()), 0..40),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            now in any::<u64>(),
        ) {
            let mut kept = sources(&[]);
            kept.sources = list;
            let mut text = kept.text();
            for (place, byte) in &damage {
                let place = place.index(text.len());
                text[place] = *byte;
            }
            let read = KnownSources::parse(&text);
            if damage.is_empty() && let Ok(read) = &read {
                prop_assert_eq!(read, &kept);
            }
            check_known_sources(&text, now);
        }

        #[test]
        fn no_bytes_harm(text in prop::collection::vec(any::<u8>(), 0..200)) {
            check_known_sources(&text, 0);
        }
    }
}
