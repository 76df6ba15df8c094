//! The Debian package and the service that it brings: its unit and generated pages
//! ([`unit`]), its life under dpkg ([`files`]), and the service under a systemd that
//! has booted ([`service`]). Needs root.

mod files;
mod service;
mod unit;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::PROGRAM;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// The packages as [`crate::common::machine::Machine`]s that were given [`packages`] see them.
const PACKAGE: &str = "/tmp/files/plimsoll.deb";
/// Another version, with other settings in `/etc/plimsoll/guard.toml`.
const LATER_PACKAGE: &str = "/tmp/files/plimsoll-later.deb";
/// With documentation, which some machines leave out of all packages, and without
/// what other packages do when files come: an index of all manual pages takes seconds.
const INSTALL: &str = "dpkg --no-triggers --path-include='/*' --install";

/// Runs a program that must succeed.
fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{error}: {command:?} (scripts/setup)"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// A directory with both packages. They are built as `make deb` does, once, but of
/// the program under test instead of a release build.
fn packages() -> &'static Path {
    static PACKAGES: OnceLock<PathBuf> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
        let package = directory.join("plimsoll.deb");
        // What an older version of this test or the program left.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        run(Command::new(format!("{ROOT}/scripts/deb")).args([
            PROGRAM.as_ref(),
            package.as_os_str(),
            "-Znone".as_ref(),
        ]));
        build_later(&package, &directory);
        directory
    })
}

/// Makes the later version out of the first.
fn build_later(package: &Path, directory: &Path) {
    let tree = directory.join("tree");
    run(Command::new("dpkg-deb").arg("-R").args([package, &tree]));
    let edit = |file: &str, edit: &dyn Fn(String) -> String| {
        let path = tree.join(file);
        fs::write(&path, edit(fs::read_to_string(&path).unwrap())).unwrap();
    };
    edit("DEBIAN/control", &|text| {
        text.replace("\nVersion: ", "\nVersion: 1000.")
    });
    edit("etc/plimsoll/guard.toml", &|text| {
        text + "\n# A later version's\n"
    });
    run(Command::new("dpkg-deb")
        .args(["-Znone", "--root-owner-group", "-b"])
        .args([&tree, &directory.join("plimsoll-later.deb")]));
}
