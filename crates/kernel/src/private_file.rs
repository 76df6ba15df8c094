//! Files that are their owner's alone, whatever the umask, and that a reader finds as a
//! whole: written beside, synced, renamed, the directory synced.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Replaces a file's content; on disk when this returns.
///
/// # Errors
///
/// The file cannot be made beside the old one, written or renamed. The old one stays.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let mut file = open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_directory(path)
}

/// Removes a file, if it is there; gone from disk when this returns.
///
/// # Errors
///
/// The file cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_directory(path),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    PathBuf::from(name)
}

/// Makes a file, or empties it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// The directory of a file; that of a name alone is the current one.
#[must_use]
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_in_the_current_directory() {
        assert_eq!(directory(Path::new("known.json")), Path::new("."));
        assert_eq!(directory(Path::new("/known.json")), Path::new("/"));
        assert_eq!(directory(Path::new("guard/known.json")), Path::new("guard"));
        sync_directory(Path::new("Cargo.toml")).unwrap();
    }
}
