//! An initial file system for a kernel: a cpio archive of the "newc" form
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
const NO_DEVICE: (usize, usize) = (0, 0);
/// `/dev/console` (`Documentation/admin-guide/devices.txt`).
const CONSOLE: (usize, usize) = (5, 1);

/// An archive that grows.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl Archive {
    /// Adds the directory, and those above it.
    pub fn directory(&mut self, path: &str) {
        self.directories_above(&Path::new(path).join("below"));
    }

    /// Adds `/dev/console`, without which the kernel gives the init process no standard
    /// output.
    pub fn console(&mut self) {
        self.directory("/dev");
        self.entry(Path::new("/dev/console"), CHARACTER_DEVICE, CONSOLE, &[]);
    }

    /// Adds the file `source` as `path`.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn file(&mut self, path: &Path, source: &Path) -> io::Result<()> {
        if self.files.insert(path.to_owned()) {
            self.directories_above(path);
            self.entry(path, EXECUTABLE, NO_DEVICE, &fs::read(source)?);
        }
        Ok(())
    }

    /// Adds a program as `/bin/NAME` and the libraries that it is linked with, where its
    /// loader looks for them.
    ///
    /// # Errors
    ///
    /// It cannot be read, or `ldd` is missing.
    pub fn program(&mut self, name: &str, source: &Path) -> io::Result<()> {
        self.file(&Path::new("/bin").join(name), source)?;
        let linked = Command::new("ldd").arg(source).output()?;
        for library in libraries(&String::from_utf8_lossy(&linked.stdout)) {
            self.file(&library, &library)?;
        }
        Ok(())
    }

    /// The whole archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("/TRAILER!!!"), 0, NO_DEVICE, &[]);
        self.bytes
    }

    fn directories_above(&mut self, path: &Path) {
        let above: Vec<_> = path.ancestors().skip(1).map(Path::to_owned).collect();
        for directory in above.into_iter().rev() {
            if directory != Path::new("/") && self.directories.insert(directory.clone()) {
                self.entry(&directory, DIRECTORY, NO_DEVICE, &[]);
            }
        }
    }

    fn entry(&mut self, path: &Path, mode: u32, device: (usize, usize), content: &[u8]) {
        let name = path.to_string_lossy();
        let name = name.trim_start_matches('/');
        let inode = self.directories.len() + self.files.len();
        let mut header = String::from("070701");
        // Inode, mode, owner, group, links, time, size, the file system's device, its
        // own, length of the name with its end, checksum.
        let fields = [
            inode,
            mode as usize,
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            device.0,
            device.1,
            name.len() + 1,
            0,
        ];
        for field in fields {
            let _ = write!(header, "{field:08x}");
        }
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        let whole = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(whole, 0);
    }
}

/// The files that `ldd` names.
fn libraries(text: &str) -> Vec<PathBuf> {
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_what_the_loader_finds() {
        let text =
            "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\t/lib64/ld.so (0x2)\n";
        let expected = ["/lib/libc.so.6", "/lib64/ld.so"].map(PathBuf::from);
        assert_eq!(libraries(text), expected);
        assert_eq!(
            libraries("\tnot a dynamic executable\n"),
            [""; 0].map(PathBuf::from)
        );
    }

    #[test]
    fn entries_are_aligned_and_directories_come_first() {
        let mut archive = Archive::default();
        archive.directory("/proc");
        archive
            .file(Path::new("/lib/x/one"), Path::new("/proc/self/cmdline"))
            .unwrap();
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<_> = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap())
            .collect();
        assert_eq!(names, ["proc", "lib", "lib/x", "lib/x/one", "TRAILER!!!"]);
    }
}
