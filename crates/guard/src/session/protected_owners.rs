//! Whose sockets are protected: by executable, and by control group.
//!
//! Any process can take any name, so names decide nothing. An executable is known by
//! its file (device and inode): another mount namespace may have another file at the
//! same path. A control group is known by its path, which only who may write to the
//! hierarchy can make.
//!
//! Limits: whoever may run an executable has its protection. A process that still runs
//! a file which an upgrade has replaced is not protected until it is restarted.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::settings::Settings;
use crate::owner::{Owner, control_group};

/// Who is protected, looked up anew for each round over all sockets.
pub(super) struct ProtectedOwners<'a> {
    /// Files of the executables, by device and inode.
    files: HashSet<(u64, u64)>,
    groups: &'a [String],
    /// Processes that were looked at.
    known: HashMap<u32, bool>,
}

impl<'a> ProtectedOwners<'a> {
    pub(super) fn of(settings: &'a Settings) -> Self {
        let files = settings.protect_processes.iter();
        Self {
            files: files.filter_map(|path| file(path)).collect(),
            groups: &settings.protect_control_groups,
            known: HashMap::new(),
        }
    }

    /// Whether sockets of `owner` are protected.
    pub(super) fn contain(&mut self, owner: &Owner) -> bool {
        let group = owner.control_group.as_deref();
        if group.is_some_and(|path| self.groups.iter().any(|group| is_within(path, group))) {
            return true;
        }
        let Some(process) = owner.process.as_ref().filter(|_| !self.files.is_empty()) else {
            return false;
        };
        let files = &self.files;
        *self.known.entry(process.pid).or_insert_with(|| {
            let executable = file(Path::new(&format!("/proc/{}/exe", process.pid)));
            executable.is_some_and(|executable| files.contains(&executable))
        })
    }
}

/// What protects nobody, since it is not there. It may come, or be a mistake.
pub(super) fn warnings(settings: &Settings) -> Vec<String> {
    let warning = |setting: &str, what: String| {
        format!("{setting}: there is no {what} now, and nobody is protected by it until there is")
    };
    let files = settings.protect_processes.iter();
    let files = files.filter(|path| file(path).is_none());
    let files = files.map(|path| warning("protect-processes", format!("file {}", path.display())));
    let groups = settings.protect_control_groups.iter();
    let groups = groups.filter(|path| !control_group::exists(path));
    let groups =
        groups.map(|path| warning("protect-control-groups", format!("control group {path}")));
    files.chain(groups).collect()
}

/// A file by device and inode; `None` if there is none, or it may not be looked at.
fn file(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Whether `path` is `group` or below it.
fn is_within(path: &str, group: &str) -> bool {
    let rest = path.strip_prefix(group.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Child, Command};

    use super::*;
    use crate::owner::OwnerProcess;

    fn owner(pid: Option<u32>, name: &str, group: Option<&str>) -> Owner {
        Owner {
            process: pid.map(|pid| OwnerProcess {
                pid,
                name: name.to_owned(),
            }),
            control_group: group.map(str::to_owned),
            user: 0,
            sockets: 1,
        }
    }

    fn run(program: &Path) -> Child {
        Command::new(program).arg("60").spawn().unwrap()
    }

    #[test]
    fn an_executable_is_its_file_and_no_name_and_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let sleep = fs::canonicalize("/usr/bin/sleep").unwrap();
        let copy = directory.path().join("sleep");
        let link = directory.path().join("link");
        fs::copy(&sleep, &copy).unwrap();
        std::os::unix::fs::symlink(&sleep, &link).unwrap();
        let protect = |path: &PathBuf| Settings {
            protect_processes: vec![path.clone()],
            ..Settings::new("v0")
        };
        let mut processes = [run(&sleep), run(&copy), run(&link)];
        for (path, expected) in [
            (&sleep, [true, false, true]),
            (&copy, [false, true, false]),
            (&link, [true, false, true]),
            (&directory.path().join("none"), [false; 3]),
        ] {
            let settings = protect(path);
            let mut protected = ProtectedOwners::of(&settings);
            let found = [0, 1, 2].map(|i| {
                let process: &Child = &processes[i];
                protected.contain(&owner(Some(process.id()), "sleep", None))
            });
            assert_eq!(found, expected, "{}", path.display());
        }
        for process in &mut processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    #[test]
    fn a_control_group_holds_those_below_it_and_none_beside_it() {
        let settings = Settings {
            protect_control_groups: vec!["/system.slice/nsd.service".to_owned()],
            ..Settings::new("v0")
        };
        let mut protected = ProtectedOwners::of(&settings);
        for (group, expected) in [
            (Some("/system.slice/nsd.service"), true),
            (Some("/system.slice/nsd.service/worker"), true),
            (Some("/system.slice/nsd.service2"), false),
            (Some("/user.slice/system.slice/nsd.service"), false),
            (Some("/"), false),
            (None, false),
        ] {
            assert_eq!(
                protected.contain(&owner(None, "nsd", group)),
                expected,
                "{group:?}"
            );
        }
    }

    /// With a mistake in its path a server was not protected, and nobody heard of it.
    #[test]
    fn what_is_not_there_is_told() {
        let settings = Settings {
            protect_processes: vec!["/usr/bin/sleep".into(), "/no/such".into()],
            protect_control_groups: vec!["/".to_owned(), "/nosuch".to_owned()],
            ..Settings::new("v0")
        };
        let said = "now, and nobody is protected by it until there is";
        assert_eq!(
            warnings(&settings),
            [
                format!("protect-processes: there is no file /no/such {said}"),
                format!("protect-control-groups: there is no control group /nosuch {said}"),
            ]
        );
    }
}
