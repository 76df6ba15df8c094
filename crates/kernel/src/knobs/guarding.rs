//! Who guards an interface, whatever it was called when its guard started: files of guards have
//! the names of then.

use std::path::{Path, PathBuf};

use super::device::Identity;
use super::lock::Lock;
use super::recovery::{files, name_of};
use super::{DIRECTORY, OpenError, file_name};

/// A running guard of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarding {
    /// Its process.
    pub pid: u32,
    /// What it calls the interface.
    pub name: String,
}

impl Guarding {
    /// To be put behind the process where it calls `interface` otherwise; empty where not.
    #[must_use]
    pub fn otherwise(&self, interface: &str) -> String {
        match self.name == interface {
            true => String::new(),
            false => format!(", as `{}`, its name when that started", self.name),
        }
    }
}

/// The guard of `interface` of the current network namespace now.
///
/// # Errors
///
/// No such interface, or this process may not look ([`OpenError::wants_root`]).
pub fn owner(interface: &str) -> Result<Option<Guarding>, OpenError> {
    of(Path::new(DIRECTORY), interface, &Identity::of(interface)?)
}

/// The file with this ending of the running guard of `interface` in the current network
/// namespace, or of the one that there would be.
///
/// # Errors
///
/// As [`owner`].
pub fn file_of_guard(interface: &str, extension: &str) -> Result<PathBuf, OpenError> {
    let directory = Path::new(DIRECTORY);
    let identity = Identity::of(interface)?;
    let guarding = of(directory, interface, &identity)?;
    let name = guarding.map_or_else(|| interface.to_owned(), |guarding| guarding.name);
    Ok(directory.join(file_name(&name, &identity, extension)))
}

/// By the interface's number first. Another interface may have its former name now, and is
/// guarded by nobody else while the files of that name are taken.
pub(super) fn of(
    directory: &Path,
    interface: &str,
    identity: &Identity,
) -> Result<Option<Guarding>, OpenError> {
    let cookie = identity.netns_cookie;
    let of_name = Lock::owner(&directory.join(file_name(interface, identity, "lock")))?;
    for path in files(directory, cookie, "lock")? {
        if Lock::ifindex(&path) == Some(identity.ifindex)
            && let Some(pid) = Lock::owner(&path)?
        {
            let name = name_of(&path, cookie).to_owned();
            return Ok(Some(Guarding { pid, name }));
        }
    }
    let name = interface.to_owned();
    Ok(of_name.map(|pid| Guarding { pid, name }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::ip;
    use crate::knobs::Knobs;
    use crate::namespace;

    /// A second guard was let in, and nobody found the first. Needs root.
    #[test]
    fn the_guard_of_an_interface_that_was_renamed_is_found() {
        let inside = || {
            ip("link add v0 type veth peer name v1");
            let directory = tempfile::tempdir().unwrap();
            let owner = |name: &str| {
                let identity = Identity::of(name).unwrap();
                of(directory.path(), name, &identity).unwrap()
            };
            let first = Knobs::open_in(directory.path(), "v0").unwrap();
            let guarding = Guarding {
                pid: std::process::id(),
                name: "v0".to_owned(),
            };
            assert_eq!(guarding.otherwise("v0"), "");
            assert_eq!(owner("v0"), Some(guarding.clone()));
            assert_eq!(owner("v1"), None);
            ip("link set v0 name new0");
            assert_eq!(owner("new0"), Some(guarding.clone()));
            let refused = Knobs::open_in(directory.path(), "new0").unwrap_err();
            let said = format!(
                "`new0` is guarded by process {} already, as `v0`, its name when that started: end that one first",
                guarding.pid
            );
            assert_eq!(refused.to_string(), said);
            // Another one of the former name.
            ip("link set v1 name v0");
            assert_eq!(owner("v0"), Some(guarding));
            drop(first);
            assert_eq!((owner("v0"), owner("new0")), (None, None));
        };
        namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
    }
}
