//! What `scripts/commit-msg` says of commit messages, and when `scripts/setup` makes it a hook.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Faults of this message, in the script's words.
fn faults(message: &str) -> String {
    let id = std::process::id();
    let file = std::env::temp_dir().join(format!("plimsoll-commit-message-{id}"));
    fs::write(&file, message).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/commit-msg");
    let output = Command::new(script).arg(&file).output().unwrap();
    fs::remove_file(&file).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn a_message_has_an_area_a_short_summary_and_a_body() {
    let longest = format!("guard: {}\n\nWhy.\n", "ü".repeat(65));
    let too_long = longest.replace("\n\n", "x\n\n");
    let verbose = "guard: act\n\n# ------------------------ >8 ------------------------\n+code\n";
    for (message, fault) in [
        ("guard: act\n\nWhy.\n", ""),
        ("\n# Of git.\nguard, no-std: act\n\nWhy.\n", ""),
        ("Merge branch 'main'\n", ""),
        ("fixup! guard: act\n", ""),
        (longest.as_str(), ""),
        (too_long.as_str(), "73 columns"),
        ("Act\n\nWhy.\n", "`area: summary`"),
        ("guard: \n\nWhy.\n", "`area: summary`"),
        ("guard: act\n", "no body"),
        ("guard: act\n\n# Of git.\n", "no body"),
        (verbose, "no body"),
        ("guard: act\nWhy.\n", "no blank line"),
        ("", "no body"),
    ] {
        let said = faults(message);
        assert_eq!(said.is_empty(), fault.is_empty(), "{message}: {said}");
        assert!(said.contains(fault), "{message}: {said}");
    }
}

/// A folder with the scripts, where `scripts/setup` can install no package.
fn clone_of(name: &str) -> PathBuf {
    let id = std::process::id();
    let clone = std::env::temp_dir().join(format!("plimsoll-clone-{id}-{name}"));
    let _ = fs::remove_dir_all(&clone);
    fs::create_dir_all(clone.join("scripts")).unwrap();
    fs::create_dir_all(clone.join("bin")).unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    for script in ["setup", "commit-msg"] {
        fs::copy(here.join(script), clone.join("scripts").join(script)).unwrap();
    }
    let refuses = clone.join("bin/apt-get");
    fs::write(&refuses, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(refuses, fs::Permissions::from_mode(0o755)).unwrap();
    clone
}

fn set_up(clone: &Path, argument: Option<&str>) {
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", clone.join("bin").display());
    // Read and not executed: whoever forks beside this may still have the copy open for writing.
    let mut setup = Command::new("sh");
    let setup = setup.arg(clone.join("scripts/setup"));
    setup.args(argument).env("PATH", path).output().unwrap();
}

#[test]
fn setup_installs_the_hook_in_a_clone_that_has_none() {
    let clone = clone_of("without");
    let hook = clone.join(".git/hooks/commit-msg");
    // A folder of sources that nobody cloned.
    set_up(&clone, None);
    assert!(!clone.join(".git").exists());
    fs::create_dir_all(clone.join(".git/hooks")).unwrap();
    set_up(&clone, Some("--check"));
    assert!(!hook.exists(), "it was only to look");
    set_up(&clone, None);
    let script = fs::canonicalize(clone.join("scripts/commit-msg")).unwrap();
    assert_eq!(fs::canonicalize(hook).unwrap(), script);
    fs::remove_dir_all(clone).unwrap();
}

#[test]
fn setup_leaves_a_hook_of_the_user_s() {
    let clone = clone_of("with");
    let hook = clone.join(".git/hooks/commit-msg");
    fs::create_dir_all(clone.join(".git/hooks")).unwrap();
    fs::write(&hook, "theirs").unwrap();
    set_up(&clone, None);
    assert_eq!(fs::read_to_string(&hook).unwrap(), "theirs");
    fs::remove_file(&hook).unwrap();
    symlink("not-there-now", &hook).unwrap();
    set_up(&clone, None);
    assert_eq!(fs::read_link(hook).unwrap(), Path::new("not-there-now"));
    fs::remove_dir_all(clone).unwrap();
}
