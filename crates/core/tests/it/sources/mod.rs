//! The workspace's own sources, as tests of their form read them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Rust and C of the workspace, but for what a build made.
pub(crate) fn sources() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![top.join("crates"), top.join("fuzz")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|why| panic!("{folder:?}: {why}"));
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() && path.file_name() != Some(OsStr::new("target")) {
                folders.push(path);
            } else if ["rs", "c", "h"].iter().any(|end| has_ending(&path, end)) {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 500, "{} files: not all", files.len());
    files
}

pub(crate) fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension() == Some(OsStr::new(ending))
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}

/// Neither blank nor a comment of its own.
pub(crate) fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty()
        && !["//", "/*", "* ", "*/"]
            .iter()
            .any(|mark| line.starts_with(mark))
}
