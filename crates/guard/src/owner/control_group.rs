//! Paths of control groups by the id that sockets carry: in the unified
//! hierarchy (cgroup v2), the inode of the group's directory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

/// Directories looked at per refresh.
const DIRECTORIES_MAX: usize = 10_000;

/// Known paths. Ids that no directory has (of another hierarchy, or gone) are
/// looked for once.
#[derive(Debug, Default)]
pub(crate) struct ControlGroups {
    paths: HashMap<u64, Option<String>>,
}

impl ControlGroups {
    /// Learns the paths of `ids` and forgets all others.
    pub(crate) fn refresh(&mut self, ids: impl Iterator<Item = u64>) {
        let wanted: HashSet<u64> = ids.collect();
        self.paths.retain(|id, _| wanted.contains(id));
        if wanted.iter().all(|id| self.paths.contains_key(id)) {
            return;
        }
        let found = mount_point().map(|root| directories(&root));
        let mut found = found.unwrap_or_default();
        for id in wanted {
            self.paths.entry(id).or_insert_with(|| found.remove(&id));
        }
    }

    pub(crate) fn path(&self, id: u64) -> Option<&str> {
        self.paths.get(&id)?.as_deref()
    }
}

/// Whether there is a group of this path now.
pub(crate) fn exists(path: &str) -> bool {
    mount_point().is_some_and(|root| root.join(path.trim_start_matches('/')).is_dir())
}

/// Where the unified hierarchy is mounted.
fn mount_point() -> Option<PathBuf> {
    parse_mounts(&fs::read("/proc/self/mounts").ok()?)
}

/// The first cgroup v2 of a table in the form of fstab(5). A mount point may have any
/// bytes but zero in its path, whoever made it.
pub(crate) fn parse_mounts(table: &[u8]) -> Option<PathBuf> {
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == b"cgroup2").then(|| PathBuf::from(OsString::from_vec(unescaped(path))))
    })
}

/// The table has blanks, backslashes and hashes as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk().filter(|_| *first == b'\\');
        let escaped = digits.and_then(octal);
        path.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[3..]
        } else {
            after
        };
    }
    path
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    let value = digits.iter().try_fold(0, |value, digit| {
        let is_octal = (b'0'..=b'7').contains(digit);
        is_octal.then(|| value * 8 + u16::from(digit - b'0'))
    });
    u8::try_from(value?).ok()
}

/// The groups under `root`, breadth first, by inode.
fn directories(root: &Path) -> HashMap<u64, String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = HashMap::new();
    if let Ok(metadata) = fs::metadata(root) {
        found.insert(metadata.ino(), "/".to_owned());
    }
    let mut queue = VecDeque::from([root.to_owned()]);
    while let Some(directory) = queue.pop_front() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            if found.len() == DIRECTORIES_MAX {
                return found;
            }
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = entry.path();
            if let Ok(relative) = path.strip_prefix(root) {
                found.insert(entry.ino(), format!("/{}", relative.display()));
            }
            queue.push_back(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn the_hierarchy_is_found_among_any_mounts(
            others in vec("[a-z0-9 /]{0,30}|.{0,30}", 0..6),
            path in "/[a-z]{0,9}([ #\\\\][a-z0-7]{1,5})?",
        ) {
            let escaped = path.replace('\\', "\\134").replace(' ', "\\040").replace('#', "\\043");
            let others = others.join("\n");
            let table = format!("proc /proc proc rw 0 0\n\ncgroup2 {escaped} cgroup2 rw,nosuid 0 0\n{others}");
            prop_assert_eq!(parse_mounts(table.as_bytes()), Some(PathBuf::from(path)));
        }
    }

    /// A user who mounts (by FUSE) where a path is no text once hid all control groups.
    #[test]
    fn a_mount_point_that_is_no_text_hides_nothing() {
        let table = b"a /mnt/\xff\\040 fuse.a rw 0 0\nnone /cg\xfe cgroup2 rw 0 0\n";
        let path = parse_mounts(table).unwrap();
        assert_eq!(path.into_os_string().into_vec(), b"/cg\xfe");
    }

    #[test]
    fn groups_are_found_by_inode() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("system.slice/nginx.service");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        let inode = |path: &Path| {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(path).unwrap().ino()
        };
        let found = directories(root.path());
        assert_eq!(found[&inode(root.path())], "/");
        assert_eq!(found[&inode(&inner)], "/system.slice/nginx.service");
        assert_eq!(found.len(), 3, "files are none");
    }
}
