//! Control groups that processes of a testbed share a CPU by.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Host, namespace};

/// Where hierarchies of control groups are.
pub(crate) const HIERARCHIES: &str = "/sys/fs/cgroup";

/// A control group. Dropping it removes it, if nobody is in it any more; else its testbed
/// does, or the next one if this process is killed.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    /// Makes a group of the host's testbed within another one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if `within` is no directory of `/sys/fs/cgroup`, or the kernel refuses.
    pub fn make(host: &Host, within: &Path, name: &str) -> Result<Self, Error> {
        let registration = &host.registration;
        let path = within.join(namespace::prefix(registration.id()) + name);
        registration.add_control_group(&path)?;
        fs::create_dir(&path).map_err(Error::io(format!(
            "make the control group {}",
            path.display()
        )))?;
        Ok(Self { path })
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
