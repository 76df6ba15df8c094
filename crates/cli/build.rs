//! How the program is linked: its relocations packed (`DT_RELR`), which saves a megabyte.
//! Needs the C library of Linux distributions from 2022 on (glibc 2.36), older than any
//! kernel that the guard runs on. And which commit it is built from.

#[path = "build/commit.rs"]
mod commit;

use std::env;
use std::path::Path;

/// Set for a build outside a checkout: the commit that its sources are of.
const GIVEN: &str = "PLIMSOLL_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    let version = env::var("CARGO_PKG_VERSION").expect("set by cargo");
    let commit = commit().map(|commit| format!(" (commit {commit})"));
    let commit = commit.unwrap_or_default();
    println!("cargo:rustc-env=PLIMSOLL_VERSION={version}{commit}");
}

/// The one given, or that of the checkout, which is watched then.
fn commit() -> Option<String> {
    println!("cargo:rerun-if-env-changed={GIVEN}");
    let directory = env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo");
    let directory = Path::new(&directory);
    let given = env::var(GIVEN).ok().filter(|given| !given.is_empty());
    if given.is_none() {
        let sources = commit::SOURCES.map(|source| directory.join("../..").join(source));
        // A path that is not there would make cargo run this script in every build.
        let sources = sources.into_iter().filter(|source| source.exists());
        for path in commit::watched(directory).into_iter().chain(sources) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    given.or_else(|| commit::commit(directory))
}
