//! A file has 500 lines of code at most and a function of C fits a screen of 60: who looks for
//! something reads little. Functions of Rust are clippy's (`too-many-lines-threshold`).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 60;

/// Rust and C of the workspace, but for what a build made.
fn sources() -> Vec<PathBuf> {
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
    files
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension() == Some(OsStr::new(ending))
}

/// Neither blank nor a comment of its own.
fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty()
        && !["//", "/*", "* ", "*/"]
            .iter()
            .any(|mark| line.starts_with(mark))
}

/// The first lines of C's functions that are too long, and how long.
fn long_functions(source: &str) -> Vec<(&str, usize)> {
    let (mut first, mut length) = ("", 0);
    let mut long = Vec::new();
    for line in source.lines() {
        let is_outside = !line.starts_with([' ', '\t', '{', '}', '/', '#']) && !line.is_empty();
        if is_outside {
            (first, length) = (line, 0);
        }
        length += usize::from(is_code(line));
        if line == "}" && length > FUNCTION_LINES_MAX {
            long.push((first, length));
        }
    }
    long
}

#[test]
fn files_and_functions_of_c_are_short() {
    let mut faults = Vec::new();
    let sources = sources();
    assert!(sources.len() > 500, "{} files: not all", sources.len());
    for path in sources {
        let source = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
        let lines = source.lines().filter(|line| is_code(line)).count();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{}: {lines} lines of code", path.display()));
        }
        if !has_ending(&path, "rs") {
            let long = long_functions(&source).into_iter();
            faults.extend(
                long.map(|(first, lines)| format!("{}: {lines} lines: {first}", path.display())),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_too_long_is_seen() {
    let body = "\tcall();\n\t/* said */\n".repeat(59);
    let long = format!("/* What\n * it does. */\nstatic int act(void)\n{{\n{body}}}\n");
    assert_eq!(long_functions(&long), [("static int act(void)", 62)]);
    assert_eq!(
        long_functions("static int act(void)\n{\n\tcall();\n}\n"),
        []
    );
}
