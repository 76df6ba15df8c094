//! Records and locks are their owner's alone, whatever the umask: a local user who could
//! open a lock once kept guards from starting and `guard restore` from restoring, with
//! `flock -s`. A test of its own process, since the umask is the process's.

#[path = "it/common/mod.rs"]
#[allow(dead_code, reason = "it uses a part")]
mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use common::in_namespace;
use nix::sys::stat::{Mode, umask};
use plimsoll_kernel::knobs::{DEFER_MARK, Knobs, Queues};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_are_private_whatever_the_umask_and_the_directory() {
    in_namespace(|| {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("guard");
        let before = umask(Mode::empty());
        for is_there in [false, true] {
            if is_there {
                fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
            }
            let mut knobs = Knobs::open_in(&directory, "v0").unwrap();
            let turned = knobs.set_holdoff(Queues::All, DEFER_MARK, Duration::from_micros(50));
            turned.unwrap();
            assert_eq!(mode(&directory), 0o700);
            let files: Vec<_> = fs::read_dir(&directory).unwrap().flatten().collect();
            assert_eq!(files.len(), 2, "a lock and a record");
            for file in files {
                assert_eq!(mode(&file.path()), 0o600, "{file:?}");
            }
        }
        umask(before);
    });
}
