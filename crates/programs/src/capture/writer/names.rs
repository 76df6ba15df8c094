//! Names of ring files, and what earlier captures left under the same name.

use std::collections::VecDeque;
use std::fs::{self, DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};

/// `trace.pcapng` becomes `trace_1795300000_00000001.pcapng`: sorted by name, and not those of
/// an earlier capture.
pub(super) fn numbered(path: &Path, began: u64, number: usize) -> PathBuf {
    let (before, behind) = around(path);
    path.with_file_name(format!("{before}{began}_{number:08}{behind}"))
}

/// What stands before and behind a ring file's numbers.
fn around(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |extension| {
        format!(".{}", extension.to_string_lossy())
    });
    (format!("{stem}_"), extension)
}

/// When its capture began, and its number.
type Numbers = (u64, usize);

/// The numbers of a ring file of `path`, if this is the name of one, to the letter.
fn numbers(path: &Path, name: &str) -> Option<Numbers> {
    let (before, behind) = around(path);
    let numbers = name.strip_prefix(before.as_str())?;
    let (began, number) = numbers.strip_suffix(behind.as_str())?.split_once('_')?;
    let found = (began.parse().ok()?, number.parse().ok()?);
    let again = numbered(path, found.0, found.1);
    (again.file_name()? == name).then_some(found)
}

/// The ring files that earlier captures left, the oldest first. A capture that goes on keeps its
/// own.
pub(super) fn earlier(path: &Path) -> VecDeque<PathBuf> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let entries = fs::read_dir(directory.unwrap_or(Path::new(".")));
    let of_entry = |entry: DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        numbers(path, entry.file_name().to_str()?).filter(|_| is_file)
    };
    let mut all: Vec<Numbers> = entries.map_or_else(
        |_| Vec::new(),
        |entries| entries.flatten().filter_map(of_entry).collect(),
    );
    all.sort_unstable();
    let is_over = |of_one: &&[Numbers]| {
        let mut paths = of_one.iter().map(|one| numbered(path, one.0, one.1));
        !paths.any(|path| is_in_use(&path))
    };
    let of_each = all.chunk_by(|one, next| one.0 == next.0);
    let left = of_each.filter(is_over).flatten();
    left.map(|one| numbered(path, one.0, one.1)).collect()
}

/// Makes the ring file with the next number that is free, and tells which: another capture may have
/// begun in the same second. As long as it is open others know that it is written to.
pub(super) fn create(path: &Path, began: u64, number: &mut usize) -> io::Result<(PathBuf, File)> {
    let mut next = *number + 1;
    loop {
        let path = numbered(path, began, next);
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => next += 1,
            created => {
                let file = created?;
                // Where there are no locks, nobody takes the file over.
                let _ = file.try_lock();
                *number = next;
                return Ok((path, file));
            }
        }
    }
}

/// Whether a capture writes to it, as far as can be known.
pub(super) fn is_in_use(path: &Path) -> bool {
    match File::options().write(true).open(path) {
        Ok(file) => file.try_lock().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn ring_files_sort_by_name() {
        let at = |number| numbered(Path::new("/tmp/a.b.pcapng"), 17, number);
        assert_eq!(at(1), Path::new("/tmp/a.b_17_00000001.pcapng"));
        assert!(at(9) < at(10) && at(99_999) < at(100_000));
        assert_eq!(numbered(Path::new("x"), 1, 2), Path::new("x_1_00000002"));
    }

    #[test]
    fn nothing_but_ring_files_of_the_same_name_is_one() {
        let ring = Path::new("/tmp/a.pcapng");
        let of = |name: &str| numbers(ring, name);
        assert_eq!(of("a_17_00000001.pcapng"), Some((17, 1)));
        assert_eq!(of("a_17_123456789.pcapng"), Some((17, 123_456_789)));
        for other in [
            "a.pcapng",
            "a_17.pcapng",
            "a_17_1.pcapng",
            "a_17_000000001.pcapng",
            "a_017_00000001.pcapng",
            "a_+17_00000001.pcapng",
            "a_-17_00000001.pcapng",
            "a__00000001.pcapng",
            "a_17_+0000001.pcapng",
            "a_17_00000001",
            "a_17_00000001.pcap",
            "a_17_00000001.pcapng.gz",
            "a_b_17_00000001.pcapng",
            "a_17_17_00000001.pcapng",
            "b_17_00000001.pcapng",
            "A_17_00000001.pcapng",
            " a_17_00000001.pcapng",
            "a_17_0000000x.pcapng",
            "a_99999999999999999999_00000001.pcapng",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(numbers(Path::new("a"), "a_1_00000002"), Some((1, 2)));
        assert_eq!(numbers(Path::new("a"), "a_1_00000002.pcapng"), None);
    }

    #[test]
    fn files_of_earlier_captures_come_in_order_and_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (place, ring) = (directory.path(), directory.path().join("a.pcapng"));
        assert!(earlier(&ring).is_empty());
        let mut left = Vec::new();
        for (began, number) in [(9, 100), (9, 101), (17, 1), (17, 2)] {
            left.push(numbered(&ring, began, number));
            File::create(left.last().unwrap()).unwrap();
        }
        File::create(place.join("a_9_00000001.pcapng.bak")).unwrap();
        fs::create_dir(numbered(&ring, 5, 1)).unwrap();
        symlink(&left[0], numbered(&ring, 6, 1)).unwrap();
        assert_eq!(earlier(&ring), left);
        // One of them goes on.
        let newest = File::options().write(true).open(&left[3]).unwrap();
        newest.lock().unwrap();
        assert_eq!(earlier(&ring), &left[..2]);
        drop(newest);
        assert_eq!(earlier(&ring), left);
        assert!(earlier(&place.join("nowhere/a.pcapng")).is_empty());
    }
}
