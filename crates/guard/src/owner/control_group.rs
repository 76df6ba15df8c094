//! Paths of control groups by the id that sockets carry: in the unified
//! hierarchy (cgroup v2), the inode of the group's directory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
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

/// Where the unified hierarchy is mounted.
fn mount_point() -> Option<PathBuf> {
    parse_mounts(&fs::read_to_string("/proc/self/mounts").ok()?)
}

/// The first cgroup v2 of a table in the form of fstab(5).
fn parse_mounts(text: &str) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(unescaped(path)))
    })
}

/// The table has blanks and backslashes as three octal digits.
fn unescaped(field: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let mut text = field.to_owned();
    for (escape, character) in escapes {
        text = text.replace(escape, character);
    }
    text
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
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn the_hierarchy_is_found_among_any_mounts(
            before in vec("[a-z0-9 /]{0,30}|.{0,30}", 0..6),
            path in "/[a-z]{0,9}( [a-z]{1,5})?",
        ) {
            let text = before.join("\n");
            if let Some(path) = parse_mounts(&text) {
                prop_assert!(!path.as_os_str().is_empty() || text.contains("  cgroup2"));
            }
            let escaped = path.replace(' ', "\\040");
            let text = format!("proc /proc proc rw 0 0\n\ncgroup2 {escaped} cgroup2 rw,nosuid 0 0\n{text}");
            prop_assert_eq!(parse_mounts(&text), Some(PathBuf::from(path)));
        }
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
