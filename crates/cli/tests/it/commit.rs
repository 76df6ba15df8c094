//! The program knows the commit it was built from, and does without where there is none.

#[path = "../../build/commit.rs"]
mod build;

use std::fs;
use std::path::Path;
use std::process::Command;

use build::{commit, watched};

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

fn git(directory: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    let mut git = Command::new("git");
    git.args(identity).args(arguments).current_dir(directory);
    let output = git.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

/// A checkout with one crate, and the crate's directory in it.
fn checkout() -> (tempfile::TempDir, std::path::PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let directory = top.path().join("crates/one");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("Cargo.toml"), "[package]\n").unwrap();
    git(top.path(), &["init", "--quiet"]);
    git(top.path(), &["add", "."]);
    git(top.path(), &["commit", "--quiet", "--message", "one"]);
    (top, directory)
}

#[test]
fn a_checkout_has_a_commit_and_says_that_a_source_was_changed() {
    let (top, directory) = checkout();
    let head = git(top.path(), &["rev-parse", "--short=12", "HEAD"]);
    assert_eq!(commit(&directory), Some(head.clone()));
    fs::write(top.path().join("notes"), "no source").unwrap();
    assert_eq!(commit(&directory), Some(head.clone()));
    fs::write(directory.join("Cargo.toml"), "[package]\nname = \"one\"\n").unwrap();
    assert_eq!(commit(&directory), Some(format!("{head}, changed")));
}

/// A file that is watched and does not change would leave an old commit in the program.
#[test]
fn a_commit_changes_a_watched_file() {
    let (top, directory) = checkout();
    let read = || {
        let contents = watched(&directory).into_iter().map(fs::read);
        contents.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let before = read();
    assert!(before.len() >= 2, "HEAD and its branch");
    // References that are packed are no files of their own.
    git(top.path(), &["pack-refs", "--all"]);
    let packed = read();
    git(
        top.path(),
        &["commit", "--quiet", "--allow-empty", "--message", "two"],
    );
    let after = read();
    assert!(before != packed && packed != after);
    git(
        top.path(),
        &["commit", "--quiet", "--allow-empty", "--message", "three"],
    );
    assert!(after != read());
}

/// An archive may be unpacked within somebody's repository.
#[test]
fn outside_a_checkout_there_is_none() {
    let nowhere = tempfile::tempdir().unwrap();
    assert_eq!(commit(nowhere.path()), None);
    assert!(watched(nowhere.path()).is_empty());
    let (top, _directory) = checkout();
    let unpacked = top.path().join("crates/two");
    fs::create_dir_all(&unpacked).unwrap();
    fs::write(unpacked.join("Cargo.toml"), "[package]\n").unwrap();
    assert_eq!(commit(&unpacked), None);
}

/// `--version` and the lab's report: the same words.
#[test]
fn the_program_tells_version_and_commit() {
    let output = |arguments: &[&str]| {
        let mut plimsoll = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let output = plimsoll.args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = concat!("plimsoll ", env!("CARGO_PKG_VERSION"));
    assert_eq!(output(&["-V"]).trim_end(), version);
    let told = concat!("plimsoll ", env!("PLIMSOLL_VERSION"));
    assert_eq!(output(&["--version"]).trim_end(), told);
    // Which one is not compared: commits come while tests run.
    let given = option_env!("PLIMSOLL_COMMIT").is_some_and(|given| !given.is_empty());
    let is_known = given || commit(Path::new(MANIFEST)).is_some();
    assert_eq!(told.contains(" (commit "), is_known, "{told}");
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("report.html");
    let path = page.to_str().unwrap();
    output(&["lab", "report", "mh-model", "--quick", "-o", path]);
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains(&format!("{told}: plimsoll lab report mh-model")),
        "{told}"
    );
}
