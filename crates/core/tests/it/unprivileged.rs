//! `scripts/tests-unprivileged` runs all tests but those that `scripts/need-root` names, and what
//! is named there exists. A crate's tests are programs of their own, or modules of one that joins
//! them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A crate, and a name or a pattern.
fn lines() -> Vec<(String, String)> {
    let list = fs::read_to_string(top().join("scripts/need-root")).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (krate, what) = line.split_once(' ').expect("a crate and what of it");
        (krate.to_owned(), what.to_owned())
    };
    lines.map(pair).collect()
}

/// All sources below, in one text.
fn sources(directory: &Path) -> String {
    // Some crates have no tests beside their sources.
    let entries = fs::read_dir(directory).into_iter().flatten();
    let text = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => fs::read_to_string(path).unwrap_or_default(),
    };
    entries.map(|entry| text(entry.unwrap().path())).collect()
}

/// Files of Rust in a folder, without their ending.
fn rust_files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .collect()
}

/// Folders of a crate's programs that join many files.
fn joined(krate: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(krate.join("tests")).into_iter().flatten();
    let folders = folders.map(|entry| entry.unwrap().path());
    folders
        .filter(|folder| folder.join("main.rs").is_file())
        .collect()
}

fn exists(krate: &str, what: &str) -> bool {
    let krate = top().join("crates").join(krate);
    if let Some(pattern) = what.strip_prefix("tests/") {
        let begins = pattern.trim_end_matches('*');
        let modules = joined(&krate)
            .into_iter()
            .flat_map(|folder| rust_files(&folder));
        let mut names = rust_files(&krate.join("tests")).into_iter().chain(modules);
        return names.any(|name| match begins == pattern {
            true => name == begins,
            false => name.starts_with(begins),
        });
    }
    let name = what.trim_end_matches("::").rsplit("::").next().unwrap();
    let kind = if what.ends_with("::") { "mod" } else { "fn" };
    let declared = [
        format!("{kind} {name}("),
        format!("{kind} {name} "),
        format!("{kind} {name};"),
    ];
    let sources = sources(&krate.join("src")) + &sources(&krate.join("tests"));
    declared.iter().any(|one| sources.contains(one))
}

/// A program that is renamed would run beside others again, and nobody would notice.
#[test]
fn programs_that_need_time_by_the_list_exist() {
    let list = fs::read_to_string(top().join("scripts/need-time")).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let programs = lines.filter_map(|line| line.rsplit_once(' ')?.0.split_once(" tests/"));
    let mut count = 0;
    for (krate, pattern) in programs {
        count += 1;
        let what = format!("tests/{pattern}");
        assert!(exists(krate, &what), "{krate} has no {what}");
    }
    assert!(count > 5, "{count} programs: not all");
}

/// No compiler misses a file that nobody names.
#[test]
fn every_file_of_a_joined_program_is_a_module_of_it() {
    let crates = fs::read_dir(top().join("crates")).unwrap();
    let folders = crates.flat_map(|entry| joined(&entry.unwrap().path()));
    let folders: Vec<_> = folders.collect();
    assert!(!folders.is_empty(), "no program joins others");
    for folder in folders {
        let main = fs::read_to_string(folder.join("main.rs")).unwrap();
        let mut files = rust_files(&folder);
        files.retain(|file| file != "main");
        assert!(files.len() > 1, "{}: nothing is joined", folder.display());
        for file in files {
            let declared = format!("mod {file};");
            assert!(
                main.lines().any(|line| line == declared),
                "{}: no {declared}",
                folder.display()
            );
        }
    }
}

#[test]
fn what_needs_root_by_the_list_exists() {
    let lines = lines();
    assert!(lines.len() > 50, "{} lines: not all", lines.len());
    let gone = lines.iter().filter(|(krate, what)| !exists(krate, what));
    let gone: Vec<_> = gone.collect();
    assert!(gone.is_empty(), "{gone:?}");
    assert!(!exists("guard", "program::no_such_tests::"));
    assert!(!exists("kernel", "tests/no_such_program"));
}

/// The script beside a cargo that only tells what it is asked for, and fails where it is asked
/// for this.
fn run(name: &str, fails_at: &str) -> (Option<i32>, String) {
    let cargo = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in\n*--list) echo 'program::known_tests::a: test'; echo 'b::c: test' ;;\n\
         *'{fails_at}'*) echo \"$*\"; exit 101 ;;\n*) echo \"$*\" ;;\nesac\n"
    );
    fs::write(&cargo, text).unwrap();
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).unwrap();
    let script = top().join("scripts/tests-unprivileged");
    let output = Command::new(script).env("CARGO", &cargo).output();
    fs::remove_file(&cargo).unwrap();
    let output = output.unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn every_crate_is_tested_but_what_is_named_and_that_is_said() {
    let (code, said) = run("unprivileged", "nothing of this");
    assert_eq!(code, Some(0), "{said}");
    let crates = fs::read_dir(top().join("crates")).unwrap();
    for krate in crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        let name = format!("plimsoll-{krate}");
        assert!(
            said.split_whitespace().any(|word| word == name),
            "{name}: {said}"
        );
    }
    for (krate, what) in lines() {
        let is_program = what.starts_with("tests/");
        let skipped = format!("--skip {what}");
        let mut of_crate = said
            .lines()
            .filter(|line| line.contains(&format!("-{krate} --lib")));
        assert!(
            is_program || of_crate.any(|line| line.contains(&skipped)),
            "{krate} {what}"
        );
    }
    assert!(
        said.contains("plimsoll-cli --test it -- commit:: lab:: promlint::\n"),
        "{said}"
    );
    let left = said.split("Left out").nth(1).expect("it is said");
    assert!(left.contains("guard: 1 of 2 tests\n"), "{left}");
    assert!(
        left.contains("kernel: all tests of private_files knobs routing turned\n"),
        "{left}"
    );
}

#[test]
fn what_fails_anywhere_fails_the_run() {
    for part in ["-p plimsoll-core", "guard --lib", "stack --lib", "--doc"] {
        assert_eq!(run("unprivileged-fails", part).0, Some(1), "{part}");
    }
}
