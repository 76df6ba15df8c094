//! Which commit a program is built from, asked of git. A build without git, or outside a
//! checkout, has none.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What of the checkout a program is built from.
pub(crate) const SOURCES: [&str; 4] = ["crates", "experiments", "Cargo.toml", "Cargo.lock"];

/// The commit that `directory`, a crate's, is checked out of: 12 digits, and `, changed`
/// if a source differs from it. None if no repository has the crate's manifest: one
/// around an unpacked archive has not.
pub(crate) fn commit(directory: &Path) -> Option<String> {
    git(directory, &["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let commit = git(directory, &["rev-parse", "--short=12", "HEAD"])?;
    let top = git(directory, &["rev-parse", "--show-toplevel"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let changed = git(Path::new(&top), &status)?;
    let suffix = if changed.is_empty() { "" } else { ", changed" };
    Some(format!("{commit}{suffix}"))
}

/// The files of git that change with the commit, those that exist. The log changes with
/// each commit and checkout; a repository may have none.
pub(crate) fn watched(directory: &Path) -> Vec<PathBuf> {
    let branch = git(directory, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned);
    let paths = names.into_iter().chain(branch);
    let paths = paths.filter_map(|name| git(directory, &["rev-parse", "--git-path", &name]));
    let paths = paths.map(|path| directory.join(path));
    paths.filter(|path| path.exists()).collect()
}

/// What git answers, if it does not fail.
fn git(directory: &Path, arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    // Without locks: a build writes nothing into a checkout's `.git`.
    git.arg("--no-optional-locks").args(arguments);
    let output = git.current_dir(directory).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
