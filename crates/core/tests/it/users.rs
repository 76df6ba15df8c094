//! The crate's documentation says who uses which decision: whoever is named does. And crates
//! without doc tests have no code in theirs, those without unit tests none in their sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rows of the table: a module and the last column.
fn rows() -> Vec<(String, String)> {
    let text = include_str!("../../src/lib.rs");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("//! | [`")?.split(" | ");
        let module = cells.next()?.strip_suffix("`]")?.to_owned();
        Some((module, cells.last()?.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut all = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    all
}

fn uses(krate: &str, module: &str) -> bool {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{krate}/src"));
    let wanted = format!("plimsoll_core::{module}");
    let mut texts = sources(&directory).into_iter().map(fs::read_to_string);
    texts.any(|text| text.unwrap().contains(&wanted))
}

#[test]
fn who_uses_a_decision_is_named_and_no_other() {
    let rows = rows();
    let declared = include_str!("../../src/lib.rs")
        .matches("\npub mod ")
        .count();
    // What all share decides nothing.
    let helpers = ["config", "time"].len();
    assert_eq!(rows.len(), declared - helpers, "every decision has its row");
    for (module, users) in rows {
        for krate in [
            "guard", "kernel", "programs", "sim", "stack", "timers", "testbed",
        ] {
            let (named, does) = (users.contains(krate), uses(krate, &module));
            assert_eq!(
                named, does,
                "{krate} is named as user of {module}, or uses it"
            );
        }
    }
}

/// It said that shedding alone is used, when the guard used `contention` as well.
#[test]
fn what_is_used_of_charge_is_named_and_nothing_else() {
    let text = include_str!("../../src/lib.rs");
    let (_, sentence) = text.split_once("Of `charge`").unwrap();
    let (sentence, _) = sentence.split_once("outside of tests").unwrap();
    let named = after(sentence, "[`charge::");
    let crates = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    let others = crates.map(|entry| entry.unwrap().path().join("src"));
    let others = others.filter(|one| one.is_dir() && !one.ends_with("core/src"));
    let texts = others.flat_map(|directory| sources(&directory));
    let texts = texts.map(|file| fs::read_to_string(file).unwrap());
    let used = texts.flat_map(|text| after(&text, "plimsoll_core::charge::"));
    assert_eq!(named, used.collect());
}

/// The names that stand behind `mark`; a brace stands for itself.
fn after(text: &str, mark: &str) -> BTreeSet<String> {
    let is_name = |c: char| c == '{' || c == '_' || c.is_ascii_alphanumeric();
    let rests = text.split(mark).skip(1);
    rests
        .map(|rest| rest.chars().take_while(|&c| is_name(c)).collect())
        .collect()
}

/// Each doc test run takes seconds of the suite: crates without doc tests have none. One that is
/// written there would never run.
#[test]
fn crates_without_doc_tests_have_no_code_in_their_documentation() {
    let is_code = |line: &str| line.trim_start_matches(['/', '!', ' ']).starts_with("```");
    assert_none_with("doctest = false", is_code);
}

/// Each test program takes its time to link: a crate without unit tests builds none.
#[test]
fn crates_without_unit_tests_have_none_in_their_sources() {
    assert_none_with("[lib]\ntest = false", |line| line.trim() == "#[test]");
}

/// No source of a crate whose manifest has this has such a line: it would be a test that never
/// runs.
fn assert_none_with(has: &str, is_test: impl Fn(&str) -> bool) {
    let crates = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    let mut faults = Vec::new();
    let mut found = 0;
    for directory in crates.map(|entry| entry.unwrap().path()) {
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
        if !manifest.contains(has) {
            continue;
        }
        found += 1;
        for file in sources(&directory.join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            if text.lines().any(&is_test) {
                faults.push(format!("{}: a test that never runs", file.display()));
            }
        }
    }
    assert!(found > 0, "no crate has `{has}`");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
