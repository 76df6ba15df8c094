//! What `scripts/vm-files` has fetched, and the initial file system of a machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::Archive;

/// Programs of this host that the steps use.
const TOOLS: [&str; 2] = ["ip", "nft"];
const TOOL_PLACES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/bin"];

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As asked for, like `6.12`.
    pub series: String,
    /// As `uname -r` says in the machine.
    pub release: String,
    directory: PathBuf,
}

impl Kernel {
    /// The kernel of a series below `directory`; `None` if it was not fetched.
    #[must_use]
    pub fn find(directory: &Path, series: &str) -> Option<Self> {
        let directory = directory.join("kernels").join(series);
        let release = fs::read_to_string(directory.join("release")).ok()?;
        Some(Self {
            series: series.to_owned(),
            release: release.trim().to_owned(),
            directory,
        })
    }

    /// The kernel itself.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    /// Major and minor number.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        let mut numbers = self.release.split(['.', '-']).map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        (next(), next())
    }
}

/// QEMU: this host's, or the one that was fetched.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    fetched: Option<PathBuf>,
}

impl Qemu {
    /// The one to use.
    #[must_use]
    pub fn find(directory: &Path) -> Self {
        let fetched = directory.join("qemu");
        let program = fetched.join("usr/bin/qemu-system-x86_64");
        if program.exists() {
            return Self {
                program,
                fetched: Some(fetched),
            };
        }
        Self {
            program: PathBuf::from("qemu-system-x86_64"),
            fetched: None,
        }
    }

    /// The command, after the words of `before`, which become it. It dies with the thread
    /// that starts it.
    #[must_use]
    pub fn command(&self, before: &[&str]) -> Command {
        let words = before.iter().chain(&["setpriv", "--pdeathsig", "KILL"]);
        let mut words = words.map(Path::new).chain([self.program.as_path()]);
        let mut command = Command::new(words.next().unwrap_or(&self.program));
        command.args(words);
        if let Some(fetched) = &self.fetched {
            let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
            let libraries = libraries.map(|path| fetched.join(path).display().to_string());
            command.env("LD_LIBRARY_PATH", libraries.join(":"));
            for data in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(fetched.join(data));
            }
        }
        command
    }
}

/// The initial file system for `kernel`: the init process beside this program, the
/// `plimsoll` command, tools with their libraries, and the kernel's modules.
///
/// # Errors
///
/// Something is missing; the message names it.
pub fn initial_file_system(kernel: &Kernel, plimsoll: &Path, guest: &Path) -> io::Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.console();
    for directory in ["/proc", "/sys", "/run", "/tmp", "/modules"] {
        archive.directory(directory);
    }
    let add = |archive: &mut Archive, name: &str, path: &Path| {
        archive
            .program(name, path)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    };
    add(&mut archive, "plimsoll", plimsoll)?;
    add(&mut archive, "guest", guest)?;
    archive.file(Path::new("/init"), guest)?;
    for tool in TOOLS {
        let places = TOOL_PLACES.map(|place| Path::new(place).join(tool));
        let path = places.iter().find(|path| path.exists());
        let path = path.ok_or_else(|| io::Error::other(format!("`{tool}` is not installed")))?;
        add(&mut archive, tool, path)?;
    }
    for module in fs::read_dir(kernel.directory.join("modules"))? {
        let module = module?;
        archive.file(
            &Path::new("/modules").join(module.file_name()),
            &module.path(),
        )?;
    }
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_knows_its_version() {
        let kernel = |release: &str| Kernel {
            series: String::new(),
            release: release.to_owned(),
            directory: PathBuf::new(),
        };
        assert_eq!(kernel("6.1.0-50-amd64").version(), (6, 1));
        assert_eq!(kernel("7.3.4+deb13-amd64").version(), (7, 3));
        assert_eq!(kernel("6.19-rc1").version(), (6, 19));
    }
}
